//! The cost of an eager launch to the host.
//!
//! `cargo bench -p forebay-runtime --bench eager` prints and records nanoseconds per call: the median of several rounds. If Python has
//! torch, it also measures PyTorch's addition of the same number of elements on one thread, whose time is nearly all overhead, too.

use std::error::Error;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use forebay_bench_record::{Cell, Column, Record, Table};
use forebay_device::Device;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_model::Tensor;
use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor, Event, Stream};

const CALLS: u32 = 20_000;
const ROUNDS: usize = 7;
const ELEMENTS: u64 = 64;

/// The same measurement in PyTorch.
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
    let given = forebay_bench_record::arguments()?;
    let mut table = Table::new("calls", [Column::text("call"), Column::number("time", "ns", 0).of("median")]);
    on_null(&mut table, "addition, null device", false)?;
    on_null(&mut table, "addition, null device, recorded for the check", true)?;
    on_host(&mut table)?;
    streams_and_events(&mut table)?;
    match Command::new("python3").args(["-c", PEER]).output() {
        Ok(output) if output.status.success() => {
            let time_ns: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
            table.print(["addition, PyTorch".into(), time_ns.into()]);
        }
        _ => println!("addition, PyTorch: SKIPPED (python3 has no torch)"),
    }
    let record = Record::new("eager", "Eager launches", "cargo bench -p forebay-runtime --bench eager", &given.words);
    record.under(format!("{ROUNDS} rounds of {CALLS} calls")).with(table).save(given.output.as_deref())?;
    Ok(())
}

/// Adds a row with the median time of a call over rounds of many calls.
fn report(
    table: &mut Table,
    name: &str,
    mut round: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    round()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    table.print([name.into(), Cell::median(times)]);
    Ok(())
}

fn ones(context: &Context) -> Result<DeviceTensor, Box<dyn Error>> {
    Ok(DeviceTensor::from_host(context, &Tensor::from_f32(&[ELEMENTS], &[1.0; ELEMENTS as usize]))?)
}

fn on_null(table: &mut Table, name: &str, record: bool) -> Result<(), Box<dyn Error>> {
    report(table, name, || {
        let device: Arc<dyn Device> = Arc::new(NullDevice::new(NullProfile::Tiled));
        let context = Context::new(device, &ContextOptions::default().record(record))?;
        let x = ones(&context)?;
        (0..CALLS).try_for_each(|_| x.add(&x).map(drop))?;
        Ok(())
    })
}

fn on_host(table: &mut Table) -> Result<(), Box<dyn Error>> {
    let device: Arc<dyn Device> =
        Arc::new(HostDevice::new(&HostOptions { threads: Some(1), ..HostOptions::default() })?);
    let context = Context::new(device, &ContextOptions::default())?;
    let x = ones(&context)?;
    report(table, "addition, host device, run to the end", || {
        (0..CALLS).try_for_each(|_| x.add(&x).map(drop))?;
        Ok(context.synchronize()?)
    })
}

fn streams_and_events(table: &mut Table) -> Result<(), Box<dyn Error>> {
    let device: Arc<dyn Device> = Arc::new(NullDevice::new(NullProfile::Tiled));
    let context = Context::new(device, &ContextOptions::default())?;
    report(table, "Stream::new", || Ok((0..CALLS).try_for_each(|_| Stream::new(&context, 0).map(drop))?))?;
    let (x, stream) = (ones(&context)?, Stream::new(&context, 0)?);
    let event = Event::new(&context, false);
    report(table, "addition, record, wait in another stream", || {
        (0..CALLS).try_for_each(|_| {
            drop(x.add(&x)?);
            event.record()?;
            stream.wait_event(&event)
        })?;
        Ok(())
    })
}
