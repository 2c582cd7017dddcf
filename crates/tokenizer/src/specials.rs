//! The ids with a meaning of their own: padding, unknown, beginning and end.

/// The ids of the special tokens a tokenizer has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Specials {
    /// Fills the places after a sequence in a batch.
    pub pad: Option<u32>,
    /// Stands for what the vocabulary lacks.
    pub unk: Option<u32>,
    /// Begins a sequence.
    pub bos: Option<u32>,
    /// Ends a sequence.
    pub eos: Option<u32>,
}

/// Names of the special tokens that training writes, in the order of their ids.
pub(crate) const OURS: [&str; 4] = ["<pad>", "<unk>", "<bos>", "<eos>"];

const PAD: [&str; 5] = ["<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>", "<PAD>"];
const UNK: [&str; 4] = ["<unk>", "[UNK]", "<|unk|>", "<UNK>"];
const BOS: [&str; 6] = ["<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]", "<|bos|>"];
const EOS: [&str; 7] =
    ["<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>", "[EOS]", "<|eos|>", "<|im_end|>"];

impl Specials {
    /// Finds the special tokens by the names they usually have.
    pub(crate) fn find(id: impl Fn(&str) -> Option<u32>) -> Self {
        let first = |names: &[&str]| names.iter().find_map(|name| id(name));
        Self { pad: first(&PAD), unk: first(&UNK), bos: first(&BOS), eos: first(&EOS) }
    }
}
