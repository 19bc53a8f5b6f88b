//! Augmentation: random changes to samples each time they are used.
//!
//! The changes to a sample depend only on the seed, the epoch and the sample's index, not on its batch, on threads or on earlier samples.
//! Changes that move positions (flips, crops, rotations) apply to labels and further inputs of the same sizes as well.

use std::str::FromStr;

use forebay_base::random::SplitMix64;
use forebay_base::{DataType, Tensor};

use crate::batch::Batch;
use crate::convert::convert;
use crate::elastic::Displacement;
use crate::error::DataError;
use crate::plane::{self, Grid};

/// A kind of change.
///
/// ```
/// use forebay_data::Transform;
///
/// let rotation: Transform = "rotate:10".parse().unwrap();
/// assert_eq!(rotation, Transform::Rotate { degrees: 10.0 });
/// assert!("rotate".parse::<Transform>().unwrap_err().contains("rotate:DEGREES"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Transform {
    /// Mirrors the sample along the last axis, half of the time.
    FlipHorizontal,
    /// Mirrors the sample along the second-to-last axis, half of the time.
    FlipVertical,
    /// Mirrors the sample along the first of three spatial axes, half of the time.
    FlipDepth,
    /// Moves the sample along every spatial axis, by up to `padding` positions in either direction, and fills the gap with zeros.
    Crop {
        /// The largest shift, in positions.
        padding: u64,
    },
    /// Rotates the sample in the plane of the last two axes by up to `degrees` in either direction, and interpolates between positions.
    Rotate {
        /// The largest angle, in degrees.
        degrees: f32,
    },
    /// Scales the sample in the plane of the last two axes by a factor of 1 plus or minus up to `most`.
    Scale {
        /// The largest change.
        most: f32,
    },
    /// Deforms the sample smoothly, with displacements of up to `places` positions along each axis.
    Elastic {
        /// The largest displacement, in positions.
        places: f32,
    },
    /// Adds or subtracts a number of up to `most`.
    Brightness {
        /// The largest number.
        most: f32,
    },
    /// Multiplies the differences from the sample's mean by a factor of 1 plus or minus up to `most`.
    Contrast {
        /// The largest change.
        most: f32,
    },
    /// Adds a normally distributed number to every value.
    Noise {
        /// The standard deviation.
        deviation: f32,
    },
    /// Computes a weighted mean of the sample and another one, and of their labels. The weight follows the beta distribution with both
    /// parameters equal to `alpha`.
    Mixup {
        /// The parameter.
        alpha: f32,
    },
    /// Replaces a box of the sample with that of another one, and mixes the labels accordingly. The size is drawn as for
    /// [`Transform::Mixup`].
    Cutmix {
        /// The parameter.
        alpha: f32,
    },
    /// Sets a box to 0.
    Cutout {
        /// The size of the box along each axis, as a share of the axis.
        share: f32,
    },
}

/// The changes that `--augment` accepts.
pub const TRANSFORMS: &str = "hflip, vflip, dflip, crop:PLACES, rotate:DEGREES, scale:X, elastic:PLACES, brightness:X, contrast:X, noise:DEVIATION, cutout:SHARE, mixup:ALPHA, cutmix:ALPHA";

impl Transform {
    /// Returns whether the change involves another sample.
    pub fn is_mixing(self) -> bool {
        matches!(self, Transform::Mixup { .. } | Transform::Cutmix { .. })
    }
}

impl FromStr for Transform {
    type Err = String;

