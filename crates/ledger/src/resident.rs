//! How much of the accounts is in memory: a page of a buffer that nobody has written to is charged and
//! takes no room yet.

use crate::book::{Account, ByAccount, snapshot};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers by their address: length in bytes, account.
static PLACES: Mutex<BTreeMap<usize, (usize, Account)>> = Mutex::new(BTreeMap::new());

fn places() -> MutexGuard<'static, BTreeMap<usize, (usize, Account)>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer's place in the list, as long as it lives.
#[derive(Debug)]
pub(crate) struct Place(usize);

impl Place {
    pub(crate) fn new(at: usize, bytes: usize, account: Account) -> Place {
        places().insert(at, (bytes, account));
        Place(at)
    }

    /// The same buffer counts for another account.
    pub(crate) fn move_to(&self, account: Account) {
        if let Some(place) = places().get_mut(&self.0) {
            place.1 = account;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        places().remove(&self.0);
    }
}

/// Files that are mapped, by their address: length in bytes.
static FILES: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn files() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapped file's place in the list, as long as it lives.
#[derive(Debug)]
pub(crate) struct Mapped(usize);

impl Mapped {
    pub(crate) fn new(at: usize, bytes: usize) -> Mapped {
        files().insert(at, bytes);
        Mapped(at)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        files().remove(&self.0);
    }
}

/// Bytes of mapped files that this process has looked at and that are in memory now: the system can
/// take them back at any time. 0 where it does not say.
pub fn mapped_bytes() -> u64 {
    let Ok(map) = File::open("/proc/self/pagemap") else { return 0 };
    let page = page_bytes();
    let all: Vec<(usize, usize)> = files().iter().map(|(at, bytes)| (*at, *bytes)).collect();
    let present = |(at, bytes): (usize, usize)| {
        present_pages(&map, at / page, bytes.div_ceil(page)).map_or(0, |pages| pages * page)
    };
    all.into_iter().map(present).sum::<usize>() as u64
}

/// Bytes of each account that are in memory now, in the order of [`Account::ALL`]; what is no
/// [`Buffer`](crate::Buffer) counts whole. None where the system does not say.
pub fn resident_by_account() -> Option<ByAccount> {
    let map = File::open("/proc/self/pagemap").ok()?;
    let page = page_bytes();
    let mut resident = snapshot().current;
    let all: Vec<(usize, (usize, Account))> =
        places().iter().map(|(at, place)| (*at, *place)).collect();
    for (at, (bytes, account)) in all {
        let present = present_pages(&map, at / page, bytes.div_ceil(page))? * page;
        let absent = bytes.saturating_sub(present) as u64;
        let sum = &mut resident[account as usize];
        *sum = sum.saturating_sub(absent);
    }
    Some(resident)
}

/// Of `count` pages from `first` on, those in memory: bit 63 of their entries.
fn present_pages(map: &File, first: usize, count: usize) -> Option<usize> {
    let mut entries = vec![0_u8; 8 * count.min(1 << 16)];
    let (mut done, mut present) = (0, 0);
    while done < count {
        let some = (count - done).min(1 << 16);
        let part = &mut entries[..8 * some];
        map.read_exact_at(part, 8 * (first + done) as u64).ok()?;
        present += part.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count();
        done += some;
    }
    Some(present)
}

fn page_bytes() -> usize {
    // SAFETY: asks for a number and touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(4096)
}

/// What of a process in memory is no buffer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// The program and its libraries: pages of files that have been looked at, those it has written
    /// to included.
    pub program: u64,
    /// Stacks of threads.
    pub stacks: u64,
    /// What the allocator of small things has, without what is charged to an account.
    pub heap: u64,
    /// Pages of mapped files that are charged to no account: they can be reclaimed.
    pub mapped: u64,
}

impl Rest {
    /// What cannot be reclaimed and is no buffer.
    pub fn runtime(&self) -> u64 {
        self.program + self.stacks + self.heap
    }
}

/// Where the heaps of glibc's threads begin: at multiples of this.
const ARENA: u64 = 64 << 20;

/// Looks through the process's mappings. None where the system does not say.
pub fn rest() -> Option<Rest> {
    let text = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let buffers: Vec<u64> = places().keys().map(|&at| at as u64).collect();
    let mut rest = of_mappings(&text, &buffers);
    // What is charged without being a buffer lies in a mapped file, or on the heap.
    let (elsewhere, mapped) = (charged_elsewhere(), mapped_bytes());
    let in_files = elsewhere.min(mapped);
    rest.program = rest.program.saturating_sub(mapped);
    rest.mapped = mapped - in_files;
    rest.heap = (rest.heap + mapped_chunks()).saturating_sub(elsewhere - in_files);
    Some(rest)
}

/// Bytes that are charged and lie in no buffer.
fn charged_elsewhere() -> u64 {
    let charged: u64 = snapshot().current.iter().sum();
    charged.saturating_sub(places().values().map(|(bytes, _)| *bytes as u64).sum())
}

/// [`Rest::mapped`] alone, which takes far less time than the other parts.
pub(crate) fn mapped_uncharged() -> u64 {
    mapped_bytes().saturating_sub(charged_elsewhere())
}

