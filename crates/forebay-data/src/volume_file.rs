//! Volume files, NIfTI or NRRD, depending on their names.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::nifti::{self, VoxelStream};
use crate::nrrd;

/// Returns the name without its extension, or `None` if the file is not a volume.
pub(crate) fn stem(path: &Path) -> Option<&str> {
    nifti::stem(path).or_else(|| nrrd::stem(path))
}

/// Returns the name of the file's format.
pub(crate) fn format(path: &Path) -> &'static str {
    if nrrd::stem(path).is_some() { "NRRD" } else { "NIfTI" }
}

/// Returns the files of a volume: the file itself and, if that is only a header, the file of its voxels.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let voxels = nrrd::stem(path).and_then(|_| nrrd::voxel_file(path));
    [path.to_path_buf()].into_iter().chain(voxels).collect()
}

/// Opens a volume and reads its header. Voxels are read on demand.
///
/// # Errors
/// [`DataError`] naming the file.
pub(crate) fn open(path: &Path) -> Result<VoxelStream<Box<dyn Read>>, DataError> {
    match nrrd::stem(path) {
        Some(_) => nrrd::open(path),
        None => nifti::open(path),
    }
}
