//! The result of a bench: what was measured, when, where and how, and the figures.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::table::{Cell, Table};

/// The name of the format. A change that older readers cannot read gets a new number.
pub const SCHEMA: &str = "forebay-bench-1";

/// One run of a bench. Fields that are not known are `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// The name of the bench, which is also that of its folder: lower-case letters, digits and `-`.
    pub bench: String,
    /// What was measured, in a few words.
    pub what: String,
    /// When the bench ended: a date, or a date and time with its zone, as in RFC 3339.
    #[serde(deserialize_with = "stated")]
    pub when: Option<String>,
    /// The commit that was measured, followed by `-modified` if the working tree differed from it.
    #[serde(deserialize_with = "stated")]
    pub commit: Option<String>,
    /// The command that repeats the run, from the repository's root.
    #[serde(deserialize_with = "stated")]
    pub command: Option<String>,
    /// The machine that the bench ran on.
    #[serde(deserialize_with = "stated")]
    pub machine: Option<Machine>,
    /// The versions of other software that took part, by name.
    #[serde(default)]
    pub software: BTreeMap<String, String>,
    /// What else is needed to judge the figures: rounds, load of the machine, kind of build.
    #[serde(default)]
    pub conditions: Option<String>,
    /// The figures.
    pub tables: Vec<Table>,
}

/// Reads a field that can be `null` but must be present: a record says that something is not known instead of leaving it out.
fn stated<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}

impl Record {
    /// Creates a record of this moment, machine and commit, without figures. The command is followed by the bench's arguments, in which
    /// absolute paths are cut to their last part.
    pub fn new(bench: &str, what: &str, command: &str, arguments: &[String]) -> Record {
        let words = std::iter::once(command.to_owned()).chain(arguments.iter().map(|word| without_path(word)));
        Record {
            schema: SCHEMA.to_owned(),
            bench: bench.to_owned(),
            what: what.to_owned(),
            when: Some(now()),
            commit: commit(),
            command: Some(words.collect::<Vec<_>>().join(" ")),
            machine: Some(Machine::here()),
            software: BTreeMap::new(),
            conditions: None,
            tables: Vec::new(),
        }
    }

    /// Returns the record with one more table.
    pub fn with(mut self, table: Table) -> Record {
        self.tables.push(table);
        self
    }

    /// Returns the record with this description of its conditions.
    pub fn under(mut self, conditions: impl Into<String>) -> Record {
        self.conditions = Some(conditions.into());
        self
    }

