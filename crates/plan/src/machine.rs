//! Machines, and the time that bytes and arithmetic take on them by a roofline: a step is as long
//! as the longer of reading what it reads and computing what it computes.
//!
//! A named machine's figures are the vendor's peaks, so its times are the best that could be; those
//! of a machine measured by `autoreg doctor` are what this program's kernels reach.

use crate::fleet::{StepCost, StepShape};
use crate::published::nearest;
use crate::term::product;
use crate::{Architecture, Error, NumberKind, ServeAsk, TrainAsk, kv_bytes};
use models::{Recompute, TransformerConfig};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a machine can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Bytes/s of plain reads.
    pub bandwidth_bytes_per_second: f64,
    /// Multiplications and additions a second in the numbers that weights have.
    pub flops_per_second: f64,
    /// The same for products with quantised matrices, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantised_flops_per_second: Option<f64>,
    /// Bytes/s at which a product of one row reads a quantised matrix, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantised_row_bytes_per_second: Option<f64>,
    /// Bytes of its memory, where it is the same for all of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Where the figures come from.
    pub source: String,
}

const PEAK: &str = "vendor's figures: theoretical peak";

/// (name, GB/s, TFLOP/s, GB of memory or 0, in which numbers).
#[rustfmt::skip]
const TABLE: [(&str, f64, f64, u64, &str); 20] = [
    ("raspberry-pi-5", 17.1, 0.154, 0, "4 cores x 2.4 GHz x 16 FLOP, f32, LPDDR4X-4267 x32"),
    ("ryzen-5-5600", 51.2, 1.07, 0, "6 cores x 3.5 GHz x 32 FLOP x 1.6, f32, DDR4-3200 x2"),
    ("ryzen-9-7950x", 83.2, 2.30, 0, "16 cores x 4.5 GHz x 32 FLOP, f32, DDR5-5200 x2"),
    ("core-i9-13900k", 89.6, 1.54, 0, "8 P-cores x 3.0 GHz x 32 FLOP x 2, f32, DDR5-5600 x2"),
    ("xeon-8480", 307.2, 7.17, 0, "56 cores x 2.0 GHz x 64 FLOP, f32, DDR5-4800 x8"),
    ("epyc-7763", 204.8, 5.02, 0, "64 cores x 2.45 GHz x 32 FLOP, f32, DDR4-3200 x8"),
    ("epyc-9654", 460.8, 7.37, 0, "96 cores x 2.4 GHz x 32 FLOP, f32, DDR5-4800 x12"),
    ("graviton-3", 307.2, 5.32, 0, "64 cores x 2.6 GHz x 32 FLOP, f32, DDR5-4800 x8"),
    ("apple-m2-max", 400.0, 13.6, 0, "f32 on its GPU, LPDDR5 x512"),
    ("t4", 320.0, 65.0, 16, "f16 tensor cores"),
    ("v100-32gb", 900.0, 125.0, 32, "f16 tensor cores"),
    ("l4", 300.0, 121.0, 24, "bf16 tensor cores, dense"),
    ("rtx-3090", 936.0, 71.0, 24, "f16 tensor cores, f32 sums, dense"),
    ("rtx-4090", 1008.0, 165.2, 24, "f16 tensor cores, f32 sums, dense"),
    ("l40s", 864.0, 362.0, 48, "bf16 tensor cores, dense"),
    ("a100-40gb", 1555.0, 312.0, 40, "bf16 tensor cores, dense"),
    ("a100-80gb", 2039.0, 312.0, 80, "bf16 tensor cores, dense"),
    ("h100-sxm", 3350.0, 989.0, 80, "bf16 tensor cores, dense"),
    ("h200-sxm", 4800.0, 989.0, 141, "bf16 tensor cores, dense"),
    ("mi300x", 5300.0, 1307.0, 192, "bf16 matrix cores, dense"),
];

