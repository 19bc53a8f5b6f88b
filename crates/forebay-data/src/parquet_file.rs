//! Columns of Parquet files: rows in any order, read by the crate `parquet`.
//!
//! A column is named by its path in the schema (`image.bytes`). A list of numbers has the same length in every row. Rows that are asked for
//! together are read in the order of the file, so that each page is unpacked once.

use std::path::{Path, PathBuf};

use bytes_of_values::Bytes;
use forebay_base::{DataType, Tensor};
use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType as Values;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::error::DataError;

/// Parquet files of one schema, one behind the other.
pub(crate) struct Table {
    files: Vec<(PathBuf, SerializedFileReader<std::fs::File>)>,
    groups: Vec<Group>,
    columns: Vec<Column>,
}

/// A row group.
struct Group {
    file: usize,
    number: usize,
    /// Its first row of all.
    first: u64,
    rows: u64,
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Column {
    /// Its path.
    pub(crate) name: String,
    /// What its values are; none for types that are not read.
    pub(crate) kind: Option<Kind>,
    /// Whether a row has a list of values.
    pub(crate) is_list: bool,
    leaf: usize,
    definition_max: i16,
}

/// What values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers.
    Numbers(DataType),
    /// Bytes, or text.
    Bytes,
}

/// Whether a name is that of a Parquet file.
pub(crate) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "parquet")
}

/// The files that a path names: itself, or those of a folder in the order of their names; empty where there are none.
///
/// # Errors
/// A folder that cannot be listed.
pub(crate) fn parquet_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let listed = if path.is_dir() { crate::image_set::listed(path)? } else { vec![path.to_path_buf()] };
    Ok(listed.into_iter().filter(|path| is_parquet(path) && !path.is_dir()).collect())
}

impl Table {
    /// Opens the files that a path names, and reads what they say of themselves.
    ///
    /// # Errors
    /// [`DataError`] naming a file that is none, or has other columns than the first.
    pub(crate) fn open(path: &Path) -> Result<Table, DataError> {
        let mut table = Table { files: Vec::new(), groups: Vec::new(), columns: Vec::new() };
        for path in parquet_files(path)? {
            let file = forebay_limits::open_regular(&path).map_err(|error| DataError::io(&path, error))?;
            let origin = path.display().to_string();
            let reader = SerializedFileReader::new(file)
                .map_err(|error| DataError::malformed(&origin, format!("not a readable Parquet file: {error}")))?;
            let columns = columns(&reader);
            if table.files.is_empty() {
                table.columns = columns;
            } else if table.columns != columns {
                let reason = format!("it has the columns {}, others {}", listed(&columns), listed(&table.columns));
                return Err(DataError::malformed(origin, reason));
            }
            for (number, group) in reader.metadata().row_groups().iter().enumerate() {
                let rows = u64::try_from(group.num_rows()).map_err(|_| {
                    DataError::malformed(&origin, format!("row group {number} has {} rows", group.num_rows()))
                })?;
                table.groups.push(Group { file: table.files.len(), number, first: table.rows(), rows });
            }
            table.files.push((path, reader));
        }
        Ok(table)
    }

    /// The files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> + Clone {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// All rows.
    pub(crate) fn rows(&self) -> u64 {
        self.groups.last().map_or(0, |group| group.first + group.rows)
    }

    /// The columns in their order.
    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Row groups of all files.
    pub(crate) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The column of this name: its path, or the only one below it, or its `bytes` where it has a path, too (as images of `datasets` have).
    pub(crate) fn find(&self, name: &str) -> Option<&Column> {
        let below = |column: &&Column| column.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        let mut all = self.columns.iter().filter(below);
        let only = all.next().filter(|_| all.next().is_none());
        let exact = |name: &str| self.columns.iter().find(|column| column.name == name);
        exact(name).or_else(|| exact(&format!("{name}.bytes"))).or(only)
    }

    /// The columns in words.
    pub(crate) fn listed(&self) -> String {
        listed(&self.columns)
    }

    /// What messages call rows of a column.
    fn origin(&self, group: &Group, column: &Column) -> String {
        let (path, reader) = &self.files[group.file];
        let (start, _) = reader.metadata().row_group(group.number).column(column.leaf).byte_range();
        let first = group.first - self.file_first(group);
        format!("{}[{}], in rows {first}..{} at byte {start}", path.display(), column.name, first + group.rows)
    }

