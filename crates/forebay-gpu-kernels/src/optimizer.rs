//! Optimizers, which update parameters and their state in place.

use std::ops::Range;

use forebay_base::kernel::quantization::{QUANTIZATION_BLOCK, QuantizationMap, SIGNED, UNSIGNED};
use forebay_base::kernel::{AdamHyperparameters, SgdHyperparameters};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::parts::{Beginning, Rows, parts};
use super::{Bound, Dispatch, Lowered, Operand, Target, Unsupported, groups, shaders, unsupported};

/// The number of elements that a workgroup updates.
const ELEMENTS_PER_GROUP: u64 = 256 * 4;

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
    let (count, hyperparameters) = (writes[0].element_count(), reads.len() - 1);
    let element_bytes = |operand: Operand| match operand {
        // The hyperparameters, or the step.
        Operand::Read(number) if number == hyperparameters || reads[number].data_type() == DataType::Int64 => None,
        _ => Some(4),
    };
    let dispatch = |part: &Range<u64>, bindings: Vec<Bound>| {
        let length = part.end - part.start;
        let groups = groups(length.div_ceil(ELEMENTS_PER_GROUP), gpu);
        let parameters = vec![groups[0], length as u32, flags[0].into(), flags[1].into()];
        Dispatch { shader, constants: Vec::new(), bindings, parameters, groups }
    };
    let operands = [reads.len(), writes.len()];
    Ok(Lowered::from(in_parts(operands, count, element_bytes, gpu, dispatch)))
}

/// Returns dispatches that each update as many rows as bindings hold. `row_bytes` returns the number of bytes of a row of an operand, or
/// `None` for an operand of which every part needs all.
fn in_parts(
    [reads, writes]: [usize; 2],
    rows: u64,
    row_bytes: impl Fn(Operand) -> Option<u64>,
    gpu: &Target,
    dispatch: impl Fn(&Range<u64>, Vec<Bound>) -> Dispatch,
) -> Vec<Dispatch> {
    let operands: Vec<Operand> = (0..reads).map(Operand::Read).chain((0..writes).map(Operand::Write)).collect();
    let slab = |&operand: &Operand| row_bytes(operand).map(|row_bytes| Rows { operand, row_bytes });
    let slabs: Vec<Rows> = operands.iter().filter_map(slab).collect();
    let update = |part: &Range<u64>| {
        let bound = |operand: &Operand| slab(operand).map_or(Bound::from(*operand), |slab| slab.bound(part, rows));
        dispatch(part, operands.iter().map(bound).collect())
    };
    parts(&slabs, rows, Beginning::Aligned, gpu).iter().map(update).collect()
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
    let block_bytes = |operand: Operand| match operand {
        // The step and the hyperparameters.
        Operand::Read(6 | 7) => None,
        // A scale, codes, numbers.
        Operand::Read(3 | 5) | Operand::Write(2 | 4) => Some(4),
        Operand::Read(2 | 4) | Operand::Write(1 | 3) => Some(QUANTIZATION_BLOCK),
        _ => Some(4 * QUANTIZATION_BLOCK),
    };
    let maps: Vec<u32> = [&SIGNED, &UNSIGNED].into_iter().flat_map(words).collect();
    let dispatch = |part: &Range<u64>, bindings: Vec<Bound>| {
        let groups = groups(part.end - part.start, gpu);
        let length = count.min(part.end * QUANTIZATION_BLOCK) - part.start * QUANTIZATION_BLOCK;
        let mut parameters = vec![groups[0], length as u32, flags[0].into(), flags[1].into()];
        parameters.extend(&maps);
        Dispatch { shader: &shaders::OPTIMIZER_ADAM_8_BIT, constants: Vec::new(), bindings, parameters, groups }
    };
    let (operands, blocks) = ([reads.len(), writes.len()], count.div_ceil(QUANTIZATION_BLOCK));
    Ok(Lowered::from(in_parts(operands, blocks, block_bytes, gpu, dispatch)))
}

/// Returns a map as parameters of a shader.
fn words(map: &QuantizationMap) -> impl Iterator<Item = u32> + '_ {
    map.numbers.iter().chain(&map.middles).map(|number| number.to_bits())
}
