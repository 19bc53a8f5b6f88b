//! How far planned steps are from ideal: `cargo bench -p forebay --bench replay -- TRACES...`, or with `--scale 0.5` on a device
//! with half the memory.
//!
//! Prints a row of a table for each trace: ideal seconds, the lower bound, the plan and demand paging over ideal, traffic each
//! way, recomputation, and how long planning took. The verifier has judged every schedule.

#[path = "common/mod.rs"]
mod common;

use std::path::Path;

use common::Failure;
use forebay::replay::{read_trace, replay, Policy};

fn main() -> Result<(), Failure> {
    let mut scale = 1.0;
    let mut traces = Vec::new();
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        if argument == "--scale" {
            scale = arguments.next().ok_or("--scale needs a number")?.parse()?;
        } else {
            traces.push(argument);
        }
    }
    println!("| trace | ideal s | bound / ideal | plan / ideal | plan / bound | LRU / ideal | out GB | in GB | recomputed | planning s |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for trace in traces {
        match row(Path::new(&trace), scale) {
            Ok(row) => println!("| {trace} {row}"),
            Err(error) => println!("| {trace} | {error} |"),
        }
    }
    Ok(())
}

fn row(path: &Path, scale: f64) -> Result<String, Failure> {
    let mut workload = read_trace(path)?;
    let machine = &mut workload.machine;
    machine.device_memory_bytes = (machine.device_memory_bytes as f64 * scale) as u64;
    let found = replay(&workload, Policy::Planned, &mut |_| ())?;
    let (bound, plan) = (found.over_ideal(found.lower_bound_ns), found.over_ideal(found.account.step_ns));
    let lru = found.lru.as_ref().map_or("-".to_owned(), |lru| format!("{:.4}", found.over_ideal(lru.step_ns)));
    let account = &found.account;
    Ok(format!(
        "| {:.3} | {bound:.6} | {plan:.6} | {:.4} | {lru} | {:.1} | {:.1} | {} | {:.1} |",
        found.ideal_ns as f64 / 1e9,
        plan / bound,
        (account.host_out_bytes + account.ssd_out_bytes) as f64 / 1e9,
        (account.host_in_bytes + account.ssd_in_bytes) as f64 / 1e9,
        account.recomputed_kernels,
        found.planning_seconds,
    ))
}
