//! Optimizers, which update parameters and their state in place.

use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_device::DeviceError;

use super::{groups, shaders, unsupported, Bound, Dispatch, Lowered, Offer, Operand, Shader};

/// Elements that a workgroup updates.
const ELEMENTS_PER_GROUP: u64 = 256 * 4;
/// Elements to a multiple of which what is larger than a binding is cut: a multiple of every binding's alignment.
const CUT_ELEMENTS: u64 = 256;

/// How a kernel of this family runs.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Result<Lowered, DeviceError> {
    let operands = reads.iter().take(if let Kernel::Adam { .. } = kernel { 4 } else { 3 }).chain(writes);
    for desc in operands {
        if desc.data_type() != DataType::Float32 {
            let reason = format!("the Vulkan device updates float32, not {}", desc.data_type());
            return Err(unsupported(kernel, reason));
        }
        if !desc.is_packed() {
            return Err(unsupported(kernel, format!("{desc} must be packed")));
        }
        if desc.element_count() != reads[0].element_count() {
            return Err(unsupported(kernel, format!("{} and {desc} differ in size", reads[0])));
        }
    }
    let (shader, numbers): (_, Vec<f32>) = match *kernel {
        Kernel::Sgd { learning_rate, weight_decay, .. } if writes.len() == 1 => {
            (&shaders::OPTIMIZER_SGD, vec![learning_rate, weight_decay])
        }
        Kernel::Sgd { learning_rate, momentum, weight_decay, nesterov } => {
            (&shaders::OPTIMIZER_MOMENTUM, vec![learning_rate, weight_decay, momentum, nesterov as u8 as f32])
        }
        Kernel::Adam { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled } => {
            let kept = if decoupled { 1.0 - learning_rate as f64 * weight_decay as f64 } else { 1.0 };
            let decay = if decoupled { 0.0 } else { weight_decay };
            let rest = |beta: f32| (1.0 - beta as f64) as f32;
            // Finite, so that its product with a step is a number.
            let logarithm = |beta: f32| (beta as f64).ln().max(f32::MIN as f64) as f32;
            let betas = [beta1, rest(beta1), beta2, rest(beta2)];
            let rest = [epsilon, decay, kept as f32, logarithm(beta1), logarithm(beta2)];
            (&shaders::OPTIMIZER_ADAM, [&[learning_rate][..], &betas, &rest].concat())
        }
        _ => return Err(unsupported(kernel, "not an optimizer")),
    };
    let dispatches = parts(shader, &numbers, reads, writes, offer);
    Ok(Lowered { dispatches, workspace_bytes: 0 })
}

/// One dispatch for as many elements as bindings hold.
fn parts(
    shader: &'static Shader,
    numbers: &[f32],
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Vec<Dispatch> {
    let count = writes[0].element_count();
    let most = (offer.binding_bytes_max / 4 / CUT_ELEMENTS * CUT_ELEMENTS).clamp(CUT_ELEMENTS, 1 << 31);
    let mut dispatches = Vec::new();
    for start in (0..count).step_by(most as usize) {
        let length = most.min(count - start);
        let part = |operand: Operand| match length == count {
            true => operand.into(),
            false => Bound { operand, offset_bytes: start * 4, size_bytes: Some(length * 4) },
        };
        let reads = reads.iter().enumerate().map(|(number, desc)| match desc.data_type() {
            DataType::Float32 => part(Operand::Read(number)),
            // The step.
            _ => Operand::Read(number).into(),
        });
        let bindings = reads.chain((0..writes.len()).map(|number| part(Operand::Write(number)))).collect();
        let groups = groups(length.div_ceil(ELEMENTS_PER_GROUP), offer);
        let mut parameters = vec![groups[0], length as u32];
        parameters.extend(numbers.iter().map(|number| number.to_bits()));
        dispatches.push(Dispatch { shader, constants: Vec::new(), bindings, parameters, groups });
    }
    dispatches
}
