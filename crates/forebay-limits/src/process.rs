//! What this process takes of the machine's memory, as the system counts it.

use std::fs;

/// Bytes of memory that this process has now, and the most that it ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Now (`VmRSS`).
    pub now_bytes: u64,
    /// The most so far (`VmHWM`).
    pub peak_bytes: u64,
}

/// What this process has of the machine's memory; none where the system does not say.
pub fn resident() -> Option<Resident> {
    parse(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<Resident> {
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Resident { now_bytes: bytes("VmRSS:")?, peak_bytes: bytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let status = "Name:\tforebay\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\nThreads:\t3\n";
        assert_eq!(parse(status), Some(Resident { now_bytes: 10 << 20, peak_bytes: 20 << 20 }));
        assert_eq!(parse("VmRSS:\t many kB\nVmHWM:\t 1 kB\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn memory_that_is_touched_is_counted() {
        let before = resident().unwrap();
        let touched = vec![1u8; 64 << 20];
        let after = resident().unwrap();
        assert!(after.now_bytes >= before.now_bytes + (60 << 20) && after.peak_bytes >= after.now_bytes - (1 << 20));
        drop(touched);
    }
}
