//! A directory of checkpoints with one writer.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_files::temporary::SUFFIX;
use forebay_model::TensorType;
use serde_json::Value;

use super::{Checkpoint, Content, MANIFEST, manifest_text, read_content, tensor_file};
use crate::error::Error;
use crate::files::{self, FolderLock, LockError};
use crate::pieces::{Give, Take};
use crate::progress::Progress;

/// The file that is locked. Its mere existence locks nothing: the system releases the lock when the process ends.
const LOCK: &str = ".forebay.lock";

/// The prefix of the names of folders that hold kept checkpoints.
const KEPT: &str = "step-";

/// How far a run has come: what a checkpoint holds besides its tensors.
pub(crate) struct Position<'a> {
    pub(crate) step: u64,
    pub(crate) seed: u64,
    pub(crate) position: &'a Value,
    pub(crate) progress: Option<Progress>,
    pub(crate) alpha: Option<f32>,
}

/// A directory into which only the holder of this value writes checkpoints. Readers need no lock.
///
/// ```
/// use forebay::CheckpointFolder;
///
/// # fn main() -> Result<(), forebay::Error> {
/// let folder = std::env::temp_dir().join(format!("forebay-folder-example-{}", std::process::id()));
/// let writer = CheckpointFolder::lock(&folder)?;
/// assert_eq!(writer.path(), folder);
/// assert!(CheckpointFolder::lock(&folder).is_err(), "one writer at a time");
/// # drop(writer);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CheckpointFolder {
    lock: FolderLock,
}

impl CheckpointFolder {
    /// Locks a directory, creating it if necessary, until the value is dropped or the process ends, no matter how.
    ///
    /// # Errors
    /// Fails with [`Error::File`] if another writer holds the directory, in which case the error gives its process ID, or if the system
    /// reports an error.
    pub fn lock(directory: impl AsRef<Path>) -> Result<CheckpointFolder, Error> {
        let directory = directory.as_ref();
        let lock = FolderLock::take(directory, LOCK).map_err(|error| match error {
            LockError::Held { process } => {
                let way_out = match process == Some(std::process::id()) {
                    true => "release the trainer that does, in Python with del, or name another folder",
                    false => "wait for it to end, stop it, or name another folder",
                };
                let reason = format!("{error} ({way_out})");
                Error::File { path: directory.to_owned(), action: "write checkpoints to", reason }
            }
            LockError::Io(error) => files::write_error(directory, error),
        })?;
        Ok(CheckpointFolder { lock })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        self.lock.folder()
    }

    /// Returns whether the directory still has this lock. If it was removed, others can create and lock it again.
    ///
    /// ```
    /// use forebay::CheckpointFolder;
    ///
    /// # fn main() -> Result<(), forebay::Error> {
    /// let folder = std::env::temp_dir().join(format!("forebay-removed-example-{}", std::process::id()));
    /// let writer = CheckpointFolder::lock(&folder)?;
    /// assert!(writer.exists());
    /// std::fs::remove_dir_all(folder).unwrap();
    /// assert!(!writer.exists());
    /// # Ok(())
    /// # }
    /// ```
    pub fn exists(&self) -> bool {
        self.lock.is_in_place()
    }

    /// Writes a checkpoint. The previous one stays complete until the new one is.
    ///
    /// # Errors
    /// Fails with [`Error::File`], which names the file, if the system reports an error; the previous checkpoint is then still intact.
    /// Also fails if tensors cannot be read from where they are.
    pub fn write(&self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let Checkpoint { step, seed, position, progress, alpha, contents, .. } = checkpoint;
        let run = Position { step: *step, seed: *seed, position, progress: *progress, alpha: *alpha };
        let mut give = |name: &str, take: Take| match contents.get(name) {
            Some(contents) => contents.give_in_pieces(take),
            None => Ok(()),
        };
        self.write_from(&run, &checkpoint.types(), &mut give)
    }

