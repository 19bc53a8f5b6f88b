//! What an operator's row in the table offers.

use forebay_base::Tensor;

use crate::context::Lowering;
pub use crate::context::{GradientBuilder, NodeView};
use crate::error::ModelError;
use crate::graph::{Node, TensorType, ValueId};

/// One row of the table: everything that is known about one operator.
pub struct Operator {
    /// Domain; empty for the default one.
    pub domain: &'static str,
    /// Operator type.
    pub op_type: &'static str,
    /// Types of the outputs, one per output that the operator can have (extra ones are ignored).
    pub infer: fn(&NodeView) -> Result<Vec<TensorType>, ModelError>,
    /// Computes the outputs from constant inputs, for folding. `None` in a row or a result: not folded.
    pub evaluate: Option<Evaluate>,
    /// Emits kernels, or makes outputs views of inputs.
    pub lower: fn(&NodeView, &mut Lowering) -> Result<(), ModelError>,
    /// How gradients pass through.
    pub gradient: Gradient,
}

/// Computes a node's outputs from its constant inputs.
pub type Evaluate = fn(&NodeView, &[Option<&Tensor>]) -> Result<Option<Vec<Tensor>>, ModelError>;

/// How gradients pass through an operator.
pub enum Gradient {
    /// Given the node and the gradients of its outputs (`None`: zero), the gradients of its inputs (`None`: zero or not
    /// needed). Ask [`GradientBuilder::needs`] before computing one.
    Function(GradientFunction),
    /// The outputs do not depend differentiably on any input (comparisons, shapes, casts to integers): gradient zero.
    Zero,
    /// There is a gradient in mathematics, but not here: an error where one is needed.
    Missing,
}

/// Computes the gradients of a node's inputs from those of its outputs.
pub type GradientFunction =
    fn(&mut GradientBuilder, &Node, &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, ModelError>;
