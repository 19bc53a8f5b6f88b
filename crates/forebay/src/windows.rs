//! Windows over samples that are larger than those a model is trained on. The predictions of the windows are merged.

use std::fmt;
use std::str::FromStr;

use forebay_base::Tensor;

use crate::error::Error;

/// How much the positions of a window count where windows overlap.
///
/// ```
/// use forebay::Blend;
///
/// assert_eq!(("gaussian".parse(), Blend::Constant.to_string()), (Ok(Blend::Gaussian), "constant".to_string()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blend {
    /// All positions count the same.
    #[default]
    Constant,
    /// Positions near the middle count more: their weight is a Gaussian whose standard deviation is an eighth of the window along each
    /// axis, but at least a thousandth.
    Gaussian,
}

impl fmt::Display for Blend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Blend::Constant => "constant",
            Blend::Gaussian => "gaussian",
        })
    }
}

impl FromStr for Blend {
    type Err = String;

    fn from_str(text: &str) -> Result<Blend, String> {
        match text {
            "constant" => Ok(Blend::Constant),
            "gaussian" => Ok(Blend::Gaussian),
            _ => Err(format!("unknown blending '{text}'; expected 'constant' or 'gaussian'")),
        }
    }
}

/// How a model goes over samples that are larger than its inputs: in windows of one size, the last of which ends where the sample does, as
/// in MONAI's `sliding_window_inference`.
///
/// If the sample is smaller than a window, it is padded with zeros on all sides, and the predictions for the padding are dropped.
///
/// ```
/// use forebay::{Blend, Windows};
///
/// let mut windows = Windows::new(&[64, 64, 64]);
/// (windows.overlap, windows.blend) = (0.5, Blend::Gaussian);
/// assert_eq!(Windows::whole(3).sizes, [0, 0, 0]);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Windows {
    /// The sizes of a window along the last axes of a sample; 0 for the sample's own size.
    pub sizes: Vec<u64>,
    /// The minimum fraction of a window by which neighbors overlap: from 0 to below 1.
    pub overlap: f64,
    /// How much positions count where windows overlap.
    pub blend: Blend,
    /// If a window has the sample's own size, this size is rounded up to a multiple of this number, with zeros around the sample.
    pub multiple: u64,
    /// The number of windows that go through the model at a time; if `None`, the number of samples in a part of a step.
    pub batch_size: Option<u64>,
}

/// The windows of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid {
    /// The sizes of each window.
    pub(crate) sizes: Vec<u64>,
    /// Where the windows begin; before the sample if it is smaller than the window.
    pub(crate) starts: Vec<Vec<i64>>,
}

impl Windows {
    /// Creates windows of these sizes that overlap by a quarter and count the same everywhere.
    pub fn new(sizes: &[u64]) -> Windows {
        Windows { sizes: sizes.to_vec(), overlap: 0.25, blend: Blend::Constant, multiple: 1, batch_size: None }
    }

    /// Creates one window for the whole of a sample along this many last axes, for models that leave these sizes open.
    pub fn whole(axes: usize) -> Windows {
        Windows { batch_size: Some(1), ..Windows::new(&vec![0; axes]) }
    }

    /// Checks that the numbers are valid.
    ///
    /// # Errors
    /// Returns [`Error::Option`] if they are not.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Option { reason });
        match self {
            Windows { sizes, .. } if sizes.is_empty() => refuse("windows must have at least one axis".to_string()),
            Windows { overlap, .. } if !(0.0..1.0).contains(overlap) => refuse(format!(
                "the overlap of windows must be a share of at least 0 and below 1 of their sizes, not {overlap}"
            )),
            Windows { multiple: 0, .. } => {
                refuse("the multiple that sizes are rounded up to must be at least 1".to_string())
            }
            Windows { batch_size: Some(0), .. } => {
                refuse("at least one window must go through the model at a time".to_string())
            }
            _ => Ok(()),
        }
    }

    /// Returns the windows of a sample of these sizes.
    pub(crate) fn grid(&self, sample: &[u64]) -> Grid {
        let own =
            |(&window, &size): (&u64, &u64)| if window == 0 { size.next_multiple_of(self.multiple) } else { window };
        let sizes: Vec<u64> = self.sizes.iter().zip(sample).map(own).collect();
        let mut starts = vec![Vec::new()];
        for (&window, &size) in sizes.iter().zip(sample) {
            let along = self.along(window, size);
            starts = starts
                .iter()
                .flat_map(|start| along.iter().map(move |&at| [start.as_slice(), &[at]].concat()))
                .collect();
        }
        Grid { sizes, starts }
    }

    /// Returns where windows begin along an axis.
    fn along(&self, window: u64, size: u64) -> Vec<i64> {
        if window >= size {
            return vec![-(((window - size) / 2) as i64)];
        }
        let every = ((window as f64 * (1.0 - self.overlap)) as u64).max(1);
        let count = (size - window).div_ceil(every) + 1;
        (0..count).map(|number| (number * every).min(size - window) as i64).collect()
    }

    /// Returns how much each position of a window of these sizes counts.
    fn weights(&self, sizes: &[u64]) -> Vec<f32> {
        let mut weights = vec![1f32];
        if self.blend == Blend::Constant {
            return vec![1.0; sizes.iter().product::<u64>() as usize];
        }
        for &size in sizes {
            let (middle, deviation) = ((size as f32 - 1.0) / 2.0, size as f32 / 8.0);
            let at = |place: u64| {
                let distance = (place as f32 - middle) / deviation;
                libm::expf(-distance * distance / 2.0)
            };
            weights = weights.iter().flat_map(|&weight| (0..size).map(move |place| weight * at(place))).collect();
        }
        let least = weights.iter().fold(f32::INFINITY, |least, &weight| least.min(weight)).max(1e-3);
        weights.iter_mut().for_each(|weight| *weight = weight.max(least));
        weights
    }
}

