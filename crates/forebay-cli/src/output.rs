//! Printing, and files that appear whole or not at all.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::files;

use crate::escape::escaped;
use crate::failure::Failure;

/// The first error of standard output.
static REFUSED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Whether output is off because another process prints it.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Turns off all output from now on.
pub fn be_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Returns whether output is off.
pub fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Prints a line on standard output. A closed pipe (`forebay plan ... | head`) is not a failure. Other failures are reported by
/// [`finish`], so that work that is worth more than its output continues.
pub fn say(line: &str) {
    if !is_silent() {
        remember(writeln!(io::stdout(), "{}", escaped(line)));
    }
}

/// Records the first failure of standard output.
fn remember(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        REFUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
    }
}

/// Checks that all output was written.
///
/// # Errors
/// Returns the first error of standard output.
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

/// Prints a line on standard error even if output is off.
pub fn complain_aloud(line: &str) {
    // There is nowhere else to report this failure.
    let _ = writeln!(io::stderr(), "{}", escaped(line));
}

/// Returns a file name for the name of a tensor. Characters that are not portable in file names become `_`.
pub fn file_name(tensor: &str) -> String {
    let forbidden = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    let name: String = tensor.chars().map(|c| if forbidden(c) { '_' } else { c }).collect();
    // Such names would denote a folder, and a leading dot would hide the file.
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => name,
    }
}

/// Fails now if a file could not be written later, because hours of training should not end in a full or missing folder.
/// Nothing is created or changed.
///
/// # Errors
/// Returns the system's error, with the path.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    files::check_writable(path).map_err(|error| refused(path, &error))
}

/// Checks the same for a file in a folder that may not exist yet.
///
/// # Errors
/// Returns the system's error, with the path.
pub fn check_existing(path: &Path) -> Result<(), Failure> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => check_writable(path),
        Err(_) => Ok(()),
    }
}

/// Checks that flags name different files, because one of them would replace the other. Devices such as `/dev/null` take several.
///
/// # Errors
/// Names two flags with the same file.
pub fn check_different(files: &[(&str, &Path)]) -> Result<(), Failure> {
    let place = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::canonicalize(folder).ok().zip(path.file_name().map(ToOwned::to_owned))
    };
    let mut places = BTreeMap::new();
    for (flag, path) in files.iter().filter(|(_, path)| !path.starts_with("/dev") || path.starts_with("/dev/shm")) {
        let Some(place) = place(path) else { continue };
        if let Some(other) = places.insert(place, flag) {
            let path = path.display();
            return Err(Failure::Usage(format!("{other} and {flag} both write {path}; name different files")));
        }
    }
    Ok(())
}

/// Returns whether two paths name the same file or folder.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    one == other || (real(one).is_some() && real(one) == real(other))
}

/// Checks that no flag writes a file that the command reads, because the file would be lost. Inputs can be data sets, with a selection of
/// samples.
///
/// # Errors
/// Names the flag and the file.
pub fn check_unread(files: &[(&str, &Path)], inputs: &[&str]) -> Result<(), Failure> {
    let of_input = |input: &&str| {
        let selected = input.rsplit_once('#').map(|(path, _)| Path::new(path).to_owned());
        [Some(Path::new(input).to_owned()), selected].into_iter().flatten().filter(|path| path.is_file())
    };
    let inputs: Vec<_> = inputs.iter().flat_map(of_input).collect();
    match files.iter().find(|(_, path)| inputs.iter().any(|input| is_same(path, input))) {
        Some((flag, path)) => {
            let path = path.display();
            Err(Failure::Usage(format!("{flag} would replace {path}, which this command reads; name another file")))
        }
        None => Ok(()),
    }
}

/// Fails now if files could not be written into a folder later. A missing folder is not created yet.
///
/// # Errors
/// Returns the system's error, with the path.
pub fn check_folder(folder: &Path) -> Result<(), Failure> {
    files::check_folder(folder).map_err(|error| refused(folder, &error))
}

/// Writes a file, as a whole or not at all.
///
/// # Errors
/// Returns the system's error, with the path.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    files::write(path, text.as_bytes()).map_err(|error| refused(path, &error))
}

/// Returns the failure for a file or folder that cannot be written.
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

    #[test]
    fn what_is_read_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [data, other] = ["d.npz", "other"].map(|name| folder.path().join(name));
        std::fs::write(&data, "samples").unwrap();
        let (plain, linked) = (data.display().to_string(), folder.path().join("linked"));
        std::os::unix::fs::symlink(&data, &linked).unwrap();
        for (path, input) in [(&data, plain.clone()), (&linked, format!("{plain}#0..5"))] {
            let text = check_unread(&[("--out", path.as_path())], &[input.as_str()]).unwrap_err().to_string();
            assert!(text.starts_with("--out would replace "), "{text}");
        }
        check_unread(&[("--out", other.as_path())], &[plain.as_str()]).unwrap();
    }

    #[test]
    fn two_flags_do_not_write_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "./a"].map(|name| folder.path().join(name));
        let text = check_different(&[("--log", a.as_path()), ("--trace", b.as_path())]).unwrap_err().to_string();
        assert!(text.starts_with("--log and --trace both write "), "{text}");
        let (null, other) = (Path::new("/dev/null"), folder.path().join("b"));
        let files = [("--log", a.as_path()), ("--trace", other.as_path()), ("--save", null), ("--report", null)];
        check_different(&files).unwrap();
    }
}
