//! A plan in words: what it takes, what moves and why, what it costs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use forebay_base::{ByteRange, Command, Launch, Space};
use forebay_memory::picture::{Bar, Picture};
use forebay_memory::size::format_bytes;
use forebay_model::program::Role;
use forebay_plan::Plan;
use forebay_plan::plan::{MemoryKind, Movement, ResidencyInterval};
use serde::Serialize;

use crate::layers::layers;

/// The number of rows in the table of what moves. More would not fit on a screen.
const ROWS_MAX: usize = 10;
/// The number of characters in the longest bar.
const BAR_WIDTH: u64 = 30;
/// The number of characters in the column of layer names.
const LAYER_WIDTH: usize = 32;

/// What a plan does, as numbers and reasons.
///
/// ```
/// use forebay::{Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let session = Session::builder(&model).device("null".parse()?).build()?;
/// let explanation = session.explain().expect("the sizes are known");
/// println!("{explanation}");
/// assert!(!explanation.placement.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The budget in bytes; `None` if unlimited.
    pub device_budget_bytes: Option<u64>,
    /// Device bytes that the plan takes.
    pub device_peak_bytes: u64,
    /// Device bytes that the unlimited plan takes.
    pub in_core_peak_bytes: u64,
    /// The smallest budget for which there is a plan, in bytes.
    pub minimum_budget_bytes: u64,
    /// The node that determines the smallest budget.
    pub minimum_launch: String,
    /// The budget for host memory in bytes, less what the device itself takes there; `None` if unlimited.
    pub host_budget_bytes: Option<u64>,
    /// Host bytes that the plan takes.
    pub host_bytes: u64,
    /// Bytes of spill files.
    pub spill_bytes: u64,
    /// Bytes of weights that stay in the model's files and are read from there.
    pub model_files_bytes: u64,
    /// Bytes copied to the device in a step.
    pub bytes_to_device: u64,
    /// Bytes copied from the device in a step.
    pub bytes_from_device: u64,
    /// Bytes copied from disk in a step: the part of `bytes_to_device` that comes from there, and what updates on the host need.
    pub bytes_from_disk: u64,
    /// The part of `bytes_from_disk` that comes from the model's files.
    pub bytes_from_model_files: u64,
    /// Bytes copied to disk in a step: the part of `bytes_from_device` that goes there, and what updates on the host have changed.
    pub bytes_to_disk: u64,
    /// The number of kernels launched in a step.
    pub launches: usize,
    /// The number of `launches` that run on the host because the device cannot run them.
    pub host_launches: usize,
    /// The part of `bytes_to_device` and `bytes_from_device` together that is copied for `host_launches`.
    pub host_launch_bytes: u64,
    /// The number of `launches` that update parameters and state on the host ([`Updates::Host`](crate::Updates::Host)).
    pub host_updates: usize,
    /// The operators of `host_launches`, with each node listed once.
    pub host_operators: Vec<HostOperatorExplanation>,
    /// Launches that run again in the same step to recompute contents that were dropped.
    pub repeats: usize,
    /// The estimated duration of `repeats`, in seconds.
    pub repeated_seconds: f64,
    /// Launches of the model that were cut into parts.
    pub launches_cut: usize,
    /// Barriers in a step.
    pub barriers: usize,
    /// The fewest barriers that any order of the launches needs.
    pub fewest_barriers: usize,
    /// Waits for events in a step.
    pub waits: usize,
    /// Predicted time of a step in seconds.
    pub predicted_seconds: f64,
    /// The time that no way of moving bytes within the budget can beat, in seconds, for these launches in this order, with these
    /// barriers.
    pub lower_bound_seconds: f64,
    /// Predicted time of a step without a budget, in seconds.
    pub in_core_predicted_seconds: f64,
    /// What takes up device memory at the peak.
    pub peak: PeakExplanation,
    /// What moves in a step, by layer of the model, most bytes first.
    pub traffic: Vec<LayerTraffic>,
    /// Every copy of a step, in order.
    pub movements: Vec<MovementExplanation>,
    /// What is where in device memory, and when.
    pub placement: Vec<PlacementExplanation>,
    /// Inputs and outputs that launches read and write in the caller's memory: they have no place in device memory and are not copied.
    pub lent: Vec<LentExplanation>,
}

