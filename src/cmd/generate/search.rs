//! `generate --beam` and `--best-of`: a search where drawing was, as data that a record keeps.

use crate::error::CliError;
use clap::Args;
use decoding::beam::Patience;
use engine::{BeamSearch, Error, Event, Generator, Request, Sequence, Source};
use serde::{Deserialize, Serialize};

/// The flags of a search.
#[derive(Debug, Clone, Default, Args)]
pub struct SearchArgs {
    /// Look for the likeliest text with N hypotheses side by side, instead of drawing
    #[arg(long, value_name = "N", group = "search", conflicts_with_all = [
        "stop", "stream", "explain", "greedy", "temperature", "top_k", "top_p", "min_p", "seed",
        "first_sequence",
    ], value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub beam: Option<u16>,
    /// Draw N continuations and keep the best (of `--n`, the best so many)
    #[arg(long, value_name = "N", group = "search", conflicts_with_all = ["stream", "explain"],
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub best_of: Option<u16>,
    /// With --beam or --best-of: log-probabilities are divided by (tokens)^A; 0 favours short
    /// texts [default: 1]
    #[arg(long, value_name = "A", requires = "search", value_parser = exponent)]
    pub length_penalty: Option<f64>,
}

fn exponent(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|a| a.is_finite() && *a >= 0.0);
    found.ok_or_else(|| format!("found {text:?}, expected a number, 0 or above, such as 0.6"))
}

/// A search, as a record tells it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Search {
    /// Beam search.
    Beam(BeamSearch),
    /// The best of several draws.
    BestOf {
        /// Draws.
        samples: usize,
        /// α of the length.
        length_exponent: f64,
        /// Index of the first draw.
        first_sequence: u64,
    },
}

impl SearchArgs {
    /// What is asked for, if anything is.
    pub fn search(&self, first_sequence: u64) -> Option<Search> {
        let length_exponent = self.length_penalty.unwrap_or(1.0);
        let beam =
            |width| Search::Beam(BeamSearch { width, length_exponent, patience: Patience::Exact });
        let best = |samples| Search::BestOf { samples, length_exponent, first_sequence };
        self.beam.map(|n| beam(n.into())).or(self.best_of.map(|n| best(n.into())))
    }
}

impl Search {
    /// The same with its draws from another index on.
    pub fn starting(self, at: u64) -> Self {
        match self {
            Self::BestOf { samples, length_exponent, .. } => {
                Self::BestOf { samples, length_exponent, first_sequence: at }
            }
            beam => beam,
        }
    }

    /// Sequences that run side by side.
    pub fn breadth(&self) -> usize {
        match self {
            Self::Beam(beam) => beam.width,
            Self::BestOf { samples, .. } => *samples,
        }
    }
}

/// Searches, or draws where no search is asked for.
pub fn run<S: Source>(
    generator: &mut Generator<'_, S>,
    request: &Request,
    search: Option<&Search>,
    observe: &mut dyn FnMut(&Event<'_>),
) -> Result<Vec<Sequence>, Error> {
    match search {
        None => generator.run(request, observe),
        Some(Search::Beam(beam)) => generator.beam(request, beam),
        Some(Search::BestOf { samples, length_exponent, first_sequence }) => {
            let request = Request { first_sequence: *first_sequence, ..request.clone() };
            generator.best_of(&request, *samples, *length_exponent, observe)
        }
    }
}

/// Refuses what would not fit into memory, before anything of it is allocated.
pub fn fit<S: Source>(
    generator: &Generator<'_, S>,
    request: &Request,
    search: Option<&Search>,
) -> Result<(), CliError> {
    let breadth = search.map_or(request.sequences, Search::breadth);
    let wide = Request { sequences: breadth, ..request.clone() };
    let plan = generator.plan(&wide).map_err(crate::cmd::model::engine_error)?;
    crate::cmd::fit(&plan, "generation", "ask for fewer sequences or tokens")
}
