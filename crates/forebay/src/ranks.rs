//! All processes of a run, planned and simulated together on one clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{Command, StreamId};
use forebay_device::TraceRecord;
use forebay_plan::Plan;
use forebay_plan::cost::Costs;
use forebay_plan::simulate::{Prediction, Process, simulate_together};
use forebay_runtime::trace::{Trace, document};
use serde_json::Value;

use crate::alike::AlikePlans;
use crate::compile::Compiled;
use crate::error::Error;
use crate::machine::LimitedDevice;
use crate::model::Model;
use crate::options::{EngineOptions, MemoryMode, SessionOptions, TrainerOptions};
use crate::process_group::ProcessGroup;
use crate::session::Session;
use crate::trainer::Trainer;

/// The largest number of processes that are simulated.
const RANKS_MAX: usize = 4096;
/// How many times as long as planned kernels can take.
const SLOWNESS: std::ops::RangeInclusive<f64> = 0.001..=1000.0;

/// The processes of a simulated run.
///
/// ```
/// let ranks = forebay::Ranks::new(8).slow(3, 2.0); // process 3 runs at half speed
/// assert_eq!((ranks.count, ranks.slowness(3), ranks.slowness(4)), (8, 2.0, 1.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Ranks {
    /// How many there are.
    pub count: usize,
    /// By rank: how many times as long as planned its kernels take. Others take as long as planned.
    pub slow: BTreeMap<usize, f64>,
}

impl Ranks {
    /// Creates this many processes that are equally fast.
    pub fn new(count: usize) -> Ranks {
        Ranks { count, slow: BTreeMap::new() }
    }

    /// Returns the same processes, with one whose kernels take `slowness` times as long as planned.
    pub fn slow(mut self, rank: usize, slowness: f64) -> Ranks {
        self.slow.insert(rank, slowness);
        self
    }

    /// Returns how many times as long as planned the kernels of a process take.
    pub fn slowness(&self, rank: usize) -> f64 {
        self.slow.get(&rank).copied().unwrap_or(1.0)
    }

    fn check(&self) -> Result<(), Error> {
        let refused = |reason| Err(Error::Option { reason });
        if !(1..=RANKS_MAX).contains(&self.count) {
            return refused(format!("{} processes cannot be simulated; expected 1 to {RANKS_MAX}", self.count));
        }
        for (rank, slowness) in &self.slow {
            if *rank >= self.count {
                let last = self.count - 1;
                return refused(format!("process {rank} cannot be slow: the processes are numbered 0 to {last}"));
            }
            if !SLOWNESS.contains(slowness) {
                let (least, most) = (SLOWNESS.start(), SLOWNESS.end());
                return refused(format!(
                    "process {rank} cannot be {slowness} times as slow; expected a factor from {least} to {most}, such as 2 for \
                     half the speed"
                ));
            }
        }
        Ok(())
    }
}

/// One process in a simulated step.
///
/// ```
/// use forebay::{Model, Ranks, Session, SessionOptions};
///
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// let mut options = SessionOptions::default();
/// options.batch_size = Some(64);
/// let step = Session::simulate(&model, &options, &Ranks::new(2).slow(1, 3.0))?;
/// assert!(step.ranks[0].waiting_seconds > 0.0 && step.ranks[1].own_seconds() > step.ranks[0].own_seconds());
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SimulatedRank {
    /// The duration of its step in seconds.
    pub seconds: f64,
    /// The part of `seconds` in which kernels run.
    pub busy_seconds: f64,
    /// The part of `seconds` in which no kernel runs and data is exchanged.
    pub exchange_seconds: f64,
    /// The part of `seconds` in which no kernel runs and exchanges wait for processes that have not begun them.
    pub waiting_seconds: f64,
    /// How many times as long as planned its kernels take.
    pub slowness: f64,
    /// Bytes that it sends to other processes.
    pub sent_bytes: u64,
    /// Device bytes that its plan takes.
    pub device_peak_bytes: u64,
    /// Host bytes that its plan takes.
    pub host_bytes: u64,
}

impl SimulatedRank {
    /// Returns the seconds of the step in which it neither waits for others nor only exchanges data.
    pub fn own_seconds(&self) -> f64 {
        self.seconds - self.exchange_seconds - self.waiting_seconds
    }
}

