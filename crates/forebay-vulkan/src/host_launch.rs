//! Launches that run on the host: those whose operands are in host blocks.

use forebay_base::{Binding, Launch, Region, TensorDesc};
use forebay_device::host::processor::{LaunchAddresses, Processor};
use forebay_device::{DeviceError, IndexFault};

use crate::memory::Memories;

/// A launch on the host, with the addresses of its operands.
pub(crate) struct HostLaunch {
    pub launch: Box<Launch>,
    addresses: LaunchAddresses,
}

/// Returns whether a launch runs on the host.
///
/// # Errors
/// [`DeviceError::Lost`] if some of its operands are in host blocks and others are not.
pub(crate) fn runs_on_host(memories: &Memories, launch: &Launch) -> Result<bool, DeviceError> {
    let operands = launch.reads.iter().chain(&launch.writes).map(|binding| binding.region);
    let mut on_host = operands.chain(launch.workspace).map(|region| memories.is_host_block(region.memory));
    let first = on_host.next().unwrap_or(false);
    if on_host.any(|other| other != first) {
        let reason = format!("{} has operands both in host blocks and in device memory", launch.kernel.name());
        return Err(DeviceError::Lost { reason });
    }
    Ok(first)
}

impl HostLaunch {
    /// Creates a launch whose operands are in host blocks.
    ///
    /// # Errors
    /// If the kernel cannot run with these operands, or if a region does not hold its tensor.
    pub fn new(memories: &Memories, launch: &Launch) -> Result<HostLaunch, DeviceError> {
        let address = |region: Region| {
            let address = memories.host_address(region).map(|address| address.0);
            address.ok_or_else(|| DeviceError::Lost { reason: format!("{region} is not inside a host block") })
        };
        let bound = |binding: &Binding| {
            let check = binding.desc.check_binding(binding.region.range.start, binding.region.range.len());
            check.map_err(|error| DeviceError::Lost { reason: format!("{}: {error}", binding.region) })?;
            address(binding.region)
        };
        let descs = |bindings: &[Binding]| bindings.iter().map(|one| one.desc.clone()).collect::<Vec<TensorDesc>>();
        let needed_bytes = Processor::workspace_bytes(&launch.kernel, &descs(&launch.reads), &descs(&launch.writes))?;
        let given_bytes = launch.workspace.map_or(0, |region| region.range.len());
        if needed_bytes > given_bytes && !launch.kernel.runs_in_less_workspace() {
            let reason = format!(
                "{} has only {given_bytes} of the {needed_bytes} bytes of workspace that it needs",
                launch.kernel.name()
            );
            return Err(DeviceError::Lost { reason });
        }
        let addresses = LaunchAddresses {
            reads: launch.reads.iter().map(bound).collect::<Result<_, _>>()?,
            writes: launch.writes.iter().map(bound).collect::<Result<_, _>>()?,
            workspace: launch.workspace.map(address).transpose()?,
        };
        Ok(HostLaunch { launch: Box::new(launch.clone()), addresses })
    }

    /// Runs the launch to its end; returns an index out of range if it finds one.
    ///
    /// # Errors
    /// If the kernel cannot run with these operands.
    pub fn run(&self, processor: &Processor) -> Result<Option<IndexFault>, DeviceError> {
        // SAFETY: the regions lie in live host blocks that hold their tensors, and the contract of commands gives the launch its
        // operands for its duration.
        unsafe { processor.run(&self.launch, &self.addresses) }
    }
}
