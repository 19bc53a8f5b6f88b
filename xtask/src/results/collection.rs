//! The records, sections and pictures of the folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_bench_record::{Record, Table};

use super::picture::Picture;

/// Everything that makes up the page.
pub struct Collection {
    /// The beginning of the page and the order of the sections: `index.md`.
    pub index: String,
    /// The sections, by the names of their folders.
    pub sections: BTreeMap<String, Section>,
}

/// The results of one bench.
pub struct Section {
    /// Its name.
    pub name: String,
    /// Its prose, if it has any: `section.md`.
    pub prose: Option<String>,
    /// Its picture, if it has one: `picture.json`.
    pub picture: Option<Picture>,
    /// Its records, by the names of their files without `.json`.
    pub records: BTreeMap<String, Record>,
}

impl Collection {
    /// Reads the folder.
    ///
    /// # Errors
    /// Fails with the file that cannot be read or is invalid, and the reason.
    pub fn read(folder: &Path) -> Result<Collection, String> {
        let index = text(&folder.join("index.md"))?;
        let mut sections = BTreeMap::new();
        for path in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
            let section = Section::read(&path)?;
            sections.insert(section.name.clone(), section);
        }
        Ok(Collection { index, sections })
    }
}

impl Section {
    fn read(folder: &Path) -> Result<Section, String> {
        let mut section = Section { name: stem(folder), prose: None, picture: None, records: BTreeMap::new() };
        for path in entries(folder)? {
            let at = |error: String| format!("{}: {error}", shown(&path));
            match path.file_name().unwrap_or_default().to_string_lossy().as_ref() {
                "section.md" => section.prose = Some(text(&path)?),
                "picture.json" => section.picture = Some(Picture::read(&text(&path)?).map_err(at)?),
                name if name.ends_with(".json") => {
                    let record = Record::read(&text(&path)?).map_err(at)?;
                    if record.bench != section.name {
                        return Err(at(format!("bench: \"{}\" is not the folder's name", record.bench)));
                    }
                    section.records.insert(stem(&path), record);
                }
                _ => return Err(at("only section.md, picture.json and records (*.json) belong here".to_owned())),
            }
        }
        if section.records.is_empty() {
            return Err(format!("{}: the folder has no record", shown(folder)));
        }
        Ok(section)
    }

    /// Returns a record.
    ///
    /// # Errors
    /// Fails with the existing records if the name is unknown.
    pub fn record(&self, name: &str) -> Result<&Record, String> {
        let known = || self.records.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.records.get(name).ok_or_else(|| format!("unknown record {name}; the records are: {}", known()))
    }

    /// Returns a table of a record.
    ///
    /// # Errors
    /// Fails with the existing records or tables if a name is unknown.
    pub fn table(&self, record: &str, name: &str) -> Result<&Table, String> {
        let tables = &self.record(record)?.tables;
        let known = || tables.iter().map(|table| table.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = tables.iter().find(|table| table.name == name);
        found.ok_or_else(|| format!("record {record} has no table {name}; it has: {}", known()))
    }
}

/// Returns a folder's entries sorted by name, without hidden ones: editors keep copies there.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", shown(folder));
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<Vec<_>, String>>()?;
    paths.retain(|path| !path.file_name().unwrap_or_default().to_string_lossy().starts_with('.'));
    paths.sort();
    Ok(paths)
}

fn text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", shown(path)))
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns a path as shown in messages: relative to the repository's root if it is inside.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(forebay_bench_record::repository()).unwrap_or(path).display().to_string()
}
