//! Mixing of samples with others: mixup, which adds them, and cutmix, which pastes a box of one into the other.
//!
//! As in all of augmentation, the partner of a sample and the share of each depend only on the seed, the epoch and the sample's index.
//! Labels are mixed accordingly, so they have to be floating-point numbers, such as class probabilities, or, for cutmix, maps of the
//! input's sizes.

use forebay_base::random::SplitMix64;
use forebay_base::{DataType, Tensor};

use crate::augment::{Augmentation, Transform, has_values};
use crate::batch::Batch;
use crate::convert::convert;
use crate::error::DataError;
use crate::plane::{Grid, is_map};

/// Distinguishes the random numbers of mixing from others of the same seed.
const MIXED: u64 = 0x6d69_7865_6400;

/// A change that mixes samples, with its random numbers.
pub(crate) struct Mixing {
    transform: Transform,
    number: u64,
    seed: u64,
    epoch: u64,
}

impl Mixing {
    /// Returns those changes of an augmentation that mix samples, for an epoch.
    pub(crate) fn of(augmentation: &Augmentation, epoch: u64) -> Vec<Mixing> {
        let all = (0..).zip(&augmentation.transforms);
        let mixing = all.filter(|(_, transform)| transform.is_mixing());
        let seed = augmentation.seed;
        mixing.map(|(number, &transform)| Mixing { transform, number, seed, epoch }).collect()
    }

    fn random(&self, sample: u64) -> SplitMix64 {
        SplitMix64::of(&[self.seed, self.epoch, sample, self.number, MIXED])
    }

    /// Returns the sample, out of `count`, with which a sample is mixed.
    pub(crate) fn partner(&self, sample: u64, count: u64) -> u64 {
        self.random(sample).up_to(count - 1)
    }

    /// Mixes a batch with another; `samples` are the indices of the first batch's samples.
    ///
    /// # Errors
    /// [`DataError`] if labels or inputs cannot be mixed.
    pub(crate) fn apply(&self, batch: Batch, others: &Batch, samples: &[u64]) -> Result<Batch, DataError> {
        match self.transform {
            Transform::Cutmix { alpha } => self.cutmix(batch, others, samples, alpha),
            Transform::Mixup { alpha } => {
                let shares: Vec<f64> = samples.iter().map(|&sample| self.share(sample, alpha)).collect();
                let Batch { inputs, labels } = batch;
                let mixed = inputs.into_iter().map(|(name, input)| {
                    let mixed = added(&input, &others.inputs[&name], &shares, &format!("input {name}"))?;
                    Ok((name, mixed))
                });
                let inputs = mixed.collect::<Result<_, DataError>>()?;
                Ok(Batch { inputs, labels: added(&labels, &others.labels, &shares, LABELS)? })
            }
            _ => Ok(batch),
        }
    }

    /// Returns the share of a sample that is kept.
    fn share(&self, sample: u64, alpha: f32) -> f64 {
        let mut random = self.random(sample);
        // The first number chose the partner.
        random.coin();
        random.symmetric_beta(f64::from(alpha))
    }

    fn cutmix(&self, mut batch: Batch, others: &Batch, samples: &[u64], alpha: f32) -> Result<Batch, DataError> {
        let spatial = batch.inputs.values().find(|input| has_values(input));
        let Some(spatial) = spatial.map(|input| input.shape()[2..].to_vec()) else {
            let reason = "cutmix requires a floating-point input with two or three spatial axes";
            return Err(DataError::unsupported("the data", reason));
        };
        let grid = Grid::of(&spatial);
        let axes = spatial.iter().filter(|&&size| size > 1).count().max(1);
        let holes: Vec<[(usize, usize); 3]> = samples
            .iter()
            .map(|&sample| {
                let cut = 1.0 - self.share(sample, alpha);
                let side = if cut > 0.0 { libm::pow(cut, 1.0 / axes as f64) } else { 0.0 };
                grid.hole(side as f32, &mut SplitMix64::of(&[self.seed, self.epoch, sample, self.number, MIXED, 1]))
            })
            .collect();
        for (name, input) in &mut batch.inputs {
            if is_map(input.shape(), &spatial) {
                *input = pasted(input, &others.inputs[name], &grid, &holes);
            }
        }
        if is_map(batch.labels.shape(), &spatial) {
            batch.labels = pasted(&batch.labels, &others.labels, &grid, &holes);
            return Ok(batch);
        }
        let area = |hole: &[(usize, usize); 3]| hole.iter().map(|&(_, length)| length as f64).product::<f64>();
        let shares: Vec<f64> = holes.iter().map(|hole| 1.0 - area(hole) / grid.count() as f64).collect();
        batch.labels = added(&batch.labels, &others.labels, &shares, LABELS)?;
        Ok(batch)
    }
}

const LABELS: &str = "labels";

