//! A safetensors file: any bytes are refused or used, and every tensor can be read.
#![no_main]

use formats::{dequantise, open_shards};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(folder) = tempfile::tempdir() else { return };
    if std::fs::write(folder.path().join("model.safetensors"), bytes).is_err() {
        return;
    }
    let Ok(store) = open_shards(folder.path()) else { return };
    for name in store.names() {
        let Some(tensor) = store.get(name) else { panic!("{name} is listed") };
        let mut values = vec![0.0; tensor.len()];
        dequantise(tensor.kind, tensor.bytes, &mut values);
    }
});
