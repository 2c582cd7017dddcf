//! Pages of K/V as numbers: who holds which, what they contain, which may be taken.
//!
//! A page is held by as many tables as it counts. One that nobody holds is free; if its content is
//! known it is kept until its place is needed, the one released longest ago first. Content is known
//! by a key over all tokens from the beginning of the text, so equal keys mean equal K/V.

use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};

/// A page's number in the pool.
pub type PageId = u32;

/// Names the content of a full page: a hash over its tokens and all before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageKey([u8; 32]);

impl PageKey {
    /// Where every chain with this salt begins. Texts with different salts share nothing.
    #[must_use]
    pub fn root(salt: &str) -> Self {
        Self(Sha256::digest(salt.as_bytes()).into())
    }

    /// The key of the page that holds `tokens` and follows this one.
    #[must_use]
    pub fn then(&self, tokens: &[u32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        Self(hash.finalize().into())
    }
}

/// The books do not add up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolFault {
    /// A page is held more or less often than counted.
    #[error("page {page}: counted {counted} times, held by {held} tables")]
    Count {
        /// The page.
        page: PageId,
        /// As the pool has it.
        counted: u32,
        /// As the tables say.
        held: u32,
    },
    /// A page is free and held, or neither.
    #[error("page {page}: held by {held} tables, {times} times among the free")]
    Free {
        /// The page.
        page: PageId,
        /// As the tables say.
        held: u32,
        /// Places among the free.
        times: u32,
    },
    /// A key leads to a page that does not have it.
    #[error("page {page}: found by a key that it does not have")]
    Key {
        /// The page.
        page: PageId,
    },
}

#[derive(Debug, Clone, Default)]
struct Page {
    /// Tables that hold it.
    users: u32,
    key: Option<PageKey>,
    /// When it was released, where it is kept.
    released: u64,
}

/// A fixed number of pages of a fixed number of tokens.
#[derive(Debug, Clone)]
pub struct PagePool {
    page_tokens: usize,
    pages: Vec<Page>,
    by_key: HashMap<PageKey, PageId>,
    /// Free, content unknown.
    blank: Vec<PageId>,
    /// Free, content known, by the time of release.
    kept: BTreeMap<u64, PageId>,
    releases: u64,
    evictions: u64,
}

impl PagePool {
    /// A pool in which every page is free.
    #[must_use]
    pub fn new(pages: usize, page_tokens: usize) -> Self {
        let pages = pages.min(PageId::MAX as usize);
        Self {
            page_tokens: page_tokens.max(1),
            pages: vec![Page::default(); pages],
            by_key: HashMap::new(),
            blank: (0..pages as PageId).rev().collect(),
            kept: BTreeMap::new(),
            releases: 0,
            evictions: 0,
        }
    }

    /// Tokens that a page holds.
    #[must_use]
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Pages in all.
    #[must_use]
    pub fn num_pages(&self) -> usize {
        self.pages.len()
    }

    /// Pages that may be taken, those with known content among them.
    #[must_use]
    pub fn num_free(&self) -> usize {
        self.blank.len() + self.kept.len()
    }

    /// Free pages whose content is kept for whoever asks for it.
    #[must_use]
    pub fn num_kept(&self) -> usize {
        self.kept.len()
    }

    /// Kept pages whose place was needed, since the beginning.
    #[must_use]
    pub fn num_evictions(&self) -> u64 {
        self.evictions
    }

