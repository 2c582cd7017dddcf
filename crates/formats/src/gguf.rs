//! GGUF files, version 2 and 3, in one part or several; mapped, and checked before use.
//!
//! The file's numbers are believed only after they were held against the bytes that are there:
//! counts by what is left of the file, products and sums in checked arithmetic, offsets by the
//! alignment, tensors against each other. Layout: the GGUF specification of the ggml project.

use crate::metadata::{MetaValue, Metadata, TextList};
use crate::store::{Entry, TensorStore};
use crate::{GgufError as Error, TensorKind, hint};
use ledger::MappedFile;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first four bytes.
pub const GGUF_MAGIC: [u8; 4] = *b"GGUF";
/// A tensor's record: length of the name, dimensions, one of them, type, offset.
const TENSOR_LEAST: usize = 8 + 4 + 8 + 4 + 8;
/// A key's record: its length, a type, a value of one byte.
const KEY_LEAST: usize = 8 + 4 + 1;
/// Dimensions a tensor may have.
const MOST_DIMENSIONS: u32 = 4;
/// Bytes a key or a tensor's name may have.
const LONGEST_NAME: usize = 65_535;
/// Parts of a split file.
const MOST_PARTS: usize = 1000;

/// A GGUF file: keys and tensors.
#[derive(Debug)]
pub struct Gguf {
    /// Keys and values of the (first) file.
    pub metadata: Metadata,
    /// The tensors of all parts.
    pub tensors: TensorStore,
    /// Where the (first) file has the type and value of each key, in its order.
    keys: Vec<(String, Range<usize>)>,
}

impl Gguf {
    /// Opens a file and, when it is one part of several, all parts beside it.
    ///
    /// # Errors
    /// What does not hold, with the file, the place, what was found and what was expected.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        let mut tensors = TensorStore::default();
        let (metadata, places) = add_part(path, &mut tensors)?;
        let keys = |e: crate::KeyError| Error::Key { path: path.to_owned(), source: e };
        let parts = metadata.size("split.count").map_err(keys)?.unwrap_or(1);
        if parts <= 1 {
            return Ok(Gguf { metadata, tensors, keys: places });
        }
        let expected = metadata.size("split.tensors.count").map_err(keys)?;
        let names = part_names(path, parts)?;
        let mut all = TensorStore::default();
        let mut first = None;
        for (number, name) in names.iter().enumerate() {
            let part = add_part(name, &mut all)?;
            check_part(name, &part.0, number, parts)?;
            first.get_or_insert(part);
        }
        let found = all.names.len();
        if let Some(expected) = expected.filter(|&n| n != found) {
            let path = path.to_owned();
            return Err(Error::Parts { path, what: "tensors in all parts", found, expected });
        }
        let (metadata, keys) = first.unwrap_or_default();
        Ok(Gguf { metadata, tensors: all, keys })
    }

    /// The keys in the order of the (first) file, with type and value as they stand there.
    pub fn raw_keys(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let file = self.tensors.files.first();
        self.keys
            .iter()
            .filter_map(move |(name, range)| Some((name.as_str(), file?.1.get(range.clone())?)))
    }
}

/// Keys with their values, and where type and value of each stand in the file.
type Keys = (Metadata, Vec<(String, Range<usize>)>);

/// A part says that it is part `number` of `parts`.
fn check_part(path: &Path, part: &Metadata, number: usize, parts: usize) -> Result<(), Error> {
    for (key, expected) in [("split.no", number), ("split.count", parts)] {
        let found =
            part.size(key).map_err(|source| Error::Key { path: path.to_owned(), source })?;
        if found != Some(expected) {
            let found = found.unwrap_or(0);
            return Err(Error::Parts { path: path.to_owned(), what: key, found, expected });
        }
    }
    Ok(())
}

