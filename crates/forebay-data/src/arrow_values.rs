//! Values of Arrow record batches. Only the bytes of the requested values are read, unless buffers are compressed. Then, each buffer that
//! is needed is decompressed whole.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Read;
use std::ops::Range;
use std::rc::Rc;

use forebay_base::DataType;

use crate::arrow_layout::{self, Batch, Codec, Field, Storage, places};
use crate::arrow_messages::{ArrowFile, Place};
use crate::error::DataError;

/// The size of a view, which contains values of up to 12 bytes itself.
const VIEW_BYTES: usize = 16;
const INLINE_BYTES: usize = 12;

/// The reason why values cannot be read, with the index of the value among the requested ones if it concerns a single one.
pub(crate) type Wrong = (Option<usize>, String);

/// Contiguous values.
pub(crate) struct Values {
    bytes: Vec<u8>,
    ends: Ends,
}

/// The ends of values.
enum Ends {
    /// All values have this many bytes.
    Alike(usize),
    /// Each value ends at the given byte.
    At(Vec<usize>),
}

impl Values {
    /// Returns the byte at which the first `values` values end.
    fn end(&self, values: usize) -> usize {
        match &self.ends {
            Ends::Alike(bytes) => values * bytes,
            Ends::At(ends) => values.checked_sub(1).map_or(0, |last| ends[last]),
        }
    }

    /// Returns the bytes of a value.
    pub(crate) fn value(&self, number: usize) -> &[u8] {
        &self.bytes[self.end(number)..self.end(number + 1)]
    }
}

/// A record batch whose values are read.
pub(crate) struct Opened<'a> {
    file: &'a ArrowFile,
    place: Place,
    /// Its metadata.
    pub(crate) batch: Batch,
    /// The decompressed buffers.
    unpacked: RefCell<BTreeMap<usize, Rc<Vec<u8>>>>,
}

