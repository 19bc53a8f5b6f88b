//! How far planned steps are from ideal: `cargo bench -p forebay --bench replay -- TRACES...`, or with `--scale 0.5` on a device with half
//! the memory.
//!
//! Prints a table row for each trace: ideal seconds, the lower bound, the plan and demand paging relative to ideal, traffic each way,
//! recomputation, and the planning time. The verifier has checked every schedule.

#[path = "common/mod.rs"]
mod common;

use std::path::Path;

use common::Failure;
use forebay::replay::{Policy, read_trace, replay};
use forebay_bench_record::{Cell, Column, Record, Table};

fn main() -> Result<(), Failure> {
    let mut scale = 1.0;
    let mut traces = Vec::new();
    let given = forebay_bench_record::arguments()?;
    let mut arguments = given.words.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--scale" {
            scale = arguments.next().ok_or("--scale needs a number")?.parse()?;
        } else {
            traces.push(argument.as_str());
        }
    }
    let columns = [
        Column::text("trace"),
        Column::number("ideal", "s", 3),
        Column::ratio("lower bound", 6),
        Column::ratio("plan", 6),
        Column::ratio("plan / bound", 4),
        Column::ratio("demand LRU", 4),
        Column::number("out", "GB", 1),
        Column::number("in", "GB", 1),
        Column::count("recomputed"),
        Column::number("planning", "s", 1),
    ];
    let mut table = Table::new("steps", columns);
    for trace in traces {
        let name: Cell = Path::new(trace).file_name().map(|name| name.to_string_lossy().into_owned()).into();
        let figures = row(Path::new(trace), scale).unwrap_or_else(|error| {
            let mut none = vec![Cell::Nothing; table.columns.len() - 1];
            none[0] = error.to_string().into();
            none
        });
        table.print([vec![name], figures].concat());
    }
    let record =
        Record::new("replay", "Traced training steps", "cargo bench -p forebay --bench replay --", &given.words);
    record
        .under(format!("times over ideal; {scale} of the device's memory"))
        .with(table)
        .save(given.output.as_deref())?;
    Ok(())
}

fn row(path: &Path, scale: f64) -> Result<Vec<Cell>, Failure> {
    let mut workload = read_trace(path)?;
    let machine = &mut workload.machine;
    machine.device_memory_bytes = (machine.device_memory_bytes as f64 * scale) as u64;
    let found = replay(&workload, Policy::Planned, &mut |_| ())?;
    let (bound, plan) = (found.over_ideal(found.lower_bound_ns), found.over_ideal(found.account.step_ns));
    let lru = found.lru.as_ref().map(|lru| found.over_ideal(lru.step_ns));
    let account = &found.account;
    let gigabytes = |bytes: u64| Cell::from(bytes as f64 / 1e9);
    Ok(vec![
        (found.ideal_ns as f64 / 1e9).into(),
        bound.into(),
        plan.into(),
        (plan / bound).into(),
        lru.into(),
        gigabytes(account.host_out_bytes + account.ssd_out_bytes),
        gigabytes(account.host_in_bytes + account.ssd_in_bytes),
        account.recomputed_kernels.into(),
        found.planning_seconds.into(),
    ])
}
