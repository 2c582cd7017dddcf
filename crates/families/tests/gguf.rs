//! The small models again, as GGUF files: names and permutations of that format, and vocabularies.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use families::{Checkpoint, Source};
use formats::{StoredTensor, dequantise, open_shards};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A GGUF file, key by key and tensor by tensor.
#[derive(Default)]
struct File {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl File {
    fn key(&mut self, name: &str, kind: u32, value: &[u8]) {
        text(&mut self.keys, name);
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend(value);
        self.key_count += 1;
    }

    fn number(&mut self, name: &str, value: &Value) {
        match value.as_u64() {
            Some(n) => self.key(name, 4, &(n as u32).to_le_bytes()),
            None => self.key(name, 6, &(value.as_f64().unwrap() as f32).to_le_bytes()),
        }
    }

    fn text(&mut self, name: &str, value: &str) {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        self.key(name, 8, &bytes);
    }

    fn texts(&mut self, name: &str, values: &[String]) {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| text(&mut bytes, value));
        self.key(name, 9, &bytes);
    }

    fn four_bytes(&mut self, name: &str, kind: u32, values: &[[u8; 4]]) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| bytes.extend(value));
        self.key(name, 9, &bytes);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.to_le_bytes());
        out.extend(&self.keys);
        let mut data = Vec::new();
        for (name, shape, values) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|&d| out.extend((d as u64).to_le_bytes()));
            out.extend(0u32.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }
}

fn values(tensor: &StoredTensor<'_>) -> Vec<f32> {
    let mut out = vec![0.0; tensor.len()];
    dequantise(tensor.kind, tensor.bytes, &mut out);
    out
}

/// Exchanges rows and columns.
fn turned(values: &[f32], rows: usize) -> Vec<f32> {
    let cols = values.len() / rows;
    (0..cols).flat_map(|c| (0..rows).map(move |r| values[r * cols + c])).collect()
}

/// As llama.cpp's converter orders a head's rows: from two halves, one of each in turn.
fn interleaved(values: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(width).collect();
    let (d, half) = (rows.len() / heads, rows.len() / heads / 2);
    (0..heads)
        .flat_map(|h| (0..half).flat_map(move |i| [h * d + i, h * d + half + i]))
        .flat_map(|row| rows[row].to_vec())
        .collect()
}

/// Parts of names in a folder and in a GGUF file.
const NAMES: [(&str, &str); 26] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("transformer.h.", "blk."),
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];

/// A fixture as a GGUF file.
fn converted(name: &str, architecture: &str) -> File {
    let folder = fixture(name);
    let config: Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut file = File::default();
    file.text("general.architecture", architecture);
    for (ours, theirs, other) in [
        ("context_length", "max_position_embeddings", "n_positions"),
        ("embedding_length", "hidden_size", "n_embd"),
        ("block_count", "num_hidden_layers", "n_layer"),
        ("feed_forward_length", "intermediate_size", "n_inner"),
        ("attention.head_count", "num_attention_heads", "n_head"),
        ("attention.head_count_kv", "num_key_value_heads", ""),
        ("attention.key_length", "head_dim", ""),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps", ""),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon", ""),
        ("attention.sliding_window", "sliding_window", ""),
    ] {
        let value = config.get(theirs).or_else(|| config.get(other)).filter(|v| !v.is_null());
        if let Some(value) = value {
            file.number(&format!("{architecture}.{ours}"), value);
        }
    }
    if let Some(theta) = config["rope_parameters"].get("rope_theta") {
        file.number(&format!("{architecture}.rope.freq_base"), theta);
    }
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let store = open_shards(&folder).unwrap();
    for original in store.names() {
        let tensor = store.get(original).unwrap();
        let (mut shape, mut data) = (tensor.shape.to_vec(), values(&tensor));
        let mut to = original.to_owned();
        let post = if architecture == "gemma3" { "post_attention_norm" } else { "ffn_norm" };
        to = to.replace("post_attention_layernorm", post);
        NAMES.iter().for_each(|(from, into)| to = to.replace(from, into));
        if architecture == "gpt2" && original.contains(".c_") && shape.len() == 2 {
            data = turned(&data, shape[0]);
            shape.reverse();
        }
        for (part, heads) in
            [("attn_q.", "num_attention_heads"), ("attn_k.", "num_key_value_heads")]
        {
            if architecture == "llama" && to.contains(part) {
                data = interleaved(&data, size(heads), shape[1]);
            }
        }
        if architecture == "gemma3" && to.contains("norm") {
            data.iter_mut().for_each(|v| *v += 1.0);
        }
        file.tensors.push((to, shape, data));
    }
    let tokenizer: Value =
        serde_json::from_slice(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); 260];
    vocab.iter().for_each(|(t, id)| tokens[id.as_u64().unwrap() as usize] = t.clone());
    ["<|begin|>", "<|im_end|>", "<|pad|>", "<|user|>"]
        .iter()
        .enumerate()
        .for_each(|(i, t)| tokens[256 + i] = (*t).to_owned());
    // One merge, because a byte-level vocabulary without any is refused.
    tokens[97] = "ab".to_owned();
    file.text("tokenizer.ggml.model", "gpt2");
    file.text("tokenizer.ggml.pre", "gpt-2");
    file.texts("tokenizer.ggml.tokens", &tokens);
    let kinds: Vec<[u8; 4]> =
        (0..260).map(|id: i32| if id < 256 { 1i32 } else { 3 }.to_le_bytes()).collect();
    file.four_bytes("tokenizer.ggml.token_type", 5, &kinds);
    file.texts("tokenizer.ggml.merges", &["a b".to_owned()]);
    file.number("tokenizer.ggml.bos_token_id", &256.into());
    file
}

