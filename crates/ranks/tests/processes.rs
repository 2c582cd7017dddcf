//! Ranks as processes: the test starts itself under `mpirun` (another launcher by `MPIRUN`), and is
//! skipped with a line where there is none.
#![cfg(feature = "mpi")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ledger::{Account, Buffer, Spec};
use ranks::{Collective, Ranks, launched_size};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;

const SIZE: usize = 3;
/// More than the pieces that go at once, and not a multiple of anything.
const LENGTH: usize = 600_011;

fn value(rank: usize, i: usize) -> f32 {
    ((i * 7 + rank * 13) % 101) as f32 * 0.37 - 11.0
}

/// What a process among others checks.
fn among_others() {
    let ranks = Ranks::mpi().unwrap();
    assert_eq!(ranks.size(), SIZE);
    let rank = ranks.rank();
    let block = LENGTH.div_ceil(SIZE);
    let parts: Arc<[Range<usize>]> =
        (0..SIZE).map(|i| i * block..((i + 1) * block).min(LENGTH)).collect();
    let filled = |length: usize| {
        let spec = Spec::new("test", Account::Communication, length);
        let mut buffer: Buffer<f32> = Buffer::new(&spec).unwrap();
        buffer.iter_mut().enumerate().for_each(|(i, x)| *x = value(rank, i));
        buffer
    };
    let own = || filled(LENGTH);
    let right = |i: usize| (1..SIZE).fold(value(0, i), |sum, rank| sum + value(rank, i));
    let sum = ranks.wait(ranks.all_reduce(own(), &parts)).unwrap();
    assert!(sum.iter().enumerate().all(|(i, &x)| x == right(i)), "sums in the order of ranks");
    let sum = ranks.wait(ranks.reduce_scatter(own(), &parts)).unwrap();
    assert!(parts[rank].clone().all(|i| sum[i] == right(i)));
    // What stands behind all parts is what has been added up before.
    let onto = || filled(LENGTH + parts[rank].len());
    let first = |i: usize| value(i / block, LENGTH + i % block);
    let right = |i: usize| (0..SIZE).fold(first(i), |sum, rank| sum + value(rank, i));
    let sum = ranks.wait(ranks.reduce_scatter_onto(onto(), &parts, LENGTH)).unwrap();
    assert!(parts[rank].clone().all(|i| sum[i] == right(i)), "onto this rank's");
    let sum = ranks.wait(ranks.all_reduce_onto(onto(), &parts, LENGTH)).unwrap();
    assert!(sum[..LENGTH].iter().enumerate().all(|(i, &x)| x == right(i)), "onto all ranks'");
    let all = ranks.wait(ranks.all_gather(Collective::GatherParameters, own(), &parts)).unwrap();
    for (holder, part) in parts.iter().enumerate() {
        assert!(part.clone().all(|i| all[i] == value(holder, i)), "the part of rank {holder}");
    }
    let said = ranks.gather_bytes(&vec![rank as u8; 3 * rank]).unwrap();
    assert!(said.iter().enumerate().all(|(i, said)| *said == vec![i as u8; 3 * i]));
    ranks.finish();
}

#[test]
fn processes_add_up_and_gather_as_threads_do() {
    if launched_size().is_some() {
        return among_others();
    }
    let launcher = std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let mut command = Command::new(&launcher);
    command.args(["-n", &SIZE.to_string()]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "processes_add_up_and_gather_as_threads_do"]).stdin(Stdio::null());
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(name, "1");
    }
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    let Ok(output) = command.output() else {
        println!("skipped: there is no {launcher} here");
        return;
    };
    let told = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (told(&output.stdout), told(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert_eq!(out.matches("1 passed").count(), SIZE, "{out}");
}
