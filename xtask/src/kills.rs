//! `cargo xtask kills`: kills processes of training runs at random moments; the runs continue from their checkpoints.

use crate::command::{cargo, run};

const TIMES: u64 = 100;

/// Kills `--times N` processes; each run must end with the same model as a run of one process.
///
/// # Errors
/// Fails if the arguments are invalid, MPI is missing, or a run ends with another model.
pub fn kills(arguments: &[String]) -> Result<(), String> {
    let times = match arguments {
        [] => TIMES,
        [flag, times] if flag == "--times" => {
            times.parse().ok().filter(|&times| times > 0).ok_or("--times requires a number of at least 1")?
        }
        _ => return Err("cargo xtask kills accepts only --times N".to_owned()),
    };
    let test = ["test", "-p", "forebay-cli", "--test", "suite", "mpi::", "--", "--ignored", "--nocapture"];
    run(cargo(&test).env("FOREBAY_KILLS", times.to_string()).env("FOREBAY_REQUIRE", "mpi"))
}
