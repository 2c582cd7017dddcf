//! People, threads and the messages of each mailbox.

use super::{
    Mailbox, Random,
    grammar::{ENDINGS, GREETINGS, RULES, Rule},
    lexicon::{
        COMPANY_ENDS, FIRST_NAMES, MONTHS, NAME_ENDS, NAME_MIDDLES, NAME_STARTS, PLACES, PROJECTS,
        TOPICS, Topic, WEEKDAYS,
    },
};
use crate::{
    hash::quick,
    synthetic::forms::{asctime, base64, date, past, plural, quoted_printable, wrap},
};
use std::{collections::HashSet, fmt::Write};

/// Mailboxes for so many messages in all.
const MESSAGES_A_MAILBOX: usize = 300;

/// Gives mailbox after mailbox; memory holds one, and a hash for each text so far.
#[derive(Debug)]
pub struct Generator {
    seed: u64,
    sizes: Vec<usize>,
    next: usize,
    seen: HashSet<u64>,
}

impl Generator {
    /// A generator of `messages` messages in all.
    pub fn new(seed: u64, messages: usize) -> Self {
        Self { seed, sizes: sizes(seed, messages), next: 0, seen: HashSet::new() }
    }
}

impl Iterator for Generator {
    type Item = Mailbox;

    fn next(&mut self) -> Option<Mailbox> {
        let size = *self.sizes.get(self.next)?;
        let mut writer = Writer::new(self.seed, self.next);
        self.next += 1;
        while writer.written < size {
            writer.thread(size, &mut self.seen);
        }
        Some(Mailbox { owner: writer.owner.folder(), mbox: writer.mbox })
    }
}

/// Uneven sizes, as real mailboxes have, that sum to `messages`.
fn sizes(seed: u64, messages: usize) -> Vec<usize> {
    let count = (messages / MESSAGES_A_MAILBOX).clamp(8, 120).min(messages.max(1));
    let mut random = Random::new(seed, 0x51ED);
    let weights: Vec<f64> = (0..count).map(|_| 0.1 + random.unit().powi(3) * 4.0).collect();
    let total: f64 = weights.iter().sum();
    let mut left = messages;
    let mut sizes = Vec::with_capacity(count);
    for (i, weight) in weights.iter().enumerate() {
        let others = count - i - 1;
        let share = ((weight / total * messages as f64) as usize).max(1);
        let size = if others == 0 { left } else { share.min(left.saturating_sub(others)) };
        sizes.push(size);
        left -= size;
    }
    sizes.retain(|&size| size > 0);
    sizes
}

/// A person.
#[derive(Debug, Clone)]
struct Person {
    first: &'static str,
    last: String,
}

impl Person {
    /// Person number `n`; nearby numbers have different first names.
    fn new(n: usize) -> Self {
        let first = FIRST_NAMES[(n * 31) % FIRST_NAMES.len()];
        let start = NAME_STARTS[(n * 7 + n / 26) % NAME_STARTS.len()];
        let end = NAME_ENDS[(n * 3 + n / 20) % NAME_ENDS.len()];
        Self { first, last: format!("{start}{end}") }
    }

    fn full(&self) -> String {
        format!("{} {}", self.first, self.last)
    }

    fn folder(&self) -> String {
        format!("{}-{}", self.last, &self.first[..1]).to_lowercase()
    }

    fn address(&self) -> String {
        format!("{}.{}@meridian.example", self.first, self.last).to_lowercase()
    }
}

/// The slots of a thread.
struct Thread {
    topic: &'static Topic,
    partner: Person,
    other: Person,
    item: &'static str,
    project: &'static str,
    company: String,
    place: &'static str,
    day: &'static str,
    month: &'static str,
    amount: String,
    reference: String,
    time: String,
}

/// Writes one mailbox.
struct Writer {
    random: Random,
    owner: Person,
    contacts: Vec<usize>,
    topics: Vec<usize>,
    greeting: &'static str,
    ending: &'static str,
    signature: bool,
    quotes_with_marks: bool,
    length: f64,
    clock: u64,
    mbox: Vec<u8>,
    written: usize,
    serial: u64,
}

