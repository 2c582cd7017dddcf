//! An mbox file: the same messages in one read or byte by byte.
#![no_main]

use corpus::source::{Item, MboxReader, Quoting};
use std::io::{self, Read};

struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = out.len().min(self.0.len()).min(7);
        out[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        Ok(n)
    }
}

fn messages(source: impl Read, quoting: Quoting) -> Vec<Vec<u8>> {
    let mut reader = MboxReader::new(source, quoting);
    let mut all = Vec::new();
    while let Ok(Some(item)) = reader.next_item() {
        if let Item::Message(message) = item {
            all.push(message.to_vec());
        }
    }
    all
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for quoting in [Quoting::Rd, Quoting::O, Quoting::Cl2] {
        assert_eq!(messages(bytes, quoting), messages(Slow(bytes), quoting));
    }
});
