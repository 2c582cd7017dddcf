//! What a run shows and leaves beside its weights: checkpoints kept, samples, event files, a
//! dashboard.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{autoreg, data, json, names, program};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHORT: [&str; 10] = [
    "--batch",
    "16",
    "--micro-batch",
    "16",
    "--max-steps",
    "6",
    "--eval-every",
    "2",
    "--checkpoint-every",
    "1",
];

fn train(out: &Path, more: &[&str]) -> common::Ran {
    let mut all = vec!["train", "--data", data(), "--model", "transformer"];
    all.extend(["--out", out.to_str().unwrap(), "--threads", "1"]);
    all.extend(SHORT);
    all.extend(more);
    let ran = autoreg(&all);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran
}

fn bytes(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model.safetensors")).unwrap()
}

fn metrics(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn as_many_checkpoints_are_kept_as_asked_and_samples_change_no_bit() {
    let place = tempfile::tempdir().unwrap();
    let (plain, sampled) = (place.path().join("plain"), place.path().join("sampled"));
    let ran = train(&plain, &["--keep", "4"]);
    let kept: Vec<String> = (3..=6).map(|step| format!("step-{step:09}")).collect();
    assert_eq!(names(&plain.join("checkpoints")), kept);
    assert!(!ran.err.contains("sample"), "{}", ran.err);
    let ask = ["--sample-every", "4", "--sample-prompt", "please", "--sample-tokens", "5"];
    let ran = train(&sampled, &ask);
    let samples: Vec<&str> = ran.err.lines().filter(|line| line.contains("sample: ")).collect();
    assert_eq!(samples.len(), 2, "{}", ran.err);
    assert!(samples[0].starts_with("step      4") && samples[1].starts_with("step      6"));
    assert_eq!(names(&sampled.join("checkpoints")), kept[2..]);
    assert!(bytes(&plain) == bytes(&sampled), "samples changed the weights");
    let other = place.path().join("other");
    let refused = |more: &[&str], fact: &str| {
        let mut all = vec!["train", "--data", data(), "--out", other.to_str().unwrap(), "--quiet"];
        all.extend(more);
        let ran = autoreg(&all);
        assert!(ran.code == Some(2) && ran.err.contains(fact), "{}", ran.err);
        assert!(!other.exists());
    };
    refused(&["--sample-every", "1", "--sample-tokens", "900"], "--sample-tokens 900");
    refused(&["--sample-every", "1", "--sample-temperature", "-1"], "temperature");
    refused(&["--sample-prompt", "x"], "--sample-every");
    refused(&["--keep", "0"], "--keep");
}

/// CRC-32C bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
    let byte = |crc: u32, b: &u8| (0..8).fold(crc ^ u32::from(*b), |crc, _| step(crc));
    let crc = !bytes.iter().fold(!0, byte);
    crc.rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// The fields of a protocol buffer: (number, value or bytes).
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    let varint = |bytes: &mut &[u8]| {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7F) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let (number, inner) = match key & 7 {
            0 => (varint(&mut bytes), Vec::new()),
            wire => {
                let length = match wire {
                    1 => 8,
                    5 => 4,
                    _ => varint(&mut bytes) as usize,
                };
                let (inner, rest) = bytes.split_at(length);
                bytes = rest;
                (0, inner.to_vec())
            }
        };
        all.push((key >> 3, number, inner));
    }
    all
}

/// (step, tag, value) of every number in an event file whose checksums hold.
fn scalars(path: &Path) -> Vec<(u64, String, f32)> {
    let file = std::fs::read(path).unwrap();
    let (mut rest, mut all) = (&file[..], Vec::new());
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        let sum = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let data = &rest[12..12 + length];
        assert_eq!((sum(8), sum(12 + length)), (crc(&rest[..8]), crc(data)));
        let event = fields(data);
        let step = event.iter().find(|f| f.0 == 2).map_or(0, |f| f.1);
        for summary in event.iter().filter(|f| f.0 == 5) {
            for value in fields(&summary.2) {
                let one = fields(&value.2);
                let tag = one.iter().find(|f| f.0 == 1).unwrap().2.clone();
                let number = one.iter().find(|f| f.0 == 2);
                let number = number.map(|f| f32::from_le_bytes(f.2[..].try_into().unwrap()));
                all.extend(number.map(|x| (step, String::from_utf8(tag).unwrap(), x)));
            }
        }
        rest = &rest[16 + length..];
    }
    all
}

