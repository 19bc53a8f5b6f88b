//! How far planned steps are from ideal: `cargo bench -p forebay-plan --bench replay -- TRACES...`, or with `--scale 0.5` on a
//! device with half the memory.
//!
//! Prints a row of a table for each trace: ideal seconds, the lower bound, the plan and demand paging over ideal, traffic each
//! way, recomputation, and how long planning took.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use flate2::read::MultiGzDecoder;
use forebay_plan::swap::bound::lower_bound_ns;
use forebay_plan::swap::lru::demand_lru;
use forebay_plan::swap::planner::plan;
use forebay_plan::swap::trace::parse;
use forebay_plan::swap::verify::verify;
use forebay_plan::swap::workload::Workload;

fn main() {
    let mut scale = 1.0;
    let mut traces = Vec::new();
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        if argument == "--scale" {
            scale = arguments.next().and_then(|scale| scale.parse().ok()).expect("--scale takes a number");
        } else {
            traces.push(argument);
        }
    }
    println!("| trace | ideal s | bound / ideal | plan / ideal | plan / bound | LRU / ideal | out GB | in GB | recomputed | planning s |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for trace in traces {
        let path = Path::new(&trace);
        let mut workload = read(path);
        let device_memory_bytes = workload.machine.device_memory_bytes as f64 * scale;
        workload.machine.device_memory_bytes = device_memory_bytes as u64;
        let name =
            path.file_name().map_or_else(|| trace.clone(), |name| name.to_string_lossy().replace(".jsonl.gz", ""));
        match row(&workload) {
            Ok(row) => println!("| {name} {row}"),
            Err(error) => println!("| {name} | {error} |"),
        }
    }
}

fn read(path: &Path) -> Workload {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    MultiGzDecoder::new(file).read_to_string(&mut text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn row(workload: &Workload) -> Result<String, Box<dyn std::error::Error>> {
    let started = Instant::now();
    let schedule = plan(workload, &mut |_| ())?;
    let planning_s = started.elapsed().as_secs_f64();
    let account = verify(workload, &schedule)?;
    let ideal_ns = workload.ideal_ns() as f64;
    let bound_ns = lower_bound_ns(workload)? as f64;
    let lru = match demand_lru(workload) {
        Ok(schedule) => format!("{:.4}", verify(workload, &schedule)?.step_ns as f64 / ideal_ns),
        Err(_) => "-".to_owned(),
    };
    let step_ns = account.step_ns as f64;
    Ok(format!(
        "| {:.3} | {:.6} | {:.6} | {:.4} | {lru} | {:.1} | {:.1} | {} | {planning_s:.1} |",
        ideal_ns / 1e9,
        bound_ns / ideal_ns,
        step_ns / ideal_ns,
        step_ns / bound_ns,
        (account.host_out_bytes + account.ssd_out_bytes) as f64 / 1e9,
        (account.host_in_bytes + account.ssd_in_bytes) as f64 / 1e9,
        account.recomputed_kernels,
    ))
}
