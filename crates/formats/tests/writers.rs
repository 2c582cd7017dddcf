//! Files that are written are read again, value for value; encoders against another implementation.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use formats::{
    Gguf, KeyValue, MetaValue, TensorHead, TensorKind, dequantise, open_shards, quantise,
    stream_tensors, write_gguf,
};
use proptest::prelude::*;
use std::io::{self, Write};
use std::path::Path;

fn tensor(name: &str, kind: TensorKind, shape: &[usize]) -> TensorHead {
    TensorHead { name: name.to_owned(), kind, shape: shape.to_vec() }
}

fn bytes_of(kind: TensorKind, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0; kind.bytes_of(values.len()).unwrap()];
    quantise(kind, values, &mut out);
    out
}

#[test]
fn encoders_give_the_references_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoded.gguf");
    let gguf = Gguf::open(&path).unwrap();
    let source = gguf.tensors.get("values").unwrap();
    let mut values = vec![0.0; source.len()];
    dequantise(source.kind, source.bytes, &mut values);
    let mut compared = 0;
    for kind in TensorKind::ALL {
        let Some(right) = gguf.tensors.get(kind.name()) else { continue };
        assert!(bytes_of(kind, &values) == right.bytes, "{kind}");
        compared += 1;
    }
    assert_eq!(compared, 7, "F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0");
}

#[test]
fn a_gguf_file_comes_back_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let values: Vec<f32> = (0..512).map(|i| (i as f32 - 200.0) / 64.0).collect();
    let tensors: Vec<TensorHead> =
        TensorKind::ALL.iter().map(|&kind| tensor(kind.name(), kind, &[2, 256])).collect();
    let keys = [
        ("a.text".to_owned(), KeyValue::Text("é\n".to_owned())),
        ("a.size".to_owned(), KeyValue::U32(7)),
        ("a.float".to_owned(), KeyValue::F32(0.5)),
        ("a.flag".to_owned(), KeyValue::Bool(true)),
        ("a.texts".to_owned(), KeyValue::Texts(vec!["x".to_owned(), String::new()])),
        ("a.wholes".to_owned(), KeyValue::Wholes(vec![1, -2])),
        ("a.floats".to_owned(), KeyValue::Floats(vec![1.5, -0.25])),
    ];
    let fill = |i: usize, out: &mut dyn Write| out.write_all(&bytes_of(tensors[i].kind, &values));
    write_gguf(&path, &keys, &tensors, fill).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    for kind in TensorKind::ALL {
        let stored = gguf.tensors.get(kind.name()).unwrap();
        assert_eq!((stored.kind, stored.shape), (kind, &[2, 256][..]));
        assert!(stored.bytes == bytes_of(kind, &values), "{kind}");
    }
    let m = &gguf.metadata;
    assert_eq!(m.text("a.text").unwrap(), Some("é\n"));
    assert_eq!(m.get("a.size"), Some(&MetaValue::Whole(7)));
    assert_eq!(m.number("a.float").unwrap(), Some(0.5));
    assert_eq!(m.bool("a.flag").unwrap(), Some(true));
    assert_eq!(m.texts("a.texts").unwrap().unwrap(), ["x", ""]);
    assert_eq!(m.wholes("a.wholes").unwrap().unwrap(), [1, -2]);
    assert_eq!(m.floats("a.floats").unwrap().unwrap(), [1.5, -0.25]);
    // Keys copied as they stand make the same file.
    let copies: Vec<(String, KeyValue)> = gguf
        .raw_keys()
        .map(|(name, bytes)| (name.to_owned(), KeyValue::Raw(bytes.to_vec())))
        .collect();
    let again = dir.path().join("again.gguf");
    write_gguf(&again, &copies, &tensors, fill).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());
}

#[test]
fn a_safetensors_file_comes_back_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let kinds = [TensorKind::F32, TensorKind::F16, TensorKind::Bf16];
    let tensors: Vec<TensorHead> =
        kinds.iter().map(|&kind| tensor(kind.name(), kind, &[3, 5])).collect();
    let values: Vec<f32> = (0..15).map(|i| i as f32 / 4.0).collect();
    stream_tensors(&path, &tensors, |i, out| out.write_all(&bytes_of(tensors[i].kind, &values)))
        .unwrap();
    let store = open_shards(dir.path()).unwrap();
    for kind in kinds {
        let stored = store.get(kind.name()).unwrap();
        assert_eq!((stored.kind, stored.shape), (kind, &[3, 5][..]));
        assert!(stored.bytes == bytes_of(kind, &values), "{kind}");
    }
    let wrong = [tensor("q", TensorKind::Q8_0, &[1, 32])];
    let refused = stream_tensors(&path, &wrong, |_, _| Ok::<(), io::Error>(())).unwrap_err();
    assert!(refused.to_string().contains("tensor q"), "{refused}");
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let tensors = [tensor("t", TensorKind::F32, &[4])];
    let short = write_gguf(&path, &[], &tensors, |_, out| out.write_all(&[0; 12])).unwrap_err();
    assert!(short.to_string().contains("12 bytes written, expected 16"), "{short}");
    let odd = [tensor("t", TensorKind::Q4K, &[2, 128])];
    let odd = write_gguf(&path, &[], &odd, |_, _| Ok::<(), io::Error>(())).unwrap_err();
    assert!(odd.to_string().contains("no whole blocks of Q4_K"), "{odd}");
    let own = write_gguf(&path, &[], &tensors, |_, _| Err(io::Error::other("stop"))).unwrap_err();
    assert_eq!(own.to_string(), "stop");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn codes_that_were_read_are_written_again(
        codes in prop::collection::vec(-127i8..=127, 64), exponent in -8i32..3,
    ) {
        // Q8_0: when the largest code is there, values on the grid come back to the bit.
        let scale = 2f32.powi(exponent);
        let mut values: Vec<f32> = codes.iter().map(|&c| f32::from(c) * scale).collect();
        (values[5], values[37]) = (127.0 * scale, -127.0 * scale);
        let bytes = bytes_of(TensorKind::Q8_0, &values);
        let mut back = vec![0.0; 64];
        dequantise(TensorKind::Q8_0, &bytes, &mut back);
        prop_assert_eq!(back, values);
    }
}

#[test]
fn the_seeds_of_the_fuzz_targets_hold() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let files = |kind: &str| {
        let folder = std::fs::read_dir(seeds.join(kind)).unwrap();
        folder.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let mut kinds = std::collections::BTreeSet::new();
    for path in files("gguf") {
        let gguf = Gguf::open(&path).unwrap_or_else(|e| panic!("{e}"));
        kinds.extend(gguf.tensors.census().into_iter().map(|row| row.0));
    }
    assert_eq!(kinds.len(), TensorKind::ALL.len());
    for path in files("safetensors") {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(&path, dir.path().join("model.safetensors")).unwrap();
        open_shards(dir.path()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}
