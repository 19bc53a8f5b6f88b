//! Checkpoints: everything that a training run needs to go on as if it had never stopped.
//!
//! A checkpoint is a directory with two files: the tensors (`tensors-STEP-CHECKSUM.safetensors`) and `checkpoint.json`,
//! which names that file with its length and checksum. A new checkpoint first writes its tensors under their own name and
//! then replaces `checkpoint.json` by a rename, so that there is one complete checkpoint at any moment, whenever the
//! process dies. One process at a time writes into a directory ([`CheckpointFolder`]).

mod folder;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay_base::DataType;
use forebay_model::Tensor;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::Value;

use crate::error::Error;

pub use folder::CheckpointFolder;

/// Version of the format.
const VERSION: u32 = 1;
/// The file that makes a directory a checkpoint.
const MANIFEST: &str = "checkpoint.json";
/// How often a checkpoint that is replaced while it is read is read again.
const READ_ATTEMPTS: usize = 20;
/// Longest manifest that is read: it holds no tensors, so a longer one is not ours.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// A training run between two steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// Seed of dropout: with the step, its whole random state.
    pub seed: u64,
    /// Position in the data, in the caller's own terms.
    pub position: Value,
    /// Parameters, optimizer state and running statistics, by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// The file that it was read from; empty for one that was not read.
    pub(crate) source: PathBuf,
}

/// `checkpoint.json`: the content, and a checksum over its text.
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
    tensors: TensorFile,
}

#[derive(Serialize, Deserialize)]
struct TensorFile {
    file: String,
    size_bytes: u64,
    crc32: u32,
}

impl Checkpoint {
    /// A checkpoint of these tensors, before the first step.
    pub fn new(tensors: BTreeMap<String, Tensor>) -> Checkpoint {
        Checkpoint { step: 0, seed: 0, position: Value::Null, tensors, source: PathBuf::new() }
    }

    /// Writes the checkpoint into a directory, which is made if need be. The checkpoint that was there stays complete
    /// until the new one is. While it is written, the directory is locked; [`CheckpointFolder`] keeps the lock between
    /// checkpoints.
    ///
    /// # Errors
    /// [`Error::File`] where the system refuses, with the file, or where another writer has the directory.
    pub fn write(&self, directory: impl AsRef<Path>) -> Result<(), Error> {
        CheckpointFolder::lock(directory)?.write(self)
    }

    /// When the checkpoint of a directory was written; none where there is none.
    pub fn written_at(directory: impl AsRef<Path>) -> Option<SystemTime> {
        fs::metadata(directory.as_ref().join(MANIFEST)).and_then(|manifest| manifest.modified()).ok()
    }

    /// Reads the checkpoint of a directory, also while another process writes there: what is read is one whole checkpoint.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file that is missing, cut short, changed, or of another format.
    pub fn read(directory: impl AsRef<Path>) -> Result<Checkpoint, Error> {
        let source = directory.as_ref().join(MANIFEST);
        let manifest = || read_content(&source).map_err(|reason| Error::Checkpoint { path: source.clone(), reason });
        let mut content = manifest()?;
        for _ in 0..READ_ATTEMPTS {
            let path = directory.as_ref().join(&content.tensors.file);
            let reason = match read_tensors(&path, &content.tensors) {
                Ok(tensors) => {
                    let Content { step, seed, position, .. } = content;
                    return Ok(Checkpoint { step, seed, position, tensors, source });
                }
                Err(reason) => reason,
            };
            // A writer may have put the next checkpoint in place of the one that the manifest named.
            let newer = manifest()?;
            if newer.tensors.file == content.tensors.file {
                return Err(Error::Checkpoint { path, reason });
            }
            content = newer;
        }
        let reason = format!("it was replaced {READ_ATTEMPTS} times while it was read; try again");
        Err(Error::Checkpoint { path: source, reason })
    }

