//! Digests, which tell whether two data sets hold the same samples: checksums over everything that determines them or, of files that
//! together exceed a gibibyte, over their sizes and some blocks.
//!
//! A digest detects accidental changes of data. It offers no protection against deliberate deception.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use crate::error::DataError;
use forebay_base::{DataType, Tensor};

/// If files together are larger than this, they are not read whole: only their sizes and some blocks count. These blocks together have at
/// most this many bytes.
pub(crate) const WHOLE_BYTES_MAX: u64 = 1 << 30;
/// The size of such a block.
const BLOCK_BYTES: u64 = 64 << 10;
/// The number of bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// A checksum, and the number of bytes that it covers.
///
/// ```
/// use forebay_data::Digest;
///
/// let of = |bytes: &[u8]| {
///     let mut digest = Digest::default();
///     digest.add(bytes);
///     digest.text()
/// };
/// assert_eq!(of(b"samples"), of(b"samples"));
/// assert_ne!(of(b"samples"), of(b"sample"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Digest {
    crc32: crc32fast::Hasher,
    size_bytes: u64,
}

impl Digest {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.crc32.update(bytes);
        self.size_bytes += bytes.len() as u64;
    }

    /// Adds the type and shape of a row, which are not counted as bytes.
    pub(crate) fn add_kind(&mut self, data_type: DataType, row_shape: &[u64]) {
        self.crc32.update(format!("{data_type}{row_shape:?}").as_bytes());
    }

    /// Adds rows of an array, with their type and shape.
    ///
    /// # Panics
    /// If the array is a scalar or a row is out of range.
    pub fn add_rows(&mut self, array: &Tensor, rows: Range<u64>) {
        self.add_kind(array.data_type(), &array.shape()[1..]);
        let row_bytes = array.bytes().len() / (array.shape()[0].max(1) as usize);
        self.add(&array.bytes()[rows.start as usize * row_bytes..rows.end as usize * row_bytes]);
    }

    /// Adds files, in the order given: their sizes and contents or, if these are too large to be read for a digest alone, their sizes and
    /// blocks from the start, the middle and the end; of very many files, blocks of every n-th.
    ///
    /// # Errors
    /// [`DataError::Io`] naming the file.
    pub fn add_files<'a>(&mut self, paths: impl Iterator<Item = &'a Path> + Clone) -> Result<(), DataError> {
        self.add_files_within(paths, WHOLE_BYTES_MAX)
    }

    fn add_files_within<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a Path> + Clone,
        whole_bytes_max: u64,
    ) -> Result<(), DataError> {
        let size = |path: &Path| std::fs::metadata(path).map_err(|error| DataError::io(path, error));
        let sizes = paths.clone().map(|path| Ok(size(path)?.len())).collect::<Result<Vec<u64>, DataError>>()?;
        let is_whole = sizes.iter().fold(0, |sum: u64, &size| sum.saturating_add(size)) <= whole_bytes_max;
        let blocks_bytes = 3 * BLOCK_BYTES * sizes.len() as u64;
        let every = if is_whole { 1 } else { blocks_bytes.div_ceil(whole_bytes_max.max(1)) };
        for ((number, &size_bytes), path) in (0..).zip(&sizes).zip(paths) {
            self.crc32.update(&size_bytes.to_le_bytes());
            if number % every == 0 {
                self.add_file(path, size_bytes, is_whole).map_err(|error| DataError::io(path, error))?;
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: &Path, size_bytes: u64, whole: bool) -> std::io::Result<()> {
        let mut file = File::open(path)?;
        if whole || size_bytes <= 3 * BLOCK_BYTES {
            let mut buffer = vec![0; BUFFER_BYTES];
            loop {
                match file.read(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(count) => self.add(&buffer[..count]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let mut block = Vec::new();
        for start in [0, size_bytes / 2 - BLOCK_BYTES / 2, size_bytes - BLOCK_BYTES] {
            block.clear();
            file.seek(SeekFrom::Start(start))?;
            file.by_ref().take(BLOCK_BYTES).read_to_end(&mut block)?;
            self.add(&block);
        }
        Ok(())
    }

    /// Returns the digest as text.
    pub fn text(&self) -> String {
        format!("crc32:{:08x}:{}", self.crc32.clone().finalize(), self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_count_with_their_type_and_shape_alone() {
        let of = |array: &Tensor, rows| {
            let mut digest = Digest::default();
            digest.add_rows(array, rows);
            digest.text()
        };
        let array = Tensor::from_i64(&[3, 2], &[0, 1, 2, 3, 4, 5]);
        assert_eq!(of(&array, 1..3), of(&Tensor::from_i64(&[2, 2], &[2, 3, 4, 5]), 0..2));
        assert_ne!(of(&array, 0..3), of(&Tensor::from_i64(&[3, 2], &[0, 1, 2, 3, 4, 6]), 0..3));
        assert_ne!(of(&array, 0..3), of(&array.clone().reshaped(&[6]).unwrap(), 0..6));
    }

    #[test]
    fn every_byte_counts_in_small_files_and_ends_do_in_large_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let good = vec![7u8; 4 * BLOCK_BYTES as usize];
        let of = |whole_bytes_max| {
            let mut digest = Digest::default();
            digest.add_files_within([path.as_path()].into_iter(), whole_bytes_max).unwrap();
            digest.text()
        };
        std::fs::write(&path, &good).unwrap();
        let (whole, blocks) = (of(u64::MAX), of(0));
        for index in (0..good.len()).step_by(4999) {
            let mut bad = good.clone();
            bad[index] = 8;
            std::fs::write(&path, bad).unwrap();
            assert_ne!(of(u64::MAX), whole, "byte {index}");
            let seen = [0, 3 * BLOCK_BYTES / 2, 3 * BLOCK_BYTES];
            let seen = seen.iter().any(|&start| (start..start + BLOCK_BYTES).contains(&(index as u64)));
            assert_eq!(of(0) != blocks, seen, "byte {index}");
        }
        std::fs::write(&path, &good[1..]).unwrap();
        assert_ne!(of(0), blocks, "another size");
        std::fs::remove_file(&path).unwrap();
        let missing = Digest::default().add_files([path.as_path()].into_iter()).unwrap_err();
        assert!(missing.to_string().contains("data"), "{missing}");
    }

    #[test]
    fn of_very_many_files_some_are_read_and_all_sizes_count() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..20).map(|number| folder.path().join(number.to_string())).collect();
        paths.iter().for_each(|path| std::fs::write(path, [7; 100]).unwrap());
        let of = || {
            let mut digest = Digest::default();
            digest.add_files_within(paths.iter().map(|path| path.as_path()), 1999).unwrap();
            digest.text()
        };
        let before = of();
        assert!(before.ends_with(":100"), "{before}");
        for (file, bytes, counts) in [(0, vec![8; 100], true), (9, vec![8; 100], false), (9, vec![7; 99], true)] {
            std::fs::write(&paths[file], bytes).unwrap();
            assert_eq!(of() != before, counts, "file {file}");
            std::fs::write(&paths[file], [7; 100]).unwrap();
        }
        let mut whole = Digest::default();
        whole.add_files_within(paths.iter().map(|path| path.as_path()), 2000).unwrap();
        assert!(whole.text().ends_with(":2000"), "{whole:?}");
    }
}
