//! Data sets of pairs of volumes, NIfTI or NRRD. Images are cropped or padded to the model's input and normalized over that box; labels are
//! cropped or padded in the same way. [`crate::pairing`] determines which files belong together.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::DataType;

use crate::convert::convert;
use crate::dataset::{
    Batch, Description, InputDescription, Requirements, Source, described, image_input, size_of_files,
};
use crate::digest::Digest;
use crate::error::DataError;
use crate::kept::Kept;
use crate::nifti::Header;
use crate::pairing::{self, Pair};
use crate::volume::Boxed;
use crate::volume_file;
use forebay_base::Tensor;

/// A sample that is kept in memory.
struct Sample {
    image: Tensor,
    labels: Labels,
}

/// The labels of a sample, in as few bytes as they need.
enum Labels {
    /// One byte for each label.
    Bytes(Vec<u8>),
    /// Labels in the form that batches have.
    Whole(Tensor),
}

impl Labels {
    fn new(labels: Tensor) -> Labels {
        let bytes = labels.integers().and_then(|values| values.map(|value| u8::try_from(value).ok()).collect());
        bytes.map_or_else(|| Labels::Whole(labels), Labels::Bytes)
    }

    fn size_bytes(&self) -> u64 {
        match self {
            Labels::Bytes(bytes) => bytes.len() as u64,
            Labels::Whole(labels) => labels.bytes().len() as u64,
        }
    }
}

/// The reader of a pair.
pub(crate) struct VolumeReader {
    /// The model's input, with the sizes of the box to read.
    pub(crate) input: InputDescription,
    /// The factor by which its values are multiplied.
    pub(crate) input_scale: f64,
    /// The number of its channels.
    pub(crate) channels: u64,
    /// The sizes of the box.
    pub(crate) spatial: Vec<u64>,
}

/// A folder of pairs.
struct VolumeSet {
    pairs: Vec<Pair>,
    reader: VolumeReader,
    kept: Kept<Sample>,
}

/// Opens a folder of pairs. Volumes are read on demand.
///
/// # Errors
/// [`DataError::Layout`] if files cannot be paired, or the model does not take volumes.
pub fn open(folder: &Path, requirements: &Requirements) -> Result<Box<dyn Source>, DataError> {
    let (input, channels, spatial) = image_input(requirements, &[1, 2, 3], "a folder of pairs of volumes")
        .map_err(|reason| DataError::layout(folder, reason))?;
    if requirements.label_shape != spatial {
        let reason = format!(
            "the labels of a pair of volumes have the image's sizes {spatial:?}, but the model expects {:?} per sample",
            requirements.label_shape
        );
        return Err(DataError::layout(folder, reason));
    }
    let pairs = pairing::pairs(folder)?;
    let input_scale = requirements.input_scale;
    let reader = VolumeReader { input, input_scale, channels, spatial };
    Ok(Box::new(VolumeSet { pairs, reader, kept: Kept::new() }))
}

impl VolumeReader {
    /// Reads the image and the labels of a sample.
    ///
    /// # Errors
    /// [`DataError`] naming the file if it is damaged, or has other sizes or another number of channels.
    pub(crate) fn read(&self, pair: &Pair) -> Result<(Tensor, Tensor), DataError> {
        // Headers are read first, so that misfits are found before any voxel is read.
        let mut files = Vec::new();
        let mut grid: Option<Vec<u64>> = None;
        for path in &pair.images {
            let stream = volume_file::open(path)?;
            let (sizes, channels) = self.grid(&stream.header().shape, path)?;
            if grid.as_ref().is_some_and(|grid| *grid != sizes) {
                let expected = format!("the sizes of the other channels, {:?}", grid.unwrap_or_default());
                return Err(DataError::Shape { origin: path.display().to_string(), found: sizes, expected });
            }
            files.push((stream, channels));
            grid = Some(sizes);
        }
        let grid = grid.unwrap_or_default();
        let channels = files.iter().map(|(_, channels)| *channels as u64).sum();
        let origin = pair.images[0].display().to_string();
        if channels != self.channels {
            let expected = format!("{} channels, to match input {}", self.channels, self.input.name);
            return Err(DataError::Shape { origin, found: vec![channels], expected });
        }
        let mut bytes = self.buffer(DataType::Float32, channels, &origin)?;
        for (stream, channels) in files {
            let boxed = Boxed::read(stream, &grid, channels, &self.spatial, None)?;
            (0..channels).try_for_each(|channel| boxed.push_normalized(channel, &mut bytes))?;
        }
        let image = Tensor::new(DataType::Float32, &self.input.sample_shape, bytes);
        let image = image.expect("as many bytes as the box has");
        let image = convert(image, self.input.data_type, self.input_scale, &origin)?;
        Ok((image, self.read_labels(&pair.labels, &grid)?))
    }

