//! Streams as batches with timeline semaphores: what can be submitted when, and what is done.
//!
//! Everything here happens under the device's lock, except for waiting.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;
use forebay_base::{EventId, StreamId};
use forebay_device::{DeviceError, IndexFault, TraceRecord};

use crate::buffer::OwnBlock;
use crate::disk::{BOUNCE_BYTES, Transfer};
use crate::frame::Frame;
use crate::gpu::{Gpu, Queue, Role, failed};
use crate::host_launch::HostLaunch;
use crate::record::Counters;

/// The device's clock and ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When the device was created.
    pub birth: Instant,
    /// The device's ticks at some later time.
    pub ticks: u64,
    pub at: Duration,
    /// The number of bits in which the device counts ticks. After the largest number comes 0: with 36 bits, about once an hour.
    pub bits: u32,
    /// The number of nanoseconds per tick.
    pub period_ns: f64,
}

impl Clock {
    /// Returns the time since birth at which the device's clock showed this many ticks: the latest such time before `now`, or a little
    /// after it, since the two clocks do not run at exactly the same speed.
    pub fn time(&self, ticks: u64, now: Duration) -> Duration {
        let counted = u64::MAX.checked_shr(u64::BITS.saturating_sub(self.bits)).unwrap_or(0);
        let since_ns = (ticks.wrapping_sub(self.ticks) & counted) as f64 * self.period_ns;
        let turn_ns = (counted as f64 + 1.0) * self.period_ns;
        let [at_ns, now_ns] = [self.at, now].map(|time| time.as_nanos() as f64);
        let turns = ((now_ns - at_ns - since_ns) / turn_ns + 1.0 / 16.0).floor();
        let time_ns = at_ns + since_ns + turns * turn_ns;
        Duration::from_nanos(time_ns.max(0.0) as u64)
    }
}

/// What a trace says about a command, with the indices of its time stamps.
pub(crate) struct Mark {
    pub label: Option<u32>,
    pub name: &'static str,
    pub bytes: u64,
    pub stamps: (u32, u32),
}

/// A point in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub stream: StreamId,
    pub value: u64,
}

/// One command buffer.
pub(crate) struct Batch {
    pub frame: Frame,
    pub queue: Queue,
    /// The number of time stamps; the last one is that of its end.
    pub stamps: u32,
    pub marks: Vec<Mark>,
    /// Host memory that its copies use.
    pub _keep: Option<Arc<OwnBlock>>,
}

pub(crate) enum Work {
    Batch(Batch),
    /// Done by a thread of the host.
    OnHost(HostWork),
}

/// What a thread of the host does between batches.
pub(crate) enum HostWork {
    /// Moved by the thread for spill files.
    Transfer(Transfer),
    /// Run by the thread for launches.
    Launch(HostLaunch),
}

/// A piece of work, after which the stream's semaphore has this value.
pub(crate) struct Item {
    pub work: Work,
    pub waits: Vec<Point>,
    pub value: u64,
    pub records: Vec<(EventId, u64)>,
}

/// A submitted item; work on the host has no batch.
struct Running {
    batch: Option<Batch>,
    /// What tells the validation layer that the item is done (see [`Streams::show`]).
    fence: vk::Fence,
    value: u64,
    records: Vec<(EventId, u64)>,
}

/// A stream.
pub(crate) struct Stream {
    semaphore: vk::Semaphore,
    pub role: Role,
    pub turn: usize,
    /// The values of the latest item, the latest one that was submitted, and the latest one that is done.
    pub last: u64,
    submitted: u64,
    done: u64,
    pending: VecDeque<Item>,
    running: VecDeque<Running>,
    /// Whether a thread of the host has the latest item, so that nothing after it is submitted.
    on_host: bool,
    pub counters: Counters,
    /// The host memory through which bytes pass from files to device memory and back, once it has been needed.
    bounce: [Option<Arc<OwnBlock>>; 2],
}

/// A job for a thread of the host.
pub(crate) struct Job {
    pub point: Point,
    pub work: HostWork,
    pub waits: Vec<(vk::Semaphore, u64)>,
}

