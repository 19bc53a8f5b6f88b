//! What a step costs against the size of the model next to that of the device, for each way to decide what is on the device:
//! figure 4 of Negishi and others, "Consideration on Application of CUDA Unified Memory to Deep Learning" (2018).
//!
//! ```text
//! cargo bench -p forebay --bench memory_modes -- [MODEL.onnx] [--rounds N] [--threads N] [--sizes 1,2] [--svg FILE.svg]
//! ```
//!
//! A training step (softmax cross-entropy, momentum) on inputs made here; the model is the U-Net of `examples/brain` if none is
//! named. At each size, steps of all modes take turns with steps in plain memory without a budget, so that what else the
//! machine does meets all of them. A row has medians of the rounds; the picture shows times against plain memory.

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::chart::{Chart, Line};
use common::{batch, brain, median, training, Failure};
use forebay::{DeviceOptions, MemoryMode, MemorySize, Model, StepReport, Trainer, TrainerOptions};

/// Sizes of the model next to the device's; the last is added where the largest launch just fits.
const SIZES: [f64; 12] = [0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5];
/// Who decides; plain memory has no budget, so that it stands for itself up to size 1 only.
const MODES: [(&str, MemoryMode); 4] = [
    ("planned", MemoryMode::Planned),
    ("direct", MemoryMode::Direct),
    ("cooperative", MemoryMode::Cooperative),
    ("automatic", MemoryMode::Automatic),
];

struct Arguments {
    model: PathBuf,
    rounds: usize,
    sizes: Vec<f64>,
    threads: Option<usize>,
    svg: Option<PathBuf>,
}

/// Modes with their colours, in the order of the legend.
const COLORS: [(&str, &str); 5] = [
    ("plain", "#333333"),
    ("planned", "#3a7d44"),
    ("direct", "#4878a8"),
    ("cooperative", "#c58a1a"),
    ("automatic", "#d1603d"),
];

/// What one mode took at one size.
struct Point {
    /// Size of the model next to the device's.
    size: f64,
    /// Seconds of a step, the median.
    seconds: f64,
    /// Of each round, the time against that of plain memory in the same round; the median.
    ratio: f64,
    /// The step whose time is the median.
    report: StepReport,
}

fn main() -> Result<(), Failure> {
    let arguments = arguments()?;
    let model = Model::from_file(&arguments.model)?;
    let peak_bytes = trainer(&model, &arguments, MemoryMode::Planned, None)?.statistics().in_core_peak_bytes;
    let least_bytes = [MemoryMode::Planned, MemoryMode::Automatic]
        .map(|mode| trainer(&model, &arguments, mode, None).map(|trainer| trainer.statistics().minimum_budget_bytes));
    let least_bytes = least_bytes.into_iter().collect::<Result<Vec<u64>, _>>()?.into_iter().max().unwrap_or(1);
    let largest = peak_bytes as f64 / least_bytes as f64;
    println!("{}, {peak_bytes} bytes without a budget, least budget {least_bytes}", arguments.model.display());
    println!(
        "| model/device | mode | s/step | against plain | faults | to device, MB | from device, MB | no kernel, s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut lines: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
    for size in arguments.sizes.iter().copied().filter(|&size| size < largest).chain([largest]) {
        let budget_bytes = ((peak_bytes as f64 / size) as u64).max(least_bytes);
        for (name, point) in measure(&model, &arguments, size, budget_bytes)? {
            row(name, &point);
            lines.entry(name).or_default().push(point);
        }
    }
    if let Some(path) = &arguments.svg {
        let title = arguments.model.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        std::fs::write(path, chart(&title, &lines))?;
    }
    Ok(())
}

fn arguments() -> Result<Arguments, Failure> {
    let mut arguments = Arguments { model: brain(), rounds: 5, sizes: SIZES.to_vec(), threads: None, svg: None };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--rounds" => arguments.rounds = value()?.parse()?,
            "--sizes" => arguments.sizes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--threads" => arguments.threads = Some(value()?.parse()?),
            "--svg" => arguments.svg = Some(value()?.into()),
            _ => arguments.model = word.into(),
        }
    }
    Ok(arguments)
}

