//! What an eager launch costs the host.
//!
//! `cargo bench -p forebay-runtime --bench eager` prints nanoseconds per call: the median of several rounds. Next to it, where
//! Python has torch, PyTorch's own addition of as many numbers on one thread, whose time is nearly all overhead, too.

use std::error::Error;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::Device;
use forebay_model::Tensor as HostTensor;
use forebay_runtime::eager::{Context, ContextOptions, Event, Stream, Tensor};

const CALLS: u32 = 20_000;
const ROUNDS: usize = 7;
const ELEMENTS: u64 = 64;

/// The same measurement of PyTorch.
const PEER: &str = "
import statistics, time, torch
torch.set_num_threads(1)
x = torch.ones(64)
def once():
    start = time.perf_counter()
    for _ in range(20000):
        y = torch.add(x, x)
    return (time.perf_counter() - start) / 20000 * 1e9
print(statistics.median(once() for _ in range(7)))
";

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:44} {:>10}", "call", "ns");
    on_null("addition, null device", false)?;
    on_null("addition, null device, recorded for the check", true)?;
    on_host()?;
    streams_and_events()?;
    match Command::new("python3").args(["-c", PEER]).output() {
        Ok(output) if output.status.success() => {
            println!("{:44} {:>10.0}", "addition, PyTorch", String::from_utf8(output.stdout)?.trim().parse::<f64>()?);
        }
        _ => println!("addition, PyTorch: SKIPPED (python3 has no torch)"),
    }
    Ok(())
}

/// Prints the median time of a call over rounds of many.
fn report(name: &str, mut round: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    round()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    times.sort_by(f64::total_cmp);
    println!("{name:44} {:>10.0}", times[ROUNDS / 2]);
    Ok(())
}

fn ones(context: &Context) -> Result<Tensor, Box<dyn Error>> {
    Ok(Tensor::from_host(context, &HostTensor::from_f32(&[ELEMENTS], &[1.0; ELEMENTS as usize]))?)
}

fn on_null(name: &str, record: bool) -> Result<(), Box<dyn Error>> {
    report(name, || {
        let device: Arc<dyn Device> = Arc::new(NullDevice::new(NullProfile::Tiled));
        let context = Context::new(device, &ContextOptions { record, ..ContextOptions::default() })?;
        let x = ones(&context)?;
        (0..CALLS).try_for_each(|_| x.add(&x).map(drop))?;
        Ok(())
    })
}

fn on_host() -> Result<(), Box<dyn Error>> {
    let device: Arc<dyn Device> =
        Arc::new(HostDevice::new(&HostOptions { threads: Some(1), ..HostOptions::default() })?);
    let context = Context::new(device, &ContextOptions::default())?;
    let x = ones(&context)?;
    report("addition, host device, run to the end", || {
        (0..CALLS).try_for_each(|_| x.add(&x).map(drop))?;
        Ok(context.synchronize()?)
    })
}

fn streams_and_events() -> Result<(), Box<dyn Error>> {
    let device: Arc<dyn Device> = Arc::new(NullDevice::new(NullProfile::Tiled));
    let context = Context::new(device, &ContextOptions::default())?;
    report("Stream::new", || Ok((0..CALLS).try_for_each(|_| Stream::new(&context, 0).map(drop))?))?;
    let (x, stream) = (ones(&context)?, Stream::new(&context, 0)?);
    let event = Event::new(&context, false);
    report("addition, record, wait in another stream", || {
        (0..CALLS).try_for_each(|_| {
            drop(x.add(&x)?);
            event.record()?;
            stream.wait_event(&event)
        })?;
        Ok(())
    })
}
