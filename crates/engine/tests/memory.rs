//! What generation will allocate is what it allocates, account by account. One test, because the
//! books are the process's.

mod common;

use common::{networks_by_kv, request, source, tokenizer};
use engine::{Generator, Request};
use ledger::{Account, reset_peak, snapshot};

#[test]
fn the_plan_is_what_is_allocated() {
    let tokenizer = tokenizer();
    for model in networks_by_kv() {
        for (sequences, prompt) in [(1, 3), (5, 30)] {
            let request = Request {
                prompt: vec![1; prompt],
                sequences,
                max_tokens: 9,
                end: Vec::new(),
                ..request()
            };
            let mut generator = Generator::new(source(&model), &tokenizer);
            let plan = generator.plan(&request).unwrap();
            reset_peak();
            let before = snapshot();
            generator.run(&request, &mut |_| {}).unwrap();
            let after = snapshot();
            for account in [Account::Workspace, Account::KvCache, Account::Activations] {
                let at = account as usize;
                let found = after.at_peak[at] - before.current[at];
                assert_eq!(found, plan.of(account), "{}, {sequences} sequences", account.name());
            }
            let logits = plan.lines.iter().find(|line| line.name.contains("logits of")).unwrap();
            assert_eq!(logits.bytes, 4 * sequences as u64 * common::VOCABULARY as u64);
            assert!(plan.total() > logits.bytes);
        }
    }
}
