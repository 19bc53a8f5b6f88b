//! Where checkpoints go, and where else when they cannot.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay::{Checkpoint, CheckpointFolder, Error, files};

use crate::failure::Failure;
use crate::output;

/// Where an interrupted run leaves its checkpoint when no folder was named.
const USUAL: &str = "forebay-checkpoint";

/// Keeps the checkpoints of a run.
pub struct Keeper {
    /// The folder that was asked for; no other run writes there.
    folder: Option<CheckpointFolder>,
    /// Folders for what would be lost otherwise, the best one first.
    elsewhere: Vec<PathBuf>,
    started: SystemTime,
    /// The step of the checkpoint in the folder that was asked for, where this run knows it.
    kept: Option<u64>,
    /// How many of the latest checkpoints stay.
    last: Option<u64>,
}

impl Keeper {
    /// Checks where checkpoints can go, before the first step. Without a folder that was asked for, it says where the
    /// checkpoint of an interrupted run would go if not to the usual place.
    ///
    /// # Errors
    /// A folder that was asked for and cannot be written, or that another run writes to.
    pub fn new(asked: Option<&Path>, save: Option<&Path>) -> Result<Keeper, Failure> {
        let folder = match asked {
            Some(folder) => {
                output::check_folder(folder)?;
                Some(CheckpointFolder::lock(folder)?)
            }
            None => None,
        };
        let elsewhere = elsewhere(asked, save);
        if asked.is_none()
            && let Some(words) = next_uses(&elsewhere)
        {
            output::complain(&words);
        }
        Ok(Keeper { folder, elsewhere, started: SystemTime::now(), kept: None, last: None })
    }

    /// Has the latest checkpoints stay, each in a folder of its own.
    pub fn keep_last(&mut self, count: Option<u64>) {
        self.last = count;
    }

    /// The folder that was asked for.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(CheckpointFolder::path)
    }

    /// Learns that the run went on from the checkpoint of a folder.
    pub fn resumed(&mut self, folder: &Path, step: u64) {
        if self.is_asked_for(folder) {
            self.kept = Some(step);
        }
    }

    /// Whether this is the folder that was asked for.
    pub fn is_asked_for(&self, folder: &Path) -> bool {
        self.folder().is_some_and(|asked| is_same(asked, folder))
    }

    /// Whether the folder that was asked for has the checkpoint of a step.
    pub fn has(&self, step: u64) -> bool {
        self.kept == Some(step)
    }

    /// Has `write` write the checkpoint of a step into the folder that was asked for, if one was.
    ///
    /// # Errors
    /// A file that cannot be written; the checkpoint that was there is then still whole.
    pub fn keep(
        &mut self,
        step: u64,
        write: impl FnOnce(&CheckpointFolder) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        if let Some(folder) = &self.folder {
            write(folder)?;
            self.kept = Some(step);
            if let Some(Err(error)) = self.last.map(|count| folder.keep_last(count)) {
                output::complain(&format!("warning: {error}; the checkpoint itself is whole"));
            }
        }
        Ok(())
    }

    /// What is safe after a checkpoint that could not be written.
    pub fn what_is_safe(&self) -> String {
        let Some(folder) = self.folder() else { return "there is no checkpoint".to_owned() };
        match self.kept {
            Some(step) => format!("the checkpoint of step {step} in {} is whole", folder.display()),
            None if Checkpoint::written_at(folder).is_some() => {
                format!("the checkpoint that was in {} before is whole", folder.display())
            }
            None => format!("there is no checkpoint in {} yet", folder.display()),
        }
    }

    /// Has `write` write a checkpoint that would be lost otherwise to the first place that takes it; gives the folder. A place where
    /// another run left one since this run started stays as it is.
    ///
    /// # Errors
    /// The last place's reason.
    pub fn rescue(&self, write: impl Fn(&CheckpointFolder) -> Result<(), Error>) -> Result<PathBuf, Failure> {
        let mut last = Failure::Failed("there is no folder for a checkpoint".to_owned());
        for folder in &self.elsewhere {
            if Checkpoint::written_at(folder).is_some_and(|written| written >= self.started) {
                output::complain(&format!("note: {} has the checkpoint of another run", folder.display()));
                continue;
            }
            match CheckpointFolder::lock(folder).and_then(|folder| write(&folder)) {
                Ok(()) => return Ok(folder.clone()),
                Err(error) => last = error.into(),
            }
            output::complain(&format!("warning: {last}"));
        }
        Err(last)
    }
}

