//! Sums in several fixed double-precision accumulators: the order of summation depends only on positions, the loops become vector code, and
//! a million single-precision numbers are summed without loss.

use super::element::Float;

/// The number of accumulators; element i of a run goes to accumulator i mod ACCUMULATORS.
pub(super) const ACCUMULATORS: usize = 16;

/// `K` running sums.
#[derive(Clone, Copy)]
pub(super) struct Accumulators<const K: usize>([[f64; ACCUMULATORS]; K]);

impl<const K: usize> Accumulators<K> {
    /// Nothing summed yet.
    #[inline(always)]
    pub fn new() -> Accumulators<K> {
        Accumulators([[0.0; ACCUMULATORS]; K])
    }

    /// Adds f(a\[i]) for a run.
    #[inline(always)]
    pub fn add<A: Float>(&mut self, a: &[A], f: impl Fn(A) -> [f64; K]) {
        let mut sums = self.0;
        let mut blocks = a.chunks_exact(ACCUMULATORS);
        for block in &mut blocks {
            for accumulator in 0..ACCUMULATORS {
                let terms = f(block[accumulator]);
                for k in 0..K {
                    sums[k][accumulator] += terms[k];
                }
            }
        }
        for (accumulator, &a) in blocks.remainder().iter().enumerate() {
            let terms = f(a);
            for k in 0..K {
                sums[k][accumulator] += terms[k];
            }
        }
        self.0 = sums;
    }

    /// Adds f(a\[i], b\[i]) for a run.
    #[inline(always)]
    pub fn add2<A: Float>(&mut self, a: &[A], b: &[A], f: impl Fn(A, A) -> [f64; K]) {
        let mut sums = self.0;
        let (mut a_blocks, mut b_blocks) = (a.chunks_exact(ACCUMULATORS), b.chunks_exact(ACCUMULATORS));
        for (a, b) in (&mut a_blocks).zip(&mut b_blocks) {
            let terms: [[f64; K]; ACCUMULATORS] = std::array::from_fn(|accumulator| f(a[accumulator], b[accumulator]));
            for (k, sums) in sums.iter_mut().enumerate() {
                sums.iter_mut().zip(&terms).for_each(|(sum, terms)| *sum += terms[k]);
            }
        }
        for (accumulator, (&a, &b)) in a_blocks.remainder().iter().zip(b_blocks.remainder()).enumerate() {
            let terms = f(a, b);
            for k in 0..K {
                sums[k][accumulator] += terms[k];
            }
        }
        self.0 = sums;
    }

    /// The sums over all accumulators, in accumulator order.
    #[inline(always)]
    pub fn totals(&self) -> [f64; K] {
        std::array::from_fn(|k| self.0[k].iter().sum())
    }
}

/// The largest element, [`Float::LOWEST`] if there is none, or NaN if any element is NaN.
#[inline(always)]
pub(super) fn largest<T: Float>(values: &[T]) -> T {
    let mut accumulators = [T::LOWEST; ACCUMULATORS];
    let mut blocks = values.chunks_exact(ACCUMULATORS);
    for block in &mut blocks {
        for accumulator in 0..ACCUMULATORS {
            accumulators[accumulator] = block[accumulator].maximum(accumulators[accumulator]);
        }
    }
    let rest = blocks.remainder().iter().fold(T::LOWEST, |largest, &value| value.maximum(largest));
    accumulators.into_iter().fold(rest, |largest, value| value.maximum(largest))
}
