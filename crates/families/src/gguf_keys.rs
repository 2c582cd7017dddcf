//! A model's numbers and words as the keys of a GGUF file: the way back.
//!
//! The keys are right when the family's own reader gives the configuration back from them; numbers
//! are 32-bit floats there, so they may differ by what that rounds.

use crate::binding::Stored;
use crate::checkpoint::Checkpoint;
use crate::convert::ConvertError;
use crate::export::spelled_out;
use crate::family::Family;
use crate::gemma3::PATTERN;
use crate::keys::{KeyTensors, Keys};
use formats::{KeyValue, Metadata};
use models::{NormConfig, PositionConfig, RopeScaling, TransformerConfig};
use serde_json::Value;
use std::path::Path;
use tokenizer::Tokenizer;

/// The tensor of factors of rotary frequencies.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Keys, as they are gathered.
struct List {
    prefix: &'static str,
    keys: Vec<(String, KeyValue)>,
}

impl List {
    fn put(&mut self, key: &str, value: KeyValue) {
        self.keys.push((key.to_owned(), value));
    }

    fn size(&mut self, key: &str, value: usize) {
        // A size beyond 32 bits is caught when the keys are read again.
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        self.put(&format!("{}.{key}", self.prefix), KeyValue::U32(value));
    }

    fn number(&mut self, key: &str, value: f64) {
        self.put(&format!("{}.{key}", self.prefix), KeyValue::F32(value as f32));
    }
}

/// What a GGUF file says of a model's numbers.
pub(crate) struct Numbers {
    /// The keys.
    pub(crate) keys: Vec<(String, KeyValue)>,
    /// Factors of rotary frequencies, which are a tensor.
    pub(crate) factors: Option<Vec<f32>>,
    /// What could not be said as it was.
    pub(crate) note: Option<String>,
}

/// The numbers of a model as keys.
///
/// # Errors
/// [`ConvertError::NoKey`] when the keys do not say what the configuration says.
pub(crate) fn keys_of(checkpoint: &Checkpoint) -> Result<Numbers, ConvertError> {
    let family = checkpoint.family;
    let (c, note) = without_window(family, &checkpoint.config);
    let c = &c;
    let mut list = List { prefix: family.architecture, keys: Vec::new() };
    list.put("general.architecture", KeyValue::Text(family.architecture.to_owned()));
    list.put("general.type", KeyValue::Text("model".to_owned()));
    let folder = checkpoint.path.file_name().map(|name| name.to_string_lossy().into_owned());
    if let Some(name) = checkpoint.name.clone().or(folder) {
        list.put("general.name", KeyValue::Text(name));
    }
    shape_keys(&mut list, c);
    let factors = rope_keys(&mut list, c);
    if factors.is_some() && family.architecture != "llama" {
        let what = format!("GGUF files of {} have no tensor of rotary factors", family.name);
        return Err(ConvertError::NoKey { what });
    }
    window_keys(&mut list, c);
    if let Some(limit) = c.final_logit_softcapping {
        list.number("final_logit_softcapping", f64::from(limit));
    }
    check(family, c, &list.keys, factors.as_ref())?;
    Ok(Numbers { keys: list.keys, factors, note })
}

/// Only gemma3's files have a word for a window; of the others the context is made as short as the
/// window, within which every layer sees everything.
fn without_window(family: &Family, c: &TransformerConfig) -> (TransformerConfig, Option<String>) {
    let mut out = c.clone();
    if family.architecture == "gemma3" {
        return (out, None);
    }
    let note = out.sliding_window.take().filter(|w| w.tokens < c.max_position_embeddings).map(|w| {
        out.max_position_embeddings = w.tokens;
        let (name, whole, tokens) = (family.name, c.max_position_embeddings, w.tokens);
        format!(
            "GGUF files of {name} have no word for layers that see only {tokens} tokens: the context \
             is {tokens} instead of {whole}, within which nothing differs"
        )
    });
    (out, note)
}

