//! Feeding: inputs that are written where launches read them, because device and host share one memory.
//!
//! Such an input has no second place on the host. Between two steps its memory is given back: the next batch takes as much memory while it
//! is read, and is moved in piece by piece. Only what outputs were written to stays, because they are read after the step.

use forebay_base::{ByteRange, Command, Region, Space};
use forebay_device::Device;
use forebay_plan::plan::MemoryKind;
use forebay_plan::{BackingLocation, Plan};

use crate::backing::{chunks, padded};
use crate::binding::Binding;
use crate::error::RuntimeError;
use crate::releasing::outside;

/// The places in which a plan's inputs are written without a copy to the device.
pub(crate) struct FedInPlace {
    regions: Vec<Region>,
    /// The parts of them in which no output is.
    without_outputs: Vec<Region>,
}

impl FedInPlace {
    /// Returns the places of a plan.
    pub fn of(plan: &Plan) -> FedInPlace {
        let pieces = plan.inputs.iter().flat_map(|backing| backing.pieces.iter().map(|(_, region)| *region));
        let on_device = |region: &Region| {
            let memory = plan.memory(region.memory);
            matches!(memory.space, Space::Device(_)) && memory.kind != MemoryKind::Lent
        };
        let regions: Vec<Region> = pieces.filter(on_device).collect();
        let outputs = plan.outputs.iter().flat_map(|backing| backing.pieces.iter().map(|(_, region)| *region));
        let outputs: Vec<Region> = outputs.collect();
        let without_outputs = regions.iter().flat_map(|&region| outside(region, &outputs)).collect();
        FedInPlace { regions, without_outputs }
    }

    /// Whether there are no such inputs.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Divides the prologue into the commands that map memory for inputs, and the others. Mapping takes memory: what inputs do not need yet
    /// is given back before the rest is mapped.
    pub fn divide<'a>(&self, prologue: &'a [Command]) -> [Vec<&'a Command>; 2] {
        let is_fed = |command: &&Command| match command {
            Command::Map { region, .. } => self.regions.iter().any(|fed| fed.overlaps(*region)),
            _ => false,
        };
        let (first, rest) = prologue.iter().partition(is_fed);
        [first, rest]
    }

    /// Gives back the memory of the places, except for that of outputs. It is taken again when inputs are written.
    pub fn release(&self, device: &dyn Device, binding: &Binding) {
        let regions = self.without_outputs.iter().filter_map(|&region| binding.region(region).ok());
        regions.for_each(|region| device.release_host(region));
    }
}

/// Writes an input in chunks of its backing location, from its end to its beginning, and frees the memory of each chunk once it is written.
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
