//! Progress of training, as a bar on a terminal or else plain lines, and an indicator for long operations.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay::StepReport;
use forebay::format_bytes;
use indicatif::{ProgressBar, ProgressStyle};

use crate::escape::escaped;
use crate::output;

/// The approximate maximum number of plain lines printed.
const LINES_MAX: u64 = 100;

/// Operations that take longer show an indicator.
const QUIET: Duration = Duration::from_secs(2);

/// Shows on a terminal that a long operation is in progress, until the value is dropped.
pub struct Waiting {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Starts a wait, during which `what` is being done.
    pub fn new(what: &str) -> Waiting {
        if !std::io::stderr().is_terminal() || output::is_silent() {
            return Waiting { done: None, thread: None };
        }
        let (done, wait) = channel();
        let what = escaped(what).into_owned();
        let show = move || {
            if wait.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                let spinner = ProgressBar::new_spinner().with_message(what);
                spinner.enable_steady_tick(Duration::from_millis(200));
                // Ends when the other side is dropped.
                let _ = wait.recv();
                spinner.finish_and_clear();
            }
        };
        // Without a thread, there is just no indicator.
        let thread = std::thread::Builder::new().spawn(show).ok();
        Waiting { done: Some(done), thread }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Shows steps as they are done.
pub struct Progress {
    bar: Option<ProgressBar>,
    steps: u64,
    /// Plain lines go to standard error, because standard output holds one JSON object.
    json: bool,
}

impl Progress {
    /// Creates the progress from `first` (steps done before) to `steps`.
    pub fn new(first: u64, steps: u64, json: bool) -> Progress {
        let is_shown = std::io::stderr().is_terminal() && !output::is_silent();
        let bar = is_shown.then(|| {
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

    /// Shows a step; `peak_bytes` is the peak device memory so far.
    pub fn step(&self, report: &StepReport, peak_bytes: u64) {
        let memory = format_bytes(peak_bytes);
        let StepReport { loss, learning_rate, seconds, .. } = report;
        let norm = report.gradient_norm.map_or(String::new(), |norm| format!("  norm {}", short(norm)));
        let message = format!("loss {loss:.6}  rate {}{norm}  {seconds:.3} s/step  {memory}", short(*learning_rate));
        match &self.bar {
            Some(bar) => {
                bar.set_position(report.step);
                bar.set_message(message);
            }
            None => {
                let every = self.steps.div_ceil(LINES_MAX);
                if report.step == 1 || report.step.is_multiple_of(every) || report.step == self.steps {
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

/// Formats a number with four digits.
fn short(number: f32) -> String {
    let rounded: f32 = format!("{number:.3e}").parse().unwrap_or(number);
    if rounded == 0.0 || rounded >= 1e-4 {
        return rounded.to_string();
    }
    format!("{rounded:e}")
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 0.1, 0.034978963, 1e-4, 3.4567e-6, 12.0].map(short),
            ["0", "0.1", "0.03498", "0.0001", "3.457e-6", "12"]
        );
    }
}
