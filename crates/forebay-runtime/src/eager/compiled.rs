//! Operators made ready once: typed, lowered to launches, their constants on the device.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_model::program::{BufferId, Program};
use forebay_model::{Tensor, TensorType};

use super::span::Span;
use super::timeline::QueueId;

/// Operators that are kept; beyond that, all are forgotten.
const CACHE_COUNT_MAX: usize = 1024;

/// An input of an operator, as far as compiling looks at it.
pub(super) enum Slot {
    /// A tensor of this type.
    Tensor(TensorType),
    /// Known contents.
    Constant(Tensor),
    /// Left out.
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
    /// Types of its outputs.
    pub outputs: Vec<TensorType>,
    /// Constants that launches read.
    pub constants: BTreeMap<BufferId, Constant>,
    /// Workspace that its most demanding launch needs.
    pub workspace_bytes: u64,
}

/// Operators that are ready, by everything that they depend on.
#[derive(Default)]
pub(super) struct Cache {
    compiled: BTreeMap<Vec<u8>, Arc<Compiled>>,
}

impl Cache {
    pub fn get(&self, key: &[u8]) -> Option<Arc<Compiled>> {
        self.compiled.get(key).cloned()
    }

    /// Keeps an operator. What had to go for it is returned, to be dropped when no lock is held.
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
