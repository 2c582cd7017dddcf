//! Data-parallel training steps over several ranks, simulated unit by unit (token table, layers, head):
//! each rank computes at its own pace, collectives wait for the slowest and for the network, and what is
//! sent depends on the stage. Collectives go round a ring: N-1 messages of one N-th each way.
//!
//! Without jitter, latency and overlap a step takes what the closed form says ([`crate::train_times`]).

use crate::fleet::Spread;
use crate::machine::{Machine, unit_arithmetic};
use crate::state::StateBytes;
use crate::{Architecture, Error, TrainAsk, lora_parameters};
use kernels::{normal, stream_key};
use models::Recompute;
use serde::Serialize;

/// The network between ranks, and how alike they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Bytes a second that a rank sends.
    pub bytes_per_second: f64,
    /// Seconds until a message begins to arrive.
    pub latency_s: f64,
    /// How far a rank's pace strays: the standard deviation of its time for a pass, as a share of it;
    /// passes only become longer by it.
    pub jitter: f64,
    /// Whether communication runs beside arithmetic: gradients are sent while earlier units compute
    /// theirs, weights are gathered a unit ahead.
    pub overlap: bool,
    /// Where chance starts.
    pub seed: u64,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RanksReport {
    /// Ranks.
    pub ranks: u64,
    /// A step.
    pub step: Spread,
    /// Of it, arithmetic of a rank at its own pace, without waiting.
    pub compute_ms: f64,
    /// Of it, how long the network is busy, whether or not somebody waits for it.
    pub network_ms: f64,
    /// Of it, what a rank waits: for the network, and for slower ranks.
    pub waiting_ms: f64,
    /// Tokens of all ranks a second.
    pub tokens_per_second: f64,
    /// The same as a share of what as many ranks would do without waiting.
    pub efficiency: f64,
}

/// Steps that are simulated.
const STEPS: usize = 24;
/// Ranks that are simulated at most.
pub const MOST_RANKS: u64 = 4096;

/// What one unit is, in bytes and seconds of a rank's micro-batch.
#[derive(Clone, Copy)]
struct Unit {
    forward_s: f64,
    backward_s: f64,
    /// Bytes of its gradients, and of its weights as they are stored; of what learns, and of all.
    gradients: f64,
    weights: f64,
    gathered: f64,
}

/// Simulates steps of a training on ranks that are each such a machine.
///
/// # Errors
/// Numbers that make no training or no network.
pub fn simulate_ranks(
    architecture: &Architecture,
    ask: &TrainAsk,
    machine: &Machine,
    network: &Network,
) -> Result<RanksReport, Error> {
    ask.check(architecture)?;
    let ranks = ask.layout.ranks;
    if ranks > MOST_RANKS {
        return Err(Error::number("--ranks", ranks, format!("at most {MOST_RANKS} are simulated")));
    }
    let units = units(architecture, ask, machine)?;
    let mut run = Run::new(ranks as usize, ask, *network);
    let mut times = Vec::with_capacity(STEPS);
    let mut before = 0.0;
    for step in 0..STEPS {
        let end = run.step(&units, step as u64);
        times.push(end - before);
        before = end;
    }
    let each = |sum: f64| 1e3 * sum / STEPS as f64;
    let tokens = ask.tokens_per_step()? as f64 * STEPS as f64;
    let of_ranks = |sum: f64| each(sum / ranks as f64);
    let step = Spread::of(times);
    let compute_ms = of_ranks(run.computed);
    Ok(RanksReport {
        ranks,
        compute_ms,
        network_ms: each(run.sent),
        waiting_ms: of_ranks(run.waited),
        tokens_per_second: tokens / before.max(1e-12),
        efficiency: compute_ms / each(before).max(1e-12),
        step,
    })
}

/// The units in the order of the forward pass.
fn units(
    architecture: &Architecture,
    ask: &TrainAsk,
    machine: &Machine,
) -> Result<Vec<Unit>, Error> {
    let config = architecture.transformer()?;
    let (sizes, layers) = (architecture.units()?, config.num_hidden_layers);
    let (layer, attention, head) = unit_arithmetic(architecture, ask)?;
    let rows = (ask.batch * ask.length) as f64;
    let bytes = StateBytes::new(ask.precision, ask.optimizer);
    let adapters = match ask.lora {
        Some(rank) => Some(lora_parameters(config, rank)? as f64 / layers.max(1) as f64),
        None => None,
    };
    let backward = if ask.lora.is_some() { 1.0 } else { 2.0 };
    // This program gathers what learns alone: what does not is whole on every rank.
    let own = architecture.runs_here && crate::running::trains(architecture, ask).is_ok();
    let unit = |parameters: u64, flops: f64, again: f64, learns: f64| Unit {
        forward_s: rows * flops / machine.flops_per_second,
        backward_s: rows * (backward * flops + again) / machine.flops_per_second,
        gradients: bytes.gradients as f64 * learns,
        weights: bytes.weights as f64 * learns,
        gathered: bytes.weights as f64 * if own { learns } else { parameters as f64 },
    };
    let again = match ask.recompute {
        Recompute::None => 0.0,
        Recompute::Attention => attention,
        Recompute::Layer => layer + attention,
    };
    let outside = |parameters: u64| if adapters.is_some() { 0.0 } else { parameters as f64 };
    let of_layer =
        unit(sizes.layer, layer + attention, again, adapters.unwrap_or(sizes.layer as f64));
    let mut all = vec![unit(sizes.embedding, 0.0, 0.0, outside(sizes.embedding))];
    all.extend(std::iter::repeat_n(of_layer, layers));
    all.push(unit(sizes.head, head, 0.0, outside(sizes.head)));
    Ok(all)
}

