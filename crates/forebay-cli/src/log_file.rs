//! The record of a run: a line for each step and each validation, as JSON or as a table.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use forebay::{StepReport, files};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output;

/// The keys, which are also the columns of the table.
const KEYS: [&str; 13] = [
    "kind",
    "step",
    "epoch",
    "loss",
    "learning_rate",
    "gradient_norm",
    "skipped",
    "seconds",
    "data_seconds",
    "device_peak_bytes",
    "resident_peak_bytes",
    "accuracy",
    "dice_mean",
];
/// The metric that is a matrix.
const CONFUSION: &str = "confusion";
/// The maximum length of an earlier run's record that is read.
const EARLIER_BYTES_MAX: u64 = 4 << 30;

/// The format of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Table,
}

/// A record that is being written.
pub struct LogFile {
    path: PathBuf,
    file: BufWriter<File>,
    form: Form,
    /// The validation metrics, in the order of the columns.
    metrics: Vec<String>,
    /// The step of the validation that the earlier record ends with. A run that resumes from its end validates there again.
    validated: Option<u64>,
    /// Whether a line could not be written, after which no further lines are.
    is_broken: bool,
}

impl LogFile {
    /// Checks that [`LogFile::new`] can continue an earlier record, without changing anything.
    ///
    /// # Errors
    /// Fails if the file holds something other than such a record.
    pub fn check(path: &Path, done: u64, metrics: Vec<String>) -> Result<(), Failure> {
        let (form, _, header) = layout(path, metrics);
        kept(path, form, header.as_deref(), done).map(drop)
    }

    /// Starts a record of steps and of validations with these metrics. Lines of an earlier record are kept up to step `done`, if the run
    /// resumes from there.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or holds something other than such a record.
    pub fn new(path: &Path, done: u64, metrics: Vec<String>) -> Result<LogFile, Failure> {
        let (form, metrics, header) = layout(path, metrics);
        let earlier = kept(path, form, header.as_deref(), done)?;
        let validated = earlier.last().filter(|line| is_validation(line, form)).and_then(|line| step_of(line, form));
        let text: String = header.into_iter().chain(earlier).map(|line| line + "\n").collect();
        let opened = opened_alone(path).and_then(|mut file| {
            let is_regular = file.metadata()?.is_file();
            if done > 0 && is_regular {
                // Lines of the earlier record are not lost if this process dies now.
                files::write(path, text.as_bytes())?;
                return opened_alone(path);
            }
            if is_regular {
                file.set_len(0)?;
            }
            file.write_all(text.as_bytes()).map(|()| file)
        });
        let file = BufWriter::new(opened.map_err(|error| output::refused(path, &error))?);
        Ok(LogFile { path: path.to_owned(), file, form, metrics, validated, is_broken: false })
    }

    /// Writes a line. A failure to write is reported once, and training continues.
    pub fn line(&mut self, line: &Value) {
        let is_repeated = line["kind"] == "validation" && self.validated.is_some_and(|step| line["step"] == step);
        if self.is_broken || is_repeated {
            return;
        }
        let mut keys = columns(&self.metrics).into_iter();
        let text = match self.form {
            Form::Json => {
                let known = keys.filter(|key| line.get(*key).is_some_and(|value| !value.is_null()));
                let pairs: Vec<String> = known.map(|key| format!("\"{key}\":{}", line[key])).collect();
                format!("{{{}}}", pairs.join(","))
            }
            Form::Table => keys.by_ref().map(|key| cell(line.get(key))).collect::<Vec<_>>().join(","),
        };
        if let Err(error) = writeln!(self.file, "{text}").and_then(|()| self.file.flush()) {
            self.is_broken = true;
            let failure = output::refused(&self.path, &error);
            output::complain(&format!("warning: {failure}; training continues without it"));
        }
    }
}

/// Opens a file for appending, and locks it if it is a regular file: lines of two runs would mix. The lock ends with the file. Some file
/// systems have no locks.
fn opened_alone(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let is_locked = file.metadata()?.is_file() && matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    match is_locked {
        true => Err(std::io::Error::other("another run is writing to it (wait for it to end, or name another file)")),
        false => Ok(file),
    }
}

/// Returns the line of a step, which waited `data_seconds` for its batch.
pub fn step_line(
    report: &StepReport,
    epoch: u64,
    data_seconds: f64,
    device_peak_bytes: u64,
    resident_peak_bytes: Option<u64>,
) -> Value {
    let StepReport { step, loss, learning_rate, gradient_norm, skipped, seconds, .. } = *report;
    json!({
        "kind": "step",
        "step": step,
        "epoch": epoch,
        "loss": loss,
        "learning_rate": learning_rate,
        "gradient_norm": gradient_norm,
        "skipped": skipped,
        "seconds": seconds,
        "data_seconds": data_seconds,
        "device_peak_bytes": device_peak_bytes,
        "resident_peak_bytes": resident_peak_bytes,
    })
}

