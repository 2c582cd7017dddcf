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
    /// The term, or the resource, that it relieves.
    pub term: String,
    /// Bytes that it saves; none where it saves time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves_bytes: Option<u64>,
    /// The total then, where it was worked out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Seconds a request or a step that it saves, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves_seconds: Option<f64>,
    /// What it costs.
    pub costs: String,
    /// What to look at again.
    #[serde(default)]
    pub recheck: String,
}

impl Lever {
    /// From one total to another by (what to change, the term, what it costs).
    pub(crate) fn between(
        total: u64,
        total_bytes: u64,
        (change, term, costs): (String, &str, &str),
    ) -> Lever {
        Lever {
            change,
            term: term.to_owned(),
            saves_bytes: Some(total.saturating_sub(total_bytes)),
            total_bytes: Some(total_bytes),
            saves_seconds: None,
            costs: costs.to_owned(),
            recheck: "the plan with it".to_owned(),
        }
    }

    /// What it saves, in words.
    pub fn gain(&self) -> String {
        match (self.saves_seconds, self.saves_bytes) {
            (Some(seconds), _) => format!("at most {:.1} ms", 1e3 * seconds),
            (None, bytes) => crate::both(bytes.unwrap_or(0)),
        }
    }

    /// What levers are sorted by. Those of one list save all time, or all memory.
    fn weight(&self) -> f64 {
        self.saves_seconds.unwrap_or(self.saves_bytes.unwrap_or(0) as f64)
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

/// What every plan, ledger and diagnosis says of bytes, by keys that stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    /// The model's parameters, where they are known.
    pub parameters: Option<u64>,
    /// Terms of the busiest process.
    pub terms: Terms,
    /// Their sum.
    pub total_bytes: u64,
    /// What may be taken, where that is known.
    pub budget_bytes: Option<u64>,
    /// Whether it fits; not known without a budget.
    pub fits: Option<bool>,
    /// The largest term, or the resource that limits.
    pub limiting_term: String,
    /// What could be changed, the largest saving first.
    pub levers: Vec<Lever>,
    /// The processes of a training.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ranks: Vec<Rank>,
    /// Bytes that each rank sends an optimizer step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication_bytes_per_step: Option<u64>,
}

impl Balance {
    /// Terms under a budget; the rest is added by who knows it.
    ///
    /// # Errors
    /// When the sum does not fit into 64 bits.
    pub fn new(terms: Terms, budget: Option<u64>) -> Result<Balance, Error> {
        let total_bytes = terms.total()?;
        Ok(Balance {
            limiting_term: terms.limiting().map_or_else(String::new, |term| term.name.clone()),
            fits: budget.map(|budget| total_bytes <= budget),
            budget_bytes: budget,
            terms,
            total_bytes,
            ..Balance::default()
        })
    }

    /// Keeps the levers that save something, the largest saving first.
    pub(crate) fn set_levers(&mut self, mut levers: Vec<Lever>) {
        levers.retain(|lever| lever.weight() > 0.0);
        levers.sort_by(|a, b| b.weight().total_cmp(&a.weight()));
        self.levers = levers;
    }
}

/// A prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The model.
    pub model: String,
    /// What the bytes are counted by: the program's own lists, or formulas.
    pub counted_by: String,
    /// Bytes by term.
    #[serde(flatten)]
    pub balance: Balance,
    /// What the system will show for the process at its peak, pages that can be reclaimed included,
    /// where that is more than the sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Bytes of K/V that a token more of one sequence takes in layers that see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_bytes_per_token: Option<u64>,
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
        let balance = Balance::new(terms, budget)?;
        Ok(Prediction {
            model: model.to_owned(),
            counted_by: counted_by.to_owned(),
            balance: Balance { parameters: Some(parameters), ..balance },
            peak_bytes: None,
            kv_bytes_per_token: None,
            notes: Vec::new(),
        })
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
