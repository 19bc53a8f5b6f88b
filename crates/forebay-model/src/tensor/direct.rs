//! Direct reads, which bypass the system's page cache: they transfer whole blocks through memory aligned to blocks.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use forebay_limits::DIRECT_BLOCK_BYTES;

/// The number of bytes read at once.
const BUFFER_BYTES: u64 = 1 << 20;

thread_local! {
    /// A buffer, with extra space to start at a block boundary.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads bytes of a file opened with [`forebay_limits::open_direct`], starting at `offset_bytes`.
///
/// # Errors
/// Returns errors of the file, and an error if it ends before the last of the bytes.
pub(super) fn read(file: &File, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize((BUFFER_BYTES + DIRECT_BLOCK_BYTES) as usize, 0);
        let start = buffer.as_ptr().align_offset(DIRECT_BLOCK_BYTES as usize);
        let buffer = &mut buffer[start..][..BUFFER_BYTES as usize];
        let (mut offset, mut rest) = (offset_bytes, into);
        while !rest.is_empty() {
            let first = offset / DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES;
            let skip = (offset - first) as usize;
            let wanted = (skip + rest.len()).next_multiple_of(DIRECT_BLOCK_BYTES as usize).min(buffer.len());
            let read = match file.read_at(&mut buffer[..wanted], first) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            let count = read.saturating_sub(skip).min(rest.len());
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&buffer[skip..][..count]);
            (offset, rest) = (offset + count as u64, later);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn bytes_are_the_same_wherever_they_begin_and_end() {
        let mut named = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..2_500_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        named.write_all(&bytes).unwrap();
        // A file system without direct reads has nothing to test.
        let Ok(file) = forebay_limits::open_direct(named.path()) else { return };
        for (start, length) in
            [(0, 1), (0, 4096), (1, 4095), (4095, 2), (5, 2_400_000), (1 << 20, 1 << 20), (2_499_999, 1)]
        {
            let mut found = vec![0; length];
            read(&file, start as u64, &mut found).unwrap();
            assert!(found == bytes[start..][..length], "{length} bytes from {start}");
        }
        let mut behind = [0; 2];
        let error = read(&file, 2_499_999, &mut behind).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
