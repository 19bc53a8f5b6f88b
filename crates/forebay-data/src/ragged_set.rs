//! Data sets of samples of different sizes: a folder with an `.npz` file for each sample, or one archive of concatenated samples.
//!
//! In a folder, the arrays of a file are named like the model's inputs, and the labels are named `y` or `labels`. There is no batch axis,
//! and samples are in the order of the files' names. In an archive, all samples are concatenated along the first axis of an array `x`, and
//! `x.lengths` holds the length of each. Samples of a batch that differ in size are padded if the caller requests it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_base::{DataType, Tensor};

use crate::archive_set::{LENGTHS, check_conversion, label_name, label_type, scale_for};
use crate::array_rows::Rows;
use crate::arrays::{Arrays, HeldBytes, is_safetensors};
use crate::convert::convert;
use crate::dataset::{Batch, Description, Requirements, Source, described, size_of_files};
use crate::digest::{Digest, WHOLE_BYTES_MAX};
use crate::error::DataError;
use crate::names::files_with;
use crate::npz::Archive;

/// Sizes that can differ from sample to sample.
///
/// ```
/// use forebay_data::FreeSizes;
///
/// // The first axis of x, without the batch's, may have any size; batches come in multiples of 64.
/// let free = FreeSizes { axes: [("x".to_string(), vec![0])].into(), pad_to: Some(64), label_padding: Some(-100) };
/// assert_eq!(free.padded(100), 128);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSizes {
    /// For each input, the axes of a sample that can have any size.
    pub axes: BTreeMap<String, Vec<usize>>,
    /// Sizes are padded to the largest one of a batch, rounded up to a multiple of this. `None` if all samples of a batch must have the
    /// same sizes.
    pub pad_to: Option<u64>,
    /// The label of padded positions. `None` if labels cannot be padded, because all of them count in the loss.
    pub label_padding: Option<i64>,
}

impl FreeSizes {
    /// Returns a size with its padding, if no other sample is larger.
    pub fn padded(&self, size: u64) -> u64 {
        size.next_multiple_of(self.pad_to.unwrap_or(1).max(1))
    }

    fn is_free(&self, input: &str, axis: usize) -> bool {
        self.axes.get(input).is_some_and(|axes| axes.contains(&axis))
    }
}

/// The storage of samples.
enum Samples {
    /// A file for each sample.
    Files(Vec<PathBuf>),
    /// Concatenated samples.
    Joined { arrays: Joined, count: u64 },
}

/// Arrays of concatenated samples by name, with the first row of each sample, and one past the last row.
type Joined = BTreeMap<String, (Rows, Vec<u64>)>;

/// The samples and their sizes.
struct RaggedSet {
    path: PathBuf,
    samples: Samples,
    requirements: Requirements,
    free: FreeSizes,
    label_name: String,
    /// For each sample, the shape of each input.
    shapes: Vec<Vec<Vec<u64>>>,
    /// For each axis of the labels, the input and its axis whose size it has in every sample.
    ties: Vec<Option<(usize, usize)>>,
    /// Samples that cannot be read. They count as having the sizes of another.
    damaged: BTreeSet<u64>,
}

/// Returns the files of a folder of samples, in order; empty if the folder is something else.
///
/// # Errors
/// [`DataError`] if the folder cannot be listed.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    files_with(folder, &["npz"])
}

/// Returns whether an archive holds concatenated samples.
///
/// # Errors
/// [`DataError`] naming the file.
pub(crate) fn is_joined(path: &Path) -> Result<bool, DataError> {
    Ok(!is_safetensors(path) && Archive::open(path)?.names().iter().any(|name| name.ends_with(LENGTHS)))
}

