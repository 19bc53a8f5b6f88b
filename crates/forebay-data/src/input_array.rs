//! An input of a run in a file, of which one of several processes reads only its share.

use std::ops::Range;
use std::path::Path;

use forebay_base::{Tensor, TensorType};

use crate::array_rows::Rows;
use crate::digest::Digest;
use crate::error::DataError;
use crate::npy;
use crate::npz::Archive;

/// Arrays of up to this many bytes count whole in a digest, larger ones in part: a process would otherwise read far more than its share.
const DIGEST_BYTES_MAX: u64 = 64 << 20;
/// The number of bytes of rows that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// An array in a file: its rows are read when they are asked for. A compressed array, one in Fortran order and a scalar have no rows that
/// could be read alone, so they are read whole at once.
///
/// ```
/// use forebay_base::Tensor;
/// use forebay_data::{InputArray, npy};
///
/// let path = std::env::temp_dir().join(format!("forebay-input-array-{}.npy", std::process::id()));
/// npy::write(&path, &Tensor::from_i64(&[3], &[5, 6, 7]))?;
/// let array = InputArray::in_file(&path)?;
/// assert_eq!(array.ty().shape, [3]);
/// assert_eq!(array.read()?, Tensor::from_i64(&[3], &[5, 6, 7]));
/// assert_eq!(array.among_zeros(1..2)?, Tensor::from_i64(&[3], &[0, 6, 0]));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), forebay_data::DataError>(())
/// ```
pub struct InputArray(Rows);

impl InputArray {
    /// Opens an array of an archive.
    ///
    /// # Errors
    /// [`DataError::MissingArray`], or an error that says what is wrong with the array.
    pub fn in_archive(archive: &mut Archive, name: &str) -> Result<InputArray, DataError> {
        let origin = archive.origin(name);
        let stored = archive.place(name)?.map(|(path, at, size_bytes)| Rows::stored(&path, at, size_bytes, origin));
        InputArray::by_rows(stored.transpose()?, || archive.read(name))
    }

    /// Opens the array of an `.npy` file.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    pub fn in_file(path: &Path) -> Result<InputArray, DataError> {
        let size_bytes = std::fs::metadata(path).map_err(|error| DataError::io(path, error))?.len();
        let stored = Rows::stored(path, 0, size_bytes, path.display().to_string())?;
        InputArray::by_rows(Some(stored), || npy::read(path))
    }

    fn by_rows(
        stored: Option<Rows>,
        whole: impl FnOnce() -> Result<Tensor, DataError>,
    ) -> Result<InputArray, DataError> {
        match stored {
            Some(Rows::Stored(stored)) if stored.has_whole_rows() && stored.has_rows() => {
                Ok(InputArray(Rows::Stored(stored)))
            }
            _ => Ok(InputArray(Rows::Held(whole()?))),
        }
    }

    /// Returns the type and shape.
    pub fn ty(&self) -> TensorType {
        self.0.ty()
    }

    /// Returns a digest of the elements, or of some of them if there are many; the shape does not count.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    pub fn digest(&self) -> Result<String, DataError> {
        let mut digest = Digest::default();
        match (&self.0, self.ty().shape.first()) {
            (Rows::Held(tensor), None) => digest.add(tensor.bytes()),
            (array, count) => array.add_within(&mut digest, 0..count.copied().unwrap_or(0), DIGEST_BYTES_MAX)?,
        }
        Ok(digest.text())
    }

    /// Returns the whole array.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    pub fn read(&self) -> Result<Tensor, DataError> {
        match &self.0 {
            Rows::Held(tensor) => Ok(tensor.clone()),
            Rows::Stored(_) => self.among_zeros(0..self.ty().shape[0]),
        }
    }

    /// Returns an array of this shape with these rows in their places and zeros elsewhere. The zeros take no memory until they are written.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    ///
    /// # Panics
    /// If the rows are out of range.
    pub fn among_zeros(&self, rows: Range<u64>) -> Result<Tensor, DataError> {
        let Rows::Stored(_) = &self.0 else { return self.read() };
        let (ty, row_bytes) = (self.ty(), self.0.row_bytes());
        let mut bytes = vec![0; (row_bytes * ty.shape[0]) as usize];
        let at_once = (PIECE_BYTES / row_bytes.max(1)).max(1);
        for start in rows.clone().step_by(at_once as usize) {
            let piece = self.0.range(start..(start + at_once).min(rows.end))?;
            let place = (row_bytes * start) as usize;
            bytes[place..place + piece.bytes().len()].copy_from_slice(piece.bytes());
        }
        Ok(Tensor::new(ty.data_type, &ty.shape, bytes).expect("as many bytes as its rows have"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npz;

    #[test]
    fn rows_are_read_alone_where_they_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let array = Tensor::from_f32(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let scalar = Tensor::from_i64(&[], &[3]);
        let digest = {
            let path = folder.path().join("x.npy");
            npy::write(&path, &array).unwrap();
            InputArray::in_file(&path).unwrap().digest().unwrap()
        };
        for deflated in [false, true] {
            let path = folder.path().join("a.npz");
            npz::write(&path, &[("x", &array), ("scalar", &scalar)], deflated).unwrap();
            let mut archive = Archive::open(&path).unwrap();
            let x = InputArray::in_archive(&mut archive, "x").unwrap();
            assert_eq!((x.ty(), x.read().unwrap(), x.digest().unwrap()), (array.ty(), array.clone(), digest.clone()));
            let own = Tensor::from_f32(&[4, 2], &[0.0, 0.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]);
            // A compressed array is in memory anyway.
            assert_eq!(x.among_zeros(1..3).unwrap(), if deflated { array.clone() } else { own });
            assert_eq!(InputArray::in_archive(&mut archive, "scalar").unwrap().read().unwrap(), scalar);
            let error = InputArray::in_archive(&mut archive, "y").err().unwrap().to_string();
            assert!(error.contains("no array named 'y'"), "{error}");
        }
    }

    #[test]
    fn other_elements_have_another_digest() {
        let folder = tempfile::tempdir().unwrap();
        let digest = |name: &str, values: &[f32]| {
            let path = folder.path().join(name);
            npy::write(&path, &Tensor::from_f32(&[2, 2], values)).unwrap();
            InputArray::in_file(&path).unwrap().digest().unwrap()
        };
        assert_ne!(digest("a.npy", &[1.0, 2.0, 3.0, 4.0]), digest("b.npy", &[1.0, 2.0, 3.0, 5.0]));
    }
}