impl<'a> Opened<'a> {
    /// Opens the record batch or dictionary at a position.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the byte.
    pub(crate) fn new(file: &'a ArrowFile, place: Place) -> Result<Opened<'a>, DataError> {
        Ok(Opened { file, place, batch: file.batch(place)?, unpacked: RefCell::default() })
    }

    /// Reads bytes of a buffer.
    fn bytes(&self, buffer: usize, range: Range<u64>) -> Result<Vec<u8>, String> {
        let (at, size) = self.batch.buffers[buffer];
        let start = self.place.body.0 + at;
        let outside = |size: u64| {
            let Range { start: from, end: to } = range;
            format!("damaged: bytes {from}..{to} are outside a buffer of {size} bytes that begins at byte {start}")
        };
        let Some(codec) = self.batch.codec else {
            if range.start > range.end || range.end > size {
                return Err(outside(size));
            }
            let place = (start + range.start, range.end - range.start);
            return self.file.read(place).map_err(|error| error.to_string());
        };
        let known = self.unpacked.borrow().get(&buffer).cloned();
        let unpacked = match known {
            Some(known) => known,
            None => {
                let made = self.file.read((start, size)).map_err(|error| error.to_string());
                let made = made.and_then(|packed| unpack(&packed, codec));
                let made = Rc::new(made.map_err(|reason| format!("damaged buffer at byte {start}: {reason}"))?);
                self.unpacked.borrow_mut().insert(buffer, made.clone());
                made
            }
        };
        let found = unpacked.get(range.start as usize..range.end as usize);
        found.map(<[u8]>::to_vec).ok_or_else(|| outside(unpacked.len() as u64))
    }

    /// Reads integers of this type from a buffer.
    fn integers(&self, buffer: usize, data_type: DataType, range: Range<u64>) -> Result<Vec<i64>, String> {
        let size = data_type.size_bytes();
        let scaled = |number: u64| number.checked_mul(size).ok_or("damaged: more values than can be counted");
        let bytes = self.bytes(buffer, scaled(range.start)?..scaled(range.end)?)?;
        let number = |bytes: &[u8]| {
            let mut wide = [0; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            let number = i64::from_le_bytes(wide);
            let shift = 64 - 8 * size as u32;
            let is_signed = matches!(data_type, DataType::Int8 | DataType::Int16 | DataType::Int32);
            if is_signed { number << shift >> shift } else { number }
        };
        Ok(bytes.chunks_exact(size as usize).map(number).collect())
    }

    /// Reads the offsets of values. Each offset but the first is the end of a value, so they never decrease.
    fn offsets(&self, buffer: usize, is_wide: bool, values: Range<u64>) -> Result<Vec<u64>, String> {
        if values.is_empty() {
            // Without values, there may be no offsets in the buffer.
            return Ok(vec![0]);
        }
        let data_type = if is_wide { DataType::Int64 } else { DataType::Int32 };
        let found = self.integers(buffer, data_type, values.start..values.end + 1)?;
        match found.is_sorted() && found[0] >= 0 {
            true => Ok(found.into_iter().map(|offset| offset as u64).collect()),
            false => Err(format!("damaged: the offsets of values {}..{} decrease", values.start, values.end)),
        }
    }

    /// Reads bits of a buffer.
    fn bits(&self, buffer: usize, range: Range<u64>) -> Result<Vec<u8>, String> {
        let bytes = self.bytes(buffer, range.start / 8..range.end.div_ceil(8))?;
        let first = range.start / 8 * 8;
        Ok(range.map(|bit| bytes[((bit - first) / 8) as usize] >> (bit % 8) & 1).collect())
    }

    /// Reads the values of a range, of the field at the last of `places`. The index of the record batch determines the version of the
    /// dictionary.
    ///
    /// # Errors
    /// [`Wrong`] if the data is damaged or a value is missing.
    pub(crate) fn values(
        &self,
        places: &[arrow_layout::Place],
        range: Range<u64>,
        batch: usize,
    ) -> Result<Values, Wrong> {
        let all = |reason: String| (None, reason);
        let Some((place, below)) = places.split_first() else { return Err((None, "damaged: no values".to_owned())) };
        let count = (range.end - range.start) as usize;
        let (values, missing) = self.batch.nodes[place.node];
        if range.end > values {
            return Err(all(format!(
                "damaged: values {}..{} are outside a field of {values} values",
                range.start, range.end
            )));
        }
        let buffer = place.buffer;
        let has_bits = place.buffers > 0 && self.batch.buffers[buffer].1 > 0;
        if count > 0 && missing != Some(0) && has_bits {
            let present = self.bits(buffer, range.clone()).map_err(all)?;
            if let Some(gap) = present.iter().position(|&bit| bit == 0) {
                return Err((Some(gap), "it has no value".to_owned()));
            }
        }
        match &place.field.storage {
            Storage::Bits => Ok(Values { bytes: self.bits(buffer + 1, range).map_err(all)?, ends: Ends::Alike(1) }),
            Storage::Numbers(data_type) => {
                let size = data_type.size_bytes();
                let scaled = range.start.checked_mul(size).zip(range.end.checked_mul(size));
                let (start, end) = scaled.ok_or_else(|| all("damaged: more values than can be counted".to_owned()))?;
                Ok(Values { bytes: self.bytes(buffer + 1, start..end).map_err(all)?, ends: Ends::Alike(size as usize) })
            }
            Storage::Bytes { is_wide } => {
                let offsets = self.offsets(buffer + 1, *is_wide, range).map_err(all)?;
                let (first, last) = (offsets[0], offsets[count]);
                let bytes = self.bytes(buffer + 2, first..last).map_err(all)?;
                let ends = offsets[1..].iter().map(|offset| (offset - first) as usize);
                Ok(Values { bytes, ends: Ends::At(ends.collect()) })
            }
            Storage::Views => self.views(place, range).map_err(all),
            Storage::List { is_wide } => {
                let offsets = self.offsets(buffer + 1, *is_wide, range).map_err(all)?;
                let (first, last) = (offsets[0], offsets[count]);
                let found = self.values(below, first..last, batch).map_err(|(value, reason)| {
                    let row = value.map(|value| offsets[1..].partition_point(|&end| end - first <= value as u64));
                    (row, reason)
                })?;
                let ends = offsets[1..].iter().map(|offset| found.end((offset - first) as usize)).collect();
                Ok(Values { ends: Ends::At(ends), bytes: found.bytes })
            }
            Storage::FixedList(each) => {
                let scaled = range.start.checked_mul(*each).zip(range.end.checked_mul(*each));
                let (start, end) = scaled.ok_or_else(|| all("damaged: more values than can be counted".to_owned()))?;
                let found = self.values(below, start..end, batch);
                let found = found.map_err(|(value, reason)| (value.map(|value| value / *each as usize), reason))?;
                let ends = (1..=count).map(|row| found.end(row * *each as usize)).collect();
                Ok(Values { ends: Ends::At(ends), bytes: found.bytes })
            }
            Storage::Struct => self.values(below, range, batch),
            Storage::Dictionary { id, index, values } => {
                let indices = self.integers(buffer + 1, *index, range).map_err(all)?;
                self.looked_up((*id, values), &indices, batch)
            }
            Storage::Other(_) => Err(all("values of this type are not supported".to_owned())),
        }
    }

    /// Reads values through views.
    fn views(&self, place: &arrow_layout::Place, range: Range<u64>) -> Result<Values, String> {
        let scaled =
            |number: u64| number.checked_mul(VIEW_BYTES as u64).ok_or("damaged: more values than can be counted");
        let views = self.bytes(place.buffer + 1, scaled(range.start)?..scaled(range.end)?)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for view in views.chunks_exact(VIEW_BYTES) {
            let word = |at: usize| u64::from(u32::from_le_bytes([view[at], view[at + 1], view[at + 2], view[at + 3]]));
            let length = word(0);
            if length <= INLINE_BYTES as u64 {
                bytes.extend_from_slice(&view[4..4 + length as usize]);
            } else {
                let (buffer, start) = (word(8) as usize, word(12));
                if buffer + 2 >= place.buffers {
                    return Err(format!("damaged: a view refers to buffer {buffer} of {}", place.buffers - 2));
                }
                bytes.extend(self.bytes(place.buffer + 2 + buffer, start..start + length)?);
            }
            ends.push(bytes.len());
        }
        Ok(Values { bytes, ends: Ends::At(ends) })
    }

    /// Looks up indices in a dictionary.
    fn looked_up(&self, (id, field): (i64, &Field), indices: &[i64], batch: usize) -> Result<Values, Wrong> {
        let versions = self.file.dictionaries.get(&id).map_or(&[][..], Vec::as_slice);
        let known = versions[..versions.partition_point(|version| version.from <= batch)].last();
        let known = known.ok_or_else(|| (None, format!("damaged: dictionary {id} is missing")))?;
        let mut opened: BTreeMap<usize, Opened> = BTreeMap::new();
        let mut look_up = |index: i64| -> Result<Vec<u8>, String> {
            let count = known.parts.last().map_or(0, |(first, count, _)| first + count);
            let number = u64::try_from(index).ok().filter(|&number| number < count);
            let number =
                number.ok_or_else(|| format!("damaged: index {index} is outside a dictionary of {count} values"))?;
            let part = known.parts.partition_point(|(first, count, _)| first + count <= number);
            let (first, _, place) = known.parts[part];
            let part = match opened.entry(part) {
                Entry::Occupied(part) => part.into_mut(),
                Entry::Vacant(part) => part.insert(Opened::new(self.file, place).map_err(|error| error.to_string())?),
            };
            let places = places(std::slice::from_ref(field), &[0], &part.batch)?;
            let found = part.values(&places, number - first..number - first + 1, batch);
            found.map(|found| found.bytes).map_err(|(_, reason)| reason)
        };
        let mut values: BTreeMap<i64, Vec<u8>> = BTreeMap::new();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for (place, &index) in indices.iter().enumerate() {
            let value = match values.entry(index) {
                Entry::Occupied(value) => value.into_mut(),
                Entry::Vacant(value) => value.insert(look_up(index).map_err(|reason| (Some(place), reason))?),
            };
            bytes.extend_from_slice(value);
            ends.push(bytes.len());
        }
        Ok(Values { bytes, ends: Ends::At(ends) })
    }
}

/// Decompresses a buffer. Its first 8 bytes say how many bytes it holds, or that the rest is not compressed.
fn unpack(packed: &[u8], codec: Codec) -> Result<Vec<u8>, String> {
    if packed.is_empty() {
        return Ok(Vec::new());
    }
    let (count, packed) = packed.split_first_chunk::<8>().ok_or("its size is missing")?;
    let count = i64::from_le_bytes(*count);
    if count == -1 {
        return Ok(packed.to_vec());
    }
    let bytes = u64::try_from(count).map_err(|_| format!("its stated size is {count} bytes"))?;
    let unpacked = match codec {
        Codec::Lz4 => read(lz4_flex::frame::FrameDecoder::new(packed), bytes),
        Codec::Zstd => zstd::Decoder::new(packed).and_then(|decoder| read(decoder, bytes)),
    };
    let unpacked = unpacked.map_err(|error| error.to_string())?;
    match unpacked.len() as u64 == bytes {
        true => Ok(unpacked),
        false => Err(format!("it has {} bytes, but its stated size is {bytes}", unpacked.len())),
    }
}

/// Reads this many bytes from a stream, and one more if there is one.
fn read(stream: impl Read, bytes: u64) -> std::io::Result<Vec<u8>> {
    forebay_limits::read_up_to(stream, bytes.saturating_add(1))
}
