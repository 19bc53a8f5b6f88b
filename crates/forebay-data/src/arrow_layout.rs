//! The contents of Arrow IPC messages: the columns of a schema, and which buffers of a record batch hold their values.
//!
//! Source: "Arrow Columnar Format", section "Serialization and Interprocess Communication (IPC)". The messages are read by the crate
//! `arrow-ipc`, which checks that they are complete. This module checks that their numbers fit the file.

use arrow_ipc::{CompressionType, Endianness, MetadataVersion, Precision, RecordBatch, Schema, Type};
use forebay_base::DataType;

use crate::table::{Column, Kind};

/// A field of a schema.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    name: String,
    /// The storage of its values.
    pub(crate) storage: Storage,
    children: Vec<Field>,
}

/// The storage of values. All but nulls and unions begin with a buffer of one bit per value, which says whether the value is present.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Storage {
    /// Booleans, one bit each.
    Bits,
    /// Numbers.
    Numbers(DataType),
    /// Offsets of 64 or 32 bits, and bytes.
    Bytes {
        /// Whether the offsets have 64 bits.
        is_wide: bool,
    },
    /// Views of 16 bytes per value: short values are in the view, long ones in further buffers.
    Views,
    /// Offsets into the values of the child.
    List {
        /// Whether the offsets have 64 bits.
        is_wide: bool,
    },
    /// This many values of the child for each value.
    FixedList(u64),
    /// A value of each child.
    Struct,
    /// Indices into a dictionary, whose values the field describes.
    Dictionary {
        /// The id of the dictionary.
        id: i64,
        /// The type of the indices.
        index: DataType,
        /// The values of the dictionary.
        values: Box<Field>,
    },
    /// A type that is not read, in this many buffers.
    Other(usize),
}

/// Returns the fields of a schema.
///
/// # Errors
/// A message that says why they cannot be read.
pub(crate) fn fields(schema: Schema) -> Result<Vec<Field>, String> {
    if schema.endianness() == Endianness::Big {
        return Err("its numbers are big-endian, which is not supported".to_owned());
    }
    schema.fields().into_iter().flatten().map(|found| field(found, true)).collect()
}

/// Returns a field: with its dictionary if `encoded`, otherwise with the type of the dictionary's values.
fn field(found: arrow_ipc::Field, encoded: bool) -> Result<Field, String> {
    let name = found.name().unwrap_or_default().to_owned();
    if let Some(dictionary) = found.dictionary().filter(|_| encoded) {
        let index =
            dictionary.indexType().map_or(Some(DataType::Int32), |int| integer(int.bitWidth(), int.is_signed()));
        let index = index.ok_or_else(|| format!("the dictionary of {name} has indices of unknown size"))?;
        let storage = Storage::Dictionary { id: dictionary.id(), index, values: Box::new(field(found, false)?) };
        return Ok(Field { name, storage, children: Vec::new() });
    }
    let broken = || format!("the type of {name} is incomplete");
    let storage = match found.type_type() {
        Type::Bool => Storage::Bits,
        Type::Int => {
            let int = found.type_as_int().ok_or_else(broken)?;
            Storage::Numbers(integer(int.bitWidth(), int.is_signed()).ok_or_else(broken)?)
        }
        Type::FloatingPoint => Storage::Numbers(match found.type_as_floating_point().ok_or_else(broken)?.precision() {
            Precision::HALF => DataType::Float16,
            Precision::SINGLE => DataType::Float32,
            Precision::DOUBLE => DataType::Float64,
            _ => return Err(broken()),
        }),
        Type::Binary | Type::Utf8 => Storage::Bytes { is_wide: false },
        Type::LargeBinary | Type::LargeUtf8 => Storage::Bytes { is_wide: true },
        Type::BinaryView | Type::Utf8View => Storage::Views,
        Type::List => Storage::List { is_wide: false },
        Type::LargeList => Storage::List { is_wide: true },
        Type::FixedSizeList => {
            let size = found.type_as_fixed_size_list().ok_or_else(broken)?.listSize();
            Storage::FixedList(u64::try_from(size).map_err(|_| broken())?)
        }
        Type::Struct_ => Storage::Struct,
        Type::Null | Type::RunEndEncoded => Storage::Other(0),
        Type::Union => Storage::Other(match found.type_as_union().ok_or_else(broken)?.mode() {
            arrow_ipc::UnionMode::Dense => 2,
            _ => 1,
        }),
        Type::Map
        | Type::Decimal
        | Type::Date
        | Type::Time
        | Type::Timestamp
        | Type::Interval
        | Type::Duration
        | Type::FixedSizeBinary => Storage::Other(2),
        Type::ListView | Type::LargeListView => Storage::Other(3),
        other => return Err(format!("{name} has the unknown type {}", other.0)),
    };
    let children = found.children().into_iter().flatten().map(|child| field(child, true));
    let children = children.collect::<Result<Vec<_>, _>>()?;
    let is_list = matches!(storage, Storage::List { .. } | Storage::FixedList(_));
    if is_list && children.len() != 1 {
        return Err(format!("the list {name} has {} kinds of values instead of one", children.len()));
    }
    Ok(Field { name, storage, children })
}