/// Every machine with a name.
pub fn machines() -> impl Iterator<Item = Machine> {
    TABLE.iter().map(|&(name, gb, tflops, memory, numbers)| Machine {
        name: name.to_owned(),
        bandwidth_bytes_per_second: gb * 1e9,
        flops_per_second: tflops * 1e12,
        quantised_flops_per_second: None,
        quantised_row_bytes_per_second: None,
        memory_bytes: (memory > 0).then_some(memory * 1_000_000_000),
        source: format!("{PEAK} ({numbers})"),
    })
}

impl Machine {
    /// A machine of a name, or of a file that `autoreg doctor` wrote.
    ///
    /// # Errors
    /// A name that nothing has; a file that does not hold.
    pub fn open(what: &str) -> Result<Machine, Error> {
        let path = Path::new(what);
        if path.is_file() || what.ends_with(".json") {
            return Machine::read(path);
        }
        let name = what.to_lowercase().replace([' ', '_'], "-");
        machines().find(|machine| machine.name == name).ok_or_else(|| Error::UnknownMachine {
            name: what.to_owned(),
            near: nearest(&name, TABLE.iter().map(|row| row.0)),
        })
    }

    fn read(path: &Path) -> Result<Machine, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let content = |reason: String| Error::Content { path: path.to_owned(), reason };
        let text = std::fs::read(path).map_err(io)?;
        let machine: Machine = serde_json::from_slice(&text)
            .map_err(|e| content(format!("{e}; expected a file of `autoreg doctor`")))?;
        let good = |x: f64| x > 0.0 && x.is_finite();
        if !good(machine.bandwidth_bytes_per_second) || !good(machine.flops_per_second) {
            return Err(content("bandwidth and FLOP/s must be above 0".to_owned()));
        }
        Ok(machine)
    }

    fn flops(&self, weights: NumberKind) -> f64 {
        let quantised = is_quantised(weights);
        self.quantised_flops_per_second.filter(|_| quantised).unwrap_or(self.flops_per_second)
    }

    /// Bytes/s at which weights are read.
    fn reading(&self, weights: NumberKind) -> f64 {
        let measured = self.quantised_row_bytes_per_second.filter(|_| is_quantised(weights));
        measured.unwrap_or(self.bandwidth_bytes_per_second)
    }
}

fn is_quantised(weights: NumberKind) -> bool {
    !matches!(weights, NumberKind::F32 | NumberKind::Bf16 | NumberKind::F16)
}

/// What a model reads and computes, from which times follow.
struct Work<'a> {
    config: &'a TransformerConfig,
    /// Bytes of K/V of one sequence.
    kv: f64,
    /// Arithmetic of a token, attention apart: two operations a parameter of the layers.
    layers: f64,
    /// The output projection's.
    head: f64,
}

impl Work<'_> {
    /// Attention's arithmetic of one token that sees `past` positions.
    fn attention(&self, past: f64) -> f64 {
        let c = self.config;
        let near = c.sliding_window.as_ref();
        let near_layers = near.map_or(0, |w| w.layers.len()) as f64;
        let seen = near.map_or(past, |w| past.min(w.tokens as f64));
        let far_layers = c.num_hidden_layers as f64 - near_layers;
        let width = (c.num_attention_heads * c.head_size()) as f64;
        4.0 * width * (far_layers * past + near_layers * seen)
    }
}

/// Times of serving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServeTimes {
    /// The machine.
    pub machine: String,
    /// Where its figures come from.
    pub source: String,
    /// Reading a prompt of the whole context, alone.
    pub first_token_s: f64,
    /// What bounds it: compute or bandwidth.
    pub first_token_bound: String,
    /// A token of each of the requests, all at the full context.
    pub token_s: f64,
    /// What bounds it.
    pub token_bound: String,
    /// Tokens/s of all requests together.
    pub tokens_per_second: f64,
    /// Requests from which on more of them bring little.
    pub knee_requests: f64,
    /// Why: compute, or reading K/V.
    pub knee_bound: String,
    /// (requests, seconds a token, tokens/s together).
    pub batching: Vec<(u64, f64, f64)>,
}

