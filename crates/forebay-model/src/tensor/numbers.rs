//! Numbers in a file, encoded as Protocol Buffers encode repeated fields: described when a model is read, and decoded when they are needed.
//!
//! The numbers of a field are stored in runs. In a packed run they follow each other directly; in an unpacked one, each is preceded by the
//! field's one-byte key. Numbers of a fixed width are located by their index. The others (varints) are counted once, and marks record the
//! positions of some of them, so that reading can start anywhere.

use std::ops::Range;
use std::sync::Arc;

use forebay_base::DataType;

use super::source::SourceFile;
use crate::error::ModelError;

/// The number of numbers between two marks.
const MARK_NUMBERS: u64 = 1 << 14;
/// The size of the pieces in which the file is read, in bytes.
const BUFFER_BYTES: u64 = 64 << 10;
/// The most runs of one tensor. Only unusual files have more than one.
const RUNS_MAX: usize = 1 << 10;
/// The length of the longest varint.
pub const VARINT_BYTES_MAX: usize = 10;

/// The encoding of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// This many bytes, little-endian.
    Fixed(u64),
    /// As many bytes as needed, with seven bits in each.
    Varint,
}

/// Consecutive numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    bytes: Range<u64>,
    is_packed: bool,
    /// The index of its first number.
    first: u64,
}

/// A position from which numbers can be read.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The index of the number.
    number: u64,
    position: u64,
}

/// The numbers of a field.
#[derive(Clone, Debug)]
pub struct Numbers {
    file: Arc<SourceFile>,
    encoding: Encoding,
    runs: Vec<Run>,
    count: u64,
    marks: Vec<Mark>,
}

impl Numbers {
    /// Creates an empty list of numbers in this encoding.
    pub fn new(file: Arc<SourceFile>, encoding: Encoding) -> Numbers {
        Numbers { file, encoding, runs: Vec::new(), count: 0, marks: Vec::new() }
    }

    /// Returns how many numbers there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds a packed run of fixed-width numbers. Returns `None` if it ends within a number or there are too many runs.
    pub fn add_fixed(&mut self, bytes: Range<u64>) -> Option<()> {
        let Encoding::Fixed(width) = self.encoding else { return None };
        let length = bytes.end - bytes.start;
        if !length.is_multiple_of(width) {
            return None;
        }
        self.run(bytes, true)?;
        self.count += length / width;
        Some(())
    }

    /// Adds a number preceded by its key, at which `bytes` begin. Returns `None` if there are too many runs.
    pub fn add_unpacked(&mut self, bytes: Range<u64>) -> Option<()> {
        let position = bytes.start;
        self.run(bytes, false)?;
        self.add_number(position);
        Some(())
    }

    /// Begins a packed run of varints, each of which is then added with [`Numbers::add_number`]. Returns `None` if there are too many runs.
    pub fn begin_varints(&mut self, bytes: Range<u64>) -> Option<()> {
        self.run(bytes, true)
    }

    /// Adds a number, at this position, to the last run.
    pub fn add_number(&mut self, position: u64) {
        if self.count.is_multiple_of(MARK_NUMBERS) || self.runs.last().is_some_and(|run| run.first == self.count) {
            self.marks.push(Mark { number: self.count, position });
        }
        self.count += 1;
    }

    /// Adds a run or extends the last one.
    fn run(&mut self, bytes: Range<u64>, is_packed: bool) -> Option<()> {
        let follows = |run: &&mut Run| !is_packed && !run.is_packed && run.bytes.end == bytes.start;
        if let Some(run) = self.runs.last_mut().filter(follows) {
            run.bytes.end = bytes.end;
        } else if self.runs.len() == RUNS_MAX {
            return None;
        } else if !bytes.is_empty() {
            self.runs.push(Run { bytes, is_packed, first: self.count });
        }
        Some(())
    }

