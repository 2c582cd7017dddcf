//! What a rank holds: orders for its courier, and the sums of what was sent.

use crate::courier::{self, Brought, Order, Parts, Sum, Task};
use crate::threads::ThreadRank;
use crate::traffic::{Collective, Sums, Traffic};
use crate::transport::{Lost, StartError};
use ledger::{Buffer, Plan};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// One of several ranks. All give the same orders in the same order. A rank that goes without
/// [`Ranks::finish`] ends the others.
#[derive(Debug)]
pub struct Ranks {
    rank: usize,
    size: usize,
    orders: Sender<Order>,
    courier: Mutex<Option<JoinHandle<()>>>,
    sums: Mutex<Sums>,
}

/// A buffer that is with the courier.
#[derive(Debug)]
pub struct Pending {
    kind: Collective,
    reply: Receiver<Result<Brought, Lost>>,
}

impl Ranks {
    /// So many ranks, each for a thread of this process.
    ///
    /// # Errors
    /// When there is no memory or no thread for a courier.
    pub fn threads(size: usize) -> Result<Vec<Ranks>, StartError> {
        let start = |mut transport: ThreadRank| {
            Ranks::start(move || {
                let rank = (crate::Transport::rank(&transport), size);
                let work = move |orders: Receiver<Order>, mut pieces: [Buffer<f32>; 2]| {
                    if let courier::End::Finished =
                        courier::work(&mut transport, &orders, &mut pieces)
                    {
                        transport.finish();
                    }
                };
                Ok((rank, work))
            })
        };
        ThreadRank::all(size).into_iter().map(start).collect()
    }

    /// This process among those that MPI has started; one of one where none has.
    ///
    /// # Errors
    /// When MPI does not start.
    #[cfg(feature = "mpi")]
    pub fn mpi() -> Result<Ranks, StartError> {
        Ranks::start(|| {
            let mut transport = crate::over_mpi::MpiRank::start()?;
            let rank = (crate::Transport::rank(&transport), crate::Transport::size(&transport));
            let work = move |orders: Receiver<Order>, mut pieces: [Buffer<f32>; 2]| {
                courier::work(&mut transport, &orders, &mut pieces);
            };
            Ok((rank, work))
        })
    }

    /// Starts the courier; `connect` runs on its thread.
    fn start<W, C>(connect: C) -> Result<Ranks, StartError>
    where
        W: FnOnce(Receiver<Order>, [Buffer<f32>; 2]),
        C: FnOnce() -> Result<((usize, usize), W), StartError> + Send + 'static,
    {
        let (orders, inbox) = channel();
        let (hello, started) = channel();
        let body = move || {
            let opened = connect().and_then(|((rank, size), work)| {
                let [out, into] = courier::specs(size);
                let memory = |e: ledger::Error| StartError::Thread(e.source);
                let pieces =
                    [Buffer::new(&out).map_err(memory)?, Buffer::new(&into).map_err(memory)?];
                Ok(((rank, size), work, pieces))
            });
            match opened {
                Ok((place, work, pieces)) => {
                    drop(hello.send(Ok(place)));
                    work(inbox, pieces);
                }
                Err(error) => drop(hello.send(Err(error))),
            }
        };
        let courier = Builder::new().name("courier".to_owned()).spawn(body)?;
        let gone = || StartError::Thread(std::io::ErrorKind::BrokenPipe.into());
        let (rank, size) = started.recv().map_err(|_| gone())??;
        Ok(Ranks { rank, size, orders, courier: Mutex::new(Some(courier)), sums: Mutex::default() })
    }

