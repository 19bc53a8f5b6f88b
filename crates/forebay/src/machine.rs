//! A device with the limits that its user set.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_base::TensorDesc;
use forebay_device::{Device, DeviceError};
pub use forebay_devices::DeviceDescription;
use forebay_devices::{OpenError, OpenOptions};
use forebay_memory::size::MemorySize;
use forebay_model::program::{Program, ProgramLaunch, Workspace};
use forebay_plan::cost::{Costs, estimate_on};
use forebay_plan::saved_costs::Unknown;
use forebay_plan::{MachineDescription, SavedCosts};
use forebay_runtime::backing::STAGING_BYTES;

use crate::alike::AlikePlans;
use crate::error::Error;
use crate::options::{
    DeviceOptions, EngineOptions, HostOperators, MemoryLimit, MemoryMode, PlanSearch, PlanningOptions, ProcessLimit,
    Updates,
};
use crate::process_group::ProcessGroup;

/// A device with the limits that its user set.
pub(crate) struct LimitedDevice {
    /// The device.
    pub(crate) device: Arc<dyn Device>,
    /// The options that were given, with the budgets of a described machine. Costs are not kept here because they belong to one program.
    pub(crate) options: EngineOptions,
    /// Host bytes that are taken regardless of the plan: the device's own and the executor's staging.
    reserved_host_bytes: AtomicU64,
    /// The part of them that only plans that spill take: buffers for the disk.
    spill_buffer_bytes: u64,
    /// The most bytes that the process was found to take while no plan was on the device.
    pub(crate) process_bytes: AtomicU64,
    /// Bytes of parameters and state that are held in memory between two plans. The next plan counts them.
    pub(crate) waiting_bytes: AtomicU64,
    /// The most bytes that planning took temporarily.
    pub(crate) planning_bytes: AtomicU64,
    /// What the largest stage of a run takes without a budget, as far as it is known. Budgets given as percentages are shares of it.
    pub(crate) stage_bytes: AtomicU64,
    /// The limit on the process that the first plan was given and later plans keep to.
    process_limit: Mutex<Option<ProcessLimit>>,
    /// See [`LimitedDevice::simulates`].
    simulates: AtomicBool,
    /// Plans that also stand for those of other processes, if plans are only simulated.
    pub(crate) alike: Option<Arc<AlikePlans>>,
}

impl LimitedDevice {
    /// Opens the device that the options name.
    ///
    /// # Errors
    /// Fails if the name is unknown, there are no threads, the requested tiles are impossible, the spill folder cannot be used, or the
    /// system refuses a request.
    pub(crate) fn open(options: &EngineOptions) -> Result<LimitedDevice, Error> {
        LimitedDevice::with_device(options, open_device(&options.device)?)
    }

    /// Wraps the caller's device, on which nothing runs yet.
    ///
    /// # Errors
    /// Fails if the spill folder cannot be used, or if options contradict each other.
    pub(crate) fn with_device(options: &EngineOptions, device: Arc<dyn Device>) -> Result<LimitedDevice, Error> {
        // Options that contradict each other are refused even if no plan asks for the strategy.
        options.memory.strategy()?;
        let before_bytes = device.usage().host_bytes;
        if let Some(folder) = &options.memory.spill_dir {
            // A throwaway file shows at once whether files can be created, and allocates what the device needs for them.
            let refused = |error| Error::Device { action: "while trying to spill".to_string(), error };
            device.destroy_memory(device.create_spill(folder, 1).map_err(refused)?);
        }
        let spill_buffer_bytes = device.usage().host_bytes.saturating_sub(before_bytes);
        // A machine that is only described has no other processes.
        let group = options.device.processes.as_ref().filter(|_| options.device.machine.is_none());
        if let Some(group) = group.filter(|group| group.size() > 1) {
            let refused = |error| Error::Device { action: "while joining the other processes".to_string(), error };
            device.join(group.communicator().clone()).map_err(refused)?;
        }
        let reserved_host_bytes = device.usage().host_bytes + STAGING_BYTES;
        let planning = PlanningOptions { costs: None, ..options.planning.clone() };
        let mut options = EngineOptions { planning, ..options.clone() };
        let has_limit = !matches!(options.memory.memory_limit, None | Some(MemoryLimit::Unlimited));
        options.memory.settle(device.limits().in_process && options.device.machine.is_none())?;
        if has_limit && options.device.link_bytes_per_second.is_some() {
            let reason = "a link speed only applies to a simulated device; set the size of that device instead of a memory limit";
            return Err(Error::Option { reason: reason.to_string() });
        }
        if let Some(described) = &options.device.machine {
            options.memory.device_memory.get_or_insert(MemorySize::Bytes(described.device_memory_bytes));
            options.memory.host_memory.get_or_insert(MemorySize::Bytes(described.host_memory_bytes));
        }
        Ok(LimitedDevice {
            device,
            // Only a simulated device has a link.
            simulates: AtomicBool::new(options.device.link_bytes_per_second.is_some()),
            options,
            reserved_host_bytes: AtomicU64::new(reserved_host_bytes),
            spill_buffer_bytes,
            process_bytes: AtomicU64::new(0),
            waiting_bytes: AtomicU64::new(0),
            planning_bytes: AtomicU64::new(0),
            stage_bytes: AtomicU64::new(0),
            process_limit: Mutex::new(None),
            alike: None,
        })
    }

