//! Headers of files in the safetensors format: which tensors a file holds, and where.
//!
//! The format: eight bytes with the header's length, the header in JSON, and the elements, little-endian and row-major.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_base::{DataType, TensorType};
use safetensors::tensor::{Dtype, Metadata};

/// The size in bytes of the number that holds the header's length.
pub const LENGTH_BYTES: usize = 8;
/// The longest header that the format allows, in bytes.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Data types with their names in the file format.
pub const TYPES: [(DataType, Dtype); 13] = [
    (DataType::Float64, Dtype::F64),
    (DataType::Float32, Dtype::F32),
    (DataType::Float16, Dtype::F16),
    (DataType::BFloat16, Dtype::BF16),
    (DataType::Int64, Dtype::I64),
    (DataType::Int32, Dtype::I32),
    (DataType::Int16, Dtype::I16),
    (DataType::Int8, Dtype::I8),
    (DataType::UInt64, Dtype::U64),
    (DataType::UInt32, Dtype::U32),
    (DataType::UInt16, Dtype::U16),
    (DataType::UInt8, Dtype::U8),
    (DataType::Bool, Dtype::BOOL),
];

/// The tensors of a file by name, with their types and the bytes of the file that hold their elements.
pub type Places = BTreeMap<String, (TensorType, Range<u64>)>;

/// Returns the tensors of a file of `size_bytes`, from which `read` reads the bytes at an offset.
///
/// ```
/// use forebay_base::{DataType, TensorType};
/// use forebay_data::safetensors_file;
///
/// let header = br#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
/// let file = [&(header.len() as u64).to_le_bytes(), header.as_slice(), &[3, 4]].concat();
/// let places = safetensors_file::places(file.len() as u64, |at, into: &mut [u8]| {
///     Ok(into.copy_from_slice(&file[at as usize..][..into.len()]))
/// })?;
/// assert_eq!(places["x"], (TensorType::new(DataType::UInt8, &[2]), file.len() as u64 - 2..file.len() as u64));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// What is wrong with the header, or what `read` returns.
pub fn places(size_bytes: u64, read: impl Fn(u64, &mut [u8]) -> Result<(), String>) -> Result<Places, String> {
    let cut_short = || "the header is truncated".to_string();
    if size_bytes < LENGTH_BYTES as u64 {
        return Err(cut_short());
    }
    let mut length = [0; LENGTH_BYTES];
    read(0, &mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    let data_start = header_bytes.checked_add(LENGTH_BYTES as u64).filter(|&start| start <= size_bytes);
    let data_start = data_start.filter(|_| header_bytes <= HEADER_BYTES_MAX).ok_or_else(cut_short)?;
    let mut text = forebay_limits::buffer(header_bytes).map_err(|error| error.to_string())?;
    text.resize(header_bytes as usize, 0);
    read(LENGTH_BYTES as u64, &mut text)?;
    let header: Metadata = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if data_start + header.data_len() as u64 != size_bytes {
        return Err("the header does not cover the file".to_string());
    }
    let place = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let data_type = TYPES.iter().find(|(_, theirs)| *theirs == info.dtype).map(|(ours, _)| *ours);
        let data_type = data_type.ok_or_else(|| format!("'{name}' has the unknown type {:?}", info.dtype))?;
        let shape: Vec<u64> = info.shape.iter().map(|&size| size as u64).collect();
        let ((start, end), ty) = (info.data_offsets, TensorType::new(data_type, &shape));
        if ty.checked_size_bytes() != Some((end - start) as u64) {
            return Err(format!("'{name}' has {} bytes, which does not match shape {shape:?}", end - start));
        }
        Ok((name, (ty, data_start + start as u64..data_start + end as u64)))
    };
    header.tensors().into_iter().map(place).collect()
}
