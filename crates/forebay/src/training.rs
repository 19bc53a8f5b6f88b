//! Losses, optimizers and other options for training.
//!
//! ```
//! use forebay::training::{Loss, Optimizer, TrainingOptions};
//!
//! let optimizer = Optimizer::Sgd { learning_rate: 0.05, momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
//! let options = TrainingOptions::new(Loss::default(), optimizer);
//! assert!(options.freeze.is_empty());
//! ```

pub use forebay_model::adapters::LoraOptions;
pub use forebay_model::training::{
    Clipping, Ctc, DecayRule, Loss, LossTerm, Optimizer, ParameterGroup, Precision, Region, Shares, TrainingOptions,
};

pub use crate::schedule::{Curve, Plateau, Schedule};

use std::collections::BTreeMap;

use crate::error::Error;

/// Checks that a gradient clipping limit is valid.
pub(crate) fn check_clipping(clipping: Option<Clipping>) -> Result<(), Error> {
    match clipping.map(|clipping| clipping.limit()).filter(|limit| limit.is_nan() || *limit < 0.0) {
        Some(limit) => {
            Err(Error::Option { reason: format!("the gradient limit must be a number of at least 0, not {limit}") })
        }
        None => Ok(()),
    }
}

/// Checks that schedules belong to groups that exist and are valid for them.
pub(crate) fn check_group_schedules(schedules: &BTreeMap<usize, Schedule>, groups: usize) -> Result<(), Error> {
    for (&group, schedule) in schedules {
        schedule.check()?;
        let reason = match schedule.curve {
            _ if group >= groups => {
                format!(
                    "a schedule is set for parameter group {group}, which does not exist: there are {groups} groups, \
                     numbered from 0"
                )
            }
            Curve::Plateau(_) => {
                "a schedule that depends on losses applies to all parameters, not to a group".to_string()
            }
            _ => continue,
        };
        return Err(Error::Option { reason });
    }
    Ok(())
}
