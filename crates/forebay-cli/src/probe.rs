//! `forebay probe`: the eviction order of managed memory.

use forebay::format_bytes;
use forebay::{Finding, ProbeOptions};
use serde_json::{Map, Value, json};

use crate::arguments::{PolicyKind, ProbeArguments, thread_count};
use crate::chart;
use crate::failure::Failure;
use crate::output;
use crate::report::say_json;

/// Runs the experiment and reports it.
///
/// # Errors
/// Fails if the device is unknown or fails, chunks are too small, or the picture cannot be written.
pub fn probe(arguments: &ProbeArguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.svg {
        output::check_writable(path)?;
    }
    let policy = arguments.policy.policy();
    let threads = arguments.threads.map(thread_count);
    let (chunk_bytes, chunk_count) = (arguments.chunk_size, arguments.chunks);
    let mut options = ProbeOptions::default();
    (options.device.name, options.device.threads) = (arguments.device.clone(), threads);
    arguments.heaps.apply(&mut options.device);
    (options.growth, options.policy) = (arguments.heaps.grows(), policy);
    (options.chunk_bytes, options.chunk_count) = (chunk_bytes, chunk_count);
    let findings = forebay::probe(&options)?;
    let title = format!(
        "device {}, policy {}: {chunk_count} chunks of {} fill it, then one more is allocated",
        arguments.device,
        policy_name(arguments.policy),
        format_bytes(chunk_bytes)
    );
    if let Some(path) = &arguments.svg {
        output::write(path, &chart::svg(&title, &findings))?;
    }
    if arguments.json {
        return say_json(object(arguments, &findings));
    }
    output::say(&title);
    lines(&findings).iter().for_each(|line| output::say(line));
    Ok(())
}

fn policy_name(policy: PolicyKind) -> &'static str {
    match policy {
        PolicyKind::Driver => "driver",
        PolicyKind::Touch => "touch",
        PolicyKind::Planned => "planned",
    }
}

fn object(arguments: &ProbeArguments, findings: &[Finding]) -> Map<String, Value> {
    let action = |finding: &Finding| {
        let touches = finding
            .touches
            .iter()
            .map(|touch| json!({ "chunk": touch.chunk, "resident": touch.resident, "seconds": touch.seconds }));
        json!({
            "action": finding.action.number(),
            "description": finding.action.description(),
            "evicted_chunks": finding.evicted,
            "measured_evicted_chunks": finding.action.measured().into_iter().collect::<Vec<_>>(),
            "as_measured": finding.is_as_measured(),
            "overcommit_seconds": finding.overcommit_seconds,
            "touches": touches.collect::<Vec<_>>(),
        })
    };
    let object = json!({
        "device": arguments.device.to_string(),
        "policy": policy_name(arguments.policy),
        "chunk_bytes": arguments.chunk_size,
        "chunks": arguments.chunks,
        "as_measured": findings.iter().all(Finding::is_as_measured),
        "actions": findings.iter().map(action).collect::<Vec<_>>(),
    });
    match object {
        Value::Object(object) => object,
        _ => unreachable!("an object was written above"),
    }
}

/// Returns the table for people.
fn lines(findings: &[Finding]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:>2}  {:<49} {:>7} {:>8} {:>12} {:>12} {:>12} {:>12}",
        "", "action", "evicted", "paper", "one more", "use 0", "use 1", "use 2"
    )];
    for finding in findings {
        let action = finding.action;
        let mut line = format!(
            "{:>2}  {:<49} {:>7} {:>8} {:>12}",
            action.number(),
            action.description(),
            chunks(&finding.evicted),
            chunks(&action.measured().into_iter().collect::<Vec<_>>()),
            milliseconds(finding.overcommit_seconds, true)
        );
        for touch in &finding.touches {
            line += &format!(" {:>12}", milliseconds(touch.seconds, touch.resident));
        }
        lines.push(line);
    }
    lines.push("* evicted".to_owned());
    let mut different: Vec<String> = findings
        .iter()
        .filter(|finding| !finding.is_as_measured())
        .map(|finding| finding.action.number().to_string())
        .collect();
    // Action 10 appears twice.
    different.dedup();
    lines.push(match different.len() {
        0 => "every action matches the paper".to_owned(),
        1 => format!("all actions match the paper, except action {}", different[0]),
        _ => format!("all actions match the paper, except actions {}", different.join(", ")),
    });
    lines
}

fn chunks(chunks: &[usize]) -> String {
    match chunks {
        [] => "none".to_owned(),
        chunks => chunks.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    }
}

fn milliseconds(seconds: f64, resident: bool) -> String {
    format!("{:.3} ms{}", seconds * 1e3, if resident { " " } else { "*" })
}
