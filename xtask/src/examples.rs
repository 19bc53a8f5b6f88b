//! Checks that every public type of the library has an example, which doctests then run.

use crate::source::SourceFile;

/// The folder with the library's types.
const LIBRARY: &str = "crates/forebay/src/";

/// Returns the public types without an example, one sentence each.
pub fn violations(files: &[SourceFile]) -> Vec<String> {
    let of_library = files.iter().filter(|file| file.path.starts_with(LIBRARY) && file.path.ends_with(".rs"));
    of_library.flat_map(without_example).collect()
}

fn without_example(file: &SourceFile) -> Vec<String> {
    let mut found = Vec::new();
    let mut has_example = false;
    for (number, line) in file.text.lines().enumerate() {
        if line.starts_with("///") {
            has_example |= line.starts_with("/// ```");
            continue;
        }
        let name = ["pub struct ", "pub enum ", "pub trait "].iter().find_map(|word| line.strip_prefix(word));
        if let Some(name) = name.filter(|_| !has_example) {
            let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.push(format!("{}:{}: {name} has no example (``` in its comment)", file.path, number + 1));
        }
        // Attributes can come between a comment and its item.
        has_example &= line.starts_with("#[");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_without_an_example_are_found() {
        let text = "/// A.\n///\n/// ```\n/// ```\n#[derive(Debug)]\npub struct A {\n}\n\n/// B.\n#[derive(Debug)]\npub enum B {\n}\n\
                    /// C.\npub(crate) struct C;\npub trait D {}\n";
        let found = |path: &str| violations(&[SourceFile { path: path.to_owned(), text: text.to_owned() }]);
        assert_eq!(found("crates/forebay/src/a.rs").len(), 2);
        assert!(found("crates/forebay/src/a.rs")[0].contains("a.rs:11: B has no example"));
        assert!(found("crates/forebay-plan/src/a.rs").is_empty());
    }
}