    /// Returns an empty buffer for boxes of this type.
    fn buffer(&self, data_type: DataType, channels: u64, origin: &str) -> Result<Vec<u8>, DataError> {
        let sizes = self.spatial.iter().fold(channels, |product, &size| product.saturating_mul(size));
        let bytes = forebay_limits::buffer(sizes.saturating_mul(data_type.size_bytes()));
        bytes.map_err(|error| DataError::malformed(origin, error.to_string()))
    }

    fn read_labels(&self, path: &Path, grid: &[u64]) -> Result<Tensor, DataError> {
        let origin = path.display().to_string();
        let stream = volume_file::open(path)?;
        let header = stream.header();
        let (sizes, channels) = self.grid(&header.shape, path)?;
        if sizes != grid || channels != 1 {
            let expected = format!("the image's sizes {grid:?}");
            return Err(DataError::Shape { origin, found: header.shape.clone(), expected });
        }
        // All values of these types fit; values of other types are checked one by one.
        let always_integers = !header.data_type.is_float() && header.data_type != DataType::UInt64;
        let (slope, is_scaled) = (header.slope, (header.slope, header.intercept) != (1.0, 0.0));
        // Scaled labels were rounded to a step of the scale when they were stored, and the scale itself is a float32.
        let tolerance = |value: f64| match is_scaled {
            true => slope.abs().min(0.5) / 2.0 + value.abs() * f64::from(f32::EPSILON),
            false => 0.0,
        };
        let look = |index: usize, value: f64| {
            let whole = value.round();
            if whole == (whole as i64) as f64 && (value - whole).abs() <= tolerance(value) {
                return Ok(());
            }
            let (origin, value) = (origin.clone(), value.to_string());
            Err(DataError::Value { origin, index, value, wanted: DataType::Int64 })
        };
        let unchecked = always_integers && !is_scaled;
        let boxed = Boxed::read(stream, grid, 1, &self.spatial, if unchecked { None } else { Some(&look) })?;
        let mut bytes = self.buffer(DataType::Int64, 1, &origin)?;
        boxed.for_each_row(0, |row| bytes.extend(row.iter().flat_map(|&value| (value.round() as i64).to_le_bytes())));
        Ok(Tensor::new(DataType::Int64, &self.spatial, bytes).expect("as many bytes as the box has"))
    }

    /// Returns the spatial sizes of a file's axes, and the number of channels in its further axes.
    ///
    /// # Errors
    /// [`DataError`] naming the file if it has too many axes.
    pub(crate) fn grid(&self, shape: &[u64], path: &Path) -> Result<(Vec<u64>, usize), DataError> {
        let rank = self.spatial.len();
        let mut sizes = shape.to_vec();
        sizes.resize(shape.len().max(rank), 1);
        let further = sizes.split_off(rank);
        match further.iter().filter(|&&size| size != 1).collect::<Vec<_>>().as_slice() {
            [] => Ok((sizes, 1)),
            [channels] => Ok((sizes, **channels as usize)),
            _ => {
                let expected = format!("{rank} spatial axes and at most one channel axis");
                Err(DataError::Shape { origin: path.display().to_string(), found: shape.to_vec(), expected })
            }
        }
    }
}

