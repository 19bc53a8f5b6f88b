//! Train and run ONNX models whose tensors do not fit in device memory.
//!
//! You give Forebay a model and a memory budget. It plans every step ahead of time: what stays on the device, what moves to host
//! memory or to disk and back while other work goes on, and what is computed a second time instead. It never exceeds the budget, and
//! results are the same, bit for bit, as without one. Devices are the CPU (`host`) and GPUs through Vulkan (`vulkan`, the default
//! feature of the same name; drivers are loaded at run time).
//!
//! # Run a model
//!
//! ```
//! use forebay::{Model, Session, Tensor};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
//! let mut session = Session::builder(&model).device_memory("1MiB".parse()?).build()?;
//! let x = Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]);
//! let outputs = session.run([("x".to_string(), x)].into())?;
//! assert_eq!(outputs["logits"].shape(), [50, 10]);
//! # Ok(())
//! # }
//! ```
//!
//! # Train a model on a data set
//!
//! ```
//! use forebay::data::{self, Sampler};
//! use forebay::training::Optimizer;
//! use forebay::{Model, Trainer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::from_file("../../examples/digits/model.onnx")?;
//! let mut trainer = Trainer::builder(&model)
//!     .optimizer(Optimizer::adamw(1e-3))
//!     .batch_size(50)
//!     .device_memory("50%".parse()?) // of what a step takes without a budget
//!     .build()?;
//! let mut digits = data::open("../../examples/digits/digits.npz#0..1500", &trainer.data_requirements(1.0 / 16.0)?)?;
//! let mut sampler = Sampler::new(digits.sample_count(), 50, Some(7)); // shuffled
//! let mut losses = Vec::new();
//! for step in 0..5 {
//!     let batch = digits.batch(&sampler.batch(step))?;
//!     losses.push(trainer.step(batch.inputs, batch.labels)?.loss);
//! }
//! assert!(losses.iter().all(|loss| loss.is_finite()));
//! let budget_bytes = trainer.statistics().device_budget_bytes.unwrap();
//! assert!(trainer.usage().heap_peak_bytes <= budget_bytes);
//! # Ok(())
//! # }
//! ```
//!
//! # Ask whether a model fits on a machine that is not there
//!
//! ```
//! use forebay::{documents, Model, Trainer};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
//! let laptop = documents::machine("laptop-8gb")?; // or a TOML file
//! let trainer = Trainer::builder(&model).machine(laptop).build()?;
//! let statistics = trainer.statistics();
//! println!("{} of {} bytes on the device", statistics.device_peak_bytes, statistics.in_core_peak_bytes);
//! println!("{}", trainer.explain()); // what moves when, and why
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | to | start at |
//! |---|---|
//! | read a model | [`Model`], [`ModelBuilder`], [`Port`], [`PortDescription`] |
//! | hold data on the host | [`Tensor`], [`DataType`]; data sets in [`data`] |
//! | run | [`Session`], [`SessionBuilder`], [`RunTimes`] |
//! | train | [`Trainer`], [`TrainerBuilder`], [`training`], [`StepReport`], [`Evaluation`] |
//! | stop and go on | [`Checkpoint`], [`CheckpointFolder`] |
//! | choose a device | [`DeviceName`], [`DeviceOptions`], [`devices`], [`open_device`] |
//! | set budgets | [`MemoryOptions`], [`MemorySize`], [`MemoryMode`] |
//! | see or steer plans | [`PlanningOptions`], [`Explanation`], [`Statistics`], [`Plan`], [`SavedCosts`], [`documents`] |
//! | see what ran when | [`MeasuringOptions`], [`Session::trace`], [`Trainer::trace`] |
//! | launch single operations on streams | [`mod@eager`]: [`Context`], [`Stream`], [`Event`], [`DeviceTensor`] |
//! | use buffers larger than the device | [`managed`]: [`ManagedMemory`], [`ManagedBuffer`] |
//! | write files that appear whole or not at all | [`files`] |
//! | find out in which order a driver evicts | [`mod@probe`] |
//! | plan traces of other frameworks | [`mod@replay`] |
//! | handle failures | [`Error`] |
//!
//! Types whose names end in `Options` may get more fields: make them with `default` or `new`, and set fields or use a builder.

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
mod handover;
mod labels;
mod loss_plan;
mod machine;
pub mod managed;
pub mod model;
pub mod options;
mod pieces;
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

/// The examples of documents, compiled with those of the code.
#[cfg(doctest)]
mod documents_for_people {
    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
    #[doc = include_str!("../README.md")]
    struct Readme;
}
