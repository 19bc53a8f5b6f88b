//! Folders with one subfolder of files for each class, numbered in the order of their names.

use std::path::{Path, PathBuf};

use forebay_base::Tensor;

use crate::error::DataError;
use crate::names::{file_name, has_extension, listed};

/// The files of all classes.
pub(crate) struct ClassFolders {
    /// The files, class by class.
    pub(crate) files: Vec<PathBuf>,
    /// The class of each file.
    pub(crate) labels: Tensor,
    /// The names of the classes, in order.
    pub(crate) classes: Vec<String>,
    /// The number of classes, which have no files, and what is left out, in words.
    pub(crate) kind: String,
}

/// Lists the files of a kind in the subfolders of a folder; `what` names the kind.
///
/// # Errors
/// [`DataError`] if a folder cannot be listed.
pub(crate) fn class_folders(
    folder: &Path,
    what: &str,
    is_sample: impl Fn(&Path) -> bool,
) -> Result<ClassFolders, DataError> {
    let is_file = |path: &PathBuf| is_sample(path) && path.is_file();
    let (classes, others): (Vec<PathBuf>, Vec<PathBuf>) = listed(folder)?.into_iter().partition(|path| path.is_dir());
    // Notes and tables next to the folders of classes are nothing that a class misses.
    let mut left_out: Vec<PathBuf> = others.into_iter().filter(is_file).collect();
    let (mut files, mut labels, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for (class, class_folder) in classes.iter().enumerate() {
        let (samples, others): (Vec<PathBuf>, Vec<PathBuf>) = listed(class_folder)?.into_iter().partition(is_file);
        if samples.is_empty() {
            empty.push(class_folder.clone());
        }
        left_out.extend(others);
        files.extend(samples);
        labels.resize(files.len(), class as i64);
    }
    let mut kind = format!("a folder of {what} in {} classes", classes.len());
    for (paths, words) in [(empty, format!("without {what}")), (left_out, "left out".to_owned())] {
        if let Some(first) = paths.first() {
            let first = first.strip_prefix(folder).unwrap_or(first).display();
            kind += &format!("; {words}: {first}");
            if paths.len() > 1 {
                kind += &format!(" and {} more", paths.len() - 1);
            }
        }
    }
    let labels = Tensor::from_i64(&[labels.len() as u64], &labels);
    let classes = classes.iter().map(|path| file_name(path)).collect();
    Ok(ClassFolders { files, labels, classes, kind })
}

/// Extensions of files that are not read, with the formats to convert them to.
const UNREAD: [(&[&str], &str); 3] = [
    (&["gif", "avif", "heic", "heif", "jxl", "svg", "ico", "tga", "exr"], "images to PNG"),
    (&["ogg", "oga", "opus", "mp3", "m4a", "aac", "aif", "aiff", "au", "wma"], "sounds to WAV or FLAC"),
    (&["hdr", "img", "mgz", "mgh", "mha", "mhd", "dcm", "mnc"], "volumes to NIfTI (.nii)"),
];

/// Returns what to do with the first file of a folder or its subfolders that is of a known kind that is not read.
///
/// # Errors
/// [`DataError`] if a folder cannot be listed.
pub(crate) fn unread(folder: &Path) -> Result<Option<String>, DataError> {
    let (folders, mut files): (Vec<PathBuf>, Vec<PathBuf>) =
        listed(folder)?.into_iter().partition(|path| path.is_dir());
    for folder in folders {
        files.extend(listed(&folder)?);
    }
    let reason = |path: &PathBuf| {
        let (_, target) = UNREAD.iter().find(|(extensions, _)| has_extension(path, extensions))?;
        let path = path.strip_prefix(folder).unwrap_or(path).display();
        Some(format!("files such as {path} are not read: convert {target}"))
    };
    Ok(files.iter().find_map(reason))
}

/// Returns whether a subfolder of a folder has a file of a kind.
///
/// # Errors
/// [`DataError`] if a folder cannot be listed.
pub(crate) fn has_samples(folder: &Path, is_sample: impl Fn(&Path) -> bool) -> Result<bool, DataError> {
    for class_folder in listed(folder)?.iter().filter(|path| path.is_dir()) {
        if listed(class_folder)?.iter().any(|path| is_sample(path) && path.is_file()) {
            return Ok(true);
        }
    }
    Ok(false)
}
