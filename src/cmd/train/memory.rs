//! What is computed again: as asked, or the least that fits the memory there is.

use crate::error::CliError;
use crate::term::mib;
use ledger::Plan;
use models::Recompute;

/// What `--recompute` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// This.
    Exactly(Recompute),
    /// The least that fits.
    Auto,
}

/// Reads `none`, `attention`, `block` or `auto`.
pub fn asked(word: &str) -> Result<Asked, String> {
    let named = Recompute::ALL.into_iter().find(|r| r.name() == word).map(Asked::Exactly);
    let auto = (word == "auto").then_some(Asked::Auto);
    named.or(auto).ok_or_else(|| "choose none, attention, block or auto".to_owned())
}

/// Chooses by what each way is predicted to take; `runtime` is taken whatever is chosen.
pub fn choose(
    asked: Asked,
    budget: u64,
    runtime: u64,
    plan: impl Fn(Recompute) -> Result<Plan, CliError>,
) -> Result<(Recompute, Plan), CliError> {
    let ways = match &asked {
        Asked::Exactly(way) => std::slice::from_ref(way),
        Asked::Auto => &Recompute::ALL[..],
    };
    let mut needed = Vec::new();
    for &way in ways {
        let plan = plan(way)?;
        let total = plan.total() + runtime;
        if total <= budget {
            return Ok((way, plan));
        }
        needed.push(format!("{} with --recompute {}", mib(total), way.name()));
    }
    Err(CliError::input(format!(
        "training needs {}, and may take {}: make --micro-batch or --max-len smaller, train adapters \
         alone (--lora), or take a smaller model",
        needed.join(", "),
        mib(budget)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::Account;

    #[test]
    fn the_least_that_fits_is_chosen() {
        let plan = |way: Recompute| {
            let mut plan = Plan::default();
            let index = Recompute::ALL.iter().position(|&r| r == way).unwrap() as u64;
            plan.add_bytes("activations", Account::Activations, 100 - 30 * index);
            Ok(plan)
        };
        let chosen = |budget| choose(Asked::Auto, budget, 5, plan).map(|(way, _)| way);
        assert_eq!(chosen(105).unwrap(), Recompute::None);
        assert_eq!(chosen(104).unwrap(), Recompute::Attention);
        assert_eq!(chosen(45).unwrap(), Recompute::Layer);
        let error = chosen(44).unwrap_err();
        assert!(error.code == 2 && error.message.contains("--recompute block"), "{error}");
        assert!(choose(Asked::Exactly(Recompute::None), 104, 5, plan).is_err());
    }
}
