//! Decoding of image files: PNG, JPEG, JPEG 2000, WebP, TIFF, BMP and PNM (PBM, PGM, PPM, PAM), recognized by their first bytes.
//!
//! ```
//! let file = b"P5 2 1 255 \x00\xff";
//! let picture = forebay_images::decode(file, 1 << 20)?;
//! assert_eq!((picture.width(), picture.height()), (2, 1));
//! assert_eq!(picture.into_luma8().into_raw(), [0, 255]);
//! # Ok::<(), forebay_images::DecodeError>(())
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod jpeg_2000;

use std::fmt;
use std::io::Cursor;

/// The types of decoded images, and the operations on them.
pub use image;
use image::{DynamicImage, ImageError, ImageFormat, ImageReader, Limits};

/// The extensions of files that can be decoded, in lower case.
pub const EXTENSIONS: [&str; 15] =
    ["png", "jpg", "jpeg", "jp2", "j2k", "j2c", "webp", "tif", "tiff", "bmp", "pbm", "pgm", "ppm", "pnm", "pam"];

/// The most bytes of memory that a decoded image may take if nothing else limits it.
pub const DECODED_BYTES_MAX: u64 = 512 << 20;

/// The first bytes of TIFF files with 64-bit offsets, in either byte order. The decoder reads such files, but does not recognize them.
const BIG_TIFF: [&[u8]; 2] = [b"II+\0", b"MM\0+"];

