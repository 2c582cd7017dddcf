//! Where files and the token are, by the variables that the hub's own programs use.

use crate::Error;
use std::path::{Path, PathBuf};

/// The cache, the token and the hub's address.
#[derive(Clone)]
pub struct Place {
    /// The folder that holds one folder a repository.
    pub cache: PathBuf,
    /// Who asks; nobody when absent.
    pub token: Option<String>,
    /// The hub's address.
    pub endpoint: String,
    /// Whether only the cache is to be used.
    pub offline: bool,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is nobody's business.
        let token = self.token.as_ref().map(|_| "…");
        let (cache, endpoint, offline) = (&self.cache, &self.endpoint, self.offline);
        write!(
            f,
            "Place {{ cache: {cache:?}, token: {token:?}, endpoint: {endpoint:?}, offline: {offline} }}"
        )
    }
}

impl Place {
    /// From `HF_HUB_CACHE` or `HF_HOME` (`~/.cache/huggingface` otherwise), `HF_TOKEN` or the token
    /// file, `HF_ENDPOINT`, `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// [`Error::NoHome`] when nothing says where the cache is.
    pub fn from_env() -> Result<Place, Error> {
        Place::from_variables(&|name| std::env::var(name).ok(), std::env::home_dir())
    }

    /// The same from any variables.
    pub(crate) fn from_variables(
        variable: &dyn Fn(&str) -> Option<String>,
        user: Option<PathBuf>,
    ) -> Result<Place, Error> {
        let set =
            |name: &str| variable(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let caches = set("XDG_CACHE_HOME").map(PathBuf::from);
        let caches = caches.or_else(|| user.map(|home| home.join(".cache")));
        let home = set("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| caches.map(|caches| caches.join("huggingface")));
        let cache = set("HF_HUB_CACHE").map(PathBuf::from);
        let cache = cache.or_else(|| home.as_ref().map(|home| home.join("hub")));
        let cache = cache.ok_or(Error::NoHome)?;
        let cache =
            std::path::absolute(&cache).map_err(|source| Error::Io { path: cache, source })?;
        let file =
            set("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| home.map(|h| h.join("token")));
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN"));
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let offline = set("HF_HUB_OFFLINE")
            .is_some_and(|v| ["1", "true", "yes", "on"].contains(&v.to_ascii_lowercase().as_str()));
        Ok(Place {
            cache,
            token: token.or_else(|| file.and_then(|file| token_in(&file))),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            offline,
        })
    }
}

fn token_in(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Place, Error> {
        let find = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let home = find("HOME").map(PathBuf::from);
        Place::from_variables(&find, home)
    }

    #[test]
    fn the_usual_variables_say_where_things_are() {
        let cache = |variables: &[(&str, &str)]| place(variables).unwrap().cache;
        assert_eq!(cache(&[("HOME", "/h")]), Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(
            cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]),
            Path::new("/x/huggingface/hub")
        );
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/f")]), Path::new("/f/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert!(matches!(place(&[]), Err(Error::NoHome)));
        let far = place(&[("HOME", "/h"), ("HF_ENDPOINT", "http://x:1/"), ("HF_HUB_OFFLINE", "1")]);
        let far = far.unwrap();
        assert_eq!((far.endpoint.as_str(), far.offline), ("http://x:1", true));
    }

    #[test]
    fn the_token_is_in_a_variable_or_a_file_and_is_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        assert_eq!(place(&[("HF_HOME", home)]).unwrap().token, None);
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let token = |more: &[(&str, &str)]| {
            place(&[&[("HF_HOME", home)], more].concat()).unwrap().token.unwrap()
        };
        assert_eq!(token(&[]), "hf_file");
        assert_eq!(token(&[("HF_TOKEN", "hf_variable")]), "hf_variable");
        assert_eq!(token(&[("HUGGING_FACE_HUB_TOKEN", "hf_old")]), "hf_old");
        let shown = format!("{:?}", place(&[("HF_HOME", home)]).unwrap());
        assert!(!shown.contains("hf_file"), "{shown}");
    }
}
