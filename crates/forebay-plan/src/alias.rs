//! Alias: an output takes over the bytes of an input whose last use is the same launch, if the kernel allows it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch};

/// Returns the program with outputs renamed to the inputs whose bytes they take over. Buffers that are no longer referenced stay in the
/// list, so that identifiers keep their meaning.
///
/// `groups` holds the group number of each launch, in ascending order. An input that another launch of the group touches is not taken over,
/// since the two launches would then have to wait for each other.
pub fn alias(program: Program, groups: &[u32]) -> Program {
    take_over(program, &|life, launch| {
        life.last == launch && life.previous.is_none_or(|previous| groups[previous] < groups[launch])
    })
}

/// The same, but only for outputs that can take over their input in any order of the launches: those whose launch is the only one that
/// reads the input. No launch has to wait for another that it did not have to wait for before.
pub fn alias_in_any_order(program: Program) -> Program {
    take_over(program, &|life, launch| life.last == launch && life.readers == 1)
}

fn take_over(mut program: Program, dies: &dyn Fn(&Life, usize) -> bool) -> Program {
    let mut life = lives(&program);
    let mut renamed: BTreeMap<BufferId, BufferId> = BTreeMap::new();
    for index in 0..program.launches.len() {
        for operand in program.launches[index].reads.iter_mut() {
            rename(operand, &renamed);
        }
        for &(write, read) in program.launches[index].kernel.in_place() {
            if let Some((from, to)) = takes_over(&program, &life, &renamed, dies, index, write, read) {
                renamed.insert(from, to);
                let taken = life[&from];
                let joined = life.get_mut(&to).expect("every used buffer has a life");
                *joined = Life { first: joined.first, previous: taken.previous.or(joined.previous), ..taken };
            }
        }
        for operand in program.launches[index].writes.iter_mut() {
            rename(operand, &renamed);
        }
    }
    for named in program.outputs.iter_mut().chain(&mut program.inputs).chain(&mut program.persistent) {
        rename(&mut named.operand, &renamed);
    }
    program
}

fn rename(operand: &mut Operand, renamed: &BTreeMap<BufferId, BufferId>) {
    if let Some(&to) = renamed.get(&operand.buffer) {
        operand.buffer = to;
    }
}

/// The launches that touch a buffer.
#[derive(Clone, Copy)]
struct Life {
    /// The first launch.
    first: usize,
    /// The last launch; an output lasts beyond every launch.
    last: usize,
    /// The last launch before `last`.
    previous: Option<usize>,
    /// How many launches read its final contents.
    readers: usize,
    /// Whether launches touch it on the device, and whether launches touch it in host memory.
    sides: [bool; 2],
}

fn lives(program: &Program) -> BTreeMap<BufferId, Life> {
    let mut lives: BTreeMap<BufferId, Life> = BTreeMap::new();
    for (index, launch) in program.launches.iter().enumerate() {
        let mut counted = BTreeSet::new();
        let reads = launch.reads.iter().map(|operand| (operand.buffer, 1));
        for (buffer, readers) in reads.chain(launch.writes.iter().map(|operand| (operand.buffer, 0))) {
            let fresh = Life { first: index, last: index, previous: None, readers: 0, sides: [false; 2] };
            let life = lives.entry(buffer).or_insert(fresh);
            life.sides[usize::from(launch.in_host_memory)] = true;
            if life.last < index {
                life.previous = Some(life.last);
                life.last = index;
            }
            if readers > 0 && counted.insert(buffer) {
                life.readers += 1;
            }
        }
    }
    for named in &program.outputs {
        if let Some(life) = lives.get_mut(&named.operand.buffer) {
            life.last = usize::MAX;
        }
    }
    lives
}

/// Returns the pair (buffer that goes, buffer that stays) if the launch's output `write` can take over its input `read`.
fn takes_over(
    program: &Program,
    life: &BTreeMap<BufferId, Life>,
    renamed: &BTreeMap<BufferId, BufferId>,
    dies: &dyn Fn(&Life, usize) -> bool,
    index: usize,
    write: usize,
    read: usize,
) -> Option<(BufferId, BufferId)> {
    let launch = &program.launches[index];
    let (output, input) = may_take_over(program, launch, write, read)?;
    // Another output of this launch may have taken the input over already.
    let taken = launch.writes.iter().any(|operand| renamed.get(&operand.buffer) == Some(&input));
    let fits = !renamed.contains_key(&output) && !taken;
    let (output_life, input_life) = (life.get(&output)?, life.get(&input)?);
    // A buffer that is only on the device, or only on the host, stays that way.
    let on_one_side = input_life.sides != [true; 2] && output_life.sides == input_life.sides;
    let free = output_life.first == index && dies(input_life, index) && on_one_side;
    (fits && free).then_some((output, input))
}

