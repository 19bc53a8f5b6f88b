//! Recurrent networks of every cell, and their gradients.

use forebay_base::kernel::{Recurrence, RecurrentActivation, RecurrentCell, RecurrentDirection};
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed};

const CELLS: [RecurrentCell; 5] = [
    RecurrentCell::Lstm { couples_forget: false },
    RecurrentCell::Lstm { couples_forget: true },
    RecurrentCell::Gru { resets_after: true },
    RecurrentCell::Gru { resets_after: false },
    RecurrentCell::Simple,
];

const ACTIVATIONS: [RecurrentActivation; 11] = [
    RecurrentActivation::Tanh,
    RecurrentActivation::Sigmoid,
    RecurrentActivation::Relu,
    RecurrentActivation::Affine { alpha: 0.7, beta: 0.1 },
    RecurrentActivation::LeakyRelu { alpha: 0.2 },
    RecurrentActivation::ThresholdedRelu { alpha: 0.1 },
    RecurrentActivation::ScaledTanh { alpha: 1.3, beta: 0.6 },
    RecurrentActivation::HardSigmoid { alpha: 0.2, beta: 0.5 },
    RecurrentActivation::Elu { alpha: 0.8 },
    RecurrentActivation::Softsign,
    RecurrentActivation::Softplus,
];

fn floats(sizes: &[u64]) -> TensorDesc {
    packed(DataType::Float32, sizes)
}

/// Compares a recurrence and its gradient with the host's.
fn check(seed: u64, recurrence: &Recurrence, [steps, batch, units]: [u64; 3]) {
    let mut random = Random::new(seed);
    let (cell, directions) = (recurrence.cell, recurrence.directions.len() as u64);
    let columns = cell.gates() * units;
    let (gates, state) = (floats(&[steps, batch, directions, columns]), floats(&[directions, batch, units]));
    let y = floats(&[steps, directions, batch, units]);
    let mut small = |desc: &TensorDesc| -> Tensor {
        let (desc, mut values) = random.tensor(desc);
        values.iter_mut().for_each(|value| *value = (*value * 0.5) as f32 as f64);
        (desc, values)
    };
    // Weights are scaled so that a sum over many units is no larger than one over few.
    let mut weights = small(&floats(&[directions, columns, units]));
    weights.1.iter_mut().for_each(|weight| *weight = (*weight / (units as f64).sqrt()) as f32 as f64);
    let lengths = (0..batch).map(|sequence| ((steps + sequence) % (steps + 1)) as f64).collect();
    let mut reads = vec![small(&gates), weights, small(&floats(&[directions, columns]))];
    reads.push((packed(DataType::Int32, &[batch]), lengths));
    reads.push(small(&state));
    let (mut writes, mut d_outputs) = (vec![y.clone(), state.clone()], vec![small(&y), small(&state)]);
    let before = floats(&[directions, steps, batch, units]);
    let mut d_inputs = vec![gates.clone(), before.clone(), state.clone()];
    match cell {
        RecurrentCell::Lstm { .. } => {
            reads.extend([small(&state), small(&floats(&[directions, 3 * units]))]);
            writes.push(state.clone());
            d_outputs.push(small(&state));
            d_inputs.extend([state, floats(&[directions, batch, 3 * units])]);
        }
        RecurrentCell::Gru { resets_after: true } => d_inputs.push(gates),
        RecurrentCell::Gru { resets_after: false } => d_inputs.push(before),
        RecurrentCell::Simple => {}
    }
    compare(seed, &Kernel::Recurrent(recurrence.clone()), &reads, &writes, 2e-6);
    if recurrence.quantizes_state {
        return;
    }
    let mut all = d_outputs;
    all.extend(reads);
    // Any outputs will do, because the gradient takes them as they are.
    all.push(small(&y));
    compare(seed, &Kernel::RecurrentGradient(recurrence.clone()), &all, &d_inputs, 1e-5);
}

fn recurrence(cell: RecurrentCell, reverses: &[bool], activations: [RecurrentActivation; 3]) -> Recurrence {
    let directions = reverses.iter().map(|&reverse| RecurrentDirection { reverse, activations });
    Recurrence { cell, directions: directions.collect(), clip: None, quantizes_state: false }
}

#[test]
fn every_cell_agrees_in_every_direction() {
    let usual = [RecurrentActivation::Sigmoid, RecurrentActivation::Tanh, RecurrentActivation::Tanh];
    for (number, cell) in (0..).zip(CELLS) {
        let clip = if number % 2 == 0 { Some(0.4) } else { None };
        let recurrence = Recurrence { clip, ..recurrence(cell, &[false, true], usual) };
        check(number, &recurrence, [3, 2, 260]);
    }
}

/// One step, whose state has the same bits on both devices, so that it is rounded to the same quantization steps.
#[test]
fn states_in_steps_agree() {
    let usual = [RecurrentActivation::Sigmoid, RecurrentActivation::Tanh, RecurrentActivation::Tanh];
    for (number, cell) in (80..).zip(CELLS) {
        let recurrence = Recurrence { quantizes_state: true, ..recurrence(cell, &[false, true], usual) };
        check(number, &recurrence, [1, 2, 260]);
    }
}

#[test]
fn every_function_agrees() {
    for (number, activation) in (40..).zip(ACTIVATIONS) {
        check(number, &recurrence(RecurrentCell::Simple, &[false], [activation; 3]), [3, 2, 6]);
    }
}
