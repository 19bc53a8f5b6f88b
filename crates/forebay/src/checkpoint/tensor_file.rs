//! A checkpoint's tensor file, in safetensors format, written and read in pieces.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use forebay_base::DataType;
use forebay_data::safetensors_file::{HEADER_BYTES_MAX, LENGTH_BYTES, TYPES, places};
use forebay_model::TensorType;
use forebay_model::tensor::{Contents, FileRange, SourceFile};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::TensorFile;
use crate::error::Error;
use crate::files::{self, Unnamed};
use crate::pieces::{Give, write_value};

/// A file is checked in pieces of this many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Returns `None` for narrow types, which nothing that trains has.
fn dtype(data_type: DataType) -> Option<Dtype> {
    TYPES.iter().find(|(ours, _)| *ours == data_type).map(|(_, theirs)| *theirs)
}

/// Returns the names in file order, and the file's header preceded by its length.
fn header(types: &BTreeMap<String, TensorType>) -> Result<(Vec<&str>, Vec<u8>), String> {
    let mut sorted: Vec<(&str, &TensorType)> = types.iter().map(|(name, ty)| (name.as_str(), ty)).collect();
    // The widest types first, so that all elements are aligned; then by name.
    sorted.sort_by(|(one, one_type), (other, other_type)| {
        dtype(other_type.data_type).cmp(&dtype(one_type.data_type)).then(one.cmp(other))
    });
    let mut end = 0usize;
    let mut infos = Vec::with_capacity(sorted.len());
    for (name, ty) in &sorted {
        let size_bytes = ty.checked_size_bytes().and_then(|bytes| usize::try_from(bytes).ok());
        let start = end;
        let next = size_bytes.and_then(|bytes| start.checked_add(bytes));
        end = next.ok_or_else(|| format!("'{name}' is {ty}, which is too large"))?;
        let shape = ty.shape.iter().map(|&size| size as usize).collect();
        let dtype = dtype(ty.data_type)
            .ok_or_else(|| format!("'{name}' is {ty}; checkpoints cannot contain elements of this type"))?;
        infos.push((name.to_string(), TensorInfo { dtype, shape, data_offsets: (start, end) }));
    }
    let metadata = Metadata::new(None, infos).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    text.resize(text.len().next_multiple_of(LENGTH_BYTES), b' ');
    if text.len() as u64 > HEADER_BYTES_MAX {
        return Err(format!("the names of {} tensors are too long for one file", types.len()));
    }
    let header = [&(text.len() as u64).to_le_bytes(), text.as_slice()].concat();
    Ok((sorted.into_iter().map(|(name, _)| name).collect(), header))
}

/// A writer that counts the bytes that pass through and computes their checksum.
struct Counted<'a> {
    to: &'a mut dyn Write,
    size_bytes: u64,
    crc32: crc32fast::Hasher,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.size_bytes += written as u64;
        self.crc32.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes tensors of these types into a file in the directory, whose name contains the step and the checksum. `give` provides the
/// tensors.
///
/// # Errors
/// Fails with [`Error::File`] if the system reports an error, or with any error from `give`.
pub(super) fn write(
    directory: &Path,
    step: u64,
    types: &BTreeMap<String, TensorType>,
    give: Give,
) -> Result<TensorFile, Error> {
    let stem = format!("tensors-{step}");
    let path = directory.join(format!("{stem}.safetensors"));
    let wrong = |error: io::Error| files::write_error(&path, forebay_files::explained(error));
    let (names, header) = header(types).map_err(|reason| files::write_error(directory, reason))?;
    let (mut size_bytes, mut crc32, mut failure) = (0, 0, None);
    let file = Unnamed::new(directory, stem.as_ref(), |file| {
        let mut file = Counted { to: file, size_bytes: 0, crc32: crc32fast::Hasher::new() };
        file.write_all(&header)?;
        for name in names {
            if let Err(error) = write_value(name, give, &mut file, &wrong) {
                failure = Some(error);
                return Err(io::Error::other("a tensor cannot be written"));
            }
        }
        (size_bytes, crc32) = (file.size_bytes, file.crc32.finalize());
        Ok(())
    });
    if let Some(error) = failure {
        return Err(error);
    }
    let name = format!("{stem}-{crc32:08x}.safetensors");
    let committed = file.and_then(|file| file.commit(name.as_ref()));
    committed.map_err(|error| files::write_error(&directory.join(&name), error))?;
    Ok(TensorFile { file: name, size_bytes, crc32 })
}

