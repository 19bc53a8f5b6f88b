//! The text of a record, and where it is written.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use crate::record::Record;

/// The arguments of a bench.
#[derive(Debug)]
pub struct Arguments {
    /// All arguments except the record's path.
    pub words: Vec<String>,
    /// `--output FILE`.
    pub output: Option<PathBuf>,
}

/// Returns the arguments of a bench that Cargo runs, without Cargo's own `--bench`.
///
/// # Errors
/// If there is no file after `--output`.
pub fn arguments() -> Result<Arguments, String> {
    separated(std::env::args().skip(1))
}

fn separated(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut found = Arguments { words: Vec::new(), output: None };
    let mut words = words.filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        if word == "--output" {
            let file = words.next().ok_or("--output needs a file; /dev/null keeps no record")?;
            found.output = Some(PathBuf::from(file));
        } else if let Some(file) = word.strip_prefix("--output=") {
            found.output = Some(PathBuf::from(file));
        } else {
            found.words.push(word);
        }
    }
    Ok(found)
}

/// Returns the repository's root.
pub fn repository() -> &'static Path {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.parent().and_then(Path::parent).unwrap_or(folder)
}

/// Returns the folder of the records.
pub fn results_folder() -> PathBuf {
    repository().join("benches/results")
}

impl Record {
    /// Returns the record as JSON, with the rows and columns of tables on a line each, so that diffs between versions are readable.
    ///
    /// # Errors
    /// As [`check`](Record::check).
    pub fn text(&self) -> Result<String, String> {
        self.check()?;
        let lines = self.lines().map_err(|error| error.to_string())?;
        Ok(format!("{{\n{}\n}}\n", indented(lines, 2)))
    }

    /// Returns a line for each field, in the schema's order.
    fn lines(&self) -> serde_json::Result<Vec<String>> {
        let mut tables = Vec::new();
        for table in &self.tables {
            let columns = table.columns.iter().map(spaced).collect::<serde_json::Result<Vec<_>>>()?;
            let rows = table.rows.iter().map(spaced).collect::<serde_json::Result<Vec<_>>>()?;
            let fields = vec![field("name", &table.name)?, list("columns", columns, 6), list("rows", rows, 6)];
            tables.push(format!("{{\n{}\n    }}", indented(fields, 6)));
        }
        Ok(vec![
            field("schema", &self.schema)?,
            field("bench", &self.bench)?,
            field("what", &self.what)?,
            field("when", &self.when)?,
            field("commit", &self.commit)?,
            field("command", &self.command)?,
            field("machine", &self.machine)?,
            field("software", &self.software)?,
            field("conditions", &self.conditions)?,
            list("tables", tables, 2),
        ])
    }

    /// Writes the record, whole or not at all, and returns its path. That is `output` (from the repository's root if it is relative), or
    /// else a file named after the moment in the bench's folder of `benches/results`.
    ///
    /// # Errors
    /// If the record does not pass its [`check`](Record::check) (the error contains its text, so that no figure is lost), or if the system
    /// reports an error.
    pub fn save(&self, output: Option<&Path>) -> Result<PathBuf, String> {
        let text = self.text().map_err(|error| format!("{error}\nThe record: {self:?}"))?;
        let path = match output {
            Some(path) => repository().join(path),
            None => self.own_path(),
        };
        if let (None, Some(folder)) = (output, path.parent()) {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}\n{text}", folder.display()))?;
        }
        forebay_files::write(&path, text.as_bytes()).map_err(|error| format!("{}: {error}\n{text}", path.display()))?;
        let shown = path.strip_prefix(repository()).unwrap_or(&path).display();
        eprintln!("recorded in {shown}; `cargo xtask results` renders it, `--output /dev/null` keeps no record");
        Ok(path)
    }

    /// Returns the path of a file in the bench's folder that does not exist yet.
    fn own_path(&self) -> PathBuf {
        let moment: String = self.when.as_deref().unwrap_or("undated").chars().filter(|&c| c != ':').collect();
        let folder = results_folder().join(&self.bench);
        let names = std::iter::once(moment.clone()).chain((2..).map(|number| format!("{moment}-{number}")));
        let mut paths = names.map(|name| folder.join(format!("{name}.json")));
        paths.find(|path| !path.exists()).unwrap_or_else(|| folder.join("record.json"))
    }
}

/// `"name": value` on one line.
fn field(name: &str, value: &impl Serialize) -> serde_json::Result<String> {
    Ok(format!("\"{name}\": {}", spaced(value)?))
}

/// `"name": [...]` with one item on each line.
fn list(name: &str, items: Vec<String>, indent: usize) -> String {
    match items.as_slice() {
        [] => format!("\"{name}\": []"),
        _ => format!("\"{name}\": [\n{}\n{}]", indented(items, indent + 2), " ".repeat(indent)),
    }
}

/// Items on a line each, separated by commas.
fn indented(items: Vec<String>, indent: usize) -> String {
    let lines: Vec<String> = items.into_iter().map(|item| " ".repeat(indent) + &item).collect();
    lines.join(",\n")
}

/// A value on one line, with spaces after commas and colons.
fn spaced(value: &impl Serialize) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaces))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Puts spaces after commas and colons.
struct Spaces;

impl Formatter for Spaces {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_taken_out_of_the_arguments() {
        let words = ["--bench", "a.onnx", "--output", "x.json", "--rounds", "3"].map(str::to_owned);
        let found = separated(words.into_iter()).unwrap();
        assert_eq!(found.words, ["a.onnx", "--rounds", "3"]);
        assert_eq!(found.output, Some(PathBuf::from("x.json")));
        let error = separated(["--output".to_owned()].into_iter()).unwrap_err();
        assert!(error.contains("--output needs a file"), "{error}");
    }

    #[test]
    fn relative_paths_start_at_the_repository() {
        assert!(repository().join("benches/record/Cargo.toml").exists());
    }
}
