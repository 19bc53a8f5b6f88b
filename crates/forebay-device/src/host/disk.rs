//! Transfers to and from files on disk.
//!
//! Bytes pass through buffers, piece by piece. Each direction has its own threads, each with a buffer: while one waits for the disk, the
//! other copies between its buffer and memory. They are not threads of the pool, because kernels would lack a worker that waits for a disk,
//! and a disk that waits for a worker would be idle while a long kernel runs.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Instant;

use forebay_queue::{Finish, Origin};

use super::HostOptions;
use super::disk_file::{self, DiskWay};
use super::link::Pace;
use super::lock::lock;
use super::memory::Address;
use super::panics::caught;
use super::spill_file::{BLOCK_BYTES, SpillFile};
use super::sys::AddressRange;
use super::tracer::{Traced, Tracer};
use crate::device::DeviceError;

/// The size of a buffer, in bytes: the most that is read or written at once.
const BUFFER_BYTES: u64 = 1 << 20;
/// The number of threads of each direction, and thus of its buffers.
const THREADS_PER_DIRECTION: u64 = 2;
/// The host memory that a disk takes, in bytes: for each thread, a buffer and a block for the bytes next to a piece.
pub(super) const DISK_BYTES: u64 = 2 * THREADS_PER_DIRECTION * (BUFFER_BYTES + BLOCK_BYTES);

/// The threads and buffers of both directions. The threads end when this is dropped.
pub(super) struct Disk {
    from_disk: mpsc::Sender<Job>,
    to_disk: mpsc::Sender<Job>,
}

/// A piece of a transfer, for any thread of the direction.
type Job = (Arc<Running>, Piece);

/// The state that the threads of a direction share.
struct DiskQueue {
    jobs: Mutex<mpsc::Receiver<Job>>,
    pace: Option<Mutex<Pace>>,
    /// Held while a block is written of which only a part is new: the rest is read first, and another piece may change it.
    edges: Mutex<()>,
    /// The number of pieces that are written before a write fails, for tests.
    writes_left: Option<Mutex<u64>>,
}

/// The state of one thread.
struct Drive {
    direction: Arc<DiskQueue>,
    buffer: AddressRange,
    /// A block for the bytes next to a piece that does not fill its blocks.
    edge: AddressRange,
}

impl Disk {
    /// # Errors
    /// Returns an error if the system refuses memory or threads.
    pub fn new(options: &HostOptions) -> io::Result<Disk> {
        Ok(Disk { from_disk: start("from disk", options)?, to_disk: start("to disk", options)? })
    }
}

/// Starts the threads of a direction; they end when the sender is dropped.
fn start(name: &str, options: &HostOptions) -> io::Result<mpsc::Sender<Job>> {
    let (sender, receiver) = mpsc::channel();
    let direction = Arc::new(DiskQueue {
        jobs: Mutex::new(receiver),
        pace: options.disk_bytes_per_second.map(|rate| Mutex::new(Pace::new(rate))),
        edges: Mutex::default(),
        writes_left: options.disk_writes_before_failure.map(Mutex::new),
    });
    for _ in 0..THREADS_PER_DIRECTION {
        let mut drive = Drive {
            direction: direction.clone(),
            buffer: AddressRange::host_block(BUFFER_BYTES)?,
            edge: AddressRange::host_block(BLOCK_BYTES)?,
        };
        thread::Builder::new().name(name.to_string()).spawn(move || drive.run())?;
    }
    Ok(sender)
}

/// A copy between memory and a file.
pub(super) struct Transfer {
    pub way: DiskWay,
    pub offset_bytes: u64,
    pub address: Address,
    pub bytes: u64,
}

/// A transfer in progress: it is done when its last piece drops it.
struct Running {
    transfer: Transfer,
    origin: Origin,
    start: OnceLock<Instant>,
    failed: AtomicBool,
    tracer: Arc<Tracer>,
    finish: Finish<DeviceError>,
}