/// What takes up device memory during the launch with the most of it in use.
///
/// ```
/// use forebay::{Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let explanation = Session::builder(&model).device("null".parse()?).build()?.explain().expect("the sizes are known");
/// let held: u64 = explanation.peak.held.iter().map(|held| held.bytes).sum();
/// assert!(held <= explanation.device_peak_bytes);
/// assert!(explanation.peak.held.iter().any(|held| held.kind == "activations"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeakExplanation {
    /// The node that the launch belongs to.
    pub launch: String,
    /// What takes up memory, by kind, most bytes first.
    pub held: Vec<HeldMemory>,
}

impl PeakExplanation {
    /// Extends this to a process whose memory includes the device's: idle device memory and the memory of the rest of the process become
    /// separate kinds.
    ///
    /// ```
    /// let model = forebay::Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let explanation = forebay::Session::builder(&model).build()?.explain().expect("the sizes are known");
    /// let peak = explanation.peak.clone().of_process(explanation.device_peak_bytes, explanation.device_peak_bytes + (20 << 20));
    /// let held: u64 = peak.held.iter().map(|held| held.bytes).sum();
    /// assert_eq!(held, explanation.device_peak_bytes + (20 << 20));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn of_process(mut self, device_bytes: u64, process_bytes: u64) -> PeakExplanation {
        let held_bytes: u64 = self.held.iter().map(|held| held.bytes).sum();
        let idle = HeldMemory { kind: "idle", bytes: device_bytes.saturating_sub(held_bytes) };
        let rest = HeldMemory { kind: "rest of process", bytes: process_bytes.saturating_sub(device_bytes) };
        self.held.extend([idle, rest].into_iter().filter(|held| held.bytes > 0));
        self.held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
        self
    }
}

/// Bytes of one kind in device memory.
///
/// ```
/// let model = forebay::Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let explanation = forebay::Session::builder(&model).device("null".parse()?).build()?.explain().expect("the sizes are known");
/// for held in &explanation.peak.held {
///     println!("{:>12} bytes of {}", held.bytes, held.kind);
/// }
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldMemory {
    /// `parameters`, `optimizer state`, `constants`, `inputs`, `activations`, `gradients` or `workspace`; for a process also `idle` and
    /// `rest of process`.
    pub kind: &'static str,
    /// The number of bytes.
    pub bytes: u64,
}

/// An operator that runs on the host because the device cannot run it.
///
/// ```
/// let model = forebay::Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let explanation = forebay::Session::builder(&model).build()?.explain().expect("the sizes are known");
/// assert!(explanation.host_operators.is_empty(), "the host device runs all itself");
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct HostOperatorExplanation {
    /// The node.
    pub name: String,
    /// The kernel that runs.
    pub kernel: &'static str,
    /// The data type that it computes in.
    pub data_type: &'static str,
}

/// What one layer of a model moves in a step.
///
/// ```
/// let model = forebay::Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let explanation = forebay::Session::builder(&model).device("null".parse()?).build()?.explain().expect("the sizes are known");
/// let to_device: u64 = explanation.traffic.iter().map(|layer| layer.bytes_to_device).sum();
/// assert_eq!(to_device, explanation.bytes_to_device);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LayerTraffic {
    /// The prefix of the names of what it moves.
    pub layer: String,
    /// The kinds of contents that it moves.
    pub kinds: BTreeSet<&'static str>,
    /// Bytes copied to the device.
    pub bytes_to_device: u64,
    /// Bytes copied from the device.
    pub bytes_from_device: u64,
    /// Copies in both directions.
    pub copies: usize,
}

