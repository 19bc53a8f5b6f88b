//! Memory limits and budgets of a run: what they bound, in words, and whether they are enough for all of it.

use forebay::data::DataSet;
use forebay::{Error, MemoryLimit, MemoryOptions, MemorySize, PlanError, ProcessLimit, Trainer, format_bytes};

use crate::arguments::TrainArguments;
use crate::data_arguments::ValidateBy;
use crate::device_arguments::DeviceArguments;
use crate::failure::Failure;
use crate::output;

/// The most attempts to open a run that was refused, each with what the error before named.
const ATTEMPTS_MAX: usize = 4;

/// A limit or budget that an error names because the one before was too small.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Enough {
    /// A limit on the process, in bytes.
    MemoryLimit(u64),
    /// A budget for host memory, in bytes.
    HostMemory(u64),
}

impl Enough {
    fn named_in(error: &Error) -> Option<Enough> {
        match error {
            Error::MemoryLimit { tensors_bytes, other_bytes, .. } => {
                Some(Enough::MemoryLimit(tensors_bytes.saturating_add(*other_bytes)))
            }
            Error::Plan(PlanError::HostBudget { needed_bytes, .. }) => Some(Enough::HostMemory(*needed_bytes)),
            _ => None,
        }
    }

    /// Sets it, as the user would: in whole KiB.
    pub fn set(self, memory: &mut MemoryOptions) {
        let size = |bytes: u64| MemorySize::Bytes(bytes.next_multiple_of(1024));
        match self {
            Enough::MemoryLimit(bytes) => memory.memory_limit = Some(MemoryLimit::Size(size(bytes))),
            Enough::HostMemory(bytes) => memory.host_memory = Some(size(bytes)),
        }
    }
}

/// Opens a run. If a limit or budget is too small, the failure names one that is enough for all of the run: the plan that was refused says
/// nothing about data, which takes memory, too, and about the plans of validation. `open` is called with what is enough so far.
///
/// # Errors
/// Returns the errors of `open`.
pub fn open_or_name_least<T>(mut open: impl FnMut(Option<Enough>) -> Result<T, Failure>) -> Result<T, Failure> {
    let (mut text, given) = match open(None) {
        Err(Failure::Budget(text, error)) => (text, error),
        opened => return opened,
    };
    let mut enough = Enough::named_in(&given);
    for _ in 0..ATTEMPTS_MAX {
        if enough.is_none() {
            break;
        }
        let Err(Failure::Budget(more, mut error)) = open(enough) else { break };
        let named = Enough::named_in(&error);
        if named <= enough {
            break;
        }
        // The error quotes the limit that the user gave, not that of this attempt.
        let quoted = error.to_string();
        match (&mut *error, &*given) {
            (Error::MemoryLimit { limit_bytes, .. }, Error::MemoryLimit { limit_bytes: given_bytes, .. })
            | (
                Error::Plan(PlanError::HostBudget { budget_bytes: limit_bytes, .. }),
                Error::Plan(PlanError::HostBudget { budget_bytes: given_bytes, .. }),
            ) => *limit_bytes = *given_bytes,
            _ => break,
        }
        (text, enough) = (more.replace(&quoted, &error.to_string()), named);
    }
    Err(Failure::Budget(text, given))
}

/// Reports what the device memory budget bounds, if that is not the whole process.
pub fn tell_of_budget(device: &DeviceArguments, excludes_process: bool) {
    if let Some(size) = device.device_memory.filter(|_| excludes_process) {
        output::complain(&format!(
            "note: the whole process cannot stay within --device-memory {size}, so this limits only tensors: what does not fit is \
             copied to the rest of the memory and back, as with --simulate-device (use --memory-limit to limit the process)"
        ));
    }
}

/// Plans the validation of a run before its first step: predictions of a batch take memory that training does not need, and the last batch
/// may be shorter than the others. Sizes that vary are only known later; for whole volumes, the largest is planned.
///
/// # Errors
/// Returns why validation will fail, if it will.
pub fn plan_validation(
    trainer: &mut Trainer,
    arguments: &TrainArguments,
    batch_size: u64,
    validation: Option<&DataSet>,
) -> Result<(), Failure> {
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
        None => {
            let (whole, samples) = ((batch_size / arguments.training.gradients.parts()).max(1), set.sample_count());
            let sizes = [whole.min(samples), samples % whole];
            sizes.into_iter().filter(|&size| size > 0).try_for_each(|size| trainer.plan_evaluation(size))
        }
    };
    planned.map_err(|error| {
        let failure = Failure::from(error);
        if let Failure::Budget(..) = failure {
            return failure.at(&format!("validation on {data}"));
        }
        let is_whole = arguments.reading.validate_by == Some(ValidateBy::Whole) && arguments.pad_to.is_none();
        let way_out = if is_whole { " (--pad-to 16 pads volumes with zeros to a multiple of 16)" } else { "" };
        Failure::Failed(format!("validation on {data} will fail after training: {failure}{way_out}"))
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
