//! Source files that no module names. The compiler never sees them, so tests in them would silently not run.

use std::collections::BTreeMap;

use crate::source::SourceFile;

/// Folders of a crate whose files are programs that Cargo finds by itself.
const PROGRAM_FOLDERS: [&str; 4] = ["tests", "benches", "examples", "src/bin"];

/// Returns the files of crates that neither Cargo nor a module of theirs finds, one sentence each.
pub fn violations(files: &[SourceFile]) -> Vec<String> {
    let texts: BTreeMap<&str, &str> = files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    let unused = files.iter().filter_map(|file| {
        let (folder, name) = file.path.strip_suffix(".rs")?.rsplit_once('/')?;
        let (outer, inner) = folder.rsplit_once('/')?;
        let is_root = matches!(name, "main" | "lib" | "build") || has_programs(folder);
        if !file.path.starts_with("crates/") || is_root {
            return None;
        }
        // `mod.rs` is named as its folder.
        let (name, folder, outer_file) = match name {
            "mod" => (inner, outer, format!("{outer}.rs")),
            _ => (name, folder, format!("{folder}.rs")),
        };
        let of_folder = ["main.rs", "lib.rs", "mod.rs"].map(|root| format!("{folder}/{root}"));
        // A program can have modules in folders next to it.
        let programs = files.iter().filter(|other| {
            has_programs(folder) && other.path.rsplit_once('/').is_some_and(|(parent, _)| parent == folder)
        });
        let parents = of_folder.iter().chain([&outer_file]).filter_map(|path| texts.get(path.as_str()).copied());
        let mut parents = parents.chain(programs.map(|file| file.text.as_str()));
        let is_named = parents.any(|text| text.lines().any(|line| names(line, name)));
        (!is_named).then(|| format!("{}: no module says `mod {name};`, so it is not compiled", file.path))
    });
    unused.collect()
}

/// Returns whether Cargo finds the files of a folder by itself.
fn has_programs(folder: &str) -> bool {
    let within_crate = folder.strip_prefix("crates/").and_then(|path| path.split_once('/'));
    within_crate.is_some_and(|(_, folder)| PROGRAM_FOLDERS.contains(&folder))
}

/// Returns whether a line declares a module of this name in a file of its own.
fn names(line: &str, name: &str) -> bool {
    let declared = line.trim().strip_suffix(';').and_then(|line| line.rsplit_once("mod "));
    declared.is_some_and(|(before, declared)| declared == name && !before.starts_with("//"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_no_module_names_are_found() {
        let files = [
            ("crates/a/src/lib.rs", "pub mod used;\nmod folder;"),
            ("crates/a/src/used.rs", "#[cfg(test)]\nmod tests;"),
            ("crates/a/src/used/tests.rs", "mod units;"),
            ("crates/a/src/used/tests/units.rs", ""),
            ("crates/a/src/used/tests/forgotten.rs", ""),
            ("crates/a/src/forgotten.rs", ""),
            ("crates/a/src/folder/mod.rs", "pub(super) mod inner;"),
            ("crates/a/src/folder/inner.rs", ""),
            ("crates/a/tests/alone.rs", "mod common;"),
            ("crates/a/tests/common/mod.rs", ""),
            ("crates/a/tests/suite/main.rs", "mod first;"),
            ("crates/a/tests/suite/first.rs", ""),
            ("crates/a/tests/suite/second.rs", "// mod second;"),
        ];
        let file = |(path, text): (&str, &str)| SourceFile { path: path.to_owned(), text: text.to_owned() };
        let found = violations(&files.map(file));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("crates/a/src/used/tests/forgotten.rs: "), "{found:?}");
        assert!(found[1].starts_with("crates/a/src/forgotten.rs: ") && found[2].contains("`mod second;`"), "{found:?}");
    }
}
