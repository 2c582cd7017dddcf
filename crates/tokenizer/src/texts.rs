//! The texts of a vocabulary by id, end to end in one string.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Texts by id. Ids may have gaps.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    all: String,
    /// Where each text ends.
    ends: Vec<usize>,
    /// Ids without a text, ascending.
    gaps: Vec<u32>,
}

impl Texts {
    pub(crate) fn push(&mut self, text: Option<&str>) {
        if text.is_none() {
            self.gaps.push(self.ends.len() as u32);
        }
        self.all.push_str(text.unwrap_or_default());
        self.ends.push(self.all.len());
    }

    /// One more than the highest id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&str> {
        let at = id as usize;
        let end = *self.ends.get(at)?;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        if start == end && self.gaps.binary_search(&id).is_ok() {
            return None;
        }
        self.all.get(start..end)
    }
}

impl<'a> FromIterator<Option<&'a str>> for Texts {
    fn from_iter<I: IntoIterator<Item = Option<&'a str>>>(texts: I) -> Self {
        let mut all = Texts::default();
        texts.into_iter().for_each(|text| all.push(text));
        all.all.shrink_to_fit();
        all.ends.shrink_to_fit();
        all
    }
}

/// Texts that can be looked up: four bytes an id beside the texts themselves.
#[derive(Debug)]
pub(crate) struct Lookup {
    texts: Texts,
    ids: HashTable<u32>,
    hash: DefaultHashBuilder,
    longest: usize,
}

impl Lookup {
    /// Of equal texts the last counts, as in the library's maps.
    pub(crate) fn new(texts: Texts) -> Self {
        let hash = DefaultHashBuilder::default();
        let text = |id: u32| texts.get(id).unwrap_or_default();
        let mut ids = HashTable::with_capacity(texts.len());
        let mut longest = 0;
        for id in 0..texts.len() as u32 {
            let Some(own) = texts.get(id) else { continue };
            longest = longest.max(own.len());
            let entry = ids.entry(
                hash.hash_one(own),
                |&other| text(other) == own,
                |&other| hash.hash_one(text(other)),
            );
            *entry.or_insert(id).get_mut() = id;
        }
        Self { texts, ids, hash, longest }
    }

    pub(crate) fn texts(&self) -> &Texts {
        &self.texts
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        if text.len() > self.longest {
            return None;
        }
        let equal = |&id: &u32| self.texts.get(id) == Some(text);
        self.ids.find(self.hash.hash_one(text), equal).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_empty_texts_differ() {
        let texts: Texts = [Some("a"), None, Some(""), Some("bc"), None].into_iter().collect();
        let all: Vec<Option<&str>> = (0..6).map(|id| texts.get(id)).collect();
        assert_eq!(all, [Some("a"), None, Some(""), Some("bc"), None, None]);
        assert_eq!(texts.len(), 5);
    }

    #[test]
    fn the_last_of_equal_texts_is_found() {
        let lookup = Lookup::new(["x", "y", "x"].map(Some).into_iter().collect());
        assert_eq!(lookup.id("x"), Some(2));
        assert_eq!(lookup.id("y"), Some(1));
        assert_eq!(lookup.id("z"), None);
        assert_eq!(lookup.id("a longer one"), None);
        assert_eq!(lookup.texts().get(0), Some("x"));
    }
}
