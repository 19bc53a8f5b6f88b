//! The flags of learning-rate schedules, and the schedule that they name.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use forebay::documents;
use forebay::training::{Curve, Plateau, Schedule};

use crate::device_arguments::positive_count;
use crate::failure::Failure;

/// How the learning rate changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ScheduleKind {
    /// The same at every step
    #[default]
    Constant,
    /// Multiplied by --gamma every --step-size steps
    Step,
    /// Multiplied by --gamma at each of --milestones
    MultiStep,
    /// Multiplied by --gamma after every step
    Exponential,
    /// Down to --min-rate along the --power of the remaining fraction
    Polynomial,
    /// Linearly down to --min-rate
    Linear,
    /// Down to --min-rate along half a cosine
    Cosine,
    /// Like cosine, but repeated, each time from the full rate
    CosineRestarts,
    /// Up to --learning-rate and down again, along half cosines
    OneCycle,
    /// Multiplied by --plateau-factor when the loss no longer falls: that of --validate at every --validate-every, else the mean of an
    /// epoch of training
    Plateau,
}

/// The learning-rate schedule.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Learning rate")]
pub struct ScheduleArguments {
    /// How the learning rate changes from step to step; parameters and formulas are those of torch.optim.lr_scheduler, stepped after each
    /// training step
    #[arg(long, value_enum, value_name = "CURVE", default_value = "constant")]
    pub schedule: ScheduleKind,
    /// Read the rates from a table of lines `step,rate`; each applies from that step until the next
    #[arg(long, value_name = "FILE.csv", conflicts_with = "schedule")]
    pub rates: Option<PathBuf>,
    /// The number of steps before the schedule in which the rate rises linearly
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// The fraction of the rate at which the warm-up begins [default: 0]
    #[arg(long, value_name = "X", requires = "warmup")]
    pub warmup_start: Option<f32>,
    /// Steps of polynomial, linear, cosine and one-cycle, not counting the warm-up [default: all remaining steps of --steps or --epochs]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub schedule_steps: Option<u64>,
    /// The minimum learning rate of polynomial, linear, cosine, cosine-restarts and plateau [default: 0]
    #[arg(long, value_name = "X")]
    pub min_rate: Option<f32>,
    /// The factor of step, multi-step and exponential [default: 0.1; exponential has no default]
    #[arg(long, value_name = "X")]
    pub gamma: Option<f32>,
    /// Steps between two changes of step
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub step_size: Option<u64>,
    /// Steps after which multi-step changes
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub milestones: Vec<u64>,
    /// The power of polynomial [default: 1]
    #[arg(long, value_name = "X")]
    pub power: Option<f32>,
    /// Steps of the first cycle of cosine-restarts
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub restart_every: Option<u64>,
    /// The factor by which each further cycle is longer [default: 1]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub restart_factor: Option<u64>,
    /// The fraction of one-cycle in which the rate rises [default: 0.3]
    #[arg(long, value_name = "X")]
    pub pct_start: Option<f32>,
    /// The highest rate of one-cycle divided by its first [default: 25]
    #[arg(long, value_name = "X")]
    pub div_factor: Option<f32>,
    /// The first rate of one-cycle divided by its last [default: 10000]
    #[arg(long, value_name = "X")]
    pub final_div_factor: Option<f32>,
    /// The factor of plateau [default: 0.1]
    #[arg(long, value_name = "X")]
    pub plateau_factor: Option<f32>,
    /// The number of consecutive losses without improvement that plateau tolerates [default: 10]
    #[arg(long, value_name = "N")]
    pub plateau_patience: Option<u64>,
    /// The fraction by which a loss must be below the best one to count as an improvement [default: 0.0001]
    #[arg(long, value_name = "X")]
    pub plateau_threshold: Option<f32>,
    /// The number of losses after a reduction that plateau does not count as worse [default: 0]
    #[arg(long, value_name = "N")]
    pub plateau_cooldown: Option<u64>,
}

