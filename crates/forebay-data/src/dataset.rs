//! Data sets of any kind as batches of inputs, by name, and labels.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use forebay_base::{DataType, Tensor};

use crate::augment::Augmentation;
pub use crate::batch::Batch;
use crate::convert::one_hot;
use crate::digest::Digest;
use crate::error::DataError;
use crate::mixing::Mixing;
use crate::normalization::{Normalization, Sums};
pub(crate) use crate::requirements::image_input;
pub use crate::requirements::{InputDescription, LabelKind, Requirements};
use crate::sampler::{Sampler, permutation};

/// The contents of a data set as stored.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::{open, InputDescription, LabelKind, Requirements};
///
/// # fn main() -> Result<(), forebay_data::DataError> {
/// let image = InputDescription { name: "x".to_string(), data_type: DataType::Float32, sample_shape: vec![1, 8, 8] };
/// let labels = LabelKind::Classes;
/// let requirements = Requirements { inputs: vec![image], input_scale: 1.0, labels, label_shape: Vec::new() };
/// let found = open("../../examples/digits/digits.npz#0..1500", &requirements)?.description()?;
/// assert_eq!(found.samples, 1500);
/// assert_eq!(found.tensors, ["x: uint8[1, 8, 8]", "y: int64[]"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The kind of data set, in words.
    pub kind: String,
    /// The number of selected samples.
    pub samples: u64,
    /// The tensors of a sample: their names, with the types and shapes in which they are stored.
    pub tensors: Vec<String>,
    /// The bytes of all files together.
    pub size_bytes: u64,
    /// The bytes of samples that are in memory for as long as the data set exists; other samples are read on demand.
    pub held_bytes: u64,
}

/// A source of samples.
pub trait Source: Send {
    /// Returns a description of the source. The data set fills in the number of samples.
    ///
    /// # Errors
    /// [`DataError`] naming a file that no longer exists.
    fn description(&self) -> Result<Description, DataError>;

    /// Returns the number of samples.
    fn sample_count(&self) -> u64;

    /// Reads samples, in the order given.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    ///
    /// # Panics
    /// If a sample is out of range.
    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError>;

    /// Reads samples in an epoch, for sources whose samples differ from epoch to epoch.
    ///
    /// # Errors
    /// The errors of [`Source::batch`].
    ///
    /// # Panics
    /// If a sample is out of range.
    fn batch_of_epoch(&mut self, samples: &[u64], _epoch: u64) -> Result<Batch, DataError> {
        self.batch(samples)
    }

    /// From now on, keeps samples in memory after reading them only if `count` of them together take at most `bytes`.
    fn keep_at_most(&mut self, _bytes: u64, _count: u64) {}

    /// Returns the class of every sample, if each has one and the source knows it without reading all samples.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    fn classes(&mut self) -> Result<Option<Vec<i64>>, DataError> {
        Ok(None)
    }

    /// Returns the names of the classes in the order of their numbers, if the labels are named classes, each of which has one number.
    fn class_names(&self) -> Option<&[String]> {
        None
    }

    /// Returns the weight of every sample, if the source specifies weights.
    fn weights(&self) -> Option<Vec<f64>> {
        None
    }

    /// Returns the sizes of a sample's inputs, if they can differ from sample to sample.
    ///
    /// # Panics
    /// If the sample is out of range.
    fn sample_shapes(&self, _sample: u64) -> Option<Vec<Vec<u64>>> {
        None
    }

    /// Adds everything that determines the contents of a range of samples to a digest.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    ///
    /// # Panics
    /// If a sample is out of range.
    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError>;
}

