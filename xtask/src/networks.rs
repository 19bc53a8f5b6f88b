//! `cargo xtask networks`: random networks train to the same bits within any budget.

use crate::command::{cargo, run};

const COUNT: u64 = 200;

/// Trains `--count N` networks, each within several budgets.
///
/// # Errors
/// Fails if the arguments are invalid, or a budget changes a bit.
pub fn networks(arguments: &[String]) -> Result<(), String> {
    let count = match arguments {
        [] => COUNT,
        [flag, count] if flag == "--count" => {
            count.parse().ok().filter(|&count| count > 0).ok_or("--count requires a number of at least 1")?
        }
        _ => return Err("cargo xtask networks accepts only --count N".to_owned()),
    };
    let test = ["test", "-p", "forebay", "--test", "suite", "random_networks::", "--", "--ignored"];
    run(cargo(&test).env("FOREBAY_NETWORKS", count.to_string()))
}
