//! Fuse: combines neighboring kernels into one. Decisions depend on the program alone, never on a budget, so that results do not depend on
//! what is swapped.
//!
//! Four patterns:
//! - a conversion to or from a 16-bit type next to kernels that can read or write this type themselves;
//! - a matrix product, followed by the addition of a bias as its only reader;
//! - a kernel that can apply an activation, followed by that activation as its only reader;
//! - the gradient of a ReLU followed by the gradient of the batch normalization before it: the normalization's gradient computes the ReLU's
//!   mask again from its own input, so it does not need the rectified output.

mod biases;
mod conversions;

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::kernel::facts::OperandRef;
use forebay_base::kernel::{Activation, UnaryOp};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch};

/// Returns the program with fused kernels: a launch whose work another launch can do as well is removed, and the launch that now does both
/// stays at its own place. The launches that are left keep their order.
pub fn fuse(mut program: Program) -> Program {
    let mut removed = vec![false; program.launches.len()];
    conversions::fuse_conversions(&mut program, &mut removed);
    biases::fuse_biases(&mut program, &mut removed);
    fuse_activations(&mut program, &mut removed, |op| match Activation::of(op) {
        Activation::Function(_) => None,
        limits => Some(limits),
    });
    fuse_relu_gradients(&mut program, &mut removed);
    without(program, &removed)
}

/// Returns the program with products and convolutions that apply the functions that follow them, for devices whose kernels can do so
/// ([`forebay_base::Limits::applies_functions`]). No bit changes, because functions are applied to the same numbers.
pub fn fuse_functions(mut program: Program) -> Program {
    let mut removed = vec![false; program.launches.len()];
    fuse_activations(&mut program, &mut removed, |op| Some(Activation::of(op)));
    without(program, &removed)
}

/// Returns the program without the launches that were removed.
fn without(mut program: Program, removed: &[bool]) -> Program {
    let before_update = removed[..program.update_start].iter().filter(|&&gone| gone).count();
    program.update_start -= before_update;
    let mut gone = removed.iter();
    program.launches.retain(|_| !gone.next().expect("one flag per launch"));
    program
}

/// The launches that touch each buffer: those that read it and those that write it, each listed as often as it does.
struct Uses {
    /// Buffers that the caller gets.
    outputs: BTreeSet<BufferId>,
    readers: BTreeMap<BufferId, Vec<usize>>,
    writers: BTreeMap<BufferId, Vec<usize>>,
}

fn uses(program: &Program, removed: &[bool]) -> Uses {
    let mut uses = Uses {
        outputs: program.outputs.iter().map(|named| named.operand.buffer).collect(),
        readers: BTreeMap::new(),
        writers: BTreeMap::new(),
    };
    for (index, launch) in program.launches.iter().enumerate().filter(|(index, _)| !removed[*index]) {
        for operand in &launch.reads {
            uses.readers.entry(operand.buffer).or_default().push(index);
        }
        for operand in &launch.writes {
            uses.writers.entry(operand.buffer).or_default().push(index);
        }
    }
    uses
}

impl Uses {
    /// Returns the only launch that reads the operand's buffer, if a single launch writes it and the operand is a whole temporary that the
    /// caller does not get.
    fn only_reader(&self, program: &Program, operand: &Operand) -> Option<usize> {
        match (self.readers(operand.buffer), self.writers(operand.buffer)) {
            (&[reader], [_]) if self.is_private(program, operand) => Some(reader),
            _ => None,
        }
    }

    /// Whether an operand is a whole temporary that the caller does not get.
    fn is_private(&self, program: &Program, operand: &Operand) -> bool {
        let buffer = program.buffer(operand.buffer);
        buffer.role.is_temporary()
            && buffer.size_bytes == operand.desc.total_size_bytes()
            && !self.outputs.contains(&operand.buffer)
    }

    fn readers(&self, buffer: BufferId) -> &[usize] {
        self.readers.get(&buffer).map_or(&[], Vec::as_slice)
    }

