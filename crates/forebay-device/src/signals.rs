//! Signals that end a process although an error would do.

/// Turns writing a file beyond the size limit of the process (`ulimit -f`) into an error of the call that writes. By default, the system
/// ends the process without a message. For programs only: it applies to the whole process and to the processes that it starts.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler is installed, so nothing runs when the signal comes.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_is_ignored() {
        ignore_file_size_signal();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        assert_ne!(ignored & 1 << (libc::SIGXFSZ - 1), 0, "{ignored:x}");
    }
}
