//! Tables of any format that this program was built with.

use std::path::Path;

use crate::error::DataError;
use crate::table::Table;
use crate::table_files::{Format, format};

/// Opens the tables that a path names.
///
/// # Errors
/// [`DataError`] naming a file that is not a table or has other columns than the first, or a format that this program was built without.
pub(crate) fn open(path: &Path) -> Result<Table, DataError> {
    match format(path)? {
        #[cfg(feature = "parquet")]
        Some(Format::Parquet) => crate::parquet_file::open(path),
        #[cfg(feature = "arrow")]
        Some(Format::Arrow) => crate::arrow_file::open(path),
        other => Err(DataError::unsupported(path.display().to_string(), left_out(other.unwrap_or(Format::Parquet)))),
    }
}

/// Returns the message about a format that this program was built without.
fn left_out(format: Format) -> String {
    let name = format.name();
    format!("this program was built without {name} (cargo's feature `{}`)", name.to_lowercase())
}
