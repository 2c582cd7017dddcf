//! First pass: messages to cleaned texts on disk, duplicates collapsed, groups named.

use super::{
    group::{Key, Names, Threads, normal_subject},
    options::{GroupBy, Options},
    spill::{Spill, SpillWriter},
};
use crate::{
    Error,
    mail::{Mail, MailReader, Mended, Quotes, Stripped, strip},
    manifest::{MAX_UNREADABLE_LISTED, MessageCounts, Unreadable},
    source::{Body, Columns, Record},
};
use sha2::{Digest, Sha256};
use std::{mem, path::Path};
use tokenizer::{Words, lowercase_into};

/// Stands for messages that lack what they are grouped by.
const NO_GROUP: &str = "(none)";

/// Places for hashes of texts seen lately; most duplicates end there and need no disk.
const RECENT: usize = 1 << 15;

/// Takes messages one by one.
pub(super) struct Ingest<'o> {
    options: &'o Options,
    reader: MailReader,
    spill: SpillWriter,
    recent: Vec<u128>,
    names: Names,
    threads: Threads,
    pub(super) counts: MessageCounts,
    pub(super) mended: Mended,
    pub(super) stripped: Stripped,
    pub(super) unreadable: Vec<Unreadable>,
    lower: String,
    plain: String,
}

/// What the first pass leaves: messages on disk, the names of groups.
pub(super) struct Ingested {
    pub(super) spill: Spill,
    pub(super) group_names: Vec<String>,
}

impl<'o> Ingest<'o> {
    pub(super) fn new(options: &'o Options, dir: &Path) -> Result<Self, Error> {
        let reader = MailReader::new(options.quotes);
        let reader = match &options.group_by {
            GroupBy::Field(name) => reader.with_header(name),
            _ => reader,
        };
        Ok(Self {
            options,
            reader,
            spill: SpillWriter::create(dir)?,
            recent: vec![0; RECENT],
            names: Names::default(),
            threads: Threads::create(dir)?,
            counts: MessageCounts::default(),
            mended: Mended::default(),
            stripped: Stripped::default(),
            unreadable: Vec::new(),
            lower: String::new(),
            plain: String::new(),
        })
    }

    /// Takes a record of the file `path`, which is `mailbox`'s. `false` when it cannot be read.
    pub(super) fn add(
        &mut self,
        record: Record<'_>,
        path: &str,
        mailbox: &str,
    ) -> Result<bool, Error> {
        let mail = match record.body {
            Body::Mail(raw) => self.reader.read(raw, &mut self.mended),
            Body::Text(text) => Ok(from_text(text, &record.columns)),
            Body::Unreadable(why) => Err(why),
        };
        match mail {
            Err(why) => {
                self.counts.unreadable += 1;
                if self.unreadable.len() < MAX_UNREADABLE_LISTED {
                    self.unreadable.push(Unreadable {
                        path: path.to_owned(),
                        number: record.number,
                        why,
                    });
                }
                Ok(false)
            }
            Ok(mail) => {
                self.counts.read += 1;
                self.counts.from_html += u64::from(mail.from_html);
                self.add_mail(&mail, &record.columns, mailbox)?;
                Ok(true)
            }
        }
    }

    fn add_mail(&mut self, mail: &Mail, columns: &Columns, mailbox: &str) -> Result<(), Error> {
        let text = match self.options.quotes {
            Quotes::Keep => mail.text.replace('\r', "").trim().to_owned(),
            Quotes::Strip => strip(&mail.text, &mut self.stripped),
        };
        let hash = self.hash_of(&text);
        let group = self.group_of(mail, columns, mailbox, hash as u64)?;
        if self.plain.is_empty() {
            self.counts.empty += 1;
            return Ok(());
        }
        if mem::replace(&mut self.recent[hash as usize % RECENT], hash) == hash {
            return Ok(());
        }
        // `lower` is the text still, from the hash.
        let words = Words::new(&self.lower).take(self.options.max_len - 1).count();
        let tokens = (words + 2).min(self.options.max_len) as u32;
        self.spill.push(&text, hash, group, tokens)
    }

    /// A hash of the text but for case and white space.
    fn hash_of(&mut self, text: &str) -> u128 {
        lowercase_into(text, &mut self.lower);
        self.plain.clear();
        for word in self.lower.split_whitespace() {
            if !self.plain.is_empty() {
                self.plain.push(' ');
            }
            self.plain.push_str(word);
        }
        let hash = Sha256::digest(self.plain.as_bytes());
        hash.iter().take(16).fold(0, |n, &byte| n << 8 | u128::from(byte))
    }

    fn group_of(
        &mut self,
        mail: &Mail,
        columns: &Columns,
        mailbox: &str,
        text_hash: u64,
    ) -> Result<u32, Error> {
        let named =
            |name: &str| if name.is_empty() { NO_GROUP.to_owned() } else { name.to_owned() };
        Ok(match &self.options.group_by {
            GroupBy::Mailbox => self.names.id(columns.mailbox.as_deref().unwrap_or(mailbox)),
            GroupBy::Sender => self.names.id(&named(&mail.sender)),
            GroupBy::Field(_) => {
                let field = columns.field.as_deref().or(mail.header.as_deref());
                self.names.id(&named(field.unwrap_or_default()))
            }
            GroupBy::Thread => {
                let subject = normal_subject(&mail.subject);
                let ids = mail.message_id.iter().chain(&mail.references);
                let ids = ids.map(|id| (Key::Id, id.as_str()));
                let subject = (!subject.is_empty()).then_some((Key::Subject, subject.as_str()));
                self.threads.add(ids.chain(subject), text_hash)?
            }
        })
    }

    /// Ends the pass: closes threads, leaves out duplicates.
    pub(super) fn finish(mut self) -> Result<(Ingested, Numbers), Error> {
        let memory = self.options.memory;
        let ingested = match self.options.group_by {
            GroupBy::Thread => {
                let (threads, group_names) = self.threads.close(memory)?;
                let spill = self.spill.finish(memory, |node| threads[node as usize])?;
                Ingested { spill, group_names }
            }
            _ => Ingested {
                spill: self.spill.finish(memory, |group| group)?,
                group_names: self.names.into_names(),
            },
        };
        self.counts.duplicates = self.counts.read - self.counts.empty - ingested.spill.len() as u64;
        let numbers = Numbers {
            counts: self.counts,
            mended: self.mended,
            stripped: self.stripped,
            unreadable: self.unreadable,
        };
        Ok((ingested, numbers))
    }
}

/// What the first pass counted.
pub(super) struct Numbers {
    pub(super) counts: MessageCounts,
    pub(super) mended: Mended,
    pub(super) stripped: Stripped,
    pub(super) unreadable: Vec<Unreadable>,
}

fn from_text(text: &str, columns: &Columns) -> Mail {
    Mail {
        text: text.to_owned(),
        sender: columns.sender.clone().unwrap_or_default(),
        subject: columns.subject.clone().unwrap_or_default(),
        ..Mail::default()
    }
}
