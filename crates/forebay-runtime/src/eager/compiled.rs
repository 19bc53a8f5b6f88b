//! Operators that are prepared once: typed, lowered to launches, with their constants on the device.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_model::program::{BufferId, Program};
use forebay_model::{Tensor, TensorType};

use super::span::Span;
use super::timeline::QueueId;

/// The most operators that are kept; beyond that, all are dropped.
const CACHE_COUNT_MAX: usize = 1024;

/// An input of an operator, reduced to what compilation depends on.
pub(super) enum Slot {
    /// A tensor of this type.
    Tensor(TensorType),
    /// Known contents.
    Constant(Tensor),
    /// An omitted input.
    None,
}

/// A constant on the device.
pub(super) struct Constant {
    /// Its bytes.
    pub span: Span,
    /// The work that wrote them.
    pub written: (QueueId, u64),
}

/// An operator that is ready to be launched.
pub(super) struct Compiled {
    /// Its launches, on logical buffers. Inputs are in the order of the operator's tensors.
    pub program: Program,
    /// The types of its outputs.
    pub outputs: Vec<TensorType>,
    /// The constants that its launches read.
    pub constants: BTreeMap<BufferId, Constant>,
    /// The workspace that its most demanding launch needs.
    pub workspace_bytes: u64,
}

/// Operators that are ready to be launched, by everything that they depend on.
#[derive(Default)]
pub(super) struct Cache {
    compiled: BTreeMap<Vec<u8>, Arc<Compiled>>,
}

impl Cache {
    pub fn get(&self, key: &[u8]) -> Option<Arc<Compiled>> {
        self.compiled.get(key).cloned()
    }

    /// Adds an operator. Returns the operators that were removed for it, to be dropped when no lock is held.
    pub fn insert(&mut self, key: Vec<u8>, compiled: Arc<Compiled>) -> Cache {
        let full = self.compiled.len() >= CACHE_COUNT_MAX;
        let forgotten = if full { std::mem::take(self) } else { Cache::default() };
        self.compiled.insert(key, compiled);
        forgotten
    }

    pub fn is_empty(&self) -> bool {
        self.compiled.is_empty()
    }
}
