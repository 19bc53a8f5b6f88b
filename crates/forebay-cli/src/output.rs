//! Printing, and files that appear whole or not at all.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::escape::escaped;
use crate::failure::Failure;

/// Prints a line on standard output. A reader that went away (`forebay plan ... | head`) is no failure.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", escaped(line));
}

/// Prints a line on standard error.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", escaped(line));
}

/// A file name for the name of a tensor: characters that file names cannot hold everywhere become `_`.
pub fn file_name(tensor: &str) -> String {
    let forbidden = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    let name: String = tensor.chars().map(|c| if forbidden(c) { '_' } else { c }).collect();
    // These would name a folder; a leading dot would hide the file.
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => name,
    }
}

/// Fails now if a file could not be written later: hours of training should not end in a full or missing folder.
///
/// # Errors
/// The system's reason, with the path.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::Failed(format!("cannot write {}: it is a folder", path.display())));
    }
    let probe = partial(path);
    let attempt = fs::File::create(&probe).and_then(|_| fs::remove_file(&probe));
    attempt.map_err(|error| Failure::Failed(format!("cannot write {}: {error}", path.display())))
}

/// Makes a folder where there is none, and fails now if files could not be written into it later.
///
/// # Errors
/// The system's reason, with the path.
pub fn check_folder(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder)
        .map_err(|error| Failure::Failed(format!("cannot create folder {}: {error}", folder.display())))?;
    check_writable(&folder.join("forebay"))
}

/// Writes a file through a temporary one beside it.
///
/// # Errors
/// The system's reason, with the path.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let temporary = partial(path);
    let attempt = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    attempt.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Failure::Failed(format!("cannot write {}: {error}", path.display()))
    })
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_names_become_file_names() {
        assert_eq!(file_name("gpu_0/softmax_1"), "gpu_0_softmax_1");
        assert_eq!(file_name("a:b\\c\n"), "a_b_c_");
        assert_eq!(file_name("../x"), "_._x");
        assert_eq!(file_name("logits"), "logits");
    }

    #[test]
    fn unwritable_paths_are_found_early() {
        let folder = tempfile::tempdir().unwrap();
        check_folder(&folder.path().join("new/deep")).unwrap();
        check_writable(&folder.path().join("model.onnx")).unwrap();
        assert!(check_writable(folder.path()).unwrap_err().to_string().contains("it is a folder"));
        assert!(check_writable(&folder.path().join("none/model.onnx")).is_err());
        write(&folder.path().join("file"), "text").unwrap();
        assert!(check_folder(&folder.path().join("file/deep")).is_err());
    }
}
