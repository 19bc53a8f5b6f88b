//! The way to spill files and back.
//!
//! Bytes pass through buffers, piece by piece: a thread of the pool copies between memory and a buffer, as with every copy,
//! and a thread of the direction's own reads or writes the file, which mostly means to wait: a worker that waited for a disk
//! would be missing to the kernels. While one piece is on its way to the disk, the next is being copied. The buffers bound
//! what a direction holds, however many copies are under way; copies take them in turn.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex, OnceLock};
use std::thread;
use std::time::Instant;

use forebay_queue::{Finish, Origin};

use super::link::Pace;
use super::memory::Address;
use super::shared::{lock, Shared};
use super::spill_file::{SpillFile, BLOCK_BYTES};
use super::sys::AddressRange;
use super::HostOptions;
use crate::device::DeviceError;

/// Bytes of a buffer: the most that is read or written at once.
const BUFFER_BYTES: u64 = 1 << 20;
/// Buffers of each direction.
const BUFFERS_PER_DIRECTION: u64 = 2;
/// Host memory that a disk takes: the buffers of both directions, and for each one a block for what lies beside a piece.
pub(super) const DISK_BYTES: u64 = 2 * (BUFFERS_PER_DIRECTION * BUFFER_BYTES + BLOCK_BYTES);

/// The threads and buffers of both directions. The threads end when it is dropped.
pub(super) struct Disk {
    from_disk: Lane,
    to_disk: Lane,
}

/// One direction.
struct Lane {
    buffers: Mutex<Buffers>,
    jobs: mpsc::Sender<Job>,
}

#[derive(Default)]
struct Buffers {
    free: Vec<AddressRange>,
    waiting: VecDeque<Waiting>,
}

/// What is done with a buffer as soon as there is one.
type Waiting = Box<dyn FnOnce(AddressRange) + Send>;
/// What the thread of a direction does.
type Job = Box<dyn FnOnce(&mut Drive) + Send>;

/// What the thread of a direction has to itself.
struct Drive {
    pace: Option<Pace>,
    /// A block for what lies beside a piece that does not fill its blocks.
    edge: AddressRange,
    /// How many pieces are written before a write fails, for tests.
    writes_left: Option<u64>,
}

impl Disk {
    /// # Errors
    /// Where the system refuses memory or threads.
    pub fn new(options: &HostOptions) -> io::Result<Disk> {
        Ok(Disk { from_disk: Lane::new("from disk", options)?, to_disk: Lane::new("to disk", options)? })
    }
}

impl Lane {
    fn new(name: &str, options: &HostOptions) -> io::Result<Lane> {
        let free = (0..BUFFERS_PER_DIRECTION).map(|_| AddressRange::host_block(BUFFER_BYTES));
        let buffers = Buffers { free: free.collect::<io::Result<_>>()?, waiting: VecDeque::new() };
        let mut drive = Drive {
            pace: options.disk_bytes_per_second.map(Pace::new),
            edge: AddressRange::host_block(BLOCK_BYTES)?,
            writes_left: options.disk_writes_before_failure,
        };
        let (jobs, receiver) = mpsc::channel::<Job>();
        let run = move || receiver.into_iter().for_each(|job| job(&mut drive));
        thread::Builder::new().name(name.to_string()).spawn(run)?;
        Ok(Lane { buffers: Mutex::new(buffers), jobs })
    }

    /// Calls `then` with a buffer: now, or when one is given back.
    fn take(&self, then: Waiting) {
        let mut buffers = lock(&self.buffers);
        match buffers.free.pop() {
            Some(buffer) => {
                drop(buffers);
                then(buffer);
            }
            None => buffers.waiting.push_back(then),
        }
    }

    fn give_back(&self, buffer: AddressRange) {
        let mut buffers = lock(&self.buffers);
        match buffers.waiting.pop_front() {
            Some(then) => {
                drop(buffers);
                then(buffer);
            }
            None => buffers.free.push(buffer),
        }
    }

    fn run(&self, job: impl FnOnce(&mut Drive) + Send + 'static) {
        // The thread lives as long as this sender.
        let _ = self.jobs.send(Box::new(job));
    }
}

/// A copy between memory and a spill file.
pub(super) struct Transfer {
    pub file: Arc<SpillFile>,
    pub offset_bytes: u64,
    pub address: Address,
    pub bytes: u64,
    pub to_disk: bool,
}

/// A transfer under way: it is done when its last piece lets go of it.
struct Running {
    transfer: Transfer,
    origin: Origin,
    start: OnceLock<Instant>,
    failed: AtomicBool,
    shared: Arc<Shared>,
    finish: Finish<DeviceError>,
}

impl Transfer {
    /// Starts the transfer; `finish` is dropped when it is done.
    pub fn start(self, origin: Origin, shared: Arc<Shared>, finish: Finish<DeviceError>) {
        let (start, failed) = (OnceLock::new(), AtomicBool::new(false));
        Running::go_on(Arc::new(Running { transfer: self, origin, start, failed, shared, finish }), 0);
    }
}

impl Running {
    /// Moves the piece that begins after `moved` bytes, and then the ones behind it.
    fn go_on(self: Arc<Running>, moved: u64) {
        if moved >= self.transfer.bytes || self.failed.load(Ordering::Relaxed) {
            return;
        }
        let running = self.clone();
        let then = Box::new(move |buffer| {
            running.start.get_or_init(Instant::now);
            let piece = Piece::of(&running.transfer, moved);
            if running.transfer.to_disk {
                running.write(piece, buffer);
            } else {
                running.read(piece, buffer);
            }
        });
        self.with_lane(|lane| lane.take(then));
    }

