//! Data sets of image files: a folder with one subfolder per class, numbered in the order of their names, or files that a table names
//! ([`crate::manifest`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_base::Tensor;

use crate::class_folders::{ClassFolders, class_folders, has_samples, unread};
use crate::dataset::{Batch, Description, Requirements, Source, size_of_files};
use crate::digest::Digest;
use crate::error::DataError;
use crate::image_file::{self, Images, is_image};

/// Files with their labels.
pub(crate) struct ImageSet {
    /// The kind of data set, in words.
    pub(crate) kind: String,
    /// The files.
    pub(crate) files: Vec<PathBuf>,
    /// The labels of all files, stacked along the first axis.
    pub(crate) labels: Tensor,
    /// The names of the classes in order, if labels are named classes.
    pub(crate) classes: Option<Vec<String>>,
    /// The weight of each file, if a table specifies weights.
    pub(crate) weights: Option<Vec<f64>>,
    /// The conversion to the model's input.
    pub(crate) images: Images,
    /// Whether files can be missing.
    pub(crate) skips_missing: bool,
}

impl ImageSet {
    /// Returns those of the files that count for the data set as a whole.
    fn present<'a>(&self, files: &'a [PathBuf]) -> Vec<&'a Path> {
        let files = files.iter().map(PathBuf::as_path);
        files.filter(|path| !self.skips_missing || path.exists()).collect()
    }
}

/// Opens a folder of classes. Images are read on demand.
///
/// # Errors
/// [`DataError::Layout`] if there are no images, or the model takes none.
pub fn open(folder: &Path, requirements: &Requirements) -> Result<Box<dyn Source>, DataError> {
    let ClassFolders { files, labels, classes, kind } = class_folders(folder, "images", is_image)?;
    if files.is_empty() {
        let unread = unread(folder)?.map(|reason| format!("; {reason}")).unwrap_or_default();
        let reason = format!(
            "no data in this folder: expected subfolders, one per class, of PNG, JPEG, WebP or TIFF images; or NIfTI \
             pairs, .npy files, tar shards, or Parquet or Arrow files{unread}"
        );
        return Err(DataError::layout(folder, reason));
    }
    let images = Images::of(requirements, "a folder of images").map_err(|reason| DataError::layout(folder, reason))?;
    if !requirements.label_shape.is_empty() {
        let shape = &requirements.label_shape;
        let reason = format!("a folder of images has one label per image, but the model expects {shape:?} per sample");
        return Err(DataError::layout(folder, reason));
    }
    Ok(Box::new(ImageSet { kind, files, labels, classes: Some(classes), weights: None, images, skips_missing: false }))
}

/// Returns labels as classes, if each sample has exactly one.
pub(crate) fn one_each(labels: &Tensor) -> Option<Vec<i64>> {
    let count = labels.shape().first().copied().unwrap_or(0);
    labels.integers().map(Iterator::collect).filter(|labels: &Vec<i64>| labels.len() as u64 == count)
}

/// Returns whether a folder has images in its subfolders.
///
/// # Errors
/// [`DataError`] if a folder cannot be listed.
pub(crate) fn is_images(folder: &Path) -> Result<bool, DataError> {
    has_samples(folder, is_image)
}

