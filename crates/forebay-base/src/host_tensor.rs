//! A tensor in host memory, and its type.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::data_type::{DataType, NumberKind};
use crate::narrow;
use crate::tensor::{TensorDesc, TensorError};

/// Element type and sizes of a value. A scalar has no sizes; sizes may be 0 (such values never reach a device).
///
/// ```
/// use forebay_base::{DataType, TensorType};
///
/// let ty = TensorType::new(DataType::Int64, &[2, 3]);
/// assert_eq!((ty.count(), ty.to_string()), (6, "int64[2, 3]".to_string()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorType {
    /// Element type.
    pub data_type: DataType,
    /// Sizes in elements.
    pub shape: Vec<u64>,
}

impl TensorType {
    /// The type of `data_type` with `shape`.
    pub fn new(data_type: DataType, shape: &[u64]) -> TensorType {
        TensorType { data_type, shape: shape.to_vec() }
    }

    /// The packed descriptor of a tensor of this type on a device; a scalar becomes \[1].
    ///
    /// # Errors
    /// A size of 0, too many dimensions, or a size in bytes that does not fit into 64 bits.
    pub fn packed(&self) -> Result<TensorDesc, TensorError> {
        let sizes: &[u64] = if self.shape.is_empty() { &[1] } else { &self.shape };
        TensorDesc::packed(self.data_type, sizes)
    }

    /// The size of the elements in bytes; `None` if it does not fit into 64 bits.
    pub fn checked_size_bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.data_type.size_bytes(), |product, &size| product.checked_mul(size))
    }

    /// Number of elements, saturating.
    pub fn count(&self) -> u64 {
        self.shape.iter().fold(1u64, |product, &size| product.saturating_mul(size))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.data_type, self.shape)
    }
}

/// A packed, row-major tensor in host memory. It is cheap to clone, because clones share the bytes. It may be a scalar (no sizes) or empty
/// (a size of 0), as in ONNX. It always holds exactly as many bytes as its type and shape require.
///
/// ```
/// use forebay_base::{DataType, Tensor};
///
/// let x = Tensor::from_f32(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
/// assert_eq!((x.data_type(), x.shape(), x.count()), (DataType::Float32, &[2, 3][..], 6));
/// assert_eq!(x.rows(&[1]).to_f32(), Some(vec![3.0, 4.0, 5.0]));
/// assert_eq!(Tensor::new(DataType::UInt8, &[2, 3], vec![0; 5]), None);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    data_type: DataType,
    shape: Vec<u64>,
    bytes: Bytes,
}

/// Bytes of some other owner, which must not change while they are shared.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The bytes of a tensor: its own, or another owner's.
#[derive(Clone)]
enum Bytes {
    Own(Arc<Vec<u8>>),
    Lent(SharedBytes),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            Bytes::Lent(owner) => (**owner).as_ref(),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::Own(Arc::new(bytes))
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Size of a packed tensor in bytes; `None` if it does not fit into 64 bits.
pub fn packed_size_bytes(data_type: DataType, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(data_type.size_bytes(), |product, &size| product.checked_mul(size))
}

impl Tensor {
    /// Makes a tensor from the little-endian bytes of its elements; `None` if their number does not match the shape and type.
    pub fn new(data_type: DataType, shape: &[u64], bytes: impl Into<Vec<u8>>) -> Option<Tensor> {
        let bytes = bytes.into();
        let expected = packed_size_bytes(data_type, shape)?;
        (expected == bytes.len() as u64).then(|| Tensor { data_type, shape: shape.to_vec(), bytes: bytes.into() })
    }

    /// Makes a tensor over little-endian elements of another owner, without a copy; `None` if their number does not match the shape and
    /// type.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use forebay_base::{DataType, Tensor};
    ///
    /// let owner = Arc::new([0u8; 8]);
    /// let x = Tensor::over(DataType::Float32, &[2], owner.clone()).unwrap();
    /// assert_eq!(x.bytes().as_ptr(), owner.as_ptr());
    /// ```
    pub fn over(data_type: DataType, shape: &[u64], owner: SharedBytes) -> Option<Tensor> {
        let expected = packed_size_bytes(data_type, shape)?;
        let tensor = Tensor { data_type, shape: shape.to_vec(), bytes: Bytes::Lent(owner) };
        (expected == tensor.bytes.len() as u64).then_some(tensor)
    }

