//! Recurrent networks and their gradient: `kernels/recurrent.slang`.

use forebay_base::kernel::{Recurrence, RecurrentCell};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::operands::{bindings, require_packed};
use super::shaders::{RECURRENT, RECURRENT_GRADIENT};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, unsupported};

/// The maximum number of storage buffers that these shaders bind.
pub(super) const RECURRENT_BINDINGS: u32 = 18;
/// The maximum number of units of a state for which a workgroup has room.
const UNITS_MAX: u64 = 1024;

/// The sizes of a recurrence.
struct Sizes {
    steps: u64,
    batch: u64,
    directions: u64,
    units: u64,
}

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    if gpu.bindings_max < RECURRENT_BINDINGS {
        let has = gpu.bindings_max;
        let reason = format!(
            "its shader binds {RECURRENT_BINDINGS} storage buffers, but the device supports {has}; use the host"
        );
        return Err(unsupported(kernel, reason));
    }
    let lowered = match kernel {
        Kernel::Recurrent(recurrence) => forward(recurrence, reads, writes, gpu),
        Kernel::RecurrentGradient(recurrence) => gradient(recurrence, reads, writes, gpu),
        _ => Err("not a recurrent kernel".to_owned()),
    };
    lowered.map_err(|reason| unsupported(kernel, reason))
}

/// Returns the sizes given by the operands that `Recurrent` reads.
fn sizes(recurrence: &Recurrence, reads: &[TensorDesc]) -> Result<Sizes, String> {
    let cell = recurrence.cell;
    let (wanted, _) = cell.counts();
    if reads.len() != wanted {
        return Err(format!("found {} operands, expected {wanted}", reads.len()));
    }
    let error = || format!("gates {} and weights {} do not match", reads[0], reads[1]);
    let (&[steps, batch, directions, columns], &[own, rows, units]) = (reads[0].sizes(), reads[1].sizes()) else {
        return Err(error());
    };
    let is_all = directions == recurrence.directions.len() as u64;
    if own != directions || rows != columns || columns != cell.gates() * units || !is_all {
        return Err(error());
    }
    if units > UNITS_MAX {
        return Err(format!(
            "the state has {units} units, but the Vulkan device supports at most {UNITS_MAX}; use the host"
        ));
    }
    let state = directions * batch * units;
    require_packed(&[&reads[0]], DataType::Float32, steps * batch * directions * columns)?;
    require_packed(&[&reads[1]], DataType::Float32, directions * columns * units)?;
    require_packed(&[&reads[2]], DataType::Float32, directions * columns)?;
    require_packed(&[&reads[3]], DataType::Int32, batch)?;
    require_packed(&[&reads[4]], DataType::Float32, state)?;
    if let [first_c, peepholes] = &reads[5..] {
        require_packed(&[first_c], DataType::Float32, state)?;
        require_packed(&[peepholes], DataType::Float32, directions * 3 * units)?;
    }
    Ok(Sizes { steps, batch, directions, units })
}

impl Sizes {
    fn state(&self) -> u64 {
        self.directions * self.batch * self.units
    }

    fn dispatch(
        &self,
        recurrence: &Recurrence,
        gradient: bool,
        operands: impl IntoIterator<Item = Operand>,
        gpu: &Target,
    ) -> Dispatch {
        let rows = self.directions * self.batch;
        let groups = groups(rows, gpu);
        let mut parameters = vec![groups[0]];
        parameters.extend([rows, self.steps, self.batch, self.directions, self.units].map(|size| size as u32));
        parameters.push(recurrence.clip.unwrap_or(f32::INFINITY).to_bits());
        for direction in &recurrence.directions {
            parameters.push(u32::from(direction.reverse));
            for activation in direction.activations {
                let [alpha, beta] = activation.arguments().map(f32::to_bits);
                parameters.extend([activation.opcode(), alpha, beta]);
            }
        }
        let cell = match recurrence.cell {
            RecurrentCell::Lstm { couples_forget: false } => 0,
            RecurrentCell::Lstm { couples_forget: true } => 1,
            RecurrentCell::Gru { resets_after: true } => 2,
            RecurrentCell::Gru { resets_after: false } => 3,
            RecurrentCell::Simple => 4,
        };
        Dispatch {
            shader: if gradient { &RECURRENT_GRADIENT } else { &RECURRENT },
            constants: if gradient { vec![cell] } else { vec![cell, u32::from(recurrence.quantizes_state)] },
            bindings: bindings(operands),
            parameters,
            groups,
        }
    }
}