impl Transfer {
    /// Starts the transfer; `finish` is dropped when it is done.
    pub fn start(self, disk: &Disk, origin: Origin, tracer: Arc<Tracer>, finish: Finish<DeviceError>) {
        let (start, failed) = (OnceLock::new(), AtomicBool::new(false));
        let running = Arc::new(Running { transfer: self, origin, start, failed, tracer, finish });
        let jobs = if running.transfer.way.is_to_disk() { &disk.to_disk } else { &disk.from_disk };
        let mut moved = 0;
        while moved < running.transfer.bytes {
            let piece = Piece::of(&running.transfer, moved);
            moved += piece.bytes;
            // The threads live as long as this sender.
            let _ = jobs.send((running.clone(), piece));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(&start) = self.start.get() {
            let traced = Traced { name: "copy", bytes: self.transfer.bytes, ..Traced::default() };
            self.tracer.record(self.origin.stream, start, traced);
        }
    }
}

/// A part of a transfer, and the blocks of the file that hold it, which fit into a buffer.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The number of bytes of the transfer before the piece.
    moved: u64,
    /// The number of bytes of the piece.
    bytes: u64,
    /// The offset of its first block in the file.
    block_offset: u64,
    /// The number of bytes of its first block before the piece.
    head: u64,
    /// The number of bytes of its blocks.
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

    /// Returns the address of the piece's first byte in memory.
    fn address(&self, transfer: &Transfer) -> *mut u8 {
        transfer.address.0.wrapping_add(self.moved as usize)
    }

    /// Returns the piece's blocks within a buffer.
    fn blocks<'a>(&self, buffer: &'a mut AddressRange) -> &'a mut [u8] {
        // SAFETY: a buffer is as long as the blocks of any piece, and this is its only borrower.
        unsafe { std::slice::from_raw_parts_mut(buffer.base(), self.block_bytes as usize) }
    }
}

impl Drive {
    fn run(&mut self) {
        loop {
            // The lock is held while waiting, when the other threads of the direction have nothing to do either.
            let job = lock(&self.direction.jobs).recv();
            let Ok((running, piece)) = job else { return };
            let begin = Instant::now();
            running.start.get_or_init(|| begin);
            if running.failed.load(Ordering::Relaxed) {
                continue;
            }
            let transfer = &running.transfer;
            let moved = caught("a copy to or from a file", || match &transfer.way {
                DiskWay::ToSpill(file) => self.write(file, transfer, piece),
                DiskWay::FromSpill(file) => self.read(file, transfer, piece),
                DiskWay::FromReadOnly(bytes) => {
                    // SAFETY: `submit` resolved the region, and the contract of commands gives this copy its bytes.
                    let to = unsafe { std::slice::from_raw_parts_mut(piece.address(transfer), piece.bytes as usize) };
                    disk_file::read(&**bytes, piece.block_offset + piece.head, to)
                }
            });
            if let Err(failure) = moved {
                running.failed.store(true, Ordering::Relaxed);
                running.finish.fail(failure);
            } else if let Some(pace) = &self.direction.pace {
                let passed = lock(pace).passed(piece.bytes as usize, begin);
                thread::sleep(passed.saturating_duration_since(Instant::now()));
            }
        }
    }

    fn read(&mut self, file: &SpillFile, transfer: &Transfer, piece: Piece) -> Result<(), DeviceError> {
        let blocks = piece.blocks(&mut self.buffer);
        file.read(piece.block_offset, blocks)?;
        let from = &blocks[piece.head as usize..][..piece.bytes as usize];
        // SAFETY: `submit` resolved the region, and the contract of commands gives this copy its bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), piece.address(transfer), from.len()) };
        Ok(())
    }

    fn write(&mut self, file: &SpillFile, transfer: &Transfer, piece: Piece) -> Result<(), DeviceError> {
        if let Some(left) = &self.direction.writes_left {
            let mut left = lock(left);
            *left = left.checked_sub(1).ok_or_else(|| file.full(piece.block_bytes))?;
        }
        let blocks = piece.blocks(&mut self.buffer);
        let to = &mut blocks[piece.head as usize..][..piece.bytes as usize];
        // SAFETY: as for reading.
        unsafe { std::ptr::copy_nonoverlapping(piece.address(transfer), to.as_mut_ptr(), to.len()) };
        let (block, tail) = (BLOCK_BYTES as usize, (piece.head + piece.bytes) as usize);
        if piece.head == 0 && tail == blocks.len() {
            return file.write(piece.block_offset, blocks);
        }
        let _alone = lock(&self.direction.edges);
        // SAFETY: the block belongs to this thread alone.
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
        file.write(piece.block_offset, blocks)
    }
}
