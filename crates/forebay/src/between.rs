//! Values between the stages of a model: how many bytes of host memory they take next to plans.

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::Tensor;

use crate::compile::Compiled;
use crate::tensor_info::TensorInfo;

/// Values by name: what a run was given and what it has computed.
pub(crate) type Values = BTreeMap<String, Tensor>;

/// Counts what stages gave and others will take. What the caller gave is the caller's.
#[derive(Default)]
pub(crate) struct Between {
    /// Where the elements of the caller's inputs begin.
    given: BTreeSet<usize>,
    /// Bytes of values around the loop that runs, and of what it has collected.
    outside_bytes: u64,
    /// The most that there was at once.
    pub(crate) peak_bytes: u64,
}

impl Between {
    /// Before a run with these inputs.
    pub(crate) fn new(inputs: &Values) -> Between {
        Between { given: inputs.values().map(place).collect(), ..Between::default() }
    }

    /// Bytes of values when a plan begins, and once its outputs are there and what may go has gone.
    pub(crate) fn around(
        &self,
        compiled: &Compiled,
        values: &Values,
        may_go: &dyn Fn(&str) -> bool,
        goes_on: bool,
    ) -> (u64, u64) {
        let inputs: BTreeSet<&str> = compiled.step.plan().inputs.iter().map(|backing| backing.name.as_str()).collect();
        let stays = |name: &str| !(inputs.contains(name) && may_go(name));
        let before_bytes = self.held(values.values());
        let after_bytes = self.held(values.iter().filter(|(name, _)| stays(name)).map(|(_, value)| value));
        let outputs = compiled.outputs.iter().filter(|_| goes_on).map(size_bytes);
        (before_bytes, after_bytes.saturating_add(outputs.fold(0, u64::saturating_add)))
    }

    /// Notes how much there was.
    pub(crate) fn note(&mut self, bytes: u64) {
        self.peak_bytes = self.peak_bytes.max(bytes);
    }

    /// Begins a loop: values around it stay where they are, and what it captured is not counted twice. What [`Between::leave`] takes.
    pub(crate) fn enter(&mut self, values: &Values, captured: &[(String, Tensor)]) -> (u64, Vec<usize>) {
        let before_bytes = self.outside_bytes;
        self.outside_bytes = self.held(values.values());
        let captured = captured.iter().map(|(_, value)| place(value)).filter(|&place| self.given.insert(place));
        (before_bytes, captured.collect::<Vec<_>>())
    }

    /// Counts what an iteration gave for the loop's end: it will be there twice, when all of it is joined.
    pub(crate) fn collect(&mut self, value: &Tensor) {
        self.outside_bytes = self.outside_bytes.saturating_add(2 * value.bytes().len() as u64);
        self.note(self.outside_bytes);
    }

    /// Ends a loop.
    pub(crate) fn leave(&mut self, (outside_bytes, captured): (u64, Vec<usize>)) {
        captured.iter().for_each(|place| {
            self.given.remove(place);
        });
        self.outside_bytes = outside_bytes;
    }

    /// Bytes of these values, and of those around them.
    fn held<'a>(&self, values: impl Iterator<Item = &'a Tensor>) -> u64 {
        let own = values.filter(|value| !self.given.contains(&place(value)));
        own.fold(self.outside_bytes, |sum, value| sum.saturating_add(value.bytes().len() as u64))
    }
}

fn size_bytes(info: &TensorInfo) -> u64 {
    forebay_base::host_tensor::packed_size_bytes(info.data_type, &info.shape).unwrap_or(u64::MAX)
}

/// Where a tensor's elements begin: clones share them.
fn place(tensor: &Tensor) -> usize {
    tensor.bytes().as_ptr() as usize
}
