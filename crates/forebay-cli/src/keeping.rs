//! Where checkpoints are written, and where else if that fails.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay::{Checkpoint, CheckpointFolder, Error, files};

use crate::failure::Failure;
use crate::output::{self, is_same};

/// The folder in which an interrupted run leaves its checkpoint if none was specified.
const USUAL: &str = "forebay-checkpoint";

/// Stores the checkpoints of a run.
pub struct Keeper {
    /// The specified folder, to which no other run writes.
    folder: Option<CheckpointFolder>,
    /// Folders for checkpoints that would otherwise be lost, the best one first.
    elsewhere: Vec<PathBuf>,
    started: SystemTime,
    /// The folder from which the run resumed. Its checkpoint can be replaced by a later one of the same run.
    resumed: Option<PathBuf>,
    /// The step of the checkpoint in the specified folder, if this run knows it.
    kept: Option<u64>,
    /// The number of latest checkpoints to keep.
    last: Option<u64>,
}

impl Keeper {
    /// Checks where checkpoints can be written, before the first step. If no folder was specified, it reports where the checkpoint
    /// of an interrupted run would go if not to the usual folder.
    ///
    /// # Errors
    /// Fails if the specified folder cannot be written or another run writes to it.
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
        Ok(Keeper { folder, elsewhere, started: SystemTime::now(), resumed: None, kept: None, last: None })
    }

    /// Keeps the latest checkpoints, each in a separate folder.
    pub fn keep_last(&mut self, count: Option<u64>) {
        self.last = count;
    }

    /// Returns the specified folder.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(CheckpointFolder::path)
    }

    /// Records that the run resumed from the checkpoint in a folder.
    pub fn resumed(&mut self, folder: &Path, step: u64) {
        if self.folder().is_some_and(|asked| is_same(asked, folder)) {
            self.kept = Some(step);
        }
        self.resumed = Some(folder.to_owned());
    }

    /// Returns whether the specified folder has the checkpoint of a step.
    pub fn has(&self, step: u64) -> bool {
        self.kept == Some(step)
    }

    /// Writes the checkpoint of a step with `write` into the specified folder, if any.
    ///
    /// # Errors
    /// Fails if a file cannot be written; the previous checkpoint then remains intact.
    pub fn keep(
        &mut self,
        step: u64,
        write: impl FnOnce(&CheckpointFolder) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        if let Some(folder) = &self.folder {
            write(folder)?;
            self.kept = Some(step);
            if let Some(Err(error)) = self.last.map(|count| folder.keep_last(count)) {
                output::complain(&format!("warning: {error}; the checkpoint itself is intact"));
            }
        }
        Ok(())
    }

    /// Describes what is safe after a checkpoint could not be written.
    pub fn what_is_safe(&self) -> String {
        let Some(folder) = self.folder() else { return "there is no checkpoint".to_owned() };
        match self.kept {
            Some(step) => format!("the checkpoint of step {step} in {} is intact", folder.display()),
            None if Checkpoint::written_at(folder).is_some() => {
                format!("the earlier checkpoint in {} is intact", folder.display())
            }
            None => format!("there is no checkpoint in {} yet", folder.display()),
        }
    }

    /// Writes a checkpoint that would otherwise be lost with `write` to the first folder where that succeeds, and returns the folder. A
    /// folder with the checkpoint of another run is not touched: someone may still want to resume from there.
    ///
    /// # Errors
    /// Returns the error of the last folder.
    pub fn rescue(&self, write: impl Fn(&CheckpointFolder) -> Result<(), Error>) -> Result<PathBuf, Failure> {
        let mut last = Failure::Failed("there is no folder for a checkpoint".to_owned());
        for folder in &self.elsewhere {
            let is_own = self.resumed.as_deref().is_some_and(|resumed| is_same(resumed, folder));
            if Checkpoint::written_at(folder).is_some_and(|written| written >= self.started || !is_own) {
                output::complain(&format!("note: {} contains the checkpoint of another run", folder.display()));
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

/// Returns folders for checkpoints that would otherwise be lost: the usual one, one that no other run has, one next to the saved model, and
/// one for temporary files.
fn elsewhere(asked: Option<&Path>, save: Option<&Path>) -> Vec<PathBuf> {
    let next_to_model = save
        .and_then(Path::parent)
        .filter(|folder| !folder.as_os_str().is_empty() && !folder.starts_with("/dev") && !folder.starts_with("/proc"));
    let own = format!("{USUAL}-{}", std::process::id());
    let mut folders = vec![PathBuf::from(USUAL), unused(Path::new(""), &own)];
    folders.extend(next_to_model.map(|folder| folder.join(USUAL)));
    folders.push(unused(&std::env::temp_dir(), &own));
    folders.retain(|folder| !asked.is_some_and(|asked| is_same(asked, folder)));
    folders
}

/// Returns the path of a name in a folder, with a number if others are taken: in containers, many runs have the same process number.
fn unused(folder: &Path, name: &str) -> PathBuf {
    let first = folder.join(name);
    let numbered = (2_u32..).map(|count| folder.join(format!("{name}-{count}")));
    std::iter::once(first.clone()).chain(numbered).find(|path| !path.exists()).unwrap_or(first)
}

/// Returns what the user should know before the first step; `None` if the usual folder can be written.
fn next_uses(folders: &[PathBuf]) -> Option<String> {
    let (usual, others) = folders.split_first()?;
    let reason = files::check_folder(usual).err()?;
    let usual = usual.display();
    let way_out = "use --checkpoint to choose another folder";
    Some(match others.iter().find(|folder| files::check_folder(folder).is_ok()) {
        Some(other) => format!(
            "note: cannot write to ./{usual} ({reason}); Ctrl-C would leave the checkpoint in {} ({way_out})",
            other.display()
        ),
        None => format!(
            "warning: Ctrl-C would lose everything: cannot write a checkpoint to ./{usual} ({reason}) or to any folder for \
             temporary files ({way_out})"
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
        let elsewhere = vec![bad.clone(), taken.clone(), good.clone()];
        let mut keeper =
            Keeper { folder: None, elsewhere: elsewhere.clone(), started, resumed: None, kept: None, last: None };
        assert_eq!(keeper.rescue(|folder| folder.write(&checkpoint)).unwrap(), good);
        assert_eq!(Checkpoint::read(&good).unwrap().step, 3);
        std::fs::remove_dir_all(&good).unwrap();
        // The checkpoint of an earlier run stays, except if this run resumed from it.
        keeper.started = SystemTime::now();
        assert_eq!(keeper.rescue(|folder| folder.write(&checkpoint)).unwrap(), good);
        keeper.resumed(&taken, 3);
        assert_eq!(keeper.rescue(|folder| folder.write(&checkpoint)).unwrap(), taken);
        let words = next_uses(&elsewhere).unwrap();
        assert!(words.contains("file/below") && words.contains("taken") && words.contains("--checkpoint"), "{words}");
        assert!(next_uses(&elsewhere[1..]).is_none());
        assert!(next_uses(&[bad.clone(), bad]).unwrap().contains("lose everything"));
    }

    #[test]
    fn the_folder_that_was_asked_for_is_no_other_place() {
        let places = |asked: Option<&str>, save: Option<&str>| elsewhere(asked.map(Path::new), save.map(Path::new));
        assert_eq!(places(None, None).len(), 3);
        assert_eq!(places(Some(USUAL), None).len(), 2);
        assert_eq!(places(None, Some("models/m.onnx"))[2], Path::new("models").join(USUAL));
        assert_eq!(places(None, Some("/dev/null")).len(), 3);
    }

    #[test]
    fn runs_with_the_same_process_number_have_different_places() {
        let folder = tempfile::tempdir().unwrap();
        for expected in ["run-1", "run-1-2", "run-1-3"] {
            let place = unused(folder.path(), "run-1");
            assert_eq!(place, folder.path().join(expected));
            std::fs::create_dir(place).unwrap();
        }
    }
}
