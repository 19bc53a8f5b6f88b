//! From sums of products to results: zero points are subtracted and, if the result has 8 bits, sums are scaled, rounded and saturated.

use forebay_base::DataType;

/// Values along the columns of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Along<'a, T> {
    /// The same value for all columns.
    One(T),
    /// One value for each column.
    Each(&'a [T]),
}

/// Subtracts the zero points from sums. With the zero points `row` and `columns`, the sum of (a - row) (b - columns) is the sum of a b,
/// minus row times the sum of b, minus columns times `rest`, which is the sum of a minus row times the number of terms.
#[inline(always)]
pub(super) fn take_zeros(sums: &mut [i32], row: i32, of_columns: &[i32], columns: Along<i32>, rest: i32) {
    if row != 0 {
        sums.iter_mut().zip(of_columns).for_each(|(sum, &of)| *sum = sum.wrapping_sub(row.wrapping_mul(of)));
    }
    match columns {
        Along::One(zero) => {
            let all = zero.wrapping_mul(rest);
            sums.iter_mut().for_each(|sum| *sum = sum.wrapping_sub(all));
        }
        Along::Each(zeros) => {
            sums.iter_mut().zip(zeros).for_each(|(sum, &zero)| *sum = sum.wrapping_sub(zero.wrapping_mul(rest)));
        }
    }
}

/// 1.5 times 2^23: the last place of float32 numbers near it is 1.
const LAST_PLACES: f32 = 12_582_912.0;

/// The parameters that turn sums into quantized results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantized<'a> {
    pub bias: Along<'a, i32>,
    pub scale: Along<'a, f32>,
    pub zero: f32,
    /// The smallest and the largest result.
    pub limits: (f32, f32),
}

/// Returns the smallest and the largest integer of an 8-bit type.
pub(super) fn limits(data_type: DataType) -> (f32, f32) {
    if data_type == DataType::Int8 { (-128.0, 127.0) } else { (0.0, 255.0) }
}

impl Quantized<'_> {
    /// Writes sums as quantized numbers. The sums are modified.
    #[inline(always)]
    pub fn write(&self, sums: &mut [i32], out: &mut [u8]) {
        let Quantized { bias, scale, zero, limits: (low, high) } = *self;
        match bias {
            Along::One(bias) => sums.iter_mut().for_each(|sum| *sum = sum.wrapping_add(bias)),
            Along::Each(all) => sums.iter_mut().zip(all).for_each(|(sum, &bias)| *sum = sum.wrapping_add(bias)),
        }
        let number = |sum: i32, scale: f32| {
            let value = (sum as f32 * scale).round_ties_even() + zero;
            let value = if value < low { low } else { value };
            let value = if value > high { high } else { value };
            let value = if value.is_nan() { 0.0 } else { value };
            // A conversion would check each number for values that are not integers. After this addition, the integer is in the lowest
            // bits.
            (value + LAST_PLACES).to_bits() as u8
        };
        match scale {
            Along::One(scale) => out.iter_mut().zip(sums).for_each(|(out, &mut sum)| *out = number(sum, scale)),
            Along::Each(scales) => {
                out.iter_mut().zip(sums).zip(scales).for_each(|((out, &mut sum), &scale)| *out = number(sum, scale));
            }
        }
    }
}
