//! Circular imports: within each folder of a crate, imports must be acyclic.
//!
//! A file and the folder of the same name are one module; the file and its contents may import each other. Between the modules of a folder,
//! no chain of imports may lead back to its start. [`KNOWN`] lists the remaining circles. A circle that is not listed is an error, and so
//! is a listed one that no longer exists, so the list can only get shorter.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{Imports, imports};
use crate::source::SourceFile;

/// The files of one circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// The crate.
    name: &'static str,
    /// The folder, from `src`; empty for `src` itself.
    folder: &'static str,
    /// The modules in the folder that import each other.
    modules: &'static [&'static str],
}

/// The remaining circles: none.
const KNOWN: &[Known] = &[];

/// A circle found in the sources.
struct Circle {
    folder: String,
    modules: Vec<String>,
    /// Which module imports which, for messages.
    imports: Vec<String>,
}

/// Returns the violations of the rule in these crates, one sentence each.
pub fn violations<'a>(names: impl Iterator<Item = &'a str>, files: &[SourceFile]) -> Vec<String> {
    names.flat_map(|name| judge(name, &circles(&imports(name, files)), KNOWN)).collect()
}

/// Returns the violations among a crate's circles.
fn judge(name: &str, circles: &[Circle], known: &[Known]) -> Vec<String> {
    let is_known = |circle: &Circle, known: &Known| {
        known.name == name && known.folder == circle.folder && known.modules.iter().eq(circle.modules.iter())
    };
    let new = circles.iter().filter(|circle| !known.iter().any(|known| is_known(circle, known)));
    let mut violations: Vec<String> = new
        .map(|circle| {
            let at = [format!("crates/{name}/src"), circle.folder.clone()].join("/");
            let (at, imports) = (at.trim_end_matches('/'), circle.imports.join("; "));
            format!("{at}: files import each other in a circle: {imports}")
        })
        .collect();
    let here = known.iter().filter(|known| known.name == name);
    let gone = here.filter(|known| !circles.iter().any(|circle| is_known(circle, known)));
    violations.extend(gone.map(|known| {
        let modules = known.modules.join(", ");
        format!(
            "crates/{name}/src/{}: no circle consists of exactly {modules}; correct KNOWN in xtask/src/circles.rs",
            known.folder
        )
    }));
    violations
}

/// The circles in every folder.
fn circles(imports: &Imports) -> Vec<Circle> {
    let folders: BTreeSet<&[String]> =
        imports.keys().filter_map(|module| module.split_last()).map(|(_, folder)| folder).collect();
    folders.into_iter().flat_map(|folder| circles_in(folder, imports)).collect()
}

fn circles_in(folder: &[String], imports: &Imports) -> Vec<Circle> {
    let depth = folder.len();
    let module_of = |module: &[String]| module.starts_with(folder).then(|| module.get(depth).cloned()).flatten();
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut reasons: BTreeMap<(String, String), String> = BTreeMap::new();
    for (from, others) in imports {
        let Some(from_module) = module_of(from) else { continue };
        let named = modules.entry(from_module.clone()).or_default();
        for other in others {
            let Some(other_module) = module_of(other).filter(|other| *other != from_module) else { continue };
            named.insert(other_module.clone());
            let reason = || format!("{} imports {}", from[depth..].join("::"), other[depth..].join("::"));
            reasons.entry((from_module.clone(), other_module)).or_insert_with(reason);
        }
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        modules.keys().map(|module| (module.as_str(), reachable(&modules, module))).collect();
    let mut found: Vec<Circle> = Vec::new();
    for (&module, reached_from) in &reached {
        let is_seen = found.iter().any(|circle| circle.modules.iter().any(|seen| seen == module));
        if is_seen || !reached_from.contains(module) {
            continue;
        }
        let comes_back = |other: &&str| reached.get(*other).is_some_and(|reached| reached.contains(module));
        let members: Vec<String> = reached_from.iter().copied().filter(comes_back).map(str::to_owned).collect();
        let within = |(from, to): &&(String, String)| members.contains(from) && members.contains(to);
        let imports = reasons.iter().filter(|(pair, _)| within(pair)).map(|(_, reason)| reason.clone()).collect();
        found.push(Circle { folder: folder.join("/"), modules: members, imports });
    }
    found
}

/// Returns the modules that imports lead to from one module.
fn reachable<'a>(modules: &'a BTreeMap<String, BTreeSet<String>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached: BTreeSet<&str> = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        let Some(named) = modules.get(at) else { continue };
        next.extend(named.iter().map(String::as_str).filter(|other| reached.insert(other)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], known: &[Known]) -> Vec<String> {
        let file =
            |&(path, text): &(&str, &str)| SourceFile { path: format!("crates/x/src/{path}"), text: text.to_owned() };
        let files: Vec<SourceFile> = files.iter().map(file).collect();
        judge("x", &circles(&imports("x", &files)), known)
    }

    #[test]
    fn circles_are_found_and_orders_accepted() {
        let circle = [
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c::X;"),
            ("c/mod.rs", "mod deep;"),
            ("c/deep.rs", "use crate::a;"),
            ("d.rs", "use crate::a;"),
        ];
        let expected = "crates/x/src: files import each other in a circle: \
                        a imports b; b imports c; c::deep imports a";
        assert_eq!(found(&circle, &[]), [expected]);
        assert!(found(&circle[1..], &[]).is_empty());
    }

    #[test]
    fn files_of_a_folder_are_seen_but_not_the_file_of_the_folder() {
        let files = [
            ("a.rs", "mod b;\nmod c;\nuse b::B;\nuse c::C;"),
            ("a/b.rs", "use super::Front;\nuse super::c::C;"),
            ("a/c.rs", "use super::B;"),
        ];
        let violations = found(&files, &[]);
        assert_eq!(violations, ["crates/x/src/a: files import each other in a circle: b imports c; c imports b"]);
        assert!(found(&files[..2], &[]).is_empty());
    }

    #[test]
    fn the_list_of_circles_gets_shorter_only() {
        let files = [("a.rs", "use crate::b;"), ("b.rs", "use crate::a;"), ("c.rs", "use crate::a;")];
        let known = |modules: &'static [&'static str]| [Known { name: "x", folder: "", modules }];
        assert!(found(&files, &known(&["a", "b"])).is_empty());
        assert!(found(&files, &known(&["a", "b", "c"])).len() == 2, "a circle that is not exactly as the list says");
        let gone = found(&files[..1], &known(&["a", "b"]));
        assert!(gone.len() == 1 && gone[0].contains("KNOWN"), "{gone:?}");
    }
}
