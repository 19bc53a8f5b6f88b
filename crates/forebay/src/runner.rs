//! Runners of steps: the executor of a plan, or the same launches over managed memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_device::Device;
use forebay_model::Tensor;
use forebay_model::tensor::Contents;
use forebay_plan::{Paging, Plan};
use forebay_runtime::trace::Trace;
use forebay_runtime::{Decision, Executor, PagedExecutor, PagedOptions, RuntimeError, StepTimes};

/// A step that is ready to be put on a device.
pub(crate) enum Step {
    /// Every move is planned. Spill files go into the folder.
    Planned(Plan, Option<PathBuf>),
    /// Managed memory moves what it is asked or told to.
    Paged(Paging, PagedOptions),
}

impl Step {
    /// Returns the launches, the places of tensors between steps, and statistics.
    pub(crate) fn plan(&self) -> &Plan {
        match self {
            Step::Planned(plan, _) => plan,
            Step::Paged(paging, _) => &paging.plan,
        }
    }
}

/// A step on a device.
pub(crate) enum Runner {
    /// The executor of a plan.
    Planned(Box<Executor>),
    /// The executor over managed memory.
    Paged(Box<PagedExecutor>),
}

/// A function that reads an output by its name.
pub(crate) type ReadOutput<'a> = &'a dyn Fn(&str) -> Result<Tensor, RuntimeError>;

impl Runner {
    /// Puts a step on a device. For a plan, this only creates the memory: [`Runner::load`] is then called for all [`Runner::missing`],
    /// followed by [`Runner::complete`]. `shared` is the memory that the plan shares with other plans; of the contents, only those that the
    /// plan reads from the model's files are used. Over managed memory, this includes the contents of persistent tensors.
    ///
    /// # Errors
    /// Fails if the device or managed memory reports an error.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        step: &Step,
        contents: &dyn Fn() -> BTreeMap<String, Contents>,
        shared: Vec<Arc<Executor>>,
    ) -> Result<Runner, RuntimeError> {
        Ok(match step {
            Step::Planned(plan, _) if !shared.is_empty() => {
                Runner::Planned(Box::new(Executor::sharing(device, plan.clone(), shared)?))
            }
            Step::Planned(plan, spill_dir) => {
                let reads_files = plan.statistics.model_files_bytes > 0;
                let contents = if reads_files { contents() } else { BTreeMap::new() };
                Runner::Planned(Box::new(Executor::empty(device, plan.clone(), &contents, spill_dir.as_deref())?))
            }
            Step::Paged(paging, options) => {
                Runner::Paged(Box::new(PagedExecutor::new(device, paging.clone(), &contents(), options)?))
            }
        })
    }

    /// Returns the names of the persistent tensors that have no contents yet.
    pub(crate) fn missing(&self) -> Vec<String> {
        match self {
            Runner::Planned(executor) => executor.persistent_names().map(str::to_owned).collect(),
            Runner::Paged(_) => Vec::new(),
        }
    }

    /// Loads contents, or zeros, into a persistent tensor of a plan.
    ///
    /// # Errors
    /// Fails if the device reports an error or contents cannot be read.
    pub(crate) fn load(&mut self, name: &str, contents: Option<&Contents>) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.load_persistent(name, contents),
            Runner::Paged(_) => Ok(()),
        }
    }

    /// Ends loading.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub(crate) fn complete(&mut self) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.complete(),
            Runner::Paged(_) => Ok(()),
        }
    }

    /// See [`Executor::release_all_but`].
    pub(crate) fn release_all_but(&mut self, keep: &dyn Fn(&str) -> bool) {
        if let Runner::Planned(executor) = self {
            executor.release_all_but(keep);
        }
    }

    /// See [`Executor::release_persistent`].
    ///
    /// # Errors
    /// Fails if the name is unknown.
    pub(crate) fn release_persistent(&mut self, name: &str) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.release_persistent(name),
            Runner::Paged(_) => Ok(()),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        match self {
            Runner::Planned(executor) => executor.plan(),
            Runner::Paged(executor) => executor.plan(),
        }
    }

    pub(crate) fn write_input(&mut self, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.write_input(name, bytes),
            Runner::Paged(executor) => executor.write_input(name, bytes),
        }
    }

    /// Like [`Runner::write_input`], for an input that is not needed elsewhere.
    pub(crate) fn give_input(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.give_input(name, bytes),
            Runner::Paged(executor) => executor.write_input(name, &bytes),
        }
    }

    /// Like [`Runner::write_input`], for a tensor that launches may read where it is until the step is over.
    pub(crate) fn lend_input(&mut self, name: &str, tensor: &Tensor) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.lend_input(name, tensor),
            Runner::Paged(executor) => executor.write_input(name, tensor.bytes()),
        }
    }

    /// Reads an output once, without a copy if launches wrote it to separate memory.
    pub(crate) fn take_output(&mut self, name: &str) -> Result<Tensor, RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.take_output(name),
            Runner::Paged(executor) => executor.read_output(name),
        }
    }

    pub(crate) fn read_output(&self, name: &str) -> Result<Tensor, RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.read_output(name),
            Runner::Paged(executor) => executor.read_output(name),
        }
    }

    pub(crate) fn read_persistent(&self, name: &str) -> Result<Tensor, RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.read_persistent(name),
            Runner::Paged(executor) => executor.read_persistent(name),
        }
    }

    /// Passes a parameter or state to `take` in pieces, one after the other.
    ///
    /// # Errors
    /// Fails if the name is unknown, the device reports an error, or `take` returns one.
    pub(crate) fn read_persistent_in_pieces(
        &self,
        name: &str,
        take: &mut dyn FnMut(&[u8]) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.read_persistent_in_pieces(name, take),
            Runner::Paged(executor) => executor.read_persistent_in_pieces(name, take),
        }
    }

    pub(crate) fn run(&mut self) -> Result<StepTimes, RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.run(),
            Runner::Paged(executor) => executor.run(),
        }
    }

    /// Runs one step; `between` decides after the first phase whether the update phase runs.
    pub(crate) fn run_in_phases(
        &mut self,
        between: &mut dyn FnMut(ReadOutput) -> Result<Decision, RuntimeError>,
    ) -> Result<StepTimes, RuntimeError> {
        match self {
            Runner::Planned(executor) => {
                executor.run_in_phases(&mut |executor| between(&|name| executor.read_output(name)))
            }
            Runner::Paged(executor) => {
                executor.run_in_phases(&mut |executor| between(&|name| executor.read_output(name)))
            }
        }
    }

    pub(crate) fn start_trace(&mut self) {
        match self {
            Runner::Planned(executor) => executor.start_trace(),
            Runner::Paged(executor) => executor.start_trace(),
        }
    }

    pub(crate) fn take_trace(&mut self) -> Option<Trace> {
        match self {
            Runner::Planned(executor) => executor.take_trace(),
            Runner::Paged(executor) => executor.take_trace(),
        }
    }
}
