//! What a step costs against the size of the model beside that of the device, for each way to decide what is on the device:
//! figure 4 of Negishi and others, "Consideration on Application of CUDA Unified Memory to Deep Learning" (2018).
//!
//! ```text
//! cargo bench -p forebay --bench memory_modes -- [MODEL.onnx] [--rounds N] [--threads N] [--sizes 1,2] [--svg FILE.svg]
//! ```
//!
//! A training step (softmax cross-entropy, momentum) on inputs made here; the model is the U-Net of `examples/brain` if none is
//! named. At each size, steps of all modes take turns with steps in plain memory without a budget, so that what else the
//! machine does meets all of them. A row has medians of the rounds; the picture shows times against plain memory.

mod picture;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{
    DataType, DeviceOptions, HostTensor, MemoryMode, MemorySize, Model, Port, StepReport, Trainer, TrainerOptions,
};

type Failure = Box<dyn std::error::Error>;

/// Sizes of the model beside the device's; the last is added where the largest launch just fits.
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

/// What one mode took at one size.
pub struct Point {
    /// Size of the model beside the device's.
    pub size: f64,
    /// Seconds of a step, the median.
    pub seconds: f64,
    /// Of each round, the time against that of plain memory in the same round; the median.
    pub ratio: f64,
    /// The step whose time is the median.
    pub report: StepReport,
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
        std::fs::write(path, picture::svg(&title, &lines))?;
    }
    Ok(())
}

fn arguments() -> Result<Arguments, Failure> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/brain/unet3d.onnx");
    let mut arguments = Arguments { model: own, rounds: 5, sizes: SIZES.to_vec(), threads: None, svg: None };
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
    let training = TrainingOptions {
        loss: Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: None },
        loss_output: None,
        optimizer: Optimizer::Sgd { learning_rate: 0.01, momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        decay: None,
        freeze: Vec::new(),
        seed: 0,
        gradient_outputs: false,
    };
    let device_memory = budget_bytes.map(MemorySize::Bytes);
    let device = DeviceOptions { threads: arguments.threads, memory, device_memory, ..DeviceOptions::default() };
    Ok(Trainer::new(model.clone(), TrainerOptions { device, ..TrainerOptions::new(training) })?)
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
    let inputs: BTreeMap<String, HostTensor> =
        trainers[0].1.inputs().iter().map(|port| (port.name.clone(), noise(port))).collect();
    let labels = labels(trainers[0].1.labels());
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2] + values[(values.len() - 1) / 2]) / 2.0
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

/// Numbers that look random, the same in every run.
fn noise(port: &Port) -> HostTensor {
    let count = port.shape.iter().product::<u64>();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let values: Vec<f32> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    match port.data_type {
        DataType::Int64 => HostTensor::from_i64(&port.shape, &vec![0; count as usize]),
        _ => HostTensor::from_f32(&port.shape, &values),
    }
}

/// Two classes in turn, in pieces as objects have them.
fn labels(port: &Port) -> HostTensor {
    let count = port.shape.iter().product::<u64>();
    let values: Vec<i64> = (0..count).map(|i| i64::from(i / 16 % 2 == 0)).collect();
    HostTensor::from_i64(&port.shape, &values)
}
