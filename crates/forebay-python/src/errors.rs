//! Conversion of Rust errors to the exceptions in `forebay/errors.py`, with the same messages.

use forebay::{DeviceError, Error, ModelError, PlanError, RuntimeError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The parts of a Python exception: the name of its class, and its arguments besides the message.
enum Kind {
    Plain(&'static str),
    /// The budget, and the smallest one that would suffice, in bytes.
    OutOfBudget(&'static str, Option<u64>),
    /// The operators.
    UnsupportedOperator(Vec<String>),
}

/// Returns the exception for an error.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let made = py.import("forebay.errors").and_then(|errors| {
        let text = PyString::new(py, &error.to_string());
        match kind(error) {
            Kind::Plain(class) => errors.getattr(class)?.call1((text,)),
            Kind::OutOfBudget(budget, least) => errors.getattr("OutOfBudget")?.call1((text, budget, least)),
            Kind::UnsupportedOperator(operators) => errors.getattr("UnsupportedOperator")?.call1((text, operators)),
        }
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        // The package is being unloaded, so only the message matters.
        Err(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

fn kind(error: &Error) -> Kind {
    match error {
        Error::Plan(error) => of_plan(error),
        Error::MemoryLimit { tensors_bytes, other_bytes, .. }
        | Error::FreeMemory { tensors_bytes, other_bytes, .. } => {
            Kind::OutOfBudget("memory_limit", Some(tensors_bytes.saturating_add(*other_bytes)))
        }
        Error::Device { error, .. } => of_device(error),
        Error::Runtime(error) => match error {
            RuntimeError::Device { error, .. } => of_device(error),
            RuntimeError::Broken => Kind::Plain("DeviceLost"),
            RuntimeError::OutOfMemory(_) => Kind::OutOfBudget("device_memory", None),
            RuntimeError::HostMemory { .. } => Kind::OutOfBudget("host_memory", None),
            RuntimeError::Operation(ModelError::Operator { .. }) => Kind::Plain("InvalidArgument"),
            RuntimeError::Operation(error) => of_model(error),
            RuntimeError::Tensor { .. }
            | RuntimeError::OtherContext { .. }
            | RuntimeError::NoTiming
            | RuntimeError::Index { .. }
            | RuntimeError::Setting { .. } => Kind::Plain("InvalidArgument"),
            _ => Kind::Plain("Error"),
        },
        Error::Model(error) => of_model(error),
        Error::Option { .. }
        | Error::MissingInput { .. }
        | Error::UnknownInput { .. }
        | Error::Input { .. }
        | Error::NoBatchAxis { .. }
        | Error::Index { .. }
        | Error::Label { .. }
        | Error::Document { .. } => Kind::Plain("InvalidArgument"),
        Error::NanLoss { .. } | Error::NanGradients { .. } | Error::NothingCounts { .. } => Kind::Plain("NotFinite"),
        Error::File { .. } => Kind::Plain("FileError"),
        _ => Kind::Plain("Error"),
    }
}

fn of_plan(error: &PlanError) -> Kind {
    match error {
        PlanError::DeviceBudget { minimum_bytes, .. } => Kind::OutOfBudget("device_memory", Some(*minimum_bytes)),
        PlanError::HostBudget { needed_bytes, .. } => Kind::OutOfBudget("host_memory", Some(*needed_bytes)),
        PlanError::Tensor { .. } => Kind::OutOfBudget("device", None),
        PlanError::Document { .. } => Kind::Plain("InvalidArgument"),
        PlanError::Check { .. } => Kind::Plain("RaceError"),
    }
}

fn of_device(error: &DeviceError) -> Kind {
    match error {
        DeviceError::OutOfMemory { .. } => Kind::OutOfBudget("device", None),
        DeviceError::Lost { .. } => Kind::Plain("DeviceLost"),
        DeviceError::Unsupported { kernel, .. } => Kind::UnsupportedOperator(vec![(*kernel).to_owned()]),
        DeviceError::Setting { .. } => Kind::Plain("InvalidArgument"),
        _ => Kind::Plain("Error"),
    }
}

fn of_model(error: &ModelError) -> Kind {
    let operators = unsupported(error);
    match error {
        _ if !operators.is_empty() => Kind::UnsupportedOperator(operators),
        ModelError::File { .. } => Kind::Plain("FileError"),
        ModelError::Request { .. } => Kind::Plain("InvalidArgument"),
        _ => Kind::Plain("Error"),
    }
}

/// Returns the operators that are not supported or have no gradient.
fn unsupported(error: &ModelError) -> Vec<String> {
    match error {
        ModelError::UnsupportedOperator { domain, op_type, .. } if domain.is_empty() => vec![op_type.clone()],
        ModelError::UnsupportedOperator { domain, op_type, .. } => vec![format!("{domain}.{op_type}")],
        ModelError::NoGradient { op_type, .. } => vec![op_type.clone()],
        ModelError::Several(errors) => errors.iter().flat_map(unsupported).collect(),
        _ => Vec::new(),
    }
}
