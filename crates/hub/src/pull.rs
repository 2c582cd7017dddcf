//! Fetching: ask what is there, take what the cache lacks, check what came.

use crate::choose::{Chosen, choose};
use crate::wanted::{is_name, is_path};
use crate::{Error, Place, Wanted};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo, Metadata};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How far a file is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The file.
    pub file: &'a str,
    /// Bytes that are here.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What is here now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The model: a GGUF file, or a folder.
    pub model: PathBuf,
    /// All its files.
    pub files: Vec<PathBuf>,
    /// The commit.
    pub commit: String,
    /// Bytes that came over the network.
    pub fetched_bytes: u64,
    /// Why only the cache was used; the hub was asked when absent.
    pub offline: Option<String>,
}

/// A hub with its cache.
pub struct Hub {
    place: Place,
    api: Api,
}

/// Is told how far it is.
type Watch<'w> = dyn FnMut(Progress<'_>) + 'w;

/// What the library tells, handed on.
struct Told<'a, 'w> {
    file: &'a str,
    done: u64,
    total: u64,
    watch: &'a mut Watch<'w>,
}

impl hf_hub::api::Progress for &mut Told<'_, '_> {
    fn init(&mut self, size: usize, _: &str) {
        (self.done, self.total) = (0, size as u64);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        (self.watch)(Progress { file: self.file, done: self.done, total: self.total });
    }

    fn finish(&mut self) {}
}

impl Hub {
    /// A hub at a place.
    ///
    /// # Errors
    /// When the library cannot be set up.
    pub fn new(place: Place) -> Result<Hub, Error> {
        let api = ApiBuilder::from_cache(Cache::new(place.cache.clone()))
            .with_endpoint(place.endpoint.clone())
            .with_token(place.token.clone())
            .with_progress(false)
            .with_user_agent("autoreg", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|e| Error::Answer { what: place.endpoint.clone(), reason: e.to_string() })?;
        Ok(Hub { place, api })
    }

    /// Fetches what is wanted and is not here. Without a network, or when told so, what is in the
    /// cache is the answer.
    ///
    /// # Errors
    /// [`Error`] says what is missing or failed.
    pub fn pull(&self, wanted: &Wanted, watch: &mut Watch<'_>) -> Result<Pulled, Error> {
        if self.place.offline {
            return self.cached(wanted, "the hub was not asked (offline)".to_owned());
        }
        let repo = self.api.repo(repo_of(wanted));
        let info = match repo.info() {
            Ok(info) => info,
            Err(error) => match self.told(&wanted.repo, &error) {
                Error::Broken { reason, .. } => {
                    let reason = format!("the hub cannot be reached ({reason})");
                    return self.cached(wanted, reason);
                }
                other => return Err(other),
            },
        };
        if !is_name(&info.sha) {
            let reason = format!("commit {:?}", info.sha);
            return Err(Error::Answer { what: wanted.repo.clone(), reason });
        }
        let names = info.siblings.into_iter().map(|file| file.rfilename);
        // Names that are no plain paths are nobody's model.
        let names: Vec<String> = names.filter(|name| is_path(name)).collect();
        let chosen = choose(wanted, &names)?;
        let mut fetched = 0;
        for name in &chosen.files {
            fetched += self.fetch(&repo, wanted, name, watch)?;
        }
        let cache = self.cache_of(wanted);
        self.pulled(&cache.pointer_path(&info.sha), &chosen, info.sha, fetched, None)
    }

    fn cache_of(&self, wanted: &Wanted) -> CacheRepo {
        Cache::new(self.place.cache.clone()).repo(repo_of(wanted))
    }

    fn pulled(
        &self,
        folder: &Path,
        chosen: &Chosen,
        commit: String,
        fetched_bytes: u64,
        offline: Option<String>,
    ) -> Result<Pulled, Error> {
        let files: Vec<PathBuf> = chosen.files.iter().map(|name| folder.join(name)).collect();
        if let Some(path) = files.iter().find(|path| !path.exists()) {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(Error::Io { path: path.clone(), source });
        }
        let model = chosen.model.as_ref().map_or(folder.to_owned(), |name| folder.join(name));
        Ok(Pulled { model, files, commit, fetched_bytes, offline })
    }

    /// Makes sure that one file is in the cache; the bytes that were fetched for it.
    fn fetch(
        &self,
        repo: &ApiRepo,
        wanted: &Wanted,
        name: &str,
        watch: &mut Watch<'_>,
    ) -> Result<u64, Error> {
        let what = format!("{}:{name}", wanted.repo);
        let told = |error: &ApiError| self.told(&what, error);
        let about = self.api.metadata(&repo.url(name)).map_err(|e| told(&e))?;
        if !is_name(about.etag()) || !is_name(about.commit_hash()) {
            let reason = format!("etag {:?}, commit {:?}", about.etag(), about.commit_hash());
            return Err(Error::Answer { what, reason });
        }
        let cache = self.cache_of(wanted);
        let blob = cache.blob_path(about.etag());
        let pointer = cache.pointer_path(about.commit_hash()).join(name);
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        if fs::metadata(&blob).is_ok_and(|m| m.len() == about.size() as u64) {
            point(&blob, about.etag(), name, &pointer).map_err(io(&pointer))?;
            cache.create_ref(about.commit_hash()).map_err(io(&pointer))?;
            return Ok(0);
        }
        let part = blob.with_extension("part");
        let here = ready_to_resume(&part, &about).map_err(io(&part))?;
        let mut bar = Told { file: name, done: 0, total: 0, watch };
        repo.download_with_progress(name, &mut bar).map_err(|e| told(&e))?;
        if let Some(reason) = wrong_content(&blob, &about).map_err(io(&blob))? {
            drop(fs::remove_file(&pointer));
            drop(fs::remove_file(&blob));
            return Err(Error::Content { path: blob, reason });
        }
        Ok(about.size() as u64 - here)
    }