/// Folders for what would be lost otherwise: the usual one, one next to the model that is saved, one for temporary files.
fn elsewhere(asked: Option<&Path>, save: Option<&Path>) -> Vec<PathBuf> {
    let next_to_model = save
        .and_then(Path::parent)
        .filter(|folder| !folder.as_os_str().is_empty() && !folder.starts_with("/dev") && !folder.starts_with("/proc"));
    let temporary = std::env::temp_dir().join(format!("{USUAL}-{}", std::process::id()));
    let mut folders = vec![PathBuf::from(USUAL)];
    folders.extend(next_to_model.map(|folder| folder.join(USUAL)));
    folders.push(temporary);
    folders.retain(|folder| !asked.is_some_and(|asked| is_same(asked, folder)));
    folders
}

/// Whether two paths name the same folder.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    one == other || (real(one).is_some() && real(one) == real(other))
}

/// What the user should know before the first step; nothing where the usual folder can be written.
fn next_uses(folders: &[PathBuf]) -> Option<String> {
    let (usual, others) = folders.split_first()?;
    let reason = files::check_folder(usual).err()?;
    let usual = usual.display();
    let way_out = "--checkpoint names another folder";
    Some(match others.iter().find(|folder| files::check_folder(folder).is_ok()) {
        Some(other) => format!(
            "note: ./{usual} cannot be written ({reason}): Ctrl-C would leave the checkpoint in {} ({way_out})",
            other.display()
        ),
        None => format!(
            "warning: Ctrl-C would lose everything: there is no room for a checkpoint in ./{usual} ({reason}) or any \
             folder for temporary files ({way_out})"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_for_a_checkpoint_are_tried_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let [bad, taken, good] = ["file/below", "taken", "good"].map(|name| folder.path().join(name));
        std::fs::write(folder.path().join("file"), "").unwrap();
        let weight = forebay::Tensor::from_f32(&[1], &[1.0]);
        let mut checkpoint = Checkpoint::new([("w".to_owned(), weight)].into());
        checkpoint.step = 3;
        let started = SystemTime::UNIX_EPOCH;
        checkpoint.write(&taken).unwrap();
        let elsewhere = vec![bad.clone(), taken, good.clone()];
        let keeper = Keeper { folder: None, elsewhere: elsewhere.clone(), started, kept: None, last: None };
        assert_eq!(keeper.rescue(|folder| folder.write(&checkpoint)).unwrap(), good);
        assert_eq!(Checkpoint::read(&good).unwrap().step, 3);
        let words = next_uses(&elsewhere).unwrap();
        assert!(words.contains("file/below") && words.contains("taken") && words.contains("--checkpoint"), "{words}");
        assert!(next_uses(&elsewhere[1..]).is_none());
        assert!(next_uses(&[bad.clone(), bad]).unwrap().contains("lose everything"));
    }

    #[test]
    fn the_folder_that_was_asked_for_is_no_other_place() {
        let places = |asked: Option<&str>, save: Option<&str>| elsewhere(asked.map(Path::new), save.map(Path::new));
        assert_eq!(places(None, None).len(), 2);
        assert_eq!(places(Some(USUAL), None).len(), 1);
        assert_eq!(places(None, Some("models/m.onnx"))[1], Path::new("models").join(USUAL));
        assert_eq!(places(None, Some("/dev/null")).len(), 2);
    }
}