/// A step of all processes, simulated on one clock: an exchange makes progress once all processes have begun it.
///
/// ```
/// use forebay::{Model, Ranks, Trainer, TrainerOptions};
///
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let options = TrainerOptions::default();
/// let even = Trainer::simulate(&model, &options, &Ranks::new(2))?;
/// let uneven = Trainer::simulate(&model, &options, &Ranks::new(2).slow(1, 4.0))?;
/// assert!(uneven.seconds > even.seconds);
/// assert_eq!(uneven.slowest(), 1);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SimulatedStep {
    /// The duration of the step in seconds: that of the process that takes longest.
    pub seconds: f64,
    /// What each process does, by rank.
    pub ranks: Vec<SimulatedRank>,
    groups: Vec<Group>,
}

/// Processes that do the same at the same times.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    ranks: Vec<usize>,
    slowness: f64,
    plan: Plan,
    costs: Costs,
    times: Vec<(u64, u64)>,
}

impl SimulatedStep {
    /// Plans and simulates all processes, given a function that plans one.
    fn of(
        ranks: &Ranks,
        engine: &EngineOptions,
        plan: impl Fn(LimitedDevice) -> Result<Planned, Error>,
    ) -> Result<SimulatedStep, Error> {
        ranks.check()?;
        if engine.memory.mode != MemoryMode::Planned {
            let reason = "only planned memory can be simulated; managed memory decides on moves while steps run";
            return Err(Error::Option { reason: reason.to_string() });
        }
        let alike = Arc::new(AlikePlans::default());
        let (mut groups, mut sent_bytes): (Vec<Group>, Vec<u64>) = Default::default();
        for rank in 0..ranks.count {
            let mut engine = engine.clone();
            engine.device.processes = Some(ProcessGroup::for_plan_of(rank, ranks.count));
            let mut machine = LimitedDevice::open(&engine)?;
            machine.alike = Some(alike.clone());
            let Planned { plan, costs, sent_bytes: sent } = plan(machine)?;
            sent_bytes.push(sent);
            let slowness = ranks.slowness(rank);
            let is_own = |group: &&mut Group| group.slowness == slowness && group.costs == costs && group.plan == plan;
            match groups.iter_mut().find(is_own) {
                Some(group) => group.ranks.push(rank),
                None => groups.push(Group { ranks: vec![rank], slowness, plan, costs, times: Vec::new() }),
            }
        }
        let processes =
            groups.iter().map(|Group { plan, costs, slowness, .. }| Process { plan, costs, slowness: *slowness });
        let predictions = simulate_together(&processes.collect::<Vec<_>>())?;
        Ok(SimulatedStep::new(groups, predictions, &sent_bytes))
    }

    fn new(mut groups: Vec<Group>, predictions: Vec<Prediction>, sent_bytes: &[u64]) -> SimulatedStep {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut by_rank = BTreeMap::new();
        for (group, prediction) in groups.iter_mut().zip(predictions) {
            for &rank in &group.ranks {
                let simulated = SimulatedRank {
                    seconds: seconds(prediction.step_ns),
                    busy_seconds: seconds(prediction.busy_ns),
                    exchange_seconds: seconds(prediction.exchange_ns),
                    waiting_seconds: seconds(prediction.waiting_ns),
                    slowness: group.slowness,
                    sent_bytes: sent_bytes.get(rank).copied().unwrap_or(0),
                    device_peak_bytes: group.plan.statistics.device_peak_bytes,
                    host_bytes: group.plan.statistics.host_bytes,
                };
                by_rank.insert(rank, simulated);
            }
            group.times = prediction.times;
        }
        let ranks: Vec<SimulatedRank> = by_rank.into_values().collect();
        SimulatedStep { seconds: ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max), ranks, groups }
    }

    /// Returns the rank of the process that is at work longest; the first of several.
    pub fn slowest(&self) -> usize {
        let own = |rank: usize| self.ranks.get(rank).map_or(0.0, SimulatedRank::own_seconds);
        (0..self.ranks.len()).rev().max_by(|&one, &other| own(one).total_cmp(&own(other))).unwrap_or(0)
    }

    /// Returns the ranks of the processes that do the same at the same times, group by group.
    pub fn groups(&self) -> impl Iterator<Item = &[usize]> {
        self.groups.iter().map(|group| &group.ranks[..])
    }

    /// Returns when every command runs, in the format of Perfetto and chrome://tracing. Processes that do the same at the same times are
    /// shown as one.
    ///
    /// ```
    /// use forebay::{Model, Ranks, Trainer, TrainerOptions};
    ///
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let trace = Trainer::simulate(&model, &TrainerOptions::default(), &Ranks::new(2).slow(1, 2.0))?.trace();
    /// assert!(trace["traceEvents"].as_array().is_some_and(|events| !events.is_empty()));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn trace(&self) -> Value {
        let events = self.groups.iter().zip(1..).flat_map(|(group, number)| {
            let streams: Vec<StreamId> = (0..group.plan.streams.len() as u32).map(StreamId).collect();
            let mut trace = Trace::new(&group.plan);
            let records = group.plan.commands.iter().zip(&group.times).filter_map(record);
            trace.add(&streams, records.collect());
            let several = if group.ranks.len() > 1 { "processes" } else { "process" };
            trace.events(number, &format!("{several} {}", ranges(&group.ranks)))
        });
        document(events.collect())
    }
}