    /// Makes a tensor of zeros; `None` if its size does not fit into the address space.
    pub fn zeros(data_type: DataType, shape: &[u64]) -> Option<Tensor> {
        let size_bytes = usize::try_from(packed_size_bytes(data_type, shape)?).ok()?;
        Tensor::new(data_type, shape, vec![0; size_bytes])
    }

    /// Makes a float32 tensor.
    ///
    /// # Panics
    /// If the number of values does not match the shape.
    pub fn from_f32(shape: &[u64], values: &[f32]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new(DataType::Float32, shape, bytes).expect("as many values as the shape holds")
    }

    /// Makes an int64 tensor.
    ///
    /// # Panics
    /// If the number of values does not match the shape.
    pub fn from_i64(shape: &[u64], values: &[i64]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new(DataType::Int64, shape, bytes).expect("as many values as the shape holds")
    }

    /// Stacks tensors of the same type and shape along a new first axis; `None` if they differ or there are none. The result for a single
    /// tensor shares that tensor's bytes.
    pub fn stack(tensors: &[&Tensor]) -> Option<Tensor> {
        let first = tensors.first()?;
        if let [alone] = tensors {
            let shape = [&[1], alone.shape.as_slice()].concat();
            return Some(Tensor { shape, ..(*alone).clone() });
        }
        let mut bytes = Vec::with_capacity(first.bytes.len() * tensors.len());
        for tensor in tensors {
            if tensor.data_type != first.data_type || tensor.shape != first.shape {
                return None;
            }
            bytes.extend_from_slice(&tensor.bytes);
        }
        let shape = [&[tensors.len() as u64], first.shape.as_slice()].concat();
        Some(Tensor { data_type: first.data_type, shape, bytes: bytes.into() })
    }

    /// Element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Sizes; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The elements, little-endian.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, shared: they do not change while the returned value is kept.
    pub fn shared_bytes(&self) -> SharedBytes {
        match &self.bytes {
            Bytes::Own(bytes) => bytes.clone(),
            Bytes::Lent(owner) => owner.clone(),
        }
    }

    /// Converts the tensor into its bytes, without a copy if the tensor owns them and nothing else shares them.
    ///
    /// ```
    /// use forebay_base::Tensor;
    ///
    /// let x = Tensor::from_f32(&[2], &[0.5, 1.0]);
    /// let address = x.bytes().as_ptr();
    /// assert_eq!(x.into_bytes().as_ptr(), address);
    /// ```
    pub fn into_bytes(self) -> Vec<u8> {
        self.try_into_bytes().unwrap_or_else(|shared| shared.bytes.to_vec())
    }

    /// Like [`Tensor::into_bytes`], but only if the tensor owns its bytes and nothing else shares them.
    ///
    /// # Errors
    /// The tensor itself, if its bytes are shared or belong to another owner.
    ///
    /// ```
    /// use forebay_base::Tensor;
    ///
    /// let x = Tensor::from_f32(&[1], &[0.5]);
    /// let y = x.clone();
    /// assert_eq!(x.try_into_bytes().unwrap_err(), y);
    /// assert_eq!(y.try_into_bytes(), Ok(0.5f32.to_le_bytes().to_vec()));
    /// ```
    pub fn try_into_bytes(self) -> Result<Vec<u8>, Tensor> {
        let Tensor { data_type, shape, bytes } = self;
        match bytes {
            Bytes::Own(bytes) => Arc::try_unwrap(bytes).map_err(Bytes::Own),
            lent => Err(lent),
        }
        .map_err(|bytes| Tensor { data_type, shape, bytes })
    }

    /// Element type and sizes.
    pub fn ty(&self) -> TensorType {
        TensorType { data_type: self.data_type, shape: self.shape.clone() }
    }

    /// Number of elements.
    pub fn count(&self) -> u64 {
        self.bytes.len() as u64 / self.data_type.size_bytes()
    }

    /// The same elements in another shape; `None` if the number of elements differs.
    pub fn reshaped(self, shape: &[u64]) -> Option<Tensor> {
        let expected = packed_size_bytes(self.data_type, shape)?;
        (expected == self.bytes.len() as u64).then(|| Tensor { shape: shape.to_vec(), ..self })
    }

