//! A GGUF file: any bytes are refused or used, and every tensor can be read.
#![no_main]

use formats::{Gguf, dequantise};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("x.gguf");
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    let Ok(gguf) = Gguf::open(&path) else { return };
    for key in gguf.metadata.keys() {
        drop(gguf.metadata.texts(key));
    }
    for name in gguf.tensors.names() {
        let Some(tensor) = gguf.tensors.get(name) else { panic!("{name} is listed") };
        let mut values = vec![0.0; tensor.len()];
        dequantise(tensor.kind, tensor.bytes, &mut values);
    }
});
