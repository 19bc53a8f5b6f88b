//! Files that appear whole or not at all, and locks on folders.
//!
//! Everything that Forebay writes for its users is written through this crate. What a path names determines how it is written:
//!
//! | the path names | what is done |
//! |---|---|
//! | nothing, or a regular file | the content goes to a temporary file in the same folder, which then takes the name; the permissions of an existing file are kept |
//! | a symbolic link | the same for its target, whether that exists or not; the link is kept |
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
//! | [`destination`] | what a path names, and whether it can be written |
//! | [`temporary`] | a file that has no name until it is complete |
//! | [`pending`] | content that is complete and moves to its destination on request |
//! | [`unnamed`] | content that is named last |
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
