//! GGUF files, good and bad: the values against another implementation, the lies against one clear
//! error each.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{file, head, key};
use formats::{Gguf, GgufError, MetaValue, TensorKind, dequantise};
use proptest::prelude::*;
use std::path::Path;

fn open(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, bytes).unwrap();
    Gguf::open(&path)
}

/// The message of a file that must be refused; it names all of `facts`.
fn refused(bytes: &[u8], facts: &[&str]) {
    let message = open(bytes).err().map(|e| e.to_string());
    let message = message.unwrap_or_else(|| panic!("accepted; expected a word of {facts:?}"));
    assert!(!message.contains('\n'), "one line: {message}");
    for fact in facts {
        assert!(message.contains(fact), "{fact:?} is not in: {message}");
    }
}

#[test]
fn every_type_means_what_the_reference_says_to_the_bit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/blocks.gguf");
    let gguf = Gguf::open(&path).unwrap();
    for kind in TensorKind::ALL {
        let stored = gguf.tensors.get(kind.name()).unwrap();
        assert_eq!(stored.kind, kind);
        let right = gguf.tensors.get(&format!("{kind}.values")).unwrap();
        assert_eq!(stored.shape, right.shape, "{kind}");
        let (mut found, mut expected) = (vec![0.0; stored.len()], vec![0.0; right.len()]);
        dequantise(kind, stored.bytes, &mut found);
        dequantise(right.kind, right.bytes, &mut expected);
        assert!(expected.iter().any(|&v| v != 0.0));
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "{kind}");
    }
    let m = &gguf.metadata;
    assert_eq!(m.texts("test.texts").unwrap().unwrap(), ["a", "", "é"]);
    assert_eq!(m.floats("test.floats").unwrap().unwrap(), [0.5, -1.0]);
    assert_eq!(m.wholes("test.wholes").unwrap().unwrap(), [1, -2, 3]);
    assert_eq!(m.bool("test.yes").unwrap(), Some(true));
    assert_eq!(m.get("test.large"), Some(&MetaValue::Whole(1 << 63)));
    assert_eq!(m.get("test.small"), Some(&MetaValue::Whole(-5)));
    assert_eq!(m.number("test.double").unwrap(), Some(0.1));
    assert!(m.size("test.small").unwrap_err().to_string().contains("test.small is -5"));
    let census = gguf.tensors.census();
    assert_eq!(census.len(), TensorKind::ALL.len());
    assert_eq!(census[3], (TensorKind::Q4_0, 1, 512, 288));
}

#[test]
fn absurd_counts_and_versions_name_the_field() {
    for count in [u64::MAX, 0x1D1D_1D1D_1D1D_1D1D, u64::from(u32::MAX), 1 << 60, 1] {
        refused(&head(3, count, 0), &["tensor count", &count.to_string()]);
        refused(&head(3, 0, count), &["key count", &count.to_string()]);
    }
    for version in [0, 1, 4, 99] {
        refused(&head(version, 0, 0), &["version", &version.to_string(), "2 or 3"]);
    }
    refused(&head(3u32.swap_bytes(), 0, 0), &["version", "big-endian"]);
    refused(b"GGUX\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", &["GGUX", "\"GGUF\""]);
    refused(b"", &["cut short"]);
    assert_eq!(open(&head(2, 0, 0)).unwrap().tensors.names().count(), 0);
}

#[test]
fn absurd_keys_name_the_key() {
    let long = |len: u64| [&head(3, 0, 1)[..], &len.to_le_bytes(), &[0; 16]].concat();
    for len in [u64::MAX, 1 << 63, 100] {
        refused(&long(len), &["name of key 0", &len.to_string()]);
    }
    let list = |kind: u32, count: u64| {
        let value = [&kind.to_le_bytes()[..], &count.to_le_bytes(), &[0; 64]].concat();
        file(&[key("k", 9, &value)], &[], 0)
    };
    for kind in [0, 4, 6, 8, 10, 12] {
        refused(&list(kind, 1 << 60), &["key k", "1152921504606846976"]);
    }
    refused(&list(9, 1), &["key k", "a list of lists"]);
    refused(&list(13, 1), &["key k", "type 13"]);
    refused(&file(&[key("k", 99, &[])], &[], 0), &["key k", "99"]);
    refused(&file(&[key("k", 7, &[2])], &[], 0), &["key k", "0 or 1"]);
    refused(&file(&[key("k", 0, &[2]), key("k", 0, &[3])], &[], 0), &["key k", "twice"]);
    let alignment = |n: u32| file(&[key("general.alignment", 4, &n.to_le_bytes())], &[], 0);
    for bad in [0, 1, 24, 1 << 31] {
        refused(&alignment(bad), &["general.alignment", &bad.to_string()]);
    }
    // Lists inside lists, 10,000 deep.
    let deep: Vec<u8> = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(10_000);
    refused(&file(&[key("k", 9, &deep)], &[], 0), &["a list of lists"]);
}

#[test]
fn a_list_of_texts_is_held_against_its_file_and_its_letters_when_read() {
    let list = |texts: &[(u64, &[u8])]| {
        let mut value = [&8u32.to_le_bytes()[..], &(texts.len() as u64).to_le_bytes()].concat();
        texts.iter().for_each(|(len, text)| value.extend([&len.to_le_bytes()[..], text].concat()));
        file(&[key("k", 9, &value), key("after", 7, &[1])], &[], 0)
    };
    refused(&list(&[(1, b"a"), (1 << 60, b"b")]), &["key k", "1152921504606846976"]);
    let good = open(&list(&[(1, b"a"), (0, b""), (2, "é".as_bytes())])).unwrap();
    assert_eq!(good.metadata.texts("k").unwrap().unwrap(), ["a", "", "é"]);
    assert_eq!(good.metadata.bool("after").unwrap(), Some(true));
    let bad = open(&list(&[(1, b"a"), (2, b"\xC3\x28")])).unwrap();
    let error = bad.metadata.texts("k").unwrap_err().to_string();
    assert_eq!(error, "key k is a list whose text 1 is not UTF-8, expected texts");
}

