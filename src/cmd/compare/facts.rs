//! The audit of a comparison: what the manifest, the machine and the program say.

use compare::{Audit, DataAudit, MachineAudit, NearDuplicates, ProgramAudit, SideAudit};
use corpus::{Dataset, Manifest, manifest::SideInfo};
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What names the data of a comparison: its tokenizer and its three token files.
pub fn data_hash(manifest: &Manifest) -> String {
    let sides = &manifest.sides;
    [&manifest.vocabulary.sha256, &sides.train.sha256, &sides.valid.sha256, &sides.test.sha256]
        .map(String::as_str)
        .join(" ")
}

/// All facts, for the report.
pub fn audit(data: &Dataset, out: &Path, threads: usize) -> Audit {
    Audit {
        data: data_audit(data.manifest()),
        machine: machine(threads),
        program: ProgramAudit {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("AUTOREG_COMMIT").map(str::to_owned),
            command: command(),
            finished: finished(&out.join("records.jsonl")),
        },
    }
}

/// The machine, and how many workers were used.
pub fn machine(threads: usize) -> MachineAudit {
    MachineAudit {
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        instruction_set: kernels::Isa::current().name().to_owned(),
        threads: threads as u64,
        memory_bytes: memory_bytes(),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
    }
}

fn data_audit(manifest: &Manifest) -> DataAudit {
    let side = |name: &str, info: &SideInfo| SideAudit {
        name: name.to_owned(),
        groups: info.groups,
        messages: info.messages,
        tokens: info.target_tokens,
        unknown_tokens: info.unk_targets,
    };
    let sides = &manifest.sides;
    let near = &manifest.near_duplicates;
    DataAudit {
        description: description(manifest),
        synthetic: manifest.synthetic,
        group_by: manifest.group_by.to_string(),
        split_seed: manifest.seed,
        sides: vec![
            side("train", &sides.train),
            side("validation", &sides.valid),
            side("test", &sides.test),
        ],
        exact_duplicates: manifest.messages.duplicates,
        near_duplicates: NearDuplicates {
            method: near.method.clone(),
            across_sides: near.in_valid + near.in_test,
            kept_out_of_test: match near.policy {
                corpus::prepare::NearDuplicates::Drop => near.in_test,
                corpus::prepare::NearDuplicates::Keep => 0,
            },
        },
        unreadable: manifest.messages.unreadable,
        vocabulary: manifest.vocabulary.size as u64,
        max_len: manifest.max_len as u64,
        seen_run_tokens: corpus::RUN as u64,
        tokenizer_sha256: manifest.vocabulary.sha256.clone(),
        test_sha256: sides.test.sha256.clone(),
    }
}

/// The sources by their file names, without the folders they lie in.
pub fn description(manifest: &Manifest) -> String {
    if manifest.synthetic {
        return "synthetic business mail".to_owned();
    }
    let names = manifest.sources.iter().map(|source| {
        let path = Path::new(&source.path);
        path.file_name().map_or(source.path.clone(), |name| name.to_string_lossy().into_owned())
    });
    let names: Vec<_> = names.collect();
    match names.as_slice() {
        [] => "no named source".to_owned(),
        few if few.len() <= 3 => few.join(", "),
        [first, ..] => format!("{first} and {} more files", names.len() - 1),
    }
}

/// The command as it was given, ready for a shell.
fn command() -> String {
    let quoted = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    std::iter::once("autoreg".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes() -> u64 {
    let words = field("/proc/meminfo", "MemTotal");
    let number = words.and_then(|words| words.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// When the records were last written, in words.
fn finished(records: &Path) -> String {
    let time = fs::metadata(records).and_then(|facts| facts.modified());
    time.ok().and_then(utc).unwrap_or_default()
}

/// `2025-01-31 12:00 UTC`, by the days of the civil calendar (Hinnant's algorithm).
fn utc(time: SystemTime) -> Option<String> {
    let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let (days, minutes) = (seconds / 86_400 + 719_468, seconds % 86_400 / 60);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    Some(format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_of_leap_years_and_turns_of_years() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_827_640), "2000-02-29 12:34 UTC");
        assert_eq!(at(1_735_689_599), "2024-12-31 23:59 UTC");
        assert_eq!(at(1_735_689_600), "2025-01-01 00:00 UTC");
    }
}