impl ScheduleArguments {
    /// Returns the schedule for a run of `steps` steps.
    ///
    /// # Errors
    /// Fails if a flag does not belong to the schedule, is missing, or has an invalid value, or if a table cannot be read.
    pub fn schedule(&self, run_steps: u64) -> Result<Schedule, Failure> {
        self.refuse_others()?;
        let warmup = self.warmup.unwrap_or(0);
        let steps = self.schedule_steps.unwrap_or(run_steps.saturating_sub(warmup).max(1));
        let (min_rate, gamma) = (self.min_rate.unwrap_or(0.0), self.gamma.unwrap_or(0.1));
        let curve = match self.schedule {
            ScheduleKind::Constant => match &self.rates {
                Some(path) => documents::read_rates(path)?,
                None => Curve::Constant,
            },
            ScheduleKind::Step => Curve::Step { every: needed("--step-size", self.step_size)?, gamma },
            ScheduleKind::MultiStep => {
                let milestones = Some(&self.milestones).filter(|milestones| !milestones.is_empty());
                Curve::MultiStep { milestones: needed("--milestones", milestones)?.clone(), gamma }
            }
            ScheduleKind::Exponential => Curve::Exponential { gamma: needed("--gamma", self.gamma)? },
            ScheduleKind::Polynomial => Curve::Polynomial { steps, power: self.power.unwrap_or(1.0), min_rate },
            ScheduleKind::Linear => Curve::Polynomial { steps, power: 1.0, min_rate },
            ScheduleKind::Cosine => Curve::Cosine { steps, min_rate },
            ScheduleKind::CosineRestarts => Curve::CosineRestarts {
                first_steps: needed("--restart-every", self.restart_every)?,
                factor: self.restart_factor.unwrap_or(1),
                min_rate,
            },
            ScheduleKind::OneCycle => Curve::OneCycle {
                steps,
                rising: self.pct_start.unwrap_or(0.3),
                start_divisor: self.div_factor.unwrap_or(25.0),
                end_divisor: self.final_div_factor.unwrap_or(1e4),
            },
            ScheduleKind::Plateau => {
                let mut plateau = Plateau::default();
                plateau.factor = self.plateau_factor.unwrap_or(plateau.factor);
                plateau.patience = self.plateau_patience.unwrap_or(plateau.patience);
                plateau.threshold = self.plateau_threshold.unwrap_or(plateau.threshold);
                plateau.cooldown = self.plateau_cooldown.unwrap_or(plateau.cooldown);
                plateau.min_rate = min_rate;
                Curve::Plateau(plateau)
            }
        };
        let schedule = Schedule::new(curve).warmup(warmup, self.warmup_start.unwrap_or(0.0));
        schedule.check().map_err(|reason| Failure::Usage(reason.to_string()))?;
        Ok(schedule)
    }

