//! What a Direct3D-12-like queue is given for a submission: work on resources that have states, and barriers that name
//! resources instead of standing for a whole stream.
//!
//! Each submission begins with every resource in `COMMON` and with everything before it complete: that is what decay at the
//! end of `ExecuteCommandLists` stands for. So only what happens within one submission needs anything. Host blocks are upload
//! and readback heaps, whose states never change, and take no part.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Command, MemoryId, StreamId};
use forebay_sync::states::{Access, Aliasing, Resource, ResourceStates, StateError, Transition, accesses};

/// One entry of what a queue was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lowered {
    /// A launch, copy or fill.
    Work {
        /// The stream.
        stream: StreamId,
        /// Its index in [`NullDevice::commands`](super::NullDevice::commands).
        command: usize,
        /// The device's resources that it uses and how; with aliases, which of them.
        accesses: Vec<(Resource, Access)>,
    },
    /// Launches and fills on the resource after this come after those before it. A stream's barrier becomes one for each
    /// resource that they used since the barrier before.
    UavBarrier {
        /// The stream.
        stream: StreamId,
        /// The resource.
        resource: Resource,
    },
    /// What uses one alias of a memory after this comes after what used the other before. A stream's barrier becomes one
    /// where a memory is used through one alias before it and through another behind it.
    AliasingBarrier {
        /// The stream.
        stream: StreamId,
        /// The alias used so far.
        before: Resource,
        /// The alias used from now on.
        after: Resource,
    },
    /// A resource changes its state, which orders its uses before and after.
    Transition {
        /// The stream.
        stream: StreamId,
        /// The change.
        transition: Transition,
    },
}

/// How many barriers of each kind a queue was given.
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
    /// Used since the latest barrier.
    after_barrier: BTreeSet<(Resource, Access)>,
    /// Used before it.
    before_barrier: BTreeSet<Resource>,
    /// Pairs of aliases: from now on the second's uses come after all of the first's before the latest barrier.
    ordered: BTreeSet<(Resource, Resource)>,
}

impl Queue {
    fn barrier(&mut self, stream: StreamId, lowered: &mut Vec<Lowered>) {
        for (resource, access) in std::mem::take(&mut self.after_barrier) {
            // Copies in a row need nothing: such a queue runs them one after the other.
            if access == Access::UnorderedAccess {
                lowered.push(Lowered::UavBarrier { stream, resource });
            }
            self.ordered.retain(|(before, _)| *before != resource);
            self.before_barrier.insert(resource);
        }
    }

    /// Adds what must stand before a command with these accesses.
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

    /// Orders an alias behind the others of its memory, as far as they were used before the latest barrier.
    fn alias(&mut self, stream: StreamId, after: Resource, lowered: &mut Vec<Lowered>) {
        let others = [Access::UnorderedAccess, Access::CopySource, Access::CopyDest]
            .map(|alias| Resource { alias: Some(alias), ..after });
        let missing = |other: &Resource| {
            *other != after && self.before_barrier.contains(other) && !self.ordered.contains(&(*other, after))
        };
        let mut missing: Vec<Resource> = others.into_iter().filter(missing).collect();
        // An alias that comes after another brings that one along.
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
/// A copy within one memory that has no aliases.
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
            // Within host memory anything may be copied anywhere.
            let on_host = regions().all(|region| is_host(region.memory));
            let mut accesses = if on_host { Vec::new() } else { accesses(command, aliasing)? };
            accesses.retain(|(resource, _)| !is_host(resource.memory));
            queue.work(stream, &accesses, &mut lowered)?;
            lowered.push(Lowered::Work { stream, command: first + index, accesses });
        }
    }
    Ok(lowered)
}
