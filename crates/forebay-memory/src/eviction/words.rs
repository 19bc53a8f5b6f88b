//! The inputs and results of an eviction queue.

use std::fmt;

/// The caller's number for a unit, which is a part of managed memory that moves as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u64);

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0)
    }
}

/// Determines what changes the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The measured behavior of a driver with unified memory.
    Driver,
    /// Work that uses a unit makes it the last to be evicted.
    Touch,
    /// Like `Touch`, but what [`EvictionQueue::set_next_uses`](super::EvictionQueue::set_next_uses) was given takes precedence: the unit
    /// whose next use is furthest away is evicted.
    Planned,
}

/// One of the two places where the data of a unit can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// Host memory, or whatever backs it.
    Host,
    /// Device memory.
    Device,
}

/// What the caller knows about the future of a unit. Giving advice does not change the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Mostly read: the host copy is kept alongside the device copy, even when host memory is short.
    ReadMostly,
    /// On the device: writes by the host also go to the device copy instead of dropping it. On the host: except under [`Policy::Driver`],
    /// the unit is moved to the head whenever it is used.
    PreferredLocation(Location),
    /// By the device: writes by the host also go to the device copy. By the host: true of every unit anyway.
    AccessedBy(Location),
}

/// What work does with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes all of it and reads none of it: its previous data is dead.
    Overwrite,
    /// Writes a part of it, or reads and writes it.
    Update,
}

/// A unit that leaves the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The unit.
    pub unit: UnitId,
    /// Whether its data must be copied to the host first; otherwise it is just dropped.
    pub copy_back: bool,
}

/// A unit that arrives on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The unit.
    pub unit: UnitId,
    /// Whether its data must be copied from the host; otherwise it is merely mapped.
    pub copy: bool,
}

/// What has to move, in order: evictions make room for arrivals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// The units that leave, in order.
    pub evictions: Vec<Eviction>,
    /// The units that arrive.
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
    /// Where a copy is to be.
    pub to: Location,
}

/// What a prefetch that starts now does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefetchStart {
    /// Brings the unit to the device.
    SwapIn(Moves),
    /// Copies it to the host; its copy on the device stays.
    CopyBack,
    /// Nothing: the copy already exists, the unit was removed, or a unit that is used earlier would have to make room.
    Nothing,
}

/// What a write by the host does to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostWrite {
    /// Whether the data on the device must be copied to the host before the write, which changes only a part of it.
    pub copy_back: bool,
    /// What happens to the device copy.
    pub device_copy: DeviceCopy,
}

/// What happens to the device copy of a unit when the host writes the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCopy {
    /// There is none.
    None,
    /// It is out of date and is dropped.
    Dropped,
    /// The new data is copied to it.
    Updated,
}

/// The reason why a queue refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionError {
    /// The units that one piece of work uses do not fit together, whatever is evicted.
    TooLarge {
        /// The bytes of the units.
        needed_bytes: u64,
        /// The bytes that the device holds.
        capacity_bytes: u64,
    },
    /// The queue has no such unit.
    UnknownUnit {
        /// The unit that was requested.
        unit: UnitId,
    },
}

impl fmt::Display for EvictionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvictionError::TooLarge { needed_bytes, capacity_bytes } => write!(
                f,
                "one operation uses {needed_bytes} bytes of managed memory at once, but only {capacity_bytes} may be on \
                 the device; split it, or raise the device budget"
            ),
            EvictionError::UnknownUnit { unit } => write!(f, "managed memory has no unit {unit}; it was removed"),
        }
    }
}

impl std::error::Error for EvictionError {}
