//! Vocabularies as GGUF files carry them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use tokenizer::{Error, Part, Specials, Tokenizer, Utf8Stream, Vocabulary};

/// Tokens with scores and types: unknown, beginning, end, two user-defined, the bytes, then pieces.
struct Pieces {
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i64>,
}

impl Pieces {
    fn new(pieces: &[(&str, f32)]) -> Pieces {
        let mut all = Pieces { tokens: Vec::new(), scores: Vec::new(), types: Vec::new() };
        let mut add = |token: &str, score, kind| {
            all.tokens.push(token.to_owned());
            all.scores.push(score);
            all.types.push(kind);
        };
        add("<unk>", 0.0, 2);
        add("<s>", 0.0, 3);
        add("</s>", 0.0, 3);
        add("\n\n", -1000.0, 4);
        add("  ", -1000.0, 4);
        (0..=255).for_each(|byte| add(&format!("<0x{byte:02X}>"), 0.0, 6));
        pieces.iter().for_each(|(piece, score)| add(piece, *score, 1));
        all
    }

    fn vocabulary(&self, space_prefix: bool) -> Vocabulary<'_> {
        Vocabulary {
            model: "llama",
            pre: "default",
            tokens: self.tokens.iter().map(String::as_str).collect(),
            scores: &self.scores,
            types: &self.types,
            merges: None,
            specials: Specials { pad: None, unk: Some(0), bos: Some(1), eos: Some(2) },
            space_prefix,
        }
    }
}

fn names(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    tokenizer.encode(text).into_iter().map(|id| tokenizer.token(id).unwrap()).collect()
}

const PIECES: [(&str, f32); 8] = [
    ("▁", -10.0),
    ("a", -10.0),
    ("b", -10.0),
    ("c", -10.0),
    ("bc", -1.0),
    ("ab", -2.0),
    ("abc", -3.0),
    ("▁a", -4.0),
];

#[test]
fn the_best_score_is_merged_first() {
    let pieces = Pieces::new(&PIECES);
    let tokenizer = Tokenizer::from_vocabulary(&pieces.vocabulary(false)).unwrap();
    // bc is better than ab; abc is then made of a and bc.
    assert_eq!(names(&tokenizer, "abc"), ["abc"]);
    assert_eq!(names(&tokenizer, "abcbc"), ["abc", "bc"]);
    assert_eq!(names(&tokenizer, "ab"), ["ab"]);
    assert_eq!(names(&tokenizer, " a"), ["▁a"]);
}

#[test]
fn a_space_in_front_comes_and_goes() {
    let pieces = Pieces::new(&PIECES);
    let with = Tokenizer::from_vocabulary(&pieces.vocabulary(true)).unwrap();
    let without = Tokenizer::from_vocabulary(&pieces.vocabulary(false)).unwrap();
    assert_eq!(names(&with, "a b"), ["▁a", "▁", "b"]);
    assert_eq!(names(&without, "a b"), ["a", "▁", "b"]);
    // The space comes after a whole token too, as in other implementations.
    assert_eq!(with.decode(&with.encode("a\n\nb")), "a\n\n b");
    assert_eq!(without.decode(&without.encode("a\n\nb  c")), "a\n\nb  c");
    for tokenizer in [&with, &without] {
        for text in ["a b", "b", " a", "é 🙂!", "a\n\n", ""] {
            let ids = tokenizer.encode(text);
            assert_eq!(tokenizer.decode(&ids), text);
            let mut stream = Utf8Stream::new(tokenizer);
            let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
            streamed.push_str(&stream.finish());
            assert_eq!(streamed, text);
        }
    }
}

