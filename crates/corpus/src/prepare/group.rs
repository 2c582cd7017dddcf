//! Groups: by name, or threads by what connects messages.

use crate::{
    Error,
    hash::quick,
    scratch::{Scratch, ScratchWriter, part_of, parts},
};
use std::{collections::HashMap, path::Path};

/// Gives an index to each name.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    pub(super) fn id(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = self.names.len() as u32;
        self.ids.insert(name.to_owned(), id);
        self.names.push(name.to_owned());
        id
    }

    pub(super) fn into_names(self) -> Vec<String> {
        self.names
    }
}

/// Connects messages that share an id, a reference or a subject: union–find over hashes of them.
///
/// Hashes wait on disk. When threads are closed, memory holds 4 bytes a message, about 70 a thread
/// and a table of those hashes that fit.
#[derive(Debug)]
pub(super) struct Threads {
    /// 12 bytes a key: its hash and the node of its message.
    keys: ScratchWriter,
    /// 8 bytes a node: the hash of its text.
    texts: ScratchWriter,
    nodes: u32,
}

impl Threads {
    pub(super) fn create(dir: &Path) -> Result<Self, Error> {
        let keys = ScratchWriter::create(&dir.join("keys.tmp"))?;
        Ok(Self { keys, texts: ScratchWriter::create(&dir.join("nodes.tmp"))?, nodes: 0 })
    }

    /// A message and what it hangs together with; gives its node.
    pub(super) fn add<'k>(
        &mut self,
        keys: impl Iterator<Item = (Key, &'k str)>,
        text_hash: u64,
    ) -> Result<u32, Error> {
        let node = self.nodes;
        self.nodes += 1;
        self.texts.push(&text_hash.to_le_bytes())?;
        for (kind, key) in keys {
            let hash = quick(key.as_bytes()) ^ kind as u64;
            self.keys.push(&hash.to_le_bytes())?;
            self.keys.push(&node.to_le_bytes())?;
        }
        Ok(node)
    }

    /// The thread of every node, and the names of threads. A thread is named after the smallest hash
    /// of its texts and keys, which does not depend on the order of the input.
    pub(super) fn close(self, memory: usize) -> Result<(Vec<u32>, Vec<String>), Error> {
        let (keys, texts) = (self.keys.finish()?, self.texts.finish()?);
        let mut parent: Vec<u32> = (0..self.nodes).collect();
        connect(&keys, memory, &mut parent)?;
        // A parent has a lower number, so in order each finds the thread of its parent in its place.
        let mut thread = parent;
        let mut least: Vec<u64> = Vec::new();
        for node in 0..thread.len() {
            let parent = thread[node] as usize;
            thread[node] = if parent == node { least.len() as u32 } else { thread[parent] };
            if parent == node {
                least.push(u64::MAX);
            }
        }
        let mut lower = |node: usize, hash: u64| {
            let least = &mut least[thread[node] as usize];
            *least = hash.min(*least);
        };
        for (node, hash) in texts.records().enumerate() {
            lower(node, u64::from_le_bytes(hash?));
        }
        for key in keys.records() {
            let (hash, node) = split_key(key?);
            lower(node as usize, hash);
        }
        let mut names = least.clone();
        names.sort_unstable();
        names.dedup();
        for thread in &mut thread {
            *thread = names.partition_point(|&name| name < least[*thread as usize]) as u32;
        }
        Ok((thread, names.iter().map(|name| format!("thread-{name:016x}")).collect()))
    }
}

/// Unites the nodes of each key, one part of the hashes after the other.
fn connect(keys: &Scratch, memory: usize, parent: &mut [u32]) -> Result<(), Error> {
    /// Bytes of an entry of a hash map, most of the time; it is at least 7/16 full.
    const ENTRY: usize = 40;
    let (parts, room) = parts(keys.count::<KEY>(), ENTRY, memory);
    let mut first = HashMap::with_capacity(room);
    for part in 0..parts {
        first.clear();
        for key in keys.records() {
            let (hash, node) = split_key(key?);
            if part_of(hash, parts) == part {
                unite(parent, node, *first.entry(hash).or_insert(node));
            }
        }
    }
    Ok(())
}

