//! Ctrl-C handling: the first one requests a stop after the current step, the second one ends the program at once. A request to terminate
//! and a hang-up count as Ctrl-C, except for a hang-up that the program was told to ignore (`nohup`).

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_device::signals;

use crate::failure::Failure;
use crate::output;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Starts listening for Ctrl-C.
///
/// # Errors
/// Fails if the system does not allow it.
pub fn listen() -> Result<(), Failure> {
    let stop = || {
        if REQUESTED.swap(true, Ordering::SeqCst) {
            forebay::files::exit(130);
        }
        output::complain("interrupted: finishing the step (press Ctrl-C again to stop at once)");
    };
    signals::keep_hang_ups_ignored(|| ctrlc::set_handler(stop))
        .map_err(|error| Failure::Failed(format!("cannot listen for Ctrl-C: {error}")))
}

/// Returns whether the user requested a stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