/// A run of steps.
struct Run {
    network: Network,
    stage: u8,
    accumulate: u64,
    /// Whether each micro-batch's gradients are reduced.
    by_batch: bool,
    /// When each rank has done what it was told.
    free: Vec<f64>,
    /// When the network has.
    net: f64,
    computed: f64,
    sent: f64,
    waited: f64,
}

impl Run {
    fn new(ranks: usize, ask: &TrainAsk, network: Network) -> Run {
        let (stage, accumulate) = (ask.layout.stage, ask.accumulate);
        let by_batch = stage >= 2 || ask.pieces;
        let (free, none) = (vec![0.0; ranks], 0.0);
        let [net, computed, sent, waited] = [none; 4];
        Run { network, stage, accumulate, by_batch, free, net, computed, sent, waited }
    }

    /// One optimizer step; answers with its end.
    fn step(&mut self, units: &[Unit], step: u64) -> f64 {
        for micro in 0..self.accumulate {
            let paces = self.paces(step * self.accumulate + micro);
            self.pass(units.iter(), |unit| unit.forward_s, &paces, 0.0);
            let last = micro + 1 == self.accumulate;
            let times = match self.by_batch || last {
                false => 0.0,
                // Whole gradients come back to every rank.
                true if self.stage == 0 && last => 2.0,
                true => 1.0,
            };
            self.pass(units.iter().rev(), |unit| unit.backward_s, &paces, times);
        }
        // The norm of all gradients stands before the first weight changes.
        self.wait(self.net);
        if matches!(self.stage, 1 | 2) {
            for unit in units {
                let end = self.collective(unit.weights);
                self.wait(end);
            }
        }
        self.wait(self.free.iter().copied().fold(0.0, f64::max));
        self.free.first().copied().unwrap_or(0.0)
    }

    /// How much longer each rank takes for its passes of a micro-batch.
    fn paces(&self, at: u64) -> Vec<f64> {
        let key = stream_key(self.network.seed, 0x0070_6163_6573, at);
        let pace = |rank| 1.0 + self.network.jitter * f64::from(normal(key, rank)).abs();
        (0..self.free.len() as u64).map(pace).collect()
    }