impl VolumeSet {
    /// Returns the labels of samples as a batch.
    fn labels(&self, samples: &[Arc<Sample>]) -> Result<Tensor, DataError> {
        if let [Sample { labels: Labels::Whole(labels), .. }] = samples.iter().map(Arc::as_ref).collect::<Vec<_>>()[..]
        {
            return Ok(Tensor::stack(&[labels]).expect("one is enough"));
        }
        let mut bytes = self.reader.buffer(DataType::Int64, samples.len() as u64, "a batch")?;
        for sample in samples {
            match &sample.labels {
                Labels::Bytes(labels) => bytes.extend(labels.iter().flat_map(|&label| i64::from(label).to_le_bytes())),
                Labels::Whole(labels) => bytes.extend_from_slice(labels.bytes()),
            }
        }
        let shape = [&[samples.len() as u64], self.reader.spatial.as_slice()].concat();
        Ok(Tensor::new(DataType::Int64, &shape, bytes).expect("labels of one shape"))
    }
}

/// Returns the headers of the image and the labels of the first pair whose headers can be read.
///
/// # Errors
/// [`DataError`] naming a file of the first pair if there is none.
pub(crate) fn first_headers(pairs: &[Pair]) -> Result<(Header, Header), DataError> {
    let header = |path: &Path| volume_file::open(path).map(|stream| stream.header().clone());
    let headers = |pair: &Pair| Ok((header(&pair.images[0])?, header(&pair.labels)?));
    headers(&pairs[0]).or_else(|error: DataError| pairs[1..].iter().find_map(|pair| headers(pair).ok()).ok_or(error))
}

