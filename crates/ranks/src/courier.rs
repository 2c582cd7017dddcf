//! The courier: a thread that takes orders one after another and owns the connection.
//!
//! Words go in pieces of a bounded size, so the courier's own memory does not grow with what is
//! sent, and a piece's place is a small number for every transport.

use crate::transport::{Lost, Transport};
use ledger::{Account, Buffer, Spec};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// Values of the pieces of all ranks together.
const AT_ONCE: usize = 1 << 18;

/// Which part of a buffer is whose: one range a rank, in values of four bytes, in order.
pub(crate) type Parts = Arc<[Range<usize>]>;

/// What is to be done with a buffer.
#[derive(Clone, Copy)]
pub(crate) enum Task {
    /// Own part goes to all, theirs come.
    Gather,
    /// Own part becomes the sum of all ranks' values there.
    ReduceScatter(Sum),
    /// Every part becomes the sum.
    AllReduce(Sum),
}

/// How ranks' values are added up.
#[derive(Clone, Copy)]
pub(crate) enum Sum {
    /// (rank 0's + rank 1's) + …
    Plain,
    /// ((what the buffer holds from this value on + rank 0's) + rank 1's) + …, where as many values as
    /// the own part has stand behind all parts.
    Onto(usize),
}

impl Task {
    fn sum(self) -> Option<Sum> {
        match self {
            Task::Gather => None,
            Task::ReduceScatter(sum) | Task::AllReduce(sum) => Some(sum),
        }
    }
}

/// An order, and where the answer goes.
pub(crate) enum Order {
    /// Of four-byte values.
    Values { task: Task, buffer: Buffer<f32>, parts: Parts, reply: Sender<Result<Brought, Lost>> },
    /// Some bytes from each rank to all.
    Bytes { own: Vec<u8>, reply: Sender<Result<Told, Lost>> },
    /// Nothing more will be said.
    Finish,
    /// A rank failed: all end.
    Abort(u8),
}

/// A buffer that comes back.
pub(crate) struct Brought {
    pub(crate) buffer: Buffer<f32>,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

/// What every rank said.
pub(crate) struct Told {
    pub(crate) all: Vec<Vec<u8>>,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

/// What the courier works with: pieces on their way out and in.
pub(crate) fn specs(size: usize) -> [Spec; 2] {
    let spec = |name: &str| Spec::new(name, Account::Communication, size * piece(size));
    [spec("pieces sent"), spec("pieces received")]
}

/// Values of a rank's piece.
fn piece(size: usize) -> usize {
    (AT_ONCE / size).max(1)
}

/// How an order's end is told from a finished rank's.
pub(crate) enum End {
    Finished,
    Aborted,
}

/// Carries out orders until there are no more.
pub(crate) fn work<T: Transport>(
    transport: &mut T,
    orders: &Receiver<Order>,
    [send, receive]: &mut [Buffer<f32>; 2],
) -> End {
    let mut desk = Desk { transport, send, receive };
    for order in orders {
        match order {
            Order::Values { task, mut buffer, parts, reply } => {
                let started = Instant::now();
                let done = desk.values(task, &mut buffer, &parts);
                let seconds = started.elapsed().as_secs_f64();
                drop(reply.send(done.map(|bytes| Brought { buffer, bytes, seconds })));
            }
            Order::Bytes { own, reply } => {
                let started = Instant::now();
                let told = desk.bytes(&own).map(|(all, bytes)| {
                    let seconds = started.elapsed().as_secs_f64();
                    Told { all, bytes, seconds }
                });
                drop(reply.send(told));
            }
            Order::Finish => return End::Finished,
            Order::Abort(code) => {
                desk.transport.abort(code);
                return End::Aborted;
            }
        }
    }
    // The rank went without a word, so the others would wait for ever.
    desk.transport.abort(1);
    End::Aborted
}

struct Desk<'a, T> {
    transport: &'a mut T,
    send: &'a mut [f32],
    receive: &'a mut [f32],
}

/// `count` values of a part from its value `from` on, as far as it goes.
fn cut(part: &Range<usize>, from: usize, count: usize) -> Range<usize> {
    let start = (part.start + from).min(part.end);
    start..(start + count).min(part.end)
}

impl<T: Transport> Desk<'_, T> {
    /// Does a task piece by piece; answers with the bytes sent to others.
    fn values(&mut self, task: Task, buffer: &mut [f32], parts: &Parts) -> Result<u64, Lost> {
        let (rank, size) = (self.transport.rank(), self.transport.size());
        let longest = parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let count = piece(size);
        let own = parts[rank].len();
        for from in (0..longest).step_by(count) {
            let cuts: Vec<Range<usize>> = parts.iter().map(|p| cut(p, from, count)).collect();
            let sum = task.sum().map(|sum| match sum {
                Sum::Plain => Sum::Plain,
                Sum::Onto(at) => Sum::Onto(at + from.min(own)),
            });
            if let Some(sum) = sum {
                self.reduce(buffer, &cuts, sum)?;
            }
            if !matches!(task, Task::ReduceScatter(_)) {
                self.gather(buffer, &cuts)?;
            }
        }
        let all: usize = parts.iter().map(ExactSizeIterator::len).sum();
        let (gathered, reduced) = (own * (size - 1), all - own);
        Ok(4 * match task {
            Task::Gather => gathered,
            Task::ReduceScatter(_) => reduced,
            Task::AllReduce(_) => gathered + reduced,
        } as u64)
    }

