//! Conversions between element types.

use forebay_base::narrow::{self, Narrowing};
use forebay_base::{DataType, Tensor, rounded_to_odd};

use crate::error::DataError;

/// Returns the elements of any type as float64; 64-bit integers beyond 2^53 are rounded.
pub fn to_f64(tensor: &Tensor) -> Vec<f64> {
    each_f64(tensor).collect()
}

/// Returns an iterator over the elements as float64, like [`to_f64`].
pub fn each_f64(tensor: &Tensor) -> impl Iterator<Item = f64> + Clone + '_ {
    (0..tensor.count() as usize).map(|index| number(tensor, index).as_f64())
}

/// Converts class indices to probabilities along a new axis: 1 for the label, 0 for all other classes. `axis` is the index of the new axis
/// in the result. Returns `None` if the labels are not integers.
///
/// ```
/// use forebay_base::Tensor;
/// use forebay_data::convert::one_hot;
///
/// let labels = Tensor::from_i64(&[2], &[2, 0]);
/// assert_eq!(one_hot(&labels, 3, 1).unwrap()?, Tensor::from_f32(&[2, 3], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]));
/// assert_eq!(one_hot(&labels, 2, 1).unwrap(), Err(2));
/// # Ok::<(), i64>(())
/// ```
///
/// # Errors
/// The first label that is not one of the classes.
pub fn one_hot(labels: &Tensor, classes: u64, axis: usize) -> Option<Result<Tensor, i64>> {
    let values = labels.to_i64()?;
    let inner: usize = labels.shape().get(axis..).unwrap_or_default().iter().product::<u64>() as usize;
    let mut probabilities = vec![0.0; values.len() * classes as usize];
    for (position, &value) in values.iter().enumerate() {
        let Some(class) = usize::try_from(value).ok().filter(|&class| (class as u64) < classes) else {
            return Some(Err(value));
        };
        probabilities[(position / inner * classes as usize + class) * inner + position % inner] = 1.0;
    }
    let mut shape = labels.shape().to_vec();
    shape.insert(axis.min(shape.len()), classes);
    Some(Ok(Tensor::from_f32(&shape, &probabilities)))
}

/// Converts a tensor to another element type, after multiplying each element by `scale` in float64 (1 changes nothing).
///
/// Integers and booleans can be converted to any type that can hold them, and floating-point numbers to other floating-point types, rounded
/// to nearest even. `origin` names the tensor in errors.
///
/// ```
/// use forebay_base::{DataType, Tensor};
/// use forebay_data::convert::convert;
///
/// let pixels = Tensor::new(DataType::UInt8, &[3], vec![0, 8, 16]).unwrap();
/// assert_eq!(convert(pixels, DataType::Float32, 0.0625, "x")?, Tensor::from_f32(&[3], &[0.0, 0.5, 1.0]));
/// # Ok::<(), forebay_data::DataError>(())
/// ```
///
/// # Errors
/// [`DataError::Type`] if floating-point numbers are to become integers, or integers that stay integers are to be scaled;
/// [`DataError::Value`] if an integer is out of range.
pub fn convert(tensor: Tensor, wanted: DataType, scale: f64, origin: &str) -> Result<Tensor, DataError> {
    let found = tensor.data_type();
    if wanted == found && scale == 1.0 {
        return Ok(tensor);
    }
    let refused = |hint| DataError::Type { origin: origin.to_owned(), found, wanted, hint };
    if !wanted.is_float() && found.is_float() {
        return Err(refused("; store integers"));
    }
    if !wanted.is_float() && scale != 1.0 {
        return Err(refused(" and scaled; a scale only applies to floating-point inputs"));
    }
    let count = tensor.count() as usize;
    let mut bytes = Vec::with_capacity(count * wanted.size_bytes() as usize);
    for index in 0..count {
        let number = number(&tensor, index);
        if wanted.is_float() {
            push_float(&mut bytes, wanted, number.as_f64() * scale);
        } else if !push_integer(&mut bytes, wanted, number.as_integer()) {
            let value = number.as_integer().to_string();
            return Err(DataError::Value { origin: origin.to_owned(), index, value, wanted });
        }
    }
    Ok(Tensor::new(wanted, tensor.shape(), bytes).expect("as many elements as before"))
}

