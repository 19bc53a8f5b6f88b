//! Loans: inputs that launches read, and outputs that they write, in the caller's memory.
//!
//! Before a step, the bytes of each input are lent to the device, and memory is allocated for each output. After the step the device gives
//! both back: inputs to their owners, and outputs to the caller that takes them.

use std::collections::BTreeMap;

use forebay_base::{MemoryId, Region};
use forebay_device::{Device, Loan};
use forebay_model::Tensor;
use forebay_plan::plan::MemoryKind;
use forebay_plan::{BackingLocation, Plan};

use crate::backing::tensor_bytes;
use crate::binding::Binding;
use crate::error::RuntimeError;

/// A memory of the device that is backed by an input or output.
#[derive(Clone, Debug)]
struct Place {
    memory: MemoryId,
    size_bytes: u64,
}

/// What a plan borrows for each step.
#[derive(Default)]
pub(crate) struct Loans {
    inputs: BTreeMap<String, Place>,
    outputs: BTreeMap<String, Place>,
    /// Outputs of the latest step that have not been taken.
    results: BTreeMap<String, Vec<u8>>,
}

impl Loans {
    /// Returns the loans of a plan.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Plan`] if the plan names a memory that it does not list.
    pub fn of(plan: &Plan, binding: &Binding) -> Result<Loans, RuntimeError> {
        let places = |backing: &[BackingLocation]| {
            let whole = backing.iter().filter_map(|backing| Some((&backing.name, backing.pieces.first()?.1)));
            let lent = whole.filter(|(_, region)| plan.memory(region.memory).kind == MemoryKind::Lent);
            let place = |(name, region): (&String, Region)| {
                let memory = binding.region(region)?.memory;
                Ok((name.clone(), Place { memory, size_bytes: plan.memory(region.memory).size_bytes }))
            };
            lent.map(place).collect::<Result<BTreeMap<_, _>, RuntimeError>>()
        };
        Ok(Loans { inputs: places(&plan.inputs)?, outputs: places(&plan.outputs)?, results: BTreeMap::new() })
    }

    /// Whether an input is read in place, in the caller's memory.
    pub fn has_input(&self, name: &str) -> bool {
        self.inputs.contains_key(name)
    }

    /// Whether any output is written to separate memory.
    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Lends an input for the next step: in place if possible, otherwise as a copy.
    pub fn lend(&self, device: &dyn Device, name: &str, tensor: &Tensor) {
        let Some(place) = self.inputs.get(name) else { return };
        device.give_back(place.memory);
        if device.lend(place.memory, Loan::ToRead(tensor.shared_bytes())).is_err() {
            self.write(device, name, tensor.bytes().to_vec());
        }
    }

    /// Like [`Loans::lend`], with bytes that are moved in. Zeros follow after the tensor's end.
    pub fn write(&self, device: &dyn Device, name: &str, mut bytes: Vec<u8>) {
        let Some(place) = self.inputs.get(name) else { return };
        bytes.resize(place.size_bytes as usize, 0);
        device.give_back(place.memory);
        if let Err(loan) = device.lend(place.memory, Loan::ToWrite(bytes)) {
            unreachable!("a vector of its size: {loan:?}");
        }
    }

    /// Before a step: allocates memory for the outputs.
    pub fn begin(&mut self, device: &dyn Device) {
        self.results.clear();
        for place in self.outputs.values() {
            device.give_back(place.memory);
            let memory = forebay_device::process::zeros(place.size_bytes as usize);
            if let Err(loan) = device.lend(place.memory, Loan::ToWrite(memory)) {
                unreachable!("a vector of its size: {loan:?}");
            }
        }
    }

    /// After a step, whether it succeeded or not: takes everything back from the device, on which nothing runs any more.
    pub fn end(&mut self, device: &dyn Device) {
        for place in self.inputs.values() {
            device.give_back(place.memory);
        }
        for (name, place) in &self.outputs {
            if let Some(Loan::ToWrite(bytes)) = device.give_back(place.memory) {
                self.results.insert(name.clone(), bytes);
            }
        }
    }

    /// The bytes of an output of the latest step, or `None` if it is stored elsewhere.
    pub fn result(&self, name: &str) -> Option<&[u8]> {
        self.results.get(name).map(Vec::as_slice)
    }

    /// Like [`Loans::result`], but moves the bytes out.
    pub fn take(&mut self, backing: &BackingLocation) -> Option<Vec<u8>> {
        let mut bytes = self.results.remove(&backing.name)?;
        bytes.truncate(tensor_bytes(backing) as usize);
        Some(bytes)
    }
}
