//! The loop over a model of twenty lines that says what it is told to.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use decoding::{Method, Rules, Settings};
use engine::{Each, Error, Event, Finish, Generator, Request, Room, Sequence, Source};
use ledger::Plan;
use proptest::prelude::*;
use tokenizer::Tokenizer;

/// Puts all its weight on the next token of a script, whatever came before.
struct Scripted {
    script: Vec<u32>,
    vocabulary: usize,
    limit: Option<usize>,
    sequences: usize,
    read: usize,
    prompt: usize,
}

impl Scripted {
    fn write(&self, logits: &mut [f32]) {
        let next = self.script.get(self.read - self.prompt).copied().unwrap_or(0);
        for row in logits.chunks_exact_mut(self.vocabulary) {
            row.fill(-5.0);
            row[next as usize] = if next == 63 { f32::NAN } else { 5.0 };
        }
    }
}

impl Source for Scripted {
    fn vocab_size(&self) -> usize {
        self.vocabulary
    }
    fn context_limit(&self) -> Option<usize> {
        self.limit
    }
    fn begin(&mut self, prompt: &[u32], room: Room, logits: &mut [f32]) -> Result<(), Error> {
        (self.sequences, self.read, self.prompt) = (room.sequences, prompt.len(), prompt.len());
        self.write(logits);
        Ok(())
    }
    fn step(&mut self, tokens: &[u32], logits: &mut [f32]) {
        assert_eq!(tokens.len(), self.sequences, "one token for each that goes on");
        self.read += 1;
        assert!(self.limit.is_none_or(|limit| self.read <= limit), "read beyond the context");
        self.write(logits);
    }
    fn select(&mut self, parents: &[usize]) -> Result<(), Error> {
        assert!(parents.iter().all(|&parent| parent < self.sequences));
        self.sequences = parents.len();
        Ok(())
    }
    fn plan(&self, _: usize, _: Room) -> Result<Plan, Error> {
        Ok(Plan::default())
    }
    fn pass(&mut self, _: &[u32], _: &mut Each<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// A vocabulary whose blanks are written U+2581, as sentence pieces are.
fn metaspace(tokens: &[&str]) -> Tokenizer {
    let vocab: serde_json::Map<_, _> =
        (0..).zip(tokens).map(|(id, token): (u32, _)| ((*token).to_owned(), id.into())).collect();
    let file = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": tokens[0]},
    });
    Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
}

/// A byte as byte-level files write it.
fn byte_sign(byte: u8) -> char {
    let is_itself = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_itself(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !is_itself(b)).count() as u32;
    char::from_u32(256 + before).unwrap()
}

/// A byte-level vocabulary with these tokens, as such files write them.
fn tokenizer(tokens: &[&str]) -> Tokenizer {
    let vocab: serde_json::Map<_, _> =
        (0..).zip(tokens).map(|(id, token): (u32, _)| ((*token).to_owned(), id.into())).collect();
    let file = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
}

fn request() -> Request {
    Request {
        prompt: vec![0],
        rules: Rules::from_settings(&Settings { method: Method::Greedy, ..Settings::default() })
            .unwrap(),
        seed: 1,
        first_sequence: 0,
        sequences: 1,
        max_tokens: 100,
        end: Vec::new(),
        stops: Vec::new(),
    }
}

/// The sequences, and the pieces of each as they were shown.
fn run(
    tokenizer: &Tokenizer,
    script: &[u32],
    limit: Option<usize>,
    request: &Request,
) -> Result<(Vec<Sequence>, Vec<String>), Error> {
    let source = Scripted {
        script: script.to_vec(),
        vocabulary: 128,
        limit,
        sequences: 0,
        read: 0,
        prompt: 0,
    };
    let mut pieces = Vec::new();
    let mut note = |event: &Event<'_>| pieces.push(event.text.to_owned());
    let sequences = Generator::new(source, tokenizer).run(request, &mut note)?;
    Ok((sequences, pieces))
}

#[track_caller]
fn check(tokens: &[&str], stops: &[&str], expected: (&str, Finish, Option<usize>)) {
    check_with(&tokenizer(tokens), tokens, stops, expected);
}

