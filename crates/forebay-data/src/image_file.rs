//! One image: PNG, JPEG, WebP or TIFF, resized to a model's input.
//!
//! An image is resized (linear filter), made grey where the input has one channel and RGB where it has three, and scaled from 0..255 to 0..1.

use std::io::Cursor;
use std::path::Path;

use forebay_base::Tensor;
use image::imageops::FilterType;
use image::ImageReader;

use crate::convert::convert;
use crate::dataset::{image_input, InputDescription, Requirements};
use crate::error::DataError;

/// Extensions of file names that are taken for images.
const EXTENSIONS: [&str; 6] = ["png", "jpg", "jpeg", "webp", "tif", "tiff"];

/// Whether a name is that of an image.
pub(crate) fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str())
}

/// A reader of an image's bytes. All images are read by this one type: decoders are compiled again for each kind of stream.
///
/// # Errors
/// Why there is none.
fn reader(bytes: &[u8]) -> Result<ImageReader<Cursor<&[u8]>>, String> {
    ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| error.to_string())
}

/// Width and height of an image, in pixels; none where it cannot be read.
pub(crate) fn dimensions(path: &Path) -> Option<(u32, u32)> {
    let bytes = std::fs::read(path).ok()?;
    reader(&bytes).ok()?.into_dimensions().ok()
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
        let unreadable = |reason: String| DataError::malformed(origin, format!("not a readable image: {reason}"));
        let mut reader = reader(bytes).map_err(unreadable)?;
        let mut limits = image::Limits::default();
        let available_bytes = forebay_limits::available_bytes(forebay_limits::Use::Private);
        limits.max_alloc = limits.max_alloc.into_iter().chain(available_bytes).min();
        reader.limits(limits);
        let picture = reader.decode().map_err(|error| unreadable(error.to_string()))?;
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
