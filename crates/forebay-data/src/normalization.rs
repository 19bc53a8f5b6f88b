//! Normalization: (value - mean) / deviation for each channel, with given or measured numbers.

use std::collections::BTreeMap;
use std::str::FromStr;

use forebay_base::{DataType, Tensor};

use crate::batch::Batch;
use crate::convert::convert;
use crate::error::DataError;

/// The mean and deviation of each channel. A single pair applies to all channels, and as many pairs as an input has channels apply to each
/// input of that many; for inputs that differ, there is a pair for each channel of each input, in the order of the inputs' names.
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
/// // The channels of x, then the only one of z.
/// let pairs: Normalization = "1/1,2/1,30/10".parse().unwrap();
/// let (x, z) = (Tensor::from_f32(&[1, 2], &[1.0, 2.5]), Tensor::from_f32(&[1, 1], &[40.0]));
/// let inputs = [("x".to_string(), x), ("z".to_string(), z)].into();
/// let batch = pairs.apply(Batch { inputs, labels: Tensor::from_i64(&[1], &[0]) }).unwrap();
/// assert_eq!(batch.inputs["x"].to_f32().unwrap(), [0.0, 0.5]);
/// assert_eq!(batch.inputs["z"].to_f32().unwrap(), [1.0]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Normalization {
    /// The mean and deviation of each channel, or of each channel of each input.
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

/// Returns whether an input is normalized, that is, has floating-point numbers, and channels after the batch axis.
fn has_channels(input: &Tensor) -> bool {
    input.data_type().is_float() && input.shape().len() >= 2
}

impl Normalization {
    /// Normalizes the floating-point inputs of a batch.
    ///
    /// # Errors
    /// [`DataError`] if the number of channels differs.
    pub fn apply(&self, mut batch: Batch) -> Result<Batch, DataError> {
        let count = self.channels.len();
        let inputs = batch.inputs.iter_mut().filter(|(_, input)| has_channels(input)).collect::<Vec<_>>();
        let total: usize = inputs.iter().map(|(_, input)| input.shape()[1] as usize).sum();
        let mut earlier = 0;
        for (name, input) in inputs {
            let (data_type, shape) = (input.data_type(), input.shape().to_vec());
            let channels = shape[1] as usize;
            let origin = format!("input {name}");
            let pairs = match count {
                1 => None,
                _ if count == channels => Some(&self.channels[..]),
                _ if count == total => Some(&self.channels[earlier..earlier + channels]),
                _ => {
                    let all =
                        if total == channels { String::new() } else { format!(" (all inputs together have {total})") };
                    let reason = format!("it has {channels} channels{all}, but there are {count} means");
                    return Err(DataError::unsupported(origin, reason));
                }
            };
            let mut values = convert(input.clone(), DataType::Float32, 1.0, &origin)?.to_f32().unwrap_or_default();
            let places: u64 = shape[2..].iter().product();
            for (number, values) in values.chunks_exact_mut(places.max(1) as usize).enumerate() {
                let (mean, deviation) = pairs.map_or(self.channels[0], |pairs| pairs[number % channels]);
                values.iter_mut().for_each(|value| *value = ((f64::from(*value) - mean) / deviation) as f32);
            }
            *input = convert(Tensor::from_f32(&shape, &values), data_type, 1.0, &origin)?;
            earlier += channels;
        }
        Ok(batch)
    }
}

/// The number of some values, their mean, and the sum of the squares of their distances from it.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn of(values: &[f64]) -> Moments {
        // Distances from the first value are small compared with the values, and zero in constant channels.
        let (count, first) = (values.len() as f64, values.first().copied().unwrap_or(0.0));
        let mean = first + values.iter().map(|value| value - first).sum::<f64>() / count.max(1.0);
        let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        Moments { count, mean, squares }
    }

    /// Returns the moments of these and other values together.
    fn with(self, other: Moments) -> Moments {
        if self.count == 0.0 {
            return other;
        }
        let count = self.count + other.count;
        let (distance, share) = (other.mean - self.mean, other.count / count);
        let squares = self.squares + other.squares + distance * distance * self.count * share;
        Moments { count, mean: self.mean + distance * share, squares }
    }
}

