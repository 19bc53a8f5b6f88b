//! Work on the pool: launches, fills and copies. Copies are cut into pieces, so that several threads can move them and a thread that comes
//! from a kernel soon returns to it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_base::{Binding, DataType, Kernel, Launch, Region, TensorDesc};
use forebay_queue::{Finish, Origin, Pool};

use super::copying;
use super::disk::Transfer;
use super::exchange;
use super::kernels::{self, View};
use super::memory::Address;
use super::panics::caught;
use super::shared::Shared;
use super::tracer::Traced;
use crate::device::{DeviceError, IndexFault};

/// The number of bytes that one task of a copy moves.
const COPY_TASK_BYTES: usize = 1 << 20;
/// The maximum number of threads that move one copy at once: a few are enough to keep memory busy.
const COPY_THREADS_MAX: usize = 4;

/// Work from a submitted list.
pub(super) struct Submitted {
    pub work: Work,
    /// Whether the thread that starts it does it alone, instead of the pool.
    pub at_once: bool,
}

/// A command that touches bytes, with its addresses.
pub(super) enum Work {
    Launch {
        launch: Box<Launch>,
        reads: Vec<Address>,
        writes: Vec<Address>,
        workspace: Option<(TensorDesc, Address)>,
    },
    Copy {
        from: Address,
        to: Address,
        bytes: usize,
        direction: CopyDirection,
    },
    /// A copy from or to a file.
    Transfer(Transfer),
    Fill {
        to: Address,
        bytes: usize,
        pattern: [u8; 4],
    },
}

/// The direction of a copy; copies between host and device cross the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyDirection {
    Inside,
    ToDevice,
    FromDevice,
}

impl Pool for Shared {
    type Work = Submitted;
    type Failure = DeviceError;

    fn start(self: &Arc<Shared>, origin: Origin, submitted: Submitted, finish: Finish<DeviceError>) {
        let (shared, at_once) = (self.clone(), submitted.at_once);
        match submitted.work {
            Work::Copy { from, to, bytes, direction } => {
                let (taken, start, worker_ns) = (AtomicUsize::new(0), OnceLock::new(), AtomicU64::new(0));
                let pieces = Pieces { origin, from, to, bytes, direction, taken, start, worker_ns, shared, finish };
                if at_once {
                    Arc::new(pieces).step();
                } else {
                    pieces.spawn();
                }
            }
            Work::Transfer(transfer) => {
                // A file is registered only after the disk has started.
                if let Some(disk) = shared.disk.get() {
                    transfer.start(disk, origin, shared.tracer.clone(), finish);
                }
            }
            Work::Fill { to, bytes, pattern } => self.run(origin.priority, at_once, move || {
                let start = Instant::now();
                fill(to, bytes, pattern);
                shared.tracer.record(
                    origin.stream,
                    start,
                    Traced { name: "fill", bytes: bytes as u64, ..Traced::default() },
                );
                drop(finish);
            }),
            Work::Launch { launch, reads, writes, workspace } => self.run(origin.priority, at_once, move || {
                if let Kernel::Exchange(own) = &launch.kernel
                    && own.sends.len() > 1
                {
                    let operands = [&views(&launch.reads, &reads)[..], &views(&launch.writes, &writes)];
                    return exchange::start(&shared, origin, (&launch, own), operands, finish);
                }
                let start = Instant::now();
                // SAFETY: `submit` resolved every region inside live, mapped memory of at least the descriptor's size, and the
                // contract of commands gives this launch its operands for its duration.
                let outcome = unsafe { run(&launch, &reads, &writes, workspace.as_ref()) };
                match outcome {
                    Ok(fault) => {
                        fault.into_iter().for_each(|fault| shared.note_index_fault(fault));
                        let (label, name) = (Some(launch.label), launch.kernel.name());
                        shared.tracer.record(origin.stream, start, Traced { label, name, ..Traced::default() });
                    }
                    Err(failure) => finish.fail(failure),
                }
                drop(finish);
            }),
        }
    }
}

impl Shared {
    /// Runs a job on the calling thread alone, or on the pool.
    fn run(self: &Arc<Shared>, priority: i32, at_once: bool, job: impl FnOnce() + Send + 'static) {
        if at_once {
            kernels::alone(job);
        } else {
            self.spawn(priority, job);
        }
    }
}

fn views<'a>(bindings: &'a [Binding], addresses: &[Address]) -> Vec<View<'a>> {
    let pairs = bindings.iter().zip(addresses);
    pairs.map(|(binding, address)| View { desc: &binding.desc, pointer: address.0 }).collect()
}

/// Returns the descriptor of a launch's workspace in its region; `None` if the region is empty. A descriptor rounds up to words, so the
/// kernel does not use a partial word at the end of the region.
pub(super) fn workspace_desc(region: &Region) -> Result<Option<TensorDesc>, DeviceError> {
    let words = region.range.len() / 4;
    let desc = (words > 0).then(|| TensorDesc::packed(DataType::UInt8, &[words * 4])).transpose();
    desc.map_err(|error| DeviceError::Lost { reason: error.to_string() })
}

