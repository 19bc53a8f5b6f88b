//! Links between spaces: their bandwidth, their latency, and whether both directions work at once.

use serde::{Deserialize, Serialize};

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkDirection {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Nanoseconds before the first byte moves.
    pub latency_ns: u64,
}

impl LinkDirection {
    /// Returns how long this many bytes take, in nanoseconds.
    pub fn ns(&self, bytes: u64) -> u64 {
        self.latency_ns.saturating_add((bytes as f64 / self.bytes_per_ns()) as u64)
    }

    /// Returns the bytes per nanosecond.
    pub fn bytes_per_ns(&self) -> f64 {
        self.bytes_per_second / 1e9
    }
}

/// The link between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// From the host to the device.
    pub to_device: LinkDirection,
    /// From the device to the host.
    pub from_device: LinkDirection,
    /// Whether both directions work at once, each at its full speed. Otherwise they share the link: see [`mod@crate::simulate`].
    pub duplex: bool,
    /// Whether copies from and to the disk also cross the link.
    pub carries_disk: bool,
}

/// The link to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// From the disk.
    pub read: LinkDirection,
    /// To the disk.
    pub write: LinkDirection,
}

/// The longest latency or duration that is accepted, a day. Longer ones mean nothing, and their sums would be out of range.
pub(crate) const LONGEST_NS: u64 = 86_400_000_000_000;
/// The lowest number per second that is accepted, for the same reason.
const LOWEST_RATE: f64 = 1000.0;

/// Rejects links that are too slow to mean anything.
pub(crate) fn check_ways(link: &Link, disk: &Disk) -> Result<(), String> {
    for (name, way) in [
        ("link.to_device", link.to_device),
        ("link.from_device", link.from_device),
        ("disk.read", disk.read),
        ("disk.write", disk.write),
    ] {
        check_way(name, &way)?;
    }
    Ok(())
}

/// Rejects a direction of a link that is too slow to mean anything.
pub(crate) fn check_way(name: &str, way: &LinkDirection) -> Result<(), String> {
    rate(&format!("{name}.bytes_per_second"), way.bytes_per_second)?;
    short(&format!("{name}.latency_ns"), way.latency_ns)
}

/// Rejects numbers per second that are too low, infinite or NaN.
pub(crate) fn rate(name: &str, number: f64) -> Result<(), String> {
    match number.is_finite() && number >= LOWEST_RATE {
        true => Ok(()),
        false => Err(format!("{name} is {number:?}; expected a finite number of at least {LOWEST_RATE}")),
    }
}

/// Rejects durations that are too long.
pub(crate) fn short(name: &str, duration_ns: u64) -> Result<(), String> {
    match duration_ns <= LONGEST_NS {
        true => Ok(()),
        false => Err(format!("{name} is {duration_ns}; expected at most {LONGEST_NS}, a day")),
    }
}

/// Rejects numbers that are not positive and finite.
pub(crate) fn positive(name: &str, number: f64) -> Result<(), String> {
    match number.is_finite() && number > 0.0 {
        true => Ok(()),
        false => Err(format!("{name} is {number}; expected a finite number above 0")),
    }
}

/// Rejects numbers that are negative, infinite or NaN.
pub(crate) fn not_negative(name: &str, number: f64) -> Result<(), String> {
    match number.is_finite() && number >= 0.0 {
        true => Ok(()),
        false => Err(format!("{name} is {number}; expected a finite number of at least 0")),
    }
}
