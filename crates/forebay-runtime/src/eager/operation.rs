//! Operations: ONNX operators, launched on the current stream.

use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Range;
use std::sync::Arc;

use forebay_base::{Binding, Command, DataType, Launch};
use forebay_memory::eviction::Access;
use forebay_model::graph::Attribute;
use forebay_model::operators::NEWEST_OPSET;
use forebay_model::program::{BufferId, Operand};
use forebay_model::{Operation as GraphOperation, Tensor};

use super::batch::Batch;
use super::compile::compile;
use super::compiled::{Compiled, Constant, Slot};
use super::context::Context;
use super::managed::ManagedMemory;
use super::shared::State;
use super::span::Span;
use super::stream::Stream;
use super::tensor::DeviceTensor;
use super::timeline::Agent;
use super::units::{Buffer, PinnedUnits};
use crate::error::RuntimeError;

/// Arrays with more bytes are uploaded every time instead of being kept with the compiled operator.
const CONSTANT_BYTES_MAX: usize = 4096;

/// An input of an operation.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_base::Tensor;
/// use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let a = DeviceTensor::from_host(&context, &Tensor::from_f32(&[2], &[1.0, 2.0]))?;
/// let sum = a.add(Tensor::from_f32(&[2], &[10.0, 20.0]))?; // a tensor of the host
/// let sum = sum.add(&a)?; // or one of the device
/// assert_eq!(sum.to_host()?.to_f32(), Some(vec![12.0, 24.0]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A tensor on the device.
    DeviceTensor(&'a DeviceTensor),
    /// An array on the host. Small ones are known when shapes are computed (such as the sizes of a `Reshape`).
    Host(Tensor),
    /// A scalar of the type of the operation's first tensor.
    Number(f64),
    /// An omitted optional input.
    None,
}

impl<'a> From<&'a DeviceTensor> for Input<'a> {
    fn from(tensor: &'a DeviceTensor) -> Input<'a> {
        Input::DeviceTensor(tensor)
    }
}

impl From<Tensor> for Input<'_> {
    fn from(array: Tensor) -> Self {
        Input::Host(array)
    }
}

impl From<f64> for Input<'_> {
    fn from(number: f64) -> Self {
        Input::Number(number)
    }
}

impl From<f32> for Input<'_> {
    fn from(number: f32) -> Self {
        Input::Number(number.into())
    }
}

/// An ONNX operator of the default domain with its inputs and attributes, not yet launched.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_base::Tensor;
/// use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let a = DeviceTensor::from_host(&context, &Tensor::from_f32(&[3], &[-1.0, 0.0, 2.0]))?;
/// let clamped = context.operation("Relu").input(&a).run_single()?; // any operator of ONNX by its name
/// assert_eq!(clamped.to_host()?.to_f32(), Some(vec![0.0, 0.0, 2.0]));
/// # Ok(())
/// # }
/// ```
#[must_use = "an operation does nothing until it is run"]
pub struct Operation<'a> {
    context: &'a Context,
    op_type: String,
    name: Option<String>,
    attributes: BTreeMap<String, Attribute>,
    inputs: Vec<Input<'a>>,
    managed: Option<&'a ManagedMemory>,
}

impl Context {
    /// An ONNX operator to run on the current stream.
    pub fn operation<'a>(&'a self, op_type: &str) -> Operation<'a> {
        Operation::new(self, op_type)
    }
}

impl<'a> Operation<'a> {
    fn new(context: &'a Context, op_type: &str) -> Operation<'a> {
        let (op_type, inputs) = (op_type.to_string(), Vec::new());
        Operation { context, op_type, name: None, attributes: BTreeMap::new(), inputs, managed: None }
    }

    /// Sets the name used in messages, memory snapshots and the race checker; by default, the operator's type with a number.
    pub fn name(mut self, name: &str) -> Operation<'a> {
        self.name = Some(name.to_string());
        self
    }

