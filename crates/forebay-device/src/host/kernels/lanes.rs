//! Sums in several fixed lanes of double precision: the order of summation depends on positions only, the loops become
//! vector code, and a million single-precision numbers are summed without loss.

use super::element::Float;

/// Number of lanes; element i of a run goes to lane i mod LANES.
pub(super) const LANES: usize = 16;

/// `K` running sums.
#[derive(Clone, Copy)]
pub(super) struct Lanes<const K: usize>([[f64; LANES]; K]);

impl<const K: usize> Lanes<K> {
    /// Nothing summed yet.
    #[inline(always)]
    pub fn new() -> Lanes<K> {
        Lanes([[0.0; LANES]; K])
    }

    /// Adds f(a\[i]) for a run.
    #[inline(always)]
    pub fn add<A: Float>(&mut self, a: &[A], f: impl Fn(A) -> [f64; K]) {
        let mut sums = self.0;
        let mut blocks = a.chunks_exact(LANES);
        for block in &mut blocks {
            for lane in 0..LANES {
                let terms = f(block[lane]);
                for k in 0..K {
                    sums[k][lane] += terms[k];
                }
            }
        }
        for (lane, &a) in blocks.remainder().iter().enumerate() {
            let terms = f(a);
            for k in 0..K {
                sums[k][lane] += terms[k];
            }
        }
        self.0 = sums;
    }

    /// Adds f(a\[i], b\[i]) for a run.
    #[inline(always)]
    pub fn add2<A: Float>(&mut self, a: &[A], b: &[A], f: impl Fn(A, A) -> [f64; K]) {
        let mut sums = self.0;
        let (mut a_blocks, mut b_blocks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
        for (a, b) in (&mut a_blocks).zip(&mut b_blocks) {
            let terms: [[f64; K]; LANES] = std::array::from_fn(|lane| f(a[lane], b[lane]));
            for (k, sums) in sums.iter_mut().enumerate() {
                sums.iter_mut().zip(&terms).for_each(|(sum, terms)| *sum += terms[k]);
            }
        }
        for (lane, (&a, &b)) in a_blocks.remainder().iter().zip(b_blocks.remainder()).enumerate() {
            let terms = f(a, b);
            for k in 0..K {
                sums[k][lane] += terms[k];
            }
        }
        self.0 = sums;
    }

    /// The sums over all lanes, in lane order.
    #[inline(always)]
    pub fn totals(&self) -> [f64; K] {
        std::array::from_fn(|k| self.0[k].iter().sum())
    }
}

/// The largest element, [`Float::LOWEST`] of none; NaN where one is.
#[inline(always)]
pub(super) fn largest<T: Float>(values: &[T]) -> T {
    let mut lanes = [T::LOWEST; LANES];
    let mut blocks = values.chunks_exact(LANES);
    for block in &mut blocks {
        for lane in 0..LANES {
            lanes[lane] = block[lane].maximum(lanes[lane]);
        }
    }
    let rest = blocks.remainder().iter().fold(T::LOWEST, |largest, &value| value.maximum(largest));
    lanes.into_iter().fold(rest, |largest, value| value.maximum(largest))
}