fn bound(compute: f64, read: f64) -> (f64, String) {
    if compute >= read { (compute, "compute".into()) } else { (read, "bandwidth".into()) }
}

/// Times of serving a model by a machine's roofline; `weight_bytes` is what its weights take.
///
/// # Errors
/// Numbers that make no server.
pub fn serve_times(
    architecture: &Architecture,
    ask: &ServeAsk,
    weight_bytes: u64,
    machine: &Machine,
) -> Result<ServeTimes, Error> {
    let config = architecture.transformer()?;
    let units = architecture.units()?;
    let layers = units.active_layer as f64 * config.num_hidden_layers as f64;
    let work = Work {
        config,
        kv: kv_bytes(config, ask.context, 1, ask.kv)? as f64,
        layers: 2.0 * layers,
        head: 2.0 * units.projection as f64,
    };
    let (flops, bandwidth) = (machine.flops(ask.weights), machine.bandwidth_bytes_per_second);
    let context = ask.context as f64;
    let prompt = context * work.layers + context * work.attention(context / 2.0) + work.head;
    let reading = machine.reading(ask.weights);
    let steps = (context / ask.step_tokens as f64).ceil();
    let weights = |tokens: f64| -> Result<f64, Error> {
        Ok(weight_bytes as f64 * architecture.read_share(tokens)? / reading)
    };
    let a_step = ask.context.min(ask.step_tokens) as f64;
    let read = weights(a_step)? * steps + work.kv / bandwidth;
    let (first_token_s, first_token_bound) = bound(prompt / flops, read);
    let each = (work.layers + work.head + work.attention(context)) / flops;
    let past = work.kv / bandwidth;
    let token = |n: f64| Ok::<_, Error>(bound(n * each, weights(n)? + n * past));
    let requests = ask.requests as f64;
    let (token_s, token_bound) = token(requests)?;
    // From where on more requests read no more weights.
    let once = weights(f64::from(u32::MAX))?;
    let (knee_requests, knee_bound) = if each > past {
        (once / (each - past), "compute: products take as long as reading the weights")
    } else {
        (once / past, "K/V: reading it takes as long as reading the weights")
    };
    let batching = (0..8u32).map(|i| 1u64 << i).map(|n| {
        let (seconds, _) = token(n as f64)?;
        Ok((n, seconds, n as f64 / seconds))
    });
    Ok(ServeTimes {
        machine: machine.name.clone(),
        source: machine.source.clone(),
        first_token_s,
        first_token_bound,
        token_s,
        token_bound,
        tokens_per_second: requests / token_s,
        knee_requests: knee_requests.max(1.0),
        knee_bound: knee_bound.to_owned(),
        batching: batching.collect::<Result<_, Error>>()?,
    })
}

/// Times of an optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainTimes {
    /// The machine of a rank.
    pub machine: String,
    /// Where its figures come from.
    pub source: String,
    /// Arithmetic of a rank's step, recomputation included.
    pub compute_s: f64,
    /// Of it, what recomputation adds.
    pub recompute_s: f64,
    /// Communication, where a network was given; not overlapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication_s: Option<f64>,
    /// The sum.
    pub step_s: f64,
    /// Tokens/s of all ranks together.
    pub tokens_per_second: f64,
}

