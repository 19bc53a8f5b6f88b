//! Which samples make up which batch. This depends only on the seed and the step's number, so a resumed run sees the same batches without
//! having saved the order.

use std::collections::BTreeMap;

use forebay_base::random::{SplitMix64, mixed};

/// Distinguishes the random numbers of weighted sampling from others of the same seed.
const DRAWN: u64 = 0x7765_6967_6874;

/// Splits a data set into batches, epoch after epoch; the last batch of an epoch may be smaller.
///
/// ```
/// use forebay_data::Sampler;
///
/// let mut in_order = Sampler::new(5, 2, None);
/// assert_eq!((in_order.steps_per_epoch(), in_order.batch(0)), (3, vec![0, 1]));
/// assert_eq!(in_order.batch(2), [4], "what is left of the epoch");
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    sample_count: u64,
    batch_size: u64,
    seed: Option<u64>,
    /// For each sample, its bucket, if each batch comes from one bucket.
    buckets: Option<Vec<u64>>,
    /// For each sample, the sum of the weights up to and including its own, if samples are drawn by weight.
    weights: Option<Vec<f64>>,
    steps_per_epoch: u64,
    /// The batches of the epoch that was requested last, so that they are computed once per epoch.
    batches: Option<(u64, Vec<Vec<u64>>)>,
}

impl Sampler {
    /// Creates a sampler in the order of the data or, with a seed, in an order that is shuffled again in each epoch.
    ///
    /// # Panics
    /// If a count is 0.
    pub fn new(sample_count: u64, batch_size: u64, seed: Option<u64>) -> Sampler {
        assert!(sample_count > 0 && batch_size > 0, "the number of samples and the batch size must be at least 1");
        let steps_per_epoch = sample_count.div_ceil(batch_size);
        Sampler { sample_count, batch_size, seed, buckets: None, weights: None, steps_per_epoch, batches: None }
    }

    /// Creates a sampler whose batches each have samples of one bucket; the last batch of a bucket may be smaller. Batches are in the order
    /// of their first samples; with a seed, samples are shuffled.
    ///
    /// ```
    /// use forebay_data::Sampler;
    ///
    /// let mut in_order = Sampler::by_buckets(vec![64, 128, 64, 64], 2, None);
    /// let batches: Vec<Vec<u64>> = (0..in_order.steps_per_epoch()).map(|step| in_order.batch(step)).collect();
    /// assert_eq!(batches, [vec![0, 2], vec![1], vec![3]]);
    /// ```
    ///
    /// # Panics
    /// If there are no samples, or the batch size is 0.
    pub fn by_buckets(buckets: Vec<u64>, batch_size: u64, seed: Option<u64>) -> Sampler {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        buckets.iter().for_each(|&bucket| *counts.entry(bucket).or_default() += 1);
        let sampler = Sampler::new(buckets.len() as u64, batch_size, seed);
        let steps_per_epoch = counts.values().map(|count| count.div_ceil(batch_size)).sum();
        Sampler { steps_per_epoch, buckets: Some(buckets), ..sampler }
    }

    /// Creates a sampler that draws samples by weight, as many per epoch as the data has: a sample with twice the weight is drawn twice as
    /// often. Within an epoch, some samples are drawn several times, and others not at all.
    ///
    /// ```
    /// use forebay_data::Sampler;
    ///
    /// let mut drawn = Sampler::weighted(&[1.0, 0.0, 3.0], 2, 7);
    /// assert_eq!(drawn.steps_per_epoch(), 2);
    /// assert!((0..100).all(|step| !drawn.batch(step).contains(&1)));
    /// ```
    ///
    /// # Panics
    /// If there are no samples, or the batch size is 0, or a weight is negative or not a number, or all are 0.
    pub fn weighted(weights: &[f64], batch_size: u64, seed: u64) -> Sampler {
        assert!(
            weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0),
            "weights must be finite and at least 0"
        );
        let sums = weights.iter().scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        let sums: Vec<f64> = sums.collect();
        assert!(sums.last().is_some_and(|sum| *sum > 0.0), "all weights are 0");
        Sampler { weights: Some(sums), ..Sampler::new(weights.len() as u64, batch_size, Some(seed)) }
    }

    /// Returns the number of steps per epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// Returns the epoch of a step, both counted from 0.
    pub fn epoch(&self, step: u64) -> u64 {
        step / self.steps_per_epoch
    }

    /// Returns the samples of a step, counted from 0 over all epochs.
    pub fn batch(&mut self, step: u64) -> Vec<u64> {
        let (epoch, number) = (step / self.steps_per_epoch, (step % self.steps_per_epoch) as usize);
        if self.seed.is_none() && self.buckets.is_none() {
            let start = number as u64 * self.batch_size;
            return (start..(start + self.batch_size).min(self.sample_count)).collect();
        }
        let batches = match self.batches.take() {
            Some((of, batches)) if of == epoch => batches,
            _ => self.batches_of(epoch),
        };
        let batch = batches[number].clone();
        self.batches = Some((epoch, batches));
        batch
    }

    /// Draws the samples of an epoch by their weights.
    fn drawn(&self, seed: u64, epoch: u64) -> Vec<u64> {
        let sums = self.weights.as_deref().unwrap_or_default();
        let (all, mut random) = (sums.last().copied().unwrap_or(0.0), SplitMix64::of(&[seed, epoch, DRAWN]));
        // A place can be rounded up to the sum of all weights, and the weight of the last sample can be 0.
        let last = sums.partition_point(|&sum| sum < all);
        let draw = |_| {
            let place = random.uniform() * all;
            sums.partition_point(|&sum| sum <= place).min(last) as u64
        };
        (0..self.sample_count).map(draw).collect()
    }

    /// Returns all batches of an epoch.
    fn batches_of(&self, epoch: u64) -> Vec<Vec<u64>> {
        let order = match self.seed {
            Some(seed) if self.weights.is_some() => self.drawn(seed, epoch),
            Some(seed) => permutation(self.sample_count, seed, epoch),
            None => (0..self.sample_count).collect(),
        };
        let Some(buckets) = &self.buckets else {
            return order.chunks(self.batch_size as usize).map(<[u64]>::to_vec).collect();
        };
        let mut batches: Vec<Vec<u64>> = Vec::with_capacity(self.steps_per_epoch as usize);
        let mut open: BTreeMap<u64, usize> = BTreeMap::new();
        for sample in order {
            let place = open.entry(buckets[sample as usize]).or_insert_with(|| {
                batches.push(Vec::new());
                batches.len() - 1
            });
            batches[*place].push(sample);
            if batches[*place].len() as u64 == self.batch_size {
                open.remove(&buckets[sample as usize]);
            }
        }
        batches
    }
}

