//! Event files that TensorBoard reads: records with checksums around protocol buffers, of which a
//! dozen fields are needed.
//!
//! A resumed run begins a file of its own, which first says from which step on older ones no longer
//! count.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often what was written must be seen by a reader.
const FLUSH: Duration = Duration::from_secs(1);

/// An event file under way.
pub struct EventFile {
    path: PathBuf,
    file: BufWriter<File>,
    flushed: Instant,
}

impl EventFile {
    /// Makes a file in `dir`, which is made where it is not there; steps from `first` on in older
    /// files count no longer.
    pub fn create(dir: &Path, first: u64) -> io::Result<EventFile> {
        fs::create_dir_all(dir)?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let (seconds, process) = (now() as u64, std::process::id());
        let path = dir.join(format!("events.out.tfevents.{seconds:010}.{host}.{process}.0"));
        let file = BufWriter::new(File::create(&path)?);
        let mut events = EventFile { path, file, flushed: Instant::now() };
        events.event(0, |event| event.text(3, b"brain.Event:2"))?;
        // SessionLog { status: START }
        events.event(first, |event| event.inner(7, |log| log.number(1, 1)))?;
        events.file.flush()?;
        Ok(events)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes some numbers of a step.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        self.event(step, |event| {
            event.inner(5, |summary| {
                for &(tag, value) in values {
                    summary.inner(1, |one| {
                        one.text(1, tag.as_bytes());
                        one.single(2, value as f32);
                    });
                }
            });
        })
    }

    /// Writes a text of a step.
    pub fn text(&mut self, step: u64, tag: &str, text: &str) -> io::Result<()> {
        const STRING: u64 = 7;
        self.event(step, |event| {
            event.inner(5, |summary| {
                summary.inner(1, |one| {
                    one.text(1, tag.as_bytes());
                    one.inner(8, |tensor| {
                        tensor.number(1, STRING);
                        tensor.inner(2, |shape| shape.inner(2, |dimension| dimension.number(1, 1)));
                        tensor.text(8, text.as_bytes());
                    });
                    one.inner(9, |metadata| metadata.inner(1, |plugin| plugin.text(1, b"text")));
                });
            });
        })
    }

    fn event(&mut self, step: u64, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        let mut event = Message::default();
        event.double(1, now());
        event.number(2, step);
        fill(&mut event);
        let length = (event.0.len() as u64).to_le_bytes();
        self.file.write_all(&length)?;
        self.file.write_all(&checksum(&length).to_le_bytes())?;
        self.file.write_all(&event.0)?;
        self.file.write_all(&checksum(&event.0).to_le_bytes())?;
        if self.flushed.elapsed() >= FLUSH {
            self.file.flush()?;
            self.flushed = Instant::now();
        }
        Ok(())
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// A protocol buffer's bytes.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, wire: u64) {
        self.varint(field << 3 | wire);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn single(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn inner(&mut self, field: u64, fill: impl FnOnce(&mut Message)) {
        let mut message = Message::default();
        fill(&mut message);
        self.text(field, &message.0);
    }
}

/// CRC-32C, turned and moved as the records want it.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &b| TABLE[usize::from(crc as u8 ^ b)] ^ (crc >> 8))
}

/// Of the reflected polynomial of Castagnoli.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
    }

    #[test]
    fn numbers_are_cut_into_seven_bits() {
        let mut message = Message::default();
        message.number(1, 300);
        message.inner(2, |inner| inner.text(3, b"ab"));
        assert_eq!(message.0, [0x08, 0xAC, 0x02, 0x12, 0x04, 0x1A, 0x02, b'a', b'b']);
    }
}