#[track_caller]
fn check_with(
    tokenizer: &Tokenizer,
    tokens: &[&str],
    stops: &[&str],
    expected: (&str, Finish, Option<usize>),
) {
    let script: Vec<u32> = (0..tokens.len() as u32).collect();
    let stops = stops.iter().map(ToString::to_string).collect();
    let request = Request { stops, max_tokens: tokens.len(), ..request() };
    let (sequences, pieces) = run(tokenizer, &script, None, &request).unwrap();
    let got = &sequences[0];
    assert_eq!((got.text.as_str(), got.finish, got.stop), expected);
    assert_eq!(pieces.concat(), got.text, "streamed text is the text");
}

/// Over token borders; held text is released when the match fails; the earliest match wins.
#[test]
fn o04_stop_strings() {
    check(&["DEF", "G", "HI", "J"], &["DEFGHIJ"], ("", Finish::Stop, Some(0)));
    check(&["DEF", "G", "X"], &["DEFGHIJ"], ("DEFGX", Finish::Length, None));
    let fox = ["TheĠquickĠbrown", "Ġfox"];
    check(&fox, &["own fox"], ("The quick br", Finish::Stop, Some(0)));
    check(&["a", "b"], &["abX", "b"], ("a", Finish::Stop, Some(1)));
    check(&["a", "b"], &["abX"], ("ab", Finish::Length, None));
}

/// A character over two tokens, cut off by the cap, and a byte that is none.
#[test]
fn o05_characters_over_tokens() {
    check(&["ðŁ", "ĺĢ", "!"], &[], ("😀!", Finish::Length, None));
    check(&["a", "ðŁ"], &[], ("a\u{fffd}", Finish::Length, None));
    check(&["ÿ", "a", "b"], &[], ("\u{fffd}ab", Finish::Length, None));
    check(&["ðŁ", "ĺĢ", "!"], &["😀"], ("", Finish::Stop, Some(0)));
}

