//! Contact sheets: the samples of a batch as one image, which shows what a model is trained on.

use std::io::Cursor;
use std::path::Path;

use forebay_base::{DataType, Tensor};
use forebay_images::image::imageops::{self, FilterType};
use forebay_images::image::{ImageFormat, Rgb, RgbImage};

use crate::batch::Batch;
use crate::convert::{convert, to_f64};
use crate::error::DataError;

/// The number of pixels of a sample along its longer side.
const TILE: u32 = 128;
/// The number of pixels between samples.
const GAP: u32 = 4;
/// The most tiles in a row.
const COLUMNS: u32 = 8;
/// The colours of classes, with the background first.
const CLASSES: [[u8; 3]; 8] = [
    [0, 0, 0],
    [31, 95, 168],
    [200, 80, 42],
    [60, 150, 70],
    [150, 90, 170],
    [210, 170, 40],
    [90, 190, 200],
    [230, 130, 170],
];

/// Writes the samples of a batch as a PNG file: the first input with two or three spatial axes; of three, the middle plane along the first.
/// Each sample is scaled from black (its smallest value) to white. A label map of the same sizes is shown next to its sample.
///
/// # Errors
/// [`DataError`] if samples are not images, or the file cannot be written.
pub fn write(path: &Path, batch: &Batch) -> Result<(), DataError> {
    forebay_files::write(path, &png(batch)?).map_err(|error| DataError::io(path, error))
}

/// Returns the same image as the contents of a PNG file.
///
/// # Errors
/// [`DataError`] if samples are not images.
pub fn png(batch: &Batch) -> Result<Vec<u8>, DataError> {
    let image = batch.inputs.values().find(|input| matches!(input.shape().len(), 4 | 5));
    let Some(image) = image else {
        let shapes: Vec<String> =
            batch.inputs.iter().map(|(name, input)| format!("{name} {:?}", &input.shape()[1..])).collect();
        let reason =
            format!("no input has channels and two or three spatial axes; the inputs are {}", shapes.join(", "));
        return Err(DataError::unsupported("the data", reason));
    };
    let labels = Some(&batch.labels).filter(|labels| labels.shape()[1..] == image.shape()[2..]);
    let mut tiles = Vec::new();
    for sample in 0..image.shape()[0] {
        tiles.push(grown(&values(image, sample)?, FilterType::Triangle));
        tiles.extend(labels.map(|labels| grown(&classes(labels, sample), FilterType::Nearest)));
    }
    let columns = COLUMNS.min(tiles.len() as u32);
    let (width, height) = (TILE + GAP, TILE + GAP);
    let rows = (tiles.len() as u32).div_ceil(columns);
    let mut sheet = RgbImage::from_pixel(columns * width + GAP, rows * height + GAP, Rgb([96; 3]));
    for (number, tile) in (0..).zip(&tiles) {
        let (x, y) = (GAP + number % columns * width, GAP + number / columns * height);
        imageops::replace(&mut sheet, tile, i64::from(x), i64::from(y));
    }
    let mut bytes = Cursor::new(Vec::new());
    let written = sheet.write_to(&mut bytes, ImageFormat::Png);
    written.map_err(|error| DataError::malformed("the picture", error.to_string()))?;
    Ok(bytes.into_inner())
}

/// Returns the height, the width and the first position of the plane that is shown, for these spatial axes.
fn plane(spatial: &[u64]) -> (usize, usize, usize) {
    let [height, width] = [spatial[spatial.len() - 2], spatial[spatial.len() - 1]].map(|size| size as usize);
    let middle = if spatial.len() == 3 { spatial[0] as usize / 2 } else { 0 };
    (height, width, middle * height * width)
}

/// Returns a sample's values as an image.
fn values(image: &Tensor, sample: u64) -> Result<RgbImage, DataError> {
    let row = convert(image.rows(&[sample]), DataType::Float64, 1.0, "the data")?;
    let values = to_f64(&row);
    let (height, width, start) = plane(&image.shape()[2..]);
    let per_channel: u64 = image.shape()[2..].iter().product();
    let places: Vec<usize> = match image.shape()[1] {
        3 => (0..3).map(|channel| channel * per_channel as usize + start).collect(),
        _ => vec![start; 3],
    };
    let shown = || places.iter().flat_map(|&place| values[place..place + height * width].iter().copied());
    let (low, high) = shown()
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    let byte = |value: f64| ((value - low) / (high - low).max(1e-12) * 255.0).round().clamp(0.0, 255.0) as u8;
    let pixel = |x: u32, y: u32| {
        let at = y as usize * width + x as usize;
        Rgb([0, 1, 2].map(|channel| byte(values[places[channel] + at])))
    };
    Ok(RgbImage::from_fn(width as u32, height as u32, pixel))
}

/// Returns a sample's label map as an image.
fn classes(labels: &Tensor, sample: u64) -> RgbImage {
    let values = to_f64(&labels.rows(&[sample]));
    let (height, width, start) = plane(&labels.shape()[1..]);
    let color = |label: f64| match label as i64 {
        0 => CLASSES[0],
        label => CLASSES[1 + (label - 1).rem_euclid(CLASSES.len() as i64 - 1) as usize],
    };
    RgbImage::from_fn(width as u32, height as u32, |x, y| Rgb(color(values[start + y as usize * width + x as usize])))
}

/// Resizes an image to the size of a tile, keeping its aspect ratio.
fn grown(picture: &RgbImage, filter: FilterType) -> RgbImage {
    let longer = picture.width().max(picture.height()).max(1);
    let size = |size: u32| (u64::from(size) * u64::from(TILE) / u64::from(longer)).max(1) as u32;
    // Enlarged images show their pixels.
    let filter = if longer <= TILE { FilterType::Nearest } else { filter };
    imageops::resize(picture, size(picture.width()), size(picture.height()), filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_their_label_maps_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sheet.png");
        let image = Tensor::from_f32(&[2, 1, 1, 2], &[-1.0, 3.0, 5.0, 5.0]);
        let labels = Tensor::from_i64(&[2, 1, 2], &[0, 1, 2, 2]);
        let batch = Batch { inputs: [("x".to_string(), image)].into(), labels };
        write(&path, &batch).unwrap();
        let sheet = forebay_images::image::open(&path).unwrap().into_rgb8();
        assert_eq!(sheet.dimensions(), (4 * (TILE + GAP) + GAP, TILE + 2 * GAP));
        let at = |tile: u32, right: bool| {
            sheet.get_pixel(GAP + tile * (TILE + GAP) + if right { TILE - 2 } else { 1 }, GAP + 8).0
        };
        assert_eq!([at(0, false), at(0, true), at(2, false)], [[0; 3], [255; 3], [0; 3]]);
        assert_eq!([at(1, false), at(1, true), at(3, true)], [CLASSES[0], CLASSES[1], CLASSES[2]]);
    }

    #[test]
    fn what_is_no_image_is_named() {
        let batch = Batch {
            inputs: [("x".to_string(), Tensor::from_f32(&[1, 2], &[0.0; 2]))].into(),
            labels: Tensor::from_i64(&[1], &[0]),
        };
        let error = write(Path::new("sheet.png"), &batch).unwrap_err().to_string();
        assert!(error.contains("x [2]"), "{error}");
    }
}
