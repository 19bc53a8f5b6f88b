//! Files by their names: what a folder lists, and extensions. Upper and lower case are the same in extensions.

use std::path::{Path, PathBuf};

use crate::error::DataError;

/// Lists the entries of a folder in the order of their names, without hidden ones, because some systems store metadata in them.
///
/// # Errors
/// [`DataError::Io`] if the folder cannot be listed.
pub(crate) fn listed(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| DataError::io(folder, error))? {
        let entry = entry.map_err(|error| DataError::io(folder, error))?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Returns the last component of a path, as text.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the files with one of these extensions that a path names: the file itself, or the files of a folder in the order of their names;
/// empty if there are none.
///
/// # Errors
/// [`DataError::Io`] if the folder cannot be listed.
pub(crate) fn files_with(path: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, DataError> {
    let mut files = if path.is_dir() { listed(path)? } else { vec![path.to_path_buf()] };
    files.retain(|path| has_extension(path, extensions) && !path.is_dir());
    Ok(files)
}

/// Returns whether a file has one of these extensions.
pub(crate) fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let own = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    extensions.iter().any(|extension| own.eq_ignore_ascii_case(extension))
}

/// Returns a file's name without one of these endings, or `None` if it has none of them.
pub(crate) fn without_ending<'a>(path: &'a Path, endings: &[&str]) -> Option<&'a str> {
    let name = path.file_name()?.to_str()?;
    endings.iter().find_map(|ending| {
        let (stem, own) = name.split_at_checked(name.len().checked_sub(ending.len())?)?;
        own.eq_ignore_ascii_case(ending).then_some(stem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_count_in_either_case_and_hidden_files_never() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.TAR", "a.tar", "._a.tar", "tar", "c.gz"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("d.tar")).unwrap();
        let [a, b] = ["a.tar", "b.TAR"].map(|name| folder.path().join(name));
        assert_eq!(files_with(folder.path(), &["tar"]).unwrap(), [a, b.clone()]);
        assert_eq!(files_with(&b, &["gz", "tar"]).unwrap(), std::slice::from_ref(&b));
        assert!(files_with(&b, &["gz"]).unwrap().is_empty());
        assert_eq!(without_ending(Path::new("x/scan.1.NII.gz"), &[".nii.gz", ".nii"]), Some("scan.1"));
        assert_eq!(without_ending(Path::new("é"), &[".nii"]), None);
    }
}
