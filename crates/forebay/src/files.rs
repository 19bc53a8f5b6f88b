//! Files that appear whole or not at all, and locks on folders: the crate `forebay-files`, with this crate's errors.

use std::path::Path;

pub use forebay_files::{
    FolderLock, LockError, Pending, Unnamed, check_folder, check_writable, exit, free_bytes, write,
};

use crate::error::Error;

/// Replaces `path` by `bytes`, as a whole or not at all.
///
/// # Errors
/// [`Error::File`]; the old content, if there was any, is then still there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write(path, bytes).map_err(|error| write_error(path, error))
}

/// An error about writing `path`.
pub(crate) fn write_error(path: &Path, reason: impl ToString) -> Error {
    Error::File { path: path.to_owned(), action: "write", reason: reason.to_string() }
}
