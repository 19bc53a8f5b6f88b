//! Tensors of ONNX files: raw, typed, or external.

use forebay_base::{DataType, Tensor, narrow};
use prost::Message;

use super::external::{self, Folder};
use super::malformed;
use super::proto::TensorProto;
use super::proto::tensor_proto::{DataLocation, DataType as OnnxType};
use super::skeleton::{DOUBLE_DATA, Data, FLOAT_DATA, INT32_DATA, INT64_DATA, KEPT_BYTES_MAX, UINT64_DATA};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::tensor::Contents;

/// Returns the data type with an ONNX number; `what` names its owner in the error.
pub(super) fn data_type(number: i32, what: &str) -> Result<DataType, ModelError> {
    DataType::from_onnx_number(i64::from(number)).ok_or_else(|| {
        let name = OnnxType::try_from(number).map_or(format!("number {number}"), |ty| ty.as_str_name().to_lowercase());
        malformed(format!("{what} has the data type {name}, which is not supported"))
    })
}

/// Takes the contents out of a tensor message: raw data and large typed data are moved out, the rest of the message stays. `left_out`
/// locates the data that was left out of the message. Nothing is allocated before the declared size is checked against the data present.
pub(super) fn take(
    proto: &mut TensorProto,
    left_out: Option<&Data>,
    folder: Option<&Folder>,
) -> Result<Contents, ModelError> {
    let what = format!("tensor '{}'", proto.name());
    let data_type = data_type(proto.data_type(), &what)?;
    let mut shape = Vec::with_capacity(proto.dims.len());
    for &size in &proto.dims {
        shape.push(u64::try_from(size).map_err(|_| malformed(format!("{what} has the invalid size {size}")))?);
    }
    let ty = TensorType { data_type, shape };
    let size_bytes = ty.checked_size_bytes();
    let size_bytes = size_bytes.and_then(|_| narrow::file_bytes(data_type, ty.count()));
    let size_bytes =
        size_bytes.ok_or_else(|| malformed(format!("{what}: the size of {ty} does not fit in 64 bits")))?;
    if proto.segment.is_some() {
        return Err(malformed(format!("{what} is a segment of a larger tensor, which is not supported")));
    }
    let (raw, left_typed) = match left_out {
        Some(Data { raw, typed }) => (raw.clone(), Some(typed).filter(|typed| !typed.is_empty())),
        None => (None, None),
    };
    let has_typed = left_typed.is_some() || has_typed_data(proto);
    let is_raw = raw.is_some() || proto.raw_data.as_ref().is_some_and(|raw| !raw.is_empty());
    let is_external = proto.data_location() == DataLocation::External;
    if u8::from(is_raw) + u8::from(is_external) + u8::from(has_typed) > 1 {
        return Err(malformed(format!("{what} contains its data twice")));
    }
    let unfit = |found_bytes: u64| {
        malformed(format!("{what} is declared as {ty} ({size_bytes} bytes), but contains {found_bytes} bytes"))
    };
    let range = match is_external {
        true => Some(external::locate(proto, &what, size_bytes, folder)?),
        false => raw,
    };
    if let Some(range) = range {
        let found_bytes = range.size_bytes();
        return Contents::packed(proto.name(), ty.clone(), range).ok_or_else(|| unfit(found_bytes));
    }
    if let Some(numbers) = left_typed.and_then(|typed| typed.get(&typed_field(data_type))) {
        let found_bytes = numbers.count().saturating_mul(data_type.size_bytes());
        return Contents::numbers(proto.name(), ty.clone(), numbers.clone()).ok_or_else(|| unfit(found_bytes));
    }
    let bytes = if is_raw { proto.raw_data.take().unwrap_or_default() } else { typed(proto, data_type) };
    let found_bytes = bytes.len() as u64;
    let mut bytes = bytes;
    if data_type == DataType::Bool {
        bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
    if found_bytes != size_bytes {
        return Err(unfit(found_bytes));
    }
    if data_type.file_bits() < 8 {
        let mut elements = vec![0; ty.count() as usize];
        narrow::unpack(data_type, &bytes, 0, &mut elements);
        bytes = elements;
    }
    let tensor = Tensor::new(data_type, &ty.shape, bytes).ok_or_else(|| unfit(found_bytes))?;
    if has_typed_data(proto) && proto.encoded_len() as u64 > KEPT_BYTES_MAX {
        // Contents that are written back become raw data.
        describe(proto, &ty);
    }
    Ok(tensor.into())
}

/// Returns the number of the field that holds typed data of a type.
fn typed_field(data_type: DataType) -> u64 {
    match data_type {
        DataType::Float32 => FLOAT_DATA,
        DataType::Float64 => DOUBLE_DATA,
        DataType::Int64 => INT64_DATA,
        DataType::UInt64 | DataType::UInt32 => UINT64_DATA,
        _ => INT32_DATA,
    }
}

/// Returns the typed data fields as little-endian bytes; elements of fewer than 8 bits share bytes. Each field serves several types, and
/// narrow types are stored in wide elements.
fn typed(proto: &TensorProto, data_type: DataType) -> Vec<u8> {
    fn low_bytes<T: Copy, const N: usize>(values: &[T], size_bytes: u64, bytes: fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&value| bytes(value).into_iter().take(size_bytes as usize)).collect()
    }
    let size_bytes = data_type.size_bytes();
    match data_type {
        DataType::Float32 => low_bytes(&proto.float_data, size_bytes, f32::to_le_bytes),
        DataType::Float64 => low_bytes(&proto.double_data, size_bytes, f64::to_le_bytes),
        DataType::Int64 => low_bytes(&proto.int64_data, size_bytes, i64::to_le_bytes),
        DataType::UInt64 | DataType::UInt32 => low_bytes(&proto.uint64_data, size_bytes, u64::to_le_bytes),
        DataType::Bool => proto.int32_data.iter().map(|&value| u8::from(value != 0)).collect(),
        DataType::Int32
        | DataType::Int16
        | DataType::Int8
        | DataType::UInt16
        | DataType::UInt8
        | DataType::Float16
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
        | DataType::UInt2 => low_bytes(&proto.int32_data, size_bytes, i32::to_le_bytes),
    }
}

/// Returns whether a tensor message holds typed data.
fn has_typed_data(proto: &TensorProto) -> bool {
    !(proto.float_data.is_empty()
        && proto.int32_data.is_empty()
        && proto.int64_data.is_empty()
        && proto.double_data.is_empty()
        && proto.uint64_data.is_empty())
}

/// Returns whether [`take`] left the contents in the message.
pub(super) fn holds_contents(proto: &TensorProto) -> bool {
    has_typed_data(proto)
}

/// Puts the contents that [`take`] removed back into a tensor message; external data is moved into the message.
pub(super) fn give_back(proto: &mut TensorProto, tensor: &Tensor) {
    if !has_typed_data(proto) {
        describe(proto, &tensor.ty());
        proto.raw_data = Some(narrow::pack(tensor.data_type(), tensor.bytes()));
    }
}

/// Reduces a tensor message to its name and description, with this type.
pub(super) fn describe(proto: &mut TensorProto, ty: &TensorType) {
    *proto = TensorProto {
        name: proto.name.take(),
        doc_string: proto.doc_string.take(),
        metadata_props: std::mem::take(&mut proto.metadata_props),
        dims: ty.shape.iter().map(|&size| size as i64).collect(),
        data_type: Some(ty.data_type.onnx_number()),
        ..TensorProto::default()
    };
}
