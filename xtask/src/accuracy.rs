//! `cargo xtask accuracy`: the CPU's elementary functions, tested on every single-precision number.

use crate::command::{cargo, run};

/// Prints the largest error of each function in units in the last place.
///
/// # Errors
/// Fails if there are arguments, or if a function's error is larger than documented.
pub fn accuracy(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err("cargo xtask accuracy takes no arguments".to_owned());
    }
    run(&mut cargo(&["test", "-p", "forebay-device", "--lib", "every_number", "--", "--ignored", "--nocapture"]))
}
