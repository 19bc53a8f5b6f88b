//! What kernels require of their operands: their number, types and sizes, and that a shader can count their elements.

use forebay_base::{DataType, TensorDesc};

use super::shaders::Shader;
use super::{Bound, Operand};

/// The maximum number of elements, or of their words, that shaders can count: what 32 bits can count, except for the last ones, beyond
/// which loops step once.
pub(super) const COUNT_MAX: u64 = (1 << 32) - (1 << 16);

/// The alignment of bindings in bytes: a multiple of every device's.
pub(super) const BINDING_ALIGNMENT_BYTES: u64 = 256;

/// # Errors
/// If an operand has more elements than a shader can count.
pub(super) fn require_countable(descs: &[TensorDesc]) -> Result<(), String> {
    match descs.iter().find(|desc| desc.element_count() > COUNT_MAX) {
        Some(desc) => {
            Err(format!("{desc} has {} elements, but a shader supports at most {COUNT_MAX}", desc.element_count()))
        }
        None => Ok(()),
    }
}

/// # Errors
/// If there are not `N` of them.
pub(super) fn exactly<'a, const N: usize>(descs: &'a [TensorDesc], what: &str) -> Result<[&'a TensorDesc; N], String> {
    let all: Vec<&TensorDesc> = descs.iter().collect();
    all.try_into().map_err(|_| format!("found {} {what}, expected {N}", descs.len()))
}

/// # Errors
/// If one of them does not have this type.
pub(super) fn require_type(descs: &[&TensorDesc], data_type: DataType) -> Result<(), String> {
    match descs.iter().find(|desc| desc.data_type() != data_type) {
        Some(desc) => Err(format!("{desc} is not {data_type}")),
        None => Ok(()),
    }
}

/// # Errors
/// If one of them is not packed, or has a different number of elements or a different type.
pub(super) fn require_packed(descs: &[&TensorDesc], data_type: DataType, elements: u64) -> Result<(), String> {
    require_type(descs, data_type)?;
    match descs.iter().find(|desc| !desc.is_packed() || desc.element_count() != elements) {
        Some(desc) => Err(format!("{desc} does not have {elements} contiguous elements")),
        None => Ok(()),
    }
}

/// Returns the strides with which an operand broadcasts to `sizes`: dimensions are aligned at the last one, and size 1 broadcasts.
///
/// # Errors
/// If it does not broadcast.
pub(super) fn broadcast_strides(own: &[u64], strides: &[u64], sizes: &[u64]) -> Result<Vec<u64>, String> {
    let misfit = || format!("an operand of sizes {own:?} cannot be broadcast to {sizes:?}");
    let missing = sizes.len().checked_sub(own.len()).ok_or_else(misfit)?;
    let mut result = vec![0; missing];
    for ((&own, &stride), &size) in own.iter().zip(strides).zip(&sizes[missing..]) {
        match own {
            _ if own == size => result.push(stride),
            1 => result.push(0),
            _ => return Err(misfit()),
        }
    }
    Ok(result)
}

/// Returns the shader for elements of a type.
pub(super) fn for_type(data_type: DataType, shaders: [&'static Shader; 2]) -> Result<&'static Shader, String> {
    match data_type {
        DataType::Float32 => Ok(shaders[0]),
        DataType::Float64 => Ok(shaders[1]),
        other => Err(format!("data type {other} is not supported; cast to float32 or float64 first")),
    }
}

/// # Errors
/// If an operand is neither float32 nor 16-bit.
pub(super) fn require_computed_in_single(desc: &TensorDesc) -> Result<(), String> {
    match desc.data_type().computed_in() {
        DataType::Float32 => Ok(()),
        other => Err(format!("the Vulkan device does not support {other} here; cast to float32 first")),
    }
}

/// Returns the code in `sixteen_bit.slang` of the type in which an operand is stored that is converted to float32 for computation.
pub(super) fn format_of(data_type: DataType) -> u32 {
    match data_type {
        DataType::Float16 => 1,
        DataType::BFloat16 => 2,
        _ => 0,
    }
}

/// Returns the number of words of an index.
///
/// # Errors
/// If `what` is not int32 or int64.
pub(super) fn index_words(desc: &TensorDesc, what: &str) -> Result<u32, String> {
    match desc.data_type() {
        DataType::Int64 => Ok(2),
        DataType::Int32 => Ok(1),
        other => Err(format!("{what} must be int32 or int64, not {other}")),
    }
}

/// Returns bindings of whole operands.
pub(super) fn bindings(operands: impl IntoIterator<Item = Operand>) -> Vec<Bound> {
    operands.into_iter().map(Bound::from).collect()
}
