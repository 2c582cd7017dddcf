//! What the system says this process holds.

use std::fs;

/// The largest resident size so far, in bytes (`VmHWM`); 0 where the system does not say.
pub fn peak_bytes() -> u64 {
    status("VmHWM:")
}

/// The resident size now, in bytes (`VmRSS`); 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    status("VmRSS:")
}

/// The part of the resident size that is no file's, in bytes (`RssAnon`); 0 where the system does
/// not say. Pages of mapped files can be reclaimed, these cannot.
pub fn anonymous_bytes() -> u64 {
    status("RssAnon:")
}

/// The machine's memory in bytes (`MemTotal`). None where the system does not say.
pub fn machine_bytes() -> Option<u64> {
    field("/proc/meminfo", "MemTotal:")
}

/// What this process may still take without another having to give: what the machine has
/// available, or the limit of this process's control group where that is less. None where the
/// system does not say.
pub fn available_bytes() -> Option<u64> {
    within_limits(field("/proc/meminfo", "MemAvailable:"))
}

/// What this process may hold in all: what it holds now and what the machine has available beside it,
/// no more than its control group's limit. None where the system does not say.
pub fn budget_bytes() -> Option<u64> {
    let free = field("/proc/meminfo", "MemAvailable:");
    within_limits(free.map(|free| free.saturating_add(resident_bytes())))
}

/// The least of that and of the limits of this process's control group.
fn within_limits(bytes: Option<u64>) -> Option<u64> {
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    bytes.into_iter().chain(limits.into_iter().filter_map(limit)).min()
}

fn status(key: &str) -> u64 {
    field("/proc/self/status", key).unwrap_or(0)
}

/// A line `key: N kB` of a file, in bytes.
fn field(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_more_than_nothing_and_less_than_the_machine() {
        let (Some(free), Some(all)) = (available_bytes(), field("/proc/meminfo", "MemTotal:"))
        else {
            println!("skipped: no /proc/meminfo");
            return;
        };
        assert!(free > 1 << 20 && free <= all, "{free} of {all}");
        assert!(budget_bytes().is_some_and(|budget| budget >= resident_bytes()));
        assert!(resident_bytes() > 0 && resident_bytes() <= peak_bytes());
    }
}