    /// Reads bytes of the elements that the numbers represent, starting at `offset_bytes`. Elements narrower than their numbers are the low
    /// bytes.
    ///
    /// # Errors
    /// Fails if the file cannot be read or has changed since the model was read.
    pub fn read(&self, what: &str, data_type: DataType, offset_bytes: u64, into: &mut [u8]) -> Result<(), ModelError> {
        let width = data_type.size_bytes();
        let (mut number, mut skipped, mut into) = (offset_bytes / width, offset_bytes % width, into);
        while !into.is_empty() {
            let Some(run) = self.runs.partition_point(|run| run.first <= number).checked_sub(1) else { break };
            let end = self.runs.get(run + 1).map_or(self.count, |next| next.first);
            if number >= end {
                break;
            }
            let wanted = (skipped + into.len() as u64).min((end - number) * width) - skipped;
            let (held, rest) = std::mem::take(&mut into).split_at_mut(wanted as usize);
            self.read_run(&self.runs[run], what, data_type, number * width + skipped, held)?;
            (number, skipped, into) = (end, 0, rest);
        }
        Ok(())
    }

    /// Does the same for a range within one run.
    fn read_run(
        &self,
        run: &Run,
        what: &str,
        data_type: DataType,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), ModelError> {
        let width = data_type.size_bytes();
        let first = offset_bytes / width;
        let mut position = run.bytes.start;
        let mut number = run.first;
        match self.encoding {
            Encoding::Fixed(bytes) if run.is_packed && bytes == width => {
                let start = run.bytes.start + offset_bytes - run.first * width;
                return self.file.read(what, start, into);
            }
            Encoding::Fixed(bytes) => {
                position += (first - run.first) * (bytes + u64::from(!run.is_packed));
                number = first;
            }
            Encoding::Varint => {
                let mark = self.marks.partition_point(|mark| mark.number <= first).checked_sub(1);
                if let Some(mark) = mark.map(|mark| self.marks[mark]) {
                    (position, number) = (mark.position, mark.number);
                }
            }
        }
        let mut cursor = Cursor { numbers: self, what, position, end: run.bytes.end, buffer: Vec::new(), taken: 0 };
        let mut done = 0;
        while done < into.len() {
            let value = cursor.next(run.is_packed)?;
            if number >= first {
                let element = match data_type {
                    DataType::Bool => u64::from(value as u32 != 0),
                    _ => value,
                };
                let skipped = if number == first { (offset_bytes % width) as usize } else { 0 };
                let bytes = &element.to_le_bytes()[skipped..width as usize];
                let count = bytes.len().min(into.len() - done);
                into[done..done + count].copy_from_slice(&bytes[..count]);
                done += count;
            }
            number += 1;
        }
        Ok(())
    }
}

/// Two lists are equal if they are certain, without reading anything, to be the same numbers.
impl PartialEq for Numbers {
    fn eq(&self, other: &Numbers) -> bool {
        self.file.is(&other.file) && self.encoding == other.encoding && self.runs == other.runs
    }
}

/// Decodes the numbers of a run, starting at a position.
struct Cursor<'a> {
    numbers: &'a Numbers,
    what: &'a str,
    /// The position of the next read.
    position: u64,
    end: u64,
    buffer: Vec<u8>,
    /// The number of bytes of the buffer already decoded.
    taken: usize,
}

impl Cursor<'_> {
    fn next(&mut self, is_packed: bool) -> Result<u64, ModelError> {
        if !is_packed {
            self.byte()?;
        }
        let mut value = 0;
        match self.numbers.encoding {
            Encoding::Fixed(width) => {
                for byte in 0..width {
                    value |= u64::from(self.byte()?) << (8 * byte);
                }
            }
            Encoding::Varint => {
                for shift in (0..7 * VARINT_BYTES_MAX).step_by(7) {
                    let byte = self.byte()?;
                    value |= u64::from(byte & 0x7f) << shift;
                    if byte & 0x80 == 0 {
                        break;
                    }
                }
            }
        }
        Ok(value)
    }

    fn byte(&mut self) -> Result<u8, ModelError> {
        if self.taken == self.buffer.len() {
            let length = (self.end - self.position).min(BUFFER_BYTES);
            self.buffer.resize(length as usize, 0);
            self.numbers.file.read(self.what, self.position, &mut self.buffer)?;
            (self.position, self.taken) = (self.position + length, 0);
        }
        let byte = self.buffer.get(self.taken).copied().unwrap_or_default();
        self.taken += 1;
        Ok(byte)
    }
}