impl Writer {
    fn new(seed: u64, number: usize) -> Self {
        let mut random = Random::new(seed, number as u64);
        let contacts = (0..24).map(|_| random.skewed(480)).collect();
        let topics = (0..4).map(|_| random.below(TOPICS.len())).collect();
        Self {
            owner: Person::new(number),
            contacts,
            topics,
            greeting: GREETINGS[random.skewed(GREETINGS.len())],
            ending: ENDINGS[random.skewed(ENDINGS.len())],
            signature: random.chance(0.25),
            quotes_with_marks: random.chance(0.5),
            length: 0.4 + 1.2 * random.unit(),
            clock: 946_900_000 + random.below(9_000_000) as u64,
            mbox: Vec::new(),
            written: 0,
            serial: 0,
            random,
        }
    }

    /// One thread: the owner's messages go to the mailbox, the partner's are only quoted.
    fn thread(&mut self, size: usize, seen: &mut HashSet<u64>) {
        let thread = self.new_thread();
        let topic = thread.topic;
        let subject = topic.subjects[self.random.below(topic.subjects.len())];
        let subject = self.expand(&thread, subject);
        let mut previous: Option<(Person, String, String)> = None;
        let mut references = Vec::new();
        let turns = 1 + self.random.skewed(6);
        let mine_first = self.random.chance(0.6);
        for turn in 0..turns {
            if self.written >= size {
                return;
            }
            let id = self.message_id();
            self.clock += 600 + self.random.below(90_000) as u64;
            let mine = (turn % 2 == 0) == mine_first;
            if !mine {
                let text = self.body(&thread, turn, &thread.partner.clone(), false);
                previous = Some((thread.partner.clone(), text, id.clone()));
                references.push(id);
                continue;
            }
            let forward = previous.is_some() && self.random.chance(0.12);
            let text = self.distinct_body(&thread, turn, forward, seen);
            self.message(&thread, &subject, &id, &references, &text, previous.as_ref(), forward);
            previous = Some((self.owner.clone(), text, id.clone()));
            references.push(id);
        }
    }

    fn new_thread(&mut self) -> Thread {
        let topic = match self.random.chance(0.85) {
            true => self.topics[self.random.below(self.topics.len())],
            false => self.random.below(TOPICS.len()),
        };
        let topic = &TOPICS[topic];
        let contact = |random: &mut Random, contacts: &[usize]| {
            Person::new(contacts[random.skewed(contacts.len())])
        };
        let r = &mut self.random;
        let company = format!("{}{}", r.pick_skewed(&NAME_STARTS), r.pick_skewed(&COMPANY_ENDS));
        Thread {
            topic,
            partner: contact(r, &self.contacts),
            other: contact(r, &self.contacts),
            item: r.pick_skewed(topic.nouns),
            project: r.pick_skewed(&PROJECTS),
            company,
            place: r.pick_skewed(&PLACES),
            day: r.pick(&WEEKDAYS),
            month: r.pick(&MONTHS),
            amount: amount(r),
            reference: format!(
                "{}-{}",
                r.pick(&["A", "B", "C", "R", "T", "X"]),
                100 + r.below(9_900)
            ),
            time: format!("{}:{:02}", 8 + r.below(10), 15 * r.below(4)),
        }
    }

    fn message_id(&mut self) -> String {
        self.serial += 1;
        format!("{:x}.{}@meridian.example", self.random.next() >> 24, self.serial)
    }

    /// A body that was not written before, here or in another mailbox.
    fn distinct_body(
        &mut self,
        thread: &Thread,
        turn: usize,
        forward: bool,
        seen: &mut HashSet<u64>,
    ) -> String {
        let mut text = String::new();
        for _ in 0..20 {
            text = self.body(thread, turn, &self.owner.clone(), forward);
            if seen.insert(quick(text.to_lowercase().as_bytes())) {
                break;
            }
        }
        text
    }

