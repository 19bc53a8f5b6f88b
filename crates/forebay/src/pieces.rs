//! Values in pieces: what is copied from a device, memory or a file to somewhere else is never in memory as a whole.

use std::io::{self, Write};

use forebay_runtime::RuntimeError;

use crate::error::Error;
use crate::runner::Runner;

/// Takes the next piece of a value.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), Error>;

/// Gives the value of a name in pieces, one after the other.
pub(crate) type Give<'a> = &'a mut dyn FnMut(&str, Take) -> Result<(), Error>;

/// Gives a parameter or state of a plan on a device in pieces.
///
/// # Errors
/// What the device reports, or what `take` gives.
pub(crate) fn give_persistent(runner: &Runner, name: &str, take: Take) -> Result<(), Error> {
    let mut failure = None;
    let given = runner.read_persistent_in_pieces(name, &mut |piece| {
        take(piece).map_err(|error| {
            let reason = error.to_string();
            failure = Some(error);
            RuntimeError::Tensor { reason }
        })
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(given?),
    }
}

/// Writes all that `give` gives of a name; `wrong` makes an error of a failure to write.
///
/// # Errors
/// What `give` or the writer reports.
pub(crate) fn write_value(
    name: &str,
    give: Give,
    to: &mut dyn Write,
    wrong: &dyn Fn(io::Error) -> Error,
) -> Result<(), Error> {
    give(name, &mut |piece| to.write_all(piece).map_err(wrong))
}
