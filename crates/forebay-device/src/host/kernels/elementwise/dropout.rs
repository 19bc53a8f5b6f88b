//! Dropout with a counter-based generator: the mask is a pure function of (seed, step, node, element).

use super::super::View;
use super::super::block::{run1, run2};
use super::super::buffer::BLOCK;
use super::super::element::{Bool, Float, for_type};
use super::super::parallel::{CHUNK, Pointer, for_chunks, require_packed, wide};
use super::random::{key, word};

/// Sets elements to 0 with probability `ratio` and scales the others by 1 / (1 - ratio). A second output receives the mask of the elements
/// that are kept.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn run((ratio, first): (f32, u64), node: u64, reads: &[View], writes: &[View]) -> Result<(), String> {
    if !(0.0..1.0).contains(&ratio) {
        return Err(format!("the ratio must be in 0..1, not {ratio}"));
    }
    require_packed(reads)?;
    require_packed(writes)?;
    // SAFETY: the caller's promise.
    let key = unsafe { key(&reads[1], node)? };
    // SAFETY: the caller's promises, and the type is that of the views.
    unsafe { for_type!(reads[0].desc.data_type(), floats, T => apply::<T>(ratio, (key, first), &reads[0], writes)) }
}

/// # Safety
/// As for [`super::super::run`], and the views must be of type `T`.
unsafe fn apply<T: Float>(ratio: f32, (key, first): (u64, u64), x: &View, writes: &[View]) -> Result<(), String> {
    // Of 2^32 equally likely words, those below the threshold drop the element.
    let threshold = (ratio as f64 * 4_294_967_296.0) as u32;
    let scale = T::from_f64(1.0 / (1.0 - ratio as f64));
    let (x_pointer, y_pointer) = (Pointer::<T>::of(x), Pointer::<T>::of(&writes[0]));
    let mask_pointer = writes.get(1).map(Pointer::<Bool>::of);
    for_chunks(x.count(), CHUNK, |range| {
        wide(
            #[inline(always)]
            || {
                let mut keep = [false; BLOCK];
                for start in range.clone().step_by(BLOCK) {
                    let count = BLOCK.min(range.end - start);
                    for (element, keep) in (first + start as u64..).zip(&mut keep[..count]) {
                        *keep = word(key, element) >= threshold;
                    }
                    let (kept, place) = (keep.as_ptr(), start as isize);
                    // SAFETY: the block lies in the operands, and belongs to this chunk alone.
                    unsafe {
                        let select = |x: T, keep: bool| if keep { x * scale } else { T::ZERO };
                        run2((x_pointer.at(place) as *const T, 1), (kept, 1), y_pointer.at(place), count, select);
                        if let Some(mask) = mask_pointer {
                            run1((kept, 1), mask.at(place), count, |keep: bool| Bool::from(keep));
                        }
                    }
                }
            },
        );
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_base::{DataType, Kernel};

    use super::super::super::testing::{Random, Tensor, desc, run};

    #[test]
    fn masks_are_a_function_of_seed_step_node_and_element() {
        let mut random = Random::new(5);
        let count = 40_000;
        let shape = desc(DataType::Float32, &[count]);
        let x = Tensor::new(&shape, &random.values(count as usize));
        let apply = |seed: f64, node, step: f64| {
            let step = Tensor::new(&desc(DataType::Int64, &[2]), &[step, seed]);
            let kernel = Kernel::Dropout { ratio: 0.25, node, first: 0 };
            let outputs = run(&kernel, &[&x, &step], &[shape.clone(), desc(DataType::Bool, &[count])]);
            (outputs[0].values(), outputs[1].values())
        };
        let (y, mask) = apply(1.0, 2, 3.0);
        for ((y, x), keep) in y.iter().zip(x.values()).zip(&mask) {
            assert_eq!(*y, if *keep == 1.0 { (x as f32 * (1.0f32 / 0.75)) as f64 } else { 0.0 });
        }
        let kept = mask.iter().sum::<f64>() / count as f64;
        assert!((kept - 0.75).abs() < 0.01, "{kept} kept");
        assert_eq!(apply(1.0, 2, 3.0), (y, mask.clone()));
        for (seed, node, step) in [(2.0, 2, 3.0), (1.0, 3, 3.0), (1.0, 2, 4.0)] {
            let other = apply(seed, node, step).1;
            let same = other.iter().zip(&mask).filter(|(a, b)| a == b).count() as f64 / count as f64;
            // Independent masks agree where both keep or both drop: 0.75^2 + 0.25^2.
            assert!((same - 0.625).abs() < 0.02, "{same} the same");
        }
    }
}
