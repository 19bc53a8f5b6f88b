//! Returning memory that a process keeps but no longer uses to the system.
//!
//! An allocator keeps freed memory for later, and the system keeps code that a program has run once. Both count as memory of the process,
//! although nothing needs them.

/// Blocks of at least this many bytes are allocated from the system and returned to it one by one.
#[cfg(target_env = "gnu")]
const OWN_MAPPING_BYTES: libc::c_int = 1 << 20;
/// The number of freed bytes that the allocator keeps at the end of its heap.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 1 << 20;
/// The number of heaps of the allocator. Each keeps the memory that was freed in it; threads share them.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Makes the allocator return large blocks, which it takes from the system, as soon as they are freed. By default, it starts to keep blocks
/// as large as the largest one that was freed, up to 32 MiB. For programs only: it applies to the whole process.
pub fn keep_little() {
    // SAFETY: the calls change settings of the allocator, which any thread may do at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

/// Results of at least this many bytes get large pages.
#[cfg(target_os = "linux")]
const LARGE_PAGES_MIN_BYTES: usize = 4 << 20;

/// Returns zeros, which a caller may keep, in large pages if the system has any. The system provides pages when they are first written; one
/// by one, small pages take longer than computing what is written.
pub fn zeros(size_bytes: usize) -> Vec<u8> {
    let zeros = vec![0u8; size_bytes];
    #[cfg(target_os = "linux")]
    if size_bytes >= LARGE_PAGES_MIN_BYTES {
        let page_bytes = crate::host::page_bytes() as usize;
        let before = zeros.as_ptr().align_offset(page_bytes);
        let whole_bytes = (size_bytes - before) / page_bytes * page_bytes;
        // SAFETY: the pages belong to the vector; the advice changes neither their contents nor who owns them.
        unsafe { libc::madvise(zeros.as_ptr().add(before).cast_mut().cast(), whole_bytes, libc::MADV_HUGEPAGE) };
    }
    zeros
}

/// Returns freed memory and the pages of code that ran to the system. Code that runs again is read again, mostly from the system's page
/// cache. Call it at the end of work that is done once.
pub fn give_back() {
    // SAFETY: the call touches nothing but memory that is free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    if !is_traced() {
        code::give_back();
    }
}

/// Returns the size of this program's or library's code in bytes, whether it is in memory or not; `None` if the system does not say.
pub fn code_bytes() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    return code::size_bytes();
    #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
    None
}

/// Returns whether a debugger is attached to the process: its breakpoints are changes to the code.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn is_traced() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_none_or(|tracer| tracer.trim() != "0")
}

/// The code of this program.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod code {
    use std::ffi::{c_int, c_void};
    use std::ops::Range;

    /// What a walk over the objects of the process looks for: the object that contains this code.
    type Visit<'a> = &'a mut dyn FnMut(&libc::Elf64_Phdr, Range<u64>);

    /// Gives back the pages that can be read from the program's file again: those of its segments that are mapped without write permission.
    pub(super) fn give_back() {
        let page_bytes = crate::host::page_bytes();
        for_each_segment(&mut |segment, addresses| {
            if segment.p_flags & libc::PF_W != 0 {
                return;
            }
            // Pages at its ends may be shared with the next segment.
            let (start, end) = (addresses.start.next_multiple_of(page_bytes), addresses.end / page_bytes * page_bytes);
            if start < end {
                // SAFETY: the pages are those of a file, mapped privately and never written, since the segment is not writable: the next
                // access finds the same bytes in the file.
                unsafe { libc::madvise(start as *mut c_void, (end - start) as usize, libc::MADV_DONTNEED) };
            }
        });
    }

    /// Returns the size of the segments that can be executed.
    pub(super) fn size_bytes() -> Option<u64> {
        let mut size_bytes = 0;
        for_each_segment(&mut |segment, _| {
            if segment.p_flags & libc::PF_X != 0 {
                size_bytes += segment.p_memsz;
            }
        });
        Some(size_bytes).filter(|&size_bytes| size_bytes > 0)
    }

    /// Calls `visit` with the segments of the object that contains this code, and with their addresses.
    fn for_each_segment(mut visit: Visit) {
        // SAFETY: the callback relies only on what the call guarantees; it and its argument outlive the call.
        unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut visit).cast()) };
    }

    /// Visits the segments of one object if it contains this code, and ends the walk there.
    unsafe extern "C" fn visit_object(info: *mut libc::dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the system passes an object and its table of segments, which outlive this call, and the argument of `for_each_segment`,
        // which nobody else uses while the walk goes on.
        let (base, segments, visit) = unsafe {
            let info = &*info;
            let segments = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
            (info.dlpi_addr, segments, &mut *visit.cast::<Visit>())
        };
        let loaded = || segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
        let addresses = |segment: &libc::Elf64_Phdr| {
            let start = base.wrapping_add(segment.p_vaddr);
            start..start.wrapping_add(segment.p_memsz)
        };
        let here = give_back as fn() as usize as u64;
        if !loaded().any(|segment| addresses(segment).contains(&here)) {
            return 0;
        }
        loaded().for_each(|segment| visit(segment, addresses(segment)));
        1
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_this_program_is_smaller_than_its_file() {
        let file_bytes = std::fs::metadata("/proc/self/exe").unwrap().len();
        let code_bytes = code_bytes().unwrap();
        assert!((64 << 10..file_bytes).contains(&code_bytes), "{code_bytes} of {file_bytes}");
    }

    #[test]
    fn freed_memory_and_code_go_back_and_the_program_goes_on() {
        keep_little();
        let now = || forebay_limits::resident().unwrap().now_bytes;
        // A large block goes back at once, even after others were freed. The allocator has no free block of this size yet, which it would
        // use instead.
        for _ in 0..3 {
            let block = vec![3u8; 24 << 20];
            let middle = block.as_ptr() as usize + block.len() / 2;
            assert!(is_mapped(middle) && block[5] == 3);
            drop(block);
            assert!(!is_mapped(middle));
        }
        // Small blocks are kept until they are asked for.
        let blocks: Vec<Vec<u8>> = (0..2000).map(|i| vec![i as u8; 16 << 10]).collect();
        let last = vec![1u8; 64];
        let with_blocks = now();
        assert_eq!(
            blocks.iter().map(|block| u64::from(block[77])).sum::<u64>(),
            (0..2000u64).map(|i| i % 256).sum::<u64>()
        );
        drop(blocks);
        give_back();
        assert!(now() + (24 << 20) <= with_blocks, "{} of {with_blocks}", now());
        assert_eq!(last, [1; 64]);
    }

    #[test]
    fn zeros_are_zeros_of_any_size() {
        for size_bytes in [0, 1, 4096, LARGE_PAGES_MIN_BYTES - 1, LARGE_PAGES_MIN_BYTES, (9 << 20) + 5] {
            let mut zeros = zeros(size_bytes);
            assert!(zeros.len() == size_bytes && zeros.iter().all(|&byte| byte == 0), "{size_bytes}");
            zeros.fill(7);
            zeros.push(8);
            assert!(zeros[..size_bytes].iter().all(|&byte| byte == 7), "{size_bytes}");
        }
    }

    /// Returns whether the process has memory at an address.
    fn is_mapped(address: usize) -> bool {
        let page_bytes = crate::host::page_bytes() as usize;
        let mut resident = 0;
        // SAFETY: the system writes a byte for one page, and reads no memory.
        let rc = unsafe { libc::mincore((address / page_bytes * page_bytes) as *mut _, page_bytes, &mut resident) };
        rc == 0
    }
}
