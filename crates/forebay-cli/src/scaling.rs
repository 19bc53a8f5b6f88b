//! How a step scales to several processes, as planned: what each exchanges, and how much faster the step is.

use forebay::{Network, SharedWork, SimulatedRank, SimulatedStep, Statistics, format_bytes, ranges};
use serde_json::{Value, json};

use crate::shared_steps::{UNEVEN_RATIO, sharded, work_json};

/// The largest number of rows in the table of simulated processes. More would not fit on a screen.
const ROWS_MAX: usize = 20;

/// A step of several processes compared to the same step of one process.
pub struct Scaling {
    processes: u64,
    network: Network,
    work: Option<SharedWork>,
    seconds: f64,
    device_peak_bytes: u64,
    /// The seconds of one process; `None` if the whole step does not fit within the same budget.
    alone_seconds: Option<f64>,
    /// The step of all processes, if they were simulated.
    simulated: Option<SimulatedStep>,
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
            simulated: None,
        }
    }

    /// Adds the step of all processes, if they were simulated.
    pub fn with_simulated(self, simulated: Option<SimulatedStep>) -> Scaling {
        Scaling { simulated, ..self }
    }

    /// Returns the step of all processes, if they were simulated.
    pub fn simulated(&self) -> Option<&SimulatedStep> {
        self.simulated.as_ref()
    }

    /// Returns the speedup of a step of these seconds over that of one process.
    fn speedup(&self, seconds: f64) -> Option<f64> {
        self.alone_seconds.map(|alone| alone / seconds)
    }

    /// Describes the speedup of a step of these seconds.
    fn faster(&self, seconds: f64) -> String {
        match self.speedup(seconds) {
            Some(speedup) => format!(
                "{speedup:.2} times as fast as one process, {:.0} % of the ideal {} times",
                100.0 * speedup / self.processes as f64,
                self.processes
            ),
            None => "one process alone cannot run this step".to_owned(),
        }
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
        line(self.faster(seconds));
        if let Some(step) = &self.simulated {
            line(format!("simulated together: {:.4} s per step, {}", step.seconds, self.faster(step.seconds)));
            unevenness(step).into_iter().chain(table(step)).for_each(line);
        }
        lines
    }

    /// Returns it as JSON.
    pub fn json(&self) -> Value {
        let mut object = work_json(self.processes as usize, self.work.as_ref());
        object["network"] = self.network.to_string().into();
        object["predicted_seconds"] = self.seconds.into();
        object["predicted_seconds_of_one"] = self.alone_seconds.into();
        let efficiency = |speedup: f64| speedup / self.processes as f64;
        let speedup = self.speedup(self.seconds);
        object["speedup"] = speedup.into();
        object["efficiency"] = speedup.map(efficiency).into();
        if let Some(step) = &self.simulated {
            let speedup = self.speedup(step.seconds);
            object["simulated"] = json!({
                "seconds": step.seconds,
                "speedup": speedup,
                "efficiency": speedup.map(efficiency),
                "slowest": step.slowest(),
                "each": step.ranks.iter().map(rank_json).collect::<Vec<Value>>(),
            });
        }
        object
    }
}

/// Names the process that is at work longest, if it is much longer than another one.
fn unevenness(step: &SimulatedStep) -> Option<String> {
    let own = |(_, rank): &(usize, &SimulatedRank)| rank.own_seconds();
    let fastest = step.ranks.iter().enumerate().min_by(|one, other| own(one).total_cmp(&own(other)))?;
    let (slowest, seconds) = (step.slowest(), step.ranks.get(step.slowest())?.own_seconds());
    let ratio = seconds / own(&fastest);
    (ratio > UNEVEN_RATIO).then(|| {
        let fastest = fastest.0;
        format!("process {slowest} is the slowest: at work for {seconds:.4} s, {ratio:.2} times as long as process {fastest}")
    })
}

/// Returns a row for each group of processes with the same numbers.
fn table(step: &SimulatedStep) -> Vec<String> {
    let row = |[of, busy, exchange, waiting, memory]: [&str; 5]| {
        format!("{of:<20} {busy:>12} {exchange:>12} {waiting:>12} {memory:>14}")
    };
    let mut rows = vec![row(["processes", "kernels run", "exchanging", "waiting", "device memory"])];
    let mut groups: Vec<([String; 4], Vec<usize>)> = Vec::new();
    for (number, rank) in step.ranks.iter().enumerate() {
        let [busy, exchange, waiting] =
            [rank.busy_seconds, rank.exchange_seconds, rank.waiting_seconds].map(|seconds| format!("{seconds:.4} s"));
        let columns = [busy, exchange, waiting, format_bytes(rank.device_peak_bytes)];
        match groups.iter_mut().find(|(known, _)| *known == columns) {
            Some((_, group)) => group.push(number),
            None => groups.push((columns, vec![number])),
        }
    }
    for ([busy, exchange, waiting, memory], group) in groups.iter().take(ROWS_MAX) {
        rows.push(row([&ranges(group), busy, exchange, waiting, memory]));
    }
    if groups.len() > ROWS_MAX {
        rows.push(format!("and {} more groups of processes; --json lists all processes", groups.len() - ROWS_MAX));
    }
    rows
}

fn rank_json(rank: &SimulatedRank) -> Value {
    json!({
        "seconds": rank.seconds,
        "own_seconds": rank.own_seconds(),
        "busy_seconds": rank.busy_seconds,
        "exchange_seconds": rank.exchange_seconds,
        "waiting_seconds": rank.waiting_seconds,
        "slowness": rank.slowness,
        "sent_bytes": rank.sent_bytes,
        "device_peak_bytes": rank.device_peak_bytes,
        "host_bytes": rank.host_bytes,
    })
}
