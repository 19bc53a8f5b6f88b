//! What a process keeps of memory that it no longer uses, and how the system gets it back.
//!
//! An allocator keeps freed memory for later, and the system keeps the code of a program that ran once. Both count as memory of the
//! process, although nothing needs them.

/// Blocks of at least this many bytes come from the system and go back to it one by one.
#[cfg(target_env = "gnu")]
const OWN_MAPPING_BYTES: libc::c_int = 1 << 20;
/// Freed bytes that the allocator keeps at the end of its heap.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 1 << 20;
/// Heaps of the allocator. Each keeps what was freed in it; threads share them.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// From now on, the allocator gives large blocks that it takes from the system back as soon as they are freed. Unasked, it begins to keep blocks as
/// large as the largest one that was freed, up to 32 MiB. For programs: it holds for the whole process.
pub fn keep_little() {
    // SAFETY: the calls change settings of the allocator, which any thread may do at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

/// Gives back what was freed, and the code that ran: what runs again is read again, most of it from the system's own copy. For the
/// end of work that is done once.
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

/// Whether a debugger looks at the process: its breakpoints are changes of the code.
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

    /// Gives the pages back that the program's file has, too: of the parts of it that are mapped without the right to write.
    pub(super) fn give_back() {
        // SAFETY: the callback keeps to what the call promises it, and lives through the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
    }

    /// Gives back the pages of one object, where that is the one that this code is in, and ends the walk there.
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        // SAFETY: the system gives an object and its table of segments, which live through this call.
        let (base, segments) = unsafe {
            let info = &*info;
            (info.dlpi_addr, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
        };
        let loaded = || segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
        let span = |segment: &libc::Elf64_Phdr| {
            let start = base.wrapping_add(segment.p_vaddr);
            start..start.wrapping_add(segment.p_memsz)
        };
        let here = give_back as fn() as usize as u64;
        if !loaded().any(|segment| span(segment).contains(&here)) {
            return 0;
        }
        let page_bytes = crate::host::page_bytes();
        for segment in loaded().filter(|segment| segment.p_flags & libc::PF_W == 0) {
            let span = span(segment);
            // Pages at its ends may be shared with the next segment.
            let (start, end) = (span.start.next_multiple_of(page_bytes), span.end / page_bytes * page_bytes);
            if start < end {
                // SAFETY: the pages are those of a file, mapped privately and never written, since the segment may not be:
                // the next access finds the same bytes in the file.
                unsafe { libc::madvise(start as *mut c_void, (end - start) as usize, libc::MADV_DONTNEED) };
            }
        }
        1
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_and_code_go_back_and_the_program_goes_on() {
        keep_little();
        let now = || forebay_limits::resident().unwrap().now_bytes;
        // A large block goes back at once, also after others were freed. The allocator has no free block of this size yet: it would take that.
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

    /// Whether the process has memory at an address.
    fn is_mapped(address: usize) -> bool {
        let page_bytes = crate::host::page_bytes() as usize;
        let mut resident = 0;
        // SAFETY: the system writes a byte for one page, and looks at no memory.
        let rc = unsafe { libc::mincore((address / page_bytes * page_bytes) as *mut _, page_bytes, &mut resident) };
        rc == 0
    }
}