    fn body(&mut self, thread: &Thread, turn: usize, from: &Person, forward: bool) -> String {
        let mine = from.full() == self.owner.full();
        let to = if mine { &thread.partner } else { &self.owner }.first;
        let mut text = String::new();
        if forward {
            text.push_str(&self.rule(thread, "forward"));
            if self.random.chance(0.5) {
                let _ = write!(text, "\n\n{}", from.first);
            }
            return text;
        }
        let brief = self.random.chance(0.22);
        let greeting = if self.random.chance(0.85) {
            self.greeting
        } else {
            GREETINGS[self.random.skewed(10)]
        };
        if !brief && self.random.chance(0.75) {
            text.push_str(&greeting.replace("{name}", to));
            text.push_str("\n\n");
        }
        let sentences =
            if brief { vec![self.rule(thread, "brief")] } else { self.sentences(thread, turn) };
        text.push_str(&wrap(&sentences.join(" ")));
        if !brief || self.random.chance(0.4) {
            let ending =
                if self.random.chance(0.9) { self.ending } else { ENDINGS[self.random.skewed(14)] };
            let _ = write!(text, "\n\n{}", ending.replace("{me}", from.first));
        }
        text
    }

    fn sentences(&mut self, thread: &Thread, turn: usize) -> Vec<String> {
        let mut list = vec![self.rule(thread, if turn == 0 { "open" } else { "answer" })];
        let more = (self.random.unit() * 4.5 * self.length) as usize;
        for _ in 0..more {
            list.push(self.rule(thread, "more"));
        }
        if self.random.chance(0.7) {
            list.push(self.rule(thread, "close"));
        }
        list
    }

    fn rule(&mut self, thread: &Thread, name: &str) -> String {
        let text = self.expand(thread, &format!("{{{name}}}"));
        let text = text.replace(" .", ".").replace(" ?", "?").replace("  ", " ");
        let mut chars = text.chars();
        match chars.next() {
            Some(first) => first.to_uppercase().chain(chars).collect(),
            None => text,
        }
    }

