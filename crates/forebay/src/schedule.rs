//! Learning rates that change from step to step. A rate is a function of the step alone, except for [`Curve::Plateau`], which also follows
//! the losses that are reported to it ([`Plateau`]).

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How the learning rate changes from step to step: a curve, after an optional linear warm-up. Curves start from the optimizer's own
/// learning rate; for [`Curve::OneCycle`], it is the highest rate.
///
/// ```
/// use forebay::training::{Curve, Schedule};
///
/// let schedule = Schedule::new(Curve::Cosine { steps: 90, min_rate: 0.001 }).warmup(10, 0.0);
/// assert_eq!(schedule.rate(0.1, 6), 0.05, "half of the warm-up is done");
/// assert_eq!(schedule.rate(0.1, 11), 0.1);
/// assert_eq!(schedule.rate(0.1, 101), 0.001);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Schedule {
    /// The curve, from the end of the warm-up on.
    pub curve: Curve,
    /// The number of steps in which the rate rises linearly to the first rate of the curve.
    pub warmup_steps: u64,
    /// The fraction of that rate at which the warm-up starts.
    pub warmup_start: f32,
}

/// A learning rate over steps, which are counted from 0 at the end of the warm-up. The formulas are those of `torch.optim.lr_scheduler`,
/// with one scheduler step after each optimizer step.
///
/// ```
/// use forebay::training::{Curve, Schedule};
///
/// let halved = Schedule::new(Curve::Step { every: 10, gamma: 0.5 });
/// assert_eq!([10, 11, 21].map(|step| halved.rate(1.0, step)), [1.0, 0.5, 0.25]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Curve {
    /// The same rate at every step.
    #[default]
    Constant,
    /// Multiplied by a factor each time a given number of steps is done (`StepLR`).
    Step {
        /// The number of steps between two changes.
        every: u64,
        /// The factor.
        gamma: f32,
    },
    /// Multiplied by a factor at given steps (`MultiStepLR`).
    MultiStep {
        /// The number of steps done before each change.
        milestones: Vec<u64>,
        /// The factor.
        gamma: f32,
    },
    /// Multiplied by a factor after every step (`ExponentialLR`).
    Exponential {
        /// The factor.
        gamma: f32,
    },
    /// A power of the fraction of steps that is left (`PolynomialLR`); linear if the power is 1.
    Polynomial {
        /// The number of steps until the smallest rate, which then stays.
        steps: u64,
        /// The power.
        power: f32,
        /// The smallest rate.
        min_rate: f32,
    },
    /// Half a cosine (`CosineAnnealingLR`).
    Cosine {
        /// The number of steps until the smallest rate, which then stays.
        steps: u64,
        /// The smallest rate.
        min_rate: f32,
    },
    /// Half cosines one after the other, each starting from the full rate (`CosineAnnealingWarmRestarts`).
    CosineRestarts {
        /// The number of steps of the first half cosine.
        first_steps: u64,
        /// How many times as long each is as the one before.
        factor: u64,
        /// The smallest rate.
        min_rate: f32,
    },
    /// Up and down once, along half cosines (`OneCycleLR`, without cycling the momentum).
    OneCycle {
        /// The number of steps in the cycle.
        steps: u64,
        /// The fraction of these steps in which the rate rises.
        rising: f32,
        /// The highest rate divided by the first rate.
        start_divisor: f32,
        /// The first rate divided by the last rate.
        end_divisor: f32,
    },
    /// Multiplied by a factor when losses no longer fall (`ReduceLROnPlateau`): see [`Trainer::observe`](crate::Trainer::observe).
    Plateau(Plateau),
    /// Rates that apply from given steps on, each until the next one; the optimizer's own rate has no effect.
    Table(Vec<(u64, f32)>),
}

/// A plateau's rate is not reduced if it would change by this or less (`eps` in PyTorch).
const REDUCTION_MIN: f64 = 1e-8;

