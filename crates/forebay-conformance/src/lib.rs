//! Runs ONNX's own test cases through the Forebay library: `cargo xtask conformance` counts and lists them, and a test keeps the count from
//! falling. A development tool only.
//!
//! A case is a folder with `model.onnx` and `test_data_set_0/input_I.pb`, `output_I.pb`: serialized tensors, sequences or optional values
//! for the model's inputs and outputs, in order.
//!
//! | module | holds |
//! |---|---|
//! | [`suite`] | where cases come from: an archive or a folder |
//! | [`comparison`] | when an output is as expected |
//! | [`values`] | what the files of a case contain |
//! | [`scope`] | the parts of ONNX that are out of scope |
//! | [`run`] | one case, from its bytes to its outcome |

pub mod comparison;
pub mod run;
pub mod scope;
pub mod suite;
pub mod values;

pub use run::{Outcome, run};
pub use scope::out_of_scope;
pub use suite::{Case, Suite};
