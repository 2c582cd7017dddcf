//! Whole data sets from every format, bad input, and what must hold of every split.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use corpus::{
    Dataset, Manifest, Options, Progress, Side, Stage, TokenFile,
    mail::Quotes,
    prepare::{Existing, GroupBy, NearDuplicates, Source, VocabularyKind},
    source::Format,
};
use std::{
    collections::HashMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// An invented message with some words that depend on `n`.
fn message(n: usize, sender: &str, extra: &str) -> String {
    let words: Vec<String> = (0..12).map(|i| format!("word{}", (n * 7 + i * i) % 60)).collect();
    format!(
        "Message-ID: <{n}@x.example>\nFrom: {sender} <{sender}@x.example>\nSubject: topic {}\n{extra}\n\
         Number {n}: please send {}.\n\n-----Original Message-----\nold words\n",
        n % 11,
        words.join(" ")
    )
}

fn mbox(numbers: std::ops::Range<usize>, sender: &str) -> String {
    numbers
        .map(|n| {
            format!(
                "From {sender}@x.example Mon Jan  1 10:00:00 2001\n{}\n",
                message(n, sender, "")
            )
        })
        .collect()
}

/// Ten mailboxes of 20 messages.
fn ten_boxes(dir: &Path) -> PathBuf {
    let input = dir.join("mail");
    fs::create_dir(&input).unwrap();
    for owner in 0..10 {
        let name = format!("owner{owner}");
        fs::write(input.join(format!("{name}.mbox")), mbox(owner * 20..owner * 20 + 20, &name))
            .unwrap();
    }
    input
}

fn options(input: &Path, out: PathBuf) -> Options {
    let mut options = Options::new(Source::Files(vec![input.to_owned()]), out);
    options.vocab_size = 40;
    options
}

fn prepare(options: &Options) -> Manifest {
    corpus::prepare(options, &mut ()).unwrap().manifest
}

fn error(options: &Options) -> String {
    let text = corpus::prepare(options, &mut ()).unwrap_err().to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

/// What must hold of every data set.
fn check_whole(dir: &Path) -> Dataset {
    let data = Dataset::open(dir).unwrap();
    data.verify().unwrap();
    let mut side_of_group: HashMap<u32, Side> = HashMap::new();
    let manifest = data.manifest();
    let (bos, eos) =
        (data.tokenizer().specials().bos.unwrap(), data.tokenizer().specials().eos.unwrap());
    for side in Side::ALL {
        let file: &TokenFile = data.side(side);
        let mut ids = Vec::new();
        assert!(!file.is_empty());
        for i in 0..file.len() {
            file.sequence(i, &mut ids);
            assert_eq!(ids[0], bos);
            assert!(ids.len() <= manifest.max_len);
            assert_eq!(*ids.last().unwrap() == eos, !file.flags(i).truncated);
            assert_eq!(
                *side_of_group.entry(file.group(i)).or_insert(side),
                side,
                "a group on two sides"
            );
        }
        assert_eq!(file.num_targets() as u64, manifest.side(side).target_tokens);
        assert_eq!(
            manifest.side(side).lengths.iter().map(|l| l.1).sum::<u64>(),
            manifest.side(side).messages
        );
    }
    assert_eq!(side_of_group.len() as u64, manifest.groups);
    let m = manifest.messages;
    assert_eq!(m.read, m.kept + m.duplicates + m.empty + m.near_duplicates_dropped);
    data
}

#[test]
fn ten_mailboxes_become_a_data_set() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&ten_boxes(dir.path()), dir.path().join("out"));
    let manifest = prepare(&options);
    assert_eq!((manifest.messages.read, manifest.messages.kept, manifest.groups), (200, 200, 10));
    assert_eq!(manifest.stripped.original, 200);
    let data = check_whole(&options.out);
    assert_eq!(data.tokenizer().vocab_size(), 40);
    assert_eq!(data.group_names()[3], "owner3");
    assert!(data.tokenizer().id("old").is_none(), "quoted text is not in the vocabulary");
    assert!(!data.manifest().synthetic);
    // Nothing but the data set is left.
    let mut names: Vec<String> = fs::read_dir(&options.out)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "groups.tsv",
            "manifest.json",
            "test.tokens",
            "tokenizer.json",
            "train.tokens",
            "valid.tokens"
        ]
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn o21_the_order_of_the_input_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let input = ten_boxes(dir.path());
    let mut files: Vec<PathBuf> =
        fs::read_dir(&input).unwrap().map(|e| e.unwrap().path()).collect();
    let hashes = |files: Vec<PathBuf>, name: &str, kind| {
        let mut options = options(&input, dir.path().join(name));
        options.source = Source::Files(files);
        options.vocabulary = kind;
        options.vocab_size = if kind == VocabularyKind::Bpe { 300 } else { 40 };
        let manifest = prepare(&options);
        (manifest.vocabulary.sha256, manifest.sides, manifest.groups_sha256)
    };
    files.sort();
    for kind in [VocabularyKind::Words, VocabularyKind::Bpe] {
        let forward = hashes(files.clone(), &format!("a{kind:?}"), kind);
        let mut reversed: Vec<PathBuf> = files.iter().rev().cloned().collect();
        reversed.push(files[0].clone());
        assert_eq!(forward, hashes(reversed, &format!("b{kind:?}"), kind));
        assert_eq!(forward, hashes(vec![input.clone()], &format!("c{kind:?}"), kind));
    }
}

