//! The page, rendered from its templates: each line in double braces is replaced by what it names.

use std::collections::BTreeSet;

use forebay_bench_record::Record;

use super::collection::{Collection, Section};

/// The notice at the top of the page.
const NOTICE: &str =
    "<!-- Rendered by `cargo xtask results` from benches/results: change the records and templates there. -->\n\n";

/// Renders the page.
///
/// # Errors
/// Fails with the template and line that cannot be rendered.
pub fn page(collection: &Collection) -> Result<String, String> {
    let mut page = NOTICE.to_owned();
    let mut placed = BTreeSet::new();
    for (number, line) in collection.index.lines().enumerate() {
        let at = |error: String| format!("benches/results/index.md:{}: {error}", number + 1);
        match words(line).as_deref() {
            None => page += &format!("{line}\n"),
            Some(["section", name]) => {
                let found = collection.sections.get(*name);
                page += &section(found.ok_or_else(|| at(format!("the folder {name} does not exist")))?)?;
                if !placed.insert(*name) {
                    return Err(at(format!("the section {name} appears twice")));
                }
            }
            Some(_) => return Err(at(format!("expected {{{{section BENCH}}}}; found {line}"))),
        }
    }
    // The results of a new bench are shown before anyone has written about them.
    for found in collection.sections.values().filter(|found| !placed.contains(found.name.as_str())) {
        page += &format!("\n{}", section(found)?);
    }
    Ok(page.trim_end().to_owned() + "\n")
}

/// Renders a section.
fn section(section: &Section) -> Result<String, String> {
    let mut page = String::new();
    let mut placed = BTreeSet::new();
    let heading = || {
        let what = section.records.values().next_back().map_or(section.name.as_str(), |record| &record.what);
        format!("## {what}\n")
    };
    let prose = section.prose.clone().unwrap_or_else(heading);
    for (number, line) in prose.lines().enumerate() {
        let at = |error: String| format!("benches/results/{}/section.md:{}: {error}", section.name, number + 1);
        match words(line).as_deref() {
            None => page += &format!("{line}\n"),
            Some(["about", name]) => {
                page += &about(section.record(name).map_err(at)?);
                placed.insert(*name);
            }
            Some(["table", record, table]) => {
                page += &format!("{}\n", section.table(record, table).map_err(at)?.markdown());
                placed.insert(*record);
            }
            Some(["picture"]) => {
                let picture = section.picture.as_ref().ok_or_else(|| at("picture.json is missing".to_owned()))?;
                page += &format!("![{}]({})\n", picture.title, picture.link());
            }
            Some(_) => {
                let known = "{{about RECORD}}, {{table RECORD TABLE}} or {{picture}}";
                return Err(at(format!("expected {known}; found {line}")));
            }
        }
    }
    for (name, record) in section.records.iter().filter(|(name, _)| !placed.contains(name.as_str())) {
        page +=
            &format!("\n### Run of {}: {}\n\n{}", record.when.as_deref().unwrap_or(name), record.what, about(record));
        for table in &record.tables {
            page += &format!("\n{}\n", table.markdown());
        }
    }
    Ok(page)
}

/// Returns the words of a line in double braces.
fn words(line: &str) -> Option<Vec<&str>> {
    let inside = line.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    Some(inside.split_whitespace().collect())
}

/// Describes how, when and where a record was made.
fn about(record: &Record) -> String {
    let command = record.command.as_ref().map(|command| format!("    {}", command.replace('\n', "\n    ")));
    let software = record.software.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>();
    let machine = record.machine.as_ref().map(|machine| machine.words()).filter(|words| !words.is_empty());
    let commit = record.commit.as_deref().map(|commit| format!("commit {}", short(commit)));
    let software = Some(software.join(", ")).filter(|words| !words.is_empty());
    let parts = [record.when.clone(), commit, machine, software, record.conditions.clone()];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let sentence = Some(capitalized(&parts.join("; "))).filter(|_| !parts.is_empty());
    let paragraphs: Vec<String> = command.into_iter().chain(sentence).collect();
    paragraphs.join("\n\n") + "\n"
}

/// Returns the text with its first letter capitalized.
fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_uppercase().collect::<String>());
    format!("{}{}.", first.unwrap_or_default(), characters.as_str())
}

/// Returns a commit's first digits, and whether the working tree differed from it.
fn short(commit: &str) -> String {
    let (hash, rest) = commit.split_once('-').map_or((commit, ""), |(hash, rest)| (hash, rest));
    let hash = hash.get(..10).unwrap_or(hash);
    if rest.is_empty() { hash.to_owned() } else { format!("{hash} ({rest})") }
}
