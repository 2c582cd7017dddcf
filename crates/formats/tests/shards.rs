//! The weights of a Hugging Face folder, and headers that lie.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use formats::{TensorKind, TensorRef, Values, dequantise, open_shards, write_tensors};
use std::collections::HashMap;
use std::path::Path;

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

fn refused(folder: &Path, bytes: &[u8]) {
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    let error = open_shards(folder).map(|s| s.names().count()).unwrap_err().to_string();
    assert!(error.contains("model.safetensors") && !error.contains('\n'), "{error}");
}

#[test]
fn headers_that_lie_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for length in [u64::MAX, 1 << 63, 7, 0] {
        refused(dir.path(), &[&length.to_le_bytes()[..], b"{}"].concat());
    }
    refused(dir.path(), b"12345");
    for header in ["[]", "null", "{\"a\":1}", "\u{7f}"] {
        refused(dir.path(), &file(header, 8));
    }
    let mut latin = file("{\"a\":{}}", 0);
    latin[10] = 0xFF;
    refused(dir.path(), &latin);
    for offsets in ["[8,0]", "[-4,4]", "[0]", "[0,1e30]", "[0,16]", "[4,12]"] {
        let header = format!(r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}}}"#);
        refused(dir.path(), &file(&header, 8));
    }
    for offsets in ["[0,8]", "[0,99]"] {
        let header = format!(r#"{{"a":{{"dtype":"F77","shape":[2],"data_offsets":{offsets}}}}}"#);
        refused(dir.path(), &file(&header, 8));
    }
    let huge = r#"{"a":{"dtype":"F32","shape":[9223372036854775808,2],"data_offsets":[0,8]}}"#;
    refused(dir.path(), &file(huge, 8));
    std::fs::write(dir.path().join("model.safetensors"), file("{}", 0)).unwrap();
    assert_eq!(open_shards(dir.path()).unwrap().names().count(), 0);
}

#[test]
fn several_files_come_by_their_index() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, name: &str, values: &[f32]| {
        let shape = vec![values.len()];
        let tensor = TensorRef { name: name.into(), shape, values: Values::F32(values) };
        write_tensors(&dir.path().join(file), &[tensor], HashMap::new()).unwrap();
    };
    write("m-1.safetensors", "a", &[1.0, 2.0]);
    write("m-2.safetensors", "b", &[3.0]);
    let index = |a: &str, b: &str| {
        let text = format!(r#"{{"metadata":{{}},"weight_map":{{"a":"{a}","b":"{b}"}}}}"#);
        std::fs::write(dir.path().join("model.safetensors.index.json"), text).unwrap();
        open_shards(dir.path())
    };
    let store = index("m-1.safetensors", "m-2.safetensors").unwrap();
    let b = store.get("b").unwrap();
    let mut out = [0.0];
    dequantise(TensorKind::F32, b.bytes, &mut out);
    assert_eq!((b.shape, out), (&[1usize][..], [3.0]));
    for (a, b) in [
        ("m-2.safetensors", "m-2.safetensors"),
        ("m-2.safetensors", "m-1.safetensors"),
        ("../m-1.safetensors", "m-2.safetensors"),
        ("m-3.safetensors", "m-2.safetensors"),
    ] {
        let found = index(a, b).map(|s| s.names().count());
        // A tensor that no file holds is found missing when a model asks for it.
        assert!(found.is_err() || found.is_ok_and(|n| n == 1), "{a} {b}");
    }
}
