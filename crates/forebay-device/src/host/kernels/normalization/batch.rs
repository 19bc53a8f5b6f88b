//! Batch normalization: statistics per channel over images and places.
//!
//! Statistics are sums over fixed chunks ([`forebay_base::kernel::reduction_block_of_channels`]), in double precision and relative to the
//! first of the summed elements, so that a mean far from 0 does not cost precision. Chunks are added along the sum tree.

use forebay_base::kernel::{Activation, add_statistics, check_group_size};

use super::super::View;
use super::super::accumulators::Accumulators;
use super::super::block::{run1, run2};
use super::super::element::Float;
use super::super::parallel::{CHUNK, Pointer, for_chunks, map_chunks, require_packed, wide};
use super::super::partial_sums::load_sums;
use super::super::stored::{Stored, for_each_block};
use super::super::strided_layout::StridedLayout;

/// The strided layouts of x and of the other operands of the same sizes.
struct Shape<const N: usize> {
    x: StridedLayout,
    others: [StridedLayout; N],
    channels: usize,
}

impl<const N: usize> Shape<N> {
    fn new(x: &View, others: [&View; N], statistics: &[&View]) -> Result<Shape<N>, String> {
        let strided_layout = StridedLayout::of(x.desc)?;
        let mut strided_layouts = [strided_layout; N];
        for (slot, other) in strided_layouts.iter_mut().zip(others) {
            *slot = StridedLayout::of(other.desc)?;
            if !slot.fits(&strided_layout) {
                return Err(format!("{} and {} differ in size", x.desc, other.desc));
            }
        }
        require_packed(&statistics.iter().map(|view| **view).collect::<Vec<_>>())?;
        if let Some(other) = statistics.iter().find(|view| view.count() != strided_layout.channels) {
            return Err(format!("{} needs {} elements, one per channel", other.desc, strided_layout.channels));
        }
        let data_type = x.desc.data_type().computed_in();
        if let Some(other) = statistics.iter().find(|view| view.desc.data_type() != data_type) {
            return Err(format!("{} must be {data_type}, because {} is normalized in it", other.desc, x.desc));
        }
        if let Some(other) = others.iter().find(|other| other.desc.data_type().computed_in() != data_type) {
            return Err(format!("{} must be computed in {data_type}, like {}", other.desc, x.desc));
        }
        Ok(Shape { x: strided_layout, others: strided_layouts, channels: strided_layout.channels })
    }

    fn is_seamless(&self) -> bool {
        self.x.is_seamless() && self.others.iter().all(StridedLayout::is_seamless)
    }

    /// Calls `work(channel, first element in x and in the others, length)` for runs that cover x, in parallel, as vector code.
    #[inline(always)]
    fn for_each_run(&self, work: impl Fn(usize, usize, [usize; N], usize) + Sync) {
        let StridedLayout { images, channels, rows, places, .. } = self.x;
        let (rows, run) = if self.is_seamless() { (1, rows * places) } else { (rows, places) };
        for_chunks(images * channels * rows * run, CHUNK, |range| {
            wide(
                #[inline(always)]
                || {
                    let mut start = range.start;
                    while start < range.end {
                        // In the order in which runs lie in memory: if rows lie apart, each row has all channels.
                        let (number, within) = (start / run, start % run);
                        let (outer, channel) = (number / channels, number % channels);
                        let (image, row) = (outer / rows, outer % rows);
                        let length = (run - within).min(range.end - start);
                        let others = self.others.map(|other| other.at(image, channel, row) + within);
                        work(channel, self.x.at(image, channel, row) + within, others, length);
                        start += length;
                    }
                },
            );
        });
    }
}

