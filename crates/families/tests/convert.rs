//! Models written as other files: the way there and back keeps every bit that the types can hold,
//! the tokenizer, the ends and the template; what types round stays near.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use families::{Checkpoint, ConvertError, Mix, Progress, Target, Words, convert, export};
use formats::{Gguf, TensorKind, dequantise};
use kernels::Team;
use models::{Batch, Model, ModelConfig, Runner, Workload};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const FIXTURES: [&str; 9] =
    ["llama", "llama3", "linear", "yarn", "mistral", "qwen2", "qwen3", "gemma3", "gpt2"];

fn fixture(name: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    Checkpoint::open(&folder).unwrap()
}

/// A model of a fixture's family with rows that are whole blocks, as a folder.
fn sized(name: &str, folder: &Path) -> Checkpoint {
    let source = fixture(name);
    let mut c = source.config.clone();
    (c.hidden_size, c.intermediate_size, c.num_hidden_layers) = (256, 512, 4);
    (c.num_attention_heads, c.num_key_value_heads, c.head_dim) = (4, Some(2), Some(64));
    if name == "gpt2" {
        (c.num_key_value_heads, c.head_dim) = (None, None);
    }
    if let Some(window) = c.sliding_window.as_mut().filter(|_| name == "mistral") {
        window.layers = (0..4).collect();
    }
    c.query_pre_attn_scalar = None;
    c.embedding_scale = c.embedding_scale.map(|_| 16.0);
    let mut model = Model::new(&ModelConfig::Transformer(c)).unwrap();
    model.weights_mut().initialise(5);
    let words = Words {
        tokenizer: &source.tokenizer,
        ends: &source.ends,
        bos_token: source.bos_token.as_deref(),
        eos_token: source.eos_token.as_deref(),
        chat_template: source.chat_template.as_deref(),
    };
    export(folder, &model, &words).unwrap();
    Checkpoint::open(folder).unwrap()
}

fn go_on(_: Progress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn written(from: &Checkpoint, path: &Path, target: Target) -> Checkpoint {
    convert(from, path, target, 2, &mut go_on).unwrap();
    Checkpoint::open(path).unwrap()
}

/// No more than the shortest window, of which most GGUF files say nothing.
const IDS: [u32; 12] = [7, 99, 3, 250, 12, 12, 64, 1, 200, 31, 5, 77];

fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let model = checkpoint.load(2).unwrap();
    let team = Arc::new(Team::new(2));
    let workload = Workload { rows: 12, sequences: 1, longest: 12, threads: 2, training: false };
    let mut runner = Runner::new(&model, workload, &team).unwrap();
    let mut batch = Batch::default();
    batch.push_inputs(&IDS, 0, 0);
    let mut out = vec![0.0; 12 * model.config().vocab_size()];
    runner.logits(&model, &batch, &mut [][..], &(0..12).collect::<Vec<_>>(), &mut out);
    out
}

fn far(a: &[f32], b: &[f32]) -> f32 {
    let top = a.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / top
}

fn same_words(a: &Checkpoint, b: &Checkpoint, name: &str) {
    for text in ["Hello, world: 12 times\n", " don't  <|user|> \u{e9}e\u{301}", "日本"] {
        assert_eq!(a.tokenizer.encode(text), b.tokenizer.encode(text), "{name}");
        assert_eq!(
            a.tokenizer.encode_with_controls(text),
            b.tokenizer.encode_with_controls(text),
            "{name}"
        );
    }
    let (x, y) = (a.tokenizer.specials(), b.tokenizer.specials());
    assert_eq!((x.bos, x.eos, x.pad), (y.bos, y.eos, y.pad), "{name}");
    assert_eq!((&a.ends, &a.chat_template), (&b.ends, &b.chat_template), "{name}");
    assert_eq!((&a.bos_token, &a.eos_token), (&b.bos_token, &b.eos_token), "{name}");
}

