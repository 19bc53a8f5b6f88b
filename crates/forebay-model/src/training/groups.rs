//! Parameters that train with numbers of their own, by their names.

use super::pattern;
use crate::error::ModelError;

/// Parameters whose names match a pattern, and what is different for them. A parameter belongs to the first group that matches.
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
    /// More of them.
    pub more_patterns: Vec<String>,
    /// The learning rate over that of the optimizer.
    pub rate_factor: f32,
    /// Weight decay instead of the optimizer's, for those parameters that decay.
    pub weight_decay: Option<f32>,
    /// Whether they stay as they are.
    pub is_frozen: bool,
}

impl ParameterGroup {
    /// A group that trains as all others do.
    pub fn new(pattern: impl Into<String>) -> ParameterGroup {
        ParameterGroup {
            pattern: pattern.into(),
            more_patterns: Vec::new(),
            rate_factor: 1.0,
            weight_decay: None,
            is_frozen: false,
        }
    }

    /// Whether it is for parameters of this name.
    pub(super) fn matches(&self, name: &str) -> bool {
        [&self.pattern].into_iter().chain(&self.more_patterns).any(|pattern| pattern::matches(pattern, name))
    }
}

/// The group that a parameter belongs to.
pub(super) fn group_of(groups: &[ParameterGroup], name: &str) -> Option<usize> {
    groups.iter().position(|group| group.matches(name))
}

/// Whether the numbers of groups have a meaning.
///
/// # Errors
/// A factor or decay that is not a finite number of at least 0.
pub(super) fn check(groups: &[ParameterGroup]) -> Result<(), ModelError> {
    for ParameterGroup { pattern, rate_factor, weight_decay, .. } in groups {
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
