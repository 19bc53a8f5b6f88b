//! Train and run ONNX models whose tensors do not fit in device memory.
//!
//! A model runs within the device memory that it is given, and computes the same bits whatever that is:
//!
//! ```
//! use forebay::{Model, Session, SessionOptions, HostTensor};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let mut options = SessionOptions::default();
//! options.device.device_memory = Some("1MiB".parse()?); // or "50%" of what the model takes without a budget
//! let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
//! let mut session = Session::new(&model, &options)?;
//! let outputs = session.run([("x".to_string(), HostTensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]))].into())?;
//! assert_eq!(outputs["logits"].shape, [50, 10]);
//! # Ok(())
//! # }
//! ```
//!
//! The same for training. A [`Trainer`] takes batches and labels, and writes the trained model back as ONNX:
//!
//! ```
//! use forebay::training::{Loss, Optimizer, TrainingOptions};
//! use forebay::{Model, HostTensor, Trainer, TrainerOptions};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let training = TrainingOptions {
//!     loss: Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: None },
//!     loss_output: None,
//!     optimizer: Optimizer::Sgd { learning_rate: 0.05, momentum: 0.9, nesterov: false, weight_decay: 1e-4 },
//!     decay: None,
//!     freeze: vec!["conv1.*".to_string()],
//!     seed: 0,
//!     gradient_outputs: false,
//! };
//! let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
//! let mut trainer = Trainer::new(model, TrainerOptions::new(training))?;
//! let (x, labels) = (HostTensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), HostTensor::from_i64(&[50], &[7; 50]));
//! let first = trainer.step([("x".to_string(), x.clone())].into(), labels.clone())?;
//! let second = trainer.step([("x".to_string(), x)].into(), labels)?;
//! assert!(second.loss < first.loss);
//! # Ok(())
//! # }
//! ```
//!
//! Eager work on streams of one's own choosing ([`eager`]): a [`Context`] on a device, its [`Stream`]s and [`Event`]s, and
//! [`Tensor`]s in its memory.
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

pub mod checkpoint;
mod compile;
pub mod documents;
mod engine;
pub mod error;
pub mod explain;
mod export;
pub mod files;
mod forecast;
mod handover;
mod labels;
mod loss_plan;
mod machine;
pub mod model;
pub mod options;
pub mod port;
pub mod probe;
pub mod replay;
mod runner;
pub mod session;
pub mod trainer;

pub use checkpoint::{Checkpoint, CheckpointFolder};
pub use error::Error;
pub use explain::{command_lines, memory_picture, Explanation};
pub use forebay_base::{ByteRange, DataType};
pub use forebay_data as data;
pub use forebay_device as device;
pub use forebay_device::{Device, DeviceUsage};
pub use forebay_limits as limits;
pub use forebay_memory as memory;
pub use forebay_memory::size::{self as budget, MemorySize};
pub use forebay_model::graph::Attribute;
pub use forebay_model::graph::Dimension;
pub use forebay_model::{training, Tensor as HostTensor};
pub use forebay_plan::plan::{Plan, Statistics};
pub use forebay_plan::{LaunchOrder, MachineDescription, SavedCosts};
pub use forebay_runtime::eager::managed::{self, ManagedBuffer, ManagedMemory, ManagedOptions};
pub use forebay_runtime::eager::{self, Context, ContextOptions, Event, Stream, StreamGuard, Tensor};
pub use forebay_runtime::{RuntimeError, StepMoves};
pub use forebay_vulkan as vulkan;
pub use forecast::{Replan, ReplanReason};
pub use machine::{devices, DeviceDescription};
pub use model::Model;
pub use options::{DeviceOptions, MemoryMode, OnNan, TrainerOptions};
pub use port::{Port, PortDescription};
pub use probe::{probe, Finding, ProbeOptions};
pub use serde_json;
pub use session::{RunTimes, Session, SessionOptions};
pub use trainer::{Evaluation, StepReport, Trainer};