/// The paths of all parts, from one that ends in `-00001-of-00003.gguf`.
fn part_names(path: &Path, parts: usize) -> Result<Vec<PathBuf>, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ending = format!("-of-{parts:05}.gguf");
    let stem = name.strip_suffix(&ending).and_then(|rest| {
        let (stem, number) = rest.split_at_checked(rest.len().checked_sub(6)?)?;
        let digits = number.strip_prefix('-')?;
        digits.bytes().all(|b| b.is_ascii_digit()).then_some(stem)
    });
    match stem {
        Some(stem) if parts <= MOST_PARTS => Ok((1..=parts)
            .map(|number| path.with_file_name(format!("{stem}-{number:05}{ending}")))
            .collect()),
        _ => Err(Error::PartName { path: path.to_owned(), parts }),
    }
}

/// Reads one file's head and adds its tensors.
fn add_part(path: &Path, to: &mut TensorStore) -> Result<Keys, Error> {
    let map = MappedFile::open(path).map_err(|source| Error::Io {
        path: path.to_owned(),
        advice: hint(&source),
        source,
    })?;
    let map = Arc::new(map);
    let mut reader = Reader { path, bytes: &map, at: 0 };
    let (tensor_count, key_count) = reader.header()?;
    let metadata = reader.metadata(key_count)?;
    let alignment = reader.alignment(&metadata.0)?;
    let mut records = Vec::with_capacity(tensor_count);
    for index in 0..tensor_count {
        records.push(reader.tensor(index)?);
    }
    let start = reader.at.next_multiple_of(alignment);
    let ranges = place(path, map.len(), start, alignment, &records)?;
    let file = to.files.len();
    for (record, range) in records.into_iter().zip(ranges) {
        let entry = Entry { file, kind: record.kind, shape: record.shape, range };
        if !to.add(record.name.clone(), entry) {
            return Err(Error::Twice { path: path.to_owned(), what: "tensor", name: record.name });
        }
    }
    to.files.push((path.to_owned(), map));
    Ok(metadata)
}

struct Record {
    name: String,
    kind: TensorKind,
    shape: Vec<usize>,
    bytes: usize,
    offset: u64,
}

/// Where each tensor's bytes stand: aligned, inside the file, apart from each other.
fn place(
    path: &Path,
    file: usize,
    start: usize,
    alignment: usize,
    records: &[Record],
) -> Result<Vec<Range<usize>>, Error> {
    let available = file.saturating_sub(start);
    let mut ranges = Vec::with_capacity(records.len());
    for record in records {
        let tensor = |what| Error::Place {
            path: path.to_owned(),
            name: record.name.clone(),
            what,
            offset: record.offset,
            bytes: record.bytes,
            file,
        };
        let inside = usize::try_from(record.offset).ok().filter(|&offset| {
            offset <= available && record.bytes <= available - offset && start <= file
        });
        let Some(offset) = inside else {
            return Err(tensor("ends after the end of the file; was it cut short?".to_owned()));
        };
        if !offset.is_multiple_of(alignment) {
            return Err(tensor(format!("does not begin at a multiple of {alignment}")));
        }
        ranges.push(start + offset..start + offset + record.bytes);
    }
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_unstable_by_key(|&i| ranges[i].start);
    for pair in order.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        if ranges[before].end > ranges[after].start {
            return Err(Error::Place {
                path: path.to_owned(),
                name: records[after].name.clone(),
                what: format!("overlaps tensor {}", records[before].name),
                offset: records[after].offset,
                bytes: records[after].bytes,
                file,
            });
        }
    }
    Ok(ranges)
}

/// A place in the head of a file.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a Arc<MappedFile>,
    at: usize,
}