/// A buffer, or a part of one, in device memory.
///
/// ```
/// use forebay::{Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let session = Session::builder(&model).device("null".parse()?).build()?;
/// for placed in session.explain().expect("the sizes are known").placement {
///     println!("{} at {}, {} bytes", placed.name, placed.offset_bytes, placed.bytes);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlacementExplanation {
    /// The buffer.
    pub name: String,
    /// What its contents are, as in [`HeldMemory::kind`].
    pub kind: &'static str,
    /// Its first byte in device memory.
    pub offset_bytes: u64,
    /// The number of bytes that it takes.
    pub bytes: u64,
    /// The first launch during which these bytes are taken, counted from 0 in the plan's order.
    pub first_launch: usize,
    /// The last such launch.
    pub last_launch: usize,
}

/// An input or an output that stays in the caller's memory.
///
/// ```
/// let model = forebay::Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let explanation = forebay::Session::builder(&model).build()?.explain().expect("the sizes are known");
/// let lent: Vec<&str> = explanation.lent.iter().map(|lent| lent.name.as_str()).collect();
/// assert_eq!(lent, ["x", "logits"], "the host device works on the memory of the process");
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LentExplanation {
    /// The input or output.
    pub name: String,
    /// `inputs` or `outputs`.
    pub kind: &'static str,
    /// Its size in bytes.
    pub bytes: u64,
}

/// One copy of a step.
///
/// ```
/// use forebay::{Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let session = Session::builder(&model).device("null".parse()?).build()?;
/// let moved: Vec<String> = session.explain().expect("the sizes are known").movements.into_iter().map(|movement| movement.name).collect();
/// assert_eq!(moved, ["x", "logits"], "without a budget only inputs and outputs move");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MovementExplanation {
    /// Index of the command in the plan.
    pub command: usize,
    /// The buffer.
    pub name: String,
    /// What its contents are, as in [`HeldMemory::kind`].
    pub kind: &'static str,
    /// Bytes moved.
    pub bytes: u64,
    /// `to device` (from the host), `from device` (to the host), `from disk`, `to disk` or `within`.
    pub direction: &'static str,
    /// The reason for the copy.
    pub reason: String,
}

/// Explains a plan.
pub fn explain(plan: &Plan) -> Explanation {
    let statistics = &plan.statistics;
    let movements: Vec<MovementExplanation> =
        plan.movements.iter().filter_map(|movement| explain_movement(plan, movement)).collect();
    Explanation {
        device_budget_bytes: statistics.device_budget_bytes,
        device_peak_bytes: statistics.device_peak_bytes,
        in_core_peak_bytes: statistics.in_core_peak_bytes,
        minimum_budget_bytes: statistics.minimum_budget_bytes,
        minimum_launch: statistics.minimum_launch.clone(),
        host_budget_bytes: statistics.host_budget_bytes,
        host_bytes: statistics.host_bytes,
        spill_bytes: statistics.spill_bytes,
        model_files_bytes: statistics.model_files_bytes,
        bytes_to_device: statistics.bytes_to_device,
        bytes_from_device: statistics.bytes_from_device,
        bytes_from_disk: statistics.bytes_from_disk,
        bytes_from_model_files: statistics.bytes_from_model_files,
        bytes_to_disk: statistics.bytes_to_disk,
        launches: statistics.launches,
        host_launches: statistics.host_launches,
        host_launch_bytes: statistics.host_launch_bytes,
        host_updates: statistics.host_updates,
        host_operators: host_operators(plan),
        repeats: statistics.recomputations,
        repeated_seconds: statistics.recomputed_ns as f64 / 1e9,
        launches_cut: statistics.launches_cut,
        barriers: statistics.barriers,
        fewest_barriers: statistics.fewest_barriers,
        waits: statistics.waits,
        predicted_seconds: statistics.predicted_ns as f64 / 1e9,
        lower_bound_seconds: statistics.lower_bound_ns as f64 / 1e9,
        in_core_predicted_seconds: statistics.in_core_predicted_ns as f64 / 1e9,
        peak: explain_peak(plan),
        traffic: traffic(&movements),
        movements,
        placement: plan.intervals.iter().map(explain_interval).collect(),
        lent: explain_loans(plan),
    }
}

