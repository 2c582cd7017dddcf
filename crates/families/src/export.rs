//! A model as a Hugging Face folder: the way back.
//!
//! The folder says what the family's own reader would read: a family fits when reading its
//! `config.json` gives the model's configuration back. Weights are written as F32, so that whoever
//! loads them computes with the same numbers.

use crate::ALL;
use crate::binding::Stored;
use crate::family::Family;
use crate::folder::CONFIG;
use crate::keys::Keys;
use formats::{TensorFile, TensorHead, TensorKind, replace_folder, stream_tensors};
use models::{Model, ModelConfig, RopeScaling, TransformerConfig};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::ParameterSpec;
use tokenizer::Tokenizer;

/// What a folder says beside the weights.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Every token that ends an answer.
    pub ends: &'a [u32],
    /// The beginning token as a chat template names it.
    pub bos_token: Option<&'a str>,
    /// The end token as a chat template names it.
    pub eos_token: Option<&'a str>,
    /// The chat template.
    pub chat_template: Option<&'a str>,
}

/// Why there is no folder.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// No family computes what the model does.
    #[error(
        "no Hugging Face family computes what this {kind} does; {known} can be written: the run \
         folder holds the model all the same"
    )]
    NoFamily {
        /// The kind of model.
        kind: &'static str,
        /// The families.
        known: String,
    },
    /// A file cannot be written.
    #[error("{path}: {source}{}", formats::hint(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing that a PEFT folder could hold.
    #[error("the model has no adapter on a matrix of its own in a Hugging Face folder")]
    NoAdapter,
    /// The weights cannot be read or written.
    #[error(transparent)]
    Tensors(#[from] formats::Error),
    /// The configuration makes no network.
    #[error(transparent)]
    Model(#[from] models::Error),
}

impl From<io::Error> for ExportError {
    fn from(source: io::Error) -> ExportError {
        ExportError::Io { path: PathBuf::from("the folder"), source }
    }
}

/// (family, name of its class, `model_type`) in the order in which they are tried.
const CLASSES: [(&str, &str, &str); 6] = [
    ("llama", "LlamaForCausalLM", "llama"),
    ("llama", "MistralForCausalLM", "mistral"),
    ("qwen2", "Qwen2ForCausalLM", "qwen2"),
    ("qwen3", "Qwen3ForCausalLM", "qwen3"),
    ("gemma3", "Gemma3ForCausalLM", "gemma3_text"),
    ("gpt2", "GPT2LMHeadModel", "gpt2"),
];

/// Whether a model can be written as a Hugging Face folder, seen from its configuration.
///
/// # Errors
/// [`ExportError::NoFamily`].
pub fn can_export(config: &ModelConfig) -> Result<(), ExportError> {
    described(config).map(|_| ())
}

/// Writes a Hugging Face folder, whole or not at all: `config.json`, `model.safetensors` (F32),
/// `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`.
///
/// # Errors
/// [`ExportError`]; an old folder is then untouched.
pub fn export(path: &Path, model: &Model, words: &Words<'_>) -> Result<(), ExportError> {
    let values =
        |spec: &ParameterSpec| Ok(Cow::Borrowed(&model.weights().flat()[spec.range.clone()]));
    export_from(path, model.config(), &values, words)
}

/// The same of weights that stand in a file under our own names, of which one parameter is in memory at
/// a time.
///
/// # Errors
/// As [`export`], and when the file lacks a parameter.
pub fn export_file(
    path: &Path,
    config: &ModelConfig,
    weights: &TensorFile,
    words: &Words<'_>,
) -> Result<(), ExportError> {
    let values = |spec: &ParameterSpec| {
        let mut values = vec![0.0; spec.count()];
        weights.read_f32(&spec.name, &spec.shape, &mut values)?;
        Ok(Cow::Owned(values))
    };
    export_from(path, config, &values, words)
}

/// Values of a parameter, in its own shape.
type ValuesOf<'a> = dyn Fn(&ParameterSpec) -> Result<Cow<'a, [f32]>, formats::Error> + 'a;

fn export_from(
    path: &Path,
    config: &ModelConfig,
    values: &ValuesOf<'_>,
    words: &Words<'_>,
) -> Result<(), ExportError> {
    let (family, described) = described(config)?;
    let files = side_files(described, words);
    replace_folder(path, |dir| {
        write_weights(&dir.join("model.safetensors"), family, config, values)?;
        files.iter().try_for_each(|(name, bytes)| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).map_err(|source| ExportError::Io { path, source })
        })
    })
}