/// Returns a permutation of `0..count`, by Fisher-Yates on SplitMix64, that depends only on the arguments.
pub fn permutation(count: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let mut random = SplitMix64::at(mixed(mixed(seed).wrapping_add(epoch)));
    let mut order: Vec<u64> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last as usize, random.up_to(last) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_in_order_with_a_partial_last_one() {
        let mut sampler = Sampler::new(5, 2, None);
        assert_eq!(sampler.steps_per_epoch(), 3);
        let batches: Vec<_> = (0..4).map(|step| sampler.batch(step)).collect();
        assert_eq!(batches, [vec![0, 1], vec![2, 3], vec![4], vec![0, 1]]);
        assert_eq!(Sampler::new(1, 50, None).batch(7), [0]);
    }

    #[test]
    fn every_epoch_is_a_permutation_and_differs_from_the_next() {
        for seed in 0..20 {
            let mut sampler = Sampler::new(37, 5, Some(seed));
            let epochs: Vec<Vec<u64>> =
                (0..2).map(|epoch| (0..8).flat_map(|step| sampler.batch(epoch * 8 + step)).collect()).collect();
            for epoch in &epochs {
                let mut sorted = epoch.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..37).collect::<Vec<_>>(), "seed {seed}");
            }
            assert_ne!(epochs[0], epochs[1], "seed {seed}");
        }
    }

    #[test]
    fn a_step_is_a_function_of_seed_and_number() {
        let mut through = Sampler::new(100, 7, Some(3));
        let wanted: Vec<_> = (0..40).map(|step| through.batch(step)).collect();
        for step in (0..40).rev() {
            assert_eq!(Sampler::new(100, 7, Some(3)).batch(step), wanted[step as usize]);
        }
    }

    #[test]
    fn batches_of_buckets_hold_each_sample_once_and_one_bucket_each() {
        for seed in (0..20).map(Some).chain([None]) {
            let buckets: Vec<u64> = (0..53).map(|sample| sample * sample % 7).collect();
            let mut sampler = Sampler::by_buckets(buckets.clone(), 4, seed);
            let steps = sampler.steps_per_epoch();
            for epoch in 0..2 {
                let batches: Vec<Vec<u64>> = (0..steps).map(|step| sampler.batch(epoch * steps + step)).collect();
                for batch in &batches {
                    assert!(batch.iter().all(|&sample| buckets[sample as usize] == buckets[batch[0] as usize]));
                }
                let mut all: Vec<u64> = batches.concat();
                all.sort_unstable();
                assert_eq!(all, (0..53).collect::<Vec<_>>(), "seed {seed:?}");
                let other = Sampler::by_buckets(buckets.clone(), 4, seed).batch(epoch * steps + 3);
                assert_eq!(other, batches[3], "a function of seed and step");
            }
        }
    }

    #[test]
    fn samples_come_as_often_as_their_weights_say_in_every_epoch_anew() {
        let weights = [0.0, 1.0, 2.0, 5.0, 0.0];
        let mut sampler = Sampler::weighted(&weights, 5, 1);
        let mut counts = [0u32; 5];
        let epochs: Vec<Vec<u64>> = (0..4000).map(|epoch| sampler.batch(epoch)).collect();
        epochs.iter().flatten().for_each(|&sample| counts[sample as usize] += 1);
        for (count, weight) in counts.iter().zip(weights) {
            assert!((f64::from(*count) / 20_000.0 - weight / 8.0).abs() < 0.01, "{counts:?}");
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_eq!(Sampler::weighted(&weights, 5, 1).batch(3), epochs[3], "a function of seed and step");
    }

    #[test]
    fn positions_are_about_uniform() {
        let mut first = [0u32; 8];
        for seed in 0..4000 {
            first[permutation(8, seed, 0)[0] as usize] += 1;
        }
        assert!(first.iter().all(|&count| (400..600).contains(&count)), "{first:?}");
    }
}
