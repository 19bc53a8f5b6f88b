//! Which crate and module may import which: a file imports only from its own floor's lower rooms, or from floors below.
//!
//! Between crates, [`CRATES`] says what each may depend on (the compiler then enforces it). Within a crate, the modules'
//! imports must have an order: no module reaches itself. [`CLUSTERS`] names modules that are one room in several files.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::SourceFile;

/// Every crate, lowest first, with the crates of this workspace that it may depend on.
const CRATES: [(&str, &[&str]); 14] = [
    ("forebay-base", &[]),
    ("forebay-files", &[]),
    ("forebay-limits", &[]),
    ("forebay-memory", &["forebay-base"]),
    ("forebay-sync", &["forebay-base"]),
    ("forebay-queue", &["forebay-base"]),
    ("forebay-model", &["forebay-base", "forebay-limits"]),
    ("forebay-device", &["forebay-base", "forebay-limits", "forebay-queue", "forebay-sync"]),
    ("forebay-vulkan", &["forebay-base", "forebay-queue", "forebay-device"]),
    ("forebay-data", &["forebay-base", "forebay-files", "forebay-limits"]),
    ("forebay-plan", &["forebay-base", "forebay-memory", "forebay-sync", "forebay-model"]),
    (
        "forebay-runtime",
        &[
            "forebay-base",
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
            "forebay-vulkan",
            "forebay-data",
            "forebay-plan",
            "forebay-runtime",
        ],
    ),
    ("forebay-cli", &["forebay", "forebay-data", "forebay-device", "forebay-limits", "forebay-memory"]),
];

/// Modules that know each other because they are one room: the operators' table names functions whose contexts are given by
/// the passes that call through the table.
const CLUSTERS: [(&str, &[&str]); 1] =
    [("forebay-model", &["autodiff", "graph", "infer", "lower", "operator", "operators", "program"])];

/// What breaks the rules, one sentence each.
pub fn violations(files: &[SourceFile]) -> Vec<String> {
    let mut violations = dependency_violations(files);
    for (name, _) in CRATES {
        let cluster = CLUSTERS.iter().find(|(of, _)| *of == name).map_or([].as_slice(), |(_, modules)| modules);
        violations.extend(cycles(name, &imports(name, files), cluster));
    }
    violations
}

fn dependency_violations(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        let Some(name) = file.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            violations.push(format!("{}: the crate has no floor yet; add it to xtask/src/floors.rs", file.path));
            continue;
        };
        // What tests use may come from any floor; only the section of ordinary dependencies counts.
        let section = file.text.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap_or_default();
        for line in section.lines() {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if dependency.starts_with("forebay") && !allowed.contains(&dependency) {
                violations.push(format!("{}: {name} must not know {dependency}", file.path));
            }
        }
    }
    violations
}

/// The crate's own modules that each top-level module names, tests left out.
fn imports(name: &str, files: &[SourceFile]) -> BTreeMap<String, BTreeSet<String>> {
    let folder = format!("crates/{name}/src/");
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        let Some(inside) = file.path.strip_prefix(&folder).and_then(|path| path.strip_suffix(".rs")) else { continue };
        let module = inside.split('/').next().unwrap_or_default();
        if matches!(module, "lib" | "main") || inside.ends_with("tests") {
            continue;
        }
        imports.entry(module.to_owned()).or_default().extend(named_modules(&file.text));
    }
    let modules: BTreeSet<String> = imports.keys().cloned().collect();
    for (module, named) in &mut imports {
        named.retain(|other| other != module && modules.contains(other));
    }
    imports
}

/// First words after `crate::`, in code that is no test and no comment.
fn named_modules(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = lines.join("\n");
    let mut named = BTreeSet::new();
    for (position, start) in code.match_indices("crate::") {
        let before = code[..position].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &code[position + start.len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let list = list.split(';').next().unwrap_or_default();
                named.extend(top_level_words(list));
            }
            None => named.extend(first_word(rest)),
        }
    }
    named
}

/// The first word of each item of `a::{b, c}, d, e::f}`.
fn top_level_words(list: &str) -> Vec<String> {
    let (mut depth, mut item, mut words) = (0usize, String::new(), Vec::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => words.extend(first_word(&std::mem::take(&mut item))),
            _ if depth == 0 => item.push(c),
            _ => {}
        }
    }
    words.extend(first_word(&item));
    words
}

fn first_word(text: &str) -> Option<String> {
    let word: String = text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!word.is_empty()).then_some(word)
}

/// Modules that reach themselves, except within the cluster.
fn cycles(name: &str, imports: &BTreeMap<String, BTreeSet<String>>, cluster: &[&str]) -> Vec<String> {
    let room = |module: &str| if cluster.contains(&module) { "(cluster)".to_owned() } else { module.to_owned() };
    let mut rooms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, named) in imports {
        let from = room(module);
        let others = named.iter().map(|other| room(other)).filter(|other| *other != from);
        rooms.entry(from.clone()).or_default().extend(others);
    }
    let round: Vec<&str> =
        rooms.keys().map(String::as_str).filter(|room| reachable(&rooms, room).contains(room)).collect();
    if round.is_empty() {
        return Vec::new();
    }
    let imports = |room: &&str| {
        let others: Vec<&str> = rooms[*room].iter().map(String::as_str).filter(|other| round.contains(other)).collect();
        format!("{room} imports {}", others.join(", "))
    };
    let list: Vec<String> = round.iter().map(imports).collect();
    vec![format!("crates/{name}: modules import each other in a circle: {}", list.join("; "))]
}

/// Rooms that imports lead to from one room.
fn reachable<'a>(rooms: &'a BTreeMap<String, BTreeSet<String>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached: BTreeSet<&str> = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        next.extend(rooms[at].iter().map(String::as_str).filter(|other| reached.insert(other)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn imports_are_found_in_lists_and_paths() {
        let text =
            "use crate::a::B;\nuse crate::{c::{D, E}, f};\n// crate::g\nfn x() { crate::h::i(); mycrate::j() }\n\
                    #[cfg(test)]\nmod tests { use crate::k; }";
        let expected = ["a", "c", "f", "h"].map(str::to_owned);
        assert_eq!(named_modules(text), expected.into());
    }

    #[test]
    fn circles_are_found_and_orders_accepted() {
        let circle = [
            file("crates/forebay-base/src/a.rs", "use crate::b;"),
            file("crates/forebay-base/src/b.rs", "use crate::c::X;"),
            file("crates/forebay-base/src/c/deep.rs", "use crate::a;"),
            file("crates/forebay-base/src/d.rs", "use crate::a;"),
        ];
        let found = violations(&circle);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a imports b; b imports c; c imports a"), "{found:?}");
        assert!(violations(&circle[1..]).is_empty());
    }

    #[test]
    fn dependencies_on_higher_floors_are_found() {
        let text = "[package]\nname = \"x\"\n[dependencies]\nforebay-base.workspace = true\nforebay-device = { path = \"\" }\n\
                    [dev-dependencies]\nforebay-runtime.workspace = true\n";
        let found = violations(&[file("crates/forebay-plan/Cargo.toml", text)]);
        assert_eq!(found, ["crates/forebay-plan/Cargo.toml: forebay-plan must not know forebay-device"]);
        assert_eq!(violations(&[file("crates/forebay-new/Cargo.toml", "")]).len(), 1);
    }
}