impl Source for VolumeSet {
    fn description(&self) -> Result<Description, DataError> {
        let tensor = |name: &str, Header { data_type, shape, .. }: Header| {
            format!("{}, the first one", described(name, data_type, &shape))
        };
        let (image, labels) = first_headers(&self.pairs)?;
        let tensors = vec![tensor("image", image), tensor("labels", labels)];
        let files: Vec<PathBuf> = self.pairs.iter().flat_map(Pair::files).collect();
        Ok(Description {
            kind: format!("a folder of {} volumes", volume_file::format(&self.pairs[0].images[0])),
            tensors,
            size_bytes: size_of_files(files.iter().map(PathBuf::as_path))?,
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        self.pairs.len() as u64
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let mut read = Vec::new();
        for sample in samples {
            read.push(match self.kept.get(*sample) {
                Some(found) => found,
                None => {
                    let (image, labels) = self.reader.read(&self.pairs[*sample as usize])?;
                    let found = Sample { image, labels: Labels::new(labels) };
                    let size_bytes = found.image.bytes().len() as u64 + found.labels.size_bytes();
                    self.kept.keep(*sample, found, size_bytes)
                }
            });
        }
        let images: Vec<&Tensor> = read.iter().map(|sample| &sample.image).collect();
        let inputs =
            BTreeMap::from([(self.reader.input.name.clone(), Tensor::stack(&images).expect("samples of one shape"))]);
        Ok(Batch { inputs, labels: self.labels(&read)? })
    }

    fn keep_at_most(&mut self, bytes: u64, count: u64) {
        let voxels = self.reader.spatial.iter().fold(1, |product: u64, &size| product.saturating_mul(size));
        let values = voxels.saturating_mul(self.reader.channels * self.reader.input.data_type.size_bytes());
        // Labels take a byte each; a sample with a label that needs more may not be kept.
        self.kept.keep_at_most(bytes, values.saturating_add(voxels).saturating_mul(count));
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        let chosen = &self.pairs[samples.start as usize..samples.end as usize];
        let files: Vec<PathBuf> = chosen.iter().flat_map(Pair::files).collect();
        digest.add_files(files.iter().map(PathBuf::as_path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::to_f64;
    use crate::dataset::LabelKind;
    use crate::nifti::samples;

    fn requirements(channels: u64) -> Requirements {
        let sample_shape = vec![channels, 2, 2, 4];
        let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape };
        Requirements { inputs: vec![input], input_scale: 1.0, labels: LabelKind::Classes, label_shape: vec![2, 2, 4] }
    }

    #[test]
    fn a_pair_is_fitted_and_normalized() {
        let folder = tempfile::tempdir().unwrap();
        // 2 x 2 x 2: the last axis is padded by one before and one after.
        samples::write_gz(
            &folder.path().join("t1.nii.gz"),
            &samples::file(2, &[2, 2, 2], &[8, 0, 0, 0, 0, 0, 0, 0], 0.0, 0.0),
        );
        std::fs::write(
            folder.path().join("labels.nii"),
            samples::file(2, &[2, 2, 2], &[1, 0, 0, 0, 2, 0, 0, 0], 0.0, 0.0),
        )
        .unwrap();
        let mut set = open(folder.path(), &requirements(1)).unwrap();
        assert_eq!(set.sample_count(), 1);
        let batch = set.batch(&[0]).unwrap();
        // One voxel of 8 among 16: mean 0.5, population variance 64/16 - 0.25 = 3.75.
        let deviation = 3.75f64.sqrt();
        let mut expected = [(-0.5 / deviation) as f32; 16];
        expected[1] = (7.5 / deviation) as f32;
        assert_eq!(batch.inputs["x"], Tensor::from_f32(&[1, 1, 2, 2, 4], &expected));
        let mut labels = [0; 16];
        (labels[1], labels[2]) = (1, 2);
        assert_eq!(batch.labels, Tensor::from_i64(&[1, 2, 2, 4], &labels));
        assert_eq!(set.batch(&[0]).unwrap(), batch);
    }

    #[test]
    fn samples_are_kept_where_all_fit_and_the_same_where_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
        let image = || samples::file(2, &[2, 2, 4], &(0..16).collect::<Vec<u8>>(), 0.0, 0.0);
        for name in ["a", "b"] {
            write(&format!("{name}.nii"), image());
            write(&format!("{name}_seg.nii"), samples::file(2, &[2, 2, 4], &[1; 16], 0.0, 0.0));
        }
        let mut set = open(folder.path(), &requirements(1)).unwrap();
        let first = set.batch(&[0, 1]).unwrap();
        // Two samples of 16 voxels with 5 bytes each. Kept samples are not read again.
        set.keep_at_most(160, 2);
        std::fs::rename(folder.path().join("a.nii"), folder.path().join("away")).unwrap();
        assert_eq!(set.batch(&[0, 1]).unwrap(), first);
        set.keep_at_most(159, 2);
        assert!(set.batch(&[0]).is_err());
        std::fs::rename(folder.path().join("away"), folder.path().join("a.nii")).unwrap();
        assert_eq!(set.batch(&[0, 1]).unwrap(), first);
        std::fs::remove_file(folder.path().join("a.nii")).unwrap();
        assert!(set.batch(&[0]).is_err(), "it was not kept");
    }

    #[test]
    fn a_damaged_first_pair_can_be_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        let labels = samples::file(2, &[2, 2, 4], &[1; 16], 0.0, 0.0);
        let mut damaged = labels.clone();
        damaged[40] = 9;
        for (name, image) in [("a", &damaged), ("b", &samples::file(4, &[2, 2, 4], &[0; 32], 0.0, 0.0))] {
            write(&format!("{name}.nii"), image);
            write(&format!("{name}_seg.nii"), &labels);
        }
        let source = || open(folder.path(), &requirements(1)).unwrap();
        let tensors = ["image: int16[2, 2, 4], the first one", "labels: uint8[2, 2, 4], the first one"];
        assert_eq!(source().description().unwrap().tensors, tensors);
        let mut set = crate::dataset::DataSet::new(source(), None, "t").unwrap();
        set.skip_bad(1);
        assert_eq!(set.batch(&[0]).unwrap(), source().batch(&[1]).unwrap());
        write("b.nii", &damaged);
        let error = source().description().unwrap_err().to_string();
        assert!(error.contains("a.nii: expected 1 to 7 dimensions, found 9"), "{error}");
    }

    #[test]
    fn labels_that_a_byte_does_not_hold_are_kept_whole() {
        let folder = tempfile::tempdir().unwrap();
        for (name, label) in [("a", 7u16), ("b", 300)] {
            let file = folder.path().join(format!("{name}.nii"));
            std::fs::write(file, samples::file(2, &[2, 2, 4], &[0; 16], 0.0, 0.0)).unwrap();
            let labels: Vec<u8> = std::iter::repeat_n(label.to_le_bytes(), 16).flatten().collect();
            let file = folder.path().join(format!("{name}_seg.nii"));
            std::fs::write(file, samples::file(512, &[2, 2, 4], &labels, 0.0, 0.0)).unwrap();
        }
        let mut set = open(folder.path(), &requirements(1)).unwrap();
        let expected = Tensor::from_i64(&[2, 2, 2, 4], &[[7; 16], [300; 16]].concat());
        for _ in 0..2 {
            assert_eq!(set.batch(&[0, 1]).unwrap().labels, expected);
            assert_eq!(set.batch(&[1]).unwrap().labels, Tensor::from_i64(&[1, 2, 2, 4], &[300; 16]));
        }
    }

    /// NiBabel 5.4 stores the labels 0 to 4, given as float64, as uint8 with this slope and elements: 64 is 1.004, 127 is 1.992.
    #[test]
    fn labels_stored_with_a_scale_are_the_nearest_integers() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
        let labels = |elements: &[u8]| samples::file(2, &[2, 2, 4], &elements.repeat(2), 4.0 / 255.0, 0.0);
        write("a.nii", samples::file(2, &[2, 2, 4], &[0; 16], 0.0, 0.0));
        write("a_seg.nii", labels(&[0, 64, 127, 191, 255, 255, 0, 64]));
        let batch = open(folder.path(), &requirements(1)).unwrap().batch(&[0]).unwrap();
        // The first axis is the fastest in the file, and the last one in a tensor.
        let expected = [0, 4, 0, 4, 2, 0, 2, 0, 1, 4, 1, 4, 3, 1, 3, 1];
        assert_eq!(batch.labels, Tensor::from_i64(&[1, 2, 2, 4], &expected));
        write("a_seg.nii", labels(&[0, 65, 127, 191, 255, 255, 0, 64]));
        let error = open(folder.path(), &requirements(1)).unwrap().batch(&[0]).unwrap_err().to_string();
        assert!(error.contains("a_seg.nii: element ") && error.contains(" is 1.0196"), "{error}");
    }

    #[test]
    fn a_fourth_axis_and_several_files_are_channels() {
        let folder = tempfile::tempdir().unwrap();
        let elements: Vec<u8> = (0..32).map(|element| element % 16).collect();
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("a_seg.nii", samples::file(2, &[2, 2, 4], &[0; 16], 0.0, 0.0));
        write("a.nii", samples::file(2, &[2, 2, 4, 2], &elements, 0.0, 0.0));
        let batch = open(folder.path(), &requirements(2)).unwrap().batch(&[0]).unwrap();
        let values = to_f64(&batch.inputs["x"]);
        assert_eq!(values[..16], values[16..]);
        let error = open(folder.path(), &requirements(1)).unwrap().batch(&[0]).unwrap_err().to_string();
        assert!(error.contains("expected 1 channels"), "{error}");
    }

    #[test]
    fn labels_must_be_integers_on_the_images_grid() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("a.nii", samples::file(2, &[2, 2, 4], &[0; 16], 0.0, 0.0));
        write("a_seg.nii", samples::file(2, &[2, 2, 4], &[1; 16], 0.5, 0.0));
        let error = open(folder.path(), &requirements(1)).unwrap().batch(&[0]).unwrap_err().to_string();
        assert!(error.contains("element 0 is 0.5"), "{error}");
        write("a_seg.nii", samples::file(2, &[2, 2, 3], &[1; 12], 0.0, 0.0));
        let error = open(folder.path(), &requirements(1)).unwrap().batch(&[0]).unwrap_err().to_string();
        assert!(error.contains("expected the image's sizes [2, 2, 4]"), "{error}");
    }
}
