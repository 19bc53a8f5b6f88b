//! Constant tensors: initializers, folded values, data.

mod contents;
mod source;

use std::sync::Arc;

use forebay_base::DataType;

use crate::graph::TensorType;

pub use contents::{Compute, Contents, Reader};
pub use source::{FileRange, SourceFile};

/// A packed, row-major tensor on the host. Cheap to clone: the bytes are shared. May be a scalar or empty, as in ONNX.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub data_type: DataType,
    /// Sizes; empty for a scalar, may hold 0.
    pub shape: Vec<u64>,
    /// The elements, little-endian.
    pub bytes: Arc<[u8]>,
}

impl Tensor {
    /// A tensor of the given elements' bytes; `None` where their number does not fit shape and type.
    pub fn new(data_type: DataType, shape: &[u64], bytes: impl Into<Arc<[u8]>>) -> Option<Tensor> {
        let bytes = bytes.into();
        let count = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size))?;
        let expected = count.checked_mul(data_type.size_bytes())?;
        (expected == bytes.len() as u64).then(|| Tensor { data_type, shape: shape.to_vec(), bytes })
    }

    /// A float32 tensor.
    ///
    /// # Panics
    /// If the number of values does not fit the shape.
    pub fn from_f32(shape: &[u64], values: &[f32]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new(DataType::Float32, shape, bytes).expect("as many values as the shape holds")
    }

    /// An int64 tensor.
    ///
    /// # Panics
    /// If the number of values does not fit the shape.
    pub fn from_i64(shape: &[u64], values: &[i64]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new(DataType::Int64, shape, bytes).expect("as many values as the shape holds")
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        TensorType { data_type: self.data_type, shape: self.shape.clone() }
    }

    /// Number of elements.
    pub fn count(&self) -> u64 {
        self.bytes.len() as u64 / self.data_type.size_bytes()
    }

    /// The elements as integers, where they are integers or booleans.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        macro_rules! read {
            ($type:ty) => {
                self.bytes
                    .chunks_exact(size_of::<$type>())
                    .map(|b| <$type>::from_le_bytes(b.try_into().expect("exact chunk")) as i64)
                    .collect()
            };
        }
        Some(match self.data_type {
            DataType::Int64 => read!(i64),
            DataType::Int32 => read!(i32),
            DataType::Int16 => read!(i16),
            DataType::Int8 => read!(i8),
            DataType::UInt64 => read!(u64),
            DataType::UInt32 => read!(u32),
            DataType::UInt16 => read!(u16),
            DataType::UInt8 | DataType::Bool => read!(u8),
            _ => return None,
        })
    }

    /// The elements as float32, where they are float32 or float64.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        match self.data_type {
            DataType::Float32 => Some(
                self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("exact chunk"))).collect(),
            ),
            DataType::Float64 => Some(
                self.bytes
                    .chunks_exact(8)
                    .map(|b| f64::from_le_bytes(b.try_into().expect("exact chunk")) as f32)
                    .collect(),
            ),
            _ => None,
        }
    }
}
