//! Copies between host memory and files, on a separate thread.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;

use forebay_device::DeviceError;
use forebay_device::host::disk_file::{self, DiskWay};
use forebay_device::host::spill_file::BLOCK_BYTES;

use crate::buffer::{HostAddress, OwnBlock};

/// The number of bytes that are read or written at once.
const PIECE_BYTES: u64 = 1 << 20;
/// The maximum number of bytes of a copy between device memory and a file that pass through host memory at once.
pub(crate) const BOUNCE_BYTES: u64 = 4 << 20;
/// The bytes of host memory that copies to and from spill files need: those of the thread, and those between device memory and files, for
/// one stream in each direction, as in plans. Copies from files that are only read share them; without a spill file, they are not counted.
pub(crate) const DISK_BYTES: u64 = PIECE_BYTES + 2 * BOUNCE_BYTES;

/// A copy between host memory and a file.
pub(crate) struct Transfer {
    pub way: DiskWay,
    pub offset_bytes: u64,
    pub address: HostAddress,
    pub bytes: u64,
    /// What must stay alive until the copy is done.
    pub _keep: Option<Arc<OwnBlock>>,
}

/// Bytes at an address that every file system accepts.
pub(crate) struct Buffer {
    address: *mut u8,
}

// SAFETY: the memory belongs to the buffer alone.
unsafe impl Send for Buffer {}

const LAYOUT: Layout = match Layout::from_size_align(PIECE_BYTES as usize, BLOCK_BYTES as usize) {
    Ok(layout) => layout,
    Err(_) => panic!("a piece is whole blocks"),
};

impl Buffer {
    pub fn new() -> Buffer {
        // SAFETY: the layout is not empty.
        let address = unsafe { alloc_zeroed(LAYOUT) };
        if address.is_null() {
            handle_alloc_error(LAYOUT);
        }
        Buffer { address }
    }

    fn bytes(&mut self, length: u64) -> &mut [u8] {
        // SAFETY: the memory belongs to this buffer and is at least this long.
        unsafe { std::slice::from_raw_parts_mut(self.address, length.min(PIECE_BYTES) as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.address, LAYOUT) };
    }
}

impl Transfer {
    /// Moves the bytes through the buffer, piece by piece. If only a part of a block is new, the rest of it is kept.
    ///
    /// # Errors
    /// [`DeviceError::Spill`], [`DeviceError::Read`].
    pub fn run(&self, buffer: &mut Buffer) -> Result<(), DeviceError> {
        let (file, to_disk) = match &self.way {
            DiskWay::FromSpill(file) => (file, false),
            DiskWay::ToSpill(file) => (file, true),
            DiskWay::FromReadOnly(bytes) => {
                // SAFETY: the bytes lie in a live host block, which the contract of commands gives this copy.
                let to = unsafe { std::slice::from_raw_parts_mut(self.address.0, self.bytes as usize) };
                return disk_file::read(&**bytes, self.offset_bytes, to);
            }
        };
        let mut moved = 0;
        while moved < self.bytes {
            let start = self.offset_bytes + moved;
            let first = start / BLOCK_BYTES * BLOCK_BYTES;
            let count = (self.bytes - moved).min(first + PIECE_BYTES - start);
            let last = (start + count).next_multiple_of(BLOCK_BYTES);
            let whole = first == start && last == start + count;
            let bytes = buffer.bytes(last - first);
            if !to_disk || !whole {
                file.read(first, bytes)?;
            }
            let inside = &mut bytes[(start - first) as usize..][..count as usize];
            // SAFETY: the bytes lie in a live host block, which the contract of commands gives this copy.
            unsafe {
                let memory = self.address.0.add(moved as usize);
                if to_disk {
                    std::ptr::copy_nonoverlapping(memory, inside.as_mut_ptr(), inside.len());
                } else {
                    std::ptr::copy_nonoverlapping(inside.as_ptr(), memory, inside.len());
                }
            }
            if to_disk {
                file.write(first, bytes)?;
            }
            moved += count;
        }
        Ok(())
    }
}
