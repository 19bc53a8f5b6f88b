//! Normalisation: (value - mean) / deviation for each channel, with given or measured numbers.

use std::str::FromStr;

use forebay_base::{DataType, Tensor};

use crate::batch::Batch;
use crate::convert::convert;
use crate::error::DataError;

/// The mean and deviation of each channel; a single pair applies to all channels.
///
/// ```
/// use forebay_base::Tensor;
/// use forebay_data::{Batch, Normalization};
///
/// let normalization: Normalization = "0.5/0.25".parse().unwrap();
/// let image = Tensor::from_f32(&[1, 1, 1, 2], &[1.0, 0.25]);
/// let batch = Batch { inputs: [("x".to_string(), image)].into(), labels: Tensor::from_i64(&[1], &[0]) };
/// let batch = normalization.apply(batch).unwrap();
/// assert_eq!(batch.inputs["x"].to_f32().unwrap(), [2.0, -1.0]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Normalization {
    /// The mean and deviation of each channel.
    pub channels: Vec<(f64, f64)>,
}

impl FromStr for Normalization {
    type Err = String;

    /// Parses `MEAN/DEVIATION`, or one such pair for each channel, separated by commas.
    fn from_str(text: &str) -> Result<Normalization, String> {
        let pair = |pair: &str| {
            let (mean, deviation) = pair.split_once('/')?;
            let pair: (f64, f64) = (mean.trim().parse().ok()?, deviation.trim().parse().ok()?);
            (pair.0.is_finite() && pair.1.is_finite() && pair.1 > 0.0).then_some(pair)
        };
        let channels = text.split(',').map(pair).collect::<Option<Vec<_>>>();
        let wrong = || {
            format!(
                "'{text}' is not MEAN/DEVIATION, given once or for each channel (0.485/0.229,0.456/0.224,0.406/0.225)"
            )
        };
        Ok(Normalization { channels: channels.ok_or_else(wrong)? })
    }
}

/// Returns whether an input is normalised, that is, has floating-point numbers, and channels after the batch axis.
fn has_channels(input: &Tensor) -> bool {
    input.data_type().is_float() && input.shape().len() >= 2
}

impl Normalization {
    /// Normalises the floating-point inputs of a batch.
    ///
    /// # Errors
    /// [`DataError`] if the number of channels differs.
    pub fn apply(&self, mut batch: Batch) -> Result<Batch, DataError> {
        for (name, input) in batch.inputs.iter_mut().filter(|(_, input)| has_channels(input)) {
            let (data_type, shape) = (input.data_type(), input.shape().to_vec());
            let (count, channels) = (self.channels.len(), shape[1] as usize);
            let origin = format!("input {name}");
            if count != 1 && count != channels {
                return Err(DataError::unsupported(
                    origin,
                    format!("it has {channels} channels, but there are {count} means"),
                ));
            }
            let mut values = convert(input.clone(), DataType::Float32, 1.0, &origin)?.to_f32().unwrap_or_default();
            let places: u64 = shape[2..].iter().product();
            for (number, values) in values.chunks_exact_mut(places.max(1) as usize).enumerate() {
                let (mean, deviation) = self.channels[if count == 1 { 0 } else { number % channels }];
                values.iter_mut().for_each(|value| *value = ((f64::from(*value) - mean) / deviation) as f32);
            }
            *input = convert(Tensor::from_f32(&shape, &values), data_type, 1.0, &origin)?;
        }
        Ok(batch)
    }
}

/// Sums over samples from which means and deviations are computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    /// For each channel: the number of values, their sum, and the sum of their squares.
    channels: Vec<(f64, f64, f64)>,
}

impl Sums {
    /// Adds the samples of a batch.
    pub(crate) fn add(&mut self, batch: &Batch) {
        for input in batch.inputs.values().filter(|input| has_channels(input)) {
            let (channels, places) = (input.shape()[1] as usize, input.shape()[2..].iter().product::<u64>());
            self.channels.resize(self.channels.len().max(channels), (0.0, 0.0, 0.0));
            let values = crate::convert::to_f64(input);
            for (number, values) in values.chunks_exact(places.max(1) as usize).enumerate() {
                let (count, sum, squares) = &mut self.channels[number % channels];
                *count += values.len() as f64;
                *sum += values.iter().sum::<f64>();
                *squares += values.iter().map(|value| value * value).sum::<f64>();
            }
        }
    }

    /// Returns means and deviations, or `None` if nothing was added. The deviation of a constant channel is given as 1.
    pub(crate) fn normalization(&self) -> Option<Normalization> {
        let channel = |&(count, sum, squares): &(f64, f64, f64)| {
            let mean = sum / count;
            let deviation = (squares / count - mean * mean).max(0.0).sqrt();
            (mean, if deviation > 0.0 { deviation } else { 1.0 })
        };
        let channels: Vec<(f64, f64)> = self.channels.iter().map(channel).collect();
        (!channels.is_empty()).then_some(Normalization { channels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(values: &[f32]) -> Batch {
        let image = Tensor::from_f32(&[1, 2, 2], values);
        Batch { inputs: [("x".to_string(), image)].into(), labels: Tensor::from_i64(&[1], &[0]) }
    }

    #[test]
    fn measured_samples_have_mean_zero_and_deviation_one() {
        let samples = [batch(&[1.0, 2.0, 5.0, 5.0]), batch(&[3.0, 6.0, 5.0, 5.0])];
        let mut sums = Sums::default();
        samples.iter().for_each(|sample| sums.add(sample));
        let normalization = sums.normalization().unwrap();
        assert_eq!(normalization.channels, [(3.0, 3.5f64.sqrt()), (5.0, 1.0)]);
        let mut again = Sums::default();
        samples.into_iter().for_each(|sample| again.add(&normalization.apply(sample).unwrap()));
        let (mean, deviation) = again.normalization().unwrap().channels[0];
        assert!(mean.abs() < 1e-6 && (deviation - 1.0).abs() < 1e-6);
        assert!(Sums::default().normalization().is_none());
    }

    #[test]
    fn numbers_without_a_meaning_are_refused() {
        for text in ["0.5", "0.5/0", "a/b", "1/2,", "1/inf"] {
            assert!(text.parse::<Normalization>().unwrap_err().contains("MEAN/DEVIATION"), "{text}");
        }
        let three: Normalization = "1/1,2/2,3/3".parse().unwrap();
        let error = three.apply(batch(&[0.0; 4])).unwrap_err().to_string();
        assert!(error.contains("2 channels") && error.contains("3 means"), "{error}");
    }
}
