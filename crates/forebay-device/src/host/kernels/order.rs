//! The order of elements along an axis.

use forebay_base::{DataType, Kernel};

use super::element::{Element, for_type};
use super::parallel::{CHUNK, Pointer, for_chunks, require_packed, split_at_axis};
use super::{View, unsupported};
use crate::device::DeviceError;

/// The highest bit of a key.
const SIGN: u64 = 1 << 63;

/// How elements become keys: the earlier an element comes, the smaller its key.
#[derive(Clone, Copy)]
struct Keys {
    /// The shift that brings an element's bits to the upper end of a key.
    shift: u32,
    /// The bits of infinity there, or `None` for integers.
    infinity: Option<u64>,
    is_signed: bool,
    largest: bool,
    nan_first: bool,
}

impl Keys {
    fn of(data_type: DataType, largest: bool, nan_first: bool) -> Keys {
        let infinity = match data_type {
            DataType::Float64 => Some(f64::INFINITY.to_bits()),
            DataType::Float32 => Some(u64::from(f32::INFINITY.to_bits())),
            DataType::Float16 => Some(u64::from(half::f16::INFINITY.to_bits())),
            DataType::BFloat16 => Some(u64::from(half::bf16::INFINITY.to_bits())),
            _ => None,
        };
        let shift = 64 - 8 * data_type.size_bytes() as u32;
        let is_signed = matches!(data_type, DataType::Int64 | DataType::Int32 | DataType::Int16 | DataType::Int8);
        Keys { shift, infinity: infinity.map(|bits| bits << shift), is_signed, largest, nan_first }
    }

    #[inline(always)]
    fn key(self, bits: u64) -> u64 {
        let bits = bits << self.shift;
        let ascending = match self.infinity {
            Some(infinity) if bits & !SIGN > infinity => return if self.nan_first { 0 } else { u64::MAX },
            // Zeros of both signs.
            Some(_) if bits & !SIGN == 0 => SIGN,
            Some(_) if bits & SIGN != 0 => !bits,
            Some(_) => bits | SIGN,
            None if self.is_signed => bits ^ SIGN,
            None => bits,
        };
        if self.largest { !ascending } else { ascending }
    }
}

/// An element's bits as the low bits of a word.
trait Bits: Element {
    fn bits(self) -> u64;
}

macro_rules! bits {
    ($($type:ident)*) => {$(
        impl Bits for $type {
            #[inline(always)]
            fn bits(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}

bits! { u8 u16 u32 u64 }

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    let Kernel::TopK { axis, largest, nan_first, last } = *kernel else {
        return Err(unsupported(kernel, "not a TopK kernel".to_string()));
    };
    let keys = Keys::of(reads[0].desc.data_type(), largest, nan_first);
    // SAFETY: the caller's promises.
    unsafe { top_k(axis, keys, last, &reads[0], &writes[0]) }.map_err(|reason| unsupported(kernel, reason))
}

/// # Safety
/// As [`super::run`].
unsafe fn top_k(axis: usize, keys: Keys, last: bool, x: &View, y: &View) -> Result<(), String> {
    require_packed(&[*x, *y])?;
    let (sizes, chosen) = (x.sizes(), y.sizes());
    if y.desc.data_type() != DataType::Int64 || axis >= sizes.len() || chosen.len() != sizes.len() {
        return Err(format!("{} along axis {axis} does not result in {}", x.desc, y.desc));
    }
    let (outer, size, inner) = split_at_axis(&sizes, axis);
    let k = chosen[axis];
    if k > size || y.count() != outer * k * inner {
        return Err(format!("{} along axis {axis} does not result in {}", x.desc, y.desc));
    }
    let target = Pointer::<i64>::of(y);
    for_type!(x.desc.data_type(), words, T => {
        let x = Pointer::<T>::of(x);
        for_chunks(outer * inner, (CHUNK / size).max(1), |rows| {
            let mut order: Vec<(u64, usize)> = Vec::new();
            for row in rows {
                let (start, to) = (row / inner * size * inner + row % inner, row / inner * k * inner + row % inner);
                // Among equal keys, the lower number comes first.
                let numbered = |i: usize| {
                    // SAFETY: an element of x, which no one writes.
                    let bits = unsafe { *x.at((start + i * inner) as isize) }.bits();
                    (keys.key(bits), if last { size - 1 - i } else { i })
                };
                order.clear();
                if k == 1 {
                    order.extend((0..size).map(numbered).min());
                } else {
                    order.extend((0..size).map(numbered));
                    if k < size {
                        order.select_nth_unstable(k);
                        order.truncate(k);
                    }
                    order.sort_unstable();
                }
                for (place, &(_, number)) in order.iter().enumerate() {
                    let index = if last { size - 1 - number } else { number };
                    // SAFETY: an element of y that belongs to this row alone.
                    unsafe { *target.at((to + place * inner) as isize) = index as i64 };
                }
            }
        });
    });
    Ok(())
}

#[cfg(test)]
mod tests;
