//! Printing, and files that appear whole or not at all.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::files;

use crate::escape::escaped;
use crate::failure::Failure;

/// The first error of standard output.
static REFUSED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Whether nothing is said, because another process says it.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Says nothing from now on.
pub fn be_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether nothing is said.
pub fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Prints a line on standard output. A reader that went away (`forebay plan ... | head`) is no failure; any other is told
/// by [`finish`], so that work goes on that is worth more than its words.
pub fn say(line: &str) {
    if !is_silent() {
        remember(writeln!(io::stdout(), "{}", escaped(line)));
    }
}

/// Remembers the first failure of standard output.
fn remember(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        REFUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
    }
}

/// Whether everything that was said has arrived.
///
/// # Errors
/// What standard output refused.
pub fn finish() -> Result<(), Failure> {
    remember(io::stdout().flush());
    match REFUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
        Some(error) => Err(Failure::Failed(format!("cannot write standard output: {error}"))),
        None => Ok(()),
    }
}

/// Prints a line on standard error.
pub fn complain(line: &str) {
    if !is_silent() {
        complain_aloud(line);
    }
}

/// The same also where nothing else is said.
pub fn complain_aloud(line: &str) {
    // There is nowhere else to say that this failed.
    let _ = writeln!(io::stderr(), "{}", escaped(line));
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

/// Fails now if a file could not be written later: hours of training should not end in a full or missing folder. Nothing
/// is made or changed.
///
/// # Errors
/// The system's reason, with the path.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    files::check_writable(path).map_err(|error| refused(path, &error))
}

/// The same for a file in a folder that may not be there yet.
///
/// # Errors
/// The system's reason, with the path.
pub fn check_existing(path: &Path) -> Result<(), Failure> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => check_writable(path),
        Err(_) => Ok(()),
    }
}

/// Fails now if files could not be written into a folder later. A folder that is not there is not made yet.
///
/// # Errors
/// The system's reason, with the path.
pub fn check_folder(folder: &Path) -> Result<(), Failure> {
    files::check_folder(folder).map_err(|error| refused(folder, &error))
}

/// Writes a file, as a whole or not at all.
///
/// # Errors
/// The system's reason, with the path.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    files::write(path, text.as_bytes()).map_err(|error| refused(path, &error))
}

/// A file or folder that cannot be written.
pub fn refused(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", path.display()))
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