/// The family of four people, 25 bytes, a byte a token: nothing broken is ever shown, and every
/// piece but the four last bytes of a sign is empty.
#[test]
fn o05_a_family_byte_by_byte() {
    let family = "👨\u{200d}👩\u{200d}👧\u{200d}👦";
    assert_eq!(family.len(), 25);
    let signs: std::collections::BTreeSet<u8> = family.bytes().collect();
    let names: Vec<String> = signs.iter().map(|&byte| byte_sign(byte).to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let place = |byte: u8| signs.iter().position(|&sign| sign == byte).unwrap() as u32;
    let script: Vec<u32> = family.bytes().map(place).collect();
    let request = Request { max_tokens: 25, ..request() };
    let (sequences, pieces) = run(&tokenizer(&names), &script, None, &request).unwrap();
    assert_eq!((sequences[0].text.as_str(), pieces.concat().as_str()), (family, family));
    assert_eq!(pieces.iter().filter(|piece| !piece.is_empty()).count(), 7, "seven characters");
    // Cut inside the second person: streamed and whole agree, with one sign for what is unfinished.
    let request = Request { max_tokens: 9, ..request };
    let (sequences, pieces) = run(&tokenizer(&names), &script, None, &request).unwrap();
    assert_eq!(sequences[0].text, "👨\u{200d}\u{fffd}");
    assert_eq!(pieces.concat(), sequences[0].text);
}

/// One leading space goes, once a sequence; the blanks inside stay; byte-level text loses none.
#[test]
fn o07_the_leading_space() {
    for (tokens, expected) in [
        (&["▁the", "▁process"][..], "the process"),
        (&["▁", "▁leading", "▁x"], " leading x"),
        (&["▁▁▁▁", "."], "   ."),
    ] {
        check_with(&metaspace(tokens), tokens, &[], (expected, Finish::Length, None));
    }
    check(&["Ġa", "Ġb"], &[], (" a b", Finish::Length, None));
    let tokens = ["▁the", "▁process"];
    check_with(&metaspace(&tokens), &tokens, &["e p"], ("th", Finish::Stop, Some(0)));
}

/// Any of several end tokens ends it; none shows; one in the prompt does not count.
#[test]
fn o06_several_end_tokens() {
    let names: Vec<String> = (0..126).map(|id| format!("t{id}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tokenizer = tokenizer(&names);
    let request = Request { prompt: vec![5, 106], end: vec![1, 106, 7], ..request() };
    for end in [1, 106, 7] {
        let (sequences, pieces) = run(&tokenizer, &[5, 9, end, 5], None, &request).unwrap();
        assert_eq!((sequences[0].text.as_str(), sequences[0].finish), ("t5t9", Finish::Eos));
        assert_eq!(pieces.concat(), "t5t9");
        assert_eq!(sequences[0].tokens.len(), 3, "the end token is told among the tokens");
    }
}

/// The model reads `limit` tokens at most and answers after the last of them.
#[test]
fn the_context_ends_it_and_a_longer_prompt_is_refused() {
    let tokenizer = tokenizer(&["a", "b"]);
    for (prompt, tokens) in [(1, 4), (3, 2), (4, 1)] {
        let request = Request { prompt: vec![0; prompt], ..request() };
        let (sequences, _) = run(&tokenizer, &[1, 1, 1, 1, 1, 1], Some(4), &request).unwrap();
        assert_eq!((sequences[0].tokens.len(), sequences[0].finish), (tokens, Finish::Context));
    }
    let request = Request { prompt: vec![0; 5], ..request() };
    let error = run(&tokenizer, &[1], Some(4), &request).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { found: 5, limit: 4 }), "{error}");
    let request = Request { max_tokens: 0, ..self::request() };
    let (sequences, _) = run(&tokenizer, &[1], Some(4), &request).unwrap();
    assert_eq!((sequences[0].tokens.len(), sequences[0].finish), (0, Finish::Length));
}

#[test]
fn a_logit_that_is_no_number_names_sequence_and_step() {
    let tokenizer = tokenizer(&["a", "b"]);
    let request = Request { first_sequence: 3, ..request() };
    let error = run(&tokenizer, &[1, 1, 63], None, &request).unwrap_err();
    assert!(error.is_failure());
    let message = error.to_string();
    assert!(message.contains("sequence 3, step 2") && message.contains("token 63"), "{message}");
}

#[test]
fn what_cannot_be_asked() {
    let tokenizer = tokenizer(&["a", "b"]);
    let refused = |request: &Request| run(&tokenizer, &[1], None, request).unwrap_err();
    assert!(matches!(refused(&Request { prompt: vec![], ..request() }), Error::NothingToBeginFrom));
    assert!(matches!(refused(&Request { sequences: 0, ..request() }), Error::NoSequences));
    let unknown = refused(&Request { prompt: vec![128], ..request() });
    assert!(matches!(unknown, Error::UnknownToken { id: 128, vocabulary: 128 }));
    let empty = refused(&Request { stops: vec![String::new()], ..request() });
    assert!(matches!(empty, Error::Stop(_)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever comes, the pieces that were shown are the decoding in one go.
    #[test]
    fn streamed_text_is_the_text_decoded_at_once(script in prop::collection::vec(0u32..7, 0..40)) {
        let bytes = tokenizer(&["a", "Ġb", "ðŁ", "ĺĢ", "ÿ", "Ċ", "Ã"]);
        let pieces = metaspace(&["▁a", "b", "▁", "▁▁▁", "c▁", ".", "▁▁d"]);
        for tokenizer in [bytes, pieces] {
            let request = Request { max_tokens: script.len(), ..request() };
            let (sequences, pieces) = run(&tokenizer, &script, None, &request).unwrap();
            let whole = tokenizer.decode(&script);
            prop_assert_eq!(&pieces.concat(), &whole);
            prop_assert_eq!(&sequences[0].text, &whole);
        }
    }
}

#[test]
fn whoever_watches_may_break_off() {
    let texts: Vec<String> = (0..64).map(|i| format!("t{i}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let tokenizer = tokenizer(&texts);
    let source = Scripted {
        script: vec![1, 2, 3, 4, 5, 6],
        vocabulary: 64,
        limit: None,
        sequences: 0,
        read: 0,
        prompt: 0,
    };
    let request = Request {
        prompt: vec![7],
        rules: Rules::default(),
        seed: 0,
        first_sequence: 0,
        sequences: 1,
        max_tokens: 6,
        end: Vec::new(),
        stops: Vec::new(),
    };
    let done = Generator::new(source, &tokenizer)
        .run_while(&request, &mut |event| {
            if event.step == 1 {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        })
        .unwrap();
    assert_eq!((done[0].finish, done[0].tokens.len()), (Finish::Cancelled, 2));
    assert_eq!(done[0].finish.name(), "cancelled");
}
