//! Image files, resized to a model's input.
//!
//! An image is resized with a linear filter, converted to grayscale if the input has one channel and to RGB if it has three, and scaled to
//! 0..1: values of 8 bits from 0..255, and those of 16 bits from 0..65535; floating-point numbers are cut to 0..1. It is taken as stored,
//! without regard to an orientation in its EXIF data.

use std::path::Path;

use forebay_base::Tensor;
use forebay_images::DECODED_BYTES_MAX;
use forebay_images::image::imageops::FilterType;

use crate::convert::convert;
use crate::dataset::{InputDescription, Requirements, image_input};
use crate::error::DataError;
use crate::names::has_extension;

/// The most bytes of a file.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// Returns whether a file is an image, by its name.
pub(crate) fn is_image(path: &Path) -> bool {
    has_extension(path, &forebay_images::EXTENSIONS)
}

/// Reads a file. A pipe, which may never end, is refused.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    forebay_limits::open_regular(path)?;
    forebay_limits::read(path, FILE_BYTES_MAX, 1)
}

/// Returns the width and height of an image, in pixels; `None` if it cannot be read.
pub(crate) fn dimensions(path: &Path) -> Option<(u32, u32)> {
    forebay_images::dimensions(&read(path).ok()?).ok()
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
        let bytes = read(path).map_err(|error| DataError::io(path, error))?;
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
        let (from, to) = ((picture.width(), picture.height()), (size(width)?, size(height)?));
        // Resizing first makes an image of the old width and the new height, with four float32 for each pixel.
        let resized_bytes = u64::from(from.0).saturating_mul(u64::from(to.1)).saturating_mul(16);
        if from != to && available_bytes.is_some_and(|bytes| resized_bytes > bytes) {
            forebay_limits::check(resized_bytes, forebay_limits::Use::Private).map_err(|error| {
                let reason = format!("resizing it from {} x {} to {} x {} pixels: {error}", from.0, from.1, to.0, to.1);
                DataError::malformed(origin, reason)
            })?;
        }
        let picture = picture.resize_exact(to.0, to.1, FilterType::Triangle);
        let bytes = |values: Vec<u8>| values.into_iter().map(|value| f32::from(value) / 255.0).collect();
        let words = |values: Vec<u16>| values.into_iter().map(|value| f32::from(value) / 65535.0).collect();
        let is_deep = picture.color().bytes_per_pixel() > picture.color().channel_count();
        let interleaved: Vec<f32> = match (is_deep, channels) {
            (false, 1) => bytes(picture.into_luma8().into_raw()),
            (false, _) => bytes(picture.into_rgb8().into_raw()),
            (true, 1) => words(picture.into_luma16().into_raw()),
            (true, _) => words(picture.into_rgb16().into_raw()),
        };
        let channels = channels as usize;
        let planes: Vec<f32> =
            (0..channels).flat_map(|channel| interleaved.iter().skip(channel).step_by(channels).copied()).collect();
        let image = Tensor::from_f32(&self.input.sample_shape, &planes);
        convert(image, self.input.data_type, self.input_scale, origin)
    }
}
