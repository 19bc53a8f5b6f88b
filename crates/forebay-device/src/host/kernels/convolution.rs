//! Kernels: convolution.

use forebay_base::Kernel;

use super::View;
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(
    _kernel: &Kernel,
    _reads: &[View],
    _writes: &[View],
    _scratch: Option<View>,
) -> Result<(), DeviceError> {
    unimplemented!()
}

pub(super) fn workspace_bytes(
    _kernel: &Kernel,
    _reads: &[forebay_base::TensorDesc],
    _writes: &[forebay_base::TensorDesc],
) -> Result<u64, DeviceError> {
    unimplemented!()
}
