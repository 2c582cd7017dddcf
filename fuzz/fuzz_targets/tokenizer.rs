//! A tokenizer.json: any bytes are refused or used, and streams are their texts.
#![no_main]

use tokenizer::{Tokenizer, Utf8Stream};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(tokenizer) = Tokenizer::from_bytes(bytes) else { return };
    let ids = tokenizer.encode("The naïve 😀 <eos>\n\n  don't");
    let mut stream = Utf8Stream::new(&tokenizer);
    let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text.push_str(&stream.finish());
    assert_eq!(text, tokenizer.decode(&ids));
});