#[test]
fn the_seed_decides_the_split() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(&ten_boxes(dir.path()), dir.path().join("a"));
    let first = prepare(&options);
    let mut others = 0;
    for seed in 1..6 {
        options.seed = seed;
        options.out = dir.path().join(format!("s{seed}"));
        others += usize::from(prepare(&options).groups_sha256 != first.groups_sha256);
    }
    assert!(others >= 4, "{others}");
}

/// The same 60 messages of 6 owners in another format gives the same sides.
fn check_format(format: &str, write: impl Fn(&Path), expected: Format) {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    fs::create_dir(&input).unwrap();
    write(&input);
    let mut options = options(&input, dir.path().join("out"));
    options.group_by = GroupBy::Sender;
    let manifest = prepare(&options);
    assert_eq!(manifest.messages.kept, 60, "{format}");
    assert_eq!(manifest.groups, 6, "{format}");
    assert!(manifest.sources.iter().all(|source| source.format == expected), "{format}");
    check_whole(&options.out);
}

fn sixty() -> impl Iterator<Item = (usize, String)> {
    (0..60).map(|n| (n, format!("owner{}", n % 6)))
}

#[test]
fn every_format_and_compression() {
    let boxes = || sixty().map(|(n, who)| mbox(n..n + 1, &who)).collect::<String>();
    check_format("mbox", |dir| fs::write(dir.join("all.mbox"), boxes()).unwrap(), Format::Mbox);
    check_format("no ending", |dir| fs::write(dir.join("Sent"), boxes()).unwrap(), Format::Mbox);
    check_format(
        "gzip",
        |dir| {
            let file = fs::File::create(dir.join("all.mbox.gz")).unwrap();
            let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            gz.write_all(boxes().as_bytes()).unwrap();
        },
        Format::Mbox,
    );
    check_format(
        "zstd",
        |dir| {
            fs::write(dir.join("all.mbox.zst"), zstd::encode_all(boxes().as_bytes(), 1).unwrap())
                .unwrap()
        },
        Format::Mbox,
    );
    check_format(
        "mboxcl2",
        |dir| {
            let with_length = |(n, who): (usize, String)| {
                let raw = message(n, &who, "");
                let (head, body) = raw.split_once("\n\n").unwrap();
                format!(
                    "From a@b Mon Jan  1 10:00:00 2001\n{head}\nContent-Length: {}\n\n{body}\n",
                    body.len()
                )
            };
            fs::write(dir.join("all.mbox"), sixty().map(with_length).collect::<String>()).unwrap();
        },
        Format::Mboxcl2,
    );
    check_format(
        "maildir",
        |dir| {
            ["cur", "new", "tmp"].iter().for_each(|sub| fs::create_dir(dir.join(sub)).unwrap());
            fs::write(dir.join("tmp/half"), "Subject: not yet").unwrap();
            for (n, who) in sixty() {
                let sub = if n % 2 == 0 { "cur" } else { "new" };
                fs::write(dir.join(sub).join(format!("{n}.x:2,S")), message(n, &who, "")).unwrap();
            }
        },
        Format::Maildir,
    );
    check_format(
        "eml",
        |dir| {
            sixty().for_each(|(n, who)| {
                fs::write(dir.join(format!("{n}.eml")), message(n, &who, "")).unwrap()
            })
        },
        Format::Eml,
    );
    check_format(
        "raw files without an ending",
        |dir| {
            sixty().for_each(|(n, who)| {
                fs::write(dir.join(format!("{n}.")), message(n, &who, "")).unwrap()
            })
        },
        Format::Eml,
    );
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    check_format(
        "csv of messages",
        |dir| {
            let rows = sixty()
                .map(|(n, who)| format!("{who}/sent/{n}.,{}\n", quoted(&message(n, &who, ""))));
            fs::write(
                dir.join("emails.csv"),
                format!("file,message\n{}", rows.collect::<String>()),
            )
            .unwrap();
        },
        Format::Csv,
    );
    check_format(
        "csv of text",
        |dir| {
            let rows = sixty().map(|(n, who)| {
                format!(
                    "{who},{}\n",
                    quoted(
                        &(0..20)
                            .map(|i| format!("t{} ", (n * 31 + i * i * 7) % 200))
                            .collect::<String>()
                    )
                )
            });
            fs::write(dir.join("t.csv"), format!("Sender,Text\n{}", rows.collect::<String>()))
                .unwrap();
        },
        Format::Csv,
    );
    check_format(
        "json lines",
        |dir| {
            let row = |(n, who): (usize, String)| {
                serde_json::json!({"message": message(n, &who, "")}).to_string() + "\n"
            };
            fs::write(dir.join("m.jsonl"), sixty().map(row).collect::<String>()).unwrap();
        },
        Format::Jsonl,
    );
}

