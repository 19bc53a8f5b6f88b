//! Contact sheets: the samples of a batch as one image, which shows what a model is trained on.

use std::io::Cursor;
use std::path::Path;

use forebay_base::{DataType, Tensor};
use forebay_images::image::imageops::{self, FilterType};
use forebay_images::image::{ImageFormat, Rgb, RgbImage};

use crate::batch::Batch;
use crate::convert::{convert, to_f64};
use crate::error::DataError;
use crate::lettering::{self, LETTER, LINE};

/// The number of pixels of a sample along its longer side.
const TILE: u32 = 128;
/// The number of pixels between samples.
const GAP: u32 = 4;
/// The most tiles in a row.
const COLUMNS: u32 = 8;
/// The most classes that the caption of a sample names.
const CLASSES_NAMED: usize = 4;
/// The colors of classes, with the background first.
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
/// Each sample is scaled from black (its smallest value) to white. A label map of the same sizes is shown next to its sample. Below a sample
/// with a class, or shares of several, is its [`caption`]; `names` are those of the classes, if they have any.
///
/// # Errors
/// [`DataError`] if samples are not images, or the file cannot be written.
pub fn write(path: &Path, batch: &Batch, names: &[String]) -> Result<(), DataError> {
    forebay_files::write(path, &png(batch, names)?).map_err(|error| DataError::io(path, error))
}

/// Returns the classes of each sample with their shares, the largest first: a class is the whole of its sample, and floating-point numbers
/// that add up to 1 are the shares of classes. Returns `None` for other labels.
///
/// ```
/// use forebay_base::Tensor;
/// use forebay_data::sheet::{caption, shares};
///
/// let mixed = Tensor::from_f32(&[1, 3], &[0.25, 0.0, 0.75]);
/// let shares = shares(&mixed).unwrap();
/// assert_eq!(shares, [vec![(2, 0.75), (0, 0.25)]]);
/// assert_eq!(caption(&shares[0], &[]), "class 2 0.75 + class 0 0.25");
/// ```
pub fn shares(labels: &Tensor) -> Option<Vec<Vec<(i64, f64)>>> {
    let count = *labels.shape().first()?;
    if labels.count() == count {
        return Some(labels.integers()?.map(|class| vec![(class, 1.0)]).collect());
    }
    let classes = *labels.shape().get(1)? as usize;
    if !labels.data_type().is_float() || classes == 0 || labels.shape()[2..].iter().any(|&size| size != 1) {
        return None;
    }
    let rows = to_f64(labels);
    let row = |row: &[f64]| {
        let is_whole = row.iter().all(|share| *share >= 0.0) && (row.iter().sum::<f64>() - 1.0).abs() < 1e-3;
        let mut shares: Vec<(i64, f64)> = (0..).zip(row.iter().copied()).filter(|(_, share)| *share > 0.0).collect();
        shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        is_whole.then_some(shares)
    };
    rows.chunks_exact(classes).map(row).collect()
}

/// Returns the caption of a sample, whose largest share comes first: its classes and their shares in hundredths, such as
/// `cat 0.7 + dog 0.3`. If all shares round to 0, the caption is the first class with two significant digits of its share.
pub fn caption(shares: &[(i64, f64)], names: &[String]) -> String {
    parts(shares, names, usize::MAX).join(" ")
}

/// Returns a caption in parts between which a line can end. Names are cut so that no part has more letters than given.
fn parts(shares: &[(i64, f64)], names: &[String], letters: usize) -> Vec<String> {
    let rounded = |share: f64| (share * 100.0).round() / 100.0;
    let mut visible: Vec<(i64, f64)> =
        shares.iter().map(|&(class, share)| (class, rounded(share))).filter(|(_, share)| *share > 0.0).collect();
    if visible.is_empty() {
        let two_digits = |share: f64| format!("{share:.1e}").parse().unwrap_or(share);
        visible.extend(shares.first().map(|&(class, share)| (class, two_digits(share))));
    }
    let part = |(number, &(class, share)): (usize, &(i64, f64))| {
        let share = if share < 1.0 { format!(" {share}") } else { String::new() };
        let end = share + if number + 1 < visible.len() { " +" } else { "" };
        let name = usize::try_from(class).ok().and_then(|class| names.get(class)).cloned();
        shortened(&name.unwrap_or_else(|| format!("class {class}")), letters - end.len()) + &end
    };
    let mut parts: Vec<String> = visible.iter().enumerate().take(CLASSES_NAMED).map(part).collect();
    if visible.len() > CLASSES_NAMED {
        parts.push("...".to_owned());
    }
    parts
}