/// What is measured over samples, from which means and deviations are computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    /// The moments of each channel, by input.
    inputs: BTreeMap<String, Vec<Moments>>,
}

impl Sums {
    /// Adds the samples of a batch.
    pub(crate) fn add(&mut self, batch: &Batch) {
        for (name, input) in batch.inputs.iter().filter(|(_, input)| has_channels(input)) {
            let (channels, places) = (input.shape()[1] as usize, input.shape()[2..].iter().product::<u64>());
            let sums = self.inputs.entry(name.clone()).or_default();
            sums.resize(sums.len().max(channels), Moments::default());
            let values = crate::convert::to_f64(input);
            for (number, values) in values.chunks_exact(places.max(1) as usize).enumerate() {
                let sum = &mut sums[number % channels];
                *sum = sum.with(Moments::of(values));
            }
        }
    }

    /// Returns means and deviations of each channel of each input, or `None` if nothing was added. The deviation of a constant channel is
    /// given as 1.
    pub(crate) fn normalization(&self) -> Option<Normalization> {
        let channel = |&Moments { count, mean, squares }: &Moments| {
            let deviation = (squares / count).sqrt();
            (mean, if deviation > 0.0 { deviation } else { 1.0 })
        };
        let channels: Vec<(f64, f64)> = self.inputs.values().flatten().map(channel).collect();
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
    fn a_deviation_is_exact_however_large_the_mean_is() {
        let mut sums = Sums::default();
        for sample in 0..200 {
            let values = [-1.0, 0.0, 1.0, 1.0].map(|offset| if sample % 2 == 0 { offset } else { -offset });
            let far = [1e7 + values[0], 1e7 + values[1], 5e8 + 32.0 * values[2], 5e8 + 32.0 * values[0]];
            sums.add(&batch(&far));
        }
        let [(mean, deviation), (other_mean, other)] = sums.normalization().unwrap().channels[..] else { panic!() };
        assert!((mean - 1e7).abs() < 1e-6 && (deviation - 0.5f64.sqrt()).abs() < 1e-6, "{mean} {deviation}");
        assert!((other_mean - 5e8).abs() < 1e-4 && (other - 32.0).abs() < 1e-4, "{other_mean} {other}");
    }

    #[test]
    fn each_input_has_its_own_means() {
        let pair = |x: &[f32], z: &[f32]| {
            let x = Tensor::from_f32(&[1, 2, x.len() as u64 / 2], x);
            let z = Tensor::from_f32(&[1, 2, z.len() as u64 / 2], z);
            Batch { inputs: [("x".to_string(), x), ("z".to_string(), z)].into(), ..batch(&[0.0; 4]) }
        };
        let given = pair(&[1.0, 3.0, 2.0, 2.0], &[100.0, 104.0, 90.0, 110.0]);
        let mut sums = Sums::default();
        sums.add(&given);
        let normalization = sums.normalization().unwrap();
        assert_eq!(normalization.channels, [(2.0, 1.0), (2.0, 1.0), (102.0, 2.0), (100.0, 10.0)]);
        let found = normalization.apply(given.clone()).unwrap();
        assert_eq!(found.inputs["x"].to_f32().unwrap(), [-1.0, 1.0, 0.0, 0.0]);
        assert_eq!(found.inputs["z"].to_f32().unwrap(), [-1.0, 1.0, -1.0, 1.0]);
        // As many pairs as each input has channels apply to each input.
        let both: Normalization = "2/1,2/1".parse().unwrap();
        assert_eq!(both.apply(given.clone()).unwrap().inputs["z"].to_f32().unwrap(), [98.0, 102.0, 88.0, 108.0]);
        let error = Normalization { channels: vec![(0.0, 1.0); 3] }.apply(given).unwrap_err().to_string();
        assert!(
            error.contains("input x: it has 2 channels (all inputs together have 4), but there are 3 means"),
            "{error}"
        );
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
