//! What a budget costs: time of a training step out of core over that in core, from the whole memory down to the least budget,
//! with what the planner predicted and the time that no plan of this order can beat.
//!
//! ```text
//! cargo bench -p forebay --bench curve -- [MODEL.onnx] [--rounds N] [--threads N] [--budgets 90,50,25] [--output FILE.json]
//! ```
//!
//! A training step (softmax cross-entropy, momentum) on inputs made here; the model is the U-Net of `examples/brain` if none is
//! named. At each budget, steps within it take turns with steps without one, in the same process, so that what else the machine
//! does meets both; a row has medians of the rounds. Predicted time and bound are over the predicted time in core, all three with
//! the durations that the first steps measured. `cargo xtask results` draws the picture from the record.

#[path = "../common/mod.rs"]
mod common;

use std::path::PathBuf;

use common::{Failure, batch, brain, training};
use forebay::{MemorySize, Model, Trainer, TrainerOptions};
use forebay_bench_record::{Cell, Column, Record, Table};

/// Budgets in percent of what the model takes without one; the least budget that has a plan is added.
const BUDGETS: [f64; 12] = [100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 35.0, 30.0, 25.0, 20.0, 15.0];
/// Steps of each kind before those that count: the first is measured, the second has the plan that follows from it.
const WARM_UP: usize = 2;

struct Arguments {
    model: PathBuf,
    rounds: usize,
    budgets: Vec<f64>,
    threads: Option<usize>,
}

fn main() -> Result<(), Failure> {
    let given = forebay_bench_record::arguments()?;
    let arguments = arguments(&given.words)?;
    let model = Model::from_file(&arguments.model)?;
    let statistics = trainer(&model, &arguments, None)?.statistics().clone();
    let (peak_bytes, least_bytes) = (statistics.in_core_peak_bytes, statistics.minimum_budget_bytes);
    let name = arguments.model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let subject = format!("{name}, {peak_bytes} bytes without a budget, least budget {least_bytes}");
    println!("{subject}");
    let seconds = |name: &str| Column::number(name, "s", 4).of("median");
    let ratio = |name: &str| Column::ratio(name, 3);
    let columns = [
        Column::number("budget", "%", 1),
        seconds("in core"),
        seconds("out of core"),
        ratio("measured").of("median"),
        ratio("predicted"),
        ratio("bound"),
        ratio("measured / bound"),
    ];
    let mut table = Table::new("curve", columns);
    let least = 100.0 * least_bytes as f64 / peak_bytes as f64;
    for percent in arguments.budgets.iter().copied().filter(|&percent| percent > least).chain([least]) {
        let budget_bytes = ((peak_bytes as f64 * percent / 100.0) as u64).max(least_bytes);
        table.print(measure(&model, &arguments, percent, budget_bytes)?);
    }
    let record =
        Record::new("curve", "A step over the budget", "cargo bench -p forebay --bench curve --", &given.words);
    let record = record.under(format!("{subject}; {} rounds, in core and out of core in turn", arguments.rounds));
    record.with(table).save(given.output.as_deref())?;
    Ok(())
}

fn arguments(words: &[String]) -> Result<Arguments, Failure> {
    let mut arguments = Arguments { model: brain(), rounds: 7, budgets: BUDGETS.to_vec(), threads: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--rounds" => arguments.rounds = value()?.parse()?,
            "--budgets" => arguments.budgets = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--threads" => arguments.threads = Some(value()?.parse()?),
            _ => arguments.model = word.into(),
        }
    }
    Ok(arguments)
}

fn trainer(model: &Model, arguments: &Arguments, budget_bytes: Option<u64>) -> Result<Trainer, Failure> {
    let device_memory = budget_bytes.map(MemorySize::Bytes);
    let mut options = TrainerOptions::new(training(None));
    options.engine.device.threads = arguments.threads;
    options.engine.memory.simulate_device = device_memory;
    Ok(Trainer::new(model.clone(), options)?)
}

/// Steps without a budget and within one, in turn; the losses must agree.
fn measure(model: &Model, arguments: &Arguments, percent: f64, budget_bytes: u64) -> Result<Vec<Cell>, Failure> {
    let mut trainers = [trainer(model, arguments, None)?, trainer(model, arguments, Some(budget_bytes))?];
    let (inputs, labels) = batch(&trainers[0]);
    let mut seconds = [Vec::new(), Vec::new()];
    for round in 0..WARM_UP + arguments.rounds {
        let mut losses = [0; 2];
        // Each is the first one in every other round.
        for kind in [round % 2, 1 - round % 2] {
            let report = trainers[kind].step(inputs.clone(), labels.clone())?;
            losses[kind] = report.loss.to_bits();
            seconds[kind].extend((round >= WARM_UP).then_some(report.seconds));
        }
        if losses[0] != losses[1] {
            return Err(format!("the losses of round {round} at {percent} % differ").into());
        }
    }
    let used_bytes = trainers[1].usage().heap_peak_bytes;
    if used_bytes > budget_bytes {
        return Err(format!("{used_bytes} of {budget_bytes} bytes were taken").into());
    }
    let ratios: Vec<f64> = seconds[1].iter().zip(&seconds[0]).map(|(limited, whole)| limited / whole).collect();
    let statistics = trainers[1].statistics();
    let over_in_core = |time_ns: u64| time_ns as f64 / statistics.in_core_predicted_ns.max(1) as f64;
    let (predicted, bound) = (over_in_core(statistics.predicted_ns), over_in_core(statistics.lower_bound_ns));
    let (measured, [in_core, limited]) = (Cell::median(ratios), seconds.map(Cell::median));
    let over_bound = measured.number().unwrap_or(f64::NAN) / bound;
    Ok(vec![percent.into(), in_core, limited, measured, predicted.into(), bound.into(), over_bound.into()])
}