/// Sums up the mappings that say themselves what they are. One that holds a buffer (its address is among
/// the ascending `buffers`) is neither a stack nor the heap, wherever the system put it.
fn of_mappings(text: &str, buffers: &[u64]) -> Rest {
    let mut rest = Rest::default();
    // Name, begin, and whether the mapping lies right behind one that nobody may touch.
    let (mut name, mut begin, mut guarded, mut guard) = ("", 0_u64, false, 0_u64);
    let mut of_buffers = false;
    for line in text.lines() {
        if let Some(size) = line.strip_prefix("Rss:") {
            let kib = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
            match name {
                "[heap]" => rest.heap += kib << 10,
                "[stack]" => rest.stacks += kib << 10,
                "" if of_buffers => {}
                "" if begin % ARENA == 0 => rest.heap += kib << 10,
                "" if guarded => rest.stacks += kib << 10,
                "" => {}
                _ => rest.program += kib << 10,
            }
            continue;
        }
        let mut words = line.split_whitespace();
        let range = words.next().and_then(|word| word.split_once('-'));
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let Some((from, to)) = range.and_then(|(from, to)| Some((hex(from)?, hex(to)?))) else {
            continue;
        };
        let rights = words.next().unwrap_or_default();
        name = words.nth(3).unwrap_or_default();
        (begin, guarded) = (from, guard == from);
        let next = buffers.partition_point(|&at| at < from);
        of_buffers = buffers.get(next).is_some_and(|&at| at < to);
        guard = if rights.starts_with("---") { to } else { 0 };
    }
    rest
}

/// Bytes of large chunks that the allocator has mapped one by one.
fn mapped_chunks() -> u64 {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: returns counts by value; the allocator locks itself.
        unsafe { libc::mallinfo2() }.hblkhd as u64
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Spec};

    #[test]
    fn only_what_was_written_to_is_there() {
        let Some(before) = resident_by_account() else {
            println!("skipped: no /proc/self/pagemap");
            return;
        };
        let at = Account::Gradients as usize;
        let spec = Spec::new("resident", Account::Gradients, 64 * page_bytes());
        let mut buffer: Buffer<u8> = Buffer::new(&spec).unwrap();
        assert_eq!(resident_by_account().unwrap()[at], before[at]);
        for page in 0..5 {
            buffer[page * page_bytes()] = 1;
        }
        assert_eq!(resident_by_account().unwrap()[at], before[at] + 5 * page_bytes() as u64);
        drop(buffer);
        assert_eq!(resident_by_account().unwrap()[at], before[at]);
    }

    #[test]
    fn the_rest_is_told_apart() {
        let text = "\
555555554000-555555600000 r-xp 00000000 08:01 7 /usr/bin/autoreg
Rss:                 400 kB
555555700000-555555720000 rw-p 00000000 00:00 0 [heap]
Rss:                  20 kB
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
Rss:                   8 kB
7f0000021000-7f0004000000 ---p 00000000 00:00 0
Rss:                   0 kB
7f0100000000-7f0100001000 ---p 00000000 00:00 0
Rss:                   0 kB
7f0100001000-7f0100201000 rw-p 00000000 00:00 0
Rss:                  16 kB
7f0100300000-7f0100500000 rw-p 00000000 00:00 0
Rss:                1000 kB
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
Rss:                  12 kB
";
        let found = of_mappings(text, &[0x7f01_0030_0000]);
        assert_eq!(found, Rest { program: 400 << 10, stacks: 28 << 10, heap: 28 << 10, mapped: 0 });
        // A buffer that the system put right behind a guard is no stack.
        let found = of_mappings(text, &[0x7f01_0000_1000, 0x7f01_0030_0000]);
        assert_eq!(found, Rest { program: 400 << 10, stacks: 12 << 10, heap: 28 << 10, mapped: 0 });
    }

    #[test]
    fn pages_of_a_file_count_once_they_are_looked_at() {
        let path = std::env::temp_dir().join(format!("autoreg-mapped-{}", std::process::id()));
        std::fs::write(&path, vec![7_u8; 64 * page_bytes()]).unwrap();
        let before = mapped_bytes();
        let file = crate::MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let sum: u64 = file.iter().map(|&byte| u64::from(byte)).sum();
        assert_eq!(sum, 7 * 64 * page_bytes() as u64);
        if std::path::Path::new("/proc/self/pagemap").exists() {
            assert!(mapped_bytes() >= before + 64 * page_bytes() as u64);
            assert!(rest().unwrap().mapped >= 64 * page_bytes() as u64);
        }
        drop(file);
        assert_eq!(mapped_bytes(), before);
    }

    #[test]
    fn the_heap_grows_with_what_is_asked_for() {
        let Some(before) = rest() else { return };
        let much = vec![1_u8; 8 << 20];
        let after = rest().unwrap();
        assert!(after.heap >= before.heap + (7 << 20), "{} {before:?} {after:?}", much.len());
        assert!(after.program > 0 && after.stacks > 0);
    }
}
