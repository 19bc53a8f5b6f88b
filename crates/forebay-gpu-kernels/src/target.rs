//! What lowering needs to know about a GPU: a description that any API can fill in.

use super::Shader;
#[cfg(test)]
use super::recurrent::RECURRENT_BINDINGS;

/// The properties of a device that determine how kernels run on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The maximum number of workgroups that a dispatch can have in each of its first two dimensions.
    pub groups_max: u32,
    /// The maximum number of bytes of an operand that one binding can reach.
    pub binding_bytes_max: u64,
    /// The maximum number of bytes of workspace that one binding can reach.
    pub workspace_bytes_max: u64,
    /// The maximum number of invocations in a workgroup.
    pub invocations_max: u32,
    /// The number of bytes that the invocations of a workgroup share.
    pub shared_bytes: u32,
    /// The maximum number of storage buffers that a shader can bind.
    pub bindings_max: u32,
    /// Whether shaders can compute with float64.
    pub float64: bool,
    /// Whether shaders can read and write individual 16-bit elements.
    pub storage16: bool,
    /// The cooperative matrices that are supported; `None` if there are none.
    pub cooperative: Option<Cooperative>,
}

/// The types of 16 by 16 matrices that subgroups of [`SUBGROUP_SIZE`] multiply cooperatively, accumulating in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cooperative {
    /// Whether matrices of float16 are supported.
    pub float16: bool,
    /// Whether matrices of bfloat16 are supported.
    pub bfloat16: bool,
}

/// The number of invocations in a workgroup that a device must support. Shaders with more are used only if [`Target::invocations_max`]
/// allows it.
pub const WORKGROUP_INVOCATIONS: u32 = 256;

/// The number of storage buffers that a device must let a shader bind. Shaders with more are used only if [`Target::bindings_max`] allows
/// it.
pub const BINDINGS: u32 = 11;

/// The number of invocations in a subgroup of shaders with cooperative matrices (`kernels/cooperative.slang`).
pub const SUBGROUP_SIZE: u32 = 32;

/// The bytes of shared memory that tiles of 128 rows and columns need.
pub(super) const LARGE_TILE_BYTES: u32 = 32 << 10;

/// The number of workgroups that keeps a device busy: larger tiles are used only if they leave at least as many.
pub(super) const GROUPS_MIN: u64 = 128;

impl Target {
    /// Returns the form of a shader that the device can run: the portable form if the device lacks what the usual one needs. Long shaders
    /// that need neither float64 nor 16-bit elements also have a portable form, whose loops are not unrolled, for devices without float64:
    /// those that run on a processor take minutes to compile unrolled loops.
    pub(super) fn form_of(&self, shader: &'static Shader) -> &'static Shader {
        let (float64, storage16) = (shader.needs_float64(), shader.needs_storage16());
        let lacks = !self.float64 && (float64 || !storage16) || !self.storage16 && storage16;
        shader.portable.filter(|_| lacks).unwrap_or(shader)
    }
}

#[cfg(test)]
impl Target {
    /// What every device supports, for tests.
    pub(crate) const LEAST: Target = Target {
        groups_max: 65_535,
        binding_bytes_max: 128 << 20,
        workspace_bytes_max: 128 << 20,
        invocations_max: 256,
        shared_bytes: 16 << 10,
        bindings_max: RECURRENT_BINDINGS,
        float64: true,
        storage16: true,
        cooperative: None,
    };

    /// A device with cooperative matrices of float16.
    pub(crate) const COOPERATIVE: Target = Target {
        shared_bytes: 48 << 10,
        cooperative: Some(Cooperative { float16: true, bfloat16: false }),
        ..Target::LEAST
    };
}
