//! Data sets of patches of volumes: random ones for training, or tiles that cover each volume. Alternatively, samples are whole volumes,
//! each with its own sizes, which are read like patches.
//!
//! Volumes are read whole, and normalized to mean 0 and deviation 1 over all of their voxels. A volume that is smaller than a patch is
//! padded with zeros. The patch of a sample is a function of the seed, the epoch and the sample's index.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::random::SplitMix64;
use forebay_base::{DataType, Tensor};

use crate::boxes::cut_box;
use crate::convert::convert;
use crate::dataset::{
    Batch, Description, InputDescription, Requirements, RowSelection, Source, described, image_input, size_of_files,
};
use crate::digest::Digest;
use crate::error::DataError;
use crate::kept::Kept;
use crate::pairing::{self, Pair};
use crate::reading::Patches;
use crate::volume_file;
use crate::volume_set::{VolumeReader, first_headers};

/// Distinguishes the random numbers of patches from others of the same seed.
const PATCH: u64 = 0x7061_7463_6800;

/// A volume that is kept in memory.
struct Volume {
    image: Tensor,
    labels: Tensor,
}

struct PatchSet {
    pairs: Vec<Pair>,
    /// For each pair, the sizes of its axes.
    sizes: Vec<Vec<u64>>,
    /// For each pair, its first sample; then one past the last sample.
    firsts: Vec<u64>,
    input: InputDescription,
    input_scale: f64,
    channels: u64,
    /// The sizes of a patch.
    patch: Vec<u64>,
    /// The seed of random patches; `None` for tiles.
    seed: Option<u64>,
    /// Whether samples are whole volumes.
    is_whole: bool,
    kept: Kept<Volume>,
}

/// Opens a folder of pairs. A selection applies to volumes. Volumes are read on demand.
///
/// # Errors
/// [`DataError`] if files cannot be paired, the model does not take patches of this size, or the selection does not fit the volumes.
pub(crate) fn open(
    folder: &Path,
    requirements: &Requirements,
    patches: &Patches,
    selection: Option<RowSelection>,
) -> Result<Box<dyn Source>, DataError> {
    let layout = |reason| DataError::layout(folder, reason);
    let (input, channels, patch) =
        image_input(requirements, &[1, 2, 3], "a folder of pairs of volumes").map_err(layout)?;
    if requirements.label_shape != patch {
        let wanted = &requirements.label_shape;
        return Err(layout(format!(
            "the labels of a patch have its sizes {patch:?}, but the model expects {wanted:?} per sample"
        )));
    }
    if patches.sizes != patch {
        return Err(layout(format!("patches of {:?} were requested, but the model requires {patch:?}", patches.sizes)));
    }
    let mut pairs = pairing::pairs(folder)?;
    let selection = selection.unwrap_or_default();
    let range = selection.start as usize..selection.end.map_or(pairs.len(), |end| end as usize);
    if range.start >= range.end || range.end > pairs.len() {
        let reason = format!("volumes {}..{} were requested, but there are {}", range.start, range.end, pairs.len());
        return Err(DataError::Rows { data: folder.display().to_string(), reason });
    }
    pairs = pairs.drain(range).collect();
    let reader = VolumeReader { input: input.clone(), input_scale: 1.0, channels, spatial: patch.clone() };
    let (mut sizes, mut firsts) = (Vec::new(), vec![0]);
    for pair in &pairs {
        let stream = volume_file::open(&pair.labels)?;
        let (of_volume, _) = reader.grid(&stream.header().shape, &pair.labels)?;
        let count = match patches.per_volume {
            _ if patches.whole => 1,
            Some(count) => count,
            None => of_volume.iter().zip(&patch).map(|(&size, &patch)| size.div_ceil(patch)).product(),
        };
        firsts.push(firsts.last().copied().unwrap_or(0) + count);
        sizes.push(of_volume);
    }
    Ok(Box::new(PatchSet {
        pairs,
        sizes,
        firsts,
        input,
        input_scale: requirements.input_scale,
        channels,
        patch,
        seed: patches.per_volume.map(|_| patches.seed),
        is_whole: patches.whole,
        kept: Kept::new(),
    }))
}

/// Returns the start of the n-th of the tiles that cover an axis. They are evenly spaced, and the last one ends at the end of the axis.
fn tile(size: u64, patch: u64, number: u64) -> i64 {
    match size.div_ceil(patch) {
        // If the number of zeros is odd, there is one more after the volume than before it, as in windows and boxes.
        0 | 1 => -((patch.saturating_sub(size) / 2) as i64),
        count => (number * (size - patch) / (count - 1)) as i64,
    }
}

impl PatchSet {
    /// Returns the index of a sample's volume.
    fn pair_of(&self, sample: u64) -> usize {
        self.firsts.partition_point(|&first| first <= sample) - 1
    }

