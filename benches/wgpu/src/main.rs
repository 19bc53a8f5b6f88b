//! Training steps on Vulkan beside wgpu running the same dispatches: what the driver is told, and how long a step takes.
//!
//! ```text
//! cargo run --release --manifest-path benches/wgpu/Cargo.toml -- [--rounds N] [--steps N] [--device NAME] [MODEL]...
//! ```
//!
//! For each model of `testdata/golden`, Forebay's first training step is recorded as its Vulkan device gets it: commands, the
//! bytes before, the bytes after. wgpu then runs the same dispatches in the same order, with the same SPIR-V, constants,
//! parameters, groups and bytes, in two ways: with Forebay's memory as one buffer, and with a buffer for every tensor. All must leave
//! the same bytes. Dispatches and barriers are counted where the driver is called; contenders take turns, and times are
//! medians.

mod again;
mod counting;
mod layout;
mod recorder;
mod replay;
mod sequence;
mod shader;

#[path = "../../../crates/forebay/tests/common/mod.rs"]
mod common;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use again::Again;
use common::golden::Case;
use common::{recipe, trainer_on};
use counting::{counts, Counts};
use forebay::vulkan::{VulkanDevice, VulkanOptions};
use forebay::{Device, DeviceOptions};
use layout::{arena, tensors, Layout};
use recorder::Recorder;
use replay::{Replay, Wgpu};

type Failure = Box<dyn Error>;

/// The models that are known.
const MODELS: [&str; 4] = ["digits-cnn", "resnet20", "tiny-gpt", "unet3d"];

/// What is asked for.
struct Asked {
    rounds: usize,
    steps: usize,
    device: Option<String>,
    models: Vec<&'static str>,
}

impl Asked {
    fn read(words: impl Iterator<Item = String>) -> Result<Asked, Failure> {
        let mut asked = Asked { rounds: 5, steps: 3, device: None, models: Vec::new() };
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--rounds" => asked.rounds = value()?.parse::<usize>()?.max(1),
                "--steps" => asked.steps = value()?.parse::<usize>()?.max(1),
                "--device" => {
                    let name = value()?;
                    let name = name.strip_prefix("vulkan:").unwrap_or(&name);
                    asked.device = Some(name).filter(|&name| name != "vulkan").map(str::to_owned);
                }
                name => {
                    let known = MODELS.into_iter().find(|&known| known == name);
                    asked.models.push(known.ok_or_else(|| format!("'{name}' is none of {MODELS:?}"))?);
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
    let asked = Asked::read(std::env::args().skip(1))?;
    println!("| model | contender | dispatches | barriers | of so many things | ms/step | over Forebay |");
    println!("|---|---|---|---|---|---|---|");
    for &model in &asked.models {
        compare(model, &asked).map_err(|error| format!("{model}: {error}"))?;
    }
    Ok(())
}

/// A contender's name and its step.
type Contender = (&'static str, Box<dyn FnMut() -> Result<(), Failure>>);

/// Prints a model's lines of the table.
fn compare(model: &'static str, asked: &Asked) -> Result<(), Failure> {
    let options = VulkanOptions { device: asked.device.clone(), tiled: false, ..VulkanOptions::default() };
    let device = VulkanDevice::open_through(counting::entry()?, &options)?;
    let (name, offer) = (device.limits().name.clone(), *device.offer());
    let recorder = Arc::new(Recorder::new(device));
    let case = Case::read(model);
    let options = DeviceOptions { tiled: false, ..DeviceOptions::default() };
    let mut trainer = trainer_on(case.model(), recipe(&case), options, Some(recorder.clone()));
    let (batch, labels) = case.batch(0);
    trainer.step(batch, labels)?;
    let barriers = trainer.statistics().barriers as u64;
    let step = recorder.take()?;
    let operations = sequence::operations(&step, &offer)?;

    let before = recorder.device().counts();
    let mut again = Again::new(recorder.clone(), &step, trainer);
    again.step(false)?;
    let own = recorder.device().counts();
    if own.barriers - before.barriers != barriers {
        return Err(
            format!("the plan has {barriers} barriers, the driver got {}", own.barriers - before.barriers).into()
        );
    }
    let wgpu = Wgpu::open(&name)?;
    let mut contenders: Vec<Contender> = vec![("Forebay", Box::new(move || Ok(again.step(false)?)))];
    for (name, layout) in
        [("wgpu, one buffer", arena(&step, &operations)), ("wgpu, a buffer per tensor", tensors(&step, &operations))]
    {
        let replay = Replay::new(&wgpu, &layout)?;
        replay.step()?;
        judge(&replay, &layout).map_err(|error| format!("{name}: {error}"))?;
        contenders.push((name, Box::new(move || replay.step())));
    }
    let measured = measure(&mut contenders, asked)?;
    let own = measured[0].1;
    for ((name, _), (Counts { dispatches, barriers, ordered }, seconds)) in contenders.iter().zip(&measured) {
        let (milliseconds, ratio) = (seconds * 1e3, seconds / own);
        println!("| {model} | {name} | {dispatches} | {barriers} | {ordered} | {milliseconds:.3} | {ratio:.2} |");
    }
    Ok(())
}

/// Whether wgpu left the bytes that Forebay left.
fn judge(replay: &Replay, layout: &Layout) -> Result<(), Failure> {
    let buffers = replay.read()?;
    for (place, expected) in &layout.results {
        let (start, end) = (place.offset_bytes as usize, (place.offset_bytes + place.size_bytes) as usize);
        let found = &buffers[place.buffer][start..end];
        if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
            let differing = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
            return Err(format!("byte {at} of {place:?} is not Forebay's, nor are {} others", differing - 1).into());
        }
    }
    Ok(())
}

/// What each contender's step tells the driver, and the median of its times in seconds.
fn measure(contenders: &mut [Contender], asked: &Asked) -> Result<Vec<(Counts, f64)>, Failure> {
    let mut told = Vec::new();
    for (_, step) in contenders.iter_mut() {
        step()?;
        let before = counts();
        step()?;
        told.push(counts() - before);
    }
    let mut times = vec![Vec::new(); contenders.len()];
    for _ in 0..asked.rounds {
        for ((_, step), times) in contenders.iter_mut().zip(&mut times) {
            for _ in 0..asked.steps {
                let start = Instant::now();
                step()?;
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(told.into_iter().zip(times.into_iter().map(median)).collect())
}