    /// Pages that so many tokens take.
    #[must_use]
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// Takes a page whose content does not matter; none when all are held.
    pub fn take(&mut self) -> Option<PageId> {
        let page = match self.blank.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.kept.pop_first()?;
                self.evictions += 1;
                self.forget(page);
                page
            }
        };
        self.pages[page as usize].users = 1;
        Some(page)
    }

    /// The page with this content, if there is one.
    #[must_use]
    pub fn find(&self, key: &PageKey) -> Option<PageId> {
        self.by_key.get(key).copied()
    }

    /// What a page is known to contain.
    #[must_use]
    pub fn key(&self, page: PageId) -> Option<PageKey> {
        self.pages[page as usize].key
    }

    /// Whether taking hold of a page would leave one free page fewer.
    #[must_use]
    pub fn is_free(&self, page: PageId) -> bool {
        self.pages[page as usize].users == 0
    }

    /// Takes hold of a found page, beside those who hold it.
    pub fn hold(&mut self, page: PageId) {
        let entry = &mut self.pages[page as usize];
        if entry.users == 0 {
            self.kept.remove(&entry.released);
        }
        entry.users += 1;
    }

    /// Says what a held page contains. A key that another page has already stays there.
    pub fn name(&mut self, page: PageId, key: PageKey) {
        if let std::collections::hash_map::Entry::Vacant(place) = self.by_key.entry(key) {
            place.insert(page);
            self.pages[page as usize].key = Some(key);
        }
    }

    /// Forgets what a held page contains.
    pub fn forget(&mut self, page: PageId) {
        if let Some(key) = self.pages[page as usize].key.take() {
            self.by_key.remove(&key);
        }
    }

    /// Lets go of a held page.
    pub fn release(&mut self, page: PageId) {
        let entry = &mut self.pages[page as usize];
        debug_assert!(entry.users > 0, "page {page} is released once a hold");
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return;
        }
        if entry.key.is_some() {
            self.releases += 1;
            entry.released = self.releases;
            self.kept.insert(self.releases, page);
        } else {
            self.blank.push(page);
        }
    }

    /// Forgets every kept content.
    pub fn clear_kept(&mut self) {
        for page in std::mem::take(&mut self.kept).into_values() {
            self.forget(page);
            self.blank.push(page);
        }
    }

    /// Holds the books against all tables there are.
    ///
    /// # Errors
    /// The first [`PoolFault`].
    pub fn check<'a>(
        &self,
        tables: impl IntoIterator<Item = &'a [PageId]>,
    ) -> Result<(), PoolFault> {
        let mut held = vec![0_u32; self.pages.len()];
        for &page in tables.into_iter().flatten() {
            held[page as usize] += 1;
        }
        let mut free = vec![0_u32; self.pages.len()];
        self.blank.iter().chain(self.kept.values()).for_each(|&page| free[page as usize] += 1);
        for (id, entry) in self.pages.iter().enumerate() {
            let (page, held, times) = (id as PageId, held[id], free[id]);
            if entry.users != held {
                return Err(PoolFault::Count { page, counted: entry.users, held });
            }
            if times != u32::from(held == 0) {
                return Err(PoolFault::Free { page, held, times });
            }
        }
        let stray = |(key, page): (&PageKey, &PageId)| {
            (self.pages[*page as usize].key != Some(*key)).then_some(*page)
        };
        match self.by_key.iter().find_map(stray) {
            Some(page) => Err(PoolFault::Key { page }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_name_the_whole_text() {
        let root = PageKey::root("");
        assert_eq!(root.then(&[1, 2]).then(&[3]), root.then(&[1, 2]).then(&[3]));
        assert_ne!(root.then(&[1, 2]).then(&[3]), root.then(&[2, 1]).then(&[3]));
        assert_ne!(root.then(&[1]), PageKey::root("mine").then(&[1]));
    }

    #[test]
    fn the_page_released_longest_ago_goes_first() {
        let mut pool = PagePool::new(3, 16);
        let pages: Vec<PageId> = (0..3).map_while(|_| pool.take()).collect();
        assert_eq!(pool.take(), None);
        let keys: Vec<PageKey> = (0..3).map(|i| PageKey::root("").then(&[i])).collect();
        pages.iter().zip(&keys).for_each(|(&page, key)| pool.name(page, *key));
        for i in [1, 0, 2] {
            pool.release(pages[i]);
        }
        assert_eq!((pool.num_free(), pool.num_kept()), (3, 3));
        pool.hold(pages[1]);
        assert_eq!(pool.take(), Some(pages[0]));
        assert_eq!(pool.find(&keys[0]), None, "a recycled page has lost its old content");
        assert_eq!(pool.find(&keys[2]), Some(pages[2]));
        assert_eq!(pool.num_evictions(), 1);
        assert_eq!(pool.check([&[pages[1]][..], &[pages[0]]]), Ok(()));
        let fault = PoolFault::Count { page: pages[0], counted: 1, held: 0 };
        assert_eq!(pool.check([&[pages[1]][..]]), Err(fault));
    }

    #[test]
    fn pages_for_tokens() {
        let pool = PagePool::new(4, 16);
        assert_eq!([0, 1, 15, 16, 17, 32, 33].map(|n| pool.pages_for(n)), [0, 1, 1, 1, 2, 2, 3]);
    }

    proptest! {
        /// Whatever tables do, the books add up, and a found page has what its key says.
        #[test]
        fn the_books_add_up(moves in prop::collection::vec((0..4_u8, 0..6_usize, 0..9_u32), 1..200)) {
            let mut pool = PagePool::new(7, 4);
            let mut tables: Vec<Vec<PageId>> = vec![Vec::new(); 6];
            let mut content: HashMap<PageId, u32> = HashMap::new();
            for (kind, table, what) in moves {
                let key = PageKey::root("").then(&[what]);
                match kind {
                    0 => if let Some(page) = pool.take() {
                        content.remove(&page);
                        tables[table].push(page);
                    },
                    1 => if let Some(page) = pool.find(&key) {
                        prop_assert_eq!(content.get(&page), Some(&what));
                        pool.hold(page);
                        tables[table].push(page);
                    },
                    2 => if let Some(&page) = tables[table].last()
                        && !content.contains_key(&page) && pool.find(&key).is_none() {
                        pool.name(page, key);
                        content.insert(page, what);
                    },
                    _ => tables[table].drain(..).rev().for_each(|page| pool.release(page)),
                }
                prop_assert_eq!(pool.check(tables.iter().map(Vec::as_slice)), Ok(()));
            }
        }
    }
}
