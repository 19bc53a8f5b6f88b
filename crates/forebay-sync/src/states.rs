//! Resource states, as Direct3D 12 defines them for buffers.
//!
//! Some devices need to be told how a resource is about to be used. [`ResourceStates`] is the state machine for this, with the states that
//! occur in compute work. It either *checks* what a caller claims ([`ResourceStates::transition`] and [`ResourceStates::access`]), or
//! *computes* the transitions that commands need ([`ResourceStates::require`]).
//!
//! - A resource starts in `COMMON`, and the first access promotes it from there to the state that the access needs. This is free and not a
//!   transition. Any other state can be left only through an explicit transition.
//! - At the end of a submission (`ExecuteCommandLists`), every buffer decays to `COMMON`, whatever its state. Nothing decays between the
//!   command lists of one submission.
//! - Everything bound to a launch must be in `UNORDERED_ACCESS`, or promotable to it, and stays there afterwards. A resource may be bound
//!   several times, for reading and for writing.
//! - A copy reads a resource in `COPY_SOURCE` and writes one in `COPY_DEST`. No state allows both, so there is no legal state for a copy
//!   within one resource.
//! - A fill counts as a launch: `ClearUnorderedAccessViewUint` requires `UNORDERED_ACCESS` and behaves like a dispatch, including that
//!   nothing orders it with the work around it. So a fill between launches needs no transition.
//! - A transition is also a barrier: everything that used the resource before is complete before anything uses it afterwards, so no UAV
//!   barrier is needed next to it. Two copies in a row need neither: such a device runs them one after the other, because no barrier could
//!   express that they must be ordered.
//!
//! With *fixed-state aliases* ([`Aliasing::FixedState`]), each memory is three resources over the same bytes, one for each [`Access`], and
//! a command uses the one that suits it. None of them ever leaves its state, so transitions are never needed, and a copy within one memory
//! is legal. Only ordering remains: nothing here orders two aliases of one memory, so hazards between them need a barrier, as all hazards
//! do.
//!
//! ```
//! use forebay_base::{Command, MemoryId, Region, StreamId};
//! use forebay_sync::states::{accesses, Aliasing, ResourceStates};
//!
//! # fn main() -> Result<(), forebay_sync::states::StateError> {
//! let (stream, half) = (StreamId(0), |memory, index: u64| Region::new(MemoryId(memory), index * 64, 64));
//! let fill = Command::Fill { stream, region: half(1, 0), pattern: [0; 4] };
//! let copy = Command::Copy { stream, from: half(1, 0), to: half(2, 0) };
//! let inside = Command::Copy { stream, from: half(1, 0), to: half(1, 1) };
//!
//! let mut states = ResourceStates::default();
//! assert_eq!(states.require(&accesses(&fill, Aliasing::None)?)?, [], "promoted from COMMON");
//! let transitions = states.require(&accesses(&copy, Aliasing::None)?)?;
//! assert_eq!(transitions[0].to_string(), "m1 from UNORDERED_ACCESS to COPY_SOURCE");
//! states.end_submission();
//! assert_eq!(states.require(&accesses(&fill, Aliasing::None)?)?, [], "decayed to COMMON");
//! assert!(accesses(&inside, Aliasing::None).is_err());
//!
//! let mut aliases = ResourceStates::default();
//! for command in [&fill, &copy, &fill, &inside] {
//!     assert_eq!(aliases.require(&accesses(command, Aliasing::FixedState)?)?, []);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Sources: "Using Resource Barriers to Synchronize Resource States in Direct3D 12" (promotion, decay),
//! "ID3D12GraphicsCommandList::ClearUnorderedAccessViewUint" (fills), "Resource barriers in DirectML" (launches), and the
//! DirectX specification of asynchronous commands (copies in a row).

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::{Command, MemoryId};

/// The state of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceState {
    /// No particular state; the first access promotes it.
    #[default]
    Common,
    /// Bound to launches.
    UnorderedAccess,
    /// Read by copies.
    CopySource,
    /// Written by copies.
    CopyDest,
}

