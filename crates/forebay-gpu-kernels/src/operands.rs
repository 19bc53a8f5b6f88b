//! What kernels ask of their operands: that a shader can count their elements, their number, types and sizes.

use forebay_base::{DataType, TensorDesc};

use super::shaders::Shader;
use super::{Bound, Operand};

/// Elements, or words of them, that shaders count: all that 32 bits count but the last, beyond which loops step once.
pub(super) const COUNT_MAX: u64 = (1 << 32) - (1 << 16);

/// # Errors
/// Where an operand has more elements than a shader counts.
pub(super) fn require_countable(descs: &[TensorDesc]) -> Result<(), String> {
    match descs.iter().find(|desc| desc.element_count() > COUNT_MAX) {
        Some(desc) => Err(format!("{desc} has {} elements, and a shader counts {COUNT_MAX}", desc.element_count())),
        None => Ok(()),
    }
}

/// # Errors
/// Where there are fewer.
pub(super) fn exactly<'a, const N: usize>(descs: &'a [TensorDesc], what: &str) -> Result<[&'a TensorDesc; N], String> {
    let all: Vec<&TensorDesc> = descs.iter().collect();
    all.try_into().map_err(|_| format!("{} {what} where {N} are needed", descs.len()))
}

/// # Errors
/// Where one is not of this type.
pub(super) fn require_type(descs: &[&TensorDesc], data_type: DataType) -> Result<(), String> {
    match descs.iter().find(|desc| desc.data_type() != data_type) {
        Some(desc) => Err(format!("{desc} is not {data_type}")),
        None => Ok(()),
    }
}

/// # Errors
/// Where one is not packed, or has another number of elements or another type.
pub(super) fn require_packed(descs: &[&TensorDesc], data_type: DataType, elements: u64) -> Result<(), String> {
    require_type(descs, data_type)?;
    match descs.iter().find(|desc| !desc.is_packed() || desc.element_count() != elements) {
        Some(desc) => Err(format!("{desc} does not have {elements} elements one after the other")),
        None => Ok(()),
    }
}

/// The strides by which an operand broadcasts to `sizes`: dimensions align at the last, and size 1 broadcasts.
///
/// # Errors
/// Where it does not.
pub(super) fn broadcast_strides(own: &[u64], strides: &[u64], sizes: &[u64]) -> Result<Vec<u64>, String> {
    let misfit = || format!("an operand of sizes {own:?} does not broadcast to {sizes:?}");
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

/// The shader for elements of a type.
pub(super) fn for_type(data_type: DataType, shaders: [&'static Shader; 2]) -> Result<&'static Shader, String> {
    match data_type {
        DataType::Float32 => Ok(shaders[0]),
        DataType::Float64 => Ok(shaders[1]),
        other => Err(format!("data type {other} is not supported; cast to float32 or float64 first")),
    }
}

/// # Errors
/// Where an operand is neither float32 nor of 16 bits.
pub(super) fn require_computed_in_single(desc: &TensorDesc) -> Result<(), String> {
    match desc.data_type().computed_in() {
        DataType::Float32 => Ok(()),
        other => Err(format!("the Vulkan device does not compute with {other} here; cast to float32 first")),
    }
}

/// How `sixteen_bit.slang` is told of a type in which the elements of an operand lie that is computed with in float32.
pub(super) fn format_of(data_type: DataType) -> u32 {
    match data_type {
        DataType::Float16 => 1,
        DataType::BFloat16 => 2,
        _ => 0,
    }
}

/// Bindings of operands, all of each.
pub(super) fn bindings(operands: impl IntoIterator<Item = Operand>) -> Vec<Bound> {
    operands.into_iter().map(Bound::from).collect()
}
