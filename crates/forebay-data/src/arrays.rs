//! Arrays by name, from an archive or a folder, which are read whole or row by row.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_base::TensorType;

use crate::array_rows::Rows;
use crate::error::DataError;
use crate::names::has_extension;
use crate::npy::Layout;
use crate::npz::Archive;
use crate::safetensors_file::{self, Places};

/// Arrays by name, from an `.npz` archive, a `.safetensors` file or a folder of `.npy` files.
pub(crate) enum Arrays {
    /// An archive.
    Archive(Box<Archive>),
    /// A folder.
    Folder(PathBuf),
    /// A safetensors file.
    Tensors { path: PathBuf, places: Places },
}

impl Arrays {
    /// Opens a file or a folder.
    ///
    /// # Errors
    /// [`DataError`] naming the path.
    pub(crate) fn open(path: &Path) -> Result<Arrays, DataError> {
        match path.is_dir() {
            true => Ok(Arrays::Folder(path.to_path_buf())),
            false if is_safetensors(path) => Arrays::tensors(path),
            false => Ok(Arrays::Archive(Box::new(Archive::open(path)?))),
        }
    }

    fn tensors(path: &Path) -> Result<Arrays, DataError> {
        let file = opened(path)?;
        let size_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
        let read = |at, into: &mut [u8]| file.read_exact_at(into, at).map_err(|error| error.to_string());
        let places = safetensors_file::places(size_bytes, read);
        let malformed = |reason| {
            DataError::malformed(path.display().to_string(), format!("not a readable safetensors file: {reason}"))
        };
        Ok(Arrays::Tensors { path: path.to_path_buf(), places: places.map_err(malformed)? })
    }

    /// Returns the names, in ascending order.
    ///
    /// # Errors
    /// [`DataError`] if the folder cannot be listed.
    pub(crate) fn names(&self) -> Result<Vec<String>, DataError> {
        match self {
            Arrays::Archive(archive) => Ok(archive.names()),
            Arrays::Folder(folder) => npy_names(folder),
            Arrays::Tensors { places, .. } => Ok(places.keys().cloned().collect()),
        }
    }

    /// Returns the name of an array in errors.
    pub(crate) fn origin(&self, name: &str) -> String {
        match self {
            Arrays::Archive(archive) => archive.origin(name),
            Arrays::Folder(folder) => file_of(folder, name).display().to_string(),
            Arrays::Tensors { path, .. } => format!("{}[{name}]", path.display()),
        }
    }

    /// Returns the type of an array, or `None` if there is no array of this name.
    ///
    /// # Errors
    /// [`DataError`] that says what is wrong with its header.
    pub(crate) fn ty(&mut self, name: &str) -> Result<Option<TensorType>, DataError> {
        match self {
            Arrays::Archive(archive) => archive.ty(name),
            Arrays::Folder(folder) => {
                let path = file_of(folder, name);
                if !path.is_file() {
                    return Ok(None);
                }
                crate::npy::read_type(std::io::BufReader::new(opened(&path)?), &path.display().to_string()).map(Some)
            }
            Arrays::Tensors { places, .. } => Ok(places.get(name).map(|(ty, _)| ty.clone())),
        }
    }

    /// Returns the rows of an array. It is read whole if it takes at most `held_bytes_max`, or if it cannot be read otherwise and there is
    /// no such limit.
    ///
    /// # Errors
    /// [`DataError::MissingArray`], or an error that says what is wrong with the array, or that it has to be read whole and is larger than
    /// allowed.
    pub(crate) fn rows(&mut self, name: &str, held_bytes_max: HeldBytes) -> Result<Rows, DataError> {
        let origin = self.origin(name);
        let Some(ty) = self.ty(name)? else {
            let (path, present) = (self.path(), self.names()?);
            return Err(DataError::MissingArray { path, name: name.to_owned(), present });
        };
        let size_bytes = ty.checked_size_bytes().unwrap_or(u64::MAX);
        if size_bytes <= held_bytes_max.bytes() {
            return self.whole(name);
        }
        let stored = match self {
            Arrays::Tensors { path, places } => return tensor_rows(path, &places[name], origin),
            Arrays::Archive(archive) => archive.place(name)?,
            Arrays::Folder(folder) => {
                let path = file_of(folder, name);
                let found = std::fs::metadata(&path).map_err(|error| DataError::io(&path, error))?;
                Some((path, 0, found.len()))
            }
        };
        let rows =
            stored.map(|(path, at, size_bytes)| Rows::stored(&path, at, size_bytes, origin.clone())).transpose()?;
        match rows {
            // The first axis of an array in Fortran order is not the slowest one.
            Some(Rows::Stored(stored)) if stored.has_whole_rows() => Ok(Rows::Stored(stored)),
            other => match held_bytes_max {
                HeldBytes::Usual => self.whole(name),
                HeldBytes::AtMost(bytes) => {
                    let how = match other {
                        Some(_) => "it is in Fortran order (numpy.ascontiguousarray makes it readable row by row)",
                        None => "it is compressed (numpy.savez, without _compressed, makes it readable row by row)",
                    };
                    let reason = format!(
                        "it takes {size_bytes} bytes, but only {bytes} are allowed; it must be read whole because {how}"
                    );
                    Err(DataError::unsupported(origin, reason))
                }
            },
        }
    }

