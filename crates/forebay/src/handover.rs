//! Storage for values while no plan has them: in memory, or in a file if plans spill to disk.
//!
//! A host budget counts what plans take. Between two plans, all parameters and state have to be somewhere. If there is a spill folder,
//! they are in an unnamed file in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_model::TensorType;
use forebay_model::tensor::{Contents, FileRange, Hold, SourceFile};
use memmap2::MmapMut;

use crate::error::Error;
use crate::pieces::give_persistent;
use crate::runner::Runner;

/// Values with fewer bytes in total stay in memory.
const STORED_BYTES_MIN: u64 = 1 << 20;

/// Smaller values are tensors, whose memory the allocator manages.
const HELD_BYTES_MIN: u64 = 64 << 10;

/// Values on their way out of a plan.
pub(crate) struct Handover {
    file: Option<HandoverFile>,
    values: BTreeMap<String, Contents>,
}

struct HandoverFile {
    folder: PathBuf,
    file: BufWriter<File>,
    size_bytes: u64,
    /// The values in the file by name: the type of each, and the offset at which it begins.
    stored: BTreeMap<String, (TensorType, u64)>,
}

impl Handover {
    /// Creates a handover for values of this total size, in memory or in a folder.
    ///
    /// # Errors
    /// Fails if no file can be created in the folder.
    pub(crate) fn new(folder: Option<&Path>, size_bytes: u64) -> Result<Handover, Error> {
        let file = match folder.filter(|_| size_bytes >= STORED_BYTES_MIN) {
            None => None,
            Some(folder) => {
                let file = tempfile::tempfile_in(folder).map_err(|error| refused(folder, error))?;
                let (folder, file) = (folder.to_owned(), BufWriter::with_capacity(1 << 20, file));
                Some(HandoverFile { folder, file, size_bytes: 0, stored: BTreeMap::new() })
            }
        };
        Ok(Handover { file, values: BTreeMap::new() })
    }

    /// Adds a value that a plan on a device has.
    ///
    /// # Errors
    /// Fails if the device reports an error or the file cannot be written.
    pub(crate) fn add(&mut self, name: &str, ty: &TensorType, runner: &Runner) -> Result<(), Error> {
        match &mut self.file {
            Some(to) => to.add(name, ty, runner),
            None => {
                self.values.insert(name.to_owned(), runner.read_persistent(name)?.into());
                Ok(())
            }
        }
    }

    /// Adds a value that is in no plan. It stays where it is.
    pub(crate) fn keep(&mut self, name: &str, value: &Contents) {
        self.values.insert(name.to_owned(), value.clone());
    }

    /// Returns the values, wherever they are.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn finish(mut self) -> Result<BTreeMap<String, Contents>, Error> {
        let Some(HandoverFile { folder, file, size_bytes, stored }) = self.file else { return Ok(self.values) };
        let file = file.into_inner().map_err(|error| refused(&folder, error.into_error()))?;
        let file = Arc::new(SourceFile::nameless(&folder, file, size_bytes));
        for (name, (ty, start)) in stored {
            let end = start + ty.checked_size_bytes().unwrap_or_default();
            let range = FileRange { file: file.clone(), bytes: start..end };
            let unfit =
                || refused(&folder, std::io::Error::other(format!("the size of '{name}' does not match its type")));
            let contents = Contents::stored(&name, ty, range).ok_or_else(unfit)?;
            self.values.insert(name, contents);
        }
        Ok(self.values)
    }
}

/// Copies a value of a plan to memory that returns to the system when the value is dropped. An allocator might keep what it is given
/// back.
///
/// # Errors
/// Fails if there is not enough memory or the device reports an error.
pub(crate) fn in_memory(name: &str, ty: &TensorType, runner: &Runner) -> Result<Contents, Error> {
    let size_bytes = ty.checked_size_bytes().unwrap_or(u64::MAX);
    if size_bytes < HELD_BYTES_MIN {
        return Ok(runner.read_persistent(name)?.into());
    }
    let refused = |reason: String| {
        let way_out = "--spill-dir names a folder for values that pass from one plan to the next";
        let reason = format!("not enough memory for the {size_bytes} bytes of '{name}': {reason} ({way_out})");
        Error::Option { reason }
    };
    forebay_limits::check(size_bytes, forebay_limits::Use::Private).map_err(|error| refused(error.to_string()))?;
    let mut memory = MmapMut::map_anon(size_bytes as usize).map_err(|error| refused(error.to_string()))?;
    let mut end = 0;
    give_persistent(runner, name, &mut |piece| {
        memory[end..end + piece.len()].copy_from_slice(piece);
        end += piece.len();
        Ok(())
    })?;
    let contents = Contents::held(ty.clone(), Arc::new(Held(memory)));
    contents.ok_or_else(|| refused("its size does not match its type".to_string()))
}

/// The memory of a value.
#[derive(Debug)]
struct Held(MmapMut);

impl Hold for Held {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl HandoverFile {
    fn add(&mut self, name: &str, ty: &TensorType, runner: &Runner) -> Result<(), Error> {
        let start = self.size_bytes;
        give_persistent(runner, name, &mut |piece| {
            self.size_bytes += piece.len() as u64;
            self.file.write_all(piece).map_err(|error| refused(&self.folder, error))
        })?;
        self.stored.insert(name.to_owned(), (ty.clone(), start));
        Ok(())
    }
}

fn refused(folder: &Path, error: std::io::Error) -> Error {
    Error::File { path: folder.to_owned(), action: "write parameters to", reason: error.to_string() }
}
