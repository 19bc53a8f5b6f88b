//! `cargo xtask results`: renders the page of results and its pictures from the records in `benches/results`.
//!
//! | module | holds |
//! |---|---|
//! | [`collection`] | the records, sections and pictures of the folder |
//! | [`page`] | the page, from its templates |
//! | [`picture`] | a picture, from a table |
//! | [`chart`] | lines over an axis, as SVG |

mod chart;
mod collection;
mod page;
mod picture;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::{Path, PathBuf};

use forebay_bench_record::{Record, repository, results_folder};

use self::collection::Collection;

/// The path of the page from the repository's root.
const PAGE: &str = "benches/RESULTS.md";

/// Renders, checks or records, as the arguments say.
///
/// # Errors
/// Fails if the arguments are invalid, if records or templates cannot be read, or, with `--check`, if files differ from what the records
/// render to.
pub fn results(arguments: &[String]) -> Result<(), String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => render(),
        ["--check"] => match violations().as_slice() {
            [] => {
                println!("{PAGE} and its pictures match the records");
                Ok(())
            }
            violations => Err(violations.join("\n")),
        },
        ["record"] => record(None),
        ["record", "--output", file] => {
            let file = std::env::current_dir().map_err(|error| error.to_string())?.join(file);
            record(Some(&file))
        }
        _ => {
            Err("usage: cargo xtask results [--check], or cargo xtask results record [--output FILE] < RECORD"
                .to_owned())
        }
    }
}

/// Returns the problems with the folder and the differences from what it renders to, one line each.
pub fn violations() -> Vec<String> {
    let files = match rendered(&results_folder()) {
        Ok(files) => files,
        Err(error) => return vec![error],
    };
    let differs = |(path, text): &(PathBuf, String)| {
        std::fs::read_to_string(repository().join(path)).map_or(true, |found| found != *text)
    };
    let stale = files.iter().filter(|file| differs(file));
    stale.map(|(path, _)| format!("{} does not match the records; run `cargo xtask results`", path.display())).collect()
}

/// Writes the page and the pictures.
fn render() -> Result<(), String> {
    for (path, text) in rendered(&results_folder())? {
        let file = repository().join(&path);
        if std::fs::read_to_string(&file).is_ok_and(|found| found == text) {
            continue;
        }
        forebay_files::write(&file, text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns the files, by their paths from the repository's root, with the contents they should have.
fn rendered(folder: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let collection = Collection::read(folder)?;
    let mut files = vec![(PathBuf::from(PAGE), page::page(&collection)?)];
    for section in collection.sections.values() {
        if let Some(picture) = &section.picture {
            files.push((PathBuf::from(&picture.file), picture.svg(section)?));
        }
    }
    Ok(files)
}

/// Completes a record from the standard input and writes it.
fn record(output: Option<&Path>) -> Result<(), String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| format!("cannot read standard input: {error}"))?;
    let record = Record::completed(&text).map_err(|error| format!("the record is incomplete: {error}\n{text}"))?;
    record.save(output).map(drop)
}