    /// Rows along the first axis, in the given order (rows may repeat).
    ///
    /// # Panics
    /// If the tensor is a scalar or a row is out of range.
    pub fn rows(&self, rows: &[u64]) -> Tensor {
        let row_bytes = self.bytes.len() / (self.shape[0].max(1) as usize);
        let mut bytes = Vec::with_capacity(row_bytes * rows.len());
        for &row in rows {
            assert!(row < self.shape[0], "row {row} of {}", self.shape[0]);
            bytes.extend_from_slice(&self.bytes[row as usize * row_bytes..][..row_bytes]);
        }
        let mut shape = self.shape.clone();
        shape[0] = rows.len() as u64;
        Tensor { data_type: self.data_type, shape, bytes: bytes.into() }
    }

    /// The elements as integers; `None` unless they are integers or booleans.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        Some(self.integers()?.collect())
    }

    /// Like [`Tensor::to_i64`], but as an iterator, without a copy of all elements.
    ///
    /// ```
    /// use forebay_base::Tensor;
    ///
    /// let labels = Tensor::from_i64(&[4], &[2, 0, 7, 1]);
    /// assert_eq!(labels.integers().and_then(|mut labels| labels.position(|label| label > 2)), Some(2));
    /// assert!(Tensor::from_f32(&[1], &[0.5]).integers().is_none());
    /// ```
    pub fn integers(&self) -> Option<impl Iterator<Item = i64> + '_> {
        macro_rules! read {
            ($type:ty) => {
                |bytes| <$type>::from_le_bytes(bytes.try_into().expect("exact chunk")) as i64
            };
        }
        let read: fn(&[u8]) -> i64 = match self.data_type {
            DataType::Int64 => read!(i64),
            DataType::Int32 => read!(i32),
            DataType::Int16 => read!(i16),
            DataType::Int8 | DataType::Int4 | DataType::Int2 => read!(i8),
            DataType::UInt64 => read!(u64),
            DataType::UInt32 => read!(u32),
            DataType::UInt16 => read!(u16),
            DataType::UInt8 | DataType::Bool | DataType::UInt4 | DataType::UInt2 => read!(u8),
            DataType::Float64 | DataType::Float32 | DataType::Float16 | DataType::BFloat16 => return None,
            DataType::Float8E4M3FN | DataType::Float8E4M3FNUZ | DataType::Float8E5M2 => return None,
            DataType::Float8E5M2FNUZ | DataType::Float8E8M0 | DataType::Float4E2M1 => return None,
        };
        Some(self.bytes.chunks_exact(self.data_type.size_bytes() as usize).map(read))
    }

    /// The elements of a floating-point type as float64, which represents all of them exactly.
    pub fn to_f64(&self) -> Option<Vec<f64>> {
        let size = self.data_type.size_bytes() as usize;
        if self.data_type.is_float() && self.data_type.is_narrow() {
            return Some(self.bytes.iter().map(|&code| narrow::decode(self.data_type, code)).collect());
        }
        let read: fn(&[u8]) -> f64 = match self.data_type {
            DataType::Float64 => |bytes| f64::from_le_bytes(bytes.try_into().expect("exact chunk")),
            DataType::Float32 => |bytes| f64::from(f32::from_le_bytes(bytes.try_into().expect("exact chunk"))),
            DataType::BFloat16 => |bytes| f64::from(f32::from_le_bytes([0, 0, bytes[0], bytes[1]])),
            DataType::Float16 => |bytes| float16(u16::from_le_bytes([bytes[0], bytes[1]])),
            _ => return None,
        };
        Some(self.bytes.chunks_exact(size).map(read).collect())
    }

    /// Converts the elements to a type that other software supports: narrow types become float32, int8 or uint8, which represent all of
    /// their elements exactly. Other types stay as they are.
    ///
    /// ```
    /// use forebay_base::{DataType, Tensor};
    ///
    /// let tensor = Tensor::new(DataType::Float8E5M2, &[2], vec![0x3c, 0xc0]).unwrap();
    /// assert_eq!(tensor.widened(), Tensor::from_f32(&[2], &[1.0, -2.0]));
    /// ```
    pub fn widened(self) -> Tensor {
        let data_type = match self.data_type.kind() {
            _ if !self.data_type.is_narrow() => return self,
            NumberKind::Signed => DataType::Int8,
            NumberKind::Unsigned | NumberKind::Boolean => DataType::UInt8,
            NumberKind::Real => {
                let number = |&code: &u8| narrow::decode(self.data_type, code) as f32;
                return Tensor::from_f32(&self.shape, &self.bytes.iter().map(number).collect::<Vec<f32>>());
            }
        };
        // Integers already occupy one byte each.
        Tensor { data_type, ..self }
    }

    /// Returns a function from an index to that element as float32, without a copy of all elements; `None` unless they are float32 or
    /// float64.
    ///
    /// ```
    /// use forebay_base::Tensor;
    ///
    /// let tensor = Tensor::from_f32(&[2], &[0.5, 2.0]);
    /// let real = tensor.reals().unwrap();
    /// assert_eq!(real(1), 2.0);
    /// assert!(Tensor::from_i64(&[1], &[3]).reals().is_none());
    /// ```
    pub fn reals(&self) -> Option<impl Fn(usize) -> f32 + '_> {
        let (read, size) = (self.real_reader()?, self.data_type.size_bytes() as usize);
        Some(move |index: usize| read(&self.bytes[index * size..][..size]))
    }

    /// Returns a function that reads an element as float32; `None` unless the elements are float32 or float64.
    fn real_reader(&self) -> Option<fn(&[u8]) -> f32> {
        match self.data_type {
            DataType::Float32 => Some(|bytes| f32::from_le_bytes(bytes.try_into().expect("exact chunk"))),
            DataType::Float64 => Some(|bytes| f64::from_le_bytes(bytes.try_into().expect("exact chunk")) as f32),
            _ => None,
        }
    }

    /// The elements as float32; `None` unless they are float32 or float64.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let (read, size) = (self.real_reader()?, self.data_type.size_bytes() as usize);
        Some(self.bytes.chunks_exact(size).map(read).collect())
    }
}

