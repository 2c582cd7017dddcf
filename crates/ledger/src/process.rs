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

fn status(key: &str) -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|l| l.starts_with(key))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(0, |kib| kib * 1024)
}
