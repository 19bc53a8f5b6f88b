//! Recurrent networks compared with a naive model in double precision, and their gradients with its differences.

use forebay_base::kernel::{Recurrence, RecurrentActivation, RecurrentCell, RecurrentDirection};
use forebay_base::{DataType, Kernel};

use super::super::testing::{Random, Tensor, assert_close, desc, run};

const SIGMOID: RecurrentActivation = RecurrentActivation::Sigmoid;
const TANH: RecurrentActivation = RecurrentActivation::Tanh;
const LSTM: RecurrentCell = RecurrentCell::Lstm { couples_forget: false };
const CELLS: [RecurrentCell; 5] = [
    LSTM,
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

fn function(activation: RecurrentActivation, x: f64) -> f64 {
    let [alpha, beta] = activation.arguments().map(f64::from);
    match activation {
        RecurrentActivation::Tanh => x.tanh(),
        RecurrentActivation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        RecurrentActivation::Relu => x.max(0.0),
        RecurrentActivation::Affine { .. } => alpha * x + beta,
        RecurrentActivation::LeakyRelu { .. } => {
            if x < 0.0 {
                alpha * x
            } else {
                x
            }
        }
        RecurrentActivation::ThresholdedRelu { .. } => {
            if x > alpha {
                x
            } else {
                0.0
            }
        }
        RecurrentActivation::ScaledTanh { .. } => alpha * (beta * x).tanh(),
        RecurrentActivation::HardSigmoid { .. } => (alpha * x + beta).clamp(0.0, 1.0),
        RecurrentActivation::Elu { .. } => {
            if x < 0.0 {
                alpha * x.exp_m1()
            } else {
                x
            }
        }
        RecurrentActivation::Softsign => x / (1.0 + x.abs()),
        RecurrentActivation::Softplus => x.exp().ln_1p(),
    }
}

/// Steps, sequences, directions and units.
#[derive(Clone, Copy)]
struct Sizes {
    steps: usize,
    batch: usize,
    directions: usize,
    units: usize,
}

/// The operands that a recurrence reads, as numbers.
#[derive(Clone)]
struct Inputs {
    gates: Vec<f64>,
    weights: Vec<f64>,
    bias: Vec<f64>,
    lengths: Vec<usize>,
    first_h: Vec<f64>,
    first_c: Vec<f64>,
    peepholes: Vec<f64>,
}

impl Inputs {
    fn random(random: &mut Random, recurrence: &Recurrence, sizes: Sizes) -> Inputs {
        let Sizes { steps, batch, directions, units } = sizes;
        let columns = recurrence.cell.gates() as usize * units;
        let mut floats = |count: usize, scale: f64| -> Vec<f64> {
            random.values(count).into_iter().map(|value| (scale * value) as f32 as f64).collect()
        };
        let scale = 1.0 / (units as f64).sqrt();
        let (gates, weights) =
            (floats(steps * batch * directions * columns, 1.0), floats(directions * columns * units, scale));
        let (bias, first_h) = (floats(directions * columns, 0.5), floats(directions * batch * units, 0.5));
        let (first_c, peepholes) = (floats(directions * batch * units, 0.5), floats(directions * 3 * units, 0.5));
        let lengths =
            (0..batch).map(|sequence| if sequence % 2 == 0 { steps } else { (steps + sequence) % steps.max(2) });
        Inputs { gates, weights, bias, lengths: lengths.collect(), first_h, first_c, peepholes }
    }

    fn tensors(&self, recurrence: &Recurrence, sizes: Sizes) -> Vec<Tensor> {
        let [steps, batch, directions, units] =
            [sizes.steps, sizes.batch, sizes.directions, sizes.units].map(|n| n as u64);
        let columns = recurrence.cell.gates() * units;
        let tensor = |sizes: &[u64], values: &[f64]| Tensor::new(&desc(DataType::Float32, sizes), values);
        let lengths: Vec<f64> = self.lengths.iter().map(|&length| length as f64).collect();
        let mut tensors = vec![
            tensor(&[steps, batch, directions, columns], &self.gates),
            tensor(&[directions, columns, units], &self.weights),
            tensor(&[directions, columns], &self.bias),
            Tensor::new(&desc(DataType::Int32, &[batch]), &lengths),
            tensor(&[directions, batch, units], &self.first_h),
        ];
        if recurrence.cell.has_cell_state() {
            tensors.push(tensor(&[directions, batch, units], &self.first_c));
            tensors.push(tensor(&[directions, 3 * units], &self.peepholes));
        }
        tensors
    }
}

/// A state rounded to 256 steps of its range and zero.
fn in_steps(h: &[f64]) -> Vec<f64> {
    let least = h.iter().copied().fold(0.0, f64::min);
    let largest = h.iter().copied().fold(0.0, f64::max);
    let scale = if largest > least { (largest - least) / 255.0 } else { 1.0 };
    let zero = (-least / scale).clamp(0.0, 255.0).round_ties_even();
    h.iter().map(|h| (((h / scale).round_ties_even() + zero).clamp(0.0, 255.0) - zero) * scale).collect()
}

/// y, last h and last c, by the formulas of ONNX, element by element.
fn naive(recurrence: &Recurrence, sizes: Sizes, inputs: &Inputs) -> [Vec<f64>; 3] {
    let Sizes { steps, batch, directions, units } = sizes;
    let gate_count = recurrence.cell.gates() as usize;
    let columns = gate_count * units;
    let mut y = vec![0.0; steps * directions * batch * units];
    let (mut last_h, mut last_c) = (inputs.first_h.clone(), inputs.first_c.clone());
    for direction in 0..directions {
        let RecurrentDirection { reverse, activations } = recurrence.directions[direction];
        let cut = |x: f64| recurrence.clip.map_or(x, |clip| x.clamp(-f64::from(clip), f64::from(clip)));
        let [f, g, state] = activations.map(|activation| move |x: f64| function(activation, x));
        for sequence in 0..batch {
            let start = (direction * batch + sequence) * units;
            let (mut h, mut c) = (last_h[start..start + units].to_vec(), last_c[start..start + units].to_vec());
            let length = inputs.lengths[sequence];
            for step in 0..length {
                let place = if reverse { length - 1 - step } else { step };
                let input = |gate: usize, unit: usize| {
                    inputs.gates[((place * batch + sequence) * directions + direction) * columns + gate * units + unit]
                };
                let bias = |gate: usize, unit: usize| inputs.bias[direction * columns + gate * units + unit];
                let added = |h: &[f64], gate: usize, unit: usize| -> f64 {
                    let row = (direction * columns + gate * units + unit) * units;
                    h.iter().zip(&inputs.weights[row..row + units]).map(|(h, w)| h * w).sum()
                };
                let steps_of = |h: &[f64]| if recurrence.quantizes_state { in_steps(h) } else { h.to_vec() };
                let sum =
                    |h: &[f64], gate: usize, unit: usize| input(gate, unit) + added(h, gate, unit) + bias(gate, unit);
                let peephole = |gate: usize, unit: usize| inputs.peepholes[(direction * 3 + gate) * units + unit];
                let before = h.clone();
                let h_in_steps = steps_of(&h);
                let all = |of: &dyn Fn(usize) -> f64| (0..units).map(of).collect::<Vec<f64>>();
                match recurrence.cell {
                    RecurrentCell::Lstm { couples_forget } => {
                        let i = all(&|u| f(cut(sum(&h_in_steps, 0, u) + peephole(0, u) * c[u])));
                        let forget = all(&|u| {
                            if couples_forget {
                                1.0 - i[u]
                            } else {
                                f(cut(sum(&h_in_steps, 2, u) + peephole(2, u) * c[u]))
                            }
                        });
                        let cell = all(&|u| g(cut(sum(&h_in_steps, 3, u))));
                        let next = all(&|u| forget[u] * c[u] + i[u] * cell[u]);
                        let o = all(&|u| f(cut(sum(&h_in_steps, 1, u) + peephole(1, u) * next[u])));
                        h = all(&|u| o[u] * state(next[u]));
                        c = next;
                    }
                    RecurrentCell::Gru { resets_after } => {
                        let z = all(&|u| f(cut(sum(&h_in_steps, 0, u))));
                        let r = all(&|u| f(cut(sum(&h_in_steps, 1, u))));
                        let reset = steps_of(&all(&|u| r[u] * h[u]));
                        let n = all(&|u| match resets_after {
                            true => g(cut(input(2, u) + r[u] * (added(&h_in_steps, 2, u) + bias(2, u)))),
                            false => g(cut(sum(&reset, 2, u))),
                        });
                        h = all(&|u| (1.0 - z[u]) * n[u] + z[u] * before[u]);
                    }
                    RecurrentCell::Simple => h = all(&|u| f(cut(sum(&h_in_steps, 0, u)))),
                }
                let at = ((place * directions + direction) * batch + sequence) * units;
                y[at..at + units].copy_from_slice(&h);
            }
            last_h[start..start + units].copy_from_slice(&h);
            last_c[start..start + units].copy_from_slice(&c);
        }
    }
    [y, last_h, last_c]
}

fn recurrence(
    cell: RecurrentCell,
    reverses: &[bool],
    activations: [RecurrentActivation; 3],
    clip: Option<f32>,
) -> Recurrence {
    let directions = reverses.iter().map(|&reverse| RecurrentDirection { reverse, activations }).collect();
    Recurrence { cell, directions, clip, quantizes_state: false }
}

fn forward(recurrence: &Recurrence, sizes: Sizes, inputs: &Inputs) -> Vec<Tensor> {
    let tensors = inputs.tensors(recurrence, sizes);
    let [steps, batch, directions, units] = [sizes.steps, sizes.batch, sizes.directions, sizes.units].map(|n| n as u64);
    let state = desc(DataType::Float32, &[directions, batch, units]);
    let mut writes = vec![desc(DataType::Float32, &[steps, directions, batch, units]), state.clone()];
    writes.extend(recurrence.cell.has_cell_state().then_some(state));
    run(&Kernel::Recurrent(recurrence.clone()), &tensors.iter().collect::<Vec<_>>(), &writes)
}

/// Compares results and gradients; the gradients of the weights and the bias are sums over the kernel's results.
fn check(seed: u64, recurrence: &Recurrence, sizes: Sizes) {
    let mut random = Random::new(seed);
    let what = format!("seed {seed}: {recurrence:?}");
    let inputs = Inputs::random(&mut random, recurrence, sizes);
    let found = forward(recurrence, sizes, &inputs);
    let expected = naive(recurrence, sizes, &inputs);
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(&found.values(), expected, 3e-6, &what);
    }
    let Sizes { steps, batch, directions, units } = sizes;
    let columns = recurrence.cell.gates() as usize * units;
    let d_outputs: Vec<Tensor> =
        found.iter().map(|output| Tensor::new(&output.desc, &random.values(output.values().len()))).collect();
    let mut reads: Vec<Tensor> = d_outputs.clone();
    reads.extend(inputs.tensors(recurrence, sizes));
    reads.push(found[0].clone());
    let sized = |sizes: &[usize]| desc(DataType::Float32, &sizes.iter().map(|&size| size as u64).collect::<Vec<_>>());
    let gates = sized(&[steps, batch, directions, columns]);
    let (before, state) = (sized(&[directions, steps, batch, units]), sized(&[directions, batch, units]));
    let mut writes = vec![gates.clone(), before.clone(), state.clone()];
    match recurrence.cell {
        RecurrentCell::Lstm { .. } => writes.extend([state, sized(&[directions, batch, 3 * units])]),
        RecurrentCell::Gru { resets_after: true } => writes.push(gates),
        RecurrentCell::Gru { resets_after: false } => writes.push(before),
        RecurrentCell::Simple => {}
    }
    let results = run(&Kernel::RecurrentGradient(recurrence.clone()), &reads.iter().collect::<Vec<_>>(), &writes);
    let results: Vec<Vec<f64>> = results.iter().map(Tensor::values).collect();
    let d_outputs: Vec<Vec<f64>> = d_outputs.iter().map(Tensor::values).collect();
    let loss = |inputs: &Inputs| -> f64 {
        let outputs = naive(recurrence, sizes, inputs);
        outputs.iter().zip(&d_outputs).flat_map(|(y, dy)| y.iter().zip(dy)).map(|(y, dy)| y * dy).sum()
    };
    let differences = |pick: fn(&mut Inputs) -> &mut Vec<f64>| -> Vec<f64> {
        let mut moved = inputs.clone();
        let count = pick(&mut moved).len();
        let mut slope = |i: usize| {
            let (old, step) = (pick(&mut moved)[i], 1e-6);
            pick(&mut moved)[i] = old + step;
            let above = loss(&moved);
            pick(&mut moved)[i] = old - step;
            let below = loss(&moved);
            pick(&mut moved)[i] = old;
            (above - below) / (2.0 * step)
        };
        (0..count).map(&mut slope).collect()
    };
    let close =
        |found: &[f64], expected: &[f64], of: &str| assert_close(found, expected, 2e-5, &format!("{of}, {what}"));
    close(&results[0], &differences(|inputs| &mut inputs.gates), "gates");
    close(&results[2], &differences(|inputs| &mut inputs.first_h), "first h");
    let is_after = recurrence.cell == RecurrentCell::Gru { resets_after: true };
    let added = &results[if is_after { 3 } else { 0 }];
    let (mut weights, mut bias) = (vec![0.0; inputs.weights.len()], vec![0.0; inputs.bias.len()]);
    for row in 0..steps * batch * directions {
        let (direction, position) = (row % directions, row / directions);
        let (place, sequence) = (position / batch, position % batch);
        for column in 0..columns {
            let d = added[row * columns + column];
            let own = direction * columns + column;
            bias[own] += d;
            let resets_before = recurrence.cell == RecurrentCell::Gru { resets_after: false };
            let states = if resets_before && column >= 2 * units { &results[3] } else { &results[1] };
            let start = ((direction * steps + place) * batch + sequence) * units;
            let row = &mut weights[own * units..(own + 1) * units];
            row.iter_mut().zip(&states[start..]).for_each(|(w, h)| *w += d * h);
        }
    }
    close(&weights, &differences(|inputs| &mut inputs.weights), "weights");
    close(&bias, &differences(|inputs| &mut inputs.bias), "bias");
    if recurrence.cell.has_cell_state() {
        close(&results[3], &differences(|inputs| &mut inputs.first_c), "first c");
        let mut peepholes = vec![0.0; inputs.peepholes.len()];
        for (i, d) in results[4].iter().enumerate() {
            peepholes[i / (batch * 3 * units) * 3 * units + i % (3 * units)] += d;
        }
        close(&peepholes, &differences(|inputs| &mut inputs.peepholes), "peepholes");
    }
}

