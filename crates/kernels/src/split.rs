//! A mutable slice that several workers write at once, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice shared out among workers.
pub(crate) struct Split<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out under the contract of `part`: no two overlap at one time.
unsafe impl<T: Send> Sync for Split<'_, T> {}

impl<'a, T> Split<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Split { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The values in `range`.
    ///
    /// # Safety
    /// No other part that overlaps `range` is in use at the same time.
    #[expect(clippy::mut_from_ref, reason = "that is what sharing out a slice means")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies inside its slice");
        // SAFETY: inside the slice by the check above; apart from the others by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The values in `range`, to read.
    ///
    /// # Safety
    /// No part that overlaps `range` is being written at the same time.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies inside its slice");
        // SAFETY: inside the slice by the check above; not written by the contract.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// Values in the slice.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first value's address, for kernels that write with a stride.
    pub(crate) fn pointer(&self) -> *mut T {
        self.start
    }
}
