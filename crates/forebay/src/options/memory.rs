//! Memory budgets, and who moves what between memories.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use forebay_memory::size::{MemorySize, MemorySizeError};
use forebay_runtime::Strategy;
use forebay_runtime::eager::managed::Policy;

use crate::error::Error;

/// Who decides what is on the device. Results do not depend on it.
///
/// ```
/// use forebay::{MemoryMode, Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let session = Session::builder(&model).device("null".parse()?).memory_mode(MemoryMode::Automatic).build()?;
/// assert!(session.statistics().expect("the sizes are known").minimum_budget_bytes > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryMode {
    /// A plan, made before the first step.
    #[default]
    Planned,
    /// Managed memory, with every move decided by the framework.
    Direct,
    /// Managed memory, with hints from the framework: what comes next, and what is no longer needed.
    Cooperative,
    /// Managed memory alone.
    Automatic,
}

/// A limit on the memory of the whole process.
///
/// ```
/// use forebay::{MemoryLimit, MemorySize};
///
/// assert_eq!("300MiB".parse::<MemoryLimit>()?, MemoryLimit::Size(MemorySize::Bytes(300 << 20)));
/// assert_eq!("60%".parse::<MemoryLimit>()?, MemoryLimit::Size(MemorySize::Percent(60.0)), "of what the run would take");
/// assert_eq!("80%free".parse::<MemoryLimit>()?, MemoryLimit::OfFree(80.0), "of what the machine has free");
/// assert_eq!("none".parse::<MemoryLimit>()?, MemoryLimit::Unlimited);
/// assert!("120%free".parse::<MemoryLimit>().is_err());
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum MemoryLimit {
    /// Bytes, or a share of what the process would take without a limit.
    Size(MemorySize),
    /// A percentage of the free memory of the machine, or of the control group that the process is in, including what the process already
    /// has.
    OfFree(f64),
    /// No limit, however much is free.
    Unlimited,
}

impl FromStr for MemoryLimit {
    type Err = Error;

    /// # Errors
    /// Fails if the text is not a limit.
    fn from_str(text: &str) -> Result<MemoryLimit, Error> {
        let refused = |reason: &str| Error::Option {
            reason: format!("'{text}' is not a memory limit: {reason} (write 300MiB, 60%, 80%free or none)"),
        };
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("none") {
            return Ok(MemoryLimit::Unlimited);
        }
        if let Some(share) = trimmed.strip_suffix("free") {
            return match share.trim_end().parse() {
                Ok(MemorySize::Percent(percent)) if percent <= 100.0 => Ok(MemoryLimit::OfFree(percent)),
                _ => Err(refused("expected a percentage of at most 100 before 'free'")),
            };
        }
        trimmed.parse().map(MemoryLimit::Size).map_err(|error: MemorySizeError| refused(error.reason))
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Size(size) => size.fmt(f),
            MemoryLimit::OfFree(percent) => write!(f, "{percent}%free"),
            MemoryLimit::Unlimited => f.write_str("none"),
        }
    }
}

/// The memory limit that plans stay within.
///
/// ```
/// use forebay::{Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let session = Session::builder(&model).memory_limit("8GiB".parse()?).build()?;
/// let limit = session.memory_limit().expect("one was given");
/// assert_eq!((limit.bytes, limit.chosen), (8 << 30, false));
/// assert!(limit.unlimited_bytes < limit.bytes, "it fits");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessLimit {
    /// The most that the process may take.
    pub bytes: u64,
    /// What the process would take without a limit, as far as a plan can tell.
    pub unlimited_bytes: u64,
    /// Whether the limit was chosen because a step without a limit would take more than is free.
    pub chosen: bool,
}

