//! Which files of a repository make a model.

use crate::{Error, Wanted};

/// Files beside the weights that a folder needs or may have.
const BESIDE: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// What is fetched, and what of it is the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// Names in the repository.
    pub(crate) files: Vec<String>,
    /// The file that is the model; the folder when absent.
    pub(crate) model: Option<String>,
}

/// The files that make what is wanted, of those that are there.
pub(crate) fn choose(wanted: &Wanted, names: &[String]) -> Result<Chosen, Error> {
    match &wanted.file {
        Some(file) => one_file(wanted, file, names),
        None => whole_model(wanted, names),
    }
}

fn none(wanted: &Wanted, reason: impl Into<String>, names: &[&String]) -> Error {
    const SHOWN: usize = 12;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(|name| name.as_str()).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let found = if shown.is_empty() { "no file".to_owned() } else { shown.join(", ") + &more };
    Error::NoFile { what: wanted.to_string(), reason: reason.into(), found }
}

/// A file by its name, or the only GGUF file whose name holds the word.
fn one_file(wanted: &Wanted, file: &str, names: &[String]) -> Result<Chosen, Error> {
    let chosen = |name: &String| Chosen { files: parts(name, names), model: Some(name.clone()) };
    if let Some(name) = names.iter().find(|name| *name == file) {
        return Ok(chosen(name));
    }
    let word = file.to_ascii_lowercase();
    let fits = |name: &&String| is_gguf(name) && name.to_ascii_lowercase().contains(&word);
    match first_parts(names.iter().filter(fits))[..] {
        [only] => Ok(chosen(only)),
        [] => Err(none(wanted, "no such file", &names.iter().collect::<Vec<_>>())),
        ref several => Err(none(wanted, "several files fit; give one of them whole", several)),
    }
}

fn whole_model(wanted: &Wanted, names: &[String]) -> Result<Chosen, Error> {
    let at_top = |name: &&String| !name.contains('/');
    let weights = names.iter().filter(at_top).filter(|name| name.ends_with(".safetensors"));
    let mut files: Vec<String> = weights.cloned().collect();
    if !files.is_empty() && names.iter().any(|name| name == "config.json") {
        files.extend(names.iter().filter(|name| BESIDE.contains(&name.as_str())).cloned());
        files.sort_by_key(|name| name.ends_with(".safetensors"));
        return Ok(Chosen { files, model: None });
    }
    let gguf = names.iter().filter(|name| is_gguf(name));
    match first_parts(gguf)[..] {
        [only] => Ok(Chosen { files: parts(only, names), model: Some(only.clone()) }),
        [] => {
            let reason = "neither safetensors with a config.json nor a GGUF file in it";
            Err(none(wanted, reason, &names.iter().collect::<Vec<_>>()))
        }
        ref several => {
            let reason = format!("several GGUF files; choose one, as in {}:FILE", wanted.repo);
            Err(none(wanted, reason, several))
        }
    }
}

fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

/// (beginning, number, ending) of a part's name: `m-00002-of-00003.gguf`.
fn part_of(name: &str) -> Option<(&str, usize, &str)> {
    let at = name.rfind("-of-")?;
    let (start, number) = name[..at].rsplit_once('-')?;
    let digits = number.len() == 5 && number.bytes().all(|b| b.is_ascii_digit());
    Some((start, number.parse().ok().filter(|_| digits)?, &name[at..]))
}

/// Without the second and later parts of split files.
fn first_parts<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    names.filter(|name| part_of(name).is_none_or(|(_, number, _)| number == 1)).collect()
}

/// All parts of a split file, or the file alone.
fn parts(name: &str, names: &[String]) -> Vec<String> {
    let Some((start, _, ending)) = part_of(name) else { return vec![name.to_owned()] };
    let mine = |other: &&String| part_of(other).is_some_and(|(s, _, e)| s == start && e == ending);
    names.iter().filter(mine).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wanted: &str, names: &[&str]) -> Result<(Vec<String>, Option<String>), String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let wanted = wanted.parse().unwrap();
        choose(&wanted, &names).map(|c| (c.files, c.model)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_folder_is_its_weights_and_what_belongs_to_them() {
        let names = [
            "README.md",
            "config.json",
            "model.safetensors",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
            "old/other.safetensors",
        ];
        let (files, model) = check("a/b", &names).unwrap();
        assert_eq!(files, ["config.json", "tokenizer.json", "model.safetensors"]);
        assert_eq!(model, None);
    }

    #[test]
    fn a_gguf_file_is_chosen_by_name_or_type() {
        let names = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md"];
        let one = |wanted: &str| check(wanted, &names).unwrap().1.unwrap();
        assert_eq!(one("a/b:m-Q8_0.gguf"), "m-Q8_0.gguf");
        assert_eq!(one("a/b:q4_k_m"), "m-Q4_K_M.gguf");
        let several = check("a/b", &names).unwrap_err();
        assert!(several.contains("a/b:FILE") && several.contains("m-Q8_0.gguf"), "{several}");
        let both = check("a/b:m-q", &names).unwrap_err();
        assert!(both.contains("several files fit"), "{both}");
        let absent = check("a/b:q5", &names).unwrap_err();
        assert!(absent.contains("no such file") && absent.contains("README.md"), "{absent}");
        assert!(check("a/b", &["README.md"]).unwrap_err().contains("neither"));
    }

    #[test]
    fn split_files_come_whole() {
        let names = ["m-q8-00001-of-00002.gguf", "m-q8-00002-of-00002.gguf", "x.txt"];
        let (files, model) = check("a/b", &names).unwrap();
        assert_eq!(files.len(), 2);
        assert_eq!(model.as_deref(), Some(names[0]));
    }
}
