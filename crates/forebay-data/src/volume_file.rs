//! Files of volumes: NIfTI or NRRD, by their names.

use std::io::Read;
use std::path::Path;

use crate::error::DataError;
use crate::nifti::{self, VoxelStream};
use crate::nrrd;

/// The name without its extension; none where it is no file of a volume.
pub(crate) fn stem(path: &Path) -> Option<&str> {
    nifti::stem(path).or_else(|| nrrd::stem(path))
}

/// What kind of file it is, in a word.
pub(crate) fn format(path: &Path) -> &'static str {
    if nrrd::stem(path).is_some() { "NRRD" } else { "NIfTI" }
}

/// Opens a volume and reads its header; the voxels come when they are asked for.
///
/// # Errors
/// [`DataError`] naming the file.
pub(crate) fn open(path: &Path) -> Result<VoxelStream<Box<dyn Read>>, DataError> {
    match nrrd::stem(path) {
        Some(_) => nrrd::open(path),
        None => nifti::open(path),
    }
}
