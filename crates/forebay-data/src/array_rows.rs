//! Rows of an array: of one in memory, or of one in a file, of which only the rows that are asked for are read.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_base::{DataType, Tensor, TensorType};

use crate::digest::{Digest, WHOLE_BYTES_MAX};
use crate::error::DataError;
use crate::npy::Layout;

/// An array whose first axis counts samples.
pub(crate) enum Rows {
    /// In memory.
    Held(Tensor),
    /// In a file, which has its elements one behind the other.
    Stored(StoredRows),
}

/// An array in a file.
pub(crate) struct StoredRows {
    file: File,
    origin: String,
    layout: Layout,
    /// Where the elements begin.
    start: u64,
    row_bytes: u64,
}

impl Rows {
    /// An array of elements that lie in `path` from byte `at` on, `size_bytes` with its header.
    ///
    /// # Errors
    /// [`DataError`] naming `origin`: what is wrong with the header, and fewer bytes than it promises.
    pub(crate) fn stored(path: &Path, at: u64, size_bytes: u64, origin: String) -> Result<Rows, DataError> {
        let file = forebay_limits::open_regular(path).map_err(|error| DataError::io(path, error))?;
        let layout = Layout::read(At { file: &file, at }, &origin)?;
        let elements_bytes = layout.size_bytes_within(size_bytes, &origin)?;
        let available = size_bytes.saturating_sub(layout.header_bytes);
        if elements_bytes > available {
            return Err(DataError::malformed(
                origin,
                format!(
                    "truncated: {available} of the {elements_bytes} bytes of its elements, which begin at byte {}",
                    at + layout.header_bytes
                ),
            ));
        }
        let row_bytes = elements_bytes / layout.ty.shape.first().copied().unwrap_or(1).max(1);
        Ok(Rows::Stored(StoredRows { file, origin, start: at + layout.header_bytes, layout, row_bytes }))
    }

    /// Type and shape of all of it.
    pub(crate) fn ty(&self) -> TensorType {
        match self {
            Rows::Held(tensor) => tensor.ty(),
            Rows::Stored(stored) => stored.layout.ty.clone(),
        }
    }

    /// Bytes in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        match self {
            Rows::Held(tensor) => tensor.bytes().len() as u64,
            Rows::Stored(_) => 0,
        }
    }

    /// Rows, in the order given.
    ///
    /// # Errors
    /// [`DataError`] naming the file, the row and where it is.
    ///
    /// # Panics
    /// If a row is out of range.
    pub(crate) fn rows(&self, rows: &[u64]) -> Result<Tensor, DataError> {
        match self {
            Rows::Held(tensor) => Ok(tensor.rows(rows)),
            Rows::Stored(stored) => stored.rows(rows),
        }
    }

    /// Rows one behind the other.
    ///
    /// # Errors
    /// As [`Rows::rows`].
    ///
    /// # Panics
    /// If a row is out of range.
    pub(crate) fn range(&self, rows: Range<u64>) -> Result<Tensor, DataError> {
        self.rows(&rows.collect::<Vec<u64>>())
    }

    /// Adds rows to a digest, with their type and shape: all of their bytes, or where these are too many to be read just for this, some
    /// from the start, the middle and the end. It does not depend on where the array is.
    ///
    /// # Errors
    /// As [`Rows::rows`].
    pub(crate) fn add_to(&self, digest: &mut Digest, rows: Range<u64>) -> Result<(), DataError> {
        let (count, ty) = (rows.end - rows.start, self.ty());
        digest.add_kind(ty.data_type, &ty.shape[1..]);
        let row_bytes = match self {
            Rows::Held(tensor) => tensor.bytes().len() as u64 / tensor.shape()[0].max(1),
            Rows::Stored(stored) => stored.row_bytes,
        };
        let at_once = (PIECE_BYTES / row_bytes.max(1)).max(1);
        let mut piece = |first: u64, last: u64| -> Result<(), DataError> {
            let mut row = first;
            while row < last {
                let next = (row + at_once).min(last);
                digest.add(self.range(row..next)?.bytes());
                row = next;
            }
            Ok(())
        };
        if count.saturating_mul(row_bytes) <= WHOLE_BYTES_MAX {
            piece(rows.start, rows.end)?;
        } else {
            let middle = rows.start + count / 2;
            for first in [rows.start, middle, rows.end.saturating_sub(at_once).max(rows.start)] {
                piece(first, (first + at_once).min(rows.end))?;
            }
        }
        Ok(())
    }
}

/// Bytes that are read at once for a digest.
const PIECE_BYTES: u64 = 256 << 10;

impl StoredRows {
    /// Whether the first axis is the slowest, so that a row is in one place.
    pub(crate) fn has_whole_rows(&self) -> bool {
        !self.layout.fortran_order || self.layout.ty.shape.len() < 2
    }

    fn rows(&self, rows: &[u64]) -> Result<Tensor, DataError> {
        let Layout { ty, big_endian, .. } = &self.layout;
        let size_bytes = self.row_bytes.saturating_mul(rows.len() as u64);
        let buffer = forebay_limits::buffer(size_bytes);
        let mut bytes: Vec<u8> = buffer.map_err(|error| DataError::malformed(&self.origin, error.to_string()))?;
        bytes.resize(size_bytes as usize, 0);
        let mut done = 0;
        while done < rows.len() {
            // Rows one behind the other are read at once.
            let mut next = done + 1;
            while next < rows.len() && rows[next] == rows[next - 1] + 1 {
                next += 1;
            }
            assert!(rows[next - 1] < ty.shape[0], "row {} of {}", rows[next - 1], ty.shape[0]);
            let (from, to) = (done * self.row_bytes as usize, next * self.row_bytes as usize);
            let place = self.start + rows[done] * self.row_bytes;
            self.file.read_exact_at(&mut bytes[from..to], place).map_err(|error| {
                let row = rows[done];
                DataError::malformed(&self.origin, format!("sample {row}, at byte {place}: cannot read: {error}"))
            })?;
            done = next;
        }
        if *big_endian {
            bytes.chunks_exact_mut(ty.data_type.size_bytes() as usize).for_each(<[u8]>::reverse);
        }
        if let Some(place) = bytes.iter().position(|&byte| ty.data_type == DataType::Bool && byte > 1) {
            let row = rows[place / self.row_bytes.max(1) as usize];
            let reason = format!("sample {row}: a boolean that is neither 0 nor 1");
            return Err(DataError::malformed(&self.origin, reason));
        }
        let shape: Vec<u64> = [rows.len() as u64].into_iter().chain(ty.shape.iter().skip(1).copied()).collect();
        Ok(Tensor::new(ty.data_type, &shape, bytes).expect("as many bytes as the rows have"))
    }
}

/// A file from a place on, as a stream.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl std::io::Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
