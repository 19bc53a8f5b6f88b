//! Running the program in a separate control group, and with shell limits.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the next group: tests that share this process have one each.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Runs the program after a line of shell code.
pub fn after(line: &str, arguments: &[&str]) -> Output {
    let script = format!("{line}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_forebay")]).args(arguments);
    command.env_remove("RUST_BACKTRACE").output().expect("a shell")
}

/// A control group created by this process for the processes that it starts. It is removed when the value is dropped.
pub struct Group {
    /// The folder of its files.
    pub folder: PathBuf,
    /// The name of the file with its limit.
    pub limit: &'static str,
}

impl Group {
    /// Creates a group with this much memory. If the machine has no control groups or does not let this process create one, prints that the
    /// test is skipped and returns `None`.
    pub fn new(bytes: u64) -> Option<Group> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let name = format!("forebay-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let groups = forebay_limits::groups::groups(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let mut groups = groups.iter().filter(|group| Path::new(&group.folder).join("cgroup.procs").exists());
        let created = groups.find_map(|own| {
            let folder = own.folder.join(&name);
            std::fs::create_dir(&folder).ok()?;
            for limit in ["memory.max", "memory.limit_in_bytes"] {
                if folder.join(limit).exists() && std::fs::write(folder.join(limit), bytes.to_string()).is_ok() {
                    return Some(Group { folder, limit });
                }
            }
            let _ = std::fs::remove_dir(&folder);
            None
        });
        if created.is_none() {
            eprintln!("SKIPPED: this process cannot create a control group");
        }
        created
    }

    /// Runs the program in the group. If the machine lets no process in, prints that the test is skipped and returns `None`.
    pub fn run(&self, arguments: &[&str]) -> Option<Output> {
        let output = after(&format!("echo $$ > '{}/cgroup.procs' || exit 9", self.folder.display()), arguments);
        if output.status.code() == Some(9) {
            eprintln!("SKIPPED: no process can join a control group on this machine");
            return None;
        }
        Some(output)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}
