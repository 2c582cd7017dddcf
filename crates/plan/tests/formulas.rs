//! Formulas against the lists that allocate, against each other, and on any numbers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use models::{Cache, ModelConfig, Recompute, TransformerConfig};
use plan::running::{self, Runtime};
use plan::{
    Architecture, Attention, Error, Layout, NumberKind, ServeAsk, TrainAsk, kv_bytes, most,
    parse_bytes, serve, train,
};
use proptest::prelude::*;
use std::path::Path;

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../families/tests/fixtures")
}

#[test]
fn a_config_alone_counts_as_the_weights_beside_it() {
    let mut met = 0;
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("config.json").is_file() {
            continue;
        }
        let weights = Architecture::open(folder.to_str().unwrap()).unwrap();
        let alone = Architecture::open(folder.join("config.json").to_str().unwrap()).unwrap();
        assert!(weights.runs_here && !alone.runs_here, "{}", folder.display());
        assert_eq!(
            alone.parameters().unwrap(),
            weights.parameters().unwrap(),
            "{}",
            folder.display()
        );
        let kv = |a: &Architecture, context| {
            kv_bytes(a.transformer().unwrap(), context, 1, NumberKind::F16).unwrap()
        };
        for context in [1, 7, 100, 4096] {
            assert_eq!(kv(&alone, context), kv(&weights, context), "{}", folder.display());
        }
        met += 1;
    }
    assert!(met >= 7, "{met} fixtures");
}

#[test]
fn the_engines_lists_are_the_terms() {
    let model = Architecture::open(fixtures().join("llama").to_str().unwrap()).unwrap();
    let ask = ServeAsk {
        context: 100,
        requests: 3,
        weights: NumberKind::F32,
        kv: NumberKind::F32,
        step_tokens: 64,
        threads: 2,
        budget: Some(1),
        ..ServeAsk::default()
    };
    let plan = running::serve(&model, &ask, Runtime { bytes: 5 }, None).unwrap();
    // Pages of 16 tokens: seven a sequence.
    let kv = kv_bytes(model.transformer().unwrap(), 112, 3, NumberKind::F32).unwrap();
    assert_eq!((plan.balance.terms.of("K/V cache"), plan.balance.terms.of("runtime")), (kv, 5));
    assert_eq!(plan.balance.fits, Some(false));
    assert!(plan.balance.total_bytes > 4 * model.parameters().unwrap());
}

fn config() -> impl Strategy<Value = TransformerConfig> {
    let heads = (1usize..5, 1usize..5);
    (1usize..6, heads, 1usize..9, 1usize..5, 2usize..500, any::<(bool, bool)>()).prop_map(
        |(layers, (groups, shared), half, inner, vocab, (tied, norms))| TransformerConfig {
            num_hidden_layers: layers,
            num_attention_heads: groups * shared,
            num_key_value_heads: Some(groups),
            head_dim: Some(2 * half),
            hidden_size: 8 * inner,
            intermediate_size: 16 * inner,
            tie_word_embeddings: tied,
            qk_norm: norms,
            ..TransformerConfig::email(vocab, 64)
        },
    )
}

fn of(config: TransformerConfig) -> Architecture {
    Architecture::of("any", ModelConfig::Transformer(config), false).unwrap()
}

fn ask() -> impl Strategy<Value = TrainAsk> {
    let how = (0usize..3, any::<bool>(), 0u8..4, 1u64..9, prop::option::of(1u64..8));
    (1u64..5, 1u64..65, 1u64..4, how).prop_map(|(batch, length, accumulate, how)| {
        let (recompute, stored, stage, ranks, lora) = how;
        TrainAsk {
            batch,
            length,
            accumulate,
            recompute: Recompute::ALL[recompute],
            attention: if stored { Attention::Stored } else { Attention::Tiled },
            layout: Layout { stage, ranks },
            lora,
            ..TrainAsk::default()
        }
    })
}

proptest! {
    #[test]
    fn kv_is_what_a_cache_allocates(config in config(), context in 1u64..200) {
        let list = Cache::plan(
            &ModelConfig::Transformer(config.clone()),
            context as usize,
            context as usize,
        );
        // Keys stand together by sixteens.
        let context = context.next_multiple_of(16);
        prop_assert_eq!(kv_bytes(&config, context, 1, NumberKind::F32).unwrap(), list.total());
    }

    #[test]
    fn more_never_takes_less(config in config(), ask in ask()) {
        let model = of(config);
        let total = |ask: TrainAsk| train(&model, &ask).unwrap().balance.total_bytes;
        let now = total(ask);
        let wider = total(TrainAsk { batch: ask.batch + 1, ..ask });
        let longer = total(TrainAsk { length: ask.length + 1, ..ask });
        prop_assert!(wider >= now && longer >= now);
        let states = |ask: TrainAsk| {
            let terms = train(&model, &ask).unwrap().balance.terms;
            ["weights", "master weights", "gradients", "optimizer"].iter().map(|t| terms.of(t)).sum::<u64>()
        };
        let layout = Layout { ranks: ask.layout.ranks + 1, ..ask.layout };
        let shared = states(TrainAsk { layout, ..ask });
        prop_assert!(shared <= states(ask));
        for stage in 1..=3 {
            let at = |stage| states(TrainAsk { layout: Layout { stage, ..ask.layout }, ..ask });
            prop_assert!(at(stage) <= at(stage - 1));
        }
    }

    #[test]
    fn parts_add_up_and_levers_hold(config in config(), ask in ask()) {
        let model = of(config);
        let plan = train(&model, &ask).unwrap();
        prop_assert_eq!(plan.balance.terms.0.iter().map(|t| t.bytes).sum::<u64>(), plan.balance.total_bytes);
        prop_assert_eq!(plan.balance.ranks.len() as u64, ask.layout.ranks);
        for lever in &plan.balance.levers {
            prop_assert_eq!(plan.balance.total_bytes - lever.saves_bytes.unwrap(), lever.total_bytes.unwrap());
        }
        prop_assert!(plan.balance.levers.windows(2).all(|w| w[0].saves_bytes >= w[1].saves_bytes));
    }

    #[test]
    fn what_is_found_backwards_is_the_edge(limit in 1u64..5000, edge in 0u64..6000) {
        let found = most(limit, edge, Ok::<u64, Error>).unwrap();
        let expected = limit.min(edge);
        prop_assert_eq!(found, (expected > 0).then_some(expected));
    }

    #[test]
    fn any_text_is_a_size_or_an_error(text in "\\PC{0,12}") {
        if let Ok(bytes) = parse_bytes(&text) {
            prop_assert!(bytes > 0);
            prop_assert!(text.contains(['B', 'b']));
        }
    }

    #[test]
    fn any_context_is_served_or_refused(config in config(), context in any::<u64>(), requests in any::<u64>()) {
        let model = of(config);
        let ask = ServeAsk {
            context,
            requests,
            weights: NumberKind::Bf16,
            kv: NumberKind::Q8,
            step_tokens: 8,
            threads: 1,
            ..ServeAsk::default()
        };
        if let Ok(plan) = serve(&model, &ask) {
            prop_assert!(plan.balance.terms.of("K/V cache") as f64 >= context as f64);
        }
        // The engine's lists are not reached by what they could not hold.
        if context > 1 << 40 {
            let many = ServeAsk { requests: 1 << 19, ..ask };
            let refused = running::serve_plan(&model, &many).is_err();
            prop_assert!(refused || context < 1 << 44);
        }
    }
}