    /// Rejects flags that do not apply to the schedule.
    fn refuse_others(&self) -> Result<(), Failure> {
        use ScheduleKind::{
            Cosine, CosineRestarts, Exponential, Linear, MultiStep, OneCycle, Plateau, Polynomial, Step,
        };
        let rows: [(&str, bool, &[ScheduleKind]); 15] = [
            ("--schedule-steps", self.schedule_steps.is_some(), &[Polynomial, Linear, Cosine, OneCycle]),
            ("--min-rate", self.min_rate.is_some(), &[Polynomial, Linear, Cosine, CosineRestarts, Plateau]),
            ("--gamma", self.gamma.is_some(), &[Step, MultiStep, Exponential]),
            ("--step-size", self.step_size.is_some(), &[Step]),
            ("--milestones", !self.milestones.is_empty(), &[MultiStep]),
            ("--power", self.power.is_some(), &[Polynomial]),
            ("--restart-every", self.restart_every.is_some(), &[CosineRestarts]),
            ("--restart-factor", self.restart_factor.is_some(), &[CosineRestarts]),
            ("--pct-start", self.pct_start.is_some(), &[OneCycle]),
            ("--div-factor", self.div_factor.is_some(), &[OneCycle]),
            ("--final-div-factor", self.final_div_factor.is_some(), &[OneCycle]),
            ("--plateau-factor", self.plateau_factor.is_some(), &[Plateau]),
            ("--plateau-patience", self.plateau_patience.is_some(), &[Plateau]),
            ("--plateau-threshold", self.plateau_threshold.is_some(), &[Plateau]),
            ("--plateau-cooldown", self.plateau_cooldown.is_some(), &[Plateau]),
        ];
        let name =
            |kind: ScheduleKind| kind.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        match rows.iter().find(|(_, is_given, kinds)| *is_given && !kinds.contains(&self.schedule)) {
            Some((flag, _, kinds)) => {
                let kinds: Vec<String> = kinds.iter().map(|&kind| name(kind)).collect();
                let (now, kinds) = (name(self.schedule), kinds.join(", "));
                Err(Failure::Usage(format!("{flag} cannot be used with --schedule {now}; it only applies to {kinds}")))
            }
            None => Ok(()),
        }
    }
}

/// Returns a flag that a schedule requires.
fn needed<T>(flag: &str, given: Option<T>) -> Result<T, Failure> {
    given.ok_or_else(|| Failure::Usage(format!("this --schedule requires {flag}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ScheduleArguments,
    }

    fn schedule(flags: &str) -> Result<Schedule, Failure> {
        let words = ["forebay"].into_iter().chain(flags.split_whitespace());
        Line::try_parse_from(words).unwrap().arguments.schedule(100)
    }

    #[test]
    fn flags_become_schedules() {
        let made = |flags: &str| schedule(flags).unwrap();
        let curve = |curve| Schedule::new(curve);
        assert_eq!(made(""), Schedule::default());
        assert_eq!(made("--schedule step --step-size 7"), curve(Curve::Step { every: 7, gamma: 0.1 }));
        let milestones = Curve::MultiStep { milestones: vec![30, 60], gamma: 0.5 };
        assert_eq!(made("--schedule multi-step --milestones 30,60 --gamma 0.5"), curve(milestones));
        let cosine = |steps| Curve::Cosine { steps, min_rate: 1e-5 };
        let flags = "--schedule cosine --min-rate 1e-5 --warmup 10 --warmup-start 0.5";
        assert_eq!(made(flags), curve(cosine(90)).warmup(10, 0.5));
        assert_eq!(made(&format!("{flags} --schedule-steps 40")), curve(cosine(40)).warmup(10, 0.5));
        assert_eq!(made("--schedule linear"), made("--schedule polynomial --power 1"));
        let cycle = Curve::OneCycle { steps: 100, rising: 0.3, start_divisor: 25.0, end_divisor: 1e4 };
        assert_eq!(made("--schedule one-cycle"), curve(cycle));
        assert_eq!(made("--schedule plateau"), curve(Curve::Plateau(Plateau::default())));
    }

    #[test]
    fn flags_without_a_meaning_are_refused() {
        for (flags, words) in [
            (
                "--gamma 0.5",
                "--gamma cannot be used with --schedule constant; it only applies to step, multi-step, exponential",
            ),
            ("--schedule cosine --milestones 3", "--milestones cannot be used with --schedule cosine"),
            ("--schedule step", "requires --step-size"),
            ("--schedule exponential", "requires --gamma"),
            ("--schedule one-cycle --pct-start 2", "the rising part must lie between 0 and 1, not 2"),
            ("--schedule plateau --plateau-factor 3", "the factor of a plateau"),
        ] {
            let error = schedule(flags).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{flags}");
            assert!(error.to_string().contains(words), "{flags}: {error}");
        }
    }
}
