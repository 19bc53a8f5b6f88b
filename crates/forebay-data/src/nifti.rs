//! Medical volumes in NIfTI-1 files (`.nii`, or gzip-compressed `.nii.gz`), in either byte order.
//!
//! Source: `nifti1.h`. A header of 348 bytes is followed by the elements, from `vox_offset` on, with the first axis fastest. Axes keep
//! their order (i, j, k, and further ones), but elements are returned in row-major order, as in tensors. Orientation (qform, sform) is
//! ignored: volumes that belong together are expected to share a grid.

use std::io::{BufReader, Read};
use std::path::Path;

use forebay_base::DataType;

use crate::convert::to_f64;
use crate::error::DataError;
use crate::gzip::{Gzip, unpacked_bytes_max};
use crate::names::{has_extension, without_ending};
use crate::npy::row_major;
use forebay_base::host_tensor::{Tensor, packed_size_bytes};

const HEADER_BYTES: usize = 348;
/// The largest plausible offset of the elements. Extensions lie between the header and the elements.
const VOXEL_OFFSET_MAX: u64 = 64 << 20;

/// A volume as stored, with the scaling of its elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// The elements, in row-major order, with axes i, j, k, ...
    pub array: Tensor,
    /// The factor by which elements are multiplied.
    pub slope: f64,
    /// The number that is added after the multiplication.
    pub intercept: f64,
}

impl Volume {
    /// Returns the scaled values: slope x element + intercept.
    pub fn values(&self) -> Vec<f64> {
        let mut values = to_f64(&self.array);
        if (self.slope, self.intercept) != (1.0, 0.0) {
            values.iter_mut().for_each(|value| *value = self.slope * *value + self.intercept);
        }
        values
    }
}

/// Returns whether the name has the extension of a NIfTI file.
pub fn is_nifti(path: &Path) -> bool {
    stem(path).is_some()
}

/// Returns the file's name without `.nii` or `.nii.gz`, or `None` if it is not a NIfTI file.
pub fn stem(path: &Path) -> Option<&str> {
    without_ending(path, &[".nii.gz", ".nii"])
}

/// Reads a whole volume.
///
/// # Errors
/// [`DataError`] naming the file if it is unreadable, truncated, corrupt or of an unsupported kind.
pub fn read(path: &Path) -> Result<Volume, DataError> {
    open(path)?.volume()
}

/// Reads a whole uncompressed volume from a stream.
///
/// # Errors
/// [`DataError`] naming `origin`.
pub fn read_from(stream: impl Read, origin: &str) -> Result<Volume, DataError> {
    VoxelStream::new(stream, origin)?.volume()
}

/// Opens a volume and reads its header. Voxels are read on demand.
///
/// # Errors
/// The errors of [`read`].
pub fn open(path: &Path) -> Result<VoxelStream<Box<dyn Read>>, DataError> {
    let origin = path.display().to_string();
    let file = forebay_limits::open_regular(path).map_err(|error| DataError::io(path, error))?;
    let file_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
    let is_packed = has_extension(path, &["gz"]);
    let file = BufReader::new(file);
    let stream: Box<dyn Read> = if is_packed { Box::new(Gzip::new(file)) } else { Box::new(file) };
    let stream = VoxelStream::new(stream, &origin)?;
    if is_packed { stream.packed(file_bytes) } else { Ok(stream.stored(file_bytes)) }
}

/// The voxels of a volume, in the order of its file: the first axis is the fastest.
pub struct VoxelStream<R> {
    stream: R,
    origin: String,
    header: Header,
    size_bytes: u64,
    /// The bytes of voxels that were not read yet.
    left_bytes: u64,
    /// Whether the file is compressed.
    is_packed: bool,
    /// The size of the file, if it is known and the file is not compressed.
    file_bytes: Option<u64>,
}

impl<R: Read> VoxelStream<R> {
    /// Reads the header of an uncompressed volume.
    fn new(mut stream: R, origin: &str) -> Result<VoxelStream<R>, DataError> {
        let malformed = |reason: String| DataError::malformed(origin, reason);
        let mut take = |count: u64, what: &str| {
            let bytes = forebay_limits::read_up_to(&mut stream, count);
            match bytes.map_err(|error| malformed(format!("cannot read {what}: {error}")))? {
                bytes if (bytes.len() as u64) < count => {
                    Err(malformed(format!("truncated: {} of {count} bytes of {what}", bytes.len())))
                }
                bytes => Ok(bytes),
            }
        };
        let header = Header::parse(&take(HEADER_BYTES as u64, "the NIfTI-1 header")?, origin)?;
        take(header.voxel_offset - HEADER_BYTES as u64, "the header's extensions")?;
        VoxelStream::of(stream, origin, header)
    }

