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
        "this was started as one of {size} processes or more, but the program is built without MPI, so \
         each would train alone: build it with --features mpi, or give --expect-ranks 1 where each is to"
    )]
    Without {
        /// Processes that the launcher started, at least.
        size: usize,
    },
    /// MPI has not met the others.
    #[error(
        "this was started as one of {size} processes or more, but MPI came up alone, so each would train \
         alone: start it by the mpirun of the MPI that it is built with, or by srun --mpi=pmix (Open \
         MPI) or --mpi=pmi2 (MPICH)"
    )]
    Alone {
        /// Processes that the launcher started, at least.
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

/// Processes that a launcher says it has started, or as many as there must be at least; none where
/// nothing says so. For MPI and for programs that lack it.
pub fn launched_size() -> Option<usize> {
    size_said_by(|name| std::env::var(name).ok())
}

/// What launchers leave in the environment of every process.
fn size_said_by(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    // Open MPI; MPICH and Slurm's PMI2.
    let said = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].into_iter().find_map(number);
    // Slurm's srun, whatever MPI it was told. A batch script, which is one process of its job however
    // many tasks that has, is no step of srun's.
    let of_step = || {
        number("SLURM_PROCID")?;
        let all = || number("SLURM_STEP_ID").and_then(|_| number("SLURM_NTASKS"));
        number("SLURM_STEP_NUM_TASKS").or_else(all)
    };
    // PMIx says no size, but ranks count from 0.
    let least = || number("PMIX_RANK").and_then(|rank| rank.checked_add(1));
    said.or_else(of_step).or_else(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_what_they_leave() {
        let check = |said: &[(&str, &str)], right: Option<usize>| {
            let found = size_said_by(|name| {
                said.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            });
            assert_eq!(found, right, "{said:?}");
        };
        check(&[], None);
        check(&[("OMPI_COMM_WORLD_SIZE", "4"), ("SLURM_STEP_NUM_TASKS", "2")], Some(4));
        check(&[("PMI_SIZE", "3"), ("PMI_RANK", "0")], Some(3));
        check(&[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "8")], Some(8));
        let step = [("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4")];
        check(&step, Some(4));
        // A batch script, and a shell of salloc's.
        check(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")], None);
        check(&[("SLURM_NTASKS", "4"), ("SLURM_STEP_ID", "0")], None);
        check(&[("PMIX_RANK", "2")], Some(3));
        check(&[("PMIX_RANK", "odd")], None);
    }
}
