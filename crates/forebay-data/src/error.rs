//! Errors in data. Every error names the file and, if there is one, the array, row or shape.

use std::path::{Path, PathBuf};

use forebay_base::DataType;

/// The reason why data cannot be used.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::{open, DataError, LabelKind, Requirements};
///
/// let labels = LabelKind::Values(DataType::Float32);
/// let requirements = Requirements { inputs: Vec::new(), input_scale: 1.0, labels, label_shape: Vec::new() };
/// let Err(error) = open("no-such-folder", &requirements) else { panic!("there is no such folder") };
/// assert!(matches!(&error, DataError::Io { .. }) && error.to_string().starts_with("no-such-folder: "), "{error}");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The system refused to read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file is truncated or corrupt.
    #[error("{origin}: {reason}")]
    Malformed {
        /// The file, and the array in it.
        origin: String,
        /// What is wrong.
        reason: String,
    },
    /// A file is valid, but holds something that is not supported.
    #[error("{origin}: {reason}")]
    Unsupported {
        /// The file, and the array in it.
        origin: String,
        /// What is not supported.
        reason: String,
    },
    /// An array is missing.
    #[error("{}: no array named '{name}'; it contains {}", path.display(), listed(present))]
    MissingArray {
        /// The file.
        path: PathBuf,
        /// The name of the missing array.
        name: String,
        /// The names of the arrays in the file.
        present: Vec<String>,
    },
    /// An array has the wrong shape.
    #[error("{origin}: the shape is {found:?}, expected {expected}")]
    Shape {
        /// The file, and the array in it.
        origin: String,
        /// The array's shape.
        found: Vec<u64>,
        /// What was expected, in words.
        expected: String,
    },
    /// An array has a type that cannot be converted to the wanted one.
    #[error("{origin}: {found} elements cannot be converted to {wanted}{hint}")]
    Type {
        /// The file, and the array in it.
        origin: String,
        /// The array's type.
        found: DataType,
        /// The wanted type.
        wanted: DataType,
        /// A suggested solution, or nothing.
        hint: &'static str,
    },
    /// A value does not fit the wanted type.
    #[error("{origin}: element {index} is {value}, which does not fit in {wanted}")]
    Value {
        /// The file, and the array in it.
        origin: String,
        /// The row-major index of the element.
        index: usize,
        /// The element.
        value: String,
        /// The wanted type.
        wanted: DataType,
    },
    /// Image and label files cannot be paired, or a folder's layout is not supported.
    #[error("{}: {reason}", path.display())]
    Layout {
        /// The folder.
        path: PathBuf,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// A row selection does not fit the data.
    #[error("{data}: {reason}")]
    Rows {
        /// The data set, as given by the caller.
        data: String,
        /// What is wrong.
        reason: String,
    },
}

impl DataError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> DataError {
        DataError::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn malformed(origin: impl Into<String>, reason: impl Into<String>) -> DataError {
        DataError::Malformed { origin: origin.into(), reason: reason.into() }
    }

    pub(crate) fn unsupported(origin: impl Into<String>, reason: impl Into<String>) -> DataError {
        DataError::Unsupported { origin: origin.into(), reason: reason.into() }
    }

    pub(crate) fn layout(path: &Path, reason: impl Into<String>) -> DataError {
        DataError::Layout { path: path.to_path_buf(), reason: reason.into() }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "no arrays".to_owned() } else { names.join(", ") }
}