/// All streams.
pub(crate) struct Streams {
    gpu: Arc<Gpu>,
    streams: BTreeMap<StreamId, Stream>,
    /// Semaphores of streams that no longer exist; later streams continue from their values.
    free: Vec<(vk::Semaphore, u64)>,
    /// Frames of batches that are done.
    frames: Vec<Frame>,
    /// Unused fences.
    fences: Vec<vk::Fence>,
    /// Where generations of events were recorded, if they are not known to have fired.
    records: BTreeMap<EventId, VecDeque<(u64, Point)>>,
}

/// What has been completed.
#[derive(Default)]
pub(crate) struct Done {
    /// Events, with the generation that fired and the time.
    pub fired: Vec<(EventId, u64, Duration)>,
    pub trace: Vec<TraceRecord>,
    /// Indices out of range: one from each dispatch that found any.
    pub index_faults: Vec<IndexFault>,
}

impl Streams {
    pub fn new(gpu: Arc<Gpu>) -> Streams {
        let (streams, records) = (BTreeMap::new(), BTreeMap::new());
        Streams { gpu, streams, free: Vec::new(), frames: Vec::new(), fences: Vec::new(), records }
    }

    pub fn create(&mut self, id: StreamId) -> Result<(), DeviceError> {
        let (semaphore, value) = match self.free.pop() {
            Some(free) => free,
            None => {
                let mut kind =
                    vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE).initial_value(0);
                let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
                // SAFETY: the structure lives through the call.
                let made = unsafe { self.gpu.functions.create_semaphore(&info, None) };
                (made.map_err(failed("creating a stream"))?, 0)
            }
        };
        let turn = self.streams.len();
        let (pending, running) = (VecDeque::new(), VecDeque::new());
        let (last, submitted, done) = (value, value, value);
        let (role, on_host, counters, bounce) = (Role::Copy, false, Counters::default(), Default::default());
        let stream =
            Stream { semaphore, role, turn, last, submitted, done, pending, running, on_host, counters, bounce };
        self.streams.insert(id, stream);
        Ok(())
    }

    /// Removes a stream whose work is all done, or never will be.
    pub fn remove(&mut self, id: StreamId) {
        let Some(stream) = self.streams.remove(&id) else { return };
        // A semaphore that did not reach its last value cannot serve another stream.
        if stream.done == stream.last {
            self.free.push((stream.semaphore, stream.done));
        } else {
            // SAFETY: nothing that was submitted runs: the caller waited for the device, or it is lost.
            unsafe { self.gpu.functions.destroy_semaphore(stream.semaphore, None) };
        }
    }

    pub fn get(&mut self, id: StreamId) -> Result<&mut Stream, DeviceError> {
        self.streams.get_mut(&id).ok_or_else(|| DeviceError::Lost { reason: format!("{id} does not exist") })
    }

    /// Returns the host memory through which a stream's copies between device memory and files pass. Those in one direction come one after
    /// another, even in the same list, and share it. Those in the other direction have their own: they would need a barrier in between.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn bounce(&mut self, id: StreamId, to_disk: bool) -> Result<Arc<OwnBlock>, DeviceError> {
        let gpu = self.gpu.clone();
        let place = &mut self.get(id)?.bounce[usize::from(to_disk)];
        let block = match place.take() {
            Some(block) => block,
            None => Arc::new(OwnBlock::new(&gpu, BOUNCE_BYTES, vk::MemoryPropertyFlags::HOST_CACHED)?),
        };
        Ok(place.insert(block).clone())
    }

    pub fn ids(&self) -> Vec<StreamId> {
        self.streams.keys().copied().collect()
    }

    /// Returns a frame for a queue family.
    pub fn frame(&mut self, family: u32) -> Result<Frame, DeviceError> {
        match self.frames.iter().rposition(|frame| frame.family == family) {
            Some(index) => Ok(self.frames.swap_remove(index)),
            None => Frame::new(&self.gpu, family),
        }
    }

    /// Takes back a frame that was not submitted.
    pub fn put_back(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    /// Notes the point at which a generation is recorded.
    pub fn record(&mut self, event: EventId, generation: u64, point: Point) {
        self.records.entry(event).or_default().push_back((generation, point));
    }

    pub fn forget_event(&mut self, event: EventId) {
        self.records.remove(&event);
    }

    /// Returns the point for which a wait for a generation waits; `None` if it has fired.
    pub fn point_of(&self, event: EventId, generation: u64) -> Option<Point> {
        let recorded = self.records.get(&event)?.iter();
        recorded.filter(|(recorded, _)| *recorded >= generation).map(|(_, point)| *point).next()
    }

    /// Returns whether a point is done.
    pub fn is_done(&self, point: Point) -> bool {
        self.streams.get(&point.stream).is_none_or(|stream| point.value <= stream.done)
    }

    /// Returns the semaphore to wait for until a point is done; `None` if it has not been submitted yet.
    pub fn semaphore(&self, point: Point) -> Option<vk::Semaphore> {
        let stream = self.streams.get(&point.stream)?;
        (point.value <= stream.submitted).then_some(stream.semaphore)
    }

    fn was_submitted(&self, point: Point) -> bool {
        self.streams.get(&point.stream).is_none_or(|stream| point.value <= stream.submitted)
    }

    /// Appends an item to a stream.
    pub fn push(&mut self, id: StreamId, item: Item) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.last = item.value;
            stream.pending.push_back(item);
        }
    }

    /// Submits everything that waits only for what was submitted before, and returns jobs for the other threads.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn pump(&mut self) -> Result<Vec<Job>, DeviceError> {
        let mut jobs = Vec::new();
        let ids = self.ids();
        loop {
            let mut moved = false;
            for &id in &ids {
                while self.is_ready(id) {
                    moved = true;
                    self.submit_first(id, &mut jobs)?;
                }
            }
            if !moved {
                return Ok(jobs);
            }
        }
    }

    fn is_ready(&self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get(&id).filter(|stream| !stream.on_host) else { return false };
        let Some(first) = stream.pending.front() else { return false };
        first.waits.iter().all(|&wait| self.was_submitted(wait))
    }

    fn submit_first(&mut self, id: StreamId, jobs: &mut Vec<Job>) -> Result<(), DeviceError> {
        let Some(Item { work, waits, value, records }) =
            self.streams.get_mut(&id).and_then(|stream| stream.pending.pop_front())
        else {
            return Ok(());
        };
        if self.gpu.validated {
            self.show(&waits)?;
        }
        let mut waits: Vec<(vk::Semaphore, u64)> = waits
            .into_iter()
            .filter(|&wait| !self.is_done(wait))
            .filter_map(|wait| Some((self.semaphore(wait)?, wait.value)))
            .collect();
        let gpu = self.gpu.clone();
        let is_batch = matches!(work, Work::Batch(_));
        let fence = if gpu.validated && is_batch { self.fence()? } else { vk::Fence::null() };
        let stream = self.get(id)?;
        let batch = match work {
            Work::Batch(batch) => {
                submit(&gpu, &batch, &waits, (stream.semaphore, value), fence)?;
                stream.submitted = value;
                Some(batch)
            }
            Work::OnHost(work) => {
                // The thread waits for everything that the stream did before.
                waits.push((stream.semaphore, stream.submitted));
                stream.on_host = true;
                jobs.push(Job { point: Point { stream: id, value }, work, waits });
                None
            }
        };
        stream.running.push_back(Running { batch, fence, value, records });
        Ok(())
    }

    /// Waits on the host for what a batch will wait for on the device, in a way that the validation layer sees: it understands fences but
    /// not timeline semaphores (observed with the layer of 2023), so it would miss the order that these establish.
    fn show(&self, waits: &[Point]) -> Result<(), DeviceError> {
        for wait in waits {
            let Some(stream) = self.streams.get(&wait.stream) else { continue };
            let before = stream.running.iter().filter(|one| one.batch.is_some() && one.value <= wait.value);
            let fences: Vec<vk::Fence> = before.map(|one| one.fence).collect();
            if !fences.is_empty() {
                // SAFETY: the fences were submitted with batches, and are reset only once these are done.
                let waited = unsafe { self.gpu.functions.wait_for_fences(&fences, true, u64::MAX) };
                waited.map_err(failed("waiting for the validation layer"))?;
            }
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<vk::Fence, DeviceError> {
        if let Some(fence) = self.fences.pop() {
            return Ok(fence);
        }
        // SAFETY: the structure lives through the call.
        let made = unsafe { self.gpu.functions.create_fence(&vk::FenceCreateInfo::default(), None) };
        made.map_err(failed("creating a fence"))
    }

    /// Continues a stream after a thread of the host has done its part.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn done_on_host(&mut self, point: Point) -> Result<(), DeviceError> {
        if self.gpu.validated {
            // The thread waited for these with semaphores.
            self.show(&[point])?;
        }
        let gpu = self.gpu.clone();
        let stream = self.get(point.stream)?;
        let info = vk::SemaphoreSignalInfo::default().semaphore(stream.semaphore).value(point.value);
        // SAFETY: all that was submitted to the stream before is done, so that the value grows, and nothing behind it is
        // submitted.
        unsafe { gpu.functions.signal_semaphore(&info) }.map_err(failed("continuing after the host"))?;
        stream.submitted = point.value;
        stream.on_host = false;
        Ok(())
    }

    /// Finds out what is done, and takes back the resources that it needed.
    ///
    /// # Errors
    /// If Vulkan returns an error, in particular for a lost device.
    pub fn retire(&mut self, clock: &Clock) -> Result<Done, DeviceError> {
        let mut done = Done::default();
        for (&id, stream) in &mut self.streams {
            if stream.running.is_empty() {
                continue;
            }
            // SAFETY: the semaphore lives.
            let value = unsafe { self.gpu.functions.get_semaphore_counter_value(stream.semaphore) };
            stream.done = value.map_err(failed("querying the progress of a stream"))?;
            while stream.running.front().is_some_and(|first| first.value <= stream.done) {
                let Some(Running { batch, fence, records, .. }) = stream.running.pop_front() else { break };
                if let (Some(_), true) = (&batch, fence != vk::Fence::null()) {
                    let fences = [fence];
                    // SAFETY: the fence was submitted with the batch, which is done.
                    unsafe {
                        let waited = self.gpu.functions.wait_for_fences(&fences, true, u64::MAX);
                        waited.and_then(|()| self.gpu.functions.reset_fences(&fences)).map_err(failed("waiting"))?;
                    }
                    self.fences.push(fence);
                }
                let now = clock.birth.elapsed();
                let mut end = now;
                if let Some(batch) = batch {
                    let stamps = batch.frame.stamps(batch.stamps)?;
                    let time = |stamp: u32| stamps.get(stamp as usize).map_or(now, |&ticks| clock.time(ticks, now));
                    done.trace.extend(batch.marks.iter().map(|mark| {
                        let [start, end] = [mark.stamps.0, mark.stamps.1].map(time);
                        TraceRecord {
                            stream: id,
                            label: mark.label,
                            name: mark.name,
                            bytes: mark.bytes,
                            // If no one asked for so long that the device's clock began again, nothing ends before it starts.
                            start: start.min(end),
                            end,
                            worker_time: Duration::ZERO,
                        }
                    }));
                    done.index_faults.extend(batch.frame.index_faults());
                    end = batch.stamps.checked_sub(1).map_or(end, time);
                    self.frames.push(batch.frame);
                }
                done.fired.extend(records.into_iter().map(|(event, generation)| (event, generation, end)));
            }
        }
        for (event, generation, _) in &done.fired {
            if let Some(records) = self.records.get_mut(event) {
                records.retain(|(recorded, _)| recorded > generation);
            }
        }
        Ok(done)
    }

    /// Returns the point after everything that a stream was given.
    pub fn end(&self, id: StreamId) -> Option<Point> {
        self.streams.get(&id).map(|stream| Point { stream: id, value: stream.last })
    }

    /// Discards what was not submitted, as if it had been done: it never will be. Nothing may still be running.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn abandon(&mut self) -> Result<(), DeviceError> {
        for stream in self.streams.values_mut() {
            stream.running.clear();
            stream.on_host = false;
            for item in stream.pending.drain(..) {
                if let Work::Batch(batch) = item.work {
                    self.frames.push(batch.frame);
                }
            }
            // SAFETY: the semaphore lives.
            let value = unsafe { self.gpu.functions.get_semaphore_counter_value(stream.semaphore) };
            if value.map_err(failed("querying the progress of a stream"))? < stream.last {
                let info = vk::SemaphoreSignalInfo::default().semaphore(stream.semaphore).value(stream.last);
                // SAFETY: nothing that was submitted signals it any more.
                unsafe { self.gpu.functions.signal_semaphore(&info) }.map_err(failed("restarting streams"))?;
            }
            (stream.submitted, stream.done) = (stream.last, stream.last);
        }
        self.records.clear();
        Ok(())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // SAFETY: the device is idle, and no one knows the semaphores any more.
        unsafe {
            let _ = self.gpu.functions.device_wait_idle();
            let running = self.streams.values().flat_map(|stream| stream.running.iter().map(|one| one.fence));
            for fence in running.chain(self.fences.iter().copied()) {
                self.gpu.functions.destroy_fence(fence, None);
            }
            let used = self.streams.values().map(|stream| stream.semaphore);
            for semaphore in used.chain(self.free.iter().map(|(semaphore, _)| *semaphore)) {
                self.gpu.functions.destroy_semaphore(semaphore, None);
            }
        }
    }
}

