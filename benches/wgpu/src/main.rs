//! Compares training steps on Vulkan with wgpu running the same dispatches: the calls to the driver, and the duration of a step.
//!
//! ```text
//! cargo run --release --manifest-path benches/wgpu/Cargo.toml -- [--rounds N] [--device NAME] [--output FILE.json] [MODEL]...
//! ```
//!
//! For each model of `testdata/golden`, Forebay's first training step is recorded as its Vulkan device receives it: the commands, the
//! bytes before, and the bytes after. wgpu then runs the same dispatches in the same order, with the same SPIR-V, constants,
//! parameters, groups and bytes, in two ways: with Forebay's memory as one buffer, and with one buffer for every tensor. All must leave
//! the same bytes. Dispatches and barriers are counted where the driver is called. Contenders take turns, one step each. Times are
//! medians, and ratios are the medians of the rounds' ratios.

mod again;
mod counting;
mod layout;
mod recorder;
mod replay;
mod sequence;
mod shader;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use again::Again;
use counting::{counts, Counts};
use forebay::{Device, EngineOptions};
use forebay_bench_record::{Cell, Column, Record, Table};
use forebay_golden::{recipe, trainer_on, Case};
use forebay_vulkan::{adapters, VulkanDevice, VulkanOptions};
use layout::{arena, tensors, Layout};
use recorder::Recorder;
use replay::{Replay, Wgpu};

type Failure = Box<dyn Error>;

/// The known models.
const MODELS: [&str; 4] = ["digits-cnn", "resnet20", "tiny-gpt", "unet3d"];

/// The arguments.
struct Asked {
    rounds: usize,
    device: Option<String>,
    models: Vec<&'static str>,
}

impl Asked {
    fn read(words: &[String]) -> Result<Asked, Failure> {
        let mut asked = Asked { rounds: 9, device: None, models: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--rounds" => asked.rounds = value()?.parse::<usize>()?.max(1),
                "--device" => {
                    let name = value()?;
                    let name = name.strip_prefix("vulkan:").unwrap_or(name);
                    asked.device = Some(name).filter(|&name| name != "vulkan").map(str::to_owned);
                }
                name => {
                    let known = MODELS.into_iter().find(|&known| known == name);
                    let unknown = || format!("unknown model '{name}'; the models are {MODELS:?}");
                    asked.models.push(known.ok_or_else(unknown)?);
                }
            }
        }
        if asked.models.is_empty() {
            asked.models = MODELS.to_vec();
        }
        Ok(asked)
    }
}

fn main() -> Result<(), Failure> {
    let given = forebay_bench_record::arguments()?;
    let asked = Asked::read(&given.words)?;
    let columns = [
        Column::text("model"),
        Column::text("contender"),
        Column::count("dispatches"),
        Column::count("barriers"),
        Column::count("memory or buffers in them"),
        Column::number("step", "ms", 1).of("median"),
        Column::ratio("over Forebay", 2).of("median"),
    ];
    let mut table = Table::new("steps", columns);
    let mut device = String::new();
    for &model in &asked.models {
        device = compare(model, &asked, &mut table).map_err(|error| format!("{model}: {error}"))?;
    }
    let command = "cargo run --release --manifest-path benches/wgpu/Cargo.toml --";
    let mut record = Record::new("wgpu", "Vulkan: barriers and time next to wgpu", command, &given.words);
    if let Some(machine) = &mut record.machine {
        machine.driver =
            adapters()?.into_iter().find(|adapter| device.contains(&adapter.name)).map(|adapter| adapter.driver);
        machine.gpu = Some(device);
    }
    record.under(format!("{} rounds", asked.rounds)).with(table).save(given.output.as_deref())?;
    Ok(())
}

/// A contender's name and its step.
type Contender = (&'static str, Box<dyn FnMut() -> Result<(), Failure>>);

/// Adds a model's rows to the table, and returns the name of the device.
fn compare(model: &'static str, asked: &Asked, table: &mut Table) -> Result<String, Failure> {
    let options = VulkanOptions { device: asked.device.clone(), tiled: false, ..VulkanOptions::default() };
    let device = VulkanDevice::open_through(counting::entry()?, &options)?;
    let name = device.limits().name.clone();
    let recorder = Arc::new(Recorder::new(device));
    let case = Case::read(model);
    let options = EngineOptions::default().tiled(false);
    let mut trainer = trainer_on(case.model(), recipe(&case), options, Some(recorder.clone()));
    let (batch, labels) = case.batch(0);
    trainer.step(batch, labels)?;
    let planned = trainer.statistics().barriers as u64;
    let step = recorder.take()?;
    if step.before == step.after {
        return Err("the step did not change any bytes, so a comparison would prove nothing".into());
    }
    let operations = sequence::operations(&step, recorder.device().target())?;

    let wgpu = Wgpu::open(&name)?;
    let mut again = Again::new(recorder.clone(), &step, trainer);
    let mut contenders: Vec<Contender> = vec![("Forebay", Box::new(move || Ok(again.step()?)))];
    for (name, layout) in
        [("wgpu, one buffer", arena(&step, &operations)), ("wgpu, a buffer per tensor", tensors(&step, &operations))]
    {
        let replay = Replay::new(&wgpu, &layout)?;
        replay.step()?;
        judge(&replay, &layout).map_err(|error| format!("{name}: {error}"))?;
        contenders.push((name, Box::new(move || replay.step())));
    }
    let before = recorder.device().counts();
    let told = contenders.iter_mut().map(|(_, step)| told(step)).collect::<Result<Vec<_>, _>>()?;
    // Barriers that make bytes visible to the host are not part of the plan. Two steps ran.
    let shown = (recorder.device().counts().host_barriers - before.host_barriers) / 2;
    if told[0].barriers != planned + shown {
        let found = told[0].barriers;
        return Err(format!("expected {planned} barriers of the plan and {shown} for the host, found {found}").into());
    }
    let times = times(&mut contenders, asked.rounds)?;
    for (((contender, _), counts), own) in contenders.iter().zip(&told).zip(&times) {
        let ratios = own.iter().zip(&times[0]).map(|(time, first)| time / first);
        table.print([
            model.into(),
            (*contender).into(),
            counts.dispatches.into(),
            counts.barriers.into(),
            counts.ordered.into(),
            Cell::median(own.iter().map(|seconds| seconds * 1e3)),
            Cell::median(ratios),
        ]);
    }
    Ok(name)
}

/// Checks that wgpu left the bytes that Forebay left.
fn judge(replay: &Replay, layout: &Layout) -> Result<(), Failure> {
    let buffers = replay.read()?;
    for (place, expected) in &layout.results {
        let (start, end) = (place.offset_bytes as usize, (place.offset_bytes + place.size_bytes) as usize);
        let found = &buffers[place.buffer][start..end];
        if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
            let differing = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
            return Err(format!("{differing} bytes of {place:?} differ from Forebay's, the first at {at}").into());
        }
    }
    Ok(())
}

/// Counts the calls of a step to the driver, after everything that it needs has been created.
fn told(step: &mut dyn FnMut() -> Result<(), Failure>) -> Result<Counts, Failure> {
    step()?;
    let before = counts();
    step()?;
    Ok(counts() - before)
}

/// Returns, for each contender, the seconds that its step took in each round. Contenders take turns, and each round begins with the next.
fn times(contenders: &mut [Contender], rounds: usize) -> Result<Vec<Vec<f64>>, Failure> {
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let contender = (round + turn) % contenders.len();
            let start = Instant::now();
            (contenders[contender].1)()?;
            times[contender].push(start.elapsed().as_secs_f64());
        }
    }
    Ok(times)
}
