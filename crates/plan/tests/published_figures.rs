//! Published totals, and figures of other tools by their own formulas: each from the papers,
//! documentation and configurations named beside it, none from this program.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use models::{MlpConfig, ModelConfig, NormConfig, PositionConfig, Recompute, TransformerConfig};
use plan::tools::{self, Eleuther, Offload};
use plan::{
    Activations, Architecture, Attention, Layout, Logits, NumberKind, Optimizer, Precision,
    StateBytes, Terms, TrainAsk, fewest_ranks, kv_bytes, lora_parameters, parse_bytes, train,
};

const GIB: f64 = 1_073_741_824.0;
const GB: f64 = 1e9;

fn named(name: &str) -> Architecture {
    Architecture::open(name).unwrap()
}

/// Equal to what was published, to the places it was published with.
#[track_caller]
fn near(found: f64, published: f64, places: i32) {
    let half = 0.5 * 10f64.powi(-places) * 1.0001;
    assert!((found - published).abs() <= half, "{found}, published {published}");
}

fn states(name: &str, stage: u8, ranks: u64) -> f64 {
    let mut terms = Terms::default();
    let bytes = StateBytes::new(Precision::Bf16, plan::Optimizer::Adamw);
    let parameters = named(name).parameters().unwrap();
    Layout { stage, ranks }.states(parameters, 0, bytes, &mut terms).unwrap();
    terms.total().unwrap() as f64 / GIB
}

/// (name, parameters, 16-bit GiB, 18-byte GiB, K/V bytes a token).
const PUBLISHED: [(&str, u64, f64, f64, u64); 22] = [
    ("gpt2", 124_439_808, 0.232, 2.086, 36_864),
    ("gpt2-medium", 354_823_168, 0.661, 5.948, 98_304),
    ("gpt2-large", 774_030_080, 1.442, 12.976, 184_320),
    ("gpt2-xl", 1_557_611_200, 2.901, 26.111, 307_200),
    ("smollm2-135m", 134_515_008, 0.251, 2.255, 23_040),
    ("qwen2.5-0.5b", 494_032_768, 0.920, 8.282, 12_288),
    ("qwen3-0.6b", 596_049_920, 1.110, 9.992, 114_688),
    ("qwen3-1.7b", 1_720_574_976, 3.205, 28.843, 114_688),
    ("qwen3-4b", 4_022_468_096, 7.492, 67.432, 147_456),
    ("qwen3-8b", 8_190_735_360, 15.256, 137.308, 147_456),
    ("qwen3-14b", 14_768_307_200, 27.508, 247.573, 163_840),
    ("qwen3-32b", 32_762_123_264, 61.024, 549.218, 262_144),
    ("tinyllama-1.1b", 1_100_048_384, 2.049, 18.441, 22_528),
    ("llama-2-7b", 6_738_415_616, 12.551, 112.961, 524_288),
    ("llama-3-8b", 8_030_261_248, 14.958, 134.618, 131_072),
    ("llama-3.2-1b", 1_235_814_400, 2.302, 20.717, 32_768),
    ("llama-3-70b", 70_553_706_496, 131.417, 1182.749, 327_680),
    ("mistral-7b-v0.1", 7_241_732_096, 13.489, 121.399, 131_072),
    ("gemma-2b", 2_506_172_416, 4.668, 42.013, 18_432),
    ("gemma-7b", 8_537_680_896, 15.903, 143.124, 458_752),
    ("gemma-2-2b", 2_614_341_888, 4.870, 43.826, 106_496),
    ("gemma-3-1b", 999_885_952, 1.862, 16.762, 26_624),
];

#[test]
fn published_models_have_their_published_parameters() {
    for (name, parameters, weights, states, kv) in PUBLISHED {
        let model = named(name);
        assert_eq!(model.parameters().unwrap(), parameters, "{name}");
        near(NumberKind::Bf16.bytes(parameters).unwrap() as f64 / GIB, weights, 3);
        near(18.0 * parameters as f64 / GIB, states, 3);
        let one = kv_bytes(model.transformer().unwrap(), 1, 1, NumberKind::Bf16).unwrap();
        assert_eq!(one, kv, "{name}");
    }
}