/// Returns, for each channel, the sum over all chunks of the results of `finish`. Its input is the totals that `sum(begun, first elements,
/// length, totals)` accumulates over the pieces of a chunk. `begin` returns what these calls need, from the channel of the chunk and its
/// first elements.
#[inline(always)]
fn add_chunks<const K: usize, const N: usize, B: Copy, S: Copy + Send>(
    strided_layouts: &[StridedLayout; N],
    begin: impl Fn(usize, [usize; N]) -> B + Sync,
    sum: impl Fn(B, [usize; N], usize, &mut Accumulators<K>) + Sync,
    finish: impl Fn(B, usize, [f64; K]) -> S + Sync,
    add: impl Fn(S, S) -> S,
) -> Vec<S> {
    let (chunks, channels) = (strided_layouts[0].chunks(), strided_layouts[0].channels);
    let (tree, count) = (chunks.tree(), chunks.count());
    let seamless = strided_layouts.iter().all(StridedLayout::is_seamless);
    let together = (CHUNK / chunks.positions()).max(1);
    let chunk_sums = map_chunks(channels * count, together, |range| {
        wide(
            #[inline(always)]
            || {
                let mut sums = Vec::with_capacity(range.len());
                for task in range {
                    let mut accumulators = Accumulators::new();
                    let (channel, chunk) = (task / count, task % count);
                    let (mut begun, mut positions) = (None, 0);
                    chunks.for_each_piece(
                        chunk,
                        seamless,
                        #[inline(always)]
                        |image, row, rows| {
                            let starts = strided_layouts.map(|strided_layout| strided_layout.at(image, channel, row));
                            let own = *begun.get_or_insert_with(|| begin(channel, starts));
                            sum(own, starts, rows * strided_layouts[0].places, &mut accumulators);
                            positions += rows * strided_layouts[0].places;
                        },
                    );
                    sums.extend(begun.map(|own| finish(own, positions, accumulators.totals())));
                }
                sums
            },
        )
    });
    let mut chunk_sums = chunk_sums.into_iter().flatten();
    (0..channels).filter_map(|_| tree.sum(chunk_sums.by_ref().take(count), &add)).collect()
}

/// Returns the sum over all positions of each channel.
///
/// # Safety
/// x must be live and of type `T`, and no one may write it meanwhile.
pub(in super::super) unsafe fn channel_sums<T: Float>(x: &View) -> Result<Vec<[f64; 1]>, String> {
    let strided_layout = StridedLayout::of(x.desc)?;
    let x = Pointer::<T>::of(x);
    Ok(add_chunks(
        &[strided_layout],
        |_, _| (),
        #[inline(always)]
        |(), [start], length, accumulators| {
            // SAFETY: the piece lies in x, which no one writes.
            accumulators.add(
                unsafe { x.slice(start, length) },
                #[inline(always)]
                |x| [x.to_f64()],
            );
        },
        |(), _, sums| sums,
        add_each,
    ))
}

/// Adds sums element by element.
fn add_each<const K: usize>(earlier: [f64; K], later: [f64; K]) -> [f64; K] {
    std::array::from_fn(|k| earlier[k] + later[k])
}

/// The parameters with which the elements of a channel are normalized.
#[derive(Clone, Copy)]
struct Channel<T> {
    mean: T,
    factor: T,
    bias: T,
}

impl<T: Float> Channel<T> {
    /// Normalizes an element with the arithmetic of the forward pass, which the gradient repeats for the mask of the activation.
    #[inline(always)]
    fn normalize(self, x: T) -> T {
        (x - self.mean) * self.factor + self.bias
    }
}

fn inverse_deviation<T: Float>(variance: T, epsilon: f32) -> f64 {
    1.0 / (variance.to_f64() + epsilon as f64).sqrt()
}

/// # Safety
/// All views must be live, of type `T` and of one element per channel.
unsafe fn channels<T: Float>(
    count: usize,
    epsilon: f32,
    scale: &View,
    bias: &View,
    mean: &View,
    variance: &View,
) -> Vec<Channel<T>> {
    // SAFETY: the caller's promise.
    let [scale, bias, mean, variance] =
        [scale, bias, mean, variance].map(|view| unsafe { Pointer::<T>::of(view).slice(0, count) });
    (0..count)
        .map(|channel| Channel {
            mean: mean[channel],
            factor: T::from_f64(scale[channel].to_f64() * inverse_deviation(variance[channel], epsilon)),
            bias: bias[channel],
        })
        .collect()
}

/// # Safety
/// The views must be live and stored as `T` is; y may be the same memory as x.
unsafe fn normalize<T: Float>(shape: &Shape<1>, has_relu: bool, channels: &[Channel<T>], x: &View, y: &View) {
    let (x, y) = (Stored::<T>::of(x), Stored::<T>::written(y, &[x]));
    shape.for_each_run(
        #[inline(always)]
        |channel, start, [target], length| {
            let channel = channels[channel];
            // SAFETY: the run lies in both operands, and runs are disjoint.
            let (x, y) = unsafe { ((x.at(start as isize), 1), y.at(target as isize)) };
            // SAFETY: as above.
            unsafe {
                match has_relu {
                    false => run1(
                        x,
                        y,
                        length,
                        #[inline(always)]
                        |x| channel.normalize(x),
                    ),
                    true => run1(
                        x,
                        y,
                        length,
                        #[inline(always)]
                        |x| {
                            let y = channel.normalize(x);
                            if y < T::ZERO { T::ZERO } else { y }
                        },
                    ),
                }
            }
        },
    );
}

