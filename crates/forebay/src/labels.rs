//! What labels must be, and the check before a step that they are.

use forebay_base::DataType;
use forebay_data::convert::one_hot;
use forebay_model::Tensor;

use crate::error::Error;
use crate::tensor_info::{self, TensorInfo};

/// The classes that labels choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Classes {
    /// The number of classes.
    pub(crate) count: u64,
    /// The axis along which the classes lie.
    pub(crate) axis: usize,
    /// A label value that is ignored.
    pub(crate) ignore_index: Option<i64>,
}

/// Returns the place of an axis, which counts from the end if negative, or `None` if the shape has no such axis.
pub(crate) fn place_of(axis: i64, shape: &[u64]) -> Option<usize> {
    let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < shape.len())
}

/// Converts labels to what the plan expects: integers of any width to the plan's type, and classes to probabilities if the plan takes
/// those.
///
/// # Errors
/// Fails if the type or shape is different, or if a label is neither a class nor ignored.
pub(crate) fn prepare(labels: Tensor, info: &TensorInfo, classes: Option<Classes>) -> Result<Tensor, Error> {
    if let Some(classes) = classes.filter(|_| info.data_type.is_float()) {
        check_classes(&labels, classes)?;
        let probabilities = one_hot(&labels, classes.count, classes.axis).and_then(Result::ok);
        let labels = probabilities.unwrap_or(labels);
        tensor_info::check_tensor(info, &labels)?;
        return Ok(labels);
    }
    let is_narrow = info.data_type == DataType::Int64 && labels.data_type() != DataType::Int64;
    let labels = match is_narrow.then(|| labels.to_i64()).flatten() {
        Some(values) => Tensor::from_i64(labels.shape(), &values),
        None => labels,
    };
    tensor_info::check_tensor(info, &labels)?;
    classes.map_or(Ok(()), |classes| check_classes(&labels, classes))?;
    Ok(labels)
}

/// Checks that all labels are classes or ignored.
///
/// # Errors
/// Fails with the first label that is neither.
pub(crate) fn check_classes(labels: &Tensor, classes: Classes) -> Result<(), Error> {
    let wrong = |value: i64| {
        classes.ignore_index != Some(value) && u64::try_from(value).map_or(true, |value| value >= classes.count)
    };
    let mut values = labels.integers().into_iter().flatten().enumerate();
    match values.find(|&(_, value)| wrong(value)) {
        Some((index, value)) => {
            let position = tensor_info::position(index, labels.shape());
            Err(Error::Label { value, position, classes: classes.count })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> TensorInfo {
        TensorInfo { name: "labels".to_string(), data_type: DataType::Int64, shape: vec![2, 2] }
    }

    #[test]
    fn narrow_integers_are_widened() {
        let narrow = Tensor::new(DataType::UInt8, &[2, 2], vec![0, 1, 2, 1]).unwrap();
        let classes = Some(Classes { count: 3, axis: 1, ignore_index: None });
        assert_eq!(prepare(narrow, &info(), classes).unwrap(), Tensor::from_i64(&[2, 2], &[0, 1, 2, 1]));
    }

    #[test]
    fn a_label_out_of_range_is_named_with_its_place() {
        let labels = Tensor::from_i64(&[2, 2], &[0, 1, 3, 1]);
        let classes = Classes { count: 3, axis: 1, ignore_index: None };
        let error = prepare(labels.clone(), &info(), Some(classes)).unwrap_err();
        assert_eq!(error, Error::Label { value: 3, position: vec![1, 0], classes: 3 });
        let words = "label 3 at [1, 0] is not one of the 3 classes 0 to 2; if it marks positions without a label, pass it as \
                     --ignore-index";
        assert_eq!(error.to_string(), words);
        assert!(prepare(labels, &info(), Some(Classes { ignore_index: Some(3), ..classes })).is_ok());
        let negative = Tensor::from_i64(&[2, 2], &[0, -1, 0, 1]);
        assert!(matches!(prepare(negative, &info(), Some(classes)), Err(Error::Label { value: -1, .. })));
    }

    #[test]
    fn classes_become_probabilities_where_these_are_taken() {
        let info = TensorInfo { name: "labels".to_string(), data_type: DataType::Float32, shape: vec![2, 3] };
        let classes = Some(Classes { count: 3, axis: 1, ignore_index: None });
        let soft = Tensor::from_f32(&[2, 3], &[0.0, 1.0, 0.0, 0.25, 0.0, 0.75]);
        assert_eq!(prepare(soft.clone(), &info, classes).unwrap(), soft);
        let hard = Tensor::new(DataType::UInt8, &[2], vec![1, 2]).unwrap();
        let expected = Tensor::from_f32(&[2, 3], &[0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(prepare(hard, &info, classes).unwrap(), expected);
        let wrong = Tensor::from_i64(&[2], &[0, 3]);
        assert!(matches!(prepare(wrong, &info, classes), Err(Error::Label { value: 3, .. })));
        assert!(matches!(prepare(Tensor::from_i64(&[1], &[0]), &info, classes), Err(Error::Input { .. })));
    }

    #[test]
    fn floats_are_no_labels_for_classes() {
        let labels = Tensor::from_f32(&[2, 2], &[0.0; 4]);
        assert!(matches!(prepare(labels, &info(), None), Err(Error::Input { .. })));
    }
}
