//! Data sets in tables, Parquet or Arrow: one file, or a folder of files in the order of their names. A row is a sample.
//!
//! An input is read from the column of its name: numbers, lists of numbers, or the bytes of images. If there is no such column, a model
//! with one input of n numbers takes n columns of numbers in their order: all but the labels. Labels are in the column `y`, `labels` or
//! `label`. Columns of numbers are kept in memory as far as allowed; others are read for each batch.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use forebay_base::{DataType, Tensor};

use crate::archive_set::{check_conversion, label_type, scale_for};
use crate::arrays::HeldBytes;
use crate::convert::convert;
use crate::dataset::{Batch, Description, InputDescription, LabelKind, Requirements, Source, shown, size_of_files};
use crate::digest::Digest;
use crate::error::DataError;
use crate::image_file::Images;
use crate::image_set::one_each;
use crate::reading::Reading;
use crate::table::{Column, Kind, Table};

/// The names of columns that hold labels.
const LABELS: [&str; 3] = ["y", "labels", "label"];
/// The names of columns that hold images if no column has the input's name.
const IMAGES: [&str; 3] = ["image", "img", "images"];
/// The number of rows that are read at once when all rows are read.
const AT_ONCE: u64 = 65_536;

/// A column of numbers.
struct Numbers {
    column: Column,
    /// All of its rows, if they are in memory.
    held: Option<Tensor>,
}

/// The source of an input's values.
enum Content {
    /// The numbers of these columns, concatenated.
    Numbers(Vec<Numbers>),
    /// Images.
    Images(Column, Images),
}

struct TableSet {
    table: Table,
    inputs: Vec<Content>,
    labels: Numbers,
    /// The names of the classes in order, if labels are words.
    classes: Option<Vec<String>>,
    requirements: Requirements,
}

/// Opens the data set of a table. Columns of numbers are read into memory as far as allowed. A column with rows that cannot be read is an
/// error, or is read row by row if such rows are to be left out.
///
/// # Errors
/// [`DataError`] naming the file and the column if it is missing, of the wrong kind or size, or damaged.
pub(crate) fn open(
    path: &Path,
    table: Table,
    requirements: &Requirements,
    reading: &Reading,
) -> Result<Box<dyn Source>, DataError> {
    let (origin, mut held) = (path.display().to_string(), reading.held);
    let mut numbers = |column: &Column, count| Numbers::open(&table, column, count, reading.skips_bad, &mut held);
    let missing = |what: String| DataError::unsupported(&origin, format!("{what}; the columns are {}", table.listed()));
    if table.rows() == 0 {
        return Err(missing("it has no rows".to_owned()));
    }
    let is_input = |name: &str| requirements.inputs.iter().any(|input| input.name == name);
    let label = LABELS.into_iter().filter(|name| !is_input(name)).find_map(|name| table.find(name));
    let label = label.ok_or_else(|| {
        let is_text = table.columns().iter().any(|column| column.kind == Some(Kind::Bytes));
        let text = if is_text { "; a column of text alone requires a tokenizer (--tokenizer)" } else { "" };
        missing(format!("no column of labels ({}){text}", LABELS.join(", ")))
    })?;
    let label = label.clone();
    let mut inputs = Vec::new();
    for input in &requirements.inputs {
        let named = table.find(&input.name);
        let image =
            || IMAGES.into_iter().find_map(|name| table.find(name)).filter(|column| column.kind == Some(Kind::Bytes));
        let count: u64 = input.sample_shape.iter().product();
        let content = match named.or_else(image) {
            Some(column) if column.kind == Some(Kind::Bytes) => {
                let mut any_labels = requirements.clone();
                any_labels.labels = LabelKind::Classes;
                let images = Images::of(&any_labels, "a table of images");
                Content::Images(column.clone(), images.map_err(|reason| DataError::unsupported(&origin, reason))?)
            }
            Some(column) => Content::Numbers(vec![numbers(column, count)?]),
            None => {
                let is_single = |column: &&Column| matches!(column.kind, Some(Kind::Numbers(_))) && !column.is_list;
                let others: Vec<&Column> =
                    table.columns().iter().filter(is_single).filter(|column| **column != label).collect();
                if requirements.inputs.len() != 1 || others.len() as u64 != count {
                    let reason = format!(
                        "no column named {}, and {} columns of single numbers besides the labels, but a sample has {:?}",
                        input.name,
                        others.len(),
                        input.sample_shape
                    );
                    return Err(missing(reason));
                }
                let columns = others.into_iter().map(|column| numbers(column, 1));
                Content::Numbers(columns.collect::<Result<_, _>>()?)
            }
        };
        if let Content::Numbers(columns) = &content {
            for numbers in columns {
                let origin = format!("{origin}[{}]", numbers.column.name);
                check_conversion(numbers.data_type(), input.data_type, requirements.input_scale, &origin)?;
            }
        }
        inputs.push(content);
    }
    let (labels, classes) = match label.kind {
        Some(Kind::Bytes) => words(&table, label, requirements)?,
        _ => {
            let count = requirements.label_shape.iter().product();
            (numbers(&label, count)?, None)
        }
    };
    check_conversion(labels.data_type(), label_type(requirements), 1.0, &format!("{origin}[{}]", labels.column.name))?;
    Ok(Box::new(TableSet { table, inputs, labels, classes, requirements: requirements.clone() }))
}

