//! Convolution in one to three spatial dimensions: forward, data gradient, weight gradient.
//!
//! Each of these is a matrix product whose operands are read in place, element by element.

mod correlation;
mod weight_gradient;

use forebay_base::kernel::Convolution;
use forebay_base::{Kernel, TensorDesc};

use super::operand_type::OperandType;
use super::spatial::{SPAN_MAX, Sliding, Spatial, by_images, check_packed};
use super::{Lowered, Operand, Target, Unsupported, unsupported};
use correlation::Direction;

/// A convolution's sizes.
struct Geometry {
    operand_type: OperandType,
    groups: u32,
    /// The number of channels of x and of y in a group.
    inputs: u32,
    outputs: u32,
    x: Spatial,
    y: Spatial,
    window: Sliding,
    /// The index of the first spatial dimension, among three.
    first: usize,
}

impl Geometry {
    fn new(
        operand_type: OperandType,
        convolution: &Convolution,
        x: &TensorDesc,
        w: &TensorDesc,
        y: &TensorDesc,
    ) -> Result<Geometry, String> {
        check_packed(w)?;
        let (source, target) = (Spatial::of(x)?, Spatial::of(y)?);
        let (rank, sizes, groups) = (x.sizes().len(), w.sizes(), convolution.groups);
        let fits = groups > 0
            && sizes.len() == rank
            && y.sizes().len() == rank
            && source.images == target.images
            && sizes[0] == y.sizes()[1]
            && sizes[1].checked_mul(groups) == Some(x.sizes()[1])
            && sizes[0] % groups == 0
            && convolution.window.kernel == sizes[2..];
        if w.element_count() > SPAN_MAX {
            return Err(format!("{w} has {} elements, but shaders support at most {SPAN_MAX}", w.element_count()));
        }
        if !fits {
            return Err(format!("{x}, {w} and {y} do not match {groups} groups"));
        }
        Ok(Geometry {
            operand_type,
            groups: groups as u32,
            inputs: sizes[1] as u32,
            outputs: (sizes[0] / groups) as u32,
            window: Sliding::of(&convolution.window, rank, target.sizes)?,
            x: source,
            y: target,
            first: 5 - rank,
        })
    }

    /// Returns the strides of w: over output channels, input channels, and taps in the three dimensions.
    fn weight_strides(&self) -> [u32; 5] {
        let ([_, height, width], taps) = (self.window.kernel, self.window.taps());
        [self.inputs * taps, taps, height * width, width, 1]
    }
}

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered = || {
        if let Kernel::ConvolutionWeightGradient { convolution } = kernel {
            let (operand_type, stays_wide) = OperandType::with_sums(reads, writes)?;
            let geometry = Geometry::new(operand_type, convolution, &reads[0], &writes[0], &reads[1])?;
            return Ok(weight_gradient::lower(&geometry, stays_wide, gpu));
        }
        let operand_type = OperandType::of(reads, writes)?;
        reads[2..].iter().try_for_each(check_packed)?;
        let bias = reads.len() > 2;
        let operands = [(Operand::Read(0), &reads[0]), (Operand::Write(0), &writes[0])];
        match kernel {
            Kernel::Convolution { convolution, activation } => {
                let geometry = Geometry::new(operand_type, convolution, &reads[0], &reads[1], &writes[0])?;
                let direction = Direction::forward(&geometry);
                Ok(by_images(&operands, gpu, |images| direction.dispatch(images, bias, *activation, gpu)))
            }
            Kernel::ConvolutionDataGradient { convolution, activation } => {
                let geometry = Geometry::new(operand_type, convolution, &writes[0], &reads[1], &reads[0])?;
                let direction = Direction::transposed(&geometry);
                Ok(by_images(&operands, gpu, |images| direction.dispatch(images, bias, *activation, gpu)))
            }
            _ => Err("not a convolution".to_string()),
        }
    };
    lowered().map_err(|reason| unsupported(kernel, reason))
}

#[cfg(test)]
mod tests;
