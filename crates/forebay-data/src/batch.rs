//! Batches: samples of any kind, stacked for a step.

use std::collections::BTreeMap;

use forebay_base::Tensor;

/// A batch of samples, stacked along a new first axis.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::{open, Batch, InputDescription, LabelKind, Requirements};
///
/// # fn main() -> Result<(), forebay_data::DataError> {
/// let image = InputDescription { name: "x".to_string(), data_type: DataType::Float32, sample_shape: vec![1, 8, 8] };
/// let labels = LabelKind::Classes;
/// let requirements = Requirements { inputs: vec![image], input_scale: 1.0 / 16.0, labels, label_shape: Vec::new() };
/// let batch: Batch = open("../../examples/digits/digits.npz", &requirements)?.batch(&[7, 0, 7])?;
/// assert_eq!(batch.inputs["x"].shape(), [3, 1, 8, 8]);
/// assert_eq!(batch.labels.shape(), [3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The inputs by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// The labels.
    pub labels: Tensor,
}
