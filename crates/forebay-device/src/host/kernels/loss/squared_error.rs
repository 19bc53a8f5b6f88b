//! Mean squared error. Squares are added element by element within a reduction block
//! ([`forebay_base::kernel::reduction_block_of_channels`]), and blocks are added along the sum tree.

use forebay_base::SumTree;
use forebay_base::kernel::reduction_block_of_channels;

use super::super::View;
use super::super::accumulators::Accumulators;
use super::super::block::map2;
use super::super::element::Float;
use super::super::parallel::{Pointer, map_chunks, require_packed, wide};
use super::super::partial_sums::load_sums;
use super::cross_entropy::mean;

/// The number of chunks that one task sums.
const TASK_CHUNKS: usize = 8;

fn check(prediction: &View, target: &View) -> Result<(), String> {
    require_packed(&[*prediction, *target])?;
    if prediction.desc.sizes() != target.desc.sizes() {
        return Err(format!("prediction {} and target {} differ in size", prediction.desc, target.desc));
    }
    Ok(())
}

/// Returns the sum of the squares and the number of elements.
///
/// # Safety
/// As for [`super::super::run`], and the views must be of type `T`.
pub(in super::super) unsafe fn sums<T: Float>(prediction: &View, target: &View) -> Result<[f64; 2], String> {
    check(prediction, target)?;
    let count = prediction.count();
    let (prediction, target) = (Pointer::<T>::of(prediction), Pointer::<T>::of(target));
    let length = reduction_block_of_channels(count as u64, 1).rows as usize;
    let chunk_sum = |chunk: usize| {
        let (start, length) = (chunk * length, length.min(count - chunk * length));
        let mut accumulators = Accumulators::new();
        // SAFETY: the chunk lies in both operands, and no one writes them.
        let (prediction, target) = unsafe { (prediction.slice(start, length), target.slice(start, length)) };
        accumulators.add2(
            prediction,
            target,
            #[inline(always)]
            |prediction: T, target: T| {
                let difference = prediction.to_f64() - target.to_f64();
                [difference * difference]
            },
        );
        accumulators.totals()[0]
    };
    let sums = map_chunks(count.div_ceil(length), TASK_CHUNKS, |chunks| {
        wide(
            #[inline(always)]
            || chunks.map(chunk_sum).collect::<Vec<f64>>(),
        )
    });
    let tree = SumTree::flat(count.div_ceil(length) as u64);
    let sum = tree.sum(sums.into_iter().flatten(), |earlier, later| earlier + later);
    Ok([sum.unwrap_or_default(), count as f64])
}

/// loss = mean((prediction - target)^2).
///
/// # Safety
/// As for [`sums`].
pub(super) unsafe fn forward<T: Float>(prediction: &View, target: &View, loss: &View) -> Result<(), String> {
    // SAFETY: the caller's promises; the loss has one element.
    unsafe { *Pointer::<T>::of(loss).at(0) = mean(sums::<T>(prediction, target)?) };
    Ok(())
}

/// dprediction = dloss 2 / count (prediction - target). Reads dloss, prediction, target and, if the operands are only a part, the sums.
///
/// # Safety
/// As for [`sums`].
pub(super) unsafe fn gradient<T: Float>(reads: &[View], dprediction: &View) -> Result<(), String> {
    let (dloss, prediction, target) = (&reads[0], &reads[1], &reads[2]);
    check(prediction, target)?;
    // SAFETY: the sums are live.
    let counted = reads.get(3).map(|sums| unsafe { load_sums::<2>(sums, 1) }).transpose()?;
    let count = counted.map_or(prediction.count() as f64, |sums| sums[0][1]);
    // SAFETY: dloss has one element.
    let dloss = unsafe { *Pointer::<T>::of(dloss).at(0) };
    let factor = T::from_f64(dloss.to_f64() * 2.0 / count);
    // SAFETY: the caller's promises.
    unsafe { map2(prediction, target, dprediction, move |prediction: T, target: T| factor * (prediction - target)) }
}