impl Reader<'_> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn wrong(&self, what: &str, found: impl ToString, expected: impl Into<String>) -> Error {
        Error::Head {
            path: self.path.to_owned(),
            at: self.at,
            what: what.to_owned(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    fn take(&mut self, n: usize, what: &str) -> Result<&[u8], Error> {
        if n > self.left() {
            let found = format!("{} bytes before the end of the file", self.left());
            return Err(self.wrong(what, found, format!("{n} bytes; was the file cut short?")));
        }
        let from = self.at;
        self.at += n;
        Ok(&self.bytes[from..from + n])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of records that take at least `least` bytes each: no more than what is left holds.
    fn count(&mut self, what: &str, least: usize) -> Result<usize, Error> {
        let count = self.u64(what)?;
        let most = self.left() / least;
        match usize::try_from(count) {
            Ok(n) if n <= most => Ok(n),
            _ => Err(self.wrong(
                what,
                count,
                format!("at most {most}: {} bytes of the file are left", self.left()),
            )),
        }
    }

    fn text(&mut self, what: &str, longest: usize) -> Result<String, Error> {
        let len = self.count(what, 1)?;
        if len > longest {
            return Err(self.wrong(what, format!("{len} bytes"), format!("at most {longest}")));
        }
        let bytes = self.take(len, what)?.to_vec();
        String::from_utf8(bytes).map_err(|_| self.wrong(what, "bytes that are not UTF-8", "text"))
    }

    fn header(&mut self) -> Result<(usize, usize), Error> {
        let magic: [u8; 4] = self.array("the file's first bytes")?;
        if magic != GGUF_MAGIC {
            self.at = 0;
            let found = String::from_utf8_lossy(&magic).into_owned();
            return Err(self.wrong("the file's first bytes", format!("{found:?}"), "\"GGUF\""));
        }
        let version = self.u32("version")?;
        if !(2..=3).contains(&version) {
            let swapped = version.swap_bytes();
            let expected = if (1..=3).contains(&swapped) {
                "2 or 3 (this one was written big-endian; convert it)"
            } else {
                "2 or 3"
            };
            return Err(self.wrong("version", version, expected));
        }
        // Both counts are held against the same rest: neither can make memory that is not there.
        let tensors = self.count("tensor count", TENSOR_LEAST)?;
        let keys = self.count("key count", KEY_LEAST)?;
        Ok((tensors, keys))
    }

    fn metadata(&mut self, count: usize) -> Result<Keys, Error> {
        let (mut metadata, mut places) = (Metadata::default(), Vec::new());
        for index in 0..count {
            let key = self.text(&format!("name of key {index}"), LONGEST_NAME)?;
            let from = self.at;
            let kind = self.u32(&format!("type of key {key}"))?;
            let value = self.value(&key, kind)?;
            places.push((key.clone(), from..self.at));
            if metadata.values.insert(key.clone(), value).is_some() {
                return Err(Error::Twice { path: self.path.to_owned(), what: "key", name: key });
            }
        }
        Ok((metadata, places))
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<MetaValue, Error> {
        let what = format!("value of key {key}");
        Ok(match kind {
            0..=5 | 10 | 11 => MetaValue::Whole(self.whole(kind, &what)?),
            6 => MetaValue::Float(f64::from(f32::from_le_bytes(self.array(&what)?))),
            12 => MetaValue::Float(f64::from_le_bytes(self.array(&what)?)),
            7 => MetaValue::Bool(self.bool(&what)?),
            8 => MetaValue::Text(self.text(&what, usize::MAX)?),
            9 => self.list(&what)?,
            other => return Err(self.wrong(&format!("type of key {key}"), other, "0 to 12")),
        })
    }

    fn whole(&mut self, kind: u32, what: &str) -> Result<i128, Error> {
        Ok(match kind {
            0 => i128::from(self.array::<1>(what)?[0]),
            1 => i128::from(i8::from_le_bytes(self.array(what)?)),
            2 => i128::from(u16::from_le_bytes(self.array(what)?)),
            3 => i128::from(i16::from_le_bytes(self.array(what)?)),
            4 => i128::from(self.u32(what)?),
            5 => i128::from(i32::from_le_bytes(self.array(what)?)),
            10 => i128::from(self.u64(what)?),
            _ => i128::from(i64::from_le_bytes(self.array(what)?)),
        })
    }

    fn bool(&mut self, what: &str) -> Result<bool, Error> {
        match self.array::<1>(what)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.wrong(what, other, "0 or 1")),
        }
    }

    fn list(&mut self, what: &str) -> Result<MetaValue, Error> {
        let kind = self.u32(what)?;
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return Err(self.wrong(what, "a list of lists", "a list of single values")),
            other => return Err(self.wrong(what, format!("type {other}"), "0 to 12")),
        };
        let count = self.count(what, width)?;
        Ok(match kind {
            6 => MetaValue::Floats(self.many(count, what, f32::from_le_bytes)?),
            12 => MetaValue::Floats(self.many(count, what, |b| f64::from_le_bytes(b) as f32)?),
            7 => MetaValue::Bools((0..count).map(|_| self.bool(what)).collect::<Result<_, _>>()?),
            8 => {
                let from = self.at;
                for _ in 0..count {
                    let length = self.count(what, 1)?;
                    self.take(length, what)?;
                }
                MetaValue::Texts(TextList { file: self.bytes.clone(), range: from..self.at, count })
            }
            _ => {
                let mut all = Vec::with_capacity(count);
                for _ in 0..count {
                    let n = self.whole(kind, what)?;
                    let small = i64::try_from(n);
                    all.push(small.map_err(|_| self.wrong(what, n, "less than 2^63"))?);
                }
                MetaValue::Wholes(all)
            }
        })
    }

    fn many<const N: usize>(
        &mut self,
        count: usize,
        what: &str,
        number: impl Fn([u8; N]) -> f32,
    ) -> Result<Vec<f32>, Error> {
        let bytes = self.take(count * N, what)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|b| number(*b)).collect())
    }

    fn alignment(&self, metadata: &Metadata) -> Result<usize, Error> {
        let key = "general.alignment";
        let found = metadata
            .size(key)
            .map_err(|source| Error::Key { path: self.path.to_owned(), source })?
            .unwrap_or(32);
        if found.is_power_of_two() && (8..=1 << 16).contains(&found) {
            return Ok(found);
        }
        Err(self.wrong(key, found, "a power of two from 8 to 65536"))
    }

    fn tensor(&mut self, index: usize) -> Result<Record, Error> {
        let name = self.text(&format!("name of tensor {index}"), LONGEST_NAME)?;
        let what = |part: &str| format!("{part} of tensor {name}");
        let dimensions = self.u32(&what("dimensions"))?;
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            let expected = format!("1 to {MOST_DIMENSIONS}");
            return Err(self.wrong(&what("number of dimensions"), dimensions, expected));
        }
        let mut shape = Vec::with_capacity(MOST_DIMENSIONS as usize);
        let mut values: usize = 1;
        for _ in 0..dimensions {
            let size = self.u64(&what("shape"))?;
            let product = usize::try_from(size).ok().and_then(|n| values.checked_mul(n));
            let Some(product) = product.filter(|&n| n > 0) else {
                let expected = "a size above 0 whose product with the others fits in 64 bits";
                return Err(self.wrong(&what("a dimension"), size, expected));
            };
            values = product;
            shape.push(size as usize);
        }
        let number = self.u32(&what("type"))?;
        let kind = TensorKind::from_gguf(number).map_err(|found| {
            let known: Vec<&str> = TensorKind::ALL.iter().map(|k| k.name()).collect();
            self.wrong(&what("type"), found, format!("one of {}", known.join(", ")))
        })?;
        let row = shape[0];
        let whole_rows = row.is_multiple_of(kind.block_len());
        let Some(bytes) = kind.bytes_of(values).filter(|_| whole_rows) else {
            let expected = format!("a multiple of {} ({kind}), and countable", kind.block_len());
            return Err(self.wrong(&what("row length"), row, expected));
        };
        let offset = self.u64(&what("offset"))?;
        // The file names the innermost dimension first.
        shape.reverse();
        Ok(Record { name, kind, shape, bytes, offset })
    }
}