    fn gather(&mut self, buffer: &mut [f32], parts: &[Range<usize>]) -> Result<(), Lost> {
        let own = parts[self.transport.rank()].clone();
        let sent = &mut self.send[..own.len()];
        sent.copy_from_slice(&buffer[own]);
        let sent = bytemuck::cast_slice(sent);
        self.transport.all_gather(sent, bytemuck::cast_slice_mut(buffer), parts)
    }

    /// Own part ← ((rank 0's + rank 1's) + rank 2's) + …, or the same onto what has been added up.
    fn reduce(&mut self, buffer: &mut [f32], parts: &[Range<usize>], how: Sum) -> Result<(), Lost> {
        let own = parts[self.transport.rank()].clone();
        let mut end = 0;
        let to: Vec<Range<usize>> = parts
            .iter()
            .map(|part| {
                let place = end..end + part.len();
                end = place.end;
                self.send[place.clone()].copy_from_slice(&buffer[part.clone()]);
                place
            })
            .collect();
        let from: Vec<Range<usize>> =
            (0..parts.len()).map(|i| i * own.len()..(i + 1) * own.len()).collect();
        let received = &mut self.receive[..parts.len() * own.len()];
        let sent = bytemuck::cast_slice(&self.send[..end]);
        self.transport.all_to_all((sent, &to), (bytemuck::cast_slice_mut(received), &from))?;
        let mut ranks = from.into_iter().map(|part| &received[part]);
        match how {
            Sum::Onto(at) => buffer.copy_within(at..at + own.len(), own.start),
            Sum::Plain => {
                if let Some(first) = ranks.next() {
                    buffer[own.clone()].copy_from_slice(first);
                }
            }
        }
        let sum = &mut buffer[own];
        for values in ranks {
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        Ok(())
    }

    /// Lengths first, then what they are the lengths of.
    fn bytes(&mut self, own: &[u8]) -> Result<(Vec<Vec<u8>>, u64), Lost> {
        let size = self.transport.size();
        let each: Vec<Range<usize>> = (0..size).map(|i| i..i + 1).collect();
        let mut lengths = vec![0; size];
        self.transport.all_gather(&[own.len() as u32], &mut lengths, &each)?;
        let mut end = 0;
        let parts: Vec<Range<usize>> = lengths
            .iter()
            .map(|&length| {
                let start = end;
                end += (length as usize).div_ceil(4);
                start..end
            })
            .collect();
        let mut words = vec![0; own.len().div_ceil(4)];
        bytemuck::cast_slice_mut(&mut words)[..own.len()].copy_from_slice(own);
        let mut all = vec![0_u32; end];
        self.transport.all_gather(&words, &mut all, &parts)?;
        let told = parts.into_iter().zip(&lengths).map(|(part, &length)| {
            bytemuck::cast_slice::<u32, u8>(&all[part])[..length as usize].to_vec()
        });
        Ok((told.collect(), 4 * ((1 + words.len()) * (size - 1)) as u64))
    }
}
