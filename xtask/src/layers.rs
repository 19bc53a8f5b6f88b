//! Which crates and files may import which: a file imports only from earlier modules of its own layer, or from lower layers.
//!
//! Between crates, [`CRATES`] lists the allowed dependencies (the compiler then enforces them). Within a crate, imports are acyclic
//! ([`circles`]).

use crate::circles;
use crate::source::SourceFile;

/// Every crate, lowest first, with the crates of this workspace that it may depend on.
const CRATES: [(&str, &[&str]); 24] = [
    ("forebay-testing", &[]),
    ("forebay-base", &[]),
    ("forebay-files", &[]),
    ("forebay-images", &[]),
    ("forebay-limits", &[]),
    ("forebay-memory", &["forebay-base"]),
    ("forebay-sync", &["forebay-base"]),
    ("forebay-queue", &["forebay-base"]),
    ("forebay-model", &["forebay-base", "forebay-images", "forebay-limits"]),
    ("forebay-offload", &[]),
    ("forebay-gpu-kernels", &["forebay-base"]),
    ("forebay-device", &["forebay-base", "forebay-limits", "forebay-queue", "forebay-sync"]),
    ("forebay-device-testing", &["forebay-base", "forebay-device", "forebay-testing"]),
    ("forebay-vulkan", &["forebay-base", "forebay-queue", "forebay-device", "forebay-gpu-kernels"]),
    ("forebay-mpi", &["forebay-queue", "forebay-device"]),
    ("forebay-devices", &["forebay-base", "forebay-device", "forebay-vulkan"]),
    ("forebay-data", &["forebay-base", "forebay-files", "forebay-images", "forebay-limits"]),
    ("forebay-plan", &["forebay-base", "forebay-memory", "forebay-sync", "forebay-model", "forebay-offload"]),
    (
        "forebay-runtime",
        &[
            "forebay-base",
            "forebay-limits",
            "forebay-memory",
            "forebay-sync",
            "forebay-model",
            "forebay-queue",
            "forebay-device",
            "forebay-plan",
        ],
    ),
    (
        "forebay",
        &[
            "forebay-base",
            "forebay-files",
            "forebay-limits",
            "forebay-memory",
            "forebay-sync",
            "forebay-model",
            "forebay-device",
            "forebay-devices",
            "forebay-data",
            "forebay-offload",
            "forebay-plan",
            "forebay-runtime",
        ],
    ),
    ("forebay-golden", &["forebay", "forebay-base", "forebay-device", "forebay-testing"]),
    ("forebay-conformance", &["forebay", "forebay-base", "forebay-model"]),
    ("forebay-cli", &["forebay", "forebay-data", "forebay-device", "forebay-limits", "forebay-memory", "forebay-mpi"]),
    ("forebay-python", &["forebay", "forebay-cli", "forebay-mpi"]),
];

/// Returns the violations of the rules, one sentence each.
pub fn violations(files: &[SourceFile]) -> Vec<String> {
    let mut violations = dependency_violations(files);
    violations.extend(circles::violations(CRATES.iter().map(|(name, _)| *name), files));
    violations
}

fn dependency_violations(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        let Some(name) = file.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            violations.push(format!("{}: the crate has no layer yet; add it to xtask/src/layers.rs", file.path));
            continue;
        };
        // Tests may use crates of any layer; only the section of ordinary dependencies counts.
        let section = file.text.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap_or_default();
        for line in section.lines() {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if dependency.starts_with("forebay") && !allowed.contains(&dependency) {
                violations.push(format!("{}: {name} must not depend on {dependency}", file.path));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn dependencies_on_higher_floors_are_found() {
        let text = "[package]\nname = \"x\"\n[dependencies]\nforebay-base.workspace = true\nforebay-device = { path = \"\" }\n\
                    [dev-dependencies]\nforebay-runtime.workspace = true\n";
        let found = dependency_violations(&[file("crates/forebay-plan/Cargo.toml", text)]);
        assert_eq!(found, ["crates/forebay-plan/Cargo.toml: forebay-plan must not depend on forebay-device"]);
        assert_eq!(dependency_violations(&[file("crates/forebay-new/Cargo.toml", "")]).len(), 1);
    }
}
