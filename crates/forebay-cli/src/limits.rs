//! The limit on the process that a run keeps to, in words.

use forebay::{format_bytes, ProcessLimit};

use crate::output;

/// Says that a run keeps to a limit that no flag gave.
pub fn tell_of_limit(limit: Option<ProcessLimit>) {
    if let Some(ProcessLimit { bytes, unlimited_bytes, .. }) = limit.filter(|limit| limit.chosen) {
        let (needed, free) = (format_bytes(unlimited_bytes), format_bytes(bytes));
        output::complain(&format!(
            "note: this would take {needed} of memory, and {free} are free for it: that is the memory limit \
             (--memory-limit sets another one, --memory-limit none leaves it out)"
        ));
    }
}
