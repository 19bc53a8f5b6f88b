//! What a caller requires of a data set: the inputs and labels that a model takes.

use forebay_base::DataType;

/// An input that a model expects.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::InputDescription;
///
/// let image = InputDescription { name: "x".to_string(), data_type: DataType::Float32, sample_shape: vec![3, 224, 224] };
/// assert_eq!(image.sample_shape.len(), 3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct InputDescription {
    /// The input's name.
    pub name: String,
    /// The element type of the batches.
    pub data_type: DataType,
    /// The sizes of one sample, without the batch axis, which comes first.
    pub sample_shape: Vec<u64>,
}

/// The meaning of labels.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::LabelKind;
///
/// assert_ne!(LabelKind::Classes, LabelKind::Values(DataType::Int64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelKind {
    /// Class indices; batches hold int64.
    Classes,
    /// Target values, of the given type.
    Values(DataType),
}

/// What a caller requires of a data set.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::{open, InputDescription, LabelKind, Requirements};
///
/// # fn main() -> Result<(), forebay_data::DataError> {
/// let image = InputDescription { name: "x".to_string(), data_type: DataType::Float32, sample_shape: vec![1, 8, 8] };
/// let requirements = Requirements {
///     inputs: vec![image],
///     input_scale: 1.0 / 16.0,
///     labels: LabelKind::Classes,
///     label_shape: Vec::new(),
/// };
/// let mut digits = open("../../examples/digits/digits.npz", &requirements)?;
/// assert_eq!(digits.sample_count(), 1797);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Requirements {
    /// The model's inputs.
    pub inputs: Vec<InputDescription>,
    /// The factor by which floating-point inputs are multiplied.
    pub input_scale: f64,
    /// The meaning of the labels.
    pub labels: LabelKind,
    /// The sizes of one sample's labels, without the batch axis; empty if a sample has one label.
    pub label_shape: Vec<u64>,
}

/// Splits the axes of the only image input into channels and spatial sizes.
///
/// # Errors
/// A message that says what is wrong, unless there is exactly one floating-point input of `spatial_ranks` + 1 axes.
pub(crate) fn image_input(
    requirements: &Requirements,
    spatial_ranks: &[usize],
    what: &str,
) -> Result<(InputDescription, u64, Vec<u64>), String> {
    let [input] = requirements.inputs.as_slice() else {
        let count = requirements.inputs.len();
        return Err(format!("{what} requires a model with one input, but this one has {count}; use an .npz archive"));
    };
    let shape = &input.sample_shape;
    if !input.data_type.is_float() || shape.is_empty() || !spatial_ranks.contains(&(shape.len() - 1)) {
        let axes: Vec<String> = spatial_ranks.iter().map(usize::to_string).collect();
        return Err(format!(
            "{what} requires a floating-point input with batch, channel and {} spatial axes, \
             but input {} is {}{shape:?} per sample",
            axes.join(" or "),
            input.name,
            input.data_type,
        ));
    }
    if requirements.labels != LabelKind::Classes {
        return Err(format!("{what} contains classes, but this loss requires values; use an .npz archive"));
    }
    Ok((input.clone(), shape[0], shape[1..].to_vec()))
}
