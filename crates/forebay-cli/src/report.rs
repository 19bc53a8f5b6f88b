//! The numbers of a run, as text and as JSON.

use std::collections::BTreeMap;

use forebay::format_bytes;
use forebay::{
    DeviceName, Explanation, HostOperatorExplanation, ProcessLimit, RunTimes, Statistics, StepMoves, StepReport,
    Trainer,
};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output;

/// The maximum number of operators named in a line.
const HOST_OPERATORS_NAMED: usize = 3;

/// One step, or one run of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepNumbers {
    /// The loss, if any.
    pub loss: Option<f32>,
    /// The learning rate; `None` without training.
    pub learning_rate: Option<f32>,
    /// The norm of all gradients, if known.
    pub gradient_norm: Option<f32>,
    /// Whether the update was skipped.
    pub skipped: bool,
    /// How long it waited for its batch; `None` if nothing is read.
    pub data_seconds: Option<f64>,
    /// How long it took, and what it waited for on the way.
    pub times: RunTimes,
}

impl StepNumbers {
    /// Creates the numbers of a run.
    pub fn of_run(times: RunTimes) -> StepNumbers {
        StepNumbers { times, ..StepNumbers::default() }
    }

    /// Creates the numbers of a training step, with the seconds that it waited for its batch.
    pub fn of_training(report: &StepReport, data_seconds: f64) -> StepNumbers {
        let StepReport { loss, learning_rate, gradient_norm, skipped, .. } = *report;
        let (loss, learning_rate, data_seconds) = (Some(loss), Some(learning_rate), Some(data_seconds));
        StepNumbers { loss, learning_rate, gradient_norm, skipped, data_seconds, times: report.times() }
    }
}

/// What a command reports.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Steps or runs, in order.
    pub steps: &'a [StepNumbers],
    /// Numbers of the plan.
    pub statistics: &'a Statistics,
    /// The peak device memory; planned if nothing ran.
    pub device_peak_bytes: u64,
    /// The peak memory of the process, as the system counts it; `None` if nothing ran or the system does not report it.
    pub resident_peak_bytes: Option<u64>,
    /// The process memory limit that steps stayed within.
    pub limit: Option<ProcessLimit>,
    /// The plan in words; `None` if it is reported elsewhere or if managed memory has no plan.
    pub explanation: Option<Explanation>,
}

/// Returns what is reported of a trainer's plan. A limit on the process leaves no room for a search for the smallest budget, which says
/// nothing about the limit.
pub fn statistics_of(trainer: &Trainer) -> &Statistics {
    if trainer.memory_limit().is_none() { trainer.statistics() } else { &trainer.plan_as_made().statistics }
}

/// Returns the peak memory of this process, in bytes.
pub fn resident_peak_bytes() -> Option<u64> {
    forebay_limits::resident().map(|resident| resident.peak_bytes)
}

/// Returns the plan of steps that ran, in words, with what holds process memory at the peak if that includes the device's memory.
pub fn of_run(
    mut explanation: Explanation,
    device: &DeviceName,
    device_peak_bytes: u64,
    resident_peak_bytes: Option<u64>,
) -> Explanation {
    if let Some(bytes) = resident_peak_bytes.filter(|_| *device == DeviceName::default()) {
        explanation.peak = explanation.peak.of_process(device_peak_bytes, bytes);
    }
    explanation
}

/// Returns the median; the mean of the two middle values if there are two; `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (upper, lower) = (values.get(values.len() / 2)?, values.get((values.len() - 1) / 2)?);
    Some((upper + lower) / 2.0)
}