    fn writers(&self, buffer: BufferId) -> &[usize] {
        self.writers.get(&buffer).map_or(&[], Vec::as_slice)
    }
}

/// Whether any of `operands` has bytes in common with `other`.
fn touch(operands: &[Operand], other: &Operand) -> bool {
    operands.iter().any(|operand| operand.buffer == other.buffer && operand.range().overlaps(other.range()))
}

/// Makes kernels apply the functions that follow them, if there is an activation for the function.
fn fuse_activations(program: &mut Program, removed: &mut [bool], activation: impl Fn(UnaryOp) -> Option<Activation>) {
    let uses = uses(program, removed);
    for index in 0..program.launches.len() {
        let Some(first) = program.launches[index].writes.first().cloned() else { continue };
        let Some(reader) = uses.only_reader(program, &first) else { continue };
        let follower = &program.launches[reader];
        let Kernel::Unary(op) = follower.kernel else { continue };
        let Some(applied) = activation(op) else { continue };
        // Sizes do not matter: a function of one variable is applied to each element.
        let (input, output) = (&follower.reads[0], &follower.writes[0]);
        let is_whole = input.offset_bytes == 0 && input.desc.element_count() == first.desc.element_count();
        if !is_whole || ![&first, input, output].iter().all(|operand| operand.desc.is_packed()) {
            continue;
        }
        let Ok(desc) = TensorDesc::packed(output.desc.data_type(), first.desc.sizes()) else { continue };
        let output = Operand { desc, ..output.clone() };
        let launch = &mut program.launches[index];
        // What is rounded before the function stays rounded, and only some kernels can round their results after it.
        let (before, after) = (first.desc.data_type(), output.desc.data_type());
        let rounds = launch.kernel.facts().sixteen_bit.includes(OperandRef::Write(0));
        if before != after && !(rounds && before == DataType::Float32) {
            continue;
        }
        if ![&first, &output].iter().all(|operand| launch.kernel.can_apply(applied, operand.desc.data_type())) {
            continue;
        }
        match launch.kernel.activation_mut() {
            Some(activation) if *activation == Activation::None => *activation = applied,
            _ => continue,
        }
        launch.writes[0] = output;
        removed[reader] = true;
    }
}

fn fuse_relu_gradients(program: &mut Program, removed: &mut [bool]) {
    let uses = uses(program, removed);
    let is_relu = |launch: &ProgramLaunch| launch.kernel == Kernel::UnaryGradient(UnaryOp::Relu);
    let relus: Vec<usize> = (0..program.launches.len()).filter(|&i| is_relu(&program.launches[i])).collect();
    for index in relus {
        let activation = &program.launches[index];
        let (gradient, with_relu) = (activation.reads[0].clone(), activation.reads[1].clone());
        let Some(reader) = uses.only_reader(program, &activation.writes[0]) else { continue };
        let follower = &program.launches[reader];
        if follower.reads[0] != activation.writes[0] || !gradient.desc.is_packed() {
            continue;
        }
        // What is rounded before the normalization stays rounded.
        let (before, after) = (gradient.desc.data_type(), activation.writes[0].desc.data_type());
        if before != after && before.computed_in() != after {
            continue;
        }
        let forward = uses.writers.get(&with_relu.buffer).into_iter().flatten();
        let matches = forward.into_iter().any(|&i| is_forward_of(&program.launches[i], follower, &with_relu));
        if !matches {
            continue;
        }
        let follower = &mut program.launches[reader];
        follower.reads[0] = gradient;
        if let Kernel::BatchNormalizationGradient { activation, .. } = &mut follower.kernel {
            *activation = Activation::Relu;
        }
        removed[index] = true;
    }
}

