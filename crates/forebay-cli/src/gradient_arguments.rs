//! The flags that say what becomes of gradients before and in the optimizer: limits, and groups of parameters.

use clap::Args;
use forebay::training::{Clipping, ParameterGroup, TrainingOptions};

use crate::device_arguments::positive_count;

/// Limits of gradients, and groups of parameters.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Gradients")]
pub struct GradientArguments {
    /// Limit each element of a gradient to -X..X
    #[arg(long, value_name = "X", value_parser = limit, conflicts_with_all = ["clip_norm", "clip_global_norm"])]
    pub clip_value: Option<f32>,
    /// Scale a gradient down whose norm exceeds X, each parameter's for itself
    #[arg(long, value_name = "X", value_parser = limit, conflicts_with = "clip_global_norm")]
    pub clip_norm: Option<f32>,
    /// Scale all gradients down where their common norm exceeds X, as torch.nn.utils.clip_grad_norm_ does
    #[arg(long, value_name = "X", value_parser = limit)]
    pub clip_global_norm: Option<f32>,
    /// Report the common norm of all gradients of each step, before they are limited
    #[arg(long)]
    pub gradient_norm: bool,
    /// Go through N batches before each update, one after the other, and add up their gradients: a step then takes N times --batch-size
    /// samples, and the memory for the activations of one batch
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub accumulate: Option<u64>,
    /// Keep an exponential moving average of every parameter, with this decay (such as 0.999)
    #[arg(long, value_name = "DECAY", value_parser = decay)]
    pub ema: Option<f32>,
    /// Train parameters whose names match with numbers of their own: lr (a factor of the learning rate), decay (instead of
    /// --weight-decay), freeze; may be given several times, a parameter belongs to the first that matches
    #[arg(long, value_name = "PATTERN:lr=X,decay=X,freeze", value_parser = group)]
    pub group: Vec<ParameterGroup>,
}

impl GradientArguments {
    /// Sets what the flags say.
    pub fn apply(&self, options: &mut TrainingOptions) {
        let by_norm = self.clip_norm.map(Clipping::Norm).or(self.clip_global_norm.map(Clipping::GlobalNorm));
        options.clipping = self.clip_value.map(Clipping::Value).or(by_norm);
        options.gradient_norm = self.gradient_norm;
        options.groups.clone_from(&self.group);
        options.accumulate = self.parts();
        options.average = self.ema;
    }

    /// In how many parts a step goes through its batch.
    pub fn parts(&self) -> u64 {
        self.accumulate.unwrap_or(1)
    }
}

fn decay(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if (0.0..1.0).contains(&number) => Ok(number),
        Ok(_) => Err("a number from 0 to below 1 is needed".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

fn limit(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number >= 0.0 => Ok(number),
        Ok(_) => Err("a number of at least 0 is needed".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

/// PATTERN:lr=X,decay=X,freeze.
fn group(text: &str) -> Result<ParameterGroup, String> {
    // Names may hold `:`, settings do not.
    let (pattern, settings) = text
        .rsplit_once(':')
        .filter(|(pattern, _)| !pattern.is_empty())
        .ok_or("write PATTERN:SETTING, with the settings lr=X (a factor of the learning rate), decay=X and freeze")?;
    let mut group = ParameterGroup::new(pattern);
    for setting in settings.split(',') {
        let number = |text: &str| match text.parse::<f32>() {
            Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
            _ => Err(format!("'{setting}': a finite number of at least 0 is needed")),
        };
        match setting.split_once('=') {
            Some(("lr", factor)) => group.rate_factor = number(factor)?,
            Some(("decay", decay)) => group.weight_decay = Some(number(decay)?),
            None if setting == "freeze" => group.is_frozen = true,
            _ => return Err(format!("there is no setting '{setting}'; there are lr=X, decay=X and freeze")),
        }
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read() {
        let mut expected = ParameterGroup::new("a:b.*");
        (expected.rate_factor, expected.weight_decay) = (0.1, Some(0.0));
        assert_eq!(group("a:b.*:lr=0.1,decay=0").unwrap(), expected);
        assert!(group("fc.*:freeze").unwrap().is_frozen);
        for (text, words) in [
            ("fc.*", "write PATTERN:SETTING"),
            (":lr=1", "write PATTERN:SETTING"),
            ("a:momentum=0.9", "there is no setting 'momentum=0.9'"),
            ("a:", "there is no setting ''"),
            ("a:lr=-1", "'lr=-1': a finite number"),
            ("a:decay=inf", "'decay=inf': a finite number"),
        ] {
            let error = group(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