    /// What a rank of so many takes by itself.
    pub fn plan(size: usize) -> Plan {
        let mut plan = Plan::default();
        courier::specs(size).iter().for_each(|spec| plan.add(spec));
        plan
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether it speaks for all: rank 0.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> Lost {
        Lost { rank: self.rank }
    }

    fn order(&self, kind: Collective, task: Task, buffer: Buffer<f32>, parts: &Parts) -> Pending {
        let (reply, answer) = channel();
        let order = Order::Values { task, buffer, parts: Arc::clone(parts), reply };
        // A courier that has gone is noticed by who waits for the answer.
        drop(self.orders.send(order));
        Pending { kind, reply: answer }
    }

    /// Every rank's part of `buffer` goes to all. `parts`: one a rank, in values of four bytes.
    pub fn all_gather(
        &self,
        kind: Collective,
        buffer: Buffer<f32>,
        parts: &Arc<[Range<usize>]>,
    ) -> Pending {
        self.order(kind, Task::Gather, buffer, parts)
    }

    /// This rank's part of `buffer` becomes the sum over ranks, taken in their order.
    pub fn reduce_scatter(&self, buffer: Buffer<f32>, parts: &Arc<[Range<usize>]>) -> Pending {
        let task = Task::ReduceScatter(Sum::Plain);
        self.order(Collective::ReduceScatterGradients, task, buffer, parts)
    }

    /// The same onto what has been added up before: this rank's part becomes ((that + rank 0's) +
    /// rank 1's) + …; that begins at value `from` of `buffer`, behind all parts.
    pub fn reduce_scatter_onto(
        &self,
        buffer: Buffer<f32>,
        parts: &Arc<[Range<usize>]>,
        from: usize,
    ) -> Pending {
        let task = Task::ReduceScatter(Sum::Onto(from));
        self.order(Collective::ReduceScatterGradients, task, buffer, parts)
    }

    /// All of `buffer` becomes the sum over ranks, taken in their order.
    pub fn all_reduce(&self, buffer: Buffer<f32>, parts: &Arc<[Range<usize>]>) -> Pending {
        self.order(Collective::AllReduceGradients, Task::AllReduce(Sum::Plain), buffer, parts)
    }

    /// The same onto what has been added up before, of which each rank has its own part from value
    /// `from` of `buffer` on, behind all parts.
    pub fn all_reduce_onto(
        &self,
        buffer: Buffer<f32>,
        parts: &Arc<[Range<usize>]>,
        from: usize,
    ) -> Pending {
        self.order(Collective::AllReduceGradients, Task::AllReduce(Sum::Onto(from)), buffer, parts)
    }

    /// Waits for a buffer.
    ///
    /// # Errors
    /// When a rank has gone.
    pub fn wait(&self, pending: Pending) -> Result<Buffer<f32>, Lost> {
        let started = Instant::now();
        let brought = pending.reply.recv().map_err(|_| self.lost())??;
        let waited = started.elapsed().as_secs_f64();
        self.count(pending.kind, brought.bytes, brought.seconds, waited);
        Ok(brought.buffer)
    }

    fn count(&self, kind: Collective, bytes: u64, seconds: f64, waited: f64) {
        let sum = &mut self.sums()[kind as usize];
        sum.calls += 1;
        sum.bytes += bytes;
        sum.seconds += seconds;
        sum.waited += waited.min(seconds);
    }

    /// What every rank says, in the order of ranks.
    ///
    /// # Errors
    /// When a rank has gone.
    pub fn gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        let (reply, answer) = channel();
        let started = Instant::now();
        drop(self.orders.send(Order::Bytes { own: own.to_vec(), reply }));
        let told = answer.recv().map_err(|_| self.lost())??;
        let waited = started.elapsed().as_secs_f64();
        self.count(Collective::Words, told.bytes, told.seconds, waited);
        Ok(told.all)
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// When a rank has gone.
    pub fn barrier(&self) -> Result<(), Lost> {
        self.gather_bytes(&[]).map(drop)
    }

    /// What rank 0 says.
    ///
    /// # Errors
    /// When a rank has gone.
    pub fn broadcast(&self, own: &[u8]) -> Result<Vec<u8>, Lost> {
        let own = if self.is_first() { own } else { &[] };
        Ok(self.gather_bytes(own)?.swap_remove(0))
    }

    /// The sums of what was sent so far.
    pub fn traffic(&self) -> Vec<(Collective, Traffic)> {
        let sums = *self.sums();
        Collective::ALL.into_iter().map(|kind| (kind, sums[kind as usize])).collect()
    }

    /// All has been said: the courier ends its connection in order.
    pub fn finish(&self) {
        drop(self.orders.send(Order::Finish));
        self.join();
    }

    /// This rank has failed, and the others wait for it: all end.
    pub fn abort(&self, code: u8) {
        drop(self.orders.send(Order::Abort(code)));
        self.join();
    }

    fn join(&self) {
        let courier = self.courier.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(courier) = courier {
            drop(courier.join());
        }
    }
}

impl Drop for Ranks {
    /// One alone leaves nobody waiting.
    fn drop(&mut self) {
        if self.size == 1 {
            self.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::{Account, Spec};

    /// What each of `size` ranks makes of `body`.
    fn each<R: Send>(size: usize, body: impl Fn(&Ranks) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let run = |ranks: Ranks| {
                let body = &body;
                scope.spawn(move || {
                    let made = body(&ranks);
                    ranks.finish();
                    made
                })
            };
            let all: Vec<_> = Ranks::threads(size).unwrap().into_iter().map(run).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn filled(values: impl Iterator<Item = f32>) -> Buffer<f32> {
        let values: Vec<f32> = values.collect();
        let spec = Spec::new("test", Account::Communication, values.len());
        let mut buffer = Buffer::new(&spec).unwrap();
        buffer.copy_from_slice(&values);
        buffer
    }

    /// Uneven parts of more than one piece.
    fn parts(size: usize, len: usize) -> Arc<[Range<usize>]> {
        let block = len.div_ceil(size);
        (0..size).map(|i| (i * block).min(len)..((i + 1) * block).min(len)).collect()
    }

    fn value(rank: usize, i: usize) -> f32 {
        ((i * 7 + rank * 13) % 101) as f32 * 0.37 - 11.0
    }

    #[test]
    fn sums_are_taken_in_the_order_of_ranks() {
        for (size, len) in [(1, 10), (2, 5), (3, 700_001), (4, 3)] {
            let right: Vec<f32> = (0..len)
                .map(|i| (1..size).fold(value(0, i), |sum, rank| sum + value(rank, i)))
                .collect();
            let made = each(size, |ranks| {
                let parts = parts(size, len);
                let own = || filled((0..len).map(|i| value(ranks.rank(), i)));
                let all = ranks.wait(ranks.all_reduce(own(), &parts)).unwrap().to_vec();
                let some = ranks.wait(ranks.reduce_scatter(own(), &parts)).unwrap();
                let mine = parts[ranks.rank()].clone();
                (all, mine.clone(), some[mine].to_vec(), ranks.traffic())
            });
            let mut bytes = [0; 2];
            for (all, mine, some, traffic) in &made {
                assert_eq!(all, &right);
                assert_eq!(some, &right[mine.clone()]);
                bytes[0] += traffic[Collective::AllReduceGradients as usize].1.bytes;
                bytes[1] += traffic[Collective::ReduceScatterGradients as usize].1.bytes;
            }
            let once = 4 * (len * (size - 1)) as u64;
            assert_eq!(bytes, [2 * once, once], "all ranks together send what the formulas say");
        }
    }

    #[test]
    fn pieces_are_added_onto_those_before_whoever_has_them() {
        let (pieces, len) = (4, 700_001);
        let right: Vec<f32> =
            (0..len).map(|i| (0..pieces).fold(0.0, |sum, piece| sum + value(piece, i))).collect();
        for size in [1, 2, 4] {
            let made = each(size, |ranks| {
                let parts = parts(size, len);
                let mine = parts[ranks.rank()].clone();
                let mut sum = vec![0.0; mine.len()];
                for round in 0..pieces / size {
                    let piece = round * size + ranks.rank();
                    let own = (0..len).map(|i| value(piece, i)).chain(sum.iter().copied());
                    let buffer = filled(own);
                    if round + 1 == pieces / size {
                        let all = ranks.wait(ranks.all_reduce_onto(buffer, &parts, len));
                        return all.unwrap()[..len].to_vec();
                    }
                    let some = ranks.wait(ranks.reduce_scatter_onto(buffer, &parts, len)).unwrap();
                    sum.copy_from_slice(&some[mine.clone()]);
                }
                Vec::new()
            });
            made.iter().for_each(|all| assert_eq!(all, &right, "{size} ranks"));
        }
    }

    #[test]
    fn parts_reach_everybody() {
        let (size, len) = (3, 600_000);
        let made = each(size, |ranks| {
            let parts = parts(size, len);
            let mine = parts[ranks.rank()].clone();
            let own = filled((0..len).map(|i| if mine.contains(&i) { i as f32 } else { -1.0 }));
            let pending = ranks.all_gather(Collective::GatherParameters, own, &parts);
            ranks.wait(pending).unwrap().to_vec()
        });
        made.iter().for_each(|all| assert!(all.iter().enumerate().all(|(i, &x)| x == i as f32)));
    }

    #[test]
    fn bytes_come_in_the_order_of_ranks() {
        let made = each(3, |ranks| {
            let own = vec![ranks.rank() as u8; 5 * ranks.rank()];
            let all = ranks.gather_bytes(&own).unwrap();
            (all, ranks.broadcast(&[7, ranks.rank() as u8]).unwrap())
        });
        for (all, first) in made {
            assert_eq!(all, [vec![], vec![1; 5], vec![2; 10]]);
            assert_eq!(first, [7, 0]);
        }
    }

    #[test]
    fn a_rank_that_goes_does_not_leave_the_others_waiting() {
        let mut ranks = Ranks::threads(3).unwrap();
        drop(ranks.pop());
        let waiting: Vec<_> = ranks
            .into_iter()
            .map(|ranks| std::thread::spawn(move || ranks.barrier().unwrap_err()))
            .collect();
        let lost: Vec<usize> = waiting.into_iter().map(|t| t.join().unwrap().rank).collect();
        assert_eq!(lost, [0, 1]);
    }
}