/// Reads labels that are words, and numbers them as classes in alphabetical order.
fn words(
    table: &Table,
    column: Column,
    requirements: &Requirements,
) -> Result<(Numbers, Option<Vec<String>>), DataError> {
    let origin = table.origin(&column);
    if requirements.labels != LabelKind::Classes {
        let reason =
            "the labels are words, which are classes, but this loss requires values; store the labels as numbers";
        return Err(DataError::unsupported(origin, reason));
    }
    if !requirements.label_shape.is_empty() {
        let wanted = &requirements.label_shape;
        let reason = format!(
            "the labels are words, one class per row, but the model expects {wanted:?} per sample; \
             store the labels as lists of numbers"
        );
        return Err(DataError::unsupported(origin, reason));
    }
    let mut numbers: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    let mut all: Vec<i64> = Vec::with_capacity(table.rows() as usize);
    for first in (0..table.rows()).step_by(AT_ONCE as usize) {
        let rows: Vec<u64> = (first..(first + AT_ONCE).min(table.rows())).collect();
        for (word, _) in table.bytes(&column, &rows)? {
            let next = numbers.len() as i64;
            all.push(*numbers.entry(word).or_insert(next));
        }
    }
    let mut order = vec![0; numbers.len()];
    (0..).zip(numbers.values()).for_each(|(class, &found)| order[found as usize] = class);
    all.iter_mut().for_each(|class| *class = order[*class as usize]);
    let held = Some(Tensor::from_i64(&[all.len() as u64, 1], &all));
    let classes = numbers.keys().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    Ok((Numbers { column, held }, Some(classes)))
}

