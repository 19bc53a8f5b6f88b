//! The reasons why there is no plan.

use std::fmt;

/// The setting that a budget for device memory comes from. Errors name it as what can be raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceBudgetSetting {
    /// The budget for device memory: `--device-memory`.
    #[default]
    DeviceMemory,
    /// The size of a simulated device: `--simulate-device`.
    SimulatedDevice,
    /// No setting: it is all that the device has.
    Device,
}

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
        /// The setting that the budget comes from.
        setting: DeviceBudgetSetting,
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
    /// Another thread requested that planning stops ([`PlanOptions::stop`](crate::PlanOptions::stop)).
    Stopped,
    /// The plan breaks an invariant: a defect in this crate, found before anything ran.
    Check {
        /// Which invariant, and where.
        reason: String,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::DeviceBudget { budget_bytes, minimum_bytes, launch, setting } => {
                let least = |flag| format!("pass at least {flag} {}KiB, or ", minimum_bytes.div_ceil(1024));
                let raising = match setting {
                    DeviceBudgetSetting::DeviceMemory => least("--device-memory"),
                    DeviceBudgetSetting::SimulatedDevice => least("--simulate-device"),
                    DeviceBudgetSetting::Device => String::new(),
                };
                write!(
                    f,
                    "a device budget of {budget_bytes} bytes is too small: '{launch}' needs {minimum_bytes} bytes at once \
                     ({raising}use a smaller batch)"
                )
            }
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
            PlanError::Stopped => write!(f, "planning was stopped"),
            PlanError::Check { reason } => write!(f, "the plan breaks an invariant (a bug in Forebay): {reason}"),
        }
    }
}

impl std::error::Error for PlanError {}
