//! Every large byte under a name and an account, predicted and measured by one list.
//!
//! Large memory is had only as a [`Buffer`], which is charged at birth and credited on drop. A
//! [`Plan`] lists what will be allocated; the same specs allocate it. Nothing here knows shapes or
//! models: it counts bytes.

mod book;
mod bounded;
mod buffer;
mod cut_short;
mod file;
mod plan;
mod process;
mod resident;
mod timeline;

pub use book::{Account, ByAccount, Charge, Snapshot, reset_peak, snapshot};
pub use bounded::{Allocator, Beyond, Bounds, within};
pub use buffer::{Buffer, Error};
pub use file::MappedFile;
pub use plan::{Line, Plan, Report, ReportRow, Spec, TOLERANCE};
pub use process::{
    anonymous_bytes, available_bytes, budget_bytes, machine_bytes, peak_bytes, resident_bytes,
};
pub use resident::{Rest, mapped_bytes, resident_by_account, rest};
pub use timeline::{Mark, Record, Recorder, Sample, StepSamples, sample_terms};
