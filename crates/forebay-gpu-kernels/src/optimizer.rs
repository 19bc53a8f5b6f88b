//! Optimizers, which update parameters and their state in place.

use forebay_base::kernel::{AdamHyperparameters, SgdHyperparameters};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::{groups, shaders, unsupported, Bound, Dispatch, Lowered, Operand, Shader, Target, Unsupported};

/// Elements that a workgroup updates.
const ELEMENTS_PER_GROUP: u64 = 256 * 4;
/// Elements to a multiple of which what is larger than a binding is cut: a multiple of every binding's alignment.
const CUT_ELEMENTS: u64 = 256;

/// How a kernel of this family runs.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let count = match kernel {
        Kernel::Sgd { .. } => SgdHyperparameters::COUNT,
        Kernel::Adam { .. } => AdamHyperparameters::COUNT,
        _ => return Err(unsupported(kernel, "not an optimizer")),
    };
    let (numbers, reads_before) = reads.split_last().ok_or_else(|| unsupported(kernel, "it reads nothing"))?;
    let is_whole = numbers.data_type() == DataType::Float32 && numbers.is_packed();
    if !is_whole || numbers.element_count() != count as u64 {
        return Err(unsupported(kernel, format!("hyperparameters are {count} of float32, not {numbers}")));
    }
    let operands = reads_before.iter().filter(|desc| desc.data_type() != DataType::Int64).chain(writes);
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
    let (shader, flags) = match *kernel {
        Kernel::Sgd { decays, .. } if writes.len() == 1 => (&shaders::OPTIMIZER_SGD, [decays, false]),
        Kernel::Sgd { nesterov, decays } => (&shaders::OPTIMIZER_MOMENTUM, [decays, nesterov]),
        Kernel::Adam { decoupled, decays } => (&shaders::OPTIMIZER_ADAM, [decays, decoupled]),
        _ => return Err(unsupported(kernel, "not an optimizer")),
    };
    let dispatches = parts(shader, flags, reads, writes, gpu);
    Ok(Lowered { dispatches, workspace_bytes: 0 })
}

/// One dispatch for as many elements as bindings hold.
fn parts(
    shader: &'static Shader,
    flags: [bool; 2],
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Vec<Dispatch> {
    let count = writes[0].element_count();
    let most = (gpu.binding_bytes_max / 4 / CUT_ELEMENTS * CUT_ELEMENTS).clamp(CUT_ELEMENTS, 1 << 31);
    let mut dispatches = Vec::new();
    for start in (0..count).step_by(most as usize) {
        let length = most.min(count - start);
        let part = |operand: Operand| match length == count {
            true => operand.into(),
            false => Bound { operand, offset_bytes: start * 4, size_bytes: Some(length * 4) },
        };
        let hyperparameters = reads.len() - 1;
        let reads = reads.iter().enumerate().map(|(number, desc)| match desc.data_type() {
            DataType::Float32 if number != hyperparameters => part(Operand::Read(number)),
            // These, or the step.
            _ => Operand::Read(number).into(),
        });
        let bindings = reads.chain((0..writes.len()).map(|number| part(Operand::Write(number)))).collect();
        let groups = groups(length.div_ceil(ELEMENTS_PER_GROUP), gpu);
        let parameters = vec![groups[0], length as u32, flags[0].into(), flags[1].into()];
        dispatches.push(Dispatch { shader, constants: Vec::new(), bindings, parameters, groups });
    }
    dispatches
}
