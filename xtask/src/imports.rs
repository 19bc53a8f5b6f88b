//! Which modules of a crate import which: paths in the source text, resolved to the files that define the names.
//!
//! Tests are left out. Imported and re-exported names are followed to their definitions, so an import through a folder's file counts as an
//! import of the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::SourceFile;

/// The names that lead to a module from the crate's root; empty for the root.
pub type Module = Vec<String>;

/// For each module, the modules of the same crate that it names.
pub type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// A path as written in the text.
type Words = Vec<String>;

/// The paths in one file.
struct Text {
    /// Paths of `use` items, with the names that they introduce.
    uses: Vec<(Words, String)>,
    /// Other paths.
    paths: Vec<Words>,
}

/// Returns the imports of a crate's modules, considering only `src`.
pub fn imports(name: &str, files: &[SourceFile]) -> Imports {
    let texts: BTreeMap<Module, Text> =
        files.iter().filter_map(|file| Some((module_of(name, &file.path)?, read(&file.text)))).collect();
    let names: BTreeMap<&Module, BTreeMap<&str, &Words>> = texts
        .iter()
        .map(|(module, text)| (module, text.uses.iter().map(|(path, name)| (name.as_str(), path)).collect()))
        .collect();
    let named = |(module, text): (&Module, &Text)| {
        let paths = text.uses.iter().map(|(path, _)| path).chain(&text.paths);
        let found = paths.filter_map(|path| resolve(module, path, &names, ALIASES_MAX));
        (module.clone(), found.filter(|other| other != module).collect())
    };
    texts.iter().map(named).collect()
}

/// The maximum length of a chain of re-exports that is followed.
const ALIASES_MAX: usize = 8;

/// Returns the module of a source file, or `None` for tests and files of other crates.
fn module_of(name: &str, path: &str) -> Option<Module> {
    let inside = path.strip_prefix(&format!("crates/{name}/src/"))?.strip_suffix(".rs")?;
    let mut module: Module = inside.split('/').map(str::to_owned).collect();
    if module.iter().any(|part| part == "tests" || part.ends_with("_tests") || part == "testing") {
        return None;
    }
    if module.last().is_some_and(|last| last == "mod") || inside == "lib" || inside == "main" {
        module.pop();
    }
    Some(module)
}

/// Returns the module that defines the item a path names, or `None` for items of other crates.
fn resolve(
    module: &Module,
    path: &[String],
    names: &BTreeMap<&Module, BTreeMap<&str, &Words>>,
    aliases: usize,
) -> Option<Module> {
    let mut at = module.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            at.clear();
            rest = &rest[1..];
        }
        "self" | "super" => {
            while let Some(word) = rest.first().filter(|word| *word == "self" || *word == "super") {
                if word == "super" {
                    at.pop()?;
                }
                rest = &rest[1..];
            }
        }
        first => {
            let child = [at.as_slice(), &[first.to_owned()]].concat();
            if !names.contains_key(&child) {
                return None;
            }
        }
    }
    while let Some(word) = rest.first() {
        let child = [at.as_slice(), std::slice::from_ref(word)].concat();
        if !names.contains_key(&child) {
            break;
        }
        at = child;
        rest = &rest[1..];
    }
    let alias = rest.first().and_then(|word| names.get(&at)?.get(word.as_str()));
    match alias {
        // A name that leads to itself, or nowhere in this crate, is the name of another crate.
        Some(path) if aliases > 0 => {
            let whole = [path.as_slice(), &rest[1..]].concat();
            resolve(&at, &whole, names, aliases - 1)
        }
        Some(_) => None,
        None => Some(at),
    }
}

/// Returns the paths in a text, ignoring tests and comments.
fn read(text: &str) -> Text {
    let mut uses = Vec::new();
    let mut others = String::new();
    let mut rest = code(text);
    // `use` items begin a line and end at a semicolon.
    while let Some((start, tree, end)) = next_use(&rest) {
        uses.extend(flat(&tree));
        others.push_str(&rest[..start]);
        others.push('\n');
        rest.drain(..end);
    }
    others.push_str(&rest);
    Text { uses, paths: paths(&others) }
}

/// Finds the next `use` item: its start, its tree and its end.
fn next_use(code: &str) -> Option<(usize, String, usize)> {
    let mut line_start = 0;
    for line in code.split_inclusive('\n') {
        let item = line.trim_start();
        let item = match item.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or(item, |(_, rest)| rest.trim_start()),
            Some(rest) => rest.trim_start(),
            None => item,
        };
        if item.starts_with("use ") {
            let tree_start = line_start + line.find("use ")? + 4;
            let end = tree_start + code[tree_start..].find(';')?;
            let tree = &code[tree_start..end];
            // Prose can begin a line with this word, too.
            if tree.chars().all(|c| c.is_alphanumeric() || c.is_whitespace() || "_:{},*".contains(c)) {
                return Some((line_start, tree.to_owned(), end + 1));
            }
        }
        line_start += line.len();
    }
    None
}

