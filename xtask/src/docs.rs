//! `cargo xtask docs`: builds the guide as a book and checks its links.

use crate::command::{program, run, succeeds};
use crate::{links, operators, recipes, source};

/// Checks the links of all documents and the recipes, then builds the guide with mdBook.
///
/// # Errors
/// Fails with the broken links and recipes, one line each, or if mdBook is missing or fails.
pub fn docs() -> Result<(), String> {
    let files = source::files()?;
    let mut violations = links::violations(&files);
    violations.extend(recipes::violations(&files));
    violations.extend(operators::violations(&files));
    if !violations.is_empty() {
        return Err(format!("the documents are inconsistent:\n  {}", violations.join("\n  ")));
    }
    println!("checked links, recipes and the list of operators");
    if !succeeds(program("mdbook").arg("--version")) {
        return Err(
            "the guide is not built, because mdbook is missing; `cargo install mdbook --locked` installs it".to_owned()
        );
    }
    run(program("mdbook").args(["build", "docs"]))?;
    println!("the guide is in target/book/index.html");
    Ok(())
}