#[test]
fn absurd_tensors_name_the_tensor() {
    let one = |shape: &[u64], kind, offset, data| file(&[], &[("t", shape, kind, offset)], data);
    for dimensions in [0, 5] {
        refused(&one(&vec![1; dimensions], 0, 0, 64), &["tensor t", "1 to 4"]);
    }
    let mut many = one(&[1], 0, 0, 64);
    many[24 + 9..24 + 13].copy_from_slice(&1_000_000u32.to_le_bytes());
    refused(&many, &["1000000", "1 to 4"]);
    for shape in [[1 << 63, 2], [u64::MAX, 2], [0, 2], [4, 0], [1 << 32, 1 << 32]] {
        refused(&one(&shape, 0, 0, 64), &["tensor t"]);
    }
    refused(&one(&[1 << 62], 0, 0, 64), &["tensor t"]);
    refused(&one(&[33], 2, 0, 64), &["tensor t", "33", "32 (Q4_0)"]);
    refused(&one(&[16, 2], 2, 0, 64), &["tensor t", "16", "32 (Q4_0)"]);
    refused(&one(&[256], 10, 0, 256), &["tensor t", "Q2_K", "Q4_K"]);
    refused(&one(&[256], 77, 0, 256), &["tensor t", "number 77"]);
    refused(&one(&[16], 0, 8, 128), &["tensor t", "a multiple of 32"]);
    refused(&one(&[16], 0, 32, 64), &["tensor t", "64 bytes", "cut short"]);
    refused(&one(&[16], 0, u64::MAX - 31, 64), &["tensor t", "18446744073709551584"]);
    let two = |second| file(&[], &[("a", &[16], 0, 0), ("b", &[16], 0, second)], 128);
    refused(&two(32), &["tensor b", "overlaps tensor a"]);
    assert_eq!(open(&two(64)).unwrap().tensors.names().collect::<Vec<_>>(), ["a", "b"]);
    refused(&file(&[], &[("a", &[8], 0, 0), ("a", &[8], 0, 32)], 64), &["tensor a", "twice"]);
}

#[test]
fn every_cut_is_an_error() {
    let whole = file(
        &[key("k", 8, &[&3u64.to_le_bytes()[..], b"abc"].concat())],
        &[("first", &[4, 2], 0, 0), ("last", &[32], 8, 32)],
        66,
    );
    let good = open(&whole).unwrap();
    assert_eq!(good.tensors.get("first").unwrap().shape, [2, 4]);
    assert_eq!(good.tensors.get("last").unwrap().bytes.len(), 34);
    for len in 0..whole.len() {
        assert!(open(&whole[..len]).is_err(), "{len} of {} bytes", whole.len());
    }
    refused(&whole[..whole.len() - 1], &["tensor last", &(whole.len() - 1).to_string()]);
}

#[test]
fn parts_are_found_and_must_belong_together() {
    let dir = tempfile::tempdir().unwrap();
    let number = |name: &str, n: u16| key(name, 2, &n.to_le_bytes());
    let part = |no: u16, count: u16, tensor: &str| {
        let total = key("split.tensors.count", 5, &2i32.to_le_bytes());
        let keys = [number("split.no", no), number("split.count", count), total];
        file(&keys, &[(tensor, &[8], 0, 0)], 32)
    };
    let path = |no: usize| dir.path().join(format!("m-0000{no}-of-00002.gguf"));
    std::fs::write(path(1), part(0, 2, "a")).unwrap();
    let missing = Gguf::open(&path(1)).unwrap_err().to_string();
    assert!(missing.contains("m-00002-of-00002.gguf"), "{missing}");
    std::fs::write(path(2), part(1, 2, "b")).unwrap();
    for given in [1, 2] {
        let gguf = Gguf::open(&path(given)).unwrap();
        assert_eq!(gguf.tensors.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(gguf.metadata.size("split.no").unwrap(), Some(0));
    }
    std::fs::write(path(2), part(1, 2, "a")).unwrap();
    assert!(Gguf::open(&path(1)).unwrap_err().to_string().contains("tensor a occurs twice"));
    std::fs::write(path(2), part(0, 2, "b")).unwrap();
    assert!(Gguf::open(&path(1)).unwrap_err().to_string().contains("split.no"));
    let alone = dir.path().join("m.gguf");
    std::fs::write(&alone, part(0, 2, "a")).unwrap();
    assert!(Gguf::open(&alone).unwrap_err().to_string().contains("-of-00002.gguf"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn bytes_that_changed_are_refused_or_used(
        changes in prop::collection::vec((0usize..400, any::<u8>()), 1..6), cut in 0usize..400,
    ) {
        let mut bytes = file(
            &[key("general.alignment", 4, &32u32.to_le_bytes()), key("k", 0, &[1])],
            &[("first", &[4, 2], 0, 0), ("last", &[32], 8, 32)],
            66,
        );
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len().max(cut) - cut / 4);
        if let Ok(gguf) = open(&bytes) {
            for name in gguf.tensors.names() {
                let tensor = gguf.tensors.get(name).unwrap();
                let mut out = vec![0.0; tensor.len()];
                dequantise(tensor.kind, tensor.bytes, &mut out);
            }
        }
    }
}
