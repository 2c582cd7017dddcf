//! From sources to a data set folder.
//!
//! Passes: read and clean (`ingest`), split the groups (`split`), find near-duplicates across sides
//! (`near`), count and make the vocabulary, write ids, probe for leaks (`probe`). Messages wait on
//! disk (`spill`), and so does all that is known of them; tables of hashes are made for as much of the
//! hash space at a time as [`Options::memory`] allows. So memory holds a bit a message, besides names
//! of groups, words of the vocabulary and, for threads, what [`GroupBy::Thread`] says. All is built in
//! a folder beside the output and moved into place at the end: the output is whole or not there.

mod group;
mod ingest;
mod near;
mod options;
mod probe;
mod spill;
mod split;
mod staging;
mod write;

pub use options::{
    Existing, GroupBy, NearDuplicates, Options, Progress, Source, Stage, VocabularyKind,
};
pub use probe::RUN;

use crate::{
    Error, Manifest, Side,
    bits::Bits,
    manifest::{FORMAT, FORMAT_VERSION, NearReport, SourceInfo, VocabularyInfo},
    source::{Columns, Discovered, Record, TableOptions, discover, read_file},
    synthetic::Generator,
};
use ingest::{Ingest, Ingested, Numbers};
use spill::Row;
use staging::Staging;
use std::path::PathBuf;
use tokenizer::train::{Counts, train_bpe, train_words};

/// What was made.
#[derive(Debug)]
pub struct Report {
    /// The folder.
    pub dir: PathBuf,
    /// Its manifest: all counts.
    pub manifest: Manifest,
}

/// Makes a data set.
///
/// # Errors
/// See [`Error`]; whatever happens, the output folder is whole or untouched.
pub fn prepare(options: &Options, progress: &mut dyn Progress) -> Result<Report, Error> {
    options.check()?;
    let staging = Staging::begin(&options.out, options.existing)?;
    let input = read_all(options, &staging, progress)?;
    let plan = assign(options, &input.ingested, &staging, progress)?;
    let (tokenizer, distinct_in_train) = match &options.tokenizer {
        Some(given) => (given.clone(), 0),
        None => {
            let counts = count(options, &input.ingested, &plan, progress)?;
            let learnt = match options.vocabulary {
                VocabularyKind::Bpe => train_bpe(&counts, options.vocab_size)?,
                _ => train_words(&counts, options.vocab_size)?,
            };
            (learnt, counts.len())
        }
    };
    let mut manifest = manifest(options, input.numbers, input.sources, input.skipped);
    manifest.vocabulary = VocabularyInfo {
        kind: options.vocabulary,
        size: tokenizer.vocab_size(),
        distinct_in_train,
        sha256: tokenizer.sha256().to_owned(),
    };
    manifest.near_duplicates = plan.near_report(options);
    let place = write::Place { dir: staging.dir(), memory: options.memory };
    write::write(&input.ingested, &plan, &tokenizer, place, &mut manifest, progress)?;
    staging.commit()?;
    Ok(Report { dir: options.out.clone(), manifest })
}

struct Input {
    ingested: Ingested,
    numbers: Numbers,
    sources: Vec<SourceInfo>,
    skipped: Vec<String>,
}

fn stop_if_cancelled(progress: &dyn Progress) -> Result<(), Error> {
    if progress.cancelled() { Err(Error::Cancelled) } else { Ok(()) }
}

fn read_all(
    options: &Options,
    staging: &Staging,
    progress: &mut dyn Progress,
) -> Result<Input, Error> {
    let mut ingest = Ingest::new(options, staging.dir())?;
    let (sources, skipped) = match &options.source {
        Source::Files(paths) => read_files(paths, options, &mut ingest, progress)?,
        Source::Synthetic(messages) => {
            (generate(*messages, options.seed, &mut ingest, progress)?, Vec::new())
        }
    };
    let (ingested, mut numbers) = ingest.finish()?;
    numbers.counts.doubtful_from_lines = sources.iter().map(|(_, doubtful)| doubtful).sum();
    let sources = sources.into_iter().map(|(info, _)| info).collect();
    if ingested.spill.len() == 0 {
        let counts = &numbers.counts;
        return Err(Error::Empty {
            read: counts.read,
            unreadable: counts.unreadable,
            empty: counts.empty,
        });
    }
    Ok(Input { ingested, numbers, sources, skipped })
}

type Sources = Vec<(SourceInfo, u64)>;

fn read_files(
    paths: &[PathBuf],
    options: &Options,
    ingest: &mut Ingest<'_>,
    progress: &mut dyn Progress,
) -> Result<(Sources, Vec<String>), Error> {
    let Discovered { files, skipped } = discover(paths, options.format)?;
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
    progress.begin(Stage::Read, files.iter().map(|file| size(&file.path)).sum());
    let table = TableOptions {
        column: options.column.clone(),
        field: match &options.group_by {
            GroupBy::Field(name) => Some(name.clone()),
            _ => None,
        },
    };
    let mut sources = Vec::new();
    let mut done = 0;
    for file in &files {
        let path = file.path.to_string_lossy().into_owned();
        let (mut messages, mut unreadable) = (0, 0);
        let counts = read_file(file, &table, &mut |record| {
            match ingest.add(record, &path, &file.mailbox)? {
                true => messages += 1,
                false => unreadable += 1,
            }
            stop_if_cancelled(progress)
        })?;
        done += size(&file.path);
        progress.done(done);
        let format = file.format;
        sources.push((
            SourceInfo { path, format, bytes: counts.bytes, messages, unreadable },
            counts.doubtful_lines,
        ));
    }
    Ok((sources, skipped.iter().map(|path| path.to_string_lossy().into_owned()).collect()))
}

