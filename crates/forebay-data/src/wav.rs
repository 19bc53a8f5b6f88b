//! Reading of WAV files: integers of up to 32 bits, and floating-point numbers of 32 or 64 bits.
//!
//! Sources: Multimedia Programming Interface and Data Specifications 1.0 (IBM and Microsoft, 1991), and `WAVEFORMATEXTENSIBLE` in
//! Microsoft's documentation. A file is a sequence of chunks, each with a name and a size, padded to an even number of bytes. The chunk
//! `fmt ` describes the numbers in the chunk `data`. Integers with fewer bits than their bytes hold are in the upper bits, above zeros.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::ops::RangeInclusive;

/// The most bytes of the description that are read.
const DESCRIPTION_BYTES_MAX: u64 = 4096;
/// The number of numbers that are read at once.
const NUMBERS_AT_ONCE: u64 = 4096;
/// The sizes of data that some programs write if they do not know the size in advance (sox, arecord): the data goes on to the end of the
/// file, if that has fewer bytes.
const SIZES_UNKNOWN: RangeInclusive<u32> = 0x7fff_0000..=0x8000_0000;
/// What follows the encoding in the identifiers of encodings in `WAVEFORMATEXTENSIBLE`.
const IDENTIFIER: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71];

/// A file that is being read.
pub(crate) struct Wav {
    stream: BufReader<File>,
    /// The description of its numbers.
    pub(crate) description: Description,
    /// The number of samples per channel.
    pub(crate) length: u64,
    /// The number of numbers that were not read yet.
    left: u64,
}

/// What the chunk `fmt ` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// The number of samples per second.
    pub(crate) rate: u32,
    /// The number of channels.
    pub(crate) channels: u32,
    /// The number of bits per number that are used.
    pub(crate) bits: u32,
    /// The number of bytes per number.
    bytes: usize,
    is_float: bool,
}

impl Wav {
    /// Reads the chunks before the data.
    ///
    /// # Errors
    /// A message that says what is wrong or not supported.
    pub(crate) fn open(file: File) -> Result<Wav, String> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => "it ends before its chunk 'data'".to_owned(),
            _ => error.to_string(),
        };
        let file_bytes = file.metadata().map_err(failed)?.len();
        let mut stream = BufReader::new(file);
        let mut start = [0; 12];
        stream.read_exact(&mut start).map_err(failed)?;
        if &start[..4] != b"RIFF" || &start[8..] != b"WAVE" {
            return Err("it does not begin with RIFF and WAVE".to_owned());
        }
        let mut description = None;
        loop {
            let mut head = [0; 8];
            stream.read_exact(&mut head).map_err(failed)?;
            let size = u32_at(&head, 4);
            match (&head[..4], description) {
                (b"fmt ", _) => {
                    let read = forebay_limits::read_up_to(&mut stream, u64::from(size).min(DESCRIPTION_BYTES_MAX));
                    let read = read.map_err(failed)?;
                    description = Some(Description::parse(&read)?);
                    stream.seek_relative(i64::from(size) - read.len() as i64).map_err(failed)?;
                }
                (b"data", None) => return Err("it has no chunk 'fmt ' before its chunk 'data'".to_owned()),
                (b"data", Some(description)) => {
                    let sample_bytes = u64::from(description.channels) * description.bytes as u64;
                    let left_bytes = file_bytes.saturating_sub(stream.stream_position().map_err(failed)?);
                    let size_bytes = match size {
                        // Others write this, and a file that was never finished has no size yet.
                        u32::MAX => left_bytes,
                        0 if !is_at_chunk(&mut stream, left_bytes).map_err(failed)? => left_bytes,
                        _ if SIZES_UNKNOWN.contains(&size) && left_bytes < u64::from(size) => left_bytes,
                        _ if !u64::from(size).is_multiple_of(sample_bytes) => {
                            return Err(format!(
                                "its data has {size} bytes, which are no whole number of samples of {sample_bytes} bytes"
                            ));
                        }
                        _ => size.into(),
                    };
                    let length = size_bytes / sample_bytes;
                    return Ok(Wav { stream, description, length, left: length * u64::from(description.channels) });
                }
                _ => stream.seek_relative(size.into()).map_err(failed)?,
            }
            // Some programs leave out the padding. No name begins with a zero.
            if size % 2 == 1 && stream.fill_buf().map_err(failed)?.first() == Some(&0) {
                stream.consume(1);
            }
        }
    }

    /// Reads up to this many numbers, with the channels of each sample together. An error comes with how many numbers were read before it.
    pub(crate) fn numbers(&mut self, most: usize) -> Result<Vec<f32>, (usize, String)> {
        let Description { bytes: size, .. } = self.description;
        let (mut numbers, mut bytes) = (Vec::new(), Vec::new());
        let mut wanted = self.left.min(most as u64);
        while wanted > 0 {
            let count = wanted.min(NUMBERS_AT_ONCE);
            bytes.clear();
            let read = self.stream.by_ref().take(count * size as u64).read_to_end(&mut bytes);
            read.map_err(|error| (numbers.len(), error.to_string()))?;
            for number in bytes.chunks_exact(size) {
                let number = self.description.number(number).map_err(|reason| (numbers.len(), reason))?;
                numbers.push(number);
            }
            if bytes.len() as u64 != count * size as u64 {
                return Err((numbers.len(), breaks_off(self.length)));
            }
            self.left -= count;
            wanted -= count;
        }
        Ok(numbers)
    }
}

