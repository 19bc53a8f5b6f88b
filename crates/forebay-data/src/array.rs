//! A packed, row-major tensor on the host, and conversions between element types.

use forebay_base::DataType;

use crate::error::DataError;

/// A packed, row-major tensor. May be a scalar (no dimensions) or empty (a dimension of 0).
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    data_type: DataType,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

/// Number of bytes of a packed array; none where it does not fit 64 bits.
pub fn packed_size_bytes(data_type: DataType, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(data_type.size_bytes(), |product, &size| product.checked_mul(size))
}

impl Array {
    /// An array of the given little-endian bytes; `None` where their number does not fit shape and type.
    pub fn new(data_type: DataType, shape: Vec<u64>, bytes: Vec<u8>) -> Option<Array> {
        (packed_size_bytes(data_type, &shape)? == bytes.len() as u64).then_some(Array { data_type, shape, bytes })
    }

    /// A float32 array.
    ///
    /// # Panics
    /// If the number of values does not fit the shape.
    pub fn from_f32(shape: &[u64], values: &[f32]) -> Array {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Array::new(DataType::Float32, shape.to_vec(), bytes).expect("as many values as the shape holds")
    }

    /// An int64 array.
    ///
    /// # Panics
    /// If the number of values does not fit the shape.
    pub fn from_i64(shape: &[u64], values: &[i64]) -> Array {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Array::new(DataType::Int64, shape.to_vec(), bytes).expect("as many values as the shape holds")
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

    /// The elements, little-endian, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.data_type.size_bytes() as usize
    }

    /// The same elements under another shape; `None` where the number of elements differs.
    pub fn reshaped(self, shape: &[u64]) -> Option<Array> {
        Array::new(self.data_type, shape.to_vec(), self.bytes)
    }

    /// The elements as float64, whatever their type; 64-bit integers beyond 2^53 are rounded.
    pub fn to_f64(&self) -> Vec<f64> {
        (0..self.count()).map(|index| self.number(index).as_f64()).collect()
    }

    /// Rows along the first axis, in the order given (a row may repeat).
    ///
    /// # Panics
    /// If the array is a scalar or a row is out of range.
    pub fn rows(&self, rows: &[u64]) -> Array {
        let row_bytes = self.bytes.len() / (self.shape[0].max(1) as usize);
        let mut bytes = Vec::with_capacity(row_bytes * rows.len());
        for &row in rows {
            assert!(row < self.shape[0], "row {row} of {}", self.shape[0]);
            bytes.extend_from_slice(&self.bytes[row as usize * row_bytes..][..row_bytes]);
        }
        let mut shape = self.shape.clone();
        shape[0] = rows.len() as u64;
        Array { data_type: self.data_type, shape, bytes }
    }

    /// The array with another element type, each element multiplied by `scale` first (in float64; 1 changes nothing).
    ///
    /// Integers and booleans become any type that can hold them; floating-point numbers become other floating-point
    /// types, rounded to nearest even. `origin` names the array in errors.
    ///
    /// # Errors
    /// [`DataError::Type`] for floating-point numbers where integers are wanted, or a scale for integers that stay
    /// integers; [`DataError::Value`] for an integer out of range.
    pub fn converted(self, wanted: DataType, scale: f64, origin: &str) -> Result<Array, DataError> {
        if wanted == self.data_type && scale == 1.0 {
            return Ok(self);
        }
        let refused = |hint| DataError::Type { origin: origin.to_owned(), found: self.data_type, wanted, hint };
        if !wanted.is_float() && self.data_type.is_float() {
            return Err(refused(": store integers"));
        }
        if !wanted.is_float() && scale != 1.0 {
            return Err(refused(" and be scaled: a scale is for floating-point inputs"));
        }
        let mut bytes = Vec::with_capacity(self.count() * wanted.size_bytes() as usize);
        for index in 0..self.count() {
            let number = self.number(index);
            if wanted.is_float() {
                push_float(&mut bytes, wanted, number.as_f64() * scale);
            } else if !push_integer(&mut bytes, wanted, number.as_integer()) {
                let value = number.as_integer().to_string();
                return Err(DataError::Value { origin: origin.to_owned(), index, value, wanted });
            }
        }
        Ok(Array { data_type: wanted, shape: self.shape, bytes })
    }

    fn number(&self, index: usize) -> Number {
        macro_rules! at {
            ($type:ty) => {
                <$type>::from_le_bytes(element(&self.bytes, index))
            };
        }
        match self.data_type {
            DataType::Float64 => Number::Float(at!(f64)),
            DataType::Float32 => Number::Float(at!(f32).into()),
            DataType::Float16 => Number::Float(half::f16::from_le_bytes(element(&self.bytes, index)).into()),
            DataType::BFloat16 => Number::Float(half::bf16::from_le_bytes(element(&self.bytes, index)).into()),
            DataType::Int64 => Number::Integer(at!(i64).into()),
            DataType::Int32 => Number::Integer(at!(i32).into()),
            DataType::Int16 => Number::Integer(at!(i16).into()),
            DataType::Int8 => Number::Integer(at!(i8).into()),
            DataType::UInt64 => Number::Integer(at!(u64).into()),
            DataType::UInt32 => Number::Integer(at!(u32).into()),
            DataType::UInt16 => Number::Integer(at!(u16).into()),
            DataType::UInt8 | DataType::Bool => Number::Integer(at!(u8).into()),
        }
    }
}

