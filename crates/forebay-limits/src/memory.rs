//! The memory that is still available: limits of the machine, control groups of both versions, resource limits of the process.
//!
//! The smallest one counts. Part of a memory limit stays free ([`headroom_bytes`]), because the system responds to the last byte by killing
//! a process, and the pages of programs and files need space too. Swap is not counted.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::groups::{Group, Version, groups};

/// The resources that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Memory without addresses: files in memory.
    Memory,
    /// Addresses only.
    Addresses,
    /// Memory that other processes could also see, and addresses for it.
    Shared,
    /// Memory private to this process, and addresses for it, as an allocator takes.
    Private,
}

impl Use {
    fn takes(self, resource: Resource) -> bool {
        match resource {
            Resource::Memory => self != Use::Addresses,
            Resource::Addresses => self != Use::Memory,
            Resource::Data => self == Use::Private,
        }
    }
}

/// The resource that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Memory,
    Addresses,
    Data,
}

/// A limit, and how much of it is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes that can still be taken, not including those that stay free.
    pub bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// Bytes under the limit that nothing has taken, including those that stay free.
    pub left_bytes: u64,
    /// The source of the limit.
    pub source: String,
    resource: Resource,
}

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that were requested.
    pub requested_bytes: u64,
    /// The limit that they exceed.
    pub available: Available,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Available { bytes, limit_bytes, left_bytes, source, resource } = &self.available;
        let of = match resource {
            Resource::Memory => "",
            Resource::Addresses => " of address space",
            Resource::Data => " of data",
        };
        let (wanted, limit) = (size(self.requested_bytes), size(*limit_bytes));
        let (left, kept) = (size(*left_bytes), size(left_bytes - bytes));
        write!(
            f,
            "{wanted}{of} would be needed, but {left} of {limit} are left ({source}), \
             {kept} of which must stay free"
        )
    }
}

impl std::error::Error for Shortage {}

/// A size for display.
pub(crate) fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

/// Bytes of memory that stay free under a limit: 3 % of it, at least 64 MiB and at most 2 GiB; a quarter of limits below 256 MiB.
pub fn headroom_bytes(limit_bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    (limit_bytes / 100 * 3).clamp(64 * MIB, 2048 * MIB).min(limit_bytes / 4)
}

/// Whether the process keeps to its own limit.
static KEEPS_OWN_LIMIT: AtomicBool = AtomicBool::new(false);

/// From now on, nothing has to stay free for this process, because it keeps to a limit set by its user that includes program and files.
pub fn keep_own_limit() {
    KEEPS_OWN_LIMIT.store(true, Ordering::Relaxed);
}

/// Like [`headroom_bytes`], but for addresses and data, where running out is an error and not a kill: little, at most 8 MiB.
fn address_headroom_bytes(limit_bytes: u64) -> u64 {
    (limit_bytes / 64).min(8 << 20)
}

/// Refuses a request that exceeds what the machine, a control group or a resource limit has available at this moment.
///
/// # Errors
/// [`Shortage`].
pub fn check(requested_bytes: u64, purpose: Use) -> Result<(), Shortage> {
    // Small requests are not checked: they are part of what stays free.
    const LITTLE_BYTES: u64 = 256 << 10;
    if requested_bytes <= LITTLE_BYTES {
        return Ok(());
    }
    refuse(requested_bytes, System::this().all_available(&read, purpose))
}

/// Bytes that can still be taken; `None` if nothing is known.
pub fn available_bytes(purpose: Use) -> Option<u64> {
    share_bytes(purpose, 1)
}

/// Like [`available_bytes`], but of the memory that several processes share, only the share of one of them. The limits of the machine
/// and of control groups are shared; resource limits apply to each process alone.
///
/// ```
/// use forebay_limits::{Use, available_bytes, share_bytes};
///
/// if let Some((all_bytes, share_bytes)) = available_bytes(Use::Memory).zip(share_bytes(Use::Memory, 1000)) {
///     assert!(share_bytes <= all_bytes);
/// }
/// ```
pub fn share_bytes(purpose: Use, processes: usize) -> Option<u64> {
    smallest_share(System::this().all_available(&read, purpose), processes)
}

