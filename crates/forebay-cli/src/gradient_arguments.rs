//! The flags for gradients before and in the optimizer: clipping and parameter groups.

use std::collections::BTreeMap;

use clap::{Args, Parser};
use forebay::Model;
use forebay::training::{Clipping, Curve, ParameterGroup, Schedule, TrainingOptions};

use crate::device_arguments::positive_count;
use crate::failure::Failure;
use crate::numbers::below_one;
use crate::schedule_arguments::ScheduleArguments;

/// Gradient clipping and parameter groups.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Gradients")]
pub struct GradientArguments {
    /// Clip each element of a gradient to -X..X
    #[arg(long, value_name = "X", value_parser = limit, conflicts_with_all = ["clip_norm", "clip_global_norm"])]
    pub clip_value: Option<f32>,
    /// Clip the norm of each parameter's gradient to X
    #[arg(long, value_name = "X", value_parser = limit, conflicts_with = "clip_global_norm")]
    pub clip_norm: Option<f32>,
    /// Clip the global norm of all gradients to X, like torch.nn.utils.clip_grad_norm_
    #[arg(long, value_name = "X", value_parser = limit)]
    pub clip_global_norm: Option<f32>,
    /// Report the global norm of all gradients of each step, before clipping
    #[arg(long)]
    pub gradient_norm: bool,
    /// Have each step process N times --batch-size samples, in N parts one after the other, with the activation memory of one part and the
    /// bits of the whole batch; batch normalization uses the statistics of each part
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub accumulate: Option<u64>,
    /// Keep an exponential moving average of every parameter, with this decay (such as 0.999)
    #[arg(long, value_name = "DECAY", value_parser = below_one)]
    pub ema: Option<f32>,
    /// Use separate settings for parameters whose names match: lr (a factor of the learning rate), decay (instead of --weight-decay),
    /// freeze, schedule (a separate schedule, with its flags without dashes: schedule=step,step-size=30,gamma=0.5; lists use slashes:
    /// milestones=30/60); can be repeated, and a parameter belongs to the first group that matches
    #[arg(long, value_name = "PATTERN:lr=X,decay=X,freeze,schedule=CURVE", value_parser = group)]
    pub group: Vec<Group>,
    /// Let the learning rate fall by this factor from layer to layer, from the last layer towards the inputs; layers are identified by the
    /// numbers in names, as in blocks.3.attn.weight. The settings of a --group take precedence
    #[arg(long, value_name = "X", value_parser = layer_decay)]
    pub layer_decay: Option<f32>,
}

/// A parameter group and its schedule.
#[derive(Clone, Debug)]
pub struct Group {
    group: ParameterGroup,
    schedule: Option<ScheduleArguments>,
}

/// The flags of a group's schedule.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct GroupSchedule {
    #[command(flatten)]
    schedule: ScheduleArguments,
}

impl GradientArguments {
    /// Applies the flags.
    pub fn apply(&self, options: &mut TrainingOptions) {
        let by_norm = self.clip_norm.map(Clipping::Norm).or(self.clip_global_norm.map(Clipping::GlobalNorm));
        options.clipping = self.clip_value.map(Clipping::Value).or(by_norm);
        options.gradient_norm = self.gradient_norm;
        options.groups = self.group.iter().map(|group| group.group.clone()).collect();
        options.accumulate = self.parts();
        options.average = self.ema;
    }

    /// Adds the groups of a learning rate that falls from layer to layer, after the other groups.
    ///
    /// # Errors
    /// Fails if no names number layers.
    pub fn add_layers(&self, model: &Model, options: &mut TrainingOptions) -> Result<(), Failure> {
        let Some(decay) = self.layer_decay else { return Ok(()) };
        let groups = model.layer_groups(decay).map_err(|error| Failure::Usage(format!("--layer-decay: {error}")))?;
        options.groups.extend(groups);
        Ok(())
    }

    /// Returns the schedules of the groups, by group index, for a run of `steps` steps.
    ///
    /// # Errors
    /// Fails if a flag does not belong to its schedule or a number is not valid.
    pub fn schedules(&self, steps: u64) -> Result<BTreeMap<usize, Schedule>, Failure> {
        let groups = self.group.iter().enumerate();
        let given = groups.filter_map(|(place, group)| Some((place, group.schedule.as_ref()?)));
        given.map(|(place, schedule)| Ok((place, schedule.schedule(steps)?))).collect()
    }

