//! Clips gradients and measures their norm between the backward pass and the optimizer, with nodes of existing kernels.
//!
//! The squares of a gradient are summed along its first axis in reduction blocks, then along the others; the sums of the gradients are
//! added in pairs, in the order of the parameters. Neither budgets nor threads therefore change a single bit of a norm.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel};

use crate::context::GradientBuilder;
use crate::graph::{Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;

/// How gradients are clipped before they reach the optimizer. The limit is fed to each step.
///
/// ```
/// use forebay_model::training::{Clipping, TrainingOptions};
///
/// let mut options = TrainingOptions::default();
/// options.clipping = Some(Clipping::GlobalNorm(1.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Clipping {
    /// Clamps each element between the negative of this number and this number, as `torch.nn.utils.clip_grad_value_` does.
    Value(f32),
    /// Scales each gradient with a larger norm down to this norm, separately.
    Norm(f32),
    /// Scales all gradients down together if their total norm is larger, as `torch.nn.utils.clip_grad_norm_` does.
    GlobalNorm(f32),
}

impl Clipping {
    /// The limit.
    pub fn limit(&self) -> f32 {
        let (Clipping::Value(limit) | Clipping::Norm(limit) | Clipping::GlobalNorm(limit)) = *self;
        limit
    }

    /// Returns the same clipping with another limit.
    #[must_use]
    pub fn with_limit(self, limit: f32) -> Clipping {
        match self {
            Clipping::Value(_) => Clipping::Value(limit),
            Clipping::Norm(_) => Clipping::Norm(limit),
            Clipping::GlobalNorm(_) => Clipping::GlobalNorm(limit),
        }
    }
}

/// The name of the graph input that holds the limit.
const LIMIT_NAME: &str = "forebay.clipping";
/// The name of the graph output that holds the norm of all gradients.
const NORM_NAME: &str = "forebay.gradient_norm";
/// Added to a norm before dividing by it, as in PyTorch.
const NORM_EPSILON: f32 = 1e-6;

/// The result of clipping the gradients.
pub(super) struct Clipped {
    /// The input that holds the limit, if there is one.
    pub(super) limit: Option<ValueId>,
    /// The norm of all gradients before clipping, if it is requested or needed.
    pub(super) norm: Option<ValueId>,
}

/// Clips the gradients of parameters in place and appends their norm.
pub(super) fn append_clipping(
    graph: &mut Graph,
    trained: &mut [(ValueId, ValueId)],
    clipping: Option<Clipping>,
    norm_is_asked_for: bool,
) -> Clipped {
    let limit = clipping.map(|_| graph.add_input(LIMIT_NAME, TensorType::new(DataType::Float32, &[1])));
    let mut builder = GradientBuilder::without_gradients(graph, infer_node, "gradient");
    let needs_norm = norm_is_asked_for || matches!(clipping, Some(Clipping::GlobalNorm(_)));
    let norm = needs_norm.then(|| {
        let squares: Vec<ValueId> = trained.iter().map(|&(_, d)| sum_of_squares(&mut builder, d)).collect();
        let sum = pairwise(&mut builder, squares);
        let norm = builder.graph.add_value(NORM_NAME, Some(TensorType::new(DataType::Float32, &[])));
        builder.graph.nodes.push(Node {
            name: NORM_NAME.to_string(),
            operation: Operation::Kernel(Kernel::Unary(UnaryOp::Sqrt)),
            inputs: vec![Some(sum)],
            outputs: vec![Some(norm)],
        });
        norm
    });
    match (clipping, limit) {
        (Some(Clipping::Value(_)), Some(limit)) => {
            let limit = builder.reshape(limit, &[]);
            let least = builder.scaled(limit, -1.0);
            for (_, d) in trained {
                let above = builder.binary(BinaryOp::Maximum, *d, least);
                *d = builder.binary(BinaryOp::Minimum, above, limit);
            }
        }
        (Some(Clipping::Norm(_)), Some(limit)) => {
            for (_, d) in trained {
                let squares = sum_of_squares(&mut builder, *d);
                let norm = builder.unary(UnaryOp::Sqrt, squares);
                let factor = factor(&mut builder, norm, limit);
                *d = builder.binary(BinaryOp::Multiply, *d, factor);
            }
        }
        (Some(Clipping::GlobalNorm(_)), Some(limit)) => {
            if let Some(norm) = norm {
                let factor = factor(&mut builder, norm, limit);
                for (_, d) in trained {
                    *d = builder.binary(BinaryOp::Multiply, *d, factor);
                }
            }
        }
        _ => {}
    }
    graph.outputs.extend(norm);
    Clipped { limit, norm }
}

/// Returns the factor for a gradient of this norm: limit / (norm + epsilon), at most 1.
fn factor(builder: &mut GradientBuilder, norm: ValueId, limit: ValueId) -> ValueId {
    let limit = builder.reshape(limit, &[]);
    let norm = builder.unary(UnaryOp::Affine { scale: 1.0, shift: NORM_EPSILON }, norm);
    let ratio = builder.binary(BinaryOp::Divide, limit, norm);
    builder.unary(UnaryOp::Clip { low: 0.0, high: 1.0 }, ratio)
}

/// Returns the sum of the squares of a gradient's elements, as a scalar.
fn sum_of_squares(builder: &mut GradientBuilder, d: ValueId) -> ValueId {
    let squares = builder.binary(BinaryOp::Multiply, d, d);
    let rank = builder.ty(d).shape.len();
    let columns = if rank > 1 { builder.sum(squares, &[0]) } else { squares };
    let mut ty = builder.ty(columns);
    if ty.count() > 1 {
        ty.shape.fill(1);
        let axes = (0..rank).collect();
        let sum = builder.one(Kernel::Reduce { op: ReduceOp::Sum, axes }, &[columns], ty);
        return builder.reshape(sum, &[]);
    }
    builder.reshape(columns, &[])
}

/// Returns the sum of scalars, added in pairs.
fn pairwise(builder: &mut GradientBuilder, mut sums: Vec<ValueId>) -> ValueId {
    while sums.len() > 1 {
        sums = sums
            .chunks(2)
            .map(|pair| match *pair {
                [a, b] => builder.binary(BinaryOp::Add, a, b),
                _ => pair[0],
            })
            .collect();
    }
    sums[0]
}
