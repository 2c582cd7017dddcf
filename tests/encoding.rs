//! Token ids of 5,000 random strings, of two real vocabularies, against Hugging Face transformers.
//!
//! `scripts/make_encoding_fixture.py` draws the same strings and writes hashes of 100 each.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test that was skipped says so")]

use families::Checkpoint;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokenizer::{Tokenizer, Utf8Stream};

const RANGES: [(u32, u32); 16] = [
    (0x20, 0x7E),
    (0x61, 0x7A),
    (0x61, 0x7A),
    (0xA0, 0x24F),
    (0x370, 0x52F),
    (0x5D0, 0x6FF),
    (0x900, 0x97F),
    (0xE00, 0xE7F),
    (0x300, 0x36F),
    (0x2000, 0x206F),
    (0x3040, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0x1F300, 0x1F6FF),
    (0x1D400, 0x1D7FF),
    (0x9, 0xD),
];
const WORDS: [&str; 26] = [
    "the ", " report", "don't", "We'LL ", "  ", "\n", "\n\n", "\t", "12345", " 3.14", "naïve ",
    "(x) ", "==", "/*", " Friday", "https://", "日本", "¿qué? ", "🙂", "e\u{301}", "\u{a0}",
    "\r\n", "...", " — ", "<b>", "</s",
];

fn strings() -> Vec<String> {
    let mut state = 7u64;
    let mut draw = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..5000)
        .map(|_| {
            let mut text = String::new();
            for _ in 0..draw() % 24 {
                if draw() % 2 == 1 {
                    text.push_str(WORDS[draw() % WORDS.len()]);
                } else {
                    let (low, high) = RANGES[draw() % RANGES.len()];
                    for _ in 0..1 + draw() % 4 {
                        let c = low + draw() as u32 % (high - low + 1);
                        text.push(char::from_u32(c).unwrap());
                    }
                }
            }
            text
        })
        .collect()
}

fn tokenizer(name: &str) -> Option<Tokenizer> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let models =
        std::env::var_os("AUTOREG_MODELS").map_or_else(|| root.join("models"), PathBuf::from);
    let path = models.join(format!("{name}.gguf"));
    if !path.exists() {
        eprintln!("skipped: no {}", path.display());
        return None;
    }
    Some(Checkpoint::open(&path).unwrap().tokenizer)
}

fn check(name: &str) {
    let Some(tokenizer) = tokenizer(name) else { return };
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encodings.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
    for (i, texts) in strings().chunks(100).enumerate() {
        let mut lines = String::new();
        for text in texts {
            let ids = tokenizer.encode(text);
            let list: Vec<String> = ids.iter().map(ToString::to_string).collect();
            writeln!(lines, "{}", list.join(",")).unwrap();
            assert_eq!(&tokenizer.decode(&ids), text, "{name}: there and back");
            let mut stream = Utf8Stream::new(&tokenizer);
            let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
            streamed.push_str(&stream.finish());
            assert_eq!(&streamed, text, "{name}: as a stream");
        }
        let hash: String =
            Sha256::digest(&lines).iter().take(8).map(|b| format!("{b:02x}")).collect();
        assert_eq!(hash, expected[name][i], "{name}: strings {} to {}", 100 * i, 100 * i + 99);
    }
    for piece in ["a", "_", "日"] {
        let text = piece.repeat(100_000);
        let started = Instant::now();
        let ids = tokenizer.encode(&text);
        assert!(started.elapsed() < Duration::from_secs(5), "{name}: {:?}", started.elapsed());
        assert_eq!(tokenizer.decode(&ids), text);
    }
}

#[test]
fn smollm2_encodes_as_transformers_does() {
    check("smollm2-135m-q4_1");
}

#[test]
fn gemma3_encodes_as_transformers_does() {
    check("gemma3-270m-q4_k_m");
}
