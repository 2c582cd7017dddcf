//! Any `config.json`: what planning needs of it, more leniently than what running needs.
//!
//! Families that this program runs are read by their keys; others are counted as the family that
//! they are built like, and a note says so. Not here: anything that changes no byte (bases of
//! rotary positions, soft caps).

use crate::{Architecture, Error, Experts};
use models::{
    MlpConfig, ModelConfig, NormConfig, PositionConfig, SlidingWindow, TransformerConfig,
};
use serde_json::Value;
use std::path::Path;

/// Families whose keys are known.
const KNOWN: [&str; 12] = [
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
];
/// Keys that say that there are experts.
const EXPERTS: [&str; 3] = ["num_local_experts", "num_experts", "n_routed_experts"];

struct Reader<'a> {
    path: &'a Path,
    family: String,
    value: &'a Value,
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Architecture, Error> {
    let text = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let content = |reason: String| Error::Content { path: path.to_owned(), reason };
    let value: Value = serde_json::from_slice(&text).map_err(|e| content(e.to_string()))?;
    if !value.is_object() {
        return Err(content("not an object; expected the keys of a model's config.json".into()));
    }
    // Models of several senses keep the text's numbers apart.
    let inner = value.get("text_config").filter(|v| v.is_object()).unwrap_or(&value);
    let name = value.get("_name_or_path").and_then(Value::as_str).filter(|n| !n.is_empty());
    let name = name.map_or_else(|| path.display().to_string(), str::to_owned);
    if inner.get("kind").is_some() {
        let config: ModelConfig =
            serde_json::from_value(inner.clone()).map_err(|e| content(e.to_string()))?;
        return Architecture::of(&name, config, true);
    }
    let family = inner.get("model_type").or_else(|| value.get("model_type"));
    let family = family.and_then(Value::as_str).unwrap_or("unnamed").to_owned();
    let reader = Reader { path, family, value: inner };
    let experts = reader.experts()?;
    let config = reader.config(experts)?;
    let architecture = Architecture::of(&name, ModelConfig::Transformer(config), false)?;
    let mut architecture = architecture.with_experts(experts)?;
    if !KNOWN.contains(&reader.family.as_str()) {
        architecture.notes.push(format!(
            "family {} is not known here: counted as a llama-like decoder by its keys",
            reader.family
        ));
    }
    Ok(architecture)
}