/// Returns the integer type of this many bits.
fn integer(bits: i32, is_signed: bool) -> Option<DataType> {
    Some(match (bits, is_signed) {
        (8, true) => DataType::Int8,
        (16, true) => DataType::Int16,
        (32, true) => DataType::Int32,
        (64, true) => DataType::Int64,
        (8, false) => DataType::UInt8,
        (16, false) => DataType::UInt16,
        (32, false) => DataType::UInt32,
        (64, false) => DataType::UInt64,
        _ => return None,
    })
}

/// Returns the columns of fields, each with its path: the index of each field on the way among the children of its parent.
pub(crate) fn columns(fields: &[Field]) -> Vec<(Column, Vec<usize>)> {
    let mut columns = Vec::new();
    for (place, field) in fields.iter().enumerate() {
        add_columns(field, &field.name, false, &mut vec![place], &mut columns);
    }
    columns
}

fn add_columns(
    field: &Field,
    name: &str,
    is_list: bool,
    path: &mut Vec<usize>,
    columns: &mut Vec<(Column, Vec<usize>)>,
) {
    let kind = match &field.storage {
        Storage::Struct => {
            for (place, child) in field.children.iter().enumerate() {
                path.push(place);
                add_columns(child, &format!("{name}.{}", child.name), is_list, path, columns);
                path.pop();
            }
            return;
        }
        Storage::List { .. } | Storage::FixedList(_) => {
            path.push(0);
            field.children.iter().for_each(|child| add_columns(child, name, true, path, columns));
            path.pop();
            return;
        }
        Storage::Dictionary { values, .. } => kind(&values.storage),
        storage => kind(storage),
    };
    columns.push((Column { name: name.to_owned(), kind, is_list, leaf: columns.len() }, path.clone()));
}

/// Returns the kind of a leaf's values.
fn kind(storage: &Storage) -> Option<Kind> {
    match storage {
        Storage::Bits => Some(Kind::Numbers(DataType::Bool)),
        Storage::Numbers(data_type) => Some(Kind::Numbers(*data_type)),
        Storage::Bytes { .. } | Storage::Views => Some(Kind::Bytes),
        _ => None,
    }
}

/// The compression of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// Frames of LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// The metadata of a record batch or of a dictionary batch.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The number of rows.
    pub(crate) rows: u64,
    /// For each field, the number of values and, if known, how many of them are missing.
    pub(crate) nodes: Vec<(u64, Option<u64>)>,
    /// For each buffer, its offset after the message, and its size in bytes.
    pub(crate) buffers: Vec<(u64, u64)>,
    /// For each field of views, the number of its further buffers.
    views: Vec<u64>,
    /// The compression of the buffers.
    pub(crate) codec: Option<Codec>,
}