    fn from_str(text: &str) -> Result<Transform, String> {
        let (name, number) = text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number)));
        let unknown = || format!("expected one of {TRANSFORMS}, found '{text}'");
        let value = |most: f32| match number.and_then(|number| number.parse::<f32>().ok()) {
            Some(value) if value.is_finite() && value > 0.0 && value <= most => Ok(value),
            _ => Err(format!(
                "{name} requires a number above 0 and at most {most}, found '{text}'; expected one of {TRANSFORMS}"
            )),
        };
        match (name, number) {
            ("hflip", None) => Ok(Transform::FlipHorizontal),
            ("vflip", None) => Ok(Transform::FlipVertical),
            ("dflip", None) => Ok(Transform::FlipDepth),
            ("crop", _) => match value(65_536.0)? {
                places if places.fract() == 0.0 => Ok(Transform::Crop { padding: places as u64 }),
                _ => Err(format!("crop requires a whole number, found '{text}'")),
            },
            ("rotate", _) => Ok(Transform::Rotate { degrees: value(180.0)? }),
            ("scale", _) => Ok(Transform::Scale { most: value(0.9)? }),
            ("elastic", _) => Ok(Transform::Elastic { places: value(65_536.0)? }),
            ("brightness", _) => Ok(Transform::Brightness { most: value(f32::MAX)? }),
            ("contrast", _) => Ok(Transform::Contrast { most: value(1.0)? }),
            ("noise", _) => Ok(Transform::Noise { deviation: value(f32::MAX)? }),
            ("mixup", _) => Ok(Transform::Mixup { alpha: value(4.0)? }),
            ("cutmix", _) => Ok(Transform::Cutmix { alpha: value(4.0)? }),
            ("cutout", _) => Ok(Transform::Cutout { share: value(1.0)? }),
            _ => Err(unknown()),
        }
    }
}

/// Changes that are applied in order, with the seed of their random numbers.
///
/// ```
/// use forebay_base::Tensor;
/// use forebay_data::{Augmentation, Batch, Transform};
///
/// let augmentation = Augmentation { transforms: vec![Transform::FlipHorizontal], seed: 0 };
/// let image = Tensor::from_f32(&[1, 1, 1, 2], &[1.0, 2.0]);
/// let batch = Batch { inputs: [("x".to_string(), image)].into(), labels: Tensor::from_i64(&[1], &[0]) };
/// // Sample 5 is mirrored in some epochs, and in each always or never.
/// let seen: Vec<Batch> = (0..20).map(|epoch| augmentation.apply(batch.clone(), &[5], epoch).unwrap()).collect();
/// assert!(seen.contains(&batch) && seen.iter().any(|seen| *seen != batch));
/// assert_eq!(augmentation.apply(batch, &[5], 3).unwrap(), seen[3]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Augmentation {
    /// The changes.
    pub transforms: Vec<Transform>,
    /// The seed.
    pub seed: u64,
}

impl Augmentation {
    /// Changes the samples of a batch: floating-point inputs with two or three spatial axes, and labels and further inputs of the same
    /// sizes, which have these axes last, after the batch axis and at most one more. `samples` are the indices of the batch's samples.
    /// Changes that involve other samples are left to the data set.
    ///
    /// # Errors
    /// [`DataError`] if the batch has no such input.
    pub fn apply(&self, mut batch: Batch, samples: &[u64], epoch: u64) -> Result<Batch, DataError> {
        if self.transforms.iter().all(|transform| transform.is_mixing()) {
            return Ok(batch);
        }
        let mut changed: Vec<Vec<u64>> = Vec::new();
        for (name, input) in batch.inputs.iter_mut().filter(|(_, input)| has_values(input)) {
            let (data_type, shape) = (input.data_type(), input.shape().to_vec());
            let origin = format!("input {name}");
            let mut values = convert(input.clone(), DataType::Float32, 1.0, &origin)?.to_f32().unwrap_or_default();
            let per_sample = values.len() / samples.len().max(1);
            for (values, &sample) in values.chunks_exact_mut(per_sample.max(1)).zip(samples) {
                let grid = Grid::of(&shape[2..]);
                self.change(values, &grid, epoch, sample, Kind::Values);
            }
            *input = convert(Tensor::from_f32(&shape, &values), data_type, 1.0, &origin)?;
            changed.push(shape[2..].to_vec());
        }
        if changed.is_empty() {
            let reason = "augmentation requires a floating-point input with two or three spatial axes";
            return Err(DataError::unsupported("the data", reason));
        }
        let others = batch.inputs.values_mut().filter(|input| !has_values(input));
        for tensor in others.chain([&mut batch.labels]) {
            if let Some(spatial) = changed.iter().find(|spatial| plane::is_map(tensor.shape(), spatial)) {
                *tensor = self.moved(tensor, &Grid::of(spatial), samples, epoch);
            }
        }
        Ok(batch)
    }