#[test]
fn t1_to_t3_the_zero_papers_table() {
    let gb = |p: f64, n: f64, stage| tools::zero_paper(p, n, stage) / GB;
    for (stage, published, places) in [(0, 120.0, 0), (1, 31.4, 1), (2, 16.6, 1)] {
        near(gb(7.5e9, 64.0, stage), published, places);
    }
    // Printed as 1.9 and as 1.88: 1.875 exactly.
    assert_eq!(gb(7.5e9, 64.0, 3), 1.875);
    for (n, row, places) in [
        (4.0, [52.5, 41.25, 30.0], 2),
        (16.0, [35.6, 21.6, 7.5], 1),
        (256.0, [30.4, 15.4, 0.47], 1),
        (1024.0, [30.1, 15.1, 0.12], 1),
    ] {
        for (stage, published) in (1..=3).zip(row) {
            let places = if published < 1.0 { 2 } else { places };
            near(gb(7.5e9, n, stage), published, places);
        }
    }
    for (p, n, row) in [
        (128e9, 64.0, [536.0, 284.0, 32.0]),
        (1e12, 64.0, [4187.0, 2219.0, 250.0]),
        (128e9, 1024.0, [513.5, 257.75, 2.0]),
        (1e12, 1024.0, [4012.0, 2014.0, 15.625]),
    ] {
        for (stage, published) in (1..=3).zip(row) {
            assert!((gb(p, n, stage) - published).abs() < 0.75, "{p} {n} {stage}");
        }
    }
}

#[test]
fn t4_to_t6_deepspeeds_estimators() {
    let gib = |(device, host): (f64, f64)| (device / GIB, host / GIB);
    near(gib(tools::deepspeed_2(2851e6, 8.0, false)).0, 15.93, 2);
    near(gib(tools::deepspeed_2(2851e6, 8.0, true)).0, 5.31, 2);
    near(gib(tools::deepspeed_3(2851e6, 32e6, 8.0, Offload::None)).0, 6.09, 2);
    near(gib(tools::deepspeed_3(2851e6, 32e6, 8.0, Offload::Optimizer)).0, 0.78, 2);
    near(gib(tools::deepspeed_3(6805e6, 131e6, 4.0, Offload::None)).0, 29.01, 2);
    let (device, host) = gib(tools::deepspeed_3(6805e6, 131e6, 4.0, Offload::Optimizer));
    near(device, 3.66, 2);
    near(host, 152.1, 1);
    near(gib(tools::deepspeed_3(6805e6, 131e6, 4.0, Offload::All)).1, 171.1, 1);
    near(gib(tools::deepspeed_3(2849e6, 65e6, 1.0, Offload::None)).0, 48.00, 2);
    near(gib(tools::deepspeed_3(2849e6, 65e6, 1.0, Offload::Optimizer)).0, 5.55, 2);
    let t5 = tools::deepspeed_3(737.67e6, 32.90e6, 4.0, Offload::None).0;
    near(t5 / 1_048_576.0, 3291.0, 0);
}

#[test]
fn t7_megatrons_distributed_optimizer() {
    for (bytes, shared) in [(18, 7.5), (20, 6.0), (16, 9.0)] {
        assert_eq!(tools::megatron(bytes, 8.0), Some(shared));
        assert_eq!(tools::megatron(bytes, 1.0), Some(bytes as f64));
    }
    assert_eq!(tools::megatron(17, 8.0), None);
}

#[test]
fn t8_states_of_qwen3_8b_by_stage_and_ranks() {
    near(states("qwen3-8b", 0, 1), 137.308, 3);
    for (ranks, row) in [
        (2, [91.54, 76.28, 68.65]),
        (4, [68.65, 45.77, 34.33]),
        (8, [57.21, 30.51, 17.16]),
        (16, [51.49, 22.88, 8.58]),
        (64, [47.20, 17.16, 2.15]),
    ] {
        for (stage, published) in (1..=3).zip(row) {
            near(states("qwen3-8b", stage, ranks), published, 2);
        }
    }
    // The same as the training that is planned: 16.4 / 32.8 / 32.8 / 65.5 GB.
    let plan = train(&named("qwen3-8b"), &TrainAsk::default()).unwrap();
    for (term, published) in
        [("weights", 16.4), ("master weights", 32.8), ("gradients", 32.8), ("optimizer", 65.5)]
    {
        near(plan.balance.terms.of(term) as f64 / GB, published, 1);
    }
}