    /// Sets an attribute.
    pub fn attribute(mut self, name: &str, value: Attribute) -> Operation<'a> {
        self.attributes.insert(name.to_string(), value);
        self
    }

    /// Adds the next input.
    pub fn input(mut self, input: impl Into<Input<'a>>) -> Operation<'a> {
        self.inputs.push(input.into());
        self
    }

    /// Puts the outputs into managed memory, a buffer for each.
    pub fn managed(mut self, memory: &'a ManagedMemory) -> Operation<'a> {
        self.managed = Some(memory);
        self
    }

    /// Launches the operation and returns its first output.
    ///
    /// # Errors
    /// As for [`Operation::run`].
    pub fn run_single(self) -> Result<DeviceTensor, RuntimeError> {
        let mut outputs = self.run(1)?;
        outputs.pop().ok_or_else(|| RuntimeError::Tensor { reason: "the operation has no output".to_string() })
    }

    /// Launches the operation on the current stream and returns its first `output_count` outputs, before it has run.
    ///
    /// # Errors
    /// Fails if the operator is unknown or rejects its inputs, if tensors belong to different contexts, if memory runs out, or if the
    /// device fails.
    pub fn run(mut self, output_count: usize) -> Result<Vec<DeviceTensor>, RuntimeError> {
        let stream = self.context.current_stream();
        self.resolve_inputs()?;
        let key = self.key(output_count);
        // In a separate statement, so that the lock is not held while compiling.
        let found = self.context.cache().get(&key);
        let compiled = match found {
            Some(compiled) => compiled,
            None => {
                let operation = GraphOperation::Onnx {
                    domain: String::new(),
                    op_type: self.op_type.clone(),
                    version: NEWEST_OPSET,
                    attributes: self.attributes.clone(),
                };
                let compiled = compile(self.context, &stream, operation, self.slots(), output_count)?;
                let compiled = Arc::new(compiled);
                let forgotten = self.context.cache().insert(key, compiled.clone());
                drop(forgotten);
                compiled
            }
        };
        self.launch(&stream, &compiled)
    }

    /// Turns numbers into arrays, and checks that everything belongs to one context.
    fn resolve_inputs(&mut self) -> Result<(), RuntimeError> {
        let mut data_type = DataType::Float32;
        if let Some(first) = self.tensors().next() {
            data_type = first.data_type();
        }
        if self.tensors().any(|tensor| !tensor.context().is(self.context)) {
            return Err(RuntimeError::OtherContext { what: "an operation and a tensor" });
        }
        if self.managed.is_some_and(|memory| !memory.context().is(self.context)) {
            return Err(RuntimeError::OtherContext { what: "an operation and a managed memory" });
        }
        for input in &mut self.inputs {
            if let Input::Number(number) = input {
                *input = Input::Host(scalar(data_type, *number)?);
            }
        }
        Ok(())
    }

    fn tensors(&self) -> impl Iterator<Item = &'a DeviceTensor> + '_ {
        self.inputs.iter().filter_map(|input| match input {
            Input::DeviceTensor(tensor) => Some(*tensor),
            _ => None,
        })
    }

    fn slots(&self) -> Vec<Slot> {
        let slot = |input: &Input| match input {
            Input::DeviceTensor(tensor) => Slot::Tensor(tensor.ty().clone()),
            Input::Host(array) if array.bytes().len() > CONSTANT_BYTES_MAX => Slot::Tensor(array.ty()),
            Input::Host(array) => Slot::Constant(array.clone()),
            Input::Number(_) | Input::None => Slot::None,
        };
        self.inputs.iter().map(slot).collect()
    }

    /// Everything that the compiled operator depends on.
    fn key(&self, output_count: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(128);
        let text = |key: &mut Vec<u8>, text: &str| {
            key.extend_from_slice(&(text.len() as u64).to_le_bytes());
            key.extend_from_slice(text.as_bytes());
        };
        text(&mut key, &self.op_type);
        key.extend_from_slice(&[output_count as u8, self.attributes.len() as u8]);
        for (name, value) in &self.attributes {
            text(&mut key, name);
            text(&mut key, &format!("{value:?}"));
        }
        for slot in self.slots() {
            let (tag, ty, bytes) = match &slot {
                Slot::Tensor(ty) => (0, Some(ty.clone()), None),
                Slot::Constant(array) => (1, Some(array.ty()), Some(&array.bytes())),
                Slot::None => (2, None, None),
            };
            key.push(tag);
            if let Some(ty) = ty {
                key.extend_from_slice(&[ty.data_type as u8, ty.shape.len() as u8]);
                ty.shape.iter().for_each(|size| key.extend_from_slice(&size.to_le_bytes()));
            }
            key.extend(bytes.into_iter().flat_map(|bytes| bytes.iter()));
        }
        key
    }

    fn launch(&self, stream: &Stream, compiled: &Compiled) -> Result<Vec<DeviceTensor>, RuntimeError> {
        let (context, program, origin) = (self.context, &compiled.program, Agent::Queue(stream.queue()));
        // An operation with a name can also be found by it in snapshots.
        let owner = self.name.as_deref().unwrap_or(&self.op_type);
        let outputs = compiled
            .outputs
            .iter()
            .map(|ty| match self.managed {
                Some(memory) => memory.tensor(ty.data_type, &ty.shape),
                None => DeviceTensor::uninitialized(context, stream, ty.clone(), owner),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut spans: BTreeMap<BufferId, Span> = BTreeMap::new();
        for (named, input) in program.inputs.iter().zip(self.device_inputs()?) {
            spans.insert(named.operand.buffer, input);
        }
        for (&buffer, constant) in &compiled.constants {
            spans.insert(buffer, constant.span.clone());
        }
        for (named, output) in program.outputs.iter().zip(&outputs) {
            spans.insert(named.operand.buffer, output.slice().span().clone());
        }
        for operand in program.launches.iter().flat_map(|launch| &launch.writes) {
            if let Entry::Vacant(entry) = spans.entry(operand.buffer) {
                let size_bytes = program.buffer(operand.buffer).size_bytes;
                entry.insert(context.span(origin, size_bytes, owner)?);
            }
        }
        let workspace = (compiled.workspace_bytes > 0)
            .then(|| context.span(origin, compiled.workspace_bytes, "scratch"))
            .transpose()?;
        self.submit(stream, compiled, &spans, workspace.as_ref())?;
        Ok(outputs)
    }

    /// The bytes of the operator's tensors, in order. Large arrays are uploaded.
    fn device_inputs(&self) -> Result<Vec<Span>, RuntimeError> {
        let mut spans = Vec::new();
        for input in &self.inputs {
            match input {
                Input::DeviceTensor(tensor) => spans.push(tensor.slice().span().clone()),
                Input::Host(array) if array.bytes().len() > CONSTANT_BYTES_MAX => {
                    spans.push(DeviceTensor::from_host(self.context, array)?.slice().span().clone());
                }
                _ => {}
            }
        }
        Ok(spans)
    }

    fn submit(
        &self,
        stream: &Stream,
        compiled: &Compiled,
        spans: &BTreeMap<BufferId, Span>,
        workspace: Option<&Span>,
    ) -> Result<(), RuntimeError> {
        let shared = self.context.shared();
        let mut residency = PinnedUnits::new(managed(compiled, spans))?;
        let mut state = shared.lock();
        let mut batch = Batch::default();
        residency.order(stream.queue(), &mut state, &mut batch);
        for Constant { written: (on, position), .. } in compiled.constants.values() {
            state.come_after(stream.queue(), *on, *position, &mut batch);
        }
        state.operation_count += 1;
        let name = self.label(&state);
        let mut position = 0;
        for launch in &compiled.program.launches {
            let bind = |operands: &[Operand]| operands.iter().map(|operand| binding(operand, spans)).collect();
            let launch = Launch {
                kernel: launch.kernel.clone(),
                reads: bind(&launch.reads),
                writes: bind(&launch.writes),
                workspace: workspace
                    .filter(|_| launch.workspace_bytes > 0)
                    .map(|workspace| workspace.region().part(0, launch.workspace_bytes)),
                label: state.operation_count as u32,
            };
            let command = Command::Launch { stream: state.stream(stream.queue()), launch: Box::new(launch) };
            position = state.work(stream.queue(), command, &name, &mut batch)?;
        }
        for span in spans.values().chain(workspace) {
            span.add_use(&mut state, stream.queue(), position);
        }
        residency.add_use(stream.queue(), position);
        shared.submit(&mut state, &batch)
    }

    fn label(&self, state: &State) -> Arc<str> {
        match &self.name {
            Some(name) => name.as_str().into(),
            None if state.recording.is_some() => format!("{}#{}", self.op_type, state.operation_count).into(),
            None => self.op_type.as_str().into(),
        }
    }
}

/// How an operator's launches access managed bytes. Bytes that one of them writes have no earlier contents.
fn managed<'a>(
    compiled: &'a Compiled,
    spans: &'a BTreeMap<BufferId, Span>,
) -> impl Iterator<Item = (&'a Buffer, Range<u64>, Access)> {
    spans.iter().filter_map(|(buffer, span)| {
        let (bytes, range, _) = span.managed(Access::Read)?;
        let mut writes = compiled.program.launches.iter().flat_map(|launch| &launch.writes);
        let is_written = writes.any(|operand| operand.buffer == *buffer);
        Some((bytes, range, if is_written { Access::Overwrite } else { Access::Read }))
    })
}

fn binding(operand: &Operand, spans: &BTreeMap<BufferId, Span>) -> Binding {
    // Every buffer that launches use is an input, a constant or written by a launch; lowering validates that.
    let region = spans[&operand.buffer].region();
    Binding { region: region.part(operand.offset_bytes, operand.desc.total_size_bytes()), desc: operand.desc.clone() }
}

/// A scalar array.
fn scalar(data_type: DataType, number: f64) -> Result<Tensor, RuntimeError> {
    let bytes = match data_type {
        DataType::Float64 => number.to_le_bytes().to_vec(),
        DataType::Float32 => (number as f32).to_le_bytes().to_vec(),
        DataType::Int64 => (number as i64).to_le_bytes().to_vec(),
        DataType::Int32 => (number as i32).to_le_bytes().to_vec(),
        other => {
            return Err(RuntimeError::Tensor {
                reason: format!("the number {number} cannot be converted to {other} here"),
            });
        }
    };
    Tensor::new(data_type, &[], bytes).ok_or_else(|| RuntimeError::Tensor { reason: "a scalar is one element".into() })
}
