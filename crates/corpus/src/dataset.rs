//! A prepared data set, opened.

use crate::{
    Error, Manifest, TokenFile,
    error::IoContext,
    manifest::{FORMAT, FORMAT_VERSION, SideInfo},
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tokenizer::Tokenizer;

/// One of the three sides of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// What models learn from.
    Train,
    /// What choices are made on.
    Valid,
    /// What results are measured on.
    Test,
}

impl Side {
    /// All sides, in the order in which they claim messages.
    pub const ALL: [Side; 3] = [Side::Train, Side::Valid, Side::Test];

    /// `train`, `valid` or `test`.
    pub fn name(self) -> &'static str {
        match self {
            Side::Train => "train",
            Side::Valid => "valid",
            Side::Test => "test",
        }
    }

    /// The name of the side's token file.
    pub fn file_name(self) -> String {
        format!("{}.tokens", self.name())
    }
}

/// A folder made by [`prepare`](crate::prepare()).
#[derive(Debug)]
pub struct Dataset {
    dir: PathBuf,
    manifest: Manifest,
    tokenizer: Tokenizer,
    files: [TokenFile; 3],
    group_names: Vec<String>,
}

impl Dataset {
    /// Opens a data set and checks that its parts belong together.
    ///
    /// # Errors
    /// A part is missing, foreign, cut, or not the one the manifest names.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let manifest = read_manifest(dir)?;
        let fail = |what: String| Error::Manifest { path: dir.join("manifest.json"), what };
        let tokenizer = Tokenizer::from_file(&dir.join("tokenizer.json"))?;
        if tokenizer.sha256() != manifest.vocabulary.sha256 {
            return Err(fail(format!(
                "it names tokenizer {}, but tokenizer.json is {}",
                manifest.vocabulary.sha256,
                tokenizer.sha256()
            )));
        }
        let open = |side: Side| TokenFile::open(&dir.join(side.file_name()));
        let files = [open(Side::Train)?, open(Side::Valid)?, open(Side::Test)?];
        for (side, file) in Side::ALL.iter().zip(&files) {
            let info = manifest.side(*side);
            let found = (file.len() as u64, file.num_tokens() as u64, file.vocab_size());
            let named = (info.messages, info.tokens, manifest.vocabulary.size);
            if found != named {
                return Err(fail(format!(
                    "it names (messages, tokens, vocabulary) {named:?} for {}, but the file has {found:?}",
                    side.name()
                )));
            }
            if crate::hash::hex(file.body_sha256()) != info.body_sha256 {
                let what = format!("{} is not the file it names (another hash)", side.file_name());
                return Err(fail(what));
            }
        }
        let group_names = read_groups(dir)?;
        if group_names.len() as u64 != manifest.groups {
            let (named, found) = (manifest.groups, group_names.len());
            return Err(fail(format!("it names {named} groups, but groups.tsv has {found}")));
        }
        Ok(Self { dir: dir.to_owned(), manifest, tokenizer, files, group_names })
    }

    /// Checks the hashes of everything: reads all files whole.
    ///
    /// # Errors
    /// A file is not what the manifest says.
    pub fn verify(&self) -> Result<(), Error> {
        for side in Side::ALL {
            self.side(side).verify()?;
            let path = self.dir.join(side.file_name());
            let bytes = fs::File::open(&path).at("open", &path)?;
            let found = crate::hash::sha256_of(bytes).at("read", &path)?;
            if found != self.manifest.side(side).sha256 {
                return Err(Error::TokenFile {
                    path,
                    what: "its hash is not the manifest's".into(),
                });
            }
        }
        Ok(())
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it is and how it came to be.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The sequences of a side.
    pub fn side(&self, side: Side) -> &TokenFile {
        &self.files[side as usize]
    }

    /// The names of all groups; [`TokenFile::group`] is an index into them. A group is on one side
    /// only.
    pub fn group_names(&self) -> &[String] {
        &self.group_names
    }
}

impl Manifest {
    /// The counts of a side.
    pub fn side(&self, side: Side) -> &SideInfo {
        match side {
            Side::Train => &self.sides.train,
            Side::Valid => &self.sides.valid,
            Side::Test => &self.sides.test,
        }
    }

    pub(crate) fn side_mut(&mut self, side: Side) -> &mut SideInfo {
        match side {
            Side::Train => &mut self.sides.train,
            Side::Valid => &mut self.sides.valid,
            Side::Test => &mut self.sides.test,
        }
    }
}

/// Reads and checks the manifest of a folder.
///
/// # Errors
/// There is none, or it is foreign or of another version.
pub fn read_manifest(dir: &Path) -> Result<Manifest, Error> {
    let path = dir.join("manifest.json");
    let text = fs::read(&path).at("read", &path)?;
    let fail = |what: String| Error::Manifest { path: path.clone(), what };
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| fail(e.to_string()))?;
    let (format, version) = (&value["format"], &value["format_version"]);
    if format != FORMAT || *version != FORMAT_VERSION {
        return Err(fail(format!(
            "expected format \"{FORMAT}\" version {FORMAT_VERSION}, found {format} version {version}"
        )));
    }
    serde_json::from_value(value).map_err(|e| fail(e.to_string()))
}

fn read_groups(dir: &Path) -> Result<Vec<String>, Error> {
    let path = dir.join("groups.tsv");
    let text = fs::read_to_string(&path).at("read", &path)?;
    let name = |line: &str| line.split('\t').nth(2).unwrap_or_default().to_owned();
    Ok(text.lines().skip(1).map(name).collect())
}
