//! A step as the joint planner sees it: kernels in order, the tensors that they touch, and the machine.
//!
//! Nothing here depends on where kernels come from: a trace, a profile of our own plans, a random test.

use std::fmt;

use crate::schedule::MemorySpace;
use crate::timeline::carrying_ns;

/// A block of bytes that kernels touch as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its size.
    pub size_bytes: u64,
    /// Whether its contents survive from one step to the next; other tensors exist from the first kernel that touches them
    /// to the last one.
    pub persistent: bool,
}

/// A kernel of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name in messages.
    pub name: String,
    /// How long it takes.
    pub duration_ns: u64,
    /// The tensors whose contents it needs, in ascending order.
    pub reads: Vec<usize>,
    /// The tensors that it writes, in ascending order. Those that it also reads are updated in place; the earlier contents of the others
    /// are not needed.
    pub writes: Vec<usize>,
    /// The memory that it needs in addition to its tensors while it runs.
    pub workspace_bytes: u64,
}

impl Kernel {
    /// Returns every tensor that it touches, once each, in ascending order.
    pub fn touches(&self) -> Vec<usize> {
        let mut touched = [self.reads.as_slice(), &self.writes].concat();
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Whether it changes contents that it reads: such a kernel must not run twice.
    pub fn updates_in_place(&self) -> bool {
        self.writes.iter().any(|tensor| self.reads.contains(tensor))
    }
}

/// The memories and the links between them.
///
/// The link carries its full rate in both directions at once. Bytes to and from the SSD cross the link too, and are further limited by the
/// rates of the SSD.
///
/// ```
/// use forebay_offload::workload::Machine;
///
/// let machine = Machine {
///     device_memory_bytes: 8 << 30,
///     host_memory_bytes: 32 << 30,
///     link_bytes_per_s: 16_000_000_000,
///     ssd_read_bytes_per_s: 3_000_000_000,
///     ssd_write_bytes_per_s: 2_000_000_000,
/// };
/// assert!(machine.link_bytes_per_s > machine.ssd_read_bytes_per_s);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The memory of the device.
    pub device_memory_bytes: u64,
    /// The memory of the host.
    pub host_memory_bytes: u64,
    /// The rate of the link in each direction.
    pub link_bytes_per_s: u64,
    /// The rate at which the SSD is read.
    pub ssd_read_bytes_per_s: u64,
    /// The rate at which the SSD is written.
    pub ssd_write_bytes_per_s: u64,
}

impl Machine {
    /// The memory of the device and of the host as signed numbers, so that differences can be negative. No workload needs more than
    /// [`MOST_BYTES`], so whatever a memory has beyond that is left out.
    pub(crate) fn memories_bytes(&self) -> [i64; 2] {
        [self.device_memory_bytes, self.host_memory_bytes].map(|bytes| bytes.min(MOST_BYTES) as i64)
    }
}

/// One training step, repeated forever, on a machine.
///
/// ```
/// use forebay_offload::workload::{Kernel, Machine, Tensor, Workload};
///
/// let machine = Machine {
///     device_memory_bytes: 8 << 30,
///     host_memory_bytes: 32 << 30,
///     link_bytes_per_s: 16_000_000_000,
///     ssd_read_bytes_per_s: 3_000_000_000,
///     ssd_write_bytes_per_s: 2_000_000_000,
/// };
/// let weights = Tensor { size_bytes: 1 << 30, persistent: true };
/// let update = Kernel {
///     name: "update".to_string(),
///     duration_ns: 1_000_000,
///     reads: vec![0],
///     writes: vec![0],
///     workspace_bytes: 0,
/// };
/// let workload = Workload { tensors: vec![weights], kernels: vec![update], machine };
/// assert_eq!(workload.validate(), Ok(()));
/// assert_eq!(workload.ideal_ns(), 1_000_000);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The tensors that kernels touch, by number.
    pub tensors: Vec<Tensor>,
    /// The kernels of the step, in order.
    pub kernels: Vec<Kernel>,
    /// The machine that it runs on.
    pub machine: Machine,
}