/// Predictions of samples, merged from those of their windows: means, weighted by the positions in the windows. Windows are added one after
/// the other, so that the bits are always the same.
pub(crate) struct Merging {
    /// The shape of a sample's predictions: leading axes, and the axes along which windows are cut.
    shape: Vec<u64>,
    /// The number of axes along which windows are cut: the last ones.
    axes: usize,
    grid: Grid,
    /// The weights, by position in a window.
    weights: Vec<f32>,
    /// The sums of the weights of all windows, by position in a sample.
    counts: Vec<f32>,
    /// The sums of predictions times weights, by sample and position.
    sums: Vec<f32>,
}

impl Merging {
    /// Creates an empty merge for samples of these sizes, whose windows have predictions of the shape `window` without a batch axis.
    ///
    /// # Errors
    /// Fails if predictions do not have the sizes of a window, or if there is not enough memory for them.
    pub(crate) fn new(
        windows: &Windows,
        grid: Grid,
        samples: u64,
        sample: &[u64],
        window: &[u64],
    ) -> Result<Merging, Error> {
        let axes = sample.len();
        let leading = window.len().checked_sub(axes).filter(|&leading| window[leading..] == grid.sizes);
        let Some(leading) = leading else {
            let reason = format!(
                "predictions of a window of {:?} have the shape {window:?}; they can be merged only if their last axes have the window's sizes",
                grid.sizes
            );
            return Err(Error::Option { reason });
        };
        let shape = [&window[..leading], sample].concat();
        let count = |sizes: &[u64]| sizes.iter().fold(1, |product: u64, &size| product.saturating_mul(size));
        let elements = samples.saturating_mul(count(&shape));
        forebay_limits::check(elements.saturating_mul(8), forebay_limits::Use::Private).map_err(|error| {
            Error::Option {
                reason: format!(
                    "not enough host memory for merged predictions of {samples} samples of {shape:?}: {error}"
                ),
            }
        })?;
        let (weights, counts) = (windows.weights(&grid.sizes), vec![0.0; count(sample) as usize]);
        let mut merging = Merging { shape, axes, grid, weights, counts, sums: vec![0.0; elements as usize] };
        for number in 0..merging.grid.starts.len() {
            let mut counts = std::mem::take(&mut merging.counts);
            merging.for_each_row(number, |sample, window, length| {
                let weights = &merging.weights[window..window + length];
                counts[sample..sample + length].iter_mut().zip(weights).for_each(|(count, weight)| *count += weight);
            });
            merging.counts = counts;
        }
        Ok(merging)
    }

    /// Calls `row` for every row of a window that lies in the sample, with its places in the sample and in the window, and its length.
    fn for_each_row(&self, number: usize, mut row: impl FnMut(usize, usize, usize)) {
        let (start, sample) = (&self.grid.starts[number], &self.shape[self.shape.len() - self.axes..]);
        // For each axis: where the window's part in the sample begins, in the window, and how long it is.
        let inside: Vec<(i64, i64)> = (0..self.axes)
            .map(|axis| {
                let first = (-start[axis]).max(0);
                (first, (sample[axis] as i64 - start[axis]).min(self.grid.sizes[axis] as i64) - first)
            })
            .collect();
        let Some((&(first, length), outer)) = inside.split_last() else { return };
        let rows: i64 = outer.iter().map(|(_, length)| length).product();
        for row_number in 0..rows {
            let (mut left, mut in_sample, mut in_window) = (row_number, 0, 0);
            let (mut sample_step, mut window_step) =
                (sample[self.axes - 1] as i64, self.grid.sizes[self.axes - 1] as i64);
            for axis in (0..outer.len()).rev() {
                let at = outer[axis].0 + left % outer[axis].1;
                left /= outer[axis].1;
                in_window += at * window_step;
                in_sample += (at + start[axis]) * sample_step;
                window_step *= self.grid.sizes[axis] as i64;
                sample_step *= sample[axis] as i64;
            }
            let last = start[self.axes - 1];
            row((in_sample + first + last) as usize, (in_window + first) as usize, length as usize);
        }
    }