    /// A pass over units, and how often gradients are sent in it.
    fn pass<'a>(
        &mut self,
        units: impl Iterator<Item = &'a Unit>,
        seconds: impl Fn(&Unit) -> f64,
        paces: &[f64],
        times: f64,
    ) {
        let mut gathered = None;
        let mut units = units.peekable();
        while let Some(unit) = units.next() {
            if self.stage == 3 {
                let end = gathered.take().unwrap_or_else(|| self.collective(unit.gathered));
                self.wait(end);
                if self.network.overlap {
                    gathered = units.peek().map(|next| self.collective(next.gathered));
                }
            }
            for (free, pace) in self.free.iter_mut().zip(paces) {
                *free += seconds(unit) * pace;
                self.computed += seconds(unit) * pace;
            }
            if times > 0.0 {
                let end = self.several(times, unit.gradients);
                if !self.network.overlap {
                    self.wait(end);
                }
            }
        }
    }

    /// All ranks wait until then.
    fn wait(&mut self, until: f64) {
        for free in &mut self.free {
            self.waited += (until - *free).max(0.0);
            *free = free.max(until);
        }
    }

    /// A reduce-scatter or an all-gather of so many bytes; begins when the last rank comes.
    fn collective(&mut self, bytes: f64) -> f64 {
        self.several(1.0, bytes)
    }

    fn several(&mut self, times: f64, bytes: f64) -> f64 {
        let (ranks, network) = (self.free.len() as f64, self.network);
        let ready = self.free.iter().copied().fold(self.net, f64::max);
        if ranks < 2.0 || bytes == 0.0 {
            return ready;
        }
        let message = network.latency_s + bytes / ranks / network.bytes_per_second;
        let took = times * (ranks - 1.0) * message;
        self.sent += took;
        self.net = ready + took;
        self.net
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, train_times};

    fn network() -> Network {
        Network { bytes_per_second: 1e9, latency_s: 0.0, jitter: 0.0, overlap: false, seed: 1 }
    }

    fn machine() -> Machine {
        Machine::open("epyc-7763").unwrap()
    }

    fn ask(stage: u8, ranks: u64) -> TrainAsk {
        let layout = Layout { stage, ranks };
        TrainAsk { batch: 4, length: 256, accumulate: 2, layout, ..TrainAsk::default() }
    }

    fn of(ask: &TrainAsk, network: Network) -> RanksReport {
        let model = Architecture::open("qwen3-0.6b").unwrap();
        simulate_ranks(&model, ask, &machine(), &network).unwrap()
    }

    #[test]
    fn without_chance_and_overlap_it_is_the_closed_form() {
        let model = Architecture::open("qwen3-0.6b").unwrap();
        for stage in 0..=3 {
            for recompute in Recompute::ALL {
                for lora in [None, Some(16)] {
                    let ask = TrainAsk { recompute, lora, ..ask(stage, 8) };
                    let plan = crate::train(&model, &ask).unwrap();
                    let sent = plan.balance.communication_bytes_per_step;
                    let (sent, machine) = (sent.unwrap(), machine());
                    let times = train_times(&model, &ask, sent, &machine, Some(1e9)).unwrap();
                    let seen = of(&ask, network());
                    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-5;
                    assert!(near(seen.compute_ms, 1e3 * times.compute_s), "{seen:?} {times:?}");
                    assert!(
                        near(seen.network_ms, 1e3 * times.communication_s.unwrap()),
                        "{stage} {lora:?}: {seen:?} {times:?}"
                    );
                    assert!(near(seen.step.p50_ms, 1e3 * times.step_s), "{seen:?} {times:?}");
                }
            }
        }
    }

    #[test]
    fn a_base_that_this_program_keeps_whole_is_not_gathered() {
        let model = Architecture::open("email-transformer").unwrap();
        for stage in 0..=3 {
            let precision = crate::Precision::F32;
            let ask = TrainAsk { lora: Some(4), length: 64, precision, ..ask(stage, 8) };
            let plan = crate::running::train(&model, &ask, crate::running::Runtime::default());
            let sent = plan.unwrap().balance.communication_bytes_per_step.unwrap();
            let seen = simulate_ranks(&model, &ask, &machine(), &network()).unwrap();
            let right = 1e3 * sent as f64 / 1e9;
            assert!((seen.network_ms / right - 1.0).abs() < 1e-5, "{stage}: {seen:?}, {right}");
        }
    }

    #[test]
    fn overlap_hides_what_arithmetic_leaves_room_for() {
        for stage in 0..=3 {
            let ask = ask(stage, 8);
            let (bare, beside) =
                (of(&ask, network()), of(&ask, Network { overlap: true, ..network() }));
            assert_eq!(bare.network_ms, beside.network_ms);
            assert!(beside.step.p50_ms < bare.step.p50_ms, "{stage}: {beside:?} {bare:?}");
            assert!(beside.step.p50_ms >= beside.compute_ms.max(beside.network_ms) * 0.999);
        }
    }

    #[test]
    fn the_slowest_rank_holds_all_up_and_more_ranks_have_a_slower_one() {
        let with = |ranks, jitter| of(&ask(1, ranks), Network { jitter, ..network() });
        let (few, many) = (with(2, 0.1), with(64, 0.1));
        let wait = |r: &RanksReport| r.waiting_ms - r.network_ms;
        assert!(wait(&many) > 1.5 * wait(&few) && wait(&few) > 0.0, "{few:?} {many:?}");
        assert_eq!(many, with(64, 0.1), "the same seed gives the same");
        let alone = with(1, 0.0);
        assert_eq!((alone.efficiency, alone.network_ms, alone.waiting_ms), (1.0, 0.0, 0.0));
        let slow = of(&ask(1, 64), Network { latency_s: 1e-3, ..network() });
        // 63 messages for the gradients and 63 for the weights of each of 30 units (the tied head
        // has a norm of its own).
        let more = slow.network_ms - of(&ask(1, 64), network()).network_ms;
        assert!((more - 2.0 * 63.0 * 30.0).abs() < 1e-3, "{more}");
    }

    #[test]
    fn what_cannot_be_simulated_is_refused() {
        let model = Architecture::open("qwen3-0.6b").unwrap();
        let error = simulate_ranks(&model, &ask(1, 9999), &machine(), &network()).unwrap_err();
        assert!(error.to_string().contains("4096"));
        assert!(simulate_ranks(&model, &ask(4, 2), &machine(), &network()).is_err());
    }
}