    /// Returns the number of parts in which a step processes its batch.
    pub fn parts(&self) -> u64 {
        self.accumulate.unwrap_or(1)
    }
}

/// Parses a limit of gradients, which can be infinite, as in `clip_grad_norm_`.
fn limit(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number >= 0.0 => Ok(number),
        Ok(_) => Err("expected a number of at least 0".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

fn layer_decay(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number > 0.0 && number <= 1.0 => Ok(number),
        Ok(_) => Err("expected a number above 0 and at most 1".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

/// Parses PATTERN:lr=X,decay=X,freeze,schedule=CURVE and flags of the schedule.
fn group(text: &str) -> Result<Group, String> {
    // Names can contain `:`, settings do not.
    let (pattern, settings) = text
        .rsplit_once(':')
        .filter(|(pattern, _)| !pattern.is_empty())
        .ok_or("expected PATTERN:SETTING; the settings are lr=X (a factor of the learning rate), decay=X, freeze and schedule=CURVE")?;
    let mut group = ParameterGroup::new(pattern);
    let mut flags = Vec::new();
    for setting in settings.split(',') {
        let number = |text: &str| match text.parse::<f32>() {
            Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
            _ => Err(format!("'{setting}': expected a finite number of at least 0")),
        };
        match setting.split_once('=') {
            Some(("lr", factor)) => group.rate_factor = number(factor)?,
            Some(("decay", decay)) => group.weight_decay = Some(number(decay)?),
            None if setting == "freeze" => group.is_frozen = true,
            // Tables are files, so only the whole run can have one.
            Some((key, value)) if !flags.is_empty() || key == "schedule" => {
                flags.push(format!("--{key}={}", value.replace('/', ",")));
            }
            _ => {
                return Err(format!(
                    "unknown setting '{setting}'; the settings are lr=X, decay=X, freeze and schedule=CURVE"
                ));
            }
        }
    }
    if flags.is_empty() {
        return Ok(Group { group, schedule: None });
    }
    let words = |error: clap::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    let schedule = GroupSchedule::try_parse_from(flags).map_err(words)?.schedule;
    let curve = schedule.schedule(1).map_err(|failure| failure.to_string())?.curve;
    if matches!(curve, Curve::Plateau(_)) {
        return Err("a schedule that depends on losses applies to all parameters, not to a group".to_owned());
    }
    Ok(Group { group, schedule: Some(schedule) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_can_be_infinite_and_decays_cannot() {
        assert_eq!((limit("inf"), limit("0"), layer_decay("1")), (Ok(f32::INFINITY), Ok(0.0), Ok(1.0)));
        assert!(limit("-1").is_err() && limit("nan").is_err() && limit("x").is_err());
        for text in ["0", "1.5", "inf", "nan", "-1"] {
            assert_eq!(layer_decay(text).unwrap_err(), "expected a number above 0 and at most 1", "{text}");
        }
        assert!(layer_decay("x").is_err());
    }

    #[test]
    fn groups_are_read() {
        let mut expected = ParameterGroup::new("a:b.*");
        (expected.rate_factor, expected.weight_decay) = (0.1, Some(0.0));
        assert_eq!(group("a:b.*:lr=0.1,decay=0").unwrap().group, expected);
        assert!(group("fc.*:freeze").unwrap().group.is_frozen);
        let stepwise = group("a:lr=0.5,schedule=multi-step,milestones=3/6,gamma=0.5").unwrap();
        assert_eq!(stepwise.group.rate_factor, 0.5);
        let curve = Curve::MultiStep { milestones: vec![3, 6], gamma: 0.5 };
        assert_eq!(stepwise.schedule.unwrap().schedule(10).unwrap(), Schedule::new(curve));
        for (text, words) in [
            ("fc.*", "expected PATTERN:SETTING"),
            (":lr=1", "expected PATTERN:SETTING"),
            ("a:momentum=0.9", "unknown setting 'momentum=0.9'"),
            ("a:", "unknown setting ''"),
            ("a:gamma=0.5,schedule=step", "unknown setting 'gamma=0.5'"),
            ("a:schedule=round", "invalid value 'round'"),
            ("a:schedule=cosine,gamma=0.5", "--gamma cannot be used with --schedule cosine"),
            ("a:lr=-1", "'lr=-1': expected a finite number"),
            ("a:decay=inf", "'decay=inf': expected a finite number"),
        ] {
            let error = group(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