    /// Returns the same device with less host memory for plans, because this many bytes hold values that a plan does not have. Returns
    /// `None` if that makes no difference to a plan.
    pub(crate) fn with_values_in_memory(&self, value_bytes: u64) -> Option<LimitedDevice> {
        self.with_values_next_to_plans(value_bytes).filter(|_| !self.spills())
    }

    /// Same as `with_values_in_memory`, for values that stay in memory even if plans spill.
    pub(crate) fn with_values_next_to_plans(&self, value_bytes: u64) -> Option<LimitedDevice> {
        let memory = &self.options.memory;
        let is_limited = memory.host_memory.is_some() || self.process_limit().is_some();
        let counts = is_limited && memory.mode == MemoryMode::Planned;
        counts.then(|| LimitedDevice {
            reserved_host_bytes: AtomicU64::new(self.reserved_host_bytes().saturating_add(value_bytes)),
            ..self.copy()
        })
    }

    /// Returns the same device with a budget of this many bytes of device memory.
    pub(crate) fn with_device_memory(&self, bytes: u64) -> LimitedDevice {
        let mut machine = self.copy();
        machine.options.memory.device_memory = Some(MemorySize::Bytes(bytes));
        machine
    }

    fn copy(&self) -> LimitedDevice {
        LimitedDevice {
            device: self.device.clone(),
            options: self.options.clone(),
            reserved_host_bytes: AtomicU64::new(self.reserved_host_bytes()),
            spill_buffer_bytes: self.spill_buffer_bytes,
            process_bytes: AtomicU64::new(self.process_bytes.load(Ordering::Relaxed)),
            waiting_bytes: AtomicU64::new(self.waiting_bytes.load(Ordering::Relaxed)),
            planning_bytes: AtomicU64::new(self.planning_bytes.load(Ordering::Relaxed)),
            stage_bytes: AtomicU64::new(self.stage_bytes.load(Ordering::Relaxed)),
            process_limit: Mutex::new(self.process_limit()),
            simulates: AtomicBool::new(self.simulates()),
            alike: self.alike.clone(),
        }
    }

    /// Returns whether the search for a plan continues while steps run.
    pub(crate) fn searches_on(&self) -> bool {
        let runs = self.options.device.machine.is_none();
        self.options.planning.search == PlanSearch::Continued && runs && !self.limits_process()
    }

    /// Host bytes that are taken regardless of the plan: the device's own and the executor's staging.
    pub(crate) fn reserved_host_bytes(&self) -> u64 {
        self.reserved_host_bytes.load(Ordering::Relaxed)
    }

    /// The part of [`LimitedDevice::reserved_host_bytes`] that only plans that spill take. The system counts memory once it is used.
    pub(crate) fn spill_buffer_bytes(&self) -> u64 {
        self.spill_buffer_bytes
    }

    /// Returns the number of processes of the run on this machine, which share its free memory.
    pub(crate) fn processes_here(&self) -> usize {
        self.options.device.processes.as_ref().map_or(1, ProcessGroup::on_this_machine)
    }

