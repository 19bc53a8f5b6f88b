//! Chaos: any device, with the most permissive legal reordering, so that a missing barrier or wait leads to a wrong result.
//!
//! Submitted commands are held back as long as no one waits for them and more keep coming. Then they run on the wrapped device, one or
//! several at a time. The next ones are chosen at random (with a preference for the latest) among all that the contract of commands allows
//! to start. A consumer that is not ordered after its producer soon runs before it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_base::{Command, EventId, StreamId};
use forebay_queue::{Events, QueueError};

use crate::device::{Device, DeviceError};
use crate::forward;

/// How long commands are held back to wait for others.
const HOLD: Duration = Duration::from_millis(1);
/// The number of new commands after which some run in any case.
const HELD_MAX: u64 = 4096;
/// The maximum number of commands that run at once.
const BATCH_MAX: u64 = 4;

/// A device that reorders commands wherever it may.
pub struct ChaosDevice {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
    scheduler: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The unfinished commands of each stream, in order. The wrapped device knows the stream by the same id.
    streams: BTreeMap<StreamId, Vec<Pending>>,
    events: Events,
    /// The time at which the device was created.
    birth: Instant,
    failure: Option<DeviceError>,
    random: u64,
    /// The number of commands submitted so far.
    submitted: u64,
    /// The value of `submitted` when the scheduler last stopped holding commands back.
    released: u64,
    /// The number of threads that are waiting for something.
    waiting: u32,
    next_event: u32,
    closing: bool,
}

struct Pending {
    command: Command,
    /// Increases with every command submitted.
    number: u64,
    done: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(random: u64) -> State {
        State {
            streams: BTreeMap::new(),
            events: Events::default(),
            birth: Instant::now(),
            failure: None,
            random,
            submitted: 0,
            released: 0,
            waiting: 0,
            next_event: 0,
            closing: false,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    /// Returns whether commands are still held back to wait for more.
    fn holds(&self) -> bool {
        let arrived = self.submitted - self.released;
        self.waiting == 0 && !self.closing && arrived > 0 && arrived < HELD_MAX
    }

    /// Passes every barrier, wait and record that can be passed, and returns the work that may start, by stream and index.
    fn settle(&mut self) -> Vec<(StreamId, usize)> {
        loop {
            let mut ready = Vec::new();
            let mut fired = false;
            let now = self.birth.elapsed();
            for (&stream, pending) in &mut self.streams {
                fired |= scan(stream, pending, &mut self.events, now, &mut ready);
                let finished = pending.iter().take_while(|item| item.done).count();
                pending.drain(..finished);
                ready.iter_mut().filter(|(of, _)| *of == stream).for_each(|(_, index)| *index -= finished);
            }
            if !fired {
                return ready;
            }
        }
    }

    /// Chooses what runs next among the work that may start: one command half of the time, otherwise several at once. Each is the latest
    /// submitted half of the time, otherwise any.
    fn choose(&mut self, mut ready: Vec<(StreamId, usize)>) -> Vec<(u64, Command)> {
        let count = if self.below(2) == 0 { 1 } else { 1 + self.below(BATCH_MAX) };
        let mut chosen = Vec::new();
        while !ready.is_empty() && (chosen.len() as u64) < count {
            let latest = (0..ready.len()).max_by_key(|&i| self.streams[&ready[i].0][ready[i].1].number);
            let any = self.below(ready.len() as u64) as usize;
            let place = latest.filter(|_| self.below(2) == 0).unwrap_or(any);
            let (stream, index) = ready.swap_remove(place);
            let item = &self.streams[&stream][index];
            chosen.push((item.number, item.command.clone()));
        }
        chosen
    }

    fn finish(&mut self, stream: StreamId, number: u64) {
        let pending = self.streams.get_mut(&stream).into_iter().flatten();
        pending.filter(|item| item.number == number).for_each(|item| item.done = true);
    }
}

/// Goes through the commands of one stream from the front; returns whether any event fired.
fn scan(
    stream: StreamId,
    pending: &mut [Pending],
    events: &mut Events,
    now: Duration,
    ready: &mut Vec<(StreamId, usize)>,
) -> bool {
    let (mut all_done, mut fired) = (true, false);
    for (index, item) in pending.iter_mut().enumerate() {
        if item.done {
            continue;
        }
        match item.command {
            Command::Barrier { .. } if all_done => item.done = true,
            Command::Barrier { .. } => break,
            Command::Record { event, generation, .. } => {
                if all_done {
                    events.fire(event, generation, now);
                    (item.done, fired) = (true, true);
                }
            }
            Command::Wait { event, generation, .. } => {
                if events.fired(event) < generation {
                    break;
                }
                item.done = true;
            }
            _ => {
                ready.push((stream, index));
                all_done = false;
            }
        }
    }
    fired
}

impl ChaosDevice {
    /// Wraps a device. The same seed leads to the same choices if the same commands are submitted between two waits.
    ///
    /// # Errors
    /// Returns an error if the system refuses a thread.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Result<ChaosDevice, DeviceError> {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let shared = Arc::new(Shared { state: Mutex::new(State::new(random)), changed: Condvar::new() });
        let (device, scheduled) = (inner.clone(), shared.clone());
        let scheduler = std::thread::Builder::new()
            .name("chaos".to_string())
            .spawn(move || schedule(&*device, &scheduled))
            .map_err(|error| DeviceError::Lost { reason: error.to_string() })?;
        Ok(ChaosDevice { inner, shared, scheduler: Some(scheduler) })
    }

    /// Waits until `finished` holds or the device has failed.
    fn wait_until(&self, finished: impl Fn(&State) -> bool) -> Result<(), DeviceError> {
        let mut state = self.shared.lock();
        state.waiting += 1;
        self.shared.changed.notify_all();
        while state.failure.is_none() && !finished(&state) {
            state = self.shared.wait(state);
        }
        state.waiting -= 1;
        state.failure.clone().map_or(Ok(()), Err)
    }
}

/// Runs held commands until the device is dropped and nothing more can start.
fn schedule(device: &dyn Device, shared: &Shared) {
    let mut state = shared.lock();
    loop {
        let ready = state.settle();
        shared.changed.notify_all();
        if ready.is_empty() || state.failure.is_some() {
            if state.closing {
                return;
            }
            state = shared.wait(state);
            continue;
        }
        if state.holds() {
            let submitted = state.submitted;
            let held = shared.changed.wait_timeout(state, HOLD);
            let timeout;
            (state, timeout) = held.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() && state.submitted == submitted {
                state.released = submitted;
            }
            continue;
        }
        state.released = state.submitted;
        let chosen = state.choose(ready);
        let delay = Duration::from_micros(if state.below(8) == 0 { state.below(200) } else { 0 });
        drop(state);
        std::thread::sleep(delay);
        let outcome = run(device, &chosen);
        state = shared.lock();
        if let Err(failure) = outcome {
            state.failure.get_or_insert(failure);
        }
        for (number, command) in chosen {
            command.stream().into_iter().for_each(|stream| state.finish(stream, number));
        }
    }
}

/// Runs commands together, each in its own stream, and waits for all of them, even if one fails.
fn run(device: &dyn Device, chosen: &[(u64, Command)]) -> Result<(), DeviceError> {
    let commands: Vec<Command> = chosen.iter().map(|(_, command)| command.clone()).collect();
    device.submit(&commands)?;
    let mut outcome = Ok(());
    for stream in commands.iter().filter_map(Command::stream) {
        outcome = outcome.and(device.synchronize(stream));
    }
    outcome
}

impl Device for ChaosDevice {
    forward! {
        inner: limits workspace_bytes host_workspace_bytes check_room create_heap destroy_heap create_reservation create_placed
        create_host_block create_released_host_block release_host allocate_late fill_host create_spill create_read_only
        takes_loans create_loan lend give_back destroy_memory write_host read_host join take_index_fault usage set_trace take_trace
    }

