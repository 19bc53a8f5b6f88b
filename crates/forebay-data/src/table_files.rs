//! Which files are tables of columns.

use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::image_set::listed;

/// A format of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Parquet.
    Parquet,
    /// Arrow's format for exchange (IPC): files and streams; version 2 of Feather is the same.
    Arrow,
}

impl Format {
    /// How files of this format are named.
    fn extensions(self) -> &'static [&'static str] {
        match self {
            Format::Parquet => &["parquet"],
            Format::Arrow => &["arrow", "feather", "arrows", "ipc"],
        }
    }

    /// What it is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Parquet => "Parquet",
            Format::Arrow => "Arrow",
        }
    }
}

/// The format of the tables that a path names: itself, or files of a folder; none where there are no tables.
///
/// # Errors
/// A folder that cannot be listed.
pub(crate) fn format(path: &Path) -> Result<Option<Format>, DataError> {
    for format in [Format::Parquet, Format::Arrow] {
        if !files(path, format)?.is_empty() {
            return Ok(Some(format));
        }
    }
    Ok(None)
}

/// The files of a format that a path names: itself, or those of a folder in the order of their names; empty where there are none.
///
/// # Errors
/// A folder that cannot be listed.
pub(crate) fn files(path: &Path, format: Format) -> Result<Vec<PathBuf>, DataError> {
    let mut found = if path.is_dir() { listed(path)? } else { vec![path.to_path_buf()] };
    let is_one_of = |name: &str| format.extensions().iter().any(|extension| name.eq_ignore_ascii_case(extension));
    let is_named = |path: &Path| path.extension().and_then(|name| name.to_str()).is_some_and(is_one_of);
    found.retain(|path| is_named(path) && !path.is_dir());
    Ok(found)
}
