//! Files of several NumPy arrays: ZIP archives of `.npy` files, stored (`numpy.savez`) or deflated (`numpy.savez_compressed`).

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use forebay_files::Pending;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::error::DataError;
use crate::gzip::unpacked_bytes_max;
use crate::npy;
use forebay_base::{Tensor, TensorType};

/// An open archive. Arrays are read on demand.
pub struct Archive {
    path: PathBuf,
    zip: ZipArchive<BufReader<File>>,
}

impl Archive {
    /// Opens an archive and reads its table of contents.
    ///
    /// # Errors
    /// [`DataError`] naming the file if it is unreadable, truncated or not a ZIP archive.
    pub fn open(path: &Path) -> Result<Archive, DataError> {
        let file = forebay_limits::open_regular(path).map_err(|error| DataError::io(path, error))?;
        let file_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
        let zip = ZipArchive::new(BufReader::new(file)).map_err(|error| {
            let reason = format!("not an .npz archive, or truncated at byte {file_bytes}: {error}");
            DataError::malformed(path.display().to_string(), reason)
        })?;
        Ok(Archive { path: path.to_path_buf(), zip })
    }

    /// Returns the names of the arrays, in ascending order.
    pub fn names(&self) -> Vec<String> {
        let names = self.zip.file_names().filter_map(|name| name.strip_suffix(".npy"));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        names
    }

    /// Returns the name of an array in errors.
    pub fn origin(&self, name: &str) -> String {
        format!("{}[{name}]", self.path.display())
    }

    /// Returns the type of an array, or `None` if there is no array of this name.
    ///
    /// # Errors
    /// [`DataError`] that says what is wrong with the array's header.
    pub fn ty(&mut self, name: &str) -> Result<Option<TensorType>, DataError> {
        let origin = self.origin(name);
        let Some(index) = self.zip.index_for_name(&format!("{name}.npy")) else { return Ok(None) };
        let entry = self.zip.by_index(index);
        let entry = entry.map_err(|error| DataError::malformed(&origin, format!("cannot read the array: {error}")))?;
        npy::read_type(entry, &origin).map(Some)
    }

    /// Returns the path of the archive.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the position of an uncompressed array in the file, including its header: the path, the first byte, and the number of bytes.
    /// Returns `None` if the array is compressed.
    ///
    /// # Errors
    /// [`DataError`] that says what is wrong with the archive.
    pub(crate) fn place(&mut self, name: &str) -> Result<Option<(PathBuf, u64, u64)>, DataError> {
        let origin = self.origin(name);
        let Some(index) = self.zip.index_for_name(&format!("{name}.npy")) else { return Ok(None) };
        let entry = self.zip.by_index(index);
        let entry = entry.map_err(|error| DataError::malformed(&origin, format!("cannot read the array: {error}")))?;
        let is_stored = entry.compression() == CompressionMethod::Stored && !entry.encrypted();
        let size_bytes = entry.compressed_size();
        let place = entry.data_start().filter(|_| is_stored);
        Ok(place.map(|start| (self.path.clone(), start, size_bytes)))
    }

    /// Reads an array.
    ///
    /// # Errors
    /// [`DataError::MissingArray`], which lists the names of the arrays, or an error that says what is wrong with the array.
    pub fn read(&mut self, name: &str) -> Result<Tensor, DataError> {
        let origin = self.origin(name);
        let Some(index) = self.zip.index_for_name(&format!("{name}.npy")) else {
            let (path, name, present) = (self.path.clone(), name.to_owned(), self.names());
            return Err(DataError::MissingArray { path, name, present });
        };
        let mut entry = self
            .zip
            .by_index(index)
            .map_err(|error| DataError::malformed(&origin, format!("cannot read the array: {error}")))?;
        let believable = match entry.compression() {
            CompressionMethod::Stored => entry.compressed_size(),
            _ => unpacked_bytes_max(entry.compressed_size()),
        };
        if entry.size() > believable {
            let (size, compressed) = (entry.size(), entry.compressed_size());
            return Err(DataError::malformed(origin, format!("{compressed} bytes cannot decompress to {size} bytes")));
        }
        let size_bytes = entry.size();
        let start = entry.data_start().unwrap_or_default();
        // What is wrong with an array is somewhere in these bytes.
        let located = format!("{origin}, in bytes {start}..{}", start.saturating_add(entry.compressed_size()));
        let array = npy::read_from(&mut entry, size_bytes, &located)?;
        // The checksum is verified at the end of the entry.
        std::io::copy(&mut entry, &mut std::io::sink())
            .map_err(|error| DataError::malformed(located, format!("corrupt: {error}")))?;
        Ok(array)
    }
}

