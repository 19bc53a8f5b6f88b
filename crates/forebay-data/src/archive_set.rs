//! Data sets of arrays: an `.npz` archive, a `.safetensors` file, or a folder of `.npy` files, with arrays named like the model's inputs and
//! labels named `y` or `labels`, or in the only array that is not an input.
//!
//! The first axis of every array counts the samples. Integers are converted to the input's type, and those that become floating-point
//! numbers are multiplied by a scale. If the model itself has an input named `y`, the labels are named `labels`. Large arrays stay in their
//! files, from which only the samples of a batch are read.

use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_base::DataType;

use crate::array_rows::Rows;
use crate::arrays::{Arrays, HeldBytes, is_safetensors};
use crate::convert::convert;
use crate::dataset::{Batch, Description, LabelKind, Requirements, Source, described, size_of_files};
use crate::digest::Digest;
use crate::error::DataError;
use crate::image_set::one_each;
use forebay_base::Tensor;

/// The suffix of the array that holds the lengths of concatenated samples.
pub(crate) const LENGTHS: &str = ".lengths";

/// The arrays, in the types of the file. They are converted batch by batch.
struct ArchiveSet {
    path: PathBuf,
    label_name: String,
    inputs: Vec<Rows>,
    labels: Rows,
    label_origin: String,
    origins: Vec<String>,
    requirements: Requirements,
}

/// Opens an archive or a folder, and reads arrays whole as far as `held` allows.
///
/// # Errors
/// [`DataError`] naming the file, the array and the shape if an array is missing, has the wrong shape or a type that cannot be converted,
/// or is larger than allowed.
pub fn open(path: &Path, requirements: &Requirements, held: HeldBytes) -> Result<Box<dyn Source>, DataError> {
    let mut arrays = Arrays::open(path)?;
    let mut inputs = Vec::new();
    let mut origins = Vec::new();
    let mut sample_count: Option<(u64, String)> = None;
    let mut left = held;
    let mut load = |arrays: &mut Arrays, name: &str, sample_shape: &[u64]| -> Result<(Rows, String), DataError> {
        let (array, origin) = (arrays.rows(name, left)?, arrays.origin(name));
        left = left.without(array.held_bytes());
        let shape = array.ty().shape;
        if shape.is_empty() || shape[1..] != *sample_shape {
            let sizes: Vec<String> = sample_shape.iter().map(|size| format!(", {size}")).collect();
            let expected = format!("[samples{}]", sizes.concat());
            return Err(DataError::Shape { origin, found: shape, expected });
        }
        match &sample_count {
            Some((count, other)) if *count != shape[0] => {
                let expected = format!("{count} samples, as in {other}");
                return Err(DataError::Shape { origin, found: shape, expected });
            }
            _ => sample_count = Some((shape[0], origin.clone())),
        }
        Ok((array, origin))
    };
    for input in &requirements.inputs {
        let (array, origin) = load(&mut arrays, &input.name, &input.sample_shape)?;
        check_conversion(array.ty().data_type, input.data_type, requirements.input_scale, &origin)?;
        inputs.push(array);
        origins.push(origin);
    }
    let label_name = label_name(&arrays.names()?, requirements);
    let (labels, label_origin) = load(&mut arrays, &label_name, &requirements.label_shape)?;
    check_conversion(labels.ty().data_type, label_type(requirements), 1.0, &label_origin)?;
    let (path, requirements) = (path.to_path_buf(), requirements.clone());
    Ok(Box::new(ArchiveSet { path, label_name, inputs, labels, label_origin, origins, requirements }))
}

/// Returns the name of the array of labels: `y` or `labels`, or that of the only array that is not an input.
pub(crate) fn label_name(names: &[String], requirements: &Requirements) -> String {
    let is_input = |name: &str| requirements.inputs.iter().any(|input| input.name == name);
    let others: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !is_input(name) && !name.ends_with(LENGTHS)).collect();
    let name = match others[..] {
        _ if others.contains(&"y") => "y",
        _ if others.contains(&"labels") => "labels",
        [only] => only,
        _ if is_input("labels") && !is_input("y") => "y",
        _ => "labels",
    };
    name.to_owned()
}

pub(crate) fn label_type(requirements: &Requirements) -> DataType {
    match requirements.labels {
        LabelKind::Classes => DataType::Int64,
        LabelKind::Values(data_type) => data_type,
    }
}

/// Checks whether a type can be converted, so that errors are found now and not in the first batch: types do not depend on the rows.
pub(crate) fn check_conversion(given: DataType, wanted: DataType, scale: f64, origin: &str) -> Result<(), DataError> {
    let empty = Tensor::new(given, &[0], Vec::new()).expect("no bytes for no elements");
    convert(empty, wanted, scale_for(wanted, scale), origin).map(|_| ())
}

/// Returns the scale for floating-point inputs, and 1 for all others: indices are not scaled.
pub(crate) fn scale_for(wanted: DataType, scale: f64) -> f64 {
    if wanted.is_float() { scale } else { 1.0 }
}