    /// Keeps the current checkpoint as `step-N` inside the directory, next to those of other steps. Only the `count` checkpoints written
    /// last are kept. Files are hard-linked if the file system supports it, so that a checkpoint takes up space only once.
    ///
    /// # Errors
    /// Fails with [`Error::Checkpoint`] if there is no checkpoint, and with [`Error::File`] if the system reports an error.
    pub fn keep_last(&self, count: u64) -> Result<(), Error> {
        let directory = self.path();
        let unread = |reason| Error::Checkpoint { path: directory.join(MANIFEST), reason };
        let content = read_content(&directory.join(MANIFEST)).map_err(unread)?;
        let kept = directory.join(format!("{KEPT}{:08}", content.step));
        let refused = |error| files::write_error(&kept, error);
        // An incomplete folder, left by a writer that died, is created again.
        if kept.is_dir() {
            fs::remove_dir_all(&kept).map_err(refused)?;
        }
        fs::create_dir(&kept).map_err(refused)?;
        // The manifest comes last, so a folder that has one is complete.
        let is_other =
            |name: &str| name != LOCK && name != MANIFEST && !name.starts_with("tensors-") && !name.ends_with(SUFFIX);
        let entries = fs::read_dir(directory).map_err(refused)?.flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_other(name))
            .collect();
        names.extend([content.tensors.file.clone(), MANIFEST.to_owned()]);
        for name in names {
            let (from, to) = (directory.join(&name), kept.join(&name));
            if fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).map_err(refused)?;
            }
        }
        remove_older(directory, &kept, count);
        Ok(())
    }

    /// Writes a checkpoint of tensors of these types, which `give` provides one after the other.
    ///
    /// # Errors
    /// Same as [`CheckpointFolder::write`], and any error from `give`.
    pub(crate) fn write_from(
        &self,
        run: &Position,
        types: &BTreeMap<String, TensorType>,
        give: Give,
    ) -> Result<(), Error> {
        let directory = self.path();
        let tensors = tensor_file::write(directory, run.step, types, give)?;
        let Position { step, seed, position, progress, alpha } = *run;
        let content = Content { step, seed, position: position.clone(), progress, alpha, tensors };
        let manifest = manifest_text(&content).map_err(|error| files::write_error(&directory.join(MANIFEST), error))?;
        let replaced = files::replace(&directory.join(MANIFEST), manifest.as_bytes());
        // Tensors that no manifest names only take up space, which may already be scarce.
        match read_content(&directory.join(MANIFEST)) {
            Ok(content) => remove_others(directory, Some(&content.tensors.file)),
            Err(_) => remove_others(directory, None),
        }
        replaced
    }
}

/// Returns the number of bytes that the tensors of the checkpoints in a directory take.
pub(super) fn present_bytes(directory: &Path) -> u64 {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_kept = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(KEPT);
    let is_tensors = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|name| name == "safetensors");
    // A file with several names (a kept checkpoint that is also the current one) counts in equal parts under each.
    let own_bytes = |entry: fs::DirEntry| entry.metadata().map_or(0, |found| found.len() / found.nlink().max(1));
    let kept = entries(directory).filter(is_kept).flat_map(|entry| entries(&entry.path()));
    entries(directory).chain(kept).filter(is_tensors).map(own_bytes).sum()
}

/// Removes all kept checkpoints except the last `count` that were written, including `newest`.
fn remove_older(directory: &Path, newest: &Path, count: u64) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(KEPT));
            number.is_some_and(|number| number.parse::<u64>().is_ok()) && entry.path() != newest
        })
        .map(|entry| (Checkpoint::written_at(entry.path()), entry.path()))
        .collect();
    found.sort();
    let stay = usize::try_from(count.saturating_sub(1)).unwrap_or(usize::MAX);
    let gone = found.len().saturating_sub(stay);
    for (_, path) in found.into_iter().take(gone) {
        let _ = fs::remove_dir_all(path);
    }
}

/// Removes the tensors of older checkpoints and the partial files of a writer that died. They are no longer of use but do no harm either,
/// so failures are ignored.
fn remove_others(directory: &Path, keep: Option<&str>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let old = name.starts_with("tensors-") && name.ends_with(".safetensors") && Some(&*name) != keep;
        let partial = (name.starts_with("tensors-") || name.starts_with(MANIFEST)) && name.ends_with(SUFFIX);
        if old || partial {
            let _ = fs::remove_file(entry.path());
        }
    }
}
