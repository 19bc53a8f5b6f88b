//! Checkpoints: everything that a training run needs to continue as if it had never stopped.
//!
//! A checkpoint is a directory with two files: the tensors (`tensors-STEP-CHECKSUM.safetensors`) and `checkpoint.json`, which names that
//! file with its length and checksum. A new checkpoint first writes its tensors under a name of their own, and then replaces
//! `checkpoint.json` by a rename, so that there is a complete checkpoint at every moment, whenever the process dies. Only one process at
//! a time writes into a directory ([`CheckpointFolder`]).
//!
//! Tensors are written and read in pieces: a checkpoint that was read only records where they are in the file.

mod folder;
mod tensor_file;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay_model::tensor::Contents;
use forebay_model::{Tensor, TensorType};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::model::Model;
use crate::progress::Progress;

pub use folder::CheckpointFolder;
pub(crate) use folder::Position;

/// Version of the format.
const VERSION: u32 = 1;
/// The file that makes a directory a checkpoint.
const MANIFEST: &str = "checkpoint.json";
/// How many times a read is attempted if the checkpoint is replaced meanwhile.
const READ_ATTEMPTS: usize = 20;
/// The longest manifest that is read, in bytes. A manifest holds no tensors, so a longer file is not ours.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// The state of a training run between two steps.
///
/// A checkpoint that was read from a directory keeps its tensor file open and reads tensors when they are needed; restoring a trainer
/// copies them into place in pieces. A checkpoint from [`Trainer::checkpoint`](crate::Trainer::checkpoint) holds its tensors in memory,
/// or in an unnamed file if the trainer has a spill folder.
///
/// ```
/// use forebay::{Checkpoint, JsonValue, Model, Tensor, Trainer};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let mut trainer = Trainer::builder(&model).build()?;
/// # let (x, labels) = (Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), Tensor::from_i64(&[50], &[7; 50]));
/// # let batch = std::collections::BTreeMap::from([("x".to_string(), x)]);
/// trainer.step(batch, labels)?;
///
/// let folder = std::env::temp_dir().join(format!("forebay-checkpoint-example-{}", std::process::id()));
/// trainer.save_checkpoint(&folder, &JsonValue::from("after the first batch"))?;
/// let checkpoint = Checkpoint::read(&folder)?;
/// let mut another = Trainer::builder(&model).device_memory("50%".parse()?).build()?;
/// another.restore(&checkpoint)?;
/// assert_eq!((another.step_count(), checkpoint.position.as_str()), (1, Some("after the first batch")));
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The number of steps done.
    pub step: u64,
    /// The seed of dropout. Together with the step, it is the entire random state of dropout.
    pub seed: u64,
    /// The position in the data, in the caller's own terms.
    pub position: Value,
    /// Other state that steps change. `None` if it is not known, in which case it stays as it is.
    pub(crate) progress: Option<Progress>,
    /// The numerator of the adapters' scale; `None` if there are no adapters or an earlier version wrote the checkpoint.
    pub(crate) alpha: Option<f32>,
    /// Parameters, optimizer state and running statistics, by name.
    pub(crate) contents: BTreeMap<String, Contents>,
    /// The file that the checkpoint was read from; empty if it was not read.
    pub(crate) source: PathBuf,
}

/// `checkpoint.json`: the content and a checksum of its text.
#[derive(Serialize, Deserialize)]
struct Manifest {
    format: String,
    version: u32,
    crc32: u32,
    content: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    step: u64,
    seed: u64,
    position: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alpha: Option<f32>,
    tensors: TensorFile,
}

#[derive(Serialize, Deserialize)]
struct TensorFile {
    file: String,
    size_bytes: u64,
    crc32: u32,
}

impl Checkpoint {
    /// Creates a checkpoint of these tensors, before the first step.
    pub fn new(tensors: BTreeMap<String, Tensor>) -> Checkpoint {
        let contents = tensors.into_iter().map(|(name, tensor)| (name, tensor.into())).collect();
        let position = Value::Null;
        Checkpoint { step: 0, seed: 0, position, progress: None, alpha: None, contents, source: PathBuf::new() }
    }

    /// Returns the types of all tensors, by name.
    pub fn types(&self) -> BTreeMap<String, TensorType> {
        self.contents.iter().map(|(name, contents)| (name.clone(), contents.ty().clone())).collect()
    }

