//! Tables: columns of files, rows in any order.
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
    /// What its values are; none for types that are not read.
    pub(crate) kind: Option<Kind>,
    /// Whether a row has a list of values.
    pub(crate) is_list: bool,
    /// Its number among those of the file.
    pub(crate) leaf: usize,
}

/// What values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers.
    Numbers(DataType),
    /// Bytes, or text.
    Bytes,
}

/// The columns in words.
pub(crate) fn listed(columns: &[Column]) -> String {
    let column = |column: &Column| {
        let what = match column.kind {
            Some(Kind::Numbers(data_type)) => data_type.to_string(),
            Some(Kind::Bytes) => "bytes".to_owned(),
            None => "of another kind".to_owned(),
        };
        format!("{} ({what}{})", column.name, if column.is_list { ", a list" } else { "" })
    };
    columns.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// Rows that follow each other in a file.
pub(crate) struct Run {
    /// The rows.
    pub(crate) rows: Range<u64>,
    /// Those that were asked for, each with its place among all that were.
    pub(crate) at: Vec<(u64, usize)>,
}

/// Rows in the order of the files: the runs in each part, by its number. `part` tells the number of a row's part, and its rows.
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

/// Takes the values of a row: first its place among those that were asked for, then where it is.
pub(crate) type TakeRow<'a> = &'a mut dyn FnMut(usize, Vec<u8>, String);

/// Files of one schema, one behind the other.
pub(crate) trait Files {
    /// What they are called.
    fn format(&self) -> Format;

    /// Where they are.
    fn paths(&self) -> Vec<&Path>;

    /// All rows.
    fn rows(&self) -> u64;

    /// What one of these parts of all files is called, what several are, and how many there are.
    fn parts(&self) -> (&'static str, &'static str, usize);

    /// The columns in their order.
    fn columns(&self) -> &[Column];

    /// Calls `take` with the values of each row, each of which is below the number of all.
    ///
    /// # Errors
    /// [`DataError`] naming the file, the rows and the byte: damage, a row without a value.
    fn each(&self, column: &Column, rows: &[u64], take: TakeRow) -> Result<(), DataError>;
}

/// Rows of files.
pub(crate) struct Table(Box<dyn Files + Send>);

impl Table {
    /// The table of files.
    pub(crate) fn of(files: impl Files + Send + 'static) -> Table {
        Table(Box::new(files))
    }

    /// The files in words.
    pub(crate) fn described(&self) -> String {
        let (format, files, (part, several, parts)) = (self.name(), self.0.paths().len(), self.0.parts());
        let (end, parts_named) = (if files == 1 { "" } else { "s" }, if parts == 1 { part } else { several });
        format!("{files} {format} file{end} of {parts} {parts_named}")
    }

    /// What the files are called.
    pub(crate) fn name(&self) -> &'static str {
        self.0.format().name()
    }

    /// The files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> + Clone {
        self.0.paths().into_iter()
    }

    /// All rows.
    pub(crate) fn rows(&self) -> u64 {
        self.0.rows()
    }

    /// The columns in their order.
    pub(crate) fn columns(&self) -> &[Column] {
        self.0.columns()
    }

    /// The column of this name: its path, or the only one below it, or its `bytes` where it has a path, too (as images of `datasets` have).
    pub(crate) fn find(&self, name: &str) -> Option<&Column> {
        let below = |column: &&Column| column.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        let mut all = self.columns().iter().filter(below);
        let only = all.next().filter(|_| all.next().is_none());
        let exact = |name: &str| self.columns().iter().find(|column| column.name == name);
        exact(name).or_else(|| exact(&format!("{name}.bytes"))).or(only)
    }

    /// The columns in words.
    pub(crate) fn listed(&self) -> String {
        listed(self.columns())
    }

    /// Rows of a column of numbers, in the order given; `[rows, values of each]`.
    ///
    /// # Errors
    /// [`DataError`] naming the file, the rows and the byte: damage, a row without a value, rows of several lengths.
    ///
    /// # Panics
    /// If a row is out of range, or these are no numbers.
    pub(crate) fn numbers(&self, column: &Column, rows: &[u64]) -> Result<Tensor, DataError> {
        let Some(Kind::Numbers(data_type)) = column.kind else { panic!("{} has no numbers", column.name) };
        let mut found: Vec<Vec<u8>> = vec![Vec::new(); rows.len()];
        self.0.each(column, rows, &mut |at, bytes, _| found[at] = bytes)?;
        let lengths: Vec<usize> = found.iter().map(Vec::len).collect();
        let length = lengths.first().copied().unwrap_or(0);
        if let Some(other) = lengths.iter().position(|&other| other != length) {
            let size = data_type.size_bytes() as usize;
            let reason = format!(
                "sample {} has {} values, sample {} has {}",
                rows[0],
                length / size,
                rows[other],
                lengths[other] / size
            );
            let path = self.paths().next().unwrap_or(Path::new("")).display().to_string();
            return Err(DataError::malformed(format!("{path}[{}]", column.name), reason));
        }
        let shape = [rows.len() as u64, length as u64 / data_type.size_bytes()];
        Ok(Tensor::new(data_type, &shape, found.concat()).expect("as many bytes as values"))
    }

    /// Rows of a column of bytes, in the order given.
    ///
    /// # Errors
    /// [`DataError`] naming the file, the rows and the byte: damage, a row without a value.
    ///
    /// # Panics
    /// If a row is out of range.
    pub(crate) fn bytes(&self, column: &Column, rows: &[u64]) -> Result<Vec<(Vec<u8>, String)>, DataError> {
        let mut found = vec![(Vec::new(), String::new()); rows.len()];
        self.0.each(column, rows, &mut |at, bytes, origin| found[at] = (bytes, origin))?;
        Ok(found)
    }
}
