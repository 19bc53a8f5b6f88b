//! Conversion of data sets and arrays to the inputs of a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use forebay::data::{
    self, Augmentation, DataError, DataSet, HeldBytes, InputArray, Loader, Part, Patches, Reading, Sampler, Transform,
    convert, npy, npz,
};
use forebay::{Dimension, Model, Tensor, TensorType, Trainer, ValueInfo, format_bytes};

use crate::arguments::TrainArguments;
use crate::data_arguments::{Balance, Sizes};
use crate::failure::Failure;
use crate::output;
use crate::run_arguments::RunArguments;

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// The number of batches to read ahead if memory allows.
const AHEAD: u64 = 2;
/// The most memory that batches read ahead take without a limit.
const AHEAD_BYTES_MAX: u64 = 256 << 20;

/// Opens the training data.
///
/// # Errors
/// Fails if data is missing or corrupt, or does not fit the model.
pub fn open(trainer: &Trainer, arguments: &TrainArguments) -> Result<DataSet, Failure> {
    let first = arguments.reading.split.map(|percent| Part::First { percent });
    let patches = arguments.reading.patch.as_ref().map(|Sizes(sizes)| {
        let mut patches = Patches::new(sizes);
        patches.per_volume = Some(arguments.reading.patches.unwrap_or(1));
        patches.seed = arguments.shuffle.unwrap_or(0);
        patches
    });
    open_part(&arguments.data, first, patches, trainer, arguments)
}

/// Opens the validation data, if any.
///
/// # Errors
/// Returns the errors of [`open`].
pub fn open_validation(trainer: &Trainer, arguments: &TrainArguments) -> Result<Option<DataSet>, Failure> {
    let rest = arguments.reading.split.map(|percent| Part::Rest { percent });
    let name = arguments.validate.as_ref().or(rest.map(|_| &arguments.data));
    let is_whole = arguments.reading.windows(None).is_some();
    let patches = |Sizes(sizes): &Sizes| if is_whole { Patches::volumes(sizes) } else { Patches::new(sizes) };
    let patches = arguments.reading.patch.as_ref().map(patches);
    name.map(|name| open_part(name, rest, patches, trainer, arguments)).transpose()
}

/// Limits the samples that validation data keeps in memory to what a process memory limit leaves after those of the training data.
pub fn keep_less(validation: &mut DataSet, training: &DataSet, trainer: &Trainer) {
    if let Some(bytes) = trainer.data_memory_bytes() {
        let sample_bytes = batch_bytes(trainer).div_ceil(trainer.batch_size().max(1));
        validation.keep_at_most(bytes.saturating_sub(sample_bytes.saturating_mul(training.sample_count())));
    }
}

fn open_part(
    data: &str,
    part: Option<Part>,
    patches: Option<Patches>,
    trainer: &Trainer,
    arguments: &TrainArguments,
) -> Result<DataSet, Failure> {
    let mut free = trainer.free_sizes(arguments.pad_to);
    free.label_padding = arguments.pad_label.or(free.label_padding);
    let batches_bytes = batch_bytes(trainer).saturating_mul(AHEAD + 1);
    let held = arguments.reading.data_memory.map(|bytes| HeldBytes::AtMost(bytes.saturating_sub(batches_bytes)));
    let requirements = trainer.data_requirements(arguments.input_scale)?;
    let mut reading = Reading::default();
    (reading.free, reading.held, reading.text) = (free, held.unwrap_or_default(), arguments.reading.text.options());
    (reading.patches, reading.skips_bad) = (patches, arguments.reading.skip_bad.is_some());
    let mut set = data::open_with(data, &requirements, &reading)?;
    if let Some(part) = part {
        set = set.part(part, arguments.reading.split_seed)?;
    }
    if let Some(bytes) = trainer.data_memory_bytes().into_iter().chain(arguments.reading.data_memory).min() {
        set.keep_at_most(bytes);
    }
    set.skip_bad(arguments.reading.skip_bad.unwrap_or(0));
    Ok(set)
}

/// Sets up the augmentation of samples that the flags specify, with the seed of their order. Mixed labels have the trainer's format.
pub fn augment(set: &mut DataSet, transforms: &[Transform], shuffle: Option<u64>, trainer: Option<&Trainer>) {
    if let Some((classes, axis)) = trainer.and_then(Trainer::soft_label_classes) {
        set.soften_labels(classes, axis);
    }
    if !transforms.is_empty() {
        set.augment(Augmentation { transforms: transforms.to_vec(), seed: shuffle.unwrap_or(0) });
    }
}

/// Returns the bytes of a batch, as a step takes it.
fn batch_bytes(trainer: &Trainer) -> u64 {
    let infos = trainer.inputs().iter().chain([trainer.labels()]);
    let types = infos.map(|info| TensorType::new(info.data_type, &info.shape));
    let bytes = types.map(|ty| ty.checked_size_bytes().unwrap_or(u64::MAX));
    bytes.fold(0, u64::saturating_add).max(1)
}