/// Returns a name of at most this many letters, the last of which are dots if it was longer.
fn shortened(name: &str, letters: usize) -> String {
    match name.chars().count() > letters {
        true => name.chars().take(letters.saturating_sub(2)).chain("..".chars()).collect(),
        false => name.to_owned(),
    }
}

/// Returns a caption in lines as wide as a tile.
fn lines(shares: &[(i64, f64)], names: &[String]) -> Vec<String> {
    let most = (TILE / LETTER) as usize;
    let letters = |text: &str| text.chars().count();
    let mut lines: Vec<String> = Vec::new();
    for part in parts(shares, names, most) {
        match lines.last_mut().filter(|line| letters(line) + 1 + letters(&part) <= most) {
            Some(line) => *line = format!("{line} {part}"),
            None => lines.push(part),
        }
    }
    lines
}

/// Returns the same image as the contents of a PNG file.
///
/// # Errors
/// [`DataError`] if samples are not images.
pub fn png(batch: &Batch, names: &[String]) -> Result<Vec<u8>, DataError> {
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
    // Samples with label maps are two tiles each, and have no captions.
    let shares = if labels.is_some() { None } else { shares(&batch.labels) };
    let captions: Vec<Vec<String>> = shares.unwrap_or_default().iter().map(|shares| lines(shares, names)).collect();
    let most_lines = captions.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let columns = COLUMNS.min(tiles.len() as u32);
    let (width, height) = (TILE + GAP, TILE + most_lines * LINE + GAP);
    let rows = (tiles.len() as u32).div_ceil(columns);
    let mut sheet = RgbImage::from_pixel(columns * width + GAP, rows * height + GAP, Rgb([96; 3]));
    for (number, tile) in (0..).zip(&tiles) {
        let (x, y) = (GAP + number % columns * width, GAP + number / columns * height);
        imageops::replace(&mut sheet, tile, i64::from(x), i64::from(y));
        for (line, text) in (0..).zip(captions.get(number as usize).into_iter().flatten()) {
            lettering::draw(&mut sheet, text, (x, y + TILE + line * LINE));
        }
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
        write(&path, &batch, &[]).unwrap();
        let sheet = forebay_images::image::open(&path).unwrap().into_rgb8();
        assert_eq!(sheet.dimensions(), (4 * (TILE + GAP) + GAP, TILE + 2 * GAP));
        let at = |tile: u32, right: bool| {
            sheet.get_pixel(GAP + tile * (TILE + GAP) + if right { TILE - 2 } else { 1 }, GAP + 8).0
        };
        assert_eq!([at(0, false), at(0, true), at(2, false)], [[0; 3], [255; 3], [0; 3]]);
        assert_eq!([at(1, false), at(1, true), at(3, true)], [CLASSES[0], CLASSES[1], CLASSES[2]]);
    }

    #[test]
    fn captions_name_classes_and_their_shares() {
        let names = ["cat", "dog", "bird", "a plesiosaurus", "fish"].map(str::to_owned);
        let caption = |row: &[f32]| {
            let labels = Tensor::from_f32(&[1, row.len() as u64], row);
            shares(&labels).map(|shares| caption(&shares[0], &names))
        };
        let found = [
            caption(&[0.7, 0.3]),
            caption(&[0.0, 1.0, 0.0]),
            caption(&[0.004, 0.0, 0.996]),
            caption(&[0.1, 0.1, 0.1, 0.1, 0.35, 0.25]),
            caption(&[1.0 / 300.0; 300]),
            // Targets that are no shares.
            caption(&[0.7, 0.7]),
            caption(&[1.5, -0.5]),
            caption(&[f32::NAN, 1.0]),
        ];
        let expected = [
            Some("cat 0.7 + dog 0.3"),
            Some("dog"),
            Some("bird"),
            Some("fish 0.35 + class 5 0.25 + cat 0.1 + dog 0.1 + ..."),
            Some("cat 0.0033"),
            None,
            None,
            None,
        ];
        assert_eq!(found.each_ref().map(|found| found.as_deref()), expected);
        assert_eq!(lines(&[(0, 0.5), (1, 0.25), (3, 0.25)], &names), ["cat 0.5 + dog 0.25 +", "a plesiosaurus 0.25"]);
        let long = ["a".repeat(30), "\u{e4}".repeat(30)];
        let cut = [format!("{}.. 0.75 +", "a".repeat(12)), format!("{}.. 0.25", "\u{e4}".repeat(14))];
        assert_eq!(lines(&[(0, 0.75), (1, 0.25)], &long), cut);
        assert_eq!(lines(&[(0, 1.0)], &long), [format!("{}..", "a".repeat(19))]);
        assert_eq!(shares(&Tensor::from_i64(&[2], &[3, 1])), Some(vec![vec![(3, 1.0)], vec![(1, 1.0)]]));
        assert_eq!(shares(&Tensor::from_f32(&[1, 2, 1], &[0.0, 1.0])), Some(vec![vec![(1, 1.0)]]));
        assert_eq!(shares(&Tensor::from_f32(&[1, 2, 2], &[0.5; 4])), None, "a map of shares");
        assert_eq!(shares(&Tensor::from_i64(&[1, 2], &[3, 1])), None, "a map");
        assert_eq!(shares(&Tensor::from_f32(&[2], &[0.5, 0.5])), None, "a number for each sample");
    }

    #[test]
    fn captions_are_below_their_samples() {
        let image = Tensor::from_f32(&[2, 1, 1, 1], &[0.0, 0.0]);
        let labels = Tensor::from_f32(&[2, 2], &[0.5, 0.5, 0.0, 1.0]);
        let batch = Batch { inputs: [("x".to_string(), image)].into(), labels };
        let sheet = |names: [&str; 2]| {
            let png = png(&batch, &names.map(str::to_owned)).unwrap();
            forebay_images::image::load_from_memory(&png).unwrap().into_rgb8()
        };
        let found = sheet(["cat", "dog"]);
        assert_eq!(found.dimensions(), (2 * (TILE + GAP) + GAP, TILE + LINE + 2 * GAP));
        let below = |tile: u32| {
            let mut picture = RgbImage::from_pixel(TILE, LINE, Rgb([96; 3]));
            lettering::draw(&mut picture, if tile == 0 { "cat 0.5 + dog 0.5" } else { "dog" }, (0, 0));
            (picture, imageops::crop_imm(&found, GAP + tile * (TILE + GAP), GAP + TILE, TILE, LINE).to_image())
        };
        for tile in 0..2 {
            let (expected, found) = below(tile);
            assert!(expected == found, "tile {tile}");
        }
        assert_eq!(sheet(["a long name", "another one"]).height(), TILE + 2 * LINE + 2 * GAP);
    }

    #[test]
    fn label_maps_of_one_pixel_are_no_captions() {
        let image = Tensor::from_f32(&[2, 1, 1, 1], &[0.0, 0.0]);
        let labels = Tensor::from_i64(&[2, 1, 1], &[0, 1]);
        let batch = Batch { inputs: [("x".to_string(), image)].into(), labels };
        let sheet = forebay_images::image::load_from_memory(&png(&batch, &[]).unwrap()).unwrap();
        assert_eq!((sheet.width(), sheet.height()), (4 * (TILE + GAP) + GAP, TILE + 2 * GAP));
    }

    #[test]
    fn what_is_no_image_is_named() {
        let batch = Batch {
            inputs: [("x".to_string(), Tensor::from_f32(&[1, 2], &[0.0; 2]))].into(),
            labels: Tensor::from_i64(&[1], &[0]),
        };
        let error = write(Path::new("sheet.png"), &batch, &[]).unwrap_err().to_string();
        assert!(error.contains("x [2]"), "{error}");
    }
}
