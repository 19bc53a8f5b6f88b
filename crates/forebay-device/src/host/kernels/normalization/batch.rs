//! Batch normalisation: statistics per channel over images and places.
//!
//! Statistics are sums over fixed units (some images, or a piece of one image's plane), in double precision and relative
//! to the channel's first element, so that a mean far from 0 costs no digits. Units are combined in order.

use std::ops::Range;

use forebay_base::kernel::Activation;

use super::super::block::{run1, run2};
use super::super::element::Float;
use super::super::lanes::Lanes;
use super::super::parallel::{for_chunks, map_chunks, require_packed, wide, Pointer, CHUNK};
use super::super::View;

/// x\[images, channels, places].
#[derive(Clone, Copy)]
struct Shape {
    images: usize,
    channels: usize,
    places: usize,
}

impl Shape {
    fn new(x: &View, others: &[&View], statistics: &[&View]) -> Result<Shape, String> {
        let sizes = x.sizes();
        if sizes.len() < 2 {
            return Err(format!("{} has no channel axis", x.desc));
        }
        let shape = Shape { images: sizes[0], channels: sizes[1], places: sizes[2..].iter().product() };
        for view in others.iter().chain(statistics).chain(&[x]) {
            require_packed(&[**view])?;
        }
        if let Some(other) = others.iter().find(|view| view.count() != x.count()) {
            return Err(format!("{} and {} differ in size", x.desc, other.desc));
        }
        if let Some(other) = statistics.iter().find(|view| view.count() != shape.channels) {
            return Err(format!("{} needs {} elements, one per channel", other.desc, shape.channels));
        }
        Ok(shape)
    }

    /// Elements per channel.
    fn samples(&self) -> usize {
        self.images * self.places
    }

    fn plane(&self, image: usize, channel: usize) -> usize {
        (image * self.channels + channel) * self.places
    }

    /// For every channel, in order, the sums of `sum(channel, elements, sums)` over all its elements.
    #[inline(always)]
    fn sums<const K: usize>(&self, sum: impl Fn(usize, Range<usize>, &mut Lanes<K>) + Sync) -> Vec<[f64; K]> {
        let pieces = self.places.div_ceil(CHUNK);
        let piece = self.places.div_ceil(pieces);
        let images_together = (CHUNK / self.places).clamp(1, self.images);
        let image_groups = self.images.div_ceil(images_together);
        let units = image_groups * pieces;
        let unit_sums = map_chunks(self.channels * units, 1, |range| {
            wide(
                #[inline(always)]
                || {
                    let mut lanes = Lanes::new();
                    let (channel, unit) = (range.start / units, range.start % units);
                    let (first_image, first) = (unit / pieces * images_together, unit % pieces * piece);
                    for image in first_image..self.images.min(first_image + images_together) {
                        let start = self.plane(image, channel);
                        sum(channel, start + first..start + self.places.min(first + piece), &mut lanes);
                    }
                    lanes.totals()
                },
            )
        });
        let add = |sums: [f64; K], unit: &[f64; K]| std::array::from_fn(|k| sums[k] + unit[k]);
        unit_sums.chunks(units).map(|units| units.iter().fold([0.0; K], add)).collect()
    }

    /// Calls `work(channel, first element, length)` for runs that cover x, in parallel, as vector code.
    #[inline(always)]
    fn for_each_run(&self, work: impl Fn(usize, usize, usize) + Sync) {
        for_chunks(self.images * self.channels * self.places, CHUNK, |range| {
            wide(
                #[inline(always)]
                || {
                    let mut start = range.start;
                    while start < range.end {
                        let plane = start / self.places;
                        let end = range.end.min((plane + 1) * self.places);
                        work(plane % self.channels, start, end - start);
                        start = end;
                    }
                },
            );
        });
    }
}

/// What a channel's elements are normalised with.
#[derive(Clone, Copy)]
struct Channel<T> {
    mean: T,
    factor: T,
    bias: T,
}

impl<T: Float> Channel<T> {
    /// The arithmetic of the forward pass; the gradient repeats it for the activation's mask.
    #[inline(always)]
    fn normalise(self, x: T) -> T {
        (x - self.mean) * self.factor + self.bias
    }
}

fn inverse_deviation<T: Float>(variance: T, epsilon: f32) -> f64 {
    1.0 / (variance.to_f64() + epsilon as f64).sqrt()
}

