//! Shards: slices of parameters and state, collected from all processes when a checkpoint or a model is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_device::communicator::{receive, send};
use forebay_model::TensorType;
use forebay_model::tensor::{Contents, FileRange, SourceFile};

use crate::error::Error;
use crate::pieces::Give;
use crate::process_group::ProcessGroup;

/// Slices are sent in pieces of this many bytes.
const PIECE_BYTES: usize = 1 << 20;

/// A value of which each process keeps a slice.
#[derive(Clone, Debug, PartialEq)]
struct Sharded {
    /// The type of the whole.
    ty: TensorType,
    /// The elements of each process's slice.
    slices: Vec<Range<u64>>,
}

/// The values that are sharded among the processes of a run.
#[derive(Default)]
pub(crate) struct Shards {
    group: Option<ProcessGroup>,
    sharded: BTreeMap<String, Sharded>,
    /// The whole values, if this process has collected them since the last step.
    collected: Option<BTreeMap<String, Contents>>,
}

impl Shards {
    /// Creates the shards of a group; `sharded` yields the name, the type of the whole, and all slices of each value.
    pub(crate) fn new(
        group: Option<ProcessGroup>,
        sharded: impl Iterator<Item = (String, TensorType, Vec<Range<u64>>)>,
    ) -> Shards {
        let sharded = sharded.map(|(name, ty, slices)| (name, Sharded { ty, slices })).collect();
        Shards { group, sharded, collected: None }
    }

    /// Returns the names of the sharded values.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.sharded.keys()
    }

    /// Returns `true` if each process keeps a slice of this value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.sharded.contains_key(name)
    }

    /// Returns the type of the whole of a sharded value.
    pub(crate) fn whole_type(&self, name: &str) -> Option<&TensorType> {
        Some(&self.sharded.get(name)?.ty)
    }

    /// Returns what this process keeps of a whole value.
    pub(crate) fn own(&self, name: &str, whole: &Contents) -> Contents {
        let rank = self.group.as_ref().map_or(0, ProcessGroup::rank);
        match self.sharded.get(name).and_then(|sharded| sharded.slices.get(rank)) {
            Some(slice) => whole.slice(slice.clone()),
            None => whole.clone(),
        }
    }

    /// Returns the whole of a sharded value.
    ///
    /// # Errors
    /// Returns [`Error::Option`] if it was not collected since the last step.
    pub(crate) fn whole(&self, name: &str) -> Result<&Contents, Error> {
        let collected = self.collected.as_ref().and_then(|collected| collected.get(name));
        collected.ok_or_else(|| Error::Option {
            reason: format!(
                "each process keeps a slice of '{name}'; all of them must call Trainer::collect_shards first, after which process 0 has \
                 the whole tensor"
            ),
        })
    }

    /// Drops the collected values, because steps change them.
    pub(crate) fn forget(&mut self) {
        self.collected = None;
    }

    /// Collects the slices of all processes in process 0, in a file without a name. All processes call this at once; `give` passes on a
    /// slice of this process.
    ///
    /// # Errors
    /// Fails if `give` or another process reports an error, or if a file cannot be written.
    pub(crate) fn collect(&mut self, folder: Option<&Path>, give: Give) -> Result<(), Error> {
        let Some(group) = self.group.clone().filter(|_| !self.sharded.is_empty() && self.collected.is_none()) else {
            return Ok(());
        };
        let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
        let lost = |reason: String| Error::Option {
            reason: format!("cannot collect the slices of the other processes: {reason}"),
        };
        let communicator = &**group.communicator();
        if group.rank() > 0 {
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            for name in self.sharded.keys() {
                give(name, &mut |mut bytes| {
                    while !bytes.is_empty() {
                        let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - piece.len()));
                        piece.extend_from_slice(now);
                        bytes = later;
                        if piece.len() == PIECE_BYTES {
                            send(communicator, 0, std::mem::take(&mut piece)).map_err(lost)?;
                        }
                    }
                    Ok(())
                })?;
                if !piece.is_empty() {
                    send(communicator, 0, std::mem::take(&mut piece)).map_err(lost)?;
                }
            }
            self.collected = Some(BTreeMap::new());
            return Ok(());
        }
        let mut file = Collecting::new(folder)?;
        for (name, Sharded { ty, slices }) in &self.sharded {
            let start = file.size_bytes;
            give(name, &mut |bytes| file.add(bytes))?;
            for (rank, slice) in slices.iter().enumerate().skip(1) {
                let mut left = ((slice.end - slice.start) * ty.data_type.size_bytes()) as usize;
                while left > 0 {
                    let size = left.min(PIECE_BYTES);
                    file.add(&receive(communicator, rank, size).map_err(lost)?)?;
                    left -= size;
                }
            }
            file.values.push((name.clone(), ty.clone(), start..file.size_bytes));
        }
        self.collected = Some(file.finish()?);
        Ok(())
    }
}

/// A file without a name in which values are collected.
struct Collecting {
    folder: PathBuf,
    file: BufWriter<File>,
    size_bytes: u64,
    values: Vec<(String, TensorType, Range<u64>)>,
}

impl Collecting {
    fn new(folder: PathBuf) -> Result<Collecting, Error> {
        let file = tempfile::tempfile_in(&folder).map_err(|error| refused(&folder, error))?;
        Ok(Collecting { folder, file: BufWriter::with_capacity(PIECE_BYTES, file), size_bytes: 0, values: Vec::new() })
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.size_bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|error| refused(&self.folder, error))
    }

    fn finish(self) -> Result<BTreeMap<String, Contents>, Error> {
        let Collecting { folder, file, size_bytes, values } = self;
        let file = file.into_inner().map_err(|error| refused(&folder, error.into_error()))?;
        let file = Arc::new(SourceFile::nameless(&folder, file, size_bytes));
        let contents = values.into_iter().map(|(name, ty, bytes)| {
            let range = FileRange { file: file.clone(), bytes };
            let unfit =
                || refused(&folder, io::Error::other(format!("the slices of '{name}' do not add up to its size")));
            Ok((name.clone(), Contents::stored(&name, ty, range).ok_or_else(unfit)?))
        });
        contents.collect()
    }
}

fn refused(folder: &Path, error: io::Error) -> Error {
    Error::File { path: folder.to_owned(), action: "collect slices in", reason: error.to_string() }
}
