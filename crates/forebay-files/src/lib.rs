//! Files that appear whole or not at all, and locks on folders.
//!
//! Everything that Forebay writes for its users goes through here. What a path names decides how it is written:
//!
//! | the path names | what is done |
//! |---|---|
//! | nothing, or a regular file | the content goes to a temporary file in the same folder, which then takes the name; permissions of an old file stay |
//! | a symbolic link | the same for what it points to, whether that exists or not; the link stays |
//! | a character device, a pipe | the content is written to it |
//! | a file that is write-protected, a folder, a block device, a socket | it is refused |
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("report.txt");
//! forebay_files::check_writable(&path)?; // before hours of work, and without a trace
//! forebay_files::write(&path, b"done")?;
//! assert_eq!(std::fs::read(&path)?, b"done");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`destination`] | what a path names, and whether it may be written |
//! | [`temporary`] | a file that has no name until it is complete |
//! | [`pending`] | content that is complete, and takes its place when asked to |
//! | [`unnamed`] | content that gets its name last |
//! | [`lock`] | one writer per folder |

pub mod destination;
pub mod lock;
pub mod pending;
pub mod temporary;
pub mod unnamed;

pub use destination::{check_folder, check_writable, free_bytes};
pub use lock::{FolderLock, LockError};
pub use pending::{Content, Pending, explained, write};
pub use temporary::exit;
pub use unnamed::Unnamed;