fn smallest_share(all_available: Vec<Available>, processes: usize) -> Option<u64> {
    let share = |available: Available| match available.resource {
        Resource::Memory => available.bytes / processes.max(1) as u64,
        Resource::Addresses | Resource::Data => available.bytes,
    };
    all_available.into_iter().map(share).min()
}

fn refuse(requested_bytes: u64, all_available: Vec<Available>) -> Result<(), Shortage> {
    match all_available.into_iter().min_by_key(|available| available.bytes) {
        Some(available) if requested_bytes > available.bytes => Err(Shortage { requested_bytes, available }),
        _ => Ok(()),
    }
}

/// The total memory for this process, taken or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Total {
    /// The memory of the machine, or the smallest limit of a control group.
    pub bytes: u64,
    /// The source of the limit; `None` if it is the memory of the machine itself.
    pub source: Option<String>,
}

/// The total memory for this process; `None` if the system does not report it.
pub fn total() -> Option<Total> {
    System::this().total(&read)
}

/// The function that reads the system's text files.
type Reading<'a> = &'a dyn Fn(&Path) -> Option<String>;

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The limits of this process, located once. The values of the limits and their use are read on every request.
struct System {
    groups: Vec<Group>,
    has_resource_limits: bool,
}

impl System {
    fn this() -> &'static System {
        static SYSTEM: OnceLock<System> = OnceLock::new();
        SYSTEM.get_or_init(|| System::find(&read))
    }

    fn find(read: Reading) -> System {
        let text = |path: &str| read(path.as_ref()).unwrap_or_default();
        let mut groups = groups(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
        groups.retain(|group| group.limits(read).next().is_some());
        let limits = text("/proc/self/limits");
        let has_resource_limits = RESOURCE_LIMITS.iter().any(|limit| limit.in_text(&limits).is_some());
        System { groups, has_resource_limits }
    }

    fn total(&self, read: Reading) -> Option<Total> {
        let bytes = number_of_kib(&read("/proc/meminfo".as_ref())?, "MemTotal:")?;
        let of = |group: &Group, (file, bytes)| Total { bytes, source: Some(group.source(file)) };
        let limits = self.groups.iter().flat_map(|group| group.limits(read).map(move |limit| of(group, limit)));
        [Total { bytes, source: None }].into_iter().chain(limits).min_by_key(|total| total.bytes)
    }

    /// All limits on the resources that a request takes.
    fn all_available(&self, read: Reading, purpose: Use) -> Vec<Available> {
        let mut all_available = Vec::new();
        if purpose.takes(Resource::Memory) {
            all_available.extend(machine(read));
            all_available.extend(self.groups.iter().flat_map(|group| group.all_available(read)));
        }
        if self.has_resource_limits {
            let text = |path: &str| read(path.as_ref()).unwrap_or_default();
            let (limits, status) = (text("/proc/self/limits"), text("/proc/self/status"));
            let wanted = RESOURCE_LIMITS.iter().filter(|limit| purpose.takes(limit.resource));
            all_available.extend(wanted.filter_map(|limit| limit.available(&limits, &status)));
        }
        all_available
    }
}

/// The memory of the machine as a whole.
fn machine(read: Reading) -> Option<Available> {
    let text = read("/proc/meminfo".as_ref())?;
    let (limit_bytes, left_bytes) = (number_of_kib(&text, "MemTotal:")?, number_of_kib(&text, "MemAvailable:")?);
    Some(Available::of_memory("the machine's memory".to_owned(), limit_bytes, left_bytes))
}

impl Available {
    fn of_memory(source: String, limit_bytes: u64, left_bytes: u64) -> Available {
        let kept_bytes = if KEEPS_OWN_LIMIT.load(Ordering::Relaxed) { 0 } else { headroom_bytes(limit_bytes) };
        let bytes = left_bytes.saturating_sub(kept_bytes);
        Available { bytes, limit_bytes, left_bytes, source, resource: Resource::Memory }
    }
}