#[test]
fn t9_sixteen_bytes_a_parameter() {
    let bytes = tools::zero_paper(8_190_735_360.0, 1.0, 0);
    near(bytes / GB, 131.05, 2);
    near(bytes / GIB, 122.05, 2);
}

#[test]
fn t10_serving_qwen3_8b() {
    let model = named("qwen3-8b");
    let config = model.transformer().unwrap();
    let kv = |context| kv_bytes(config, context, 1, NumberKind::F16).unwrap();
    assert_eq!(kv(1), 147_456);
    assert_eq!(kv(4096), 576 << 20);
    assert_eq!(kv(32768), 9 << 29);
    assert_eq!(kv(40960) as f64 / GIB, 5.625);
    // All 32 heads instead of the 8 that have keys and values: four times as much, and wrong.
    let all = TransformerConfig { num_key_value_heads: None, ..config.clone() };
    assert_eq!(kv_bytes(&all, 1, 1, NumberKind::F16).unwrap(), 4 * kv(1));
}

/// A GPT of the papers: no shared heads, a MLP of 4 C, biases, dropout.
fn gpt(layers: usize, hidden: usize, heads: usize) -> TransformerConfig {
    TransformerConfig {
        hidden_size: hidden,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        intermediate_size: 4 * hidden,
        norm: NormConfig::Layer,
        positions: PositionConfig::Learned,
        mlp: MlpConfig::GeluTanh,
        ..TransformerConfig::email(51200, 2048)
    }
}

/// GiB kept, and GiB of the one layer that is computed again. Log-sums of tiled attention, which
/// the papers leave out, are taken off.
fn activations(config: &TransformerConfig, how: (Attention, Recompute), length: u64) -> (f64, f64) {
    let (attention, recompute) = how;
    let ask = Activations { sequences: 1, length, attention, recompute, dropout: true };
    let (kept, live) = ask.bytes(config).unwrap();
    let sums = 4 * config.num_attention_heads as u64 * length;
    let layers = config.num_hidden_layers as u64;
    let (kept_sums, live_sums) = match recompute {
        Recompute::Layer => (0, sums),
        _ => (sums * layers, 0),
    };
    ((kept - kept_sums) as f64 / GIB, (live - live_sums) as f64 / GIB)
}

#[test]
fn t11_thirty_four_bytes() {
    for (length, published) in [(1024, 4.25), (4096, 17.0), (16384, 68.0)] {
        near(tools::thirty_four(4096, 32, length) as f64 / GIB, published, 2);
    }
}

#[test]
fn t12_activations_of_gpt3() {
    let config = gpt(96, 12288, 96);
    let of = |attention, recompute| activations(&config, (attention, recompute), 2048);
    near(of(Attention::Stored, Recompute::None).0, 256.5, 1);
    near(of(Attention::Stored, Recompute::Attention).0, 76.5, 1);
    let (kept, live) = of(Attention::Stored, Recompute::Layer);
    near(kept, 4.5, 1);
    near(live, 2.67, 2);
    // Selective recomputation takes away 70 % (80 of 114), as the paper says.
    let share = 1.0 - 76.5 / 256.5;
    near(share, 0.70, 2);
}

#[test]
fn t13_activations_of_the_papers_other_models() {
    for (shape, none, tiled, full) in [
        ((48, 6144, 64), 79.1, 19.1, 1.13),
        ((105, 20480, 128), 402.0, 139.5, 8.2),
        ((128, 25600, 160), 612.5, 212.5, 12.5),
    ] {
        let config = gpt(shape.0, shape.1, shape.2);
        let of = |attention, recompute| activations(&config, (attention, recompute), 2048).0;
        near(of(Attention::Stored, Recompute::None), none, 1);
        near(of(Attention::Tiled, Recompute::None), tiled, 1);
        let places = if full < 2.0 { 2 } else { 1 };
        near(of(Attention::Tiled, Recompute::Layer), full, places);
    }
}

#[test]
fn t14_activations_of_qwen3_8b() {
    let model = named("qwen3-8b");
    let config = model.transformer().unwrap();
    assert_eq!(plan::layer_bytes_per_token(config, false).unwrap(), 137_344);
    let llama = named("llama-3-8b");
    let other = llama.transformer().unwrap();
    assert_eq!(plan::layer_bytes_per_token(other, false).unwrap(), 139_392);
    near(tools::thirty_four(4096, 36, 4096) as f64 / GIB, 19.125, 3);
    let ask = |recompute| Activations {
        sequences: 1,
        length: 4096,
        attention: Attention::Tiled,
        recompute,
        dropout: false,
    };
    near(ask(Recompute::None).bytes(config).unwrap().0 as f64 / GIB, 18.86, 2);
    near(ask(Recompute::Layer).bytes(config).unwrap().0 as f64 / GIB, 1.125, 3);
}

