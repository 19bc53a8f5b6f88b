//! Train and run ONNX models whose tensors do not fit in device memory.
//!
//! A model runs within the device memory that it is given, and computes the same bits whatever that is:
//!
//! ```
//! use forebay::{Tensor, Model, Session};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
//! let mut session = Session::builder(&model).device_memory("1MiB".parse()?).build()?;
//! let outputs = session.run([("x".to_string(), Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]))].into())?;
//! assert_eq!(outputs["logits"].shape, [50, 10]);
//! # Ok(())
//! # }
//! ```
//!
//! The same for training. A [`Trainer`] takes batches and labels, and writes the trained model back as ONNX:
//!
//! ```
//! use forebay::training::Optimizer;
//! use forebay::{Tensor, Model, Trainer};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
//! let mut trainer = Trainer::builder(&model)
//!     .optimizer(Optimizer::sgd(0.05))
//!     .freeze("conv1.*")
//!     .device_memory("50%".parse()?) // of what a step takes without a budget
//!     .build()?;
//! let (x, labels) = (Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), Tensor::from_i64(&[50], &[7; 50]));
//! let first = trainer.step([("x".to_string(), x.clone())].into(), labels.clone())?;
//! let second = trainer.step([("x".to_string(), x)].into(), labels)?;
//! assert!(second.loss < first.loss);
//! # Ok(())
//! # }
//! ```
//!
//! Eager work on streams of one's own choosing ([`eager`]): a [`Context`] on a device, its [`Stream`]s and [`Event`]s, and
//! [`DeviceTensor`]s in its memory.
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | a model as it was read |
//! | [`session`] | running a model |
//! | [`trainer`] | training a model |
//! | [`options`], [`budget`](mod@budget) | on what machine, within what memory, and how to train |
//! | [`port`] | what goes into a model and comes out of it |
//! | [`checkpoint`] | everything that a training run needs to go on |
//! | [`files`] | files that appear whole or not at all |
//! | [`mod@explain`] | a plan in words |
//! | [`mod@probe`] | the order in which managed memory evicts, found by experiment |
//! | [`documents`] | descriptions of machines, and costs, as files |
//! | [`mod@replay`] | traces of training steps on described machines |
//! | [`error`] | what can go wrong |

pub mod builder;
pub mod checkpoint;
mod compile;
pub mod data;
pub mod documents;
pub mod eager;
mod engine;
pub mod error;
pub mod explain;
mod export;
pub mod files;
mod forecast;
mod labels;
mod loss_plan;
mod machine;
pub mod managed;
pub mod model;
pub mod options;
pub mod port;
pub mod probe;
pub mod replay;
mod runner;
pub mod session;
pub mod trainer;
pub mod training;

pub use builder::{ModelBuilder, SessionBuilder, TrainerBuilder};
pub use checkpoint::{Checkpoint, CheckpointFolder};
pub use eager::{Context, ContextOptions, DeviceTensor, Event, Stream, StreamGuard};
pub use error::Error;
pub use explain::{command_lines, memory_picture, Explanation};
pub use forebay_base::{ByteRange, DataType, Limits, Tensor, TensorType};
pub use forebay_device::{Device, DeviceError, DeviceUsage};
pub use forebay_memory::size::{format_bytes, MemorySize, MemorySizeError};
pub use forebay_memory::Picture;
pub use forebay_model::graph::{Attribute, Dimension};
pub use forebay_model::ModelError;
pub use forebay_plan::plan::{Plan, Statistics};
pub use forebay_plan::{LaunchOrder, MachineDescription, PlanError, SavedCosts};
pub use forebay_runtime::{RuntimeError, StepMoves};
pub use forecast::{Replan, ReplanReason};
pub use machine::{devices, open_device, DeviceDescription};
pub use managed::{ManagedBuffer, ManagedMemory, ManagedOptions};
pub use model::Model;
pub use options::{
    DeviceName, DeviceOptions, EngineOptions, MeasuringOptions, MemoryMode, MemoryOptions, OnNan, PlanningOptions,
    SessionOptions, TrainerOptions,
};
pub use port::{Port, PortDescription};
pub use probe::{probe, Finding, ProbeOptions};
pub use serde_json::Value as JsonValue;
pub use session::{RunTimes, Session};
pub use trainer::{Evaluation, StepReport, Trainer};
