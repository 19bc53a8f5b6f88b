//! Which files are tables of columns.

use std::path::{Path, PathBuf};

use crate::class_folders::listed;
use crate::error::DataError;

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
    let mut found = if path.is_dir() { listed(path)? } else { vec![path.to_path_buf()] };
    let is_one_of = |name: &str| format.extensions().iter().any(|extension| name.eq_ignore_ascii_case(extension));
    let is_named = |path: &Path| path.extension().and_then(|name| name.to_str()).is_some_and(is_one_of);
    found.retain(|path| is_named(path) && !path.is_dir());
    Ok(found)
}
