//! Any `config.json`: read by the family that it is built like, of which planning needs less than running.
//!
//! What changes no byte (bases of rotary positions, soft caps, activations) is left out before the family's
//! own reader sees the file; what only planning knows (other names of keys, Gemma 1 and 2, experts) is put
//! into its words. Families that are not known are read as llama-like, and a note says so.

use crate::{Architecture, Error, Experts};
use models::{MlpConfig, ModelConfig, TransformerConfig};
use serde_json::{Map, Value, json};
use std::path::Path;

/// (families, the family whose reader reads them).
const LIKE: [(&[&str], &str); 5] = [
    (&["gpt2"], "gpt2"),
    (&["qwen2", "qwen2_moe"], "qwen2"),
    (&["qwen3", "qwen3_moe"], "qwen3"),
    (&["gemma3", "gemma3_text"], "gemma3_text"),
    // Llama's shape with, where the file has one, a window.
    (&["llama", "mistral", "mixtral", "gemma", "gemma2"], "mistral"),
];
/// Keys by other names, the family's own first.
const NAMES: [&[&str]; 5] = [
    &["num_attention_heads", "n_head"],
    &["hidden_size", "n_embd", "d_model"],
    &["num_hidden_layers", "n_layer", "num_layers"],
    &["intermediate_size", "ffn_dim", "n_inner"],
    &["max_position_embeddings", "n_positions"],
];
/// Keys that change no byte, or are read here.
const OUT: [&str; 18] = [
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_local_base_freq",
    "quantization_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "use_bidirectional_attention",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
    "attention_bias",
    "mlp_bias",
    "num_local_experts",
];
/// Keys that say that there are experts.
const EXPERTS: [&str; 3] = ["num_local_experts", "num_experts", "n_routed_experts"];

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Architecture, Error> {
    let text = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let content = |reason: String| Error::Content { path: path.to_owned(), reason };
    let value: Value = serde_json::from_slice(&text).map_err(|e| content(e.to_string()))?;
    let Some(all) = value.as_object() else {
        return Err(content("not an object; expected the keys of a model's config.json".into()));
    };
    // Models of several senses keep the text's numbers apart.
    let inner = value.get("text_config").and_then(Value::as_object).unwrap_or(all);
    let name = value.get("_name_or_path").and_then(Value::as_str).filter(|n| !n.is_empty());
    let name = name.map_or_else(|| path.display().to_string(), str::to_owned);
    if inner.contains_key("kind") {
        let config: ModelConfig = serde_json::from_value(Value::Object(inner.clone()))
            .map_err(|e| content(e.to_string()))?;
        return Architecture::of(&name, config, true);
    }
    let family = inner.get("model_type").or_else(|| value.get("model_type"));
    let family = family.and_then(Value::as_str).unwrap_or("unnamed").to_owned();
    let file = File { path, family, keys: inner };
    let experts = file.experts()?;
    let config = ModelConfig::Transformer(file.config(experts)?);
    let mut architecture = Architecture::of(&name, config, false)?.with_experts(experts)?;
    if !LIKE.iter().any(|(families, _)| families.contains(&file.family.as_str())) {
        architecture.notes.push(format!(
            "family {} is not known here: counted as a llama-like decoder by its keys",
            file.family
        ));
    }
    Ok(architecture)
}

struct File<'a> {
    path: &'a Path,
    family: String,
    keys: &'a Map<String, Value>,
}