impl fmt::Display for ResourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResourceState::Common => "COMMON",
            ResourceState::UnorderedAccess => "UNORDERED_ACCESS",
            ResourceState::CopySource => "COPY_SOURCE",
            ResourceState::CopyDest => "COPY_DEST",
        })
    }
}

/// How a command uses a resource. With fixed-state aliases, it also selects the alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// A launch reads or writes it, or a fill writes it.
    UnorderedAccess,
    /// A copy reads it.
    CopySource,
    /// A copy writes it.
    CopyDest,
}

impl Access {
    /// The state that the access needs.
    pub const fn state(self) -> ResourceState {
        match self {
            Access::UnorderedAccess => ResourceState::UnorderedAccess,
            Access::CopySource => ResourceState::CopySource,
            Access::CopyDest => ResourceState::CopyDest,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().fmt(f)
    }
}

/// An object that has a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// Its memory.
    pub memory: MemoryId,
    /// The fixed-state alias of the memory that it is; `None` if the memory is a single resource.
    pub alias: Option<Access>,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.alias {
            Some(alias) => write!(f, "{} (its {alias} alias)", self.memory),
            None => self.memory.fmt(f),
        }
    }
}

/// The resources that a memory consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aliasing {
    /// One resource, whose state changes.
    None,
    /// Three resources over the same bytes, one for each [`Access`].
    FixedState,
}

/// A change of state. It orders everything on the resource before it before everything after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The resource.
    pub resource: Resource,
    /// The state that it is in.
    pub before: ResourceState,
    /// The state that it changes to.
    pub after: ResourceState,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.resource, self.before, self.after)
    }
}

/// The error in a claim about states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateError {
    /// A command needs a resource to be in another state.
    NotInState {
        /// The resource.
        resource: Resource,
        /// The state that it is in.
        state: ResourceState,
        /// How the command uses it.
        needed: Access,
    },
    /// A transition claims that the resource is in a state that it is not in.
    WrongClaim {
        /// The transition.
        claimed: Transition,
        /// The state that the resource is in.
        state: ResourceState,
    },
    /// A transition leads to the state that the resource is already in.
    NoChange {
        /// The transition.
        claimed: Transition,
    },
    /// One command needs a resource in two states at once.
    TwoStates {
        /// The resource.
        resource: Resource,
        /// One of the accesses.
        one: Access,
        /// The other access.
        other: Access,
    },
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateError::NotInState { resource, state, needed } => write!(
                f,
                "{resource} is in {state}, but the command needs it in {needed}; transition it from {state} to \
                 {needed} before the command"
            ),
            StateError::WrongClaim { claimed, state } => {
                let Transition { resource, before, after } = claimed;
                write!(
                    f,
                    "the transition of {resource} to {after} claims that it is in {before}, but it is in {state}; "
                )?;
                if state == after {
                    return write!(f, "leave out the transition");
                }
                write!(f, "transition it from {state} to {after}")
            }
            StateError::NoChange { claimed } => write!(
                f,
                "{} is already in {}; leave out the transition (consecutive launches are ordered by a UAV barrier)",
                claimed.resource, claimed.after
            ),
            StateError::TwoStates { resource, one, other } => write!(
                f,
                "one command needs {resource} in both {one} and {other}, but no state allows both; give its memory \
                 fixed-state aliases, or copy through another resource"
            ),
        }
    }
}

impl std::error::Error for StateError {}