/// Everything in the folder but the weights: (name, bytes).
pub(crate) fn side_files(
    mut config: Map<String, Value>,
    words: &Words<'_>,
) -> [(&'static str, Vec<u8>); 4] {
    let specials = words.tokenizer.specials();
    let eos = match words.ends {
        [] => Value::Null,
        [one] => json!(one),
        several => json!(several),
    };
    let bos = words.bos_token.and_then(|name| words.tokenizer.id(name)).or(specials.bos);
    config.insert("bos_token_id".to_owned(), json!(bos));
    config.insert("eos_token_id".to_owned(), eos.clone());
    config.insert("pad_token_id".to_owned(), json!(specials.pad));
    let of = |id: Option<u32>| id.and_then(|id| words.tokenizer.token(id));
    let named = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": words.bos_token.map(str::to_owned).or_else(|| of(specials.bos)),
        "eos_token": words.eos_token.map(str::to_owned).or_else(|| of(specials.eos)),
        "unk_token": of(specials.unk),
        "pad_token": of(specials.pad),
        "chat_template": words.chat_template,
        "clean_up_tokenization_spaces": false,
    });
    let generation = json!({ "bos_token_id": bos, "eos_token_id": eos });
    let text = |value: &Value| serde_json::to_vec_pretty(value).unwrap_or_default();
    [
        (CONFIG, text(&Value::Object(config))),
        ("tokenizer.json", tokenizer_json(words.tokenizer)),
        ("tokenizer_config.json", text(&named)),
        ("generation_config.json", text(&generation)),
    ]
}

/// The tokenizer's file; what begins a text is in it too, where a GGUF file said so beside its
/// vocabulary.
fn tokenizer_json(tokenizer: &Tokenizer) -> Vec<u8> {
    let bytes = tokenizer.to_bytes();
    let begin = tokenizer.specials().bos.filter(|_| tokenizer.put_before().is_empty());
    let Some((id, name)) = begin.and_then(|id| Some((id, tokenizer.token(id)?))) else {
        return bytes;
    };
    let Ok(mut json) = serde_json::from_slice::<Value>(&bytes) else { return bytes };
    if !json["post_processor"].is_null() {
        return bytes;
    }
    let text = |which: &str, kind: u8| json!({ "Sequence": { "id": which, "type_id": kind } });
    let special = |kind: u8| json!({ "SpecialToken": { "id": name, "type_id": kind } });
    json["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [special(0), text("A", 0)],
        "pair": [special(0), text("A", 0), special(1), text("B", 1)],
        "special_tokens": { name.clone(): { "id": name, "ids": [id], "tokens": [name] } },
    });
    serde_json::to_vec(&json).unwrap_or(bytes)
}

/// One tensor of the file: rows of a parameter, and how they are stored.
struct Piece<'a> {
    spec: &'a ParameterSpec,
    rows: Range<usize>,
    stored: Stored,
}

fn write_weights(
    path: &Path,
    family: &Family,
    config: &ModelConfig,
    values: &ValuesOf<'_>,
) -> Result<(), ExportError> {
    let ModelConfig::Transformer(c) = config else { return Ok(()) };
    let layout = Model::layout_of(config)?;
    let d = c.head_size();
    let parts = [c.num_attention_heads * d, c.kv_heads() * d, c.kv_heads() * d];
    let (mut heads, mut pieces) = (Vec::new(), Vec::new());
    for spec in layout.specs() {
        let names = family.tensors(false, &spec.name);
        let mut from = 0;
        for (i, (name, stored)) in names.iter().enumerate() {
            let rows = if names.len() == parts.len() { parts[i] } else { spec.shape[0] };
            let mut shape = spec.shape.clone();
            shape[0] = rows;
            if *stored == Stored::Transposed {
                shape.reverse();
            }
            heads.push(TensorHead { name: name.clone(), kind: TensorKind::F32, shape });
            pieces.push(Piece { spec, rows: from..from + rows, stored: *stored });
            from += rows;
        }
    }
    stream_tensors(path, &heads, |index, out| {
        let Piece { spec, rows, stored } = &pieces[index];
        let width = spec.count() / spec.shape[0];
        let all = values(spec)?;
        let values = &all[rows.start * width..rows.end * width];
        let (height, count) = (rows.len(), values.len());
        match stored {
            Stored::LessOne => write_values(out, values.iter().map(|v| v - 1.0)),
            Stored::Transposed => {
                write_values(out, (0..count).map(|i| values[i % height * width + i / height]))
            }
            Stored::Plain | Stored::Interleaved => write_values(out, values.iter().copied()),
        }
        .map_err(ExportError::from)
    })
}

fn write_values(out: &mut dyn io::Write, values: impl Iterator<Item = f32>) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(1 << 16);
    for value in values {
        bytes.extend(value.to_le_bytes());
        if bytes.len() == bytes.capacity() {
            out.write_all(&bytes)?;
            bytes.clear();
        }
    }
    out.write_all(&bytes)
}

