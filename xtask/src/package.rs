//! `cargo xtask package`: every crate as it would be published; `cargo xtask semver`: breaking changes for users.

use crate::command::{cargo, run, succeeds};
use crate::source::{self, SourceFile};

/// How many keywords a registry accepts, and how long each can be.
const KEYWORDS_MAX: usize = 5;
const KEYWORD_LENGTH_MAX: usize = 20;

/// Packs every crate in dependency order, builds each from its package, and stops before the upload. `--no-verify` skips the build;
/// `--allow-dirty` permits uncommitted changes.
///
/// # Errors
/// Fails if a registry would refuse a manifest, or Cargo fails.
pub fn package(arguments: &[String]) -> Result<(), String> {
    let known = ["--no-verify", "--allow-dirty"];
    if let Some(unknown) = arguments.iter().find(|argument| !known.contains(&argument.as_str())) {
        return Err(format!("cargo xtask package accepts only {}, not '{unknown}'", known.join(" and ")));
    }
    let violations = violations(&source::files()?);
    if !violations.is_empty() {
        return Err(format!("the manifests are incomplete:\n  {}", violations.join("\n  ")));
    }
    run(cargo(&["publish", "--workspace", "--dry-run"]).args(arguments))
}

/// Compares the public interface of the library with that of a revision, `main` by default.
///
/// # Errors
/// Fails if there are breaking changes, or cargo-semver-checks is missing.
pub fn semver(arguments: &[String]) -> Result<(), String> {
    let revision = match arguments {
        [] => "main",
        [revision] => revision,
        _ => return Err(format!("cargo xtask semver accepts one revision, not '{}'", arguments.join(" "))),
    };
    if !succeeds(&mut cargo(&["semver-checks", "--version"])) {
        let way_out = "`cargo install cargo-semver-checks --locked` installs it";
        return Err(format!("nothing was compared, because cargo-semver-checks is missing; {way_out}"));
    }
    // Nothing is published yet, so a revision takes the place of the previous version.
    run(&mut cargo(&["semver-checks", "--package", "forebay", "--baseline-rev", revision]))
}

/// Returns what a registry would refuse or miss in the manifests of crates, one sentence each.
pub fn violations(files: &[SourceFile]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let path = file.path.as_str();
        let folder = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"));
        if let Some(folder) = folder.filter(|_| !file.text.contains("publish = false")) {
            found.extend(of_manifest(file));
            let readme = files.iter().find(|other| other.path == format!("crates/{folder}/README.md"));
            if !readme.is_some_and(|readme| readme.text.starts_with(&format!("# {folder}\n"))) {
                found.push(format!(
                    "{path}: crates/{folder}/README.md is missing, or does not begin with the crate's name"
                ));
            }
        }
        // A published crate cannot depend on a path alone.
        let lines = file.text.lines().filter(|line| path == "Cargo.toml" && line.starts_with("forebay"));
        for line in lines.filter(|line| line.contains("path = ") && !line.contains("version = ")) {
            if is_unpublished(line, files) {
                continue;
            }
            found.push(format!("{path}: the dependency has no version: {line}"));
        }
    }
    found
}

/// Returns whether a line of the workspace's dependencies names a crate that is never published. Only tests use such crates, and Cargo
/// omits them from packages if they have no version.
fn is_unpublished(line: &str, files: &[SourceFile]) -> bool {
    let folder = line.split("path = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let manifest = files.iter().find(|file| file.path == format!("{folder}/Cargo.toml"));
    manifest.is_some_and(|manifest| manifest.text.contains("publish = false"))
}

fn of_manifest(file: &SourceFile) -> Vec<String> {
    let value = |key: &str| {
        let line = file.text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
        line.map(str::trim)
    };
    let keys = ["description", "keywords", "categories", "readme", "documentation"];
    let mut found: Vec<String> = keys
        .iter()
        .filter(|key| value(key).is_none_or(|value| matches!(value, "\"\"" | "[]")))
        .map(|key| format!("{}: {key} is missing", file.path))
        .collect();
    let keywords: Vec<&str> = value("keywords").unwrap_or_default().split('"').skip(1).step_by(2).collect();
    if keywords.len() > KEYWORDS_MAX || keywords.iter().any(|keyword| keyword.len() > KEYWORD_LENGTH_MAX) {
        let limits = format!("at most {KEYWORDS_MAX} keywords of at most {KEYWORD_LENGTH_MAX} characters");
        found.push(format!("{}: expected {limits}, found {}", file.path, keywords.join(", ")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_manifests_are_found() {
        let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
        let whole = "description = \"A\"\nkeywords = [\"a\"]\ncategories = [\"science\"]\nreadme = \"README.md\"\n\
                     documentation = \"https://docs.rs/a\"\n";
        let readme = file("crates/a/README.md", "# a\n");
        let with =
            |text: &str| violations(&[file("crates/a/Cargo.toml", text), file("crates/a/README.md", &readme.text)]);
        assert_eq!(with(whole), Vec::<String>::new());
        assert!(with(&whole.replace("\"science\"", ""))[0].contains("categories is missing"));
        assert!(with(&whole.replace("[\"a\"]", "[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"]"))[0].contains("at most 5"));
        assert!(with("publish = false").is_empty());
        assert!(violations(&[file("crates/a/Cargo.toml", whole)])[0].contains("README.md is missing"));
        let workspace =
            "forebay-a = { path = \"crates/a\" }\nforebay-b = { path = \"crates/b\", version = \"0.1.0\" }\n";
        assert_eq!(violations(&[file("Cargo.toml", workspace)]).len(), 1);
        let for_tests = file("crates/a/Cargo.toml", "publish = false");
        assert_eq!(violations(&[file("Cargo.toml", workspace), for_tests]), Vec::<String>::new());
    }
}