/// What Hugging Face's tokenizers (0.23.3) make of a vocabulary as Gemma's is published: tokens of
/// several spaces are written with marks, and a mark in the text is taken for a space.
#[test]
fn marks_in_the_text_are_spaces_as_in_the_published_tokenizer() {
    let more = [("▁", -10.0), ("a", -10.0), ("b", -10.0), ("▁b", -1.0)];
    for (two, three) in [("  ", "   "), ("▁▁", "▁▁▁")] {
        let mut pieces = Pieces::new(&more);
        // In place of the fixture's own.
        (pieces.tokens[3], pieces.tokens[4]) = (three.to_owned(), two.to_owned());
        let tokenizer = Tokenizer::from_vocabulary(&pieces.vocabulary(false)).unwrap();
        let file = Tokenizer::from_bytes(&tokenizer.to_bytes()).unwrap();
        for (text, right) in [
            ("a b", &["a", "▁b"][..]),
            ("a▁b", &["a", "▁b"]),
            ("a  b", &["a", "▁▁", "b"]),
            ("a▁▁b", &["a", "▁▁", "b"]),
            ("a ▁b", &["a", "▁▁", "b"]),
            ("a▁ b", &["a", "▁▁", "b"]),
            ("a▁▁ b", &["a", "▁▁", "▁b"]),
            ("a ▁▁b", &["a", "▁", "▁▁", "b"]),
            ("▁▁▁b", &["▁▁▁", "b"]),
            ("a▁", &["a", "▁"]),
        ] {
            let found: Vec<String> =
                names(&tokenizer, text).iter().map(|name| name.replace(' ', "▁")).collect();
            assert_eq!(found, right, "{text:?}");
            let ids = tokenizer.encode(text);
            assert_eq!(tokenizer.decode(&ids), text.replace('▁', " "), "{text:?}");
            // The written file cannot tell marks from spaces beside each other.
            if !matches!(text, "a▁▁ b" | "a ▁▁b") {
                assert_eq!(file.encode(text), ids, "{text:?} by the file");
            }
        }
    }
}

#[test]
fn bytes_stand_in_and_whole_tokens_stay_whole() {
    let pieces = Pieces::new(&PIECES);
    let tokenizer = Tokenizer::from_vocabulary(&pieces.vocabulary(false)).unwrap();
    assert_eq!(names(&tokenizer, "é"), ["<0xC3>", "<0xA9>"]);
    assert_eq!(names(&tokenizer, "a\n\nb"), ["a", "\n\n", "b"]);
    // Names of control tokens are text, unless asked otherwise.
    assert!(!tokenizer.encode("a</s>").contains(&2));
    assert_eq!(tokenizer.encode_with_controls("a</s>"), [tokenizer.id("a").unwrap(), 2]);
    assert_eq!(tokenizer.parts("<s>a</s>"), [Part::Control(1), Part::Text("a"), Part::Control(2)]);
    assert_eq!(tokenizer.decode(&[1, 2]), "");
    // The unknown token has a name as control tokens have, and unlike theirs it is shown.
    assert!(!tokenizer.encode("a<unk>").contains(&0));
    assert_eq!(tokenizer.encode_with_controls("a<unk></s>"), [tokenizer.id("a").unwrap(), 0, 2]);
    assert_eq!(tokenizer.decode(&[0, 2]), "<unk>");
    // So in the file of the library.
    let file = Tokenizer::from_bytes(&tokenizer.to_bytes()).unwrap();
    assert_eq!(file.encode_with_controls("a<unk></s>"), [tokenizer.id("a").unwrap(), 0, 2]);
    assert_eq!(file.decode(&[0, 2]), "<unk>");
}

#[test]
fn what_does_not_hold_is_named() {
    let pieces = Pieces::new(&PIECES);
    let refused = |vocabulary: &Vocabulary<'_>, word: &str| {
        let error = Tokenizer::from_vocabulary(vocabulary).unwrap_err();
        assert!(matches!(error, Error::Vocabulary { .. }));
        assert!(error.to_string().contains(word), "{error}");
    };
    let good = pieces.vocabulary(false);
    refused(&Vocabulary { scores: &[], ..good.clone() }, "scores` is missing");
    refused(&Vocabulary { model: "t5", ..good.clone() }, "`t5`");
    refused(&Vocabulary { model: "gpt2", pre: "gpt-2", ..good.clone() }, "merges` is missing");
    refused(&Vocabulary { model: "gpt2", pre: "odd", ..good.clone() }, "`odd`; known are gpt-2");
    refused(&Vocabulary { types: &[1, 2], ..good.clone() }, "token_type` has 2 entries");
    let far = Specials { eos: Some(9999), ..good.specials };
    refused(&Vocabulary { specials: far, ..good.clone() }, "9999");
    refused(
        &Vocabulary {
            model: "gpt2",
            pre: "gpt-2",
            merges: Some(vec!["a  b", "x y"]),
            ..good.clone()
        },
        "",
    );
}