/// How much memory may be used, and who decides what is where.
///
/// ```
/// let mut memory = forebay::MemoryOptions::default();
/// memory.memory_limit = Some("256MiB".parse()?); // of the whole process, on a CPU
/// memory.spill_dir = Some(std::env::temp_dir());
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// The memory that the whole process may take, as the system counts it (its resident memory): weights, activations, gradients, state,
    /// batches, and the program itself.
    ///
    /// Only for devices whose memory is the host's. What does not fit is recomputed; if recomputation does not suffice and a spill folder
    /// is given, it goes there. This limit replaces the budgets. If neither a limit nor a budget is given, a step that would take more than
    /// is free gets the free memory as its limit.
    pub memory_limit: Option<MemoryLimit>,
    /// The device memory that may exist at once; unlimited by default.
    ///
    /// If device memory is the host's, there is one pool, and this is its limit: it means the same as `memory_limit`, as long as the whole
    /// process can stay within it. If the process cannot, or if a link speed, a host memory budget or a managed memory mode is set, it is
    /// the device memory of `simulate_device`.
    pub device_memory: Option<MemorySize>,
    /// Uses part of the host's memory as the memory of a separate device, with this budget: what does not fit there is copied to the rest
    /// and back. For development and experiments on a CPU. On devices with their own memory, it means the same as `device_memory`.
    pub simulate_device: Option<MemorySize>,
    /// The host memory for swapped tensors, inputs, outputs and staging; unlimited by default.
    pub host_memory: Option<MemorySize>,
    /// A folder for what exceeds the host memory. Its files have no names and are gone when the process ends. If no folder is given,
    /// exceeding the host memory is an error.
    pub spill_dir: Option<PathBuf>,
    /// Who decides what is on the device.
    pub mode: MemoryMode,
    /// The order in which managed memory evicts when it decides alone ([`MemoryMode::Automatic`]); by default, the order of a unified
    /// memory driver.
    pub eviction: Option<Policy>,
    /// Whether managed memory allocates device memory as it needs it. Otherwise, it allocates all that it may have at the start and keeps
    /// it. A plan always allocates all that it needs at the start.
    pub growth: bool,
}

impl Default for MemoryOptions {
    fn default() -> MemoryOptions {
        MemoryOptions {
            memory_limit: None,
            device_memory: None,
            simulate_device: None,
            host_memory: None,
            spill_dir: None,
            mode: MemoryMode::default(),
            eviction: None,
            growth: true,
        }
    }
}

impl MemoryOptions {
    /// Returns what managed memory is told; `None` if a plan decides.
    ///
    /// # Errors
    /// Fails if an eviction order is given and the mode has its own.
    pub(crate) fn strategy(&self) -> Result<Option<Strategy>, Error> {
        if self.eviction.is_some() && self.mode != MemoryMode::Automatic {
            let reason = "an eviction order only applies with --memory automatic; add it, or leave out --eviction";
            return Err(Error::Option { reason: reason.to_string() });
        }
        Ok(match self.mode {
            MemoryMode::Planned => None,
            MemoryMode::Direct => Some(Strategy::Direct),
            MemoryMode::Cooperative => Some(Strategy::Cooperative),
            MemoryMode::Automatic => Some(Strategy::Automatic(self.eviction.unwrap_or(Policy::Driver))),
        })
    }

    /// Converts budgets that are shares into bytes, so that later plans have the same budgets as the first one.
    pub(crate) fn fix_budgets(&mut self, in_core_peak_bytes: u64) {
        for size in [&mut self.device_memory, &mut self.host_memory].into_iter().flatten() {
            *size = MemorySize::Bytes(size.resolve(in_core_peak_bytes));
        }
    }

    /// Whether device memory and host memory are one pool for a plan, on a device whose memory is the host's.
    pub(crate) fn is_one_pool(&self) -> bool {
        let has_two = self.simulate_device.is_some() || self.host_memory.is_some();
        !has_two && self.mode == MemoryMode::Planned
    }