/// y = activation(scale (x - mean) / sqrt(variance + epsilon) + bias) with given statistics.
///
/// # Safety
/// As for [`super::super::run`], and x must be stored as [`Stored`] of `T` is.
pub(super) unsafe fn inference<T: Float>(
    epsilon: f32,
    activation: Activation,
    reads: &[View],
    y: &View,
) -> Result<(), String> {
    let has_relu = activation.is_relu()?;
    let [x, scale, bias, mean, variance] = [0, 1, 2, 3, 4].map(|i: usize| &reads[i]);
    let shape = Shape::new(x, [y], &[scale, bias, mean, variance])?;
    // SAFETY: the caller's promises.
    unsafe {
        let channels = channels::<T>(shape.channels, epsilon, scale, bias, mean, variance);
        normalize(&shape, has_relu, &channels, x, y);
    }
    Ok(())
}

/// Like [`inference`], with the statistics of the batch, which are also written. Elements are normalized with the statistics as written
/// (rounded to `T`), so that the gradient kernel, which reads them, repeats the same arithmetic.
///
/// # Safety
/// As for [`inference`].
pub(super) unsafe fn training<T: Float>(
    epsilon: f32,
    activation: Activation,
    group_size: u64,
    reads: &[View],
    writes: &[View],
) -> Result<(), String> {
    let has_relu = activation.is_relu()?;
    let [x, scale, bias] = [0, 1, 2].map(|i: usize| &reads[i]);
    let [y, mean, variance] = [0, 1, 2].map(|i: usize| &writes[i]);
    let shape = Shape::new(x, [y], &[scale, bias, mean, variance])?;
    // SAFETY: the caller's promises.
    unsafe {
        let sums = statistics_sums::<T>(x)?;
        statistics::<T>(&sums, group_size, mean, variance)?;
        let channels = channels::<T>(shape.channels, epsilon, scale, bias, mean, variance);
        normalize(&shape, has_relu, &channels, x, y);
    }
    Ok(())
}

/// Returns, for each channel, the first element, the sum of the differences from it, the sum of their squares, and the number of elements.
///
/// # Safety
/// x must be live and stored as [`Stored`] of `T` is, and no one may write it meanwhile.
pub(in super::super) unsafe fn statistics_sums<T: Float>(x: &View) -> Result<Vec<[f64; 4]>, String> {
    let strided_layout = StridedLayout::of(x.desc)?;
    let x = Stored::<T>::of(x);
    Ok(add_chunks(
        &[strided_layout],
        // SAFETY: the chunk's first element lies in x.
        |_, [start]| unsafe { x.at(start as isize).first() }.to_f64(),
        #[inline(always)]
        |origin, start, length, accumulators| {
            // SAFETY: the elements lie in x, which no one writes.
            unsafe {
                for_each_block(
                    [x],
                    start,
                    length,
                    #[inline(always)]
                    |[x]: [&[T]; 1]| {
                        accumulators.add(
                            x,
                            #[inline(always)]
                            |x| {
                                let distance = x.to_f64() - origin;
                                [distance, distance * distance]
                            },
                        );
                    },
                );
            }
        },
        |origin, count, [sum, squares]| [origin, sum, squares, count as f64],
        add_statistics,
    ))
}

/// Computes the mean and variance of each channel's group from [`statistics_sums`].
///
/// # Safety
/// The views must be live, of type `T` and of one element per channel.
pub(in super::super) unsafe fn statistics<T: Float>(
    sums: &[[f64; 4]],
    group_size: u64,
    mean: &View,
    variance: &View,
) -> Result<(), String> {
    check_group_size(sums.len() as u64, group_size)?;
    let of_group = group_size as usize;
    // SAFETY: the caller's promises.
    let (means, variances) = unsafe {
        (Pointer::<T>::of(mean).slice_mut(0, sums.len()), Pointer::<T>::of(variance).slice_mut(0, sums.len()))
    };
    let groups = means.chunks_mut(of_group).zip(variances.chunks_mut(of_group)).zip(sums.chunks(of_group));
    for ((means, variances), sums) in groups {
        let Some([origin, sum, squares, samples]) = sums.iter().copied().reduce(add_statistics) else { continue };
        means.fill(T::from_f64(origin + sum / samples));
        variances.fill(T::from_f64((squares - sum * sum / samples) / samples).maximum(T::ZERO));
    }
    Ok(())
}