/// Returns whether another chunk follows, in a file with this many bytes left.
fn is_at_chunk(stream: &mut BufReader<File>, left_bytes: u64) -> std::io::Result<bool> {
    let mut head = [0; 8];
    let Some(rest_bytes) = left_bytes.checked_sub(head.len() as u64) else { return Ok(false) };
    stream.read_exact(&mut head)?;
    stream.seek_relative(-(head.len() as i64))?;
    Ok(head[..4].iter().all(|byte| matches!(byte, b' '..=b'~')) && u64::from(u32_at(&head, 4)) <= rest_bytes)
}

/// Returns the message about a file with fewer samples per channel than it says.
pub(crate) fn breaks_off(length: u64) -> String {
    format!("the file ends before the last of its {length} samples per channel")
}

impl Description {
    fn parse(bytes: &[u8]) -> Result<Description, String> {
        let needs = |least: usize| match bytes.len() < least {
            true => Err(format!("its chunk 'fmt ' has {} bytes, but at least {least} are needed", bytes.len())),
            false => Ok(()),
        };
        needs(16)?;
        let (mut encoding, channels, rate) = (u16_at(bytes, 0), u16_at(bytes, 2), u32_at(bytes, 4));
        let (sample_bytes, mut bits) = (u16_at(bytes, 12), u16_at(bytes, 14));
        if encoding == 0xfffe {
            needs(40)?;
            let valid_bits = u16_at(bytes, 18);
            bits = if valid_bits == 0 { bits } else { valid_bits };
            encoding = if bytes[26..40] == IDENTIFIER { u16_at(bytes, 24) } else { encoding };
        }
        if channels == 0 || sample_bytes == 0 || sample_bytes % channels != 0 {
            return Err(format!("its samples of {channels} channels have {sample_bytes} bytes, which do not fit"));
        }
        let bytes = usize::from(sample_bytes / channels);
        let is_float = match encoding {
            1 if (1..=4).contains(&bytes) && (1..=8 * bytes).contains(&bits.into()) => false,
            3 if matches!(bytes, 4 | 8) => true,
            1 | 3 => return Err(format!("numbers with {bits} bits in {bytes} bytes are not supported")),
            _ => {
                let name = match encoding {
                    2 | 17 => "ADPCM",
                    6 => "A-law",
                    7 => "mu-law",
                    80 | 85 => "MPEG audio",
                    _ => "unknown to forebay",
                };
                return Err(format!(
                    "its encoding ({encoding:#x}, {name}) is not supported; convert it with `sox IN -e signed-integer OUT`"
                ));
            }
        };
        let bits = if is_float { 8 * bytes as u32 } else { bits.into() };
        Ok(Description { rate, channels: channels.into(), bits, bytes, is_float })
    }

    /// Returns a number, with integers scaled to -1..1.
    fn number(&self, bytes: &[u8]) -> Result<f32, String> {
        if self.is_float {
            return Ok(match *bytes {
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
                _ => 0.0,
            });
        }
        let mut wide = [0; 4];
        wide[4 - bytes.len()..].copy_from_slice(bytes);
        if bytes.len() == 1 {
            // Bytes have no sign: 128 is 0.
            wide[3] ^= 128;
        }
        let wide = i32::from_le_bytes(wide);
        if self.bits < 32 && wide << self.bits != 0 {
            return Err(format!(
                "a number has more bits than the upper {} of {} that the file says it uses; convert it with `sox IN -b 32 OUT`",
                self.bits,
                8 * bytes.len()
            ));
        }
        // The lower bytes of `wide` are zeros, so both steps are those of an integer of as many bytes as the file has.
        let number = wide >> (32 - 8 * bytes.len() as u32);
        Ok(number as f32 * 0.5f32.powi(8 * bytes.len() as i32 - 1))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a chunk without padding.
    fn chunk(name: &[u8], bytes: &[u8]) -> Vec<u8> {
        [name, &(bytes.len() as u32).to_le_bytes(), bytes].concat()
    }

    /// Returns the description of numbers; `valid_bits` makes it that of `WAVEFORMATEXTENSIBLE`.
    fn description(encoding: u16, channels: u16, bits: u16, valid_bits: Option<u16>) -> Vec<u8> {
        let block = channels * (bits / 8);
        let mut bytes = Vec::new();
        let tag = if valid_bits.is_some() { 0xfffe } else { encoding };
        [tag, channels].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        [8000, 8000 * u32::from(block)].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        [block, bits].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        if let Some(valid_bits) = valid_bits {
            [22, valid_bits, 3, 0, encoding].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            bytes.extend(IDENTIFIER);
        }
        chunk(b"fmt ", &bytes)
    }

    fn read(chunks: &[&[u8]]) -> Result<Vec<f32>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wav");
        let chunks = chunks.concat();
        let size = (chunks.len() as u32 + 4).to_le_bytes();
        std::fs::write(&path, [b"RIFF", &size[..], b"WAVE", &chunks].concat()).unwrap();
        let mut wav = Wav::open(File::open(&path).unwrap())?;
        wav.numbers(usize::MAX).map_err(|(count, reason)| format!("{count}: {reason}"))
    }

