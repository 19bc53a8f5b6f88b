//! Elements of any type as words with the same order.

use forebay_base::{DataType, Tensor};

/// The highest bit of a key.
const SIGN: u64 = 1 << 63;

/// Words in the order of the elements that they represent: NaN comes after all numbers, and zeros of both signs are equal.
pub(super) fn keys(tensor: &Tensor) -> Vec<u64> {
    let size = tensor.data_type().size_bytes() as usize;
    let shift = 64 - 8 * size as u32;
    let infinity = match tensor.data_type() {
        DataType::Float64 => Some(f64::INFINITY.to_bits()),
        DataType::Float32 => Some(u64::from(f32::INFINITY.to_bits())),
        DataType::Float16 => Some(0x7c00),
        DataType::BFloat16 => Some(0x7f80),
        _ => None,
    };
    let is_signed = matches!(tensor.data_type(), DataType::Int64 | DataType::Int32 | DataType::Int16 | DataType::Int8);
    let key = |element: &[u8]| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(element);
        let bits = u64::from_le_bytes(word) << shift;
        match infinity {
            Some(infinity) if bits & !SIGN > infinity << shift => u64::MAX,
            Some(_) if bits & !SIGN == 0 => SIGN,
            Some(_) if bits & SIGN != 0 => !bits,
            Some(_) => bits | SIGN,
            None if is_signed => bits ^ SIGN,
            None => bits,
        }
    };
    tensor.bytes().chunks_exact(size).map(key).collect()
}

/// The key of 0.
pub(super) fn zero_key(data_type: DataType) -> u64 {
    Tensor::zeros(data_type, &[]).map_or(0, |zero| keys(&zero)[0])
}
