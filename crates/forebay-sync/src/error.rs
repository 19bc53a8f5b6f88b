//! Why a list of commands cannot be synchronized.

use std::fmt;

use forebay_base::{HeapId, Region};

/// The error in the given commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// A region of a reservation has bytes without a mapping.
    Unmapped {
        /// The region.
        region: Region,
        /// The first byte of its memory that is not mapped.
        offset_bytes: u64,
    },
    /// Tiles were mapped that were already mapped.
    MappedTwice {
        /// The region that was to be mapped.
        region: Region,
    },
    /// A mapping ends beyond what 64 bits can address.
    MappingOverflow {
        /// The region that was to be mapped.
        region: Region,
        /// The heap.
        heap: HeapId,
    },
    /// A list of work holds a command that is not work.
    NotWork {
        /// Index of the command in the list.
        index: usize,
        /// The command.
        command: String,
    },
    /// A prologue holds a command that is not mapping.
    NotMapping {
        /// Index of the command in the prologue.
        index: usize,
        /// The command.
        command: String,
    },
}

impl fmt::Display for SyncError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyncError::Unmapped { region, offset_bytes } => {
                write!(f, "{region} is used, but byte {offset_bytes} is not mapped (map its tiles in the prologue)")
            }
            SyncError::MappedTwice { region } => {
                write!(f, "{region} is mapped, but some of its tiles are already mapped (unmap them first)")
            }
            SyncError::MappingOverflow { region, heap } => {
                write!(f, "the mapping of {region} ends beyond the last byte that {heap} can have")
            }
            SyncError::NotWork { index, command } => write!(
                f,
                "command {index} '{command}' is not work: barriers, records and waits are added automatically, and \
                 mapping belongs in the prologue"
            ),
            SyncError::NotMapping { index, command } => {
                write!(f, "command {index} '{command}' in the prologue neither maps nor unmaps")
            }
        }
    }
}

impl std::error::Error for SyncError {}
