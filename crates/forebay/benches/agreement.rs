//! Predicted and measured time of training steps, alternating between budgets and link speeds in interleaved rounds.
//!
//! ```text
//! cargo bench -p forebay --bench agreement -- [FOLDER]... [--output FILE.json]
//! ```
//!
//! A folder holds `model.onnx`, `inputs.npz` with `x` and `y` (or `train_x` and `train_y`), and `training.json`, like those in
//! `testdata/golden`, which are used by default. Each line is one budget with one link: the median of measured steps, the time that the
//! simulator predicts for the plan from the durations measured in the same steps, and their ratio.

#[path = "common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{Failure, training};
use forebay::data::npz::Archive;
use forebay::{MemorySize, Model, Tensor, Trainer, TrainerOptions};
use forebay_bench_record::{Cell, Column, Record, Table};
use serde_json::Value;

type Batch = (BTreeMap<String, Tensor>, Tensor);

/// The number of measured steps per line, after the warm-up steps.
const ROUNDS: usize = 7;
const WARM_UP: usize = 3;
/// Budgets in percent of the memory that the model takes without one.
const SHARES: [f64; 3] = [100.0, 50.0, 25.0];
/// Bytes per second; `None` for the machine's own speed.
const LINKS: [Option<u64>; 3] = [None, Some(8_000_000_000), Some(2_000_000_000)];

struct Line {
    name: String,
    trainer: Trainer,
    seconds: Vec<f64>,
    predicted: Vec<f64>,
}

fn main() -> Result<(), Failure> {
    let given = forebay_bench_record::arguments()?;
    let folders: Vec<PathBuf> = given.words.iter().map(PathBuf::from).collect();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden");
    let own = ["unet3d", "resnet20", "tiny-gpt"].map(|name| golden.join(name));
    let seconds = |name: &str| Column::number(name, "s", 4);
    let columns = [
        Column::text("model"),
        Column::text("memory, link"),
        seconds("measured").of("median"),
        seconds("predicted"),
        Column::ratio("ratio", 3),
    ];
    let mut table = Table::new("steps", columns);
    for folder in if folders.is_empty() { own.to_vec() } else { folders } {
        measure(&folder, &mut table)?;
    }
    let what = "Predicted and measured time of a step";
    let record = Record::new("agreement", what, "cargo bench -p forebay --bench agreement --", &given.words);
    record.under(format!("medians of {ROUNDS} steps, all lines in turn")).with(table).save(given.output.as_deref())?;
    Ok(())
}

fn measure(folder: &Path, table: &mut Table) -> Result<(), Failure> {
    let model = Model::from_file(folder.join("model.onnx"))?;
    let (batch, labels) = batch(&folder.join("inputs.npz"))?;
    let log: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("training.json"))?)?;
    let class_axis = log.pointer("/loss/class_axis").and_then(Value::as_i64);
    let mut lines = Vec::new();
    for link_bytes_per_second in LINKS {
        for share in SHARES {
            let speed =
                link_bytes_per_second.map_or("full".to_string(), |rate| format!("{} GB/s", rate / 1_000_000_000));
            let device_memory = Some(MemorySize::Percent(share));
            let mut options = TrainerOptions::new(training(class_axis));
            options.engine.memory.simulate_device = device_memory;
            options.engine.device.link_bytes_per_second = link_bytes_per_second;
            let name = format!("{share:.0} % of memory, link {speed}");
            match Trainer::new(model.clone(), options) {
                Ok(trainer) => lines.push(Line { name, trainer, seconds: Vec::new(), predicted: Vec::new() }),
                Err(error) => println!("{}: {name}: {error}", folder.display()),
            }
        }
    }
    for round in 0..WARM_UP + ROUNDS {
        for line in &mut lines {
            let report = line.trainer.step(batch.clone(), labels.clone())?;
            if round >= WARM_UP {
                line.seconds.push(report.seconds);
                line.predicted.push(line.trainer.predicted_seconds());
            }
        }
    }
    let model = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for line in lines {
        let (measured, predicted) = (Cell::median(line.seconds), line.predicted.last().copied());
        let ratio = predicted.zip(measured.number()).map(|(predicted, measured)| predicted / measured);
        table.print([model.clone().into(), line.name.into(), measured, predicted.into(), ratio.into()]);
    }
    Ok(())
}

fn batch(path: &Path) -> Result<Batch, Failure> {
    let mut archive = Archive::open(path)?;
    let mut read = |names: [&str; 2]| -> Result<Tensor, Failure> {
        let known = archive.names();
        let found = names.into_iter().find(|name| known.iter().any(|known| known == name));
        let name = found.ok_or_else(|| format!("{} has no {}", path.display(), names[0]))?;
        let tensor = archive.read(name)?;
        if !name.starts_with("train") {
            return Ok(tensor);
        }
        // Several batches are stored one after the other.
        let shape = tensor.shape()[1..].to_vec();
        tensor.rows(&[0]).reshaped(&shape).ok_or_else(|| "a shape that does not fit".into())
    };
    let (x, y) = (read(["train_x", "x"])?, read(["train_y", "y"])?);
    Ok((BTreeMap::from([("x".to_string(), x)]), y))
}
