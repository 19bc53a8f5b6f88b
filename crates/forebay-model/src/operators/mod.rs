//! The table of operators: one row per operator, one file per family.
//!
//! Most rows are [decompositions](decomposition): the operator written as a few kernels, from which inference, folding,
//! lowering and gradient follow.

mod activation;
mod arithmetic;
mod constant;
mod convolution;
pub(crate) mod decomposition;
mod evaluate;
mod matrix;
mod normalization;
mod reduction;
mod resize;
mod selection;
mod shape;
mod shapes;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::operator::Operator;

/// The newest version of the default operator set that the table follows.
pub const NEWEST_OPSET: i64 = 27;

/// The families, each a list of rows.
pub const FAMILIES: &[&[Operator]] = &[
    activation::ROWS,
    arithmetic::ROWS,
    constant::ROWS,
    convolution::ROWS,
    matrix::ROWS,
    normalization::ROWS,
    reduction::ROWS,
    resize::ROWS,
    selection::ROWS,
    shape::ROWS,
];

/// The row of an operator; `ai.onnx` is the default domain's other name.
pub fn find(domain: &str, op_type: &str) -> Option<&'static Operator> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    static ROWS: LazyLock<HashMap<(&str, &str), &Operator>> = LazyLock::new(|| {
        // Of two rows of one name, the first one counts.
        let rows = FAMILIES.iter().flat_map(|family| family.iter()).rev();
        rows.map(|row| ((row.domain, row.op_type), row)).collect()
    });
    ROWS.get(&(domain, op_type)).copied()
}
