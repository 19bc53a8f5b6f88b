//! The system calls of the host device, each wrapped once: memory files, address space, mappings, the page cache.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::ptr::{NonNull, null_mut};

use crate::tile_size::TILE_SIZE_BYTES;

/// The largest page size in which memory is given back. If pages are larger, the system refuses ranges that begin within one.
const PAGE_BYTES: u64 = 64 << 10;

/// The size of large pages on systems whose ordinary pages have 4 KiB. Address ranges of at least this size begin at a multiple of it, so
/// that large pages fit.
const LARGE_PAGE_BYTES: u64 = 2 << 20;

/// Physical memory: a memory file whose pages are all reserved when it is created, so that running out of memory is an error here and not a
/// signal later.
#[derive(Debug)]
pub(super) struct MemoryFile {
    file: File,
}

impl MemoryFile {
    /// Creates a memory file of `size_bytes` bytes.
    pub fn new(size_bytes: u64) -> io::Result<MemoryFile> {
        let limit = file_size_max_bytes();
        if size_bytes > limit {
            let reason =
                format!("heaps are files, and this process may create files of at most {limit} bytes (ulimit -f)");
            return Err(io::Error::other(reason));
        }
        // SAFETY: the name is a valid C string; the call has no other requirement.
        let descriptor = unsafe { libc::memfd_create(c"forebay heap".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and no one else owns it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(size_bytes)?;
        // Large pages are optional: the rest of the file gets small ones.
        let _ = take_large_pages(&file, size_bytes);
        reserve(&file, size_bytes)?;
        Ok(MemoryFile { file })
    }
}

/// Gives an empty memory file large pages, as far as the system has any. By default, memory files get small pages; large ones can be
/// requested since Linux 6.1.
fn take_large_pages(file: &File, size_bytes: u64) -> io::Result<()> {
    let whole_bytes = size_bytes / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    if whole_bytes == 0 {
        return Ok(());
    }
    // The system creates a large page only where there is a small one already.
    for offset in (0..whole_bytes).step_by(LARGE_PAGE_BYTES as usize) {
        file.write_all_at(&[0], offset)?;
    }
    let window = AddressRange::reserve(whole_bytes)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    window.replace(0, whole_bytes, protection, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), 0)?;
    window.advise(0, window.size_bytes, libc::MADV_COLLAPSE)
}

/// Allocates the space of a file at once, so that later writes find room.
pub(super) fn reserve(file: &File, size_bytes: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(size_bytes).map_err(io::Error::other)?;
    loop {
        // SAFETY: the descriptor is open for the duration of the call.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            // A signal, such as the user's request to stop after this step.
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Returns the number of bytes available in the file system of a file, if it reports that.
pub(super) fn available_disk_bytes(file: &File) -> Option<u64> {
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the descriptor is open, and the structure is this function's own; all zeros are a valid value of it.
    let answer = unsafe {
        if libc::fstatvfs(file.as_raw_fd(), answer.as_mut_ptr()) != 0 {
            return None;
        }
        answer.assume_init()
    };
    // A file system without a limit reports that it has no blocks at all.
    (answer.f_blocks > 0).then(|| answer.f_bavail.saturating_mul(answer.f_frsize))
}

/// Returns the size of the largest file that this process may create, in bytes. A larger one would raise a signal.
pub(super) fn file_size_max_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is this function's own.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => libc::RLIM_INFINITY,
    }
}

/// Makes transfers of a file bypass the page cache, or use it again.
///
/// # Errors
/// Returns an error if the file system cannot bypass the page cache.
pub(super) fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    // SAFETY: the descriptor is open for the duration of the call.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    let wanted = if direct { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
    // SAFETY: as above; all flags but one are those of the file.
    if flags < 0 || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, wanted) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Asks the system to write a part of a file from the page cache to disk, and then to drop it from the cache. Has no effect if the file
/// system does not cache.
pub(super) fn forget_cached(file: &File, offset_bytes: u64, size_bytes: u64) {
    let part = (libc::off_t::try_from(offset_bytes), libc::off_t::try_from(size_bytes));
    let (Ok(offset), Ok(length)) = part else { return };
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open for the duration of both calls, which change no byte of the file.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset, length, all);
        libc::posix_fadvise(file.as_raw_fd(), offset, length, libc::POSIX_FADV_DONTNEED);
    }
}

/// A range of addresses of this process, given back when dropped.
#[derive(Debug)]
pub(super) struct AddressRange {
    base: NonNull<u8>,
    size_bytes: usize,
}

// SAFETY: the range is plain addresses; the device decides who may access the bytes behind them and when.
unsafe impl Send for AddressRange {}
// SAFETY: as for `Send`.
unsafe impl Sync for AddressRange {}

