//! Work on the pool: launches, fills, and copies, which are cut into short tasks so that a kernel's thread that helps with
//! one is soon back.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::{Binding, Launch, TensorDesc};
use forebay_queue::{Finish, Origin, Pool};

use super::copying;
use super::disk::Transfer;
use super::kernels::{self, View};
use super::memory::Address;
use super::shared::{Shared, Traced};
use crate::device::DeviceError;

/// Bytes that one task of a copy moves.
const COPY_TASK_BYTES: usize = 1 << 20;

/// A command that touches bytes, with its addresses.
pub(super) enum Work {
    Launch {
        launch: Box<Launch>,
        reads: Vec<Address>,
        writes: Vec<Address>,
        scratch: Option<(TensorDesc, Address)>,
    },
    Copy {
        from: Address,
        to: Address,
        bytes: usize,
        direction: Direction,
    },
    /// A copy from or to a spill file.
    Transfer(Transfer),
    Fill {
        to: Address,
        bytes: usize,
        pattern: [u8; 4],
    },
}

/// Which way a copy goes; those that cross take the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Inside,
    ToDevice,
    FromDevice,
}

impl Pool for Shared {
    type Work = Work;
    type Failure = DeviceError;

    fn start(self: &Arc<Shared>, origin: Origin, work: Work, finish: Finish<DeviceError>) {
        let shared = self.clone();
        match work {
            Work::Copy { from, to, bytes, direction } => {
                let (moved, start, lane_time) = (0, None, Duration::ZERO);
                let copy = CopyChain { origin, from, to, bytes, moved, direction, start, lane_time, shared, finish };
                self.spawn(origin.priority, move || copy.step());
            }
            Work::Transfer(transfer) => transfer.start(origin, shared, finish),
            Work::Fill { to, bytes, pattern } => self.spawn(origin.priority, move || {
                let start = Instant::now();
                fill(to, bytes, pattern);
                shared.trace(origin.stream, start, Traced { name: "fill", bytes: bytes as u64, ..Traced::default() });
                drop(finish);
            }),
            Work::Launch { launch, reads, writes, scratch } => self.spawn(origin.priority, move || {
                let start = Instant::now();
                let attempt = AssertUnwindSafe(|| run(&launch, &reads, &writes, scratch.as_ref()));
                let outcome = catch_unwind(attempt).unwrap_or_else(|panic| {
                    let reason = format!("kernel {} panicked: {}", launch.kernel.name(), panic_text(&*panic));
                    Err(DeviceError::Lost { reason })
                });
                match outcome {
                    Ok(()) => {
                        let (label, name) = (Some(launch.label), launch.kernel.name());
                        shared.trace(origin.stream, start, Traced { label, name, ..Traced::default() });
                    }
                    Err(failure) => finish.fail(failure),
                }
                drop(finish);
            }),
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

fn views<'a>(bindings: &'a [Binding], addresses: &[Address]) -> Vec<View<'a>> {
    let pairs = bindings.iter().zip(addresses);
    pairs.map(|(binding, address)| View { desc: &binding.desc, pointer: address.0 }).collect()
}

fn run(
    launch: &Launch,
    reads: &[Address],
    writes: &[Address],
    scratch: Option<&(TensorDesc, Address)>,
) -> Result<(), DeviceError> {
    let (reads, writes) = (views(&launch.reads, reads), views(&launch.writes, writes));
    let scratch = scratch.map(|(desc, address)| View { desc, pointer: address.0 });
    // SAFETY: `submit` resolved every region inside live, mapped memory of at least the descriptor's size, and the contract
    // of commands gives this launch its operands for its duration.
    unsafe { kernels::run(&launch.kernel, &reads, &writes, scratch) }
}

fn fill(to: Address, bytes: usize, pattern: [u8; 4]) {
    // SAFETY: `submit` resolved the region; the contract of commands makes this fill its only user.
    let target = unsafe { std::slice::from_raw_parts_mut(to.0, bytes) };
    let (words, rest) = target.split_at_mut(bytes / 4 * 4);
    words.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&pattern));
    rest.copy_from_slice(&pattern[..rest.len()]);
}

/// A copy as a chain of short tasks, each spawned by the one before.
struct CopyChain {
    origin: Origin,
    from: Address,
    to: Address,
    bytes: usize,
    moved: usize,
    direction: Direction,
    start: Option<Instant>,
    /// For how long its tasks ran.
    lane_time: Duration,
    shared: Arc<Shared>,
    finish: Finish<DeviceError>,
}

impl CopyChain {
    fn step(mut self) {
        let now = Instant::now();
        self.start.get_or_insert(now);
        let piece = COPY_TASK_BYTES.min(self.bytes - self.moved);
        // SAFETY: `submit` resolved both regions and found them apart; the contract of commands gives this copy its bytes.
        unsafe { copying::copy(self.from.0.add(self.moved), self.to.0.add(self.moved), piece) };
        self.moved += piece;
        self.lane_time += now.elapsed();
        let shared = self.shared.clone();
        match (&shared.links, self.direction) {
            (Some([to_device, _]), Direction::ToDevice) => to_device.pass(piece, now, Box::new(move || self.go_on())),
            (Some([_, from_device]), Direction::FromDevice) => {
                from_device.pass(piece, now, Box::new(move || self.go_on()));
            }
            _ => self.go_on(),
        }
    }

    fn go_on(self) {
        if self.moved < self.bytes {
            let (shared, priority) = (self.shared.clone(), self.origin.priority);
            return shared.go_on(priority, move || self.step());
        }
        if let Some(start) = self.start {
            let (bytes, lane_time) = (self.bytes as u64, self.lane_time);
            self.shared.trace(self.origin.stream, start, Traced { name: "copy", bytes, lane_time, label: None });
        }
        drop(self.finish);
    }
}
