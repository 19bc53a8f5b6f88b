//! Parameter groups: parameters, selected by name, that train with their own hyperparameters.

use super::optimizer::Optimizer;
use super::pattern;
use crate::error::ModelError;

/// The parameters whose names match a pattern, and how their training differs. A parameter belongs to the first group that matches.
///
/// ```
/// use forebay_model::training::{ParameterGroup, TrainingOptions};
///
/// let mut options = TrainingOptions::default();
/// let mut backbone = ParameterGroup::new("encoder.*");
/// (backbone.rate_factor, backbone.weight_decay) = (0.1, Some(0.0));
/// options.groups.push(backbone);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParameterGroup {
    /// A pattern (`*`, `?`) over the names of initializers.
    pub pattern: String,
    /// Further patterns.
    pub more_patterns: Vec<String>,
    /// The factor by which the optimizer's learning rate is multiplied.
    pub rate_factor: f32,
    /// The weight decay that replaces the optimizer's, for the parameters that decay.
    pub weight_decay: Option<f32>,
    /// Whether the parameters are frozen.
    pub is_frozen: bool,
    /// An optimizer of the same kind and with the same state, whose numbers replace those of the optimizer.
    pub optimizer: Option<Optimizer>,
    /// The number of updates before the first one of these parameters, if they were frozen until then. Rules that depend on the number of an
    /// update count from there.
    pub updates_before: u64,
}

impl ParameterGroup {
    /// Creates a group that trains like all other parameters.
    pub fn new(pattern: impl Into<String>) -> ParameterGroup {
        ParameterGroup {
            pattern: pattern.into(),
            more_patterns: Vec::new(),
            rate_factor: 1.0,
            weight_decay: None,
            is_frozen: false,
            optimizer: None,
            updates_before: 0,
        }
    }

    /// Returns whether a parameter of this name belongs to the group.
    pub(super) fn matches(&self, name: &str) -> bool {
        [&self.pattern].into_iter().chain(&self.more_patterns).any(|pattern| pattern::matches(pattern, name))
    }
}

/// Returns the group that a parameter belongs to.
pub(super) fn group_of(groups: &[ParameterGroup], name: &str) -> Option<usize> {
    groups.iter().position(|group| group.matches(name))
}

/// Checks that the hyperparameters of the groups are valid.
///
/// # Errors
/// Fails if a factor or decay is not a finite number of at least 0, or a group's optimizer has other state than `optimizer`.
pub(super) fn check(groups: &[ParameterGroup], optimizer: &Optimizer) -> Result<(), ModelError> {
    for ParameterGroup { pattern, rate_factor, weight_decay, optimizer: own, .. } in groups {
        if let Some(own) = own {
            own.check()?;
            if !own.has_the_plan_of(optimizer) {
                let reason = format!(
                    "group '{pattern}' has {own:?}, which needs other state than {optimizer:?}: only the numbers of an optimizer can \
                     differ between groups, and momentum cannot be 0 in one of them"
                );
                return Err(ModelError::Request { reason });
            }
        }
        for (what, number) in [("factor of the learning rate", Some(*rate_factor)), ("weight decay", *weight_decay)] {
            if let Some(number) = number.filter(|number| !(*number >= 0.0 && number.is_finite())) {
                let reason =
                    format!("the {what} of group '{pattern}' must be a finite number of at least 0, not {number}");
                return Err(ModelError::Request { reason });
            }
        }
    }
    Ok(())
}