#[test]
fn t15_logits() {
    let logits = |name: &str, batch, length| {
        let ask = TrainAsk { batch, length, logits: Logits::Whole, ..TrainAsk::default() };
        train(&named(name), &ask).unwrap().balance.terms.of("logits") as f64
    };
    near(logits("qwen3-8b", 1, 2048) / GIB, 1.159, 3);
    near(logits("qwen3-8b", 1, 4096) / GIB, 2.318, 3);
    near(logits("gemma-2-2b", 1, 8192) / GIB, 7.81, 2);
    assert_eq!(logits("email-transformer", 32, 64) / 1_048_576.0, 31.25);
}

#[test]
fn t16_units_of_qwen3_8b() {
    let units = named("qwen3-8b").units().unwrap();
    assert_eq!(units.layer, 192_946_432);
    assert_eq!((units.embedding, units.projection), (622_329_856, 622_329_856));
    near(2.0 * units.layer as f64 / GIB, 0.359, 3);
    near(4.0 * units.layer as f64 / GIB, 0.719, 3);
    near(2.0 * units.projection as f64 / GIB, 1.159, 3);
    near(4.0 * units.projection as f64 / GIB, 2.318, 3);
    // The output projection, not a layer, sets the buffers of stage 3.
    let layout = Layout { stage: 3, ranks: 8 };
    let plan = train(&named("qwen3-8b"), &TrainAsk { layout, ..TrainAsk::default() }).unwrap();
    near(plan.balance.terms.of("communication") as f64 / GIB, 2.318 + 1.159 + 0.359, 2);
}

#[test]
fn t17_adapters() {
    for (name, published) in [
        ("qwen3-8b", 43_646_976),
        ("qwen3-4b", 33_030_144),
        ("llama-3.1-8b", 41_943_040),
        ("qwen3-14b", 64_225_280),
    ] {
        let model = named(name);
        let adapters = lora_parameters(model.transformer().unwrap(), 16).unwrap();
        assert_eq!(adapters, published, "{name}");
    }
    assert_eq!(8_190_735_360u64 + 43_646_976, 8_234_382_336);
    let plan = train(&named("qwen3-8b"), &TrainAsk { lora: Some(16), ..TrainAsk::default() });
    let terms = plan.unwrap().balance.terms;
    let states: u64 =
        ["weights", "master weights", "gradients", "optimizer"].iter().map(|t| terms.of(t)).sum();
    near(states as f64 / GIB, 15.256 + 0.73, 2);
}

#[test]
fn t18_eleuthers_wrong_but_known_count() {
    let defaults = Eleuther {
        layers: 44,
        hidden: 6144,
        vocab: 51200,
        length: 2048,
        kv_ratio: 1.0,
        expansion: 4.0,
        matrices: 2,
    };
    assert_eq!(defaults.parameters(), 20_575_236_096);
    // Its K/V has no factor 2 and all heads: twice too much for Qwen3-8B.
    let its = Eleuther { layers: 36, hidden: 4096, ..defaults };
    assert_eq!(its.kv_bytes_per_token(2), 2 * 147_456);
}

#[test]
fn t19_budgets_asked_backwards() {
    let budget = parse_bytes("24GiB").unwrap();
    near(budget as f64 / 18.0 / 1e9, 1.43, 2);
    let fits = |name: &str| {
        let ask = TrainAsk { budget: Some(budget), ..TrainAsk::default() };
        train(&named(name), &ask).unwrap().balance.fits
    };
    assert_eq!(fits("qwen3-0.6b"), Some(true));
    assert_eq!(fits("qwen3-1.7b"), Some(false));
}

#[test]
fn t20_a_4b_model_takes_about_85_gb() {
    let ask = TrainAsk { batch: 16, length: 512, ..TrainAsk::default() };
    let plan = train(&named("qwen3-4b"), &ask).unwrap();
    let states = 18.0 * 4_022_468_096.0 / GB;
    near(states, 72.4, 1);
    let total = plan.balance.total_bytes as f64 / GB;
    assert!((80.0..120.0).contains(&total), "{total}");
}