/// # Safety
/// All views must be live, of type `T` and of one element per channel.
unsafe fn channels<T: Float>(
    shape: Shape,
    epsilon: f32,
    scale: &View,
    bias: &View,
    mean: &View,
    variance: &View,
) -> Vec<Channel<T>> {
    // SAFETY: the caller's promise.
    let [scale, bias, mean, variance] =
        [scale, bias, mean, variance].map(|view| unsafe { Pointer::<T>::of(view).slice(0, shape.channels) });
    (0..shape.channels)
        .map(|channel| Channel {
            mean: mean[channel],
            factor: T::from_f64(scale[channel].to_f64() * inverse_deviation(variance[channel], epsilon)),
            bias: bias[channel],
        })
        .collect()
}

/// # Safety
/// The views must be live and of type `T`; y may be the very bytes of x.
unsafe fn normalise<T: Float>(shape: Shape, activation: Activation, channels: &[Channel<T>], x: &View, y: &View) {
    let (x, y) = (Pointer::<T>::of(x), Pointer::<T>::of(y));
    shape.for_each_run(
        #[inline(always)]
        |channel, start, length| {
            let channel = channels[channel];
            // SAFETY: the run lies in both operands, and runs are disjoint.
            let (x, y) = unsafe { ((x.at(start as isize) as *const T, 1), y.at(start as isize)) };
            match activation {
                // SAFETY: as above.
                Activation::None => unsafe { run1(x, y, length, |x| channel.normalise(x)) },
                // SAFETY: as above.
                Activation::Relu => unsafe {
                    run1(x, y, length, |x| {
                        let y = channel.normalise(x);
                        if y < T::ZERO {
                            T::ZERO
                        } else {
                            y
                        }
                    })
                },
            }
        },
    );
}

/// y = activation(scale (x - mean) / sqrt(variance + epsilon) + bias) with given statistics.
///
/// # Safety
/// As [`super::super::run`], and the views must be of type `T`.
pub(super) unsafe fn inference<T: Float>(
    epsilon: f32,
    activation: Activation,
    reads: &[View],
    y: &View,
) -> Result<(), String> {
    let [x, scale, bias, mean, variance] = [0, 1, 2, 3, 4].map(|i: usize| &reads[i]);
    let shape = Shape::new(x, &[y], &[scale, bias, mean, variance])?;
    // SAFETY: the caller's promises.
    unsafe {
        let channels = channels::<T>(shape, epsilon, scale, bias, mean, variance);
        normalise(shape, activation, &channels, x, y);
    }
    Ok(())
}

/// The same with the batch's statistics, which are written too. Elements are normalised with the statistics as written
/// (rounded to `T`), so that the gradient kernel, which reads them, repeats the same arithmetic.
///
/// # Safety
/// As [`inference`].
pub(super) unsafe fn training<T: Float>(
    epsilon: f32,
    activation: Activation,
    reads: &[View],
    writes: &[View],
) -> Result<(), String> {
    let [x, scale, bias] = [0, 1, 2].map(|i: usize| &reads[i]);
    let [y, mean, variance] = [0, 1, 2].map(|i: usize| &writes[i]);
    let shape = Shape::new(x, &[y], &[scale, bias, mean, variance])?;
    let x_pointer = Pointer::<T>::of(x);
    // SAFETY: the plane lies in x.
    let origin = |channel: usize| unsafe { *x_pointer.at(shape.plane(0, channel) as isize) }.to_f64();
    let sums = shape.sums::<2>(
        #[inline(always)]
        |channel, elements, lanes| {
            let origin = origin(channel);
            // SAFETY: the elements lie in x, which nobody writes yet.
            lanes.add(unsafe { x_pointer.slice(elements.start, elements.len()) }, |x| {
                let distance = x.to_f64() - origin;
                [distance, distance * distance]
            });
        },
    );
    let samples = shape.samples() as f64;
    // SAFETY: one element per channel.
    let (means, variances) = unsafe {
        (Pointer::<T>::of(mean).slice_mut(0, shape.channels), Pointer::<T>::of(variance).slice_mut(0, shape.channels))
    };
    for (channel, [sum, squares]) in sums.into_iter().enumerate() {
        means[channel] = T::from_f64(origin(channel) + sum / samples);
        variances[channel] = T::from_f64((squares - sum * sum / samples) / samples).maximum(T::ZERO);
    }
    // SAFETY: the caller's promises.
    unsafe {
        let channels = channels::<T>(shape, epsilon, scale, bias, mean, variance);
        normalise(shape, activation, &channels, x, y);
    }
    Ok(())
}