/// Computes dx, dscale and dbias of [`training`], or dx alone if a seventh operand has the sums.
///
/// # Safety
/// As for [`inference`].
pub(super) unsafe fn gradient<T: Float>(
    epsilon: f32,
    activation: Activation,
    group_size: u64,
    reads: &[View],
    writes: &[View],
) -> Result<(), String> {
    let [dy, x, scale, bias, mean, variance] = [0, 1, 2, 3, 4, 5].map(|i: usize| &reads[i]);
    let dx = &writes[0];
    let shape = Shape::new(x, [dy, dx], &[scale, bias, mean, variance])?;
    // SAFETY: the caller's promises.
    unsafe {
        let sums = match reads.get(6) {
            Some(sums) => load_sums::<3>(sums, shape.channels)?,
            None => {
                let sums = gradient_sums::<T>(epsilon, activation, reads)?;
                parameter_gradients::<T>(epsilon, &sums, variance, &writes[1], &writes[2]);
                sums
            }
        };
        let channels = channels::<T>(shape.channels, epsilon, scale, bias, mean, variance);
        check_group_size(shape.channels as u64, group_size)?;
        let of_group = group_size as usize;
        let scale = Pointer::<T>::of(scale).slice(0, shape.channels);
        let variance = Pointer::<T>::of(variance).slice(0, shape.channels);
        let means = match of_group {
            1 => slope_means(epsilon, &sums, variance),
            of_group => slope_means_of_groups(epsilon, &sums, of_group, scale, variance),
        };
        match (activation.is_relu()?, of_group) {
            (false, 1) => input_gradient::<T, false>(&shape, &channels, &means, dy, x, dx, |_, _, dy| dy),
            (true, 1) => input_gradient::<T, false>(&shape, &channels, &means, dy, x, dx, relu),
            (false, _) => input_gradient::<T, true>(&shape, &channels, &means, dy, x, dx, |_, _, dy| dy),
            (true, _) => input_gradient::<T, true>(&shape, &channels, &means, dy, x, dx, relu),
        }
    }
    Ok(())
}

/// Returns, for each channel, mean(slope) and inverse^2 mean(slope (x - mean)), as in dx = factor (slope - mean(slope) - (x - mean)
/// inverse^2 mean(slope (x - mean))).
fn slope_means<T: Float>(epsilon: f32, sums: &[[f64; 3]], variance: &[T]) -> Vec<(T, T)> {
    let of_channel = |(&[slope, product, samples], &variance): (&[f64; 3], &T)| {
        let inverse = inverse_deviation(variance, epsilon);
        (T::from_f64(slope / samples), T::from_f64(product * inverse * inverse / samples))
    };
    sums.iter().zip(variance).map(of_channel).collect()
}

/// Returns, for each channel, inverse mean(scale slope) and inverse^3 mean(scale slope (x - mean)) of its group, as in dx = factor slope -
/// (inverse mean(scale slope) + (x - mean) inverse^3 mean(scale slope (x - mean))).
fn slope_means_of_groups<T: Float>(
    epsilon: f32,
    sums: &[[f64; 3]],
    of_group: usize,
    scale: &[T],
    variance: &[T],
) -> Vec<(T, T)> {
    let mut means = Vec::with_capacity(sums.len());
    for ((sums, scale), variance) in sums.chunks(of_group).zip(scale.chunks(of_group)).zip(variance.chunks(of_group)) {
        let mut group = [0.0; 3];
        for (&[slope, product, samples], scale) in sums.iter().zip(scale) {
            let scale = scale.to_f64();
            group = add_each(group, [scale * slope, scale * product, samples]);
        }
        let [slope, product, samples] = group;
        means.extend(variance.iter().map(|&variance| {
            let inverse = inverse_deviation(variance, epsilon);
            let product = product * inverse * inverse * inverse / samples;
            (T::from_f64(slope * inverse / samples), T::from_f64(product))
        }));
    }
    means
}

/// Returns the gradient with respect to the normalized value before a ReLU.
#[inline(always)]
fn relu<T: Float>(channel: Channel<T>, x: T, dy: T) -> T {
    if channel.normalize(x) > T::ZERO { dy } else { T::ZERO }
}