/// Returns the pair (buffer that goes, buffer that stays) if the launch's output `write` can take over its input `read`, judging by the
/// launch alone.
pub(crate) fn may_take_over(
    program: &Program,
    launch: &ProgramLaunch,
    write: usize,
    read: usize,
) -> Option<(BufferId, BufferId)> {
    let (output, input) = (launch.writes.get(write)?, launch.reads.get(read)?);
    let whole = |operand: &Operand| {
        let buffer = program.buffer(operand.buffer);
        buffer.role.is_temporary()
            && operand.offset_bytes == 0
            && operand.desc.is_packed()
            && operand.desc.total_size_bytes() == buffer.size_bytes
    };
    let same_layout = output.desc.sizes() == input.desc.sizes()
        && output.desc.data_type().size_bytes() == input.desc.data_type().size_bytes();
    let read_once = launch.reads.iter().filter(|operand| operand.buffer == input.buffer).count() == 1;
    let not_written = launch.writes.iter().all(|operand| operand.buffer != input.buffer);
    let fits = whole(output) && whole(input) && same_layout && read_once && not_written;
    fits.then_some((output.buffer, input.buffer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ProgramBuilder;
    use forebay_base::Kernel;
    use forebay_base::kernel::UnaryOp;

    /// Aliases a program in which each launch is its own group.
    fn apart(program: Program) -> Program {
        let groups: Vec<u32> = (0..program.launches.len() as u32).collect();
        alias(program, &groups)
    }

    #[test]
    fn a_chain_of_elementwise_kernels_shares_one_buffer() {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 64);
        let (a, b, c) = (build.temporary("a", 64), build.temporary("b", 64), build.temporary("c", 64));
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[a]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[a], &[b]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[b], &[c]);
        let program = apart(build.finish(&[c]));
        assert_eq!(program.launches[0].writes[0].buffer, a, "an input keeps its own bytes");
        assert_eq!(program.launches[2].reads[0].buffer, a);
        assert_eq!(program.outputs[0].operand.buffer, a);
    }

    #[test]
    fn a_value_that_is_used_later_is_not_overwritten() {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 64);
        let (a, b, c) = (build.temporary("a", 64), build.temporary("b", 64), build.temporary("c", 64));
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[a]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[a], &[b]);
        build.launch(Kernel::UnaryGradient(UnaryOp::Exp), &[a, b], &[c]);
        let program = apart(build.finish(&[c]));
        assert_eq!(program.launches[1].writes[0].buffer, b);
        assert_eq!(program.launches[2].writes[0].buffer, a, "the first legal pair wins");
    }

    #[test]
    fn an_output_of_the_caller_is_kept() {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 64);
        let (a, b) = (build.temporary("a", 64), build.temporary("b", 64));
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[a]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[a], &[b]);
        let program = apart(build.finish(&[a, b]));
        assert_ne!(program.outputs[0].operand.buffer, program.outputs[1].operand.buffer);
    }

    /// `b` and `c` are both computed from `a`.
    fn two_readers() -> Program {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 64);
        let (a, b, c) = (build.temporary("a", 64), build.temporary("b", 64), build.temporary("c", 64));
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[a]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[a], &[b]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[a], &[c]);
        build.finish(&[b, c])
    }

    #[test]
    fn an_input_that_the_group_still_uses_is_not_taken_over() {
        let taken = |program: Program| program.launches[2].writes[0] == program.launches[2].reads[0];
        assert!(taken(alias(two_readers(), &[0, 1, 2])));
        assert!(!taken(alias(two_readers(), &[0, 1, 1])));
        assert!(!taken(alias_in_any_order(two_readers())));
    }

    #[test]
    fn the_only_reader_takes_over_in_any_order() {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 64);
        let (a, b, c) = (build.temporary("a", 64), build.temporary("b", 64), build.temporary("c", 64));
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[a]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[a], &[b]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[b], &[c]);
        let program = alias_in_any_order(build.finish(&[c]));
        assert_eq!(program.outputs[0].operand.buffer, a);
    }
}
