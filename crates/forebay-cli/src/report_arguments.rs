//! The flags of reports and traces.

// Help texts are plain text.
#![allow(rustdoc::bare_urls)]

use std::path::PathBuf;

use clap::Args;

/// The flags of every command that reports numbers.
#[derive(Args, Debug)]
#[command(next_help_heading = "Report")]
pub struct ReportArguments {
    /// Print a single JSON object to standard output, and nothing else
    ///
    /// Keys: steps (each with loss, learning_rate, gradient_norm if known, skipped, data_seconds (spent waiting for its batch), seconds,
    /// stall_seconds and late_copies), data_seconds (the total), batch_size, bad_samples (skipped), seconds_median, device_budget_bytes
    /// (null without a budget), device_peak_bytes (measured; planned for `plan`), resident_peak_bytes (of the whole process, as the system
    /// counts it; after steps), memory_limit_bytes (null without a limit), peak (what holds memory, by kind), repeats and repeated_seconds
    /// (launches that are recomputed, as planned), in_core_peak_bytes (memory without a budget), minimum_budget_bytes (null if a limit on
    /// the process leaves room for everything), bytes_to_device, bytes_from_device, host_bytes (of host memory, planned), spill_bytes (on
    /// disk), bytes_to_disk, bytes_from_disk, model_files_bytes (of weights that stay in the model's files) and bytes_from_model_files (read
    /// there, a part of bytes_from_disk), launches, host_launches (those that run on the host because the device cannot run them) and
    /// host_launch_bytes (copied for them), host_updates (those that --updates host runs on the host), barriers, waits (all per step),
    /// stall_seconds (time of a step in which no kernel ran; the median), late_copies and late_seconds (copies to the device that kernels
    /// waited for, and the part of the stall that they cost; medians), processes (what several processes share out and exchange; otherwise
    /// null). With managed memory (--memory), moved bytes are measured (the median), and each step also has: faults (units that were not on
    /// the device when launches needed them), evictions, prefetches (both in units), memory_stalls (how often the host waited to move a
    /// unit) and memory_stall_seconds (how long). After training with --validate: validation, and validations (all of them, with their
    /// steps). After training with a budget, without --no-compare: comparison (with steps without a budget).
    #[arg(long)]
    pub json: bool,
}

/// A trace file.
#[derive(Args, Debug)]
#[command(next_help_heading = "Report")]
pub struct TraceArguments {
    /// Write a trace of when every command ran, for https://ui.perfetto.dev, with a row for each stream and a memory counter
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
}
