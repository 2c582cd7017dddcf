//! The bytes of a data set are pinned: the same mail and seed give the same files on any machine and
//! in any version, unless a change means to change them.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use corpus::{
    Options,
    prepare::{GroupBy, NearDuplicates, Source, VocabularyKind},
    synthetic::Generator,
};
use sha2::{Digest, Sha256};
use std::{fs, path::Path};

/// Generated mailboxes, some of them twice, notes that differ by a word, and some
/// that share a long run of words.
fn mail(dir: &Path) {
    let mut copies = Vec::new();
    for (i, mailbox) in Generator::new(5, 3_000).enumerate() {
        fs::write(dir.join(format!("{}.mbox", mailbox.owner)), &mailbox.mbox).unwrap();
        if i % 3 == 0 {
            copies.extend(&mailbox.mbox);
        }
    }
    let words: String = (0..40).map(|i| format!("note{} ", i * i)).collect();
    for i in 0..60 {
        copies.extend(
            format!("From a@b.example Mon Jan  1 10:00:00 2001\nFrom: p{i}@b.example\nSubject: n{i}\n\n{words}own{i}\n\n")
                .bytes(),
        );
    }
    let run: String = (0..25).map(|i| format!("phrase{} ", i * 7)).collect();
    for i in 0..60 {
        let own: String = (0..30).map(|j| format!("own{} ", (i * 31 + j * j) % 400)).collect();
        copies.extend(
            format!("From a@b.example Mon Jan  1 10:00:00 2001\nFrom: q{i}@b.example\nSubject: m{i}\n\n{own}{run}\n\n")
                .bytes(),
        );
    }
    fs::write(dir.join("copies.mbox"), copies).unwrap();
}

/// A hash over all files but the manifest, which names folders; and its counts.
fn made(options: &Options) -> String {
    let manifest = corpus::prepare(options, &mut ()).unwrap().manifest;
    let mut hash = Sha256::new();
    for name in ["train.tokens", "valid.tokens", "test.tokens", "groups.tsv", "tokenizer.json"] {
        hash.update(fs::read(options.out.join(name)).unwrap());
    }
    let hash: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let (messages, sides) = (&manifest.messages, &manifest.sides);
    format!(
        "{hash} read {} duplicates {} near {}+{} kept {} seen {}",
        messages.read,
        messages.duplicates,
        manifest.near_duplicates.in_valid,
        manifest.near_duplicates.in_test,
        messages.kept,
        sides.valid.seen_run + sides.test.seen_run,
    )
}

#[test]
fn the_bytes_of_data_sets_are_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("mail");
    fs::create_dir(&input).unwrap();
    mail(&input);
    let check = |name: &str, change: &dyn Fn(&mut Options), expected: &str| {
        let source = Source::Files(vec![input.clone()]);
        let mut options = Options::new(source, dir.path().join(name));
        options.vocab_size = 1_000;
        change(&mut options);
        let found = made(&options);
        assert_eq!(found, expected, "{name}");
    };
    check(
        "mailbox",
        &|_| {},
        "9ba4c2e203787e23 read 4104 duplicates 984 near 0+0 kept 3120 seen 0",
    );
    let sender = "ebcabacce72896be read 4104 duplicates 984 near 36+18 kept 3066 seen 57";
    check("sender", &|o| o.group_by = GroupBy::Sender, sender);
    let thread = "24558a2f3262cbf7 read 4104 duplicates 984 near 5+6 kept 3109 seen 7";
    check("thread", &|o| o.group_by = GroupBy::Thread, thread);
    // In as many passes as there can be.
    for (name, group_by, expected) in
        [("senders", GroupBy::Sender, sender), ("threads", GroupBy::Thread, thread)]
    {
        let least = |o: &mut Options| (o.group_by, o.memory) = (group_by.clone(), 1 << 12);
        check(name, &least, expected);
    }
    let subject = GroupBy::Field("Subject".into());
    check(
        "field",
        &|o| o.group_by = subject.clone(),
        "ebb8b0c56ea98db3 read 4104 duplicates 984 near 8+10 kept 3102 seen 14",
    );
    check(
        "keep",
        &|o| {
            o.group_by = GroupBy::Thread;
            o.near_duplicates = NearDuplicates::Keep;
            o.vocabulary = VocabularyKind::Bpe;
            o.seed = 9;
        },
        "a305b95b1f58c60a read 4104 duplicates 984 near 6+5 kept 3120 seen 13",
    );
}
