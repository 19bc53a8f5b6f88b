//! Conversions between float32 and 16-bit types that kernels do themselves ([`KernelFacts::sixteen_bit`]): a launch reads what was to be
//! widened for it, and writes what its result was to be rounded to.
//!
//! [`KernelFacts::sixteen_bit`]: forebay_base::kernel::KernelFacts::sixteen_bit

use forebay_base::kernel::facts::OperandRef;
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{Operand, Program, ProgramLaunch};

use super::{Uses, touch, uses};

/// Removes the conversions that launches can do themselves.
pub(super) fn fuse_conversions(program: &mut Program, removed: &mut [bool]) {
    let widened = uses(program, removed);
    for (index, removed) in removed.iter_mut().enumerate() {
        if let Some(readers) = readers_in_sixteen_bits(program, &widened, index) {
            for (reader, read, operand) in readers {
                program.launches[reader].reads[read] = operand;
            }
            *removed = true;
        }
    }
    let rounded = uses(program, removed);
    for (index, removed) in removed.iter_mut().enumerate().filter(|(_, removed)| !**removed) {
        if let Some((writer, write, operand)) = writer_in_sixteen_bits(program, &rounded, index) {
            program.launches[writer].writes[write] = operand;
            *removed = true;
        }
    }
}

/// Returns what a conversion reads and writes, if both are without gaps.
fn converted(launch: &ProgramLaunch) -> Option<(&Operand, &Operand)> {
    let (Kernel::Cast(_), [from], [to]) = (&launch.kernel, launch.reads.as_slice(), launch.writes.as_slice()) else {
        return None;
    };
    let is_plain = from.desc.is_packed() && to.desc.is_packed() && from.desc.element_count() == to.desc.element_count();
    is_plain.then_some((from, to))
}

/// For a launch that widens to float32, returns what all launches that read the result read instead, if all of them can.
fn readers_in_sixteen_bits(program: &Program, uses: &Uses, index: usize) -> Option<Vec<(usize, usize, Operand)>> {
    let (from, to) = converted(&program.launches[index])?;
    if !from.desc.data_type().is_sixteen_bit()
        || to.desc.data_type() != DataType::Float32
        || !uses.is_private(program, to)
    {
        return None;
    }
    // What is read later must be what is read here. The rest of a concatenation may be written at any time.
    let mut later = uses.writers(from.buffer).iter().filter(|&&writer| writer >= index);
    let stays = !later.any(|&writer| touch(&program.launches[writer].writes, from));
    let is_written_here = uses.writers(to.buffer) == [index];
    if !stays || !is_written_here {
        return None;
    }
    let mut readers = Vec::new();
    for &reader in uses.readers(to.buffer) {
        let launch = &program.launches[reader];
        for (read, operand) in launch.reads.iter().enumerate().filter(|(_, operand)| operand.buffer == to.buffer) {
            if operand.offset_bytes != 0 || !launch.kernel.facts().sixteen_bit.includes(OperandRef::Read(read)) {
                return None;
            }
            readers.push((reader, read, in_type(operand, from)?));
        }
    }
    Some(readers)
}

/// For a launch that rounds another's result and is its only use, returns the launch that writes the result, which of its writes that is,
/// and what it writes instead.
fn writer_in_sixteen_bits(program: &Program, uses: &Uses, index: usize) -> Option<(usize, usize, Operand)> {
    let (from, to) = converted(&program.launches[index])?;
    let is_rounded = to.desc.data_type().is_sixteen_bit() && from.desc.data_type() == DataType::Float32;
    if !is_rounded || uses.only_reader(program, from) != Some(index) {
        return None;
    }
    let &[writer] = uses.writers(from.buffer) else { return None };
    let launch = &program.launches[writer];
    let mut writes = launch.writes.iter().enumerate().filter(|(_, operand)| operand.buffer == from.buffer);
    let (write, operand) = writes.next()?;
    let can_round = launch.kernel.facts().sixteen_bit.includes(OperandRef::Write(write));
    let is_whole = operand.desc.is_packed()
        && operand.offset_bytes == 0
        && operand.desc.element_count() == to.desc.element_count();
    // The bytes are written earlier than before, so no launch in between may touch them.
    let touches = |launch: &ProgramLaunch| touch(&launch.reads, to) || touch(&launch.writes, to);
    let is_free = program.launches.get(writer..index).is_some_and(|between| !between.iter().any(touches));
    if !can_round || !is_whole || !is_free {
        return None;
    }
    Some((writer, write, in_type(operand, to)?))
}

/// Returns an operand as it is in another buffer with the same number of elements of another type.
fn in_type(operand: &Operand, other: &Operand) -> Option<Operand> {
    let (data_type, desc) = (other.desc.data_type(), &operand.desc);
    let desc = match desc.is_packed() {
        true => TensorDesc::packed(data_type, desc.sizes()),
        false => TensorDesc::strided(data_type, desc.sizes(), &desc.effective_strides()),
    };
    Some(Operand { buffer: other.buffer, offset_bytes: other.offset_bytes, desc: desc.ok()? })
}