    /// Creates a stream of voxels, after its header was read.
    ///
    /// # Errors
    /// [`DataError`] naming `origin` if there are more voxels than possible.
    pub(crate) fn of(stream: R, origin: &str, header: Header) -> Result<VoxelStream<R>, DataError> {
        let malformed = |reason: String| DataError::malformed(origin, reason);
        let size_bytes = packed_size_bytes(header.data_type, &header.shape)
            .filter(|&size_bytes| usize::try_from(size_bytes).is_ok_and(|size| size <= isize::MAX as usize))
            .ok_or_else(|| {
                malformed(format!("a volume of {:?} {} elements is too large", header.shape, header.data_type))
            })?;
        let (origin, left_bytes) = (origin.to_owned(), size_bytes);
        Ok(VoxelStream { stream, origin, header, size_bytes, left_bytes, is_packed: false, file_bytes: None })
    }

    /// Returns the stream of a compressed file of this size, whose checksum is verified after the last voxel.
    ///
    /// # Errors
    /// [`DataError`] naming the file if it cannot decompress to as many voxels as the header says.
    pub(crate) fn packed(self, file_bytes: u64) -> Result<VoxelStream<R>, DataError> {
        match self.size_bytes > unpacked_bytes_max(file_bytes) {
            true => {
                let reason = format!("{file_bytes} bytes cannot decompress to {} bytes of voxels", self.size_bytes);
                Err(DataError::malformed(&self.origin, reason))
            }
            false => Ok(VoxelStream { is_packed: true, ..self }),
        }
    }

    /// Returns the stream of a file of this size, which is not compressed.
    pub(crate) fn stored(self, file_bytes: u64) -> VoxelStream<R> {
        VoxelStream { file_bytes: Some(file_bytes), ..self }
    }

    /// Checks that the file is large enough for its voxels, before memory is taken for them.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    pub(crate) fn check_size(&self) -> Result<(), DataError> {
        match self.file_bytes.filter(|&file_bytes| file_bytes < self.size_bytes) {
            Some(file_bytes) => {
                let reason = format!("truncated: {file_bytes} bytes cannot hold {} bytes of voxels", self.size_bytes);
                Err(DataError::malformed(&self.origin, reason))
            }
            None => Ok(()),
        }
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the name of the file in errors.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Fills `bytes` with the next voxels: whole elements, little-endian.
    ///
    /// # Errors
    /// [`DataError`] naming the file if it is truncated or corrupt.
    pub fn fill(&mut self, bytes: &mut [u8]) -> Result<(), DataError> {
        let read = self.stream.read_exact(bytes);
        read.map_err(|error| self.failed(error))?;
        self.header.order(bytes);
        self.advance(bytes.len() as u64)
    }

    /// Skips the next voxels.
    ///
    /// # Errors
    /// The errors of [`VoxelStream::fill`].
    pub fn skip(&mut self, count_bytes: u64) -> Result<(), DataError> {
        let read = std::io::copy(&mut self.stream.by_ref().take(count_bytes), &mut std::io::sink());
        match read.map_err(|error| self.failed(error))? {
            read if read < count_bytes => Err(self.failed(std::io::ErrorKind::UnexpectedEof.into())),
            _ => self.advance(count_bytes),
        }
    }

