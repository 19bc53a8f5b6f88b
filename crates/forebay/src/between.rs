//! Counts the bytes of host memory that values between the stages of a model take, in addition to plans.

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::Tensor;

use crate::compile::Compiled;
use crate::tensor_info::TensorInfo;

/// Values by name: a run's inputs and what it has computed so far.
pub(crate) type Values = BTreeMap<String, Tensor>;

/// Counts the values that stages have produced and later stages will use. The caller's inputs belong to the caller and are not counted.
#[derive(Default)]
pub(crate) struct Between {
    /// The addresses at which the elements of the caller's inputs begin.
    given: BTreeSet<usize>,
    /// Bytes of the values outside the running loop, and of those that the loop has collected.
    outside_bytes: u64,
    /// The most bytes held at once.
    pub(crate) peak_bytes: u64,
}

impl Between {
    /// Starts counting for a run with these inputs.
    pub(crate) fn new(inputs: &Values) -> Between {
        Between { given: inputs.values().map(place).collect(), ..Between::default() }
    }

    /// Returns the bytes of the values held when a plan begins, and of those held once its outputs exist and the values that may be
    /// dropped are gone.
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

    /// Records that this many bytes are held.
    pub(crate) fn note(&mut self, bytes: u64) {
        self.peak_bytes = self.peak_bytes.max(bytes);
    }

    /// Begins a loop: values outside it stay where they are, and captured values are not counted twice. Returns the argument for
    /// [`Between::leave`].
    pub(crate) fn enter(&mut self, values: &Values, captured: &[(String, Tensor)]) -> (u64, Vec<usize>) {
        let before_bytes = self.outside_bytes;
        self.outside_bytes = self.held(values.values());
        let captured = captured.iter().map(|(_, value)| place(value)).filter(|&place| self.given.insert(place));
        (before_bytes, captured.collect::<Vec<_>>())
    }

    /// Counts a value that an iteration produced for the end of the loop. It counts twice, because it exists twice when all such values
    /// are joined.
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

    /// Returns the bytes of these values and of those outside the loop.
    fn held<'a>(&self, values: impl Iterator<Item = &'a Tensor>) -> u64 {
        let own = values.filter(|value| !self.given.contains(&place(value)));
        own.fold(self.outside_bytes, |sum, value| sum.saturating_add(value.bytes().len() as u64))
    }
}

fn size_bytes(info: &TensorInfo) -> u64 {
    forebay_base::host_tensor::packed_size_bytes(info.data_type, &info.shape).unwrap_or(u64::MAX)
}

/// Returns the address at which a tensor's elements begin. Clones share their elements.
fn place(tensor: &Tensor) -> usize {
    tensor.bytes().as_ptr() as usize
}
