//! A fixed set of workers with microsecond fork and join.
//!
//! The calling thread is worker 0. Helpers spin for a while after a job, then park, so that a
//! step of many short jobs costs a microsecond each and an idle team costs nothing. Work is
//! shared out by shape; no result depends on who computed it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a helper spins before it parks.
const SPIN: Duration = Duration::from_micros(100);

type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Rises by one with each job; the job is readable after the rise is seen.
    epoch: AtomicU64,
    job: Mutex<Option<SendJob>>,
    /// Helpers still at work on the current job.
    busy: AtomicUsize,
    failed: AtomicBool,
    stop: AtomicBool,
    parked: Vec<AtomicBool>,
}

#[derive(Clone, Copy)]
struct SendJob(Job);
// SAFETY: the job outlives the call of `run` that published it, and is Sync.
unsafe impl Send for SendJob {}

/// Workers that run one job at a time together.
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<(JoinHandle<()>, Thread)>,
    /// One job at a time, also when several threads own the team; with it, the next task of each
    /// worker's share.
    turn: Mutex<Box<[Next]>>,
}

/// A counter on a cache line pair of its own.
#[repr(align(128))]
struct Next(AtomicUsize);

impl Team {
    /// A team of `threads` workers, the caller counted; at least one.
    pub fn new(threads: usize) -> Team {
        let helpers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            job: Mutex::new(None),
            busy: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
        });
        let helpers = (0..helpers)
            .filter_map(|index| {
                let shared = Arc::clone(&shared);
                let handle = std::thread::Builder::new()
                    .name(format!("autoreg-{}", index + 1))
                    .stack_size(1 << 20)
                    .spawn(move || help(&shared, index))
                    .ok()?;
                let thread = handle.thread().clone();
                Some((handle, thread))
            })
            .collect::<Vec<_>>();
        let next = (0..helpers.len() + 1).map(|_| Next(AtomicUsize::new(0))).collect();
        Team { shared, helpers, turn: Mutex::new(next) }
    }

    /// Workers that this process may use: its affinity and cgroup quota, not all that exist.
    pub fn available() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// Workers, the caller counted.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `job(worker)` once on every worker and returns when all have ended. A panic in a job
    /// is raised again here.
    pub fn run<F: Fn(usize) + Sync>(&self, job: F) {
        if self.helpers.is_empty() {
            return job(0);
        }
        self.run_in_turn(&lock(&self.turn), job);
    }

    fn run_in_turn<F: Fn(usize) + Sync>(&self, _turn: &[Next], job: F) {
        let erased: &(dyn Fn(usize) + Sync) = &job;
        // SAFETY: only the lifetime is erased; `run` returns after every helper has let go.
        let erased: Job = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(erased)
        };
        *lock(&self.shared.job) = Some(SendJob(erased));
        self.shared.busy.store(self.helpers.len(), Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (parked, (_, thread)) in self.shared.parked.iter().zip(&self.helpers) {
            if parked.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        wait_until(|| self.shared.busy.load(Ordering::Acquire) == 0);
        *lock(&self.shared.job) = None;
        let failed = self.shared.failed.swap(false, Ordering::Relaxed);
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!failed, "a worker of the team panicked");
    }

    /// Runs `task(i)` for every i below `count`, each once.
    pub fn tasks<F: Fn(usize) + Sync>(&self, count: usize, task: F) {
        self.worker_tasks(count, |_, i| task(i));
    }

    /// As [`Team::tasks`], with the worker's number for its own workspace: `task(worker, i)`.
    ///
    /// Each worker takes its own run of tasks, the same one whenever `count` is the same, so that
    /// its cache still holds what it worked on; who is done early takes from the others.
    pub fn worker_tasks<F: Fn(usize, usize) + Sync>(&self, count: usize, task: F) {
        if count <= 1 || self.helpers.is_empty() {
            return (0..count).for_each(|i| task(0, i));
        }
        let next = lock(&self.turn);
        let workers = next.len();
        for (worker, Next(first)) in next.iter().enumerate() {
            first.store(count * worker / workers, Ordering::Relaxed);
        }
        let next = &**next;
        self.run_in_turn(next, |worker| {
            for owner in (worker..workers).chain(0..worker) {
                let end = count * (owner + 1) / workers;
                loop {
                    let i = next[owner].0.fetch_add(1, Ordering::Relaxed);
                    if i >= end {
                        break;
                    }
                    task(worker, i);
                }
            }
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (handle, thread) in self.helpers.drain(..) {
            thread.unpark();
            drop(handle.join());
        }
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Spins, and gives the processor away between looks once the wait is long.
fn wait_until(done: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !done() {
        spins += 1;
        if spins < 4096 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

fn help(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let started = Instant::now();
        let mut spins = 0u32;
        while shared.epoch.load(Ordering::Acquire) == seen {
            spins += 1;
            std::hint::spin_loop();
            if spins.is_multiple_of(256) && started.elapsed() > SPIN {
                park_until_new(shared, index, seen);
            }
        }
        seen += 1;
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let job = *lock(&shared.job);
        if let Some(SendJob(job)) = job {
            // SAFETY: `run` keeps the job alive until `busy` is back at zero.
            let job = unsafe { &*job };
            if catch_unwind(AssertUnwindSafe(|| job(index + 1))).is_err() {
                shared.failed.store(true, Ordering::Relaxed);
            }
        }
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

fn park_until_new(shared: &Shared, index: usize, seen: u64) {
    shared.parked[index].store(true, Ordering::SeqCst);
    while shared.epoch.load(Ordering::SeqCst) == seen {
        std::thread::park();
    }
    shared.parked[index].store(false, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 5] {
            let team = Team::new(threads);
            for round in 0..200 {
                let counts: Vec<AtomicUsize> = (0..round).map(|_| AtomicUsize::new(0)).collect();
                team.tasks(round, |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parked_helpers_wake() {
        let team = Team::new(2);
        std::thread::sleep(Duration::from_millis(5));
        let count = AtomicUsize::new(0);
        team.run(|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_panic_in_a_job_is_raised_and_the_team_lives() {
        let team = Team::new(2);
        let failed = catch_unwind(AssertUnwindSafe(|| team.run(|w| assert!(w == 0, "helper"))));
        assert!(failed.is_err());
        team.run(|_| {});
    }
}