    fn whole(&mut self, name: &str) -> Result<Rows, DataError> {
        let origin = self.origin(name);
        match self {
            Arrays::Archive(archive) => Ok(Rows::Held(archive.read(name)?)),
            Arrays::Folder(folder) => Ok(Rows::Held(crate::npy::read(&file_of(folder, name))?)),
            Arrays::Tensors { path, places } => {
                let rows = tensor_rows(path, &places[name], origin)?;
                // A tensor without a first axis has no rows.
                rows.ty().shape.first().map(|&count| rows.range(0..count).map(Rows::Held)).unwrap_or(Ok(rows))
            }
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Arrays::Archive(archive) => archive.path().to_path_buf(),
            Arrays::Folder(folder) => folder.clone(),
            Arrays::Tensors { path, .. } => path.clone(),
        }
    }
}

/// Returns the rows of a tensor of a safetensors file, which is in these bytes.
fn tensor_rows(path: &Path, (ty, bytes): &(TensorType, Range<u64>), origin: String) -> Result<Rows, DataError> {
    let layout = Layout { ty: ty.clone(), big_endian: false, fortran_order: false, header_bytes: 0 };
    Ok(Rows::within(opened(path)?, bytes.start, bytes.end - bytes.start, layout, origin))
}

/// Returns whether a file's name is that of a safetensors file.
pub(crate) fn is_safetensors(path: &Path) -> bool {
    has_extension(path, &["safetensors"])
}

fn opened(path: &Path) -> Result<File, DataError> {
    forebay_limits::open_regular(path).map_err(|error| DataError::io(path, error))
}

/// How much of its samples a data set can hold in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeldBytes {
    /// Arrays of up to 64 MiB, and those that cannot be read row by row.
    #[default]
    Usual,
    /// Arrays that take at most this many bytes together.
    AtMost(u64),
}

impl HeldBytes {
    /// Returns the size up to which arrays are read whole, even if they could be read row by row.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            HeldBytes::Usual => 64 << 20,
            HeldBytes::AtMost(bytes) => bytes,
        }
    }

    /// Returns what is left after an array of this size.
    pub(crate) fn without(self, held_bytes: u64) -> HeldBytes {
        match self {
            HeldBytes::Usual => HeldBytes::Usual,
            HeldBytes::AtMost(bytes) => HeldBytes::AtMost(bytes.saturating_sub(held_bytes)),
        }
    }
}

fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.npy"))
}