/// When and how a rate that follows losses is reduced. As in PyTorch, a reduction by 1e-8 or less has no effect.
///
/// ```
/// use forebay::training::{Curve, Plateau, Schedule};
///
/// let mut plateau = Plateau::default();
/// plateau.patience = 3;
/// let schedule = Schedule::new(Curve::Plateau(plateau));
/// assert_eq!(schedule.rate(0.5, 1000), 0.5, "nothing was observed");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plateau {
    /// The factor by which a reduction multiplies the rate.
    pub factor: f32,
    /// The number of losses in a row that may be no better than the best one; the next one reduces the rate.
    pub patience: u64,
    /// A loss is better if it is below the best one by more than this fraction of it.
    pub threshold: f32,
    /// The number of losses after a reduction that are not counted as worse.
    pub cooldown: u64,
    /// The smallest rate; a learning rate that is lower from the beginning stays as it is.
    pub min_rate: f32,
}

impl Default for Plateau {
    /// Returns PyTorch's defaults: a factor of 0.1, a patience of 10, a threshold of 1e-4, no cooldown, no smallest rate.
    fn default() -> Plateau {
        Plateau { factor: 0.1, patience: 10, threshold: 1e-4, cooldown: 0, min_rate: 0.0 }
    }
}

/// What a plateau has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlateauState {
    /// The best loss.
    best: Option<f32>,
    /// The number of losses in a row that were no better.
    worse: u64,
    /// The number of further losses that are not counted.
    cooldown: u64,
    /// The number of times that the rate was reduced.
    pub(crate) reductions: u64,
}

impl PlateauState {
    /// Records a loss.
    pub(crate) fn observe(&mut self, plateau: &Plateau, loss: f32) {
        let bound = |best: f32| f64::from(best) * (1.0 - f64::from(plateau.threshold));
        match self.best {
            Some(best) if f64::from(loss) < bound(best) => (self.best, self.worse) = (Some(loss), 0),
            None if loss.is_finite() => (self.best, self.worse) = (Some(loss), 0),
            _ => self.worse += 1,
        }
        if self.cooldown > 0 {
            (self.cooldown, self.worse) = (self.cooldown - 1, 0);
        }
        if self.worse > plateau.patience {
            (self.cooldown, self.worse) = (plateau.cooldown, 0);
            self.reductions += 1;
        }
    }
}

impl Schedule {
    /// Creates a schedule from a curve, without a warm-up.
    pub fn new(curve: Curve) -> Schedule {
        Schedule { curve, warmup_steps: 0, warmup_start: 0.0 }
    }

    /// Adds a linear warm-up before the curve: `LinearLR(start_factor=start, total_iters=steps)`, then the curve from its beginning.
    #[must_use]
    pub fn warmup(mut self, steps: u64, start: f32) -> Schedule {
        (self.warmup_steps, self.warmup_start) = (steps, start);
        self
    }

    /// Returns the rate of a step, counted from 1, if the optimizer's own learning rate is `base`. For a plateau, this is the rate before
    /// any reduction.
    pub fn rate(&self, base: f32, step: u64) -> f32 {
        self.rate_after(base, step, 0)
    }

    /// Like [`Schedule::rate`], after this number of reductions of a plateau.
    pub(crate) fn rate_after(&self, base: f32, step: u64, reductions: u64) -> f32 {
        let done = step.saturating_sub(1);
        let rate = |done| self.curve.rate(f64::from(base), done, reductions);
        match done.checked_sub(self.warmup_steps) {
            Some(done) => rate(done) as f32,
            None => {
                let (start, part) = (f64::from(self.warmup_start), done as f64 / self.warmup_steps as f64);
                (rate(0) * (start + (1.0 - start) * part)) as f32
            }
        }
    }

    /// Checks that the numbers are valid.
    ///
    /// # Errors
    /// Returns [`Error::Option`], which says what is wrong.
    pub fn check(&self) -> Result<(), Error> {
        self.meaning().map_err(|reason| Error::Option { reason })
    }