    /// Returns the start of a patch along each axis, which is before the volume if that is smaller than the patch.
    fn start(&self, sample: u64, epoch: u64) -> Vec<i64> {
        let pair = self.pair_of(sample);
        let axes = self.sizes[pair].iter().zip(&self.patch);
        if let Some(seed) = self.seed {
            let random = &mut SplitMix64::of(&[seed, epoch, sample, PATCH]);
            return axes
                .map(|(&size, &patch)| match size.checked_sub(patch) {
                    Some(most) => random.up_to(most) as i64,
                    None => tile(size, patch, 0),
                })
                .collect();
        }
        // The last axis varies fastest.
        let mut number = sample - self.firsts[pair];
        let mut start: Vec<i64> = Vec::new();
        for (&size, &patch) in axes.rev() {
            let count = size.div_ceil(patch);
            start.push(tile(size, patch, number % count));
            number /= count;
        }
        start.reverse();
        start
    }

    /// Returns the files of all volumes.
    fn files(&self) -> Vec<PathBuf> {
        self.pairs.iter().flat_map(Pair::files).collect()
    }

    fn volume(&mut self, number: usize) -> Result<Arc<Volume>, DataError> {
        if let Some(volume) = self.kept.get(number as u64) {
            return Ok(volume);
        }
        let (pair, spatial) = (&self.pairs[number], self.sizes[number].clone());
        let sample_shape = [&[self.channels], spatial.as_slice()].concat();
        let input = InputDescription { sample_shape, data_type: DataType::Float32, ..self.input.clone() };
        let reader = VolumeReader { input, input_scale: 1.0, channels: self.channels, spatial };
        let (image, labels) = reader.read(pair)?;
        let labels = convert(labels.clone(), DataType::UInt8, 1.0, "labels").unwrap_or(labels);
        let bytes = (image.bytes().len() + labels.bytes().len()) as u64;
        Ok(self.kept.keep(number as u64, Volume { image, labels }, bytes))
    }
}

