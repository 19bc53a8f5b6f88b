//! Checks that the guide's list of operators matches the table.

use std::collections::BTreeSet;

use crate::markdown::code_spans;
use crate::source::SourceFile;

/// The page with the list.
const PAGE: &str = "docs/what-works.md";
/// The heading at which the list begins; it extends to the end of the page.
const HEADING: &str = "## Operators";
/// The folder of the table.
const TABLE: &str = "crates/forebay-model/src/operators/";
/// The text before an operator's name in the table.
const MARKS: [&str; 5] =
    ["composed!(\"", "composed!(CLASSICAL, \"", "composed!(MICROSOFT, \"", "composed!(PREVIEW, \"", "op_type: \""];

/// Returns the operators that are only in the table or only in the list, one line each.
pub fn violations(files: &[SourceFile]) -> Vec<String> {
    let families = files.iter().filter(|file| file.path.starts_with(TABLE));
    let table: BTreeSet<&str> = families.flat_map(|file| rows(&file.text)).collect();
    let page = files.iter().find(|file| file.path == PAGE).map_or("", |file| file.text.as_str());
    let list = page.split_once(HEADING).map_or("", |(_, list)| list);
    let lines = list.lines().filter(|line| line.starts_with('|'));
    let listed: BTreeSet<&str> = lines.flat_map(code_spans).collect();
    let unlisted = table.difference(&listed).map(|name| format!("{PAGE}: operator {name} is not listed"));
    let unknown = listed.difference(&table).map(|name| format!("{PAGE}: unknown operator {name}"));
    let mut violations: Vec<String> = unlisted.chain(unknown).collect();
    if !list.contains(&format!("{} operators", table.len())) {
        violations.push(format!("{PAGE}: expected '{} operators'", table.len()));
    }
    violations
}

/// Returns the names of a family's operators: the contents of its `ROWS`.
fn rows(text: &str) -> Vec<&str> {
    let Some((_, rows)) = text.split_once("pub const ROWS") else { return Vec::new() };
    let rows = rows.split_once("];").map_or(rows, |(rows, _)| rows);
    let names = MARKS.iter().flat_map(|mark| rows.split(mark).skip(1));
    names.filter_map(|rest| rest.split('"').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn the_list_has_what_the_table_has() {
        let table = file(
            "crates/forebay-model/src/operators/a.rs",
            "pub const ROWS: &[Operator] = &[\n composed!(\"Abs\", abs),\n Operator { op_type: \"Split\" },\n];\ncomposed!(\"No\", x)",
        );
        let page = file(PAGE, "`Other`\n## Operators\n2 operators. `text`\n| family | `Abs`, `Concat` |\n");
        assert_eq!(
            violations(&[table, page]),
            ["docs/what-works.md: operator Split is not listed", "docs/what-works.md: unknown operator Concat"]
        );
    }

    #[test]
    fn a_wrong_number_is_found() {
        let table = file("crates/forebay-model/src/operators/a.rs", "pub const ROWS = &[composed!(\"Abs\", abs)];");
        let page = file(PAGE, "## Operators\n4 operators.\n| family | `Abs` |\n");
        assert_eq!(violations(&[table, page]), ["docs/what-works.md: expected '1 operators'"]);
    }
}
