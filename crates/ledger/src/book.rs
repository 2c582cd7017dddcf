//! The books: bytes in use by account, and how they stood at the moment of the peak.

use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why a byte exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Account {
    /// Parameters as computation reads them.
    Weights,
    /// FP32 parameters beside 16-bit weights.
    Master,
    /// Gradients of parameters.
    Gradients,
    /// Moments of the optimizer.
    Optimizer,
    /// What a forward pass keeps for its backward pass.
    Activations,
    /// Keys and values of tokens already read.
    KvCache,
    /// Scratch of the step in progress.
    Workspace,
    /// Buffers for other processes.
    Communication,
    /// Token files and batches.
    Data,
}

impl Account {
    /// Every account, in the order of reports.
    pub const ALL: [Account; 9] = [
        Account::Weights,
        Account::Master,
        Account::Gradients,
        Account::Optimizer,
        Account::Activations,
        Account::KvCache,
        Account::Workspace,
        Account::Communication,
        Account::Data,
    ];

    /// The name as reports show it.
    pub fn name(self) -> &'static str {
        match self {
            Account::Weights => "weights",
            Account::Master => "master weights",
            Account::Gradients => "gradients",
            Account::Optimizer => "optimizer",
            Account::Activations => "activations",
            Account::KvCache => "K/V cache",
            Account::Workspace => "workspace",
            Account::Communication => "communication",
            Account::Data => "data",
        }
    }
}

/// Bytes by account, in the order of [`Account::ALL`].
pub type ByAccount = [u64; Account::ALL.len()];

/// The books at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Bytes in use now.
    pub current: ByAccount,
    /// Bytes in use at the moment when their sum was largest.
    pub at_peak: ByAccount,
    /// The most that each account has had, at moments of its own: no sum of these was ever in use.
    pub most: ByAccount,
}

impl Snapshot {
    /// The sum at the peak.
    pub fn peak_total(&self) -> u64 {
        self.at_peak.iter().sum()
    }

    fn take(&mut self, account: Account, bytes: u64) {
        let now = &mut self.current[account as usize];
        *now += bytes;
        let most = &mut self.most[account as usize];
        *most = (*most).max(*now);
        if self.current.iter().sum::<u64>() > self.peak_total() {
            self.at_peak = self.current;
        }
    }
}

const NONE: ByAccount = [0; Account::ALL.len()];
static BOOK: Mutex<Snapshot> = Mutex::new(Snapshot { current: NONE, at_peak: NONE, most: NONE });

fn book() -> MutexGuard<'static, Snapshot> {
    BOOK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The books now.
pub fn snapshot() -> Snapshot {
    *book()
}

/// Forgets earlier peaks: what is in use now is the peak.
pub fn reset_peak() {
    let mut book = book();
    (book.at_peak, book.most) = (book.current, book.current);
}

/// Bytes charged to an account for as long as this lives. For memory that other libraries hold;
/// our own comes as a [`Buffer`](crate::Buffer), which carries one.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    bytes: u64,
    /// The most that the account had before these bytes came.
    most_before: u64,
}

impl Charge {
    /// Charges `bytes` to `account`.
    pub fn new(account: Account, bytes: u64) -> Charge {
        let mut book = book();
        let most_before = book.most[account as usize];
        book.take(account, bytes);
        Charge { account, bytes, most_before }
    }

    /// Books the same bytes under another account, as if they had never been in the first: what it had
    /// at most is what it had without them.
    pub fn move_to(&mut self, account: Account) {
        let mut book = book();
        book.current[self.account as usize] -= self.bytes;
        let most = &mut book.most[self.account as usize];
        *most = self.most_before.max(most.saturating_sub(self.bytes)).min(*most);
        self.most_before = book.most[account as usize];
        book.take(account, self.bytes);
        self.account = account;
    }

    /// Books another number of bytes: what is charged has grown or become smaller.
    pub fn resize(&mut self, bytes: u64) {
        let mut book = book();
        book.current[self.account as usize] -= self.bytes;
        book.take(self.account, bytes);
        self.bytes = bytes;
    }

    /// The account.
    pub fn account(&self) -> Account {
        self.account
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        book().current[self.account as usize] -= self.bytes;
    }
}
