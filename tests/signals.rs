//! Signals and sudden ends: what is stopped can go on, to the bit, and nothing is left behind.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{SMALL, data, finish, names, program, works};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};

/// A run with a checkpoint every step: most of its time is spent in writing them.
struct Run {
    folder: TempDir,
    epochs: &'static str,
}

impl Run {
    fn new(epochs: &'static str) -> Run {
        let folder = tempdir().unwrap();
        fs::write(folder.path().join("c.toml"), SMALL).unwrap();
        Run { folder, epochs }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program();
        command.args(["train", "--threads", "1", "--dropout", "0.1", "--eval-every", "7"]);
        command.args(["--checkpoint-every", "1", "--epochs", self.epochs, "--data", data()]);
        command.arg("--config").arg(self.folder.path().join("c.toml"));
        command.arg("--out").arg(self.out()).args(words);
        command
    }

    fn start(&self, words: &[&str]) -> Child {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// The step of the newest checkpoint with its final name.
    fn step(&self) -> Option<u64> {
        let entries = fs::read_dir(self.out().join("checkpoints")).ok()?;
        let step = |entry: fs::DirEntry| {
            entry.file_name().to_str()?.strip_prefix("step-")?.parse::<u64>().ok()
        };
        entries.flatten().filter_map(step).max()
    }

    /// Waits until this step is saved. False when the run ended before.
    fn reaches(&self, step: u64, child: &mut Child) -> bool {
        let begun = Instant::now();
        while self.step().is_none_or(|at| at < step) {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(begun.elapsed() < Duration::from_secs(100), "step {step} never came");
            std::thread::sleep(Duration::from_micros(300));
        }
        true
    }

    /// Resumes to the end and answers with everything that must not depend on interruptions.
    fn end(&self) -> Ended {
        let resumed = finish(self.command(&["--resume", "--quiet"]).arg("--json"));
        assert_eq!(resumed.code, Some(0), "{}", resumed.err);
        Ended::of(&self.out())
    }
}

/// What a run comes to: weights, the newest checkpoint's moments, the metrics without times.
#[derive(PartialEq)]
struct Ended {
    weights: Vec<u8>,
    moments: Vec<u8>,
    metrics: Vec<serde_json::Value>,
}

impl Ended {
    fn of(run: &Path) -> Ended {
        let checkpoints = run.join("checkpoints");
        let newest = names(&checkpoints).pop().unwrap();
        let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        let line = |line: &str| {
            let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
            for time in ["seconds", "data_seconds"] {
                value.as_object_mut().unwrap().remove(time);
            }
            value
        };
        Ended {
            weights: fs::read(run.join("model.safetensors")).unwrap(),
            moments: fs::read(checkpoints.join(newest).join("optimizer.safetensors")).unwrap(),
            metrics: text.lines().map(line).collect(),
        }
    }

