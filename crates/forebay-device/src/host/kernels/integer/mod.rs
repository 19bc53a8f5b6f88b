//! Products and convolutions of 8-bit integers minus their zero points, with 32-bit sums that wrap around.
//!
//! One factor is packed panel by panel into a thread's buffer, the other is read in place; zero points are subtracted from the sums
//! afterwards. Integer sums are exact in any order, so blocks and tasks are chosen for speed alone.

mod convolution;
mod dots;
mod finish;
mod panels;
mod product;
#[cfg(test)]
mod tests;

use forebay_base::{DataType, Kernel, TensorDesc};

use super::{View, unsupported};
use crate::device::DeviceError;

/// The number of operands that both kernels read if the result has 8 bits.
const QUANTIZED_READS: usize = 7;

/// Checks the types of operands.
fn check_types(kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<(), DeviceError> {
    let is_byte = |desc: &TensorDesc| matches!(desc.data_type(), DataType::Int8 | DataType::UInt8);
    let fits = match (reads, writes) {
        ([a, b, a_zero, b_zero, rest @ ..], [y]) => {
            let factors = [(a, a_zero), (b, b_zero)];
            let result = match rest {
                [] => y.data_type() == DataType::Int32,
                [bias, scale, zero] => {
                    (bias.data_type(), scale.data_type()) == (DataType::Int32, DataType::Float32)
                        && is_byte(y)
                        && zero.data_type() == y.data_type()
                        && zero.element_count() == 1
                }
                _ => false,
            };
            factors.iter().all(|(own, zero)| is_byte(own) && zero.data_type() == own.data_type()) && result
        }
        _ => false,
    };
    let all: Vec<String> = reads.iter().chain(writes).map(ToString::to_string).collect();
    fits.then_some(()).ok_or_else(|| unsupported(kernel, format!("operands {} are not supported", all.join(", "))))
}

/// Runs one kernel of this family.
///
/// # Safety
/// As for [`super::run`]; the workspace is as long as [`workspace_bytes`] says.
pub(super) unsafe fn run(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
    workspace: Option<View>,
) -> Result<(), DeviceError> {
    let descs = |views: &[View]| views.iter().map(|view| view.desc.clone()).collect::<Vec<_>>();
    let needed = workspace_bytes(kernel, &descs(reads), &descs(writes))?;
    let refuse = |reason| unsupported(kernel, reason);
    let scratch = workspace.filter(|view| view.desc.total_size_bytes() >= needed);
    let scratch = scratch.ok_or_else(|| refuse("its workspace is missing".to_owned()))?;
    // SAFETY: the caller's promises.
    unsafe {
        match kernel {
            Kernel::IntegerProduct { transpose_b } => product::run(*transpose_b, reads, &writes[0], scratch),
            Kernel::IntegerConvolution { convolution } => convolution::run(convolution, reads, &writes[0], scratch),
            _ => Err("not an integer kernel".to_owned()),
        }
    }
    .map_err(refuse)
}

/// Returns the number of temporary bytes that a kernel needs: for the sums of rows, and for one padded image of a convolution.
pub(super) fn workspace_bytes(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
) -> Result<u64, DeviceError> {
    check_types(kernel, reads, writes)?;
    match kernel {
        Kernel::IntegerProduct { transpose_b } => product::workspace_bytes(*transpose_b, reads, &writes[0]),
        Kernel::IntegerConvolution { convolution } => convolution::workspace_bytes(convolution, reads, &writes[0]),
        _ => Err("not an integer kernel".to_owned()),
    }
    .map(|bytes| bytes.next_multiple_of(256))
    .map_err(|reason| unsupported(kernel, reason))
}

/// Reads an 8-bit number of an operand.
///
/// # Safety
/// The address must be readable.
unsafe fn byte_at(address: *const u8, data_type: DataType) -> i32 {
    // SAFETY: the caller's promise.
    let byte = unsafe { *address };
    match data_type {
        DataType::Int8 => i32::from(byte as i8),
        _ => i32::from(byte),
    }
}
