//! Progress of training: a bar on a terminal, else plain lines.

use std::io::IsTerminal;
use std::time::Duration;

use forebay::format_bytes;
use forebay::StepReport;
use indicatif::{ProgressBar, ProgressStyle};

use crate::escape::escaped;
use crate::output;

/// At most about this many plain lines are printed.
const LINES_MAX: u64 = 100;

/// Shows steps as they are done.
pub struct Progress {
    bar: Option<ProgressBar>,
    steps: u64,
    /// Plain lines go to standard error, because standard output holds one JSON object.
    json: bool,
}

impl Progress {
    /// Progress from `first` (steps done before) to `steps`.
    pub fn new(first: u64, steps: u64, json: bool) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps);
            // The template is a constant; should it ever be wrong, the default bar is good enough.
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left") {
                bar.set_style(style);
            }
            bar.set_position(first);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress { bar, steps, json }
    }

    /// Shows a step; `peak_bytes` is the device memory used at most so far.
    pub fn step(&self, report: &StepReport, peak_bytes: u64) {
        let memory = format_bytes(peak_bytes);
        let message = format!("loss {:.6}  {:.3} s/step  {memory}", report.loss, report.seconds);
        match &self.bar {
            Some(bar) => {
                bar.set_position(report.step);
                bar.set_message(message);
            }
            None => {
                let every = self.steps.div_ceil(LINES_MAX);
                if report.step == 1 || report.step % every == 0 || report.step == self.steps {
                    self.line(&format!("step {}/{}  {message}", report.step, self.steps));
                }
            }
        }
    }

    /// Prints a line next to the progress.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(escaped(text)),
            None if self.json => output::complain(text),
            None => output::say(text),
        }
    }

    /// Leaves the last state on the screen.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.abandon();
        }
    }
}
