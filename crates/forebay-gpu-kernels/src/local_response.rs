//! Local response normalization, and its gradient: `kernels/local_response.slang`.

use forebay_base::{Kernel, TensorDesc};

use super::operands::bindings;
use super::shaders::LOCAL_RESPONSE;
use super::spatial::{by_images, check_packed, require_float32};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, unsupported};

/// The number of elements that a workgroup computes.
const GROUP_ELEMENTS: u64 = 256;

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let refuse = |reason: String| unsupported(kernel, reason);
    let (gradient, size, alpha, beta, bias) = match *kernel {
        Kernel::LocalResponseNormalization { size, alpha, beta, bias } => (false, size, alpha, beta, bias),
        Kernel::LocalResponseNormalizationGradient { size, alpha, beta, bias } => (true, size, alpha, beta, bias),
        _ => return Err(unsupported(kernel, "not a local response normalization")),
    };
    let operands = || reads.iter().chain(writes);
    require_float32(reads, writes).map_err(refuse)?;
    operands().try_for_each(check_packed).map_err(refuse)?;
    let sizes = writes[0].sizes();
    if sizes.len() < 2 || operands().any(|desc| desc.sizes() != sizes) {
        return Err(refuse(format!("{} has no channel axis, or the operands' sizes differ", writes[0])));
    }
    // A window contains the channel itself, (size - 1) / 2 channels before it (rounded down), and the rest after it.
    let others = size.saturating_sub(1).min(2 * sizes[1]);
    let before = others / 2;
    let weight = (f64::from(alpha) / size as f64) as f32;
    let places: u64 = sizes[2..].iter().product();
    let x = if gradient { 1 } else { 0 };
    let operands = [(Operand::Read(x), &reads[x]), (Operand::Read(0), &reads[0]), (Operand::Write(0), &writes[0])];
    let dispatch = |images: u32| {
        let elements = u64::from(images) * sizes[1] * places;
        let groups = groups(elements.div_ceil(GROUP_ELEMENTS), gpu);
        Dispatch {
            shader: &LOCAL_RESPONSE,
            constants: vec![u32::from(gradient)],
            bindings: bindings(operands.map(|(operand, _)| operand)),
            parameters: vec![
                groups[0],
                elements as u32,
                sizes[1] as u32,
                places as u32,
                before as u32,
                (others - before) as u32,
                weight.to_bits(),
                beta.to_bits(),
                bias.to_bits(),
                (2.0 * weight * beta).to_bits(),
            ],
            groups,
        }
    };
    Ok(by_images(&operands, gpu, dispatch))
}