    /// Counts voxels that were read. After the last one, a compressed file is read to its end, where its checksum is.
    fn advance(&mut self, count_bytes: u64) -> Result<(), DataError> {
        self.left_bytes = self.left_bytes.saturating_sub(count_bytes);
        if self.left_bytes > 0 || !std::mem::take(&mut self.is_packed) {
            return Ok(());
        }
        let end = std::io::copy(&mut self.stream, &mut std::io::sink());
        end.map(|_| ()).map_err(|error| {
            let reason = match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    format!("truncated: the checksum after the voxels is missing: {error}")
                }
                _ => format!("damaged: {error}"),
            };
            DataError::malformed(&self.origin, reason)
        })
    }

    fn failed(&self, error: std::io::Error) -> DataError {
        let reason = match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                // What a decompressor says names the byte.
                let at = error.get_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                format!("truncated: fewer than {} bytes of voxels{at}", self.size_bytes)
            }
            _ => format!("cannot read the voxels: {error}"),
        };
        DataError::malformed(&self.origin, reason)
    }

    /// Reads all voxels.
    fn volume(mut self) -> Result<Volume, DataError> {
        let count = self.size_bytes;
        let bytes = forebay_limits::read_up_to(&mut self.stream, count);
        let malformed = |reason: String| DataError::malformed(&self.origin, reason);
        let mut bytes = bytes.map_err(|error| malformed(format!("cannot read the voxels: {error}")))?;
        if (bytes.len() as u64) < count {
            return Err(malformed(format!("truncated: {} of {count} bytes of the voxels", bytes.len())));
        }
        self.advance(count)?;
        let header = self.header;
        header.order(&mut bytes);
        let bytes = row_major(&bytes, header.data_type.size_bytes() as usize, &header.shape);
        let array = Tensor::new(header.data_type, &header.shape, bytes).expect("as many bytes as shape and type say");
        Ok(Volume { array, slope: header.slope, intercept: header.intercept })
    }
}

/// The header of a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The sizes of the axes, with the fastest first.
    pub shape: Vec<u64>,
    /// The type of the elements.
    pub data_type: DataType,
    /// The factor by which elements are multiplied.
    pub slope: f64,
    /// The number that is added after the multiplication.
    pub intercept: f64,
    pub(crate) big_endian: bool,
    pub(crate) voxel_offset: u64,
}

impl Header {
    /// Converts elements of the file to little-endian.
    fn order(&self, bytes: &mut [u8]) {
        if self.big_endian {
            bytes.chunks_exact_mut(self.data_type.size_bytes() as usize).for_each(<[u8]>::reverse);
        }
    }

    /// Appends the scaled values of elements: slope x element + intercept.
    pub fn push_values(&self, bytes: &[u8], values: &mut Vec<f64>) {
        macro_rules! push {
            ($type:ty) => {
                values.extend(
                    bytes
                        .chunks_exact(size_of::<$type>())
                        .map(|element| <$type>::from_le_bytes(element.try_into().expect("exact chunks")) as f64),
                )
            };
        }
        let first = values.len();
        match self.data_type {
            DataType::UInt8 | DataType::Bool => push!(u8),
            DataType::Int8 => push!(i8),
            DataType::UInt16 => push!(u16),
            DataType::Int16 => push!(i16),
            DataType::UInt32 => push!(u32),
            DataType::Int32 => push!(i32),
            DataType::UInt64 => push!(u64),
            DataType::Int64 => push!(i64),
            DataType::Float32 => push!(f32),
            DataType::Float64 => push!(f64),
            DataType::Float16
            | DataType::BFloat16
            | DataType::Float8E4M3FN
            | DataType::Float8E4M3FNUZ
            | DataType::Float8E5M2
            | DataType::Float8E5M2FNUZ
            | DataType::Float8E8M0
            | DataType::Float4E2M1
            | DataType::Int4
            | DataType::UInt4
            | DataType::Int2
            | DataType::UInt2 => unreachable!("NIfTI has no such elements"),
        }
        if (self.slope, self.intercept) != (1.0, 0.0) {
            values[first..].iter_mut().for_each(|value| *value = self.slope * *value + self.intercept);
        }
    }

