//! `autoreg compare-decoding`: the decoding rules against each other on the prompts of a data set;
//! the same weights, different outputs, measured.

mod rules;

use crate::cmd::compare::{description, machine};
use crate::cmd::eval::SideName;
use crate::cmd::generate::search;
use crate::cmd::model::{AnySource, Opened, engine_error};
use crate::cmd::{json, team};
use crate::error::CliError;
use crate::term::{self, Progress};
use clap::Args;
use compare::decoding::{Arm, Example, Facts, Findings, Prompt, Study, Text, terminal};
use compare::report;
use corpus::{Dataset, TokenFile};
use decoding::Counter;
use engine::{Generator, Request, Route, Sequence, Source, score};
use rules::Contender;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `compare-decoding`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  autoreg compare-decoding runs/t1 --data DATA
  autoreg compare-decoding runs/t1 --data DATA --prompts 400 --rules rules.toml --out runs/choices

A file of rules; `settings` are those of `autoreg generate`:
  [[rule]]
  name = \"cool\"
  settings = { temperature = 0.5, top_p = 0.9 }
  [[rule]]
  name = \"wide beam\"
  beam = 8                 # or best_of = 8
  length_penalty = 0.6")]
pub struct CompareDecodingArgs {
    /// A run folder of `autoreg train`
    pub model: PathBuf,
    /// A folder made by `autoreg data prepare`
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The side that prompts come from
    #[arg(long, value_enum, default_value = "test")]
    pub split: SideName,
    /// Messages to continue, drawn evenly over the groups of the side
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub prompts: u32,
    /// First tokens of each message that are given
    #[arg(long, value_name = "K", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// New tokens at most
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// A TOML file with the rules, instead of greedy, T 0.7, T 1.0, top-k 40, top-p 0.9,
    /// min-p 0.05, all combined, and beam 4
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Seed of the draws and of the choice of messages
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Prompts whose continuations the page shows
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub examples: usize,
    /// Folder of results.json and report.html
    #[arg(long, value_name = "DIR", default_value = "runs/compare-decoding")]
    pub out: PathBuf,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print results.json instead of the table
    #[arg(long)]
    pub json: bool,
    /// No progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Compares as told.
pub fn run(args: &CompareDecodingArgs) -> Result<(), CliError> {
    let data = Dataset::open(&args.data).map_err(CliError::input)?;
    let opened = Opened::open(&args.model)?;
    opened.belongs_to(&data)?;
    let contenders = rules::contenders(args.rules.as_deref(), &opened)?;
    let side = data.side(args.split.side());
    side.verify().map_err(CliError::input)?;
    let mut all = Course::new(args, &opened, side)?;
    let study = all.study(&contenders, facts(args, &opened, &data)?)?;
    let found = Findings::new(&study);
    let [_, page] = report::write_decoding(&args.out, &found).map_err(CliError::failed)?;
    if args.json {
        term::print(&json(&compare::decoding::json(&found))?);
    } else {
        term::print(&terminal(&found));
        term::print(&format!("\nreport: {}\n", page.display()));
    }
    Ok(())
}

fn facts(args: &CompareDecodingArgs, opened: &Opened, data: &Dataset) -> Result<Facts, CliError> {
    Ok(Facts {
        model: format!("{} ({})", opened.dir.display(), opened.saved.config().kind()),
        digest: opened.digest()?,
        data: description(data.manifest()),
        synthetic: data.manifest().synthetic,
        split: args.split.side().name().to_owned(),
        prompt_tokens: args.prompt_tokens as usize,
        max_tokens: args.max_tokens as usize,
        seed: args.seed,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: machine(team(args.threads)?.threads()),
    })
}

/// A message cut in two.
struct Task {
    group: u32,
    /// `<bos>` and the first tokens.
    prompt: Vec<u32>,
    /// What follows, up to the cap.
    rest: Vec<u32>,
}

/// The prompts, and the model that continues them.
struct Course<'a> {
    args: &'a CompareDecodingArgs,
    opened: &'a Opened,
    generator: Generator<'a, AnySource<'a>>,
    tasks: Vec<Task>,
    end: Vec<u32>,
}

impl<'a> Course<'a> {
    fn new(
        args: &'a CompareDecodingArgs,
        opened: &'a Opened,
        side: &TokenFile,
    ) -> Result<Self, CliError> {
        let source = opened.source(args.threads)?;
        let first = usize::from(opened.tokenizer.specials().bos.is_some());
        let given = args.prompt_tokens as usize + first;
        if let Some(limit) = source.context_limit().filter(|&limit| given > limit) {
            return Err(CliError::input(format!(
                "--prompt-tokens: the prompts have {given} tokens with <bos>, the model sees {limit} at most"
            )));
        }
        let room = source.context_limit().map_or(usize::MAX, |limit| limit + 1 - given);
        let most = room.min(args.max_tokens as usize);
        let end = opened.tokenizer.specials().eos.into_iter().collect();
        let tasks = tasks(args, side, given, most)?;
        Ok(Self { args, opened, generator: Generator::new(source, &opened.tokenizer), tasks, end })
    }

