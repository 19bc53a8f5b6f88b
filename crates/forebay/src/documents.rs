//! Files from which plans are made: machine descriptions and costs.

use std::path::{Path, PathBuf};

pub use forebay_plan::saved_costs::Unknown;
use forebay_plan::{MachineDescription, PlanError, SavedCosts};

use crate::error::Error;
use crate::files;
use crate::schedule::Curve;

/// The longest file that is read, in bytes. The costs of a hundred thousand launches are shorter.
const DOCUMENT_BYTES_MAX: u64 = 256 << 20;

/// Returns a machine by the name of one that comes with the library, or by the file that describes it.
///
/// # Errors
/// Fails if the file cannot be read or is invalid.
pub fn machine(name_or_file: &str) -> Result<MachineDescription, Error> {
    if let Some(machine) = MachineDescription::built_in(name_or_file) {
        return Ok(machine);
    }
    if !Path::new(name_or_file).exists() {
        let names: Vec<&str> = MachineDescription::built_in_names().collect();
        let names = names.join(", ");
        let reason = format!("'{name_or_file}' is neither a known machine nor a file; the known machines are {names}");
        return Err(Error::Option { reason });
    }
    read(name_or_file.as_ref(), MachineDescription::parse)
}

/// Reads saved costs.
///
/// # Errors
/// Fails if the file cannot be read or is invalid.
pub fn read_costs(path: &Path) -> Result<SavedCosts, Error> {
    read(path, SavedCosts::parse)
}

/// Writes costs to a file, which is replaced as a whole or not at all.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write_costs(path: &Path, costs: &SavedCosts) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(costs).map_err(|error| files::write_error(path, error))?;
    files::replace(path, &text)
}

/// Reads a table of learning rates: see [`Curve::table_from_csv`].
///
/// # Errors
/// Fails if the file cannot be read or is invalid.
pub fn read_rates(path: &Path) -> Result<Curve, Error> {
    read(path, |text| {
        Curve::table_from_csv(text).map_err(|reason| PlanError::Document { what: "the table of rates", reason })
    })
}

fn read<T>(path: &Path, parse: impl Fn(&str) -> Result<T, PlanError>) -> Result<T, Error> {
    let path = PathBuf::from(path);
    match forebay_limits::read_text(&path, DOCUMENT_BYTES_MAX) {
        Ok(text) => parse(&text).map_err(|error| Error::Document { path, error }),
        Err(error) => Err(Error::File { path, action: "read", reason: error.to_string() }),
    }
}
