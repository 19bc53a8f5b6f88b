//! Columns of Parquet files, with rows in any order, read by the crate `parquet`.
//!
//! Rows that are requested together are read in the order of the file, so that each page is decompressed once.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use bytes_of_values::Bytes;
use forebay_base::DataType;
use parquet::basic::{Compression, ConvertedType, LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType as Values;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor};

use crate::error::DataError;
use crate::table::{Column, Files, Kind, Run, Table, TakeRow, in_order, listed};
use crate::table_files::{Format, files};

/// A sequence of Parquet files with the same schema.
struct ParquetFiles {
    files: Vec<(PathBuf, SerializedFileReader<std::fs::File>)>,
    groups: Vec<Group>,
    columns: Vec<Column>,
    /// For each column, the definition level of values that are present.
    definitions: Vec<i16>,
}

/// A row group.
struct Group {
    file: usize,
    number: usize,
    /// Its first row among all rows.
    first: u64,
    rows: u64,
}

/// Opens the files that a path names, and reads their metadata.
///
/// # Errors
/// [`DataError`] naming a file that is not a Parquet file, or has other columns than the first.
pub(crate) fn open(path: &Path) -> Result<Table, DataError> {
    let mut all = ParquetFiles { files: Vec::new(), groups: Vec::new(), columns: Vec::new(), definitions: Vec::new() };
    for path in files(path, Format::Parquet)? {
        let file = forebay_limits::open_regular(&path).map_err(|error| DataError::io(&path, error))?;
        let origin = path.display().to_string();
        let unreadable = |reason| DataError::malformed(&origin, format!("not a readable Parquet file: {reason}"));
        let metadata = metadata_range(&file).map_err(|error| DataError::io(&path, error))?.map_err(unreadable)?;
        let damaged = |error| format!("damaged: its metadata in bytes {}..{}: {error}", metadata.start, metadata.end);
        let reader = caught(|| SerializedFileReader::new(file), ParquetError::General)
            .map_err(|error| unreadable(damaged(error)))?;
        let (columns, definitions): (Vec<Column>, Vec<i16>) = columns(&reader).into_iter().unzip();
        if all.files.is_empty() {
            (all.columns, all.definitions) = (columns, definitions);
        } else if all.columns != columns || all.definitions != definitions {
            let reason =
                format!("it has the columns {}, but the first file has {}", listed(&columns), listed(&all.columns));
            return Err(DataError::malformed(origin, reason));
        }
        for (number, group) in reader.metadata().row_groups().iter().enumerate() {
            let rows = u64::try_from(group.num_rows()).map_err(|_| {
                DataError::malformed(&origin, format!("row group {number} has {} rows", group.num_rows()))
            })?;
            // The crate panics when it reads such a column.
            let is_negative = |column: &&ColumnChunkMetaData| {
                let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
                start < 0 || column.compressed_size() < 0
            };
            if let Some(column) = group.columns().iter().find(is_negative) {
                let name = column.column_path().string();
                let reason = format!("damaged: column {name} in row group {number} has a negative offset or size");
                return Err(DataError::malformed(&origin, reason));
            }
            all.groups.push(Group { file: all.files.len(), number, first: all.rows(), rows });
        }
        all.files.push((path, reader));
    }
    Ok(Table::of(all))
}

