//! What lowering has to know of a GPU: a description that any API can fill in.

use super::Shader;
#[cfg(test)]
use super::recurrent::RECURRENT_BINDINGS;

/// What of a device decides how kernels run on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Workgroups that one dispatch may have in its first two dimensions.
    pub groups_max: u32,
    /// Bytes of an operand that one binding may reach.
    pub binding_bytes_max: u64,
    /// Bytes of workspace that one binding may reach.
    pub workspace_bytes_max: u64,
    /// Invocations that a workgroup may have.
    pub invocations_max: u32,
    /// Bytes that the invocations of a workgroup share.
    pub shared_bytes: u32,
    /// Storage buffers that a shader may bind.
    pub bindings_max: u32,
    /// Whether shaders may compute with float64.
    pub float64: bool,
    /// Whether shaders may read and write elements of 16 bits by themselves.
    pub storage16: bool,
    /// Matrices that subgroups multiply together; none where they do not.
    pub cooperative: Option<Cooperative>,
}

/// Which matrices of 16 by 16 subgroups of [`SUBGROUP_SIZE`] multiply together, and add up in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cooperative {
    /// Those of float16.
    pub float16: bool,
    /// Those of bfloat16.
    pub bfloat16: bool,
}

/// Invocations of a workgroup that a device has to offer. Shaders with more are taken only where [`Target::invocations_max`] allows it.
pub const WORKGROUP_INVOCATIONS: u32 = 256;

/// Storage buffers that a device has to let a shader bind. Shaders with more are taken only where [`Target::bindings_max`] allows it.
pub const BINDINGS: u32 = 11;

/// Invocations of a subgroup in shaders that multiply matrices together (`kernels/cooperative.slang`).
pub const SUBGROUP_SIZE: u32 = 32;

impl Target {
    /// The form of a shader that the device can run: a portable one where it lacks what the usual one needs. Long shaders that need
    /// neither have a portable form as well, with loops in place of what is unrolled, for devices without float64: those that run on a
    /// processor compile what is unrolled for minutes.
    pub(super) fn form_of(&self, shader: &'static Shader) -> &'static Shader {
        let (float64, storage16) = (shader.needs_float64(), shader.needs_storage16());
        let lacks = !self.float64 && (float64 || !storage16) || !self.storage16 && storage16;
        shader.portable.filter(|_| lacks).unwrap_or(shader)
    }
}

#[cfg(test)]
impl Target {
    /// What every device offers, for tests.
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

    /// A device whose subgroups multiply matrices of float16 together.
    pub(crate) const COOPERATIVE: Target = Target {
        shared_bytes: 48 << 10,
        cooperative: Some(Cooperative { float16: true, bfloat16: false }),
        ..Target::LEAST
    };
}
