//! Train and run ONNX models whose tensors do not fit in device memory.
//!
//! You give Forebay a model and a memory budget. It plans every step ahead of time: what stays on the device, what moves to host memory
//! or to disk and back while other work goes on, and what is recomputed instead. It never exceeds the budget, and its results are the
//! same, bit for bit, as without one. It runs on the CPU (`host`) and on GPUs through Vulkan (`vulkan`, behind the default feature of the
//! same name; drivers are loaded at run time).
//!
//! # Run a model
//!
//! ```
//! use forebay::{Model, Session, Tensor};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
//! let mut session = Session::builder(&model).simulate_device("1MiB".parse()?).build()?;
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
//!     .simulate_device("50%".parse()?) // of what a step takes without a budget
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
//! # Check whether a model fits on a machine that you do not have
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
//! | read a model | [`Model`], [`ModelBuilder`], [`TensorInfo`], [`ValueInfo`] |
//! | hold data on the host | [`Tensor`], [`DataType`]; data sets in [`data`] |
//! | run | [`Session`], [`SessionBuilder`], [`RunTimes`], [`PlanCache`] |
//! | train | [`Trainer`], [`TrainerBuilder`], [`training`], [`StepReport`], [`Evaluation`], [`Windows`] |
//! | stop and resume | [`Checkpoint`], [`CheckpointFolder`] |
//! | choose a device | [`DeviceName`], [`DeviceOptions`], [`devices`], [`open_device`] |
//! | set budgets | [`MemoryOptions`], [`MemoryLimit`], [`MemorySize`], [`MemoryMode`] |
//! | see or steer plans | [`PlanningOptions`], [`Explanation`], [`Statistics`], [`Plan`], [`SavedCosts`], [`documents`] |
//! | plan and simulate many processes | [`Ranks`], [`SimulatedStep`], [`Trainer::simulate`], [`Session::simulate`] |
//! | see what ran when | [`MeasuringOptions`], [`Session::trace`], [`Trainer::trace`] |
//! | launch single operations on streams | [`mod@eager`]: [`Context`], [`Stream`], [`Event`], [`DeviceTensor`] |
//! | use buffers larger than the device | [`managed`]: [`ManagedMemory`], [`ManagedBuffer`] |
//! | write files atomically | [`files`] |
//! | find a driver's eviction order | [`mod@probe`] |
//! | plan traces from other frameworks | [`mod@replay`] |
//! | handle failures | [`Error`] |
//!
//! Types whose names end in `Options` may gain fields: create them with `default` or `new`, then set fields or use a builder.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod adapters;
mod alike;
mod between;
pub mod builder;
pub mod checkpoint;
mod compile;
mod continued_search;
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
mod layers;
mod loss_plan;
mod machine;
pub mod managed;
mod merged;
pub mod metrics;
pub mod model;
pub mod options;
mod pieces;
pub mod probe;
mod process_group;
mod process_memory;
mod progress;
mod ranks;
pub mod replay;
mod runner;
mod schedule;
pub mod session;
mod shards;
mod stage_budget;
mod stages;
mod step_report;
pub mod tensor_info;
pub mod trainer;
pub mod training;
mod weights;
mod windows;