impl AddressRange {
    /// Reserves addresses without memory behind them: touching them is a fault.
    pub fn reserve(size_bytes: u64) -> io::Result<AddressRange> {
        let spare_bytes = if size_bytes >= LARGE_PAGE_BYTES { LARGE_PAGE_BYTES } else { 0 };
        let sum_bytes = size_bytes.checked_add(spare_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let range = AddressRange::anonymous(sum_bytes, libc::PROT_NONE, libc::MAP_NORESERVE)?;
        Ok(if spare_bytes > 0 { range.at_large_page(size_bytes as usize) } else { range })
    }

    /// Returns the part of the range from the first multiple of [`LARGE_PAGE_BYTES`] on, and gives back the addresses before and after it.
    ///
    /// # Panics
    /// If there are fewer than `size_bytes` addresses from there on.
    fn at_large_page(self, size_bytes: usize) -> AddressRange {
        let whole = ManuallyDrop::new(self);
        let before = whole.base.as_ptr().align_offset(LARGE_PAGE_BYTES as usize);
        let behind = whole.size_bytes.checked_sub(before + size_bytes).expect("as many addresses");
        // SAFETY: the three parts make up the whole range and are disjoint.
        let (base, end) = unsafe { (whole.base.add(before), whole.base.add(before + size_bytes)) };
        drop([(whole.base, before), (end, behind)].map(|(base, size_bytes)| AddressRange { base, size_bytes }));
        AddressRange { base, size_bytes }
    }

    /// Allocates ordinary zeroed memory, with large pages if the system has them. Pages are allocated when they are touched.
    pub fn host_block(size_bytes: u64) -> io::Result<AddressRange> {
        let block = AddressRange::anonymous(size_bytes, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        // The page size is only a hint.
        let _ = block.advise(0, block.size_bytes, libc::MADV_HUGEPAGE);
        Ok(block)
    }

    /// Makes all pages of ordinary memory present.
    pub fn fill(&self) -> io::Result<()> {
        match self.advise(0, self.size_bytes, libc::MADV_POPULATE_WRITE) {
            // Linux before 5.14 does not know this advice; there, pages are allocated when they are touched.
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the pages of ordinary memory between two bytes to the system. Zeroed pages replace them when they are touched.
    ///
    /// # Panics
    /// If the part exceeds the range.
    pub fn release(&self, start_bytes: u64, end_bytes: u64) {
        self.advise_within(start_bytes, end_bytes, libc::MADV_DONTNEED);
    }

    /// Like [`AddressRange::release`], for memory files that are mapped here. New pages come from the memory that the system has left.
    ///
    /// # Panics
    /// If the part exceeds the range.
    pub fn release_file(&self, start_bytes: u64, end_bytes: u64) {
        self.advise_within(start_bytes, end_bytes, libc::MADV_REMOVE);
    }

    /// Advises the system on the whole pages between two bytes. If the system refuses, the pages stay.
    fn advise_within(&self, start_bytes: u64, end_bytes: u64, advice: i32) {
        assert!(start_bytes <= end_bytes && end_bytes <= self.size_bytes as u64, "a part of a range lies in it");
        let start = start_bytes.next_multiple_of(PAGE_BYTES);
        let end = if end_bytes == self.size_bytes as u64 { end_bytes } else { end_bytes / PAGE_BYTES * PAGE_BYTES };
        if start < end {
            let _ = self.advise(start as usize, (end - start) as usize, advice);
        }
    }

    fn advise(&self, offset_bytes: usize, size_bytes: usize, advice: i32) -> io::Result<()> {
        loop {
            // SAFETY: this value owns the addresses. Only the advice of `release` and `release_file` changes their contents: to zeros for
            // private anonymous memory and memory files, and not at all for addresses without memory.
            let result = unsafe { libc::madvise(self.base.as_ptr().add(offset_bytes).cast(), size_bytes, advice) };
            if result == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    fn anonymous(size_bytes: u64, protection: i32, flags: i32) -> io::Result<AddressRange> {
        let size_bytes = usize::try_from(size_bytes).map_err(io::Error::other)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: a new mapping at an address that the system chooses touches nothing that exists.
        let base = unsafe { libc::mmap(null_mut(), size_bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("the system never maps address 0");
        Ok(AddressRange { base, size_bytes })
    }

    /// Returns the first address.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Maps `size_bytes` of a memory file, from `file_offset_bytes` on, to the addresses from `offset_bytes` on. With `fill`, all pages are
    /// present at once; otherwise, they are allocated when they are touched.
    ///
    /// # Panics
    /// If the part exceeds the range.
    pub fn map(
        &self,
        offset_bytes: u64,
        file: &MemoryFile,
        file_offset_bytes: u64,
        size_bytes: u64,
        fill: bool,
    ) -> io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | if fill { libc::MAP_POPULATE } else { 0 };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        self.replace(offset_bytes, size_bytes, protection, flags, file.file.as_raw_fd(), file_offset_bytes)
    }

    /// Unmaps the memory behind the addresses.
    ///
    /// # Panics
    /// If the part exceeds the range.
    pub fn unmap(&self, offset_bytes: u64, size_bytes: u64) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        self.replace(offset_bytes, size_bytes, libc::PROT_NONE, flags, -1, 0)
    }

    fn replace(
        &self,
        offset_bytes: u64,
        size_bytes: u64,
        protection: i32,
        flags: i32,
        descriptor: i32,
        file_offset_bytes: u64,
    ) -> io::Result<()> {
        let end = offset_bytes.checked_add(size_bytes).expect("a part ends within 64 bits");
        assert!(end <= self.size_bytes as u64, "bytes {offset_bytes}..{end} leave a range of {}", self.size_bytes);
        // SAFETY: the new mapping replaces addresses inside this range, which this value owns.
        let result = unsafe {
            let address = self.base.as_ptr().add(offset_bytes as usize).cast();
            libc::mmap(address, size_bytes as usize, protection, flags, descriptor, file_offset_bytes as libc::off_t)
        };
        if result == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // SAFETY: this value owns the range, and the device drops it only when no command uses it.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.size_bytes);
        }
    }
}

/// Returns the page size of the system, in bytes.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: the call has no requirement.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(TILE_SIZE_BYTES)
}