    /// The first row of the file that a group is in.
    fn file_first(&self, group: &Group) -> u64 {
        self.groups.iter().find(|other| other.file == group.file).map_or(0, |first| first.first)
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
        self.each(column, rows, |at, bytes, _| found[at] = bytes)?;
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
        self.each(column, rows, |at, bytes, origin| found[at] = (bytes, origin))?;
        Ok(found)
    }

    /// Calls `take` with the values of each row, and with where it is; first its place among `rows`.
    fn each(
        &self,
        column: &Column,
        rows: &[u64],
        mut take: impl FnMut(usize, Vec<u8>, String),
    ) -> Result<(), DataError> {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&at| rows[at]);
        let mut left = order.as_slice();
        while let Some(&at) = left.first() {
            let group = self.groups.partition_point(|group| group.first + group.rows <= rows[at]);
            let group = &self.groups[group];
            let count = left.partition_point(|&at| rows[at] < group.first + group.rows);
            let (here, rest) = left.split_at(count);
            left = rest;
            let (origin, file_first) = (self.origin(group, column), self.file_first(group));
            let wrong = |reason: String| DataError::malformed(&origin, reason);
            let (_, reader) = &self.files[group.file];
            let reader = reader.get_row_group(group.number).and_then(|group| group.get_column_reader(column.leaf));
            let mut reader = reader.map_err(|error| wrong(error.to_string()))?;
            let (mut next, mut from) = (group.first, 0);
            while from < here.len() {
                // Rows one behind the other are read at once; a row twice is read once.
                let mut to = from + 1;
                while to < here.len() && rows[here[to]] - rows[here[to - 1]] <= 1 {
                    to += 1;
                }
                let (first, last) = (rows[here[from]], rows[here[to - 1]]);
                let found = read(&mut reader, column, (first - next) as usize, (last + 1 - first) as usize);
                let found = found.map_err(|(row, reason)| match row {
                    Some(row) => wrong(format!("row {}: {reason}", first + row as u64 - file_first)),
                    None => wrong(reason),
                })?;
                for &at in &here[from..to] {
                    let row = rows[at] - file_first;
                    take(at, found[(rows[at] - first) as usize].clone(), format!("row {row}, {origin}"));
                }
                (next, from) = (last + 1, to);
            }
        }
        Ok(())
    }
}

