//! Checks of the source that no compiler does: layers, file lengths, leftovers, machine-specific paths, links, recipes and results of
//! documents, examples of the library's types, files that no module names.

use crate::source::{self, SourceFile};
use crate::{examples, layers, links, operators, package, recipes, results, unused_files};

/// Files with more lines must be split by subject.
const LINES_MAX: usize = 700;
/// Files with more lines are reported without an error.
const LINES_WISHED_MAX: usize = 500;

/// Checks the source.
///
/// # Errors
/// Fails with the violations of the rules, one line each.
pub fn tidy() -> Result<(), String> {
    let files = source::files()?;
    let mut violations = layers::violations(&files);
    violations.extend(links::violations(&files));
    violations.extend(recipes::violations(&files));
    violations.extend(operators::violations(&files));
    violations.extend(results::violations());
    violations.extend(examples::violations(&files));
    violations.extend(package::violations(&files));
    violations.extend(unused_files::violations(&files));
    for file in &files {
        violations.extend(leftovers(file));
        if !file.path.ends_with(".rs") {
            continue;
        }
        match file.text.lines().count() {
            lines if lines > LINES_MAX => {
                violations.push(format!("{}: {lines} lines, but at most {LINES_MAX} are allowed", file.path));
            }
            lines if lines > LINES_WISHED_MAX => println!("note: {} has {lines} lines", file.path),
            _ => {}
        }
        let is_tests = file.path.ends_with("/tests.rs");
        if file.path.contains("/src/") && !is_tests && !file.text.starts_with("//!") {
            violations.push(format!("{}: the module does not say what it is for (//! at the top)", file.path));
        }
    }
    if violations.is_empty() {
        println!("tidy: {} files", files.len());
        return Ok(());
    }
    Err(format!("not tidy:\n  {}", violations.join("\n  ")))
}

/// Returns the words that have no place in a finished file. They are assembled here so that this file does not contain them.
fn leftovers(file: &SourceFile) -> Vec<String> {
    let code = [["to", "do!("], ["unimpl", "emented!("], ["db", "g!("], ["TO", "DO"], ["FIX", "ME"], ["XX", "X "]];
    let paths = [["/wo", "rk/"], ["/ho", "me/"], ["/ro", "ot/"], ["/Us", "ers/"]];
    // Licenses and third-party data stay as they are.
    let ours = |extension: &&str| file.path.ends_with(*extension);
    let is_code = [".rs", ".py", ".sh", ".toml"].iter().any(ours);
    let is_text = is_code || [".md", ".yml", ".yaml", "run"].iter().any(ours);
    let mut found = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let words = code.iter().filter(|_| is_code).chain(paths.iter().filter(|_| is_text));
        for word in words.map(|parts| parts.concat()).filter(|word| line.contains(word.as_str())) {
            found.push(format!("{}:{}: {word}", file.path, number + 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_found_in_code_only() {
        let text = format!("fn x() {{ {}!() }}\nlet path = \"{}x\";", ["to", "do"].concat(), ["/ho", "me/"].concat());
        let found = |path: &str| leftovers(&SourceFile { path: path.to_owned(), text: text.clone() }).len();
        assert_eq!(found("crates/a/src/b.rs"), 2);
        assert_eq!(found("README.md"), 1);
        assert_eq!(found("examples/brain/NOTICE"), 0);
    }
}