/// Returns a loader of training batches that reads ahead as far as memory allows; the data set keeps fewer of its samples in return.
///
/// # Errors
/// Fails if `--data-memory` is too small for a batch.
pub fn loader(
    mut set: DataSet,
    sampler: Sampler,
    trainer: &Trainer,
    arguments: &TrainArguments,
) -> Result<Loader, Failure> {
    let (batch_bytes, held_bytes) = (batch_bytes(trainer), set.description()?.held_bytes);
    let asked = arguments.reading.data_memory;
    if let Some(bytes) = asked.filter(|&bytes| bytes < batch_bytes.saturating_add(held_bytes)) {
        let [given, batch, held] = [bytes, batch_bytes, held_bytes].map(format_bytes);
        return Err(Failure::Usage(format!(
            "--data-memory {given} is too small: a batch takes {batch}, in addition to {held} of samples in memory (a smaller \
             --batch-size takes less)"
        )));
    }
    let asked = asked.map(|bytes| bytes - held_bytes);
    let left = trainer.data_memory_bytes().into_iter().chain(asked).min();
    let ahead = match left {
        // One of the batches is that of the current step.
        Some(left) => (left / batch_bytes).saturating_sub(1).min(AHEAD),
        None => (AHEAD_BYTES_MAX / batch_bytes).clamp(1, AHEAD),
    };
    if let Some(left) = left {
        set.keep_at_most(left.saturating_sub(ahead * batch_bytes));
    }
    let mut loader = Loader::new(set, sampler, ahead as usize);
    // With --skip-bad, every process must find all bad samples.
    if let Some(own) = trainer.own_samples().filter(|_| arguments.reading.skip_bad.is_none()) {
        let samples = own.into_iter().flatten().map(|sample| sample as usize);
        loader.read_share(trainer.batch_size() as usize, samples.collect());
    }
    Ok(loader)
}

/// Returns the sampler of training batches, which draws by weight if the flags require it.
///
/// # Errors
/// Returns the errors of [`sampler`], and fails if samples have no weights.
pub fn training_sampler(
    set: &mut DataSet,
    model: &Model,
    arguments: &TrainArguments,
    batch_size: u64,
    seed: Option<u64>,
) -> Result<Sampler, Failure> {
    let weights = match arguments.reading.balance {
        Some(Balance::Classes) => set.class_weights()?,
        Some(Balance::Weights) => set.weights()?,
        None => return sampler(set, model, arguments, batch_size, seed),
    };
    Ok(Sampler::weighted(&weights, batch_size, seed.unwrap_or(0)))
}

/// Returns the sampler, which determines the samples of each batch.
///
/// # Errors
/// Fails if buckets are by a size that the model does not leave open.
pub fn sampler(
    set: &DataSet,
    model: &Model,
    arguments: &TrainArguments,
    batch_size: u64,
    seed: Option<u64>,
) -> Result<Sampler, Failure> {
    let Some(size) = &arguments.bucket_by else { return Ok(Sampler::new(set.sample_count(), batch_size, seed)) };
    let inputs = model.inputs();
    let mut open = inputs.iter().enumerate().flat_map(|(number, info)| {
        let dimensions = info.dimensions.iter().enumerate().skip(1);
        dimensions.filter_map(move |(i, dimension)| match dimension {
            Dimension::Symbol(symbol) => Some((symbol.clone(), format!("{}[{i}]", info.name), number, i - 1)),
            Dimension::Known(_) => None,
        })
    });
    let Some((_, _, input, axis)) = open.clone().find(|(symbol, place, ..)| symbol == size || place == size) else {
        let names: Vec<String> =
            open.by_ref().map(|(symbol, place, ..)| if symbol.is_empty() { place } else { symbol }).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let reason = format!("the model's samples have no open size of this name; open sizes: {known}");
        return Err(Failure::Usage(format!("--bucket-by {size}: {reason}")));
    };
    let multiple = arguments.pad_to.unwrap_or(1);
    let bucket = |sample| Some(set.sample_shapes(sample)?.get(input)?.get(axis)?.next_multiple_of(multiple));
    match (0..set.sample_count()).map(bucket).collect() {
        Some(buckets) => Ok(Sampler::by_buckets(buckets, batch_size, seed)),
        // All samples have the same size, so they share a bucket.
        None => Ok(Sampler::new(set.sample_count(), batch_size, seed)),
    }
}

