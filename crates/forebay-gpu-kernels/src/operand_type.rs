//! How operands of products and results of pooling are stored: the counterpart of the repository's `kernels/operand_type.slang`.

use forebay_base::{DataType, TensorDesc};

use super::operands::require_type;
use super::{Shader, Target};

/// The type of all operands of a product. Arithmetic is always in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandType {
    Float32,
    Float16,
    BFloat16,
}

/// One shader for operands of each type, in the order of [`OperandType`].
pub(super) type Builds = [&'static Shader; 3];

/// One shader with cooperative matrices for each of float16 and bfloat16.
pub(super) type CooperativeBuilds = [&'static Shader; 2];

impl OperandType {
    /// Returns the type of the operands that are read, and whether results stay float32 although that type is 16-bit.
    ///
    /// # Errors
    /// If the operands do not all have the same type, or if it is not one of these.
    pub fn with_sums(reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<(OperandType, bool), String> {
        let is_single = |desc: &TensorDesc| desc.data_type() == DataType::Float32;
        let stays_wide = writes.iter().all(is_single) && !reads.iter().all(is_single);
        Ok((OperandType::of(reads, if stays_wide { &[] } else { writes })?, stays_wide))
    }

    /// # Errors
    /// If the operands do not all have the same type, or if it is not one of these.
    pub fn of(reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<OperandType, String> {
        let data_type = reads.first().map_or(DataType::Float32, TensorDesc::data_type);
        let operand_type = match data_type {
            DataType::Float16 => OperandType::Float16,
            DataType::BFloat16 => OperandType::BFloat16,
            _ => OperandType::Float32,
        };
        let data_type = if operand_type == OperandType::Float32 { DataType::Float32 } else { data_type };
        require_type(&reads.iter().chain(writes).collect::<Vec<_>>(), data_type)?;
        Ok(operand_type)
    }

    /// Returns the shader for operands of this type.
    pub fn build(self, builds: Builds) -> &'static Shader {
        builds[self as usize]
    }

    /// Returns the shader for operands of this type, with cooperative matrices if the device supports them for it.
    pub fn best(self, builds: Builds, cooperative: CooperativeBuilds, gpu: &Target) -> &'static Shader {
        self.cooperative(gpu).map_or_else(|| self.build(builds), |number| cooperative[number])
    }

    /// Returns the index in [`CooperativeBuilds`] of the shader that a device can run for this type.
    pub fn cooperative(self, gpu: &Target) -> Option<usize> {
        let cooperative = gpu.cooperative?;
        match self {
            OperandType::Float32 => None,
            OperandType::Float16 => cooperative.float16.then_some(0),
            OperandType::BFloat16 => cooperative.bfloat16.then_some(1),
        }
    }
}
