//! Ranks as threads of one process: what is sent lies in a place that all of them see.

use crate::transport::{Lost, Transport};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a rank sends, and which part of it each other gets.
type Table = (Vec<u32>, Vec<Range<usize>>);

/// What ranks of one process share.
#[derive(Debug)]
struct Hall {
    size: usize,
    tables: Vec<Mutex<Table>>,
    gate: Mutex<Gate>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    waiting: usize,
    /// How often it has opened.
    opened: u64,
    /// Whether a rank has gone.
    broken: bool,
}

/// One rank among threads.
#[derive(Debug)]
pub(crate) struct ThreadRank {
    rank: usize,
    hall: Arc<Hall>,
    /// Whether it may go without the others' harm.
    finished: bool,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadRank {
    /// So many ranks.
    pub(crate) fn all(size: usize) -> Vec<ThreadRank> {
        let hall = Arc::new(Hall {
            size,
            tables: (0..size).map(|_| Mutex::default()).collect(),
            gate: Mutex::default(),
            moved: Condvar::new(),
        });
        let rank = |rank| ThreadRank { rank, hall: Arc::clone(&hall), finished: false };
        (0..size).map(rank).collect()
    }

    /// It has said all that it has to say.
    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    /// Waits for all ranks.
    fn meet(&self) -> Result<(), Lost> {
        let lost = Lost { rank: self.rank };
        let mut gate = held(&self.hall.gate);
        if gate.broken {
            return Err(lost);
        }
        gate.waiting += 1;
        if gate.waiting == self.hall.size {
            gate.waiting = 0;
            gate.opened += 1;
            self.hall.moved.notify_all();
            return Ok(());
        }
        let opened = gate.opened;
        while gate.opened == opened && !gate.broken {
            gate = self.hall.moved.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        if gate.opened == opened { Err(lost) } else { Ok(()) }
    }

    fn put(&self, words: &[u32], to: &[Range<usize>]) {
        let mut table = held(&self.hall.tables[self.rank]);
        table.0.clear();
        table.0.extend_from_slice(words);
        table.1.clear();
        table.1.extend_from_slice(to);
    }
}

impl Transport for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.hall.size
    }

    fn all_gather(
        &mut self,
        own: &[u32],
        all: &mut [u32],
        parts: &[Range<usize>],
    ) -> Result<(), Lost> {
        self.put(own, &[]);
        self.meet()?;
        for (table, part) in self.hall.tables.iter().zip(parts) {
            all[part.clone()].copy_from_slice(&held(table).0);
        }
        self.meet()
    }

    fn all_to_all(
        &mut self,
        (send, to): (&[u32], &[Range<usize>]),
        (receive, from): (&mut [u32], &[Range<usize>]),
    ) -> Result<(), Lost> {
        self.put(send, to);
        self.meet()?;
        for (table, part) in self.hall.tables.iter().zip(from) {
            let table = held(table);
            let given = table.1[self.rank].clone();
            receive[part.clone()].copy_from_slice(&table.0[given]);
        }
        self.meet()
    }

    fn abort(&mut self, _code: u8) {
        held(&self.hall.gate).broken = true;
        self.hall.moved.notify_all();
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        if !self.finished {
            self.abort(1);
        }
    }
}