    fn create_stream(&self, name: &str, priority: i32) -> Result<StreamId, DeviceError> {
        let id = self.inner.create_stream(name, priority)?;
        self.shared.lock().streams.insert(id, Vec::new());
        Ok(id)
    }

    fn destroy_stream(&self, stream: StreamId) {
        // After a failure, commands are left that will never run.
        let _ = self.synchronize(stream);
        self.shared.lock().streams.remove(&stream);
        self.inner.destroy_stream(stream);
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let mut state = self.shared.lock();
        state.next_event += 1;
        let id = EventId(state.next_event);
        state.events.add(id);
        Ok(id)
    }

    fn destroy_event(&self, event: EventId) {
        self.shared.lock().events.remove(event);
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        let mut state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let unknown = |stream: &StreamId| !state.streams.contains_key(stream);
        if let Some(stream) = commands.iter().filter_map(Command::stream).find(unknown) {
            return Err(QueueError::NoStream { stream }.into());
        }
        for command in commands.iter().filter(|command| command.stream().is_none()) {
            self.inner.submit(std::slice::from_ref(command))?;
        }
        state.events.admit(commands)?;
        for command in commands {
            state.submitted += 1;
            let (number, list) = (state.submitted, command.stream());
            let list = list.and_then(|stream| state.streams.get_mut(&stream));
            list.into_iter().for_each(|list| list.push(Pending { command: command.clone(), number, done: false }));
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        let finished = |state: &State| state.streams.get(&stream).is_none_or(|list| list.iter().all(|item| item.done));
        self.wait_until(finished)
    }

    fn recover(&self) -> Result<(), DeviceError> {
        self.inner.recover()?;
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        if state.failure.take().is_some() {
            // Held commands are skipped; their events fire, so that no one waits for them in vain.
            let now = state.birth.elapsed();
            for item in state.streams.values_mut().flat_map(|pending| pending.drain(..)) {
                if let Command::Record { event, generation, .. } = item.command {
                    state.events.fire(event, generation, now);
                }
            }
        }
        Ok(())
    }

    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        self.wait_until(|state| state.events.fired(event) >= generation)
    }

    fn query_event(&self, event: EventId) -> u64 {
        self.shared.lock().events.fired(event)
    }

    fn event_time(&self, event: EventId, generation: u64) -> Option<Duration> {
        self.shared.lock().events.time(event, generation)
    }
}

impl Drop for ChaosDevice {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(scheduler) = self.scheduler.take() {
            let _ = scheduler.join();
        }
    }
}