/// The value of a field such as `MemTotal:`, in bytes.
fn number_of_kib(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Version 1 writes this, rounded down to pages, if there is no limit.
const UNLIMITED_BYTES: u64 = 1 << 62;

impl Group {
    /// Its limits in bytes, with their file names.
    fn limits<'a>(&'a self, read: Reading<'a>) -> impl Iterator<Item = (&'static str, u64)> + 'a {
        let files = match self.version {
            Version::One => ["memory.limit_in_bytes"].as_slice(),
            Version::Two => &["memory.max", "memory.high"],
        };
        files.iter().filter_map(move |&file| {
            let limit_bytes = read(&self.folder.join(file))?.trim().parse::<u64>().ok()?;
            (limit_bytes < UNLIMITED_BYTES).then_some((file, limit_bytes))
        })
    }

    /// The name of one of its limits.
    fn source(&self, file: &str) -> String {
        format!("control group {}: {file}", self.name)
    }

    fn all_available(&self, read: Reading) -> Vec<Available> {
        let limits: Vec<(&str, u64)> = self.limits(read).collect();
        if limits.is_empty() {
            return Vec::new();
        }
        let Some(used_bytes) = self.used_bytes(read) else { return Vec::new() };
        let available = |(file, limit_bytes): (&str, u64)| {
            Available::of_memory(self.source(file), limit_bytes, limit_bytes.saturating_sub(used_bytes))
        };
        limits.into_iter().map(available).collect()
    }

    /// Bytes in use. Pages of files also count for the group, but the system drops them when memory is short.
    fn used_bytes(&self, read: Reading) -> Option<u64> {
        let (file, prefix, dirty) = match self.version {
            Version::One => ("memory.usage_in_bytes", "total_", ["dirty", "writeback"]),
            Version::Two => ("memory.current", "", ["file_dirty", "file_writeback"]),
        };
        let used_bytes: u64 = read(&self.folder.join(file))?.trim().parse().ok()?;
        let statistics = read(&self.folder.join("memory.stat")).unwrap_or_default();
        let sum = |names: [&str; 2]| -> u64 {
            let value = |name: &str| {
                let mut words = statistics.lines().map(|line| line.split_once(' '));
                let found = words.find_map(|line| line.filter(|(key, _)| key.strip_prefix(prefix) == Some(name)));
                found.and_then(|(_, value)| value.trim().parse::<u64>().ok()).unwrap_or(0)
            };
            names.into_iter().map(value).fold(0, u64::saturating_add)
        };
        let droppable = sum(["inactive_file", "active_file"]).saturating_sub(sum(dirty));
        Some(used_bytes.saturating_sub(droppable))
    }
}

/// A limit of `/proc/self/limits`, and the field of `/proc/self/status` that counts against it.
struct ResourceLimit {
    name: &'static str,
    row: &'static str,
    taken: &'static str,
    resource: Resource,
}

const RESOURCE_LIMITS: [ResourceLimit; 2] = [
    ResourceLimit {
        name: "RLIMIT_AS, ulimit -v",
        row: "Max address space",
        taken: "VmSize:",
        resource: Resource::Addresses,
    },
    ResourceLimit { name: "RLIMIT_DATA, ulimit -d", row: "Max data size", taken: "VmData:", resource: Resource::Data },
];

impl ResourceLimit {
    /// The soft limit in bytes; `None` if there is no limit.
    fn in_text(&self, limits: &str) -> Option<u64> {
        let row = limits.lines().find_map(|line| line.strip_prefix(self.row))?;
        row.split_whitespace().next()?.parse().ok()
    }

