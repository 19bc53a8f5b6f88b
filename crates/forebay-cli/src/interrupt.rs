//! Ctrl-C handling: before the first step, it ends the program at once, because there is nothing to save. After that, the first one requests a
//! stop after the current step, or before it if that step still has to be planned, and the second one ends the program at once. A request to
//! terminate and a hang-up count as Ctrl-C, except for a hang-up that the program was told to ignore (`nohup`).

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::StopRequest;
use forebay_device::signals;

use crate::failure::Failure;
use crate::output;

/// The request to stop, which planning also follows.
static STOP: LazyLock<StopRequest> = LazyLock::new(StopRequest::default);
/// Whether steps may have run.
static STEPS_RUN: AtomicBool = AtomicBool::new(false);

/// Starts listening for Ctrl-C.
///
/// # Errors
/// Fails if the system does not allow it.
pub fn listen() -> Result<(), Failure> {
    let stop = || {
        if !STEPS_RUN.load(Ordering::SeqCst) {
            output::complain("interrupted before the first step");
            forebay::files::exit(130);
        }
        // One thread handles all signals, so none comes between these two.
        if requested() {
            forebay::files::exit(130);
        }
        STOP.make();
        output::complain("interrupted: finishing the step (press Ctrl-C again to stop at once)");
    };
    signals::keep_hang_ups_ignored(|| ctrlc::set_handler(stop))
        .map_err(|error| Failure::Failed(format!("cannot listen for Ctrl-C: {error}")))
}

/// From now on, the first Ctrl-C lets the current step finish.
pub fn finish_steps() {
    STEPS_RUN.store(true, Ordering::SeqCst);
}

/// Returns the request to stop planning that Ctrl-C makes once steps have run.
pub fn planning() -> StopRequest {
    STOP.clone()
}

/// Returns whether the user requested a stop.
pub fn requested() -> bool {
    STOP.is_made()
}