#[cfg(test)]
mod tests {
    use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
    use forebay_model::program::{BufferId, Role};

    use super::super::fuse;
    use super::*;
    use crate::testing::ProgramBuilder;

    const ADD: Kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };

    /// Programs in which buffers whose names begin with "half" hold float16.
    #[derive(Default)]
    struct Mixed {
        buffers: ProgramBuilder,
        launches: Vec<ProgramLaunch>,
    }

    impl Mixed {
        fn launch(&mut self, kernel: Kernel, reads: &[&Operand], write: &Operand) {
            let reads = reads.iter().map(|&operand| operand.clone()).collect();
            self.launches.push(ProgramLaunch::new(String::new(), kernel, reads, vec![write.clone()]));
        }

        /// Adds a temporary of eight elements.
        fn temporary(&mut self, name: &str) -> Operand {
            self.of(name, Role::Temporary, 8)
        }

        /// Adds a temporary that is twice as large, and returns its halves.
        fn halves(&mut self, name: &str) -> [Operand; 2] {
            let both = self.of(name, Role::Temporary, 16);
            let desc = TensorDesc::packed(both.desc.data_type(), &[8]).unwrap();
            [0, desc.total_size_bytes()].map(|offset_bytes| Operand {
                offset_bytes,
                desc: desc.clone(),
                ..both.clone()
            })
        }

        fn of(&mut self, name: &str, role: Role, elements: u64) -> Operand {
            let data_type = if name.starts_with("half") { DataType::Float16 } else { DataType::Float32 };
            let desc = TensorDesc::packed(data_type, &[elements]).unwrap();
            let buffer = self.buffers.buffer(name, desc.total_size_bytes(), role);
            Operand { buffer, offset_bytes: 0, desc }
        }

        fn fused(self, outputs: &[BufferId]) -> Vec<ProgramLaunch> {
            let mut program = self.buffers.finish(outputs);
            program.update_start = self.launches.len();
            program.launches = self.launches;
            fuse(program).launches
        }
    }

    #[test]
    fn a_launch_between_conversions_takes_their_operands() {
        let mut mixed = Mixed::default();
        let [x, wide, sum, y] = ["half x", "wide", "sum", "half y"].map(|name| mixed.temporary(name));
        mixed.launch(Kernel::cast(), &[&x], &wide);
        mixed.launch(ADD, &[&wide, &wide], &sum);
        mixed.launch(Kernel::cast(), &[&sum], &y);
        let fused = mixed.fused(&[y.buffer]);
        assert_eq!(fused.len(), 1);
        assert_eq!(
            (fused[0].reads.as_slice(), fused[0].writes.as_slice()),
            ([x.clone(), x].as_slice(), [y].as_slice())
        );
    }

    #[test]
    fn a_function_that_changes_the_type_joins_only_what_can_round_after_it() {
        for (kernel, count) in [(ADD, 1), (Kernel::product(false, false), 2)] {
            let mut mixed = Mixed::default();
            let [x, sum, limited, y] = ["x", "sum", "limited", "half y"].map(|name| mixed.temporary(name));
            mixed.launch(kernel, &[&x, &x], &sum);
            mixed.launch(Kernel::Unary(UnaryOp::Relu), &[&sum], &limited);
            mixed.launch(Kernel::cast(), &[&limited], &y);
            assert_eq!(mixed.fused(&[y.buffer]).len(), count);
        }
        for kernel in [ADD, Kernel::product(false, false)] {
            let mut mixed = Mixed::default();
            let [x, sum, wide, y] = ["half x", "half sum", "wide", "y"].map(|name| mixed.temporary(name));
            mixed.launch(kernel, &[&x, &x], &sum);
            mixed.launch(Kernel::cast(), &[&sum], &wide);
            mixed.launch(Kernel::Unary(UnaryOp::Relu), &[&wide], &y);
            let fused = mixed.fused(&[y.buffer]);
            assert_eq!(fused.len(), 2);
            assert_eq!(fused[0].writes, [sum], "it is still rounded");
        }
    }

    #[test]
    fn a_gradient_that_is_rounded_before_a_normalization_stays_rounded() {
        for (name, count) in [("gradient", 2), ("half gradient", 3)] {
            let mut mixed = Mixed::default();
            let [x, scale, bias, y, mean, variance, dy, gradient, dx] =
                ["x", "scale", "bias", "y", "mean", "variance", "dy", name, "dx"].map(|name| mixed.temporary(name));
            let (epsilon, group_size) = (1e-5, 1);
            let forward = Kernel::BatchNormalizationTraining { epsilon, activation: Activation::Relu, group_size };
            let backward = Kernel::BatchNormalizationGradient { epsilon, activation: Activation::None, group_size };
            mixed.launch(forward, &[&x, &scale, &bias], &y);
            mixed.launches[0].writes.extend([mean.clone(), variance.clone()]);
            mixed.launch(Kernel::UnaryGradient(UnaryOp::Relu), &[&dy, &y], &gradient);
            mixed.launch(backward, &[&gradient, &x, &scale, &bias, &mean, &variance], &dx);
            assert_eq!(mixed.fused(&[dx.buffer]).len(), count, "{name}");
        }
    }

    #[test]
    fn a_view_of_what_was_widened_is_one_of_what_it_was_widened_from() {
        let mut mixed = Mixed::default();
        let [x, wide, y] = ["half x", "wide", "y"].map(|name| mixed.temporary(name));
        let strided = |operand: &Operand| {
            let desc = TensorDesc::strided(operand.desc.data_type(), &[2, 4], &[1, 2]).unwrap();
            Operand { desc, ..operand.clone() }
        };
        mixed.launch(Kernel::cast(), &[&x], &wide);
        mixed.launch(Kernel::Unary(UnaryOp::Tanh), &[&strided(&wide)], &y);
        let fused = mixed.fused(&[y.buffer]);
        assert_eq!(fused.len(), 1);
        assert_eq!(fused[0].reads, [strided(&x)]);
    }

    #[test]
    fn a_conversion_stays_where_one_of_its_readers_needs_it() {
        let mut mixed = Mixed::default();
        let [x, wide, y, z] = ["half x", "wide", "y", "z"].map(|name| mixed.temporary(name));
        mixed.launch(Kernel::cast(), &[&x], &wide);
        mixed.launch(Kernel::Unary(UnaryOp::Tanh), &[&wide], &y);
        mixed.launch(Kernel::Softmax { axis: 0 }, &[&wide], &z);
        assert_eq!(mixed.fused(&[y.buffer, z.buffer]).len(), 3);
    }

    #[test]
    fn a_result_that_is_used_in_float32_as_well_stays_so() {
        for is_output in [false, true] {
            let mut mixed = Mixed::default();
            let [x, sum, y, z] = ["x", "sum", "half y", "z"].map(|name| mixed.temporary(name));
            mixed.launch(Kernel::Unary(UnaryOp::Tanh), &[&x], &sum);
            mixed.launch(Kernel::cast(), &[&sum], &y);
            let mut outputs = vec![y.buffer];
            if is_output {
                outputs.push(sum.buffer);
            } else {
                mixed.launch(Kernel::Softmax { axis: 0 }, &[&sum], &z);
                outputs.push(z.buffer);
            }
            let count = mixed.launches.len();
            assert_eq!(mixed.fused(&outputs).len(), count);
        }
    }

    #[test]
    fn what_changes_before_it_is_read_is_converted_first() {
        let mut mixed = Mixed::default();
        let [x, wide, y] = ["half x", "wide", "y"].map(|name| mixed.temporary(name));
        mixed.launch(Kernel::cast(), &[&x], &wide);
        mixed.launch(Kernel::Fill { value: 1.0 }, &[], &x);
        mixed.launch(Kernel::Unary(UnaryOp::Tanh), &[&wide], &y);
        assert_eq!(mixed.fused(&[y.buffer]).len(), 3);
    }

    #[test]
    fn what_lies_next_to_it_may_be_written_later() {
        for overwritten in [false, true] {
            let mut mixed = Mixed::default();
            let [wide, y, z] = ["wide", "y", "half z"].map(|name| mixed.temporary(name));
            let both = mixed.halves("half both");
            mixed.launch(Kernel::cast(), &[&both[0]], &wide);
            mixed.launch(Kernel::Copy, &[&z], &both[usize::from(!overwritten)]);
            mixed.launch(Kernel::Unary(UnaryOp::Tanh), &[&wide], &y);
            assert_eq!(mixed.fused(&[both[0].buffer, y.buffer]).len(), if overwritten { 3 } else { 2 });
        }
    }

    #[test]
    fn a_result_is_rounded_into_its_part_of_a_buffer_unless_that_is_in_use() {
        for in_use in [false, true] {
            let mut mixed = Mixed::default();
            let [x, wide, z] = ["x", "wide", "half z"].map(|name| mixed.temporary(name));
            let both = mixed.halves("half both");
            mixed.launch(Kernel::Unary(UnaryOp::Tanh), &[&x], &wide);
            mixed.launch(Kernel::Copy, &[&both[usize::from(in_use)]], &z);
            mixed.launch(Kernel::cast(), &[&wide], &both[1]);
            let fused = mixed.fused(&[both[1].buffer, z.buffer]);
            assert_eq!(fused.len(), if in_use { 3 } else { 2 });
            assert_eq!(fused[fused.len() - 1].writes[0].buffer, if in_use { both[1].buffer } else { z.buffer });
        }
    }
}
