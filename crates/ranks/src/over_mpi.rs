//! Ranks as processes under MPI. All calls are made by the thread that started MPI, the courier's.

use crate::transport::{Lost, StartError, Transport};
use mpi::Threading;
use mpi::datatype::{Partition, PartitionMut};
use mpi::environment::Universe;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::CommunicatorCollectives;
use std::ops::Range;

/// This process among those of MPI.
pub(crate) struct MpiRank {
    world: SimpleCommunicator,
    // Ends MPI when it goes, after the communicator.
    _universe: Universe,
}

/// Counts and places of parts, in words. A part begins before 2³¹ words (8 GiB).
fn places(parts: &[Range<usize>]) -> (Vec<i32>, Vec<i32>) {
    let word = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    parts.iter().map(|part| (word(part.len()), word(part.start))).unzip()
}

impl MpiRank {
    /// Starts MPI on this thread.
    pub(crate) fn start() -> Result<MpiRank, StartError> {
        let started = mpi::initialize_with_threading(Threading::Funneled);
        let (universe, _) = started.ok_or(StartError::Mpi)?;
        Ok(MpiRank { world: universe.world(), _universe: universe })
    }
}

impl Transport for MpiRank {
    fn rank(&self) -> usize {
        self.world.rank().unsigned_abs() as usize
    }

    fn size(&self) -> usize {
        self.world.size().unsigned_abs() as usize
    }

    // MPI ends all ranks when one is lost; there is nothing to report here.
    fn all_gather(
        &mut self,
        own: &[u32],
        all: &mut [u32],
        parts: &[Range<usize>],
    ) -> Result<(), Lost> {
        let (counts, starts) = places(parts);
        self.world.all_gather_varcount_into(own, &mut PartitionMut::new(all, counts, starts));
        Ok(())
    }

    fn all_to_all(
        &mut self,
        (send, to): (&[u32], &[Range<usize>]),
        (receive, from): (&mut [u32], &[Range<usize>]),
    ) -> Result<(), Lost> {
        let ((out, out_at), (counts, starts)) = (places(to), places(from));
        self.world.all_to_all_varcount_into(
            &Partition::new(send, out, out_at),
            &mut PartitionMut::new(receive, counts, starts),
        );
        Ok(())
    }

    fn abort(&mut self, code: u8) {
        self.world.abort(code.into());
    }
}