/// Returns where a file's metadata is, or why the file does not end as a Parquet file does: with its metadata, the number of their bytes and
/// a mark.
fn metadata_range(file: &std::fs::File) -> std::io::Result<Result<Range<u64>, String>> {
    // The least is a mark at the beginning and this end.
    const END_BYTES: u64 = 8;
    const MARK: &[u8; 4] = b"PAR1";
    // Its metadata is encrypted.
    const ENCRYPTED: &[u8; 4] = b"PARE";
    let file_bytes = file.metadata()?.len();
    let Some(end) = file_bytes.checked_sub(END_BYTES).filter(|&end| end >= MARK.len() as u64) else {
        return Ok(Err(format!("it has only {file_bytes} bytes")));
    };
    let mut last = [0; END_BYTES as usize];
    file.read_exact_at(&mut last, end)?;
    let [a, b, c, d, mark @ ..] = last;
    if ![MARK, ENCRYPTED].contains(&&mark) {
        let at = file_bytes - MARK.len() as u64;
        return Ok(Err(format!("truncated, or another format: PAR1 is missing at its end, at byte {at}")));
    }
    let metadata_bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
    Ok(match end.checked_sub(metadata_bytes).filter(|&start| start >= MARK.len() as u64) {
        Some(start) => Ok(start..end),
        None => {
            Err(format!("damaged: {metadata_bytes} bytes of metadata, as it says at byte {end}, do not fit before"))
        }
    })
}

impl ParquetFiles {
    /// Returns the name of rows of a column in errors.
    fn origin(&self, group: &Group, column: &Column) -> String {
        let (path, reader) = &self.files[group.file];
        let (start, _) = reader.metadata().row_group(group.number).column(column.leaf).byte_range();
        let first = group.first - self.file_first(group);
        format!("{}[{}], in rows {first}..{} at byte {start}", path.display(), column.name, first + group.rows)
    }

    /// Returns the first row of a group's file.
    fn file_first(&self, group: &Group) -> u64 {
        self.groups.iter().find(|other| other.file == group.file).map_or(0, |first| first.first)
    }
}

impl Files for ParquetFiles {
    fn format(&self) -> Format {
        Format::Parquet
    }

    fn paths(&self) -> Vec<&Path> {
        self.files.iter().map(|(path, _)| path.as_path()).collect()
    }

    fn rows(&self) -> u64 {
        self.groups.last().map_or(0, |group| group.first + group.rows)
    }

    fn parts(&self) -> (&'static str, &'static str, usize) {
        ("row group", "row groups", self.groups.len())
    }

    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn each(&self, column: &Column, rows: &[u64], take: TakeRow) -> Result<(), DataError> {
        let part = |row: u64| {
            let number = self.groups.partition_point(|group| group.first + group.rows <= row);
            let group = &self.groups[number];
            (number, group.first..group.first + group.rows)
        };
        for (number, runs) in in_order(rows, &part) {
            let group = &self.groups[number];
            let (origin, file_first) = (self.origin(group, column), self.file_first(group));
            let wrong = |reason: String| DataError::malformed(&origin, reason);
            let (_, reader) = &self.files[group.file];
            let compression = reader.metadata().row_group(group.number).column(column.leaf).compression();
            if let Some(name) = unsupported(compression) {
                let reason = format!(
                    "its compression, {name}, is not supported; write it with compression='zstd', 'snappy' or 'gzip'"
                );
                return Err(DataError::unsupported(origin, reason));
            }
            let open = || reader.get_row_group(group.number).and_then(|group| group.get_column_reader(column.leaf));
            let mut reader = caught(open, ParquetError::General).map_err(|error| wrong(error.to_string()))?;
            let mut next = group.first;
            for Run { rows: Range { start: first, end }, at } in runs {
                let depth = self.definitions[column.leaf];
                let found = caught(
                    || read(&mut reader, (column, depth), (first - next) as usize, (end - first) as usize),
                    |text| (None, format!("damaged: its pages contradict each other ({text})")),
                );
                let found = found.map_err(|(row, reason)| match row {
                    Some(row) => wrong(format!("row {}: {reason}", first + row as u64 - file_first)),
                    None => wrong(reason),
                })?;
                for (row, at) in at {
                    take(at, found[(row - first) as usize].clone(), format!("row {}, {origin}", row - file_first));
                }
                next = end;
            }
        }
        Ok(())
    }
}

/// Runs work of the crate, which panics on some damaged files. The text of a panic becomes an error.
fn caught<T, E>(work: impl FnOnce() -> Result<T, E>, error: impl FnOnce(String) -> E) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given");
        Err(error(text.to_owned()))
    })
}

