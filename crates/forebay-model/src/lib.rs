//! What to compute: ONNX import and export, graphs, operators, gradients, and lowering to kernels. This crate is pure: it uses no device
//! and manages no memory.
//!
//! How data flows through this crate:
//!
//! ```text
//! bytes -> onnx::read -> Graph -> infer (types, constants) -> training (mode, loss, gradients, updates) -> lower -> Program
//! ```
//!
//! ```
//! use std::collections::BTreeSet;
//! use forebay_model::{infer, lower, onnx};
//!
//! # fn main() -> Result<(), forebay_model::ModelError> {
//! # let bytes = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/light/light_squeezenet.onnx"));
//! let model = onnx::read(bytes, None)?;
//! let mut graph = model.graph.clone();
//! infer::infer(&mut graph, None)?;
//! let program = lower::lower(&graph, &BTreeSet::new())?;
//! program.validate()?;
//! println!("{program}");
//! assert_eq!(program.outputs[0].shape, [1, 1000, 1, 1]);
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`graph`] | values, nodes, the graph |
//! | [`error`] | the ways in which a model can be wrong |
//! | [`context`] | what operators work with: a node, the program being built, gradients |
//! | [`operator`] | the fields of an operator's row in the table |
//! | [`operators`] | the table: one row per operator, one file per family |
//! | [`infer`] | type inference and constant folding |
//! | [`stages`] | graphs whose sizes or branches depend on values that are known only at run time |
//! | [`onnx`] | reading and writing ONNX |
//! | [`autodiff`] | gradients, graph to graph |
//! | [`training`] | turning a forward graph into a training step |
//! | [`program`] | the result: kernels on logical buffers |
//! | [`lower`] | from graph to program |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod action;
pub mod adapters;
pub mod autodiff;
pub mod context;
pub mod error;
pub mod graph;
pub mod infer;
mod kernel_gradient;
pub mod lower;
pub mod onnx;
pub mod operator;
pub mod operators;
mod precision;
pub mod program;
pub mod recognize;
pub mod stages;
pub mod tensor;
pub mod training;

pub use error::ModelError;
pub use forebay_base::Tensor;
pub use graph::{Graph, Node, NodeId, Operation, TensorType, ValueId};
pub use program::Program;