impl Source for PatchSet {
    fn description(&self) -> Result<Description, DataError> {
        let (header, _) = first_headers(&self.pairs)?;
        let files = self.files();
        let format = volume_file::format(&self.pairs[0].images[0]);
        Ok(Description {
            kind: match (self.is_whole, self.seed) {
                (true, _) => format!("{} whole {format} volumes", self.pairs.len()),
                (false, Some(_)) => {
                    format!("random patches of {:?} of {} {format} volumes", self.patch, self.pairs.len())
                }
                (false, None) => format!("tiles of {:?} of {} {format} volumes", self.patch, self.pairs.len()),
            },
            tensors: vec![format!("{}, the first one", described("image", header.data_type, &header.shape))],
            size_bytes: size_of_files(files.iter().map(PathBuf::as_path))?,
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        self.firsts.last().copied().unwrap_or(0)
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        self.batch_of_epoch(samples, 0)
    }

    fn batch_of_epoch(&mut self, samples: &[u64], epoch: u64) -> Result<Batch, DataError> {
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        for &sample in samples {
            let pair = self.pair_of(sample);
            let volume = self.volume(pair)?;
            let (image, classes) = match self.is_whole {
                true if self.sizes[pair] != self.sizes[self.pair_of(samples[0])] => {
                    let origin = self.pairs[pair].images[0].display().to_string();
                    let expected =
                        "the sizes of the other volumes in the batch (a batch of one accepts any)".to_owned();
                    return Err(DataError::Shape { origin, found: self.sizes[pair].clone(), expected });
                }
                true => (volume.image.clone(), volume.labels.clone()),
                false => {
                    let start = self.start(sample, epoch);
                    (cut_box(&volume.image, &start, &self.patch), cut_box(&volume.labels, &start, &self.patch))
                }
            };
            images.push(convert(image, self.input.data_type, self.input_scale, "a patch")?);
            labels.push(convert(classes, DataType::Int64, 1.0, "labels")?);
        }
        let stacked = |tensors: &[Tensor]| Tensor::stack(&tensors.iter().collect::<Vec<_>>()).expect("one shape");
        Ok(Batch { inputs: BTreeMap::from([(self.input.name.clone(), stacked(&images))]), labels: stacked(&labels) })
    }

    fn sample_shapes(&self, sample: u64) -> Option<Vec<Vec<u64>>> {
        let sizes = self.is_whole.then(|| &self.sizes[self.pair_of(sample)])?;
        Some(vec![[&[self.channels], sizes.as_slice()].concat()])
    }

    fn keep_at_most(&mut self, bytes: u64, _count: u64) {
        let voxels = |sizes: &Vec<u64>| sizes.iter().fold(1, |product: u64, &size| product.saturating_mul(size));
        let all = self.sizes.iter().map(voxels).fold(0, u64::saturating_add).saturating_mul(4 * self.channels + 1);
        self.kept.keep_at_most(bytes, all);
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        [samples.start, samples.end].iter().for_each(|number| digest.add(&number.to_le_bytes()));
        digest.add_files(self.files().iter().map(PathBuf::as_path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{DataSet, LabelKind};
    use crate::nifti::samples;
    use crate::sampler::Sampler;

    /// Volumes in which each label is its own position, with 5 x 4 x 3 and with 2 x 4 x 8 voxels.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, shape) in [("a", [5, 4, 3]), ("b", [2, 4, 8i16])] {
            let voxels: Vec<u8> = (0..shape.iter().product::<i16>()).map(|voxel| 1 + voxel as u8).collect();
            for (word, voxels) in [("image", &voxels), ("label", &voxels)] {
                let path = folder.path().join(format!("{name}_{word}.nii"));
                std::fs::write(path, samples::file(2, &shape, voxels, 0.0, 0.0)).unwrap();
            }
        }
        folder
    }

    fn set(folder: &Path, patch: &[u64], per_volume: Option<u64>, rows: &str) -> Result<DataSet, String> {
        let mut patches = Patches::new(patch);
        (patches.per_volume, patches.seed) = (per_volume, 3);
        set_of(folder, patches, rows)
    }

    fn set_of(folder: &Path, patches: Patches, rows: &str) -> Result<DataSet, String> {
        let patch = patches.sizes.as_slice();
        let sample_shape = [&[1], patch].concat();
        let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape };
        let (labels, label_shape) = (LabelKind::Classes, patch.to_vec());
        let requirements = Requirements { inputs: vec![input], input_scale: 1.0, labels, label_shape };
        let source =
            open(folder, &requirements, &patches, RowSelection::parse(rows)).map_err(|error| error.to_string())?;
        DataSet::new(source, None, "D").map_err(|error| error.to_string())
    }

    #[test]
    fn of_an_odd_number_of_zeros_the_larger_part_follows() {
        assert_eq!([tile(3, 4, 0), tile(2, 5, 0), tile(1, 5, 0), tile(4, 4, 0)], [0, -1, -2, 0]);
    }

    #[test]
    fn tiles_hold_every_voxel_and_zeros_only_around_volumes() {
        let folder = folder();
        let mut tiles = set(folder.path(), &[3, 4, 2], None, "..").unwrap();
        // 2 x 1 x 2 tiles of the first volume, 1 x 1 x 4 of the second.
        assert_eq!(tiles.sample_count(), 8);
        let batch = tiles.batch(&(0..8).collect::<Vec<_>>()).unwrap();
        for (samples, voxels) in [(0..4, 60), (4..8, 64)] {
            let labels = samples.flat_map(|sample| batch.labels.rows(&[sample]).to_i64().unwrap());
            let mut seen: Vec<i64> = labels.filter(|&label| label != 0).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, (1..=voxels).collect::<Vec<i64>>());
        }
        let mut volumes = set_of(folder.path(), Patches::volumes(&[3, 4, 2]), "..").unwrap();
        assert_eq!((volumes.sample_count(), volumes.batch(&[1]).unwrap().labels.shape()), (2, &[1, 2, 4, 8][..]));
        assert!(volumes.batch(&[0, 1]).unwrap_err().to_string().contains("[2, 4, 8]"));
        let whole = set(folder.path(), &[5, 4, 3], None, "0..1").unwrap().batch(&[0]).unwrap();
        assert_eq!(volumes.batch(&[0]).unwrap(), whole);
        assert_eq!(
            whole.labels.rows(&[0]).to_i64().unwrap()[..4],
            [1, 21, 41, 6],
            "the first axis is fastest in the file"
        );
    }

    #[test]
    fn patches_are_a_function_of_seed_epoch_and_sample_with_their_labels() {
        let folder = folder();
        let mut patches = set(folder.path(), &[2, 2, 3], Some(10), "..").unwrap();
        assert_eq!(patches.sample_count(), 20);
        assert_eq!(patches.description().unwrap().kind, "random patches of [2, 2, 3] of 2 NIfTI volumes");
        let sampler = Sampler::new(20, 20, None);
        let samples: Vec<u64> = (0..20).collect();
        let mut epoch = |epoch: u64| patches.batch_of_step(&samples, &sampler, epoch).unwrap();
        let (first, second) = (epoch(0), epoch(1));
        assert!(first != second && first == epoch(0));
        let mut alone = set(folder.path(), &[2, 2, 3], Some(10), "..").unwrap();
        alone.keep_at_most(0);
        assert_eq!(alone.batch_of_step(&[7], &sampler, 1).unwrap().labels, second.labels.rows(&[7]));
        // Values follow their labels: those of a volume have mean (1 + count) / 2.
        for (rows, count) in [(0..10, 60.0f64), (10..20, 64.0)] {
            let deviation = ((count * count - 1.0) / 12.0).sqrt();
            for row in rows {
                let values = second.inputs["x"].rows(&[row]).to_f32().unwrap();
                for (value, label) in values.iter().zip(second.labels.rows(&[row]).to_i64().unwrap()) {
                    let wanted = (label as f64 - (1.0 + count) / 2.0) / deviation;
                    assert!(label > 0 && (f64::from(*value) - wanted).abs() < 1e-6);
                }
            }
        }
        assert!(
            set(folder.path(), &[2, 2, 3], Some(1), "1..3")
                .err()
                .unwrap()
                .contains("volumes 1..3 were requested, but there are 2")
        );
        assert_eq!(set(folder.path(), &[2, 2, 3], Some(4), "1..2").unwrap().sample_count(), 4);
    }
}