    fn with_lane(&self, act: impl FnOnce(&Lane)) {
        // A spill file is made after the disk.
        if let Some(disk) = self.shared.disk.get() {
            act(if self.transfer.to_disk { &disk.to_disk } else { &disk.from_disk });
        }
    }

    fn write(self: Arc<Running>, piece: Piece, buffer: AddressRange) {
        let shared = self.shared.clone();
        shared.spawn(self.origin.priority, move || {
            // SAFETY: `submit` resolved the region, and the contract of commands gives this copy its bytes; the buffer is the
            // piece's own, and as long as its blocks.
            unsafe {
                let from = self.transfer.address.0.add(piece.moved as usize);
                std::ptr::copy_nonoverlapping(from, buffer.base().add(piece.head as usize), piece.bytes as usize);
            }
            self.clone().go_on(piece.moved + piece.bytes);
            let running = self.clone();
            self.with_lane(|lane| {
                lane.run(move |drive| {
                    let mut buffer = buffer;
                    let written = drive.write(&running.transfer.file, &piece, &mut buffer);
                    running.settle(written);
                    running.with_lane(|lane| lane.give_back(buffer));
                });
            });
        });
    }

    fn read(self: Arc<Running>, piece: Piece, buffer: AddressRange) {
        self.clone().go_on(piece.moved + piece.bytes);
        let running = self.clone();
        self.with_lane(|lane| {
            lane.run(move |drive| {
                let mut buffer = buffer;
                if !running.settle(drive.read(&running.transfer.file, &piece, &mut buffer)) {
                    return running.with_lane(|lane| lane.give_back(buffer));
                }
                let shared = running.shared.clone();
                shared.spawn(running.origin.priority, move || {
                    // SAFETY: as for writing.
                    unsafe {
                        let to = running.transfer.address.0.add(piece.moved as usize);
                        std::ptr::copy_nonoverlapping(buffer.base().add(piece.head as usize), to, piece.bytes as usize);
                    }
                    running.with_lane(|lane| lane.give_back(buffer));
                });
            });
        });
    }

    /// Reports a failure; says whether there was none.
    fn settle(&self, outcome: Result<(), DeviceError>) -> bool {
        let succeeded = outcome.is_ok();
        if let Err(failure) = outcome {
            self.failed.store(true, Ordering::Relaxed);
            self.finish.fail(failure);
        }
        succeeded
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(&start) = self.start.get() {
            self.shared.trace(self.origin.stream, None, "copy", self.transfer.bytes, start);
        }
    }
}

/// A part of a transfer, and the blocks of the file that hold it: at most a buffer.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Bytes of the transfer before it.
    moved: u64,
    /// Its bytes.
    bytes: u64,
    /// First byte of its first block in the file.
    block_offset: u64,
    /// Bytes of its first block before it.
    head: u64,
    /// Bytes of its blocks.
    block_bytes: u64,
}

impl Piece {
    fn of(transfer: &Transfer, moved: u64) -> Piece {
        let offset = transfer.offset_bytes + moved;
        let block_offset = offset / BLOCK_BYTES * BLOCK_BYTES;
        let head = offset - block_offset;
        let bytes = (transfer.bytes - moved).min(BUFFER_BYTES - head);
        Piece { moved, bytes, block_offset, head, block_bytes: (head + bytes).next_multiple_of(BLOCK_BYTES) }
    }

    /// The piece's blocks within a buffer.
    fn blocks<'a>(&self, buffer: &'a mut AddressRange) -> &'a mut [u8] {
        // SAFETY: a buffer is as long as the blocks of any piece, and this is its only borrower.
        unsafe { std::slice::from_raw_parts_mut(buffer.base(), self.block_bytes as usize) }
    }
}

impl Drive {
    fn read(&mut self, file: &SpillFile, piece: &Piece, buffer: &mut AddressRange) -> Result<(), DeviceError> {
        let start = Instant::now();
        file.read(piece.block_offset, piece.blocks(buffer))?;
        self.rest(piece, start);
        Ok(())
    }

    /// Writes a piece. What lies beside it in its first and last block is read first; nobody else writes meanwhile, for
    /// there is one thread that does.
    fn write(&mut self, file: &SpillFile, piece: &Piece, buffer: &mut AddressRange) -> Result<(), DeviceError> {
        let start = Instant::now();
        if let Some(left) = &mut self.writes_left {
            *left = left.checked_sub(1).ok_or_else(|| file.full(piece.block_bytes))?;
        }
        let blocks = piece.blocks(buffer);
        let (block, tail) = (BLOCK_BYTES as usize, (piece.head + piece.bytes) as usize);
        // SAFETY: the block is this thread's own.
        let edge = unsafe { std::slice::from_raw_parts_mut(self.edge.base(), block) };
        if piece.head > 0 {
            file.read(piece.block_offset, edge)?;
            blocks[..piece.head as usize].copy_from_slice(&edge[..piece.head as usize]);
        }
        if tail < blocks.len() {
            let last = blocks.len() - block;
            file.read(piece.block_offset + last as u64, edge)?;
            blocks[tail..].copy_from_slice(&edge[tail - last..]);
        }
        file.write(piece.block_offset, blocks)?;
        self.rest(piece, start);
        Ok(())
    }

    fn rest(&mut self, piece: &Piece, start: Instant) {
        if let Some(pace) = &mut self.pace {
            pace.pass(piece.bytes as usize, start);
        }
    }
}
