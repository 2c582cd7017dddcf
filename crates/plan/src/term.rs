//! Terms: names with bytes, whose sum is a prediction; and what changing one would do.

use crate::Error;
use ledger::{Account, Plan};
use serde::{Deserialize, Serialize};

/// Bytes under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// Why they exist, in the ledger's words.
    pub name: String,
    /// How many.
    pub bytes: u64,
}

/// Terms in the order of reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Terms(pub Vec<Term>);

impl Terms {
    /// Adds bytes under a name; nothing is added for none.
    pub fn add(&mut self, name: &str, bytes: u64) {
        match self.0.iter_mut().find(|term| term.name == name) {
            Some(term) => term.bytes = term.bytes.saturating_add(bytes),
            None if bytes > 0 => self.0.push(Term { name: name.to_owned(), bytes }),
            None => {}
        }
    }

    /// Bytes under a name.
    pub fn of(&self, name: &str) -> u64 {
        self.0.iter().find(|term| term.name == name).map_or(0, |term| term.bytes)
    }

    /// The sum.
    ///
    /// # Errors
    /// When it does not fit into 64 bits.
    pub fn total(&self) -> Result<u64, Error> {
        let what = "the sum of all terms";
        let mut terms = self.0.iter();
        terms
            .try_fold(0u64, |sum, term| sum.checked_add(term.bytes))
            .ok_or(Error::Overflow { what })
    }

    /// The largest term.
    pub fn limiting(&self) -> Option<&Term> {
        self.0.iter().max_by_key(|term| term.bytes)
    }

    /// A running list, by account.
    pub fn of_plan(plan: &Plan) -> Terms {
        let mut terms = Terms::default();
        for account in Account::ALL {
            terms.add(account.name(), plan.of(account));
        }
        terms
    }
}

/// Something that can be changed, and what that does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lever {
    /// What to change, as it is typed where there is a flag.
    pub change: String,
    /// The term that it changes.
    pub term: String,
    /// Bytes that it saves.
    pub saves_bytes: u64,
    /// The total then.
    pub total_bytes: u64,
    /// What it costs, and what to look at again.
    pub costs: String,
}

impl Lever {
    /// From one total to another by (what to change, the term, what it costs).
    pub(crate) fn between(
        total: u64,
        total_bytes: u64,
        (change, term, costs): (String, &str, &str),
    ) -> Lever {
        let (term, costs) = (term.to_owned(), costs.to_owned());
        let saves_bytes = total.saturating_sub(total_bytes);
        Lever { change, term, saves_bytes, total_bytes, costs }
    }
}

/// One rank's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// Its number, from 0.
    pub rank: u64,
    /// Its terms.
    pub terms: Terms,
    /// Their sum.
    pub total_bytes: u64,
}

/// A prediction with the keys that stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The model.
    pub model: String,
    /// Its parameters.
    pub parameters: u64,
    /// What the bytes are counted by: the program's own lists, or formulas.
    pub counted_by: String,
    /// Terms of the busiest process.
    pub terms: Terms,
    /// Their sum.
    pub total_bytes: u64,
    /// What the system will show for the process at its peak, pages that can be reclaimed included,
    /// where that is more than the sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// What may be taken, where that was said.
    pub budget_bytes: Option<u64>,
    /// Whether it fits; not known without a budget.
    pub fits: Option<bool>,
    /// The largest term.
    pub limiting_term: String,
    /// What could be changed, the largest saving first.
    pub levers: Vec<Lever>,
    /// Bytes of K/V that a token more of one sequence takes in layers that see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_bytes_per_token: Option<u64>,
    /// The processes of a training, where there is more than one kind of answer.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ranks: Vec<Rank>,
    /// Bytes that each rank sends an optimizer step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication_bytes_per_step: Option<u64>,
    /// What should be known beside the numbers.
    pub notes: Vec<String>,
}

impl Prediction {
    /// Terms of a model under a budget; levers and notes are added by who knows them.
    ///
    /// # Errors
    /// When the sum does not fit into 64 bits.
    pub fn new(
        (model, parameters): (&str, u64),
        counted_by: &str,
        terms: Terms,
        budget: Option<u64>,
    ) -> Result<Prediction, Error> {
        let total_bytes = terms.total()?;
        Ok(Prediction {
            model: model.to_owned(),
            parameters,
            counted_by: counted_by.to_owned(),
            limiting_term: terms.limiting().map_or_else(String::new, |term| term.name.clone()),
            fits: budget.map(|budget| total_bytes <= budget),
            budget_bytes: budget,
            peak_bytes: None,
            terms,
            total_bytes,
            levers: Vec::new(),
            kv_bytes_per_token: None,
            ranks: Vec::new(),
            communication_bytes_per_step: None,
            notes: Vec::new(),
        })
    }

    /// Keeps the levers that save something, the largest saving first.
    pub(crate) fn set_levers(&mut self, mut levers: Vec<Lever>) {
        levers.retain(|lever| lever.saves_bytes > 0);
        levers.sort_by_key(|lever| std::cmp::Reverse(lever.saves_bytes));
        self.levers = levers;
    }
}

/// A product of whole numbers.
pub(crate) fn product(what: &'static str, factors: &[u64]) -> Result<u64, Error> {
    let mut factors = factors.iter();
    factors.try_fold(1u64, |p, &f| p.checked_mul(f)).ok_or(Error::Overflow { what })
}

/// A sum of whole numbers.
pub(crate) fn sum(what: &'static str, parts: &[u64]) -> Result<u64, Error> {
    let mut parts = parts.iter();
    parts.try_fold(0u64, |s, &p| s.checked_add(p)).ok_or(Error::Overflow { what })
}