    /// Moves the elements of a map as those of an input with the same sizes are moved. Each position takes the nearest element, or 0.
    fn moved(&self, tensor: &Tensor, grid: &Grid, samples: &[u64], epoch: u64) -> Tensor {
        let size = tensor.data_type().size_bytes() as usize;
        let (plane, per_sample) = (grid.count() * size, tensor.bytes().len() / samples.len().max(1));
        let mut bytes = vec![0; tensor.bytes().len()];
        let pairs = bytes.chunks_exact_mut(per_sample.max(1)).zip(tensor.bytes().chunks_exact(per_sample.max(1)));
        for ((to, from), &sample) in pairs.zip(samples) {
            // Positions are moved instead of elements, counted from 1: 0 is outside.
            let mut places: Vec<i64> = (1..=grid.count() as i64).collect();
            self.change(&mut places, grid, epoch, sample, Kind::Labels);
            for (to, from) in to.chunks_exact_mut(plane.max(1)).zip(from.chunks_exact(plane.max(1))) {
                for (to, &place) in to.chunks_exact_mut(size).zip(&places).filter(|(_, place)| **place > 0) {
                    to.copy_from_slice(&from[(place as usize - 1) * size..][..size]);
                }
            }
        }
        Tensor::new(tensor.data_type(), tensor.shape(), bytes).expect("as many bytes as before")
    }

    /// Changes a sample: its values, channel by channel, or the positions of a map.
    fn change<T: plane::Element>(&self, values: &mut [T], grid: &Grid, epoch: u64, sample: u64, kind: Kind) {
        for (number, transform) in (0..).zip(&self.transforms) {
            // Each change has its own random numbers, which are the same for inputs and labels.
            let random = &mut SplitMix64::of(&[self.seed, epoch, sample, number]);
            match *transform {
                Transform::FlipHorizontal if random.coin() => grid.planes(values).for_each(|plane| grid.flip(plane, 2)),
                Transform::FlipVertical if random.coin() => grid.planes(values).for_each(|plane| grid.flip(plane, 1)),
                Transform::FlipDepth if random.coin() => grid.planes(values).for_each(|plane| grid.flip(plane, 0)),
                Transform::FlipHorizontal | Transform::FlipVertical | Transform::FlipDepth => {}
                Transform::Crop { padding } => {
                    let shifts = [0, 1, 2].map(|axis| match axis == 0 && grid.is_flat() {
                        true => 0,
                        false => random.up_to(2 * padding) as i64 - padding as i64,
                    });
                    grid.planes(values).for_each(|plane| grid.shift(plane, shifts));
                }
                Transform::Rotate { degrees } => {
                    let turn = plane::rotation(f64::from(degrees) * random.symmetric());
                    grid.planes(values).for_each(|plane| grid.transform(plane, turn));
                }
                Transform::Scale { most } => {
                    let factor = 1.0 / (1.0 + f64::from(most) * random.symmetric());
                    grid.planes(values).for_each(|plane| grid.transform(plane, [factor, 0.0, 0.0, factor]));
                }
                Transform::Elastic { places } => {
                    let displacement = Displacement::draw(grid, places, random);
                    grid.planes(values).for_each(|plane| displacement.apply(grid, plane));
                }
                Transform::Cutout { share } => {
                    // Positions that are cut out keep their labels.
                    let hole = grid.hole(share, random);
                    if kind == Kind::Values {
                        grid.planes(values).for_each(|plane| grid.clear(plane, &hole));
                    }
                }
                // These changes apply to whole batches.
                Transform::Mixup { .. } | Transform::Cutmix { .. } => {}
                _ if kind == Kind::Labels => {}
                Transform::Brightness { most } => {
                    let summand = most * random.symmetric() as f32;
                    T::each(values, |value| value + summand);
                }
                Transform::Contrast { most } => {
                    let factor = 1.0 + most * random.symmetric() as f32;
                    let mean = T::mean(values);
                    T::each(values, |value| mean + (value - mean) * factor);
                }
                Transform::Noise { deviation } => T::each(values, |value| value + deviation * random.normal() as f32),
            }
        }
    }
}

