//! Rows of an array, which is either in memory or in a file. From a file, only the requested rows are read.

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
    /// In a file, which stores its elements contiguously.
    Stored(StoredRows),
}

/// An array in a file.
pub(crate) struct StoredRows {
    file: File,
    origin: String,
    layout: Layout,
    /// The byte at which the elements begin.
    start: u64,
    row_bytes: u64,
}

impl Rows {
    /// Opens the array that begins at byte `at` of `path` and takes `size_bytes`, including its header.
    ///
    /// # Errors
    /// [`DataError`] naming `origin` if the header is invalid, or there are fewer bytes than it promises.
    pub(crate) fn stored(path: &Path, at: u64, size_bytes: u64, origin: String) -> Result<Rows, DataError> {
        let file = forebay_limits::open_regular(path).map_err(|error| DataError::io(path, error))?;
        let layout = Layout::read(At { file: &file, at }, &origin)?;
        let elements_bytes = layout.size_bytes_within(size_bytes, &origin)?;
        let available = size_bytes.saturating_sub(layout.header_bytes);
        if elements_bytes > available {
            return Err(DataError::malformed(
                origin,
                format!(
                    "truncated: it has {available} of the {elements_bytes} bytes of its elements, \
                     which begin at byte {}",
                    at + layout.header_bytes
                ),
            ));
        }
        Ok(Rows::within(file, at + layout.header_bytes, elements_bytes, layout, origin))
    }

    /// Returns the array whose elements begin at byte `start` of a file and take `elements_bytes`.
    pub(crate) fn within(file: File, start: u64, elements_bytes: u64, layout: Layout, origin: String) -> Rows {
        let row_bytes = elements_bytes / layout.ty.shape.first().copied().unwrap_or(1).max(1);
        Rows::Stored(StoredRows { file, origin, layout, start, row_bytes })
    }

    /// Returns the type and shape of the whole array.
    pub(crate) fn ty(&self) -> TensorType {
        match self {
            Rows::Held(tensor) => tensor.ty(),
            Rows::Stored(stored) => stored.layout.ty.clone(),
        }
    }

    /// Returns the number of bytes in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        match self {
            Rows::Held(tensor) => tensor.bytes().len() as u64,
            Rows::Stored(_) => 0,
        }
    }

    /// Returns the number of bytes of a row.
    pub(crate) fn row_bytes(&self) -> u64 {
        match self {
            Rows::Held(tensor) => tensor.bytes().len() as u64 / tensor.shape()[0].max(1),
            Rows::Stored(stored) => stored.row_bytes,
        }
    }

    /// Returns rows, in the order given.
    ///
    /// # Errors
    /// [`DataError`] naming the file, the row and its position.
    ///
    /// # Panics
    /// If a row is out of range.
    pub(crate) fn rows(&self, rows: &[u64]) -> Result<Tensor, DataError> {
        match self {
            Rows::Held(tensor) => Ok(tensor.rows(rows)),
            Rows::Stored(stored) => stored.rows(rows),
        }
    }

    /// Returns consecutive rows.
    ///
    /// # Errors
    /// The errors of [`Rows::rows`].
    ///
    /// # Panics
    /// If a row is out of range.
    pub(crate) fn range(&self, rows: Range<u64>) -> Result<Tensor, DataError> {
        self.rows(&rows.collect::<Vec<u64>>())
    }

    /// Adds rows to a digest, with their type and shape. All of their bytes count or, if these are too many to be read for a digest alone,
    /// some from the start, the middle and the end. The digest does not depend on where the array is stored.
    ///
    /// # Errors
    /// The errors of [`Rows::rows`].
    pub(crate) fn add_to(&self, digest: &mut Digest, rows: Range<u64>) -> Result<(), DataError> {
        self.add_within(digest, rows, WHOLE_BYTES_MAX)
    }

    /// Like [`Rows::add_to`]; rows of up to `whole_bytes_max` bytes count whole.
    ///
    /// # Errors
    /// The errors of [`Rows::rows`].
    pub(crate) fn add_within(
        &self,
        digest: &mut Digest,
        rows: Range<u64>,
        whole_bytes_max: u64,
    ) -> Result<(), DataError> {
        let (count, ty) = (rows.end - rows.start, self.ty());
        digest.add_kind(ty.data_type, &ty.shape[1..]);
        let row_bytes = self.row_bytes();
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
        if count.saturating_mul(row_bytes) <= whole_bytes_max {
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

/// The number of bytes that are read at once for a digest.
const PIECE_BYTES: u64 = 256 << 10;

impl StoredRows {
    /// Returns whether the first axis is the slowest, so that rows are contiguous.
    pub(crate) fn has_whole_rows(&self) -> bool {
        !self.layout.fortran_order || self.layout.ty.shape.len() < 2
    }

    /// Returns whether there is a first axis.
    pub(crate) fn has_rows(&self) -> bool {
        !self.layout.ty.shape.is_empty()
    }

    fn rows(&self, rows: &[u64]) -> Result<Tensor, DataError> {
        let Layout { ty, big_endian, .. } = &self.layout;
        let size_bytes = self.row_bytes.saturating_mul(rows.len() as u64);
        let buffer = forebay_limits::buffer(size_bytes);
        let mut bytes: Vec<u8> = buffer.map_err(|error| DataError::malformed(&self.origin, error.to_string()))?;
        bytes.resize(size_bytes as usize, 0);
        let mut done = 0;
        while done < rows.len() {
            // Consecutive rows are read at once.
            let mut next = done + 1;
            while next < rows.len() && rows[next] == rows[next - 1] + 1 {
                next += 1;
            }
            assert!(rows[next - 1] < ty.shape[0], "row {} of {}", rows[next - 1], ty.shape[0]);
            let (from, to) = (done * self.row_bytes as usize, next * self.row_bytes as usize);
            let place = self.start + rows[done] * self.row_bytes;
            self.file.read_exact_at(&mut bytes[from..to], place).map_err(|error| {
                let row = rows[done];
                DataError::malformed(&self.origin, format!("cannot read sample {row} at byte {place}: {error}"))
            })?;
            done = next;
        }
        if *big_endian {
            bytes.chunks_exact_mut(ty.data_type.size_bytes() as usize).for_each(<[u8]>::reverse);
        }
        if let Some(place) = bytes.iter().position(|&byte| ty.data_type == DataType::Bool && byte > 1) {
            let row = rows[place / self.row_bytes.max(1) as usize];
            let reason = format!("a boolean in sample {row} is neither 0 nor 1");
            return Err(DataError::malformed(&self.origin, reason));
        }
        let shape: Vec<u64> = [rows.len() as u64].into_iter().chain(ty.shape.iter().skip(1).copied()).collect();
        Ok(Tensor::new(ty.data_type, &shape, bytes).expect("as many bytes as the rows have"))
    }
}

/// A file as a stream that begins at a given byte.
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