/// Computes dx, where `mask(channel, x, dy)` is the gradient with respect to the normalized value before the activation. `means` come from
/// [`slope_means`] or, for groups, from [`slope_means_of_groups`].
///
/// # Safety
/// As for [`gradient`].
#[inline(always)]
unsafe fn input_gradient<T: Float, const OF_GROUPS: bool>(
    shape: &Shape<2>,
    channels: &[Channel<T>],
    means: &[(T, T)],
    dy: &View,
    x: &View,
    dx: &View,
    mask: impl Fn(Channel<T>, T, T) -> T + Sync,
) {
    let dx = Stored::<T>::written(dx, &[dy, x]);
    let (dy, x) = (Stored::<T>::of(dy), Stored::<T>::of(x));
    shape.for_each_run(
        #[inline(always)]
        |index, start, [slope_start, target], length| {
            let (channel, (mean_slope, mean_product)) = (channels[index], means[index]);
            // SAFETY: the run lies in all operands, and runs are disjoint.
            unsafe {
                let slopes = (dy.at(slope_start as isize), 1);
                run2(
                    slopes,
                    (x.at(start as isize), 1),
                    dx.at(target as isize),
                    length,
                    #[inline(always)]
                    |dy, x| {
                        let slope = mask(channel, x, dy);
                        match OF_GROUPS {
                            false => channel.factor * ((slope - mean_slope) - (x - channel.mean) * mean_product),
                            true => channel.factor * slope - (mean_slope + (x - channel.mean) * mean_product),
                        }
                    },
                );
            }
        },
    );
}

/// Returns, for each channel, the sum of the slopes, the sum of their products with the differences from the mean, and the number of
/// elements.
///
/// # Safety
/// As for [`gradient`], whose reads these are.
pub(in super::super) unsafe fn gradient_sums<T: Float>(
    epsilon: f32,
    activation: Activation,
    reads: &[View],
) -> Result<Vec<[f64; 3]>, String> {
    let [dy, x, scale, bias, mean, variance] = [0, 1, 2, 3, 4, 5].map(|i: usize| &reads[i]);
    let shape = Shape::new(x, [dy], &[scale, bias, mean, variance])?;
    // SAFETY: the caller's promises.
    unsafe {
        let channels = channels::<T>(shape.channels, epsilon, scale, bias, mean, variance);
        Ok(match activation.is_relu()? {
            false => masked_sums(&shape, &channels, dy, x, |_, _, dy| dy),
            true => masked_sums(&shape, &channels, dy, x, relu),
        })
    }
}

/// # Safety
/// As for [`gradient_sums`].
#[inline(always)]
unsafe fn masked_sums<T: Float>(
    shape: &Shape<1>,
    channels: &[Channel<T>],
    dy: &View,
    x: &View,
    mask: impl Fn(Channel<T>, T, T) -> T + Sync,
) -> Vec<[f64; 3]> {
    let (dy, x) = (Stored::<T>::of(dy), Stored::<T>::of(x));
    add_chunks(
        &[shape.x, shape.others[0]],
        |channel, _| channels[channel],
        #[inline(always)]
        |channel, [start, slope_start], length, accumulators| {
            // SAFETY: the elements lie in both operands, which no one writes.
            unsafe {
                for_each_block(
                    [dy, x],
                    [slope_start, start],
                    length,
                    #[inline(always)]
                    |[dy, x]: [&[T]; 2]| {
                        accumulators.add2(
                            dy,
                            x,
                            #[inline(always)]
                            |dy, x| {
                                let slope = mask(channel, x, dy).to_f64();
                                [slope, slope * (x - channel.mean).to_f64()]
                            },
                        );
                    },
                );
            }
        },
        |_, count, [slope, product]| [slope, product, count as f64],
        add_each,
    )
}

/// Computes dscale and dbias from [`gradient_sums`].
///
/// # Safety
/// The views must be live, of type `T` and of one element per channel.
pub(in super::super) unsafe fn parameter_gradients<T: Float>(
    epsilon: f32,
    sums: &[[f64; 3]],
    variance: &View,
    dscale: &View,
    dbias: &View,
) {
    // SAFETY: the caller's promises.
    let (variance, dscale, dbias) = unsafe {
        (
            Pointer::<T>::of(variance).slice(0, sums.len()),
            Pointer::<T>::of(dscale).slice_mut(0, sums.len()),
            Pointer::<T>::of(dbias).slice_mut(0, sums.len()),
        )
    };
    for (channel, &[slope, product, _]) in sums.iter().enumerate() {
        dbias[channel] = T::from_f64(slope);
        dscale[channel] = T::from_f64(product * inverse_deviation(variance[channel], epsilon));
    }
}
