//! Device memory that several plans share. It holds what lasts from step to step and is the same for all of them, such as the weights of a
//! model that runs at several sizes.
//!
//! The caller specifies where such buffers are in *blocks* of device memory. A plan that keeps everything on the device places the rest in
//! a separate arena, and refers to the blocks as memories that it is given. A plan with a budget that makes bytes move does not use them:
//! its weights come and go.

use forebay_base::{Command, Limits, MemoryId, Region, Space};
use forebay_model::TensorType;

use crate::arena::SharedLayout;
use crate::emit::{DEVICE, device_memory};
use crate::error::PlanError;
use crate::plan::{BackingLocation, MemoryKind, Plan, PlanMemory};

/// Returns the plan of a block: memory that no step uses, with tensors at these offsets.
///
/// # Errors
/// Fails if a tensor has no packed form.
pub fn block(
    size_bytes: u64,
    tensors: impl IntoIterator<Item = (String, TensorType, u64)>,
    limits: &Limits,
) -> Result<Plan, PlanError> {
    let mut plan = Plan::default();
    device_memory(&mut plan, size_bytes, limits);
    for (name, ty, offset_bytes) in tensors {
        let desc = ty.packed().map_err(|error| PlanError::Check { reason: format!("'{name}': {error}") })?;
        let region = Region::new(DEVICE, offset_bytes, desc.total_size_bytes());
        let bytes = forebay_base::ByteRange::new(0, region.range.len());
        let pieces = vec![(bytes, region)];
        plan.persistent.push(BackingLocation { name, shape: ty.shape, data_type: ty.data_type, pieces });
    }
    Ok(plan)
}

