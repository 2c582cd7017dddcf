//! How the terms went over a run, and over one step of it: samples of what is in memory, taken by a
//! thread that takes at most a tenth of a core for it.

use crate::book::{Account, ByAccount};
use crate::resident::{mapped_uncharged, resident_by_account, rest};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is in memory at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Since the recording began.
    pub seconds: f64,
    /// Bytes of each account, in the order of [`Account::ALL`]: pages that have been touched.
    pub resident: ByAccount,
    /// Program, stacks and heap.
    pub runtime: u64,
    /// Pages of mapped files beside them, which the system can take back.
    pub mapped: u64,
    /// The whole process.
    pub process: u64,
}

impl Sample {
    /// The sum of what is told apart.
    pub fn explained(&self) -> u64 {
        self.resident.iter().sum::<u64>() + self.runtime + self.mapped
    }

    /// Bytes that no term explains; negative where terms share pages.
    pub fn unexplained(&self) -> i64 {
        self.process.cast_signed() - self.explained().cast_signed()
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Since the recording began.
    pub seconds: f64,
    /// What.
    pub what: String,
}

/// One step, closely looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSamples {
    /// Which step.
    pub what: String,
    /// In order of time.
    pub samples: Vec<Sample>,
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Record {
    /// Over the run, in order of time; at most 512.
    pub samples: Vec<Sample>,
    /// What happened in it.
    pub marks: Vec<Mark>,
    /// The first step.
    pub step: Option<StepSamples>,
}

impl Record {
    /// The sample of the largest process.
    pub fn peak(&self) -> Option<&Sample> {
        let step = self.step.iter().flat_map(|step| &step.samples);
        self.samples.iter().chain(step).max_by_key(|sample| sample.process)
    }

    /// The most of something.
    pub(crate) fn most(&self, of: impl Fn(&Sample) -> u64) -> u64 {
        let step = self.step.iter().flat_map(|step| &step.samples);
        self.samples.iter().chain(step).map(of).max().unwrap_or(0)
    }
}

/// Samples of the run, and of the step, that are kept at most.
const MOST: usize = 512;
/// Marks that are kept.
const MOST_MARKS: usize = 64;
/// Between two samples at least: over the run, within the step.
const COARSE: Duration = Duration::from_millis(5);
const FINE: Duration = Duration::from_millis(1);
/// The time between two is at least so many times what one takes.
const SHARE: u32 = 10;

#[derive(Default)]
struct Kept {
    record: Record,
    /// Samples between two that are kept: it doubles whenever the list is full.
    stride: (usize, usize),
    seen: (usize, usize),
    /// Whether the first step runs now.
    within: bool,
    runtime: u64,
}

struct Shared {
    began: Instant,
    kept: Mutex<Kept>,
    wake: Condvar,
    ended: AtomicBool,
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample. The mappings take longest to read: the last ones stand as long as they explain
    /// the process.
    fn look(&self) {
        let runtime = self.kept().runtime;
        let mut sample = self.sample(runtime);
        if runtime == 0 || sample.unexplained().unsigned_abs() > sample.process / 200 {
            sample = self.sample(rest().map_or(runtime, |rest| rest.runtime()));
        }
        let mut kept = self.kept();
        kept.runtime = sample.runtime;
        kept.add(sample);
    }

