//! Traces: a step as JSON lines.
//!
//! The first line is a header that describes the machine. Then come tensors, numbered from 0, and then kernels in the order in which they
//! run.

use serde::Deserialize;

use crate::workload::{Kernel, Machine, SwapError, Tensor, Workload};

/// The format that is read.
const FORMAT: &str = "oocm-trace-1";

#[derive(Deserialize)]
struct Header {
    format: Option<String>,
    device_memory_bytes: u64,
    host_memory_bytes: u64,
    link_bytes_per_s: u64,
    ssd_bytes_per_s: u64,
    tensors: Option<u64>,
    kernels: Option<u64>,
    total_duration_ns: Option<u64>,
}

#[derive(Deserialize)]
struct TensorLine {
    tensor: usize,
    size_bytes: u64,
    persistent: bool,
}

#[derive(Deserialize)]
struct KernelLine {
    kernel: usize,
    name: String,
    duration_ns: u64,
    reads: Vec<usize>,
    writes: Vec<usize>,
    workspace_bytes: u64,
}

/// Reads a trace.
///
/// # Errors
/// Returns the number of the first invalid line, and what is wrong with it.
pub fn parse(text: &str) -> Result<Workload, SwapError> {
    let mut lines =
        text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| !line.trim().is_empty());
    let Some((number, first)) = lines.next() else {
        return Err(wrong(1, "the file is empty; expected a header"));
    };
    let header: Header =
        serde_json::from_str(first).map_err(|error| wrong(number, format!("invalid header: {error}")))?;
    if let Some(format) = header.format.as_ref().filter(|format| *format != FORMAT) {
        return Err(wrong(number, format!("unknown format '{format}'; expected '{FORMAT}'")));
    }
    let machine = Machine {
        device_memory_bytes: header.device_memory_bytes,
        host_memory_bytes: header.host_memory_bytes,
        link_bytes_per_s: header.link_bytes_per_s,
        ssd_read_bytes_per_s: header.ssd_bytes_per_s,
        ssd_write_bytes_per_s: header.ssd_bytes_per_s,
    };
    let mut workload = Workload { tensors: Vec::new(), kernels: Vec::new(), machine };
    let mut last = number;
    for (number, line) in lines {
        add(&mut workload, line).map_err(|reason| wrong(number, reason))?;
        last = number;
    }
    let counts = [
        ("tensors", header.tensors, workload.tensors.len() as u64),
        ("kernels", header.kernels, workload.kernels.len() as u64),
        (
            "total_duration_ns",
            header.total_duration_ns,
            workload.kernels.iter().map(|kernel| kernel.duration_ns).fold(0, u64::saturating_add),
        ),
    ];
    for (what, told, found) in counts {
        if told.is_some_and(|told| told != found) {
            return Err(wrong(
                last,
                format!("the header says {what} {}, but the lines have {found}", told.unwrap_or(0)),
            ));
        }
    }
    if workload.kernels.is_empty() {
        return Err(wrong(last, "the trace has no kernels"));
    }
    Ok(workload)
}

fn wrong(line: usize, reason: impl Into<String>) -> SwapError {
    SwapError::Trace { line, reason: reason.into() }
}

fn add(workload: &mut Workload, line: &str) -> Result<(), String> {
    // The kind is determined first, so that a message can say which field is wrong.
    let value: serde_json::Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let is_kernel = value.get("kernel").is_some();
    if is_kernel {
        let line: KernelLine = serde_json::from_value(value).map_err(|error| format!("invalid kernel: {error}"))?;
        return add_kernel(workload, line);
    }
    if value.get("tensor").is_none() {
        return Err("the line describes neither a tensor nor a kernel".to_owned());
    }
    let line: TensorLine = serde_json::from_value(value).map_err(|error| format!("invalid tensor: {error}"))?;
    if line.tensor != workload.tensors.len() {
        return Err(format!("tensor {} is out of order; expected tensor {}", line.tensor, workload.tensors.len()));
    }
    if !workload.kernels.is_empty() {
        return Err(format!("tensor {} comes after kernels; tensors must come first", line.tensor));
    }
    workload.tensors.push(Tensor { size_bytes: line.size_bytes, persistent: line.persistent });
    Ok(())
}

fn add_kernel(workload: &mut Workload, line: KernelLine) -> Result<(), String> {
    if line.kernel != workload.kernels.len() {
        return Err(format!("kernel {} is out of order; expected kernel {}", line.kernel, workload.kernels.len()));
    }
    for (what, list) in [("reads", &line.reads), ("writes", &line.writes)] {
        if let Some(tensor) = list.iter().find(|tensor| **tensor >= workload.tensors.len()) {
            return Err(format!(
                "kernel {} {what} tensor {tensor}, but there are only {} tensors",
                line.kernel,
                workload.tensors.len()
            ));
        }
        if !list.is_sorted_by(|left, right| left < right) {
            return Err(format!("kernel {}: {what} must be in ascending order without duplicates", line.kernel));
        }
    }
    workload.kernels.push(Kernel {
        name: line.name,
        duration_ns: line.duration_ns,
        reads: line.reads,
        writes: line.writes,
        workspace_bytes: line.workspace_bytes,
    });
    Ok(())
}