fn shape_keys(list: &mut List, c: &TransformerConfig) {
    list.size("vocab_size", c.vocab_size);
    list.size("context_length", c.max_position_embeddings);
    list.size("embedding_length", c.hidden_size);
    list.size("block_count", c.num_hidden_layers);
    list.size("feed_forward_length", c.intermediate_size);
    list.size("attention.head_count", c.num_attention_heads);
    list.size("attention.head_count_kv", c.kv_heads());
    let epsilon = match c.norm {
        NormConfig::Rms => "attention.layer_norm_rms_epsilon",
        NormConfig::Layer => "attention.layer_norm_epsilon",
    };
    list.number(epsilon, f64::from(c.norm_epsilon));
    if c.positions == PositionConfig::Rotary {
        list.size("attention.key_length", c.head_size());
        list.size("attention.value_length", c.head_size());
        list.size("rope.dimension_count", c.head_size());
        list.number("rope.freq_base", c.rope_theta);
    }
}

fn rope_keys(list: &mut List, c: &TransformerConfig) -> Option<Vec<f32>> {
    let scaling = c.rope_scaling.as_ref()?;
    let kind = |list: &mut List, kind: &str| {
        let key = format!("{}.rope.scaling.type", list.prefix);
        list.put(&key, KeyValue::Text(kind.to_owned()));
    };
    match *scaling {
        RopeScaling::Linear { factor } => {
            kind(list, "linear");
            list.number("rope.scaling.factor", factor);
        }
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast,
            beta_slow,
            attention_factor,
        } => {
            kind(list, "yarn");
            list.number("rope.scaling.factor", factor);
            list.size("rope.scaling.original_context_length", original);
            list.number("rope.scaling.yarn_beta_fast", beta_fast);
            list.number("rope.scaling.yarn_beta_slow", beta_slow);
            if let Some(own) = attention_factor {
                let usual = RopeScaling::yarn_growth(factor);
                list.number("rope.scaling.attn_factor", own / usual);
            }
        }
        RopeScaling::Llama3 { .. } | RopeScaling::Factors { .. } => {}
    }
    scaling.as_factors(c.head_size(), c.rope_theta)
}

fn window_keys(list: &mut List, c: &TransformerConfig) {
    let Some(window) = &c.sliding_window else { return };
    list.size("attention.sliding_window", window.tokens);
    if let Some(theta) = window.rope_theta {
        list.number("rope.freq_base_swa", theta);
    }
    let seen = (0..c.num_hidden_layers).find(|layer| !window.layers.contains(layer));
    let pattern = seen.map_or(c.num_hidden_layers + 1, |layer| layer + 1);
    if pattern != PATTERN {
        list.size("attention.sliding_window_pattern", pattern);
    }
}

/// Reads the keys as they will be read from the file.
fn check(
    family: &Family,
    c: &TransformerConfig,
    list: &[(String, KeyValue)],
    factors: Option<&Vec<f32>>,
) -> Result<(), ConvertError> {
    let said = KeyTensors {
        vocab: Some(c.vocab_size),
        has_head: !c.tie_word_embeddings,
        rope_factors: factors.cloned(),
    };
    let metadata: Metadata = list.iter().collect();
    let path = Path::new("the new file");
    let keys =
        Keys::Gguf { path, prefix: family.architecture, metadata: &metadata, tensors: &said };
    let read = (family.config)(&keys).map_err(|e| ConvertError::NoKey { what: e.to_string() })?;
    let mut wanted = spelled_out(c);
    if let Some(factors) = factors {
        wanted.rope_scaling = Some(RopeScaling::Factors { factors: factors.clone() });
    }
    let value = |c: &TransformerConfig| serde_json::to_value(c).unwrap_or_default();
    match differing(&value(&wanted), &value(&spelled_out(&read))) {
        None => Ok(()),
        Some(field) => {
            let what = format!("GGUF files of {} have no key for its {field}", family.name);
            Err(ConvertError::NoKey { what })
        }
    }
}