    fn available(&self, limits: &str, status: &str) -> Option<Available> {
        let (limit_bytes, taken) = (self.in_text(limits)?, number_of_kib(status, self.taken)?);
        let left_bytes = limit_bytes.saturating_sub(taken);
        let bytes = left_bytes.saturating_sub(address_headroom_bytes(limit_bytes));
        Some(Available { bytes, limit_bytes, left_bytes, source: self.name.to_owned(), resource: self.resource })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// System files of a machine with 8 GiB, 4 of which are free, and without limits; plus these others.
    fn texts(others: &[(&str, &str)]) -> BTreeMap<String, String> {
        let unlimited = "Limit                     Soft Limit           Hard Limit           Units     \n\
                         Max data size             unlimited            unlimited            bytes     \n\
                         Max address space         unlimited            unlimited            bytes     \n";
        let usual = [
            ("/proc/meminfo", "MemTotal:  8388608 kB\nMemFree:  100 kB\nMemAvailable:  4194304 kB\n"),
            ("/proc/self/limits", unlimited),
            ("/proc/self/status", "Name:\tx\nVmSize:\t  102400 kB\nVmData:\t  51200 kB\n"),
        ];
        usual.iter().chain(others).map(|(path, text)| (path.to_string(), text.to_string())).collect()
    }

    /// The limit with the fewest bytes available.
    fn least(others: &[(&str, &str)], purpose: Use) -> Available {
        let texts = texts(others);
        let read = |path: &Path| texts.get(path.to_str().expect("UTF-8")).cloned();
        let all_available = System::find(&read).all_available(&read, purpose);
        all_available.into_iter().min_by_key(|available| available.bytes).expect("the machine is a limit")
    }

    const MOUNT_ONE: (&str, &str) = (
        "/proc/self/mountinfo",
        "1 2 0:3 / /cg rw - cgroup cgroup rw,memory\n4 5 0:6 / /two rw - cgroup2 cgroup2 rw\n",
    );
    const MOUNT_TWO: (&str, &str) = ("/proc/self/mountinfo", "1 2 0:3 / /cg rw - cgroup2 cgroup2 rw\n");

    #[test]
    fn a_machine_without_limits_keeps_three_percent() {
        let available = least(&[], Use::Private);
        assert_eq!((available.limit_bytes, available.left_bytes), (8192 * MIB, 4096 * MIB));
        assert_eq!(available.bytes, 4096 * MIB - 8192 * MIB / 100 * 3);
        assert_eq!(available.source, "the machine's memory");
    }

    #[test]
    fn headroom_fits_the_limit() {
        let cases = [(8 * MIB, 2 * MIB), (100 * MIB, 25 * MIB), (300 * MIB, 64 * MIB), (1 << 40, 2048 * MIB)];
        cases.into_iter().for_each(|(limit, kept)| assert_eq!(headroom_bytes(limit), kept, "{limit}"));
    }

    #[test]
    fn the_smallest_group_of_version_two_counts() {
        let group = [
            ("/proc/self/cgroup", "0::/a/b\n"),
            MOUNT_TWO,
            ("/cg/a/b/memory.max", "max\n"),
            ("/cg/a/b/memory.high", "max\n"),
            ("/cg/a/memory.max", "314572800\n"),
            ("/cg/a/memory.current", "104857600\n"),
            ("/cg/a/memory.stat", "anon 1\ninactive_file 20971520\nactive_file 10485760\nfile_dirty 10485760\n"),
        ];
        let available = least(&group, Use::Memory);
        assert_eq!((available.limit_bytes, available.left_bytes, available.bytes), (300 * MIB, 220 * MIB, 156 * MIB));
        let refused = refuse(200 * MIB, vec![available]).unwrap_err().to_string();
        let words = "200.0 MiB would be needed, but 220.0 MiB of 300.0 MiB are left \
                     (control group /a: memory.max), 64.0 MiB of which must stay free";
        assert_eq!(refused, words);
        let high = [&group[..], &[("/cg/a/b/memory.high", "104857600"), ("/cg/a/b/memory.current", "0")]].concat();
        assert_eq!(least(&high, Use::Memory).source, "control group /a/b: memory.high");
        // Addresses take no memory.
        let texts = texts(&group);
        let read = |path: &Path| texts.get(path.to_str().expect("UTF-8")).cloned();
        assert_eq!(System::find(&read).all_available(&read, Use::Addresses), []);
        let source = Some("control group /a: memory.max".to_owned());
        assert_eq!(System::find(&read).total(&read), Some(Total { bytes: 300 * MIB, source }));
    }

    #[test]
    fn a_group_of_version_one_next_to_an_empty_one_of_version_two() {
        let group = |limit: &'static str| {
            [
                ("/proc/self/cgroup", "4:memory:/m\n0::/\n"),
                MOUNT_ONE,
                ("/cg/m/memory.limit_in_bytes", limit),
                ("/cg/m/memory.usage_in_bytes", "104857600\n"),
                ("/cg/m/memory.stat", "inactive_file 1\ntotal_inactive_file 52428800\n"),
                ("/cg/memory.limit_in_bytes", "9223372036854771712\n"),
            ]
        };
        let available = least(&group("314572800\n"), Use::Shared);
        assert_eq!(
            (available.left_bytes, available.source.as_str()),
            (250 * MIB, "control group /m: memory.limit_in_bytes")
        );
        assert_eq!(least(&group("9223372036854771712\n"), Use::Shared).source, "the machine's memory");
    }