#[test]
fn qwen3_8b_on_hosts_of_24_gib() {
    let budget = 24 << 30;
    let model = named("qwen3-8b");
    let ask = TrainAsk { recompute: Recompute::Layer, length: 1024, ..TrainAsk::default() };
    // States alone leave room from stage 3 on 8 hosts on.
    assert_eq!(fewest_ranks(&ask, budget, &|ask| plan::train(&model, ask)).unwrap(), Some((8, 3)));
    let on = |stage, ranks| {
        let ask = TrainAsk { layout: Layout { stage, ranks }, ..ask };
        train(&model, &ask).unwrap().balance.total_bytes <= budget
    };
    assert!(!on(2, 16) && on(2, 32));
    // Stage 1 never: six bytes a parameter stay whole.
    assert!(!on(1, 1 << 20));
    let adapters = TrainAsk { lora: Some(16), length: 2048, ..ask };
    let total = train(&model, &adapters).unwrap().balance.total_bytes as f64 / GIB;
    assert!((16.5..19.5).contains(&total), "{total}");
}

#[test]
fn communication_of_qwen3_8b() {
    let all = 8_190_735_360;
    let bytes = StateBytes::new(Precision::Bf16, plan::Optimizer::Adamw);
    let sent = |stage, ranks, k| {
        let layout = Layout { stage, ranks };
        plan::communication_bytes((all, all), bytes, layout, k).unwrap() as f64 / GIB
    };
    for (ranks, row) in
        [(2, [30.51, 22.88, 30.51]), (4, [45.77, 34.33, 45.77]), (8, [53.40, 40.05, 53.40])]
    {
        near(sent(0, ranks, 1), row[0], 2);
        near(sent(1, ranks, 1), row[1], 2);
        near(sent(2, ranks, 1), row[1], 2);
        near(sent(3, ranks, 1), row[2], 2);
    }
    for (ranks, published) in [(2, 129.7), (4, 194.5), (8, 226.9)] {
        near(sent(2, ranks, 8), published, 1);
    }
    assert_eq!(sent(3, 1, 1), 0.0);
}

#[test]
fn twenty_four_mebibytes() {
    // N = 12 layers, B = 1, L = 1024, d = 512, b = 2.
    let config = gpt(12, 512, 8);
    assert_eq!(kv_bytes(&config, 1024, 1, NumberKind::F16).unwrap(), 24 << 20);
}

#[test]
fn kv_bytes_as_reported_from_the_field() {
    let qwen = named("qwen3-4b");
    let config = qwen.transformer().unwrap();
    let kv = |c: &TransformerConfig, context| kv_bytes(c, context, 1, NumberKind::F16).unwrap();
    assert_eq!(kv(config, 1), 147_456);
    assert_eq!(kv(config, 40_960), 6_039_797_760);
    assert_eq!(plan::both(kv(config, 40_960)), "6.040 GB (5.625 GiB)");
    // What was met there: a head size guessed from the width, and query heads for K/V heads.
    let guessed = TransformerConfig { head_dim: None, ..config.clone() };
    assert_eq!(kv(&guessed, 1), 92_160);
    let heads = TransformerConfig { num_key_value_heads: None, ..config.clone() };
    assert_eq!(kv(&heads, 1), 589_824);
}

#[test]
fn windows_as_reported_from_the_field() {
    let config = TransformerConfig {
        num_hidden_layers: 36,
        hidden_size: 2880,
        num_attention_heads: 64,
        num_key_value_heads: Some(8),
        head_dim: Some(64),
        sliding_window: Some(models::SlidingWindow {
            tokens: 128,
            layers: (0..36).step_by(2).collect(),
            rope_theta: None,
        }),
        ..gpt(36, 2880, 64)
    };
    let kv = |context| kv_bytes(&config, context, 1, NumberKind::Bf16).unwrap();
    assert_eq!(kv(1), 73_728);
    assert_eq!(kv(128), 128 * 73_728);
    assert_eq!(kv(129), 18 * 2048 * 129 + 18 * 2048 * 128);
    assert_eq!(kv(131_072), 4_836_556_800);
    assert_eq!(kv(131_072) + 18 * 2048 * (131_072 - 128), 9_663_676_416);
}

