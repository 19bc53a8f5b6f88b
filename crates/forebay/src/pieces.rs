//! Values in pieces, so that what is copied from a device, memory or a file is never in memory as a whole.

use std::io::{self, Write};

use forebay_runtime::RuntimeError;

use crate::error::Error;
use crate::runner::Runner;

/// A callback that takes the next piece of a value.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), Error>;

/// A callback that passes on a named value in pieces, one after the other.
pub(crate) type Give<'a> = &'a mut dyn FnMut(&str, Take) -> Result<(), Error>;

/// Passes a parameter or state of a plan on a device to `take` in pieces.
///
/// # Errors
/// Fails if the device reports an error or `take` returns one.
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

/// Writes everything that `give` passes on for a name; `wrong` converts a failure to write into an error.
///
/// # Errors
/// Fails if `give` or the writer returns an error.
pub(crate) fn write_value(
    name: &str,
    give: Give,
    to: &mut dyn Write,
    wrong: &dyn Fn(io::Error) -> Error,
) -> Result<(), Error> {
    give(name, &mut |piece| to.write_all(piece).map_err(wrong))
}