/// Writes arrays as an archive, deflated or stored, atomically: as a whole or not at all.
///
/// # Errors
/// [`DataError::Io`].
pub fn write(path: &Path, arrays: &[(&str, &Tensor)], deflated: bool) -> Result<(), DataError> {
    let method = if deflated { CompressionMethod::Deflated } else { CompressionMethod::Stored };
    let pending = Pending::new(path, |file| {
        let mut zip = ZipWriter::new(file);
        for (name, array) in arrays {
            let array = (*array).clone().widened();
            let options =
                SimpleFileOptions::default().compression_method(method).large_file(array.bytes().len() >= 1 << 31);
            zip.start_file(format!("{name}.npy"), options)?;
            npy::write_to(&mut zip, &array)?;
        }
        zip.finish()?;
        Ok(())
    });
    pending.and_then(Pending::commit).map_err(|error| DataError::io(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrays() -> [Tensor; 2] {
        [Tensor::from_f32(&[2, 3], &[0.5; 6]), Tensor::from_i64(&[2], &[7, 8])]
    }

    #[test]
    fn stored_and_deflated_archives_survive_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let [x, y] = arrays();
        for deflated in [false, true] {
            let path = folder.path().join("a.npz");
            write(&path, &[("x", &x), ("gpu_0/data_0", &y)], deflated).unwrap();
            let mut archive = Archive::open(&path).unwrap();
            assert_eq!(archive.names(), ["gpu_0/data_0", "x"]);
            assert_eq!(archive.read("x").unwrap(), x);
            assert_eq!(archive.read("gpu_0/data_0").unwrap(), y);
            let error = archive.read("labels").unwrap_err().to_string();
            assert!(error.contains("no array named 'labels'; it contains gpu_0/data_0, x"), "{error}");
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let [x, y] = arrays();
        for deflated in [false, true] {
            write(&path, &[("x", &x), ("y", &y)], deflated).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            for length in 0..bytes.len() {
                std::fs::write(&path, &bytes[..length]).unwrap();
                let result = Archive::open(&path).and_then(|mut archive| Ok((archive.read("x")?, archive.read("y")?)));
                assert!(result.is_err(), "{length} of {} bytes", bytes.len());
            }
        }
    }

    #[test]
    fn flipped_bytes_never_give_other_elements() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let [x, y] = arrays();
        write(&path, &[("x", &x), ("y", &y)], true).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for position in 0..bytes.len() {
            let mut corrupt = bytes.clone();
            corrupt[position] ^= 0x15;
            std::fs::write(&path, &corrupt).unwrap();
            if let Ok(array) = Archive::open(&path).and_then(|mut archive| archive.read("x")) {
                assert_eq!(array, x, "byte {position}");
            }
        }
    }

    #[test]
    fn the_bytes_of_a_damaged_array_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let [x, y] = arrays();
        write(&path, &[("x", &x), ("y", &y)], false).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let (_, start, size_bytes) = Archive::open(&path).unwrap().place("y").unwrap().unwrap();
        bytes[(start + size_bytes - 1) as usize] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = Archive::open(&path).unwrap().read("y").unwrap_err().to_string();
        assert!(error.contains(&format!("a.npz[y], in bytes {start}..{}: corrupt", start + size_bytes)), "{error}");
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let error = Archive::open(&path).err().unwrap().to_string();
        assert!(error.contains(&format!("truncated at byte {}", bytes.len() - 1)), "{error}");
    }
}
