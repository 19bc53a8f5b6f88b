//! The library's errors.

use std::fmt;
use std::path::PathBuf;

use forebay_device::DeviceError;
use forebay_memory::size::{MemorySizeError, format_bytes};
use forebay_model::ModelError;
use forebay_offload::workload::SwapError;
use forebay_plan::PlanError;
use forebay_runtime::RuntimeError;

/// The reason why an operation failed. Messages give names, numbers and a way out.
///
/// ```
/// use forebay::{Error, Model};
///
/// let error = Model::from_file("there-is-none.onnx").unwrap_err();
/// assert!(matches!(error, Error::Model(_)));
/// assert!(error.to_string().contains("there-is-none.onnx"));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be read, typed, differentiated, lowered or written.
    Model(ModelError),
    /// There is no plan within the budgets.
    Plan(PlanError),
    /// The device is unavailable, or cannot run a kernel of the model.
    Device {
        /// What was being done.
        action: String,
        /// The error that the device reported.
        error: DeviceError,
    },
    /// The process cannot stay within its memory limit.
    MemoryLimit {
        /// The limit in bytes.
        limit_bytes: u64,
        /// The least that tensors need, in bytes, as far as is known.
        tensors_bytes: u64,
        /// The node that needs the most of these bytes at once; empty if it is planning that took too much.
        launch: String,
        /// What the rest of the process takes, in bytes.
        other_bytes: u64,
        /// Whether there is a folder to spill to.
        spilled: bool,
    },
    /// No limit was given, and the process cannot stay within the free memory.
    FreeMemory {
        /// The memory that is free for the process, in bytes, including what it already has.
        free_bytes: u64,
        /// The least that tensors need, in bytes, as far as is known.
        tensors_bytes: u64,
        /// The node that needs the most of these bytes at once.
        launch: String,
        /// What the rest of the process takes, in bytes.
        other_bytes: u64,
        /// Whether there is a folder to spill to.
        spilled: bool,
    },
    /// A stage of a model has no plan that fits next to the values that other stages have produced or will use.
    BetweenStages {
        /// Bytes of those values.
        bytes: u64,
        /// Why there is no plan.
        error: Box<Error>,
    },
    /// A plan failed while it ran.
    Runtime(RuntimeError),
    /// An option is invalid.
    Option {
        /// Why, and what would be valid.
        reason: String,
    },
    /// An input is missing.
    MissingInput {
        /// The input, with its type and shape.
        expected: String,
        /// The names that were given.
        given: Vec<String>,
    },
    /// The model has no input of this name.
    UnknownInput {
        /// The name given.
        name: String,
        /// The model's inputs, with types and shapes.
        known: Vec<String>,
    },
    /// An input has the wrong type or shape.
    Input {
        /// The input, with the type and shape that it must have.
        expected: String,
        /// The type and shape that were given.
        given: String,
    },
    /// An input has no axis along which samples lie, so no data set can feed it.
    NoBatchAxis {
        /// The input, with its type and shape.
        input: String,
    },
    /// An index in an input is out of range.
    Index {
        /// The input.
        name: String,
        /// The index.
        value: i64,
        /// The position of the index.
        position: Vec<u64>,
        /// The number of entries.
        limit: u64,
    },
    /// A label is not a class.
    Label {
        /// The label.
        value: i64,
        /// The position of the label.
        position: Vec<u64>,
        /// The number of classes.
        classes: u64,
    },
    /// The loss is not a finite number. Parameters and state are as before the step.
    NanLoss {
        /// The step, counted from 1.
        step: u64,
        /// The loss.
        loss: f32,
    },
    /// A gradient is not finite. Parameters and state are as before the step.
    NanGradients {
        /// The step, counted from 1.
        step: u64,
    },
    /// Every label of a batch has the value that is ignored, so the loss is the mean of nothing. Parameters and state are as before the
    /// step.
    NothingCounts {
        /// The step, counted from 1.
        step: u64,
        /// The value that is ignored.
        ignore_index: i64,
    },
    /// A checkpoint cannot be read, or does not fit the model.
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A trace is invalid, or has no schedule.
    Swap {
        /// The trace.
        path: PathBuf,
        /// Why.
        error: SwapError,
    },
    /// A file that describes a machine or costs is invalid.
    Document {
        /// The file.
        path: PathBuf,
        /// Why.
        error: PlanError,
    },
    /// A file cannot be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// What was being done, for example `read` or `write`.
        action: &'static str,
        /// The system's error message.
        reason: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Model(error) => error.fmt(f),
            Error::Plan(error) => error.fmt(f),
            Error::Device { action, error } => write!(f, "{action}: {error}"),
            Error::MemoryLimit { limit_bytes, tensors_bytes, launch, other_bytes, spilled } => {
                let [limit, tensors, other] = [*limit_bytes, *tensors_bytes, *other_bytes].map(format_bytes);
                let least_kib = tensors_bytes.saturating_add(*other_bytes).div_ceil(1024);
                let alone = if limit_bytes <= other_bytes { " alone" } else { "" };
                let (most, rest) = match launch.as_str() {
                    "" => (String::new(), "the rest of the process with planning"),
                    launch => (format!(", most of it for '{launch}'"), "the rest of the process"),
                };
                let ways_out = match spilled {
                    true => " or use a smaller batch",
                    false => ", use a smaller batch, or name a folder to spill to",
                };
                write!(
                    f,
                    "a memory limit of {limit} is too small: tensors need {tensors}{most}, and {rest}{alone} takes {other} \
                     (pass at least {least_kib}KiB{ways_out})"
                )
            }
            Error::FreeMemory { free_bytes, tensors_bytes, launch, other_bytes, spilled } => {
                let [free, tensors, other] = [*free_bytes, *tensors_bytes, *other_bytes].map(format_bytes);
                let least = format_bytes(tensors_bytes.saturating_add(*other_bytes));
                let spilling = if *spilled { "" } else { " name a folder to spill to," };
                write!(
                    f,
                    "{free} of memory is free for this process, but it needs at least {least}: {tensors} for tensors, most of \
                     it for '{launch}', and {other} for the rest of the process (use a smaller batch,{spilling} or free \
                     memory; a memory limit of none tries anyway)"
                )
            }
            Error::BetweenStages { bytes, error } => {
                write!(
                    f,
                    "{error}; {bytes} of these bytes are values that pass between two stages of the model, whose sizes become \
                     known only as it runs"
                )
            }
            Error::Runtime(error) => error.fmt(f),
            Error::Option { reason } => f.write_str(reason),
            Error::MissingInput { expected, given } => {
                write!(f, "input '{expected}' is missing (given: {})", list(given))
            }
            Error::UnknownInput { name, known } => {
                write!(f, "the model has no input '{name}' (inputs: {})", list(known))
            }
            Error::Input { expected, given } => write!(f, "expected input '{expected}', found {given}"),
            Error::NoBatchAxis { input } => {
                write!(f, "input {input} has no batch axis, so no data set can feed it")
            }
            Error::Index { name, value, position, limit } => {
                write!(f, "input '{name}' contains index {value} at {position:?}, but there are only {limit} entries")
            }
            Error::Label { value, position, classes } => {
                write!(
                    f,
                    "label {value} at {position:?} is not one of the {classes} classes 0 to {}; if it marks positions \
                     without a label, pass it as --ignore-index",
                    classes.saturating_sub(1)
                )
            }
            Error::NanLoss { step, loss } => write!(
                f,
                "the loss of step {step} is {loss}; the parameters are as they were before that step (lower the learning \
                 rate, clip gradients, or pass --on-nan skip, which checks gradients as well; if an earlier step has already made \
                 parameters infinite or NaN, resume from an older checkpoint)"
            ),
            Error::NanGradients { step } => write!(
                f,
                "the loss of step {step} is a number, but a gradient is not finite; the parameters are as they were \
                 before that step (lower the learning rate, or skip such updates with --on-nan skip)"
            ),
            Error::NothingCounts { step, ignore_index } => write!(
                f,
                "every label of step {step} is {ignore_index}, the ignored value, so its loss is the mean of no \
                 positions, which is not a number, as in PyTorch; the parameters are as they were before that step (leave such \
                 samples out of the data, or pass --on-nan continue, which takes the gradients of such a step to be 0)"
            ),
            Error::Checkpoint { path, reason } => write!(f, "checkpoint {}: {reason}", path.display()),
            Error::Swap { path, error } => write!(f, "{}: {error}", path.display()),
            Error::Document { path, error } => write!(f, "{}: {error}", path.display()),
            Error::File { path, action, reason } => write!(f, "cannot {action} {}: {reason}", path.display()),
        }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Model(error) => Some(error),
            Error::Plan(error) | Error::Document { error, .. } => Some(error),
            Error::Device { error, .. } => Some(error),
            Error::BetweenStages { error, .. } => Some(error),
            Error::Runtime(error) => Some(error),
            Error::Swap { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<MemorySizeError> for Error {
    fn from(error: MemorySizeError) -> Error {
        Error::Option { reason: error.to_string() }
    }
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Error {
        Error::Model(error)
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Error {
        Error::Plan(error)
    }
}

impl From<RuntimeError> for Error {
    fn from(error: RuntimeError) -> Error {
        Error::Runtime(error)
    }
}