    fn parse(bytes: &[u8], origin: &str) -> Result<Header, DataError> {
        let malformed = |reason: String| DataError::malformed(origin, reason);
        let unsupported = |reason: &str| DataError::unsupported(origin, reason);
        let size = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let big_endian = match (i32::from_le_bytes(size), i32::from_be_bytes(size)) {
            (348, _) => false,
            (_, 348) => true,
            (540, _) | (_, 540) => return Err(unsupported("NIfTI-2 is not supported; save as NIfTI-1")),
            _ => return Err(malformed("not a NIfTI-1 file: the header's length is not 348".into())),
        };
        match &bytes[344..348] {
            b"n+1\0" => {}
            b"ni1\0" => {
                return Err(unsupported(
                    "a header and voxels in separate files are not supported; save them as one .nii file",
                ));
            }
            _ => return Err(malformed("not a NIfTI-1 file: the magic is not n+1".into())),
        }
        let short = |at: usize| {
            let bytes = [bytes[at], bytes[at + 1]];
            if big_endian { i16::from_be_bytes(bytes) } else { i16::from_le_bytes(bytes) }
        };
        let float = |at: usize| {
            let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            f64::from(if big_endian { f32::from_be_bytes(bytes) } else { f32::from_le_bytes(bytes) })
        };
        let rank = short(40);
        if !(1..=7).contains(&rank) {
            return Err(malformed(format!("expected 1 to 7 dimensions, found {rank}")));
        }
        let mut shape = Vec::new();
        for axis in 1..=rank as usize {
            let size = short(40 + 2 * axis);
            if size < 1 {
                return Err(malformed(format!("dimension {axis} has size {size}")));
            }
            shape.push(size as u64);
        }
        let code = short(70);
        let data_type = element_type(code).ok_or_else(|| {
            let what = match code {
                1 => "bits",
                32 | 1792 | 2048 => "complex numbers",
                128 | 2304 => "colors",
                1536 => "128-bit numbers",
                _ => "unknown",
            };
            unsupported(&format!(
                "elements of NIfTI type {code} ({what}) are not supported; save them as integers, or as floating-point \
                 numbers of 32 or 64 bits"
            ))
        })?;
        let voxel_offset = float(108);
        if !(HEADER_BYTES as f64..=VOXEL_OFFSET_MAX as f64).contains(&voxel_offset) {
            return Err(malformed(format!("the offset of the voxels is out of range: {voxel_offset}")));
        }
        // A slope of 0 means that there is no scaling; some writers use a slope that is not a number for the same purpose.
        let (slope, intercept) = match (float(112), float(116)) {
            (slope, _) if slope == 0.0 || !slope.is_finite() => (1.0, 0.0),
            (slope, intercept) if intercept.is_finite() => (slope, intercept),
            (slope, _) => (slope, 0.0),
        };
        Ok(Header { big_endian, shape, data_type, voxel_offset: voxel_offset as u64, slope, intercept })
    }
}

fn element_type(code: i16) -> Option<DataType> {
    Some(match code {
        2 => DataType::UInt8,
        4 => DataType::Int16,
        8 => DataType::Int32,
        16 => DataType::Float32,
        64 => DataType::Float64,
        256 => DataType::Int8,
        512 => DataType::UInt16,
        768 => DataType::UInt32,
        1024 => DataType::Int64,
        1280 => DataType::UInt64,
        _ => return None,
    })
}