impl Report<'_> {
    /// Returns the median time of a step, or `None` if nothing ran.
    pub fn seconds_median(&self) -> Option<f64> {
        median(self.steps.iter().map(|step| step.times.seconds))
    }

    /// Returns how long all steps waited for their batches, or `None` if nothing was read.
    pub fn data_seconds(&self) -> Option<f64> {
        self.steps.first()?;
        self.steps.iter().map(|step| step.data_seconds).sum()
    }

    /// Returns the object that `--json` prints.
    pub fn json(&self) -> Map<String, Value> {
        let statistics = self.statistics;
        let step = |step: &StepNumbers| {
            let mut object = json!({
                "loss": step.loss.map(f64::from),
                "seconds": step.times.seconds,
                "stall_seconds": step.times.stall_seconds,
                "late_copies": step.times.late_copies,
            });
            if let Some(rate) = step.learning_rate {
                object["learning_rate"] = f64::from(rate).into();
                object["skipped"] = step.skipped.into();
            }
            if let Some(seconds) = step.data_seconds {
                object["data_seconds"] = seconds.into();
            }
            if let Some(norm) = step.gradient_norm {
                object["gradient_norm"] = f64::from(norm).into();
            }
            for (key, number) in step.times.moves.iter().flat_map(numbers) {
                object[key] = number_of(number);
            }
            object
        };
        let object = json!({
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "seconds_median": self.seconds_median(),
            "device_budget_bytes": statistics.device_budget_bytes,
            "device_peak_bytes": self.device_peak_bytes,
            "in_core_peak_bytes": statistics.in_core_peak_bytes,
            "minimum_budget_bytes": Some(statistics.minimum_budget_bytes).filter(|&bytes| bytes > 0),
            "bytes_to_device": statistics.bytes_to_device,
            "bytes_from_device": statistics.bytes_from_device,
            "launches": statistics.launches,
            "host_launches": statistics.host_launches,
            "host_updates": statistics.host_updates,
            "host_launch_bytes": statistics.host_launch_bytes,
            "barriers": statistics.barriers,
            "waits": statistics.waits,
            "stall_seconds": median(self.steps.iter().map(|step| step.times.stall_seconds)),
            "late_copies": median(self.steps.iter().map(|step| step.times.late_copies as f64)),
            "late_seconds": median(self.steps.iter().map(|step| step.times.late_seconds)),
            "host_bytes": statistics.host_bytes,
            "spill_bytes": statistics.spill_bytes,
            "model_files_bytes": statistics.model_files_bytes,
            "bytes_from_model_files": statistics.bytes_from_model_files,
            "bytes_to_disk": statistics.bytes_to_disk,
            "bytes_from_disk": statistics.bytes_from_disk,
        });
        match object {
            Value::Object(mut object) => {
                if let Some(bytes) = self.resident_peak_bytes {
                    object.insert("resident_peak_bytes".to_owned(), bytes.into());
                }
                if let Some(seconds) = self.data_seconds() {
                    object.insert("data_seconds".to_owned(), seconds.into());
                }
                object.insert("memory_limit_bytes".to_owned(), self.limit.map(|limit| limit.bytes).into());
                if let Some(explanation) = &self.explanation {
                    object.insert("peak".to_owned(), json!(explanation.peak));
                    object.insert("repeats".to_owned(), explanation.repeats.into());
                    object.insert("repeated_seconds".to_owned(), explanation.repeated_seconds.into());
                }
                object.extend(self.moves().map(|(key, number)| (key.to_owned(), number_of(number))));
                object
            }
            _ => unreachable!("an object was written above"),
        }
    }

    /// Returns the lines for people.
    pub fn lines(&self) -> Vec<String> {
        let statistics = self.statistics;
        let mut lines = Vec::new();
        let mut line = |name: &str, text: String| lines.push(format!("{name:<16} {text}"));
        if let (Some(first), Some(last)) = (self.loss_of(0), self.loss_of(self.steps.len().saturating_sub(1))) {
            line("loss", format!("{first:.6} in the first step, {last:.6} in the last"));
        }
        let skipped = self.steps.iter().filter(|step| step.skipped).count();
        if skipped > 0 {
            line("skipped", format!("the updates of {skipped} steps, whose loss or gradients were not finite"));
        }
        let budget = statistics.device_budget_bytes.map_or_else(|| "none".to_owned(), format_bytes);
        match self.limit {
            Some(ProcessLimit { bytes, unlimited_bytes, .. }) => {
                let [limit, unlimited] = [bytes, unlimited_bytes].map(format_bytes);
                line("memory limit", format!("{limit} for the whole process (predicted without a limit: {unlimited})"));
            }
            None => {
                line("budget", format!("{budget} (least possible: {})", format_bytes(statistics.minimum_budget_bytes)))
            }
        }
        let (peak, in_core) = (self.device_peak_bytes, statistics.in_core_peak_bytes);
        line("device peak", format!("{} ({} without a budget)", format_bytes(peak), format_bytes(in_core)));
        if let Some(bytes) = self.resident_peak_bytes {
            line("process peak", format!("{} of memory, as the system counts it", format_bytes(bytes)));
        }
        let moves: BTreeMap<&str, f64> = self.moves().collect();
        let measured = |key: &str, planned: u64| moves.get(key).map_or(planned, |&bytes| bytes as u64);
        let to = format_bytes(measured("bytes_to_device", statistics.bytes_to_device));
        let from = format_bytes(measured("bytes_from_device", statistics.bytes_from_device));
        line("moved per step", format!("{to} to the device, {from} from the device"));
        if statistics.spill_bytes > 0 {
            let (to, from) = (format_bytes(statistics.bytes_to_disk), format_bytes(statistics.bytes_from_disk));
            let spilled = format_bytes(statistics.spill_bytes);
            line("spilled to disk", format!("{spilled}; {to} to disk and {from} from disk per step"));
        }
        if statistics.model_files_bytes > 0 {
            let stay = format_bytes(statistics.model_files_bytes);
            let read = format_bytes(statistics.bytes_from_model_files);
            line("in model's files", format!("{stay} of weights; {read} read from there per step"));
        }
        if statistics.host_updates > 0 {
            let updates = statistics.host_updates;
            line("updates", format!("{updates} launches on the host, next to the optimizer's state"));
        }
        if statistics.host_launches > 0 {
            let (launches, bytes) = (statistics.host_launches, format_bytes(statistics.host_launch_bytes));
            let named = |one: &HostOperatorExplanation| format!("'{}'", one.name);
            let operators = self.explanation.iter().flat_map(|explanation| &explanation.host_operators);
            let mut names: Vec<String> = operators.map(named).collect();
            if names.len() > HOST_OPERATORS_NAMED {
                let others = names.len() - HOST_OPERATORS_NAMED;
                names.truncate(HOST_OPERATORS_NAMED);
                names.push(format!("{others} more"));
            }
            let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
            line(
                "on the host",
                format!("{launches} launches that the device cannot run, {bytes} copied for them{names}"),
            );
        }
        if let Some(explanation) = self.explanation.as_ref().filter(|explanation| explanation.repeats > 0) {
            let (repeats, seconds) = (explanation.repeats, explanation.repeated_seconds);
            line("recomputed", format!("{repeats} launches per step, predicted to take {seconds:.3} s"));
        }
        if !moves.is_empty() {
            let [faults, evictions, prefetches] = ["faults", "evictions", "prefetches"].map(|key| moves[key]);
            line("managed memory", format!("{faults} faults, {evictions} evictions, {prefetches} prefetches per step"));
            let (stalls, seconds) = (moves["memory_stalls"], moves["memory_stall_seconds"]);
            line("", format!("the host waited {stalls} times to move units, {seconds:.3} s in all"));
        }
        let (barriers, waits) = (statistics.barriers, statistics.waits);
        let both = barriers + waits;
        line(
            "order per step",
            format!("{barriers} barriers and {waits} waits ({both} together) for {} launches", statistics.launches),
        );
        if let Some(seconds) = self.seconds_median() {
            let stall = median(self.steps.iter().map(|step| step.times.stall_seconds)).unwrap_or_default();
            line("time per step", format!("{seconds:.3} s (median), {stall:.3} s of it without a kernel running"));
            if let Some(all) = self.data_seconds() {
                let one = median(self.steps.iter().filter_map(|step| step.data_seconds)).unwrap_or_default();
                line("waited for data", format!("{one:.3} s per step (median), {all:.3} s in all"));
            }
            let late = median(self.steps.iter().map(|step| step.times.late_copies as f64)).unwrap_or_default();
            if late > 0.0 {
                let seconds = median(self.steps.iter().map(|step| step.times.late_seconds)).unwrap_or_default();
                line("late copies", format!("{late:.0} per step (median); kernels waited {seconds:.3} s for them"));
            }
        }
        if let Some(explanation) = &self.explanation {
            lines.extend(explanation.peak.to_string().lines().map(str::to_owned));
        }
        lines
    }

    /// Returns medians of what managed memory did per step; nothing if a plan determines every move.
    fn moves(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        let steps: Vec<Vec<(&str, f64)>> = self
            .steps
            .iter()
            .filter_map(|step| step.times.moves.as_ref())
            .map(|moves| numbers(moves).to_vec())
            .collect();
        let keys = steps.first().cloned().unwrap_or_default();
        keys.into_iter()
            .enumerate()
            .filter_map(move |(place, (key, _))| Some((key, median(steps.iter().map(|step| step[place].1))?)))
    }

    fn loss_of(&self, step: usize) -> Option<f32> {
        self.steps.get(step)?.loss
    }
}