/// Returns whether an input's values are changed: those of floating-point numbers with channels and two or three spatial axes.
pub(crate) fn has_values(input: &Tensor) -> bool {
    input.data_type().is_float() && matches!(input.shape().len(), 4 | 5)
}

/// What a change applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Values,
    Labels,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(samples: u64, channels: u64, spatial: &[u64]) -> Batch {
        let places: u64 = spatial.iter().product();
        let shape = [&[samples, channels], spatial].concat();
        let values: Vec<f32> = (0..samples * channels * places).map(|value| (value % places) as f32).collect();
        let labels: Vec<i64> = (0..samples * places).map(|label| (label % places) as i64).collect();
        let labels = Tensor::from_i64(&[&[samples], spatial].concat(), &labels);
        Batch { inputs: [("x".to_string(), Tensor::from_f32(&shape, &values))].into(), labels }
    }

    fn augmentation(words: &[&str]) -> Augmentation {
        Augmentation { transforms: words.iter().map(|word| word.parse().unwrap()).collect(), seed: 3 }
    }

    fn values(batch: &Batch) -> Vec<f32> {
        batch.inputs["x"].to_f32().unwrap()
    }

    #[test]
    fn a_sample_is_changed_alike_in_every_batch_and_differently_in_every_epoch() {
        let words = [
            "hflip",
            "vflip",
            "crop:2",
            "rotate:20",
            "scale:0.2",
            "elastic:2",
            "brightness:0.1",
            "contrast:0.2",
            "noise:0.1",
            "cutout:0.4",
        ];
        let augmentation = augmentation(&words);
        let all = augmentation.apply(batch(3, 2, &[6, 7]), &[4, 9, 2], 1).unwrap();
        let one = augmentation.apply(batch(1, 2, &[6, 7]), &[9], 1).unwrap();
        assert_eq!(values(&all)[84..168], values(&one));
        assert_eq!(all.labels.rows(&[1]), one.labels);
        let later = augmentation.apply(batch(1, 2, &[6, 7]), &[9], 2).unwrap();
        assert_ne!(values(&later), values(&one));
    }

    #[test]
    fn labels_go_where_their_values_go() {
        for (spatial, words) in [
            ([5, 6].as_slice(), ["hflip", "vflip", "crop:2"].as_slice()),
            (&[3, 4, 5], &["hflip", "vflip", "dflip", "crop:1"]),
        ] {
            let mut changed = 0;
            for epoch in 0..8 {
                let given = batch(1, 2, spatial);
                let found = augmentation(words).apply(given.clone(), &[1], epoch).unwrap();
                let labels: Vec<f32> = found.labels.to_i64().unwrap().iter().map(|&label| label as f32).collect();
                assert_eq!(values(&found), [labels.clone(), labels].concat());
                changed += u64::from(found != given);
            }
            assert!(changed > 4, "{changed} of 8");
        }
    }

    #[test]
    fn maps_of_any_type_and_further_inputs_move_with_their_sample() {
        let words = ["hflip", "vflip", "crop:2", "rotate:30", "elastic:1"];
        let float = |shape: &[u64], values: &[i64]| {
            Tensor::from_f32(shape, &values.iter().map(|&value| value as f32).collect::<Vec<_>>())
        };
        for epoch in 0..4 {
            let given = batch(2, 1, &[5, 6]);
            let numbers = given.labels.to_i64().unwrap();
            let expected = augmentation(&words).apply(given.clone(), &[1, 8], epoch).unwrap().labels.to_i64().unwrap();
            let by_channel: Vec<i64> = numbers.chunks(30).flat_map(|map| [map, map].concat()).collect();
            let both: Vec<i64> = expected.chunks(30).flat_map(|map| [map, map].concat()).collect();
            for (labels, wanted) in [
                (float(&[2, 5, 6], &numbers), float(&[2, 5, 6], &expected)),
                (float(&[2, 1, 5, 6], &numbers), float(&[2, 1, 5, 6], &expected)),
                (float(&[2, 2, 5, 6], &by_channel), float(&[2, 2, 5, 6], &both)),
                (Tensor::from_i64(&[2, 2, 5, 6], &by_channel), Tensor::from_i64(&[2, 2, 5, 6], &both)),
            ] {
                let mut given = Batch { labels: labels.clone(), ..given.clone() };
                // A smaller input, a map without channels and one of integers.
                given.inputs.insert("z".into(), Tensor::from_f32(&[2, 1, 2, 2], &[1.0; 8]));
                given.inputs.insert("map".into(), float(&[2, 5, 6], &numbers));
                given.inputs.insert("whole".into(), Tensor::from_i64(&[2, 1, 5, 6], &numbers));
                let found = augmentation(&words).apply(given, &[1, 8], epoch).unwrap();
                assert_eq!(found.labels, wanted);
                assert_eq!(found.inputs["map"], float(&[2, 5, 6], &expected));
                assert_eq!(found.inputs["whole"], Tensor::from_i64(&[2, 1, 5, 6], &expected));
            }
        }
        // Labels of other sizes stay as they are.
        let labels = Tensor::from_f32(&[1, 3], &[0.0, 1.0, 2.0]);
        let given = Batch { labels: labels.clone(), ..batch(1, 1, &[3, 3]) };
        assert_eq!(augmentation(&words).apply(given, &[1], 0).unwrap().labels, labels);
    }

    #[test]
    fn noise_is_normal_and_holes_leave_labels() {
        let zeros = Batch {
            inputs: [("x".to_string(), Tensor::from_f32(&[1, 1, 100, 100], &[0.0; 10_000]))].into(),
            ..batch(1, 1, &[2, 2])
        };
        let noise = values(&augmentation(&["noise:0.5"]).apply(zeros, &[0], 0).unwrap());
        let mean = noise.iter().sum::<f32>() / 1e4;
        let within = |most: f32| noise.iter().filter(|value| value.abs() < most).count() as f32 / 1e4;
        assert!(mean.abs() < 0.02 && (within(0.5) - 0.6827).abs() < 0.02 && (within(1.0) - 0.9545).abs() < 0.01);
        let given = batch(1, 1, &[10, 10]);
        let found = augmentation(&["cutout:0.3"]).apply(given.clone(), &[0], 0).unwrap();
        assert_eq!(found.labels, given.labels);
        let holes = values(&found).iter().zip(values(&given)).filter(|(found, given)| **found != *given).count();
        assert!((1..=9).contains(&holes), "{holes}");
    }

    #[test]
    fn words_without_a_meaning_and_data_without_places_are_refused() {
        for word in ["flip", "crop", "crop:1.5", "rotate:181", "noise:-1", "hflip:2", "cutout:nan"] {
            assert!(word.parse::<Transform>().unwrap_err().contains(word), "{word}");
        }
        let flat =
            Batch { inputs: [("x".to_string(), Tensor::from_f32(&[1, 2], &[0.0; 2]))].into(), ..batch(1, 1, &[1, 1]) };
        assert!(augmentation(&["hflip"]).apply(flat, &[0], 0).unwrap_err().to_string().contains("spatial axes"));
    }
}
