//! The input of a Direct3D-12-like queue for a submission: work on resources that have states, and barriers that name resources instead of
//! applying to a whole stream.
//!
//! Each submission begins with every resource in `COMMON` and with all earlier work complete, which is the effect of decay at the end of
//! `ExecuteCommandLists`. So only the commands within one submission need barriers and transitions. Host blocks are upload and readback
//! heaps, whose states never change, and need none.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Command, MemoryId, StreamId};
use forebay_sync::states::{Access, Aliasing, Resource, ResourceStates, StateError, Transition, accesses};

/// One entry of the input of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lowered {
    /// A launch, copy or fill.
    Work {
        /// The stream.
        stream: StreamId,
        /// Its index in [`NullDevice::commands`](super::NullDevice::commands).
        command: usize,
        /// The resources of the device that it uses, and how; with aliases, which of them.
        accesses: Vec<(Resource, Access)>,
    },
    /// Makes launches and fills on the resource after this wait for those before it. A stream's barrier becomes one of these for each
    /// resource that they used since the previous barrier.
    UavBarrier {
        /// The stream.
        stream: StreamId,
        /// The resource.
        resource: Resource,
    },
    /// Makes uses of one alias of a memory after this wait for earlier uses of the other. A stream's barrier becomes one of these if a
    /// memory is used through one alias before it and through another after it.
    AliasingBarrier {
        /// The stream.
        stream: StreamId,
        /// The alias used so far.
        before: Resource,
        /// The alias used from now on.
        after: Resource,
    },
    /// Changes the state of a resource, which orders its uses before and after.
    Transition {
        /// The stream.
        stream: StreamId,
        /// The change.
        transition: Transition,
    },
}

/// The number of barriers of each kind that a queue received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoweredCounts {
    /// UAV barriers.
    pub uav_barriers: usize,
    /// Barriers between aliases of one memory.
    pub aliasing_barriers: usize,
    /// Transitions.
    pub transitions: usize,
}

impl LoweredCounts {
    pub(super) fn of(lowered: &[Lowered]) -> LoweredCounts {
        let mut counts = LoweredCounts::default();
        for entry in lowered {
            match entry {
                Lowered::Work { .. } => {}
                Lowered::UavBarrier { .. } => counts.uav_barriers += 1,
                Lowered::AliasingBarrier { .. } => counts.aliasing_barriers += 1,
                Lowered::Transition { .. } => counts.transitions += 1,
            }
        }
        counts
    }
}

/// One stream within one submission.
#[derive(Default)]
struct Queue {
    states: ResourceStates,
    /// The accesses since the latest barrier.
    after_barrier: BTreeSet<(Resource, Access)>,
    /// The resources used before the latest barrier.
    before_barrier: BTreeSet<Resource>,
    /// Pairs of aliases: from now on, uses of the second come after all uses of the first before the latest barrier.
    ordered: BTreeSet<(Resource, Resource)>,
}

impl Queue {
    fn barrier(&mut self, stream: StreamId, lowered: &mut Vec<Lowered>) {
        for (resource, access) in std::mem::take(&mut self.after_barrier) {
            // Consecutive copies need no barrier: such a queue runs them one after the other.
            if access == Access::UnorderedAccess {
                lowered.push(Lowered::UavBarrier { stream, resource });
            }
            self.ordered.retain(|(before, _)| *before != resource);
            self.before_barrier.insert(resource);
        }
    }

    /// Adds what must come before a command with these accesses, and records the accesses.
    fn work(
        &mut self,
        stream: StreamId,
        accesses: &[(Resource, Access)],
        lowered: &mut Vec<Lowered>,
    ) -> Result<(), StateError> {
        for transition in self.states.require(accesses)? {
            lowered.push(Lowered::Transition { stream, transition });
            // The transition orders what came before it, so no later barrier needs to.
            self.after_barrier.retain(|(resource, _)| *resource != transition.resource);
        }
        for &(resource, _) in accesses.iter().filter(|(resource, _)| resource.alias.is_some()) {
            self.alias(stream, resource, lowered);
        }
        self.after_barrier.extend(accesses);
        Ok(())
    }

    /// Orders an alias after the other aliases of its memory that were used before the latest barrier.
    fn alias(&mut self, stream: StreamId, after: Resource, lowered: &mut Vec<Lowered>) {
        let others = [Access::UnorderedAccess, Access::CopySource, Access::CopyDest]
            .map(|alias| Resource { alias: Some(alias), ..after });
        let missing = |other: &Resource| {
            *other != after && self.before_barrier.contains(other) && !self.ordered.contains(&(*other, after))
        };
        let mut missing: Vec<Resource> = others.into_iter().filter(missing).collect();
        // Ordering after an alias also orders after those that it comes after.
        missing.sort_by_key(|&one| !others.iter().any(|&other| self.ordered.contains(&(other, one))));
        for before in missing {
            if self.ordered.insert((before, after)) {
                lowered.push(Lowered::AliasingBarrier { stream, before, after });
                let brought = others.into_iter().filter(|&other| self.ordered.contains(&(other, before)));
                let brought: Vec<(Resource, Resource)> = brought.map(|other| (other, after)).collect();
                self.ordered.extend(brought);
            }
        }
    }
}

/// Lowers one submission, whose first command is number `first`.
///
/// # Errors
/// Returns an error for a copy within one memory that has no aliases.
pub(super) fn lower(
    commands: &[Command],
    first: usize,
    aliasing: Aliasing,
    is_host: impl Fn(MemoryId) -> bool,
) -> Result<Vec<Lowered>, StateError> {
    let mut queues: BTreeMap<StreamId, Queue> = BTreeMap::new();
    let mut lowered = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        let Some(stream) = command.stream() else { continue };
        let queue = queues.entry(stream).or_default();
        if matches!(command, Command::Barrier { .. }) {
            queue.barrier(stream, &mut lowered);
        }
        if command.is_work() {
            let regions = || command.reads().into_iter().chain(command.writes());
            // Copies within host memory are not restricted.
            let on_host = regions().all(|region| is_host(region.memory));
            let mut accesses = if on_host { Vec::new() } else { accesses(command, aliasing)? };
            accesses.retain(|(resource, _)| !is_host(resource.memory));
            queue.work(stream, &accesses, &mut lowered)?;
            lowered.push(Lowered::Work { stream, command: first + index, accesses });
        }
    }
    Ok(lowered)
}