/// The resources that a command uses, each once, in ascending order.
///
/// # Errors
/// [`StateError::TwoStates`] for a copy within one resource.
pub fn accesses(command: &Command, aliasing: Aliasing) -> Result<Vec<(Resource, Access)>, StateError> {
    let (read, written) = match command {
        Command::Copy { .. } => (Access::CopySource, Access::CopyDest),
        _ => (Access::UnorderedAccess, Access::UnorderedAccess),
    };
    let resource = |memory: MemoryId, access: Access| match aliasing {
        Aliasing::None => (Resource { memory, alias: None }, access),
        Aliasing::FixedState => (Resource { memory, alias: Some(access) }, access),
    };
    let reads = command.reads().into_iter().map(|region| resource(region.memory, read));
    let writes = command.writes().into_iter().map(|region| resource(region.memory, written));
    let mut accesses: Vec<(Resource, Access)> = reads.chain(writes).collect();
    accesses.sort_unstable();
    accesses.dedup();
    one_state_each(&accesses)?;
    Ok(accesses)
}

/// Checks that no resource is needed in two states.
fn one_state_each(accesses: &[(Resource, Access)]) -> Result<(), StateError> {
    let mut needed: BTreeMap<Resource, Access> = BTreeMap::new();
    for &(resource, other) in accesses {
        let one = *needed.entry(resource).or_insert(other);
        if one != other {
            return Err(StateError::TwoStates { resource, one, other });
        }
    }
    Ok(())
}

/// The states of all resources at one point of a submission's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceStates {
    /// Resources that are not in `COMMON`.
    states: BTreeMap<Resource, ResourceState>,
}

impl ResourceStates {
    /// The state that a resource is in.
    pub fn state(&self, resource: Resource) -> ResourceState {
        self.states.get(&resource).copied().unwrap_or_default()
    }

    /// Checks a transition that the caller issues, and applies it.
    ///
    /// # Errors
    /// If the resource is not in the state that the transition names, or would not change state. In that case nothing changes.
    pub fn transition(&mut self, claimed: Transition) -> Result<(), StateError> {
        let state = self.state(claimed.resource);
        if state != claimed.before {
            return Err(StateError::WrongClaim { claimed, state });
        }
        if claimed.after == state {
            return Err(StateError::NoChange { claimed });
        }
        self.states.insert(claimed.resource, claimed.after);
        Ok(())
    }

    /// Checks the accesses of one command, and applies them: resources in `COMMON` are promoted.
    ///
    /// # Errors
    /// If a resource is in a state other than the one that its access needs, or is needed in two states. In that case nothing changes.
    pub fn access(&mut self, accesses: &[(Resource, Access)]) -> Result<(), StateError> {
        one_state_each(accesses)?;
        for &(resource, needed) in accesses {
            let state = self.state(resource);
            if state != ResourceState::Common && state != needed.state() {
                return Err(StateError::NotInState { resource, state, needed });
            }
        }
        self.states.extend(accesses.iter().map(|&(resource, needed)| (resource, needed.state())));
        Ok(())
    }

    /// Computes the transitions needed before a command with these accesses, and applies them and the accesses. None of the transitions can
    /// be left out.
    ///
    /// # Errors
    /// [`StateError::TwoStates`] if no transition can help. In that case nothing changes.
    pub fn require(&mut self, accesses: &[(Resource, Access)]) -> Result<Vec<Transition>, StateError> {
        one_state_each(accesses)?;
        let mut transitions = Vec::new();
        for &(resource, needed) in accesses {
            let after = needed.state();
            let before = self.states.insert(resource, after).unwrap_or_default();
            if before != ResourceState::Common && before != after {
                transitions.push(Transition { resource, before, after });
            }
        }
        Ok(transitions)
    }