/// Returns, by name, the largest size of samples along every axis. Names without an array are left out, and so are files that cannot be
/// read, because opening the samples reports them.
///
/// # Errors
/// [`DataError`] naming the file.
pub(crate) fn largest(path: &Path, names: &[&str]) -> Result<BTreeMap<String, Vec<u64>>, DataError> {
    let mut largest: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut note = |name: &str, shape: &[u64]| {
        let known = largest.entry(name.to_string()).or_insert_with(|| shape.to_vec());
        known.iter_mut().zip(shape).for_each(|(known, &size)| *known = size.max(*known));
    };
    if path.is_dir() {
        for file in files(path)? {
            let Ok(mut archive) = Archive::open(&file) else { continue };
            for name in names {
                archive.ty(name).ok().flatten().iter().for_each(|ty| note(name, &ty.shape));
            }
        }
        return Ok(largest);
    }
    let mut archive = Archive::open(path)?;
    for name in names {
        let Some(ty) = archive.ty(name)? else { continue };
        let Some((_, rest)) = ty.shape.split_first() else { continue };
        let longest = lengths(&mut archive, name)?.map(|lengths| lengths.into_iter().max().unwrap_or(0));
        let sample: Vec<u64> = longest.into_iter().chain(rest.iter().copied()).collect();
        note(name, &sample);
    }
    Ok(largest)
}

/// Returns the lengths of an array's samples, if the archive specifies them.
fn lengths(archive: &mut Archive, name: &str) -> Result<Option<Vec<u64>>, DataError> {
    let name = format!("{name}{LENGTHS}");
    if archive.ty(&name)?.is_none() {
        return Ok(None);
    }
    let (array, origin) = (archive.read(&name)?, archive.origin(&name));
    let lengths = array.to_i64().filter(|_| array.shape().len() == 1);
    let lengths = lengths.and_then(|lengths| lengths.into_iter().map(|length| u64::try_from(length).ok()).collect());
    match lengths {
        Some(lengths) => Ok(Some(lengths)),
        None => Err(DataError::malformed(origin, "lengths must be a list of non-negative integers".to_string())),
    }
}

/// Opens a folder of samples, or an archive of concatenated samples. With `skips_bad`, files that cannot be read are errors only when their
/// samples are read.
///
/// # Errors
/// [`DataError`] naming the file, the array and the shape if an array is missing, has a shape that the model does not take, or has a type
/// that cannot be converted.
pub fn open(
    path: &Path,
    requirements: &Requirements,
    free: &FreeSizes,
    held: HeldBytes,
    skips_bad: bool,
) -> Result<Box<dyn Source>, DataError> {
    let samples = match path.is_dir() {
        true => Samples::Files(files(path)?),
        false => joined(path, requirements, held)?,
    };
    let mut set = RaggedSet {
        path: path.to_path_buf(),
        samples,
        requirements: requirements.clone(),
        free: free.clone(),
        label_name: "labels".to_owned(),
        shapes: Vec::new(),
        ties: Vec::new(),
        damaged: BTreeSet::new(),
    };
    if let Samples::Files(files) = &set.samples
        && skips_bad
    {
        set.damaged = (0..).zip(files).filter(|(_, file)| damage(file).is_some()).map(|(sample, _)| sample).collect();
    }
    set.label_name = label_name(&set.names()?, requirements);
    let mut label_shapes = Vec::new();
    for sample in 0..set.sample_count() {
        let sample = set.like(sample);
        let mut shapes = Vec::with_capacity(requirements.inputs.len());
        for input in &requirements.inputs {
            let (data_type, shape, origin) = set.ty(sample, &input.name)?;
            let fits = |(axis, (&size, &wanted)): (usize, (&u64, &u64))| {
                size == wanted || (free.is_free(&input.name, axis) && size > 0)
            };
            if shape.len() != input.sample_shape.len() || !shape.iter().zip(&input.sample_shape).enumerate().all(fits) {
                let size = |(axis, &size): (usize, &u64)| match free.is_free(&input.name, axis) {
                    true => "any".to_string(),
                    false => size.to_string(),
                };
                let sizes: Vec<String> = input.sample_shape.iter().enumerate().map(size).collect();
                return Err(DataError::Shape { origin, found: shape, expected: format!("[{}]", sizes.join(", ")) });
            }
            check_conversion(data_type, input.data_type, requirements.input_scale, &origin)?;
            shapes.push(shape);
        }
        let (data_type, shape, origin) = set.ty(sample, &set.label_name)?;
        if shape.len() != requirements.label_shape.len() {
            let expected = format!("{} axes", requirements.label_shape.len());
            return Err(DataError::Shape { origin, found: shape, expected });
        }
        check_conversion(data_type, label_type(requirements), 1.0, &origin)?;
        label_shapes.push((shape, origin));
        set.shapes.push(shapes);
    }
    for (axis, &wanted) in requirements.label_shape.iter().enumerate() {
        let open = requirements.inputs.iter().enumerate().flat_map(|(i, input)| {
            let axes = 0..input.sample_shape.len();
            axes.filter(|&axis| free.is_free(&input.name, axis)).map(move |axis| (i, axis))
        });
        let follows = |&(i, of): &(usize, usize)| {
            set.shapes.iter().zip(&label_shapes).all(|(inputs, (labels, _))| inputs[i][of] == labels[axis])
        };
        let tie = open.into_iter().find(follows);
        if let (None, Some((shape, origin))) = (tie, label_shapes.iter().find(|(shape, _)| shape[axis] != wanted)) {
            let expected =
                format!("{wanted} along axis {axis}, or the size of an input axis that the model leaves open");
            return Err(DataError::Shape { origin: origin.clone(), found: shape.clone(), expected });
        }
        set.ties.push(tie);
    }
    Ok(Box::new(set))
}