    /// Returns the workspace that a launch needs where it runs: on the device, or on the host if the device cannot run it.
    ///
    /// # Errors
    /// Fails if the device cannot run the launch, and the host must not or cannot run it either.
    pub(crate) fn workspace(
        &self,
        launch: &ProgramLaunch,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<Workspace, Error> {
        let refused = |error| Error::Device { action: format!("'{}'", launch.name), error };
        if launch.in_host_memory {
            match self.host_workspace(launch, reads, writes) {
                Err(DeviceError::Unsupported { .. }) => {}
                workspace => return workspace.map_err(refused),
            }
        }
        let error = match self.device.workspace_bytes(&launch.kernel, reads, writes) {
            Err(error @ DeviceError::Unsupported { .. }) => error,
            bytes => return bytes.map(Workspace::from).map_err(refused),
        };
        if self.options.planning.host_operators == HostOperators::Never {
            let DeviceError::Unsupported { kernel, reason } = error else { return Err(refused(error)) };
            let reason = format!("{reason}; running it on the host is not allowed (--host-operators needed allows it)");
            return Err(refused(DeviceError::Unsupported { kernel, reason }));
        }
        match self.host_workspace(launch, reads, writes) {
            // The user wants to know what the device lacks.
            Err(DeviceError::Unsupported { .. }) => Err(refused(error)),
            workspace => workspace.map_err(refused),
        }
    }

    /// Returns the workspace that a launch needs on the host.
    fn host_workspace(
        &self,
        launch: &ProgramLaunch,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<Workspace, DeviceError> {
        let before_bytes = self.device.usage().host_bytes;
        let bytes = self.device.host_workspace_bytes(&launch.kernel, reads, writes)?;
        // The first launch on the host may take memory for all of them.
        let taken_bytes = self.device.usage().host_bytes.saturating_sub(before_bytes);
        self.reserved_host_bytes.fetch_add(taken_bytes, Ordering::Relaxed);
        Ok(Workspace { bytes, on_host: true })
    }

    /// Returns whether training steps update on the host: if that is requested, and host memory is not also the device's.
    ///
    /// # Errors
    /// Fails for managed memory, which has no plan that determines what is on the host when.
    pub(crate) fn updates_on_host(&self) -> Result<bool, Error> {
        let is_wanted = self.options.planning.updates == Updates::Host;
        if is_wanted && self.options.memory.mode != MemoryMode::Planned {
            let reason = "--updates host cannot be combined with managed memory, which decides what is on the device; leave \
                          out --updates host or --memory";
            return Err(Error::Option { reason: reason.to_string() });
        }
        Ok(is_wanted && !self.has_one_pool())
    }

    /// Returns whether device memory and host memory are one pool for plans.
    pub(crate) fn has_one_pool(&self) -> bool {
        let here = self.device.limits().in_process && self.options.device.machine.is_none();
        here && self.options.memory.is_one_pool() && !self.simulates()
    }

    /// Returns whether inputs and outputs can stay in the caller's memory. Plans that spill need host memory for them: a plan that copies
    /// them determines how much.
    pub(crate) fn lends(&self) -> bool {
        self.has_one_pool() && self.device.takes_loans() && !self.spills()
    }

    /// Returns whether the budget for device memory bounds only tensors, as that of a simulated device does, because the speed of that
    /// device's link is given or because the whole process cannot stay within the budget.
    pub(crate) fn simulates(&self) -> bool {
        self.simulates.load(Ordering::Relaxed)
    }

    /// Returns whether the budget for device memory bounds only tensors because the whole process cannot stay within it.
    pub(crate) fn budget_excludes_process(&self) -> bool {
        self.simulates() && self.options.device.link_bytes_per_second.is_none()
    }

    /// Returns whether the limit on the process was given as a budget for device memory, which can bound only tensors.
    pub(crate) fn may_simulate(&self) -> bool {
        self.has_one_pool() && self.options.memory.device_memory.is_some()
    }

    /// Makes the budget for device memory bound only tensors from now on.
    pub(crate) fn simulate(&self) {
        self.set_process_limit(None);
        self.simulates.store(true, Ordering::Relaxed);
    }

    /// Returns whether plans keep to a limit on the process, which is the free memory if none was given.
    pub(crate) fn limits_process(&self) -> bool {
        self.has_one_pool() && self.options.memory.memory_limit != Some(MemoryLimit::Unlimited)
    }

    /// Returns the limit on the process that plans keep to, or `None` before the first plan that was given one.
    pub(crate) fn process_limit(&self) -> Option<ProcessLimit> {
        *self.process_limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the limit for plans from now on.
    pub(crate) fn set_process_limit(&self, limit: Option<ProcessLimit>) {
        *self.process_limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    /// Sets another budget for device memory, which is a limit on the process if device and host memory are one pool. Returns the
    /// previous budget, to be restored later.
    pub(crate) fn exchange_budget(&mut self, budget: Budget) -> Budget {
        let memory = &mut self.options.memory;
        let before = Budget {
            size: std::mem::replace(&mut memory.device_memory, budget.size),
            limit: std::mem::replace(&mut memory.memory_limit, budget.limit),
            resolved: self.process_limit(),
            simulates: self.simulates(),
        };
        self.set_process_limit(budget.resolved);
        self.simulates.store(budget.simulates, Ordering::Relaxed);
        before
    }

    /// Returns a budget of this much device memory.
    pub(crate) fn budget(&self, size: Option<MemorySize>) -> Budget {
        let memory = &self.options.memory;
        let has_one_pool = self.has_one_pool();
        // A limit that was given as such stays a limit.
        let is_strict = has_one_pool && memory.memory_limit.is_some() && memory.device_memory.is_none();
        Budget {
            size: size.filter(|_| !is_strict),
            limit: if has_one_pool { size.map(MemoryLimit::Size) } else { memory.memory_limit },
            resolved: None,
            simulates: self.simulates(),
        }
    }

    /// Returns whether a budget was given for any memory.
    pub(crate) fn has_budget(&self) -> bool {
        let memory = &self.options.memory;
        let is_limited = memory.memory_limit.is_some_and(|limit| limit != MemoryLimit::Unlimited);
        is_limited || [memory.device_memory, memory.simulate_device, memory.host_memory].iter().any(Option::is_some)
    }

    /// Returns whether what exceeds host memory can go to disk.
    pub(crate) fn spills(&self) -> bool {
        self.options.memory.spill_dir.is_some() || self.options.device.machine.is_some()
    }

    /// Returns the costs of a program's launches and copies, as known before anything is measured, and the launches that the given costs
    /// do not cover.
    ///
    /// # Errors
    /// Fails if the costs are those of another program.
    pub(crate) fn costs(
        &self,
        program: &Program,
        given: Option<&SavedCosts>,
    ) -> Result<(Costs, Option<Unknown>), Error> {
        let device = &self.options.device;
        let mut described =
            device.machine.clone().unwrap_or_else(|| MachineDescription::of_limits(self.device.limits()));
        described.network = device.network.unwrap_or(described.network);
        let estimated = estimate_on(program, &described);
        match given {
            Some(saved) => Ok(saved.apply(program, estimated)?),
            None => Ok((estimated, None)),
        }
    }
}

/// What bounds the memory of plans, in a form that can be exchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// The budget for device memory.
    size: Option<MemorySize>,
    /// The limit on the process.
    limit: Option<MemoryLimit>,
    /// The same limit in bytes, if a plan has been given it.
    resolved: Option<ProcessLimit>,
    /// See [`LimitedDevice::simulates`].
    simulates: bool,
}

/// Returns the devices of this machine.
///
/// ```
/// for device in forebay::devices()? {
///     match device.limits {
///         Ok(limits) => println!("{}: {} bytes", device.name, limits.memory_bytes),
///         Err(reason) => println!("{} cannot be used: {reason}", device.name),
///     }
/// }
/// # Ok::<(), forebay::Error>(())
/// ```
///
/// # Errors
/// Fails if the system refuses what the host device needs.
pub fn devices() -> Result<Vec<DeviceDescription>, Error> {
    forebay_devices::devices().map_err(refused)
}

/// Opens the device that the options name, for the caller's own use: single operations, or several sessions in turn.
///
/// ```
/// let device = forebay::open_device(&forebay::DeviceOptions::default())?;
/// assert!(device.limits().memory_bytes > 0);
/// # Ok::<(), forebay::Error>(())
/// ```
///
/// # Errors
/// Fails if the name is unknown, there are no threads, the requested tiles are impossible, a link speed is given for a device other than
/// `host`, or the system refuses a request.
pub fn open_device(options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    if options.threads == Some(0) {
        return Err(Error::Option { reason: "a device needs at least one thread".to_string() });
    }
    let how = OpenOptions {
        threads: options.threads,
        tiled: options.tiled,
        tile_size_bytes: options.tile_size,
        heap_bytes_max: options.heap_size,
        link_bytes_per_second: options.link_bytes_per_second,
    };
    let opened = match &options.machine {
        Some(machine) => forebay_devices::described(&machine.name, machine.limits(), &how),
        None => forebay_devices::open(&options.name.to_string(), &how),
    };
    let device = opened.map_err(refused)?;
    if options.link_bytes_per_second.is_some() && device.limits().link_bytes_per_second.is_none() {
        let name = options.machine.as_ref().map_or_else(|| options.name.to_string(), |machine| machine.name.clone());
        let reason =
            format!("a link speed only applies to a simulated device (the device host), not to {name}; leave it out");
        return Err(Error::Option { reason });
    }
    Ok(device)
}

/// Returns the error for a device that cannot be opened.
fn refused(OpenError { name, error }: OpenError) -> Error {
    match error {
        DeviceError::Setting { reason } => Error::Option { reason },
        error => Error::Device { action: format!("cannot open device {name}"), error },
    }
}
