//! What a step costs against the size of the model next to that of the device, for each way to decide what is on the device:
//! figure 4 of Negishi and others, "Consideration on Application of CUDA Unified Memory to Deep Learning" (2018).
//!
//! ```text
//! cargo bench -p forebay --bench memory_modes -- [MODEL.onnx] [--rounds N] [--threads N] [--sizes 1,2] [--output FILE.json]
//! ```
//!
//! A training step (softmax cross-entropy, momentum) on inputs made here; the model is the U-Net of `examples/brain` if none is
//! named. At each size, steps of all modes take turns with steps in plain memory without a budget, so that what else the
//! machine does meets all of them. A row has medians of the rounds. `cargo xtask results` draws the
//! picture from the record: times against plain memory.

#[path = "../common/mod.rs"]
mod common;

use std::path::PathBuf;

use common::{Failure, batch, brain, training};
use forebay::{MemoryMode, MemorySize, Model, StepReport, Trainer, TrainerOptions};
use forebay_bench_record::{Cell, Column, Record, Table};

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
}

/// What one mode took at one size.
struct Point {
    /// Seconds of the steps: the median, the least and the most.
    seconds: Cell,
    /// Of each round, the time against that of plain memory in the same round: the same.
    ratio: Cell,
    /// The step whose time is the median.
    report: StepReport,
}

fn main() -> Result<(), Failure> {
    let given = forebay_bench_record::arguments()?;
    let arguments = arguments(&given.words)?;
    let model = Model::from_file(&arguments.model)?;
    let peak_bytes = trainer(&model, &arguments, MemoryMode::Planned, None)?.statistics().in_core_peak_bytes;
    let least_bytes = [MemoryMode::Planned, MemoryMode::Automatic]
        .map(|mode| trainer(&model, &arguments, mode, None).map(|trainer| trainer.statistics().minimum_budget_bytes));
    let least_bytes = least_bytes.into_iter().collect::<Result<Vec<u64>, _>>()?.into_iter().max().unwrap_or(1);
    let largest = peak_bytes as f64 / least_bytes as f64;
    let name = arguments.model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let subject = format!("{name}, {peak_bytes} bytes without a budget, least budget {least_bytes}");
    println!("{subject}");
    let seconds = |name: &str| Column::number(name, "s", 3);
    let columns = [
        Column::ratio("model/device", 2),
        Column::text("mode"),
        seconds("step").of("median"),
        Column::ratio("against plain", 2).of("median"),
        Column::count("faults"),
        Column::number("to device", "MB", 0),
        Column::number("from device", "MB", 0),
        seconds("no kernel"),
    ];
    let mut table = Table::new("steps", columns);
    for size in arguments.sizes.iter().copied().filter(|&size| size < largest).chain([largest]) {
        let budget_bytes = ((peak_bytes as f64 / size) as u64).max(least_bytes);
        for (name, point) in measure(&model, &arguments, size, budget_bytes)? {
            table.print(row(size, name, point));
        }
    }
    let what = "Who decides what is on the device";
    let record = Record::new("memory-modes", what, "cargo bench -p forebay --bench memory_modes --", &given.words);
    record
        .under(format!("{subject}; {} rounds of all modes in turn", arguments.rounds))
        .with(table)
        .save(given.output.as_deref())?;
    Ok(())
}

fn arguments(words: &[String]) -> Result<Arguments, Failure> {
    let mut arguments = Arguments { model: brain(), rounds: 5, sizes: SIZES.to_vec(), threads: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--rounds" => arguments.rounds = value()?.parse()?,
            "--sizes" => arguments.sizes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--threads" => arguments.threads = Some(value()?.parse()?),
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
    let mut options = TrainerOptions::new(training(None));
    options.engine.device.threads = arguments.threads;
    (options.engine.memory.mode, options.engine.memory.simulate_device) = (memory, device_memory);
    Ok(Trainer::new(model.clone(), options)?)
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
        let ratios: Vec<f64> =
            reports.iter().zip(&plain_seconds).map(|(report, plain)| report.seconds / plain).collect();
        let seconds = Cell::median(reports.iter().map(|report| report.seconds));
        reports.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let report = reports[reports.len() / 2];
        Point { seconds, ratio: Cell::median(ratios), report }
    };
    let names = trainers.iter().map(|(name, _)| *name);
    // Beyond size 1 plain memory is only what the others are compared with.
    Ok(names.zip(reports.into_iter().map(point)).filter(|(name, _)| size <= 1.0 || *name != "plain").collect())
}

/// A row of the table; what moved, and the time without a kernel, are those of the step with the median time.
fn row(size: f64, name: &str, point: Point) -> Vec<Cell> {
    let moves = point.report.moves;
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    vec![
        size.into(),
        name.into(),
        point.seconds,
        point.ratio,
        moves.map(|moves| moves.faults).into(),
        moves.map(|moves| megabytes(moves.bytes_to_device)).into(),
        moves.map(|moves| megabytes(moves.bytes_from_device)).into(),
        point.report.stall_seconds.into(),
    ]
}
