//! The repository's text files.

use std::path::{Path, PathBuf};

/// A text file.
pub struct SourceFile {
    /// Its path from the root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Returns the repository's root.
pub fn root() -> &'static Path {
    // xtask is in the root.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns all text files sorted by path; build outputs and hidden folders other than `.ci` and `.cargo` are left out.
///
/// # Errors
/// Fails if a folder or file cannot be read.
pub fn files() -> Result<Vec<SourceFile>, String> {
    let mut files = Vec::new();
    collect(root(), &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn collect(folder: &Path, files: &mut Vec<SourceFile>) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("cannot read {}: {error}", path.display());
    for entry in std::fs::read_dir(folder).map_err(|error| failed(folder, error))? {
        let path = entry.map_err(|error| failed(folder, error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
            let generated = matches!(name.as_str(), "target" | "corpus" | "artifacts" | "coverage" | "__pycache__");
            if !hidden && !generated {
                collect(&path, files)?;
            }
        } else if let Ok(text) = String::from_utf8(std::fs::read(&path).map_err(|error| failed(&path, error))?) {
            files.push(SourceFile { path: relative(&path), text });
        }
    }
    Ok(())
}

fn relative(path: &Path) -> String {
    let relative: PathBuf = path.strip_prefix(root()).unwrap_or(path).into();
    relative.to_string_lossy().replace('\\', "/")
}
