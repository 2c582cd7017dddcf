//! 16-bit weights beside FP32 master weights: what computation reads while a network is trained in
//! mixed precision, and the room in which its products pack their factors.

use crate::Layout;
use kernels::{Factor, HalfKind, Init, Team, mixed_matmul, mixed_workspace};
use ledger::{Account, Buffer, Spec};
use std::sync::{Arc, Mutex, PoisonError};

/// The first `count` of the 16-bit numbers that stand two a word.
pub fn halves_in(words: &[f32], count: usize) -> &[u16] {
    &bytemuck::cast_slice(words)[..count]
}

/// The same, to be written.
pub fn halves_in_mut(words: &mut [f32], count: usize) -> &mut [u16] {
    &mut bytemuck::cast_slice_mut(words)[..count]
}

/// The 16 bits of every parameter, in the places of a layout.
#[derive(Debug)]
pub(crate) struct Halves {
    pub(crate) kind: HalfKind,
    pub(crate) layout: Arc<Layout>,
    words: Buffer<f32>,
    /// Held for the time of a product.
    work: Mutex<Buffer<f32>>,
}

/// What a network needs for training in 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed {
    /// Which 16 bits.
    pub kind: HalfKind,
    /// Workers of its products.
    pub threads: usize,
    /// Values of the largest second factor of a product.
    pub largest: usize,
}

/// What [`Halves`] of a layout allocate.
pub(crate) fn specs(layout: &Layout, account: Account, mixed: Mixed) -> [Spec; 2] {
    let work = mixed_workspace(mixed.threads, mixed.largest);
    [
        Spec::new("16-bit weights", account, layout.len().div_ceil(2)),
        Spec::new("16-bit factors", Account::Workspace, work),
    ]
}

impl Halves {
    pub(crate) fn new(
        layout: &Arc<Layout>,
        account: Account,
        mixed: Mixed,
    ) -> Result<Halves, ledger::Error> {
        let [words, work] = specs(layout, account, mixed);
        let work = Mutex::new(Buffer::new(&work)?);
        let layout = Arc::clone(layout);
        Ok(Halves { kind: mixed.kind, layout, words: Buffer::new(&words)?, work })
    }

    pub(crate) fn bits(&self) -> &[u16] {
        bytemuck::cast_slice(&self.words)
    }

    pub(crate) fn bits_mut(&mut self) -> &mut [u16] {
        bytemuck::cast_slice_mut(&mut self.words)
    }

    /// C = init + A·B; C's rows `place.0` apart, from column `place.1`.
    pub(crate) fn product(
        &self,
        team: &Team,
        (a, b): (Factor, Factor),
        init: Init,
        c: &mut [f32],
        place: (usize, usize),
    ) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        mixed_matmul(team, self.kind, a, b, init, c, place, &mut work);
    }
}