/// The family whose reader gives the configuration back, and its `config.json`.
pub(crate) fn described(
    config: &ModelConfig,
) -> Result<(&'static Family, Map<String, Value>), ExportError> {
    let known = || CLASSES.map(|(_, _, kind)| kind).join(", ");
    let none = || ExportError::NoFamily { kind: config.kind(), known: known() };
    let ModelConfig::Transformer(c) = config else { return Err(none()) };
    let wanted = spelled_out(c);
    for (name, class, kind) in CLASSES {
        let Some(family) = ALL.into_iter().find(|family| family.name == name) else { continue };
        let value = match kind {
            "gpt2" => gpt2(&wanted),
            _ => textbook(&wanted, kind),
        };
        let Some(mut value) = value else { continue };
        value["architectures"] = json!([class]);
        value["model_type"] = json!(kind);
        value["dtype"] = json!("float32");
        let path = Path::new(CONFIG);
        let keys = Keys::Folder { path, config: &value, tied: family.tied };
        if (family.config)(&keys).is_ok_and(|read| spelled_out(&read) == wanted)
            && let Value::Object(map) = value
        {
            return Ok((family, map));
        }
    }
    Err(none())
}

/// The same numbers with nothing left to a default, so that two configurations can be compared.
pub(crate) fn spelled_out(c: &TransformerConfig) -> TransformerConfig {
    let mut out = c.clone();
    out.storage.clear();
    out.lora = None;
    out.kv = Default::default();
    out.num_key_value_heads = Some(c.kv_heads());
    out.head_dim = Some(c.head_size());
    out.qkv_bias = Some(c.qkv_bias.unwrap_or(c.bias));
    out.head_bias = Some(c.head_bias.unwrap_or(c.bias));
    out.query_pre_attn_scalar = Some(c.query_pre_attn_scalar.unwrap_or(c.head_size() as f64));
    out
}

/// A float as its shortest decimal, not as the nearest f64.
fn short(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, |x| json!(x))
}

fn gpt2(c: &TransformerConfig) -> Option<Value> {
    Some(json!({
        "vocab_size": c.vocab_size,
        "n_positions": c.max_position_embeddings,
        "n_embd": c.hidden_size,
        "n_layer": c.num_hidden_layers,
        "n_head": c.num_attention_heads,
        "n_inner": c.intermediate_size,
        "layer_norm_epsilon": short(c.norm_epsilon),
        "activation_function": "gelu_new",
        "tie_word_embeddings": c.tie_word_embeddings,
    }))
}

fn textbook(c: &TransformerConfig, kind: &str) -> Option<Value> {
    let mut value = json!({
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_position_embeddings,
        "rms_norm_eps": short(c.norm_epsilon),
        "rope_theta": c.rope_theta,
        "tie_word_embeddings": c.tie_word_embeddings,
        "attention_bias": false,
        "hidden_act": "silu",
    });
    if let Some(scaling) = &c.rope_scaling {
        value["rope_scaling"] = scaling_of(scaling)?;
    }
    let window = c.sliding_window.as_ref();
    match kind {
        "mistral" => value["sliding_window"] = json!(window.map(|w| w.tokens)),
        "qwen2" | "qwen3" => {
            value["use_sliding_window"] = json!(window.is_some());
            value["sliding_window"] = json!(window.map(|w| w.tokens));
            value["max_window_layers"] =
                json!(window.map_or(c.num_hidden_layers, |w| w.layers.first().map_or(0, |&l| l)));
        }
        "gemma3_text" => {
            let kind = |i| if c.sees_near(i) { "sliding_attention" } else { "full_attention" };
            let kinds: Vec<&str> = (0..c.num_hidden_layers).map(kind).collect();
            value["layer_types"] = json!(kinds);
            value["sliding_window"] = json!(window.map_or(c.max_position_embeddings, |w| w.tokens));
            value["rope_local_base_freq"] =
                json!(window.and_then(|w| w.rope_theta).unwrap_or(10_000.0));
            // A whole number there, whatever we hold.
            value["query_pre_attn_scalar"] = match c.query_pre_attn_scalar {
                Some(scalar) if scalar.fract() == 0.0 => json!(scalar as u64),
                scalar => json!(scalar),
            };
            value["final_logit_softcapping"] = c.final_logit_softcapping.map_or(Value::Null, short);
            value["hidden_activation"] = json!("gelu_pytorch_tanh");
            value.as_object_mut()?.remove("hidden_act");
        }
        _ => {}
    }
    Some(value)
}

/// As `config.json` writes it; none for what it has no word for.
fn scaling_of(scaling: &RopeScaling) -> Option<Value> {
    if matches!(scaling, RopeScaling::Factors { .. }) {
        return None;
    }
    serde_json::to_value(scaling).ok()
}