/// Whether `forward` is the rectified batch normalization, with output `with_relu`, whose gradient `gradient` computes.
fn is_forward_of(forward: &ProgramLaunch, gradient: &ProgramLaunch, with_relu: &Operand) -> bool {
    match (&forward.kernel, &gradient.kernel) {
        (
            Kernel::BatchNormalizationTraining { epsilon, activation: Activation::Relu, group_size },
            Kernel::BatchNormalizationGradient {
                epsilon: gradient_epsilon,
                activation: Activation::None,
                group_size: gradient_group_size,
            },
        ) => {
            (epsilon, group_size) == (gradient_epsilon, gradient_group_size)
                && forward.writes[0] == *with_relu
                && forward.reads[..] == gradient.reads[1..4]
                && forward.writes[1..] == gradient.reads[4..]
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ProgramBuilder;

    #[test]
    fn a_relu_joins_the_only_kernel_before_it() {
        let mut build = ProgramBuilder::default();
        let (x, a, y) = (build.input("x", 64), build.temporary("a", 64), build.temporary("y", 64));
        build.launch(
            Kernel::Binary { op: forebay_base::kernel::BinaryOp::Add, activation: Activation::None },
            &[x, x],
            &[a],
        );
        build.launch(Kernel::Unary(UnaryOp::Relu), &[a], &[y]);
        let fused = fuse(build.finish(&[y]));
        assert_eq!(fused.launches.len(), 1);
        assert_eq!(fused.launches[0].writes[0].buffer, y);
    }

    #[test]
    fn limits_join_the_kernels_that_can_apply_them() {
        let clip = UnaryOp::Clip { low: 0.0, high: 6.0 };
        let add = Kernel::Binary { op: forebay_base::kernel::BinaryOp::Add, activation: Activation::None };
        let normalize = Kernel::BatchNormalization { epsilon: 1e-5, activation: Activation::None };
        for (kernel, operands, joins) in [(add, 2, true), (normalize, 5, false)] {
            let mut build = ProgramBuilder::default();
            let (x, a, y) = (build.input("x", 64), build.temporary("a", 64), build.temporary("y", 64));
            build.launch(kernel, &vec![x; operands], &[a]);
            build.launch(Kernel::Unary(clip), &[a], &[y]);
            let mut fused = fuse(build.finish(&[y])).launches;
            assert_eq!(fused.len(), if joins { 1 } else { 2 }, "{}", fused[0].kernel);
            let applied = fused[0].kernel.activation_mut().copied();
            let expected = if joins { Activation::Clip { low: 0.0, high: 6.0 } } else { Activation::None };
            assert_eq!(applied, Some(expected));
        }
    }

    #[test]
    fn functions_join_products_where_the_device_applies_them() {
        let add = Kernel::Binary { op: forebay_base::kernel::BinaryOp::Add, activation: Activation::None };
        for (kernel, joins) in [(Kernel::product(false, false), true), (add, false)] {
            let mut build = ProgramBuilder::default();
            let (x, a, y) = (build.input("x", 64), build.temporary("a", 64), build.temporary("y", 64));
            build.launch(kernel, &[x, x], &[a]);
            build.launch(Kernel::Unary(UnaryOp::Silu), &[a], &[y]);
            let fused = fuse(build.finish(&[y]));
            assert_eq!(fused.launches.len(), 2, "everywhere");
            let mut fused = fuse_functions(fused).launches;
            assert_eq!(fused.len(), if joins { 1 } else { 2 }, "{}", fused[0].kernel);
            let applied = fused[0].kernel.activation_mut().copied();
            assert_eq!(applied, Some(if joins { Activation::Function(UnaryOp::Silu) } else { Activation::None }));
        }
    }

    #[test]
    fn an_output_between_keeps_the_pair_apart() {
        let mut build = ProgramBuilder::default();
        let (x, a, y) = (build.input("x", 64), build.temporary("a", 64), build.temporary("y", 64));
        build.launch(
            Kernel::Binary { op: forebay_base::kernel::BinaryOp::Add, activation: Activation::None },
            &[x, x],
            &[a],
        );
        build.launch(Kernel::Unary(UnaryOp::Relu), &[a], &[y]);
        assert_eq!(fuse(build.finish(&[a, y])).launches.len(), 2);
    }
}
