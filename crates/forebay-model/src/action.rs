//! What one step of a decomposition does: run a kernel, or move elements without one.

use forebay_base::Kernel;

/// What one step does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// A kernel on the step's inputs.
    Kernel(Kernel),
    /// Reorders the dimensions: dimension `i` of the result is dimension `permutation[i]` of the input.
    Transpose(Vec<usize>),
    /// Broadcasts to the result's shape.
    Expand,
    /// Concatenates the inputs along this axis.
    Concatenate(usize),
}
