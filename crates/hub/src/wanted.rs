//! What is asked for: `owner/name`, or `owner/name:file`.

use crate::Error;
use std::fmt;
use std::str::FromStr;

/// A repository, and one file of it or all that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `owner/name`, or `name` alone.
    pub repo: String,
    /// A file's name or a part of it, such as a type of quantisation.
    pub file: Option<String>,
    /// A branch, tag or commit; `main` when absent.
    pub revision: Option<String>,
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(text: &str) -> Result<Wanted, Error> {
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        let wrong = |what: &'static str| Error::Name { text: text.to_owned(), what };
        if text.contains("://") {
            return Err(wrong(
                "expected owner/name, not an address; HF_ENDPOINT names another hub",
            ));
        }
        let parts: Vec<&str> = repo.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            return Err(wrong("expected owner/name, in letters, digits, '-', '_' and '.'"));
        }
        if file.is_some_and(|file| !is_path(file)) {
            return Err(wrong("behind the ':' stands a file's name, such as model-q4_k_m.gguf"));
        }
        Ok(Wanted { repo: repo.to_owned(), file: file.map(str::to_owned), revision: None })
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// A name that is safe as a part of an address and of a path.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() <= 200 && !text.starts_with('.') && text.chars().all(plain)
}

/// A path inside a repository that stays inside a folder.
pub(crate) fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+=@,()".contains(c);
    let part = |part: &str| {
        !matches!(part, "" | "." | "..") && part.len() <= 200 && part.chars().all(plain)
    };
    text.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_what_is_none_is_refused() {
        let wanted: Wanted = "owner/a-model_1.5:sub/x.Q4_K_M.gguf".parse().unwrap();
        assert_eq!(
            (wanted.repo.as_str(), wanted.file.as_deref()),
            ("owner/a-model_1.5", Some("sub/x.Q4_K_M.gguf"))
        );
        assert_eq!(wanted.to_string(), "owner/a-model_1.5:sub/x.Q4_K_M.gguf");
        assert_eq!("gpt2".parse::<Wanted>().unwrap().file, None);
        for bad in [
            "",
            "/",
            "a/",
            "a/b/c",
            "../x",
            "a/..",
            "a b/c",
            "https://hub.example/a/b",
            "a/b:",
            "a/b:/etc/x",
            "a/b:../x",
            "a/b:x\u{0}",
            ".hidden/x",
            "a/b:c?d",
            "a/b:c#d",
        ] {
            let error = bad.parse::<Wanted>().map(|w| w.to_string());
            assert!(error.is_err(), "{bad:?} {error:?}");
        }
    }
}
