//! Field cases of tokenizers: values derived by hand, and agreement with the Hugging Face library.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use proptest::prelude::*;
use serde_json::json;
use tokenizer::{
    Tokenizer, Utf8Stream,
    train::{Counts, train_bpe, train_words},
};

fn bpe(text: &str, vocab_size: usize) -> Tokenizer {
    let mut counts = Counts::default();
    counts.add_pieces(text);
    train_bpe(&counts, vocab_size).unwrap()
}

fn words(text: &str, vocab_size: usize) -> Tokenizer {
    let mut counts = Counts::default();
    counts.add_words(text, usize::MAX);
    train_words(&counts, vocab_size).unwrap()
}

/// Invented text with a natural spread of words.
fn prose(lines: usize) -> String {
    let list = [
        "the", "report", "is", "late", "please", "send", "it's", "again", "to", "Maria,", "budget",
        "naïve", "(see", "below)", "42", "日本",
    ];
    let mut state = 7usize;
    let mut text = String::new();
    for i in 0..lines {
        for _ in 0..12 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let word = list[(state >> 33) % list.len()];
            text.push_str(word);
            text.push(if (state >> 40).is_multiple_of(9) { '.' } else { ' ' });
        }
        text.push_str(&format!("{}\n", i % 50));
    }
    text
}

fn random_letters(len: usize) -> String {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'a' + ((state >> 40) % 26) as u8)
    };
    (0..len).map(|_| next()).collect()
}

/// Seconds this thread has run, not those it waited for other work on the machine.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|first| first.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

/// Seconds a round trip: the least of three means over twenty (the clock is coarse).
fn seconds(tokenizer: &Tokenizer, text: &str) -> f64 {
    const TIMES: u32 = 20;
    let mean = || {
        let start = cpu_seconds();
        for _ in 0..TIMES {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text)), text);
        }
        (cpu_seconds() - start) / f64::from(TIMES)
    };
    (0..3).map(|_| mean()).fold(f64::MAX, f64::min)
}

#[test]
fn o20_long_words_encode_in_near_linear_time() {
    let tokenizer = bpe(&prose(300), 380);
    let cjk: String =
        (0..14_000u32).filter_map(|i| char::from_u32(0x4E00 + i * 37 % 20_000)).collect();
    seconds(&tokenizer, &cjk);
    for make in [|n| "a".repeat(n), |n| "_".repeat(n), random_letters] {
        // Four times the text: linear time is 4 times, quadratic 16.
        let [part, whole] = [25_000, 100_000].map(|n| seconds(&tokenizer, &make(n)));
        println!("25k: {part:.4} s, 100k: {whole:.4} s, ratio {:.2}", whole / part);
        assert!(whole < 1.0, "100k characters took {whole} s");
        assert!(whole < 8.0 * part, "{part} s for 25k, {whole} s for 100k");
    }
}

#[test]
fn o20_training_on_one_line_of_a_megabyte_ends() {
    let start = cpu_seconds();
    for line in [random_letters(1_000_000), "ab".repeat(500_000)] {
        let mut counts = Counts::default();
        counts.add_pieces(&line);
        let trained = train_bpe(&counts, 300);
        let seconds = cpu_seconds() - start;
        println!("trained after {seconds:.2} s");
        assert!(seconds < 30.0);
        match trained {
            Ok(tokenizer) => assert_eq!(tokenizer.decode(&tokenizer.encode(&line)), line),
            // `abab…` runs out of pairs: said plainly.
            Err(error) => {
                assert!(error.to_string().contains("larger than the training text"), "{error}")
            }
        }
    }
}

/// Not a test of its own: what a child process of the next test runs.
#[test]
#[ignore = "runs as a child process of the next test"]
fn o21_child() {
    let lines = prose(1000);
    println!("sha {}", bpe("bbbaaaddddcccc", 263).sha256());
    println!("sha {}", bpe(&lines, 400).sha256());
    println!("sha {}", words(&lines, 20).sha256());
}

fn child(threads: &str) -> Vec<String> {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "o21_child", "--nocapture"])
        .env("RAYON_NUM_THREADS", threads)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split("sha ").nth(1)).map(str::to_owned).collect()
}

