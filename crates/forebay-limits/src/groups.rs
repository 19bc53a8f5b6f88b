//! The locations of this process's control groups, from the contents of `/proc/self/cgroup` and `/proc/self/mountinfo`.

use std::path::{Path, PathBuf};

/// The version of a control group, which determines its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes` and related files.
    One,
    /// `memory.max` and related files.
    Two,
}

/// A control group that might limit memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The version, which determines its files.
    pub version: Version,
    /// Its path in its hierarchy, as this process sees it.
    pub name: String,
    /// The folder with its files.
    pub folder: PathBuf,
}

/// The groups that this process is in and all groups that contain them, of both versions. A listed group need not limit memory; if it does
/// not, its folder lacks the files.
pub fn groups(cgroup: &str, mountinfo: &str) -> Vec<Group> {
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
    let mut groups = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            some if some.split(',').any(|controller| controller == "memory") => Version::One,
            _ => continue,
        };
        // The last mount covers earlier ones.
        if let Some(mount) = mounts.iter().rev().find(|mount| mount.version == version) {
            groups.extend(mount.lineage(path));
        }
    }
    groups
}

/// A mounted hierarchy of control groups.
struct Mount {
    version: Version,
    /// The group that is mounted.
    root: String,
    /// The mount point.
    folder: PathBuf,
}

impl Mount {
    /// Parses a line of `mountinfo`; `None` for other file systems and for hierarchies of other controllers.
    fn parse(line: &str) -> Option<Mount> {
        let (mount, system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, folder) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let mut system = system.split(' ');
        let (kind, _source, options) = (system.next()?, system.next()?, system.next().unwrap_or_default());
        let version = match kind {
            "cgroup2" => Version::Two,
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Mount { version, root, folder: folder.into() })
    }

    /// The group at this path and all groups that contain it, as far as they are mounted, innermost first.
    fn lineage(&self, path: &str) -> Vec<Group> {
        // A path that leads outside the mount (`/..`, or another container's) leaves the mounted group itself.
        let inside = Path::new(path).strip_prefix(&self.root).unwrap_or(Path::new(""));
        let is_plain = inside.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let inside = if is_plain { inside } else { Path::new("") };
        // Joining an empty path would leave a trailing slash.
        let join = |base: &Path, inside: &Path| match inside.as_os_str().is_empty() {
            true => base.to_owned(),
            false => base.join(inside),
        };
        let group = |inside: &Path| Group {
            version: self.version,
            name: join(self.root.as_ref(), inside).display().to_string(),
            folder: join(&self.folder, inside),
        };
        inside.ancestors().map(group).collect()
    }
}

/// Decodes a path from `mountinfo`, where spaces and similar characters are written as `\040`.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                whole.push(code.into());
                whole.push_str(&part[3..]);
            }
            None => {
                whole.push('\\');
                whole.push_str(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(cgroup: &str, mountinfo: &str) -> Vec<(Version, String, String)> {
        let group = |group: Group| (group.version, group.name, group.folder.display().to_string());
        groups(cgroup, mountinfo).into_iter().map(group).collect()
    }

    fn expected(version: Version, groups: &[(&str, &str)]) -> Vec<(Version, String, String)> {
        groups.iter().map(|(name, folder)| (version, name.to_string(), folder.to_string())).collect()
    }

    #[test]
    fn version_two_with_all_ancestors() {
        let mounts = "24 30 0:22 / /proc rw - proc proc rw\n\
                      35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = listed("0::/user.slice/user-1000.slice/a b.scope\n", mounts);
        let folder = "/sys/fs/cgroup/user.slice";
        assert_eq!(
            found,
            expected(
                Version::Two,
                &[
                    ("/user.slice/user-1000.slice/a b.scope", &format!("{folder}/user-1000.slice/a b.scope")),
                    ("/user.slice/user-1000.slice", &format!("{folder}/user-1000.slice")),
                    ("/user.slice", folder),
                    ("/", "/sys/fs/cgroup"),
                ]
            )
        );
    }

    #[test]
    fn a_namespace_shows_its_own_group_as_the_root() {
        let mounts = "600 590 0:30 / /sys/fs/cgroup ro - cgroup2 cgroup ro\n";
        let own = expected(Version::Two, &[("/", "/sys/fs/cgroup")]);
        assert_eq!(listed("0::/\n", mounts), own);
        assert_eq!(listed("0::/../../other\n", mounts), own);
    }

    #[test]
    fn version_one_mounts_the_group_of_a_container() {
        let mounts = "40 30 0:35 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro master:13 - cgroup cgroup rw,cpu,cpuacct\n\
                      41 30 0:36 /docker/abc /sys/fs/cgroup/memory ro master:14 - cgroup cgroup rw,memory\n";
        let cgroup = "5:cpu,cpuacct:/docker/abc\n4:hugetlb,memory:/docker/abc/inner\n1:name=systemd:/docker/abc\n";
        assert_eq!(
            listed(cgroup, mounts),
            expected(
                Version::One,
                &[("/docker/abc/inner", "/sys/fs/cgroup/memory/inner"), ("/docker/abc", "/sys/fs/cgroup/memory"),]
            )
        );
        assert_eq!(
            listed("4:memory:/docker/other\n", mounts),
            expected(Version::One, &[("/docker/abc", "/sys/fs/cgroup/memory")])
        );
    }

    #[test]
    fn both_versions_at_once() {
        let mounts = "32 31 0:33 / /sys/fs/cgroup/my\\040memory rw - cgroup cgroup rw,memory\n\
                      33 31 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let mut both =
            expected(Version::One, &[("/a", "/sys/fs/cgroup/my memory/a"), ("/", "/sys/fs/cgroup/my memory")]);
        both.extend(expected(Version::Two, &[("/", "/sys/fs/cgroup/unified")]));
        assert_eq!(listed("4:memory:/a\n0::/\n", mounts), both);
    }

    #[test]
    fn nonsense_is_no_group() {
        assert_eq!(listed("", ""), []);
        assert_eq!(listed("memory\n4:memory\n0::/\n", "1 2 3\n1 2 3 - cgroup2\n - cgroup2 x y\n"), []);
        assert_eq!(unescaped("a\\040b\\"), "a b\\");
        assert_eq!(unescaped("\\999\\é"), "\\999\\é");
    }
}
