//! The contexts that the functions of operators work with. Passes create them and are layered above the operators; contexts are layered
//! below and know neither.
//!
//! | module | context of |
//! |---|---|
//! | [`node_view`] | inference and folding: a node with its graph |
//! | [`lowering`] | lowering: the program that grows |
//! | [`gradient`] | gradients: nodes at the end of a graph |

pub mod gradient;
pub mod lowering;
pub mod node_view;

pub use gradient::GradientBuilder;
pub use lowering::Lowering;
pub use node_view::NodeView;
