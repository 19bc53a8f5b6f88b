//! Columns of Arrow IPC files and streams, with rows in any order.

use std::path::Path;

use crate::arrow_layout::{columns, places};
use crate::arrow_messages::ArrowFile;
use crate::arrow_values::Opened;
use crate::error::DataError;
use crate::table::{Column, Files, Run, Table, TakeRow, in_order, listed};
use crate::table_files::{Format, files};

/// A sequence of Arrow files with the same schema.
struct ArrowFiles {
    files: Vec<ArrowFile>,
    /// For each record batch of all files: its file, its index in the file, its first row among all rows, and its number of rows.
    batches: Vec<(usize, usize, u64, u64)>,
    columns: Vec<Column>,
    /// For each column, the path to its field.
    paths: Vec<Vec<usize>>,
}

/// Opens the files that a path names, and reads their metadata.
///
/// # Errors
/// [`DataError`] naming the byte and the file: one that is not an Arrow file, is truncated, or has other columns than the first.
pub(crate) fn open(path: &Path) -> Result<Table, DataError> {
    let mut all = ArrowFiles { files: Vec::new(), batches: Vec::new(), columns: Vec::new(), paths: Vec::new() };
    for path in files(path, Format::Arrow)? {
        let mut file = ArrowFile::open(path)?;
        let (columns, paths): (Vec<Column>, Vec<Vec<usize>>) = columns(&file.fields).into_iter().unzip();
        if all.files.is_empty() {
            (all.columns, all.paths) = (columns, paths);
        } else if all.columns != columns || all.paths != paths {
            let reason =
                format!("it has the columns {}, but the first file has {}", listed(&columns), listed(&all.columns));
            return Err(DataError::malformed(file.path.display().to_string(), reason));
        }
        for (number, &(rows, _)) in file.batches.iter().enumerate().filter(|(_, (rows, _))| *rows > 0) {
            let first = all.rows();
            let sum = first.checked_add(rows);
            sum.ok_or_else(|| file.wrong(0, "it has more rows than can be counted"))?;
            all.batches.push((all.files.len(), number, first, rows));
        }
        file.batches.shrink_to_fit();
        all.files.push(file);
    }
    Ok(Table::of(all))
}

impl Files for ArrowFiles {
    fn format(&self) -> Format {
        Format::Arrow
    }

    fn paths(&self) -> Vec<&Path> {
        self.files.iter().map(|file| file.path.as_path()).collect()
    }

    fn rows(&self) -> u64 {
        self.batches.last().map_or(0, |(_, _, first, rows)| first + rows)
    }

    fn parts(&self) -> (&'static str, &'static str, usize) {
        ("record batch", "record batches", self.batches.len())
    }

    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn each(&self, column: &Column, rows: &[u64], take: TakeRow) -> Result<(), DataError> {
        let part = |row: u64| {
            let number = self.batches.partition_point(|(_, _, first, rows)| first + rows <= row);
            let (_, _, first, rows) = self.batches[number];
            (number, first..first + rows)
        };
        for (number, runs) in in_order(rows, &part) {
            let (file, batch, first, count) = self.batches[number];
            let files_first = self.batches.iter().find(|other| other.0 == file).map_or(0, |other| other.2);
            let file = &self.files[file];
            let place = file.batches[batch].1;
            let start = first - files_first;
            let origin = format!(
                "{}[{}], in rows {start}..{} at byte {}",
                file.path.display(),
                column.name,
                start + count,
                place.at
            );
            let opened = Opened::new(file, place)?;
            let wrong = |reason: String| DataError::malformed(&origin, reason);
            let places = places(&file.fields, &self.paths[column.leaf], &opened.batch).map_err(wrong)?;
            for Run { rows, at } in runs {
                let found = opened.values(&places, rows.start - first..rows.end - first, batch);
                let found = found.map_err(|(row, reason)| match row {
                    Some(row) => wrong(format!("row {}: {reason}", rows.start + row as u64 - files_first)),
                    None => wrong(reason),
                })?;
                for (row, at) in at {
                    let value = found.value((row - rows.start) as usize).to_vec();
                    take(at, value, format!("row {}, {origin}", row - files_first));
                }
            }
        }
        Ok(())
    }
}