/// Lists the inputs and outputs that the caller lends.
fn explain_loans(plan: &Plan) -> Vec<LentExplanation> {
    let inputs = plan.inputs.iter().map(|location| ("inputs", location));
    let outputs = plan.outputs.iter().map(|location| ("outputs", location));
    let lent = inputs.chain(outputs).filter_map(|(kind, location)| {
        let (_, region) = location.pieces.first()?;
        let memory = plan.memory(region.memory);
        (memory.kind == MemoryKind::Lent).then(|| LentExplanation {
            name: location.name.clone(),
            kind,
            bytes: memory.size_bytes,
        })
    });
    lent.collect()
}

/// Explains what takes up memory during the launch with the most of it in use, or the first such launch.
fn explain_peak(plan: &Plan) -> PeakExplanation {
    let launches = plan.commands.iter().filter_map(|command| match command {
        Command::Launch { launch, .. } => Some(launch.label),
        _ => None,
    });
    let mut changes: BTreeMap<usize, i64> = BTreeMap::new();
    for interval in &plan.intervals {
        let bytes = interval.part.len() as i64;
        *changes.entry(interval.first_launch).or_default() += bytes;
        *changes.entry(interval.last_launch + 1).or_default() -= bytes;
    }
    let (mut taken, mut most) = (0, (i64::MIN, 0));
    for (&launch, &change) in &changes {
        taken += change;
        if taken > most.0 {
            most = (taken, launch);
        }
    }
    let mut held: BTreeMap<&'static str, u64> = BTreeMap::new();
    for interval in &plan.intervals {
        if (interval.first_launch..=interval.last_launch).contains(&most.1) {
            *held.entry(kind(interval)).or_default() += interval.part.len();
        }
    }
    let mut held: Vec<HeldMemory> = held.into_iter().map(|(kind, bytes)| HeldMemory { kind, bytes }).collect();
    held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
    let label = launches.clone().nth(most.1).and_then(|label| plan.labels.get(label as usize));
    PeakExplanation { launch: label.cloned().unwrap_or_default(), held }
}

/// Returns the operators that run on the host, in launch order. The parts of a launch count as one.
fn host_operators(plan: &Plan) -> Vec<HostOperatorExplanation> {
    let (mut seen, mut operators) = (BTreeSet::new(), Vec::new());
    let updates: BTreeSet<u32> = plan.host_updates().collect();
    let between_copies = |launch: &&Launch| plan.runs_on_host(launch) && !updates.contains(&launch.label);
    for launch in plan.launches().filter(between_copies) {
        if seen.insert(plan.share(launch.label).launch) {
            let data_type = launch.writes.first().or(launch.reads.first());
            operators.push(HostOperatorExplanation {
                name: plan.labels.get(launch.label as usize).cloned().unwrap_or_default(),
                kernel: launch.kernel.name(),
                data_type: data_type.map_or("", |binding| binding.desc.data_type().name()),
            });
        }
    }
    operators
}

fn kind(interval: &ResidencyInterval) -> &'static str {
    interval.role.map_or("workspace", Role::name)
}

/// Returns what moves, by layer, with as many layers as fit on a screen.
fn traffic(movements: &[MovementExplanation]) -> Vec<LayerTraffic> {
    let mut weights: BTreeMap<&str, u64> = BTreeMap::new();
    for movement in movements {
        *weights.entry(&movement.name).or_default() += movement.bytes;
    }
    let layers = layers(&weights, ROWS_MAX);
    let mut traffic: BTreeMap<&str, LayerTraffic> = BTreeMap::new();
    for movement in movements {
        let layer = layers[movement.name.as_str()];
        let row = traffic.entry(layer).or_insert_with(|| LayerTraffic {
            layer: layer.to_string(),
            kinds: BTreeSet::new(),
            bytes_to_device: 0,
            bytes_from_device: 0,
            copies: 0,
        });
        row.kinds.insert(movement.kind);
        row.copies += 1;
        match movement.direction {
            "to device" | "from disk" => row.bytes_to_device += movement.bytes,
            _ => row.bytes_from_device += movement.bytes,
        }
    }
    let mut traffic: Vec<LayerTraffic> = traffic.into_values().collect();
    traffic.sort_by_key(|row| std::cmp::Reverse(row.bytes_to_device + row.bytes_from_device));
    traffic
}

