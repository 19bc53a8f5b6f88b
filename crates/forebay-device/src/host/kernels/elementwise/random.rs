//! Random numbers from a counter-based generator: each is a pure function of (seed, step, node, element).

use forebay_base::DataType;

use super::super::View;
use super::super::parallel::{CHUNK, Pointer, for_chunks, require_packed, wide};

/// Writes random numbers in 0..1, which are multiples of 2^-24.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn run(node: u64, first: u64, step: &View, y: &View) -> Result<(), String> {
    require_packed(&[*step, *y])?;
    if y.desc.data_type() != DataType::Float32 {
        return Err(format!("random numbers must be float32, not {}", y.desc));
    }
    // SAFETY: the caller's promise.
    let key = unsafe { key(step, node)? };
    let target = Pointer::<f32>::of(y);
    for_chunks(y.count(), CHUNK, |range| {
        wide(
            #[inline(always)]
            || {
                // SAFETY: the range lies in y, and belongs to this chunk alone.
                let numbers = unsafe { target.slice_mut(range.start, range.len()) };
                for (element, number) in (first + range.start as u64..).zip(numbers) {
                    *number = (word(key, element) >> 8) as f32 * (1.0 / 16_777_216.0);
                }
            },
        );
    });
    Ok(())
}

/// Returns the key of a node in a step, from the number of the step and the seed.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn key(step: &View, node: u64) -> Result<u64, String> {
    if step.desc.data_type() != DataType::Int64 || step.count() != 2 {
        return Err(format!("a step and a seed must be int64[2], not {}", step.desc));
    }
    // SAFETY: live and of two int64 by the caller's promise.
    let [step, seed] = unsafe { *step.pointer.cast::<[i64; 2]>() }.map(|word| word as u64);
    Ok(mix(mix(mix(seed).wrapping_add(step)).wrapping_add(node)))
}

/// Returns the random word of an element.
#[inline(always)]
pub(super) fn word(key: u64, element: u64) -> u32 {
    (mix(key.wrapping_add(element.wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 32) as u32
}

/// A bijection that turns counters into random words. Source: the finalizer of SplitMix64.
#[inline(always)]
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use forebay_base::{DataType, Kernel};

    use super::super::super::testing::{Tensor, desc, run};

    /// Returns the numbers of a node in a step, from an element on.
    fn numbers(step: [f64; 2], node: u64, first: u64, count: u64) -> Vec<f64> {
        let step = Tensor::new(&desc(DataType::Int64, &[2]), &step);
        run(&Kernel::Random { node, first }, &[&step], &[desc(DataType::Float32, &[count])])[0].values()
    }

    #[test]
    fn moments_are_those_of_equally_likely_numbers() {
        let count = 200_000;
        let x = numbers([3.0, 1.0], 7, 0, count);
        assert!(x.iter().all(|x| (0.0..1.0).contains(x)));
        let moment = |power: i32| x.iter().map(|x| x.powi(power)).sum::<f64>() / count as f64;
        for power in 1..=4 {
            let expected = 1.0 / f64::from(power + 1);
            assert!((moment(power) - expected).abs() < 4e-3, "moment {power} is {}, not {expected}", moment(power));
        }
        let neighbors = x.windows(2).map(|pair| (pair[0] - 0.5) * (pair[1] - 0.5)).sum::<f64>() / (count - 1) as f64;
        assert!(neighbors.abs() < 1e-3, "neighbors correlate: {neighbors}");
    }

    #[test]
    fn numbers_are_a_function_of_seed_step_node_and_element() {
        let whole = numbers([3.0, 1.0], 7, 0, 1000);
        assert_eq!(numbers([3.0, 1.0], 7, 600, 400), whole[600..]);
        for (step, node) in [([4.0, 1.0], 7), ([3.0, 2.0], 7), ([3.0, 1.0], 8)] {
            let other = numbers(step, node, 0, 1000);
            assert!(other.iter().zip(&whole).filter(|(a, b)| a == b).count() < 5);
        }
    }
}