/// Reads the metadata of a record batch; `body_bytes` follow the message.
///
/// # Errors
/// A message that says why it is invalid: a buffer outside these bytes, a negative number, or an unknown compression.
pub(crate) fn batch(found: RecordBatch, version: MetadataVersion, body_bytes: u64) -> Result<Batch, String> {
    if version < MetadataVersion::V4 {
        return Err("it was written by a version of Arrow before 0.8, which is not supported".to_owned());
    }
    let whole = |number: i64, what: &str| u64::try_from(number).map_err(|_| format!("{what} is {number}"));
    let nodes = found.nodes().into_iter().flatten().map(|node| {
        let missing = u64::try_from(node.null_count()).ok();
        Ok((whole(node.length(), "the number of its values")?, missing))
    });
    let buffers = found.buffers().into_iter().flatten().map(|buffer| {
        let at = whole(buffer.offset(), "the position of a buffer")?;
        let bytes = whole(buffer.length(), "the size of a buffer")?;
        match at.checked_add(bytes).is_some_and(|end| end <= body_bytes) {
            true => Ok((at, bytes)),
            false => Err(format!("a buffer of {bytes} bytes at byte {at} exceeds a body of {body_bytes} bytes")),
        }
    });
    let views = found.variadicBufferCounts().into_iter().flatten();
    let codec = match found.compression().map(|compression| compression.codec()) {
        None => None,
        Some(CompressionType::LZ4_FRAME) => Some(Codec::Lz4),
        Some(CompressionType::ZSTD) => Some(Codec::Zstd),
        Some(other) => return Err(format!("unknown compression codec {}", other.0)),
    };
    Ok(Batch {
        rows: whole(found.length(), "the number of its rows")?,
        nodes: nodes.collect::<Result<_, String>>()?,
        buffers: buffers.collect::<Result<_, String>>()?,
        views: views.map(|count| whole(count, "a number of view buffers")).collect::<Result<_, String>>()?,
        codec,
    })
}

/// The position of a field's values in a record batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The field.
    pub(crate) field: &'a Field,
    /// Its index among all fields.
    pub(crate) node: usize,
    /// The index of its first buffer.
    pub(crate) buffer: usize,
    /// The number of its buffers.
    pub(crate) buffers: usize,
}

/// Returns the positions of the fields along a path, from the first to the leaf.
///
/// # Errors
/// A message that says how the batch differs from the fields.
pub(crate) fn places<'a>(fields: &'a [Field], path: &[usize], batch: &Batch) -> Result<Vec<Place<'a>>, String> {
    let mut walk = Walk { batch, node: 0, buffer: 0, views: 0, places: Vec::new() };
    for (number, field) in fields.iter().enumerate() {
        let rest = path.split_first().filter(|(first, _)| **first == number).map(|(_, rest)| rest);
        walk.visit(field, rest)?;
    }
    let (nodes, buffers) = (batch.nodes.len(), batch.buffers.len());
    match (walk.node, walk.buffer) == (nodes, buffers) {
        true => Ok(walk.places),
        false => {
            let (expected_nodes, expected_buffers) = (walk.node, walk.buffer);
            Err(format!(
                "it has {nodes} fields in {buffers} buffers, but the schema has {expected_nodes} in {expected_buffers}"
            ))
        }
    }
}

/// Checks that a record batch has all fields, and as many values as rows in each top-level field.
///
/// # Errors
/// A message that says what is missing.
pub(crate) fn check(fields: &[Field], batch: &Batch) -> Result<(), String> {
    places(fields, &[], batch)?;
    let mut walk = Walk { batch, node: 0, buffer: 0, views: 0, places: Vec::new() };
    for field in fields {
        let (values, _) = batch.nodes[walk.node];
        if values != batch.rows {
            return Err(format!("column {} has {values} values for {} rows", field.name, batch.rows));
        }
        walk.visit(field, None)?;
    }
    Ok(())
}

/// A walk over all fields, in the order of their buffers.
struct Walk<'a, 'b> {
    batch: &'b Batch,
    node: usize,
    buffer: usize,
    views: usize,
    places: Vec<Place<'a>>,
}

impl<'a> Walk<'a, '_> {
    /// Visits a field and its descendants. `path` leads on from the field if it is on the way to the leaf.
    fn visit(&mut self, field: &'a Field, path: Option<&[usize]>) -> Result<(), String> {
        let buffers = match field.storage {
            Storage::Bits | Storage::Numbers(_) | Storage::List { .. } | Storage::Dictionary { .. } => 2,
            Storage::Bytes { .. } => 3,
            Storage::FixedList(_) | Storage::Struct => 1,
            Storage::Other(buffers) => buffers,
            Storage::Views => {
                let more = self.batch.views.get(self.views).and_then(|&more| usize::try_from(more).ok());
                self.views += 1;
                let most = self.batch.buffers.len();
                2 + more.filter(|&more| more <= most).ok_or("it does not state how many buffers its views have")?
            }
        };
        if path.is_some() {
            self.places.push(Place { field, node: self.node, buffer: self.buffer, buffers });
        }
        (self.node, self.buffer) = (self.node + 1, self.buffer + buffers);
        for (number, child) in field.children.iter().enumerate() {
            let rest = path.and_then(|path| path.split_first());
            self.visit(child, rest.filter(|(first, _)| **first == number).map(|(_, rest)| rest))?;
        }
        Ok(())
    }
}