/// A range of rows of a source.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::{open, InputDescription, LabelKind, Requirements};
///
/// # fn main() -> Result<(), forebay_data::DataError> {
/// let image = InputDescription { name: "x".to_string(), data_type: DataType::Float32, sample_shape: vec![1, 8, 8] };
/// let requirements = Requirements {
///     inputs: vec![image],
///     input_scale: 1.0 / 16.0,
///     labels: LabelKind::Classes,
///     label_shape: Vec::new(),
/// };
/// let mut digits = open("../../examples/digits/digits.npz", &requirements)?;
/// let batch = digits.batch(&[0, 2, 4])?;
/// assert_eq!((batch.inputs["x"].shape(), batch.labels.shape()), (&[3, 1, 8, 8][..], &[3][..]));
/// # Ok(())
/// # }
/// ```
pub struct DataSet {
    source: Box<dyn Source>,
    name: String,
    rows: Range<u64>,
    /// The chosen rows, in ascending order; `None` for all.
    chosen: Option<Vec<u64>>,
    normalization: Option<Normalization>,
    augmentation: Option<Augmentation>,
    /// For each class of the source, its number in batches; `None` for the number in the source.
    class_numbers: Option<Vec<i64>>,
    /// The number of classes, and the axis along which their probabilities lie if mixed samples have probabilities as labels.
    label_classes: Option<(u64, usize)>,
    /// The most unreadable samples that are left out.
    skip_max: u64,
    /// The rows left out so far, and what is wrong with each.
    bad: BTreeMap<u64, String>,
}

/// One of the two parts of a data set.
///
/// ```
/// use forebay_data::Part;
///
/// // 90 of 100 samples, and the 10 others.
/// let parts = [Part::First { percent: 90.0 }, Part::Rest { percent: 90.0 }];
/// assert_ne!(parts[0], parts[1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    /// The given share of the samples.
    First {
        /// The share, in percent.
        percent: f64,
    },
    /// The remaining samples.
    Rest {
        /// The share of the first part, in percent.
        percent: f64,
    },
}

impl DataSet {
    /// Creates a data set of the given rows of a source, or of all rows if there is no selection.
    ///
    /// # Errors
    /// [`DataError::Rows`] if the selection goes beyond the samples or is empty, or if the source has no samples; `data` names the data
    /// set.
    pub fn new(source: Box<dyn Source>, selection: Option<RowSelection>, data: &str) -> Result<DataSet, DataError> {
        let count = source.sample_count();
        let failed = |reason| DataError::Rows { data: data.to_owned(), reason };
        if count == 0 {
            return Err(failed("there are no samples".into()));
        }
        let selection = selection.unwrap_or_default();
        let rows = selection.start..selection.end.unwrap_or(count);
        if rows.end > count {
            return Err(failed(format!(
                "rows {}..{} were requested, but there are only {count}",
                rows.start, rows.end
            )));
        }
        if rows.is_empty() {
            return Err(failed(format!("the selection {}..{} is empty", rows.start, rows.end)));
        }
        Ok(DataSet {
            source,
            name: data.to_owned(),
            rows,
            chosen: None,
            normalization: None,
            augmentation: None,
            class_numbers: None,
            label_classes: None,
            skip_max: 0,
            bad: BTreeMap::new(),
        })
    }

    /// Returns a part of the samples. The seed determines which ones; their order is kept.
    ///
    /// # Errors
    /// [`DataError::Rows`] if one of the parts would have no samples.
    pub fn part(self, part: Part, seed: u64) -> Result<DataSet, DataError> {
        let (Part::First { percent } | Part::Rest { percent }) = part;
        let count = self.sample_count();
        let first = (count as f64 * percent / 100.0).round() as u64;
        if first == 0 || first >= count {
            let reason = format!("{percent} % of {count} samples is {first}, which leaves one part of the split empty");
            return Err(DataError::Rows { data: self.name, reason });
        }
        let order = permutation(count, seed, 0);
        let (first, rest) = order.split_at(first as usize);
        let drawn = if matches!(part, Part::First { .. }) { first } else { rest };
        let mut chosen: Vec<u64> = drawn.iter().map(|&sample| self.row(sample)).collect();
        chosen.sort_unstable();
        Ok(DataSet { chosen: Some(chosen), ..self })
    }

