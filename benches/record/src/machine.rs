//! The machine that a bench ran on: what determines its speed, and nothing that distinguishes it from an identical one, such as the names
//! of hosts or users, or paths.

use std::process::Command;

use serde::{Deserialize, Serialize};

/// A machine. Fields that are not known are `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processor's model.
    pub cpu: Option<String>,
    /// The number of processors that the bench could use.
    pub cores: Option<u64>,
    /// The widest vector extension of the processor; kernels may use less.
    pub vector: Option<String>,
    /// The size of the machine's memory.
    pub memory_bytes: Option<u64>,
    /// The accelerator, if one took part, including a Vulkan device that a CPU emulates.
    pub gpu: Option<String>,
    /// The accelerator's driver and its version.
    pub driver: Option<String>,
    /// The operating system and its kernel's version.
    pub os: Option<String>,
}

impl Machine {
    /// Returns this machine, with the first card that NVIDIA's driver shows, if there is one.
    pub fn here() -> Machine {
        let (gpu, driver) = nvidia().unzip();
        Machine {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().ok().map(|cores| cores.get() as u64),
            vector: vector().map(str::to_owned),
            memory_bytes: memory_bytes(),
            gpu,
            driver,
            os: os(),
        }
    }

    /// Describes the machine in a few words, leaving out what is not known.
    pub fn words(&self) -> String {
        let cores = self.cores.map(|cores| format!("{cores} {}", if cores == 1 { "core" } else { "cores" }));
        let memory = self.memory_bytes.map(|bytes| format!("{} GiB", (bytes as f64 / f64::from(1 << 30)).round()));
        let parts = [&self.cpu, &cores, &self.vector, &memory, &self.gpu, &self.driver, &self.os];
        parts.into_iter().flatten().cloned().collect::<Vec<_>>().join(", ")
    }
}

/// Returns the first value of a key in a file of `key : value` lines.
fn field(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == key))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// Returns the widest vector extension.
fn vector() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return Some("AVX-512");
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return Some("AVX2");
        }
        Some("SSE2")
    }
    #[cfg(target_arch = "aarch64")]
    {
        Some("NEON")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        None
    }
}

/// Returns the size of the machine's memory.
fn memory_bytes() -> Option<u64> {
    let total = field("/proc/meminfo", "MemTotal")?;
    total.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the distribution, and the version of the kernel without what its builder added, which could name a host.
fn os() -> Option<String> {
    let text = std::fs::read_to_string("/etc/os-release").ok();
    let named = text.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")));
    let name = named.map_or(std::env::consts::OS, |name| name.trim_matches('"')).to_owned();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = release.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    Some(if version.is_empty() { name } else { format!("{name}, Linux {version}") })
}

/// Returns the first card and its driver, as NVIDIA's tool names them.
fn nvidia() -> Option<(String, String)> {
    let arguments = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
    let output = Command::new("nvidia-smi").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (name, version) = text.lines().next()?.rsplit_once(',')?;
    Some((name.trim().to_owned(), format!("NVIDIA {}", version.trim())))
}
