//! What runs steps: a plan's executor, or the same launches over managed memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_device::Device;
use forebay_model::Tensor;
use forebay_model::tensor::Contents;
use forebay_plan::{Paging, Plan};
use forebay_runtime::trace::Trace;
use forebay_runtime::{Decision, Executor, PagedExecutor, PagedOptions, RuntimeError, StepTimes};

/// A step, ready to be put on a device.
pub(crate) enum Step {
    /// Every move is planned. Spill files go into the folder.
    Planned(Plan, Option<PathBuf>),
    /// Managed memory moves what it is asked or told to.
    Paged(Paging, PagedOptions),
}

impl Step {
    /// The launches, where tensors are between steps, and numbers.
    pub(crate) fn plan(&self) -> &Plan {
        match self {
            Step::Planned(plan, _) => plan,
            Step::Paged(paging, _) => &paging.plan,
        }
    }
}

/// A step on a device.
pub(crate) enum Runner {
    /// Of a plan.
    Planned(Box<Executor>),
    /// Over managed memory.
    Paged(Box<PagedExecutor>),
}

/// Reads an output by its name.
pub(crate) type ReadOutput<'a> = &'a dyn Fn(&str) -> Result<Tensor, RuntimeError>;

impl Runner {
    /// Puts a step on a device. Of a plan, only the memory: [`Runner::load`] is called for all [`Runner::missing`] and then
    /// [`Runner::complete`]; `shared` is the memory that it shares with other plans, and of the contents only those are looked at that it
    /// reads from the model's files. Over managed memory, with contents of its persistent tensors.
    ///
    /// # Errors
    /// What the device or managed memory reports.
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

    /// Names of the persistent tensors that have no contents yet.
    pub(crate) fn missing(&self) -> Vec<String> {
        match self {
            Runner::Planned(executor) => executor.persistent_names().map(str::to_owned).collect(),
            Runner::Paged(_) => Vec::new(),
        }
    }

    /// Brings contents, or zeros, to the place of a persistent tensor of a plan.
    ///
    /// # Errors
    /// What the device reports, and contents that cannot be read.
    pub(crate) fn load(&mut self, name: &str, contents: Option<&Contents>) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.load_persistent(name, contents),
            Runner::Paged(_) => Ok(()),
        }
    }

    /// Ends loading.
    ///
    /// # Errors
    /// What the device reports.
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
    /// An unknown name.
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

    /// The same of an input that is not needed otherwise.
    pub(crate) fn give_input(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.give_input(name, bytes),
            Runner::Paged(executor) => executor.write_input(name, &bytes),
        }
    }

    /// The same of a tensor that launches may read where it is, until the step is over.
    pub(crate) fn lend_input(&mut self, name: &str, tensor: &Tensor) -> Result<(), RuntimeError> {
        match self {
            Runner::Planned(executor) => executor.lend_input(name, tensor),
            Runner::Paged(executor) => executor.write_input(name, tensor.bytes()),
        }
    }

    /// Reads an output once, without a copy where launches wrote it to memory of its own.
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

    /// Gives a parameter or state in pieces, one after the other.
    ///
    /// # Errors
    /// An unknown name, what the device reports, or what `take` gives.
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
