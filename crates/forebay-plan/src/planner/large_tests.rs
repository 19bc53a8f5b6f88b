//! Tests with programs of thousands of launches or buffers, for which a pass that looks at every pair does not finish in time.

use std::time::{Duration, Instant};

use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch, Role};

use super::{PlanOptions, plan};
use crate::cost::estimate;
use crate::plan::Plan;
use crate::testing::{ProgramBuilder, limits};

/// More than ten times what any of these tests takes without optimization.
const TIMEOUT: Duration = Duration::from_secs(60);

const EXP: Kernel = Kernel::Unary(UnaryOp::Exp);
const ADD: Kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };

/// Returns the plan of a program, which must not take long to make.
fn planned(program: &Program, budget_bytes: Option<u64>) -> Plan {
    let started = Instant::now();
    let options = PlanOptions { device_budget_bytes: budget_bytes, ..PlanOptions::default() };
    let plan = plan(program, &options, &limits(), &estimate(program, &limits())).unwrap();
    let spent = started.elapsed();
    println!("{} launches, {} buffers: {spent:?}", program.launches.len(), program.buffers.len());
    assert!(spent < TIMEOUT, "{} launches, {} buffers: {spent:?}", program.launches.len(), program.buffers.len());
    assert_eq!(plan.statistics.launches, program.launches.len());
    plan
}

/// Adds temporaries of 16 bytes, which is less than any alignment.
fn temporaries(build: &mut ProgramBuilder, count: usize) -> Vec<BufferId> {
    (0..count).map(|number| build.temporary(&format!("t{number}"), 16)).collect()
}

/// Adds up buffers, one after the other.
fn sum(build: &mut ProgramBuilder, buffers: &[BufferId]) -> BufferId {
    let sums = temporaries(build, buffers.len() - 1);
    let mut last = buffers[0];
    for (&buffer, &sum) in buffers[1..].iter().zip(&sums) {
        build.launch(ADD, &[last, buffer], &[sum]);
        last = sum;
    }
    last
}

/// Returns a part of a buffer.
fn part(buffer: BufferId, offset_bytes: u64, size_bytes: u64) -> Operand {
    let desc = TensorDesc::packed(DataType::Float32, &[size_bytes / 4]).unwrap();
    Operand { buffer, offset_bytes, desc }
}

fn launch(kernel: Kernel, reads: Vec<Operand>, writes: Vec<Operand>) -> ProgramLaunch {
    ProgramLaunch::new("part", kernel, reads, writes)
}

#[test]
fn a_long_chain() {
    let mut build = ProgramBuilder::default();
    let x = build.input("x", 16);
    let mut buffers = vec![x];
    buffers.extend(temporaries(&mut build, 20_000));
    buffers.windows(2).for_each(|pair| build.launch(EXP, &pair[..1], &pair[1..]));
    planned(&build.finish(&buffers[20_000..]), None);
}

#[test]
fn many_inputs_and_outputs() {
    let mut build = ProgramBuilder::default();
    let inputs: Vec<BufferId> = (0..4000).map(|number| build.input(&format!("x{number}"), 16)).collect();
    let y = sum(&mut build, &inputs);
    planned(&build.finish(&[y]), None);
    let mut build = ProgramBuilder::default();
    let inputs: Vec<BufferId> = (0..4000).map(|number| build.input(&format!("x{number}"), 16)).collect();
    let outputs = temporaries(&mut build, 4000);
    inputs.iter().zip(&outputs).for_each(|(&x, &y)| build.launch(EXP, &[x], &[y]));
    planned(&build.finish(&outputs), None);
}

#[test]
fn one_buffer_with_many_readers() {
    let mut build = ProgramBuilder::default();
    let x = build.input("x", 16);
    let read = temporaries(&mut build, 3000);
    read.iter().for_each(|&y| build.launch(EXP, &[x], &[y]));
    let y = sum(&mut build, &read);
    planned(&build.finish(&[y]), None);
}

#[test]
fn many_parts_of_one_buffer() {
    let count = 4000;
    let mut build = ProgramBuilder::default();
    let inputs: Vec<BufferId> = (0..count).map(|number| build.input(&format!("x{number}"), 16)).collect();
    let y = build.temporary("y", count * 16);
    let mut program = build.finish(&[y]);
    let writes = inputs
        .iter()
        .zip(0..)
        .map(|(&x, place)| launch(Kernel::Copy, vec![part(x, 0, 16)], vec![part(y, place * 16, 16)]));
    program.launches = writes.collect();
    program.update_start = program.launches.len();
    planned(&program, None);
}

#[test]
fn many_readers_of_a_whole_of_which_parts_are_read_later() {
    let count = 300;
    let mut build = ProgramBuilder::default();
    let x = build.input("x", count * 32);
    let read = temporaries(&mut build, count as usize);
    read.iter().for_each(|&y| build.launch(EXP, &[x], &[y]));
    let y = sum(&mut build, &read);
    let parts = temporaries(&mut build, count as usize);
    let mut program = build.finish(&[y]);
    for (&to, place) in parts.iter().zip(0..) {
        program.launches.push(launch(EXP, vec![part(x, place * 32, 16)], vec![part(to, 0, 16)]));
    }
    program.update_start = program.launches.len();
    planned(&program, None);
}

/// Returns a training step: each layer adds its parameter, keeps its input for the gradient, and is updated at the end.
fn training(layers: usize, size_bytes: u64) -> Program {
    let mut build = ProgramBuilder::default();
    let buffer =
        |build: &mut ProgramBuilder, name: &str, layer: usize| build.temporary(&format!("{name}{layer}"), size_bytes);
    let parameters: Vec<BufferId> =
        (0..layers).map(|layer| build.persistent(&format!("w{layer}"), size_bytes, Role::Parameter)).collect();
    let mut kept = vec![build.input("x", size_bytes)];
    for (layer, &parameter) in parameters.iter().enumerate() {
        let y = buffer(&mut build, "y", layer);
        build.launch(ADD, &[kept[layer], parameter], &[y]);
        kept.push(y);
    }
    let mut gradient = kept[layers];
    let mut gradients = Vec::new();
    for layer in (0..layers).rev() {
        let [of_parameter, next] = ["dw", "dy"].map(|name| buffer(&mut build, name, layer));
        build.launch(ADD, &[gradient, kept[layer]], &[of_parameter]);
        build.launch(ADD, &[gradient, parameters[layer]], &[next]);
        gradients.push((parameters[layer], of_parameter));
        gradient = next;
    }
    build.start_updates();
    gradients.iter().for_each(|&(parameter, gradient)| build.launch(ADD, &[parameter, gradient], &[parameter]));
    build.finish(&[gradient])
}

#[test]
fn training_of_many_layers_with_and_without_a_budget() {
    let whole = planned(&training(1500, 16), None);
    assert!(whole.statistics.lower_bound_ns <= whole.statistics.predicted_ns);
    let program = training(60, 1 << 16);
    let in_core = planned(&program, None).statistics;
    let budget_bytes = (in_core.minimum_budget_bytes + in_core.in_core_peak_bytes) / 2;
    assert!(planned(&program, Some(budget_bytes)).statistics.device_peak_bytes <= budget_bytes);
}
