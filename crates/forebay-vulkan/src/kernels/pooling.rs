//! Pooling over windows, and its gradient: `kernels/pooling.slang`.

use forebay_base::kernel::{PoolOp, Window};
use forebay_base::{Kernel, TensorDesc};
use forebay_device::DeviceError;

use super::shaders::POOLING;
use super::spatial::{check_operands, Sliding, Spatial};
use super::{groups, unsupported, Dispatch, Lowered, Offer, Operand};

/// Elements that a workgroup computes.
const GROUP_ELEMENTS: u64 = 256;

/// How a kernel of this family runs.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Result<Lowered, DeviceError> {
    check_operands(reads.iter().chain(writes), offer).map_err(|reason| unsupported(kernel, reason))?;
    let result = match kernel {
        Kernel::Pool { op, window } => {
            let pooling = Pooling::new(*op, window, &reads[0], &writes[0]);
            pooling.map(|pooling| pooling.dispatch([(&reads[0], Operand::Read(0)); 2], &writes[0], false, offer))
        }
        Kernel::PoolGradient { op: PoolOp::Max, .. } if reads.len() < 2 => {
            Err("the gradient of max pooling needs x".to_string())
        }
        Kernel::PoolGradient { op, window } => {
            let x = if reads.len() > 1 { 1 } else { 0 };
            let pooling = Pooling::new(*op, window, &writes[0], &reads[0]);
            let sources = [(&reads[x], Operand::Read(x)), (&reads[0], Operand::Read(0))];
            pooling.map(|pooling| pooling.dispatch(sources, &writes[0], true, offer))
        }
        _ => Err("not a pooling".to_string()),
    };
    result.and_then(|dispatch| dispatch).map(Lowered::from).map_err(|reason| unsupported(kernel, reason))
}

/// A pooling: its sizes and its window.
struct Pooling {
    operation: u32,
    input: Spatial,
    output: Spatial,
    sliding: Sliding,
}

impl Pooling {
    fn new(op: PoolOp, window: &Window, input: &TensorDesc, output: &TensorDesc) -> Result<Pooling, String> {
        let rank = input.sizes().len();
        let (input, output) = (Spatial::of(input)?, Spatial::of(output)?);
        let sliding = Sliding::of(window, rank, output.sizes)?;
        let operation = match op {
            PoolOp::Max => 0,
            PoolOp::Average { count_include_pad: false } => 1,
            PoolOp::Average { count_include_pad: true } => 2,
        };
        if (input.images, input.channels) != (output.images, output.channels) {
            return Err("images and channels of input and output differ".to_string());
        }
        Ok(Pooling { operation, input, output, sliding })
    }

    /// The dispatch with the operands that stand for x and dy.
    fn dispatch(
        &self,
        sources: [(&TensorDesc, Operand); 2],
        result: &TensorDesc,
        gradient: bool,
        offer: &Offer,
    ) -> Result<Dispatch, String> {
        let [x, dy] = sources;
        let groups = groups(result.element_count().div_ceil(GROUP_ELEMENTS), offer);
        let Sliding { kernel, strides, dilations, pads, pads_end } = self.sliding;
        let padded: [u32; 3] = std::array::from_fn(|d| self.input.sizes[d] + pads[d] + pads_end[d]);
        let mut parameters = vec![groups[0], self.input.channels, result.element_count() as u32];
        let triples = [self.input.sizes, self.output.sizes, kernel, strides, dilations, pads, padded];
        parameters.extend(triples.into_iter().flatten());
        for desc in [x.0, dy.0, result] {
            parameters.extend(Spatial::of(desc)?.stride_words());
        }
        Ok(Dispatch {
            shader: &POOLING,
            constants: vec![self.operation, u32::from(gradient)],
            bindings: [x.1, dy.1, Operand::Write(0)].map(Into::into).to_vec(),
            parameters,
            groups,
        })
    }
}