/// Returns the name of a compression that is not supported.
fn unsupported(compression: Compression) -> Option<&'static str> {
    match compression {
        Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::GZIP(_) | Compression::ZSTD(_) => None,
        Compression::LZ4 | Compression::LZ4_RAW => Some("LZ4"),
        Compression::BROTLI(_) => Some("Brotli"),
        Compression::LZO => Some("LZO"),
    }
}

/// Returns the columns, each with the definition level of its values.
fn columns(reader: &SerializedFileReader<std::fs::File>) -> Vec<(Column, i16)> {
    let schema = reader.metadata().file_metadata().schema_descr();
    let of = |(leaf, column): (usize, &ColumnDescPtr)| {
        let (kind, is_list) = (kind(column), column.max_rep_level() > 0);
        (Column { name: column.path().string(), kind, is_list, leaf }, column.max_def_level())
    };
    schema.columns().iter().enumerate().map(of).collect()
}

/// Returns what a column holds, or `None` if it is neither numbers nor bytes.
fn kind(column: &ColumnDescriptor) -> Option<Kind> {
    let is_half = matches!(column.logical_type_ref(), Some(LogicalType::Float16)) && column.type_length() == 2;
    // Times in nanoseconds have a logical type only. Like other times, they are not numbers.
    let is_time = matches!(
        column.logical_type_ref(),
        Some(LogicalType::Timestamp { .. } | LogicalType::Time { .. } | LogicalType::Date)
    );
    match (column.physical_type(), column.converted_type()) {
        _ if is_time => None,
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
    }
}

/// The reason why rows cannot be read, with the index of the row among the requested ones if it concerns a single one.
type Wrong = (Option<usize>, String);

/// Skips rows, then reads rows; returns the values of each.
fn read(
    reader: &mut ColumnReader,
    (column, depth): (&Column, i16),
    skip: usize,
    count: usize,
) -> Result<Vec<Vec<u8>>, Wrong> {
    let narrow = match column.kind {
        Some(Kind::Numbers(data_type)) => data_type.size_bytes() as usize,
        _ => 0,
    };
    macro_rules! of {
        ($reader:expr) => {
            rows_of($reader, (column, depth), skip, count, narrow)
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
        ColumnReader::Int96ColumnReader(_) => Err((None, "96-bit times are not supported".to_owned())),
    }
}

fn rows_of<T: Values>(
    reader: &mut ColumnReaderImpl<T>,
    (column, depth): (&Column, i16),
    skip: usize,
    count: usize,
    narrow: usize,
) -> Result<Vec<Vec<u8>>, Wrong>
where
    T::T: Bytes,
{
    let damaged = |error: parquet::errors::ParquetError| (None, format!("damaged: {error}"));
    let truncated = || (None, "truncated: it has fewer rows than its metadata says".to_owned());
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
    let levels = if depth > 0 { definitions.len() } else { values.len().max(repetitions.len()) };
    for at in 0..levels {
        let begins = !column.is_list || repetitions.get(at).is_none_or(|&level| level == 0);
        row += usize::from(begins && at > 0);
        if definitions.get(at).is_some_and(|&level| level < depth) {
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
        /// Appends its bytes, little-endian; of a number, only as many as its type has.
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

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    #[test]
    fn times_of_any_unit_are_no_numbers() {
        let message = "message m {
            required int64 a; required int64 b (INTEGER(64, true)); required int64 s (TIMESTAMP(MILLIS, true));
            required int64 n (TIMESTAMP(NANOS, true)); required int64 t (TIME(NANOS, false)); required int32 d (DATE);
        }";
        let schema = SchemaDescriptor::new(parse_message_type(message).unwrap().into());
        let kinds: Vec<Option<Kind>> = schema.columns().iter().map(|column| kind(column)).collect();
        let number = Some(Kind::Numbers(DataType::Int64));
        assert_eq!(kinds, [number, number, None, None, None, None]);
    }
}
