//! Guesses what a data set holds if no model says what it expects, so that it can be inspected.

use std::path::{Path, PathBuf};

use forebay_base::DataType;

use crate::arrays::Arrays;
use crate::dataset::{InputDescription, LabelKind, Requirements};
use crate::error::DataError;
use crate::open::{Kind, kind};
use crate::reading::Reading;
use crate::{pairing, sound_set, volume_file};

/// The number of tokens in a sequence of text.
const SEQUENCE_LENGTH: u64 = 128;

/// Returns requirements that fit a data set as it is: arrays with their own sizes, volumes with the sizes of the first one, images of
/// `image_size` x `image_size` pixels with three channels, and sequences of 128 tokens.
///
/// ```
/// let found = forebay_data::guess("../../examples/digits/digits.npz#0..10", 64).unwrap();
/// assert_eq!(found.inputs[0].sample_shape, [1, 8, 8]);
/// assert_eq!(forebay_data::open("../../examples/digits/digits.npz#0..10", &found).unwrap().sample_count(), 10);
/// ```
///
/// # Errors
/// [`DataError`] naming the path, or if samples cannot be inspected without a model.
pub fn guess(data: &str, image_size: u64) -> Result<Requirements, DataError> {
    guess_with(data, image_size, &Reading::default())
}

/// Returns requirements like [`fn@guess`], for the given way of reading: with a tokenizer, columns of text are sequences, too.
///
/// # Errors
/// The errors of [`fn@guess`].
pub fn guess_with(data: &str, image_size: u64, reading: &Reading) -> Result<Requirements, DataError> {
    let (path, kind) = kind(data, reading)?;
    let kind = match (kind, &reading.text.tokenizer) {
        (Kind::Columns, Some(_)) => Kind::Text,
        _ => kind,
    };
    let input = |name: &str, sample_shape: Vec<u64>| InputDescription {
        name: name.to_owned(),
        data_type: DataType::Float32,
        sample_shape,
    };
    let (labels, label_shape) = (LabelKind::Classes, Vec::new());
    match kind {
        Kind::Arrays => of_arrays(path),
        Kind::Volumes => {
            let first = pairing::pairs(path)?.swap_remove(0);
            let mut shape = volume_file::open(&first.labels)?.header().shape.clone();
            while shape.len() > 3 && shape.last() == Some(&1) {
                shape.pop();
            }
            // Axes of an image that its labels do not have are channels. An image that cannot be read is named when it is needed.
            let channels = |image: &PathBuf| -> u64 {
                let found = volume_file::open(image).map(|stream| stream.header().shape.clone());
                found.unwrap_or_default().iter().skip(shape.len()).product()
            };
            let channels: u64 = first.images.iter().map(channels).sum();
            let inputs = vec![input("image", [&[channels], shape.as_slice()].concat())];
            Ok(Requirements { inputs, input_scale: 1.0, labels, label_shape: shape })
        }
        Kind::Images | Kind::Table | Kind::Shards => {
            let inputs = vec![input("image", vec![3, image_size, image_size])];
            Ok(Requirements { inputs, input_scale: 1.0, labels, label_shape })
        }
        #[cfg(feature = "tables")]
        Kind::Columns => crate::table_set::guess(&crate::tables::open(path)?, image_size),
        #[cfg(not(feature = "tables"))]
        Kind::Columns => Err(DataError::unsupported(data, "this program was built without Parquet and Arrow")),
        Kind::Text => {
            let (data_type, sample_shape) = (DataType::Int64, vec![SEQUENCE_LENGTH]);
            let inputs = vec![InputDescription { name: "tokens".to_owned(), data_type, sample_shape }];
            Ok(Requirements { inputs, input_scale: 1.0, labels, label_shape: vec![SEQUENCE_LENGTH] })
        }
        Kind::Sounds => {
            let inputs = vec![input("sound", sound_set::first_shape(path)?)];
            Ok(Requirements { inputs, input_scale: 1.0, labels, label_shape })
        }
        Kind::Ragged => Err(DataError::unsupported(data, "samples of different sizes cannot be shown")),
    }
}

fn of_arrays(path: &Path) -> Result<Requirements, DataError> {
    let mut arrays = Arrays::open(path)?;
    let names = arrays.names()?;
    let label_name = if names.iter().any(|name| name == "y") { "y" } else { "labels" };
    let (mut inputs, mut labels, mut label_shape) = (Vec::new(), LabelKind::Classes, Vec::new());
    for name in names {
        let Some(ty) = arrays.ty(&name)? else { continue };
        let sample_shape: Vec<u64> = ty.shape.iter().skip(1).copied().collect();
        if name == label_name {
            if ty.data_type.is_float() {
                labels = LabelKind::Values(ty.data_type);
            }
            label_shape = sample_shape;
            continue;
        }
        inputs.push(InputDescription { name, data_type: DataType::Float32, sample_shape });
    }
    Ok(Requirements { inputs, input_scale: 1.0, labels, label_shape })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nifti::samples;

    #[test]
    fn a_fourth_axis_of_an_image_is_channels() {
        let folder = tempfile::tempdir().unwrap();
        for (name, shape) in [("imagesTr", [2, 3, 4, 5].as_slice()), ("labelsTr", &[2, 3, 4])] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            let voxels = vec![1; shape.iter().product::<i16>() as usize];
            std::fs::write(folder.path().join(name).join("a.nii"), samples::file(2, shape, &voxels, 0.0, 0.0)).unwrap();
        }
        let data = folder.path().to_str().unwrap();
        let found = guess(data, 8).unwrap();
        assert_eq!(found.inputs[0].sample_shape, [5, 2, 3, 4]);
        assert_eq!(crate::open(data, &found).unwrap().batch(&[0]).unwrap().inputs["image"].shape(), [1, 5, 2, 3, 4]);
    }
}