/// Returns why a file cannot be read, as far as its headers show.
fn damage(file: &Path) -> Option<DataError> {
    let checked = Archive::open(file).and_then(|mut archive| {
        let names = archive.names();
        names.iter().try_for_each(|name| archive.ty(name).map(|_| ()))
    });
    checked.err()
}

/// Reads an archive of concatenated samples.
fn joined(path: &Path, requirements: &Requirements, mut held: HeldBytes) -> Result<Samples, DataError> {
    let mut archive = Archive::open(path)?;
    let labels = label_name(&archive.names(), requirements);
    let mut arrays = BTreeMap::new();
    let mut count: Option<u64> = None;
    for name in requirements.inputs.iter().map(|input| input.name.as_str()).chain([&*labels]) {
        let (array, origin) = (Arrays::open(path)?.rows(name, held)?, archive.origin(name));
        held = held.without(array.held_bytes());
        let shape = array.ty().shape;
        let rows = shape.first().copied().unwrap_or(0);
        let starts = match lengths(&mut archive, name)? {
            Some(lengths) => {
                let ends = lengths.iter().scan(0u64, |end, length| {
                    *end = end.saturating_add(*length);
                    Some(*end)
                });
                [0].into_iter().chain(ends).collect()
            }
            None => Vec::new(),
        };
        let samples = if starts.is_empty() { rows } else { starts.len() as u64 - 1 };
        if starts.last().is_some_and(|&end| end != rows) {
            let expected = format!("{} along the first axis, the sum of {name}{LENGTHS}", starts.last().unwrap_or(&0));
            return Err(DataError::Shape { origin, found: shape, expected });
        }
        if *count.get_or_insert(samples) != samples {
            let reason = format!("it has {samples} samples, but other arrays have {}", count.unwrap_or_default());
            return Err(DataError::malformed(origin, reason));
        }
        arrays.insert(name.to_string(), (array, starts));
    }
    Ok(Samples::Joined { arrays, count: count.unwrap_or(0) })
}