#[test]
fn o21_same_vocabulary_in_every_process_and_order() {
    let first = child("1");
    assert_eq!(first.len(), 3);
    assert_eq!(first, child("8"));
    let mut lines: Vec<String> = prose(1000).lines().map(|line| format!("{line}\n")).collect();
    lines.reverse();
    let mut counts = Counts::default();
    // In another order and in other pieces (whole lines, as files are).
    lines.iter().for_each(|line| counts.add_pieces(line));
    assert_eq!(train_bpe(&counts, 400).unwrap().sha256(), first[1]);
}

#[test]
fn o21_ties_by_count_then_left_then_right_id() {
    // b3 a3 d4 c4: pairs dd 3, cc 3, bb 2, aa 2. c is below d, so cc comes first; its own pairs next.
    let tokenizer = bpe("bbbaaaddddcccc", 263);
    let merged: Vec<_> = (260..263).map(|id| tokenizer.token(id).unwrap()).collect();
    assert_eq!(merged, ["cc", "dd", "aa"]);
}

fn merges_by_rank(merges: serde_json::Value) -> Vec<u8> {
    let model = json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "bc": 3, "ab": 4, "abc": 5}, "merges": merges});
    json!({"version": "1.0", "added_tokens": [], "model": model}).to_string().into_bytes()
}

#[test]
fn o22_merges_go_by_rank() {
    let tokenizer =
        Tokenizer::from_bytes(&merges_by_rank(json!([["b", "c"], ["a", "b"]]))).unwrap();
    assert_eq!(tokenizer.encode("abc"), [0, 3]);
    assert_eq!(tokenizer.encode("abcbc"), [0, 3, 3]);
}

