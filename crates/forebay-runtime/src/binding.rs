//! Translating a plan's ids to the device's: memories, heaps, streams and events are obtained here, and given back on drop.

use std::path::Path;
use std::sync::Arc;

use forebay_base::{Command, EventId, HeapId, MemoryId, Region, StreamId};
use forebay_device::{Device, DeviceError, Readable};
use forebay_plan::Plan;
use forebay_plan::plan::{MemoryKind, PlanMemory};

use crate::error::RuntimeError;

/// The sources of a plan's data on disk.
pub struct DiskSources<'a> {
    /// The folder for spill files.
    pub spill_dir: Option<&'a Path>,
    /// What the plan reads from the model's files.
    pub model_files: Option<Arc<dyn Readable>>,
}

/// Everything that a plan holds on a device, by the plan's ids. Dropping it waits for the streams and gives everything back.
pub struct Binding {
    device: Arc<dyn Device>,
    memories: Vec<MemoryId>,
    /// The memories that are shared with other plans, which this binding does not give back.
    shared: Vec<MemoryId>,
    heaps: Vec<HeapId>,
    streams: Vec<StreamId>,
    events: Vec<EventId>,
    staging: Option<Region>,
}

impl Binding {
    /// Obtains what the plan names, an additional event for the executor, and a host block of `staging_bytes` (none for 0). There is always
    /// a stream, even if the plan has none. `shared` are the memories shared between plans, by number. If `released` is set, host blocks
    /// take memory as they are written, until [`Binding::fill_host`]. If this fails, everything obtained so far is given back.
    ///
    /// # Errors
    /// Fails if the device reports an error; with [`RuntimeError::Plan`] for a spill file without a folder, or for model's files that were
    /// not given.
    pub fn obtain(
        device: Arc<dyn Device>,
        plan: &Plan,
        staging_bytes: u64,
        disk: &DiskSources,
        released: bool,
        shared: &[MemoryId],
    ) -> Result<Binding, RuntimeError> {
        let uses = |kind| plan.memories.iter().any(|memory| memory.kind == kind);
        if disk.spill_dir.is_none() && uses(MemoryKind::SpillFile) {
            return Err(RuntimeError::Plan { reason: "it spills to disk, but no folder was given".to_string() });
        }
        let missing = |memory: &&PlanMemory| matches!(memory.kind, MemoryKind::Shared(n) if n as usize >= shared.len());
        if plan.memories.iter().any(|memory| missing(&memory)) {
            return Err(RuntimeError::Plan { reason: "memory that it shares with others was not given".to_string() });
        }
        let mut binding = Binding {
            device,
            shared: shared.to_vec(),
            memories: Vec::with_capacity(plan.memories.len()),
            heaps: Vec::with_capacity(plan.heaps.len()),
            streams: Vec::with_capacity(plan.streams.len()),
            events: Vec::new(),
            staging: None,
        };
        binding
            .obtain_all(plan, staging_bytes, disk, released)
            .map_err(|error| RuntimeError::Device { action: "while obtaining what the plan needs", error })?;
        Ok(binding)
    }

    fn obtain_all(
        &mut self,
        plan: &Plan,
        staging_bytes: u64,
        disk: &DiskSources,
        released: bool,
    ) -> Result<(), DeviceError> {
        // A plan that does not fit as a whole is rejected before any part of it is taken.
        let of = |kind| plan.memories.iter().filter(move |memory| memory.kind == kind).map(|memory| memory.size_bytes);
        let heap_bytes = plan.heaps.iter().copied().chain(of(MemoryKind::Placed)).fold(0, u64::saturating_add);
        let host_bytes = of(MemoryKind::HostBlock).fold(staging_bytes, u64::saturating_add);
        self.device.check_room(heap_bytes, host_bytes)?;
        for &size_bytes in &plan.heaps {
            self.heaps.push(self.device.create_heap(size_bytes)?);
        }
        for memory in &plan.memories {
            self.memories.push(match memory.kind {
                MemoryKind::Reservation => self.device.create_reservation(memory.size_bytes)?,
                MemoryKind::Placed => self.device.create_placed(memory.size_bytes)?,
                MemoryKind::HostBlock if released => self.device.create_released_host_block(memory.size_bytes)?,
                MemoryKind::HostBlock => self.device.create_host_block(memory.size_bytes)?,
                MemoryKind::Lent => self.device.create_loan(memory.size_bytes)?,
                MemoryKind::SpillFile => {
                    self.device.create_spill(disk.spill_dir.unwrap_or(Path::new("")), memory.size_bytes)?
                }
                MemoryKind::ModelFiles => match &disk.model_files {
                    Some(bytes) => self.device.create_read_only(bytes.clone())?,
                    None => return Err(DeviceError::Read { reason: "the model's files were not given".to_string() }),
                },
                MemoryKind::Shared(number) => self.shared[number as usize],
            });
        }
        if staging_bytes > 0 {
            let memory = self.device.create_host_block(staging_bytes)?;
            self.staging = Some(Region::new(memory, 0, staging_bytes));
        }
        for stream in &plan.streams {
            self.streams.push(self.device.create_stream(&stream.name, 0)?);
        }
        if self.streams.is_empty() {
            self.streams.push(self.device.create_stream("copy", 0)?);
        }
        for _ in 0..=plan.event_count {
            self.events.push(self.device.create_event()?);
        }
        Ok(())
    }