    /// Ends the submission: every resource decays to `COMMON`.
    pub fn end_submission(&mut self) {
        self.states.clear();
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::{Region, StreamId};

    use super::*;

    const M1: Resource = Resource { memory: MemoryId(1), alias: None };
    const M2: Resource = Resource { memory: MemoryId(2), alias: None };

    fn claim(before: ResourceState, after: ResourceState) -> Transition {
        Transition { resource: M1, before, after }
    }

    #[test]
    fn the_first_access_promotes_and_the_submission_end_decays() {
        use Access::{CopyDest, UnorderedAccess};
        let mut states = ResourceStates::default();
        assert_eq!(states.access(&[(M1, UnorderedAccess), (M2, CopyDest)]), Ok(()));
        assert_eq!(states.state(M1), ResourceState::UnorderedAccess, "it stays there after the launch");
        assert_eq!(states.access(&[(M1, UnorderedAccess)]), Ok(()));
        assert!(states.access(&[(M1, CopyDest)]).is_err(), "promotion starts from COMMON only");
        states.end_submission();
        assert_eq!(states.access(&[(M1, CopyDest)]), Ok(()));
    }

    #[test]
    fn errors_name_the_resource_and_both_states() {
        use ResourceState::{Common, CopyDest, CopySource, UnorderedAccess};
        let mut states = ResourceStates::default();
        states.access(&[(M1, Access::CopyDest)]).unwrap();
        assert_eq!(
            states.access(&[(M2, Access::CopySource), (M1, Access::UnorderedAccess)]).unwrap_err().to_string(),
            "m1 is in COPY_DEST, but the command needs it in UNORDERED_ACCESS; transition it from COPY_DEST to \
             UNORDERED_ACCESS before the command"
        );
        assert_eq!(states.state(M2), Common, "a refused command changes nothing");
        assert_eq!(
            states.transition(claim(Common, UnorderedAccess)).unwrap_err().to_string(),
            "the transition of m1 to UNORDERED_ACCESS claims that it is in COMMON, but it is in COPY_DEST; transition it \
             from COPY_DEST to UNORDERED_ACCESS"
        );
        assert_eq!(
            states.transition(claim(CopySource, CopyDest)).unwrap_err().to_string(),
            "the transition of m1 to COPY_DEST claims that it is in COPY_SOURCE, but it is in COPY_DEST; leave out \
             the transition"
        );
        let unchanged = states.transition(claim(CopyDest, CopyDest)).unwrap_err();
        assert!(unchanged.to_string().starts_with("m1 is already in COPY_DEST; leave out the transition"));
        assert_eq!(states.transition(claim(CopyDest, UnorderedAccess)), Ok(()));
        assert_eq!(states.access(&[(M1, Access::UnorderedAccess)]), Ok(()));
    }

    #[test]
    fn a_copy_within_one_memory_needs_aliases() {
        let stream = StreamId(0);
        let part = |index: u64| Region::new(MemoryId(1), index * 64, 64);
        let copy = Command::Copy { stream, from: part(0), to: part(1) };
        assert_eq!(
            accesses(&copy, Aliasing::None).unwrap_err().to_string(),
            "one command needs m1 in both COPY_SOURCE and COPY_DEST, but no state allows both; give its memory \
             fixed-state aliases, or copy through another resource"
        );
        let aliases = accesses(&copy, Aliasing::FixedState).unwrap();
        let names: Vec<String> = aliases.iter().map(|(resource, _)| resource.to_string()).collect();
        assert_eq!(names, ["m1 (its COPY_SOURCE alias)", "m1 (its COPY_DEST alias)"]);
        assert!(ResourceStates::default().require(&[(M1, Access::CopySource), (M1, Access::CopyDest)]).is_err());
    }

    #[test]
    fn one_resource_may_be_bound_several_times() {
        let binding = |start: u64| {
            let desc = forebay_base::TensorDesc::packed(forebay_base::DataType::UInt8, &[16]).unwrap();
            forebay_base::Binding { region: Region::new(MemoryId(1), start, 16), desc }
        };
        let launch = forebay_base::Launch {
            kernel: forebay_base::Kernel::Copy,
            reads: vec![binding(0), binding(16)],
            writes: vec![binding(32)],
            workspace: Some(Region::new(MemoryId(2), 0, 256)),
            label: 0,
        };
        let command = Command::Launch { stream: StreamId(0), launch: Box::new(launch) };
        let expected = [(M1, Access::UnorderedAccess), (M2, Access::UnorderedAccess)];
        assert_eq!(accesses(&command, Aliasing::None).unwrap(), expected);
        assert_eq!(accesses(&Command::Barrier { stream: StreamId(0) }, Aliasing::None), Ok(vec![]));
    }
}