fn trainer(
    model: &Model,
    arguments: &Arguments,
    memory: MemoryMode,
    budget_bytes: Option<u64>,
) -> Result<Trainer, Failure> {
    let device_memory = budget_bytes.map(MemorySize::Bytes);
    let device = DeviceOptions { threads: arguments.threads, memory, device_memory, ..DeviceOptions::default() };
    Ok(Trainer::new(model.clone(), TrainerOptions { device, ..TrainerOptions::new(training(None)) })?)
}

/// Steps of plain memory and of every mode in turn; the losses must agree.
fn measure(
    model: &Model,
    arguments: &Arguments,
    size: f64,
    budget_bytes: u64,
) -> Result<Vec<(&'static str, Point)>, Failure> {
    let mut trainers = vec![("plain", trainer(model, arguments, MemoryMode::Planned, None)?)];
    for (name, mode) in MODES {
        trainers.push((name, trainer(model, arguments, mode, Some(budget_bytes))?));
    }
    let (inputs, labels) = batch(&trainers[0].1);
    let mut reports: Vec<Vec<StepReport>> = vec![Vec::new(); trainers.len()];
    // The first step of each takes memory for the first time.
    for round in 0..=arguments.rounds {
        for ((name, trainer), reports) in trainers.iter_mut().zip(&mut reports) {
            let report = trainer.step(inputs.clone(), labels.clone())?;
            let used_bytes = trainer.usage().heap_peak_bytes;
            if *name != "plain" && used_bytes > budget_bytes {
                return Err(format!("{name} took {used_bytes} of {budget_bytes} bytes").into());
            }
            reports.extend((round > 0).then_some(report));
        }
    }
    if reports
        .iter()
        .any(|other| other.iter().map(|r| r.loss.to_bits()).ne(reports[0].iter().map(|r| r.loss.to_bits())))
    {
        return Err("the modes disagree about the losses".into());
    }
    let plain_seconds: Vec<f64> = reports[0].iter().map(|report| report.seconds).collect();
    let point = |mut reports: Vec<StepReport>| {
        let ratios = reports.iter().zip(&plain_seconds).map(|(report, plain)| report.seconds / plain).collect();
        reports.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let report = reports[reports.len() / 2];
        Point { size, seconds: report.seconds, ratio: median(ratios), report }
    };
    let names = trainers.iter().map(|(name, _)| *name);
    // Beyond size 1 plain memory is only what the others are compared with.
    Ok(names.zip(reports.into_iter().map(point)).filter(|(name, _)| size <= 1.0 || *name != "plain").collect())
}

fn row(name: &str, point: &Point) {
    let moves = point.report.moves;
    let megabytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
    let [faults, to, from] = match moves {
        Some(moves) => [moves.faults.to_string(), megabytes(moves.bytes_to_device), megabytes(moves.bytes_from_device)],
        None => ["", "", ""].map(str::to_string),
    };
    println!(
        "| {:.2} | {name} | {:.3} | {:.2} | {faults} | {to} | {from} | {:.3} |",
        point.size, point.seconds, point.ratio, point.report.stall_seconds
    );
}

/// The picture: time of a step against plain memory without a budget.
fn chart(model: &str, lines: &BTreeMap<&str, Vec<Point>>) -> String {
    let size_max = lines.values().flatten().map(|point| point.size).fold(1.0, f64::max);
    let line = |(name, color)| {
        let points = lines.get(name)?.iter().map(|point| (point.size, point.ratio)).collect();
        Some(Line { name, color, dashed: false, points })
    };
    Chart {
        title: &format!("Time of a training step against plain memory without a limit; {model}"),
        axis: "memory of the model without a limit / memory of the device",
        span: [0.5, size_max],
        marks: (1..=(size_max * 2.0) as u32).map(|mark| f64::from(mark) / 2.0).collect(),
        line: Some(1.0),
        lines: COLORS.into_iter().filter_map(line).collect(),
    }
    .svg()
}
