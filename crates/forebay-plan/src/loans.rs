//! Loans: inputs and outputs of the caller, which launches read and write in place.
//!
//! If kernels can work on the memory of the process, inputs are not copied to the device, and outputs are not copied from it. Each is then
//! a separate memory that the caller's bytes back for one step. No launch writes an input: [`mod@crate::alias`] takes over only temporary
//! bytes.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{MemoryId, Space};
use forebay_model::program::{BufferId, NamedOperand, Program, Role};

use crate::plan::{MemoryKind, PlanMemory};

/// The first memory of a plan that is a loan, after the device's arena and the host block.
const FIRST: u32 = 2;

/// Buffers that are not on the device because the caller lends their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loans {
    memories: BTreeMap<BufferId, MemoryId>,
    sizes: Vec<u64>,
}

impl Loans {
    /// Returns the loans that a program allows: inputs and outputs that each have their own buffer, if everything runs on the device and
    /// nothing lasts beyond a step.
    pub fn of(program: &Program) -> Loans {
        let mut loans = Loans::default();
        if program.update_start < program.launches.len() || program.launches.iter().any(|launch| launch.on_host) {
            return loans;
        }
        let named = || program.inputs.iter().chain(&program.outputs).chain(&program.persistent);
        let mut names: BTreeMap<BufferId, usize> = BTreeMap::new();
        named().for_each(|named| *names.entry(named.operand.buffer).or_default() += 1);
        let operands = |written: bool| {
            let launches = program.launches.iter();
            launches.flat_map(move |launch| if written { &launch.writes } else { &launch.reads })
        };
        let read: BTreeSet<BufferId> = operands(false).map(|operand| operand.buffer).collect();
        let written: BTreeSet<BufferId> = operands(true).map(|operand| operand.buffer).collect();
        let is_whole = |named: &&NamedOperand| {
            let (operand, buffer) = (&named.operand, program.buffer(named.operand.buffer));
            names[&operand.buffer] == 1
                && operand.offset_bytes == 0
                && operand.desc.is_packed()
                && operand.desc.total_size_bytes() == buffer.size_bytes
        };
        let buffer = |named: &NamedOperand| named.operand.buffer;
        let inputs = program.inputs.iter().filter(is_whole).map(buffer);
        let inputs = inputs.filter(|&buffer| {
            program.buffer(buffer).role == Role::Input && read.contains(&buffer) && !written.contains(&buffer)
        });
        let outputs = program.outputs.iter().filter(is_whole).map(buffer);
        let outputs = outputs.filter(|&buffer| program.buffer(buffer).role.is_temporary() && written.contains(&buffer));
        for buffer in inputs.chain(outputs) {
            loans.memories.insert(buffer, MemoryId(FIRST + loans.sizes.len() as u32));
            loans.sizes.push(program.buffer(buffer).size_bytes);
        }
        loans
    }

    /// Returns the memory of a buffer, if it is lent.
    pub fn memory(&self, buffer: BufferId) -> Option<MemoryId> {
        self.memories.get(&buffer).copied()
    }

    /// Returns the memories, in the order of their numbers.
    pub fn memories(&self) -> impl Iterator<Item = PlanMemory> + '_ {
        let memory = |&size_bytes: &u64| PlanMemory { kind: MemoryKind::Lent, space: Space::Device(0), size_bytes };
        self.sizes.iter().map(memory)
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::Command;

    use super::*;
    use crate::cost::estimate;
    use crate::planner::{PlanOptions, plan};
    use crate::testing::{Random, limits, random_training_program};

    #[test]
    fn what_is_lent_is_neither_copied_nor_on_the_device() {
        let mut lent_count = 0;
        for seed in 1..30 {
            let mut program = random_training_program(&mut Random::new(seed), 2 + seed as usize % 6);
            // Without updates, as in a forward pass.
            program.launches.truncate(program.update_start);
            let program = crate::fuse::fuse(program);
            let (limits, costs) = (limits(), estimate(&program, &limits()));
            let planned = |lends| {
                let options = PlanOptions { lends, check: true, ..PlanOptions::default() };
                plan(&program, &options, &limits, &costs).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
            };
            let (copying, lending) = (planned(false), planned(true));
            let lent: Vec<usize> =
                (0..lending.memories.len()).filter(|&index| lending.memories[index].kind == MemoryKind::Lent).collect();
            lent_count += lent.len();
            let statistics = &lending.statistics;
            assert!(statistics.device_peak_bytes <= copying.statistics.device_peak_bytes, "seed {seed}");
            assert!(statistics.lower_bound_ns <= statistics.predicted_ns, "seed {seed}");
            let lent_bytes: u64 = lent.iter().map(|&index| lending.memories[index].size_bytes).sum();
            assert_eq!(statistics.lent_bytes, lent_bytes, "seed {seed}");
            let copied = |plan: &crate::Plan| plan.statistics.bytes_to_device + plan.statistics.bytes_from_device;
            assert_eq!(copied(&copying) - copied(&lending), lent_bytes, "seed {seed}");
            for command in lending.commands.iter().filter(|command| matches!(command, Command::Copy { .. })) {
                let regions = command.reads().into_iter().chain(command.writes());
                let is_lent = |memory: MemoryId| lending.memory(memory).kind == MemoryKind::Lent;
                assert!(regions.into_iter().all(|region| !is_lent(region.memory)), "seed {seed}: {command}");
            }
        }
        assert!(lent_count > 30, "{lent_count} loans");
    }
}
