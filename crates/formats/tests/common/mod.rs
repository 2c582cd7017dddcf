//! Small GGUF files, written field by field, so that every field can lie.

/// A tensor's record: name, dimensions (innermost first), type number, offset.
pub type Record<'a> = (&'a str, &'a [u64], u32, u64);

pub fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A key with the bytes of its value.
pub fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, name);
    out.extend(kind.to_le_bytes());
    out.extend(value);
    out
}

/// A file of version 3 with these keys and tensors, and `data` bytes of data.
pub fn file(keys: &[Vec<u8>], tensors: &[Record<'_>], data: usize) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((keys.len() as u64).to_le_bytes());
    keys.iter().for_each(|key| out.extend(key));
    for (name, shape, kind, offset) in tensors {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    if data > 0 {
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend((0..data).map(|i| i as u8));
    }
    out
}

/// 24 bytes: a version, a tensor count, a key count.
pub fn head(version: u32, tensors: u64, keys: u64) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(version.to_le_bytes());
    out.extend(tensors.to_le_bytes());
    out.extend(keys.to_le_bytes());
    out
}
