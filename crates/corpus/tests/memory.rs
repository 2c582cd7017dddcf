//! Memory does not grow with the input: the most bytes on the heap for some mail and for four times as
//! much. Alone in its program, so that no other test allocates meanwhile.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use corpus::{
    Options, Progress, Stage,
    prepare::{GroupBy, Source},
};
use peak_alloc::PeakAlloc;
use std::{fmt::Write, fs, path::Path};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const SMALL: usize = 16_000;
const LARGE: usize = 4 * SMALL;

/// Message `n` of some that are the same whatever their number: a quarter is there twice, far apart,
/// and some differ by a word.
fn message(n: usize) -> String {
    let seed = match n % 8 {
        0 => n / 16,
        1 => n - n % 64,
        _ => n,
    };
    let mut random = seed as u64;
    let mut text = format!(
        "From a@b.example Mon Jan  1 10:00:00 2001\nMessage-ID: <{n}@b.example>\n\
         From: p{}@b.example\nSubject: topic {}\nX-Team: {}\n\n",
        n % 40,
        n % 37,
        n % 30
    );
    for _ in 0..30 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        write!(text, "word{} ", random >> 33 & 511).unwrap();
    }
    if n % 8 == 1 {
        write!(text, "word{}", n % 512).unwrap();
    }
    text + "\n\n"
}

/// Twenty mailboxes with `messages` in all.
fn mail(dir: &Path, messages: usize) {
    fs::create_dir(dir).unwrap();
    let share = messages / 20;
    for owner in 0..20 {
        let text: String = (owner * share..(owner + 1) * share).map(message).collect();
        fs::write(dir.join(format!("owner{owner}.mbox")), text).unwrap();
    }
}

/// The most bytes on the heap at once in each stage.
#[derive(Default)]
struct Peaks(Vec<usize>);

impl Peaks {
    fn stage_ends(&mut self) {
        self.0.push(HEAP.peak_usage());
        HEAP.reset_peak_usage();
    }
}

impl Progress for Peaks {
    fn begin(&mut self, _: Stage, _: u64) {
        self.stage_ends();
    }
}

/// The most bytes on the heap in each stage while a data set is made.
fn peaks(dir: &Path, messages: usize, group_by: GroupBy) -> Vec<usize> {
    let source = Source::Files(vec![dir.join(messages.to_string())]);
    let mut options = Options::new(source, dir.join(format!("{messages}-{group_by}")));
    options.group_by = group_by;
    options.vocab_size = 400;
    options.memory = 1 << 16;
    let mut peaks = Peaks::default();
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let manifest = corpus::prepare(&options, &mut peaks).unwrap().manifest;
    peaks.stage_ends();
    assert_eq!(manifest.messages.read as usize, messages);
    assert!(manifest.messages.duplicates > 0 && manifest.near_duplicates.in_test > 0);
    peaks.0.iter().map(|peak| peak - before).collect()
}

#[test]
fn memory_does_not_grow_with_the_input() {
    let dir = tempfile::tempdir().unwrap();
    [SMALL, LARGE].into_iter().for_each(|n| mail(&dir.path().join(n.to_string()), n));
    let check = |group_by: GroupBy, most: usize| {
        let [small, large] = [SMALL, LARGE].map(|n| peaks(dir.path(), n, group_by.clone()));
        println!("{group_by}: {small:?} and {large:?} bytes");
        assert_eq!(large.len(), 5, "before the first stage, and the four");
        for (small, large) in small.iter().zip(large) {
            // Tables within the memory allowed come in powers of two.
            let allowed = small + most * (LARGE - SMALL) + (1 << 15);
            assert!(large <= allowed, "{group_by}: {small} bytes became {large}");
        }
    };
    check(GroupBy::Mailbox, 1);
    check(GroupBy::Sender, 1);
    check(GroupBy::Field("X-Team".into()), 1);
    // A number a message while threads are closed.
    check(GroupBy::Thread, 5);
}
