//! Which files hold documents of text, by their names.

use std::path::{Path, PathBuf};

use crate::error::DataError;

/// Returns whether a file holds documents, by its name.
fn is_text(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    matches!(extension, "txt" | "jsonl" | "ndjson")
}

/// Returns the files that a path names: the file itself, or the files of a folder in the order of their names; empty if there are none.
///
/// # Errors
/// [`DataError`] if the folder cannot be listed.
pub(crate) fn text_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(Some(path.to_path_buf()).into_iter().filter(|path| is_text(path)).collect());
    }
    let listed = crate::class_folders::listed(path)?;
    Ok(listed.into_iter().filter(|path| is_text(path) && path.is_file()).collect())
}
