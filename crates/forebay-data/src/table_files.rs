//! Which files are tables of columns.

use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::names::files_with;

/// A format of table files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Parquet.
    Parquet,
    /// Arrow's IPC format, as files and streams; it is the same as version 2 of Feather.
    Arrow,
}

impl Format {
    /// Returns the extensions of files in this format.
    fn extensions(self) -> &'static [&'static str] {
        match self {
            Format::Parquet => &["parquet"],
            Format::Arrow => &["arrow", "feather", "arrows", "ipc"],
        }
    }

    /// Returns the name of the format.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Parquet => "Parquet",
            Format::Arrow => "Arrow",
        }
    }
}

/// Returns the format of the tables that a path names, which is a file or a folder of files; `None` if there are no tables.
///
/// # Errors
/// [`DataError`] if the folder cannot be listed.
pub(crate) fn format(path: &Path) -> Result<Option<Format>, DataError> {
    for format in [Format::Parquet, Format::Arrow] {
        if !files(path, format)?.is_empty() {
            return Ok(Some(format));
        }
    }
    Ok(None)
}

/// Returns the files of a format that a path names: the file itself, or the files of a folder in the order of their names; empty if there
/// are none.
///
/// # Errors
/// [`DataError`] if the folder cannot be listed.
pub(crate) fn files(path: &Path, format: Format) -> Result<Vec<PathBuf>, DataError> {
    files_with(path, format.extensions())
}
