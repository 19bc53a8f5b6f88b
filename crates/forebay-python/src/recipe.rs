//! Schedules, gradient clipping and parameter groups, as dictionaries with all of their keys.

use forebay::training::{Clipping, Curve, ParameterGroup, Plateau, Schedule};
use forebay::{Error, Model, TrainerOptions};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::optimizers::{OptimizerGiven, optimizer};

/// See `forebay._recipe`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Recipe {
    schedule: ScheduleGiven,
    clipping: Option<(String, f32)>,
    gradient_norm: bool,
    groups: Vec<GroupGiven>,
    accumulate: u64,
    average: Option<f32>,
    layer_decay: Option<f32>,
    maximize: bool,
}

/// See `forebay._recipe.ParameterGroup`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct GroupGiven {
    patterns: Vec<String>,
    rate_factor: f32,
    weight_decay: Option<f32>,
    frozen: bool,
    schedule: Option<ScheduleGiven>,
    optimizer: Option<OptimizerGiven>,
    updates_before: u64,
}

/// A schedule by the name of its curve, with the options of all curves.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ScheduleGiven {
    curve: String,
    steps: Option<u64>,
    min_rate: f32,
    gamma: f32,
    milestones: Vec<u64>,
    power: f32,
    restart_factor: u64,
    pct_start: f32,
    div_factor: f32,
    final_div_factor: f32,
    patience: u64,
    threshold: f32,
    cooldown: u64,
    table: Vec<(u64, f32)>,
    warmup: u64,
    warmup_start: f32,
}

impl Recipe {
    /// Applies the options.
    ///
    /// # Errors
    /// Fails if a name does not exist, a number is missing, or the model has no layers.
    pub fn apply(self, py: Python<'_>, model: &Model, all: &mut TrainerOptions) -> PyResult<()> {
        let wrong = |reason| exception(py, &Error::Option { reason });
        let options = &mut all.training;
        options.clipping = self.clipping.map(|(kind, limit)| match kind.as_str() {
            "value" => Clipping::Value(limit),
            "norm" => Clipping::Norm(limit),
            _ => Clipping::GlobalNorm(limit),
        });
        options.gradient_norm = self.gradient_norm;
        for (place, mut given) in self.groups.into_iter().enumerate() {
            let mut group = ParameterGroup::new(given.patterns.pop().unwrap_or_default());
            group.more_patterns = given.patterns;
            (group.rate_factor, group.weight_decay) = (given.rate_factor, given.weight_decay);
            (group.is_frozen, group.updates_before) = (given.frozen, given.updates_before);
            group.optimizer = given.optimizer.map(|own| optimizer(py, &own)).transpose()?;
            options.groups.push(group);
            if let Some(schedule) = given.schedule {
                all.group_schedules.insert(place, schedule.schedule().map_err(wrong)?);
            }
        }
        if let Some(decay) = self.layer_decay {
            options.groups.extend(model.layer_groups(decay).map_err(|error| exception(py, &error))?);
        }
        (options.accumulate, options.average, options.maximize) = (self.accumulate, self.average, self.maximize);
        all.schedule = self.schedule.schedule().map_err(wrong)?;
        Ok(())
    }
}

impl ScheduleGiven {
    fn schedule(self) -> Result<Schedule, String> {
        let (gamma, min_rate) = (self.gamma, self.min_rate);
        let steps = || self.steps.ok_or_else(|| format!("schedule '{}' needs steps=...", self.curve));
        let curve = match self.curve.as_str() {
            "constant" => Curve::Constant,
            "step" => Curve::Step { every: steps()?, gamma },
            "multi_step" => Curve::MultiStep { milestones: self.milestones, gamma },
            "exponential" => Curve::Exponential { gamma },
            "polynomial" => Curve::Polynomial { steps: steps()?, power: self.power, min_rate },
            "cosine" => Curve::Cosine { steps: steps()?, min_rate },
            "cosine_restarts" => Curve::CosineRestarts { first_steps: steps()?, factor: self.restart_factor, min_rate },
            "one_cycle" => Curve::OneCycle {
                steps: steps()?,
                rising: self.pct_start,
                start_divisor: self.div_factor,
                end_divisor: self.final_div_factor,
            },
            "plateau" => {
                let mut plateau = Plateau::default();
                (plateau.factor, plateau.patience, plateau.threshold) = (gamma, self.patience, self.threshold);
                (plateau.cooldown, plateau.min_rate) = (self.cooldown, min_rate);
                Curve::Plateau(plateau)
            }
            "table" => Curve::Table(self.table),
            other => {
                return Err(format!(
                    "unknown schedule '{other}'; expected one of constant, step, multi_step, exponential, polynomial, cosine, \
                     cosine_restarts, one_cycle, plateau, table"
                ));
            }
        };
        Ok(Schedule::new(curve).warmup(self.warmup, self.warmup_start))
    }
}