fn number(tensor: &Tensor, index: usize) -> Number {
    macro_rules! at {
        ($type:ty) => {
            <$type>::from_le_bytes(element(tensor.bytes(), index))
        };
    }
    match tensor.data_type() {
        DataType::Float64 => Number::Float(at!(f64)),
        DataType::Float32 => Number::Float(at!(f32).into()),
        DataType::Float16 => Number::Float(half::f16::from_le_bytes(element(tensor.bytes(), index)).into()),
        DataType::BFloat16 => Number::Float(half::bf16::from_le_bytes(element(tensor.bytes(), index)).into()),
        DataType::Int64 => Number::Integer(at!(i64).into()),
        DataType::Int32 => Number::Integer(at!(i32).into()),
        DataType::Int16 => Number::Integer(at!(i16).into()),
        DataType::Int8 | DataType::Int4 | DataType::Int2 => Number::Integer(at!(i8).into()),
        DataType::UInt64 => Number::Integer(at!(u64).into()),
        DataType::UInt32 => Number::Integer(at!(u32).into()),
        DataType::UInt16 => Number::Integer(at!(u16).into()),
        DataType::UInt8 | DataType::Bool | DataType::UInt4 | DataType::UInt2 => Number::Integer(at!(u8).into()),
        data_type @ (DataType::Float8E4M3FN
        | DataType::Float8E4M3FNUZ
        | DataType::Float8E5M2
        | DataType::Float8E5M2FNUZ
        | DataType::Float8E8M0
        | DataType::Float4E2M1) => Number::Float(narrow::decode(data_type, at!(u8))),
    }
}

/// An element of any type, without loss.
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

    /// Returns an integer. The caller excludes floating-point numbers, which would be truncated.
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
        DataType::Float16 => bytes.extend(half::f16::from_f32(rounded_to_odd(value)).to_le_bytes()),
        DataType::BFloat16 => bytes.extend(half::bf16::from_f32(rounded_to_odd(value)).to_le_bytes()),
        _ if wanted.is_narrow() => bytes.push(narrow::encode(wanted, value, Narrowing::default())),
        _ => bytes.extend((value as f32).to_le_bytes()),
    }
}

/// Appends an integer; returns false if it does not fit.
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
        DataType::Int4 | DataType::UInt4 | DataType::Int2 | DataType::UInt2 => {
            let (low, high) = narrow::limits(wanted).unwrap_or_default();
            let fits = (i128::from(low)..=i128::from(high)).contains(&value);
            if fits {
                bytes.push(narrow::encode_integer(wanted, value as i64));
            }
            fits
        }
        DataType::Float64
        | DataType::Float32
        | DataType::Float16
        | DataType::BFloat16
        | DataType::Float8E4M3FN
        | DataType::Float8E4M3FNUZ
        | DataType::Float8E5M2
        | DataType::Float8E5M2FNUZ
        | DataType::Float8E8M0
        | DataType::Float4E2M1 => {
            push_float(bytes, wanted, value as f64);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(data_type: DataType, bytes: &[u8]) -> Tensor {
        let count = bytes.len() as u64 / data_type.size_bytes();
        Tensor::new(data_type, &[count], bytes).unwrap()
    }

    #[test]
    fn integers_become_scaled_floats() {
        let converted = convert(array(DataType::UInt8, &[0, 8, 16]), DataType::Float32, 0.0625, "x").unwrap();
        assert_eq!(converted, Tensor::from_f32(&[3], &[0.0, 0.5, 1.0]));
    }

    #[test]
    fn every_type_survives_a_round_trip_through_float64() {
        for data_type in DataType::ALL {
            let bytes = convert(Tensor::from_i64(&[2], &[0, 1]), data_type, 1.0, "x").unwrap();
            // Powers of two have no 0.
            let zero = if data_type == DataType::Float8E8M0 { 2f64.powi(-127) } else { 0.0 };
            assert_eq!(to_f64(&bytes), [zero, 1.0], "{data_type}");
        }
    }

    #[test]
    fn values_out_of_range_and_lossy_types_are_errors() {
        let error = convert(Tensor::from_i64(&[2], &[1, 300]), DataType::UInt8, 1.0, "d.npz[y]").unwrap_err();
        assert_eq!(error.to_string(), "d.npz[y]: element 1 is 300, which does not fit in uint8");
        assert!(convert(Tensor::from_i64(&[1], &[-1]), DataType::UInt64, 1.0, "y").is_err());
        assert!(convert(Tensor::from_i64(&[1], &[2]), DataType::Bool, 1.0, "y").is_err());
        assert!(convert(Tensor::from_i64(&[1], &[8]), DataType::Int4, 1.0, "y").is_err());
        assert!(convert(Tensor::from_i64(&[2], &[-8, 7]), DataType::Int4, 1.0, "y").is_ok());
        let error = convert(Tensor::from_f32(&[1], &[1.0]), DataType::Int64, 1.0, "d.npz[y]").unwrap_err();
        assert_eq!(error.to_string(), "d.npz[y]: float32 elements cannot be converted to int64; store integers");
        assert!(convert(Tensor::from_i64(&[1], &[2]), DataType::Int32, 0.5, "y").is_err());
    }
}