    #[test]
    fn a_group_over_its_limit_leaves_nothing() {
        let group = [
            ("/proc/self/cgroup", "0::/\n"),
            MOUNT_TWO,
            ("/cg/memory.max", "1048576\n"),
            ("/cg/memory.current", "2097152\n"),
        ];
        let available = least(&group, Use::Private);
        assert_eq!((available.bytes, available.left_bytes), (0, 0));
    }

    #[test]
    fn resource_limits_count_for_what_they_limit() {
        let limits = "Max data size             104857600            unlimited            bytes     \n\
                      Max address space         209715200            unlimited            bytes     \n";
        let limited = [("/proc/self/limits", limits)];
        let available = least(&limited, Use::Private);
        assert_eq!((available.left_bytes, available.source.as_str()), (50 * MIB, "RLIMIT_DATA, ulimit -d"));
        let available = least(&limited, Use::Shared);
        assert_eq!((available.left_bytes, available.bytes), (100 * MIB, 100 * MIB - 200 * MIB / 64));
        let refused = refuse(99 * MIB, vec![available]).unwrap_err().to_string();
        assert!(refused.starts_with("99.0 MiB of address space would be needed"), "{refused}");
        assert!(refused.contains("of 200.0 MiB are left (RLIMIT_AS, ulimit -v)"), "{refused}");
        assert_eq!(least(&limited, Use::Memory).source, "the machine's memory");
        // The machine's 4 GiB, less what stays free, are shared; addresses are not.
        let share = |others: &[(&str, &str)], processes| {
            let texts = texts(others);
            let read = |path: &Path| texts.get(path.to_str().expect("UTF-8")).cloned();
            smallest_share(System::find(&read).all_available(&read, Use::Shared), processes)
        };
        let machine_bytes = least(&[], Use::Shared).bytes;
        assert_eq!((share(&[], 1), share(&[], 4)), (Some(machine_bytes), Some(machine_bytes / 4)));
        let addresses_bytes = least(&limited, Use::Shared).bytes;
        assert_eq!((share(&limited, 4), share(&limited, 100)), (Some(addresses_bytes), Some(machine_bytes / 100)));
    }

    #[test]
    fn what_cannot_be_is_refused_and_little_is_not_looked_at() {
        check(1, Use::Private).unwrap();
        assert!(check(1 << 60, Use::Memory).is_err());
        assert!(available_bytes(Use::Private).is_some_and(|bytes| bytes < 1 << 60));
        assert!(total().is_some_and(|total| total.bytes > MIB));
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(7), "7 bytes");
    }
}