impl Numbers {
    fn open(
        table: &Table,
        column: &Column,
        count: u64,
        skips_bad: bool,
        held: &mut HeldBytes,
    ) -> Result<Numbers, DataError> {
        let mut numbers = Numbers { column: column.clone(), held: None };
        let origin = table.origin(column);
        let Some(Kind::Numbers(data_type)) = column.kind else {
            let reason = format!("it does not contain numbers of a supported type; the columns are {}", table.listed());
            return Err(DataError::unsupported(origin, reason));
        };
        let is_bad = |error: &DataError| skips_bad && matches!(error, DataError::Malformed { .. });
        // A column with other sizes is refused before it is read.
        if let Err(error) = numbers.read(table, &[0], count)
            && !is_bad(&error)
        {
            return Err(error);
        }
        let size_bytes = table.rows().saturating_mul(count).saturating_mul(data_type.size_bytes());
        if size_bytes <= held.bytes() {
            match numbers.all(table, count, data_type, size_bytes) {
                Ok(all) => {
                    numbers.held = Some(all);
                    *held = held.without(size_bytes);
                }
                Err(error) if is_bad(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(numbers)
    }

    /// Reads all rows.
    fn all(&self, table: &Table, count: u64, data_type: DataType, size_bytes: u64) -> Result<Tensor, DataError> {
        let failed = |reason: String| DataError::unsupported(table.origin(&self.column), reason);
        let mut bytes = forebay_limits::buffer(size_bytes).map_err(|error| failed(error.to_string()))?;
        for first in (0..table.rows()).step_by(AT_ONCE as usize) {
            let rows: Vec<u64> = (first..(first + AT_ONCE).min(table.rows())).collect();
            bytes.extend_from_slice(self.read(table, &rows, count)?.bytes());
        }
        Ok(Tensor::new(data_type, &[table.rows(), count], bytes).expect("as many bytes as rows and their numbers"))
    }

    fn data_type(&self) -> DataType {
        match (&self.held, self.column.kind) {
            (Some(held), _) => held.data_type(),
            (None, Some(Kind::Numbers(data_type))) => data_type,
            (None, _) => DataType::UInt8,
        }
    }

    /// Reads rows of `count` numbers.
    fn read(&self, table: &Table, rows: &[u64], count: u64) -> Result<Tensor, DataError> {
        if let Some(held) = &self.held {
            return Ok(held.rows(rows));
        }
        let found = table.numbers(&self.column, rows)?;
        match found.shape()[1] == count {
            true => Ok(found),
            false => {
                let origin = table.origin(&self.column);
                let (found, expected) = (vec![found.shape()[1]], format!("{count} numbers in each row"));
                Err(DataError::Shape { origin, found, expected })
            }
        }
    }
}

impl TableSet {
    /// Returns an input's numbers in some rows, as `[rows, count]`.
    fn numbers(&self, columns: &[Numbers], rows: &[u64], count: u64, wanted: DataType) -> Result<Tensor, DataError> {
        let scale = scale_for(wanted, self.requirements.input_scale);
        let each = if columns.len() == 1 { count } else { 1 };
        let read = |numbers: &Numbers| {
            let found = numbers.read(&self.table, rows, each)?;
            convert(found, wanted, scale, &format!("column {}", numbers.column.name))
        };
        let mut parts = columns.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        let size = wanted.size_bytes() as usize;
        let bytes = (0..rows.len()).flat_map(|row| parts.iter().map(move |part| &part.bytes()[row * size..][..size]));
        let bytes = bytes.collect::<Vec<_>>().concat();
        Ok(Tensor::new(wanted, &[rows.len() as u64, count], bytes).expect("a number of each column"))
    }
}

impl Source for TableSet {
    fn description(&self) -> Result<Description, DataError> {
        let columns = |columns: &[Numbers], shape: &[u64]| {
            let names: Vec<&str> = columns.iter().map(|numbers| numbers.column.name.as_str()).collect();
            format!("{}: {}{shape:?}", names.join(", "), columns[0].data_type())
        };
        let inputs = self.requirements.inputs.iter().zip(&self.inputs).map(|(input, content)| match content {
            Content::Numbers(numbers) if numbers.len() == 1 => columns(numbers, &input.sample_shape),
            Content::Numbers(numbers) => columns(numbers, &[]),
            Content::Images(column, _) => format!("{}: images, resized to {:?}", column.name, input.sample_shape),
        });
        let labels = match &self.classes {
            Some(classes) => {
                format!("{}: {} named classes ({})", self.labels.column.name, classes.len(), shown(classes))
            }
            None => columns(std::slice::from_ref(&self.labels), &self.requirements.label_shape),
        };
        let held = self.inputs.iter().flat_map(|content| match content {
            Content::Numbers(numbers) => numbers.as_slice(),
            Content::Images(..) => &[],
        });
        let held = held.chain([&self.labels]).filter_map(|numbers| numbers.held.as_ref());
        Ok(Description {
            kind: self.table.described(),
            tensors: inputs.chain([labels]).collect(),
            size_bytes: size_of_files(self.table.paths())?,
            held_bytes: held.map(|held| held.bytes().len() as u64).sum(),
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        self.table.rows()
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let mut inputs = BTreeMap::new();
        for (input, content) in self.requirements.inputs.iter().zip(&self.inputs) {
            let shape = [&[samples.len() as u64], input.sample_shape.as_slice()].concat();
            let count = input.sample_shape.iter().product();
            let tensor = match content {
                Content::Numbers(columns) => self.numbers(columns, samples, count, input.data_type)?,
                Content::Images(column, images) => {
                    let found = self.table.bytes(column, samples)?;
                    let images = found.into_iter().map(|(bytes, origin)| images.decode(&bytes, &origin));
                    let images = images.collect::<Result<Vec<_>, _>>()?;
                    Tensor::stack(&images.iter().collect::<Vec<_>>()).expect("one shape")
                }
            };
            inputs.insert(input.name.clone(), tensor.reshaped(&shape).expect("as many values"));
        }
        let shape = [&[samples.len() as u64], self.requirements.label_shape.as_slice()].concat();
        let labels = self.labels.read(&self.table, samples, self.requirements.label_shape.iter().product())?;
        let labels =
            convert(labels, label_type(&self.requirements), 1.0, &format!("column {}", self.labels.column.name))?;
        Ok(Batch { inputs, labels: labels.reshaped(&shape).expect("as many values") })
    }

    fn classes(&mut self) -> Result<Option<Vec<i64>>, DataError> {
        let count: u64 = self.requirements.label_shape.iter().product();
        let rows: Vec<u64> = (0..self.table.rows()).collect();
        Ok(if count == 1 { one_each(&self.labels.read(&self.table, &rows, 1)?) } else { None })
    }

    fn class_names(&self) -> Option<&[String]> {
        self.classes.as_deref()
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        [samples.start, samples.end].iter().for_each(|number| digest.add(&number.to_le_bytes()));
        digest.add_files(self.table.paths())
    }
}

/// Returns requirements that fit the columns: the image if there is one, otherwise each column of numbers but the labels.
///
/// # Errors
/// [`DataError`] naming the file.
pub(crate) fn guess(table: &Table, image_size: u64) -> Result<Requirements, DataError> {
    let label = LABELS.into_iter().find_map(|name| table.find(name));
    let mut requirements =
        Requirements { inputs: Vec::new(), input_scale: 1.0, labels: LabelKind::Classes, label_shape: Vec::new() };
    let mut input = |name: &str, sample_shape: Vec<u64>| {
        let name = name.to_owned();
        requirements.inputs.push(InputDescription { name, data_type: DataType::Float32, sample_shape });
    };
    let shape = |column: &Column| -> Result<Vec<u64>, DataError> {
        Ok(if column.is_list { vec![table.numbers(column, &[0])?.shape()[1]] } else { Vec::new() })
    };
    let image = IMAGES.into_iter().find_map(|name| table.find(name));
    if table.rows() > 0 && image.is_some_and(|image| image.kind == Some(Kind::Bytes)) {
        input("image", vec![3, image_size, image_size]);
    } else if table.rows() > 0 {
        for column in table.columns() {
            if matches!(column.kind, Some(Kind::Numbers(_))) && Some(column) != label {
                input(&column.name, shape(column)?);
            }
        }
    }
    if let Some(Column { kind: Some(Kind::Numbers(data_type)), .. }) = label {
        if data_type.is_float() {
            requirements.labels = LabelKind::Values(*data_type);
        }
        requirements.label_shape = label.map(shape).transpose()?.unwrap_or_default();
    }
    Ok(requirements)
}
