//! JPEG 2000: files (`.jp2`) and bare codestreams (`.j2k`).

use hayro_jpeg2000::{ColorSpace, DecodeSettings, Image};
use image::{DynamicImage, GrayAlphaImage, GrayImage, RgbImage, RgbaImage};

use crate::DecodeError;

/// The first bytes of a file (ISO/IEC 15444-1, I.5.1), and of a codestream (A.4).
const SIGNATURES: [&[u8]; 2] = [b"\x00\x00\x00\x0CjP  ", b"\xFF\x4F\xFF\x51"];

/// Returns whether bytes begin with a signature of JPEG 2000.
pub(crate) fn is_jpeg_2000(bytes: &[u8]) -> bool {
    SIGNATURES.iter().any(|signature| bytes.starts_with(signature))
}

fn open(bytes: &[u8]) -> Result<Image<'_>, DecodeError> {
    Image::new(bytes, &DecodeSettings::default()).map_err(|error| DecodeError::Malformed(error.to_string()))
}

/// Returns the width and height, in pixels.
pub(crate) fn dimensions(bytes: &[u8]) -> Result<(u32, u32), DecodeError> {
    let picture = open(bytes)?;
    Ok((picture.width(), picture.height()))
}

/// Decodes an image that takes at most `limit_bytes`.
pub(crate) fn decode(bytes: &[u8], limit_bytes: u64) -> Result<DynamicImage, DecodeError> {
    let picture = open(bytes)?;
    let (width, height) = (picture.width(), picture.height());
    let channels = u64::from(picture.color_space().num_channels()) + u64::from(picture.has_alpha());
    // The decoder works in float32.
    let needed_bytes = u64::from(width).saturating_mul(u64::from(height)).saturating_mul(channels).saturating_mul(4);
    if needed_bytes > limit_bytes {
        let reason = format!(
            "{width} x {height} pixels in {channels} channels take {needed_bytes} bytes, \
             more than the limit of {limit_bytes} bytes"
        );
        return Err(DecodeError::TooLarge(reason));
    }
    let data = picture.decode().map_err(|error| DecodeError::Malformed(error.to_string()))?;
    let decoded = match (picture.color_space(), channels) {
        (ColorSpace::CMYK, _) => None,
        (_, 1) => GrayImage::from_raw(width, height, data).map(DynamicImage::from),
        (_, 2) => GrayAlphaImage::from_raw(width, height, data).map(DynamicImage::from),
        (_, 3) => RgbImage::from_raw(width, height, data).map(DynamicImage::from),
        (_, 4) => RgbaImage::from_raw(width, height, data).map(DynamicImage::from),
        _ => None,
    };
    decoded.ok_or_else(|| {
        let space = picture.color_space();
        DecodeError::Malformed(format!(
            "a JPEG 2000 image with {channels} channels ({space:?}) is neither grayscale nor RGB"
        ))
    })
}