impl Source for ImageSet {
    fn description(&self) -> Result<Description, DataError> {
        let size = image_file::dimensions(&self.files[0]);
        let size = size.map_or("of unknown size".to_owned(), |(width, height)| format!("{height} x {width} pixels"));
        let image = format!("images, the first {size}, resized to {:?}", self.images.input.sample_shape);
        Ok(Description {
            kind: self.kind.clone(),
            tensors: vec![image, format!("labels: {}{:?}", self.labels.data_type(), &self.labels.shape()[1..])],
            size_bytes: size_of_files(self.present(&self.files))?,
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        self.files.len() as u64
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let images = samples.iter().map(|&sample| self.images.read(&self.files[sample as usize]));
        let images = images.collect::<Result<Vec<_>, _>>()?;
        let stacked = Tensor::stack(&images.iter().collect::<Vec<_>>()).expect("samples of one shape");
        let inputs = BTreeMap::from([(self.images.input.name.clone(), stacked)]);
        Ok(Batch { inputs, labels: self.labels.rows(samples) })
    }

    fn classes(&mut self) -> Result<Option<Vec<i64>>, DataError> {
        Ok(one_each(&self.labels))
    }

    fn class_names(&self) -> Option<&[String]> {
        self.classes.as_deref()
    }

    fn weights(&self) -> Option<Vec<f64>> {
        self.weights.clone()
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        digest.add(self.labels.rows(&samples.clone().collect::<Vec<_>>()).bytes());
        let chosen = &self.files[samples.start as usize..samples.end as usize];
        digest.add_files(self.present(chosen).into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{DataSet, InputDescription, LabelKind};
    use forebay_base::DataType;

    fn requirements(channels: u64) -> Requirements {
        let sample_shape = vec![channels, 2, 3];
        let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape };
        Requirements { inputs: vec![input], input_scale: 1.0, labels: LabelKind::Classes, label_shape: vec![] }
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for class in ["cat", "dog"] {
            std::fs::create_dir(folder.path().join(class)).unwrap();
        }
        let red = forebay_images::image::RgbImage::from_pixel(6, 4, forebay_images::image::Rgb([255, 0, 51]));
        red.save(folder.path().join("cat/b.png")).unwrap();
        forebay_images::image::GrayImage::from_pixel(3, 2, forebay_images::image::Luma([102]))
            .save(folder.path().join("dog/a.PNG"))
            .unwrap();
        red.save(folder.path().join("dog/z.jpg")).unwrap();
        red.save(folder.path().join("dog/y.tiff")).unwrap();
        red.save(folder.path().join("dog/x.webp")).unwrap();
        std::fs::write(folder.path().join("dog/notes.txt"), "no image").unwrap();
        folder
    }

    #[test]
    fn images_are_resized_scaled_and_labeled_by_folder() {
        let folder = folder();
        let mut set = open(folder.path(), &requirements(3)).unwrap();
        assert_eq!(set.sample_count(), 5);
        let batch = set.batch(&[1, 0]).unwrap();
        assert_eq!(batch.labels, Tensor::from_i64(&[2], &[1, 0]));
        let mut expected = vec![0.4f32; 18];
        for value in [1.0, 0.0, 0.2] {
            expected.extend([value; 6]);
        }
        assert_eq!(batch.inputs["x"], Tensor::from_f32(&[2, 3, 2, 3], &expected));
        // Both formats keep every pixel.
        let others = set.batch(&[2, 3]).unwrap();
        assert_eq!(others.labels, Tensor::from_i64(&[2], &[1, 1]));
        assert_eq!(others.inputs["x"].to_f32().unwrap(), [&expected[18..], &expected[18..]].concat());
        assert_eq!(
            open(folder.path(), &requirements(1)).unwrap().batch(&[0]).unwrap().inputs["x"].shape(),
            [1, 1, 2, 3]
        );
    }

    #[test]
    fn classes_are_numbered_like_those_of_another_set() {
        let (training, validation) = (folder(), folder());
        for name in ["ape", "cow"] {
            std::fs::create_dir(training.path().join(name)).unwrap();
        }
        let set = |folder: &tempfile::TempDir| DataSet::new(open(folder.path(), &requirements(1)).unwrap(), None, "D");
        let mut numbered = set(&validation).unwrap();
        assert_eq!(numbered.batch(&[0, 1]).unwrap().labels, Tensor::from_i64(&[2], &[0, 1]));
        numbered.number_classes_like(&set(&training).unwrap()).unwrap();
        assert_eq!(numbered.batch(&[0, 1]).unwrap().labels, Tensor::from_i64(&[2], &[1, 3]));
        // An unknown class without images does not matter.
        std::fs::create_dir(validation.path().join("bee")).unwrap();
        let mut numbered = set(&validation).unwrap();
        numbered.number_classes_like(&set(&training).unwrap()).unwrap();
        assert_eq!(numbered.batch(&[0, 1]).unwrap().labels, Tensor::from_i64(&[2], &[1, 3]));
        std::fs::copy(validation.path().join("cat/b.png"), validation.path().join("bee/b.png")).unwrap();
        let error = set(&validation).unwrap().number_classes_like(&set(&training).unwrap()).unwrap_err().to_string();
        assert_eq!(error, "D: there is no class 'bee' in D, whose classes are ape, cat, cow, dog");
    }

    #[test]
    fn images_too_wide_to_be_resized_are_named() {
        let folder = folder();
        let wide = forebay_images::image::GrayImage::new(1 << 20, 1);
        wide.save(folder.path().join("cat/b.png")).unwrap();
        let mut wanted = requirements(1);
        wanted.inputs[0].sample_shape = vec![1, 1 << 31, 1];
        let error = open(folder.path(), &wanted).unwrap().batch(&[0]).unwrap_err().to_string();
        assert!(error.contains("b.png: resizing it from 1048576 x 1 to 1 x 2147483648 pixels: "), "{error}");
    }

    #[test]
    fn images_of_16_bits_keep_all_of_them() {
        let folder = folder();
        let image = forebay_images::image::ImageBuffer::from_pixel(3, 2, forebay_images::image::Luma([1000u16]));
        image.save(folder.path().join("cat/b.png")).unwrap();
        for channels in [1, 3] {
            let batch = open(folder.path(), &requirements(channels)).unwrap().batch(&[0]).unwrap();
            let values = batch.inputs["x"].to_f32().unwrap();
            assert!(values.iter().all(|&value| value == 1000.0 / 65535.0), "{values:?}");
        }
    }

    #[test]
    fn what_is_left_out_is_named() {
        let folder = folder();
        let kind = || open(folder.path(), &requirements(1)).unwrap().description().unwrap().kind;
        assert_eq!(kind(), "a folder of images in 2 classes; left out: dog/notes.txt");
        for class in ["ape", "bee/nested"] {
            std::fs::create_dir_all(folder.path().join(class)).unwrap();
        }
        std::fs::write(folder.path().join("README.md"), "words").unwrap();
        std::fs::rename(folder.path().join("cat/b.png"), folder.path().join("cat/b.gif")).unwrap();
        std::fs::copy(folder.path().join("dog/a.PNG"), folder.path().join("above.png")).unwrap();
        std::fs::copy(folder.path().join("dog/a.PNG"), folder.path().join("bee/a.pnm")).unwrap();
        let expected =
            "a folder of images in 4 classes; without images: ape and 1 more; left out: above.png and 3 more";
        assert_eq!(kind(), expected);
    }

    #[test]
    fn broken_images_and_wrong_models_are_named() {
        let folder = folder();
        std::fs::write(folder.path().join("cat/a.png"), b"\x89PNG\r\n\x1a\nnot really").unwrap();
        let error = open(folder.path(), &requirements(3)).unwrap().batch(&[0]).unwrap_err().to_string();
        assert!(error.contains("a.png: not a readable image"), "{error}");
        assert!(open(folder.path(), &requirements(4)).err().unwrap().to_string().contains("1 or 3 channels"));
        let empty = tempfile::tempdir().unwrap();
        let refused = || open(empty.path(), &requirements(4)).err().unwrap().to_string();
        assert!(refused().contains("one per class") && !refused().contains("not read"), "{}", refused());
        std::fs::create_dir(empty.path().join("cat")).unwrap();
        for (name, words) in [
            ("cat/a.GIF", "files such as cat/a.GIF are not read: convert images to PNG"),
            ("brain.hdr", "files such as brain.hdr are not read: convert volumes to NIfTI (.nii)"),
            ("cat/a.ogg", "files such as cat/a.ogg are not read: convert sounds to WAV or FLAC"),
        ] {
            let path = empty.path().join(name);
            std::fs::write(&path, "").unwrap();
            assert!(refused().ends_with(words), "{}", refused());
            std::fs::remove_file(path).unwrap();
        }
    }
}