    /// Resolves the meaning of each budget, on a device whose memory is the host's (`in_process`) or another.
    ///
    /// # Errors
    /// Fails if budgets exclude each other.
    pub(crate) fn settle(&mut self, in_process: bool) -> Result<(), Error> {
        let refuse = |reason: &str| Err(Error::Option { reason: reason.to_string() });
        let limits = !matches!(self.memory_limit, None | Some(MemoryLimit::Unlimited));
        if limits && (self.device_memory.is_some() || self.host_memory.is_some() || self.simulate_device.is_some()) {
            return refuse(
                "a memory limit covers both device and host memory; it cannot be combined with their budgets",
            );
        }
        if self.simulate_device.is_some() && self.device_memory.is_some() {
            return refuse("a simulated device's size is its device memory; set only one of the two sizes");
        }
        if in_process && self.is_one_pool() {
            // The budget stays set, for a process that cannot stay within it.
            if let Some(size) = self.device_memory {
                self.memory_limit = Some(MemoryLimit::Size(size));
            }
        } else if let Some(size) = self.simulate_device {
            self.device_memory = Some(size);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(change: impl Fn(&mut MemoryOptions), in_process: bool) -> Result<MemoryOptions, String> {
        let mut memory = MemoryOptions::default();
        change(&mut memory);
        memory.settle(in_process).map_err(|error| error.to_string())?;
        Ok(memory)
    }

    #[test]
    fn limits_are_read_as_they_are_written() {
        for text in ["256 MiB", "37.5%", "80%free", "none"] {
            assert_eq!(text.parse::<MemoryLimit>().unwrap().to_string(), text);
        }
        assert_eq!(" 80 % free ".parse::<MemoryLimit>().unwrap(), MemoryLimit::OfFree(80.0));
        for text in ["", "free", "1GiBfree", "101%free", "0%free", "0", "much"] {
            let error = text.parse::<MemoryLimit>().unwrap_err().to_string();
            assert!(error.contains("is not a memory limit") && error.contains("80%free"), "{error}");
        }
    }

    #[test]
    fn where_memory_is_one_pool_device_memory_is_its_limit() {
        let size = Some(MemorySize::Bytes(1 << 30));
        let alone = |memory: &mut MemoryOptions| memory.device_memory = size;
        let here = settled(alone, true).unwrap();
        assert_eq!((here.memory_limit, here.device_memory), (size.map(MemoryLimit::Size), size));
        let elsewhere = settled(alone, false).unwrap();
        assert_eq!((elsewhere.memory_limit, elsewhere.device_memory), (None, size));
    }

    #[test]
    fn two_pools_have_names_of_their_own() {
        let size = Some(MemorySize::Bytes(1 << 30));
        for in_process in [true, false] {
            let simulated = settled(|memory| memory.simulate_device = size, in_process).unwrap();
            assert_eq!((simulated.memory_limit, simulated.device_memory), (None, size));
            let both = settled(|memory| (memory.device_memory, memory.host_memory) = (size, size), in_process).unwrap();
            assert_eq!((both.memory_limit, both.device_memory, both.host_memory), (None, size, size));
            let managed =
                settled(|memory| (memory.device_memory, memory.mode) = (size, MemoryMode::Automatic), in_process);
            assert_eq!(managed.unwrap().device_memory, size);
        }
    }

    #[test]
    fn budgets_that_exclude_each_other_are_refused() {
        let size = Some(MemorySize::Bytes(1 << 30));
        let refused = |change: &dyn Fn(&mut MemoryOptions)| settled(change, true).unwrap_err();
        let limited = |memory: &mut MemoryOptions| memory.memory_limit = size.map(MemoryLimit::Size);
        for change in [
            &|memory: &mut MemoryOptions| memory.device_memory = size,
            &|memory: &mut MemoryOptions| memory.host_memory = size,
            &|memory: &mut MemoryOptions| memory.simulate_device = size,
        ] as [&dyn Fn(&mut MemoryOptions); 3]
        {
            let both = |memory: &mut MemoryOptions| {
                limited(memory);
                change(memory);
            };
            assert!(refused(&both).contains("cannot be combined with their budgets"));
        }
        let error = refused(&|memory| (memory.device_memory, memory.simulate_device) = (size, size));
        assert!(error.contains("set only one of the two sizes"), "{error}");
    }
}
