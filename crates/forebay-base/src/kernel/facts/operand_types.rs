//! The types of a launch's operands.

use super::super::{Kernel, Summing};
use super::OperandRef::{self, Read, Write};
use crate::DataType::{self, Bool, Float32, Float64, Int32, Int64};

/// What the type of an operand can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperandType {
    /// The type in which the launch computes.
    Own,
    /// One of these.
    OneOf(&'static [DataType]),
    /// Any type: the kernel converts it, or devices check it.
    Any,
}

/// The types of indices, and of labels that are classes.
const INDEX: OperandType = OperandType::OneOf(&[Int32, Int64]);
/// The type of the step's number and the seed.
const STEP: OperandType = OperandType::OneOf(&[Int64]);
/// The type of sums of parts.
const SUMS: OperandType = OperandType::OneOf(&[Float64]);
/// The types of masks of attention: summands, or whether a key is seen.
const MASK: OperandType = OperandType::OneOf(&[Float32, Bool]);

impl Kernel {
    /// Checks that the types of a launch's operands fit each other. Devices read operands as the types that a kernel takes, whatever their
    /// bytes are, so launches of other types must not get that far.
    ///
    /// # Errors
    /// Names the first operand of a wrong type, counted from 0, and the types that it can have.
    ///
    /// ```
    /// use forebay_base::DataType::{self, Float32, UInt8};
    /// use forebay_base::Kernel;
    ///
    /// let normalization = Kernel::LayerNormalization { axis: 1, epsilon: 1e-5 };
    /// let with_scale = |scale: DataType| normalization.check_types(&[Float32, scale], &[Float32; 3]);
    /// assert_eq!(with_scale(Float32), Ok(()));
    /// assert_eq!(with_scale(UInt8).unwrap_err(), "operand 1 must be float32, not uint8");
    /// ```
    pub fn check_types(&self, reads: &[DataType], writes: &[DataType]) -> Result<(), String> {
        let sixteen_bit = self.facts().sixteen_bit;
        let reads = reads.iter().enumerate().map(|(i, &data_type)| (Read(i), data_type));
        let writes = writes.iter().enumerate().map(|(i, &data_type)| (Write(i), data_type));
        // An operand stored in 16 bits counts as what it is computed in.
        let computed = |(operand, data_type): (OperandRef, DataType)| match sixteen_bit.includes(operand) {
            true => (operand, data_type.computed_in()),
            false => (operand, data_type),
        };
        let mut own = None;
        for (operand, data_type) in reads.chain(writes).map(computed) {
            let one;
            let allowed: &[DataType] = match self.operand_type(operand) {
                OperandType::Own => {
                    one = [*own.get_or_insert(data_type)];
                    &one
                }
                OperandType::OneOf(types) => types,
                OperandType::Any => continue,
            };
            if !allowed.contains(&data_type) {
                let name = match operand {
                    Read(i) => format!("operand {i}"),
                    Write(i) => format!("result {i}"),
                };
                let allowed: Vec<String> = allowed.iter().map(DataType::to_string).collect();
                return Err(format!("{name} must be {}, not {data_type}", allowed.join(" or ")));
            }
        }
        Ok(())
    }

    /// What the type of an operand can be.
    fn operand_type(&self, operand: OperandRef) -> OperandType {
        use OperandType::{Any, OneOf, Own};
        match (self, operand) {
            (Kernel::Cast(_) | Kernel::Exchange(_), _) => Any,
            // A copy can take the same bytes for another type of this size.
            (Kernel::Copy, Write(_)) => Any,
            (Kernel::Select, Read(0)) => OneOf(&[Bool]),
            (Kernel::Binary { op, .. }, Write(_)) if op.is_comparison() => OneOf(&[Bool]),
            (Kernel::SoftmaxCrossEntropy { .. }, Read(1)) => INDEX,
            (Kernel::SoftmaxCrossEntropyGradient { .. }, Read(2)) => INDEX,
            (Kernel::SoftmaxCrossEntropyGradient { .. } | Kernel::MeanSquaredErrorGradient, Read(3)) => SUMS,
            // A summand, and a result that can be wider than its factors.
            (Kernel::MatMul { .. }, Read(2..)) => Any,
            (Kernel::MatMul { .. } | Kernel::ConvolutionWeightGradient { .. }, Write(_)) => Any,
            (Kernel::IntegerProduct { .. } | Kernel::IntegerConvolution { .. }, _) => Any,
            (Kernel::PoolIndices { .. } | Kernel::TopK { .. }, Write(_)) => OneOf(&[Int64]),
            (Kernel::BatchNormalizationGradient { .. }, Read(6)) => SUMS,
            (Kernel::Attention(_), Read(3)) => MASK,
            (
                Kernel::AttentionGradient(_) | Kernel::AttentionQueryGradient(_) | Kernel::AttentionKeyGradient(_),
                Read(6),
            ) => MASK,
            (Kernel::Gather { .. } | Kernel::GatherGradient { .. } | Kernel::Scatter { .. }, Read(1)) => INDEX,
            (Kernel::Dropout { .. }, Read(1)) => STEP,
            (Kernel::Dropout { .. }, Write(1)) => OneOf(&[Bool]),
            (Kernel::Random { .. }, Read(_)) => STEP,
            (Kernel::Random { .. }, Write(_)) => OneOf(&[Float32]),
            // The velocity, or float32 hyperparameters if there is none.
            (Kernel::Sgd { .. }, Read(2)) => OneOf(&[Float32, Float64]),
            (Kernel::Adam { .. }, Read(4)) => STEP,
            (Kernel::Sgd { .. }, Read(3)) | (Kernel::Adam { .. }, Read(5)) => OneOf(&[Float32]),
            (Kernel::Adam8Bit { .. } | Kernel::Recurrent(_) | Kernel::RecurrentGradient(_), _) => Any,
            (Kernel::Sums { of: Summing::CrossEntropy { .. } }, Read(1)) => INDEX,
            (Kernel::Sums { .. }, Write(_)) | (Kernel::AddSums { .. }, _) | (Kernel::FromSums { .. }, Read(0)) => SUMS,
            _ => Own,
        }
    }
}