#[test]
fn what_overflows_is_refused() {
    let model = named("qwen3-8b");
    let config = model.transformer().unwrap();
    let error = kv_bytes(config, u64::MAX, 1, NumberKind::F16).unwrap_err().to_string();
    assert!(error.contains("K/V cache overflows 64 bits"), "{error}");
    let ask = TrainAsk { batch: u64::MAX / 2, length: 4, ..TrainAsk::default() };
    assert!(train(&model, &ask).unwrap_err().to_string().contains("overflows 64 bits"));
    let own = named("email-transformer");
    let ask = TrainAsk { precision: Precision::F32, batch: 1 << 40, ..TrainAsk::default() };
    let error = plan::running::train(&own, &ask, plan::running::Runtime::default()).unwrap_err();
    assert!(error.to_string().contains("2^30"), "{error}");
}

#[test]
fn the_own_models_are_counted_by_the_lists_that_allocate() {
    assert_eq!(named("email-transformer").parameters().unwrap(), 620_192);
    assert_eq!(named("email-rnn").parameters().unwrap(), 659_552);
    let ask = TrainAsk {
        precision: Precision::F32,
        batch: 64,
        length: 64,
        threads: 2,
        ..TrainAsk::default()
    };
    let mixed = TrainAsk { precision: Precision::Bf16, ..ask };
    plan::running::trains(&named("email-transformer"), &mixed).unwrap();
    let error = plan::running::trains(&named("email-rnn"), &mixed).unwrap_err().to_string();
    assert!(error.contains("email-rnn") && error.contains("bf16"), "{error}");
    for name in ["email-transformer", "email-rnn"] {
        let model = named(name);
        plan::running::trains(&model, &ask).unwrap();
        let runtime = plan::running::Runtime { bytes: 1000 };
        let own = plan::running::train(&model, &ask, runtime).unwrap();
        assert_eq!(own.balance.terms.of("runtime"), 1000);
        let all = model.parameters().unwrap();
        // Padding between parameters is part of the list.
        let optimizer = own.balance.terms.of("optimizer");
        assert!((8 * all..8 * all + 8 * 4096).contains(&optimizer), "{optimizer}");
        assert_eq!(own.balance.total_bytes, own.balance.terms.total().unwrap());
        assert!(matches!(model.config, ModelConfig::Transformer(_) | ModelConfig::Rnn(_)));
    }

    // Muon keeps one buffer for the layers' matrices, adapters learn beside frozen weights.
    let model = named("email-transformer");
    let runtime = plan::running::Runtime { bytes: 0 };
    let of = |ask: TrainAsk| plan::running::train(&model, &ask, runtime).unwrap();
    let whole = of(ask);
    let muon = of(TrainAsk { optimizer: Optimizer::Muon, ..ask });
    let hidden = 2 * (4 * 64 * 64 + 2 * 64 * 256);
    assert_eq!(
        whole.balance.terms.of("optimizer") - muon.balance.terms.of("optimizer"),
        4 * hidden
    );
    let lora = of(TrainAsk { lora: Some(8), ..ask });
    let ModelConfig::Transformer(config) = &model.config else { panic!() };
    let adapters = plan::lora_parameters(config, 8).unwrap();
    assert_eq!(lora.balance.terms.of("gradients"), 4 * adapters);
    assert_eq!(lora.balance.terms.of("optimizer"), 8 * adapters);
    assert_eq!(lora.balance.terms.of("weights") - whole.balance.terms.of("weights"), 4 * adapters);

    // In 16 bits: their weights, FP32 beside them; Muon as well, adapters not.
    let all = model.parameters().unwrap();
    let halves = of(mixed);
    for (term, bytes) in [("weights", 2), ("master weights", 4), ("gradients", 4), ("optimizer", 8)]
    {
        let found = halves.balance.terms.of(term);
        assert!((bytes * all..bytes * (all + 4096)).contains(&found), "{term}: {found}");
    }
    let both = TrainAsk { optimizer: Optimizer::Muon, ..mixed };
    plan::running::trains(&model, &both).unwrap();
    assert_eq!(
        halves.balance.terms.of("optimizer") - of(both).balance.terms.of("optimizer"),
        4 * hidden
    );
    plan::running::trains(&model, &TrainAsk { lora: Some(8), ..ask }).unwrap();
    plan::running::trains(&model, &TrainAsk { lora: Some(8), ..mixed }).unwrap_err();

    // Over ranks, by the lists of each: what is shared out, the last rank with no more than the first.
    let runtime = plan::running::Runtime { bytes: 1 << 20 };
    for (stage, shared) in [(1, ["optimizer"].as_slice()), (2, &["optimizer", "gradients"])] {
        let layout = plan::Layout { stage, ranks: 4 };
        let ask = TrainAsk { layout, ..ask };
        let ranks = plan::running::ranks(&model, &ask, runtime).unwrap();
        let first = plan::running::train(&model, &ask, runtime).unwrap();
        assert_eq!((ranks.len(), &ranks[0].terms), (4, &first.balance.terms));
        assert!(ranks[3].total_bytes <= ranks[0].total_bytes);
        for term in shared {
            let all: u64 = ranks.iter().map(|rank| rank.terms.of(term)).sum();
            let alone = whole.balance.terms.of(term);
            assert!((0.99..1.02).contains(&(all as f64 / alone as f64)), "{term}: {all} {alone}");
        }
        assert!(first.balance.terms.of("communication") > 0);
        let sent = first.balance.communication_bytes_per_step.unwrap();
        assert_eq!(sent, 8 * model.parameters().unwrap() * 3 / 4);
    }
    // Muon's matrices are shared out whole.
    let layout = plan::Layout { stage: 2, ranks: 4 };
    let muon = TrainAsk { optimizer: Optimizer::Muon, ..ask };
    let alone = of(muon).balance.terms.of("optimizer");
    let shared = TrainAsk { layout, ..muon };
    plan::running::trains(&model, &shared).unwrap();
    let ranks = plan::running::ranks(&model, &shared, runtime).unwrap();
    let all: u64 = ranks.iter().map(|rank| rank.terms.of("optimizer")).sum();
    assert!((0.99..1.02).contains(&(all as f64 / alone as f64)), "{all} {alone}");
}