fn submit(
    gpu: &Gpu,
    batch: &Batch,
    waits: &[(vk::Semaphore, u64)],
    signal: (vk::Semaphore, u64),
    fence: vk::Fence,
) -> Result<(), DeviceError> {
    let point = |&(semaphore, value): &(vk::Semaphore, u64)| {
        let stages = vk::PipelineStageFlags2::ALL_COMMANDS;
        vk::SemaphoreSubmitInfo::default().semaphore(semaphore).value(value).stage_mask(stages)
    };
    let waits: Vec<_> = waits.iter().map(point).collect();
    let (signals, buffers) =
        ([point(&signal)], [vk::CommandBufferSubmitInfo::default().command_buffer(batch.frame.commands)]);
    let info = vk::SubmitInfo2::default()
        .wait_semaphore_infos(&waits)
        .command_buffer_infos(&buffers)
        .signal_semaphore_infos(&signals);
    // SAFETY: everything lives until the batch is done; the caller holds the lock of the queues.
    unsafe { gpu.functions.queue_submit2(batch.queue.handle, &[info], fence) }.map_err(failed("submitting commands"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_begin_again_keep_counting() {
        let (at, period_ns, seconds) = (Duration::from_secs(1), 52.083, Duration::from_secs);
        for bits in [36, 64] {
            // 36 bits are full a moment after the clocks were compared.
            let clock = Clock { birth: Instant::now(), ticks: (1 << 36) - 1000, at, bits, period_ns };
            for passed in [0, 1, 3000, 4000, 400_000] {
                let all = u128::from(clock.ticks) + (passed as f64 * 1e9 / period_ns) as u128;
                let ticks = (all & ((1u128 << bits) - 1)) as u64;
                // Asked at once, a while later, or by a clock that is a little slow.
                let moment = at + seconds(passed);
                for now in [moment, moment + seconds(1800), moment.saturating_sub(seconds(20))] {
                    let found = clock.time(ticks, now).as_secs_f64();
                    assert!((found - moment.as_secs_f64()).abs() < 1e-3, "{bits} bits, {passed} s: {found}");
                }
            }
        }
    }

    #[test]
    fn times_on_queues_without_time_stamps_are_when_they_are_asked_for() {
        let (birth, now) = (Instant::now(), Duration::from_secs(7));
        for (period_ns, expected) in [(1.0, now), (0.0, Duration::ZERO)] {
            let clock = Clock { birth, ticks: 123, at: Duration::from_secs(1), bits: 0, period_ns };
            let found = clock.time(98_765, now);
            assert!(found.abs_diff(expected) < Duration::from_micros(1), "{found:?}");
        }
    }
}
