//! One image, resized to a model's input.
//!
//! An image is resized (linear filter), made grey where the input has one channel and RGB where it has three, and scaled from 0..255 to 0..1.

use std::path::Path;

use forebay_base::Tensor;
use forebay_images::DECODED_BYTES_MAX;
use forebay_images::image::imageops::FilterType;

use crate::convert::convert;
use crate::dataset::{InputDescription, Requirements, image_input};
use crate::error::DataError;

/// Whether a name is that of an image.
pub(crate) fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    forebay_images::EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str())
}

/// Width and height of an image, in pixels; none where it cannot be read.
pub(crate) fn dimensions(path: &Path) -> Option<(u32, u32)> {
    forebay_images::dimensions(&std::fs::read(path).ok()?).ok()
}

/// What images become.
pub(crate) struct Images {
    /// The model's input.
    pub(crate) input: InputDescription,
    input_scale: f64,
}

impl Images {
    /// Images for a model; `what` holds them.
    ///
    /// # Errors
    /// A sentence that says why the model takes no images.
    pub(crate) fn of(requirements: &Requirements, what: &str) -> Result<Images, String> {
        let (input, channels, _) = image_input(requirements, &[2], what)?;
        match channels {
            1 | 3 => Ok(Images { input, input_scale: requirements.input_scale }),
            _ => Err(format!("images have 1 or 3 channels, and input {} has {channels}", input.name)),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`DataError`] naming it.
    pub(crate) fn read(&self, path: &Path) -> Result<Tensor, DataError> {
        let bytes = std::fs::read(path).map_err(|error| DataError::io(path, error))?;
        self.decode(&bytes, &path.display().to_string())
    }

    /// Reads an image from the bytes of its file.
    ///
    /// # Errors
    /// [`DataError`] naming `origin`.
    pub(crate) fn decode(&self, bytes: &[u8], origin: &str) -> Result<Tensor, DataError> {
        let [channels, height, width] = self.input.sample_shape[..] else {
            unreachable!("three axes are checked when the set is opened");
        };
        let size = |size: u64| u32::try_from(size).map_err(|_| DataError::unsupported(origin, "an input that large"));
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
