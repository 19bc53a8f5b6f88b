//! Local response normalization, and its gradient: `kernels/local_response.slang`.

use forebay_base::{Kernel, TensorDesc};
use forebay_device::DeviceError;

use super::shaders::LOCAL_RESPONSE;
use super::spatial::{check_operands, check_packed};
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
    let refuse = |reason: String| unsupported(kernel, reason);
    let (gradient, size, alpha, beta, bias) = match *kernel {
        Kernel::LocalResponseNormalization { size, alpha, beta, bias } => (false, size, alpha, beta, bias),
        Kernel::LocalResponseNormalizationGradient { size, alpha, beta, bias } => (true, size, alpha, beta, bias),
        _ => return Err(unsupported(kernel, "not a local response normalization")),
    };
    let operands = || reads.iter().chain(writes);
    check_operands(operands(), offer).map_err(refuse)?;
    operands().try_for_each(check_packed).map_err(refuse)?;
    let sizes = writes[0].sizes();
    if sizes.len() < 2 || operands().any(|desc| desc.sizes() != sizes) {
        return Err(refuse(format!("{} has no channel axis, or the operands' sizes differ", writes[0])));
    }
    let elements = writes[0].element_count();
    let groups = groups(elements.div_ceil(GROUP_ELEMENTS), offer);
    // A window has the channel itself, (size - 1) / 2 before it (rounded down) and the rest after it.
    let others = size.saturating_sub(1).min(2 * sizes[1]);
    let before = others / 2;
    let weight = (f64::from(alpha) / size as f64) as f32;
    let x = if gradient { Operand::Read(1) } else { Operand::Read(0) };
    Ok(Dispatch {
        shader: &LOCAL_RESPONSE,
        constants: vec![u32::from(gradient)],
        bindings: [x, Operand::Read(0), Operand::Write(0)].map(Into::into).to_vec(),
        parameters: vec![
            groups[0],
            elements as u32,
            sizes[1] as u32,
            sizes[2..].iter().product::<u64>() as u32,
            before as u32,
            (others - before) as u32,
            weight.to_bits(),
            beta.to_bits(),
            bias.to_bits(),
            (2.0 * weight * beta).to_bits(),
        ],
        groups,
    }
    .into())
}
