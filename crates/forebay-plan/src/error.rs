//! The reasons why there is no plan.

use std::fmt;

/// Why a program cannot be planned within its budgets.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanError {
    /// The device budget is below what the largest launch needs.
    DeviceBudget {
        /// The budget in bytes.
        budget_bytes: u64,
        /// The smallest budget that has a plan, in bytes.
        minimum_bytes: u64,
        /// The launch that sets the minimum.
        launch: String,
    },
    /// The host budget is too small for what must be swapped out, inputs and outputs included.
    HostBudget {
        /// The budget in bytes.
        budget_bytes: u64,
        /// What the plan needs on the host, in bytes.
        needed_bytes: u64,
        /// Whether as much as possible is on disk already.
        spilled: bool,
        /// The part of `needed_bytes` that depends on no batch size: buffers through which copies pass, and values of other plans.
        buffers_bytes: u64,
    },
    /// A tensor has more elements than the device allows, or a launch needs more bytes than the device has.
    Tensor {
        /// The launch that uses it.
        launch: String,
        /// What is wrong.
        reason: String,
    },
    /// A description of a machine or of costs is invalid.
    Document {
        /// Which one, with an article.
        what: &'static str,
        /// What is wrong with it, and where.
        reason: String,
    },
    /// The plan breaks an invariant: a defect in this crate, found before anything ran.
    Check {
        /// Which invariant, and where.
        reason: String,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::DeviceBudget { budget_bytes, minimum_bytes, launch } => write!(
                f,
                "a device budget of {budget_bytes} bytes is too small: '{launch}' needs {minimum_bytes} bytes at once \
                 (pass at least --device-memory {}KiB, or use a smaller batch)",
                minimum_bytes.div_ceil(1024)
            ),
            PlanError::HostBudget { budget_bytes, needed_bytes, spilled, buffers_bytes } => {
                let buffers = match buffers_bytes {
                    0 => String::new(),
                    _ => format!(", of which buffers for copies and values of other plans take {buffers_bytes}"),
                };
                let way_out = match spilled {
                    // No batch is small enough.
                    true if buffers_bytes >= budget_bytes => "",
                    true => ", or use a smaller batch",
                    false => {
                        ", allow more device memory, or name a folder for the rest with --spill-dir, which needs some MiB for more \
                         buffers"
                    }
                };
                write!(
                    f,
                    "a host budget of {budget_bytes} bytes is too small: the plan keeps {needed_bytes} bytes there{buffers} \
                     (pass at least --host-memory {}KiB{way_out})",
                    needed_bytes.div_ceil(1024)
                )
            }
            PlanError::Tensor { launch, reason } => write!(f, "'{launch}': {reason}"),
            PlanError::Document { what, reason } => write!(f, "cannot read {what}: {}", reason.trim_end()),
            PlanError::Check { reason } => write!(f, "the plan breaks an invariant (a bug in Forebay): {reason}"),
        }
    }
}

impl std::error::Error for PlanError {}
