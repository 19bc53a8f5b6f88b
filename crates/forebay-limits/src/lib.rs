//! What this process may still take of the machine, and files that are not believed.
//!
//! A request that the system cannot meet should end in an error that says how much was wanted, how much there is, and what
//! limits it; the system itself would kill the process later, without a word. So code that is about to take much memory asks
//! [`check`] first, and files that decide how much memory is taken are read with the functions of [`mod@files`].
//!
//! | module | holds |
//! |---|---|
//! | [`memory`] | what may still be taken: the machine's memory, control groups, resource limits |
//! | [`process`] | what this process takes |
//! | [`groups`] | where the control groups of this process are |
//! | [`mod@files`] | reading with a bound, and memory for what a file says |

pub mod files;
pub mod groups;
pub mod memory;
pub mod process;

pub use files::{DIRECT_BLOCK_BYTES, buffer, open_direct, open_regular, read, read_text, read_up_to};
pub use memory::{Available, Shortage, Total, Use, available_bytes, check, keep_own_limit, total};
pub use process::{Resident, resident};