#[test]
fn every_cell_in_every_direction_with_lengths_and_gradients() {
    let sizes = [(4, 3, 5), (1, 1, 3), (3, 9, 17), (5, 2, 1)];
    for (number, cell) in CELLS.into_iter().enumerate() {
        for (of_sizes, (steps, batch, units)) in sizes.into_iter().enumerate() {
            for (of_direction, reverses) in [&[false][..], &[true], &[false, true]].into_iter().enumerate() {
                let seed = (number * 100 + of_sizes * 10 + of_direction) as u64;
                let sizes = Sizes { steps, batch, directions: reverses.len(), units };
                check(seed, &recurrence(cell, reverses, [SIGMOID, TANH, TANH], None), sizes);
            }
        }
    }
}

#[test]
fn every_function_with_its_slope() {
    let sizes = Sizes { steps: 3, batch: 2, directions: 1, units: 4 };
    for (number, activation) in ACTIVATIONS.into_iter().enumerate() {
        let seed = 1000 + number as u64;
        check(seed, &recurrence(RecurrentCell::Simple, &[false], [activation; 3], None), sizes);
        check(seed, &recurrence(LSTM, &[true], [SIGMOID, activation, activation], None), sizes);
    }
}

#[test]
fn arguments_are_cut_where_there_is_a_limit() {
    let sizes = Sizes { steps: 4, batch: 3, directions: 2, units: 5 };
    for (number, cell) in CELLS.into_iter().enumerate() {
        check(2000 + number as u64, &recurrence(cell, &[false, true], [SIGMOID, TANH, TANH], Some(0.6)), sizes);
    }
}