    fn meaning(&self) -> Result<(), String> {
        part("the start of the warm-up", self.warmup_start)?;
        let positive = |what: &str, steps: u64| match steps {
            0 => Err(format!("a schedule needs at least one step, but {what} is 0")),
            _ => Ok(()),
        };
        match &self.curve {
            Curve::Constant => Ok(()),
            Curve::Step { every, gamma } => positive("every", *every).and(not_negative("gamma", *gamma)),
            Curve::MultiStep { milestones, gamma } => match milestones.is_empty() {
                true => Err("a schedule with milestones needs at least one milestone".to_string()),
                false => not_negative("gamma", *gamma),
            },
            Curve::Exponential { gamma } => not_negative("gamma", *gamma),
            Curve::Polynomial { steps, power, min_rate } => positive("steps", *steps)
                .and(not_negative("power", *power))
                .and(not_negative("the smallest rate", *min_rate)),
            Curve::Cosine { steps, min_rate } => {
                positive("steps", *steps).and(not_negative("the smallest rate", *min_rate))
            }
            Curve::CosineRestarts { factor: 0, .. } => {
                Err("the factor of cycles must be at least 1, but is 0".to_string())
            }
            Curve::CosineRestarts { first_steps, min_rate, .. } => {
                positive("the first cycle", *first_steps).and(not_negative("the smallest rate", *min_rate))
            }
            Curve::OneCycle { steps, rising, start_divisor, end_divisor } => {
                let divisor = |what: &str, divisor: f32| match divisor > 0.0 && divisor.is_finite() {
                    true => Ok(()),
                    false => Err(format!("{what} must be above 0, not {divisor}")),
                };
                positive("steps", *steps)
                    .and(part("the rising part", *rising))
                    .and(divisor("the divisor of the first rate", *start_divisor))
                    .and(divisor("the divisor of the last rate", *end_divisor))
            }
            Curve::Plateau(plateau) => part("the factor of a plateau", plateau.factor)
                .and(part("the threshold of a plateau", plateau.threshold))
                .and(not_negative("the smallest rate", plateau.min_rate)),
            Curve::Table(rows) => check_rows(rows),
        }
    }
}

impl Curve {
    /// Returns the rate of a step after a number of reductions of a plateau.
    fn rate(&self, base: f64, done: u64, reductions: u64) -> f64 {
        let falling = |part: f64, min: f32| f64::from(min) + (base - f64::from(min)) * part;
        let half_cosine = |part: f64| (1.0 + libm::cos(PI * part)) / 2.0;
        match self {
            Curve::Constant => base,
            Curve::Step { every, gamma } => base * power(*gamma, done / every),
            Curve::MultiStep { milestones, gamma } => {
                base * power(*gamma, milestones.iter().filter(|&&milestone| milestone <= done).count() as u64)
            }
            Curve::Exponential { gamma } => base * power(*gamma, done),
            Curve::Polynomial { steps, power, min_rate } => {
                falling(libm::pow(1.0 - part_of(done, *steps), f64::from(*power)), *min_rate)
            }
            Curve::Cosine { steps, min_rate } => match done < *steps {
                true => falling(half_cosine(part_of(done, *steps)), *min_rate),
                false => f64::from(*min_rate),
            },
            Curve::CosineRestarts { first_steps, factor, min_rate } => {
                let (mut done, mut steps) = (done, *first_steps);
                if *factor == 1 {
                    done %= steps;
                }
                while done >= steps {
                    done -= steps;
                    steps = steps.saturating_mul(*factor);
                }
                falling(half_cosine(part_of(done, steps)), *min_rate)
            }
            Curve::OneCycle { steps, rising, start_divisor, end_divisor } => {
                let start = base / f64::from(*start_divisor);
                let end = start / f64::from(*end_divisor);
                // As in PyTorch, both ends lie on whole steps of the cycle; the top need not, and can lie before the first step.
                let (done, last) = (done as f64, *steps as f64 - 1.0);
                let top = f64::from(*rising) * *steps as f64 - 1.0;
                let between = |from: f64, to: f64, part: f64| to + (from - to) * half_cosine(part);
                match done <= top && top > 0.0 {
                    true => between(start, base, done / top),
                    false if last > top => between(base, end, ((done - top) / (last - top)).min(1.0)),
                    false => end,
                }
            }
            Curve::Plateau(plateau) => {
                let reduced = |times| (base * power(plateau.factor, times)).max(f64::from(plateau.min_rate)).min(base);
                let changes = |&times: &u64| reduced(times - 1) - reduced(times) > REDUCTION_MIN;
                reduced((1..=reductions).take_while(changes).count() as u64)
            }
            Curve::Table(rows) => {
                let row = rows.partition_point(|&(step, _)| step <= done + 1).saturating_sub(1);
                rows.get(row).map_or(base, |&(_, rate)| f64::from(rate))
            }
        }
    }

