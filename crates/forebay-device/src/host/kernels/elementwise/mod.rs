//! Elementwise kernels: each result is computed from the elements at the same position.

mod binary;
mod cast;
mod dropout;
mod random;
mod unary;

use forebay_base::Kernel;

use super::block::{map1, map3};
use super::element::{Bool, Word, bits_of, for_type};
use super::{View, unsupported};
use crate::device::DeviceError;
pub(super) use unary::{apply, function};

/// Runs one kernel of this family.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    // SAFETY: the caller's promises are those that the functions require.
    let result = unsafe {
        match *kernel {
            Kernel::Unary(op) => unary::forward(op, &reads[0], &writes[0]),
            Kernel::UnaryGradient(op) => unary::gradient(op, &reads[0], &reads[1], &writes[0]),
            Kernel::Binary { op, activation } => binary::run(op, activation, &reads[0], &reads[1], &writes[0]),
            Kernel::Select => {
                let [condition, a, b] = [&reads[0], &reads[1], &reads[2]];
                for_type!(a.desc.data_type(), words, T => map3(condition, a, b, &writes[0],
                    #[inline(always)] |condition: Bool, a: T, b: T| if condition.get() { a } else { b }))
            }
            Kernel::Cast(narrowing) => cast::run(narrowing, &reads[0], &writes[0]),
            Kernel::Fill { value } => fill(value, &writes[0]),
            Kernel::Dropout { ratio, node, first } => dropout::run((ratio, first), node, reads, writes),
            Kernel::Random { node, first } => random::run(node, first, &reads[0], &writes[0]),
            _ => Err("not an elementwise kernel".into()),
        }
    };
    result.map_err(|reason| unsupported(kernel, reason))
}

/// # Safety
/// As for [`super::run`].
unsafe fn fill(value: f64, y: &View) -> Result<(), String> {
    let bits = bits_of(value, y.desc.data_type());
    for_type!(y.desc.data_type(), words, T => {
        let value = T::from_bits(bits);
        // SAFETY: the caller's promise; reading y before writing it reads bytes that are about to be overwritten anyway.
        unsafe { map1(y, y, #[inline(always)] move |_: T| value) }
    })
}

#[cfg(test)]
mod tests;