fn files(dir: &Path) -> Vec<PathBuf> {
    names(dir).into_iter().map(|name| dir.join(name)).collect()
}

const READER: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]); events.Reload()
tags = events.Tags()
print(json.dumps({'scalars': {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags['scalars']},
                  'texts': [e.tensor_proto.string_val[0].decode() for e in events.Tensors('sample')]}))
";

#[test]
fn event_files_hold_what_metrics_hold() {
    let place = tempfile::tempdir().unwrap();
    let (run, events) = (place.path().join("run"), place.path().join("events"));
    let ask = ["--tensorboard", events.to_str().unwrap(), "--sample-every", "6"];
    train(&run, &ask);
    let all = files(&events);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
    let read = scalars(&all[0]);
    let of = |tag: &str| -> Vec<(u64, f32)> {
        read.iter().filter(|one| one.1 == tag).map(|one| (one.0, one.2)).collect()
    };
    let metrics = metrics(&run);
    let from = |key: &str| -> Vec<(u64, f32)> {
        let lines = metrics.iter().filter(|line| line.get(key).is_some());
        lines.map(|l| (l["step"].as_u64().unwrap(), l[key].as_f64().unwrap() as f32)).collect()
    };
    for (tag, key) in [
        ("train/loss", "loss_nats"),
        ("train/learning_rate", "learning_rate"),
        ("train/gradient_norm", "gradient_norm"),
        ("valid/loss", "valid_loss_nats"),
    ] {
        assert!(!of(tag).is_empty() && of(tag) == from(key), "{tag}: {:?}", of(tag));
    }
    // The time of reading data is a part of the time of steps.
    let last = metrics.iter().rev().find(|line| line.get("seconds").is_some()).unwrap();
    let (data, all_seconds) = (last["data_seconds"].as_f64(), last["seconds"].as_f64());
    assert!(data > Some(0.0) && data < all_seconds, "{last}");
    let told = json(&["diagnose", run.to_str().unwrap()]);
    assert!(told.to_string().contains("data"), "{told}");

    let python = std::env::var_os("AUTOREG_PYTHON").map(PathBuf::from);
    let python =
        python.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python"));
    let known = Command::new(&python).args(["-c", "import tensorboard"]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        println!("skipped: no Python with tensorboard; set AUTOREG_PYTHON");
        return;
    }
    let output = Command::new(python).args(["-c", READER]).arg(&events).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();
    let losses = theirs["scalars"]["train/loss"].as_array().unwrap();
    let losses: Vec<(u64, f32)> = losses
        .iter()
        .map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_f64().unwrap() as f32))
        .collect();
    assert_eq!(losses, of("train/loss"));
    assert_eq!(theirs["texts"].as_array().unwrap().len(), 1, "{theirs}");
}

#[test]
fn a_dashboard_needs_a_terminal_and_gives_it_back() {
    let place = tempfile::tempdir().unwrap();
    // Without a terminal: lines.
    let lines = place.path().join("lines");
    let ran = train(&lines, &["--tui"]);
    assert!(ran.err.contains("valid") && !ran.err.contains('\x1b'), "{}", ran.err);
    let Ok(found) = Command::new("script").arg("--version").output() else {
        println!("skipped: no `script` to make a terminal with");
        return;
    };
    assert!(found.status.success());
    let out = place.path().join("shown");
    let words = program().get_program().to_str().unwrap().to_owned();
    let command = format!(
        "{words} train --data {} --model transformer --out {} --threads 1 --tui {}",
        data(),
        out.display(),
        SHORT.join(" ")
    );
    let log = place.path().join("typescript");
    let output = Command::new("script")
        .args(["-qec", &command, log.to_str().unwrap()])
        .env("TERM", "xterm-256color")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let (taken, given) = (text.find("\x1b[?1049h"), text.find("\x1b[?1049l"));
    assert!(taken.is_some() && taken < given, "{text:?}");
    // What stays on the terminal: the evaluations and the result.
    let after = &text[given.unwrap()..];
    assert!(after.contains("valid") && after.contains("run folder"), "{after:?}");
    assert!(bytes(&lines) == bytes(&out));
}
