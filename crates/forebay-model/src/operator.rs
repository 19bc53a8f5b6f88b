//! The rows of the table of operators.

use forebay_base::Tensor;

use crate::context::Lowering;
pub use crate::context::{GradientBuilder, NodeView};
use crate::error::ModelError;
use crate::graph::{Node, TensorType, ValueId};

/// One row of the table: everything known about one operator.
pub struct Operator {
    /// Domain; empty for the default one.
    pub domain: &'static str,
    /// Operator type.
    pub op_type: &'static str,
    /// Returns the types of the outputs, one per output that the operator can have (extra ones are ignored).
    pub infer: fn(&NodeView) -> Result<Vec<TensorType>, ModelError>,
    /// Computes the outputs from constant inputs, for folding. `None`, here or as the result, means that the node is not folded.
    pub evaluate: Option<Evaluate>,
    /// Emits kernels, or makes the outputs views of inputs.
    pub lower: fn(&NodeView, &mut Lowering) -> Result<(), ModelError>,
    /// How gradients pass through.
    pub gradient: Gradient,
}

/// Computes a node's outputs from its constant inputs.
pub type Evaluate = fn(&NodeView, &[Option<&Tensor>]) -> Result<Option<Vec<Tensor>>, ModelError>;

/// How gradients pass through an operator.
pub enum Gradient {
    /// A function from the node and the gradients of its outputs (`None`: zero) to the gradients of its inputs (`None`: zero or not
    /// needed). It should call [`GradientBuilder::needs`] before computing one.
    Function(GradientFunction),
    /// The gradient is zero: the outputs do not depend differentiably on any input (comparisons, shapes, casts to integers).
    Zero,
    /// A gradient exists mathematically but is not implemented. It is an error if one is needed.
    Missing,
}

/// Computes the gradients of a node's inputs from those of its outputs.
pub type GradientFunction =
    fn(&mut GradientBuilder, &Node, &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, ModelError>;