/// Returns the names of the `.npy` files of a folder, in ascending order.
///
/// # Errors
/// [`DataError`] if the folder cannot be listed.
pub(crate) fn npy_names(folder: &Path) -> Result<Vec<String>, DataError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| DataError::io(folder, error))? {
        let name = entry.map_err(|error| DataError::io(folder, error))?.file_name();
        let name = name.to_string_lossy();
        names.extend(name.strip_suffix(".npy").filter(|name| !name.starts_with('.')).map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::{npy, npz};
    use forebay_base::{DataType, Tensor};
    use safetensors::tensor::{Dtype, TensorView};

    fn written(folder: &Path, array: &Tensor) -> [PathBuf; 3] {
        let (archive, files) = (folder.join("a.npz"), folder.join("files"));
        npz::write(&archive, &[("before", &Tensor::from_i64(&[3], &[1, 2, 3])), ("x", array)], false).unwrap();
        std::fs::create_dir_all(&files).unwrap();
        npy::write(&files.join("x.npy"), array).unwrap();
        let tensors = folder.join("a.safetensors");
        std::fs::write(&tensors, in_tensors(array)).unwrap();
        [archive, files, tensors]
    }

    /// A safetensors file with three numbers, `before`, and the array `x`.
    fn in_tensors(array: &Tensor) -> Vec<u8> {
        let (_, theirs) = safetensors_file::TYPES.iter().find(|(ours, _)| *ours == array.data_type()).unwrap();
        let shape: Vec<usize> = array.shape().iter().map(|&size| size as usize).collect();
        let before = [1i64, 2, 3].map(i64::to_le_bytes).concat();
        let before = TensorView::new(Dtype::I64, vec![3], &before).unwrap();
        let x = TensorView::new(*theirs, shape, array.bytes()).unwrap();
        safetensors::serialize([("before", before), ("x", x)], None).unwrap()
    }

    fn digest(rows: &Rows, range: Range<u64>) -> String {
        let mut digest = Digest::default();
        rows.add_to(&mut digest, range).unwrap();
        digest.text()
    }

    #[test]
    fn rows_of_a_file_are_those_of_the_array() {
        let folder = tempfile::tempdir().unwrap();
        for data_type in DataType::NOT_NARROW {
            let bytes: Vec<u8> = (0..5 * 6 * data_type.size_bytes()).map(|byte| (byte % 2) as u8).collect();
            let array = Tensor::new(data_type, &[5, 2, 3], bytes).unwrap();
            for path in written(folder.path(), &array) {
                let stored = Arrays::open(&path).unwrap().rows("x", HeldBytes::AtMost(0)).unwrap();
                let held = Arrays::open(&path).unwrap().rows("x", HeldBytes::Usual).unwrap();
                assert!(matches!((&stored, &held), (Rows::Stored(_), Rows::Held(_))));
                assert_eq!((stored.ty(), stored.held_bytes()), (held.ty(), 0));
                for rows in [vec![0, 1, 2, 3, 4], vec![4, 0, 1, 1], vec![3], vec![]] {
                    assert_eq!(stored.rows(&rows).unwrap(), array.rows(&rows), "{data_type} {rows:?}");
                }
                assert_eq!(digest(&stored, 1..4), digest(&held, 1..4));
            }
        }
    }

    #[test]
    fn what_cannot_be_read_row_by_row_is_read_whole_or_refused_with_a_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let array = Tensor::from_f32(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let packed = folder.path().join("packed.npz");
        npz::write(&packed, &[("x", &array)], true).unwrap();
        let files = folder.path().join("fortran");
        std::fs::create_dir(&files).unwrap();
        let header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n";
        let elements: Vec<u8> = [0f32, 3.0, 1.0, 4.0, 2.0, 5.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let length = (header.len() as u16).to_le_bytes();
        let file = [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), &elements].concat();
        std::fs::write(files.join("x.npy"), file).unwrap();
        for (path, words) in [(&packed, "numpy.savez"), (&files, "numpy.ascontiguousarray")] {
            assert_eq!(
                Arrays::open(path).unwrap().rows("x", HeldBytes::Usual).unwrap().rows(&[1, 0]).unwrap(),
                array.rows(&[1, 0])
            );
            let error = Arrays::open(path).unwrap().rows("x", HeldBytes::AtMost(23)).err().unwrap().to_string();
            assert!(error.contains(words) && error.contains("24 bytes") && error.contains("23 are"), "{error}");
        }
    }

    #[test]
    fn damage_is_named_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let array = Tensor::new(DataType::Bool, &[3, 2], vec![1; 6]).unwrap();
        let [_, files, _] = written(folder.path(), &array);
        let path = files.join("x.npy");
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 2;
        bytes[last] = 7;
        std::fs::write(&path, &bytes).unwrap();
        let rows = Arrays::open(&files).unwrap().rows("x", HeldBytes::AtMost(0)).unwrap();
        rows.rows(&[0, 1]).unwrap();
        let error = rows.rows(&[0, 2]).unwrap_err().to_string();
        assert!(error.contains("x.npy: a boolean in sample 2 is neither 0 nor 1"), "{error}");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes.len() as u64 - 1).unwrap();
        let error = rows.rows(&[2]).unwrap_err().to_string();
        assert!(error.contains("cannot read sample 2 at byte 132: "), "{error}");
        let error = Arrays::open(&files).unwrap().rows("x", HeldBytes::AtMost(0)).err().unwrap().to_string();
        assert!(
            error.contains("truncated: it has 5 of the 6 bytes of its elements, which begin at byte 128"),
            "{error}"
        );
    }

    #[test]
    fn damaged_safetensors_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let whole = in_tensors(&Tensor::new(DataType::Bool, &[3, 2], vec![1, 0, 1, 1, 2, 1]).unwrap());
        let error = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let rows = Arrays::open(&path).and_then(|mut arrays| arrays.rows("x", HeldBytes::Usual));
            rows.err().unwrap().to_string()
        };
        for (bytes, words) in [
            (&whole[..], "a.safetensors[x]: a boolean in sample 2 is neither 0 nor 1"),
            (&whole[..whole.len() - 1], "a.safetensors: not a readable safetensors file: the header does not cover"),
            (&whole[..20], "the header is truncated"),
            (&whole[..3], "the header is truncated"),
        ] {
            assert!(error(bytes).contains(words), "{}", error(bytes));
        }
        std::fs::write(&path, &whole).unwrap();
        let missing = Arrays::open(&path).and_then(|mut arrays| arrays.rows("y", HeldBytes::Usual)).err().unwrap();
        assert!(missing.to_string().contains("before, x"), "{missing}");
    }
}