/// Returns the sizes in the data set of dimensions that a model leaves open, as `input[dimension]`; the first one is the batch. If samples
/// differ, it is the largest size, as padded in a batch, so that sizes too large for the budgets are detected before the first step.
///
/// # Errors
/// Fails if data cannot be read.
pub fn sizes_of_data(arguments: &TrainArguments, model: &Model) -> Result<BTreeMap<String, u64>, Failure> {
    let inputs = model.inputs();
    let is_open = |dimension: &Dimension| matches!(dimension, Dimension::Symbol(_));
    if !inputs.iter().any(|info| info.dimensions.iter().skip(1).any(is_open)) {
        return Ok(BTreeMap::new());
    }
    if let (Some(Sizes(patch)), [info]) = (&arguments.reading.patch, inputs.as_slice()) {
        let first = info.dimensions.len().saturating_sub(patch.len());
        let open = (first..).zip(patch).filter(|(i, _)| info.dimensions.get(*i).is_some_and(is_open));
        return Ok(open.map(|(i, &size)| (format!("{}[{i}]", info.name), size)).collect());
    }
    let names: Vec<&str> = inputs.iter().map(|info| info.name.as_str()).collect();
    let shapes = data::sample_shapes(&arguments.data, &names)?;
    let mut sizes = BTreeMap::new();
    for info in &inputs {
        for (i, size) in shapes.get(&info.name).into_iter().flatten().enumerate() {
            if info.dimensions.get(i + 1).is_some_and(is_open) {
                let padded = size.next_multiple_of(arguments.pad_to.unwrap_or(1));
                sizes.insert(format!("{}[{}]", info.name, i + 1), padded);
            }
        }
    }
    Ok(sizes)
}

/// Reads the inputs of `forebay run`. Files have no narrow types, so numbers are converted to them.
///
/// # Errors
/// Fails if a file is missing or corrupt, an input is given twice or is unknown, or a narrow type cannot represent a number.
pub fn read_inputs(arguments: &RunArguments, model: &Model) -> Result<Tensors, Failure> {
    let mut inputs = inputs(arguments, model, npy::read, npz::Archive::read)?;
    for info in narrow_inputs(model) {
        if let Some(tensor) = inputs.remove(&info.name) {
            let tensor = narrowed(tensor, &info)?;
            inputs.insert(info.name, tensor);
        }
    }
    Ok(inputs)
}

/// Opens the inputs of `forebay run`, of which this one of several processes reads only its share. Inputs that are to be converted are not
/// among them, and are read whole.
///
/// # Errors
/// Returns the errors of [`read_inputs`].
pub fn open_inputs(
    arguments: &RunArguments,
    model: &Model,
) -> Result<(BTreeMap<String, InputArray>, Tensors), Failure> {
    let mut arrays = inputs(arguments, model, InputArray::in_file, InputArray::in_archive)?;
    let mut converted = Tensors::new();
    for info in narrow_inputs(model) {
        if let Some(array) = arrays.remove(&info.name) {
            let tensor = narrowed(array.read()?, &info)?;
            converted.insert(info.name, tensor);
        }
    }
    Ok((arrays, converted))
}

/// Returns the inputs whose types files do not have.
fn narrow_inputs(model: &Model) -> impl Iterator<Item = ValueInfo> {
    let infos = model.inputs().into_iter().chain(model.inputs_with_defaults());
    infos.filter(|info| info.data_type.is_narrow())
}

/// Converts an input to its narrow type.
fn narrowed(tensor: Tensor, info: &ValueInfo) -> Result<Tensor, Failure> {
    Ok(convert::convert(tensor, info.data_type, 1.0, &format!("input {}", info.name))?)
}

/// Returns what `in_file` or `in_archive` makes of each input of `forebay run`.
fn inputs<T>(
    arguments: &RunArguments,
    model: &Model,
    in_file: impl Fn(&Path) -> Result<T, DataError>,
    in_archive: impl Fn(&mut npz::Archive, &str) -> Result<T, DataError>,
) -> Result<BTreeMap<String, T>, Failure> {
    let Some(path) = &arguments.inputs else {
        if let (true, [first, ..]) = (arguments.input.is_empty(), model.inputs().as_slice()) {
            let way_out = "pass each input with --input NAME=FILE.npy, or all with --inputs";
            return Err(Failure::Usage(format!("input '{first}' is missing; {way_out}")));
        }
        let mut names = BTreeSet::new();
        if let Some((name, _)) = arguments.input.iter().find(|(name, _)| !names.insert(name)) {
            return Err(Failure::Usage(format!("input {name} was given twice")));
        }
        return arguments.input.iter().map(|(name, file)| Ok((name.clone(), in_file(file)?))).collect();
    };
    let names = model.inputs().into_iter().map(|info| info.name);
    // The model has values for these if they are not given.
    let others = model.inputs_with_defaults().into_iter().map(|info| info.name);
    if path.is_dir() {
        let names = names.chain(others.filter(|name| input_file(path, name).exists()));
        return names.map(|name| Ok((name.clone(), in_file(&input_file(path, &name))?))).collect();
    }
    let mut archive = npz::Archive::open(path)?;
    let given: BTreeSet<String> = archive.names().into_iter().collect();
    let names = names.chain(others.filter(|name| given.contains(name)));
    names.map(|name| Ok((name.clone(), in_archive(&mut archive, &name)?))).collect()
}

fn input_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{}.npy", output::file_name(name)))
}