impl Workload {
    /// How long the step takes if everything fits.
    pub fn ideal_ns(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.duration_ns).sum()
    }

    /// The average time for which a byte crosses, out or back, to or from the host or the SSD.
    pub fn crossing_ns_per_byte(&self, place: MemorySpace) -> f64 {
        let machine = &self.machine;
        let link = machine.link_bytes_per_s;
        let ns = |ssd: u64| 1e9 / if place == MemorySpace::Ssd { link.min(ssd) } else { link } as f64;
        (ns(machine.ssd_write_bytes_per_s) + ns(machine.ssd_read_bytes_per_s)) / 2.0
    }

    /// Whether the device and the host together cannot hold everything that is live at some time.
    pub fn spills(&self) -> bool {
        let machine = &self.machine;
        live_peak_bytes(self) > machine.device_memory_bytes.saturating_add(machine.host_memory_bytes)
    }

    /// The bytes that a kernel needs on the device at once: its tensors and its workspace.
    pub fn working_set_bytes(&self, kernel: &Kernel) -> u64 {
        let sizes = kernel.touches().into_iter().map(|tensor| self.tensors[tensor].size_bytes);
        sizes.fold(kernel.workspace_bytes, u64::saturating_add)
    }

    /// Checks that the numbers are meaningful, and that each kernel on its own fits the device.
    ///
    /// # Errors
    /// Returns the first problem found.
    pub fn validate(&self) -> Result<(), SwapError> {
        let rates = [
            ("link_bytes_per_s", self.machine.link_bytes_per_s),
            ("ssd_read_bytes_per_s", self.machine.ssd_read_bytes_per_s),
            ("ssd_write_bytes_per_s", self.machine.ssd_write_bytes_per_s),
        ];
        if let Some((name, rate)) = rates.into_iter().find(|(_, rate)| !(1..=MOST_BYTES).contains(rate)) {
            return Err(SwapError::Meaning { reason: format!("{name} is {rate}; expected 1 to {MOST_BYTES}") });
        }
        let sizes = self.tensors.iter().map(|tensor| tensor.size_bytes);
        let workspaces = self.kernels.iter().map(|kernel| kernel.workspace_bytes);
        let total_bytes = sizes.chain(workspaces).fold(0u64, u64::saturating_add);
        let total_ns = self.kernels.iter().fold(0u64, |sum, kernel| sum.saturating_add(kernel.duration_ns));
        if total_bytes > MOST_BYTES || total_ns > MOST_BYTES {
            let reason =
                format!("sizes total {total_bytes} bytes and durations {total_ns} ns; the maximum is {MOST_BYTES}");
            return Err(SwapError::Meaning { reason });
        }
        for (index, kernel) in self.kernels.iter().enumerate() {
            self.validate_kernel(index, kernel)?;
        }
        self.validate_memory()?;
        // Rates do not matter if nothing crosses: the device holds everything, and demand paging has nothing to load in its first step.
        // Those of the SSD do not matter either if the host can hold everything.
        let live_bytes = live_peak_bytes(self);
        let persists = self.tensors.iter().any(|tensor| tensor.persistent);
        let used = match (live_bytes > self.machine.device_memory_bytes, live_bytes > self.machine.host_memory_bytes) {
            (false, _) if !persists => &rates[..0],
            (_, false) => &rates[..1],
            _ => &rates[..],
        };
        let bytes: u64 = self.tensors.iter().map(|tensor| tensor.size_bytes).sum();
        let is_too_slow = |(_, rate): &&(&str, u64)| carrying_ns(bytes, *rate) > MOST_BYTES;
        match used.iter().find(is_too_slow) {
            Some((name, rate)) => Err(SwapError::Meaning {
                reason: format!(
                    "{name} is {rate}; the {bytes} bytes of all tensors would take more than {MOST_BYTES} ns to cross; rates are in \
                     bytes per second"
                ),
            }),
            None => Ok(()),
        }
    }

    fn validate_kernel(&self, index: usize, kernel: &Kernel) -> Result<(), SwapError> {
        let touched = kernel.reads.iter().chain(&kernel.writes);
        if let Some(tensor) = touched.clone().find(|tensor| **tensor >= self.tensors.len()) {
            let reason = format!(
                "kernel {index} '{}' uses tensor {tensor}, but there are only {} tensors",
                kernel.name,
                self.tensors.len()
            );
            return Err(SwapError::Meaning { reason });
        }
        for (what, list) in [("reads", &kernel.reads), ("writes", &kernel.writes)] {
            if !list.is_sorted_by(|left, right| left < right) {
                let reason =
                    format!("kernel {index} '{}': {what} must be in ascending order without duplicates", kernel.name);
                return Err(SwapError::Meaning { reason });
            }
        }
        Ok(())
    }

    /// Checks that the device holds what the kernel with the most bytes needs: every kernel then fits.
    fn validate_memory(&self) -> Result<(), SwapError> {
        let device_memory_bytes = self.machine.device_memory_bytes;
        let needed = self.kernels.iter().map(|kernel| self.working_set_bytes(kernel)).enumerate();
        match needed.rev().max_by_key(|&(_, needed_bytes)| needed_bytes) {
            Some((kernel, needed_bytes)) if needed_bytes > device_memory_bytes => {
                let name = self.kernels[kernel].name.clone();
                Err(SwapError::DeviceMemory { kernel, name, needed_bytes, device_memory_bytes })
            }
            _ => Ok(()),
        }
    }
}