    #[track_caller]
    fn same(&self, other: &Ended, when: &str) {
        assert!(self.weights == other.weights, "{when}: weights differ");
        assert!(self.moments == other.moments, "{when}: moments differ");
        assert!(self.metrics == other.metrics, "{when}: metrics differ");
    }
}

/// The run that nothing interrupts.
fn whole(epochs: &'static str) -> Ended {
    let run = Run::new(epochs);
    assert_eq!(finish(&mut run.command(&["--quiet"])).code, Some(0));
    Ended::of(&run.out())
}

fn send(signal: &str, child: &Child) {
    let kill = format!("kill -{signal} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// Exit code, standard error.
fn ended(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_signal_saves_and_the_run_goes_on_to_the_same_bits() {
    let whole = whole("3");
    for (signal, code, step) in [("INT", 130, 0), ("TERM", 143, 9), ("INT", 130, 25)] {
        let run = Run::new("3");
        let mut child = run.start(&[]);
        assert!(run.reaches(step, &mut child), "the run is long enough");
        send(signal, &child);
        let (found, said) = ended(child);
        assert_eq!(found, Some(code), "{signal} at {step}: {said}");
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("error: stopped at step") && last.contains("--resume"), "{said}");
        assert!(!said.contains(['\r', '\x1b']), "{said}");
        let at = run.step().unwrap();
        assert!(at >= step, "the step in progress is kept: {at} of {step}");
        assert!(last.contains(&format!("stopped at step {at} ")), "{last}: saved {at}");
        run.end().same(&whole, signal);
    }
}

/// Signals again and again, also within the save.
#[test]
fn a_second_signal_of_either_kind_ends_at_once_and_leaves_a_whole_state() {
    let whole = whole("3");
    for (round, (first, second)) in
        [("INT", "INT"), ("TERM", "INT"), ("INT", "TERM"), ("TERM", "TERM")].iter().enumerate()
    {
        let run = Run::new("3");
        let mut child = run.start(&[]);
        assert!(run.reaches(4 + 5 * round as u64, &mut child));
        send(first, &child);
        send(second, &child);
        let (code, said) = ended(child);
        assert!(matches!(code, Some(130 | 143)), "{first} {second}: {code:?} {said}");
        run.end().same(&whole, &format!("{first} {second}"));
    }
}

/// The hardest end, at moments spread over a step and its save: what is there can be resumed, and
/// comes to the bits of the run that nothing interrupted.
#[test]
fn killed_at_any_moment_it_goes_on_to_the_same_bits() {
    let whole = whole("3");
    let run = Run::new("3");
    let mut child = run.start(&["--quiet"]);
    let mut kills = 0;
    for round in 1..=10u64 {
        let step = run.step().unwrap_or(0) + 2;
        if !run.reaches(step, &mut child) {
            break;
        }
        std::thread::sleep(Duration::from_micros(700 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        assert!(run.step().unwrap() >= step, "what was saved stays");
        child = run.start(&["--resume", "--quiet"]);
    }
    assert!(kills >= 8, "the run was too short: {kills} kills");
    drop(child.wait());
    run.end().same(&whole, "killed");
    let stray = |folder: &Path| names(folder).into_iter().any(|name| name.ends_with(".tmp"));
    assert!(!stray(&run.out()) && !stray(&run.out().join("checkpoints")), "nothing stays behind");
}

/// Two processes would mix their files: the second one ends, whatever it was told to do.
#[test]
fn one_process_at_a_time_trains_into_a_folder() {
    let whole = whole("3");
    let run = Run::new("3");
    let mut child = run.start(&["--quiet"]);
    assert!(run.reaches(2, &mut child));
    send("STOP", &child);
    let before = fs::read(run.out().join("metrics.jsonl")).unwrap();
    for words in [&[][..], &["--resume"], &["--force"], &["--resume", "--ranks", "2"]] {
        let second = finish(&mut run.command(words));
        second.refused(2, &["/run", &format!("another process ({})", child.id()), "--out"]);
    }
    assert!(fs::read(run.out().join("metrics.jsonl")).unwrap() == before);
    send("CONT", &child);
    let (code, said) = ended(child);
    assert_eq!(code, Some(0), "{said}");
    Ended::of(&run.out()).same(&whole, "a second process");
    assert!(!names(&run.out()).iter().any(|name| name.ends_with(".lock")));
}

/// A checkpoint that lost bytes is passed over, said once, and the one before is taken.
#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let whole = whole("3");
    let run = Run::new("3");
    let mut child = run.start(&["--quiet"]);
    assert!(run.reaches(6, &mut child));
    child.kill().unwrap();
    child.wait().unwrap();
    let newest = run.step().unwrap();
    let file = format!("checkpoints/step-{newest:09}/weights.safetensors");
    let file = run.out().join(file);
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    // That something was lost is said even where nothing else is.
    let child = run.start(&["--resume", "--quiet"]);
    let (code, said) = ended(child);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("passed over") && said.contains(&format!("step-{newest:09}")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    Ended::of(&run.out()).same(&whole, "damaged");
}

#[test]
fn a_finished_run_that_is_resumed_stays_as_it_is() {
    let run = Run::new("1");
    assert_eq!(finish(&mut run.command(&["--quiet"])).code, Some(0));
    let before = Ended::of(&run.out());
    run.end().same(&before, "again");
}

/// Prepares much, stops it, and looks for traces.
fn prepare_stopped(signal: &str, code: i32, after: Duration) {
    let folder = tempdir().unwrap();
    let out = folder.path().join("data");
    let mut command = program();
    command.args(["data", "prepare", "--messages", "2000000", "--out"]).arg(&out);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while names(folder.path()).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(after);
    send(signal, &child);
    let sent = Instant::now();
    let (found, said) = ended(child);
    assert_eq!(found, Some(code), "{said}");
    assert!(sent.elapsed() < Duration::from_secs(20), "it went on for {:?}", sent.elapsed());
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: stopped") && last.contains("nothing was written"), "{said}");
    assert!(names(folder.path()).is_empty(), "left behind: {:?}", names(folder.path()));
}

#[test]
fn a_stopped_preparation_leaves_nothing() {
    prepare_stopped("INT", 130, Duration::ZERO);
    prepare_stopped("TERM", 143, Duration::from_millis(400));
}

/// A data set that is being replaced is the old one until the new one is whole.
#[test]
fn a_stopped_replacement_keeps_the_old_data() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("data");
    let path = out.to_str().unwrap();
    works(&["data", "prepare", "--messages", "300", "--vocab-size", "50", "--out", path]);
    let before = fs::read(out.join("manifest.json")).unwrap();
    let mut command = program();
    command.args(["data", "prepare", "--messages", "2000000", "--force", "--out", path]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while names(folder.path()).len() < 2 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    send("INT", &child);
    assert_eq!(ended(child).0, Some(130));
    assert_eq!(names(folder.path()), ["data"]);
    assert!(fs::read(out.join("manifest.json")).unwrap() == before);
    works(&["data", "inspect", path, "--verify"]);
}

const EXPERIMENT: &str = "name = 'stopped'\nseeds = [1, 2]\nepochs = 12\ndraws = 200\n\
    prompts = ['please']\n[train]\nbatch = 16\nlearning_rate = 1e-2\nwarmup_steps = 5\n\
    [[arm]]\nname = 'bigram'\nkind = 'bigram'\n\
    [[arm]]\nname = 'rnn'\nkind = 'rnn'\nmodel = { embedding_size = 8, hidden_size = 16 }\n";

#[test]
fn a_stopped_comparison_keeps_finished_rows() {
    let folder = tempdir().unwrap();
    let (file, out) = (folder.path().join("e.toml"), folder.path().join("out"));
    fs::write(&file, EXPERIMENT).unwrap();
    let command = || {
        let mut command = program();
        command.args(["compare", "--threads", "1", "--data", data(), "--experiment"]);
        command.arg(&file).arg("--out").arg(&out);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let rows = || fs::read_to_string(out.join("records.jsonl")).unwrap_or_default();
    let child = command().spawn().unwrap();
    let begun = Instant::now();
    while rows().lines().count() < 2 && begun.elapsed() < Duration::from_secs(100) {
        std::thread::sleep(Duration::from_millis(1));
    }
    send("INT", &child);
    let (code, said) = ended(child);
    assert_eq!(code, Some(130), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.contains("finished runs are kept"), "{said}");
    let kept = rows();
    assert!(kept.lines().count() == 2, "{kept}");
    let done = finish(&mut command());
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("2 of 3 runs are there already"), "{}", done.err);
    assert!(rows().starts_with(&kept), "finished rows are as they were");
    assert_eq!(rows().lines().count(), 3);
    assert!(out.join("report.html").is_file() && out.join("results.json").is_file());
}
