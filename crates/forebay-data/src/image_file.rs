//! Image files, resized to a model's input.
//!
//! An image is resized with a linear filter, converted to greyscale if the input has one channel and to RGB if it has three, and scaled
//! from 0..255 to 0..1.

use std::path::Path;

use forebay_base::Tensor;
use forebay_images::DECODED_BYTES_MAX;
use forebay_images::image::imageops::FilterType;

use crate::convert::convert;
use crate::dataset::{InputDescription, Requirements, image_input};
use crate::error::DataError;

/// Returns whether a file is an image, by its name.
pub(crate) fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    forebay_images::EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str())
}

/// Returns the width and height of an image, in pixels; `None` if it cannot be read.
pub(crate) fn dimensions(path: &Path) -> Option<(u32, u32)> {
    forebay_images::dimensions(&std::fs::read(path).ok()?).ok()
}

/// The conversion of images to a model's input.
pub(crate) struct Images {
    /// The model's input.
    pub(crate) input: InputDescription,
    input_scale: f64,
}

impl Images {
    /// Returns the conversion for a model; `what` names the data set in errors.
    ///
    /// # Errors
    /// A message that says why the model takes no images.
    pub(crate) fn of(requirements: &Requirements, what: &str) -> Result<Images, String> {
        let (input, channels, _) = image_input(requirements, &[2], what)?;
        match channels {
            1 | 3 => Ok(Images { input, input_scale: requirements.input_scale }),
            _ => Err(format!("images have 1 or 3 channels, but input {} has {channels}", input.name)),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    pub(crate) fn read(&self, path: &Path) -> Result<Tensor, DataError> {
        let bytes = std::fs::read(path).map_err(|error| DataError::io(path, error))?;
        self.decode(&bytes, &path.display().to_string())
    }

    /// Decodes an image from the bytes of its file.
    ///
    /// # Errors
    /// [`DataError`] naming `origin`.
    pub(crate) fn decode(&self, bytes: &[u8], origin: &str) -> Result<Tensor, DataError> {
        let [channels, height, width] = self.input.sample_shape[..] else {
            unreachable!("three axes are checked when the set is opened");
        };
        let too_large = || DataError::unsupported(origin, "an input that large is not supported");
        let size = |size: u64| u32::try_from(size).map_err(|_| too_large());
        let available_bytes = forebay_limits::available_bytes(forebay_limits::Use::Private);
        let limit_bytes = available_bytes.map_or(DECODED_BYTES_MAX, |bytes| bytes.min(DECODED_BYTES_MAX));
        let picture = forebay_images::decode(bytes, limit_bytes)
            .map_err(|error| DataError::malformed(origin, format!("not a readable image: {error}")))?;
        let picture = picture.resize_exact(size(width)?, size(height)?, FilterType::Triangle);
        let interleaved = if channels == 1 { picture.into_luma8().into_raw() } else { picture.into_rgb8().into_raw() };
        let channels = channels as usize;
        let planes: Vec<f32> = (0..channels)
            .flat_map(|channel| {
                interleaved.iter().skip(channel).step_by(channels).map(|&value| f32::from(value) / 255.0)
            })
            .collect();
        let image = Tensor::from_f32(&self.input.sample_shape, &planes);
        convert(image, self.input.data_type, self.input_scale, origin)
    }
}