/// Puts samples of one type and shape one after the other along a new first axis; `None` where they differ or are none.
pub fn stack(samples: &[&Array]) -> Option<Array> {
    let first = samples.first()?;
    let mut bytes = Vec::with_capacity(first.bytes.len() * samples.len());
    for sample in samples {
        if sample.data_type != first.data_type || sample.shape != first.shape {
            return None;
        }
        bytes.extend_from_slice(&sample.bytes);
    }
    let shape = [&[samples.len() as u64], first.shape.as_slice()].concat();
    Some(Array { data_type: first.data_type, shape, bytes })
}

/// One element of any type, without loss.
#[derive(Clone, Copy)]
enum Number {
    Float(f64),
    Integer(i128),
}

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Number::Float(value) => value,
            Number::Integer(value) => value as f64,
        }
    }

    /// Floating-point numbers are excluded by the caller; they would be truncated.
    fn as_integer(self) -> i128 {
        match self {
            Number::Float(value) => value as i128,
            Number::Integer(value) => value,
        }
    }
}

fn element<const SIZE: usize>(bytes: &[u8], index: usize) -> [u8; SIZE] {
    bytes[index * SIZE..][..SIZE].try_into().expect("a slice of the element's size")
}

fn push_float(bytes: &mut Vec<u8>, wanted: DataType, value: f64) {
    match wanted {
        DataType::Float64 => bytes.extend(value.to_le_bytes()),
        DataType::Float16 => bytes.extend(half::f16::from_f64(value).to_le_bytes()),
        DataType::BFloat16 => bytes.extend(half::bf16::from_f64(value).to_le_bytes()),
        _ => bytes.extend((value as f32).to_le_bytes()),
    }
}

/// Appends an integer; false where it does not fit.
fn push_integer(bytes: &mut Vec<u8>, wanted: DataType, value: i128) -> bool {
    macro_rules! push {
        ($type:ty) => {
            match <$type>::try_from(value) {
                Ok(value) => {
                    bytes.extend(value.to_le_bytes());
                    true
                }
                Err(_) => false,
            }
        };
    }
    match wanted {
        DataType::Int64 => push!(i64),
        DataType::Int32 => push!(i32),
        DataType::Int16 => push!(i16),
        DataType::Int8 => push!(i8),
        DataType::UInt64 => push!(u64),
        DataType::UInt32 => push!(u32),
        DataType::UInt16 => push!(u16),
        DataType::Bool if !(0..=1).contains(&value) => false,
        DataType::UInt8 | DataType::Bool => push!(u8),
        DataType::Float64 | DataType::Float32 | DataType::Float16 | DataType::BFloat16 => {
            push_float(bytes, wanted, value as f64);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(data_type: DataType, bytes: &[u8]) -> Array {
        let count = bytes.len() as u64 / data_type.size_bytes();
        Array::new(data_type, vec![count], bytes.to_vec()).unwrap()
    }

    #[test]
    fn sizes_must_fit() {
        assert!(Array::new(DataType::Float32, vec![2, 2], vec![0; 15]).is_none());
        assert!(Array::new(DataType::Float32, vec![1 << 32, 1 << 32], Vec::new()).is_none());
        assert_eq!(Array::new(DataType::Float32, vec![], vec![0; 4]).unwrap().count(), 1);
        assert_eq!(Array::new(DataType::Float32, vec![3, 0], vec![]).unwrap().count(), 0);
    }

    #[test]
    fn integers_become_scaled_floats() {
        let converted = array(DataType::UInt8, &[0, 8, 16]).converted(DataType::Float32, 0.0625, "x").unwrap();
        assert_eq!(converted, Array::from_f32(&[3], &[0.0, 0.5, 1.0]));
    }

    #[test]
    fn every_type_survives_a_round_trip_through_float64() {
        for data_type in DataType::ALL {
            let bytes = Array::from_i64(&[2], &[0, 1]).converted(data_type, 1.0, "x").unwrap();
            assert_eq!(bytes.to_f64(), [0.0, 1.0], "{data_type}");
        }
    }

    #[test]
    fn values_out_of_range_and_lossy_types_are_errors() {
        let error = Array::from_i64(&[2], &[1, 300]).converted(DataType::UInt8, 1.0, "d.npz[y]").unwrap_err();
        assert_eq!(error.to_string(), "d.npz[y]: element 1 is 300, which does not fit uint8");
        assert!(Array::from_i64(&[1], &[-1]).converted(DataType::UInt64, 1.0, "y").is_err());
        assert!(Array::from_i64(&[1], &[2]).converted(DataType::Bool, 1.0, "y").is_err());
        let error = Array::from_f32(&[1], &[1.0]).converted(DataType::Int64, 1.0, "d.npz[y]").unwrap_err();
        assert_eq!(error.to_string(), "d.npz[y]: float32 elements cannot become int64: store integers");
        assert!(Array::from_i64(&[1], &[2]).converted(DataType::Int32, 0.5, "y").is_err());
    }

    #[test]
    fn rows_and_stacks() {
        let array = Array::from_i64(&[3, 2], &[0, 1, 2, 3, 4, 5]);
        assert_eq!(array.rows(&[2, 0]), Array::from_i64(&[2, 2], &[4, 5, 0, 1]));
        let (a, b) = (Array::from_i64(&[2], &[4, 5]), Array::from_i64(&[2], &[0, 1]));
        assert_eq!(stack(&[&a, &b]), Some(array.rows(&[2, 0])));
        assert_eq!(stack(&[&a, &Array::from_i64(&[1], &[0])]), None);
        assert_eq!(stack(&[]), None);
    }
}
