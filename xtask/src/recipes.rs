//! The recipes of `CONTRIBUTING.md`: each names the files to touch, what to look for in them, and an example.
//!
//! A recipe is a section `## Add ...` with a table whose rows begin `` | `path` | `text` | ``. Every path must exist and contain the text.
//! If the section says ``Complete for `word` ``, the table must list every source file that contains this word.

use crate::markdown::{code_spans, prose};
use crate::source::{self, SourceFile};

/// The page with the recipes.
const PAGE: &str = "CONTRIBUTING.md";
/// The required recipes: the ends of their headings.
const WANTED: [&str; 5] = ["operator", "kernel", "optimizer", "loss", "device"];

/// A recipe.
#[derive(Default)]
struct Recipe {
    /// The words of its heading.
    heading: String,
    /// Files, each with a text that it contains.
    steps: Vec<(String, String)>,
    /// The word that no other source file contains.
    complete_for: Option<String>,
}

/// Returns the problems with the recipes, one line each.
pub fn violations(files: &[SourceFile]) -> Vec<String> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![format!("{PAGE} is missing")];
    };
    let recipes = recipes(&page.text);
    let is_there =
        |wanted: &str| recipes.iter().any(|recipe| recipe.heading.ends_with(wanted) && recipe.steps.len() > 2);
    let missing = WANTED.into_iter().filter(|wanted| !is_there(wanted));
    let mut violations: Vec<String> =
        missing.map(|wanted| format!("{PAGE}: expected a recipe for '{wanted}' with a table of files")).collect();
    for recipe in &recipes {
        violations
            .extend(untrue(recipe, files).into_iter().map(|reason| format!("{PAGE}: {}: {reason}", recipe.heading)));
    }
    violations
}

/// Returns the recipes of the page.
fn recipes(text: &str) -> Vec<Recipe> {
    let mut recipes: Vec<Recipe> = Vec::new();
    let mut is_recipe = false;
    for line in prose(text) {
        if let Some(heading) = line.text.strip_prefix("## ") {
            is_recipe = heading.starts_with("Add ");
            if is_recipe {
                recipes.push(Recipe { heading: heading.to_owned(), ..Recipe::default() });
            }
        }
        let Some(recipe) = recipes.last_mut().filter(|_| is_recipe) else { continue };
        let spans = code_spans(line.text);
        if let ([path, text, ..], true) = (spans.as_slice(), line.text.starts_with("| `")) {
            recipe.steps.push((path.to_string(), text.to_string()));
        }
        if let Some((_, rest)) = line.text.split_once("Complete for `") {
            recipe.complete_for = rest.split('`').next().map(str::to_owned);
        }
    }
    recipes
}

/// Returns the statements of a recipe that are not true.
fn untrue(recipe: &Recipe, files: &[SourceFile]) -> Vec<String> {
    let mut reasons = Vec::new();
    for (path, text) in &recipe.steps {
        match files.iter().find(|file| file.path == *path) {
            None if source::root().join(path).is_dir() => reasons.push(format!("{path} is a folder; name the file")),
            None => reasons.push(format!("{path} does not exist")),
            Some(file) if !file.text.contains(text.as_str()) => {
                reasons.push(format!("{path} does not contain '{text}'"))
            }
            Some(_) => {}
        }
    }
    let Some(word) = &recipe.complete_for else { return reasons };
    // Crates that only tests use count as tests.
    let is_for_tests = |path: &str| {
        let folder = path.split("/src/").next().unwrap_or_default();
        let manifest = files.iter().find(|file| file.path == format!("{folder}/Cargo.toml"));
        manifest.is_some_and(|manifest| manifest.text.contains("publish = false"))
    };
    let is_source = |path: &str| {
        path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs") && !is_for_tests(path)
    };
    let users = files.iter().filter(|file| is_source(&file.path) && has_word(&file.text, word));
    let left_out = users.filter(|file| recipe.steps.iter().all(|(path, _)| *path != file.path));
    reasons.extend(left_out.map(|file| format!("{} contains '{word}' but is not listed", file.path)));
    reasons
}

/// Returns whether the text contains the word, and not just as part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn the_recipes_of_this_repository_hold() {
        let files = source::files().unwrap();
        assert_eq!(violations(&files), Vec::<String>::new());
    }

    #[test]
    fn untrue_recipes_are_found() {
        let page = "## Add a kernel\nComplete for `Swish`.\n\n| file | look for | do |\n|---|---|---|\n\
                    | `crates/a/src/b.rs` | `Swish` | a row |\n| `crates/a/src/c.rs` | `Mish` | a row |\n\
                    | `crates/a/src/gone.rs` | `Swish` | a row |\n\n## Other\n| `no` | `recipe` | |\n";
        let files = [
            file("crates/a/src/b.rs", "enum X { Swish }"),
            file("crates/a/src/c.rs", "enum X { Relu }"),
            file("crates/a/src/d.rs", "X::Swish => 1"),
            file("crates/a/src/e.rs", "X::HardSwish => 1, X::SwishGradient => 2"),
            file("crates/for-tests/src/f.rs", "X::Swish => 1"),
            file("crates/for-tests/Cargo.toml", "publish = false"),
            file(PAGE, page),
        ];
        let found = violations(&files);
        let expected = [
            "CONTRIBUTING.md: expected a recipe for 'operator' with a table of files",
            "CONTRIBUTING.md: expected a recipe for 'optimizer' with a table of files",
            "CONTRIBUTING.md: expected a recipe for 'loss' with a table of files",
            "CONTRIBUTING.md: expected a recipe for 'device' with a table of files",
            "CONTRIBUTING.md: Add a kernel: crates/a/src/c.rs does not contain 'Mish'",
            "CONTRIBUTING.md: Add a kernel: crates/a/src/gone.rs does not exist",
            "CONTRIBUTING.md: Add a kernel: crates/a/src/d.rs contains 'Swish' but is not listed",
        ];
        assert_eq!(found, expected);
    }
}