fn listed(columns: &[Column]) -> String {
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

fn columns(reader: &SerializedFileReader<std::fs::File>) -> Vec<Column> {
    let schema = reader.metadata().file_metadata().schema_descr();
    let of = |(leaf, column): (usize, &parquet::schema::types::ColumnDescPtr)| {
        let is_half = matches!(column.logical_type_ref(), Some(LogicalType::Float16)) && column.type_length() == 2;
        let kind = match (column.physical_type(), column.converted_type()) {
            (Type::BOOLEAN, _) => Some(Kind::Numbers(DataType::Bool)),
            (Type::INT32, ConvertedType::INT_8) => Some(Kind::Numbers(DataType::Int8)),
            (Type::INT32, ConvertedType::INT_16) => Some(Kind::Numbers(DataType::Int16)),
            (Type::INT32, ConvertedType::UINT_8) => Some(Kind::Numbers(DataType::UInt8)),
            (Type::INT32, ConvertedType::UINT_16) => Some(Kind::Numbers(DataType::UInt16)),
            (Type::INT32, ConvertedType::UINT_32) => Some(Kind::Numbers(DataType::UInt32)),
            (Type::INT32, ConvertedType::NONE | ConvertedType::INT_32) => Some(Kind::Numbers(DataType::Int32)),
            (Type::INT64, ConvertedType::UINT_64) => Some(Kind::Numbers(DataType::UInt64)),
            (Type::INT64, ConvertedType::NONE | ConvertedType::INT_64) => Some(Kind::Numbers(DataType::Int64)),
            (Type::FLOAT, _) => Some(Kind::Numbers(DataType::Float32)),
            (Type::DOUBLE, _) => Some(Kind::Numbers(DataType::Float64)),
            (Type::FIXED_LEN_BYTE_ARRAY, _) if is_half => Some(Kind::Numbers(DataType::Float16)),
            (Type::BYTE_ARRAY, ConvertedType::NONE | ConvertedType::UTF8 | ConvertedType::JSON) => Some(Kind::Bytes),
            _ => None,
        };
        let (is_list, definition_max) = (column.max_rep_level() > 0, column.max_def_level());
        Column { name: column.path().string(), kind, is_list, leaf, definition_max }
    };
    schema.columns().iter().enumerate().map(of).collect()
}

/// What cannot be read: the row among those that were asked for, if it is one, and why.
type Wrong = (Option<usize>, String);

/// Skips rows, and reads rows: the values of each.
fn read(reader: &mut ColumnReader, column: &Column, skip: usize, count: usize) -> Result<Vec<Vec<u8>>, Wrong> {
    let narrow = match column.kind {
        Some(Kind::Numbers(data_type)) => data_type.size_bytes() as usize,
        _ => 0,
    };
    macro_rules! of {
        ($reader:expr) => {
            rows_of($reader, column, skip, count, narrow)
        };
    }
    match reader {
        ColumnReader::BoolColumnReader(reader) => of!(reader),
        ColumnReader::Int32ColumnReader(reader) => of!(reader),
        ColumnReader::Int64ColumnReader(reader) => of!(reader),
        ColumnReader::FloatColumnReader(reader) => of!(reader),
        ColumnReader::DoubleColumnReader(reader) => of!(reader),
        ColumnReader::ByteArrayColumnReader(reader) => of!(reader),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => of!(reader),
        ColumnReader::Int96ColumnReader(_) => Err((None, "times of 96 bits are not read".to_owned())),
    }
}

fn rows_of<T: Values>(
    reader: &mut ColumnReaderImpl<T>,
    column: &Column,
    skip: usize,
    count: usize,
    narrow: usize,
) -> Result<Vec<Vec<u8>>, Wrong>
where
    T::T: Bytes,
{
    let damaged = |error: parquet::errors::ParquetError| (None, format!("damaged: {error}"));
    let truncated = || (None, "truncated: it has fewer rows than it says".to_owned());
    let mut skipped = 0;
    while skipped < skip {
        match reader.skip_records(skip - skipped).map_err(damaged)? {
            0 => return Err(truncated()),
            more => skipped += more,
        }
    }
    let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut done = 0;
    while done < count {
        let (definitions, repetitions) = (&mut definitions, &mut repetitions);
        let read = reader.read_records(count - done, Some(definitions), Some(repetitions), &mut values);
        match read.map_err(damaged)?.0 {
            0 => return Err(truncated()),
            more => done += more,
        }
    }
    let mut rows: Vec<Vec<u8>> = vec![Vec::new(); count];
    let (mut row, mut values) = (0, values.iter());
    let levels = if column.definition_max > 0 { definitions.len() } else { values.len().max(repetitions.len()) };
    for at in 0..levels {
        let begins = !column.is_list || repetitions.get(at).is_none_or(|&level| level == 0);
        row += usize::from(begins && at > 0);
        if definitions.get(at).is_some_and(|&level| level < column.definition_max) {
            return Err((Some(row), "it has no value".to_owned()));
        }
        let value = values.next().filter(|_| row < count).ok_or_else(truncated)?;
        value.push(narrow, &mut rows[row]);
    }
    Ok(rows)
}

/// Values as bytes.
mod bytes_of_values {
    use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};

    /// A value of a column.
    pub(super) trait Bytes {
        /// Appends its bytes, little-endian; of a number those that its type has.
        fn push(&self, narrow: usize, bytes: &mut Vec<u8>);
    }

    macro_rules! number {
        ($($type:ty),*) => {
            $(impl Bytes for $type {
                fn push(&self, narrow: usize, bytes: &mut Vec<u8>) {
                    bytes.extend_from_slice(&self.to_le_bytes()[..narrow]);
                }
            })*
        };
    }

    number!(i32, i64, f32, f64);

    impl Bytes for bool {
        fn push(&self, _: usize, bytes: &mut Vec<u8>) {
            bytes.push(u8::from(*self));
        }
    }

    impl Bytes for ByteArray {
        fn push(&self, _: usize, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(self.data());
        }
    }

    impl Bytes for FixedLenByteArray {
        fn push(&self, _: usize, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(self.data());
        }
    }

    impl Bytes for Int96 {
        fn push(&self, _: usize, bytes: &mut Vec<u8>) {
            bytes.extend(self.data().iter().flat_map(|word| word.to_le_bytes()));
        }
    }
}