#[test]
fn every_family_goes_there_and_back_with_the_same_bits() {
    for name in FIXTURES {
        let (mut source, place) = (fixture(name), tempfile::tempdir().unwrap());
        if name == "gemma3" {
            // Its scores are scaled by a number of their own, which such files do not hold.
            let path = place.path().join("m.gguf");
            let refused = convert(&source, &path, Target::Gguf(Mix::F32), 2, &mut go_on);
            let message = refused.unwrap_err().to_string();
            assert!(message.contains("query_pre_attn_scalar"), "{message}");
            source = sized(name, &place.path().join("folder"));
        }
        let gguf = written(&source, &place.path().join("m.gguf"), Target::Gguf(Mix::F32));
        same_words(&source, &gguf, name);
        let (before, there) = (logits(&source), logits(&gguf));
        // Only factors of frequencies are rounded on the way.
        let most = if name == "llama3" { 1e-5 } else { 0.0 };
        assert!(far(&before, &there) <= most, "{name} {}", far(&before, &there));
        if name == "llama3" {
            // Its factors are those of no published model, and a folder has no word for others.
            let back = convert(&gguf, &place.path().join("b"), Target::Folder(None), 2, &mut go_on);
            assert!(matches!(back, Err(ConvertError::Export(_))), "{name}");
            continue;
        }
        // Everything is F32 in between; a folder is asked for in the source's own type.
        let own = source.tensors.census()[0].0;
        let back = written(&gguf, &place.path().join("back"), Target::Folder(Some(own)));
        same_words(&source, &back, name);
        assert_eq!(logits(&back), there, "{name}");
        for tensor in source.tensors.names() {
            let (old, new) = (source.tensors.get(tensor).unwrap(), back.tensors.get(tensor));
            let new = new.unwrap_or_else(|| panic!("{name} {tensor}"));
            assert_eq!((old.shape, old.kind), (new.shape, new.kind), "{name} {tensor}");
            assert!(old.bytes == new.bytes, "{name} {tensor}");
        }
    }
}

#[test]
fn every_type_keeps_what_it_can() {
    for name in FIXTURES {
        let place = tempfile::tempdir().unwrap();
        let source = sized(name, &place.path().join("folder"));
        let right = logits(&source);
        let mut errors = Vec::new();
        for mix in Mix::ALL {
            let path = place.path().join(format!("{}.gguf", mix.name()));
            errors.push(far(&right, &logits(&written(&source, &path, Target::Gguf(mix)))));
        }
        let most = [1e-5, 2e-3, 2e-2, 4e-2, 0.5, 0.5];
        println!("{name}: {errors:?}");
        assert!(errors.iter().zip(most).all(|(e, most)| *e <= most), "{name}: {errors:?}");
        assert!(errors[2] > 0.0 && errors[4] > errors[3], "{name}: {errors:?}");
    }
}

#[test]
fn a_window_that_has_no_word_becomes_the_context() {
    let (source, place) = (fixture("mistral"), tempfile::tempdir().unwrap());
    let path = place.path().join("m.gguf");
    let done = convert(&source, &path, Target::Gguf(Mix::F16), 1, &mut go_on).unwrap();
    let window = source.config.sliding_window.as_ref().unwrap().tokens;
    assert!(done.notes[0].contains(&format!("only {window} tokens")), "{:?}", done.notes);
    assert_eq!(Checkpoint::open(&path).unwrap().config.max_position_embeddings, window);
}

#[test]
fn a_gguf_file_becomes_one_of_other_types_with_its_keys() {
    let place = tempfile::tempdir().unwrap();
    let source = sized("qwen3", &place.path().join("folder"));
    let (first, second) = (place.path().join("a.gguf"), place.path().join("b.gguf"));
    let first = written(&source, &first, Target::Gguf(Mix::F16));
    let second_file = written(&first, &second, Target::Gguf(Mix::Q8_0));
    same_words(&source, &second_file, "qwen3");
    let (a, b) = (Gguf::open(&first.path).unwrap(), Gguf::open(&second).unwrap());
    assert_eq!(a.metadata.keys(), b.metadata.keys());
    assert_eq!(b.metadata.size("general.file_type").unwrap(), Some(7));
    assert!(b.tensors.census().iter().any(|row| row.0 == TensorKind::Q8_0));
    assert!(far(&logits(&source), &logits(&second_file)) < 0.04);
}

