//! The limit on the process that a run keeps to, in words.

use forebay::{format_bytes, ProcessLimit, Trainer};

use crate::arguments::TrainArguments;
use crate::data_arguments::ValidateBy;
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

/// Plans the validation of a run before its first step, and says so where no plan fits: predictions of a batch take memory that training does
/// not need. Where sizes vary, they are known later.
pub fn tell_of_validation(trainer: &mut Trainer, arguments: &TrainArguments, batch_size: u64) {
    let is_whole = arguments.reading.validate_by == Some(ValidateBy::Whole);
    let varies = arguments.bucket_by.is_some() || arguments.pad_to.is_some() || is_whole;
    let Some(data) = arguments.validation().filter(|_| !varies) else { return };
    let part = (batch_size / arguments.training.gradients.parts()).max(1);
    if let Err(error) = trainer.plan_evaluation(part) {
        output::complain(&format!("warning: validation on {data} will fail after training: {error}"));
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