/// Small files for the tests of this crate.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    /// Returns an uncompressed file. The first axis of `elements` is the fastest, as in the format.
    pub fn file(code: i16, shape: &[i16], elements: &[u8], slope: f32, intercept: f32) -> Vec<u8> {
        let mut bytes = vec![0u8; 352];
        bytes[..4].copy_from_slice(&348i32.to_le_bytes());
        bytes[40..42].copy_from_slice(&(shape.len() as i16).to_le_bytes());
        for (axis, size) in shape.iter().enumerate() {
            bytes[42 + 2 * axis..44 + 2 * axis].copy_from_slice(&size.to_le_bytes());
        }
        bytes[70..72].copy_from_slice(&code.to_le_bytes());
        bytes[108..112].copy_from_slice(&352f32.to_le_bytes());
        bytes[112..116].copy_from_slice(&slope.to_le_bytes());
        bytes[116..120].copy_from_slice(&intercept.to_le_bytes());
        bytes[344..348].copy_from_slice(b"n+1\0");
        bytes.extend_from_slice(elements);
        bytes
    }

    /// Returns the bytes, compressed with gzip.
    pub fn packed(bytes: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Writes a gzip-compressed file.
    pub fn write_gz(path: &Path, bytes: &[u8]) {
        std::fs::write(path, packed(bytes)).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_out_row_major_and_scaled() {
        let elements: Vec<u8> = [0i16, 10, 1, 11, 2, 12].iter().flat_map(|v| v.to_le_bytes()).collect();
        let volume = read_from(samples::file(4, &[2, 3], &elements, 0.5, 1.0).as_slice(), "v.nii").unwrap();
        assert_eq!(volume.array.shape(), [2, 3]);
        assert_eq!(to_f64(&volume.array), [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
        assert_eq!(volume.values(), [1.0, 1.5, 2.0, 6.0, 6.5, 7.0]);
    }

    #[test]
    fn every_type_is_read_in_both_byte_orders() {
        for (code, size) in
            [(2, 1), (4, 2), (8, 4), (16, 4), (64, 8), (256, 1), (512, 2), (768, 4), (1024, 8), (1280, 8)]
        {
            let little = samples::file(code, &[3], &vec![0; 3 * size], 0.0, 0.0);
            assert_eq!(read_from(little.as_slice(), "v.nii").unwrap().values(), [0.0; 3], "type {code}");
        }
        let mut big = samples::file(4, &[1], &7i16.to_be_bytes(), 0.0, 0.0);
        for range in [0..4, 40..42, 42..44, 70..72, 108..112] {
            big[range].reverse();
        }
        assert_eq!(read_from(big.as_slice(), "v.nii").unwrap().values(), [7.0]);
    }

    #[test]
    fn types_that_are_not_supported_are_named() {
        for (code, what) in
            [(1, "bits"), (32, "complex numbers"), (128, "colors"), (1536, "128-bit numbers"), (999, "unknown")]
        {
            let file = samples::file(code, &[1], &[0; 32], 0.0, 0.0);
            let error = read_from(file.as_slice(), "v.nii").unwrap_err().to_string();
            let said =
                format!("v.nii: elements of NIfTI type {code} ({what}) are not supported; save them as integers");
            assert!(error.contains(&said) && error.ends_with("floating-point numbers of 32 or 64 bits"), "{error}");
        }
    }

    #[test]
    fn every_truncation_is_an_error_and_every_flip_is_survived() {
        let file = samples::file(2, &[2, 3], &[1; 6], 0.0, 0.0);
        for length in 0..file.len() {
            assert!(read_from(&file[..length], "v.nii").is_err(), "{length} bytes");
        }
        for position in 0..352 {
            for flip in [1u8, 0x40, 0x80, 0xff] {
                let mut corrupt = file.clone();
                corrupt[position] ^= flip;
                let _ = read_from(corrupt.as_slice(), "v.nii");
            }
        }
    }

    #[test]
    fn compressed_files_are_read_and_truncated_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.nii.gz");
        samples::write_gz(&path, &samples::file(2, &[2, 2], &[1, 2, 3, 4], 0.0, 0.0));
        assert_eq!(read(&path).unwrap().values(), [1.0, 3.0, 2.0, 4.0]);
        let bytes = std::fs::read(&path).unwrap();
        let fails = |bytes: &[u8], words: &str| {
            std::fs::write(&path, bytes).unwrap();
            let mut stream = match open(&path) {
                Ok(stream) => stream,
                Err(error) => return assert!(words.is_empty(), "{error}"),
            };
            let filled = stream.fill(&mut [0; 3]).and_then(|()| stream.skip(1)).unwrap_err().to_string();
            let whole = read(&path).unwrap_err().to_string();
            assert!(filled.contains(words) && whole.contains(words), "{filled} {whole}");
        };
        for length in 0..bytes.len() - 8 {
            fails(&bytes[..length], "");
        }
        fails(&bytes[..bytes.len() - 9], &format!("breaks off at byte {}", bytes.len() - 9));
        for length in bytes.len() - 8..bytes.len() {
            fails(&bytes[..length], "v.nii.gz: truncated: the checksum after the voxels is missing");
        }
        let mut changed = bytes.clone();
        *changed.last_mut().unwrap() ^= 1;
        fails(&changed, "v.nii.gz: damaged: corrupt gzip stream does not have a matching checksum");
        fails(&[&bytes[..], b"more"].concat(), "damaged: the gzip stream is followed by other data");
        std::fs::write(&path, [&bytes[..], &[0; 100]].concat()).unwrap();
        assert_eq!(read(&path).unwrap().values(), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(stem(&path), Some("v"));
        assert!(!is_nifti(Path::new("v.png")));
    }

    #[test]
    fn sizes_are_not_believed() {
        let file = samples::file(64, &[32767; 7], &[0; 16], 0.0, 0.0);
        assert!(read_from(file.as_slice(), "v.nii").is_err());
        let file = samples::file(64, &[32767; 3], &[0; 16], 0.0, 0.0);
        assert!(read_from(file.as_slice(), "v.nii").unwrap_err().to_string().contains("truncated: 16 of"));
    }
}