#[test]
fn stopping_and_bad_weights_leave_nothing() {
    let (source, place) = (fixture("llama"), tempfile::tempdir().unwrap());
    let path = place.path().join("m.gguf");
    let mut calls = 0;
    let mut stop = |_: Progress<'_>| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = convert(&source, &path, Target::Gguf(Mix::F16), 1, &mut stop);
    assert!(matches!(stopped, Err(ConvertError::Stopped)));
    let again = convert(&source, place.path(), Target::Folder(None), 1, &mut go_on).unwrap_err();
    assert!(again.to_string().contains("already"), "{again}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    // A broken number, and one that halves cannot hold.
    for (bad, advice) in [(f32::NAN, "broken"), (1e30, "bf16")] {
        let broken = place.path().join("broken");
        copy_with(&source, &broken, bad);
        let broken = Checkpoint::open(&broken).unwrap();
        let refused = convert(&broken, &path, Target::Gguf(Mix::F16), 1, &mut go_on);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("blk.") && message.contains(advice), "{message}");
        assert!(!path.exists());
    }
}

/// A copy of a folder in which one value of a matrix is `bad`.
fn copy_with(source: &Checkpoint, to: &Path, bad: f32) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(&source.path).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let name = "model.layers.1.mlp.up_proj.weight";
    let file = to.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let tensor = source.tensors.get(name).unwrap();
    let whole = tensor.bytes;
    let at = bytes.windows(whole.len()).position(|window| window == whole).unwrap();
    match tensor.kind {
        TensorKind::F32 => bytes[at + 8..at + 12].copy_from_slice(&bad.to_le_bytes()),
        other => panic!("{other}"),
    }
    std::fs::write(&file, bytes).unwrap();
}

/// The Python of the workspace or of `AUTOREG_PYTHON`.
fn python() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let python = std::env::var_os("AUTOREG_PYTHON").map_or(own, PathBuf::from);
    python.exists().then_some(python)
}

#[test]
fn the_gguf_package_reads_what_is_written() {
    let Some(python) = python() else {
        println!("skipped: no Python with the gguf package at .venv or AUTOREG_PYTHON");
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let source = sized("gemma3", &place.path().join("folder"));
    for mix in Mix::ALL {
        let path = place.path().join(format!("{}.gguf", mix.name()));
        let checkpoint = written(&source, &path, Target::Gguf(mix));
        let script = "import sys, gguf, numpy\n\
            r = gguf.GGUFReader(sys.argv[1])\n\
            for t in r.tensors:\n    \
            v = gguf.quants.dequantize(t.data, t.tensor_type).astype(numpy.float64)\n    \
            print(t.name, t.tensor_type.name, *map(int, t.shape), repr(float(abs(v).sum())))";
        let out = Command::new(&python).args(["-c", script]).arg(&path).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let mut lines = 0;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let tensor = checkpoint.tensors.get(words[0]).unwrap();
            assert_eq!(tensor.kind.name(), words[1]);
            let shape: Vec<usize> =
                words[2..words.len() - 1].iter().rev().map(|d| d.parse().unwrap()).collect();
            assert_eq!(tensor.shape, shape, "{line}");
            let mut values = vec![0.0; tensor.len()];
            dequantise(tensor.kind, tensor.bytes, &mut values);
            let sum: f64 = values.iter().map(|v| f64::from(v.abs())).sum();
            let theirs: f64 = words[words.len() - 1].parse().unwrap();
            assert!((sum - theirs).abs() <= 1e-6 * sum, "{line} {sum}");
            lines += 1;
        }
        assert_eq!(lines, checkpoint.tensors.names().count());
    }
}

#[test]
fn sixteen_bits_stay_so_and_give_the_bits_of_floats() {
    for name in ["llama3", "linear", "mistral", "qwen2", "qwen3", "gemma3", "gpt2"] {
        let mut checkpoint = fixture(name);
        let floats = logits(&checkpoint);
        let plan =
            |checkpoint: &Checkpoint| Model::plan(&checkpoint.model_config()).unwrap().total();
        let whole = plan(&checkpoint);
        checkpoint.keep_as_stored().unwrap();
        assert!(3 * plan(&checkpoint) < 2 * whole, "{name}: {} of {whole}", plan(&checkpoint));
        let kept = logits(&checkpoint);
        assert!(far(&floats, &kept) <= 1e-6, "{name} {}", far(&floats, &kept));
        let same = floats.iter().zip(&kept).filter(|(a, b)| a.to_bits() == b.to_bits()).count();
        println!("{name}: {same} of {} logits are the same bits", kept.len());
    }
}