/// Turns the blocks at the beginning of a plan's device memory into separate memories.
///
/// # Errors
/// [`PlanError::Check`] if the plan accesses memory across their boundaries.
pub(crate) fn separate(plan: &mut Plan, layout: &SharedLayout, limits: &Limits) -> Result<(), PlanError> {
    let (shared_bytes, first) = (layout.size_bytes(), plan.memories.len() as u32);
    let own_bytes = plan.memory(DEVICE).size_bytes.saturating_sub(shared_bytes);
    let place = |region: &mut Region| -> Result<(), PlanError> {
        if region.memory != DEVICE {
            return Ok(());
        }
        let start = region.range.start;
        let (memory, start_of_memory) = match start < shared_bytes {
            true => {
                let (block, start) = layout.block(start);
                (MemoryId(first + block as u32), start)
            }
            false => (DEVICE, shared_bytes),
        };
        let end_of_memory =
            if memory == DEVICE { u64::MAX } else { start_of_memory + layout.blocks[(memory.0 - first) as usize] };
        if region.range.end > end_of_memory {
            let reason = format!("{region} crosses the boundary of memory that plans share");
            return Err(PlanError::Check { reason });
        }
        *region = Region::new(memory, start - start_of_memory, region.range.len());
        Ok(())
    };
    for command in plan.warm_up.iter_mut().chain(&mut plan.commands) {
        match command {
            Command::Launch { launch, .. } => {
                let bindings = launch.reads.iter_mut().chain(&mut launch.writes).map(|binding| &mut binding.region);
                bindings.chain(&mut launch.workspace).try_for_each(place)?;
            }
            Command::Copy { from, to, .. } => [from, to].into_iter().try_for_each(place)?,
            Command::Fill { region, .. } | Command::Map { region, .. } | Command::Unmap { region } => place(region)?,
            Command::Barrier { .. } | Command::Record { .. } | Command::Wait { .. } => {}
        }
    }
    let located = plan.inputs.iter_mut().chain(&mut plan.outputs).chain(&mut plan.persistent);
    located.flat_map(|backing| &mut backing.pieces).try_for_each(|(_, region)| place(region))?;
    let mut own = Plan::default();
    device_memory(&mut own, own_bytes, limits);
    plan.memories[DEVICE.0 as usize] = own.memories.remove(0);
    (plan.heaps, plan.prologue) = (own.heaps, own.prologue);
    plan.memories.extend(layout.blocks.iter().enumerate().map(|(block, &size_bytes)| PlanMemory {
        kind: MemoryKind::Shared(block as u32),
        space: Space::Device(0),
        size_bytes,
    }));
    plan.statistics.device_peak_bytes = shared_bytes + plan.memory(DEVICE).size_bytes;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::cost::estimate;
    use crate::planner::{PlanOptions, plan};
    use crate::testing::{Random, limits, random_training_program};

    /// Returns a layout of everything that lasts in two blocks, with space in between.
    fn layout(program: &forebay_model::program::Program) -> SharedLayout {
        let mut layout = SharedLayout::default();
        for part in program.persistent.chunks(program.persistent.len().div_ceil(2).max(1)) {
            let start = layout.size_bytes();
            let mut end = start;
            for named in part {
                layout.offsets.insert(named.operand.buffer, end);
                end += (program.buffer(named.operand.buffer).size_bytes + 512).next_multiple_of(256);
            }
            layout.blocks.push((end - start).next_multiple_of(limits().tile_size_bytes));
        }
        layout
    }

    #[test]
    fn what_is_shared_lies_in_its_blocks_and_the_rest_elsewhere() {
        for seed in 1..30 {
            let program = crate::fuse::fuse(random_training_program(&mut Random::new(seed), 5));
            let (limits, costs, layout) = (limits(), estimate(&program, &limits()), layout(&program));
            let alone = plan(&program, &PlanOptions::default(), &limits, &costs).unwrap();
            let options = PlanOptions { shared: Some(layout.clone()), check: true, ..PlanOptions::default() };
            let shared = plan(&program, &options, &limits, &costs).unwrap();
            check(&program, None, &shared).unwrap();
            let blocks = shared.memories.iter().filter(|memory| matches!(memory.kind, MemoryKind::Shared(_)));
            assert_eq!(blocks.map(|memory| memory.size_bytes).collect::<Vec<_>>(), layout.blocks, "seed {seed}");
            let first = (shared.memories.len() - layout.blocks.len()) as u32;
            for (named, backing) in program.persistent.iter().zip(&shared.persistent) {
                for (bytes, region) in &backing.pieces {
                    let (block, start) = layout.block(layout.offsets[&named.operand.buffer]);
                    assert_eq!(region.memory, MemoryId(first + block as u32), "seed {seed}");
                    assert_eq!(region.range.start, layout.offsets[&named.operand.buffer] - start + bytes.start);
                }
            }
            let own_bytes: u64 = shared.heaps.iter().sum();
            assert_eq!(own_bytes + layout.size_bytes(), shared.statistics.device_peak_bytes, "seed {seed}");
            let lasting: u64 =
                program.persistent.iter().map(|named| program.buffer(named.operand.buffer).size_bytes).sum();
            assert!(
                own_bytes <= alone.statistics.device_peak_bytes - lasting + 2 * limits.tile_size_bytes,
                "seed {seed}"
            );
        }
    }

    #[test]
    fn a_budget_that_does_not_hold_everything_has_no_use_for_blocks() {
        let program = crate::fuse::fuse(random_training_program(&mut Random::new(4), 5));
        let (limits, costs, layout) = (limits(), estimate(&program, &limits()), layout(&program));
        let whole = plan(&program, &PlanOptions::default(), &limits, &costs).unwrap().statistics;
        let budget = (whole.minimum_budget_bytes + whole.in_core_peak_bytes) / 2;
        let tight = PlanOptions { device_budget_bytes: Some(budget), check: true, ..PlanOptions::default() };
        let shared = PlanOptions { shared: Some(layout), ..tight.clone() };
        let plan = |options| plan(&program, options, &limits, &costs).unwrap();
        assert_eq!(plan(&shared), plan(&tight));
    }
}