/// Returns numbers in ascending order as ranges: `0 to 3, 5`.
///
/// ```
/// assert_eq!(forebay::ranges(&[0, 1, 2, 5, 7, 8]), "0 to 2, 5, 7 to 8");
/// ```
pub fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, other| one + 1 == *other).filter_map(|run| Some((*run.first()?, *run.last()?)));
    let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first} to {last}") };
    runs.map(text).collect::<Vec<String>>().join(", ")
}

/// Returns the record of a command that takes time.
fn record((command, &(start_ns, end_ns)): (&Command, &(u64, u64))) -> Option<TraceRecord> {
    let (label, name, bytes) = match command {
        Command::Launch { launch, .. } => (Some(launch.label), launch.kernel.name(), 0),
        Command::Copy { from, .. } => (None, "copy", from.range.len()),
        _ => return None,
    };
    let [start, end] = [start_ns, end_ns].map(Duration::from_nanos);
    Some(TraceRecord { stream: command.stream()?, label, name, bytes, start, end, worker_time: Duration::ZERO })
}

/// The plan of one process.
struct Planned {
    plan: Plan,
    costs: Costs,
    sent_bytes: u64,
}

impl Planned {
    fn of(compiled: &Compiled) -> Planned {
        Planned {
            plan: compiled.plan_as_made().clone(),
            costs: compiled.costs_by_label(),
            sent_bytes: compiled.shared_work.as_ref().map_or(0, |work| work.sent_bytes),
        }
    }
}

impl Trainer {
    /// Plans a training step of each of several processes and simulates all of them together. `options` are those of every process; their
    /// own processes are ignored. Processes that differ only in where their share of a batch or of a tensor is are planned once.
    ///
    /// ```
    /// use forebay::{Model, Ranks, Trainer, TrainerOptions};
    ///
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let step = Trainer::simulate(&model, &TrainerOptions::default(), &Ranks::new(4))?;
    /// assert_eq!(step.ranks.len(), 4);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Trainer::new`] does, for managed memory, and if there are no such processes.
    pub fn simulate(model: &Model, options: &TrainerOptions, ranks: &Ranks) -> Result<SimulatedStep, Error> {
        SimulatedStep::of(ranks, &options.engine, |machine| {
            let trainer = Trainer::on(model.clone(), options.clone(), machine)?;
            Ok(Planned::of(&trainer.main().compiled))
        })
    }
}

impl Session {
    /// Like [`Trainer::simulate`], for a run of the model.
    ///
    /// ```
    /// use forebay::{Model, Ranks, Session, SessionOptions};
    ///
    /// let model = Model::from_file("../../examples/digits/model.onnx")?;
    /// let mut options = SessionOptions::default();
    /// options.batch_size = Some(64);
    /// assert_eq!(Session::simulate(&model, &options, &Ranks::new(2))?.ranks.len(), 2);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails as [`Session::new`] does, for managed memory, if there are no such processes, and if the model leaves sizes open.
    pub fn simulate(model: &Model, options: &SessionOptions, ranks: &Ranks) -> Result<SimulatedStep, Error> {
        SimulatedStep::of(ranks, &options.engine, |machine| {
            let session = Session::on(model, options, machine)?;
            let open = "the model has no plan before its inputs are known; set the sizes that it leaves open";
            let compiled = session.compiled().ok_or_else(|| Error::Option { reason: open.to_string() })?;
            Ok(Planned::of(compiled))
        })
    }
}