/// Returns the operands that are read. What a cell without c binds in place of c is never accessed.
fn inputs(recurrence: &Recurrence, first: usize) -> Vec<Operand> {
    let places = if recurrence.cell.has_cell_state() { [0, 1, 2, 3, 4, 5, 6] } else { [0, 1, 2, 3, 4, 4, 4] };
    places.into_iter().map(|place| Operand::Read(first + place)).collect()
}

fn forward(
    recurrence: &Recurrence,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let sizes = sizes(recurrence, reads)?;
    let (_, wanted) = recurrence.cell.counts();
    if writes.len() != wanted {
        return Err(format!("found {} results, expected {wanted}", writes.len()));
    }
    require_packed(&[&writes[0]], DataType::Float32, sizes.steps * sizes.state())?;
    require_packed(&writes[1..].iter().collect::<Vec<_>>(), DataType::Float32, sizes.state())?;
    let mut operands = inputs(recurrence, 0);
    operands.extend([Operand::Write(0), Operand::Write(1), Operand::Write(wanted - 1)]);
    Ok(sizes.dispatch(recurrence, false, operands, gpu).into())
}

fn gradient(
    recurrence: &Recurrence,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let is_lstm = recurrence.cell.has_cell_state();
    let ((first, wanted), (count, _)) = (recurrence.cell.gradient_counts(), recurrence.cell.counts());
    let wanted_reads = first + count + 1;
    if reads.len() != wanted_reads {
        return Err(format!("found {} operands, expected {wanted_reads}", reads.len()));
    }
    if writes.len() != wanted {
        return Err(format!("found {} results, expected {wanted}", writes.len()));
    }
    let sizes = sizes(recurrence, &reads[first..first + count])?;
    let (state, all) = (sizes.state(), sizes.steps * sizes.state());
    let gates = recurrence.cell.gates() * all;
    require_packed(&[&reads[0], &reads[first + count], &writes[1]], DataType::Float32, all)?;
    require_packed(&reads[1..first].iter().collect::<Vec<_>>(), DataType::Float32, state)?;
    require_packed(&[&writes[0]], DataType::Float32, gates)?;
    require_packed(&[&writes[2]], DataType::Float32, state)?;
    match recurrence.cell {
        RecurrentCell::Lstm { .. } => {
            require_packed(&[&writes[3]], DataType::Float32, state)?;
            require_packed(&[&writes[4]], DataType::Float32, 3 * state)?;
        }
        RecurrentCell::Gru { resets_after: true } => require_packed(&[&writes[3]], DataType::Float32, gates)?,
        RecurrentCell::Gru { resets_after: false } => require_packed(&[&writes[3]], DataType::Float32, all)?,
        RecurrentCell::Simple => {}
    }
    let mut operands = vec![Operand::Read(0), Operand::Read(1), Operand::Read(if is_lstm { 2 } else { 1 })];
    operands.extend(inputs(recurrence, first));
    operands.push(Operand::Read(first + count));
    operands.extend([0, 1, 2, 3, 4].map(|place: usize| Operand::Write(place.min(wanted - 1))));
    operands.push(Operand::Workspace);
    let dispatches = vec![sizes.dispatch(recurrence, true, operands, gpu)];
    // A binding is never empty, whether cells have a c or not.
    Ok(Lowered { workspace_bytes: if is_lstm { 4 * all } else { 4 }, ..Lowered::from(dispatches) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_say_how_many_operands_and_results_they_expect() {
        let recurrence =
            Recurrence { cell: RecurrentCell::Simple, directions: vec![], clip: None, quantizes_state: false };
        let error = |reads: usize, writes: usize| {
            let desc = TensorDesc::packed(DataType::Float32, &[1]).unwrap();
            gradient(&recurrence, &vec![desc.clone(); reads], &vec![desc; writes], &Target::LEAST).unwrap_err()
        };
        assert_eq!(error(7, 3), "found 7 operands, expected 8");
        assert_eq!(error(8, 4), "found 4 results, expected 3");
    }
}