/// Decodes an IEEE 754 binary16 number: a sign, 5 exponent bits, 10 fraction bits.
fn float16(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bits_are_read_exactly() {
        let tensor = |data_type, bits: &[u16]| {
            let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
            Tensor::new(data_type, &[bits.len() as u64], bytes).unwrap().to_f64().unwrap()
        };
        let half = tensor(DataType::Float16, &[0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x3555]);
        assert_eq!(half, [1.0, -2.0, 2f64.powi(-24), 65504.0, f64::INFINITY, 0.333251953125]);
        assert!(tensor(DataType::Float16, &[0x7e00])[0].is_nan());
        assert_eq!(tensor(DataType::BFloat16, &[0x3f80, 0xc040, 0xff80]), [1.0, -3.0, f64::NEG_INFINITY]);
        assert_eq!(Tensor::from_i64(&[1], &[1]).to_f64(), None);
    }

    #[test]
    fn sizes_must_fit() {
        assert!(Tensor::new(DataType::Float32, &[2, 2], vec![0; 15]).is_none());
        assert!(Tensor::new(DataType::Float32, &[1 << 32, 1 << 32], Vec::new()).is_none());
        assert!(Tensor::zeros(DataType::Float32, &[1 << 32, 1 << 32]).is_none());
        assert_eq!(Tensor::new(DataType::Float32, &[], vec![0; 4]).unwrap().count(), 1);
        assert_eq!(Tensor::zeros(DataType::Float32, &[3, 0]).unwrap().count(), 0);
    }

    #[test]
    fn rows_and_stacks() {
        let tensor = Tensor::from_i64(&[3, 2], &[0, 1, 2, 3, 4, 5]);
        assert_eq!(tensor.rows(&[2, 0]), Tensor::from_i64(&[2, 2], &[4, 5, 0, 1]));
        let (a, b) = (Tensor::from_i64(&[2], &[4, 5]), Tensor::from_i64(&[2], &[0, 1]));
        assert_eq!(Tensor::stack(&[&a, &b]), Some(tensor.rows(&[2, 0])));
        assert_eq!(Tensor::stack(&[&a, &Tensor::from_i64(&[1], &[0])]), None);
        assert_eq!(Tensor::stack(&[]), None);
    }
}