    fn tensor_bytes(&self) -> Result<Vec<u8>, String> {
        let views: Vec<(&str, TensorView)> = self
            .tensors
            .iter()
            .map(|(name, tensor)| {
                let shape = tensor.shape().iter().map(|&size| size as usize).collect();
                let view = TensorView::new(dtype(tensor.data_type()), shape, tensor.bytes());
                view.map(|view| (name.as_str(), view)).map_err(|error| format!("'{name}': {error}"))
            })
            .collect::<Result<_, _>>()?;
        safetensors::serialize(views, None).map_err(|error| error.to_string())
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
        serde_json::from_str(&text).map_err(|error| format!("not a checkpoint, or cut short: {error}"))?;
    if manifest.version != VERSION {
        return Err(format!("format version {} (this program reads {VERSION})", manifest.version));
    }
    let crc32 = crc32fast::hash(manifest.content.get().as_bytes());
    if crc32 != manifest.crc32 {
        return Err(format!("checksum {crc32:08x} instead of {:08x}: the file was changed", manifest.crc32));
    }
    let content: Content = serde_json::from_str(manifest.content.get()).map_err(|error| error.to_string())?;
    let name = Path::new(&content.tensors.file);
    if name.file_name() != Some(name.as_os_str()) {
        return Err(format!("'{}' is not the name of a file in the checkpoint", content.tensors.file));
    }
    Ok(content)
}

fn read_tensors(path: &Path, expected: &TensorFile) -> Result<BTreeMap<String, Tensor>, String> {
    let size_bytes = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size_bytes != expected.size_bytes {
        return Err(format!("{size_bytes} bytes instead of {}: the file is incomplete", expected.size_bytes));
    }
    // The tensors are copies of the file's bytes.
    let bytes = forebay_limits::read(path, size_bytes, 2).map_err(|error| error.to_string())?;
    let crc32 = crc32fast::hash(&bytes);
    if crc32 != expected.crc32 {
        return Err(format!("checksum {crc32:08x} instead of {:08x}: the file was changed", expected.crc32));
    }
    let file = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
    file.iter()
        .map(|(name, view)| {
            let data_type =
                data_type(view.dtype()).ok_or_else(|| format!("'{name}' has the unknown type {:?}", view.dtype()))?;
            let shape: Vec<u64> = view.shape().iter().map(|&size| size as u64).collect();
            let tensor = Tensor::new(data_type, &shape, view.data())
                .ok_or_else(|| format!("'{name}' has {} bytes for shape {shape:?}", view.data().len()))?;
            Ok((name.to_string(), tensor))
        })
        .collect()
}

/// Data types with their names in the file format.
const TYPES: [(DataType, Dtype); 13] = [
    (DataType::Float64, Dtype::F64),
    (DataType::Float32, Dtype::F32),
    (DataType::Float16, Dtype::F16),
    (DataType::BFloat16, Dtype::BF16),
    (DataType::Int64, Dtype::I64),
    (DataType::Int32, Dtype::I32),
    (DataType::Int16, Dtype::I16),
    (DataType::Int8, Dtype::I8),
    (DataType::UInt64, Dtype::U64),
    (DataType::UInt32, Dtype::U32),
    (DataType::UInt16, Dtype::U16),
    (DataType::UInt8, Dtype::U8),
    (DataType::Bool, Dtype::BOOL),
];

fn dtype(data_type: DataType) -> Dtype {
    TYPES.iter().find(|(ours, _)| *ours == data_type).map(|(_, theirs)| *theirs).expect("every type is in the table")
}

fn data_type(dtype: Dtype) -> Option<DataType> {
    TYPES.iter().find(|(_, theirs)| *theirs == dtype).map(|(ours, _)| *ours)
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
        Checkpoint { step, seed: u64::MAX, position, tensors: tensors.into_iter().collect(), source: PathBuf::new() }
    }

    #[test]
    fn what_is_written_is_read_back_bit_for_bit() {
        let directory = directory("round-trip");
        for step in [1, 2] {
            checkpoint(step).write(&directory).unwrap();
            let read = Checkpoint::read(&directory).unwrap();
            assert_eq!((read.step, read.seed), (step, u64::MAX));
            assert_eq!(read.position, checkpoint(step).position);
            assert_eq!(read.tensors, checkpoint(step).tensors);
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
                // A flipped bit in the manifest's frame may only change the spelling of an ignored name; anything else fails.
                if let Ok(read) = Checkpoint::read(&directory) {
                    assert_eq!(read.tensors, checkpoint(1).tensors, "byte {index} of {}", path.display());
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
        // What a process that dies at each stage of writing leaves behind.
        let bytes = checkpoint(2).tensor_bytes().unwrap();
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

    /// Writes checkpoints until it is killed, in a process of its own. As a test by itself it does nothing.
    #[test]
    fn endless_writer() {
        let Some(directory) = std::env::var_os(WRITER) else { return };
        let start = Checkpoint::read(&directory).map_or(0, |checkpoint| checkpoint.step);
        for step in start + 1.. {
            let value = Tensor::from_f32(&[5000], &[step as f32; 5000]);
            let tensors = BTreeMap::from([("value".to_string(), value)]);
            let position = serde_json::json!(step);
            Checkpoint { step, seed: 0, position, tensors, source: PathBuf::new() }.write(&directory).unwrap();
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
            assert_eq!(read.tensors["value"].to_f32().unwrap(), [read.step as f32; 5000]);
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
                            assert!(read.step >= last && read.tensors == checkpoint(read.step).tensors);
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
        fs::remove_dir_all(directory).unwrap();
    }

    /// Names the directory that [`idle_writer`] locks.
    const HOLDER: &str = "FOREBAY_TEST_CHECKPOINT_HOLDER";

    /// Holds a directory until it is killed, in a process of its own. As a test by itself it does nothing.
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