    /// Returns a parameter, optimizer state or running statistics, or `None` if there is no tensor of this name.
    ///
    /// # Errors
    /// Fails if the file cannot be read or has been changed since.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor>, Error> {
        Ok(self.contents.get(name).map(Contents::to_tensor).transpose()?)
    }

    /// Returns all tensors by name, in memory at once. [`Checkpoint::tensor`] returns one at a time.
    ///
    /// # Errors
    /// Same as [`Checkpoint::tensor`].
    pub fn tensors(&self) -> Result<BTreeMap<String, Tensor>, Error> {
        let tensor = |(name, contents): (&String, &Contents)| Ok((name.clone(), contents.to_tensor()?));
        self.contents.iter().map(tensor).collect()
    }

    /// Writes the checkpoint into a directory, creating it if necessary. The previous checkpoint stays complete until the new one is. The
    /// directory is locked during the write; [`CheckpointFolder`] keeps the lock between checkpoints.
    ///
    /// # Errors
    /// Fails with [`Error::File`] if the system reports an error for a file, or if another writer holds the directory.
    pub fn write(&self, directory: impl AsRef<Path>) -> Result<(), Error> {
        CheckpointFolder::lock(directory)?.write(self)
    }

    /// Returns when the checkpoint in a directory was written, or `None` if there is none.
    pub fn written_at(directory: impl AsRef<Path>) -> Option<SystemTime> {
        fs::metadata(directory.as_ref().join(MANIFEST)).and_then(|manifest| manifest.modified()).ok()
    }

    /// Returns the number of bytes that the tensors of the checkpoints in a directory take; 0 if there are none. A kept checkpoint that is
    /// also the current one counts once.
    pub fn present_bytes(directory: impl AsRef<Path>) -> u64 {
        folder::present_bytes(directory.as_ref())
    }

    /// Reads the checkpoint in a directory, even while another process writes there: the result is always one complete checkpoint.
    ///
    /// # Errors
    /// Fails with [`Error::Checkpoint`], which names the file, if one is missing, truncated, changed, or in another format.
    pub fn read(directory: impl AsRef<Path>) -> Result<Checkpoint, Error> {
        let source = directory.as_ref().join(MANIFEST);
        let manifest = || read_content(&source).map_err(|reason| Error::Checkpoint { path: source.clone(), reason });
        let mut content = manifest()?;
        for _ in 0..READ_ATTEMPTS {
            let path = directory.as_ref().join(&content.tensors.file);
            let reason = match tensor_file::read(&path, &content.tensors) {
                Ok(contents) => {
                    let Content { step, seed, position, progress, alpha, .. } = content;
                    return Ok(Checkpoint { step, seed, position, progress, alpha, contents, source });
                }
                Err(reason) => reason,
            };
            // A writer may have replaced the checkpoint that the manifest named with the next one.
            let newer = manifest()?;
            if newer.tensors.file == content.tensors.file {
                return Err(Error::Checkpoint { path, reason });
            }
            content = newer;
        }
        let reason = format!("replaced {READ_ATTEMPTS} times while being read; try again");
        Err(Error::Checkpoint { path: source, reason })
    }

    /// Checks that the model's adapters have the scale of those in this checkpoint, as far as that is known. The tensors do not show it.
    ///
    /// # Errors
    /// Returns the reason if they do not.
    pub(crate) fn check_alpha(&self, model: &Model) -> Result<(), String> {
        match self.alpha.zip(model.alpha()) {
            Some((then, now)) if then != now => Err(format!(
                "its adapters were trained with alpha {then}, but those of the model have alpha {now}; give them alpha \
                 {then} (--alpha {then})"
            )),
            _ => Ok(()),
        }
    }
}

fn manifest_text(content: &Content) -> serde_json::Result<String> {
    let content = serde_json::value::to_raw_value(content)?;
    let manifest = Manifest {
        format: "forebay checkpoint".to_string(),
        version: VERSION,
        crc32: crc32fast::hash(content.get().as_bytes()),
        content,
    };
    serde_json::to_string(&manifest)
}

