//! Work: the number of operations in a launch.

use super::{KernelFacts, OperandRef};
use crate::TensorDesc;

/// How the operations of a kernel are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// One per element of the first read or the first write, whichever has more.
    Elements,
    /// A multiplication and an addition for each of these elements and each weight of one output channel.
    Convolution {
        /// The elements.
        elements: OperandRef,
        /// The weights, \[k, ..].
        weights: OperandRef,
    },
    /// A multiplication and an addition for each element of the result and each term.
    Product {
        /// Whether the first factor is given as \[.., k, m].
        transpose_a: bool,
        /// Whether the second factor is given as \[.., n, k].
        transpose_b: bool,
    },
    /// `times` multiplications and additions for each element of the gates and each element of a state.
    Recurrence {
        /// The gates of all steps.
        gates: OperandRef,
        /// The weights, \[directions, gates, state].
        weights: OperandRef,
        /// The number of each.
        times: u32,
    },
    /// A number of products of rows of queries with keys.
    Attention {
        /// The queries, \[.., rows, size].
        queries: OperandRef,
        /// The keys, \[n, g, keys, size].
        keys: OperandRef,
        /// The number of products.
        products: u32,
    },
}

impl KernelFacts<'_> {
    /// The number of floating-point operations of a launch on operands with these descriptors. A multiply-add counts as two.
    pub fn operations<'a>(&self, desc: impl Fn(OperandRef) -> Option<&'a TensorDesc>) -> f64 {
        let count = |operand| desc(operand).map_or(0, TensorDesc::element_count) as f64;
        let written = OperandRef::Write(0);
        match self.work {
            Work::Elements => count(written).max(count(OperandRef::Read(0))),
            Work::Convolution { elements, weights } => {
                // Products for one output element: one per weight of an output channel.
                let taps = |weights: &TensorDesc| weights.sizes()[1..].iter().product::<u64>() as f64;
                2.0 * count(elements) * desc(weights).map_or(1.0, taps)
            }
            Work::Recurrence { gates, weights, times } => {
                let state = desc(weights).and_then(|desc| desc.sizes().last().copied()).unwrap_or(1);
                2.0 * f64::from(times) * count(gates) * state as f64
            }
            Work::Attention { queries, keys, products } => {
                let rows = |keys: &TensorDesc| keys.sizes().get(2).copied().unwrap_or(1) as f64;
                2.0 * f64::from(products) * count(queries) * desc(keys).map_or(1.0, rows)
            }
            Work::Product { transpose_a, transpose_b } => {
                // The size of a factor's last axis, or of the one before it.
                let size = |factor: usize, is_last: bool| {
                    let sizes = desc(OperandRef::Read(factor)).map_or(&[1][..], TensorDesc::sizes);
                    sizes[sizes.len() - if is_last || sizes.len() < 2 { 1 } else { 2 }] as f64
                };
                let (terms, columns) = (size(0, !transpose_a), size(1, !transpose_b));
                let all_columns = desc(written).map_or(&[1][..], TensorDesc::sizes).last().copied();
                // A part may have only some of the columns.
                let share = (columns / all_columns.unwrap_or(1) as f64).min(1.0);
                2.0 * count(written) * terms * share
            }
        }
    }
}