#[test]
fn plain_text_is_read_by_paragraph() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("notes.txt");
    let text: String = (0..40)
        .map(|n| format!("Paragraph {n} has\ntwo lines and w{} x{}.\n\n\n", n % 9, n % 7))
        .collect();
    fs::write(&input, text).unwrap();
    let mut options = options(&input, dir.path().join("out"));
    options.group_by = GroupBy::Thread;
    options.vocab_size = 15;
    assert_eq!(prepare(&options).messages.kept, 40);
    check_whole(&options.out);
    // One file is one mailbox: too few groups, and the message says what to do.
    options.group_by = GroupBy::Mailbox;
    options.out = dir.path().join("other");
    let error = error(&options);
    assert!(error.contains("valid side") && error.contains("thread"), "{error}");
    assert!(!options.out.exists());
}

#[test]
fn groups_by_mailbox_thread_and_field() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    // The layout of the Enron export: owner/folder/number.
    for n in 0..60 {
        let folder = input.join(format!("owner{}/sent", n % 5));
        fs::create_dir_all(&folder).unwrap();
        let extra = format!("X-Team: team {}\n", n % 4);
        fs::write(folder.join(format!("{n}.")), message(n, "someone", &extra)).unwrap();
    }
    let groups = |group_by: GroupBy, name: &str| {
        let mut options = options(&input, dir.path().join(name));
        options.group_by = group_by;
        prepare(&options);
        check_whole(&options.out).group_names().to_vec()
    };
    assert_eq!(groups(GroupBy::Mailbox, "m"), ["owner0", "owner1", "owner2", "owner3", "owner4"]);
    assert_eq!(
        groups(GroupBy::Field("X-Team".into()), "f"),
        ["team 0", "team 1", "team 2", "team 3"]
    );
    // Subjects are `topic 0` to `topic 10`, ids connect nothing.
    assert_eq!(groups(GroupBy::Thread, "t").len(), 11);
}

