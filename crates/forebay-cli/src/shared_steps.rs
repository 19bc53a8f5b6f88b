//! What several processes did in the steps of a run: what they exchanged, how long each one worked, and how much memory each one took.

use forebay::{Exchanged, SharedWork, format_bytes};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::processes::Processes;
use crate::report::{StepNumbers, median, resident_peak_bytes};

/// A process that works this many times as long as the fastest one is named.
pub const UNEVEN_RATIO: f64 = 1.1;

/// The steps of a run in one of several processes.
pub struct SharedSteps<'a> {
    work: Option<&'a SharedWork>,
    exchanged: Exchanged,
    steps: usize,
    all: Vec<Own>,
}

/// What a process did.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Own {
    /// Median seconds of a step, without `exchange_stall_seconds`.
    own_seconds: f64,
    /// Median seconds of a step in which no kernel ran and an exchange was under way.
    exchange_stall_seconds: f64,
    /// The peak memory of the process; `None` if the system does not report it.
    resident_peak_bytes: Option<u64>,
}

impl Own {
    fn of(steps: &[StepNumbers]) -> Own {
        let times = || steps.iter().map(|step| step.times);
        Own {
            own_seconds: median(times().map(|times| times.seconds - times.exchange_stall_seconds)).unwrap_or_default(),
            exchange_stall_seconds: median(times().map(|times| times.exchange_stall_seconds)).unwrap_or_default(),
            resident_peak_bytes: resident_peak_bytes(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "own_seconds": self.own_seconds,
            "exchange_stall_seconds": self.exchange_stall_seconds,
            "resident_peak_bytes": self.resident_peak_bytes,
        })
    }

    fn of_json(said: &Value) -> Own {
        let number = |key: &str| said[key].as_f64().unwrap_or_default();
        Own {
            own_seconds: number("own_seconds"),
            exchange_stall_seconds: number("exchange_stall_seconds"),
            resident_peak_bytes: said["resident_peak_bytes"].as_u64(),
        }
    }
}

impl<'a> SharedSteps<'a> {
    /// Combines the steps of this process with those of the others, or returns `None` if it is alone. All processes must call it.
    ///
    /// # Errors
    /// Fails if a process does not answer.
    pub fn of(
        processes: &Processes,
        work: Option<&'a SharedWork>,
        steps: &[StepNumbers],
    ) -> Result<Option<SharedSteps<'a>>, Failure> {
        let Some(group) = processes.group() else { return Ok(None) };
        let exchanged = group.exchanged();
        let all = processes.gather(&Own::of(steps).json())?.iter().map(Own::of_json).collect();
        Ok(Some(SharedSteps { work, exchanged, steps: steps.len(), all }))
    }

    /// Returns them as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let work = self.work;
        let per_step = self.exchanged.time.as_secs_f64() / self.steps.max(1) as f64;
        let sent = format_bytes(work.map_or(0, |work| work.sent_bytes));
        let waited = self.all.first().map_or(0.0, |own| own.exchange_stall_seconds);
        let mut lines = vec![format!(
            "{:<16} {}; this one sent {sent} per step in {} exchanges, which took {per_step:.3} s per step, {waited:.3} s of it \
             without a kernel running",
            "processes",
            self.all.len(),
            work.map_or(0, |work| work.exchanges),
        )];
        let mut line = |text: String| lines.push(format!("{:<16} {text}", ""));
        if let Some(text) = self.unevenness() {
            line(text);
        }
        let taken: Vec<u64> = self.all.iter().filter_map(|own| own.resident_peak_bytes).collect();
        if let (Some(&least), Some(&most)) = (taken.iter().min(), taken.iter().max()) {
            line(format!("each took {} to {} of memory", format_bytes(least), format_bytes(most)));
        }
        if let Some(work) = work.filter(|work| work.sharded_bytes > 0) {
            line(sharded(work));
        }
        match work {
            None => line(
                "every process computed every step in full, because a batch has fewer samples than there are processes"
                    .to_owned(),
            ),
            Some(SharedWork { whole_launches, shared_launches, .. }) if !whole_launches.is_empty() => {
                let shown: Vec<String> = whole_launches.iter().take(3).map(|name| format!("'{name}'")).collect();
                let others = whole_launches.len() - shown.len();
                let others = if others > 0 { format!(", {others} more") } else { String::new() };
                line(format!(
                    "{shared_launches} launches are shared out; every process computed these in full: {}{others}",
                    shown.join(", ")
                ));
            }
            Some(_) => {}
        }
        lines
    }

    /// Names the process that works longest, if it works much longer than another one.
    fn unevenness(&self) -> Option<String> {
        let seconds = |(_, own): &(usize, &Own)| own.own_seconds;
        let by_seconds = |one: &(usize, &Own), other: &(usize, &Own)| seconds(one).total_cmp(&seconds(other));
        let slowest = self.all.iter().enumerate().max_by(by_seconds)?;
        let fastest = self.all.iter().enumerate().min_by(by_seconds)?;
        let ratio = seconds(&slowest) / seconds(&fastest);
        (ratio > UNEVEN_RATIO).then(|| {
            format!(
                "process {} is the slowest: it was at work for {:.3} s per step, {ratio:.2} times as long as process {}",
                slowest.0,
                seconds(&slowest),
                fastest.0
            )
        })
    }

    /// Returns them as JSON.
    pub fn json(&self) -> Value {
        let mut object = work_json(self.all.len(), self.work);
        object["sent_bytes"] = self.exchanged.sent_bytes.into();
        object["received_bytes"] = self.exchanged.received_bytes.into();
        object["exchange_seconds"] = self.exchanged.time.as_secs_f64().into();
        object["each"] = self.all.iter().map(Own::json).collect();
        object
    }
}

/// Returns the number of processes, and how a step is divided among them, as JSON.
pub fn work_json(processes: usize, work: Option<&SharedWork>) -> Value {
    json!({
        "count": processes,
        "exchanges_per_step": work.map_or(0, |work| work.exchanges),
        "sent_bytes_per_step": work.map_or(0, |work| work.sent_bytes),
        "shared_launches": work.map_or(0, |work| work.shared_launches),
        "whole_launches": work.map(|work| &work.whole_launches),
        "sharded_bytes": work.map_or(0, |work| work.sharded_bytes),
        "own_shard_bytes": work.map_or(0, |work| work.own_shard_bytes),
    })
}

/// Describes what a process keeps of what is sharded.
pub fn sharded(work: &SharedWork) -> String {
    let [own, all] = [work.own_shard_bytes, work.sharded_bytes].map(format_bytes);
    format!("this process keeps {own} of the {all} of parameters and optimizer state that are sharded")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(own_seconds: [f64; 3]) -> SharedSteps<'static> {
        let own = |own_seconds| Own { own_seconds, exchange_stall_seconds: 0.25, resident_peak_bytes: Some(1 << 20) };
        SharedSteps { work: None, exchanged: Exchanged::default(), steps: 2, all: own_seconds.map(own).to_vec() }
    }

    #[test]
    fn a_slow_process_is_named() {
        let text = steps([0.5, 0.4, 0.8]).lines().join("\n");
        assert!(text.contains("process 2 is the slowest: it was at work for 0.800 s per step, 2.00 times"), "{text}");
        assert!(text.contains("as long as process 1") && text.contains("0.250 s of it without a kernel"), "{text}");
        assert!(!steps([0.5, 0.51, 0.52]).lines().join("\n").contains("slowest"));
        let own = &steps([0.5, 0.4, 0.8]).all[2];
        assert_eq!(Own::of_json(&own.json()), *own);
    }
}