/// Checks a file, and returns where the tensors are in it.
///
/// # Errors
/// Fails if the file is missing, truncated, changed, or in another format.
pub(super) fn read(path: &Path, expected: &TensorFile) -> Result<BTreeMap<String, Contents>, String> {
    let file = forebay_limits::open_regular(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let size_bytes = metadata.len();
    if size_bytes != expected.size_bytes {
        let fault = if size_bytes < expected.size_bytes { "is incomplete" } else { "was changed" };
        return Err(format!("the file {fault}; expected {} bytes, found {size_bytes}", expected.size_bytes));
    }
    let crc32 = checksum(&file).map_err(|error| error.to_string())?;
    if crc32 != expected.crc32 {
        return Err(format!("the file was changed; expected checksum {:08x}, found {crc32:08x}", expected.crc32));
    }
    let source = Arc::new(SourceFile::opened(path, Arc::new(file), &metadata));
    let read = |at, into: &mut [u8]| source.read("the header", at, into).map_err(|error| error.to_string());
    let places = places(size_bytes, read)?.into_iter().map(|(name, (ty, bytes))| {
        let contents = Contents::stored(&name, ty, FileRange { file: source.clone(), bytes });
        let contents = contents.ok_or_else(|| format!("'{name}' has a size that does not match its shape"))?;
        Ok((name, contents))
    });
    places.collect()
}

/// Computes the checksum of a whole file.
fn checksum(mut file: &File) -> io::Result<u32> {
    let mut crc32 = crc32fast::Hasher::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(crc32.finalize()),
            Ok(length) => crc32.update(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_model::Tensor;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn shorter_files_are_incomplete_and_longer_ones_were_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        std::fs::write(&path, [0; 10]).unwrap();
        let error = |size_bytes| read(&path, &TensorFile { file: String::new(), size_bytes, crc32: 0 }).err().unwrap();
        assert_eq!(error(11), "the file is incomplete; expected 11 bytes, found 10");
        assert_eq!(error(9), "the file was changed; expected 9 bytes, found 10");
    }

    #[test]
    fn files_are_those_of_the_format() {
        let folder = tempfile::tempdir().unwrap();
        let tensors: BTreeMap<String, Tensor> = [
            ("b", Tensor::from_f32(&[2, 3], &[1.0, 2.0, -3.0, f32::NAN, 0.5, 6.0])),
            ("a", Tensor::from_f32(&[300_000], &vec![0.25; 300_000])),
            ("count", Tensor::from_i64(&[], &[7])),
            ("empty", Tensor::from_i64(&[0, 4], &[])),
            ("flags \"quoted\"", Tensor::new(DataType::Bool, &[3], vec![1, 0, 1]).unwrap()),
            ("half", Tensor::new(DataType::BFloat16, &[1], vec![0x80, 0x3f]).unwrap()),
        ]
        .map(|(name, tensor)| (name.to_string(), tensor))
        .into();
        for tensors in [tensors, BTreeMap::new()] {
            let types = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
            let mut give =
                |name: &str, take: crate::pieces::Take| Contents::from(tensors[name].clone()).give_in_pieces(take);
            let written = write(folder.path(), 5, &types, &mut give).unwrap();
            let views = tensors.iter().map(|(name, tensor)| {
                let shape = tensor.shape().iter().map(|&size| size as usize).collect();
                (name.as_str(), TensorView::new(dtype(tensor.data_type()).unwrap(), shape, tensor.bytes()).unwrap())
            });
            let expected = safetensors::serialize(views, None).unwrap();
            let path = folder.path().join(&written.file);
            assert!(std::fs::read(&path).unwrap() == expected, "{} tensors", tensors.len());
            assert_eq!((written.size_bytes, written.crc32), (expected.len() as u64, crc32fast::hash(&expected)));
            assert_eq!(written.file, format!("tensors-5-{:08x}.safetensors", written.crc32));
            let read = read(&path, &written).unwrap();
            let read: BTreeMap<String, Tensor> =
                read.into_iter().map(|(name, contents)| (name, contents.to_tensor().unwrap())).collect();
            assert!(read.keys().eq(tensors.keys()));
            assert!(read.iter().all(|(name, tensor)| tensor.bytes() == tensors[name].bytes()));
        }
    }
}
