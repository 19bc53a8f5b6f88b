//! This process's use of the machine's memory, as the system counts it.

use std::fs;

/// The memory of this process in bytes, now and at its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The current value (`VmRSS`).
    pub now_bytes: u64,
    /// The peak so far (`VmHWM`).
    pub peak_bytes: u64,
    /// The part of `now_bytes` that consists of file pages, such as the program's code (`RssFile`). The system can drop them, and counts
    /// them for the control group that read them first.
    pub file_bytes: u64,
}

/// The memory of this process; `None` if the system does not report it.
pub fn resident() -> Option<Resident> {
    parse(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<Resident> {
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    // Old systems do not distinguish file pages from others.
    let file_bytes = bytes("RssFile:").unwrap_or(0);
    Some(Resident { now_bytes: bytes("VmRSS:")?, peak_bytes: bytes("VmHWM:")?, file_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let status = "Name:\tforebay\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\nRssFile:\t    4096 kB\nThreads:\t3\n";
        let expected = Resident { now_bytes: 10 << 20, peak_bytes: 20 << 20, file_bytes: 4 << 20 };
        assert_eq!(parse(status), Some(expected));
        let old = parse("VmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n");
        assert_eq!(old, Some(Resident { file_bytes: 0, ..expected }));
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
