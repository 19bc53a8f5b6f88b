//! The limit on the process that a run keeps to, in words.

use forebay::{format_bytes, ProcessLimit};

use crate::device_arguments::DeviceArguments;
use crate::output;

/// Says what the budget for device memory bounds, where that is not the whole process.
pub fn tell_of_budget(device: &DeviceArguments, excludes_process: bool) {
    if let Some(size) = device.device_memory.filter(|_| excludes_process) {
        output::complain(&format!(
            "note: the whole process cannot stay within --device-memory {size}, so that bounds tensors alone: what does not fit is \
             copied to the rest of the memory and back, as with --simulate-device (--memory-limit bounds the process)"
        ));
    }
}

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
