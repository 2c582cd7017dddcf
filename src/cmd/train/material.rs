//! What training reads, in the plan and in the books.

use corpus::{Dataset, Side};
use ledger::{Account, Charge, Plan};
use train::{Sequences, order_bytes};

/// Adds the mapped token files of the sides that training reads, and the order of an epoch, to the plan
/// and to the books.
pub fn plan_token_files(plan: &mut Plan, data: &Dataset) -> Vec<Charge> {
    let order = order_bytes(data.side(Side::Train).len());
    let mut charges = vec![planned(plan, "order of an epoch", order)];
    charges.extend(plan_mapped(plan, data));
    charges
}

/// The same of the mapped token files alone.
pub fn plan_mapped(plan: &mut Plan, data: &Dataset) -> [Charge; 2] {
    [Side::Train, Side::Valid].map(|side| {
        let path = data.dir().join(side.file_name());
        let bytes = std::fs::metadata(path).map_or(0, |m| m.len());
        planned(plan, &format!("{} tokens, mapped", side.name()), bytes)
    })
}

/// Data that the plan and the books have alike.
pub fn planned(plan: &mut Plan, name: &str, bytes: u64) -> Charge {
    plan.add_bytes(name, Account::Data, bytes);
    Charge::new(Account::Data, bytes)
}

/// Adds documents of so many bytes and their order to the plan; they have charged themselves.
pub fn plan_documents(plan: &mut Plan, train: &dyn Sequences, bytes: u64) -> Vec<Charge> {
    let order = order_bytes(train.len());
    plan.add_bytes("order of an epoch", Account::Data, order);
    plan.add_bytes("documents", Account::Data, bytes);
    vec![Charge::new(Account::Data, order)]
}