fn open(file: &File) -> Result<Checkpoint, families::Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    Checkpoint::open(&path)
}

#[test]
fn the_same_weights_come_from_both_formats() {
    for (name, architecture) in [
        ("llama", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("gemma3", "gemma3"),
        ("gpt2", "gpt2"),
    ] {
        let file = converted(name, architecture);
        let gguf = open(&file).unwrap_or_else(|e| panic!("{name}: {e}"));
        let folder = Checkpoint::open(&fixture(name)).unwrap();
        assert_eq!(gguf.source, Source::Gguf);
        let mut config = gguf.config.clone();
        if name == "gemma3" {
            // A GGUF file keeps neither; the pattern of the small model is another one.
            config.sliding_window = folder.config.sliding_window.clone();
            config.query_pre_attn_scalar = folder.config.query_pre_attn_scalar;
            config.final_logit_softcapping = folder.config.final_logit_softcapping;
            config.rope_theta = folder.config.rope_theta;
        }
        assert_eq!(config, folder.config, "{name}");
        let (a, b) = (gguf.load(2).unwrap(), folder.load(1).unwrap());
        assert!(a.weights().flat().iter().zip(b.weights().flat()).all(|(a, b)| a == b), "{name}");
        assert_eq!(a.weights().flat().len(), b.weights().flat().len(), "{name}");
    }
}

#[test]
fn what_the_model_has_no_place_for_is_named() {
    let refused = |name: &str, change: &dyn Fn(&mut File), facts: &[&str]| {
        let mut file = converted(name, name);
        change(&mut file);
        let error = open(&file).err().unwrap().to_string();
        facts.iter().for_each(|fact| assert!(error.contains(fact), "{fact:?} in {error}"));
    };
    for name in ["blk.0.attn_q.bias", "blk.0.attn_sub_norm.weight", "blk.1.foo.weight"] {
        let more = |file: &mut File| file.tensors.push((name.to_owned(), vec![8], vec![0.5; 8]));
        refused("llama", &more, &[name, "no place", "llama"]);
    }
    let rows = |file: &mut File| file.number("llama.vocab_size", &261.into());
    refused("llama", &rows, &["llama.vocab_size is 261", "262, the rows"]);
    // A file that is older than kinds of scaling.
    let mut file = converted("llama", "llama");
    file.number("llama.rope.scale_linear", &4.0.into());
    let scaling = open(&file).unwrap().config.rope_scaling.clone();
    assert_eq!(scaling, Some(models::RopeScaling::Linear { factor: 4.0 }));
}

#[test]
fn a_byte_level_vocabulary_merges_by_rank() {
    let mut file = converted("qwen2", "qwen2");
    let checkpoint = open(&file).unwrap();
    let tokenizer = &checkpoint.tokenizer;
    assert_eq!(tokenizer.encode("cab"), [tokenizer.id("c").unwrap(), 97]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("a cab ab")), "a cab ab");
    assert_eq!((tokenizer.specials().bos, &checkpoint.ends[..]), (None, &[257][..]));
    assert_eq!(tokenizer.encode_with_controls("<|user|>ab<|im_end|>"), [259, 97, 257]);
    file.key("tokenizer.ggml.add_bos_token", 7, &[1]);
    assert_eq!(open(&file).unwrap().tokenizer.specials().bos, Some(256));
}

#[test]
fn vocabularies_that_do_not_hold_are_named() {
    let refused = |change: &dyn Fn(&mut File), facts: &[&str]| {
        let mut file = converted("qwen2", "qwen2");
        change(&mut file);
        let error = open(&file).err().unwrap().to_string();
        assert!(!error.contains('\n'), "{error}");
        for fact in facts {
            assert!(error.contains(fact), "{fact:?} is not in {error}");
        }
    };
    // A key's name is made another one of the same length.
    let without = |key: &'static str| {
        move |file: &mut File| {
            let at = file.keys.windows(key.len()).position(|w| w == key.as_bytes()).unwrap();
            file.keys[at] = b'X';
        }
    };
    refused(&without("tokenizer.ggml.merges"), &["tokenizer.ggml.merges", "missing"]);
    refused(&without("tokenizer.ggml.tokens"), &["tokenizer.ggml.tokens", "missing"]);
    refused(&without("tokenizer.ggml.model"), &["tokenizer.ggml.model", "missing"]);
    refused(&without("qwen2.block_count"), &["qwen2.block_count", "missing"]);
    let value = |from: &'static str, to: &'static str| {
        move |file: &mut File| {
            let at = file.keys.windows(from.len()).rposition(|w| w == from.as_bytes()).unwrap();
            file.keys[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    };
    refused(&value("gpt-2", "gpt-9"), &["tokenizer.ggml.pre", "gpt-9", "llama-bpe"]);
    refused(&|f| f.tensors.truncate(20), &["is missing"]);
    refused(&|f| f.tensors[0].1.reverse(), &["output.weight", "[262, 24]"]);
    refused(&|f| f.number("tokenizer.ggml.eos_token_id", &9999.into()), &["9999"]);
    let long = |f: &mut File| f.four_bytes("tokenizer.ggml.scores", 6, &[[0; 4]; 5]);
    refused(&long, &["scores", "5 entries for 260"]);
}
