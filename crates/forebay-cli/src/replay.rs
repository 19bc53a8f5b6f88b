//! `forebay replay`: how fast a traced training step could go on the machine that its trace describes.

use std::time::{Duration, Instant};

use forebay::format_bytes;
use forebay::replay::{Account, Machine, Policy, Progress, Replay, Workload, read_trace, replay as plan_and_judge};
use forebay::{MachineDescription, MemorySize, documents};
use serde_json::{self, Value, json};

use crate::arguments::{PolicyOfReplay, ReplayArguments};
use crate::failure::Failure;
use crate::output;

/// Planning that takes longer than this reports its progress.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

/// Plans the step of a trace, and prints what the plan achieves.
///
/// # Errors
/// Fails if the trace cannot be read, the device is too small for a kernel, or a file cannot be written.
pub fn replay(arguments: &ReplayArguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.schedule {
        output::check_writable(path)?;
    }
    let name = arguments.trace.display();
    let mut workload = read_trace(&arguments.trace)?;
    if let Some(machine) = &arguments.machine {
        workload.machine = machine_of(&documents::machine(machine)?);
    }
    match arguments.device_memory {
        Some(MemorySize::Bytes(bytes)) => workload.machine.device_memory_bytes = bytes,
        Some(share) => workload.machine.device_memory_bytes = share.resolve(workload.machine.device_memory_bytes),
        None => {}
    }
    let policy = match arguments.policy {
        PolicyOfReplay::Planned => Policy::Planned,
        PolicyOfReplay::Lru => Policy::Lru,
    };
    let started = Instant::now();
    let mut show = |progress: Progress| {
        if started.elapsed() > PROGRESS_AFTER {
            let over_ideal = progress.step_ns as f64 / workload.ideal_ns().max(1) as f64;
            let found = if progress.found { "found a schedule" } else { "no schedule yet" };
            output::complain(&format!("planning, round {}: {found} at {over_ideal:.6} x ideal", progress.round));
        }
    };
    let replayed =
        plan_and_judge(&workload, policy, &mut show).map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
    if let Some(path) = &arguments.schedule {
        let text = serde_json::to_string(&replayed.schedule).map_err(|error| Failure::Failed(error.to_string()))?;
        output::write(path, &text)?;
    }
    if arguments.json {
        output::say(&format!("{:#}", as_json(arguments, &workload, &replayed)));
    } else {
        lines(arguments, &workload, &replayed).iter().for_each(|line| output::say(line));
    }
    Ok(())
}

/// Converts a machine description for replays. In a replay, the link works in both directions at once, at the same rate each: the
/// rate of the slower direction, or half of it if both directions share the link.
fn machine_of(described: &MachineDescription) -> Machine {
    let (link, disk) = (&described.link, &described.disk);
    let slower = link.to_device.bytes_per_second.min(link.from_device.bytes_per_second);
    let rate = |bytes_per_second: f64| (bytes_per_second as u64).max(1);
    Machine {
        device_memory_bytes: described.device_memory_bytes,
        host_memory_bytes: described.host_memory_bytes,
        link_bytes_per_s: rate(if link.duplex { slower } else { slower / 2.0 }),
        ssd_read_bytes_per_s: rate(disk.read.bytes_per_second),
        ssd_write_bytes_per_s: rate(disk.write.bytes_per_second),
    }
}

/// Returns the report for people.
fn lines(arguments: &ReplayArguments, workload: &Workload, replay: &Replay) -> Vec<String> {
    let account = &replay.account;
    let time = |what: &str, time_ns: u64| {
        format!("{what:<18}{:>16.6} s   {:>10.6} x ideal", time_ns as f64 / 1e9, replay.over_ideal(time_ns))
    };
    let mut lines = vec![
        time("ideal", replay.ideal_ns),
        time("lower bound", replay.lower_bound_ns),
        time(arguments.policy.name(), account.step_ns),
    ];
    match &replay.lru {
        _ if arguments.policy == PolicyOfReplay::Lru => {}
        Some(lru) => lines.push(time("demand LRU", lru.step_ns)),
        None => lines.push("demand LRU        does not repeat from step to step".to_owned()),
    }
    let machine = &workload.machine;
    let traffic =
        |what: &str, out: u64, back: u64| format!("{what:<18}{} out, {} in", format_bytes(out), format_bytes(back));
    lines.push(format!("live at most      {}", format_bytes(replay.live_peak_bytes)));
    let of = |peak: u64, all: u64| format!("{} of {}", format_bytes(peak), format_bytes(all));
    lines.push(format!("device peak       {}", of(account.device_peak_bytes, machine.device_memory_bytes)));
    lines.push(format!("host peak         {}", of(account.host_peak_bytes, machine.host_memory_bytes)));
    lines.push(traffic("host traffic", account.host_out_bytes, account.host_in_bytes));
    lines.push(traffic("SSD traffic", account.ssd_out_bytes, account.ssd_in_bytes));
    lines.push(format!(
        "recomputed        {} kernels, {:.6} s",
        account.recomputed_kernels,
        account.recomputed_ns as f64 / 1e9
    ));
    lines.push(format!(
        "late prefetches   {} (kernels wait {:.6} s)",
        account.late_prefetches,
        account.wait_ns as f64 / 1e9
    ));
    lines.push(format!("planning          {:.3} s", replay.planning_seconds));
    lines
}

/// Returns the report for programs.
fn as_json(arguments: &ReplayArguments, workload: &Workload, replay: &Replay) -> Value {
    let account = &replay.account;
    let lru_ns = replay.lru.as_ref().map(|lru: &Account| lru.step_ns);
    json!({
        "trace": arguments.trace.display().to_string(),
        "policy": arguments.policy.name(),
        "device_memory_bytes": workload.machine.device_memory_bytes,
        "ideal_ns": replay.ideal_ns,
        "lower_bound_ns": replay.lower_bound_ns,
        "step_ns": account.step_ns,
        "time_over_ideal": replay.over_ideal(account.step_ns),
        "bound_over_ideal": replay.over_ideal(replay.lower_bound_ns),
        "lru_ns": lru_ns,
        "lru_over_ideal": lru_ns.map(|lru_ns| replay.over_ideal(lru_ns)),
        "live_peak_bytes": replay.live_peak_bytes,
        "device_peak_bytes": account.device_peak_bytes,
        "host_peak_bytes": account.host_peak_bytes,
        "ssd_peak_bytes": account.ssd_peak_bytes,
        "host_out_bytes": account.host_out_bytes,
        "host_in_bytes": account.host_in_bytes,
        "ssd_out_bytes": account.ssd_out_bytes,
        "ssd_in_bytes": account.ssd_in_bytes,
        "recomputed_kernels": account.recomputed_kernels,
        "recomputed_ns": account.recomputed_ns,
        "late_prefetches": account.late_prefetches,
        "wait_ns": account.wait_ns,
        "planning_seconds": replay.planning_seconds,
    })
}
