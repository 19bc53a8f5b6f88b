//! Mean squared error.

use super::super::block::map2;
use super::super::element::Float;
use super::super::lanes::Lanes;
use super::super::parallel::{map_chunks, require_packed, wide, Pointer, CHUNK};
use super::super::View;

fn check(prediction: &View, target: &View) -> Result<(), String> {
    require_packed(&[*prediction, *target])?;
    if prediction.desc.sizes() != target.desc.sizes() {
        return Err(format!("prediction {} and target {} differ in size", prediction.desc, target.desc));
    }
    Ok(())
}

/// loss = mean((prediction - target)^2).
///
/// # Safety
/// As [`super::super::run`], and the views must be of type `T`.
pub(super) unsafe fn forward<T: Float>(prediction: &View, target: &View, loss: &View) -> Result<(), String> {
    check(prediction, target)?;
    let count = prediction.count();
    let (prediction, target) = (Pointer::<T>::of(prediction), Pointer::<T>::of(target));
    let sums = map_chunks(count, CHUNK, |range| {
        wide(
            #[inline(always)]
            || {
                let mut lanes = Lanes::new();
                // SAFETY: the chunk lies in both operands, and nobody writes them.
                let (prediction, target) =
                    unsafe { (prediction.slice(range.start, range.len()), target.slice(range.start, range.len())) };
                lanes.add2(prediction, target, |prediction: T, target: T| {
                    let difference = prediction.to_f64() - target.to_f64();
                    [difference * difference]
                });
                lanes.totals()[0]
            },
        )
    });
    let mean = sums.iter().sum::<f64>() / count as f64;
    // SAFETY: the loss has one element.
    unsafe { *Pointer::<T>::of(loss).at(0) = T::from_f64(mean) };
    Ok(())
}

/// dprediction = dloss 2 / count (prediction - target).
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn gradient<T: Float>(
    dloss: &View,
    prediction: &View,
    target: &View,
    dprediction: &View,
) -> Result<(), String> {
    check(prediction, target)?;
    // SAFETY: dloss has one element.
    let dloss = unsafe { *Pointer::<T>::of(dloss).at(0) };
    let factor = T::from_f64(dloss.to_f64() * 2.0 / prediction.count() as f64);
    // SAFETY: the caller's promises.
    unsafe { map2(prediction, target, dprediction, move |prediction: T, target: T| factor * (prediction - target)) }
}