#[test]
fn o22_a_missing_key_is_named_and_scores_are_used() {
    let mut value: serde_json::Value = serde_json::from_slice(&merges_by_rank(json!([]))).unwrap();
    value["model"].as_object_mut().unwrap().remove("merges");
    let error = Tokenizer::from_bytes(value.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("model.merges"), "{error}");
    let scored = json!({"version": "1.0", "added_tokens": [], "model": {
        "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -3.0], ["b", -3.0], ["ab", -2.0]]}});
    let tokenizer = Tokenizer::from_bytes(scored.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("abab"), [3, 3]);
}

fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, String) {
    let mut stream = Utf8Stream::new(tokenizer);
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    pieces.push(stream.finish());
    let whole = pieces.concat();
    (pieces, whole)
}

#[test]
fn o05_one_character_of_several_tokens() {
    let tokenizer = bpe("", 260);
    let family = "👨\u{200D}👩\u{200D}👧\u{200D}👦";
    assert_eq!(family.len(), 25);
    let all = tokenizer.encode(&format!("{family}!"));
    assert_eq!(all.len(), 26);
    let (pieces, whole) = stream(&tokenizer, &all);
    assert_eq!(whole, format!("{family}!"));
    assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')));
    // Cut inside a character: stream and whole agree on one U+FFFD.
    let cut = &tokenizer.encode("😀")[..2];
    assert_eq!(stream(&tokenizer, cut).1, "\u{FFFD}");
    assert_eq!(tokenizer.decode(cut), "\u{FFFD}");
    // A byte that is never UTF-8 does not hold later text back.
    let byte_ff = tokenizer.id("ÿ").unwrap();
    let mut broken = vec![byte_ff];
    broken.extend(tokenizer.encode("plain"));
    let (pieces, whole) = stream(&tokenizer, &broken);
    assert_eq!((pieces[0].as_str(), pieces[1].as_str()), ("\u{FFFD}", "p"));
    assert_eq!(whole, "\u{FFFD}plain");
    assert_eq!(tokenizer.decode(&broken), whole);
}

fn metaspace(pieces: &[&str]) -> Tokenizer {
    let vocab: serde_json::Map<_, _> =
        pieces.iter().enumerate().map(|(i, p)| (p.to_string(), json!(i))).collect();
    let file = json!({"version": "1.0", "added_tokens": [],
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": pieces[0]}});
    Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
}

#[test]
fn o07_one_leading_space_once() {
    let check = |pieces: &[&str], expected: &str| {
        let tokenizer = metaspace(pieces);
        let ids: Vec<u32> = (0..pieces.len() as u32).collect();
        assert_eq!(tokenizer.decode(&ids), expected);
        assert_eq!(stream(&tokenizer, &ids).1, expected);
    };
    check(&["▁the", "▁process"], "the process");
    check(&["▁", "▁leading", "▁x"], " leading x");
    check(&["▁▁▁▁", "."], "   .");
    let byte_level = bpe(" a b a b a b", 262);
    let ids = [byte_level.id("Ġa").unwrap(), byte_level.id("Ġb").unwrap()];
    assert_eq!(stream(&byte_level, &ids).1, " a b");
}

#[test]
fn names_of_special_tokens_in_text_are_text() {
    for tokenizer in [bpe(&prose(50), 300), words(&prose(50), 18)] {
        let ids = tokenizer.encode("a <eos> <pad><bos> b");
        let specials = tokenizer.specials();
        assert_eq!(
            (specials.pad, specials.unk, specials.bos, specials.eos),
            (Some(0), Some(1), Some(2), Some(3))
        );
        assert!(ids.iter().all(|id| ![0, 2, 3].contains(id)), "{ids:?}");
    }
}

#[test]
fn word_text_reads_well() {
    let tokenizer = words("Hello, how are you? (see it's 5%) don't : ;", 21);
    let ids = tokenizer.encode("Hello, how ARE you? It's (see 5%). Don't zebra");
    assert_eq!(tokenizer.decode(&ids), "hello, how are you? it's ( see 5%) <unk> don't <unk>");
    let framed = [&[2], ids.as_slice(), &[3, 0, 0]].concat();
    assert_eq!(tokenizer.decode(&framed), tokenizer.decode(&ids));
}

#[test]
fn a_vocabulary_larger_than_the_text_gives_is_refused() {
    let mut counts = Counts::default();
    counts.add_words("one two three", usize::MAX);
    let error = train_words(&counts, 8).unwrap_err().to_string();
    assert!(error.contains("at most 7"), "{error}");
    assert!(train_words(&counts, 4).is_err());
    assert!(train_bpe(&counts, 259).unwrap_err().to_string().contains("260"));
}

/// The Hugging Face library on the same file.
fn library(tokenizer: &Tokenizer) -> tokenizers::Tokenizer {
    let mut library = tokenizers::Tokenizer::from_bytes(tokenizer.to_bytes()).unwrap();
    library.set_encode_special_tokens(true);
    library
}

proptest! {
    #[test]
    fn words_are_the_librarys(text in "(?s)([a-zA-ZİßΣé]|[ \n\t\u{a0}]|['’](s|t|ll|dx|S)|[0-9]|[.,_<>—日\u{301}\u{24D0}]){0,60}") {
        let tokenizer = words(&prose(40), 25);
        let library = library(&tokenizer);
        let expected = library.encode_fast(text.as_str(), false).unwrap();
        let ids = tokenizer.encode(&text);
        prop_assert_eq!(&ids, expected.get_ids());
        prop_assert_eq!(tokenizer.encode_at_most(&text, 3), &ids[..ids.len().min(3)]);
        prop_assert_eq!(tokenizer.decode(&ids), library.decode(&ids, false).unwrap());
    }

    #[test]
    fn bpe_text_comes_back_and_streams(text in any::<String>(), cut in 0usize..40) {
        let tokenizer = bpe(&prose(40), 320);
        let ids = tokenizer.encode(&text);
        prop_assert_eq!(&tokenizer.decode(&ids), &text);
        let expected = library(&tokenizer).encode_fast(text.as_str(), false).unwrap();
        prop_assert_eq!(&ids, expected.get_ids());
        let cut = &ids[..cut.min(ids.len())];
        prop_assert_eq!(stream(&tokenizer, cut).1, tokenizer.decode(cut));
        prop_assert_eq!(tokenizer.encode_at_most(&text, 5), &ids[..ids.len().min(5)]);
    }

    #[test]
    fn any_ids_stream_to_their_text(ids in prop::collection::vec(0u32..330, 0..30)) {
        for tokenizer in [bpe(&prose(40), 320), words(&prose(40), 25), metaspace(&["▁a", "b", "▁", "▁▁▁", "c▁"])] {
            prop_assert_eq!(stream(&tokenizer, &ids).1, tokenizer.decode(&ids));
        }
    }

    #[test]
    fn no_bytes_make_loading_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = Tokenizer::from_bytes(&bytes);
    }
}
