//! Aligned, zeroed memory that is charged to an account: the one way to large memory.

use crate::book::{Account, Charge, snapshot};
use crate::plan::Spec;
use crate::resident::Place;
use bytemuck::Pod;
use memmap2::MmapMut;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Memory could not be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot allocate {bytes} bytes for {name} ({}): {source}; held are {}; {} less",
    account.name(),
    held(),
    needs(*account)
)]
pub struct Error {
    /// The line of the plan.
    pub name: String,
    /// Its account.
    pub account: Account,
    /// What was asked for.
    pub bytes: u64,
    /// What the system said.
    pub source: std::io::Error,
}

/// What is held by account, in one line.
fn held() -> String {
    let current = snapshot().current;
    let accounts = Account::ALL.into_iter().zip(current).filter(|&(_, bytes)| bytes > 0);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let all: Vec<String> = accounts
        .map(|(account, bytes)| format!("{} {:.1} MiB", account.name(), mib(bytes)))
        .collect();
    if all.is_empty() { "no other buffers".to_owned() } else { all.join(", ") }
}

/// What makes an account smaller.
fn needs(account: Account) -> &'static str {
    match account {
        Account::Weights | Account::Master | Account::Gradients | Account::Optimizer => {
            "a smaller model needs, or adapters alone (--lora) or more ranks (--zero) in training need"
        }
        Account::KvCache => "a shorter length, fewer sequences or --kv q8 need",
        Account::Activations => "--recompute block, a smaller micro-batch or a shorter length need",
        Account::Workspace | Account::Communication | Account::Data => {
            "a smaller batch, a shorter length or fewer threads need"
        }
    }
}

/// `len` values of T, zero at birth, on pages of their own.
#[derive(Debug)]
pub struct Buffer<T> {
    // Goes before the pages do: their address may be another's at once.
    place: Option<Place>,
    pages: Option<MmapMut>,
    len: usize,
    charge: Charge,
    kind: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Allocates what a spec says.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub fn new(spec: &Spec) -> Result<Self, Error> {
        let size = size_of::<T>();
        let bytes = (spec.len as u64).saturating_mul(size as u64);
        let fail = |source| Error { name: spec.name.clone(), account: spec.account, bytes, source };
        let pages = match usize::try_from(bytes) {
            Ok(0) => None,
            Ok(n) => {
                let pages = MmapMut::map_anon(n).map_err(fail)?;
                advise_huge(&pages, spec.account);
                Some(pages)
            }
            Err(_) => return Err(fail(std::io::ErrorKind::OutOfMemory.into())),
        };
        let place = pages
            .as_ref()
            .map(|pages| Place::new(pages.as_ptr() as usize, pages.len(), spec.account));
        Ok(Buffer {
            pages,
            place,
            len: spec.len,
            charge: Charge::new(spec.account, bytes),
            kind: PhantomData,
        })
    }

    /// Books its bytes under another account, as if they had never been in the first.
    pub fn move_to(&mut self, account: Account) {
        self.place.iter().for_each(|place| place.move_to(account));
        self.charge.move_to(account);
    }
}

/// Asks for pages of 2 MiB where a buffer is large and wholly used: arithmetic then waits less for
/// address translation. A cache that fills up slowly keeps small pages, so that it takes no more
/// than it holds. A system that will not is no error.
fn advise_huge(pages: &MmapMut, account: Account) {
    #[cfg(target_os = "linux")]
    if pages.len() >= HUGE_FROM && account != Account::KvCache {
        drop(pages.advise(memmap2::Advice::HugePage));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (pages, account);
}

/// Bytes from which large pages are asked for.
#[cfg(target_os = "linux")]
const HUGE_FROM: usize = 2 << 20;

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.pages {
            Some(pages) => &bytemuck::cast_slice(pages)[..self.len],
            None => &[],
        }
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.pages {
            Some(pages) => &mut bytemuck::cast_slice_mut(pages)[..self.len],
            None => &mut [],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charged_at_birth_and_credited_on_drop() {
        let before = crate::snapshot().current[Account::Communication as usize];
        let spec = Spec::new("test", Account::Communication, 1000);
        let mut buffer: Buffer<f32> = Buffer::new(&spec).unwrap();
        assert!(buffer.iter().all(|&x| x == 0.0) && buffer.len() == 1000);
        buffer[999] = 3.0;
        assert_eq!(crate::snapshot().current[Account::Communication as usize], before + 4000);
        assert!(crate::snapshot().most[Account::Communication as usize] >= 4000);
        drop(buffer);
        assert_eq!(crate::snapshot().current[Account::Communication as usize], before);
    }

    #[test]
    fn bytes_move_between_accounts() {
        let now = || {
            let books = crate::snapshot().current;
            (books[Account::KvCache as usize], books[Account::Data as usize])
        };
        let mut buffer: Buffer<f32> =
            Buffer::new(&Spec::new("test", Account::KvCache, 500)).unwrap();
        let before = now();
        buffer.move_to(Account::Data);
        assert_eq!(now(), (before.0 - 2000, before.1 + 2000));
        drop(buffer);
        assert_eq!(now(), (before.0 - 2000, before.1));
    }

    #[test]
    fn what_has_moved_was_never_in_the_first_account() {
        let (from, to) = (Account::Master as usize, Account::Activations as usize);
        let spec = |values| Spec::new("test", Account::Master, values);
        let small: Buffer<f32> = Buffer::new(&spec(1 << 18)).unwrap();
        let mut large: Buffer<f32> = Buffer::new(&spec(1 << 20)).unwrap();
        large.fill(1.0);
        assert_eq!(crate::snapshot().most[from], 5 << 20);
        large.move_to(Account::Activations);
        let books = crate::snapshot();
        assert_eq!((books.most[from], books.current[from]), (1 << 20, 1 << 20));
        assert!(books.most[to] >= 4 << 20);
        if let Some(resident) = crate::resident_by_account() {
            assert!(resident[to] >= 4 << 20 && resident[from] <= 1 << 20, "{resident:?}");
        }
        drop(small);
    }

    #[test]
    fn an_error_says_what_is_held_and_what_would_help() {
        for (account, lever) in [
            (Account::Optimizer, "--lora"),
            (Account::KvCache, "--kv q8"),
            (Account::Activations, "--recompute block"),
        ] {
            let error = Buffer::<f32>::new(&Spec::new("w", account, 1 << 60)).unwrap_err();
            let told = error.to_string();
            assert!(told.contains(lever) && told.contains("held are "), "{told}");
        }
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let spec = Spec::new("scores", Account::Data, usize::MAX / 2);
        let error = Buffer::<f32>::new(&spec).unwrap_err().to_string();
        assert!(error.contains("scores") && error.contains("data"), "{error}");
        let none: Buffer<f32> = Buffer::new(&Spec::new("none", Account::Data, 0)).unwrap();
        assert!(none.is_empty());
    }
}
