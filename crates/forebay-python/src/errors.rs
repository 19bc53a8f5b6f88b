//! Conversion of Rust errors to the exceptions in `forebay/errors.py`, with the same messages, which name arguments of Python instead of
//! flags of the command line.

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
    /// The system's error number, and the path.
    File(Option<i32>, String),
}

/// Returns the exception for an error.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let made = py.import("forebay.errors").and_then(|errors| {
        let text = PyString::new(py, &in_python(&error.to_string()));
        match kind(error) {
            Kind::Plain(class) => errors.getattr(class)?.call1((text,)),
            Kind::OutOfBudget(budget, least) => errors.getattr("OutOfBudget")?.call1((text, budget, least)),
            Kind::UnsupportedOperator(operators) => errors.getattr("UnsupportedOperator")?.call1((text, operators)),
            Kind::File(number, path) => errors.getattr("FileError")?.call1((text, number, path)),
        }
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        // The package is being unloaded, so only the message matters.
        Err(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

/// The flags whose arguments in Python have other names.
const OTHER_NAMES: [(&str, &str); 5] = [
    ("group", "groups"),
    ("label-input", "labels=... of forebay.OutputLoss"),
    ("memory", "memory_mode"),
    ("network-timeout", "timeout=... of forebay.Processes"),
    ("pos-weight", "positive_weights"),
];

/// The words that messages pass to flags. Numbers are recognized by their first digit.
const WORDS: [&str; 5] = ["automatic", "continue", "host", "needed", "skip"];

/// Advice that names functions of the Rust library, and the advice for Python.
const OTHER_ADVICE: [(&str, &str); 2] = [
    ("use Session::run_values", "Python takes and returns only tensors, so leave it out of the model"),
    (
        "all of them must call Trainer::collect_shards first, after which process 0 has the whole tensor",
        "only process 0 can have the whole tensor",
    ),
];

/// Returns a message that names arguments of Python instead of flags: `device_memory="8MiB"` for `--device-memory 8MiB`.
fn in_python(message: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c == '-';
    let advice = |message: String, (rust, python): &(&str, &str)| message.replace(rust, python);
    let message = OTHER_ADVICE.iter().fold(message.to_owned(), advice);
    let mut found = String::with_capacity(message.len());
    let mut rest = message.as_str();
    while let Some(start) = rest.find("--") {
        let (before, flag) = (&rest[..start], &rest[start + 2..]);
        found.push_str(before);
        let (name, behind) = flag.split_at(flag.find(|c| !is_of_name(c)).unwrap_or(flag.len()));
        let follows_space = found.chars().next_back().is_none_or(|c| c == ' ' || c == '(');
        if !follows_space || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
            found.push_str("--");
            rest = flag;
            continue;
        }
        if let ("size", Some((symbol, value, after))) = (name, size_of_symbol(behind)) {
            found.push_str(&format!("sizes={{\"{symbol}\": {value}}}"));
            rest = after;
            continue;
        }
        let other = OTHER_NAMES.iter().find(|(known, _)| *known == name);
        found.push_str(&other.map_or_else(|| name.replace('-', "_"), |(_, name)| (*name).to_owned()));
        let after_space = behind.strip_prefix(' ').unwrap_or_default();
        let value = &after_space[..after_space.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(after_space.len())];
        rest = behind;
        let given = match value {
            "N" => "=N".to_owned(),
            _ if WORDS.contains(&value) || value.starts_with(|c: char| c.is_ascii_digit()) => format!("=\"{value}\""),
            _ => continue,
        };
        found.push_str(&given);
        rest = &after_space[value.len()..];
    }
    found.push_str(rest);
    found
}

/// Splits ` NAME=VALUE` from what follows it.
fn size_of_symbol(text: &str) -> Option<(&str, &str, &str)> {
    let text = text.strip_prefix(' ')?;
    let (pair, after) = text.split_at(text.find([' ', ',', ';', ')']).unwrap_or(text.len()));
    let (symbol, value) = pair.split_once('=')?;
    Some((symbol, value, after))
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
        Error::File { path, reason, .. } => Kind::File(error_number(reason), path.to_string_lossy().into_owned()),
        Error::Checkpoint { path, reason } if error_number(reason).is_some() => {
            Kind::File(error_number(reason), path.to_string_lossy().into_owned())
        }
        _ => Kind::Plain("Error"),
    }
}

/// Returns the system's number for an error: the standard library ends every message of the system with it.
fn error_number(reason: &str) -> Option<i32> {
    reason.rsplit_once("(os error ")?.1.split_once(')')?.0.parse().ok()
}

fn of_plan(error: &PlanError) -> Kind {
    match error {
        PlanError::DeviceBudget { minimum_bytes, .. } => Kind::OutOfBudget("device_memory", Some(*minimum_bytes)),
        PlanError::HostBudget { needed_bytes, .. } => Kind::OutOfBudget("host_memory", Some(*needed_bytes)),
        PlanError::Tensor { .. } => Kind::OutOfBudget("device", None),
        PlanError::Document { .. } => Kind::Plain("InvalidArgument"),
        // Python makes no such request.
        PlanError::Stopped => Kind::Plain("Error"),
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
        ModelError::File { path, reason } => Kind::File(error_number(reason), path.clone()),
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

/// Returns the row of a table with a given name.
///
/// # Errors
/// Fails if there is no such row.
pub fn choice<T: Copy>(py: Python<'_>, what: &str, text: &str, table: &[(&str, T)]) -> PyResult<T> {
    let found = table.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
        let reason = format!("unknown {what} '{text}'; expected one of {}", names.join(", "));
        exception(py, &Error::Option { reason })
    })
}
