//! What a sceptical reader asks about the data, the machine and the program behind a comparison.

use serde::{Deserialize, Serialize};

/// The facts behind a comparison; filled by the caller, printed by the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// The data.
    pub data: DataAudit,
    /// The machine.
    pub machine: MachineAudit,
    /// The program and how it was called.
    pub program: ProgramAudit,
}

/// The data, as its manifest has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataAudit {
    /// What the data is, in words.
    pub description: String,
    /// Whether it was generated, which is said wherever a result is shown.
    pub synthetic: bool,
    /// The key of grouping: `thread`, `sender`, `mailbox`.
    pub group_by: String,
    /// Seed of the split.
    pub split_seed: u64,
    /// Training, validation and test side, in this order.
    pub sides: Vec<SideAudit>,
    /// Exact duplicates that were collapsed before the split.
    pub exact_duplicates: u64,
    /// Near-duplicates across sides.
    pub near_duplicates: NearDuplicates,
    /// Messages that could not be read.
    pub unreadable: u64,
    /// Entries of the vocabulary, special ones counted.
    pub vocabulary: u64,
    /// The cap, in tokens, `<bos>` and `<eos>` counted.
    pub max_len: u64,
    /// Length of the token run that marks a test message as seen in training.
    #[serde(default)]
    pub seen_run_tokens: u64,
    /// SHA-256 of the tokenizer file.
    pub tokenizer_sha256: String,
    /// SHA-256 of the test side's token file.
    pub test_sha256: String,
}

/// One side of the split.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SideAudit {
    /// `train`, `validation` or `test`.
    pub name: String,
    /// Groups.
    pub groups: u64,
    /// Messages.
    pub messages: u64,
    /// Real target tokens.
    pub tokens: u64,
    /// Those that are `<unk>`.
    pub unknown_tokens: u64,
}

/// Near-duplicates that would have sat on two sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NearDuplicates {
    /// How they are found, in words.
    pub method: String,
    /// Messages found with a near twin on another side.
    pub across_sides: u64,
    /// How many of those were kept out of the test side.
    pub kept_out_of_test: u64,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineAudit {
    /// The processor's own name.
    pub processor: String,
    /// Instruction set in use.
    pub instruction_set: String,
    /// Threads used by each run.
    pub threads: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Operating system, in words.
    pub system: String,
}

/// The program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramAudit {
    /// Version.
    pub version: String,
    /// Commit of the source, where known.
    pub commit: Option<String>,
    /// The command that makes this report again, ready for a shell.
    pub command: String,
    /// When the last run ended, in words; nothing in the report reads a clock.
    pub finished: String,
}