/// Returns the line of a validation after a step, with its numbers.
pub fn validation_line(step: u64, epoch: u64, numbers: &Value) -> Value {
    let mut line = json!({ "kind": "validation", "step": step, "epoch": epoch });
    for key in ["loss", "accuracy", "dice_mean"] {
        line[key] = numbers.get(key).cloned().unwrap_or_default();
    }
    let metrics = numbers.get("metrics").and_then(Value::as_object);
    metrics.into_iter().flatten().for_each(|(name, value)| line[name] = value.clone());
    line
}

/// Returns the format of a record in this file, its metrics, and the header of a table.
fn layout(path: &Path, metrics: Vec<String>) -> (Form, Vec<String>, Option<String>) {
    let form = match path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
        true => Form::Table,
        false => Form::Json,
    };
    // A matrix does not fit in a table, and a metric can be one of the columns that are always there.
    let is_column = |name: &String| form == Form::Json || (name != CONFUSION && !KEYS.contains(&name.as_str()));
    let metrics: Vec<String> = metrics.into_iter().filter(is_column).collect();
    let header = (form == Form::Table).then(|| columns(&metrics).join(","));
    (form, metrics, header)
}

/// Returns the keys, which are also the columns, in order.
fn columns(metrics: &[String]) -> Vec<&str> {
    let more = metrics.iter().map(String::as_str).filter(|name| !KEYS.contains(name));
    KEYS.into_iter().chain(more).collect()
}

/// Formats a value for a table; a missing value is empty.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

/// Returns the lines of an earlier record, if any, up to step `done`.
fn kept(path: &Path, form: Form, header: Option<&str>, done: u64) -> Result<Vec<String>, Failure> {
    if done == 0 || !path.is_file() {
        return Ok(Vec::new());
    }
    let refuse = |reason: String| Failure::Failed(format!("cannot continue {}: {reason}", path.display()));
    let text = forebay_limits::read_text(path, EARLIER_BYTES_MAX).map_err(|error| refuse(error.to_string()))?;
    let mut lines = text.lines();
    if header.is_some_and(|header| lines.next().is_some_and(|line| line != header)) {
        return Err(refuse("its columns differ from those of this run (use --log to choose another file)".to_owned()));
    }
    // A process that was killed may have left an incomplete line.
    Ok(lines.filter(|line| step_of(line, form).is_some_and(|step| step <= done)).map(str::to_owned).collect())
}

/// Returns the step of a line, or `None` if the line is incomplete.
fn step_of(line: &str, form: Form) -> Option<u64> {
    match form {
        Form::Json => serde_json::from_str::<Value>(line).ok()?.get("step")?.as_u64(),
        Form::Table => line.split(',').nth(1)?.parse().ok(),
    }
}

/// Returns whether a line is that of a validation.
fn is_validation(line: &str, form: Form) -> bool {
    line.starts_with(match form {
        Form::Json => "{\"kind\":\"validation\"",
        Form::Table => "validation,",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_goes_on_where_the_checkpoint_is() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = json!({ "confusion": [[1, 0], [2, 3]], "f1": 0.25, "top5": null });
        let numbers = json!({ "loss": 0.5, "accuracy": null, "dice": [], "metrics": metrics });
        let names = || ["f1", "confusion", "accuracy", "top5"].map(str::to_owned).to_vec();
        for (name, header) in [("log.jsonl", 0), ("log.csv", 1)] {
            let path = folder.path().join(name);
            let mut log = LogFile::new(&path, 0, names()).unwrap();
            (1..=4).for_each(|step| log.line(&validation_line(step, 1, &numbers)));
            drop(log);
            let mut text = std::fs::read_to_string(&path).unwrap();
            text.push_str("{\"kind\":\"st");
            std::fs::write(&path, text).unwrap();
            let mut log = LogFile::new(&path, 2, names()).unwrap();
            (2..=3).for_each(|step| log.line(&validation_line(step, 2, &numbers)));
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().skip(header).collect();
            let expected = match name {
                "log.jsonl" => {
                    "{\"kind\":\"validation\",\"step\":3,\"epoch\":2,\"loss\":0.5,\"f1\":0.25,\"confusion\":[[1,0],[2,3]]}"
                }
                _ => "validation,3,2,0.5,,,,,,,,,,0.25,",
            };
            assert_eq!((lines.len(), lines[2]), (3, expected), "{text}");
            let refused = LogFile::new(&path, 0, names()).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert!(refused.contains("another run is writing to it"), "{refused}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "the record is as it was");
            drop(log);
            LogFile::new(&path, 0, names()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), header, "a new run begins again");
        }
        let other = folder.path().join("other.csv");
        std::fs::write(&other, "a,b\n1,2\n").unwrap();
        let error = LogFile::new(&other, 1, Vec::new()).err().unwrap().to_string();
        assert!(error.contains("other.csv") && error.contains("columns"), "{error}");
    }
}
