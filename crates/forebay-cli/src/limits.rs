//! The process memory limit of a run, in words.

use forebay::data::DataSet;
use forebay::{ProcessLimit, Trainer, format_bytes};

use crate::arguments::TrainArguments;
use crate::data_arguments::ValidateBy;
use crate::device_arguments::DeviceArguments;
use crate::output;

/// Reports what the device memory budget bounds, if that is not the whole process.
pub fn tell_of_budget(device: &DeviceArguments, excludes_process: bool) {
    if let Some(size) = device.device_memory.filter(|_| excludes_process) {
        output::complain(&format!(
            "note: the whole process cannot stay within --device-memory {size}, so this limits only tensors: what does not fit is \
             copied to the rest of the memory and back, as with --simulate-device (use --memory-limit to limit the process)"
        ));
    }
}

/// Plans the validation of a run before its first step: predictions of a batch take memory that training does not need. Sizes that vary are
/// only known later; for whole volumes, the largest is planned.
///
/// # Errors
/// Returns why validation will fail if no plan fits.
pub fn plan_validation(
    trainer: &mut Trainer,
    arguments: &TrainArguments,
    batch_size: u64,
    validation: Option<&DataSet>,
) -> Result<(), String> {
    let Some((data, set)) = arguments.validation().zip(validation) else { return Ok(()) };
    let planned = match arguments.reading.windows(arguments.pad_to) {
        Some(windows) => {
            let axes = windows.sizes.len();
            let spatial = |shape: &Vec<u64>| shape[shape.len().saturating_sub(axes)..].to_vec();
            let volumes =
                (0..set.sample_count()).filter_map(|sample| Some(spatial(set.sample_shapes(sample)?.first()?)));
            let largest =
                volumes.max_by_key(|sizes| sizes.iter().fold(1, |product: u64, &size| product.saturating_mul(size)));
            largest.map_or(Ok(()), |sizes| trainer.plan_windows(&sizes, &windows))
        }
        None if arguments.bucket_by.is_some() || arguments.pad_to.is_some() => Ok(()),
        None => trainer.plan_evaluation((batch_size / arguments.training.gradients.parts()).max(1)),
    };
    planned.map_err(|error| {
        let is_whole = arguments.reading.validate_by == Some(ValidateBy::Whole) && arguments.pad_to.is_none();
        let way_out = if is_whole { " (--pad-to 16 pads volumes with zeros to a multiple of 16)" } else { "" };
        format!("validation on {data} will fail after training: {error}{way_out}")
    })
}

/// Reports that a run stays within a limit that no flag specified.
pub fn tell_of_limit(limit: Option<ProcessLimit>) {
    if let Some(ProcessLimit { bytes, unlimited_bytes, .. }) = limit.filter(|limit| limit.chosen) {
        let (needed, free) = (format_bytes(unlimited_bytes), format_bytes(bytes));
        output::complain(&format!(
            "note: this would take {needed} of memory, but only {free} is available, which becomes the memory limit \
             (--memory-limit sets another one, --memory-limit none removes it)"
        ));
    }
}