/// Returns what managed memory did, by the names in the report.
fn numbers(moves: &StepMoves) -> [(&'static str, f64); 9] {
    [
        ("faults", moves.faults as f64),
        ("evictions", moves.evictions as f64),
        ("prefetches", moves.prefetches as f64),
        ("bytes_to_device", moves.bytes_to_device as f64),
        ("bytes_from_device", moves.bytes_from_device as f64),
        ("bytes_to_disk", moves.bytes_to_disk as f64),
        ("bytes_from_disk", moves.bytes_from_disk as f64),
        ("memory_stalls", moves.stalls as f64),
        ("memory_stall_seconds", moves.stalled.as_secs_f64()),
    ]
}

/// Converts a number, without a fraction if it is whole.
fn number_of(number: f64) -> Value {
    if number.fract() == 0.0 { json!(number as u64) } else { json!(number) }
}

/// Prints the JSON object on standard output.
///
/// # Errors
/// Fails if the object cannot be serialized.
pub fn say_json(object: Map<String, Value>) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&Value::Object(object));
    output::say(&text.map_err(|error| Failure::Failed(format!("cannot write the report: {error}")))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_object_has_the_promised_keys() {
        let statistics = Statistics::default();
        let mut times = RunTimes::default();
        (times.seconds, times.stall_seconds) = (2.0, 0.25);
        (times.late_copies, times.late_seconds) = (1, 0.125);
        let steps = [StepNumbers { loss: Some(0.5), ..StepNumbers::of_run(times) }];
        let report = Report {
            steps: &steps,
            statistics: &statistics,
            device_peak_bytes: 7,
            resident_peak_bytes: None,
            limit: None,
            explanation: None,
        };
        let object = report.json();
        for key in [
            "steps",
            "seconds_median",
            "device_budget_bytes",
            "device_peak_bytes",
            "in_core_peak_bytes",
            "minimum_budget_bytes",
            "bytes_to_device",
            "bytes_from_device",
            "launches",
            "barriers",
            "waits",
            "stall_seconds",
            "spill_bytes",
            "bytes_to_disk",
            "bytes_from_disk",
        ] {
            assert!(object.contains_key(key), "{key}");
        }
        assert_eq!(object["steps"][0]["loss"], 0.5);
        assert_eq!(object["steps"][0]["seconds"], 2.0);
        assert_eq!(object["device_budget_bytes"], Value::Null);
    }
}