/// Times of a step by a machine's roofline: three forward passes' arithmetic a step, one more where
/// layers are computed again.
///
/// # Errors
/// Numbers that make no training.
pub fn train_times(
    architecture: &Architecture,
    ask: &TrainAsk,
    communication_bytes: u64,
    machine: &Machine,
    network_bytes_per_second: Option<f64>,
) -> Result<TrainTimes, Error> {
    let rows = product("tokens", &[ask.batch, ask.length, ask.accumulate])? as f64;
    let (needed, again) = token_arithmetic(architecture, ask)?;
    let flops = machine.flops_per_second;
    let recompute_s = rows * again / flops;
    let compute_s = rows * needed / flops + recompute_s;
    let communication_s = network_bytes_per_second.map(|b| communication_bytes as f64 / b);
    let step_s = compute_s + communication_s.unwrap_or(0.0);
    Ok(TrainTimes {
        machine: machine.name.clone(),
        source: machine.source.clone(),
        compute_s,
        recompute_s,
        communication_s,
        step_s,
        tokens_per_second: rows * ask.layout.ranks as f64 / step_s,
    })
}

/// Arithmetic of a token's forward pass: one layer's products, one layer's attention, the head's.
pub(crate) fn unit_arithmetic(
    architecture: &Architecture,
    ask: &TrainAsk,
) -> Result<(f64, f64, f64), Error> {
    let config = architecture.transformer()?;
    let units = architecture.units()?;
    let (layer, head) = (2.0 * units.active_layer as f64, 2.0 * units.projection as f64);
    let layers = layer * config.num_hidden_layers as f64;
    let work = Work { config, kv: 0.0, layers, head };
    let attention = work.attention(ask.length as f64 / 2.0);
    Ok((layer, attention / config.num_hidden_layers as f64, head))
}

/// Arithmetic of a trained token: what training needs, and what is computed again.
pub(crate) fn token_arithmetic(
    architecture: &Architecture,
    ask: &TrainAsk,
) -> Result<(f64, f64), Error> {
    let (layer, attention, head) = unit_arithmetic(architecture, ask)?;
    let count = architecture.transformer()?.num_hidden_layers as f64;
    let (layers, attention) = (layer * count, attention * count);
    let again = match ask.recompute {
        Recompute::None => 0.0,
        Recompute::Attention => attention,
        Recompute::Layer => layers + attention,
    };
    // Adapters need no gradients of the weights they stand on.
    let passes = if ask.lora.is_some() { 2.0 } else { 3.0 };
    Ok((passes * (layers + head + attention), again))
}

/// A step's time by a machine's roofline.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// Seconds of arithmetic a row, a row of logits, and a pair of tokens.
    row: f64,
    logits: f64,
    pair: f64,
    /// Seconds of reading the weights that steps of 1, 2, 4 rows and so on read, and a token of the
    /// past.
    weights: Vec<f64>,
    kv: f64,
}

impl Roofline {
    /// Of a model on a machine; `weight_bytes` is what its weights take. Windows count as if they
    /// saw everything.
    ///
    /// # Errors
    /// Numbers that make no server.
    pub fn new(
        architecture: &Architecture,
        ask: &ServeAsk,
        weight_bytes: u64,
        machine: &Machine,
    ) -> Result<Roofline, Error> {
        let config = architecture.transformer()?;
        let units = architecture.units()?;
        let read = |rows| -> Result<f64, Error> {
            Ok(weight_bytes as f64 * architecture.read_share(rows)? / machine.reading(ask.weights))
        };
        let layers = config.num_hidden_layers as f64;
        let width = (config.num_attention_heads * config.head_size()) as f64;
        let flops = machine.flops(ask.weights);
        let bandwidth = machine.bandwidth_bytes_per_second;
        Ok(Roofline {
            row: 2.0 * units.active_layer as f64 * layers / flops,
            logits: 2.0 * units.projection as f64 / flops,
            pair: 4.0 * width * layers / flops,
            weights: (0..=16).map(|i| read(f64::from(1u32 << i))).collect::<Result<_, _>>()?,
            kv: kv_bytes(config, 1, 1, ask.kv)? as f64 / bandwidth,
        })
    }
}