    /// Reads a table from text: lines of the form `step,rate`, with or without these words as a header. Steps are counted from 1 and must
    /// increase.
    ///
    /// # Errors
    /// Returns what is wrong, and with which line.
    ///
    /// ```
    /// use forebay::training::{Curve, Schedule};
    ///
    /// let schedule = Schedule::new(Curve::table_from_csv("step,rate\n1,0.1\n100,0.01\n")?);
    /// assert_eq!([1, 99, 100, 5000].map(|step| schedule.rate(1.0, step)), [0.1, 0.1, 0.01, 0.01]);
    /// # Ok::<(), String>(())
    /// ```
    pub fn table_from_csv(text: &str) -> Result<Curve, String> {
        let mut rows = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start_matches('\u{feff}').trim();
            let (step, rate) = line.split_once(',').map_or((line, ""), |(step, rate)| (step.trim(), rate.trim()));
            if line.is_empty() || (number == 0 && step.eq_ignore_ascii_case("step")) {
                continue;
            }
            match (step.parse::<u64>(), rate.parse::<f32>()) {
                (Ok(step), Ok(rate)) => rows.push((step, rate)),
                _ => {
                    return Err(format!("line {} is '{line}'; expected a step and a rate, as in 100,0.01", number + 1));
                }
            }
        }
        check_rows(&rows)?;
        Ok(Curve::Table(rows))
    }
}

/// Checks that the rows of a table are valid.
fn check_rows(rows: &[(u64, f32)]) -> Result<(), String> {
    if rows.is_empty() {
        return Err("a table of rates needs at least one row: step,rate".to_string());
    }
    for &(step, rate) in rows {
        not_negative(&format!("the rate from step {step} on"), rate)?;
    }
    match rows.windows(2).find(|rows| rows[0].0 >= rows[1].0) {
        Some(rows) => Err(format!("the steps of a table must increase, but {} follows {}", rows[1].0, rows[0].0)),
        None => Ok(()),
    }
}

fn not_negative(what: &str, number: f32) -> Result<(), String> {
    match number >= 0.0 && number.is_finite() {
        true => Ok(()),
        false => Err(format!("{what} must be a finite number of at least 0, not {number}")),
    }
}

fn part(what: &str, number: f32) -> Result<(), String> {
    match (0.0..=1.0).contains(&number) {
        true => Ok(()),
        false => Err(format!("{what} must lie between 0 and 1, not {number}")),
    }
}

/// Returns the fraction of steps that is done, at most 1.
fn part_of(done: u64, steps: u64) -> f64 {
    done.min(steps) as f64 / steps as f64
}

/// Returns a factor raised to this power.
fn power(factor: f32, times: u64) -> f64 {
    // Beyond `i32::MAX`, a power is 0, 1 or infinite, as it is at that exponent.
    f64::from(factor).powi(i32::try_from(times).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests;
