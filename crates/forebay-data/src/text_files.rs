//! Which files hold documents of text, by their names.

use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::names::files_with;

/// Returns the files that a path names: the file itself, or the files of a folder in the order of their names; empty if there are none.
///
/// # Errors
/// [`DataError`] if the folder cannot be listed.
pub(crate) fn text_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    files_with(path, &["txt", "jsonl", "ndjson"])
}