/// A state is quantized as a whole before it is multiplied, with and without negative numbers.
#[test]
fn states_are_multiplied_in_steps() {
    for (number, cell) in CELLS.into_iter().enumerate() {
        for (steps, batch, units) in [(1, 3, 5), (2, 1, 400)] {
            let recurrence =
                Recurrence { quantizes_state: true, ..recurrence(cell, &[false, true], [SIGMOID, TANH, TANH], None) };
            let sizes = Sizes { steps, batch, directions: 2, units };
            let mut inputs = Inputs::random(&mut Random::new(4000 + number as u64), &recurrence, sizes);
            inputs.first_h.iter_mut().take(units).for_each(|h| *h = h.abs());
            let plain = forward(&Recurrence { quantizes_state: false, ..recurrence.clone() }, sizes, &inputs);
            let found = forward(&recurrence, sizes, &inputs);
            for (found, expected) in found.iter().zip(&naive(&recurrence, sizes, &inputs)) {
                assert_close(&found.values(), expected, 1e-5, &format!("{recurrence:?}"));
            }
            assert_ne!(found[0].values(), plain[0].values());
        }
    }
}

/// Threads share the units of a single long state; the bits stay those of one thread.
#[test]
fn a_single_sequence_of_many_units() {
    for (number, cell) in CELLS.into_iter().enumerate() {
        let recurrence = recurrence(cell, &[false], [SIGMOID, TANH, TANH], None);
        let sizes = Sizes { steps: 3, batch: 1, directions: 1, units: 370 };
        let inputs = Inputs::random(&mut Random::new(3000 + number as u64), &recurrence, sizes);
        let expected = naive(&recurrence, sizes, &inputs);
        for (found, expected) in forward(&recurrence, sizes, &inputs).iter().zip(&expected) {
            assert_close(&found.values(), expected, 1e-5, &format!("{recurrence:?}"));
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let recurrence = recurrence(LSTM, &[false], [SIGMOID, TANH, TANH], None);
    let all = |sizes: &[u64]| desc(DataType::Float32, sizes);
    let (gates, weights) = (all(&[2, 3, 1, 16]), all(&[1, 16, 4]));
    let kernel = Kernel::Recurrent(recurrence);
    assert!(super::workspace_bytes(&kernel, &[gates.clone(), weights]).is_ok());
    assert!(super::workspace_bytes(&kernel, &[gates.clone(), all(&[1, 15, 4])]).is_err());
    assert!(super::workspace_bytes(&kernel, &[gates]).is_err());
}