    /// Every rule takes its turn on each prompt, so that what slows the machine slows all alike.
    fn study(&mut self, contenders: &[Contender], facts: Facts) -> Result<Study, CliError> {
        let mut arms: Vec<Arm> = contenders
            .iter()
            .map(|one| Arm { name: one.name.clone(), rule: one.words(), texts: Vec::new() })
            .collect();
        for contender in contenders {
            let request = self.request(0, contender);
            search::fit(&self.generator, &request, contender.search.as_ref())?;
            // The first run of each finds cold caches: it is not measured.
            self.continued(0, contender)?;
        }
        let (mut prompts, mut examples) = (Vec::new(), Vec::new());
        let total = self.tasks.len() as u64;
        let mut progress = Progress::new(total, self.args.quiet);
        for place in 0..self.tasks.len() {
            let mut texts = Vec::new();
            for (arm, contender) in arms.iter_mut().zip(contenders) {
                let started = Instant::now();
                let sequence = self.continued(place, contender)?;
                let seconds = started.elapsed().as_secs_f64();
                arm.texts.push(self.text(&sequence, seconds));
                texts.push(sequence.text);
            }
            prompts.push(self.prompt(place)?);
            if place < self.args.examples {
                examples.push(self.example(place, texts));
            }
            progress.at(place as u64 + 1, total, || "prompts".to_owned());
        }
        progress.finish();
        Ok(Study { facts, prompts, arms, examples })
    }

    fn request(&self, place: usize, contender: &Contender) -> Request {
        Request {
            prompt: self.tasks[place].prompt.clone(),
            rules: contender.rules.clone(),
            seed: self.args.seed,
            // A stream of its own for every draw of every prompt; the same for all rules.
            first_sequence: (place as u64) << 16,
            sequences: 1,
            max_tokens: self.args.max_tokens as usize,
            end: self.end.clone(),
            stops: Vec::new(),
        }
    }

    fn continued(&mut self, place: usize, contender: &Contender) -> Result<Sequence, CliError> {
        let request = self.request(place, contender);
        let search = contender.search.map(|search| search.starting(request.first_sequence));
        search::run(&mut self.generator, &request, search.as_ref(), &mut |_| {})
            .map_err(engine_error)?
            .into_iter()
            .next()
            .ok_or_else(|| CliError::failed("a rule wrote nothing"))
    }

    fn text(&self, sequence: &Sequence, seconds: f64) -> Text {
        let all: Vec<u32> = sequence.tokens.iter().map(|token| token.choice.id).collect();
        let text = self.without_end(&all);
        Text { logprob: sequence.logprob(), seconds: Some(seconds), ..text }
    }

    fn without_end(&self, ids: &[u32]) -> Text {
        let ended = ids.last().is_some_and(|id| self.end.contains(id));
        let ids = ids[..ids.len() - usize::from(ended)].to_vec();
        Text { ids, ended, ..Text::default() }
    }

    /// What truly follows, scored by the same model.
    fn prompt(&mut self, place: usize) -> Result<Prompt, CliError> {
        let task = &self.tasks[place];
        let whole = [&task.prompt[..], &task.rest].concat();
        let scores =
            score(self.generator.source(), &whole, Route::OnePass).map_err(engine_error)?;
        let from = scores.len() - task.rest.len();
        let logprob = scores[from..].iter().map(|one| one.logprob).sum();
        let reference = Text { logprob, ..self.without_end(&task.rest) };
        Ok(Prompt { group: task.group, reference })
    }

    fn example(&self, place: usize, texts: Vec<String>) -> Example {
        let task = &self.tasks[place];
        let first = usize::from(self.opened.tokenizer.specials().bos.is_some());
        let reference = self.without_end(&task.rest);
        Example {
            prompt: self.opened.tokenizer.decode(&task.prompt[first..]),
            reference: self.opened.tokenizer.decode(&reference.ids),
            texts,
        }
    }
}

/// The same order, but no group comes a second time before each has come once, and so on.
fn evenly(order: &[usize], group: impl Fn(usize) -> u32) -> Vec<usize> {
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    let round = |&i: &usize| {
        let round = seen.entry(group(i)).or_default();
        *round += 1;
        (*round, i)
    };
    let mut rounds: Vec<(usize, usize)> = order.iter().map(round).collect();
    rounds.sort_by_key(|(round, _)| *round);
    rounds.into_iter().map(|(_, i)| i).collect()
}

/// Messages in an order of the seed's, evenly over groups, those that go on behind the prompt.
fn tasks(
    args: &CompareDecodingArgs,
    side: &TokenFile,
    given: usize,
    most: usize,
) -> Result<Vec<Task>, CliError> {
    let order = Counter { seed: args.seed, stream: u64::MAX };
    let mut fitting: Vec<usize> = (0..side.len()).filter(|&i| side.length(i) > given).collect();
    fitting.sort_by(|&a, &b| order.uniform(a as u64).total_cmp(&order.uniform(b as u64)));
    let fitting = evenly(&fitting, |i| side.group(i));
    if fitting.is_empty() {
        return Err(CliError::input(format!(
            "--prompt-tokens {}: none of {} messages goes on behind so many tokens; give fewer",
            args.prompt_tokens,
            side.len()
        )));
    }
    if fitting.len() < args.prompts as usize {
        term::note(&format!(
            "note: {} messages go on behind {} tokens, fewer than --prompts {}",
            fitting.len(),
            args.prompt_tokens,
            args.prompts
        ));
    }
    let mut ids = Vec::new();
    let task = |i: usize| {
        side.sequence(i, &mut ids);
        let (prompt, rest) = ids.split_at(given);
        let rest = rest[..rest.len().min(most)].to_vec();
        Task { group: side.group(i), prompt: prompt.to_vec(), rest }
    };
    Ok(fitting.into_iter().take(args.prompts as usize).map(task).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_take_turns() {
        let groups = [7, 7, 7, 2, 7, 2, 9];
        let order = [4, 0, 3, 1, 6, 2, 5];
        assert_eq!(evenly(&order, |i| groups[i]), [4, 3, 6, 0, 5, 1, 2]);
    }
}