/// Runs a launch on the current pool of threads, or on the calling thread within [`kernels::alone`]. Returns the first index out of range,
/// if there is any.
///
/// # Safety
/// Each address must be that of live memory of at least its descriptor's size, aligned to 16 bytes, which belongs to the launch for its
/// duration, according to the contract of commands.
pub(super) unsafe fn run(
    launch: &Launch,
    reads: &[Address],
    writes: &[Address],
    workspace: Option<&(TensorDesc, Address)>,
) -> Result<Option<IndexFault>, DeviceError> {
    let (reads, writes) = (views(&launch.reads, reads), views(&launch.writes, writes));
    let workspace = workspace.map(|(desc, address)| View { desc, pointer: address.0 });
    // SAFETY: the caller's promises.
    caught(format_args!("kernel {}", launch.kernel.name()), || unsafe {
        let fault = kernels::index_fault(&launch.kernel, &reads, &writes)?;
        kernels::run(&launch.kernel, &reads, &writes, workspace)?;
        Ok(fault.map(|(element, index, limit)| IndexFault {
            label: launch.label,
            element: element as u64,
            index,
            limit,
        }))
    })
}

fn fill(to: Address, bytes: usize, pattern: [u8; 4]) {
    // SAFETY: `submit` resolved the region; the contract of commands makes this fill its only user.
    let target = unsafe { std::slice::from_raw_parts_mut(to.0, bytes) };
    let (words, rest) = target.split_at_mut(bytes / 4 * 4);
    words.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&pattern));
    rest.copy_from_slice(&pattern[..rest.len()]);
}

/// A copy in pieces, which several threads move at once if they have nothing else to do: work that waits for a copy leaves them idle.
struct Pieces {
    origin: Origin,
    from: Address,
    to: Address,
    bytes: usize,
    direction: CopyDirection,
    /// The number of bytes that some thread has moved or is about to move.
    taken: AtomicUsize,
    /// The time at which the first piece started.
    start: OnceLock<Instant>,
    /// How long pieces kept threads busy, in nanoseconds.
    worker_ns: AtomicU64,
    shared: Arc<Shared>,
    finish: Finish<DeviceError>,
}

impl Pieces {
    /// Starts as many chains of pieces as there are threads for them.
    fn spawn(self) {
        let chains = self.bytes.div_ceil(COPY_TASK_BYTES).clamp(1, self.shared.workers().min(COPY_THREADS_MAX));
        let (shared, priority) = (self.shared.clone(), self.origin.priority);
        let pieces = Arc::new(self);
        for _ in 1..chains {
            let chain = pieces.clone();
            shared.spawn_helper_task(priority, move || chain.step());
        }
        // No reference to the copy stays here: it ends on the thread that moves its last piece.
        shared.spawn_helper_task(priority, move || pieces.step());
    }

    /// Moves piece after piece while there are pieces and nothing more urgent to do. Over a link that is slowed down, it moves one, and the
    /// next one once that has passed.
    fn step(self: Arc<Pieces>) {
        let shared = self.shared.clone();
        let link = shared.links.as_ref().and_then(|[to_device, from_device]| match self.direction {
            CopyDirection::ToDevice => Some(to_device),
            CopyDirection::FromDevice => Some(from_device),
            CopyDirection::Inside => None,
        });
        loop {
            let now = Instant::now();
            self.start.get_or_init(|| now);
            let start = self.taken.fetch_add(COPY_TASK_BYTES, Ordering::Relaxed).min(self.bytes);
            let piece = COPY_TASK_BYTES.min(self.bytes - start);
            // SAFETY: `submit` resolved both regions and found them apart; the contract of commands gives this copy its
            // bytes, and the counter gives this thread its piece.
            unsafe { copying::copy(self.from.0.add(start), self.to.0.add(start), piece) };
            self.worker_ns.fetch_add(now.elapsed().as_nanos() as u64, Ordering::Relaxed);
            if let Some(link) = link {
                return link.pass(piece, now, Box::new(move || self.go_on()));
            }
            if !self.is_left() || shared.is_urgent(self.origin.priority) {
                return self.go_on();
            }
        }
    }

    /// Returns whether there are pieces that no thread has taken.
    fn is_left(&self) -> bool {
        self.taken.load(Ordering::Relaxed) < self.bytes
    }

    fn go_on(self: Arc<Pieces>) {
        if self.is_left() {
            let (shared, priority) = (self.shared.clone(), self.origin.priority);
            return shared.go_on(priority, move || self.step());
        }
        // The task with the last piece ends the copy.
        let Some(copy) = Arc::into_inner(self) else { return };
        let (bytes, worker_time) = (copy.bytes as u64, Duration::from_nanos(copy.worker_ns.into_inner()));
        if let Some(&start) = copy.start.get() {
            copy.shared.tracer.record(
                copy.origin.stream,
                start,
                Traced { name: "copy", bytes, worker_time, label: None },
            );
        }
        drop(copy.finish);
    }
}