/// Adds samples to a digest if they take more than `whole_bytes_max` together: their lengths, and some of their rows. Returns whether they
/// do.
fn add_if_large(
    arrays: &Joined,
    samples: &Range<u64>,
    whole_bytes_max: u64,
    digest: &mut Digest,
) -> Result<bool, DataError> {
    let selected = |starts: &[u64]| starts.get(samples.start as usize..=samples.end as usize).map(<[u64]>::to_vec);
    let rows = |starts: &[u64]| match selected(starts).as_deref() {
        Some([first, .., last]) => *first..*last,
        _ => samples.clone(),
    };
    let bytes = arrays.values().map(|(array, starts)| {
        let rows = rows(starts);
        array.row_bytes().saturating_mul(rows.end - rows.start)
    });
    if bytes.fold(0, u64::saturating_add) <= whole_bytes_max {
        return Ok(false);
    }
    for (array, starts) in arrays.values() {
        let lengths = selected(starts).unwrap_or_default();
        lengths.windows(2).for_each(|pair| digest.add(&(pair[1] - pair[0]).to_le_bytes()));
        array.add_to(digest, rows(starts))?;
    }
    Ok(true)
}

impl RaggedSet {
    /// Returns the sample itself or, if it is damaged, another whose sizes it counts as having: the next one that is not, or else the one
    /// before.
    fn like(&self, sample: u64) -> u64 {
        let mut others = (sample..self.sample_count()).chain((0..sample).rev());
        others.find(|other| !self.damaged.contains(other)).unwrap_or(sample)
    }

    /// Returns the names of the arrays.
    fn names(&self) -> Result<Vec<String>, DataError> {
        match &self.samples {
            Samples::Files(files) => match files.get(self.like(0) as usize) {
                Some(file) => Ok(Archive::open(file)?.names()),
                None => Ok(Vec::new()),
            },
            Samples::Joined { arrays, .. } => Ok(arrays.keys().cloned().collect()),
        }
    }

    /// Returns the name of a sample's array in errors.
    fn origin(&self, sample: u64, name: &str) -> String {
        match &self.samples {
            Samples::Files(files) => format!("{}[{name}]", files[sample as usize].display()),
            Samples::Joined { .. } => format!("{}[{name}], sample {sample}", self.path.display()),
        }
    }

    /// Returns the type and shape of a sample's array, and its name in errors.
    fn ty(&self, sample: u64, name: &str) -> Result<(DataType, Vec<u64>, String), DataError> {
        let origin = self.origin(sample, name);
        match &self.samples {
            Samples::Files(files) => {
                let path = &files[sample as usize];
                let mut archive = Archive::open(path)?;
                let ty = archive.ty(name)?.ok_or_else(|| DataError::MissingArray {
                    path: path.clone(),
                    name: name.to_string(),
                    present: archive.names(),
                })?;
                Ok((ty.data_type, ty.shape, origin))
            }
            Samples::Joined { arrays, .. } => {
                let (array, starts) = &arrays[name];
                let ty = array.ty();
                let rest = ty.shape.iter().skip(1).copied();
                let length = starts.windows(2).nth(sample as usize).map(|pair| pair[1] - pair[0]);
                Ok((ty.data_type, length.into_iter().chain(rest).collect(), origin))
            }
        }
    }

    /// Reads some arrays of a sample.
    fn read(&self, sample: u64, names: &[&str]) -> Result<Vec<Tensor>, DataError> {
        match &self.samples {
            Samples::Files(files) if self.damaged.contains(&sample) => {
                let file = &files[sample as usize];
                let repaired = || DataError::layout(file, "it could not be read when the data set was opened");
                Err(damage(file).unwrap_or_else(repaired))
            }
            Samples::Files(files) => {
                let mut archive = Archive::open(&files[sample as usize])?;
                names.iter().map(|name| archive.read(name)).collect()
            }
            Samples::Joined { arrays, .. } => names
                .iter()
                .map(|name| {
                    let (array, starts) = &arrays[*name];
                    if let Some(pair) = starts.windows(2).nth(sample as usize) {
                        return array.range(pair[0]..pair[1]);
                    }
                    let row = array.rows(&[sample])?;
                    Ok(Tensor::new(row.data_type(), &row.shape()[1..], row.bytes()).expect("the same elements"))
                })
                .collect(),
        }
    }

