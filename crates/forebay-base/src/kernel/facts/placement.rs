//! Placement: the parameters of a kernel that depend on where its operands lie in their tensors.

use super::super::{Activation, Kernel, ProductPart, Summing, UnaryOp, Window};
use crate::DataType;

/// The parameters of a kernel that differ from part to part of a launch.
#[derive(Debug)]
pub enum Placement<'a> {
    /// Nothing.
    None,
    /// A window, whose padding depends on where the part begins and ends.
    Window(&'a mut Window),
    /// The first index that is taken in each dimension.
    Starts(&'a mut [u64]),
    /// The index of the first element.
    FirstElement(&'a mut u64),
    /// The part of a product, and the activation that is applied once its sums are complete.
    Product(&'a mut ProductPart, &'a mut Activation),
    /// The last key that the first row sees, relative to the first key.
    Diagonal(&'a mut i64),
}

/// The axis numbers in a kernel's parameters, which change if axes of its operands are merged.
#[derive(Debug)]
pub enum AxisNumbers<'a> {
    /// None.
    None,
    /// One.
    One(&'a mut usize),
    /// Some, ascending.
    Some(&'a mut Vec<usize>),
    /// The leading axes, given by their count.
    First(&'a mut usize),
}

/// Whether none of a function's parameters is NaN.
fn equals_itself(op: UnaryOp) -> bool {
    let same = op;
    op == same
}

impl Kernel {
    /// The parameters that a part of a launch of this kernel must set.
    pub fn placement(&mut self) -> Placement<'_> {
        match self {
            Kernel::Slice { starts, .. } => Placement::Starts(starts),
            Kernel::Dropout { first, .. } | Kernel::Random { first, .. } => Placement::FirstElement(first),
            Kernel::Convolution { convolution, .. }
            | Kernel::ConvolutionDataGradient { convolution, .. }
            | Kernel::ConvolutionWeightGradient { convolution }
            | Kernel::IntegerConvolution { convolution } => Placement::Window(&mut convolution.window),
            Kernel::Pool { window, .. } | Kernel::PoolGradient { window, .. } => Placement::Window(window),
            Kernel::MatMul { part, activation, .. } => Placement::Product(part, activation),
            Kernel::Attention(options)
            | Kernel::AttentionGradient(options)
            | Kernel::AttentionQueryGradient(options)
            | Kernel::AttentionKeyGradient(options) => match &mut options.causal {
                Some(last) => Placement::Diagonal(last),
                None => Placement::None,
            },
            Kernel::Unary(_)
            | Kernel::UnaryGradient(_)
            | Kernel::Binary { .. }
            | Kernel::Select
            | Kernel::Cast(_)
            | Kernel::Copy
            | Kernel::SliceGradient { .. }
            | Kernel::Pad { .. }
            | Kernel::Fill { .. }
            | Kernel::Reduce { .. }
            | Kernel::Softmax { .. }
            | Kernel::LogSoftmax { .. }
            | Kernel::SoftmaxGradient { .. }
            | Kernel::LogSoftmaxGradient { .. }
            | Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::SoftmaxCrossEntropyGradient { .. }
            | Kernel::MeanSquaredError
            | Kernel::MeanSquaredErrorGradient
            | Kernel::BatchNormalization { .. }
            | Kernel::BatchNormalizationTraining { .. }
            | Kernel::BatchNormalizationGradient { .. }
            | Kernel::RunningStatistics { .. }
            | Kernel::LayerNormalization { .. }
            | Kernel::LayerNormalizationGradient { .. }
            | Kernel::LocalResponseNormalization { .. }
            | Kernel::LocalResponseNormalizationGradient { .. }
            | Kernel::Gather { .. }
            | Kernel::GatherGradient { .. }
            | Kernel::Scatter { .. }
            | Kernel::TopK { .. }
            | Kernel::Scan { .. }
            | Kernel::IntegerProduct { .. }
            | Kernel::PoolIndices { .. }
            | Kernel::Sgd { .. }
            | Kernel::Adam { .. }
            | Kernel::Adam8Bit { .. }
            | Kernel::Recurrent(_)
            | Kernel::RecurrentGradient(_)
            | Kernel::Sums { .. }
            | Kernel::AddSums { .. }
            | Kernel::FromSums { .. }
            | Kernel::Exchange(_) => Placement::None,
        }
    }

    /// The activation that a kernel applies to its result; `None` for kernels that cannot apply one.
    pub fn activation_mut(&mut self) -> Option<&mut Activation> {
        match self {
            Kernel::Binary { activation, op } => (!op.is_comparison()).then_some(activation),
            Kernel::MatMul { activation, .. }
            | Kernel::Convolution { activation, .. }
            | Kernel::ConvolutionDataGradient { activation, .. }
            | Kernel::BatchNormalization { activation, .. }
            | Kernel::BatchNormalizationTraining { activation, .. } => Some(activation),
            // This names the activation that the forward kernel applied.
            Kernel::BatchNormalizationGradient { .. } => None,
            Kernel::Unary(_)
            | Kernel::UnaryGradient(_)
            | Kernel::Select
            | Kernel::Cast(_)
            | Kernel::Copy
            | Kernel::Slice { .. }
            | Kernel::SliceGradient { .. }
            | Kernel::Pad { .. }
            | Kernel::Fill { .. }
            | Kernel::Reduce { .. }
            | Kernel::Softmax { .. }
            | Kernel::LogSoftmax { .. }
            | Kernel::SoftmaxGradient { .. }
            | Kernel::LogSoftmaxGradient { .. }
            | Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::SoftmaxCrossEntropyGradient { .. }
            | Kernel::MeanSquaredError
            | Kernel::MeanSquaredErrorGradient
            | Kernel::ConvolutionWeightGradient { .. }
            | Kernel::Pool { .. }
            | Kernel::PoolGradient { .. }
            | Kernel::RunningStatistics { .. }
            | Kernel::LayerNormalization { .. }
            | Kernel::LayerNormalizationGradient { .. }
            | Kernel::Attention(_)
            | Kernel::AttentionGradient(_)
            | Kernel::AttentionQueryGradient(_)
            | Kernel::AttentionKeyGradient(_)
            | Kernel::LocalResponseNormalization { .. }
            | Kernel::LocalResponseNormalizationGradient { .. }
            | Kernel::Gather { .. }
            | Kernel::GatherGradient { .. }
            | Kernel::Scatter { .. }
            | Kernel::TopK { .. }
            | Kernel::Scan { .. }
            | Kernel::IntegerProduct { .. }
            | Kernel::IntegerConvolution { .. }
            | Kernel::PoolIndices { .. }
            | Kernel::Dropout { .. }
            | Kernel::Random { .. }
            | Kernel::Sgd { .. }
            | Kernel::Adam { .. }
            | Kernel::Adam8Bit { .. }
            | Kernel::Recurrent(_)
            | Kernel::RecurrentGradient(_)
            | Kernel::Sums { .. }
            | Kernel::AddSums { .. }
            | Kernel::FromSums { .. }
            | Kernel::Exchange(_) => None,
        }
    }

    /// A copy of the activation that a kernel applies to its result; see [`Kernel::activation_mut`].
    pub fn activation(&self) -> Option<Activation> {
        self.clone().activation_mut().copied()
    }

    /// Whether fusion can let the kernel apply this activation to its result, which has this type.
    pub fn can_apply(&self, activation: Activation, data_type: DataType) -> bool {
        let sums_products =
            matches!(self, Kernel::MatMul { .. } | Kernel::Convolution { .. } | Kernel::ConvolutionDataGradient { .. });
        let limits_any = sums_products || matches!(self, Kernel::Binary { op, .. } if !op.is_comparison());
        match activation {
            Activation::None | Activation::Relu => self.activation().is_some(),
            // Kernels are compared, and NaN would make a kernel unequal to itself.
            Activation::Clip { low, high } => {
                limits_any && data_type == DataType::Float32 && !low.is_nan() && !high.is_nan()
            }
            Activation::Function(op) => {
                let is_of_floats = !matches!(op, UnaryOp::Not);
                sums_products && data_type == DataType::Float32 && is_of_floats && equals_itself(op)
            }
        }
    }

    /// The axis numbers in the kernel's parameters.
    pub fn axis_numbers(&mut self) -> AxisNumbers<'_> {
        match self {
            Kernel::Softmax { axis }
            | Kernel::LogSoftmax { axis }
            | Kernel::SoftmaxGradient { axis }
            | Kernel::LogSoftmaxGradient { axis }
            | Kernel::SoftmaxCrossEntropy { axis, .. }
            | Kernel::SoftmaxCrossEntropyGradient { axis, .. }
            | Kernel::LayerNormalization { axis, .. }
            | Kernel::LayerNormalizationGradient { axis }
            | Kernel::Gather { axis }
            | Kernel::GatherGradient { axis }
            | Kernel::TopK { axis, .. }
            | Kernel::Scan { axis, .. } => AxisNumbers::One(axis),
            Kernel::Reduce { axes, .. } => AxisNumbers::Some(axes),
            Kernel::Sums { of } | Kernel::AddSums { of } | Kernel::FromSums { of } => match of {
                Summing::CrossEntropy { axis, .. } | Summing::LayerGradient { axis } => AxisNumbers::One(axis),
                Summing::Rows { axes } => AxisNumbers::First(axes),
                Summing::BatchStatistics { .. }
                | Summing::BatchGradient { .. }
                | Summing::SquaredError
                | Summing::Channels => AxisNumbers::None,
            },
            Kernel::Unary(_)
            | Kernel::UnaryGradient(_)
            | Kernel::Binary { .. }
            | Kernel::Select
            | Kernel::Cast(_)
            | Kernel::Copy
            | Kernel::Slice { .. }
            | Kernel::SliceGradient { .. }
            | Kernel::Pad { .. }
            | Kernel::Fill { .. }
            | Kernel::MeanSquaredError
            | Kernel::MeanSquaredErrorGradient
            | Kernel::MatMul { .. }
            | Kernel::Convolution { .. }
            | Kernel::ConvolutionDataGradient { .. }
            | Kernel::ConvolutionWeightGradient { .. }
            | Kernel::Pool { .. }
            | Kernel::PoolGradient { .. }
            | Kernel::BatchNormalization { .. }
            | Kernel::BatchNormalizationTraining { .. }
            | Kernel::BatchNormalizationGradient { .. }
            | Kernel::RunningStatistics { .. }
            | Kernel::Attention(_)
            | Kernel::AttentionGradient(_)
            | Kernel::AttentionQueryGradient(_)
            | Kernel::AttentionKeyGradient(_)
            | Kernel::LocalResponseNormalization { .. }
            | Kernel::LocalResponseNormalizationGradient { .. }
            | Kernel::Scatter { .. }
            | Kernel::IntegerProduct { .. }
            | Kernel::IntegerConvolution { .. }
            | Kernel::PoolIndices { .. }
            | Kernel::Dropout { .. }
            | Kernel::Random { .. }
            | Kernel::Sgd { .. }
            | Kernel::Adam { .. }
            | Kernel::Adam8Bit { .. }
            | Kernel::Recurrent(_)
            | Kernel::RecurrentGradient(_)
            | Kernel::Exchange(_) => AxisNumbers::None,
        }
    }

    /// The same function after the first two axes of its operands ([`super::LeadingAxes`]) have been merged. Returns `None` if it names one
    /// of these two axes.
    pub fn with_leading_axes_merged(mut self) -> Option<Kernel> {
        match self.axis_numbers() {
            AxisNumbers::None => {}
            AxisNumbers::One(axis) => *axis = axis.checked_sub(1).filter(|&axis| axis > 0)?,
            AxisNumbers::First(count) => *count = count.checked_sub(1).filter(|&count| count > 0)?,
            AxisNumbers::Some(axes) => {
                axes.pop().filter(|_| !axes.is_empty())?;
            }
        }
        Some(self)
    }
}
