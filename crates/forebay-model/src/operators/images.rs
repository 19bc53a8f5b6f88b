//! Images decoded from the bytes of their files. The sizes depend on the bytes, which must therefore be constants.

use forebay_base::{DataType, Tensor};
use forebay_images::image::{DynamicImage, Rgb};
use forebay_images::{DECODED_BYTES_MAX, DecodeError};

use super::decomposition::{Composer, Decomposition, composed};
use crate::error::ModelError;
use crate::operator::{Gradient, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[Operator { gradient: Gradient::Zero, ..composed!("ImageDecoder", image_decoder) }];

/// Returns an image of height x width x channels. Bytes that cannot be decoded give an image without pixels.
///
/// JPEG leaves decoders some freedom: if colors are stored at half the resolution, values can differ by 2 from those of other decoders.
fn image_decoder(view: NodeView) -> Result<Decomposition, ModelError> {
    let bytes = view.whole_constant(0)?;
    if bytes.data_type() != DataType::UInt8 || bytes.shape().len() != 1 {
        return Err(view.error(format!("an encoded image must be a list of uint8, not {}", bytes.ty())));
    }
    let format = view.string("pixel_format", "RGB")?;
    let (channels, interleave): (u64, fn(DynamicImage) -> Vec<u8>) = match format {
        "RGB" => (3, |picture| picture.into_rgb8().into_raw()),
        "BGR" => (3, bgr),
        "Grayscale" => (1, gray),
        _ => return Err(view.error(format!("attribute pixel_format must be RGB, BGR or Grayscale, not '{format}'"))),
    };
    let (height, width, pixels) = match forebay_images::decode(bytes.bytes(), DECODED_BYTES_MAX) {
        Ok(picture) => (u64::from(picture.height()), u64::from(picture.width()), interleave(picture)),
        Err(DecodeError::Malformed(_)) => (0, 0, Vec::new()),
        Err(error @ DecodeError::TooLarge(_)) => return Err(view.error(error.to_string())),
    };
    let decoded = Tensor::new(DataType::UInt8, &[height, width, channels], pixels);
    let decoded = decoded.ok_or_else(|| view.error("the image is too large"))?;
    let mut c = Composer::new(view);
    let y = c.constant(decoded);
    c.finish(y)
}

fn bgr(picture: DynamicImage) -> Vec<u8> {
    let mut pixels = picture.into_rgb8().into_raw();
    pixels.chunks_exact_mut(3).for_each(|pixel| pixel.swap(0, 2));
    pixels
}

/// Luma with the weights of ITU-R BT.601, rounded to the nearest integer, as in the operator's reference implementation.
fn gray(picture: DynamicImage) -> Vec<u8> {
    if !picture.color().has_color() {
        return picture.into_luma8().into_raw();
    }
    let weighed = |pixel: &Rgb<u8>| {
        let [red, green, blue] = pixel.0.map(u32::from);
        ((19_595 * red + 38_470 * green + 7_471 * blue + (1 << 15)) >> 16) as u8
    };
    picture.into_rgb8().pixels().map(weighed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_images::image;

    #[test]
    fn channels_come_as_they_are_asked_for() {
        let picture = || DynamicImage::from(image::RgbImage::from_pixel(1, 1, image::Rgb([255, 128, 10])));
        assert_eq!(bgr(picture()), [10, 128, 255]);
        // 0.299 * 255 + 0.587 * 128 + 0.114 * 10 = 152.52
        assert_eq!(gray(picture()), [153]);
        let gray_already = DynamicImage::from(image::GrayImage::from_pixel(1, 1, image::Luma([77])));
        assert_eq!(gray(gray_already), [77]);
    }
}