fn explain_interval(interval: &ResidencyInterval) -> PlacementExplanation {
    PlacementExplanation {
        name: interval.name.clone(),
        kind: kind(interval),
        offset_bytes: interval.offset_bytes,
        bytes: interval.part.len(),
        first_launch: interval.first_launch,
        last_launch: interval.last_launch,
    }
}

/// Returns a picture of a plan's device memory over the launches of a step.
pub fn memory_picture(plan: &Plan, title: &str) -> Picture {
    let bar = |interval: &ResidencyInterval| Bar {
        owner: interval.name.clone(),
        time: interval.first_launch as u64..interval.last_launch as u64 + 1,
        bytes: ByteRange::new(interval.offset_bytes, interval.offset_bytes + interval.part.len()),
    };
    Picture {
        title: title.to_string(),
        time_name: "launch".to_string(),
        time: 0..plan.statistics.launches as u64,
        size_bytes: plan.statistics.device_peak_bytes,
        backgrounds: Vec::new(),
        bars: plan.intervals.iter().map(bar).collect(),
    }
}

fn explain_movement(plan: &Plan, movement: &Movement) -> Option<MovementExplanation> {
    let Some(Command::Copy { from, to, .. }) = plan.commands.get(movement.command) else {
        return None;
    };
    let direction = match (plan.memory(from.memory).space, plan.memory(to.memory).space) {
        (Space::Disk, _) => "from disk",
        (_, Space::Disk) => "to disk",
        (Space::Host, Space::Device(_)) => "to device",
        (Space::Device(_), Space::Host) => "from device",
        _ => "within",
    };
    Some(MovementExplanation {
        command: movement.command,
        name: movement.name.clone(),
        kind: movement.role.name(),
        bytes: from.range.len(),
        direction,
        reason: movement.reason.clone(),
    })
}

/// Returns every command of a step, one per line, with the names of nodes for launches. Commands that run once come first.
pub fn command_lines(plan: &Plan) -> Vec<String> {
    plan.prologue
        .iter()
        .chain(&plan.warm_up)
        .chain(&plan.commands)
        .map(|command| match command {
            Command::Launch { launch, .. } => {
                let name = plan.labels.get(launch.label as usize).map_or("", String::as_str);
                format!("{command}  ({name})")
            }
            _ => command.to_string(),
        })
        .collect()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budget = self.device_budget_bytes.map_or("unlimited".to_string(), format_bytes);
        writeln!(f, "device budget     {budget}")?;
        writeln!(f, "device peak       {}", format_bytes(self.device_peak_bytes))?;
        writeln!(f, "without a budget  {}", format_bytes(self.in_core_peak_bytes))?;
        let minimum = format_bytes(self.minimum_budget_bytes);
        writeln!(f, "smallest budget   {minimum} (set by '{}')", self.minimum_launch)?;
        writeln!(f, "host memory       {}", format_bytes(self.host_bytes))?;
        if self.spill_bytes > 0 {
            writeln!(f, "spilled to disk   {}", format_bytes(self.spill_bytes))?;
        }
        if self.model_files_bytes > 0 {
            writeln!(f, "in model's files  {}", format_bytes(self.model_files_bytes))?;
        }
        writeln!(
            f,
            "moved per step    {} to the device, {} from it",
            format_bytes(self.bytes_to_device),
            format_bytes(self.bytes_from_device)
        )?;
        if self.spill_bytes > 0 {
            writeln!(
                f,
                "of that, via disk {} from disk, {} to disk",
                format_bytes(self.bytes_from_disk),
                format_bytes(self.bytes_to_disk)
            )?;
        }
        if self.model_files_bytes > 0 {
            writeln!(f, "of that, read     {} from the model's files", format_bytes(self.bytes_from_model_files))?;
        }
        let repeats = if self.repeats > 0 {
            format!(" ({} recomputed, in {:.4} s)", self.repeats, self.repeated_seconds)
        } else {
            String::new()
        };
        writeln!(
            f,
            "per step          {} launches{repeats}, {} barriers and {} waits ({} together)",
            self.launches,
            self.barriers,
            self.waits,
            self.barriers + self.waits
        )?;
        if self.host_launches > 0 {
            let [moved, count] = [format_bytes(self.host_launch_bytes), self.host_launches.to_string()];
            writeln!(f, "on the host       {count} launches that the device cannot run; {moved} copied for them")?;
            for HostOperatorExplanation { name, kernel, data_type } in self.host_operators.iter().take(ROWS_MAX) {
                writeln!(f, "                  '{name}' ({kernel} of {data_type})")?;
            }
            if self.host_operators.len() > ROWS_MAX {
                writeln!(f, "                  and {} others", self.host_operators.len() - ROWS_MAX)?;
            }
        }
        if self.host_updates > 0 {
            writeln!(f, "updates           {} launches on the host, next to the optimizer's state", self.host_updates)?;
        }
        if self.launches_cut > 0 {
            writeln!(
                f,
                "cut into parts    {} of the model's launches, which touch too much at once",
                self.launches_cut
            )?;
        }
        writeln!(f, "fewest barriers   {} in any order, with memory for everything", self.fewest_barriers)?;
        writeln!(
            f,
            "predicted time    {:.4} s per step, {:.4} s without a budget, lower bound {:.4} s",
            self.predicted_seconds, self.in_core_predicted_seconds, self.lower_bound_seconds
        )?;
        self.peak.fmt(f)?;
        write_traffic(&self.traffic, f)
    }
}

