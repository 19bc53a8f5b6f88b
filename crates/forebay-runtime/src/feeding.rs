//! Feeding: inputs that are written where launches read them, because device and host are one memory.
//!
//! Such an input has no second place on the host. Between two steps its place gives its memory back: the next batch takes as much while
//! it is read, and moves in piece by piece.

use forebay_base::{ByteRange, Command, Region, Space};
use forebay_device::Device;
use forebay_plan::plan::MemoryKind;
use forebay_plan::{BackingLocation, Plan};

use crate::backing::{chunks, padded};
use crate::binding::Binding;
use crate::error::RuntimeError;

/// Where a plan has inputs written that no copy brings to the device.
pub(crate) struct FedInPlace {
    regions: Vec<Region>,
}

impl FedInPlace {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> FedInPlace {
        let pieces = plan.inputs.iter().flat_map(|backing| backing.pieces.iter().map(|(_, region)| *region));
        let on_device = |region: &Region| {
            let memory = plan.memory(region.memory);
            matches!(memory.space, Space::Device(_)) && memory.kind != MemoryKind::Lent
        };
        FedInPlace { regions: pieces.filter(on_device).collect() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// What maps memory for inputs, and what maps the rest. Memory comes with its mapping: what inputs do not need yet goes back
    /// before the rest comes.
    pub fn divide<'a>(&self, prologue: &'a [Command]) -> [Vec<&'a Command>; 2] {
        let is_fed = |command: &&Command| match command {
            Command::Map { region, .. } => self.regions.iter().any(|fed| fed.overlaps(*region)),
            _ => false,
        };
        let (first, rest) = prologue.iter().partition(is_fed);
        [first, rest]
    }

    /// Gives the memory of the places back. It comes again when inputs are written.
    pub fn release(&self, device: &dyn Device, binding: &Binding) {
        let regions = self.regions.iter().filter_map(|&region| binding.region(region).ok());
        regions.for_each(|region| device.release_host(region));
    }
}

/// Writes an input in chunks of its backing location, from its end to its beginning, and gives the memory of each up once it is
/// written.
pub(crate) fn give(
    backing: &BackingLocation,
    mut bytes: Vec<u8>,
    mut write: impl FnMut(Region, &[u8]) -> Result<(), RuntimeError>,
) -> Result<(), RuntimeError> {
    let pieces: Vec<(ByteRange, Region)> = chunks(backing).collect();
    for (range, region) in pieces.into_iter().rev() {
        write(region, &padded(&bytes, range))?;
        bytes.truncate(range.start as usize);
        bytes.shrink_to_fit();
    }
    Ok(())
}