    fn expand(&mut self, thread: &Thread, template: &str) -> String {
        let mut out = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            out.push_str(before);
            let (slot, after) = after.split_once('}').unwrap_or((after, ""));
            let word = self.slot(thread, slot);
            out.push_str(&word);
            rest = after;
        }
        out.push_str(rest);
        out
    }

    fn slot(&mut self, thread: &Thread, slot: &str) -> String {
        let topic = thread.topic;
        let r = &mut self.random;
        match slot {
            "item" => thread.item.to_owned(),
            "project" => thread.project.to_owned(),
            "company" => thread.company.clone(),
            "place" => thread.place.to_owned(),
            "day" | "Weekday" => thread.day.to_owned(),
            "Month" => thread.month.to_owned(),
            "amount" => thread.amount.clone(),
            "ref" => thread.reference.clone(),
            "time" => thread.time.clone(),
            "other" => thread.other.first.to_owned(),
            "person" => thread.other.full(),
            "place2" => r.pick_skewed(&PLACES).to_owned(),
            "stranger" => stranger(r),
            "client" => {
                let (start, middle) = (r.pick_skewed(&NAME_STARTS), r.pick_skewed(&NAME_MIDDLES));
                format!("{start}{middle}{}", r.pick_skewed(&COMPANY_ENDS))
            }
            "number" => (1_000 + r.skewed(90_000)).to_string(),
            "small" => (2 + r.skewed(40)).to_string(),
            "noun" => r.pick_skewed(topic.nouns).to_owned(),
            "nouns" => plural(r.pick_skewed(topic.nouns)),
            "verb" => r.pick_skewed(topic.verbs).to_owned(),
            "verbed" => past(r.pick_skewed(topic.verbs)),
            "adj" => r.pick_skewed(topic.adjectives).to_owned(),
            "team" => r.pick_skewed(topic.teams).to_owned(),
            "trouble" => r.pick_skewed(topic.troubles).to_owned(),
            name => match alternatives(name) {
                Some(list) => {
                    let template = list[self.random.skewed(list.len())];
                    self.expand(thread, template)
                }
                None => name.to_owned(),
            },
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all that a message is made of")]
    fn message(
        &mut self,
        thread: &Thread,
        subject: &str,
        id: &str,
        references: &[String],
        text: &str,
        previous: Option<&(Person, String, String)>,
        forward: bool,
    ) {
        let mut body = text.to_owned();
        if self.signature && self.random.chance(0.6) {
            let extension = 200 + quick(self.owner.last.as_bytes()) % 700;
            let _ = write!(
                body,
                "\n\n-- \n{}\nMeridian Trading\n(212) 555-0{extension}",
                self.owner.full()
            );
        }
        let prefix = match previous {
            Some(_) if forward => "Fwd: ",
            Some(_) => "Re: ",
            None => "",
        };
        if let Some((writer, quoted, _)) = previous {
            body.push_str(&self.quotation(writer, quoted, forward, subject));
        }
        body.push('\n');
        let date = date(self.clock);
        let from = self.owner.clone();
        let to = if forward { &thread.other } else { &thread.partner };
        let mut head = format!(
            "Message-ID: <{id}>\nDate: {date}\nFrom: {} <{}>\nTo: {} <{}>\nSubject: {prefix}{subject}\n",
            from.full(),
            from.address(),
            to.full(),
            to.address()
        );
        if let Some(last) = references.last() {
            let all: Vec<String> = references.iter().map(|id| format!("<{id}>")).collect();
            let _ = write!(head, "In-Reply-To: <{last}>\nReferences: {}\n", all.join("\n "));
        }
        let (encoding, body) = self.encoded(&body);
        let _ = write!(
            head,
            "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: {encoding}\n\n"
        );
        let asctime = asctime(self.clock);
        let _ = writeln!(Bytes(&mut self.mbox), "From {} {asctime}", from.address());
        for line in (head + &body).lines() {
            let escape = line.trim_start_matches('>').starts_with("From ");
            let _ = writeln!(Bytes(&mut self.mbox), "{}{line}", if escape { ">" } else { "" });
        }
        self.mbox.push(b'\n');
        self.written += 1;
    }

    fn quotation(&mut self, writer: &Person, quoted: &str, forward: bool, subject: &str) -> String {
        let when = date(self.clock - 500);
        if forward {
            return format!(
                "\n\n---------- Forwarded message ----------\nFrom: {} <{}>\nDate: {when}\nSubject: {subject}\n\n{quoted}",
                writer.full(),
                writer.address()
            );
        }
        if self.quotes_with_marks {
            let lines: Vec<String> =
                quoted.lines().map(|line| format!("> {line}").trim_end().to_owned()).collect();
            return format!("\n\nOn {when}, {} wrote:\n{}", writer.full(), lines.join("\n"));
        }
        format!(
            "\n\n-----Original Message-----\nFrom: {}\nSent: {when}\nTo: {}\nSubject: {subject}\n\n{quoted}",
            writer.full(),
            self.owner.full()
        )
    }

    fn encoded(&mut self, body: &str) -> (&'static str, String) {
        match self.random.below(20) {
            0 => ("quoted-printable", quoted_printable(body)),
            1 => ("base64", base64(body.as_bytes())),
            _ => ("7bit", body.to_owned()),
        }
    }
}

/// Lets `writeln!` go to bytes.
struct Bytes<'a>(&'a mut Vec<u8>);

impl Write for Bytes<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

fn alternatives(name: &str) -> Option<&'static [&'static str]> {
    RULES.iter().find(|(rule, _): &&Rule| *rule == name).map(|(_, list)| *list)
}

/// Somebody from outside, mentioned by name: most of these names are rare.
fn stranger(r: &mut Random) -> String {
    let (start, middle) = (r.pick_skewed(&NAME_STARTS), r.pick_skewed(&NAME_MIDDLES));
    format!("{} {start}{middle}{}", r.pick_skewed(&FIRST_NAMES), r.pick_skewed(&NAME_ENDS))
}

fn amount(random: &mut Random) -> String {
    let thousands = 1 + random.skewed(90);
    match random.below(4) {
        0 => format!("${thousands},{:03}", 50 * random.below(20)),
        1 => format!("{} percent", 1 + random.skewed(60)),
        2 => format!("${}", 10 + random.skewed(980)),
        _ => format!("${thousands},{:03}.{:02}", random.below(1000), random.below(100)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_sum() {
        for messages in [1, 5, 9, 1000, 24_000] {
            assert_eq!(sizes(3, messages).iter().sum::<usize>(), messages);
        }
    }
}
