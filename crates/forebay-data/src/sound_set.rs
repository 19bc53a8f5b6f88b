//! Data sets of sounds: a folder with one subfolder of WAV and FLAC files per class, numbered in the order of their names.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_base::Tensor;

use crate::class_folders::{ClassFolders, class_folders, has_samples};
use crate::dataset::{Batch, Description, Requirements, Source, size_of_files};
use crate::digest::Digest;
use crate::error::DataError;
use crate::image_set::one_each;
use crate::sound_file::{Format, Sounds, format, is_sound};

/// Files with their classes.
struct SoundSet {
    kind: String,
    files: Vec<PathBuf>,
    labels: Tensor,
    /// The names of the classes, in order.
    classes: Vec<String>,
    sounds: Sounds,
    first: Format,
}

fn sounds(folder: &Path) -> Result<ClassFolders, DataError> {
    class_folders(folder, "sounds", is_sound)
}

/// Returns whether a folder has sounds in its subfolders.
///
/// # Errors
/// [`DataError`] if the folder cannot be listed.
pub(crate) fn is_sounds(folder: &Path) -> Result<bool, DataError> {
    has_samples(folder, is_sound)
}

/// Returns the format of the first sound that can be read.
///
/// # Errors
/// [`DataError`] naming the first sound if none can be read, or the folder if there are no sounds.
fn first_format(folder: &Path, files: &[PathBuf]) -> Result<Format, DataError> {
    let missing = || DataError::layout(folder, "no sounds found; expected them in subfolders, one per class");
    let first = format(files.first().ok_or_else(missing)?);
    first.or_else(|error| files[1..].iter().find_map(|path| format(path).ok()).ok_or(error))
}

/// Opens a folder of classes. Sounds are read on demand.
///
/// # Errors
/// [`DataError`] naming the folder if the model takes no sounds, or the first sound if no sound can be read.
pub(crate) fn open(folder: &Path, requirements: &Requirements) -> Result<Box<dyn Source>, DataError> {
    let ClassFolders { files, labels, classes, kind } = sounds(folder)?;
    let first = first_format(folder, &files)?;
    let sounds = Sounds::of(requirements, first.rate).map_err(|reason| DataError::layout(folder, reason))?;
    Ok(Box::new(SoundSet { kind, files, labels, classes, sounds, first }))
}

/// Returns the shape of a model's input that takes the first readable sound of a folder as it is.
///
/// # Errors
/// [`DataError`] naming the first sound if no sound can be read.
pub(crate) fn first_shape(folder: &Path) -> Result<Vec<u64>, DataError> {
    let first = first_format(folder, &sounds(folder)?.files)?;
    Ok(vec![first.channels.max(1).into(), first.length.unwrap_or(1).max(1)])
}

impl Source for SoundSet {
    fn description(&self) -> Result<Description, DataError> {
        let Format { rate, channels, bits, length } = self.first;
        let length = length.map_or("unknown length".to_owned(), |length| format!("{length} samples"));
        let shape = &self.sounds.input.sample_shape;
        let sound = format!(
            "sounds, the first with {channels} channel{} of {length}, {bits} bits, {rate} per second; cut or padded to {shape:?}",
            if channels == 1 { "" } else { "s" }
        );
        Ok(Description {
            kind: self.kind.clone(),
            tensors: vec![sound, "labels: int64[]".to_owned()],
            size_bytes: size_of_files(self.files.iter().map(PathBuf::as_path))?,
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        self.files.len() as u64
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let sounds = samples.iter().map(|&sample| self.sounds.read(&self.files[sample as usize]));
        let sounds = sounds.collect::<Result<Vec<_>, _>>()?;
        let stacked = Tensor::stack(&sounds.iter().collect::<Vec<_>>()).expect("samples of one shape");
        let inputs = BTreeMap::from([(self.sounds.input.name.clone(), stacked)]);
        Ok(Batch { inputs, labels: self.labels.rows(samples) })
    }

    fn classes(&mut self) -> Result<Option<Vec<i64>>, DataError> {
        Ok(one_each(&self.labels))
    }

    fn class_names(&self) -> Option<&[String]> {
        Some(&self.classes)
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        digest.add(self.labels.rows(&samples.clone().collect::<Vec<_>>()).bytes());
        let chosen = &self.files[samples.start as usize..samples.end as usize];
        digest.add_files(chosen.iter().map(PathBuf::as_path))
    }
}