    /// Returns, for each input, the sizes of a batch's samples.
    fn targets(&self, samples: &[u64]) -> Result<Vec<Vec<u64>>, DataError> {
        let mut targets = Vec::with_capacity(self.requirements.inputs.len());
        for (i, input) in self.requirements.inputs.iter().enumerate() {
            let mut target = self.shapes[samples[0] as usize][i].clone();
            for &sample in samples {
                let shape = &self.shapes[sample as usize][i];
                if self.free.pad_to.is_none() && *shape != target {
                    let way_out = "--pad-to pads samples to the same size, --bucket-by groups those of the same size";
                    let expected = format!("{target:?}, like other samples in the batch ({way_out})");
                    let origin = self.origin(sample, &input.name);
                    return Err(DataError::Shape { origin, found: shape.clone(), expected });
                }
                target.iter_mut().zip(shape).for_each(|(most, &size)| *most = size.max(*most));
            }
            for axis in self.free.axes.get(&input.name).into_iter().flatten() {
                target[*axis] = self.free.padded(target[*axis]);
            }
            targets.push(target);
        }
        Ok(targets)
    }

    /// Returns the labels of a sample, padded to the sizes of the batch.
    fn labels(&self, sample: u64, labels: Tensor, targets: &[Vec<u64>]) -> Result<Tensor, DataError> {
        let origin = self.origin(sample, &self.label_name);
        let labels = convert(labels, label_type(&self.requirements), 1.0, &origin)?;
        let size = |(axis, &own): (usize, &u64)| self.ties[axis].map_or(own, |(i, of)| targets[i][of]);
        let shape: Vec<u64> = labels.shape().iter().enumerate().map(size).collect();
        if shape == labels.shape() {
            return Ok(labels);
        }
        let fill = match (self.free.label_padding, labels.data_type()) {
            (Some(0), data_type) => vec![0; data_type.size_bytes() as usize],
            (Some(label), DataType::Int64) => label.to_le_bytes().to_vec(),
            (Some(label), DataType::Int32) => (label as i32).to_le_bytes().to_vec(),
            _ => {
                let expected = format!(
                    "{shape:?}; padded labels would count in the loss (--ignore-index names a label that does not count)"
                );
                return Err(DataError::Shape { origin, found: labels.shape().to_vec(), expected });
            }
        };
        padded(&labels, &shape, &fill, &origin)
    }
}

/// Pads a tensor at the ends of its axes, to a shape that is at least as large along each.
fn padded(tensor: &Tensor, shape: &[u64], fill: &[u8], origin: &str) -> Result<Tensor, DataError> {
    if tensor.shape() == shape {
        return Ok(tensor.clone());
    }
    let too_large =
        || DataError::malformed(origin.to_string(), format!("a batch of samples of {shape:?} is too large"));
    let element = fill.len();
    let count = shape.iter().try_fold(1u64, |count, &size| count.checked_mul(size)).ok_or_else(too_large)?;
    let size_bytes = count.checked_mul(element as u64).ok_or_else(too_large)?;
    let mut bytes = forebay_limits::buffer(size_bytes).map_err(|_| too_large())?;
    (0..count).for_each(|_| bytes.extend_from_slice(fill));
    let row = tensor.shape().last().copied().unwrap_or(1) as usize * element;
    let rows = tensor.bytes().len().checked_div(row).unwrap_or(0);
    for number in 0..rows {
        let (mut rest, mut place, mut step) = (number as u64, 0, shape.last().copied().unwrap_or(1));
        for axis in (0..shape.len().saturating_sub(1)).rev() {
            place += rest % tensor.shape()[axis] * step;
            rest /= tensor.shape()[axis];
            step *= shape[axis];
        }
        let start = place as usize * element;
        bytes[start..start + row].copy_from_slice(&tensor.bytes()[number * row..(number + 1) * row]);
    }
    Tensor::new(tensor.data_type(), shape, bytes).ok_or_else(too_large)
}

