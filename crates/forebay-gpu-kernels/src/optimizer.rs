//! Optimizers, which update parameters and their state in place.

use forebay_base::kernel::quantization::{QUANTIZATION_BLOCK, QuantizationMap, SIGNED, UNSIGNED};
use forebay_base::kernel::{AdamHyperparameters, SgdHyperparameters};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::{Bound, Dispatch, Lowered, Operand, Shader, Target, Unsupported, groups, shaders, unsupported};

/// The number of elements that a workgroup updates.
const ELEMENTS_PER_GROUP: u64 = 256 * 4;
/// Operands larger than a binding are cut at multiples of this number of elements, which is a multiple of every binding's alignment.
const CUT_ELEMENTS: u64 = 256;

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let count = match kernel {
        Kernel::Sgd { .. } => SgdHyperparameters::COUNT,
        Kernel::Adam { .. } | Kernel::Adam8Bit { .. } => AdamHyperparameters::COUNT,
        _ => return Err(unsupported(kernel, "not an optimizer")),
    };
    let (numbers, reads_before) = reads.split_last().ok_or_else(|| unsupported(kernel, "it has no operands"))?;
    let is_whole = numbers.data_type() == DataType::Float32 && numbers.is_packed();
    if !is_whole || numbers.element_count() != count as u64 {
        return Err(unsupported(kernel, format!("hyperparameters must be {count} float32 numbers, not {numbers}")));
    }
    if let Kernel::Adam8Bit { decoupled, decays } = *kernel {
        return adam_8_bit([decays, decoupled], reads, writes, gpu).map_err(|reason| unsupported(kernel, reason));
    }
    let operands = reads_before.iter().filter(|desc| desc.data_type() != DataType::Int64).chain(writes);
    for desc in operands {
        if desc.data_type() != DataType::Float32 {
            let reason = format!("the Vulkan device can update only float32, not {}", desc.data_type());
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
    Ok(Lowered::from(dispatches))
}

/// Returns dispatches that each process as many elements as bindings hold.
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
            // The hyperparameters, or the step.
            _ => Operand::Read(number).into(),
        });
        let bindings = reads.chain((0..writes.len()).map(|number| part(Operand::Write(number)))).collect();
        let groups = groups(length.div_ceil(ELEMENTS_PER_GROUP), gpu);
        let parameters = vec![groups[0], length as u32, flags[0].into(), flags[1].into()];
        dispatches.push(Dispatch { shader, constants: Vec::new(), bindings, parameters, groups });
    }
    dispatches
}

/// The number of storage buffers of the shader of `Adam8Bit`.
pub(super) const ADAM_8_BIT_BINDINGS: u32 = 14;

/// Lowers `Adam8Bit` to dispatches of as many blocks as bindings hold, with a workgroup for each block.
fn adam_8_bit(flags: [bool; 2], reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    if gpu.bindings_max < ADAM_8_BIT_BINDINGS {
        return Err(format!(
            "its shader binds {ADAM_8_BIT_BINDINGS} storage buffers, but the device supports {}; use the host",
            gpu.bindings_max
        ));
    }
    let count = writes[0].element_count();
    let types = [DataType::UInt8, DataType::Float32, DataType::UInt8, DataType::Float32];
    let sizes = [count, count.div_ceil(QUANTIZATION_BLOCK)];
    let state: Vec<(DataType, u64)> = types.into_iter().zip(sizes.into_iter().cycle()).collect();
    let parameter = (DataType::Float32, count);
    let should = [&[parameter; 2], &state[..], &[parameter], &state[..]].concat();
    let updated = reads.iter().take(6).chain(writes);
    if (reads.len(), writes.len()) != (8, 5) {
        return Err(format!("expected 8 reads and 5 writes, found {} and {}", reads.len(), writes.len()));
    }
    for (desc, (data_type, size)) in updated.zip(should) {
        if !desc.is_packed() || desc.data_type() != data_type || desc.element_count() != size {
            return Err(format!("{desc} must be {size} packed elements of {data_type}"));
        }
    }
    let is_of_blocks = |operand: Operand| matches!(operand, Operand::Read(3 | 5) | Operand::Write(2 | 4));
    let is_codes = |operand: Operand| matches!(operand, Operand::Read(2 | 4) | Operand::Write(1 | 3));
    // The number of bytes from one block to the next.
    let block_bytes = |operand: Operand| match operand {
        Operand::Read(6 | 7) => None,
        _ if is_of_blocks(operand) => Some(4),
        _ if is_codes(operand) => Some(QUANTIZATION_BLOCK),
        _ => Some(4 * QUANTIZATION_BLOCK),
    };
    let blocks = count.div_ceil(QUANTIZATION_BLOCK);
    let most = (gpu.binding_bytes_max / 4 / QUANTIZATION_BLOCK / CUT_BLOCKS * CUT_BLOCKS).max(CUT_BLOCKS);
    let maps: Vec<u32> = [&SIGNED, &UNSIGNED].into_iter().flat_map(words).collect();
    let mut dispatches = Vec::new();
    for start in (0..blocks).step_by(most as usize) {
        let end = blocks.min(start + most);
        let part = |operand: Operand| match block_bytes(operand).filter(|_| most < blocks) {
            Some(bytes) => {
                let is_last = end == blocks;
                let size_bytes = (!is_last).then_some((end - start) * bytes);
                Bound { operand, offset_bytes: start * bytes, size_bytes }
            }
            None => operand.into(),
        };
        let operands = (0..reads.len()).map(Operand::Read).chain((0..writes.len()).map(Operand::Write));
        let groups = groups(end - start, gpu);
        let length = count.min(end * QUANTIZATION_BLOCK) - start * QUANTIZATION_BLOCK;
        let mut parameters = vec![groups[0], length as u32, flags[0].into(), flags[1].into()];
        parameters.extend(&maps);
        let (shader, bindings) = (&shaders::OPTIMIZER_ADAM_8_BIT, operands.map(part).collect());
        dispatches.push(Dispatch { shader, constants: Vec::new(), bindings, parameters, groups });
    }
    Ok(Lowered::from(dispatches))
}

/// Operands larger than a binding are cut at multiples of this number of blocks, so that their scales also begin where bindings can.
const CUT_BLOCKS: u64 = 64;

/// Returns a map as parameters of a shader.
fn words(map: &QuantizationMap) -> impl Iterator<Item = u32> + '_ {
    map.numbers.iter().chain(&map.middles).map(|number| number.to_bits())
}