    /// Normalizes batches from now on.
    pub fn normalize(&mut self, normalization: Normalization) {
        self.normalization = Some(normalization);
    }

    /// Augments the batches of steps from now on.
    pub fn augment(&mut self, augmentation: Augmentation) {
        self.augmentation = Some(augmentation);
    }

    /// From now on, turns class indices into probabilities of this many classes, along this axis of a batch's labels, before samples are
    /// mixed with others. A loss on soft labels takes such labels.
    pub fn soften_labels(&mut self, classes: u64, axis: usize) {
        self.label_classes = Some((classes, axis));
    }

    /// From now on, numbers classes as another data set does, if both have names for them: subfolders or words. On its own, each data set
    /// numbers the classes that it has, so the same class can have another number if one before it is missing.
    ///
    /// ```
    /// use forebay_data::{guess, open};
    ///
    /// let folder = tempfile::tempdir()?;
    /// std::fs::write(folder.path().join("a.csv"), "path,label\n1.png,cat\n2.png,dog\n")?;
    /// std::fs::write(folder.path().join("b.csv"), "path,label\n3.png,dog\n")?;
    /// std::fs::write(folder.path().join("c.csv"), "path,label\n4.png,bird\n")?;
    /// let table = |name: &str| {
    ///     let path = folder.path().join(name).display().to_string();
    ///     open(&path, &guess(&path, 8)?)
    /// };
    /// let (training, mut validation) = (table("a.csv")?, table("b.csv")?);
    /// validation.number_classes_like(&training)?;
    /// assert!(table("c.csv")?.number_classes_like(&training).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DataError`] naming a class that has samples, but is not one of the other data set's.
    pub fn number_classes_like(&mut self, other: &DataSet) -> Result<(), DataError> {
        let (Some(own), Some(others)) = (self.source.class_names(), other.source.class_names()) else { return Ok(()) };
        let known: BTreeMap<&str, i64> = others.iter().map(String::as_str).zip(0..).collect();
        let numbers: Vec<Option<i64>> = own.iter().map(|name| known.get(name.as_str()).copied()).collect();
        let own = own.to_vec();
        let classes = self.source.classes()?.unwrap_or_default();
        let selected = (0..self.sample_count()).filter_map(|sample| classes.get(self.row(sample) as usize));
        let mut unknown = selected.map(|&class| class as usize).filter(|&class| numbers.get(class) == Some(&None));
        if let Some(class) = unknown.next() {
            let (name, known) = (&own[class], shown(others));
            let reason = format!("there is no class '{name}' in {}, whose classes are {known}", other.name);
            return Err(DataError::unsupported(&self.name, reason));
        }
        // Classes without samples need no number.
        self.class_numbers = Some(numbers.into_iter().map(|number| number.unwrap_or(-1)).collect());
        Ok(())
    }

    /// Returns the number of classes, or `None` if samples do not have one class each: of named classes, the number of names, and otherwise
    /// one more than the highest class. These are the data set's own classes, also if [`DataSet::number_classes_like`] gives batches the
    /// numbers of another set.
    ///
    /// # Errors
    /// [`DataError`] naming a file that cannot be read.
    pub fn class_count(&mut self) -> Result<Option<u64>, DataError> {
        if let Some(names) = self.source.class_names() {
            return Ok(Some(names.len() as u64));
        }
        let highest = self.source.classes()?.and_then(|classes| classes.into_iter().max());
        Ok(highest.and_then(|class| u64::try_from(class).ok()).map(|class| class.saturating_add(1)))
    }

    /// Returns the names of the classes in the order of their numbers in the data set, if they have names. After
    /// [`DataSet::number_classes_like`], batches have the numbers of the other set, which has the names for them.
    pub fn class_names(&self) -> Option<&[String]> {
        self.source.class_names()
    }

    /// From now on, leaves out up to `most` samples that cannot be read. Each is replaced by the next readable sample of the same sizes.
    /// Data sets are opened with [`crate::Reading::skips_bad`] for this, so that the whole of them can be described despite such samples.
    pub fn skip_bad(&mut self, most: u64) {
        self.skip_max = most;
    }