/// dx, dscale and dbias of [`training`].
///
/// # Safety
/// As [`inference`].
pub(super) unsafe fn gradient<T: Float>(
    epsilon: f32,
    activation: Activation,
    reads: &[View],
    writes: &[View],
) -> Result<(), String> {
    let [dy, x, scale, bias, mean, variance] = [0, 1, 2, 3, 4, 5].map(|i: usize| &reads[i]);
    let [dx, dscale, dbias] = [0, 1, 2].map(|i: usize| &writes[i]);
    let shape = Shape::new(x, &[dy, dx], &[scale, bias, mean, variance, dscale, dbias])?;
    // SAFETY: the caller's promises.
    let channels = unsafe { channels::<T>(shape, epsilon, scale, bias, mean, variance) };
    match activation {
        Activation::None => {
            // SAFETY: the caller's promises.
            unsafe {
                masked_gradient::<T>(shape, epsilon, &channels, variance, dy, x, [dx, dscale, dbias], |_, _, dy| dy)
            }
        }
        Activation::Relu => {
            let mask = |channel: Channel<T>, x: T, dy: T| if channel.normalise(x) > T::ZERO { dy } else { T::ZERO };
            // SAFETY: the caller's promises.
            unsafe { masked_gradient::<T>(shape, epsilon, &channels, variance, dy, x, [dx, dscale, dbias], mask) }
        }
    }
    Ok(())
}

/// The gradient, where `mask(channel, x, dy)` is the gradient by the normalised value before the activation.
///
/// # Safety
/// As [`gradient`].
#[inline(always)]
#[allow(clippy::too_many_arguments)] // the operands of one kernel
unsafe fn masked_gradient<T: Float>(
    shape: Shape,
    epsilon: f32,
    channels: &[Channel<T>],
    variance: &View,
    dy: &View,
    x: &View,
    [dx, dscale, dbias]: [&View; 3],
    mask: impl Fn(Channel<T>, T, T) -> T + Sync,
) {
    let (dy, x, dx) = (Pointer::<T>::of(dy), Pointer::<T>::of(x), Pointer::<T>::of(dx));
    let sums = shape.sums::<2>(
        #[inline(always)]
        |channel, elements, lanes| {
            let channel = channels[channel];
            // SAFETY: the elements lie in both operands, which nobody writes yet.
            let (dy, x) =
                unsafe { (dy.slice(elements.start, elements.len()), x.slice(elements.start, elements.len())) };
            lanes.add2(dy, x, |dy, x| {
                let slope = mask(channel, x, dy).to_f64();
                [slope, slope * (x - channel.mean).to_f64()]
            });
        },
    );
    // SAFETY: one element per channel.
    let (variance, dscale, dbias) = unsafe {
        (
            Pointer::<T>::of(variance).slice(0, shape.channels),
            Pointer::<T>::of(dscale).slice_mut(0, shape.channels),
            Pointer::<T>::of(dbias).slice_mut(0, shape.channels),
        )
    };
    let samples = shape.samples() as f64;
    // dx = factor (slope - mean(slope) - (x - mean) inverse^2 mean(slope (x - mean))).
    let means: Vec<(T, T)> = (0..shape.channels)
        .map(|channel| {
            let [slope, product] = sums[channel];
            let inverse = inverse_deviation(variance[channel], epsilon);
            dbias[channel] = T::from_f64(slope);
            dscale[channel] = T::from_f64(product * inverse);
            (T::from_f64(slope / samples), T::from_f64(product * inverse * inverse / samples))
        })
        .collect();
    shape.for_each_run(
        #[inline(always)]
        |index, start, length| {
            let (channel, (mean_slope, mean_product)) = (channels[index], means[index]);
            let start = start as isize;
            // SAFETY: the run lies in all operands, and runs are disjoint.
            unsafe {
                run2((dy.at(start) as *const T, 1), (x.at(start) as *const T, 1), dx.at(start), length, |dy, x| {
                    let slope = mask(channel, x, dy);
                    channel.factor * ((slope - mean_slope) - (x - channel.mean) * mean_product)
                });
            }
        },
    );
}