impl Source for ArchiveSet {
    fn description(&self) -> Result<Description, DataError> {
        let names = self.requirements.inputs.iter().map(|input| input.name.as_str()).chain([&*self.label_name]);
        let arrays = self.inputs.iter().chain([&self.labels]);
        let files: Vec<PathBuf> = match self.path.is_dir() {
            true => names.clone().map(|name| self.path.join(format!("{name}.npy"))).collect(),
            false => vec![self.path.clone()],
        };
        let tensor = |(name, array): (&str, &Rows)| {
            let ty = array.ty();
            described(name, ty.data_type, &ty.shape[1..])
        };
        Ok(Description {
            kind: match self.path.is_dir() {
                true => "a folder of .npy files",
                false if is_safetensors(&self.path) => "a .safetensors file",
                false => "an .npz archive",
            }
            .to_owned(),
            tensors: names.zip(arrays.clone()).map(tensor).collect(),
            size_bytes: size_of_files(files.iter().map(PathBuf::as_path))?,
            held_bytes: arrays.map(Rows::held_bytes).sum(),
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        self.labels.ty().shape[0]
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let scale = self.requirements.input_scale;
        let mut inputs = std::collections::BTreeMap::new();
        for ((input, array), origin) in self.requirements.inputs.iter().zip(&self.inputs).zip(&self.origins) {
            let rows = convert(array.rows(samples)?, input.data_type, scale_for(input.data_type, scale), origin)?;
            inputs.insert(input.name.clone(), rows);
        }
        let labels = convert(self.labels.rows(samples)?, label_type(&self.requirements), 1.0, &self.label_origin)?;
        Ok(Batch { inputs, labels })
    }

    fn classes(&mut self) -> Result<Option<Vec<i64>>, DataError> {
        match self.labels.ty().shape[1..].iter().all(|&size| size == 1) {
            true => Ok(one_each(&self.labels.range(0..self.sample_count())?)),
            false => Ok(None),
        }
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        self.inputs.iter().chain([&self.labels]).try_for_each(|array| array.add_to(digest, samples.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::InputDescription;
    use crate::npz;

    fn requirements() -> Requirements {
        let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape: vec![1, 2] };
        Requirements { inputs: vec![input], input_scale: 0.5, labels: LabelKind::Classes, label_shape: vec![] }
    }

    fn opened(arrays: &[(&str, &Tensor)], requirements: &Requirements) -> Result<Box<dyn Source>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.npz");
        npz::write(&path, arrays, false).unwrap();
        open(&path, requirements, HeldBytes::Usual).map_err(|error| error.to_string())
    }

    fn bytes(shape: &[u64], values: &[u8]) -> Tensor {
        Tensor::new(DataType::UInt8, shape, values).unwrap()
    }

    #[test]
    fn integers_become_scaled_inputs_and_labels_become_int64() {
        let (x, y) = (bytes(&[3, 1, 2], &[0, 1, 2, 3, 4, 5]), bytes(&[3], &[7, 8, 9]));
        for label_name in ["y", "labels", "category"] {
            let mut set = opened(&[("x", &x), (label_name, &y)], &requirements()).unwrap();
            assert_eq!(set.sample_count(), 3);
            let batch = set.batch(&[2, 0]).unwrap();
            assert_eq!(batch.inputs["x"], Tensor::from_f32(&[2, 1, 2], &[2.0, 2.5, 0.0, 0.5]));
            assert_eq!(batch.labels, Tensor::from_i64(&[2], &[9, 7]));
            let digest_of = |set: &dyn Source, samples| {
                let mut digest = Digest::default();
                set.digest(samples, &mut digest).unwrap();
                digest.text()
            };
            let relabeled = bytes(&[3], &[7, 0, 9]);
            let other = opened(&[("x", &x), (label_name, &relabeled)], &requirements()).unwrap();
            assert_ne!(digest_of(&*set, 0..3), digest_of(&*other, 0..3));
            assert_eq!(digest_of(&*set, 0..1), digest_of(&*other, 0..1));
        }
    }

    #[test]
    fn targets_of_values_keep_fractions() {
        let (x, y) = (bytes(&[2, 1, 2], &[0; 4]), Tensor::from_f32(&[2, 3], &[0.5; 6]));
        let wanted =
            Requirements { labels: LabelKind::Values(DataType::Float32), label_shape: vec![3], ..requirements() };
        assert_eq!(opened(&[("x", &x), ("y", &y)], &wanted).unwrap().batch(&[0, 1]).unwrap().labels, y);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let (x, y) = (bytes(&[3, 1, 2], &[0; 6]), bytes(&[3], &[0; 3]));
        let error = |arrays: &[(&str, &Tensor)]| opened(arrays, &requirements()).err().unwrap();
        assert!(error(&[("z", &x), ("y", &y)]).contains("no array named 'x'; it contains y, z"));
        assert!(error(&[("x", &x)]).contains("no array named 'labels'; it contains x"));
        let wide = bytes(&[3, 2, 2], &[0; 12]);
        assert!(error(&[("x", &wide), ("y", &y)]).contains("[x]: the shape is [3, 2, 2], expected [samples, 1, 2]"));
        let few = bytes(&[2], &[0; 2]);
        assert!(error(&[("x", &x), ("y", &few)]).contains("[y]: the shape is [2], expected 3 samples, as in"));
        let float = Tensor::from_f32(&[3], &[0.0; 3]);
        assert!(error(&[("x", &x), ("y", &float)]).contains("float32 elements cannot be converted to int64"));
    }
}