    /// What is in the cache of the commit that it knows as the revision.
    fn cached(&self, wanted: &Wanted, reason: String) -> Result<Pulled, Error> {
        let absent = || Error::NotCached {
            what: wanted.to_string(),
            cache: self.place.cache.clone(),
            reason: reason.clone(),
        };
        let repo = repo_of(wanted);
        let named = self.place.cache.join(repo.folder_name()).join("refs").join(repo.revision());
        let commit = match fs::read_to_string(&named) {
            Ok(commit) => commit.trim().to_owned(),
            // A commit is its own name.
            Err(_) => repo.revision().to_owned(),
        };
        let folder = self.cache_of(wanted).pointer_path(&commit);
        let mut names = Vec::new();
        list(&folder, "", &mut names);
        if !is_name(&commit) || names.is_empty() {
            return Err(absent());
        }
        names.sort();
        let chosen = choose(wanted, &names).map_err(|_| absent())?;
        self.pulled(&folder, &chosen, commit, 0, Some(reason))
    }

    /// An error of the library in our words.
    fn told(&self, what: &str, error: &ApiError) -> Error {
        let what = what.to_owned();
        match error {
            ApiError::RequestError(inner) => match **inner {
                ureq::Error::StatusCode(status) if status < 500 => {
                    let endpoint = self.place.endpoint.clone();
                    Error::Refused { what, endpoint, status, advice: self.advice(status) }
                }
                ref other => Error::Broken { what, reason: one_line(&other.to_string()) },
            },
            ApiError::MissingHeader(_)
            | ApiError::InvalidHeader(_)
            | ApiError::ParseIntError(_) => Error::Answer { what, reason: error.to_string() },
            other => Error::Broken { what, reason: one_line(&other.to_string()) },
        }
    }

    fn advice(&self, status: u16) -> &'static str {
        match (status, &self.place.token) {
            (401, None) => {
                "there is no such repository, or it is not public: check the name, or put a token in \
                 HF_TOKEN or the file that `hf auth login` writes"
            }
            (401, Some(_)) => "the token is not accepted, or there is no such repository",
            (403, _) => {
                "this account may not read it; its page says whether terms must be accepted"
            }
            (404, _) => "there is no such repository, revision or file; check the name",
            (429, _) => "too many requests; wait a little",
            _ => "the request was refused",
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn repo_of(wanted: &Wanted) -> Repo {
    let revision = wanted.revision.clone().unwrap_or_else(|| "main".to_owned());
    Repo::with_revision(wanted.repo.clone(), RepoType::Model, revision)
}

/// The names of all files below a folder.
fn list(folder: &Path, before: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = format!("{before}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            list(&entry.path(), &format!("{name}/"), names);
        } else {
            names.push(name);
        }
    }
}

/// A name in a commit's folder for content that is here: a link, so that the cache can be moved.
fn point(blob: &Path, etag: &str, name: &str, pointer: &Path) -> io::Result<()> {
    if pointer.exists() {
        return Ok(());
    }
    fs::create_dir_all(pointer.parent().unwrap_or(pointer))?;
    let up = "../".repeat(name.split('/').count() + 1);
    #[cfg(unix)]
    let made = std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), pointer);
    #[cfg(not(unix))]
    let made = fs::copy(blob, pointer).map(|_| drop((up, etag)));
    // Whatever links cannot do here, a copy can.
    made.or_else(|_| fs::copy(blob, pointer).map(drop))
}

/// Leaves a part that the library can go on with: shorter than the whole, or none. The bytes of it.
fn ready_to_resume(part: &Path, about: &Metadata) -> io::Result<u64> {
    let size = about.size() as u64;
    match fs::metadata(part).map(|m| m.len()) {
        Err(_) => Ok(0),
        Ok(here) if here < size => Ok(here),
        // All there but not taken over: one byte is asked for once more.
        Ok(here) if here == size && size > 0 => {
            File::options().write(true).open(part)?.set_len(size - 1)?;
            Ok(size - 1)
        }
        Ok(_) => fs::remove_file(part).map(|()| 0),
    }
}

/// What does not fit of a file that has come: its size, or the hash that is its name.
fn wrong_content(blob: &Path, about: &Metadata) -> io::Result<Option<String>> {
    let (found, size) = (fs::metadata(blob)?.len(), about.size() as u64);
    if found != size {
        return Ok(Some(format!("{found} bytes came, expected {size}")));
    }
    let is_hash = about.etag().len() == 64 && about.etag().bytes().all(|b| b.is_ascii_hexdigit());
    if !is_hash {
        return Ok(None);
    }
    let (mut file, mut hash, mut piece) = (File::open(blob)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece)? {
            0 => break,
            n => hash.update(&piece[..n]),
        }
    }
    let found = hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let same = found.eq_ignore_ascii_case(about.etag());
    Ok((!same).then(|| format!("its SHA-256 is {found}, expected {}", about.etag())))
}