impl fmt::Display for PeakExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.held.is_empty() {
            return Ok(());
        }
        writeln!(f, "memory at the peak, while '{}' runs:", self.launch)?;
        let most = self.held.iter().map(|held| held.bytes).max().unwrap_or(1).max(1);
        for HeldMemory { kind, bytes } in &self.held {
            let bar = "#".repeat((bytes * BAR_WIDTH).div_ceil(most) as usize);
            writeln!(f, "  {kind:<15}  {:>12}  {bar}", format_bytes(*bytes))?;
        }
        Ok(())
    }
}

/// Writes what moves as a table.
fn write_traffic(traffic: &[LayerTraffic], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if traffic.is_empty() {
        return Ok(());
    }
    writeln!(f, "moved per step, by layer:")?;
    let row = |f: &mut fmt::Formatter<'_>, layer: &str, rows: &[LayerTraffic]| {
        let sum = |of: fn(&LayerTraffic) -> u64| format_bytes(rows.iter().map(of).sum());
        let (to, from) = (sum(|row| row.bytes_to_device), sum(|row| row.bytes_from_device));
        let copies: usize = rows.iter().map(|row| row.copies).sum();
        let kinds: BTreeSet<&str> = rows.iter().flat_map(|row| &row.kinds).copied().collect();
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(f, "  {layer:<LAYER_WIDTH$}  {to:>12}  {from:>12}  {copies:>6}  {kinds}")
    };
    writeln!(f, "  {:<LAYER_WIDTH$}  {:>12}  {:>12}  {:>6}", "", "to device", "from device", "copies")?;
    let (shown, others) = traffic.split_at(traffic.len().min(ROWS_MAX));
    for one in shown {
        row(f, &shortened(one.layer.trim_start_matches('/')), std::slice::from_ref(one))?;
    }
    if !others.is_empty() {
        row(f, &format!("{} others", others.len()), others)?;
    }
    Ok(())
}

/// Shortens a name to fit its column. A long name keeps its end, which tells it from others.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= LAYER_WIDTH {
        return name.to_string();
    }
    let end: String = name.chars().skip(count - LAYER_WIDTH + 3).collect();
    format!("...{end}")
}

impl Explanation {
    /// Returns every copy of a step with its reason, one per line.
    pub fn movement_lines(&self) -> Vec<String> {
        let line = |movement: &MovementExplanation| {
            let MovementExplanation { direction, bytes, name, reason, .. } = movement;
            format!("{direction:>11}  {:>12}  {name}: {reason}", format_bytes(*bytes))
        };
        self.movements.iter().map(line).collect()
    }
}