    /// Adds the predictions of a window of a sample, which are a row of a batch of windows.
    pub(crate) fn add(&mut self, sample: u64, number: usize, predictions: &Tensor, row: u64) {
        let Some(value) = predictions.reals() else { return };
        let (places, window) = (self.counts.len(), self.weights.len());
        let leading = self.sums.len() / places.max(1) / self.samples() as usize;
        let mut sums = std::mem::take(&mut self.sums);
        self.for_each_row(number, |in_sample, in_window, length| {
            for channel in 0..leading {
                let from = (row as usize * leading + channel) * window + in_window;
                let to = (sample as usize * leading + channel) * places + in_sample;
                let weights = &self.weights[in_window..in_window + length];
                let targets = sums[to..to + length].iter_mut();
                targets.zip(weights).enumerate().for_each(|(i, (sum, weight))| *sum += weight * value(from + i));
            }
        });
        self.sums = sums;
    }

    fn samples(&self) -> u64 {
        self.sums.len() as u64 / self.shape.iter().product::<u64>().max(1)
    }

    /// Returns the merged predictions, with a batch axis.
    pub(crate) fn finish(self) -> Tensor {
        let shape = [&[self.samples()], self.shape.as_slice()].concat();
        let counts = self.counts.iter().cycle();
        let values: Vec<f32> = self.sums.iter().zip(counts).map(|(sum, count)| sum / count).collect();
        Tensor::from_f32(&shape, &values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_stand_where_those_of_monai_do() {
        let windows = |overlap| Windows { overlap, ..Windows::new(&[4]) };
        // dense_patch_slices((size,), (4,), (interval,)).
        for (size, overlap, starts) in [
            (10, 0.0, vec![0, 4, 6]),
            (10, 0.25, vec![0, 3, 6]),
            (11, 0.25, vec![0, 3, 6, 7]),
            (10, 0.5, vec![0, 2, 4, 6]),
            (5, 0.99, vec![0, 1]),
            (4, 0.5, vec![0]),
            (3, 0.5, vec![0]),
            (1, 0.5, vec![-1]),
        ] {
            assert_eq!(windows(overlap).along(4, size), starts, "{size}, {overlap}");
        }
        let whole = Windows { multiple: 8, ..Windows::whole(2) };
        assert_eq!(whole.grid(&[9, 8]), Grid { sizes: vec![16, 8], starts: vec![vec![-3, 0]] });
    }

    #[test]
    fn merged_predictions_are_weighted_means() {
        for blend in [Blend::Constant, Blend::Gaussian] {
            let windows = Windows { blend, ..Windows::new(&[2, 4]) };
            let (samples, sample) = (2u64, [3u64, 7]);
            let grid = windows.grid(&sample);
            assert_eq!(grid.starts.len(), 2 * 2);
            let mut merging = Merging::new(&windows, grid.clone(), samples, &sample, &[3, 2, 4]).unwrap();
            let value =
                |sample: u64, number: usize, i: usize| ((sample as usize * 31 + number * 17 + i * 7) % 13) as f32 - 6.0;
            for (sample, number) in (0..samples).flat_map(|sample| (0..4).map(move |number| (sample, number))) {
                let of = |sample, number| (0..24).map(move |i| value(sample, number, i));
                let both: Vec<f32> = of(9, 9).chain(of(sample, number)).collect();
                merging.add(sample, number, &Tensor::from_f32(&[2, 3, 2, 4], &both), 1);
            }
            let merged = merging.finish();
            assert_eq!(merged.shape(), [2, 3, 3, 7]);
            let merged = merged.to_f32().unwrap();
            let weight = |axis_size: f64, at: f64| match blend {
                Blend::Constant => 1.0,
                Blend::Gaussian => (-(at - (axis_size - 1.0) / 2.0).powi(2) / (2.0 * (axis_size / 8.0).powi(2))).exp(),
            };
            for (place, merged) in merged.into_iter().enumerate() {
                let (x, y, channel, sample) = (place % 7, place / 7 % 3, place / 21 % 3, place / 63);
                let (mut sum, mut count) = (0.0, 0.0);
                for (number, start) in grid.starts.iter().enumerate() {
                    let (at_y, at_x) = (y as i64 - start[0], x as i64 - start[1]);
                    if (0..2).contains(&at_y) && (0..4).contains(&at_x) {
                        let weight = (weight(2.0, at_y as f64) * weight(4.0, at_x as f64)).max(1e-3);
                        let i = (channel * 2 + at_y as usize) * 4 + at_x as usize;
                        sum += weight * f64::from(value(sample as u64, number, i));
                        count += weight;
                    }
                }
                assert!((sum / count - f64::from(merged)).abs() < 1e-5, "{blend}, place {place}");
            }
        }
    }

    #[test]
    fn what_does_not_merge_is_told() {
        let windows = Windows::new(&[4, 4]);
        let error = Merging::new(&windows, windows.grid(&[8, 8]), 1, &[8, 8], &[3, 2, 2]).err().unwrap();
        assert!(error.to_string().contains("[3, 2, 2]"), "{error}");
        for wrong in [
            Windows { overlap: 1.0, ..windows.clone() },
            Windows { overlap: f64::NAN, ..windows.clone() },
            Windows { multiple: 0, ..windows.clone() },
            Windows { batch_size: Some(0), ..windows.clone() },
            Windows::new(&[]),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