/// Bytes of a key on disk.
const KEY: usize = 12;

/// The hash and the node of a key.
fn split_key(key: [u8; KEY]) -> (u64, u32) {
    let n = key.iter().rev().fold(0u128, |n, &byte| n << 8 | u128::from(byte));
    (n as u64, (n >> 64) as u32)
}

fn root(parent: &mut [u32], mut node: u32) -> u32 {
    while parent[node as usize] != node {
        let above = parent[parent[node as usize] as usize];
        parent[node as usize] = above;
        node = above;
    }
    node
}

fn unite(parent: &mut [u32], a: u32, b: u32) {
    let (a, b) = (root(parent, a), root(parent, b));
    parent[a.max(b) as usize] = a.min(b);
}

/// What kind of key connects messages.
#[derive(Debug, Clone, Copy)]
pub(super) enum Key {
    /// A message id, of the message itself or of one it refers to.
    Id = 0x1D,
    /// A normalised subject.
    Subject = 0x5B,
}

/// A subject without `Re:`, `Fwd:` and their kin, lower-cased, white space single. Empty when nothing
/// is left; that connects nothing.
pub(super) fn normal_subject(subject: &str) -> String {
    const PREFIXES: [&str; 12] =
        ["re", "fw", "fwd", "aw", "wg", "sv", "vs", "antw", "tr", "rv", "res", "r"];
    let mut rest = subject.trim();
    loop {
        let cut = rest.split_once(':').filter(|(prefix, _)| {
            let word =
                prefix.trim().trim_end_matches(|c: char| c.is_ascii_digit() || "[]()".contains(c));
            PREFIXES.iter().any(|p| word.eq_ignore_ascii_case(p))
        });
        match cut {
            Some((_, after)) => rest = after.trim_start(),
            None => break,
        }
    }
    rest.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn subjects() {
        for (subject, normal) in [
            ("Re: FW: Re[2]: The  Plan", "the plan"),
            ("RE:", ""),
            ("Report: May", "report: may"),
            ("re :aw: x", "x"),
        ] {
            assert_eq!(normal_subject(subject), normal);
        }
    }

    proptest! {
        #[test]
        fn threads_are_the_connected_parts(
            keys in prop::collection::vec(prop::collection::vec(0u8..20, 0..3), 1..30),
            memory in 1usize..2_000,
        ) {
            let find = |order: &[usize], memory: usize| {
                let dir = tempfile::tempdir().unwrap();
                let mut threads = Threads::create(dir.path()).unwrap();
                let mut node = vec![0; keys.len()];
                for &i in order {
                    let names: Vec<String> = keys[i].iter().map(|k| k.to_string()).collect();
                    node[i] = threads.add(names.iter().map(|k| (Key::Id, k.as_str())), i as u64 | 1 << 63)
                        .unwrap();
                }
                let (ids, names) = threads.close(memory).unwrap();
                node.iter().map(|&n| names[ids[n as usize] as usize].clone()).collect::<Vec<_>>()
            };
            let order: Vec<usize> = (0..keys.len()).collect();
            let reversed: Vec<usize> = order.iter().rev().copied().collect();
            let names = find(&order, memory);
            prop_assert_eq!(&names, &find(&reversed, 1 << 20));
            for i in 0..keys.len() {
                for j in 0..keys.len() {
                    if keys[i].iter().any(|k| keys[j].contains(k)) {
                        prop_assert_eq!(&names[i], &names[j]);
                    }
                }
                if keys[i].is_empty() {
                    prop_assert_eq!(names.iter().filter(|n| **n == names[i]).count(), 1);
                }
            }
        }
    }
}
