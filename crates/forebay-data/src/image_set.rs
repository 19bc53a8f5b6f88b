//! A data set of images, PNG or JPEG: one sub-folder per class, numbered in the order of their names.
//!
//! An image is resized to the model's input (linear filter), made grey where the input has one channel and RGB where it has
//! three, and scaled from 0..255 to 0..1.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;

use crate::convert::convert;
use crate::dataset::{image_input, size_of_files, Batch, Description, InputDescription, Requirements, Source};
use crate::digest::Digest;
use crate::error::DataError;
use forebay_base::Tensor;

const EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Files with their classes.
struct ImageSet {
    files: Vec<(PathBuf, i64)>,
    input: InputDescription,
    input_scale: f64,
}

/// Opens a folder of classes. Images are read when they are asked for.
///
/// # Errors
/// [`DataError::Layout`] where there are no images, or the model takes none.
pub fn open(folder: &Path, requirements: &Requirements) -> Result<Box<dyn Source>, DataError> {
    let (input, channels, _) = image_input(requirements, &[2], "a folder of images")
        .and_then(|(input, channels, spatial)| match channels {
            1 | 3 => Ok((input, channels, spatial)),
            _ => Err(format!("images have 1 or 3 channels, and input {} has {channels}", input.name)),
        })
        .map_err(|reason| DataError::layout(folder, reason))?;
    debug_assert!(matches!(channels, 1 | 3));
    if !requirements.label_shape.is_empty() {
        let shape = &requirements.label_shape;
        let reason = format!("a folder of images has one label per image, and the model wants {shape:?} per sample");
        return Err(DataError::layout(folder, reason));
    }
    let classes: Vec<PathBuf> = listed(folder)?.into_iter().filter(|path| path.is_dir()).collect();
    let mut files = Vec::new();
    for (class, class_folder) in classes.iter().enumerate() {
        let images = listed(class_folder)?.into_iter().filter(|path| is_image(path) && path.is_file());
        files.extend(images.map(|path| (path, class as i64)));
    }
    if files.is_empty() {
        let reason =
            "no data in this folder: expected sub-folders, one per class, of PNG or JPEG images; or NIfTI pairs";
        return Err(DataError::layout(folder, reason));
    }
    Ok(Box::new(ImageSet { files, input, input_scale: requirements.input_scale }))
}

/// Entries of a folder in the order of their names, hidden ones left out.
fn listed(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| DataError::io(folder, error))? {
        let entry = entry.map_err(|error| DataError::io(folder, error))?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str())
}

impl ImageSet {
    fn read(&self, path: &Path) -> Result<Tensor, DataError> {
        let origin = path.display().to_string();
        let [channels, height, width] = self.input.sample_shape[..] else {
            unreachable!("three axes are checked when the set is opened");
        };
        let size = |size: u64| u32::try_from(size).map_err(|_| DataError::unsupported(&origin, "an input that large"));
        let mut reader = image::ImageReader::open(path)
            .and_then(|reader| reader.with_guessed_format())
            .map_err(|error| DataError::io(path, error))?;
        let mut limits = image::Limits::default();
        let available_bytes = forebay_limits::available_bytes(forebay_limits::Use::Private);
        limits.max_alloc = limits.max_alloc.into_iter().chain(available_bytes).min();
        reader.limits(limits);
        let picture = reader
            .decode()
            .map_err(|error| DataError::malformed(&origin, format!("not a readable image: {error}")))?
            .resize_exact(size(width)?, size(height)?, FilterType::Triangle);
        let interleaved = if channels == 1 { picture.into_luma8().into_raw() } else { picture.into_rgb8().into_raw() };
        let channels = channels as usize;
        let planes: Vec<f32> = (0..channels)
            .flat_map(|channel| {
                interleaved.iter().skip(channel).step_by(channels).map(|&value| f32::from(value) / 255.0)
            })
            .collect();
        let image = Tensor::from_f32(&self.input.sample_shape, &planes);
        convert(image, self.input.data_type, self.input_scale, &origin)
    }
}

impl Source for ImageSet {
    fn description(&self) -> Result<Description, DataError> {
        let (path, _) = &self.files[0];
        let size = image::image_dimensions(path);
        let size = size.map_or("of unknown size".to_owned(), |(width, height)| format!("{height} x {width} pixels"));
        let classes = self.files.iter().map(|(_, class)| class + 1).max().unwrap_or_default();
        let image = format!("images, the first {size}, resized to {:?}", self.input.sample_shape);
        Ok(Description {
            kind: format!("a folder of images in {classes} classes"),
            tensors: vec![image, format!("labels: a class of each")],
            size_bytes: size_of_files(self.files.iter().map(|(path, _)| path.as_path()))?,
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        self.files.len() as u64
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let chosen: Vec<&(PathBuf, i64)> = samples.iter().map(|&sample| &self.files[sample as usize]).collect();
        let images = chosen.iter().map(|(path, _)| self.read(path)).collect::<Result<Vec<_>, _>>()?;
        let stacked = Tensor::stack(&images.iter().collect::<Vec<_>>()).expect("samples of one shape");
        let labels: Vec<i64> = chosen.iter().map(|(_, class)| *class).collect();
        let inputs = BTreeMap::from([(self.input.name.clone(), stacked)]);
        Ok(Batch { inputs, labels: Tensor::from_i64(&[labels.len() as u64], &labels) })
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        let chosen = &self.files[samples.start as usize..samples.end as usize];
        chosen.iter().for_each(|(_, class)| digest.add(&class.to_le_bytes()));
        digest.add_files(chosen.iter().map(|(path, _)| path.as_path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::LabelKind;
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
        let red = image::RgbImage::from_pixel(6, 4, image::Rgb([255, 0, 51]));
        red.save(folder.path().join("cat/b.png")).unwrap();
        image::GrayImage::from_pixel(3, 2, image::Luma([102])).save(folder.path().join("dog/a.PNG")).unwrap();
        red.save(folder.path().join("dog/z.jpg")).unwrap();
        std::fs::write(folder.path().join("dog/notes.txt"), "no image").unwrap();
        folder
    }

    #[test]
    fn images_are_resized_scaled_and_labelled_by_folder() {
        let folder = folder();
        let mut set = open(folder.path(), &requirements(3)).unwrap();
        assert_eq!(set.sample_count(), 3);
        let batch = set.batch(&[1, 0]).unwrap();
        assert_eq!(batch.labels, Tensor::from_i64(&[2], &[1, 0]));
        let mut expected = vec![0.4f32; 18];
        for value in [1.0, 0.0, 0.2] {
            expected.extend([value; 6]);
        }
        assert_eq!(batch.inputs["x"], Tensor::from_f32(&[2, 3, 2, 3], &expected));
        assert_eq!(
            open(folder.path(), &requirements(1)).unwrap().batch(&[0]).unwrap().inputs["x"].shape(),
            [1, 1, 2, 3]
        );
    }

    #[test]
    fn broken_images_and_wrong_models_are_named() {
        let folder = folder();
        std::fs::write(folder.path().join("cat/a.png"), b"\x89PNG\r\n\x1a\nnot really").unwrap();
        let error = open(folder.path(), &requirements(3)).unwrap().batch(&[0]).unwrap_err().to_string();
        assert!(error.contains("a.png: not a readable image"), "{error}");
        assert!(open(folder.path(), &requirements(4)).err().unwrap().to_string().contains("1 or 3 channels"));
        let empty = tempfile::tempdir().unwrap();
        assert!(open(empty.path(), &requirements(1)).err().unwrap().to_string().contains("one per class"));
    }
}
