//! What ranks need of whatever carries words between them.

use std::ops::Range;

/// Another rank has gone, or the connection to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank}: another rank has ended; what it said stands above, and --resume goes on from the newest checkpoint"
)]
pub struct Lost {
    /// The rank that noticed.
    pub rank: usize,
}

/// Ranks could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The courier's thread.
    #[error("no thread for communication: {0}")]
    Thread(#[from] std::io::Error),
    /// MPI will not start.
    #[error("MPI does not start in this process; it was started before, or is not installed whole")]
    Mpi,
    /// The program has no MPI.
    #[error(
        "this was started as one of {size} processes, but the program is built without MPI, so each \
         would train alone: build it with --features mpi"
    )]
    Without {
        /// Processes that the launcher started.
        size: usize,
    },
}

/// Carries words between ranks. Every rank makes the same calls in the same order.
pub trait Transport {
    /// This rank.
    fn rank(&self) -> usize;

    /// Ranks.
    fn size(&self) -> usize;

    /// `all[parts[i]]` becomes what rank i gave as `own`; each part is as long as that.
    ///
    /// # Errors
    /// When a rank has gone.
    fn all_gather(
        &mut self,
        own: &[u32],
        all: &mut [u32],
        parts: &[Range<usize>],
    ) -> Result<(), Lost>;

    /// Rank i gets `send[to[i]]`; what it gave for this rank goes to `receive[from[i]]`.
    ///
    /// # Errors
    /// When a rank has gone.
    fn all_to_all(
        &mut self,
        send: (&[u32], &[Range<usize>]),
        receive: (&mut [u32], &[Range<usize>]),
    ) -> Result<(), Lost>;

    /// Ends all ranks at once, where a rank has failed and the others wait for it.
    fn abort(&mut self, code: u8);
}

/// Processes that a launcher says it has started; none where nothing says so. For MPI and for
/// programs that lack it.
pub fn launched_size() -> Option<usize> {
    // Open MPI; MPICH and Slurm's PMI2; both leave them in the environment of every process.
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok()?.parse().ok())
}