/// The reason why bytes cannot be decoded as an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes are in no known format, or violate its rules.
    Malformed(String),
    /// Decoding the bytes would take more memory than the limit.
    TooLarge(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Malformed(reason) | DecodeError::TooLarge(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<ImageError> for DecodeError {
    fn from(error: ImageError) -> DecodeError {
        match error {
            ImageError::Limits(_) => DecodeError::TooLarge(error.to_string()),
            ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                DecodeError::Malformed("truncated: the file ends before the image does".to_owned())
            }
            ImageError::Unsupported(_) => {
                DecodeError::Malformed(format!("{error}; convert the image to PNG, or its numbers to .npy"))
            }
            // Some decoders end their messages with a line break.
            _ => DecodeError::Malformed(error.to_string().trim_end().to_owned()),
        }
    }
}

/// Decodes an image that takes at most `limit_bytes` of memory; the decoder itself may temporarily use somewhat more.
///
/// # Errors
/// [`DecodeError`].
pub fn decode(bytes: &[u8], limit_bytes: u64) -> Result<DynamicImage, DecodeError> {
    if jpeg_2000::is_jpeg_2000(bytes) {
        return jpeg_2000::decode(bytes, limit_bytes);
    }
    if is_cut_jpeg(bytes) {
        return Err(DecodeError::Malformed("truncated: the end of the JPEG image is missing".to_owned()));
    }
    let mut limits = Limits::default();
    limits.max_alloc = Some(limit_bytes);
    let mut reader = reader(bytes)?;
    reader.limits(limits);
    Ok(reader.decode()?)
}

/// Returns whether bytes are a JPEG image that breaks off: the decoder would make up the rest of the picture.
fn is_cut_jpeg(bytes: &[u8]) -> bool {
    let Some(mut rest) = bytes.strip_prefix(&[0xff, 0xd8]) else { return false };
    // The segments before the pixels are skipped, because they can contain another image (a preview), with its own end.
    while let [0xff, marker, high, low, ..] = *rest {
        if marker == 0xda {
            // Among the pixels, no other bytes look like the end of the image, which is usually the end of the file.
            return !rest.windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
        }
        // Any number of bytes 0xff can precede a marker.
        let skipped = if marker == 0xff { 1 } else { 2 + usize::from(u16::from_be_bytes([high, low])) };
        rest = rest.get(skipped..).unwrap_or_default();
    }
    false
}

/// Returns the width and height of an image, in pixels.
///
/// # Errors
/// [`DecodeError`].
pub fn dimensions(bytes: &[u8]) -> Result<(u32, u32), DecodeError> {
    if jpeg_2000::is_jpeg_2000(bytes) {
        return jpeg_2000::dimensions(bytes);
    }
    Ok(reader(bytes)?.into_dimensions()?)
}

/// Returns the reader of an image. All images are read through this one type, because decoders are compiled again for each type of stream.
fn reader(bytes: &[u8]) -> Result<ImageReader<Cursor<&[u8]>>, DecodeError> {
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if BIG_TIFF.iter().any(|signature| bytes.starts_with(signature)) {
        reader.set_format(ImageFormat::Tiff);
    }
    Ok(reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::RgbImage;

    const FORMATS: [ImageFormat; 6] =
        [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Tiff, ImageFormat::Bmp, ImageFormat::Pnm];

    fn written(format: ImageFormat) -> Vec<u8> {
        let picture = RgbImage::from_fn(5, 3, |x, y| image::Rgb([40 * x as u8, 70 * y as u8, 200]));
        let mut file = Cursor::new(Vec::new());
        picture.write_to(&mut file, format).unwrap();
        file.into_inner()
    }

    #[test]
    fn every_format_is_recognized_by_its_first_bytes() {
        let expected = decode(&written(ImageFormat::Png), 1 << 20).unwrap().into_rgb8();
        assert_eq!(expected.get_pixel(2, 1).0, [80, 70, 200]);
        for format in FORMATS {
            let file = written(format);
            assert_eq!(dimensions(&file), Ok((5, 3)), "{format:?}");
            let picture = decode(&file, 1 << 20).unwrap().into_rgb8();
            if format == ImageFormat::Jpeg {
                assert_eq!(picture.dimensions(), (5, 3));
            } else {
                assert_eq!(picture, expected, "{format:?}");
            }
            assert!(format.extensions_str().iter().any(|extension| EXTENSIONS.contains(extension)), "{format:?}");
        }
    }

    #[test]
    fn what_breaks_off_or_is_no_picture_is_refused() {
        assert!(matches!(decode(b"no picture", 1 << 20), Err(DecodeError::Malformed(_))));
        assert!(matches!(dimensions(b""), Err(DecodeError::Malformed(_))));
        for format in FORMATS {
            let file = written(format);
            let error = decode(&file[..16], 1 << 20).unwrap_err();
            assert!(matches!(error, DecodeError::Malformed(_)), "{format:?}: {error}");
        }
        for format in [ImageFormat::Png, ImageFormat::Tiff, ImageFormat::Bmp] {
            let file = written(format);
            let error = decode(&file[..file.len() / 2], 1 << 20).unwrap_err().to_string();
            assert_eq!(error, "truncated: the file ends before the image does", "{format:?}");
        }
    }

    #[test]
    fn tiff_files_with_64_bit_offsets_are_read() {
        // Two gray pixels, then the fields: width, height, bits, compression, photometric interpretation, and the place, channels, rows and
        // size of the pixels.
        let fields = [(256u16, 2u64), (257, 1), (258, 8), (259, 1), (262, 1), (273, 16), (277, 1), (278, 1), (279, 2)];
        for is_big_endian in [false, true] {
            let mut file = if is_big_endian { b"MM\0+".to_vec() } else { b"II+\0".to_vec() };
            let mut add = |bytes: &[u8]| match is_big_endian {
                true => file.extend(bytes.iter().rev()),
                false => file.extend(bytes),
            };
            [8u16, 0].iter().for_each(|number| add(&number.to_le_bytes()));
            add(&24u64.to_le_bytes());
            add(&[7]);
            add(&[255]);
            add(&[0; 6]);
            add(&9u64.to_le_bytes());
            for (tag, value) in fields {
                [tag, 16].iter().for_each(|number| add(&number.to_le_bytes()));
                [1, value].iter().for_each(|number| add(&number.to_le_bytes()));
            }
            add(&[0; 8]);
            assert_eq!(dimensions(&file), Ok((2, 1)));
            assert_eq!(decode(&file, 1 << 20).unwrap().into_luma8().into_raw(), [7, 255]);
        }
    }

    #[test]
    fn kinds_of_images_without_a_decoder_are_refused_with_a_way_out() {
        // A GIF image; a TIFF image of one pixel with a palette, whose tags are width, height, bits, photometric interpretation, place and
        // size of the pixels.
        let tags = [(256, 1), (257, 1), (258, 8), (262, 3), (273, 8), (279, 1)];
        let mut palette = b"II*\0\x08\0\0\0\x06\0".to_vec();
        for (tag, value) in tags {
            palette.extend([u16::to_le_bytes(tag), u16::to_le_bytes(3)].concat());
            palette.extend([u32::to_le_bytes(1), u32::to_le_bytes(value)].concat());
        }
        palette.extend([0; 4]);
        for file in [&b"GIF89a\x01\0\x01\0\0\0\0;"[..], &palette] {
            let error = decode(file, 1 << 20).unwrap_err().to_string();
            assert!(error.contains("convert the image to PNG, or its numbers to .npy"), "{error}");
        }
    }

    #[test]
    fn jpeg_images_without_an_end_are_refused() {
        let file = written(ImageFormat::Jpeg);
        // A whole image in a segment before the pixels, as previews are, and other data after the end, as films are.
        let preview = [&[0xff, 0xe1][..], &(2 + file.len() as u16).to_be_bytes(), &file].concat();
        let photo = [&file[..2], &preview, &file[2..], b"\xff\xda film"].concat();
        assert_eq!(decode(&photo, 1 << 20).unwrap(), decode(&file, 1 << 20).unwrap());
        let begun = 2 + preview.len() + file.len() - 10;
        for cut in [&file[..file.len() - 1], &file[..file.len() - 4], &photo[..begun]] {
            let error = decode(cut, 1 << 20).unwrap_err().to_string();
            assert_eq!(error, "truncated: the end of the JPEG image is missing");
        }
        let padded = [&file[..2], &[0xff], &file[2..]].concat();
        assert!(!is_cut_jpeg(&padded) && is_cut_jpeg(&padded[..padded.len() - 1]));
    }

    #[test]
    fn a_picture_that_takes_more_than_the_limit_is_refused() {
        let file = b"P6 60000 60000 255 \x00";
        let error = decode(file, 1 << 20).unwrap_err();
        assert!(matches!(error, DecodeError::TooLarge(_)), "{error}");
    }
}
