//! Hashes: SHA-256 where others check it, a quick 64-bit mix where only this process sees it.

use sha2::{Digest, Sha256};
use std::io::{self, Read};

/// SHA-256 as hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// SHA-256 of everything a reader gives, as hex.
pub(crate) fn sha256_of(mut source: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        match source.read(&mut chunk)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&chunk[..n]),
        }
    }
}

/// The first eight bytes of a SHA-256, for orders that must never change.
pub(crate) fn stable_u64(parts: &[&[u8]]) -> u64 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let bytes = hash.finalize();
    bytes.iter().take(8).fold(0, |n, &byte| n << 8 | u64::from(byte))
}

/// SplitMix64's finisher.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A quick hash of some bytes.
pub(crate) fn quick(bytes: &[u8]) -> u64 {
    let mut h = bytes.len() as u64 ^ 0x9E37_79B9_7F4A_7C15;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
        h = mix(h ^ word);
    }
    let rest = chunks.remainder().iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    mix(h.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ rest)
}