fn read_content(path: &Path) -> Result<Content, String> {
    let text = forebay_limits::read_text(path, MANIFEST_BYTES_MAX).map_err(|error| error.to_string())?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|error| format!("not a checkpoint, or truncated: {error}"))?;
    if manifest.version != VERSION {
        return Err(format!(
            "format version {} is not supported; this program reads version {VERSION}",
            manifest.version
        ));
    }
    let crc32 = crc32fast::hash(manifest.content.get().as_bytes());
    if crc32 != manifest.crc32 {
        return Err(format!("the file was changed; expected checksum {:08x}, found {crc32:08x}", manifest.crc32));
    }
    let content: Content = serde_json::from_str(manifest.content.get()).map_err(|error| error.to_string())?;
    let name = Path::new(&content.tensors.file);
    if name.file_name() != Some(name.as_os_str()) {
        return Err(format!("'{}' is not the name of a file in the checkpoint", content.tensors.file));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-checkpoint-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn checkpoint(step: u64) -> Checkpoint {
        let tensors = [
            ("weight".to_string(), Tensor::from_f32(&[2, 2], &[1.0, -0.0, f32::NAN, step as f32])),
            ("step".to_string(), Tensor::from_i64(&[], &[step as i64])),
        ];
        let position = serde_json::json!({ "epoch": 3, "shuffle": [2, 0, 1], "fraction": 0.1 });
        Checkpoint { step, seed: u64::MAX, position, ..Checkpoint::new(tensors.into_iter().collect()) }
    }

    #[test]
    fn what_is_written_is_read_back_bit_for_bit() {
        let directory = directory("round-trip");
        for step in [1, 2] {
            checkpoint(step).write(&directory).unwrap();
            let read = Checkpoint::read(&directory).unwrap();
            assert_eq!((read.step, read.seed), (step, u64::MAX));
            assert_eq!(read.position, checkpoint(step).position);
            assert_eq!(read.tensors().unwrap(), checkpoint(step).tensors().unwrap());
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "the first checkpoint's tensors are gone");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let directory = directory("damage");
        checkpoint(1).write(&directory).unwrap();
        let files: Vec<PathBuf> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        for path in files {
            let good = fs::read(&path).unwrap();
            for index in (0..good.len()).step_by(7) {
                let mut bad = good.clone();
                bad[index] ^= 1;
                fs::write(&path, &bad).unwrap();
                // A flipped bit in the manifest's frame can at most change the spelling of an ignored name; anything else fails.
                if let Ok(read) = Checkpoint::read(&directory) {
                    let tensors = (read.tensors().unwrap(), checkpoint(1).tensors().unwrap());
                    assert_eq!(tensors.0, tensors.1, "byte {index} of {}", path.display());
                    assert_eq!((read.step, read.position), (1, checkpoint(1).position));
                }
            }
            for length in [0, 1, good.len() / 2, good.len() - 1] {
                fs::write(&path, &good[..length]).unwrap();
                let error = Checkpoint::read(&directory).expect_err("cut short").to_string();
                assert!(error.contains(&path.display().to_string()), "{error}");
            }
            fs::remove_file(&path).unwrap();
            let error = Checkpoint::read(&directory).expect_err("missing").to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
            fs::write(&path, &good).unwrap();
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_crash_before_the_manifest_leaves_the_previous_checkpoint() {
        let directory = directory("crash");
        checkpoint(1).write(&directory).unwrap();
        // The files that a process leaves behind if it dies, for each stage of writing.
        let elsewhere = directory.join("elsewhere");
        checkpoint(2).write(&elsewhere).unwrap();
        let written = read_content(&elsewhere.join(MANIFEST)).unwrap().tensors.file;
        let bytes = fs::read(elsewhere.join(written)).unwrap();
        fs::remove_dir_all(elsewhere).unwrap();
        for (name, part) in [
            ("tensors-2-00000000.safetensors.x1.partial", &bytes[..bytes.len() / 2]),
            ("tensors-2-00000000.safetensors", &bytes[..]),
            ("checkpoint.json.x1.partial", &b"{"[..]),
            (".forebay.lock", &b"1\n"[..]),
        ] {
            fs::write(directory.join(name), part).unwrap();
            assert_eq!(Checkpoint::read(&directory).unwrap().step, 1, "after {name}");
        }
        checkpoint(3).write(&directory).unwrap();
        assert_eq!(Checkpoint::read(&directory).unwrap().step, 3);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "what others left is gone");
        fs::remove_dir_all(directory).unwrap();
    }

    /// Names the directory in which [`endless_writer`] writes.
    const WRITER: &str = "FOREBAY_TEST_CHECKPOINT_WRITER";

    /// Writes checkpoints in a separate process until it is killed. Run as an ordinary test, it does nothing.
    #[test]
    fn endless_writer() {
        let Some(directory) = std::env::var_os(WRITER) else { return };
        let start = Checkpoint::read(&directory).map_or(0, |checkpoint| checkpoint.step);
        for step in start + 1.. {
            let value = Tensor::from_f32(&[5000], &[step as f32; 5000]);
            let tensors = BTreeMap::from([("value".to_string(), value)]);
            let position = serde_json::json!(step);
            Checkpoint { step, position, ..Checkpoint::new(tensors) }.write(&directory).unwrap();
        }
    }

    #[test]
    fn a_killed_writer_leaves_a_whole_checkpoint() {
        let directory = directory("killed");
        let program = std::env::current_exe().unwrap();
        let mut last = 0;
        for round in 0..6u64 {
            let mut writer = std::process::Command::new(&program)
                .args(["--exact", "checkpoint::tests::endless_writer"])
                .env(WRITER, &directory)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let progressed = || Checkpoint::read(&directory).is_ok_and(|checkpoint| checkpoint.step > last);
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while !progressed() && std::time::Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            std::thread::sleep(std::time::Duration::from_micros(700 * round));
            writer.kill().unwrap();
            writer.wait().unwrap();
            let read = Checkpoint::read(&directory).unwrap();
            assert!(read.step > last, "round {round} made progress");
            assert_eq!(read.position, serde_json::json!(read.step));
            assert_eq!(read.tensor("value").unwrap().unwrap().to_f32().unwrap(), [read.step as f32; 5000]);
            last = read.step;
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn readers_see_whole_checkpoints_while_others_are_written() {
        let directory = directory("readers");
        checkpoint(1).write(&directory).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut last = 0;
                        while !done.load(std::sync::atomic::Ordering::Relaxed) {
                            let read = Checkpoint::read(&directory).unwrap();
                            let tensors = (read.tensors().unwrap(), checkpoint(read.step).tensors().unwrap());
                            assert!(read.step >= last && tensors.0 == tensors.1);
                            last = read.step;
                        }
                    })
                })
                .collect();
            let folder = CheckpointFolder::lock(&directory).unwrap();
            (2..150).for_each(|step| folder.write(&checkpoint(step)).unwrap());
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_directory_has_one_writer_until_that_one_is_gone() {
        let directory = directory("locked");
        let mut writer = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "checkpoint::tests::idle_writer"])
            .env(HOLDER, &directory)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while Checkpoint::read(&directory).is_err() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let error = checkpoint(2).write(&directory).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", writer.id())), "{error}");
        assert!(error.contains(&directory.display().to_string()) && error.contains("another folder"), "{error}");
        assert_eq!(Checkpoint::read(&directory).unwrap().step, 1);
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert!(directory.join(".forebay.lock").exists(), "killed, it cannot have tidied up");
        checkpoint(2).write(&directory).unwrap();
        assert_eq!(Checkpoint::read(&directory).unwrap().step, 2);
        let _held = CheckpointFolder::lock(&directory).unwrap();
        let error = checkpoint(3).write(&directory).unwrap_err().to_string();
        assert!(error.contains("release the trainer that does"), "the way out within a process: {error}");
        fs::remove_dir_all(directory).unwrap();
    }

    /// Names the directory that [`idle_writer`] locks.
    const HOLDER: &str = "FOREBAY_TEST_CHECKPOINT_HOLDER";

    /// Holds a directory in a separate process until it is killed. Run as an ordinary test, it does nothing.
    #[test]
    fn idle_writer() {
        let Some(directory) = std::env::var_os(HOLDER) else { return };
        let folder = CheckpointFolder::lock(directory).unwrap();
        folder.write(&checkpoint(1)).unwrap();
        std::thread::sleep(std::time::Duration::from_secs(60));
    }

    #[test]
    fn an_unwritable_directory_is_named() {
        let path = directory("unwritable");
        fs::write(&path, b"a file, not a directory").unwrap();
        let error = checkpoint(1).write(&path).expect_err("not a directory").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        fs::remove_file(path).unwrap();
    }
}
