//! Not yet.

use forebay_base::{Kernel, TensorDesc};
use forebay_device::DeviceError;

use super::{unsupported, Lowered, Offer};

/// How a kernel of this family runs.
pub(super) fn lower(
    kernel: &Kernel,
    _reads: &[TensorDesc],
    _writes: &[TensorDesc],
    _offer: &Offer,
) -> Result<Lowered, DeviceError> {
    Err(unsupported(kernel, "the Vulkan device lacks it"))
}
