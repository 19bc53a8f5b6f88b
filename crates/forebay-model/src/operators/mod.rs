//! The table of operators: one row per operator, one file per family.
//!
//! Most rows are decompositions: the operator written as a few kernels, from which inference, folding,
//! lowering and gradient follow.

mod activation;
mod arithmetic;
pub(crate) mod attend;
mod attention;
mod causal;
mod constant;
mod convolution;
pub(crate) mod decomposition;
mod einsum;
mod evaluate;
mod matrix;
pub(crate) mod microsoft;
mod normalization;
mod reduction;
mod resize;
mod rotary;
mod selection;
mod shape;
mod shapes;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::error::ModelError;
use crate::graph::Operation;
pub use crate::graph::NEWEST_OPSET;
use crate::operator::{NodeView, Operator};

/// The families, each a list of rows.
pub const FAMILIES: &[&[Operator]] = &[
    activation::ROWS,
    arithmetic::ROWS,
    attention::ROWS,
    causal::ROWS,
    constant::ROWS,
    convolution::ROWS,
    einsum::ROWS,
    matrix::ROWS,
    microsoft::ROWS,
    microsoft::attention::ROWS,
    microsoft::quantized::ROWS,
    normalization::ROWS,
    reduction::ROWS,
    resize::ROWS,
    rotary::ROWS,
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

/// The row of a node's operator.
///
/// # Errors
/// Where it has none; kernels have none either.
pub fn row(view: &NodeView) -> Result<&'static Operator, ModelError> {
    let Operation::Onnx { domain, op_type, version, .. } = &view.node.operation else {
        return Err(view.error("a kernel has no row in the table of operators"));
    };
    find(domain, op_type).ok_or_else(|| ModelError::UnsupportedOperator {
        domain: domain.clone(),
        op_type: op_type.clone(),
        version: *version,
        node: view.node.label(view.graph),
    })
}
