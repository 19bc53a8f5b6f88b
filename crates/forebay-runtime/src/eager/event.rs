//! Events: points in streams that others can wait for, and that can measure time.

use std::fmt;

use forebay_base::Command;
use forebay_device::DeviceError;
use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Mutex, MutexGuard};
use forebay_sync::race::HostAction;

use super::batch::Batch;
use super::context::Context;
use super::stream::Stream;
use super::timeline::QueueId;
use super::timers::{Found, Timer};
use crate::error::RuntimeError;

/// A point in a stream, which fires when everything submitted before it is complete. It can be recorded repeatedly; a wait is for the
/// latest record. An event uses none of the device's events, unless it measures time.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_runtime::eager::{Context, ContextOptions, Event};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let (start, end) = (Event::new(&context, true), Event::new(&context, true));
/// start.record()?;
/// end.record()?;
/// end.synchronize()?;
/// assert!(start.elapsed_time(&end)? >= 0.0);
/// # Ok(())
/// # }
/// ```
pub struct Event {
    context: Context,
    timing: bool,
    record: Mutex<Option<Record>>,
}

/// Where an event was last recorded.
#[derive(Clone, Copy)]
struct Record {
    queue: QueueId,
    generation: u64,
    timer: Option<Timer>,
}

fn failed(error: DeviceError) -> RuntimeError {
    RuntimeError::Device { action: "while recording an event", error }
}

impl Event {
    /// Creates an event that is not recorded yet. With `timing`, it measures when it fires.
    pub fn new(context: &Context, timing: bool) -> Event {
        Event { context: context.clone(), timing, record: Mutex::default() }
    }

    /// Records the event in the current stream.
    ///
    /// # Errors
    /// As for [`Event::record_on`].
    pub fn record(&self) -> Result<(), RuntimeError> {
        self.record_on(&self.context.current_stream())
    }

    /// Records the event in a stream.
    ///
    /// # Errors
    /// Fails if the stream belongs to another context, if too many events measure time, or if the device reports an error.
    pub fn record_on(&self, stream: &Stream) -> Result<(), RuntimeError> {
        stream.check_context(&self.context, "an event and a stream")?;
        let timer = if self.timing { Some(self.take_timer()?) } else { None };
        let mut state = self.context.shared().lock();
        let mut batch = Batch::default();
        if let Some(Timer { event, generation }) = timer {
            batch.order(Command::Record { stream: state.stream(stream.queue()), event, generation });
        }
        let generation = state.record(stream.queue(), &mut batch);
        self.context.shared().submit(&mut state, &batch)?;
        *self.last() = Some(Record { queue: stream.queue(), generation, timer });
        Ok(())
    }

    /// Takes a timer to record, in exchange for the one that the event has. At the limit, waits for a timer that is no longer needed.
    fn take_timer(&self) -> Result<Timer, RuntimeError> {
        self.give_timer_back();
        loop {
            let mut state = self.context.shared().lock();
            match state.timers.take(&**self.context.device()).map_err(failed)? {
                Found::Timer(timer, seen) => {
                    if let Some(Timer { event, generation }) = seen {
                        state.note_host(HostAction::WaitEvent { event, generation });
                    }
                    return Ok(timer);
                }
                Found::WaitFor(timer) => {
                    drop(state);
                    self.context.device().wait_event(timer.event, timer.generation).map_err(failed)?;
                }
                Found::None => return Err(RuntimeError::EventLimit { limit: state.timers.limit() }),
            }
        }
    }

    /// Makes later work of the current stream start after the event's latest record has fired.
    ///
    /// # Errors
    /// As for [`Event::wait_on`].
    pub fn wait(&self) -> Result<(), RuntimeError> {
        self.wait_on(&self.context.current_stream())
    }

    /// Makes later work of a stream start after the event's latest record has fired.
    ///
    /// # Errors
    /// Fails if the event was never recorded, if the stream belongs to another context, or if the device reports an error.
    pub fn wait_on(&self, stream: &Stream) -> Result<(), RuntimeError> {
        stream.check_context(&self.context, "an event and a stream")?;
        let record = self.recorded()?;
        let mut state = self.context.shared().lock();
        let mut batch = Batch::default();
        state.wait(stream.queue(), record.queue, record.generation, &mut batch);
        self.context.shared().submit(&mut state, &batch)
    }

    /// Whether the event's latest record has fired. Does not wait.
    ///
    /// # Errors
    /// Fails if the event was never recorded.
    pub fn query(&self) -> Result<bool, RuntimeError> {
        let record = self.recorded()?;
        let mut state = self.context.shared().lock();
        Ok(self.context.shared().query(&mut state, record.queue, record.generation))
    }

    /// Waits on the host until the event's latest record has fired.
    ///
    /// # Errors
    /// Fails if the event was never recorded, if the device fails or has failed earlier, or if an index is out of range.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        let record = self.recorded()?;
        self.context.shared().wait_for_results(record.queue, record.generation)
    }

    /// The milliseconds from this event's latest record to that of `end`; negative if `end` fired first.
    ///
    /// # Errors
    /// Fails if an event has no timing, was never recorded or has not fired yet, or if the events belong to different contexts.
    pub fn elapsed_time(&self, end: &Event) -> Result<f64, RuntimeError> {
        if !self.context.is(&end.context) {
            return Err(RuntimeError::OtherContext { what: "two events" });
        }
        let time = |event: &Event| {
            let timer = event.recorded()?.timer.ok_or(RuntimeError::NoTiming)?;
            let time = event.context.device().event_time(timer.event, timer.generation);
            time.ok_or(RuntimeError::NotComplete)
        };
        Ok((time(end)?.as_secs_f64() - time(self)?.as_secs_f64()) * 1e3)
    }

    fn give_timer_back(&self) {
        let timer = self.last().as_mut().and_then(|record| record.timer.take());
        if let Some(timer) = timer {
            self.context.shared().lock().timers.give_back(timer);
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Record>> {
        lock(&self.record)
    }

    fn recorded(&self) -> Result<Record, RuntimeError> {
        (*self.last()).ok_or(RuntimeError::NeverRecorded)
    }
}

impl Stream {
    /// Creates an event without timing and records it in this stream.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn record_event(&self) -> Result<Event, RuntimeError> {
        let event = Event::new(self.context(), false);
        event.record_on(self)?;
        Ok(event)
    }

    /// Makes later work of this stream start after the event's latest record has fired.
    ///
    /// # Errors
    /// Fails if the event was never recorded or belongs to another context, or if the device reports an error.
    pub fn wait_event(&self, event: &Event) -> Result<(), RuntimeError> {
        event.wait_on(self)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.give_timer_back();
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.last() {
            Some(record) => write!(f, "Event(record {} of stream {})", record.generation, record.queue),
            None => f.write_str("Event(never recorded)"),
        }
    }
}
