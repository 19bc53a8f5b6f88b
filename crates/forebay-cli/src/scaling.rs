//! How a step scales to several processes, as planned: what each exchanges, and how much faster the step is.

use forebay::{Network, SharedWork, Statistics, format_bytes};
use serde_json::Value;

use crate::shared_steps::{sharded, work_json};

/// A step of several processes compared to the same step of one process.
pub struct Scaling {
    processes: u64,
    network: Network,
    work: Option<SharedWork>,
    seconds: f64,
    device_peak_bytes: u64,
    /// The seconds of one process; `None` if the whole step does not fit within the same budget.
    alone_seconds: Option<f64>,
}

fn seconds(statistics: &Statistics) -> f64 {
    statistics.predicted_ns as f64 / 1e9
}

impl Scaling {
    /// Compares the plan of the first of these processes to that of a single process.
    pub fn new(
        processes: u64,
        network: Network,
        (statistics, work): (&Statistics, Option<&SharedWork>),
        alone: Option<&Statistics>,
    ) -> Scaling {
        Scaling {
            processes,
            network,
            work: work.cloned(),
            seconds: seconds(statistics),
            device_peak_bytes: statistics.device_peak_bytes,
            alone_seconds: alone.map(seconds),
        }
    }

    /// Returns the speedup of the step over that of one process.
    fn speedup(&self) -> Option<f64> {
        self.alone_seconds.map(|alone| alone / self.seconds)
    }

    /// Returns it as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("processes         {}, connected by {}", self.processes, self.network)];
        let mut line = |text: String| lines.push(format!("{:<17} {text}", ""));
        match &self.work {
            None => line(
                "every process computes the whole step, because a batch has fewer samples than there are processes"
                    .to_owned(),
            ),
            Some(SharedWork { exchanges, sent_bytes, whole_launches, shared_launches, .. }) => {
                let sent = format_bytes(*sent_bytes);
                line(format!(
                    "each sends {sent} per step in {exchanges} exchanges; {shared_launches} launches are shared out"
                ));
                if let Some(work) = self.work.as_ref().filter(|work| work.sharded_bytes > 0) {
                    line(sharded(work));
                }
                if let Some(first) = whole_launches.first() {
                    let count = whole_launches.len();
                    line(format!("every process computes {count} launches in full (the first is '{first}')"));
                }
            }
        }
        let (seconds, peak) = (self.seconds, format_bytes(self.device_peak_bytes));
        line(format!("predicted {seconds:.4} s per step, {peak} on each device"));
        match self.speedup() {
            Some(speedup) => line(format!(
                "{speedup:.2} times as fast as one process, {:.0} % of the ideal {} times",
                100.0 * speedup / self.processes as f64,
                self.processes
            )),
            None => line("one process alone cannot run this step".to_owned()),
        }
        lines
    }

    /// Returns it as JSON.
    pub fn json(&self) -> Value {
        let mut object = work_json(self.processes as usize, self.work.as_ref());
        object["network"] = self.network.to_string().into();
        object["predicted_seconds"] = self.seconds.into();
        object["predicted_seconds_of_one"] = self.alone_seconds.into();
        object["speedup"] = self.speedup().into();
        object["efficiency"] = self.speedup().map(|speedup| speedup / self.processes as f64).into();
        object
    }
}
