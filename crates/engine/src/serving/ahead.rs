//! Guesses ahead of the sequences of an engine: looked up in their text, or by a draft model.

use super::draft::Wanted;
use super::engine::{Engine, guarded};
use super::lookup::lookup;
use super::scheduler::SequenceId;
use decoding::{Counter, History};

impl Engine {
    /// Guesses what follows the sequences that have just grown.
    pub(super) fn guess(&mut self) {
        let grown = std::mem::take(&mut self.grown);
        let most = self.scheduler.limits().drafts;
        if most == 0 {
            return;
        }
        let mut wanted = Vec::new();
        for id in grown {
            let Some(live) = self.live.get(&id) else { continue };
            let Some((asked, _)) = self.requests.get(&live.request) else { continue };
            let Some(tokens) = self.scheduler.sequence(id) else { continue };
            // Nothing is guessed beyond what the answer can have, or the model can see.
            let left = asked.request.max_tokens.saturating_sub(live.progress.ids().len() + 1);
            let room = self.limit.saturating_sub(tokens.len());
            let most = most.min(left).min(room);
            let drafts = match &self.draft {
                None => lookup(tokens, most),
                Some(_) => {
                    wanted.push(Wanted::new(id, most.min(live.ahead)));
                    Vec::new()
                }
            };
            // The last guess is spent.
            self.scheduler.guess(id, drafts);
        }
        wanted.retain(|one| one.most > 0);
        if !wanted.is_empty() {
            self.draft(wanted);
        }
    }

    /// Lets the draft model guess, by each request's own rules and chance: then a guess holds as
    /// often as the two models agree.
    fn draft(&mut self, mut wanted: Vec<Wanted>) {
        let Self { draft, scheduler, live, requests, scratch, executor, .. } = self;
        let Some(draft) = draft else { return };
        let (live, requests, vocab) = (&*live, &*requests, executor.vocab_size());
        let mut choose = |id: SequenceId, drafts: &[u32], row: &[f32]| {
            let live = live.get(&id)?;
            let (asked, _) = requests.get(&live.request)?;
            let ids = [live.progress.ids(), drafts].concat();
            let history = History::new(&asked.request.prompt, &ids);
            let rng = Counter { seed: asked.request.seed, stream: live.progress.index() };
            let step = ids.len() as u64;
            let choice =
                decoding::decide(&asked.request.rules, row, &history, rng, step, scratch).ok()?;
            let ends = asked.request.end.contains(&choice.id);
            Some((choice.id, ends))
        };
        // Guesses may fail without harm: nothing is then guessed.
        if guarded(|| draft.guess(scheduler, &mut wanted, vocab, &mut choose)).is_err() {
            wanted.iter().for_each(|one| draft.forget(one.id));
            return;
        }
        for one in wanted {
            scheduler.guess(one.id, one.drafts);
        }
    }
}
