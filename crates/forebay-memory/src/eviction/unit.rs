//! What is known about a unit.

use super::{Advice, Location};

/// A unit.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Its size.
    pub size_bytes: u64,
    /// Its place in the queue; `None` while it is not on the device.
    pub place: Option<i64>,
    /// Whether it was written and has not been discarded since.
    pub has_data: bool,
    /// Whether the host copy holds that data.
    pub host_copy: bool,
    /// Advice: the host copy is kept.
    pub read_mostly: bool,
    /// Advice: the location where it should be.
    pub preferred: Option<Location>,
    /// Advice: the device uses it.
    accessed_by_device: bool,
}

impl Unit {
    /// Creates a unit without data.
    pub fn new(size_bytes: u64) -> Unit {
        Unit {
            size_bytes,
            place: None,
            has_data: false,
            host_copy: false,
            read_mostly: false,
            preferred: None,
            accessed_by_device: false,
        }
    }

    /// Whether it is on the device.
    pub fn is_resident(&self) -> bool {
        self.place.is_some()
    }

    /// Whether writes by the host also go to the device copy.
    pub fn follows_host_writes(&self) -> bool {
        self.accessed_by_device || self.preferred == Some(Location::Device)
    }

    /// Notes or withdraws advice.
    pub fn advise(&mut self, advice: Advice, given: bool) {
        match advice {
            Advice::ReadMostly => self.read_mostly = given,
            Advice::PreferredLocation(location) if given => self.preferred = Some(location),
            Advice::PreferredLocation(location) => self.preferred = self.preferred.filter(|&known| known != location),
            Advice::AccessedBy(Location::Device) => self.accessed_by_device = given,
            Advice::AccessedBy(Location::Host) => {}
        }
    }
}
