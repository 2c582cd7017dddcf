//! How deep the parts of a message nest, in one pass, before anything recursive sees it.
//!
//! A guard, not a parser: it may count too much where text only looks like part headers.

use memchr::memmem;
use std::collections::HashMap;

/// The deepest nesting of parts that is read.
pub const MAX_DEPTH: usize = 50;

/// What a message may cost: containers times bytes. Each container may make the parser look through
/// the rest of the message once.
const MAX_COST: usize = 20_000_000_000;

/// Why a message is not parsed, if it is not.
pub(crate) fn refusal(raw: &[u8]) -> Option<String> {
    let containers = count_containers(raw);
    if containers <= MAX_DEPTH {
        return None;
    }
    if containers.saturating_mul(raw.len()) > MAX_COST {
        return Some(format!("{containers} nested containers in {} bytes", raw.len()));
    }
    let depth = depth(raw);
    (depth > MAX_DEPTH).then(|| format!("parts nest {depth} deep; at most {MAX_DEPTH} are read"))
}

/// Content types that hold other parts, wherever they stand.
fn count_containers(raw: &[u8]) -> usize {
    let mut count = 0;
    for slash in memchr::memchr_iter(b'/', raw) {
        let before = &raw[slash.saturating_sub(9)..slash];
        let is = |name: &[u8]| {
            before.len() >= name.len()
                && before[before.len() - name.len()..].eq_ignore_ascii_case(name)
        };
        count += usize::from(is(b"multipart") || is(b"message"));
    }
    count
}

/// Follows boundaries line by line.
fn depth(raw: &[u8]) -> usize {
    let mut open: Vec<Option<&[u8]>> = Vec::new();
    let mut place: HashMap<&[u8], usize> = HashMap::new();
    let mut deepest = 0;
    let mut waiting = false;
    for line in raw.split(|&b| b == b'\n') {
        let line = line.trim_ascii_end();
        if let Some(name) = line.strip_prefix(b"--") {
            let (at, ends) = match (place.get(name), name.strip_suffix(b"--")) {
                (Some(&at), _) => (at, false),
                (None, Some(name)) if place.contains_key(name) => (place[name], true),
                _ => continue,
            };
            let keep = if ends { at } else { at + 1 };
            for closed in open.drain(keep..).flatten() {
                place.remove(closed);
            }
            continue;
        }
        let header = line.get(..13).is_some_and(|h| h.eq_ignore_ascii_case(b"content-type:"));
        let folded = waiting && line.first().is_some_and(u8::is_ascii_whitespace);
        if header && contains(line, b"message/") {
            open.push(None);
        }
        waiting = (header && contains(line, b"multipart/")) || folded;
        if waiting && let Some(name) = boundary(line) {
            place.insert(name, open.len());
            open.push(Some(name));
            waiting = false;
        }
        deepest = deepest.max(open.len());
    }
    deepest
}

fn contains(line: &[u8], what: &[u8]) -> bool {
    line.windows(what.len()).any(|w| w.eq_ignore_ascii_case(what))
}

fn boundary(line: &[u8]) -> Option<&[u8]> {
    let at = memmem::find(&line.to_ascii_lowercase(), b"boundary=")?;
    let value = &line[at + 9..];
    let end = |stop: &[u8]| value.iter().position(|b| stop.contains(b)).unwrap_or(value.len());
    let name = match value.strip_prefix(b"\"") {
        Some(quoted) => &quoted[..quoted.iter().position(|&b| b == b'"').unwrap_or(quoted.len())],
        None => &value[..end(b"; \t")],
    };
    (!name.is_empty()).then_some(name)
}