/// Returns the text without comments and without items under `#[cfg(test)]`.
fn code(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//")).peekable();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        // An item ends at a semicolon before any brace, or where its braces close.
        let (mut depth, mut opened) = (0i64, false);
        for line in lines.by_ref() {
            depth += line.matches('{').count() as i64 - line.matches('}').count() as i64;
            opened |= line.contains('{');
            let is_whole = if opened { depth <= 0 } else { line.trim_end().ends_with(';') };
            if is_whole {
                break;
            }
        }
    }
    kept
}

/// Returns the paths of a tree `a::{b, c::{d as e}}`, each with the name that it introduces.
fn flat(tree: &str) -> Vec<(Words, String)> {
    let mut found = Vec::new();
    let (mut prefixes, mut item) = (vec![String::new()], String::new());
    for c in tree.chars().chain([',']) {
        match c {
            '{' => prefixes.push(prefixes.last().cloned().unwrap_or_default() + std::mem::take(&mut item).trim()),
            ',' | '}' => {
                let path = std::mem::take(&mut item);
                if !path.trim().is_empty() {
                    found.extend(named(&(prefixes.last().cloned().unwrap_or_default() + path.trim())));
                }
                if c == '}' && prefixes.len() > 1 {
                    prefixes.pop();
                }
            }
            _ => item.push(c),
        }
    }
    found
}

/// Returns a path and the name that it introduces.
fn named(path: &str) -> Option<(Words, String)> {
    let (path, alias) = match path.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_owned())),
        None => (path, None),
    };
    let mut words: Words = path.split("::").map(|word| word.trim().to_owned()).collect();
    if words.len() > 1 && words.last().is_some_and(|last| last == "self" || last == "*") {
        words.pop();
    }
    let last = words.last()?.clone();
    Some((words, alias.unwrap_or(last)))
}

/// Returns the paths of several words anywhere in the code.
fn paths(code: &str) -> Vec<Words> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$';
    let spans = code.split(|c: char| !is_part(c)).filter(|span| span.contains("::") && !span.contains('$'));
    spans
        .map(|span| span.split("::").map(str::to_owned).collect::<Words>())
        .filter(|words| words.first().is_some_and(|word| !word.is_empty() && !word.contains(':')))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports_of(files: &[(&str, &str)]) -> BTreeMap<String, Vec<String>> {
        let file =
            |&(path, text): &(&str, &str)| SourceFile { path: format!("crates/x/src/{path}"), text: text.to_owned() };
        let files: Vec<SourceFile> = files.iter().map(file).collect();
        let text = |module: &Module| module.join("::");
        imports("x", &files).iter().map(|(from, to)| (text(from), to.iter().map(text).collect())).collect()
    }

    #[test]
    fn imports_are_found_in_lists_and_paths() {
        let text = "use crate::a::B;\nuse crate::{\n    c::{D, E},\n    f,\n};\n// crate::g\nuse std::fmt;\n\
                    #[cfg(test)]\nuse crate::g;\n#[cfg(test)]\nimpl X {\n    fn x() { crate::g::x() }\n}\n\
                    fn x() { crate::h::i(); mycrate::g::j(); $crate::g::k() }\n#[cfg(test)]\nmod tests { use crate::g; }";
        let others = ["a.rs", "c.rs", "f.rs", "g.rs", "h.rs"].map(|path| (path, ""));
        let found = imports_of(&[[("x.rs", text)].as_slice(), &others].concat());
        assert_eq!(found["x"], ["a", "c", "f", "h"]);
    }

    #[test]
    fn relative_paths_and_re_exports_lead_to_the_file_that_defines() {
        let found = imports_of(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::deep::Thing;"),
            (
                "a.rs",
                "mod deep;\nmod near;\npub use deep::Thing;\npub(crate) use near::Other as Renamed;\nfn x() { deep::f() }",
            ),
            ("a/deep.rs", "use super::near;\nuse super::super::b::C;\nfn x() { near::f(); self::g() }"),
            ("a/near/mod.rs", "use super::Front;"),
            ("b.rs", "use crate::Thing;\nuse crate::a::{self, Renamed};\nuse std::collections::BTreeMap;"),
            ("c.rs", "use crate::d::a::Thing;\nconst TEXT: &str = \"\nuse (this\"; fn x() { crate::b::x() }"),
            ("d.rs", "pub use crate::a;"),
            ("a/tests.rs", "use crate::b;"),
        ]);
        assert_eq!(found["a"], ["a::deep", "a::near"]);
        assert_eq!(found["a::deep"], ["a::near", "b"]);
        assert_eq!(found["a::near"], ["a"]);
        assert_eq!(found["b"], ["a", "a::deep", "a::near"]);
        assert_eq!(found["c"], ["a::deep", "b"]);
        assert_eq!(found["d"], ["a"]);
        assert_eq!(found[""], ["a::deep"]);
        assert_eq!(found.len(), 7);
    }
}