    fn sample(&self, runtime: u64) -> Sample {
        // Memory grows while it is counted: the process is looked at before and after.
        let before = crate::resident_bytes();
        let resident = resident_by_account().unwrap_or_else(|| crate::snapshot().current);
        let mapped = mapped_uncharged();
        let process = before.midpoint(crate::resident_bytes());
        let seconds = self.began.elapsed().as_secs_f64();
        Sample { seconds, resident, runtime, mapped, process }
    }
}

impl Kept {
    fn add(&mut self, sample: Sample) {
        if self.within
            && let Some(step) = &mut self.record.step
        {
            thin(&mut step.samples, &mut self.stride.1, &mut self.seen.1, sample);
        }
        thin(&mut self.record.samples, &mut self.stride.0, &mut self.seen.0, sample);
    }
}

/// Keeps each `stride`th sample; where the list is full, every second goes and the stride doubles.
fn thin(samples: &mut Vec<Sample>, stride: &mut usize, seen: &mut usize, sample: Sample) {
    *stride = (*stride).max(1);
    if seen.is_multiple_of(*stride) {
        samples.push(sample);
    }
    *seen += 1;
    if samples.len() >= MOST {
        let mut at = 0;
        // The largest of all is what the breakdown is told of: it stays.
        let largest = (0..samples.len()).max_by_key(|&i| samples[i].process);
        samples.retain(|_| {
            at += 1;
            at % 2 == 1 || Some(at - 1) == largest
        });
        *stride *= 2;
    }
}

/// Who records now.
static RECORDING: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

/// Something large is about to be given back: where a recording is under way, it is sampled before.
pub(crate) fn about_to_shrink() {
    let recording = RECORDING.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    if let Some(shared) = recording {
        shared.look();
    }
}

/// Records until it is told to finish.
pub struct Recorder {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Begins. Where the system gives no thread, marks alone are samples.
    pub fn start() -> Recorder {
        let shared = Arc::new(Shared {
            began: Instant::now(),
            kept: Mutex::new(Kept::default()),
            wake: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        *RECORDING.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&shared);
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("autoreg-ledger".into());
        let thread = thread.spawn(move || watch(&own)).ok();
        Recorder { shared, thread: Mutex::new(thread) }
    }

    /// Something happened: it is sampled now.
    pub fn mark(&self, what: &str) {
        self.shared.look();
        let seconds = self.shared.began.elapsed().as_secs_f64();
        let mut kept = self.shared.kept();
        if kept.record.marks.len() < MOST_MARKS {
            kept.record.marks.push(Mark { seconds, what: what.to_owned() });
        }
    }

    /// A step begins. The first is looked at closely, later ones no more.
    pub fn begin_step(&self, what: &str) {
        if self.shared.kept().record.step.is_some() {
            return;
        }
        self.shared.look();
        let mut kept = self.shared.kept();
        kept.record.step = Some(StepSamples { what: what.to_owned(), samples: Vec::new() });
        kept.within = true;
        let before = kept.record.samples.last().copied();
        if let (Some(step), Some(before)) = (&mut kept.record.step, before) {
            step.samples.push(before);
        }
        self.shared.wake.notify_all();
    }

    /// The step has ended.
    pub fn end_step(&self) {
        if !self.shared.kept().within {
            return;
        }
        self.shared.look();
        self.shared.kept().within = false;
    }

    /// Ends, with a last sample; what is recorded later is not kept.
    pub fn finish(&self) -> Record {
        self.end_step();
        self.shared.look();
        self.stop();
        std::mem::take(&mut self.shared.kept().record)
    }

    fn stop(&self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.wake.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread does.
fn watch(shared: &Shared) {
    while !shared.ended.load(Ordering::Relaxed) {
        let began = Instant::now();
        shared.look();
        let took = began.elapsed();
        let kept = shared.kept();
        let least = if kept.within { FINE } else { COARSE };
        let pause = least.max(took * SHARE);
        drop(shared.wake.wait_timeout(kept, pause));
    }
}

/// The terms of a [`Sample`], in the order in which they are drawn, with their names.
pub fn sample_terms(sample: &Sample) -> Vec<(&'static str, u64)> {
    let accounts = Account::ALL.into_iter().zip(sample.resident);
    let mut terms: Vec<_> = accounts.map(|(account, bytes)| (account.name(), bytes)).collect();
    terms.push(("runtime", sample.runtime));
    terms.push(("mapped files", sample.mapped));
    terms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Spec};

    #[test]
    fn a_step_is_seen_as_it_touches_its_memory() {
        let recorder = Recorder::start();
        let spec = Spec::new("step", Account::Optimizer, 2 << 20);
        let mut buffer: Buffer<f32> = Buffer::new(&spec).unwrap();
        recorder.mark("allocated");
        recorder.begin_step("step 1");
        for part in buffer.chunks_mut(1 << 18) {
            part.fill(1.0);
            std::thread::sleep(Duration::from_millis(4));
        }
        recorder.end_step();
        recorder.begin_step("step 2");
        let record = recorder.finish();
        let step = record.step.as_ref().unwrap();
        assert_eq!((step.what.as_str(), record.marks.len()), ("step 1", 1));
        if crate::resident_by_account().is_none() {
            println!("skipped: no /proc/self/pagemap");
            return;
        }
        let of = |sample: &Sample| sample.resident[Account::Optimizer as usize];
        let (first, last) = (step.samples.first().unwrap(), step.samples.last().unwrap());
        assert!(of(last) >= of(first) + (8 << 20), "{} {}", of(first), of(last));
        let between = step.samples.iter().any(|s| of(s) > of(first) && of(s) < of(last));
        assert!(between, "no sample while memory was touched");
        assert!(record.samples.windows(2).all(|w| w[0].seconds <= w[1].seconds));
        let peak = record.peak().unwrap();
        assert!(peak.process >= last.process);
    }

    #[test]
    fn long_runs_are_thinned_and_keep_their_peak() {
        let (mut samples, mut stride, mut seen) = (Vec::new(), 0, 0);
        for i in 0..5000_u32 {
            let process = if i == 1001 { 9 } else { 1 };
            let resident = ByAccount::default();
            let seconds = f64::from(i);
            let sample = Sample { seconds, resident, runtime: 0, mapped: 0, process };
            if i == 1001 {
                seen = 0;
            }
            thin(&mut samples, &mut stride, &mut seen, sample);
        }
        assert!(samples.len() < MOST && samples.len() > MOST / 4, "{}", samples.len());
        assert!(samples.iter().any(|s| s.process == 9));
        assert!(samples.windows(2).all(|w| w[0].seconds < w[1].seconds));
    }
}