/// Sizes, rates and durations stay below this (about a petabyte, or thirteen days), so that products and sums of them do not
/// overflow.
pub const MOST_BYTES: u64 = 1 << 50;

/// The reason why a workload cannot be planned.
///
/// ```
/// use forebay_offload::planner::plan;
/// use forebay_offload::workload::{Kernel, Machine, SwapError, Tensor, Workload};
///
/// # let tensor = |persistent| Tensor { size_bytes: 1 << 20, persistent };
/// # let kernel = |name: &str, reads: &[usize], writes: &[usize]| Kernel {
/// #     name: name.to_string(), duration_ns: 1_000_000, reads: reads.to_vec(), writes: writes.to_vec(), workspace_bytes: 0,
/// # };
/// # let machine = Machine {
/// #     device_memory_bytes: 2 << 20, host_memory_bytes: 1 << 30, link_bytes_per_s: 4 << 30,
/// #     ssd_read_bytes_per_s: 1 << 30, ssd_write_bytes_per_s: 1 << 30,
/// # };
/// # let mut workload = Workload {
/// #     tensors: vec![tensor(false), tensor(false), tensor(false)],
/// #     kernels: vec![kernel("a", &[], &[0]), kernel("b", &[], &[1, 2]), kernel("c", &[1], &[2]), kernel("d", &[0], &[2])],
/// #     machine,
/// # };
/// workload.machine.device_memory_bytes = 1 << 20;
/// // No memory helps a kernel that does not fit by itself.
/// let error: SwapError = plan(&workload, &mut |_| ()).unwrap_err();
/// assert!(error.to_string().contains("'b'"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapError {
    /// A kernel does not fit the device, even alone.
    DeviceMemory {
        /// Its number.
        kernel: usize,
        /// Its name.
        name: String,
        /// The bytes that it needs at once.
        needed_bytes: u64,
        /// The bytes that the device has.
        device_memory_bytes: u64,
    },
    /// A number is invalid.
    Meaning {
        /// Which number, and why.
        reason: String,
    },
    /// A line of a trace is invalid.
    Trace {
        /// The line, counted from 1.
        line: usize,
        /// Why.
        reason: String,
    },
    /// A schedule breaks a rule: a defect in this crate.
    Fault {
        /// The message of the verifier.
        reason: String,
    },
    /// No schedule was found within the limits.
    NoSchedule {
        /// Which limit, and where.
        reason: String,
    },
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::DeviceMemory { kernel, name, needed_bytes, device_memory_bytes } => write!(
                f,
                "kernel {kernel} '{name}' needs {needed_bytes} bytes on the device at once, but there are \
                 {device_memory_bytes}; pass at least --device-memory {needed_bytes}"
            ),
            SwapError::Meaning { reason } => f.write_str(reason),
            SwapError::Trace { line, reason } => write!(f, "line {line}: {reason}"),
            SwapError::Fault { reason } => write!(f, "the schedule breaks a rule (a bug in Forebay): {reason}"),
            SwapError::NoSchedule { reason } => write!(f, "no schedule found: {reason}"),
        }
    }
}

impl std::error::Error for SwapError {}

/// The most bytes that are live at once: touched by a kernel, or needed after it.
pub fn live_peak_bytes(workload: &Workload) -> u64 {
    // Going backwards over two steps, a tensor is live while its next touch reads it.
    let mut live = vec![false; workload.tensors.len()];
    let mut peak_bytes = 0;
    for round in 0..2 {
        for (tensor, live) in live.iter_mut().enumerate() {
            *live &= workload.tensors[tensor].persistent;
        }
        let mut bytes: u64 =
            live.iter().zip(&workload.tensors).filter(|(live, _)| **live).map(|(_, tensor)| tensor.size_bytes).sum();
        for kernel in workload.kernels.iter().rev() {
            let touched = kernel.touches();
            let absent =
                touched.iter().filter(|tensor| !live[**tensor]).map(|tensor| workload.tensors[*tensor].size_bytes);
            bytes += absent.sum::<u64>();
            if round == 1 {
                peak_bytes = peak_bytes.max(bytes + kernel.workspace_bytes);
            }
            for tensor in touched {
                live[tensor] = kernel.reads.contains(&tensor);
                bytes -= if live[tensor] { 0 } else { workload.tensors[tensor].size_bytes };
            }
        }
    }
    peak_bytes
}
