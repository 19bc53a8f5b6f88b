//! The records of a run: lines in a file, events for TensorBoard, and what a page at the end shows.

use std::path::Path;

use serde_json::Value;

use crate::event_file::EventFile;
use crate::failure::Failure;
use crate::log_file::LogFile;
use crate::record_arguments::RecordArguments;

/// Where lines go.
pub struct Records {
    log: Option<LogFile>,
    events: Option<EventFile>,
    /// All lines of this run, where a page at the end shows them.
    lines: Option<Vec<Value>>,
}

impl Records {
    /// No records.
    pub fn none() -> Records {
        Records { log: None, events: None, lines: None }
    }

    /// Begins the records that the flags ask for, of a run that goes on from step `done`, with these metrics of validations.
    ///
    /// # Errors
    /// A file that cannot be written, or that is none of these records.
    pub fn new(arguments: &RecordArguments, done: u64, metrics: Vec<String>) -> Result<Records, Failure> {
        let log = arguments.log.as_deref().map(|path: &Path| LogFile::new(path, done, metrics)).transpose()?;
        let events = arguments.tensorboard.as_deref().map(|folder| EventFile::new(folder, done)).transpose()?;
        Ok(Records { log, events, lines: arguments.report.is_some().then(Vec::new) })
    }

    /// Writes a line.
    pub fn line(&mut self, line: Value) {
        self.log.iter_mut().for_each(|log| log.line(&line));
        self.events.iter_mut().for_each(|events| events.line(&line));
        self.lines.iter_mut().for_each(|lines| lines.push(line.clone()));
    }

    /// The lines so far; none where nothing shows them.
    pub fn lines(&self) -> &[Value] {
        self.lines.as_deref().unwrap_or_default()
    }
}