#[test]
fn duplicates_collapse_and_near_duplicates_stay_off_later_sides() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    fs::create_dir(&input).unwrap();
    let notice: Vec<String> = (0..40).map(|i| format!("notice{i}")).collect();
    for owner in 0..10 {
        let name = format!("owner{owner}");
        let mut text = mbox(owner * 20..owner * 20 + 20, &name);
        text += "From a@b Mon Jan  1 10:00:00 2001\nSubject: x\n\nThe very  SAME text\n\n";
        text += "From a@b Mon Jan  1 10:00:00 2001\nSubject: x\n\n> only quoted\n\n";
        text += &format!(
            "From a@b Mon Jan  1 10:00:00 2001\nSubject: x\n\n{} own{owner}\n\n",
            notice.join(" ")
        );
        fs::write(input.join(format!("{name}.mbox")), text).unwrap();
    }
    let mut options = options(&input, dir.path().join("drop"));
    let dropped = prepare(&options);
    assert_eq!((dropped.messages.duplicates, dropped.messages.empty), (9, 10));
    let near = &dropped.near_duplicates;
    assert_eq!(near.in_valid, dropped.sides.valid.groups);
    assert_eq!(near.in_test, dropped.sides.test.groups);
    assert_eq!(dropped.messages.near_duplicates_dropped, near.in_valid + near.in_test);
    check_whole(&options.out);
    options.near_duplicates = NearDuplicates::Keep;
    options.out = dir.path().join("keep");
    let kept = prepare(&options);
    assert_eq!(kept.messages.near_duplicates_dropped, 0);
    assert_eq!(kept.near_duplicates.in_test, near.in_test);
    // The kept notices have long runs that train has, and the probe says so.
    assert!(kept.sides.test.seen_run >= near.in_test && kept.sides.valid.seen_run >= near.in_valid);
    options.quotes = Quotes::Keep;
    options.out = dir.path().join("quotes");
    assert_eq!(prepare(&options).messages.empty, 0);
}

#[test]
fn unreadable_messages_are_counted_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let input = ten_boxes(dir.path());
    fs::write(input.join("notes.mbox"), "this is no mbox at all\n").unwrap();
    fs::write(input.join("t.jsonl"), "{\"text\": \"good one\"}\nnot json\n[1]\n{\"other\": 1}\n")
        .unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(mbox(900..990, "late").as_bytes()).unwrap();
    let whole = gz.finish().unwrap();
    fs::write(input.join("cut.mbox.gz"), &whole[..whole.len() / 2]).unwrap();
    fs::write(input.join("picture.png"), [0x89, b'P', b'N', b'G', 0, 1]).unwrap();
    let options = options(&input, dir.path().join("out"));
    let manifest = prepare(&options);
    let names: Vec<(String, u64)> = manifest
        .unreadable
        .iter()
        .map(|u| (u.path.rsplit('/').next().unwrap().to_owned(), u.number))
        .collect();
    assert_eq!(manifest.messages.unreadable, 5, "{names:?}");
    assert!(names.iter().any(|(file, number)| file == "cut.mbox.gz" && *number > 1), "{names:?}");
    for line in 2..=4 {
        assert!(names.contains(&("t.jsonl".into(), line)), "{names:?}");
    }
    assert!(manifest.skipped_files[0].ends_with("picture.png"));
    check_whole(&options.out);
}

#[test]
fn bad_input_is_one_line_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let input = ten_boxes(dir.path());
    let out = dir.path().join("out");
    let check = |change: &dyn Fn(&mut Options), words: &[&str]| {
        let mut options = options(&input, out.clone());
        change(&mut options);
        let error = error(&options);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "mail" || name == "empty"), "{left:?}");
    };
    check(
        &|o| o.source = Source::Files(vec![dir.path().join("absent")]),
        &["absent", "no input here", "No such file"],
    );
    fs::create_dir(dir.path().join("empty")).unwrap();
    check(&|o| o.source = Source::Files(vec![dir.path().join("empty")]), &["no input"]);
    check(&|o| o.max_len = 1, &["max-len", "cap from 2"]);
    check(&|o| o.split = [80, 20, 0], &["split", "80/20/0"]);
    check(&|o| o.split = [80, 10, 20], &["sum to 100"]);
    check(&|o| o.vocab_size = 100_000, &["larger than the training text", "at most"]);
    check(&|o| o.vocab_size = 4, &["too small"]);
    check(&|o| o.group_by = GroupBy::Field("X-None".into()), &["valid side", "field:X-None"]);
    fs::write(dir.path().join("empty/blob"), [0u8, 159, 146, 150]).unwrap();
    check(
        &|o| o.source = Source::Files(vec![dir.path().join("empty/blob")]),
        &["unknown format", "mboxcl2"],
    );
    fs::write(dir.path().join("empty/box"), "").unwrap();
    check(
        &|o| {
            o.source = Source::Files(vec![dir.path().join("empty/box")]);
            o.format = Some(Format::Mbox);
        },
        &["empty data set"],
    );
    fs::write(dir.path().join("empty/t.csv"), "a,b\n1,2\n").unwrap();
    check(
        &|o| o.source = Source::Files(vec![dir.path().join("empty/t.csv")]),
        &["no column `message`", "a, b"],
    );
}

