//! The resources that are still available to this process, and reading of files that are not trusted.
//!
//! A request that the system cannot meet should end in an error that states how much was requested, how much is available, and what the
//! limit is; the system itself would kill the process later without a word. So code that is about to take much memory calls [`check`]
//! first, and files that determine how much memory is taken are read with the functions of [`mod@files`].
//!
//! | module | holds |
//! |---|---|
//! | [`memory`] | what is still available: the machine's memory, control groups, resource limits |
//! | [`process`] | the memory that this process uses |
//! | [`groups`] | the locations of this process's control groups |
//! | [`mod@files`] | bounded reads, and memory for sizes that a file states |

pub mod files;
pub mod groups;
pub mod memory;
pub mod process;

pub use files::{DIRECT_BLOCK_BYTES, buffer, open_direct, open_regular, read, read_text, read_up_to};
pub use memory::{Available, Shortage, Total, Use, available_bytes, check, keep_own_limit, share_bytes, total};
pub use process::{Resident, resident};