/// Generated messages go the same road as those of a file.
fn generate(
    messages: usize,
    seed: u64,
    ingest: &mut Ingest<'_>,
    progress: &mut dyn Progress,
) -> Result<Sources, Error> {
    progress.begin(Stage::Read, messages as u64);
    let mut sources: Sources = Vec::new();
    for mailbox in Generator::new(seed, messages) {
        let path = format!("synthetic:{}", mailbox.owner);
        let (mut read, mut unreadable) = (0, 0);
        let doubtful = crate::source::read_mbox(
            mailbox.mbox.as_slice(),
            crate::source::Quoting::Rd,
            &mut |record: Record<'_>| {
                let record = Record { columns: Columns::default(), ..record };
                match ingest.add(record, &path, &mailbox.owner)? {
                    true => read += 1,
                    false => unreadable += 1,
                }
                stop_if_cancelled(progress)
            },
        )?;
        let info = SourceInfo {
            path,
            format: crate::source::Format::Mbox,
            bytes: mailbox.mbox.len() as u64,
            messages: read,
            unreadable,
        };
        sources.push((info, doubtful));
        progress.done(sources.iter().map(|(info, _)| info.messages).sum());
    }
    Ok(sources)
}

/// Who goes where.
struct Plan {
    /// The side of every group, by the index of the group.
    sides: Vec<Side>,
    /// Rows that stay out.
    dropped: Bits,
    /// Near-duplicates by side.
    near: [u64; 3],
}

impl Plan {
    fn side(&self, row: &Row) -> Side {
        self.sides[row.group as usize]
    }

    fn near_report(&self, options: &Options) -> NearReport {
        NearReport {
            method: near::METHOD.into(),
            policy: options.near_duplicates,
            in_valid: self.near[Side::Valid as usize],
            in_test: self.near[Side::Test as usize],
        }
    }
}

fn assign(
    options: &Options,
    ingested: &Ingested,
    staging: &Staging,
    progress: &mut dyn Progress,
) -> Result<Plan, Error> {
    let mut weights = vec![0u64; ingested.group_names.len()];
    for row in ingested.spill.rows() {
        let row = row?;
        weights[row.group as usize] += u64::from(row.tokens);
    }
    let full: Vec<usize> = (0..weights.len()).filter(|&group| weights[group] > 0).collect();
    let groups: Vec<split::Sized<'_>> = full
        .iter()
        .map(|&g| split::Sized { name: &ingested.group_names[g], tokens: weights[g] })
        .collect();
    let chosen = split::split(&groups, options.split, options.seed, &options.group_by)?;
    let mut sides = vec![Side::Train; weights.len()];
    full.iter().zip(chosen).for_each(|(&group, side)| sides[group] = side);

    progress.begin(Stage::Compare, ingested.spill.len() as u64);
    let side_of = |row: &Row| sides[row.group as usize];
    let mut tick = |done| {
        progress.done(done);
        stop_if_cancelled(progress)
    };
    let near = near::find(&ingested.spill, &side_of, staging.dir(), options.memory, &mut tick)?;
    let dropped = match options.near_duplicates {
        NearDuplicates::Drop => near.rows,
        NearDuplicates::Keep => Bits::default(),
    };
    Ok(Plan { sides, dropped, near: near.by_side })
}

fn count(
    options: &Options,
    ingested: &Ingested,
    plan: &Plan,
    progress: &mut dyn Progress,
) -> Result<Counts, Error> {
    progress.begin(Stage::Vocabulary, ingested.spill.len() as u64);
    let mut counts = Counts::default();
    ingested.spill.for_each(|i, row, text| {
        if plan.side(row) == Side::Train {
            match options.vocabulary {
                VocabularyKind::Bpe => counts.add_pieces(text),
                _ => counts.add_words(text, options.max_len - 1),
            }
        }
        progress.done(i as u64);
        stop_if_cancelled(progress)
    })?;
    Ok(counts)
}

fn manifest(
    options: &Options,
    numbers: Numbers,
    sources: Vec<SourceInfo>,
    skipped_files: Vec<String>,
) -> Manifest {
    Manifest {
        format: FORMAT.into(),
        format_version: FORMAT_VERSION,
        made_by: format!("autoreg {}", env!("CARGO_PKG_VERSION")),
        synthetic: matches!(options.source, Source::Synthetic(_)),
        seed: options.seed,
        group_by: options.group_by.clone(),
        split: options.split,
        max_len: options.max_len,
        quotes: options.quotes,
        vocabulary: VocabularyInfo {
            kind: options.vocabulary,
            size: 0,
            distinct_in_train: 0,
            sha256: String::new(),
        },
        messages: numbers.counts,
        sides: Default::default(),
        near_duplicates: NearReport::default(),
        stripped: numbers.stripped,
        mended: numbers.mended,
        sources,
        skipped_files,
        unreadable: numbers.unreadable,
        groups: 0,
        groups_sha256: String::new(),
    }
}
