//! Which memory budgets, and who moves what between memories.

use std::path::PathBuf;

use forebay_memory::size::MemorySize;
use forebay_runtime::eager::managed::Policy;
use forebay_runtime::Strategy;

use crate::error::Error;

/// Who decides what is on the device. No result depends on it.
///
/// ```
/// use forebay::{MemoryMode, Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let session = Session::builder(&model).device("null".parse()?).memory_mode(MemoryMode::Automatic).build()?;
/// assert!(session.statistics().minimum_budget_bytes > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryMode {
    /// A plan, made before the first step.
    #[default]
    Planned,
    /// Managed memory, of which the framework says every move.
    Direct,
    /// Managed memory, with hints of the framework: what comes, and what is needed no longer.
    Cooperative,
    /// Managed memory alone.
    Automatic,
}

/// How much memory may be used, and who decides what is where.
///
/// ```
/// let mut memory = forebay::MemoryOptions::default();
/// memory.device_memory = Some("256MiB".parse()?);
/// memory.spill_dir = Some(std::env::temp_dir());
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// Memory that the whole process may take, as the system counts it (its resident memory): weights, activations, gradients,
    /// state, batches, the program itself. Only for devices whose memory is the host's. A share is one of what the process would
    /// take without a limit. What does not fit is recomputed, and where a folder to spill to is named and recomputation does not
    /// suffice, it goes there. It takes the place of the other two budgets.
    pub memory_limit: Option<MemorySize>,
    /// Device memory that may exist at once; unlimited where not given.
    pub device_memory: Option<MemorySize>,
    /// Host memory for swapped tensors, inputs, outputs and staging; unlimited where not given.
    pub host_memory: Option<MemorySize>,
    /// A folder for what exceeds the host memory: files without names, gone when the process ends. Where none is given, what
    /// exceeds it is an error.
    pub spill_dir: Option<PathBuf>,
    /// Who decides what is on the device.
    pub mode: MemoryMode,
    /// In which order managed memory evicts when it is left alone ([`MemoryMode::Automatic`]); as a driver of unified memory
    /// does where not given.
    pub eviction: Option<Policy>,
    /// Whether managed memory takes device memory as it needs it. Without, it takes all that it may have at the start and
    /// keeps it. A plan always takes all that it needs at the start.
    pub growth: bool,
}

impl Default for MemoryOptions {
    fn default() -> MemoryOptions {
        MemoryOptions {
            memory_limit: None,
            device_memory: None,
            host_memory: None,
            spill_dir: None,
            mode: MemoryMode::default(),
            eviction: None,
            growth: true,
        }
    }
}

impl MemoryOptions {
    /// What managed memory is told; none where a plan decides.
    ///
    /// # Errors
    /// An order of eviction where the mode has its own.
    pub(crate) fn strategy(&self) -> Result<Option<Strategy>, Error> {
        if self.eviction.is_some() && self.mode != MemoryMode::Automatic {
            let reason =
                "an order of eviction has a meaning only for memory that is left alone: add --memory automatic, or \
                          leave --eviction out";
            return Err(Error::Option { reason: reason.to_string() });
        }
        Ok(match self.mode {
            MemoryMode::Planned => None,
            MemoryMode::Direct => Some(Strategy::Direct),
            MemoryMode::Cooperative => Some(Strategy::Cooperative),
            MemoryMode::Automatic => Some(Strategy::Automatic(self.eviction.unwrap_or(Policy::Driver))),
        })
    }

    /// Turns budgets that are shares into bytes, so that plans made later have the budgets of the first one.
    pub(crate) fn fix_budgets(&mut self, in_core_peak_bytes: u64) {
        for size in [&mut self.device_memory, &mut self.host_memory].into_iter().flatten() {
            *size = MemorySize::Bytes(size.resolve(in_core_peak_bytes));
        }
    }
}
