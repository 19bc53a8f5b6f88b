//! Signals that end a process where an error would do.

/// Makes a file that grows beyond the limit of its process (`ulimit -f`) an error of the call that writes it. Unasked, the
/// system ends the process without a word. For programs: it holds for the whole process and those that it starts.
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