/// The first field in which two configurations differ by more than 32-bit floats round.
fn differing(a: &Value, b: &Value) -> Option<String> {
    let same = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * a.abs().max(b.abs()),
        _ => false,
    };
    match (a, b) {
        (Value::Object(left), Value::Object(right)) => {
            let names = left.keys().chain(right.keys());
            let none = Value::Null;
            let of = |map: &serde_json::Map<String, Value>, name: &String| {
                map.get(name).unwrap_or(&none).clone()
            };
            let mut names = names.filter_map(|name| {
                differing(&of(left, name), &of(right, name)).map(|inner| match inner.as_str() {
                    "" => name.clone(),
                    inner => format!("{name}.{inner}"),
                })
            });
            names.next()
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            left.iter().zip(right).find_map(|(a, b)| differing(a, b))
        }
        (a, b) => (a != b && !same(a, b)).then(String::new),
    }
}

/// The keys of the tokenizer, what ends an answer, and the chat template.
///
/// # Errors
/// What such files have no word for.
pub(crate) fn word_keys(checkpoint: &Checkpoint) -> Result<Vec<(String, KeyValue)>, ConvertError> {
    let tokenizer = &checkpoint.tokenizer;
    let made = tokenizer.to_vocabulary(checkpoint.config.vocab_size);
    let made = made.map_err(|source| ConvertError::Words { source })?;
    let mut list = List { prefix: "tokenizer.ggml", keys: Vec::new() };
    let put = |list: &mut List, key: &str, value| list.put(&format!("tokenizer.ggml.{key}"), value);
    put(&mut list, "model", KeyValue::Text(made.model.to_owned()));
    put(&mut list, "pre", KeyValue::Text(made.pre.to_owned()));
    put(&mut list, "tokens", KeyValue::Texts(made.tokens));
    let types = made.types.iter().map(|&kind| kind as i32).collect();
    put(&mut list, "token_type", KeyValue::Wholes(types));
    if made.scores.is_empty() {
        put(&mut list, "merges", KeyValue::Texts(made.merges));
    } else {
        put(&mut list, "scores", KeyValue::Floats(made.scores));
        put(&mut list, "add_space_prefix", KeyValue::Bool(made.space_prefix));
    }
    special_keys(&mut list, checkpoint, tokenizer);
    if let Some(template) = &checkpoint.chat_template {
        list.put("tokenizer.chat_template", KeyValue::Text(template.clone()));
    }
    Ok(list.keys)
}

fn special_keys(list: &mut List, checkpoint: &Checkpoint, tokenizer: &Tokenizer) {
    let specials = tokenizer.specials();
    let named = |name: &Option<String>| name.as_ref().and_then(|name| tokenizer.id(name));
    let eos = specials.eos.or_else(|| named(&checkpoint.eos_token));
    // More ends: the turn's and the message's, beside the text's.
    let mut more = checkpoint.ends.iter().copied().filter(|&id| Some(id) != eos);
    let (turn, message) = (more.next(), more.next());
    for (key, id) in [
        ("bos_token_id", specials.bos.or_else(|| named(&checkpoint.bos_token))),
        ("eos_token_id", eos),
        ("eot_token_id", turn),
        ("eom_token_id", message),
        ("unknown_token_id", specials.unk),
        ("padding_token_id", specials.pad),
    ] {
        if let Some(id) = id {
            list.size(key, id as usize);
        }
    }
    for (key, yes) in [("add_bos_token", specials.bos.is_some()), ("add_eos_token", false)] {
        list.put(&format!("tokenizer.ggml.{key}"), KeyValue::Bool(yes));
    }
}

/// The row of our parameter that row `row` of a tensor stored so holds.
pub(crate) fn row_in_parameter(stored: Stored, head_rows: usize, row: usize) -> usize {
    if stored != Stored::Interleaved {
        return row;
    }
    let (head, at, half) = (row / head_rows, row % head_rows, head_rows / 2);
    head * head_rows + at % 2 * half + at / 2
}