    /// Returns what is wrong with each sample that was left out so far.
    pub fn bad_samples(&self) -> impl ExactSizeIterator<Item = &str> {
        self.bad.values().map(String::as_str)
    }

    /// Measures the mean and deviation of each channel of each input over all samples as stored. Only floating-point inputs count.
    ///
    /// # Errors
    /// [`DataError`] naming the file, or data without such an input.
    pub fn measure(&mut self) -> Result<Normalization, DataError> {
        let mut sums = Sums::default();
        for sample in 0..self.sample_count() {
            sums.add(&self.raw(&[self.row(sample)], 0)?);
        }
        sums.normalization()
            .ok_or_else(|| DataError::unsupported(&self.name, "no floating-point input has channels to measure"))
    }

    /// Returns the number of samples, which is at least one.
    pub fn sample_count(&self) -> u64 {
        self.chosen.as_ref().map_or(self.rows.end - self.rows.start, |chosen| chosen.len() as u64)
    }

    /// Returns a sample's row in the source.
    fn row(&self, sample: u64) -> u64 {
        self.chosen.as_ref().map_or(self.rows.start + sample, |chosen| chosen[sample as usize])
    }

    /// Returns a description of the data set.
    ///
    /// # Errors
    /// [`DataError`] naming a file that no longer exists.
    pub fn description(&self) -> Result<Description, DataError> {
        Ok(Description { samples: self.sample_count(), ..self.source.description()? })
    }

