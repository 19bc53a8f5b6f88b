//! Reading of gzip files: one or more streams, whose checksums are verified when their ends are read.

use std::io::{BufRead, Error, ErrorKind, Read, Result};

use flate2::bufread::GzDecoder;

/// Returns the most bytes that this many bytes of a gzip or ZIP file decompress to. More are corrupt or hostile: deflate cannot shrink data
/// by more than this factor, apart from the overhead of tiny files.
pub(crate) fn unpacked_bytes_max(packed_bytes: u64) -> u64 {
    packed_bytes.saturating_mul(1032).saturating_add(4096)
}

/// The decompressed contents of a gzip file. Zeros after the last stream, to which some media pad files, are left out. Errors name the byte
/// of the compressed data.
pub(crate) struct Gzip<R> {
    /// The stream that is read; `None` after the last one.
    decoder: Option<GzDecoder<Counted<R>>>,
}

/// A file, with the number of bytes that were read.
struct Counted<R> {
    file: R,
    bytes: u64,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let count = self.file.read(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        self.file.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.file.consume(count);
        self.bytes += count as u64;
    }
}

/// Returns an error with the byte before which it was found.
fn located(error: &Error, at: u64) -> Error {
    let reason = match error.kind() {
        ErrorKind::UnexpectedEof => format!("the compressed data breaks off at byte {at}"),
        _ => format!("{error}, before byte {at} of the compressed data"),
    };
    Error::new(error.kind(), reason)
}

impl<R: BufRead> Gzip<R> {
    /// Reads a file from its beginning.
    pub(crate) fn new(file: R) -> Gzip<R> {
        Gzip { decoder: Some(GzDecoder::new(Counted { file, bytes: 0 })) }
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let count = decoder.read(bytes).map_err(|error| located(&error, decoder.get_ref().bytes))?;
            if count > 0 || bytes.is_empty() {
                return Ok(count);
            }
            let mut file = match self.decoder.take() {
                Some(decoder) => decoder.into_inner(),
                None => break,
            };
            if !is_at_end(&mut file)? {
                let end = file.bytes;
                let next = GzDecoder::new(file);
                if next.header().is_none() {
                    let error = Error::new(ErrorKind::InvalidData, "the gzip stream is followed by other data");
                    return Err(located(&error, end));
                }
                self.decoder = Some(next);
            }
        }
        Ok(0)
    }
}

/// Skips zeros. Returns whether nothing follows them.
fn is_at_end(file: &mut impl BufRead) -> Result<bool> {
    loop {
        let bytes = file.fill_buf()?;
        if bytes.is_empty() {
            return Ok(true);
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let is_other = zeros < bytes.len();
        file.consume(zeros);
        if is_other {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nifti::samples::packed;

    fn read(file: &[u8]) -> std::result::Result<String, String> {
        let mut text = String::new();
        // Buffers of a few bytes end anywhere in the file.
        let file = std::io::BufReader::with_capacity(5, file);
        Gzip::new(file).read_to_string(&mut text).map(|_| text).map_err(|error| error.to_string())
    }

    #[test]
    fn streams_follow_each_other_and_nothing_else_follows() {
        let (a, b) = (packed(b"one "), packed(b"two"));
        assert_eq!(read(&[&a[..], &b].concat()).unwrap(), "one two");
        assert_eq!(read(&[&a[..], &b, &[0; 20]].concat()).unwrap(), "one two");
        for rest in [b"other".as_slice(), b"\0\0x", &a[..1]] {
            let error = read(&[&b[..], rest].concat()).unwrap_err();
            assert!(error.contains("followed by other data"), "{error}");
        }
    }

    #[test]
    fn no_part_of_a_stream_can_be_missing_or_changed() {
        let file = packed(b"some words");
        for length in 0..file.len() {
            let error = read(&file[..length]).unwrap_err();
            assert!(
                error.contains(&format!("breaks off at byte {length}")),
                "{length} of {} bytes: {error}",
                file.len()
            );
        }
        // Times in the header and bits that fill up the last byte of the data mean nothing for the contents.
        for place in 0..file.len() {
            let mut changed = file.clone();
            changed[place] ^= 4;
            assert!(read(&changed).is_ok_and(|text| text == "some words") || read(&changed).is_err(), "byte {place}");
        }
        for place in file.len() - 8..file.len() {
            let mut changed = file.clone();
            changed[place] ^= 4;
            let error = read(&changed).unwrap_err();
            assert!(error.contains("checksum") && error.contains(&format!("byte {}", file.len())), "{place}: {error}");
        }
    }
}
