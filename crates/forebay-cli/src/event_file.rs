//! Records for TensorBoard: a file of events, each a protocol buffer with checksums.
//!
//! Source: `tensorflow/core/lib/io/record_writer.h` and `tensorflow/core/util/event.proto`. A record consists of its length (8 bytes), the
//! masked CRC32C of the length, its content, and the masked CRC32C of the content.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::failure::Failure;
use crate::output;

/// The reversed polynomial of CRC32C (Castagnoli).
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The mask of checksums, which avoids problems with checksums of data that contains checksums.
const MASK: u32 = 0xa282_ead8;

/// The number of bins of a histogram.
const PARTS: usize = 64;

/// A file of events that is being written.
pub struct EventFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// Whether an event could not be written, after which no further events are.
    is_broken: bool,
}

impl EventFile {
    /// Starts a file in a folder, which is created if necessary. TensorBoard ignores events after step `done` in earlier files there.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn new(folder: &Path, done: u64) -> Result<EventFile, Failure> {
        std::fs::create_dir_all(folder).map_err(|error| output::refused(folder, &error))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name =
            format!("events.out.tfevents.{:010}.forebay.{}.{}", now.as_secs(), std::process::id(), now.subsec_nanos());
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(|error| output::refused(&path, &error))?;
        let mut events = EventFile { path, file: BufWriter::new(file), is_broken: false };
        events.write(0, text(3, b"brain.Event:2"));
        if done > 0 {
            // The start of a session.
            events.write(done + 1, text(7, &whole(1, 1)));
        }
        match events.is_broken {
            true => Err(Failure::Failed(format!("cannot write {}", events.path.display()))),
            false => Ok(events),
        }
    }

    /// Writes the numbers in a line of the record as scalars of its step. A failure to write is reported once, and training continues.
    pub fn line(&mut self, line: &Value) {
        let validation = line.get("kind").and_then(Value::as_str) == Some("validation");
        let step = line.get("step").and_then(Value::as_u64).unwrap_or_default();
        let mut summary = Vec::new();
        for (key, value) in line.as_object().into_iter().flatten() {
            let number = value.as_f64().or(value.as_bool().map(|value| f64::from(u8::from(value))));
            let Some(number) = number.filter(|_| key != "step" && key != "epoch") else { continue };
            let place = if validation { "validation" } else { "training" };
            let scalar = [text(1, format!("{place}/{key}").as_bytes()), float(2, number as f32)].concat();
            summary.extend(text(1, &scalar));
        }
        self.write(step, text(5, &summary));
    }

    /// Writes a histogram of values, with bins of equal width from the smallest to the largest value. Values that are not finite are
    /// ignored.
    pub fn histogram(&mut self, step: u64, name: &str, values: impl Iterator<Item = f64> + Clone) {
        let finite = || values.clone().filter(|value| value.is_finite());
        let (low, high) = finite().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return;
        }
        let part = (high - low) / PARTS as f64;
        let mut counts = [0.0f64; PARTS];
        let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for value in finite() {
            let place = if part > 0.0 { ((value - low) / part) as usize } else { 0 };
            counts[place.min(PARTS - 1)] += 1.0;
            (count, sum, squares) = (count + 1.0, sum + value, squares + value * value);
        }
        let packed = |numbers: &[f64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let limits: Vec<f64> = (1..=PARTS).map(|number| low + part * number as f64).collect();
        let numbers =
            [(1, low), (2, high), (3, count), (4, sum), (5, squares)].map(|(field, number)| double(field, number));
        let histogram = [numbers.concat(), text(6, &packed(&limits)), text(7, &packed(&counts))].concat();
        self.write(step, text(5, &text(1, &[text(1, name.as_bytes()), text(5, &histogram)].concat())));
    }

    /// Writes a picture, given the contents of a PNG file.
    pub fn picture(&mut self, step: u64, name: &str, png: &[u8]) {
        // Width and height are the first numbers of the first chunk.
        let size =
            |at: usize| png.get(at..at + 4).map_or(0, |size| u32::from_be_bytes([size[0], size[1], size[2], size[3]]));
        let sizes = [whole(1, size(20).into()), whole(2, size(16).into()), whole(3, 3)].concat();
        let picture = [sizes, text(4, png)].concat();
        self.write(step, text(5, &text(1, &[text(1, name.as_bytes()), text(4, &picture)].concat())));
    }

    fn write(&mut self, step: u64, what: Vec<u8>) {
        if self.is_broken {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let event = [double(1, now), whole(2, step), what].concat();
        if let Err(error) = self.file.write_all(&record(&event)).and_then(|()| self.file.flush()) {
            self.is_broken = true;
            let failure = output::refused(&self.path, &error);
            output::complain(&format!("warning: {failure}; training continues without it"));
        }
    }
}

/// Encodes a record with its checksums.
fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked(crc32c(bytes)).to_le_bytes();
    [&length[..], &checksum(&length), content, &checksum(content)].concat()
}

fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(MASK)
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |checksum: u32| if checksum & 1 == 1 { (checksum >> 1) ^ POLYNOMIAL } else { checksum >> 1 };
    let byte = |checksum: u32, byte: &u8| (0..8).fold(checksum ^ u32::from(*byte), |checksum, _| step(checksum));
    !bytes.iter().fold(!0, byte)
}

/// Encodes a number in as few bytes as it needs.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Encodes the number and the kind of a field.
fn tag(field: u64, kind: u64) -> Vec<u8> {
    varint(field << 3 | kind)
}

fn whole(field: u64, number: u64) -> Vec<u8> {
    [tag(field, 0), varint(number)].concat()
}

fn double(field: u64, number: f64) -> Vec<u8> {
    [tag(field, 1), number.to_le_bytes().to_vec()].concat()
}

fn text(field: u64, bytes: &[u8]) -> Vec<u8> {
    [tag(field, 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn float(field: u64, number: f32) -> Vec<u8> {
    [tag(field, 5), number.to_le_bytes().to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }

    /// Returns the contents of the records of a file, after verifying their checksums.
    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(12);
            let length = u64::from_le_bytes(head[..8].try_into().unwrap()) as usize;
            let unmasked =
                |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()).wrapping_sub(MASK).rotate_left(15);
            assert_eq!(unmasked(&head[8..]), crc32c(&head[..8]));
            assert_eq!(unmasked(&rest[length..length + 4]), crc32c(&rest[..length]));
            records.push(rest[..length].to_vec());
            bytes = &rest[length + 4..];
        }
        records
    }

    /// Returns the fields of a message: their numbers and contents.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let take_varint = |bytes: &mut &[u8]| {
            let (mut number, mut shift) = (0u64, 0);
            loop {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                number |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return number;
                }
            }
        };
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = take_varint(&mut bytes);
            let length = match tag & 7 {
                0 => {
                    fields.push((tag >> 3, take_varint(&mut bytes).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                5 => 4,
                _ => take_varint(&mut bytes) as usize,
            };
            fields.push((tag >> 3, bytes[..length].to_vec()));
            bytes = &bytes[length..];
        }
        fields
    }

    #[test]
    fn scalars_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::new(&folder.path().join("runs"), 6).unwrap();
        events.line(
            &json!({ "kind": "step", "step": 300, "epoch": 2, "loss": 0.5, "skipped": true, "gradient_norm": null }),
        );
        events.line(&json!({ "kind": "validation", "step": 300, "epoch": 2, "loss": 0.25, "confusion": [[1]] }));
        let records = records(&std::fs::read(&events.path).unwrap());
        let found: Vec<_> = records.iter().map(|record| fields(record)).collect();
        assert_eq!(found[0][2], (3, b"brain.Event:2".to_vec()));
        assert_eq!((&found[1][1].1, &found[1][2]), (&7u64.to_le_bytes().to_vec(), &(7, vec![8, 1])));
        let scalars = |event: &[(u64, Vec<u8>)]| {
            let values = fields(&event[2].1).into_iter().map(|(_, value)| {
                let value = fields(&value);
                let number = f32::from_le_bytes(value[1].1.as_slice().try_into().unwrap());
                (String::from_utf8(value[0].1.clone()).unwrap(), number)
            });
            values.collect::<Vec<_>>()
        };
        let pair = |name: &str, number| (name.to_owned(), number);
        assert_eq!(found[2][1].1, 300u64.to_le_bytes());
        assert_eq!(scalars(&found[2]), [pair("training/loss", 0.5), pair("training/skipped", 1.0)]);
        assert_eq!(scalars(&found[3]), [pair("validation/loss", 0.25)]);
    }

    #[test]
    fn histograms_count_every_number_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::new(folder.path(), 0).unwrap();
        events.histogram(3, "w", [-1.0, 0.25, 0.25, 3.0, f64::NAN].into_iter());
        events.histogram(3, "none", [f64::NAN].into_iter());
        events.histogram(3, "same", [2.0, 2.0].into_iter());
        let records = records(&std::fs::read(&events.path).unwrap());
        assert_eq!(records.len(), 3);
        for (record, name, low, high, count) in [(1, "w", -1.0, 3.0, 4.0), (2, "same", 2.0, 2.0, 2.0)] {
            let value = fields(&fields(&fields(&records[record])[2].1)[0].1);
            assert_eq!(value[0].1, name.as_bytes());
            let histogram = fields(&value[1].1);
            let numbers = |field: usize| -> Vec<f64> {
                histogram[field]
                    .1
                    .chunks_exact(8)
                    .map(|number| f64::from_le_bytes(number.try_into().unwrap()))
                    .collect()
            };
            assert_eq!((numbers(0), numbers(1), numbers(2)), (vec![low], vec![high], vec![count]));
            assert_eq!((numbers(5).len(), *numbers(5).last().unwrap()), (PARTS, high));
            assert_eq!(numbers(6).iter().sum::<f64>(), count);
            assert_eq!((numbers(6)[0], numbers(6)[PARTS - 1]), if record == 1 { (1.0, 1.0) } else { (2.0, 0.0) });
        }
    }
}
