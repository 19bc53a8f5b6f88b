//! Runs programs on a context.

use std::collections::BTreeMap;

use forebay_base::DataType;
use forebay_model::Tensor;
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::{Context, DeviceTensor, Event, Stream};

use crate::program::{EventName, Operator, Step, StreamName, Synchronization, TensorName};

/// What a program holds while it runs.
pub struct Player {
    context: Context,
    streams: BTreeMap<StreamName, Stream>,
    events: BTreeMap<EventName, Event>,
    /// The live tensors.
    pub tensors: BTreeMap<TensorName, DeviceTensor>,
}

impl Player {
    pub fn new(context: &Context) -> Player {
        let streams = BTreeMap::from([(0, context.default_stream())]);
        Player { context: context.clone(), streams, events: BTreeMap::new(), tensors: BTreeMap::new() }
    }

    /// Performs a step. Returns what the host reads, if it reads.
    pub fn step(&mut self, step: &Step) -> Result<Option<Vec<f32>>, RuntimeError> {
        match step {
            Step::NewStream { stream, priority } => {
                self.streams.insert(*stream, Stream::new(&self.context, *priority)?);
            }
            Step::DropStream { stream } => drop(self.streams.remove(stream)),
            Step::Compute { stream, operator, inputs, output } => {
                let _entered = self.streams[stream].enter();
                let tensor = self.compute(operator, inputs)?;
                self.tensors.insert(*output, tensor);
            }
            Step::CopyFrom { stream, to, from } => {
                let _entered = self.streams[stream].enter();
                self.tensors[to].copy_from(&self.tensors[from])?;
            }
            Step::Clone { of, clone } => {
                self.tensors.insert(*clone, self.tensors[of].clone());
            }
            Step::Drop { tensor } => drop(self.tensors.remove(tensor)),
            Step::ToHost { stream, tensor } => {
                let _entered = self.streams[stream].enter();
                return self.tensors[tensor].to_host().map(|array| array.to_f32());
            }
            Step::Record { event, stream, timing } => {
                let made = self.events.entry(*event).or_insert_with(|| Event::new(&self.context, *timing));
                made.record_on(&self.streams[stream])?;
            }
            Step::QueryStream { stream } => {
                self.streams[stream].query()?;
            }
            Step::QueryEvent { event } => {
                self.events[event].query()?;
            }
            Step::Synchronize(synchronization) => self.synchronize(*synchronization)?,
        }
        Ok(None)
    }

    fn synchronize(&self, synchronization: Synchronization) -> Result<(), RuntimeError> {
        match synchronization {
            Synchronization::WaitStream { stream, on } => self.streams[&stream].wait_stream(&self.streams[&on]),
            Synchronization::WaitEvent { stream, event } => self.streams[&stream].wait_event(&self.events[&event]),
            Synchronization::Stream(stream) => self.streams[&stream].synchronize(),
            Synchronization::Event(event) => self.events[&event].synchronize(),
            Synchronization::All => self.context.synchronize(),
        }
    }

    fn compute(&self, operator: &Operator, inputs: &[TensorName]) -> Result<DeviceTensor, RuntimeError> {
        let input = |place: usize| &self.tensors[&inputs[place]];
        match operator {
            Operator::FromHost { shape, values } => {
                DeviceTensor::from_host(&self.context, &Tensor::from_f32(shape, values))
            }
            Operator::Zeros { shape } => DeviceTensor::zeros(&self.context, DataType::Float32, shape),
            Operator::Add => input(0).add(input(1)),
            Operator::AddNumber(number) => input(0).add(*number),
            Operator::Mul => input(0).mul(input(1)),
            Operator::MatMul => input(0).matmul(input(1)),
            Operator::Relu => input(0).relu(),
            Operator::Sum => input(0).sum(),
        }
    }
}