    /// Reads samples, counted from 0 within the selection, in the order given.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    ///
    /// # Panics
    /// If a sample is out of range.
    pub fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let batch = self.raw(&self.rows_of(samples), 0)?;
        match &self.normalization {
            Some(normalization) => normalization.apply(batch),
            None => Ok(batch),
        }
    }

    /// Reads the batch of a step and augments it. The result depends only on the samples, the step's epoch and the seeds.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    ///
    /// # Panics
    /// If a sample is out of range.
    pub fn batch_of_step(&mut self, samples: &[u64], sampler: &Sampler, step: u64) -> Result<Batch, DataError> {
        let rows = self.rows_of(samples);
        let epoch = sampler.epoch(step);
        let mut batch = self.raw(&rows, epoch)?;
        if let Some(augmentation) = self.augmentation.clone() {
            batch = augmentation.apply(batch, &rows, epoch)?;
            let mixings = Mixing::of(&augmentation, epoch);
            if !mixings.is_empty() {
                batch = self.softened(batch)?;
            }
            for mixing in mixings {
                let count = self.sample_count();
                let others: Vec<u64> = rows.iter().map(|&row| self.row(mixing.partner(row, count))).collect();
                let other = augmentation.apply(self.raw(&others, epoch)?, &others, epoch)?;
                let other = self.softened(other)?;
                batch = mixing.apply(batch, &other, &rows)?;
            }
        }
        match &self.normalization {
            Some(normalization) => normalization.apply(batch),
            None => Ok(batch),
        }
    }

    /// Turns a batch's labels into ones that can be mixed.
    fn softened(&self, batch: Batch) -> Result<Batch, DataError> {
        let soft =
            self.label_classes.and_then(|(classes, axis)| Some((one_hot(&batch.labels, classes, axis)?, classes)));
        match soft {
            None => Ok(batch),
            Some((Ok(labels), _)) => Ok(Batch { labels, ..batch }),
            Some((Err(label), classes)) => {
                let reason =
                    format!("label {label} is not one of the {classes} classes 0 to {}", classes.saturating_sub(1));
                Err(DataError::malformed(&self.name, reason))
            }
        }
    }

    fn rows_of(&self, samples: &[u64]) -> Vec<u64> {
        let count = self.sample_count();
        assert!(samples.iter().all(|&sample| sample < count), "samples {samples:?} of {count}");
        samples.iter().map(|&sample| self.row(sample)).collect()
    }

    /// Reads rows as stored, with the numbers of their classes.
    fn raw(&mut self, rows: &[u64], epoch: u64) -> Result<Batch, DataError> {
        let mut batch = self.readable(rows, epoch)?;
        if let Some(numbers) = &self.class_numbers
            && let Some(labels) = batch.labels.to_i64()
        {
            let labels: Vec<i64> =
                labels.into_iter().map(|class| numbers.get(class as usize).copied().unwrap_or(class)).collect();
            batch.labels = Tensor::from_i64(batch.labels.shape(), &labels);
        }
        Ok(batch)
    }

    /// Reads rows as stored; unreadable rows are replaced by others as far as that is allowed.
    fn readable(&mut self, rows: &[u64], epoch: u64) -> Result<Batch, DataError> {
        if self.skip_max == 0 {
            return self.source.batch_of_epoch(rows, epoch);
        }
        loop {
            let readable: Result<Vec<u64>, DataError> = rows.iter().map(|&row| self.substitute(row)).collect();
            let readable = readable?;
            let error = match self.source.batch_of_epoch(&readable, epoch) {
                Ok(batch) => return Ok(batch),
                Err(error) => error,
            };
            let known = self.bad.len();
            for row in readable {
                if let Err(error) = self.source.batch_of_epoch(&[row], epoch) {
                    self.bad.insert(row, error.to_string());
                }
            }
            if self.bad.len() == known {
                // Every sample can be read on its own.
                return Err(error);
            }
            if self.bad.len() as u64 > self.skip_max {
                let (count, most) = (self.bad.len(), self.skip_max);
                let reason = format!("{error}; {count} samples cannot be read, but --skip-bad allows at most {most}");
                return Err(DataError::Rows { data: self.name.clone(), reason });
            }
        }
    }

    /// Returns the row itself or, if it is known to be unreadable, the next row that is not.
    fn substitute(&self, row: u64) -> Result<u64, DataError> {
        let Some(reason) = self.bad.get(&row) else { return Ok(row) };
        let count = self.sample_count();
        let sample = match &self.chosen {
            Some(chosen) => chosen.partition_point(|&chosen| chosen < row) as u64,
            None => row - self.rows.start,
        };
        let shapes = self.source.sample_shapes(row);
        let others = (1..count).map(|further| self.row((sample + further) % count));
        let mut fitting = others.filter(|other| !self.bad.contains_key(other));
        fitting.find(|&other| self.source.sample_shapes(other) == shapes).ok_or_else(|| DataError::Rows {
            data: self.name.clone(),
            reason: format!("{reason}; no other sample can take its place"),
        })
    }

    /// Returns weights with which every class is drawn equally often ([`Sampler::weighted`]).
    ///
    /// # Errors
    /// [`DataError`] if samples do not have one class each.
    pub fn class_weights(&mut self) -> Result<Vec<f64>, DataError> {
        let classes = self.source.classes()?;
        let classes = classes.ok_or_else(|| {
            DataError::unsupported(&self.name, "samples can only be balanced if each has exactly one class")
        })?;
        let classes: Vec<i64> = (0..self.sample_count()).map(|sample| classes[self.row(sample) as usize]).collect();
        let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
        classes.iter().for_each(|class| *counts.entry(*class).or_default() += 1);
        Ok(classes.iter().map(|class| 1.0 / counts[class] as f64).collect())
    }

    /// Returns the weights that the data set specifies for its samples, such as the column `weight` of a table.
    ///
    /// # Errors
    /// [`DataError`] if it has no weights, or all weights are 0.
    pub fn weights(&self) -> Result<Vec<f64>, DataError> {
        let weights = self.source.weights();
        let weights = weights.ok_or_else(|| {
            DataError::unsupported(
                &self.name,
                "it has no sample weights; a table of images has them in a column `weight`",
            )
        })?;
        let weights: Vec<f64> = (0..self.sample_count()).map(|sample| weights[self.row(sample) as usize]).collect();
        match weights.iter().any(|weight| *weight > 0.0) {
            true => Ok(weights),
            false => Err(DataError::unsupported(&self.name, "the weights of all samples are 0")),
        }
    }

    /// Returns the sizes of a sample's inputs, in the order of the requirements; `None` if all samples have the same sizes.
    ///
    /// # Panics
    /// If the sample is out of range.
    pub fn sample_shapes(&self, sample: u64) -> Option<Vec<Vec<u64>>> {
        assert!(sample < self.sample_count(), "sample {sample} of {}", self.sample_count());
        self.source.sample_shapes(self.row(sample))
    }

    /// From now on, keeps samples in memory after reading them only if all selected ones together take at most `bytes`; otherwise, each is
    /// read again on demand. Arrays of compressed archives, arrays in Fortran order and arrays small enough to be read whole stay in memory
    /// in either case; other arrays are read row by row. Without a call, up to a gibibyte is kept while memory is free.
    pub fn keep_at_most(&mut self, bytes: u64) {
        self.source.keep_at_most(bytes, self.sample_count());
    }

    /// Returns the digest of the selected samples. Different data sets have different digests, except by an unlikely coincidence, or if
    /// files that together exceed a gibibyte differ only in parts that are not read for the digest.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    pub fn digest(&self) -> Result<String, DataError> {
        let mut digest = Digest::default();
        self.source.digest(self.rows.clone(), &mut digest)?;
        self.chosen.iter().flatten().for_each(|row| digest.add(&row.to_le_bytes()));
        Ok(digest.text())
    }
}

