//! What a queue is told, and what it answers.

use std::fmt;

/// A piece of managed memory that moves as a whole; the caller's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u64);

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0)
    }
}

/// What changes the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As a driver of unified memory was measured to behave.
    Driver,
    /// Work that uses a unit makes it the last to go.
    Touch,
    /// As `Touch`, but what [`EvictionQueue::set_next_uses`](super::EvictionQueue::set_next_uses) knows comes first: the unit whose next use is farthest away goes.
    Planned,
}

/// One of the two places where a unit's data can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// Host memory, or what stands behind it.
    Host,
    /// Device memory.
    Device,
}

/// What the caller knows about a unit's future. No advice changes the order when it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Mostly read: the copy on the host is kept next to that on the device, also when host memory is short.
    ReadMostly,
    /// On the device: the host's writes go to the copy there, too, instead of dropping it. On the host: outside
    /// [`Policy::Driver`], it stands at the head after it was used.
    PreferredLocation(Location),
    /// By the device: the host's writes go to the copy there, too. By the host: true of every unit anyway.
    AccessedBy(Location),
}

/// What work does with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes all of it and reads none of it: what it held is dead.
    Overwrite,
    /// Writes a part of it, or reads and writes it.
    Update,
}

/// A unit that leaves the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The unit.
    pub unit: UnitId,
    /// Whether its data must be copied to the host first; else it is just dropped.
    pub copy_back: bool,
}

/// A unit that comes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The unit.
    pub unit: UnitId,
    /// Whether its data must be copied from the host; else it is merely mapped.
    pub copy: bool,
}

/// What has to move, in order: evictions make room for arrivals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Who leaves, first to go first.
    pub evictions: Vec<Eviction>,
    /// Who comes.
    pub arrivals: Vec<Arrival>,
}

impl Moves {
    /// Whether nothing moves.
    pub fn is_empty(&self) -> bool {
        self.evictions.is_empty() && self.arrivals.is_empty()
    }
}

/// A prefetch that has not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// The unit.
    pub unit: UnitId,
    /// Where it shall have a copy.
    pub to: Location,
}

/// What a prefetch that starts now does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefetchStart {
    /// Brings the unit to the device.
    SwapIn(Moves),
    /// Copies it to the host; its copy on the device stays.
    CopyBack,
    /// Nothing: a copy is there already, the unit is gone, or room would have to be made for it with what is used earlier.
    Nothing,
}

/// What a write of the host does to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostWrite {
    /// Whether the device's data must be copied to the host before the write, which changes a part of it only.
    pub copy_back: bool,
    /// What becomes of the copy on the device.
    pub device_copy: DeviceCopy,
}

/// What becomes of a unit's copy on the device when the host writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCopy {
    /// There is none.
    None,
    /// It is out of date: dropped.
    Dropped,
    /// The new data is copied there.
    Updated,
}

/// Why a queue refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionError {
    /// The units that one piece of work uses do not fit together, whatever is evicted.
    TooLarge {
        /// Bytes of the units.
        needed_bytes: u64,
        /// Bytes that there are.
        capacity_bytes: u64,
    },
    /// The queue has no such unit.
    UnknownUnit {
        /// The unit asked for.
        unit: UnitId,
    },
}

impl fmt::Display for EvictionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvictionError::TooLarge { needed_bytes, capacity_bytes } => write!(
                f,
                "one operation uses {needed_bytes} bytes of managed memory at once, and {capacity_bytes} may be on the \
                 device: split it, or raise the device budget"
            ),
            EvictionError::UnknownUnit { unit } => write!(f, "managed memory has no unit {unit}: it was removed"),
        }
    }
}

impl std::error::Error for EvictionError {}
