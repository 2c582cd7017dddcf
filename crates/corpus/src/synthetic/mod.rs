//! Synthetic business mail, for runs without data: mailboxes of people who write to each other.
//!
//! Everything follows from the seed. Messages are real RFC 822 in mboxrd form and take the same road
//! as mail from files: replies quote, forwards carry the forwarded, some have signatures, some are
//! quoted-printable or base64. A thread keeps its topic, people, project, amount and day; a writer keeps
//! habits of greeting and signing. All words, names and addresses are invented.

mod forms;
mod grammar;
mod lexicon;
mod writer;

pub use writer::Generator;

/// Messages generated unless asked otherwise.
pub const DEFAULT_MESSAGES: usize = 24_000;

/// One person's sent mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox {
    /// The owner, as a folder would be called.
    pub owner: String,
    /// The messages, as an mboxrd file.
    pub mbox: Vec<u8>,
}

/// A counter-based stream of numbers: SplitMix64.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        Self(
            crate::hash::mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15))
                ^ crate::hash::mix(stream.wrapping_add(1)),
        )
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        crate::hash::mix(self.0)
    }

    /// Uniform in 0..1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform below `n`.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Below `n`, small numbers likelier.
    fn skewed(&mut self, n: usize) -> usize {
        ((self.unit().powf(1.8) * n as f64) as usize).min(n - 1)
    }

    fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    fn pick_skewed<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.skewed(list.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mail::{MailReader, Mended, Quotes, Stripped, strip},
        source::{Body, Quoting, read_mbox},
    };
    use std::collections::HashSet;

    #[test]
    fn same_seed_same_mail_and_another_seed_another() {
        let all = |seed| Generator::new(seed, 500).collect::<Vec<_>>();
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn default_has_twenty_thousand_distinct_messages_and_a_real_vocabulary() {
        let reader = MailReader::new(Quotes::Strip);
        let (mut texts, mut words) = (HashSet::new(), HashSet::new());
        let (mut mended, mut stripped) = (Mended::default(), Stripped::default());
        let mut messages = 0;
        for mailbox in Generator::new(0, DEFAULT_MESSAGES) {
            read_mbox(mailbox.mbox.as_slice(), Quoting::Rd, &mut |record| {
                let Body::Mail(raw) = record.body else { panic!("{record:?}") };
                let mail = reader.read(raw, &mut mended).unwrap();
                let text = strip(&mail.text, &mut stripped);
                assert!(!text.contains("{") && !text.contains('>'), "{text}");
                words.extend(
                    text.to_lowercase().split(|c: char| !c.is_alphanumeric()).map(str::to_owned),
                );
                texts.insert(text);
                messages += 1;
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(messages, DEFAULT_MESSAGES);
        assert!(texts.len() >= 20_000, "{} distinct", texts.len());
        assert!(words.len() > 4_000, "{} words", words.len());
        assert!(stripped.forwarded > 500 && stripped.signature > 500, "{stripped:?}");
        assert!(stripped.quoted_lines > 1000 || stripped.original > 1000, "{stripped:?}");
        assert_eq!(mended, Mended::default());
    }
}
