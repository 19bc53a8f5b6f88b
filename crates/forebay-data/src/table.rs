//! Tables: columns of files, with rows in any order.
//!
//! A column is named by its path in the schema (`image.bytes`). A list of numbers has the same length in every row.

use std::ops::Range;
use std::path::Path;

use forebay_base::{DataType, Tensor};

use crate::error::DataError;
use crate::table_files::Format;

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Column {
    /// Its path.
    pub(crate) name: String,
    /// The kind of its values; `None` for types that are not read.
    pub(crate) kind: Option<Kind>,
    /// Whether a row has a list of values.
    pub(crate) is_list: bool,
    /// Its index among the columns of the file.
    pub(crate) leaf: usize,
}

/// The kind of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers.
    Numbers(DataType),
    /// Bytes or text.
    Bytes,
}

/// Returns a list of the columns, in words.
pub(crate) fn listed(columns: &[Column]) -> String {
    let column = |column: &Column| {
        let what = match column.kind {
            Some(Kind::Numbers(data_type)) => data_type.to_string(),
            Some(Kind::Bytes) => "bytes".to_owned(),
            None => "of an unsupported type".to_owned(),
        };
        format!("{} ({what}{})", column.name, if column.is_list { ", a list" } else { "" })
    };
    columns.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// Consecutive rows of a file.
pub(crate) struct Run {
    /// The rows.
    pub(crate) rows: Range<u64>,
    /// The requested rows among them, each with its index among all requested rows.
    pub(crate) at: Vec<(u64, usize)>,
}

/// Sorts rows into the order of the files. Returns the runs in each part, with the index of the part. `part` returns the index of a row's
/// part, and the part's rows.
pub(crate) fn in_order(rows: &[u64], part: &dyn Fn(u64) -> (usize, Range<u64>)) -> Vec<(usize, Vec<Run>)> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&at| rows[at]);
    let mut parts: Vec<(usize, Vec<Run>)> = Vec::new();
    let mut end = 0;
    for at in order {
        let row = rows[at];
        if parts.is_empty() || row >= end {
            let (number, rows) = part(row);
            end = rows.end;
            parts.push((number, Vec::new()));
        }
        let Some((_, runs)) = parts.last_mut() else { continue };
        match runs.last_mut().filter(|run| row <= run.rows.end) {
            Some(run) => {
                run.rows.end = row + 1;
                run.at.push((row, at));
            }
            None => runs.push(Run { rows: row..row + 1, at: vec![(row, at)] }),
        }
    }
    parts
}

/// Receives a row: its index among the requested rows, the bytes of its values, and its name in errors.
pub(crate) type TakeRow<'a> = &'a mut dyn FnMut(usize, Vec<u8>, String);

/// A sequence of files with the same schema.
pub(crate) trait Files {
    /// Returns the format of the files.
    fn format(&self) -> Format;

    /// Returns the paths of the files.
    fn paths(&self) -> Vec<&Path>;

    /// Returns the number of rows.
    fn rows(&self) -> u64;

    /// Returns the name of a part of the files in the singular and the plural, and the number of parts.
    fn parts(&self) -> (&'static str, &'static str, usize);

    /// Returns the columns in their order.
    fn columns(&self) -> &[Column];

    /// Calls `take` with the values of each of `rows`, which are all below the number of rows.
    ///
    /// # Errors
    /// [`DataError`] naming the file, the rows and the byte if the file is damaged, or a row has no value.
    fn each(&self, column: &Column, rows: &[u64], take: TakeRow) -> Result<(), DataError>;
}

/// The rows of all files.
pub(crate) struct Table(Box<dyn Files + Send>);

impl Table {
    /// Creates the table of these files.
    pub(crate) fn of(files: impl Files + Send + 'static) -> Table {
        Table(Box::new(files))
    }

    /// Returns a description of the files, in words.
    pub(crate) fn described(&self) -> String {
        let (format, files, (part, several, parts)) = (self.name(), self.0.paths().len(), self.0.parts());
        let (end, parts_named) = (if files == 1 { "" } else { "s" }, if parts == 1 { part } else { several });
        format!("{files} {format} file{end} of {parts} {parts_named}")
    }

    /// Returns the name of the files' format.
    pub(crate) fn name(&self) -> &'static str {
        self.0.format().name()
    }

    /// Returns the paths of the files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> + Clone {
        self.0.paths().into_iter()
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.0.rows()
    }

    /// Returns the columns in their order.
    pub(crate) fn columns(&self) -> &[Column] {
        self.0.columns()
    }

    /// Returns the column whose path is `name`, or its `bytes` if it has a path as well (like images of `datasets`), or the only column
    /// below it.
    pub(crate) fn find(&self, name: &str) -> Option<&Column> {
        let below = |column: &&Column| column.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        let mut all = self.columns().iter().filter(below);
        let only = all.next().filter(|_| all.next().is_none());
        let exact = |name: &str| self.columns().iter().find(|column| column.name == name);
        exact(name).or_else(|| exact(&format!("{name}.bytes"))).or(only)
    }

    /// Returns the name of a column in errors.
    pub(crate) fn origin(&self, column: &Column) -> String {
        format!("{}[{}]", self.paths().next().unwrap_or(Path::new("")).display(), column.name)
    }

    /// Returns a list of the columns, in words.
    pub(crate) fn listed(&self) -> String {
        listed(self.columns())
    }

    /// Returns rows of a column of numbers, in the order given, as `[rows, values of each]`.
    ///
    /// # Errors
    /// [`DataError`] naming the file, the rows and the byte if the file is damaged, a row has no value, or rows differ in length.
    ///
    /// # Panics
    /// If a row is out of range, or the column does not hold numbers.
    pub(crate) fn numbers(&self, column: &Column, rows: &[u64]) -> Result<Tensor, DataError> {
        let Some(Kind::Numbers(data_type)) = column.kind else { panic!("{} has no numbers", column.name) };
        let mut found: Vec<Vec<u8>> = vec![Vec::new(); rows.len()];
        self.0.each(column, rows, &mut |at, bytes, _| found[at] = bytes)?;
        let lengths: Vec<usize> = found.iter().map(Vec::len).collect();
        let length = lengths.first().copied().unwrap_or(0);
        if let Some(other) = lengths.iter().position(|&other| other != length) {
            let size = data_type.size_bytes() as usize;
            let reason = format!(
                "sample {} has {} values, but sample {} has {}",
                rows[0],
                length / size,
                rows[other],
                lengths[other] / size
            );
            return Err(DataError::malformed(self.origin(column), reason));
        }
        let shape = [rows.len() as u64, length as u64 / data_type.size_bytes()];
        Ok(Tensor::new(data_type, &shape, found.concat()).expect("as many bytes as values"))
    }

    /// Returns rows of a column of bytes, in the order given.
    ///
    /// # Errors
    /// [`DataError`] naming the file, the rows and the byte if the file is damaged, or a row has no value.
    ///
    /// # Panics
    /// If a row is out of range.
    pub(crate) fn bytes(&self, column: &Column, rows: &[u64]) -> Result<Vec<(Vec<u8>, String)>, DataError> {
        let mut found = vec![(Vec::new(), String::new()); rows.len()];
        self.0.each(column, rows, &mut |at, bytes, origin| found[at] = (bytes, origin))?;
        Ok(found)
    }
}
