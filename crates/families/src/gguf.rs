//! A GGUF file: the family by its architecture, the tokenizer from its keys.

use crate::checkpoint::{Source, Unread, Weights, Words};
use crate::keys::{KeyTensors, Keys};
use crate::{ALL, Error};
use formats::{Gguf, KeyError, Metadata};
use std::path::Path;
use tokenizer::{Specials, Tokenizer, Vocabulary};

/// Control tokens that end an answer wherever they are in a vocabulary.
const ENDS: [&str; 8] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "</s>",
];
/// Ways of cutting text whose vocabularies begin texts with `bos` unless the file says otherwise.
const BEGIN: [&str; 3] = ["llama-bpe", "llama3", "tekken"];

/// The weights, and the vocabulary of the keys still to be read.
pub(crate) fn open(path: &Path) -> Result<(Weights, Unread), Error> {
    let Gguf { metadata, tensors, .. } = Gguf::open(path)?;
    let typed =
        |source: KeyError| Error::Gguf(formats::GgufError::Key { path: path.to_owned(), source });
    let key = "general.architecture";
    let Some(found) = metadata.text(key).map_err(typed)? else {
        return Err(Error::MissingKey { path: path.to_owned(), key: key.to_owned() });
    };
    let Some(family) = ALL.into_iter().find(|family| family.architecture == found) else {
        let known: Vec<&str> = ALL.iter().map(|family| family.architecture).collect();
        let (found, known) = (found.to_owned(), known.join(", "));
        return Err(Error::Family { path: path.to_owned(), key, found, known });
    };
    let prefix = family.architecture;
    let said = KeyTensors::of(&tensors);
    let keys = Keys::Gguf { path, prefix, metadata: &metadata, tensors: &said };
    let config = (family.config)(&keys)?;
    let weights = Weights {
        path: path.to_owned(),
        source: Source::Gguf,
        family,
        config,
        name: metadata.text("general.name").map_err(typed)?.map(str::to_owned),
        notes: Vec::new(),
        tensors,
    };
    let path = path.to_owned();
    Ok((weights, Box::new(move || words(&path, &metadata))))
}

fn words(path: &Path, metadata: &Metadata) -> Result<Words, Error> {
    let typed =
        |source: KeyError| Error::Gguf(formats::GgufError::Key { path: path.to_owned(), source });
    let (tokenizer, ends, bos) = tokenizer(path, metadata)?;
    let text = |key: &str| metadata.text(key).map_err(typed).map(|t| t.map(str::to_owned));
    let pre = text("tokenizer.ggml.pre")?.unwrap_or_default();
    let kind = text("tokenizer.ggml.model")?.unwrap_or_default();
    Ok(Words {
        tokenizer_kind: format!("{kind} ({pre})"),
        bos_token: bos.and_then(|id| tokenizer.token(id)),
        eos_token: tokenizer.specials().eos.and_then(|id| tokenizer.token(id)),
        chat_template: text("tokenizer.chat_template")?,
        tokenizer,
        ends,
    })
}

/// The tokenizer, what ends an answer, and the beginning token.
fn tokenizer(
    path: &Path,
    metadata: &Metadata,
) -> Result<(Tokenizer, Vec<u32>, Option<u32>), Error> {
    let typed =
        |source: KeyError| Error::Gguf(formats::GgufError::Key { path: path.to_owned(), source });
    let missing = |key: &str| Error::MissingKey { path: path.to_owned(), key: key.to_owned() };
    let name = |key: &str| format!("tokenizer.ggml.{key}");
    let id = |key: &str| -> Result<Option<u32>, Error> {
        let size = metadata.size(&name(key)).map_err(typed)?;
        // Some writers say "none" by the largest number.
        Ok(size.and_then(|n| u32::try_from(n).ok()).filter(|&n| n != u32::MAX))
    };
    let flag = |key: &str| metadata.bool(&name(key)).map_err(typed);
    let text = |key: &str| metadata.text(&name(key)).map_err(typed);
    let model = text("model")?.ok_or_else(|| missing("tokenizer.ggml.model"))?;
    let pre = text("pre")?.unwrap_or("default");
    let tokens = metadata.texts(&name("tokens")).map_err(typed)?;
    let tokens = tokens.ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
    let count = tokens.len();
    let pieces = model == "llama";
    // SentencePiece's own places, where a file of one does not name them.
    let usual = |id: u32| Some(id).filter(|_| pieces);
    let bos = id("bos_token_id")?.or(usual(1));
    let eos = id("eos_token_id")?.or(usual(2));
    let begins = flag("add_bos_token")?.unwrap_or(pieces || BEGIN.contains(&pre));
    let vocabulary = Vocabulary {
        model,
        pre,
        tokens,
        scores: metadata.floats(&name("scores")).map_err(typed)?.unwrap_or(&[]),
        types: metadata.wholes(&name("token_type")).map_err(typed)?.unwrap_or(&[]),
        merges: metadata.texts(&name("merges")).map_err(typed)?,
        specials: Specials {
            pad: id("padding_token_id")?,
            // Bytes leave nothing unknown.
            unk: id("unknown_token_id")?.or(usual(0)).filter(|_| pieces),
            bos: bos.filter(|_| begins),
            eos,
        },
        space_prefix: pieces && flag("add_space_prefix")?.unwrap_or(true),
    };
    let tokenizer = Tokenizer::from_vocabulary(&vocabulary)
        .map_err(|source| Error::Tokenizer { path: path.to_owned(), source })?;
    let mut ends: Vec<u32> = Vec::new();
    for id in [eos, id("eot_token_id")?, id("eom_token_id")?] {
        ends.extend(id.filter(|&id| (id as usize) < count));
    }
    ends.extend(tokenizer.controls().filter(|(name, _)| ENDS.contains(name)).map(|(_, id)| id));
    ends.sort_unstable();
    ends.dedup();
    Ok((tokenizer, ends, bos))
}
