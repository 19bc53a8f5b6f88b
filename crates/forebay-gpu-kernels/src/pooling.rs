//! Pooling over windows, and its gradient: `kernels/pooling.slang`.

use forebay_base::kernel::{PoolOp, Window};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::operand_type::{Builds, OperandType};
use super::operands::{bindings, format_of, require_computed_in_single, require_type};
use super::shaders::{POOLING, POOLING_INDICES, POOLING_TO_BF16, POOLING_TO_F16, Shader};
use super::spatial::{Sliding, Spatial, by_images};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, unsupported};

/// Shaders by the type of the result.
const BY_RESULT: Builds = [&POOLING, &POOLING_TO_F16, &POOLING_TO_BF16];
/// The number of elements that a workgroup computes.
const GROUP_ELEMENTS: u64 = 256;

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered = || {
        let x = (&reads[0], Operand::Read(0));
        if let Kernel::PoolIndices { window } = kernel {
            return indices(window, &reads[0], &writes[0], gpu);
        }
        reads.iter().chain(writes).try_for_each(require_computed_in_single)?;
        let shader = OperandType::of(writes, &[])?.build(BY_RESULT);
        match kernel {
            Kernel::Pool { op, window } => {
                Pooling::new(*op, window, &reads[0], &writes[0])?.lower(shader, [x, x], &writes[0], false, gpu)
            }
            Kernel::PoolGradient { op: PoolOp::Max, .. } if reads.len() < 2 => {
                Err("the gradient of max pooling requires x".to_string())
            }
            Kernel::PoolGradient { op, window } => {
                let dy = x;
                let x = reads.get(1).map_or(dy, |x| (x, Operand::Read(1)));
                Pooling::new(*op, window, &writes[0], &reads[0])?.lower(shader, [x, dy], &writes[0], true, gpu)
            }
            _ => Err("not a pooling kernel".to_string()),
        }
    };
    lowered().map_err(|reason| unsupported(kernel, reason))
}

/// Lowers the kernel that finds the positions of the largest elements.
fn indices(window: &Window, x: &TensorDesc, y: &TensorDesc, gpu: &Target) -> Result<Lowered, String> {
    require_type(&[x], DataType::Float32)?;
    require_type(&[y], DataType::Int64)?;
    if !x.is_packed() || !y.is_packed() || y.element_count() >= 1 << 30 {
        return Err(format!("{x} and {y} must be packed, with fewer than 2^30 elements"));
    }
    let read = (x, Operand::Read(0));
    Pooling::new(PoolOp::Max, window, x, y)?.lower(&POOLING_INDICES, [read, read], y, false, gpu)
}

/// The sizes and the window of a pooling.
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
        if (input.images, input.channels) != (output.images, output.channels) {
            return Err("images and channels of input and output differ".to_string());
        }
        Ok(Pooling { operation: op.opcode(), input, output, sliding })
    }

    /// Lowers the pooling with the operands that serve as x and dy.
    fn lower(
        &self,
        shader: &'static Shader,
        [x, dy]: [(&TensorDesc, Operand); 2],
        result: &TensorDesc,
        gradient: bool,
        gpu: &Target,
    ) -> Result<Lowered, String> {
        let Sliding { kernel, strides, dilations, pads, pads_end } = self.sliding;
        let padded: [u32; 3] = std::array::from_fn(|d| self.input.sizes[d] + pads[d] + pads_end[d]);
        let spatial = [Spatial::of(x.0)?, Spatial::of(dy.0)?, Spatial::of(result)?];
        let image_elements = result.element_count() / result.sizes()[0];
        let operands = [(x.1, x.0), (dy.1, dy.0), (Operand::Write(0), result)];
        let dispatch = |images: u32| {
            let elements = u64::from(images) * image_elements;
            let groups = groups(elements.div_ceil(GROUP_ELEMENTS), gpu);
            let mut parameters = vec![groups[0], self.input.channels, elements as u32];
            let triples = [self.input.sizes, self.output.sizes, kernel, strides, dilations, pads, padded];
            parameters.extend(triples.into_iter().flatten());
            parameters.extend(spatial.iter().flat_map(Spatial::stride_words));
            Dispatch {
                shader,
                constants: vec![
                    self.operation,
                    u32::from(gradient),
                    format_of(x.0.data_type()),
                    format_of(dy.0.data_type()),
                ],
                bindings: bindings([x.1, dy.1, Operand::Write(0)]),
                parameters,
                groups,
            }
        };
        Ok(by_images(&operands, gpu, dispatch))
    }
}