    /// Reads a record. Fields that say when, where and at which commit, including those of the machine, are filled in for this moment if
    /// the text lacks them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn completed(text: &str) -> Result<Record, String> {
        let mut value: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let fields = value.as_object_mut().ok_or("a record must be a JSON object")?;
        if let Some(serde_json::Value::String(command)) = fields.get_mut("command") {
            *command = command.split(' ').map(without_path).collect::<Vec<_>>().join(" ");
        }
        let mut absent = |name: &str, of_now: fn() -> serde_json::Value| {
            if !fields.contains_key(name) {
                fields.insert(name.to_owned(), of_now());
            }
        };
        absent("schema", || SCHEMA.into());
        absent("when", || now().into());
        absent("commit", || commit().into());
        absent("machine", || serde_json::Map::new().into());
        if let Some(machine) = fields.get_mut("machine").and_then(|machine| machine.as_object_mut()) {
            let here = serde_json::to_value(Machine::here()).map_err(|error| error.to_string())?;
            for (name, value) in here.as_object().into_iter().flatten() {
                machine.entry(name.as_str()).or_insert_with(|| value.clone());
            }
        }
        Record::read(&value.to_string())
    }

    /// Reads a record and checks it.
    ///
    /// # Errors
    /// If a field is wrong. The error names the field, and what is wrong with it.
    pub fn read(text: &str) -> Result<Record, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        let record: Record = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let (path, inner) = (error.path().to_string(), error.inner());
            if path == "." { inner.to_string() } else { format!("{path}: {inner}") }
        })?;
        json.end().map_err(|error| format!("unexpected text after the record: {error}"))?;
        record.check()?;
        Ok(record)
    }

    /// Checks that every field is meaningful.
    ///
    /// # Errors
    /// If a field is not. The error names the field and the reason.
    pub fn check(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!("schema: \"{}\" is not known; expected \"{SCHEMA}\"", self.schema));
        }
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.bench.is_empty() || !self.bench.chars().all(is_name) {
            return Err(format!("bench: \"{}\" is not a name of lower-case letters, digits and '-'", self.bench));
        }
        if let Some(when) = self.when.as_deref().filter(|when| !is_moment(when)) {
            return Err(format!("when: \"{when}\" is neither a date nor a date and time, as in 2026-11-23T14:18:43Z"));
        }
        let mut names = BTreeSet::new();
        for (index, table) in self.tables.iter().enumerate() {
            let at = format!("tables[{index}]");
            if !names.insert(&table.name) {
                return Err(format!("{at}.name: two tables are named \"{}\"", table.name));
            }
            if table.columns.is_empty() {
                return Err(format!("{at}.columns: table \"{}\" has no columns", table.name));
            }
            for (number, row) in table.rows.iter().enumerate() {
                let (cells, columns) = (row.len(), table.columns.len());
                if cells != columns {
                    return Err(format!("{at}.rows[{number}]: {cells} cells for {columns} columns"));
                }
                if let Some(place) = row.iter().position(|cell| matches!(cell, Cell::Text(text) if has_path(text))) {
                    return Err(format!("{at}.rows[{number}][{place}]: contains a path of this machine"));
                }
            }
        }
        let machine = self.machine.clone().unwrap_or_default();
        let texts = [
            ("what", Some(&self.what)),
            ("command", self.command.as_ref()),
            ("conditions", self.conditions.as_ref()),
            ("machine.cpu", machine.cpu.as_ref()),
            ("machine.gpu", machine.gpu.as_ref()),
            ("machine.driver", machine.driver.as_ref()),
            ("machine.os", machine.os.as_ref()),
        ];
        let found = texts.into_iter().find(|(_, text)| text.is_some_and(|text| has_path(text)));
        match found {
            Some((field, _)) => Err(format!("{field}: contains a path of this machine")),
            None => Ok(()),
        }
    }
}

/// The current time, to the second.
fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// Whether a text is a date, or a date and time with a zone. Dates are judged as times at midnight, and other zones as UTC.
fn is_moment(text: &str) -> bool {
    let (date, time) = text.split_at_checked(10).unwrap_or((text, ""));
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let utc = match time.rfind(['Z', '+', '-']).map(|at| time.split_at(at)) {
        _ if time.is_empty() => format!("{date}T00:00:00Z"),
        Some((time, "Z")) => format!("{date}{time}Z"),
        Some((time, zone)) if zone[1..].split_once(':').is_some_and(|(h, m)| digits(h) && digits(m)) => {
            format!("{date}{time}Z")
        }
        _ => return false,
    };
    humantime::parse_rfc3339(&utc).is_ok()
}

/// The commit of the working tree; `None` outside a repository.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        let output = command.current_dir(crate::file::repository()).args(arguments).output().ok();
        let output = output.filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    let head = git(&["rev-parse", "HEAD"])?;
    // New records, documents and pictures do not change what is measured.
    let code = ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.md", ":!*.svg", ":!benches/results"];
    let changes = git(&code)?;
    Some(if changes.is_empty() { head } else { format!("{head}-modified") })
}

/// Whether a word of the text is a path from the root of a file system, or of a home folder.
fn has_path(text: &str) -> bool {
    text.split([' ', '=', '\'', '"', '(', ',']).any(is_path)
}

fn is_path(word: &str) -> bool {
    let mut characters = word.chars();
    matches!(characters.next(), Some('/' | '~')) && characters.next().is_some_and(|c| c.is_alphanumeric() || c == '/')
}

/// A word of a command, in which a path into the repository starts at its root, and any other absolute path is cut to its last part.
fn without_path(word: &str) -> String {
    let (before, path) = match word.split_once('=') {
        Some((flag, path)) if !flag.is_empty() => (format!("{flag}="), path),
        _ => (String::new(), word),
    };
    let (before, path) = match path.strip_prefix(['\'', '"']) {
        Some(rest) => (before + &path[..1], rest),
        None => (before, path),
    };
    if !is_path(path) {
        return word.to_owned();
    }
    let inside = std::path::Path::new(path).strip_prefix(crate::file::repository()).ok();
    let inside = inside.map(|inside| inside.to_string_lossy().into_owned());
    let last = || path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    before + &inside.unwrap_or_else(last)
}

#[cfg(test)]
mod tests;