impl StepCost for Roofline {
    fn seconds(&self, shape: &StepShape) -> f64 {
        let [rows, past, pairs, logits] =
            [shape.rows, shape.past, shape.pairs, shape.logits].map(|n| n as f64);
        let compute = rows * self.row + logits * self.logits + pairs * self.pair;
        let weights = self.weights.get(rows.max(1.0).log2().ceil() as usize);
        let weights = weights.or(self.weights.last()).copied().unwrap_or(0.0);
        compute.max(weights + past * self.kv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(context: u64) -> ServeAsk {
        ServeAsk {
            context,
            requests: 1,
            weights: NumberKind::Bf16,
            kv: NumberKind::Bf16,
            step_tokens: 256,
            threads: 1,
            ..ServeAsk::default()
        }
    }

    fn times(context: u64, machine: &str) -> ServeTimes {
        let model = Architecture::open("llama-3-8b").unwrap();
        let bytes = 2 * model.parameters().unwrap();
        serve_times(&model, &ask(context), bytes, &Machine::open(machine).unwrap()).unwrap()
    }

    #[test]
    fn a_token_alone_takes_the_reading_of_the_weights() {
        let found = times(16, "h100-sxm");
        // All but the table of which one row is read.
        let read = 2.0 * (8_030_261_248.0 - 128_256.0 * 4096.0);
        let expected = read / 3350e9;
        assert!((found.token_s / expected - 1.0).abs() < 0.001, "{}", found.token_s);
        assert_eq!(found.token_bound, "bandwidth");
        // A weight in 16 bits is two operations and two bytes: the knee is FLOP/s by bytes/s, and
        // what the little K/V adds.
        let knee = 989.0 / 3.35;
        assert!((found.knee_requests / knee - 1.0).abs() < 0.05, "{}", found.knee_requests);
        assert!(found.knee_bound.starts_with("compute"));
        // At long contexts reading K/V is what ends it, at as many bytes as the weights have.
        let long = times(32_768, "h100-sxm");
        assert!(long.knee_bound.starts_with("K/V"));
        assert!((long.knee_requests * 32_768.0 * 131_072.0 / read - 1.0).abs() < 0.001);
    }

    #[test]
    fn more_requests_never_make_fewer_tokens() {
        for machine in machines() {
            let found = times(2048, &machine.name);
            let all: Vec<f64> = found.batching.iter().map(|(_, _, all)| *all).collect();
            assert!(all.windows(2).all(|w| w[1] >= 0.999 * w[0]), "{}: {all:?}", machine.name);
            assert!(found.first_token_s > found.token_s);
        }
    }

    #[test]
    fn a_step_takes_six_operations_a_parameter_and_token() {
        let model = Architecture::open("llama-3-70b").unwrap();
        let ask = TrainAsk { length: 1024, ..TrainAsk::default() };
        let machine = Machine::open("h100-sxm").unwrap();
        let of = |recompute| {
            let ask = TrainAsk { recompute, ..ask };
            train_times(&model, &ask, 5_000_000_000, &machine, Some(1e9)).unwrap()
        };
        let plain = of(Recompute::None);
        let rule = 6.0 * 70_553_706_496.0 * 1024.0 / 989e12;
        assert!((plain.compute_s / rule - 1.0).abs() < 0.03, "{} {rule}", plain.compute_s);
        let again = of(Recompute::Layer);
        assert!((again.compute_s / plain.compute_s - 4.0 / 3.0).abs() < 0.02);
        assert_eq!((plain.recompute_s, plain.communication_s), (0.0, Some(5.0)));
        assert!((plain.step_s - plain.compute_s - 5.0).abs() < 1e-9);
    }

    #[test]
    fn a_file_that_is_no_machine_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.json");
        let machine = machines().next().unwrap();
        for (bandwidth, good) in [(1e9, true), (0.0, false), (-1.0, false)] {
            let changed = Machine { bandwidth_bytes_per_second: bandwidth, ..machine.clone() };
            std::fs::write(&path, serde_json::to_string(&changed).unwrap()).unwrap();
            assert_eq!(Machine::open(path.to_str().unwrap()).is_ok(), good);
        }
    }
}