impl Reader<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|v| !v.is_null())
    }

    fn wrong(&self, key: &str, found: impl ToString, expected: &str) -> Error {
        Error::Key {
            path: self.path.to_owned(),
            key: key.to_owned(),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }

    fn size(&self, keys: &[&str]) -> Result<Option<usize>, Error> {
        let Some((key, value)) = keys.iter().find_map(|&key| Some((key, self.get(key)?))) else {
            return Ok(None);
        };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(key, value, "a whole number, at least 0")),
        }
    }

    fn need(&self, keys: &[&'static str]) -> Result<usize, Error> {
        let key = keys.first().copied().unwrap_or_default();
        let family = self.family.clone();
        let missing = || Error::MissingKey { path: self.path.to_owned(), key, family };
        self.size(keys)?.ok_or_else(missing)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => Err(self.wrong(key, value, "true or false")),
        }
    }

    fn is(&self, families: &[&str]) -> bool {
        families.contains(&self.family.as_str())
    }

    fn config(&self, experts: Option<Experts>) -> Result<TransformerConfig, Error> {
        if self.is(&["gpt2"]) {
            return self.gpt2();
        }
        let heads = self.need(&["num_attention_heads", "n_head"])?;
        let hidden = self.need(&["hidden_size", "n_embd", "d_model"])?;
        let layers = self.need(&["num_hidden_layers", "n_layer", "num_layers"])?;
        let head_dim = match self.size(&["head_dim"])? {
            Some(d) => d,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let expected = format!("a divisor of hidden_size {hidden}, or head_dim beside it");
                return Err(self.wrong("num_attention_heads", heads, &expected));
            }
        };
        let gemma = self.is(&["gemma", "gemma2", "gemma3", "gemma3_text"]);
        let tied = self.flag("tie_word_embeddings")?.unwrap_or(gemma);
        let window = self.window(layers)?;
        Ok(TransformerConfig {
            hidden_size: hidden,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: self.size(&["num_key_value_heads"])?,
            head_dim: Some(head_dim),
            intermediate_size: match experts {
                Some(experts) => experts.active_inner() as usize,
                None => self.need(&["intermediate_size", "ffn_dim", "n_inner"])?,
            },
            norm: NormConfig::Rms,
            positions: PositionConfig::Rotary,
            mlp: if gemma { MlpConfig::GegluTanh } else { MlpConfig::Swiglu },
            bias: false,
            qkv_bias: Some(
                self.is(&["qwen2", "qwen2_moe"]) || self.flag("attention_bias")?.unwrap_or(false),
            ),
            qk_norm: self.is(&["qwen3", "qwen3_moe", "gemma3", "gemma3_text"]),
            post_norm: self.is(&["gemma2", "gemma3", "gemma3_text"]),
            tie_word_embeddings: tied,
            sliding_window: window,
            ..TransformerConfig::email(
                self.need(&["vocab_size"])?,
                self.size(&["max_position_embeddings"])?.unwrap_or(4096),
            )
        })
    }

    fn gpt2(&self) -> Result<TransformerConfig, Error> {
        let hidden = self.need(&["n_embd", "hidden_size"])?;
        Ok(TransformerConfig {
            hidden_size: hidden,
            num_hidden_layers: self.need(&["n_layer", "num_hidden_layers"])?,
            num_attention_heads: self.need(&["n_head", "num_attention_heads"])?,
            intermediate_size: self.size(&["n_inner"])?.unwrap_or(hidden.saturating_mul(4)),
            norm: NormConfig::Layer,
            positions: PositionConfig::Learned,
            mlp: MlpConfig::GeluTanh,
            bias: true,
            head_bias: Some(false),
            tie_word_embeddings: self.flag("tie_word_embeddings")?.unwrap_or(true),
            ..TransformerConfig::email(
                self.need(&["vocab_size"])?,
                self.need(&["n_positions", "max_position_embeddings"])?,
            )
        })
    }

    /// The experts of a mixture whose layers are known; others are refused by name, for a count of
    /// theirs would be wrong.
    fn experts(&self) -> Result<Option<Experts>, Error> {
        let some = |key: &&str| self.get(key).is_some_and(|v| v.as_u64() != Some(0));
        let Some(key) = EXPERTS.into_iter().find(some) else { return Ok(None) };
        let value = self.get(key).map(Value::to_string).unwrap_or_default();
        let refuse = |why: &str| {
            let expected =
                format!("no experts, or those of mixtral, qwen2_moe or qwen3_moe: {why}");
            Err(self.wrong(key, &value, &expected))
        };
        if self.get("kv_lora_rank").is_some() {
            return refuse("keys and values in a latent space are not counted");
        }
        if !self.is(&["mixtral", "qwen2_moe", "qwen3_moe"]) {
            return refuse(&format!("what a layer of family {} has is not known", self.family));
        }
        let dense = self.get("mlp_only_layers").and_then(Value::as_array).map_or(0, Vec::len);
        if dense > 0 || self.size(&["decoder_sparse_step"])?.unwrap_or(1) != 1 {
            return refuse("layers of both kinds in one model are not counted");
        }
        let inner =
            if self.is(&["mixtral"]) { "intermediate_size" } else { "moe_intermediate_size" };
        let shared = match self.is(&["qwen2_moe"]) {
            true => self.need(&["shared_expert_intermediate_size"])?,
            false => 0,
        };
        let (count, active) = (self.need(&[key])?, self.need(&["num_experts_per_tok"])?);
        if active == 0 || active > count {
            let expected = format!("1 to {count}, the experts of a layer");
            return Err(self.wrong("num_experts_per_tok", active, &expected));
        }
        let all = [count, active, self.need(&[inner])?, shared].map(|n| n as u64);
        let [count, active, inner, shared] = all;
        Ok(Some(Experts { count, active, inner, shared }))
    }

    /// Layers that see only near positions.
    fn window(&self, layers: usize) -> Result<Option<SlidingWindow>, Error> {
        let Some(tokens) = self.size(&["sliding_window"])?.filter(|&tokens| tokens > 0) else {
            return Ok(None);
        };
        let near: Vec<usize> = if let Some(kinds) = self.get("layer_types") {
            let kinds = kinds.as_array().map_or(&[][..], Vec::as_slice);
            if kinds.len() != layers {
                let expected = format!("{layers} entries, one a layer");
                return Err(self.wrong(
                    "layer_types",
                    format!("{} entries", kinds.len()),
                    &expected,
                ));
            }
            (0..layers).filter(|&i| kinds[i] == "sliding_attention").collect()
        } else if self.is(&["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"]) {
            let from = self.size(&["max_window_layers"])?.unwrap_or(layers).min(layers);
            let on = self.flag("use_sliding_window")?.unwrap_or(false);
            (if on { from } else { layers }..layers).collect()
        } else if self.is(&["gemma2"]) {
            (0..layers).step_by(2).collect()
        } else if self.is(&["gemma3", "gemma3_text"]) {
            let pattern = self.size(&["sliding_window_pattern"])?.unwrap_or(6).max(1);
            (0..layers).filter(|i| !(i + 1).is_multiple_of(pattern)).collect()
        } else {
            (0..layers).collect()
        };
        let window = SlidingWindow { tokens, layers: near, rope_theta: None };
        Ok((!window.layers.is_empty()).then_some(window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Architecture, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    const QWEN3_4B: &str = r#"{"model_type":"qwen3","hidden_size":2560,"num_hidden_layers":36,
        "num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":9728,
        "vocab_size":151936,"tie_word_embeddings":true,"max_position_embeddings":40960}"#;

    const MIXTRAL: &str = r#"{"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000,
        "num_local_experts":8,"num_experts_per_tok":2,"max_position_embeddings":32768}"#;

    #[test]
    fn a_mixture_is_counted_as_the_model_of_the_name() {
        let own = of(MIXTRAL).unwrap();
        assert_eq!(own.parameters().unwrap(), 46_702_792_704);
        assert_eq!(own.experts, Architecture::open("mixtral-8x7b").unwrap().experts);
    }

    #[test]
    fn a_configuration_is_counted_as_the_model_of_the_name() {
        assert_eq!(of(QWEN3_4B).unwrap().parameters().unwrap(), 4_022_468_096);
    }

    #[test]
    fn no_kv_heads_are_as_many_as_heads_and_head_size_follows() {
        let null = QWEN3_4B.replace("\"num_key_value_heads\":8", "\"num_key_value_heads\":null");
        assert_eq!(of(&null).unwrap().transformer().unwrap().kv_heads(), 32);
        let without = QWEN3_4B.replace("\"head_dim\":128,", "");
        assert_eq!(of(&without).unwrap().transformer().unwrap().head_size(), 80);
        let uneven = without.replace("2560", "2561");
        let error = of(&uneven).unwrap_err().to_string();
        assert!(error.contains("num_attention_heads is 32") && error.contains("2561"), "{error}");
    }

    #[test]
    fn what_lacks_or_cannot_be_is_named() {
        for (text, word) in [
            ("[1]", "not an object"),
            ("{", "EOF"),
            ("{}", "key num_attention_heads is missing"),
            (&QWEN3_4B.replace("\"hidden_size\":2560,", ""), "key hidden_size is missing"),
            (&QWEN3_4B.replace("layers\":36", "layers\":-36"), "num_hidden_layers is -36"),
            (&QWEN3_4B.replace("layers\":36", "layers\":\"36\""), "num_hidden_layers is \"36\""),
            (&QWEN3_4B.replace("layers\":36", "layers\":99999"), "num_hidden_layers is 99999"),
            (&QWEN3_4B.replace("{", "{\"num_experts\":64,"), "family qwen3 has is not known"),
            (
                &QWEN3_4B.replace("{", "{\"n_routed_experts\":64,\"kv_lora_rank\":512,"),
                "n_routed_experts is 64, expected no experts",
            ),
            (&MIXTRAL.replace("tok\":2", "tok\":9"), "num_experts_per_tok is 9"),
            (&MIXTRAL.replace("{", "{\"mlp_only_layers\":[0],"), "layers of both kinds"),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn an_unknown_family_is_counted_with_a_note() {
        let other = of(&QWEN3_4B.replace("qwen3", "novel")).unwrap();
        assert!(other.notes[0].contains("novel"));
        // Without norms on the heads: 2·128 a layer less.
        assert_eq!(other.parameters().unwrap(), 4_022_468_096 - 36 * 256);
    }
}