    /// Takes all memory of the host blocks.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn fill_host(&self, plan: &Plan) -> Result<(), RuntimeError> {
        let blocks = self.memories.iter().zip(&plan.memories);
        let mut blocks = blocks.filter(|(_, memory)| memory.kind == MemoryKind::HostBlock);
        blocks
            .try_for_each(|(&id, _)| self.device.fill_host(id))
            .map_err(|error| RuntimeError::Device { action: "while obtaining what the plan needs", error })
    }

    /// Returns the streams, in the plan's order.
    pub fn streams(&self) -> &[StreamId] {
        &self.streams
    }

    /// The host region for moving contents to and from the device outside of steps.
    pub fn staging(&self) -> Option<Region> {
        self.staging
    }

    /// Gives back the host region for moving contents.
    pub fn give_back_staging(&mut self) {
        if let Some(region) = self.staging.take() {
            self.device.destroy_memory(region.memory);
        }
    }

    /// Returns the device's event for an event of the plan; the number after the plan's last is the executor's own event.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Plan`] if the plan has no such event.
    pub fn event(&self, event: EventId) -> Result<EventId, RuntimeError> {
        look_up(&self.events, event.0, "event")
    }

    /// Returns the device's region for a region of the plan.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Plan`] if the plan has no such memory.
    pub fn region(&self, region: Region) -> Result<Region, RuntimeError> {
        Ok(Region { memory: look_up(&self.memories, region.memory.0, "memory")?, range: region.range })
    }

    /// Swaps the device memories of two of the plan's memories, and returns the device's ids of both before the swap.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Plan`] if the plan has no such memory.
    pub fn exchange(&mut self, one: MemoryId, other: MemoryId) -> Result<[MemoryId; 2], RuntimeError> {
        let ids = [look_up(&self.memories, one.0, "memory")?, look_up(&self.memories, other.0, "memory")?];
        self.memories.swap(one.0 as usize, other.0 as usize);
        Ok(ids)
    }

    /// Returns the device's command for a command of the plan. Generations stay those of the plan.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Plan`] if the command names something that the plan does not list.
    pub fn command(&self, command: &Command) -> Result<Command, RuntimeError> {
        let mut command = command.clone();
        match &mut command {
            Command::Launch { stream, launch } => {
                *stream = self.stream(*stream)?;
                for binding in launch.reads.iter_mut().chain(&mut launch.writes) {
                    binding.region = self.region(binding.region)?;
                }
                if let Some(workspace) = &mut launch.workspace {
                    *workspace = self.region(*workspace)?;
                }
            }
            Command::Copy { stream, from, to } => {
                *stream = self.stream(*stream)?;
                *from = self.region(*from)?;
                *to = self.region(*to)?;
            }
            Command::Fill { stream, region, .. } => {
                *stream = self.stream(*stream)?;
                *region = self.region(*region)?;
            }
            Command::Map { region, heap, .. } => {
                *region = self.region(*region)?;
                *heap = look_up(&self.heaps, heap.0, "heap")?;
            }
            Command::Unmap { region } => *region = self.region(*region)?,
            Command::Barrier { stream } => *stream = self.stream(*stream)?,
            Command::Record { stream, event, .. } | Command::Wait { stream, event, .. } => {
                *stream = self.stream(*stream)?;
                *event = self.event(*event)?;
            }
        }
        Ok(command)
    }

    fn stream(&self, stream: StreamId) -> Result<StreamId, RuntimeError> {
        look_up(&self.streams, stream.0, "stream")
    }

    /// Waits until every stream is idle.
    ///
    /// # Errors
    /// Returns the first failure in any stream.
    pub fn join(&self, action: &'static str) -> Result<(), RuntimeError> {
        let mut first = Ok(());
        for &stream in &self.streams {
            let result = self.device.synchronize(stream).map_err(|error| RuntimeError::Device { action, error });
            first = first.and(result);
        }
        first
    }
}

fn look_up<T: Copy>(ids: &[T], index: u32, what: &str) -> Result<T, RuntimeError> {
    ids.get(index as usize)
        .copied()
        .ok_or_else(|| RuntimeError::Plan { reason: format!("it refers to {what} {index} of {}", ids.len()) })
}

impl Drop for Binding {
    fn drop(&mut self) {
        for &stream in &self.streams {
            // A failed stream must be given back too; its failure was reported where it mattered.
            let _ = self.device.synchronize(stream);
        }
        for &stream in &self.streams {
            self.device.destroy_stream(stream);
        }
        for &event in &self.events {
            self.device.destroy_event(event);
        }
        self.give_back_staging();
        for &memory in self.memories.iter().filter(|memory| !self.shared.contains(memory)) {
            self.device.destroy_memory(memory);
        }
        for &heap in &self.heaps {
            self.device.destroy_heap(heap);
        }
    }
}