pub use builder::{ModelBuilder, SessionBuilder, TrainerBuilder};
pub use checkpoint::{Checkpoint, CheckpointFolder};
pub use eager::{Context, ContextOptions, DeviceTensor, Event, Stream, StreamGuard};
pub use error::Error;
pub use explain::{Explanation, HostOperatorExplanation, command_lines, memory_picture};
/// ```
/// let device = forebay::open_device(&forebay::DeviceOptions::default())?;
/// let limits: &forebay::Limits = device.limits();
/// assert!(limits.tile_size_bytes.is_power_of_two() && limits.workers > 0);
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_base::Limits;
pub use forebay_base::{ByteRange, DataType, Tensor, TensorType};
pub use forebay_device::Device;
/// ```
/// use forebay::DeviceError;
///
/// let error = DeviceError::Unsupported { kernel: "MatMul", reason: "its operands are complex".to_string() };
/// assert_eq!(error.to_string(), "MatMul cannot run: its operands are complex");
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_device::DeviceError;
/// ```
/// let model = forebay::Model::from_file("../../examples/digits/model.onnx")?;
/// let session = forebay::Session::builder(&model).batch_size(8).simulate_device("1MiB".parse()?).build()?;
/// let usage: forebay::DeviceUsage = session.usage();
/// assert!(usage.heap_peak_bytes <= 1 << 20 && usage.disk_peak_bytes == 0);
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_device::DeviceUsage;
/// ```
/// // One device for two sessions: its memory is counted once.
/// use forebay::{Model, Session, SessionOptions};
///
/// let options = SessionOptions::default();
/// let device = forebay::open_device(&options.engine.device)?;
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// let session = Session::builder(&model).batch_size(8).build_on(device.clone())?;
/// assert_eq!(session.usage().heap_bytes, device.usage().heap_bytes);
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_device::communicator;
/// ```
/// let model = forebay::Model::from_file("../../examples/digits/model.onnx")?;
/// let session = forebay::Session::builder(&model).batch_size(8).device("null".parse()?).build()?;
/// let picture: forebay::Picture = forebay::memory_picture(session.plan().expect("the sizes are known"), "digits");
/// assert!(picture.svg().starts_with("<svg"));
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_memory::Picture;
pub use forebay_memory::size::{MemorySize, MemorySizeError, format_bytes};
/// ```
/// use forebay::{Error, Model, ModelError};
///
/// let error = Model::from_bytes(b"no model").unwrap_err();
/// assert!(matches!(error, Error::Model(ModelError::Malformed { .. })));
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_model::ModelError;
pub use forebay_model::graph::{Attribute, Dimension, Structure};
/// ```
/// use forebay::{DeviceBudgetSetting, Error, Model, PlanError, Session};
///
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// let built = Session::builder(&model).batch_size(8).simulate_device("4KiB".parse()?).build();
/// let Err(Error::Plan(PlanError::DeviceBudget { setting, .. })) = built else { panic!("4 KiB are too few") };
/// assert_eq!(setting, DeviceBudgetSetting::SimulatedDevice);
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_plan::DeviceBudgetSetting;
/// ```
/// use forebay::{LaunchOrder, PlanningOptions};
///
/// let mut planning = PlanningOptions::default();
/// assert_eq!(planning.order, LaunchOrder::Barriers);
/// planning.order = LaunchOrder::File; // as the model has them
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_plan::LaunchOrder;
pub use forebay_plan::MachineDescription;
pub use forebay_plan::Network;
/// ```
/// use forebay::{Error, Model, PlanError, Session};
///
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// let built = Session::builder(&model).batch_size(8).simulate_device("4KiB".parse()?).build();
/// let Err(Error::Plan(PlanError::DeviceBudget { minimum_bytes, .. })) = built else { panic!("4 KiB are too few") };
/// assert!(minimum_bytes > 4096);
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_plan::PlanError;
/// ```
/// // What one session assumed or measured is what the next plan is a function of.
/// use forebay::{Model, SavedCosts, Session};
///
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// let session = Session::builder(&model).batch_size(8).device("null".parse()?).build()?;
/// let costs: SavedCosts = session.costs().expect("the sizes are known");
/// let again = Session::builder(&model).batch_size(8).device("null".parse()?).costs(costs).build()?;
/// assert_eq!(session.plan(), again.plan());
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_plan::SavedCosts;
/// ```
/// use forebay::{Error, Model, PlanError, Session, SessionOptions, StopRequest};
///
/// let stop = StopRequest::default();
/// let mut options = SessionOptions::default();
/// options.engine.planning.stop = stop.clone();
/// stop.make(); // usually in another thread, while planning takes place
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// options.batch_size = Some(8);
/// let built = Session::new(&model, &options);
/// assert!(matches!(built, Err(Error::Plan(PlanError::Stopped))));
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_plan::StopRequest;
/// ```
/// let model = forebay::Model::from_file("../../examples/digits/model.onnx")?;
/// let session = forebay::Session::builder(&model).batch_size(8).device("null".parse()?).build()?;
/// let plan: &forebay::Plan = session.plan().expect("the sizes are known");
/// assert_eq!((plan.inputs.len(), plan.outputs.len()), (1, 1));
/// println!("{} commands a step, for {} launches", plan.commands.len(), plan.labels.len());
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_plan::distribute::{Shard, SharedWork};
pub use forebay_plan::plan::Plan;
/// ```
/// let model = forebay::Model::from_file("../../examples/digits/model.onnx")?;
/// let session = forebay::Session::builder(&model).batch_size(8).simulate_device("70%".parse()?).build()?;
/// let statistics: &forebay::Statistics = session.statistics().expect("the sizes are known");
/// assert!(statistics.device_peak_bytes < statistics.in_core_peak_bytes);
/// assert!(statistics.bytes_to_device > 0, "what does not stay comes back");
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_plan::plan::Statistics;
/// ```
/// use forebay::RuntimeError;
///
/// let error = RuntimeError::UnknownTensor { kind: "input", name: "x".to_string() };
/// assert_eq!(error.to_string(), "the plan has no input 'x'");
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_runtime::RuntimeError;
/// ```
/// use forebay::{MemoryMode, Model, Session, StepMoves, Tensor};
///
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// let mut session = Session::builder(&model).batch_size(8).memory_mode(MemoryMode::Automatic).build()?;
/// let inputs = session.inputs().iter().map(|info| (info.name.clone(), Tensor::from_f32(&[8, 1, 8, 8], &[0.0; 8 * 64])));
/// session.run(inputs.collect())?;
/// let moves: StepMoves = session.last_run().moves.expect("managed memory counts them");
/// assert_eq!(moves.bytes_to_disk, 0);
/// # Ok::<(), forebay::Error>(())
/// ```
pub use forebay_runtime::StepMoves;
pub use forecast::{Replan, ReplanReason};
pub use loss_plan::PartsApart;
pub use machine::{DeviceDescription, devices, open_device};
pub use managed::{ManagedBuffer, ManagedMemory, ManagedOptions};
pub use model::Model;
pub use options::{
    DeviceName, DeviceOptions, EngineOptions, HostOperators, MeasuringOptions, MemoryLimit, MemoryMode, MemoryOptions,
    OnNan, PlanSearch, PlanningOptions, ProcessLimit, SessionOptions, TrainerOptions, Updates,
};
pub use probe::{Finding, ProbeOptions, probe};
pub use process_group::{Exchanged, ProcessGroup, check_plans};
pub use ranks::{Ranks, SimulatedRank, SimulatedStep, ranges};
pub use serde_json::Value as JsonValue;
pub use session::{RunTimes, Session};
pub use stages::PlanCache;
pub use step_report::{Evaluation, StepReport};
pub use tensor_info::{TensorInfo, Value, ValueInfo};
pub use trainer::Trainer;
pub use windows::{Blend, Windows};

/// The examples in the documentation, compiled together with those in the code.
#[cfg(doctest)]
mod documents_for_people {
    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
    #[doc = include_str!("../README.md")]
    struct Readme;
}
