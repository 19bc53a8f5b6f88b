//! Local response normalization: over neighboring channels at the same place.

use std::ops::Range;

use super::super::View;
use super::super::element::Float;
use super::super::parallel::{CHUNK, Pointer, for_chunks, require_packed, wide};

/// The number of places that a task processes together.
const PLACES: usize = 256;

/// The kernel's constants: y = x / (bias + alpha / size sum of x^2)^beta.
#[derive(Clone, Copy)]
pub(super) struct Constants<T> {
    size: usize,
    /// alpha / size.
    weight: T,
    beta: T,
    bias: T,
}

impl<T: Float> Constants<T> {
    /// Creates the constants from the parameters of the kernel.
    pub fn new(size: u64, alpha: f32, beta: f32, bias: f32) -> Constants<T> {
        Constants {
            size: size as usize,
            weight: T::from_f64(alpha as f64 / size as f64),
            beta: T::from_f64(beta as f64),
            bias: T::from_f64(bias as f64),
        }
    }

    /// Returns the channels summed for a channel: (size - 1) / 2 before it (rounded down) and the rest after it.
    fn window(&self, channel: usize, channels: usize) -> Range<usize> {
        let before = self.size.saturating_sub(1) / 2;
        let after = self.size.saturating_sub(1) - before;
        channel.saturating_sub(before)..channels.min(channel + after + 1)
    }

    /// Returns the channels whose windows contain a channel.
    fn users(&self, channel: usize, channels: usize) -> Range<usize> {
        let before = self.size.saturating_sub(1) / 2;
        let after = self.size.saturating_sub(1) - before;
        channel.saturating_sub(after)..channels.min(channel + before + 1)
    }

    /// Returns bias + alpha / size sum of x^2 for one channel at several places.
    ///
    /// # Safety
    /// The places must lie in x.
    #[inline(always)]
    unsafe fn denominators(&self, x: Pointer<T>, columns: &Columns, channel: usize) -> [T; PLACES] {
        let mut sums = [T::ZERO; PLACES];
        for neighbor in self.window(channel, columns.channels) {
            // SAFETY: the caller's promise.
            let values = unsafe { x.slice(columns.at(neighbor), columns.count) };
            sums.iter_mut().zip(values).for_each(|(sum, &x)| *sum += x * x);
        }
        sums.map(|sum| self.bias + self.weight * sum)
    }

    /// y = x / denominator^beta.
    ///
    /// # Safety
    /// As for [`super::super::run`], and the views must be of type `T`.
    pub unsafe fn forward(self, x: &View, y: &View) -> Result<(), String> {
        let y_pointer = Pointer::<T>::of(y);
        for_columns(&[*x, *y], |columns| {
            let x = Pointer::<T>::of(x);
            for channel in 0..columns.channels {
                // SAFETY: the columns lie in both operands and belong to this task alone.
                let (denominators, values, results) = unsafe {
                    (
                        self.denominators(x, &columns, channel),
                        x.slice(columns.at(channel), columns.count),
                        y_pointer.slice_mut(columns.at(channel), columns.count),
                    )
                };
                for ((y, &x), denominator) in results.iter_mut().zip(values).zip(denominators) {
                    *y = x / denominator.power(self.beta);
                }
            }
        })
    }

    /// dx = dy / denominator^beta - 2 alpha beta / size x sum(dy x / denominator^(beta + 1)), where the sum is over the channels whose
    /// windows contain this one.
    ///
    /// # Safety
    /// As for [`Constants::forward`].
    pub unsafe fn gradient(self, dy: &View, x: &View, dx: &View) -> Result<(), String> {
        let dx_pointer = Pointer::<T>::of(dx);
        let factor = (T::ONE + T::ONE) * self.weight * self.beta;
        for_columns(&[*x, *dy, *dx], |columns| {
            let (x, dy) = (Pointer::<T>::of(x), Pointer::<T>::of(dy));
            let row = |pointer: Pointer<T>, channel: usize| {
                // SAFETY: the columns lie in the operands, and x and dy are only read.
                unsafe { pointer.slice(columns.at(channel), columns.count) }
            };
            let mut products = vec![T::ZERO; columns.channels * columns.count];
            for (channel, products) in products.chunks_mut(columns.count).enumerate() {
                // SAFETY: the columns lie in x.
                let denominators = unsafe { self.denominators(x, &columns, channel) };
                // SAFETY: the columns lie in dx and belong to this task alone.
                let results = unsafe { dx_pointer.slice_mut(columns.at(channel), columns.count) };
                for (i, (&x, &dy)) in row(x, channel).iter().zip(row(dy, channel)).enumerate() {
                    let scaled = dy / denominators[i].power(self.beta);
                    results[i] = scaled;
                    products[i] = scaled * x / denominators[i];
                }
            }
            for channel in 0..columns.channels {
                let mut sums = [T::ZERO; PLACES];
                for user in self.users(channel, columns.channels) {
                    let products = &products[user * columns.count..(user + 1) * columns.count];
                    sums.iter_mut().zip(products).for_each(|(sum, &product)| *sum += product);
                }
                // SAFETY: as above.
                let results = unsafe { dx_pointer.slice_mut(columns.at(channel), columns.count) };
                for ((dx, &x), sum) in results.iter_mut().zip(row(x, channel)).zip(sums) {
                    *dx = *dx - factor * x * sum;
                }
            }
        })
    }
}

/// Some places of one image, in every channel.
struct Columns {
    start: usize,
    count: usize,
    channels: usize,
    places: usize,
}

impl Columns {
    fn at(&self, channel: usize) -> usize {
        self.start + channel * self.places
    }
}

/// Calls `work` for groups of places that cover \[images, channels, places], in parallel, as vector code.
#[inline(always)]
fn for_columns(views: &[View], work: impl Fn(Columns) + Sync) -> Result<(), String> {
    require_packed(views)?;
    let sizes = views[0].sizes();
    if sizes.len() < 2 || views.iter().any(|view| view.count() != views[0].count()) {
        return Err(format!("{} has no channel axis, or the operands' sizes differ", views[0].desc));
    }
    let (images, channels, places) = (sizes[0], sizes[1], sizes[2..].iter().product::<usize>());
    let groups = places.div_ceil(PLACES);
    for_chunks(images * groups, (CHUNK / (channels * places.min(PLACES))).max(1), |range| {
        wide(
            #[inline(always)]
            || {
                for task in range {
                    let (image, first) = (task / groups, task % groups * PLACES);
                    let start = image * channels * places + first;
                    work(Columns { start, count: PLACES.min(places - first), channels, places });
                }
            },
        );
    });
    Ok(())
}