/// Totals as the published files have them; what a token goes through as the names say.
#[test]
fn mixtures_have_all_their_experts() {
    for (name, parameters, active_billions, kv) in [
        ("mixtral-8x7b", 46_702_792_704u64, 12.9, 131_072),
        ("qwen1.5-moe-a2.7b", 14_315_784_192, 2.7, 196_608),
        ("qwen3-30b-a3b", 30_532_122_624, 3.3, 98_304),
        ("qwen3-235b-a22b", 235_093_634_560, 22.2, 192_512),
    ] {
        let model = Architecture::open(name).unwrap();
        assert_eq!(model.parameters().unwrap(), parameters, "{name}");
        let active = model.active_parameters().unwrap() as f64 / 1e9;
        assert!((active / active_billions - 1.0).abs() < 0.02, "{name}: {active}");
        let config = model.transformer().unwrap();
        assert_eq!(plan::kv_bytes(config, 1, 1, plan::NumberKind::Bf16).unwrap(), kv, "{name}");
    }
    // Alone a token reads its own experts; a machine that reads is then quicker than with all.
    let model = Architecture::open("mixtral-8x7b").unwrap();
    let bytes = 2 * model.parameters().unwrap();
    let machine = plan::Machine::open("h200-sxm").unwrap();
    let ask = |requests| plan::ServeAsk {
        context: 16,
        requests,
        weights: plan::NumberKind::Bf16,
        kv: plan::NumberKind::Bf16,
        step_tokens: 256,
        threads: 1,
        ..plan::ServeAsk::default()
    };
    let one = plan::serve_times(&model, &ask(1), bytes, &machine).unwrap().token_s;
    let many = plan::serve_times(&model, &ask(64), bytes, &machine).unwrap().token_s;
    assert!((one * 4800e9 / (2.0 * 12.75e9) - 1.0).abs() < 0.03, "{one}");
    assert!((many * 4800e9 / (2.0 * 46.57e9) - 1.0).abs() < 0.03, "{many}");
    let train = plan::train(&model, &plan::TrainAsk::default()).unwrap();
    assert_eq!(train.balance.terms.of("master weights"), 4 * 46_702_792_704);
    for ask in [
        plan::TrainAsk { lora: Some(8), ..plan::TrainAsk::default() },
        plan::TrainAsk { optimizer: plan::Optimizer::Muon, ..plan::TrainAsk::default() },
    ] {
        let error = plan::train(&model, &ask).unwrap_err().to_string();
        assert!(error.contains("mixture of experts"), "{error}");
    }
}
