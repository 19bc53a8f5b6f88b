//! Where values are while no plan has them: in memory, or in a file where plans spill to disk.
//!
//! A host budget counts what plans take. Between two plans all parameters and state have to be somewhere; where there is a
//! folder for what exceeds the budget, that is a file without a name in it, and one tensor at a time is in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_model::tensor::{Contents, FileRange, SourceFile};
use forebay_model::TensorType;

use crate::error::Error;

/// Values of fewer bytes in all stay in memory.
const PARKED_BYTES_MIN: u64 = 16 << 20;

/// Values on their way out of a plan.
pub(crate) struct Parking {
    file: Option<ParkingFile>,
    values: BTreeMap<String, Contents>,
}

struct ParkingFile {
    folder: PathBuf,
    file: BufWriter<File>,
    size_bytes: u64,
    /// By name: what is in the file, and where it begins.
    parked: BTreeMap<String, (TensorType, u64)>,
}

impl Parking {
    /// For values of this size, in memory or in a folder.
    ///
    /// # Errors
    /// A folder in which no file can be made.
    pub(crate) fn new(folder: Option<&Path>, size_bytes: u64) -> Result<Parking, Error> {
        let file = match folder.filter(|_| size_bytes >= PARKED_BYTES_MIN) {
            None => None,
            Some(folder) => {
                let file = tempfile::tempfile_in(folder).map_err(|error| refused(folder, error))?;
                let (folder, file) = (folder.to_owned(), BufWriter::with_capacity(1 << 20, file));
                Some(ParkingFile { folder, file, size_bytes: 0, parked: BTreeMap::new() })
            }
        };
        Ok(Parking { file, values: BTreeMap::new() })
    }

    /// Takes a value. What lies in a file already stays there.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn add(&mut self, name: &str, value: Contents) -> Result<(), Error> {
        match (&mut self.file, value.in_memory()) {
            (Some(to), Some(tensor)) => {
                to.file.write_all(&tensor.bytes).map_err(|error| refused(&to.folder, error))?;
                to.parked.insert(name.to_owned(), (tensor.ty(), to.size_bytes));
                to.size_bytes += tensor.bytes.len() as u64;
            }
            _ => {
                self.values.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    /// The values, wherever they are.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn finish(mut self) -> Result<BTreeMap<String, Contents>, Error> {
        let Some(ParkingFile { folder, file, size_bytes, parked }) = self.file else { return Ok(self.values) };
        let file = file.into_inner().map_err(|error| refused(&folder, error.into_error()))?;
        let file = Arc::new(SourceFile::nameless(&folder, file, size_bytes));
        for (name, (ty, start)) in parked {
            let end = start + ty.checked_size_bytes().unwrap_or_default();
            let range = FileRange { file: file.clone(), bytes: start..end };
            if let Some(contents) = Contents::stored(&name, ty, range) {
                self.values.insert(name, contents);
            }
        }
        Ok(self.values)
    }
}

fn refused(folder: &Path, error: std::io::Error) -> Error {
    Error::File { path: folder.to_owned(), action: "write parameters into", reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Tensor;

    #[test]
    fn values_come_back_from_a_file_without_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let value = |seed: usize| Tensor::from_f32(&[1000], &(0..1000).map(|i| (i * seed) as f32).collect::<Vec<_>>());
        let zeros = Contents::zeros(TensorType::new(forebay_base::DataType::Float32, &[7]));
        for (size_bytes, is_parked) in [(PARKED_BYTES_MIN, true), (PARKED_BYTES_MIN - 1, false)] {
            let mut parking = Parking::new(Some(folder.path()), size_bytes).unwrap();
            for seed in 1..4 {
                parking.add(&format!("v{seed}"), value(seed).into()).unwrap();
            }
            parking.add("zeros", zeros.clone()).unwrap();
            let values = parking.finish().unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
            assert_eq!(values.len(), 4);
            assert_eq!(values["zeros"], zeros);
            for seed in 1..4 {
                let found = &values[&format!("v{seed}")];
                assert_eq!(found.in_memory().is_none(), is_parked);
                assert_eq!(found.to_tensor().unwrap(), value(seed));
            }
        }
        let missing = Parking::new(Some(&folder.path().join("none")), PARKED_BYTES_MIN).err().unwrap().to_string();
        assert!(missing.contains("none") && missing.contains("write parameters into"), "{missing}");
    }
}
