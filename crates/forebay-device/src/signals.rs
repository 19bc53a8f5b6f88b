//! Signals that end a process although an error would do, and signals that a program was told to ignore.

/// Turns writing a file beyond the size limit of the process (`ulimit -f`) into an error of the call that writes. By default, the system
/// ends the process without a message. For programs only: it applies to the whole process and to the processes that it starts.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler is installed, so nothing runs when the signal comes.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Calls `install`, which installs handlers of signals. If hang-ups were ignored before, as in a program that `nohup` starts, they stay
/// ignored.
pub fn keep_hang_ups_ignored<T>(install: impl FnOnce() -> T) -> T {
    // SAFETY: zeros are a valid action, and the call only writes the present one there.
    let are_ignored = unsafe {
        let mut present: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut present) == 0 && present.sa_sigaction == libc::SIG_IGN
    };
    let installed = install();
    if are_ignored {
        // SAFETY: no handler is installed.
        unsafe {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
        }
    }
    installed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ignored(signal: libc::c_int) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 << (signal - 1) != 0
    }

    #[test]
    fn hang_ups_stay_ignored_if_they_were() {
        // SAFETY: no handler is installed.
        let set = |action| unsafe { libc::signal(libc::SIGHUP, action) };
        let before = set(libc::SIG_IGN);
        assert_eq!(keep_hang_ups_ignored(|| set(libc::SIG_DFL)), libc::SIG_IGN);
        assert!(is_ignored(libc::SIGHUP));
        set(libc::SIG_DFL);
        keep_hang_ups_ignored(|| set(libc::SIG_DFL));
        assert!(!is_ignored(libc::SIGHUP));
        set(before);
    }

    #[test]
    fn the_signal_is_ignored() {
        ignore_file_size_signal();
        assert!(is_ignored(libc::SIGXFSZ));
    }
}