    #[test]
    fn numbers_of_every_size_are_scaled() {
        let data = |bytes: &[u8]| chunk(b"data", bytes);
        let doubles: Vec<u8> = [0.25f64, -3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let floats: Vec<u8> = [0.25f32, -3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        for (description, bytes, expected) in [
            (description(1, 1, 8, None), vec![0, 128, 192], vec![-1.0, 0.0, 0.5]),
            (description(1, 2, 16, None), vec![0, 0x80, 0, 0x40], vec![-1.0, 0.5]),
            (description(1, 1, 24, Some(24)), vec![0, 0, 0xc0, 1, 0, 0], vec![-0.5, 0.5f32.powi(23)]),
            (description(1, 1, 32, Some(0)), vec![0, 0, 0, 0xe0, 0, 0, 0x80, 0], vec![-0.25, 0.5f32.powi(8)]),
            // Fewer bits than the bytes have.
            (description(1, 1, 32, Some(24)), vec![0, 0, 0, 0xe0, 0, 1, 0, 0], vec![-0.25, 0.5f32.powi(23)]),
            (description(1, 1, 16, Some(12)), vec![0x10, 0, 0, 0x80], vec![0.5f32.powi(11), -1.0]),
            (description(3, 1, 32, None), floats.clone(), vec![0.25, -3.0]),
            (description(3, 1, 32, Some(32)), floats, vec![0.25, -3.0]),
            (description(3, 2, 64, None), doubles, vec![0.25, -3.0]),
        ] {
            assert_eq!(read(&[&description, &data(&bytes)]).unwrap(), expected);
        }
    }

    #[test]
    fn chunks_can_be_padded_or_of_unknown_size() {
        let (description, data) = (description(1, 1, 16, None), chunk(b"data", &[0, 0x40]));
        let odd = chunk(b"LIST", b"INFOx");
        assert_eq!(read(&[&odd, &[0], &description, &data, &odd]).unwrap(), [0.5]);
        assert_eq!(read(&[&description, &odd, &data]).unwrap(), [0.5]);
        let unknown = [b"data".as_slice(), &[255; 4], &[0, 0x40, 0, 0x80, 1]].concat();
        assert_eq!(read(&[&description, &unknown]).unwrap(), [0.5, -1.0]);
        assert!(read(&[&description, &chunk(b"data", &[])]).unwrap().is_empty());
        assert!(read(&[&description, &chunk(b"data", &[]), &chunk(b"LIST", b"INFO")]).unwrap().is_empty());
        for size in [0u32, 0x7fff_f000, 0x7fff_ffff, 0x8000_0000] {
            let unknown = [b"data", &size.to_le_bytes()[..], &[0, 0x40, 0, 0x80, 0, 0, 0, 0, 1]].concat();
            assert_eq!(read(&[&description, &unknown]).unwrap(), [0.5, -1.0, 0.0, 0.0], "{size:#x}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let pcm = description(1, 1, 16, None);
        let data = chunk(b"data", &[1, 0, 0, 0]);
        for (chunks, words) in [
            (vec![&pcm[..]], "it ends before its chunk 'data'"),
            (vec![&data], "it has no chunk 'fmt '"),
            (vec![&chunk(b"fmt ", &[1; 14])], "'fmt ' has 14 bytes, but at least 16 are needed"),
            (vec![&description(7, 1, 8, None), &data], "its encoding (0x7, mu-law) is not supported"),
            (vec![&description(1, 1, 64, None), &data], "numbers with 64 bits in 8 bytes are not supported"),
            (vec![&description(3, 1, 16, None), &data], "numbers with 16 bits in 2 bytes are not supported"),
            (vec![&description(1, 0, 16, None), &data], "its samples of 0 channels have 0 bytes"),
            (vec![&description(1, 3, 16, None), &data], "4 bytes, which are no whole number of samples of 6 bytes"),
            (vec![&description(1, 1, 32, Some(24)), &data], "0: a number has more bits than the upper 24 of 32"),
            (vec![&pcm, &data[..11]], "1: the file ends before the last of its 2 samples per channel"),
        ] {
            let error = read(&chunks).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        for flip in [1, 0x40, 0x80, 0xff] {
            for place in 0..pcm.len() {
                let mut changed = pcm.clone();
                changed[place] ^= flip;
                let _ = read(&[&changed, &data]);
            }
        }
    }
}
