//! Kernels: normalization.

use forebay_base::Kernel;

use super::View;
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(_kernel: &Kernel, _reads: &[View], _writes: &[View]) -> Result<(), DeviceError> {
    unimplemented!()
}