impl File<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|v| !v.is_null())
    }

    fn is(&self, families: &[&str]) -> bool {
        families.contains(&self.family.as_str())
    }

    fn wrong(&self, key: &str, found: impl ToString, expected: &str) -> Error {
        let (path, key, found) = (self.path.to_owned(), key.to_owned(), found.to_string());
        families::Error::Key { path, key, found, expected: expected.to_owned() }.into()
    }

    fn config(&self, experts: Option<Experts>) -> Result<TransformerConfig, Error> {
        let known = LIKE.iter().find(|(families, _)| self.is(families));
        let like = known.map_or("mistral", |(_, like)| like);
        let mut config = families::numbers(self.path, &self.as_family(like, experts))?;
        if self.is(&["gemma", "gemma2"]) {
            config.mlp = MlpConfig::GegluTanh;
            config.post_norm = self.is(&["gemma2"]);
        }
        match self.get("attention_bias").map(|value| (value, value.as_bool())) {
            Some((value, None)) => {
                return Err(self.wrong("attention_bias", value, "true or false"));
            }
            Some((_, Some(true))) => config.qkv_bias = Some(true),
            Some((_, Some(false))) | None => {}
        }
        Ok(config)
    }

    /// The file in the words of a family that is read here.
    fn as_family(&self, like: &str, experts: Option<Experts>) -> Value {
        let mut keys = self.keys.clone();
        keys.retain(|key, value| !value.is_null() && !OUT.contains(&key.as_str()));
        for names in NAMES {
            let Some(value) = names.iter().find_map(|name| self.get(name)) else { continue };
            for name in names {
                keys.entry(*name).or_insert_with(|| value.clone());
            }
        }
        // Kinds of attention that are not run here are counted as the usual one.
        if !LIKE.iter().any(|(families, _)| self.is(families))
            && let Some(Value::Array(kinds)) = keys.get_mut("layer_types")
        {
            let other = |kind: &&mut Value| kind.is_string() && **kind != "sliding_attention";
            kinds.iter_mut().filter(other).for_each(|kind| *kind = "full_attention".into());
        }
        if keys.get("sliding_window").is_some_and(|tokens| *tokens == 0) {
            keys.remove("sliding_window");
        }
        if let Some(experts) = experts {
            keys.insert("intermediate_size".to_owned(), experts.active_inner().into());
        }
        if self.is(&["gemma", "gemma2"]) {
            keys.entry("tie_word_embeddings").or_insert(true.into());
        }
        let layers = keys.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
        if self.is(&["gemma2"]) {
            let kind = |i| if i % 2 == 0 { "sliding_attention" } else { "full_attention" };
            let kinds: Vec<&str> = (0..layers.min(1 << 16)).map(kind).collect();
            keys.entry("layer_types").or_insert_with(|| json!(kinds));
        }
        keys.insert("model_type".to_owned(), like.into());
        keys.entry("rms_norm_eps").or_insert(json!(1e-6));
        keys.entry("max_position_embeddings").or_insert(4096.into());
        Value::Object(keys)
    }

    fn need(&self, key: &str) -> Result<u64, Error> {
        let Some(value) = self.get(key) else {
            let (path, key) = (self.path.to_owned(), key.to_owned());
            return Err(families::Error::MissingKey { path, key }.into());
        };
        value.as_u64().ok_or_else(|| self.wrong(key, value, "a size"))
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
        if dense > 0 || self.get("decoder_sparse_step").is_some_and(|step| *step != 1) {
            return refuse("layers of both kinds in one model are not counted");
        }
        let inner =
            if self.is(&["mixtral"]) { "intermediate_size" } else { "moe_intermediate_size" };
        let shared = match self.is(&["qwen2_moe"]) {
            true => self.need("shared_expert_intermediate_size")?,
            false => 0,
        };
        let (count, active) = (self.need(key)?, self.need("num_experts_per_tok")?);
        if active == 0 || active > count {
            let expected = format!("1 to {count}, the experts of a layer");
            return Err(self.wrong("num_experts_per_tok", active, &expected));
        }
        Ok(Some(Experts { count, active, inner: self.need(inner)?, shared }))
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
            (&QWEN3_4B.replace("{", "{\"attention_bias\":7,"), "attention_bias is 7"),
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
    fn gemma_2_sees_near_in_every_second_layer() {
        let text = r#"{"model_type":"gemma2","hidden_size":2304,"num_hidden_layers":26,
            "num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"intermediate_size":9216,
            "vocab_size":256000,"max_position_embeddings":8192,"sliding_window":4096,
            "attn_logit_softcapping":50.0,"hidden_activation":"gelu_pytorch_tanh"}"#;
        let (own, named) = (of(text).unwrap(), Architecture::open("gemma-2-2b").unwrap());
        assert_eq!(own.parameters().unwrap(), named.parameters().unwrap());
        let window = |a: &Architecture| a.transformer().unwrap().sliding_window.clone().unwrap();
        assert_eq!(window(&own).layers, window(&named).layers);
        assert!(own.notes.is_empty());
    }

    #[test]
    fn an_unknown_family_is_counted_with_a_note() {
        let other = of(&QWEN3_4B.replace("qwen3", "novel")).unwrap();
        assert!(other.notes[0].contains("novel"));
        // Without norms on the heads: 2·128 a layer less.
        assert_eq!(other.parameters().unwrap(), 4_022_468_096 - 36 * 256);
    }
}
