//! `cargo xtask accuracy`: the CPU's elementary functions at every number of single precision.

use crate::command::{cargo, run};

/// Prints the largest error of each function in units in the last place.
///
/// # Errors
/// Arguments, or a function that is further away than it says.
pub fn accuracy(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err("cargo xtask accuracy takes no arguments".to_owned());
    }
    run(&mut cargo(&["test", "-p", "forebay-device", "--lib", "every_number", "--", "--ignored", "--nocapture"]))
}
