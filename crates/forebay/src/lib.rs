//! Train and run ONNX models whose tensors do not fit in device memory.
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | a model as it was read |
//! | [`session`] | running a model |
//! | [`trainer`] | training a model |
//! | [`options`], [`budget`] | on what machine, and within what memory |
//! | [`port`] | what goes into a model and comes out of it |
//! | [`checkpoint`] | everything that a training run needs to go on |
//! | [`mod@explain`] | a plan in words |
//! | [`error`] | what can go wrong |

pub mod budget;
pub mod checkpoint;
mod compile;
mod engine;
pub mod error;
pub mod explain;
mod files;
mod labels;
mod loss_plan;
mod machine;
pub mod model;
pub mod options;
pub mod port;
pub mod session;
pub mod trainer;

pub use budget::MemorySize;
pub use checkpoint::Checkpoint;
pub use error::Error;
pub use explain::{command_lines, Explanation};
pub use forebay_base::DataType;
pub use forebay_data as data;
pub use forebay_device::{Device, DeviceUsage};
pub use forebay_model::graph::Dimension;
pub use forebay_model::{training, Tensor};
pub use forebay_plan::plan::{Plan, Statistics};
pub use model::Model;
pub use options::{devices, DeviceDescription, DeviceOptions};
pub use port::{Port, PortDescription};
pub use serde_json;
pub use session::{RunTimes, Session, SessionOptions};
pub use trainer::{Evaluation, OnNan, StepReport, Trainer, TrainerOptions};