/// A selection of a data set's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSelection {
    /// The first row.
    pub start: u64,
    /// One past the last row; `None` for all rows from `start` on.
    pub end: Option<u64>,
}

impl RowSelection {
    /// Parses `0..1500`, `1500..` or `..1500`.
    pub fn parse(text: &str) -> Option<RowSelection> {
        let (start, end) = text.split_once("..")?;
        let start = if start.is_empty() { 0 } else { start.parse().ok()? };
        let end = if end.is_empty() { None } else { Some(end.parse().ok()?) };
        Some(RowSelection { start, end })
    }
}

/// Returns the total size of files.
///
/// # Errors
/// [`DataError::Io`] naming the first file that does not exist.
pub(crate) fn size_of_files<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<u64, DataError> {
    let mut size_bytes = 0u64;
    for path in paths {
        let found = std::fs::metadata(path).map_err(|error| DataError::io(path, error))?;
        size_bytes = size_bytes.saturating_add(found.len());
    }
    Ok(size_bytes)
}

/// Returns a list of the first few words.
pub(crate) fn shown(words: &[String]) -> String {
    let more = if words.len() > 5 { ", ..." } else { "" };
    format!("{}{more}", words.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", "))
}

/// Formats a tensor for a description.
pub(crate) fn described(name: &str, data_type: DataType, shape: &[u64]) -> String {
    format!("{name}: {data_type}{shape:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers(u64);

    impl Source for Numbers {
        fn description(&self) -> Result<Description, DataError> {
            Ok(Description { kind: "numbers".into(), ..Description::default() })
        }

        fn sample_count(&self) -> u64 {
            self.0
        }

        fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
            if let Some(bad) = samples.iter().find(|&&sample| sample % 10 == 3) {
                return Err(DataError::malformed(format!("file {bad}"), "corrupt"));
            }
            let labels: Vec<i64> = samples.iter().map(|&sample| sample as i64).collect();
            Ok(Batch { inputs: BTreeMap::new(), labels: Tensor::from_i64(&[labels.len() as u64], &labels) })
        }

        fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
            samples.for_each(|sample| digest.add(&sample.to_le_bytes()));
            Ok(())
        }
    }

    fn select(count: u64, selection: &str) -> Result<DataSet, String> {
        let selection = Some(RowSelection::parse(selection).expect("a selection"));
        DataSet::new(Box::new(Numbers(count)), selection, "DATA").map_err(|error| error.to_string())
    }

    #[test]
    fn selections_are_parsed() {
        assert_eq!(RowSelection::parse("3..7"), Some(RowSelection { start: 3, end: Some(7) }));
        assert_eq!(RowSelection::parse(".."), Some(RowSelection { start: 0, end: None }));
        for wrong in ["", "3", "a..b", "-1..2", "1...2"] {
            assert_eq!(RowSelection::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn selected_rows_are_counted_from_zero() {
        let mut set = select(10, "4..7").unwrap();
        assert_eq!(set.sample_count(), 3);
        assert_eq!(set.batch(&[2, 0]).unwrap().labels, Tensor::from_i64(&[2], &[6, 4]));
        assert_eq!(select(10, "4..").unwrap().sample_count(), 6);
        assert_eq!(select(10, "4..").unwrap().description().unwrap().samples, 6);
        assert_eq!(select(10, "4..7").unwrap().digest().unwrap(), select(20, "4..7").unwrap().digest().unwrap());
        assert_ne!(select(10, "4..7").unwrap().digest().unwrap(), select(10, "3..6").unwrap().digest().unwrap());
    }

    #[test]
    fn selections_beyond_the_data_are_errors() {
        assert_eq!(select(10, "0..11").err().unwrap(), "DATA: rows 0..11 were requested, but there are only 10");
        assert_eq!(select(10, "5..5").err().unwrap(), "DATA: the selection 5..5 is empty");
        assert!(select(10, "12..").is_err());
        assert_eq!(select(0, "..").err().unwrap(), "DATA: there are no samples");
    }

    #[test]
    fn parts_of_a_split_hold_every_sample_once() {
        let part = |part, seed| select(100, "10..60").unwrap().part(part, seed).unwrap();
        let (first, rest) = (part(Part::First { percent: 90.0 }, 1), part(Part::Rest { percent: 90.0 }, 1));
        assert_eq!((first.sample_count(), rest.sample_count()), (45, 5));
        let rows = |set: &DataSet| (0..set.sample_count()).map(|sample| set.row(sample)).collect::<Vec<_>>();
        let mut all = [rows(&first), rows(&rest)].concat();
        all.sort_unstable();
        assert_eq!(all, (10..60).collect::<Vec<u64>>());
        assert!(rows(&first).is_sorted());
        assert_ne!(rows(&part(Part::Rest { percent: 90.0 }, 2)), rows(&rest));
        assert_ne!(first.digest().unwrap(), select(100, "10..60").unwrap().digest().unwrap());
        let error = select(3, "..").unwrap().part(Part::First { percent: 1.0 }, 0).err().unwrap().to_string();
        assert!(error.contains("1 % of 3 samples is 0"), "{error}");
    }

    #[test]
    fn bad_samples_are_left_out_up_to_a_number() {
        let labels =
            |set: &mut DataSet, samples: &[u64]| set.batch(samples).map(|batch| batch.labels.to_i64().unwrap());
        let mut set = select(20, "..").unwrap();
        assert!(labels(&mut set, &[2, 3]).unwrap_err().to_string().contains("file 3: corrupt"));
        set.skip_bad(1);
        assert_eq!(labels(&mut set, &[2, 3, 4]).unwrap(), [2, 4, 4]);
        assert_eq!(labels(&mut set, &[3]).unwrap(), [4]);
        assert_eq!(set.bad_samples().collect::<Vec<_>>(), ["file 3: corrupt"]);
        let error = labels(&mut set, &[13]).unwrap_err().to_string();
        assert!(
            error.contains("file 13: corrupt") && error.contains("2 samples") && error.contains("allows at most 1"),
            "{error}"
        );
        let mut only = select(20, "3..4").unwrap();
        only.skip_bad(1);
        assert!(labels(&mut only, &[0]).unwrap_err().to_string().contains("no other sample can take its place"));
    }
}
