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
        let (blocks, rest) = a.as_chunks::<ACCUMULATORS>();
        for a in blocks {
            add_block(
                &mut sums,
                #[inline(always)]
                |i| f(a[i]),
            );
        }
        for (i, &a) in rest.iter().enumerate() {
            add_one(&mut sums, i, f(a));
        }
        self.0 = sums;
    }

    /// Adds f(a\[i], b\[i]) for a run.
    #[inline(always)]
    pub fn add2<A: Float>(&mut self, a: &[A], b: &[A], f: impl Fn(A, A) -> [f64; K]) {
        let mut sums = self.0;
        let ((a_blocks, a_rest), (b_blocks, b_rest)) = (a.as_chunks::<ACCUMULATORS>(), b.as_chunks::<ACCUMULATORS>());
        for (a, b) in a_blocks.iter().zip(b_blocks) {
            add_block(
                &mut sums,
                #[inline(always)]
                |i| f(a[i], b[i]),
            );
        }
        for (i, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
            add_one(&mut sums, i, f(a, b));
        }
        self.0 = sums;
    }

    /// The sums over all accumulators, in accumulator order.
    #[inline(always)]
    pub fn totals(&self) -> [f64; K] {
        std::array::from_fn(|k| self.0[k].iter().sum())
    }
}

/// Adds a term to every accumulator. All terms are computed first, and then added to one sum after another: the compiler turns this form
/// into vector code wherever it is inlined.
#[inline(always)]
fn add_block<const K: usize>(sums: &mut [[f64; ACCUMULATORS]; K], term: impl Fn(usize) -> [f64; K]) {
    let mut terms = [[0.0; K]; ACCUMULATORS];
    for (i, terms) in terms.iter_mut().enumerate() {
        *terms = term(i);
    }
    for (k, sums) in sums.iter_mut().enumerate() {
        sums.iter_mut().zip(&terms).for_each(
            #[inline(always)]
            |(sum, terms)| *sum += terms[k],
        );
    }
}

/// Adds a term to one accumulator.
#[inline(always)]
fn add_one<const K: usize>(sums: &mut [[f64; ACCUMULATORS]; K], accumulator: usize, terms: [f64; K]) {
    for (sums, term) in sums.iter_mut().zip(terms) {
        sums[accumulator] += term;
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
