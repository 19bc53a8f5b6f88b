//! Links between documents: every file, heading and path that a page names must exist.
//!
//! The guide in `docs/` is a book (mdBook) that is read separately, so its pages link only to one another, and its table of contents names
//! every page.

use std::collections::{BTreeMap, BTreeSet};

use crate::markdown::{anchors, code_spans, links, prose};
use crate::source::{self, SourceFile};

/// The folder of the book.
const BOOK: &str = "docs/";
/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The beginnings of the paths in code spans that are checked.
const ROOTS: [&str; 11] = [
    "crates/",
    "docs/",
    "examples/",
    "kernels/",
    "testdata/",
    "xtask/",
    "python/",
    "benches/",
    "fuzz/",
    ".ci/",
    ".cargo/",
];

/// Returns the problems with the links of all documents, one line each.
pub fn violations(files: &[SourceFile]) -> Vec<String> {
    broken(files, &|path| source::root().join(path).exists())
}

/// Like [`violations`], with `exists` telling whether a file exists.
fn broken(files: &[SourceFile], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let pages: Vec<&SourceFile> = files.iter().filter(|file| file.path.ends_with(".md")).collect();
    let headings: BTreeMap<&str, Vec<String>> =
        pages.iter().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    let mut violations = Vec::new();
    let mut contents = BTreeSet::new();
    for page in &pages {
        for line in prose(&page.text) {
            let at = format!("{}:{}", page.path, line.number);
            for link in links(line.text) {
                match target(&page.path, &link) {
                    Target::Elsewhere => {}
                    Target::Outside => violations.push(format!("{at}: the link {link} leaves the repository")),
                    Target::Here { path, anchor } => {
                        violations
                            .extend(fault(&path, anchor, &headings, exists).map(|fault| format!("{at}: {fault}")));
                        if page.path.starts_with(BOOK) && !path.starts_with(BOOK) {
                            violations.push(format!("{at}: the link {link} leaves the book; write the path as code"));
                        }
                        if page.path == SUMMARY {
                            contents.insert(path);
                        }
                    }
                }
            }
            if is_guide(&page.path) {
                let paths = code_spans(line.text).into_iter().filter(|span| is_path(span));
                let lost = paths.filter(|path| !exists(path.trim_end_matches('/')));
                violations.extend(lost.map(|path| format!("{at}: {path} does not exist")));
            }
        }
    }
    let in_book = pages.iter().filter(|page| page.path.starts_with(BOOK) && page.path != SUMMARY);
    let lost = in_book.filter(|page| !contents.contains(&page.path));
    violations.extend(lost.map(|page| format!("{}: {SUMMARY} does not list this page", page.path)));
    violations
}

/// The destination of a link.
enum Target<'a> {
    /// Another site.
    Elsewhere,
    /// A file outside the repository.
    Outside,
    /// A file of the repository, and possibly a heading in it.
    Here {
        /// The file, from the root.
        path: String,
        /// The heading's anchor.
        anchor: Option<&'a str>,
    },
}

/// Returns the destination of a page's link.
fn target<'a>(page: &str, link: &'a str) -> Target<'a> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Target::Elsewhere;
    }
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (link, None),
    };
    if file.is_empty() {
        return Target::Here { path: page.to_owned(), anchor };
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Target::Outside;
                }
            }
            part => parts.push(part),
        }
    }
    Target::Here { path: parts.join("/"), anchor }
}

/// Returns the problem with a link to this file and heading, if any.
fn fault(
    path: &str,
    anchor: Option<&str>,
    headings: &BTreeMap<&str, Vec<String>>,
    exists: &dyn Fn(&str) -> bool,
) -> Option<String> {
    if !exists(path) {
        return Some(format!("{path} does not exist"));
    }
    let anchor = anchor?;
    match headings.get(path) {
        Some(headings) if headings.iter().any(|heading| heading == anchor) => None,
        _ => Some(format!("{path} has no heading #{anchor}")),
    }
}

/// Returns whether a page's code spans name current files; other pages, such as measurements, may name files that no longer exist.
fn is_guide(page: &str) -> bool {
    page.starts_with(BOOK) || matches!(page, "README.md" | "ARCHITECTURE.md" | "CONTRIBUTING.md")
}

/// Returns whether a code span names a file or folder of the repository; words in capitals are placeholders.
fn is_path(span: &str) -> bool {
    let plain = span.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-'));
    let stands_for_a_name = ["NAME", "FAMILY", "CRATE", "TARGET"].iter().any(|word| span.contains(word));
    plain && !stands_for_a_name && ROOTS.iter().any(|root| span.starts_with(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    fn faults(files: &[SourceFile]) -> Vec<String> {
        broken(files, &|path| path == "docs/a.svg" || files.iter().any(|file| file.path == path))
    }

    #[test]
    fn lost_files_and_headings_are_found() {
        let files = [
            page(
                "README.md",
                "[a](docs/a.md#one) [b](docs/a.md#two) [c](lost.md) [d](https://x.org/y)\n`docs/lost.rs`",
            ),
            page("docs/SUMMARY.md", "- [A](a.md)"),
            page("docs/a.md", "# One\n![p](a.svg) [self](#one) [self](#three)"),
        ];
        assert_eq!(
            faults(&files),
            [
                "README.md:1: docs/a.md has no heading #two",
                "README.md:1: lost.md does not exist",
                "README.md:2: docs/lost.rs does not exist",
                "docs/a.md:2: docs/a.md has no heading #three",
            ]
        );
    }

    #[test]
    fn the_book_is_whole_and_stands_alone() {
        let files = [
            page("README.md", "[up](../x.md)"),
            page("docs/SUMMARY.md", "- [A](a.md)"),
            page("docs/a.md", "[out](../README.md)"),
            page("docs/b.md", "# Not in the contents"),
        ];
        assert_eq!(
            faults(&files),
            [
                "README.md:1: the link ../x.md leaves the repository",
                "docs/a.md:1: the link ../README.md leaves the book; write the path as code",
                "docs/b.md: docs/SUMMARY.md does not list this page",
            ]
        );
    }

    #[test]
    fn code_spans_with_placeholders_are_no_paths() {
        assert!(is_path("crates/forebay/src/lib.rs"));
        assert!(!is_path("crates/CRATE/src/lib.rs") && !is_path("docs/*.svg") && !is_path("src/lib.rs"));
    }
}
