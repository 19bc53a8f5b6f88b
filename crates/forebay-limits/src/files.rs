//! Bounded reads, and memory for sizes that a file states.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::memory::{Use, check, size};

/// Bytes that are read before anything larger is reserved, so that a false size in a file costs at most this much memory.
const FIRST_BYTES: u64 = 1 << 20;

/// The maximum number of bytes read from a pipe, because a source without a size may never end.
const PIPE_BYTES_MAX: u64 = 2 << 30;
/// The maximum number of bytes read from a device: typed input is shorter, and `/dev/zero` never ends.
const DEVICE_BYTES_MAX: u64 = 16 << 20;

/// The unit of direct reads, in bytes ([`open_direct`]).
pub const DIRECT_BLOCK_BYTES: u64 = 4096;

/// Creates an empty buffer with memory for this many bytes.
///
/// # Errors
/// The reason why the memory is not available: the machine, a control group or a resource limit does not leave that much.
pub fn buffer(bytes: u64) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    grow(&mut buffer, bytes)?;
    Ok(buffer)
}

/// Makes room for this many bytes in total.
fn grow(buffer: &mut Vec<u8>, bytes: u64) -> io::Result<()> {
    // The buffer's current capacity is already taken, and large buffers grow without a copy.
    check(bytes.saturating_sub(buffer.capacity() as u64), Use::Private).map_err(io::Error::other)?;
    let more = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(buffer.len());
    buffer.try_reserve_exact(more).map_err(|_| io::Error::other(format!("cannot allocate {} of memory", size(bytes))))
}

/// Reads this many bytes from a stream that may hold fewer, taking memory as they arrive. If fewer are returned, they are the entire rest
/// of the stream.
///
/// # Errors
/// Errors of the stream, and memory that is not available.
pub fn read_up_to(stream: impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut stream = stream.take(bytes);
    let mut buffer = Vec::new();
    loop {
        let next = (2 * buffer.len() as u64).max(FIRST_BYTES).min(bytes);
        grow(&mut buffer, next)?;
        let wanted = next - buffer.len() as u64;
        // Reading one byte beyond what is reserved would make the buffer grow on its own.
        let read = stream.by_ref().take(wanted).read_to_end(&mut buffer)?;
        if (read as u64) < wanted || next == bytes {
            return Ok(buffer);
        }
    }
}

/// Reads a file of at most `bytes_max` bytes, or fewer for a pipe or a device. `times` is the multiple of its size that is needed while the
/// file is used; if that much memory is not available, nothing is read.
///
/// # Errors
/// If the file cannot be read or is too long, or the memory is not available.
pub fn read(path: &Path, bytes_max: u64, times: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    let bytes_max = match (kind.is_file(), kind.is_char_device() || kind.is_block_device()) {
        (true, _) => bytes_max,
        (_, true) => bytes_max.min(DEVICE_BYTES_MAX),
        _ => bytes_max.min(PIPE_BYTES_MAX),
    };
    let too_long = |what: String| io::Error::other(format!("{what} the limit of {}", size(bytes_max)));
    if kind.is_file() {
        if metadata.len() > bytes_max {
            return Err(too_long(format!("it has {}, more than", size(metadata.len()))));
        }
        check(metadata.len().saturating_mul(times), Use::Private).map_err(io::Error::other)?;
        // Reading one more byte shows that the file ends there.
        let mut bytes = buffer(metadata.len() + 1)?;
        file.take(metadata.len() + 1).read_to_end(&mut bytes)?;
        // System files (/proc) do not know their size, and other files may have grown.
        if bytes.len() as u64 <= metadata.len() {
            return Ok(bytes);
        }
        return bounded(File::open(path)?, bytes_max)?.ok_or_else(|| too_long("it is longer than".into()));
    }
    bounded(file, bytes_max)?.ok_or_else(|| too_long("it does not end within".into()))
}

/// Reads the whole stream; `None` if it is longer.
fn bounded(stream: impl Read, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let bytes = read_up_to(stream, bytes_max.saturating_add(1))?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

/// Reads a text file of at most `bytes_max` bytes.
///
/// # Errors
/// Those of [`read`], and bytes that are not text.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    text(read(path, bytes_max, 1)?)
}

/// Converts bytes to text.
///
/// # Errors
/// If the bytes are not text.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let position = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8 text: byte {position} is invalid"))
    })
}

/// Opens a file that has a size and can be read at any position. Does not wait for pipes and devices.
///
/// # Errors
/// If there is no such file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    check_regular(path)?;
    File::open(path)
}

fn check_regular(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Opens a regular file for direct reads (`O_DIRECT`), which bypass the system's page cache. The offsets, sizes and addresses of such reads
/// are multiples of [`DIRECT_BLOCK_BYTES`].
///
/// # Errors
/// Those of [`open_regular`], and a file system that does not support it.
pub fn open_direct(path: &Path) -> io::Result<File> {
    check_regular(path)?;
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_their_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 1000]).unwrap();
        assert_eq!(read(&path, 1000, 2).unwrap(), [7; 1000]);
        let error = read(&path, 999, 1).unwrap_err().to_string();
        assert_eq!(error, "it has 1000 bytes, more than the limit of 999 bytes");
        assert!(read(folder.path(), 1000, 1).is_err());
        assert!(read(&folder.path().join("none"), 1000, 1).is_err());
    }

    #[test]
    fn endless_files_are_read_up_to_their_bound() {
        for bytes_max in [0, 1000, 3 << 20, u64::MAX] {
            let error = read(Path::new("/dev/zero"), bytes_max, 1).unwrap_err().to_string();
            assert!(error.contains("it does not end within the limit of"), "{error}");
        }
        assert_eq!(read(Path::new("/dev/null"), 10, 1).unwrap(), []);
    }

    #[test]
    fn files_of_the_system_without_a_size_are_read_whole() {
        let text = read_text(Path::new("/proc/self/limits"), 1 << 20).unwrap();
        assert!(text.contains("Max address space"), "{text}");
        assert!(read_text(Path::new("/proc/self/limits"), 10).is_err());
    }

    #[test]
    fn a_sparse_file_is_refused_before_memory_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 42).unwrap();
        let error = read(&path, 1 << 50, 1).unwrap_err().to_string();
        assert!(error.contains("4.0 TiB would be needed"), "{error}");
        assert!(read(&path, 1 << 20, 1).unwrap_err().to_string().starts_with("it has 4.0 TiB"));
    }

    #[test]
    fn a_size_that_is_only_claimed_costs_nothing() {
        let bytes = read_up_to([1u8; 5_000_000].as_slice(), 1 << 60).unwrap();
        assert_eq!(bytes.len(), 5_000_000);
        assert_eq!(read_up_to([1u8; 20].as_slice(), 7).unwrap(), [1; 7]);
        assert_eq!(read_up_to([1u8; 20].as_slice(), 0).unwrap(), []);
        assert!(buffer(1 << 60).is_err());
    }

    #[test]
    fn what_is_no_text_or_no_file_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"ab\xff").unwrap();
        assert!(read_text(&path, 10).unwrap_err().to_string().contains("byte 2"));
        assert!(open_regular(&path).is_ok());
        for other in [Path::new("/dev/zero"), folder.path()] {
            assert!(open_regular(other).unwrap_err().to_string().contains("not a regular file"));
        }
    }
}
