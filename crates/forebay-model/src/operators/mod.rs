//! The table of operators: one row per operator, one file per family.
//!
//! Most rows are decompositions: the operator is expressed as a few kernels, from which its inference, folding, lowering and gradient
//! follow.

mod activation;
mod arithmetic;
pub(crate) mod attend;
mod attention;
mod causal;
pub(crate) mod classical;
mod columns;
mod constant;
mod conversion;
mod convolution;
pub(crate) mod decomposition;
mod deformable;
mod determinant;
mod einsum;
mod element_keys;
mod evaluate;
mod gathering;
mod grid;
mod images;
mod indices;
mod integer;
mod interpolation;
mod known;
mod linear_attention;
mod losses;
mod matrix;
mod max_pooling;
pub(crate) mod microsoft;
mod ngrams;
mod norm_pooling;
mod normalization;
mod ordering;
mod padding;
mod pooling;
mod products;
mod quantized;
pub(crate) mod random;
mod recurrent;
mod reduction;
mod region_maxima;
mod regions;
mod resize;
mod rotary;
mod sampling;
mod scattering;
mod selection;
mod shape;
mod shapes;
pub mod signatures;
mod spectral;
mod steps;
mod suppression;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::error::ModelError;
use crate::graph::Operation;
pub use crate::graph::{FOREBAY, NEWEST_OPSET};
use crate::operator::{NodeView, Operator};

/// The families, each a list of rows.
pub const FAMILIES: &[&[Operator]] = &[
    activation::ROWS,
    arithmetic::ROWS,
    columns::ROWS,
    constant::ROWS,
    conversion::ROWS,
    convolution::ROWS,
    gathering::ROWS,
    images::ROWS,
    known::ROWS,
    linear_attention::ROWS,
    losses::ROWS,
    integer::ROWS,
    matrix::ROWS,
    max_pooling::ROWS,
    ngrams::ROWS,
    attention::ROWS,
    causal::ROWS,
    classical::ROWS,
    einsum::ROWS,
    microsoft::ROWS,
    microsoft::attention::ROWS,
    microsoft::diffusion::ROWS,
    microsoft::embedding::ROWS,
    microsoft::experts::ROWS,
    microsoft::quantized::ROWS,
    microsoft::recurrent::ROWS,
    microsoft::rotary::ROWS,
    normalization::ROWS,
    ordering::ROWS,
    quantized::ROWS,
    recurrent::ROWS,
    deformable::ROWS,
    determinant::ROWS,
    grid::ROWS,
    norm_pooling::ROWS,
    padding::ROWS,
    pooling::ROWS,
    random::ROWS,
    reduction::ROWS,
    region_maxima::ROWS,
    regions::ROWS,
    resize::ROWS,
    scattering::ROWS,
    rotary::ROWS,
    selection::ROWS,
    shape::ROWS,
    steps::ROWS,
    spectral::ROWS,
    windows::ROWS,
];

/// The row of an operator; `ai.onnx` is the default domain's other name.
pub fn find(domain: &str, op_type: &str) -> Option<&'static Operator> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    static ROWS: LazyLock<HashMap<(&str, &str), &Operator>> = LazyLock::new(|| {
        // Of two rows with the same name, the first one takes precedence.
        let rows = FAMILIES.iter().flat_map(|family| family.iter()).rev();
        rows.map(|row| ((row.domain, row.op_type), row)).collect()
    });
    ROWS.get(&(domain, op_type)).copied()
}

/// Whether an operator computes each element of its outputs from those at the same place in its inputs, which broadcast.
pub(crate) fn is_elementwise(op_type: &str) -> bool {
    let is_row = |row: &&Operator| row.op_type == op_type && op_type != "SwiGLU";
    activation::ROWS.iter().chain(arithmetic::ROWS).any(|row| is_row(&row))
        || ["Cast", "Dropout", "Identity"].contains(&op_type)
}

/// The row of a node's operator.
///
/// # Errors
/// Fails if the operator has no row, or if the node is a kernel.
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