impl Source for RaggedSet {
    fn description(&self) -> Result<Description, DataError> {
        let mut tensors = Vec::new();
        let names = self.requirements.inputs.iter().map(|input| input.name.as_str()).chain([&*self.label_name]);
        for name in names {
            let (data_type, shape, _) = self.ty(self.like(0), name)?;
            tensors.push(format!("{}, the first one", described(name, data_type, &shape)));
        }
        let (kind, size_bytes, held_bytes) = match &self.samples {
            Samples::Files(files) => ("a folder of .npz files", size_of_files(files.iter().map(PathBuf::as_path))?, 0),
            Samples::Joined { arrays, .. } => {
                let held = arrays.values().map(|(array, _)| array.held_bytes()).sum();
                ("an .npz archive of concatenated samples", size_of_files([self.path.as_path()])?, held)
            }
        };
        Ok(Description { kind: kind.to_owned(), tensors, size_bytes, held_bytes, ..Description::default() })
    }

    fn sample_count(&self) -> u64 {
        match &self.samples {
            Samples::Files(files) => files.len() as u64,
            Samples::Joined { count, .. } => *count,
        }
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let targets = self.targets(samples)?;
        let inputs = &self.requirements.inputs;
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).chain([&*self.label_name]).collect();
        let (mut columns, mut labels) = (vec![Vec::new(); inputs.len()], Vec::new());
        for &sample in samples {
            let mut arrays = self.read(sample, &names)?;
            labels.extend(arrays.pop().map(|array| self.labels(sample, array, &targets)).transpose()?);
            for (i, array) in arrays.into_iter().enumerate() {
                let (input, origin) = (&inputs[i], self.origin(sample, &inputs[i].name));
                let scale = scale_for(input.data_type, self.requirements.input_scale);
                let array = convert(array, input.data_type, scale, &origin)?;
                let zero = vec![0; input.data_type.size_bytes() as usize];
                columns[i].push(padded(&array, &targets[i], &zero, &origin)?);
            }
        }
        let stacked = |tensors: &[Tensor], name: &str| {
            let differ =
                || DataError::malformed(self.origin(samples[0], name), "samples of a batch differ in size".to_string());
            Tensor::stack(&tensors.iter().collect::<Vec<_>>()).ok_or_else(differ)
        };
        let named =
            inputs.iter().zip(&columns).map(|(input, column)| Ok((input.name.clone(), stacked(column, &input.name)?)));
        Ok(Batch { inputs: named.collect::<Result<_, DataError>>()?, labels: stacked(&labels, &self.label_name)? })
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        match &self.samples {
            Samples::Files(files) => {
                digest.add_files(files[samples.start as usize..samples.end as usize].iter().map(PathBuf::as_path))
            }
            Samples::Joined { arrays, .. } => {
                if add_if_large(arrays, &samples, WHOLE_BYTES_MAX, digest)? {
                    return Ok(());
                }
                for sample in samples {
                    let inputs = self.requirements.inputs.iter().map(|input| input.name.as_str());
                    let names: Vec<&str> = inputs.chain([&*self.label_name]).collect();
                    for array in self.read(sample, &names)? {
                        digest.add_rows(&Tensor::stack(&[&array]).expect("one tensor"), 0..1);
                    }
                }
                Ok(())
            }
        }
    }

    fn sample_shapes(&self, sample: u64) -> Option<Vec<Vec<u64>>> {
        self.shapes.get(sample as usize).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{InputDescription, LabelKind};
    use crate::npz;

    fn requirements() -> Requirements {
        let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape: vec![9, 2] };
        Requirements { inputs: vec![input], input_scale: 1.0, labels: LabelKind::Classes, label_shape: vec![9] }
    }

    fn free(pad_to: Option<u64>, label_padding: Option<i64>) -> FreeSizes {
        FreeSizes { axes: [("x".to_string(), vec![0])].into(), pad_to, label_padding }
    }

    /// Samples of these lengths: x counts from 1 in each, and the labels are the sample's index.
    fn samples(lengths: &[u64]) -> Vec<(Tensor, Tensor)> {
        let sample = |(number, &length): (usize, &u64)| {
            let x: Vec<f32> = (1..=2 * length).map(|i| i as f32).collect();
            (Tensor::from_f32(&[length, 2], &x), Tensor::from_i64(&[length], &vec![number as i64; length as usize]))
        };
        lengths.iter().enumerate().map(sample).collect()
    }

    /// The same samples, in a folder and in an archive.
    fn written(folder: &Path, lengths: &[u64]) -> [PathBuf; 2] {
        let (files, archive) = (folder.join("samples"), folder.join("joined.npz"));
        std::fs::create_dir(&files).unwrap();
        let samples = samples(lengths);
        for (number, (x, y)) in samples.iter().enumerate() {
            npz::write(&files.join(format!("{number:03}.npz")), &[("x", x), ("y", y)], false).unwrap();
        }
        let joined = |tensors: Vec<&Tensor>, shape: &[u64]| {
            let bytes: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.bytes().to_vec()).collect();
            Tensor::new(tensors[0].data_type(), shape, bytes).unwrap()
        };
        let total = lengths.iter().sum();
        let x = joined(samples.iter().map(|sample| &sample.0).collect(), &[total, 2]);
        let y = joined(samples.iter().map(|sample| &sample.1).collect(), &[total]);
        let all: Vec<i64> = lengths.iter().map(|&length| length as i64).collect();
        let all = Tensor::from_i64(&[all.len() as u64], &all);
        npz::write(&archive, &[("x", &x), ("y", &y), ("x.lengths", &all), ("y.lengths", &all)], false).unwrap();
        [files, archive]
    }

    #[test]
    fn samples_of_a_batch_are_padded_to_the_largest_in_whole_multiples() {
        let folder = tempfile::tempdir().unwrap();
        for path in written(folder.path(), &[3, 1, 2]) {
            for (pad_to, length) in [(1, 3), (2, 4), (8, 8)] {
                let mut set =
                    open(&path, &requirements(), &free(Some(pad_to), Some(-1)), HeldBytes::Usual, false).unwrap();
                assert_eq!(set.sample_count(), 3);
                let batch = set.batch(&[1, 0]).unwrap();
                let (x, y) = (&batch.inputs["x"], batch.labels.to_i64().unwrap());
                assert_eq!((x.shape(), batch.labels.shape()), (&[2, length, 2][..], &[2, length][..]));
                let values = x.to_f32().unwrap();
                for place in 0..length as usize {
                    let wanted = |own: usize| if place < own { (2 * place + 1) as f32 } else { 0.0 };
                    let found = |sample: usize| values[2 * (sample * length as usize + place)];
                    assert_eq!([found(0), found(1)], [wanted(1), wanted(3)], "{values:?}");
                    assert_eq!(y[place], if place < 1 { 1 } else { -1 });
                    assert_eq!(y[length as usize + place], if place < 3 { 0 } else { -1 });
                }
            }
            assert_eq!(largest(&path, &["x", "z"]).unwrap(), BTreeMap::from([("x".to_string(), vec![3, 2])]));
        }
    }

    #[test]
    fn the_digest_of_large_archives_has_the_lengths_and_some_rows_of_the_samples() {
        let of = |lengths: &[u64], samples: Range<u64>| {
            let folder = tempfile::tempdir().unwrap();
            let [_, archive] = written(folder.path(), lengths);
            let Samples::Joined { arrays, .. } = joined(&archive, &requirements(), HeldBytes::Usual).unwrap() else {
                panic!("samples are concatenated");
            };
            // A row of x has 8 bytes, and one of the labels.
            let rows = lengths[samples.start as usize..samples.end as usize].iter().sum::<u64>();
            assert!(!add_if_large(&arrays, &samples, 16 * rows, &mut Digest::default()).unwrap());
            let mut digest = Digest::default();
            assert!(add_if_large(&arrays, &samples, 16 * rows - 1, &mut digest).unwrap());
            digest.text()
        };
        assert_eq!(of(&[3, 1, 2], 0..2), of(&[3, 1, 4], 0..2));
        assert_ne!(of(&[3, 1, 2], 0..3), of(&[1, 3, 2], 0..3));
        assert_ne!(of(&[3, 1, 2], 0..2), of(&[3, 1, 2], 1..3));
    }

    #[test]
    fn without_padding_samples_of_one_size_are_a_batch_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in written(folder.path(), &[2, 3, 2]) {
            let mut set = open(&path, &requirements(), &free(None, None), HeldBytes::Usual, false).unwrap();
            assert_eq!(set.batch(&[0, 2]).unwrap().labels, Tensor::from_i64(&[2, 2], &[0, 0, 2, 2]));
            let error = set.batch(&[0, 1]).unwrap_err().to_string();
            assert!(error.contains("--pad-to") && error.contains("--bucket-by") && error.contains("[3, 2]"), "{error}");
            assert_eq!(set.sample_shapes(1), Some(vec![vec![3, 2]]));
            let mut counted = open(&path, &requirements(), &free(Some(4), None), HeldBytes::Usual, false).unwrap();
            let error = counted.batch(&[0]).unwrap_err().to_string();
            assert!(error.contains("--ignore-index"), "{error}");
        }
    }

    #[test]
    fn what_does_not_fit_the_model_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [files, archive] = written(folder.path(), &[2, 3]);
        let fixed = FreeSizes::default();
        let error = open(&files, &requirements(), &fixed, HeldBytes::Usual, false).err().unwrap().to_string();
        assert!(error.contains("000.npz[x]") && error.contains("expected [9, 2]"), "{error}");
        let mut wide = requirements();
        wide.inputs[0].sample_shape[1] = 5;
        let error = open(&archive, &wide, &free(None, None), HeldBytes::Usual, false).err().unwrap().to_string();
        assert!(error.contains("sample 0") && error.contains("expected [any, 5]"), "{error}");
        let short = Tensor::from_i64(&[2], &[2, 2]);
        let (x, y) = (Tensor::from_f32(&[5, 2], &[0.0; 10]), Tensor::from_i64(&[5], &[0; 5]));
        let path = folder.path().join("wrong.npz");
        npz::write(&path, &[("x", &x), ("y", &y), ("x.lengths", &short), ("y.lengths", &short)], false).unwrap();
        let error = open(&path, &requirements(), &free(None, None), HeldBytes::Usual, false).err().unwrap().to_string();
        assert!(error.contains("4 along the first axis, the sum of x.lengths"), "{error}");
    }

    #[test]
    fn damaged_files_can_be_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let [files, _] = written(folder.path(), &[2, 3, 2, 3]);
        let free = free(Some(1), Some(-1));
        for sample in [3, 0] {
            let file = files.join(format!("{sample:03}.npz"));
            let bytes = std::fs::read(&file).unwrap();
            std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
            assert_eq!(largest(&files, &["x"]).unwrap(), BTreeMap::from([("x".to_string(), vec![3, 2])]));
            let opened = |skips_bad| open(&files, &requirements(), &free, HeldBytes::Usual, skips_bad);
            let refused = opened(false).err().unwrap().to_string();
            let mut set = opened(true).unwrap();
            let error = set.batch(&[1, sample]).unwrap_err().to_string();
            for error in [refused, error] {
                assert!(error.contains(&format!("{sample:03}.npz: not an .npz archive")), "{error}");
            }
            assert_eq!(set.batch(&[1, 2]).unwrap().labels, Tensor::from_i64(&[2, 3], &[1, 1, 1, 2, 2, -1]));
            // The sizes are those of the next readable sample, or else of the one before.
            assert_eq!(set.sample_shapes(sample), set.sample_shapes(if sample == 0 { 1 } else { 2 }));
            assert_eq!(set.description().unwrap().kind, "a folder of .npz files");
        }
    }
}