#[test]
fn an_output_folder_is_replaced_only_when_it_is_a_data_set() {
    let dir = tempfile::tempdir().unwrap();
    let input = ten_boxes(dir.path());
    let mut options = options(&input, dir.path().join("out"));
    prepare(&options);
    assert!(error(&options).contains("exists"));
    options.existing = Existing::Replace;
    options.max_len = 10;
    assert_eq!(prepare(&options).max_len, 10);
    assert_eq!(check_whole(&options.out).manifest().max_len, 10);
    // A failed replacement leaves the old one.
    options.vocab_size = 100_000;
    error(&options);
    check_whole(&options.out);
    options.out = input.clone();
    assert!(error(&options).contains("not a data set"));
    assert_eq!(fs::read_dir(&input).unwrap().count(), 10);
}

struct StopAt(Stage, bool);

impl Progress for StopAt {
    fn begin(&mut self, stage: Stage, _: u64) {
        self.1 |= stage == self.0;
    }
    fn cancelled(&self) -> bool {
        self.1
    }
}

#[test]
fn stopping_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&ten_boxes(dir.path()), dir.path().join("out"));
    for stage in [Stage::Read, Stage::Compare, Stage::Vocabulary, Stage::Encode] {
        let error = corpus::prepare(&options, &mut StopAt(stage, false)).unwrap_err();
        assert!(matches!(error, corpus::Error::Cancelled));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn damaged_data_sets_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&ten_boxes(dir.path()), dir.path().join("out"));
    prepare(&options);
    let out = &options.out;
    let check = |name: &str, change: &dyn Fn(&mut Vec<u8>), words: &[&str]| {
        let good = fs::read(out.join(name)).unwrap();
        let mut bad = good.clone();
        change(&mut bad);
        fs::write(out.join(name), bad).unwrap();
        let error = Dataset::open(out).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        fs::write(out.join(name), good).unwrap();
    };
    check("manifest.json", &|b| b.truncate(100), &["manifest.json"]);
    check("manifest.json", &|b| *b = b"{}".to_vec(), &["expected format"]);
    check("tokenizer.json", &|b| b.push(b' '), &["names tokenizer"]);
    check("train.tokens", &|b| b.truncate(1000), &["train.tokens", "expected"]);
    check("groups.tsv", &|b| b.truncate(60), &["groups"]);
    let valid = fs::read(out.join("valid.tokens")).unwrap();
    check("test.tokens", &|b| b.clone_from(&valid), &["test.tokens is not the file"]);
    check_whole(out);
}

#[test]
fn the_default_needs_no_data_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(Source::Synthetic(3_000), dir.path().join("out"));
    options.vocab_size = 2_000;
    let manifest = prepare(&options);
    assert!(manifest.synthetic);
    assert!(manifest.messages.kept > 2_900);
    for side in Side::ALL {
        assert!(manifest.side(side).token_share > 0.05);
    }
    check_whole(&options.out);
    let first = manifest.sides.clone();
    options.out = dir.path().join("again");
    assert_eq!(prepare(&options).sides, first);
}

#[test]
fn real_sample_where_it_is_there() {
    let shared = std::env::var("AUTOREG_SHARED").unwrap_or_else(|_| "../../../shared".into());
    let sample = Path::new(&shared).join("data/email/sample");
    if !sample.exists() {
        println!("skipped: no shared data at {}", sample.display());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(&sample, dir.path().join("out"));
    options.group_by = GroupBy::Thread;
    options.vocab_size = 400;
    let manifest = prepare(&options);
    // 66 messages in the mbox file, 13 in the Maildir.
    assert_eq!((manifest.messages.read, manifest.messages.unreadable), (79, 0));
    check_whole(&options.out);
}
