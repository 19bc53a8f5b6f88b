//! External data: tensors whose contents are in files next to the model.
//!
//! A model names the locations of its data, and models can come from untrusted sources. The files must therefore be in the model's folder
//! or below, even after links are resolved: like ONNX's own checker, Forebay rejects a link in the folder to a file outside it. If the
//! model itself is a link, the folder that contains the actual file is allowed as well. This supports the caches of model hubs, which keep
//! model and data in a separate store and link to both.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::proto::TensorProto;
use super::{file_error, malformed};
use crate::error::ModelError;
use crate::tensor::{FileRange, SourceFile};

/// The folders that may contain external data.
pub(super) struct Folder {
    /// The folder that locations are relative to.
    base: PathBuf,
    /// The model's file, if there is one.
    model: Option<PathBuf>,
    /// The folders that may contain data, with links resolved. Determined when the first external data is named.
    allowed: OnceCell<Vec<PathBuf>>,
    /// The data files named so far, by path.
    files: RefCell<BTreeMap<PathBuf, Arc<SourceFile>>>,
    /// The number of them that are open.
    open_count: Arc<AtomicUsize>,
}

impl Folder {
    /// Creates a `Folder` for the given path.
    pub fn new(base: &Path) -> Folder {
        Folder {
            base: base.to_owned(),
            model: None,
            allowed: OnceCell::new(),
            files: RefCell::default(),
            open_count: Arc::default(),
        }
    }

    /// Creates a `Folder` for the one that contains a model's file.
    pub fn of_model(path: &Path) -> Folder {
        let base = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Folder { model: Some(path.to_owned()), ..Folder::new(base) }
    }

    fn allowed(&self) -> &[PathBuf] {
        self.allowed.get_or_init(|| {
            let own = self.base.canonicalize().ok();
            let model = self.model.as_ref().and_then(|path| path.canonicalize().ok());
            own.into_iter().chain(model.and_then(|path| path.parent().map(Path::to_owned))).collect()
        })
    }

    /// Returns the path of an external data file, with links resolved.
    fn resolve(&self, what: &str, location: &str) -> Result<PathBuf, ModelError> {
        let path = self.base.join(location);
        let resolved = path.canonicalize().map_err(|error| file_error(&path, &error))?;
        if self.allowed().iter().any(|folder| resolved.starts_with(folder)) {
            return Ok(resolved);
        }
        let reason = format!(
            "{what} is stored in '{location}', which leads to {}, outside the model's folder {}; copy the file into that folder",
            resolved.display(),
            self.base.display()
        );
        Err(malformed(reason))
    }

    /// Returns the data file with this path, without opening it.
    fn file(&self, path: &Path) -> Result<Arc<SourceFile>, ModelError> {
        if let Some(file) = self.files.borrow().get(path) {
            return Ok(file.clone());
        }
        let metadata = std::fs::metadata(path).map_err(|error| file_error(path, &error))?;
        if !metadata.is_file() {
            let reason = "cannot read external data: not a regular file".to_string();
            return Err(ModelError::File { path: path.display().to_string(), reason });
        }
        let file = Arc::new(SourceFile::closed(path, &metadata, self.open_count.clone()));
        self.files.borrow_mut().insert(path.to_owned(), file.clone());
        Ok(file)
    }
}

/// Returns the range of an external data file that holds a tensor. The file is not opened.
pub(super) fn locate(
    proto: &TensorProto,
    what: &str,
    size_bytes: u64,
    folder: Option<&Folder>,
) -> Result<FileRange, ModelError> {
    let entry = |key: &str| proto.external_data.iter().find(|entry| entry.key() == key).map(|entry| entry.value());
    let number = |key: &str| match entry(key) {
        None => Ok(None),
        Some(text) => text
            .parse::<u64>()
            .map(Some)
            .map_err(|_| malformed(format!("{what}: external {key} '{text}' is not a number"))),
    };
    let location =
        entry("location").ok_or_else(|| malformed(format!("{what} does not name its external data file")))?;
    let offset_bytes = number("offset")?.unwrap_or(0);
    let length_bytes = number("length")?.unwrap_or(size_bytes);
    if length_bytes != size_bytes {
        let reason = format!("{what} needs {size_bytes} bytes, but its part of '{location}' has {length_bytes}");
        return Err(malformed(reason));
    }
    let (path, folder) = external_path(what, location, folder)?;
    let file = folder.file(&path)?;
    match offset_bytes.checked_add(length_bytes).filter(|&end| end <= file.size_bytes()) {
        Some(end) => Ok(FileRange { file, bytes: offset_bytes..end }),
        None => {
            let reason = format!(
                "{what} is stored at bytes {offset_bytes} to {offset_bytes} + {length_bytes}, but the file has {} bytes",
                file.size_bytes()
            );
            Err(ModelError::File { path: path.display().to_string(), reason })
        }
    }
}

/// Returns the path of an external data file, which must be in the model's directory or below, and that directory.
fn external_path<'a>(
    what: &str,
    location: &str,
    folder: Option<&'a Folder>,
) -> Result<(PathBuf, &'a Folder), ModelError> {
    let mut components = Path::new(location).components();
    let inside = components.all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if location.is_empty() || !inside {
        let reason = format!("{what} is stored in the file '{location}', outside the model's folder");
        return Err(malformed(reason));
    }
    match folder {
        Some(folder) => Ok((folder.resolve(what, location)?, folder)),
        None => Err(ModelError::Request {
            reason: format!(
                "{what} is stored in the file '{location}'; specify its folder or read the model from its file"
            ),
        }),
    }
}
