//! Which kernels compute in 16-bit floating types, and what is computed in float32 instead.

use forebay_base::{DataType, Kernel};

use crate::graph::TensorType;

/// Whether a data type is a 16-bit floating type.
pub(crate) fn is_16_bit(data_type: DataType) -> bool {
    matches!(data_type, DataType::Float16 | DataType::BFloat16)
}

/// The same type, but float32 for a 16-bit floating one.
pub(crate) fn widened(ty: &TensorType) -> TensorType {
    let data_type = if is_16_bit(ty.data_type) { DataType::Float32 } else { ty.data_type };
    TensorType::new(data_type, &ty.shape)
}

/// Whether a kernel takes operands of 16-bit floating types.
pub(crate) fn takes_16_bit(kernel: &Kernel) -> bool {
    kernel.facts().types.include_sixteen_bit()
}
