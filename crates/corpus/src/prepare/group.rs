//! Groups: by name, or threads by what connects messages.

use crate::hash::quick;
use std::collections::HashMap;

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
#[derive(Debug, Default)]
pub(super) struct Threads {
    parent: Vec<u32>,
    /// The smallest hash of a key in the set of a root: its name, whatever the order of the input.
    least: Vec<u64>,
    keys: HashMap<u64, u32>,
}

impl Threads {
    /// A message and what it hangs together with; gives its node.
    pub(super) fn add<'k>(
        &mut self,
        keys: impl Iterator<Item = (Key, &'k str)>,
        text_hash: u64,
    ) -> u32 {
        let node = self.parent.len() as u32;
        self.parent.push(node);
        self.least.push(text_hash);
        for (kind, key) in keys {
            let hash = quick(key.as_bytes()) ^ kind as u64;
            let root = self.root(node);
            self.least[root as usize] = self.least[root as usize].min(hash);
            match self.keys.get(&hash).copied() {
                Some(other) => self.union(node, other),
                None => {
                    self.keys.insert(hash, node);
                }
            }
        }
        node
    }

    fn root(&mut self, mut node: u32) -> u32 {
        while self.parent[node as usize] != node {
            let above = self.parent[self.parent[node as usize] as usize];
            self.parent[node as usize] = above;
            node = above;
        }
        node
    }

    fn union(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        let (low, high) = (a.min(b), a.max(b));
        self.parent[high as usize] = low;
        self.least[low as usize] = self.least[low as usize].min(self.least[high as usize]);
    }

    /// The thread of every node, by a name that does not depend on the order of the input.
    pub(super) fn close(mut self) -> (Vec<u32>, Vec<String>) {
        self.keys = HashMap::new();
        let mut names = Names::default();
        let nodes = 0..self.parent.len() as u32;
        let ids = nodes
            .map(|node| {
                let root = self.root(node);
                names.id(&format!("thread-{:016x}", self.least[root as usize]))
            })
            .collect();
        (ids, names.into_names())
    }
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
        fn threads_are_the_connected_parts(keys in prop::collection::vec(prop::collection::vec(0u8..20, 0..3), 1..30)) {
            let find = |order: &[usize]| {
                let mut threads = Threads::default();
                let mut node = vec![0; keys.len()];
                for &i in order {
                    let names: Vec<String> = keys[i].iter().map(|k| k.to_string()).collect();
                    node[i] = threads.add(names.iter().map(|k| (Key::Id, k.as_str())), i as u64 | 1 << 63);
                }
                let (ids, names) = threads.close();
                node.iter().map(|&n| names[ids[n as usize] as usize].clone()).collect::<Vec<_>>()
            };
            let order: Vec<usize> = (0..keys.len()).collect();
            let reversed: Vec<usize> = order.iter().rev().copied().collect();
            let names = find(&order);
            prop_assert_eq!(&names, &find(&reversed));
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