/// Returns the weighted mean of two tensors, with one share per sample.
fn added(tensor: &Tensor, other: &Tensor, shares: &[f64], origin: &str) -> Result<Tensor, DataError> {
    let data_type = tensor.data_type();
    if !data_type.is_float() {
        let reason = match origin {
            LABELS => format!(
                "classes ({data_type}) cannot be mixed; use a loss on soft labels, or a loss on numbers (kl, bce, mse) \
                 with a row of numbers as each sample's label, such as 0,0,1,0"
            ),
            _ => format!("whole numbers ({data_type}) cannot be mixed"),
        };
        return Err(DataError::unsupported(origin, reason));
    }
    let values =
        |tensor: &Tensor| Ok(convert(tensor.clone(), DataType::Float32, 1.0, origin)?.to_f32().unwrap_or_default());
    let (mut first, second): (Vec<f32>, Vec<f32>) = (values(tensor)?, values(other)?);
    let per_sample = (first.len() / shares.len().max(1)).max(1);
    let samples = first.chunks_exact_mut(per_sample).zip(second.chunks_exact(per_sample));
    for ((first, second), share) in samples.zip(shares) {
        for (value, &other) in first.iter_mut().zip(second) {
            *value = (share * f64::from(*value) + (1.0 - share) * f64::from(other)) as f32;
        }
    }
    convert(Tensor::from_f32(tensor.shape(), &first), data_type, 1.0, origin)
}

/// Pastes boxes of another tensor into every channel of a tensor.
fn pasted(tensor: &Tensor, other: &Tensor, grid: &Grid, holes: &[[(usize, usize); 3]]) -> Tensor {
    let size = tensor.data_type().size_bytes() as usize;
    let mut bytes = tensor.bytes().to_vec();
    let plane = grid.count() * size;
    let per_sample = bytes.len() / holes.len().max(1);
    for (sample, [depths, rows, columns]) in holes.iter().enumerate() {
        for channel in 0..per_sample / plane.max(1) {
            for depth in depths.0..depths.0 + depths.1 {
                for row in rows.0..rows.0 + rows.1 {
                    let at = sample * per_sample + channel * plane + grid.place([depth, row, columns.0]) * size;
                    let row = at..at + columns.1 * size;
                    bytes[row.clone()].copy_from_slice(&other.bytes()[row]);
                }
            }
        }
    }
    Tensor::new(tensor.data_type(), tensor.shape(), bytes).expect("as many bytes as before")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixing(word: &str) -> Mixing {
        let augmentation = Augmentation { transforms: vec![word.parse().unwrap()], seed: 4 };
        Mixing::of(&augmentation, 1).remove(0)
    }

    /// Samples whose values all equal their index.
    fn batch(numbers: &[f32], labels: impl Fn(f32) -> Vec<f32>) -> Batch {
        let x: Vec<f32> = numbers.iter().flat_map(|&number| [number; 2 * 6 * 8]).collect();
        let inputs = [("x".to_string(), Tensor::from_f32(&[numbers.len() as u64, 2, 6, 8], &x))].into();
        let labels: Vec<f32> = numbers.iter().flat_map(|&number| labels(number)).collect();
        let count = labels.len() as u64 / numbers.len() as u64;
        Batch { inputs, labels: Tensor::from_f32(&[numbers.len() as u64, count], &labels) }
    }

    #[test]
    fn inputs_and_labels_have_the_same_share_of_each() {
        for word in ["mixup:0.4", "cutmix:1"] {
            let mixing = mixing(word);
            let samples: Vec<u64> = (0..40).collect();
            let (ones, zeros) = (
                batch(&[1.0; 40], |number| vec![number, 1.0 - number]),
                batch(&[0.0; 40], |number| vec![number, 1.0 - number]),
            );
            let mixed = mixing.apply(ones.clone(), &zeros, &samples).unwrap();
            let mut shares = Vec::new();
            for sample in 0..40 {
                let values = mixed.inputs["x"].rows(&[sample]).to_f32().unwrap();
                let labels = mixed.labels.rows(&[sample]).to_f32().unwrap();
                let mean = values.iter().sum::<f32>() / values.len() as f32;
                assert!(
                    (mean - labels[0]).abs() < 1e-5 && (labels[0] + labels[1] - 1.0).abs() < 1e-6,
                    "{word} {mean} {labels:?}"
                );
                let only: Vec<&f32> = values.iter().filter(|value| **value != 0.0 && **value != 1.0).collect();
                assert!(word != "cutmix:1" || only.is_empty());
                shares.push(labels[0]);
            }
            assert!(shares.iter().any(|&share| share < 0.3) && shares.iter().any(|&share| share > 0.7), "{shares:?}");
            // The result is the same in any batch.
            let alone = mixing.apply(
                batch(&[1.0], |number| vec![number, 1.0 - number]),
                &batch(&[0.0], |number| vec![number, 1.0 - number]),
                &[7],
            );
            assert_eq!(alone.unwrap().inputs["x"], mixed.inputs["x"].rows(&[7]));
        }
    }

    #[test]
    fn label_maps_are_cut_and_classes_cannot_be_mixed() {
        let map = |number: i64| Tensor::from_i64(&[1, 6, 8], &[number; 48]);
        let labeled = |labels: Tensor, number: f32| Batch { labels, ..batch(&[number], |_| vec![0.0]) };
        let mixed = mixing("cutmix:1").apply(labeled(map(1), 1.0), &labeled(map(0), 0.0), &[3]).unwrap();
        let labels: Vec<f32> = mixed.labels.to_i64().unwrap().iter().map(|&label| label as f32).collect();
        assert_eq!(mixed.inputs["x"].to_f32().unwrap(), labels.repeat(2));
        for word in ["mixup:1", "cutmix:1"] {
            let class = |number| labeled(Tensor::from_i64(&[1], &[number]), number as f32);
            let error = mixing(word).apply(class(1), &class(0), &[3]).unwrap_err().to_string();
            assert!(error.contains("labels: classes (int64) cannot be mixed") && error.contains("kl"), "{error}");
        }
        assert!("mixup".parse::<Transform>().is_err() && "cutmix:5".parse::<Transform>().is_err());
    }
}
