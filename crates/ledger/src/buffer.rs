//! Aligned, zeroed memory that is charged to an account: the one way to large memory.

use crate::book::{Account, Charge};
use crate::plan::Spec;
use bytemuck::Pod;
use memmap2::MmapMut;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Memory could not be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot allocate {bytes} bytes for {name} ({}): {source}; a smaller batch, a shorter length or \
     fewer threads need less",
    account.name()
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

/// `len` values of T, zero at birth, on pages of their own.
#[derive(Debug)]
pub struct Buffer<T> {
    pages: Option<MmapMut>,
    len: usize,
    _charge: Charge,
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
            Ok(n) => Some(MmapMut::map_anon(n).map_err(fail)?),
            Err(_) => return Err(fail(std::io::ErrorKind::OutOfMemory.into())),
        };
        Ok(Buffer {
            pages,
            len: spec.len,
            _charge: Charge::new(spec.account, bytes),
            kind: PhantomData,
        })
    }
}

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
        assert!(crate::snapshot().at_peak[Account::Communication as usize] >= 4000);
        drop(buffer);
        assert_eq!(crate::snapshot().current[Account::Communication as usize], before);
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
