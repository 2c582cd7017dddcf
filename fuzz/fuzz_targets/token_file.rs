//! A token file: any bytes are refused or read, never a panic.
#![no_main]

use corpus::TokenFile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = tempfile::NamedTempFile::new() else { return };
    if std::fs::write(file.path(), bytes).is_err() {
        return;
    }
    if let Ok(tokens) = TokenFile::open(file.path()) {
        let _ = tokens.verify();
        let mut ids = Vec::new();
        for i in 0..tokens.len() {
            tokens.sequence(i, &mut ids);
            assert_eq!(ids.len(), tokens.length(i));
            let _ = (tokens.group(i), tokens.flags(i));
        }
    }
});
