//! The inputs and outputs of a model: names, types, shapes, and checks of the values that callers pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use forebay_base::{DataType, TensorType};
use forebay_model::graph::{Dimension, Structure};
use forebay_model::stages::Form;
use forebay_model::{Graph, Tensor, ValueId};

use crate::error::Error;

/// The value of an input or output of a run.
///
/// ```
/// use forebay::{Tensor, Value};
///
/// let pair = Value::Sequence(vec![Tensor::from_f32(&[2], &[0.0, 1.0]), Tensor::from_f32(&[1], &[2.0])]);
/// assert_eq!(pair.to_string(), "a sequence of 2 tensors");
/// assert_eq!(Value::from(Tensor::from_i64(&[], &[7])).to_string(), "int64[]");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A sequence of tensors, which may differ in shape.
    Sequence(Vec<Tensor>),
    /// An optional value that is absent.
    Absent,
}

impl Value {
    /// Returns the kind of value, without its elements.
    pub(crate) fn form(&self) -> Form {
        match self {
            Value::Tensor(_) => Form::Tensor,
            Value::Sequence(elements) => Form::Sequence(elements.len()),
            Value::Absent => Form::Absent,
        }
    }

    /// Returns the tensors of the value.
    pub(crate) fn into_tensors(self) -> Vec<Tensor> {
        match self {
            Value::Tensor(tensor) => vec![tensor],
            Value::Sequence(elements) => elements,
            Value::Absent => Vec::new(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(tensor)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Tensor(tensor) => write!(f, "{}", tensor.ty()),
            Value::Sequence(elements) => write!(f, "a sequence of {} tensors", elements.len()),
            Value::Absent => f.write_str("nothing"),
        }
    }
}

/// An input or output as a model declares it. Sizes can be symbols.
///
/// ```
/// use forebay::{Dimension, Model};
///
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// assert!(matches!(model.inputs()[0].dimensions[0], Dimension::Symbol(_)), "the batch size is open");
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// The name in the graph.
    pub name: String,
    /// The element type.
    pub data_type: DataType,
    /// The sizes; empty if the value is not a tensor.
    pub dimensions: Vec<Dimension>,
    /// The structure of a value that is not a tensor.
    pub structure: Option<Structure>,
}

impl ValueInfo {
    /// Returns what a graph declares about values.
    pub(crate) fn of(graph: &Graph, values: &[ValueId]) -> Vec<ValueInfo> {
        let describe = |&id: &ValueId| {
            let value = graph.value(id);
            let structure = value.structure.filter(|_| value.declared.is_none());
            let data_type = structure.map_or(DataType::Float32, Structure::data_type);
            let (data_type, dimensions) = value.declared.clone().unwrap_or((data_type, Vec::new()));
            ValueInfo { name: value.name.clone(), data_type, dimensions, structure }
        };
        values.iter().map(describe).collect()
    }

    /// Returns the type, if this is a tensor and all sizes are known.
    pub fn ty(&self) -> Option<TensorType> {
        if self.structure.is_some() {
            return None;
        }
        let size = |dimension: &Dimension| match dimension {
            Dimension::Known(size) => Some(*size),
            Dimension::Symbol(_) => None,
        };
        let shape = self.dimensions.iter().map(size).collect::<Option<Vec<_>>>()?;
        Some(TensorType::new(self.data_type, &shape))
    }

    /// Returns `true` if the value fits.
    fn takes(&self, value: &Value) -> bool {
        let Some(structure) = self.structure else {
            return matches!(value, Value::Tensor(tensor) if self.fits(tensor));
        };
        let is_of_type = |tensor: &Tensor| tensor.data_type() == structure.data_type();
        match value {
            Value::Tensor(tensor) => !structure.is_sequence() && is_of_type(tensor),
            Value::Sequence(elements) => structure.is_sequence() && elements.iter().all(is_of_type),
            Value::Absent => structure.is_optional(),
        }
    }

    /// Returns `true` if the tensor fits. Sizes that are left open can have any value.
    fn fits(&self, tensor: &Tensor) -> bool {
        let fits = |(dimension, size): (&Dimension, &u64)| match dimension {
            Dimension::Known(known) => known == size,
            Dimension::Symbol(_) => true,
        };
        self.data_type == tensor.data_type()
            && self.dimensions.len() == tensor.shape().len()
            && self.dimensions.iter().zip(tensor.shape()).all(fits)
    }
}

impl fmt::Display for ValueInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(structure) = self.structure {
            return write!(f, "{}: {structure}", self.name);
        }
        let sizes: Vec<String> = self.dimensions.iter().map(Dimension::to_string).collect();
        write!(f, "{}: {}[{}]", self.name, self.data_type, sizes.join(", "))
    }
}

/// An input or output with all sizes known.
///
/// ```
/// use forebay::{Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// let session = Session::builder(&model).device("null".parse()?).batch_size(8).build()?;
/// assert_eq!(session.inputs()[0].to_string(), "x: float32[8, 1, 8, 8]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the graph.
    pub name: String,
    /// The element type.
    pub data_type: DataType,
    /// The sizes; empty for a scalar.
    pub shape: Vec<u64>,
}

impl TensorInfo {
    /// Returns a copy in which a leading size of `from` is replaced by `to`.
    pub(crate) fn with_batch(&self, from: u64, to: u64) -> TensorInfo {
        let mut info = self.clone();
        if let Some(size) = info.shape.first_mut().filter(|size| **size == from) {
            *size = to;
        }
        info
    }
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{:?}", self.name, self.data_type, self.shape)
    }
}

/// Checks that `given` holds exactly the tensors that `infos` describe.
///
/// # Errors
/// Fails if a name is missing or unknown, or if a type or shape differs.
pub(crate) fn check_inputs(infos: &[TensorInfo], given: &BTreeMap<String, Tensor>) -> Result<(), Error> {
    check_names(infos.iter().map(|info| (info.name.as_str(), info as &dyn fmt::Display)), given)?;
    infos.iter().try_for_each(|info| check_tensor(info, &given[&info.name]))
}

/// Like [`check_inputs`], but sizes can be left open and values need not be tensors.
///
/// # Errors
/// Fails as [`check_inputs`] does.
pub(crate) fn check_values(infos: &[ValueInfo], given: &BTreeMap<String, Value>) -> Result<(), Error> {
    check_names(infos.iter().map(|info| (info.name.as_str(), info as &dyn fmt::Display)), given)?;
    infos.iter().try_for_each(|info| match &given[&info.name] {
        value if info.takes(value) => Ok(()),
        value => Err(Error::Input { expected: info.to_string(), given: value.to_string() }),
    })
}

/// Checks that exactly these names are given.
fn check_names<'a, T>(
    infos: impl Iterator<Item = (&'a str, &'a dyn fmt::Display)> + Clone,
    given: &BTreeMap<String, T>,
) -> Result<(), Error> {
    let known: BTreeSet<&str> = infos.clone().map(|(name, _)| name).collect();
    if let Some(name) = given.keys().find(|name| !known.contains(name.as_str())) {
        let known = infos.map(|(_, info)| info.to_string()).collect();
        return Err(Error::UnknownInput { name: name.clone(), known });
    }
    match infos.clone().find(|(name, _)| !given.contains_key(*name)) {
        Some((_, info)) => {
            Err(Error::MissingInput { expected: info.to_string(), given: given.keys().cloned().collect() })
        }
        None => Ok(()),
    }
}

/// The error for an input of the wrong type or shape.
fn wrong_input(expected: &dyn fmt::Display, given: &Tensor) -> Error {
    Error::Input { expected: expected.to_string(), given: format!("{}{:?}", given.data_type(), given.shape()) }
}

/// Checks the type and shape of one tensor.
///
/// # Errors
/// Returns [`Error::Input`] if they differ.
pub(crate) fn check_tensor(info: &TensorInfo, tensor: &Tensor) -> Result<(), Error> {
    if tensor.data_type() == info.data_type && tensor.shape() == info.shape {
        return Ok(());
    }
    Err(wrong_input(info, tensor))
}

/// Checks that inputs used as indices are within bounds. Negative indices count from the end.
///
/// # Errors
/// Returns [`Error::Index`] if an index is out of bounds.
pub(crate) fn check_indices(limits: &BTreeMap<String, u64>, given: &BTreeMap<String, Tensor>) -> Result<(), Error> {
    for (name, &limit) in limits {
        let Some(tensor) = given.get(name) else { continue };
        let Some(values) = tensor.integers() else { continue };
        let bound = i64::try_from(limit).unwrap_or(i64::MAX);
        if let Some((index, value)) = values.enumerate().find(|&(_, value)| value < -bound || value >= bound) {
            let position = position(index, tensor.shape());
            return Err(Error::Index { name: name.clone(), value, position, limit });
        }
    }
    Ok(())
}

/// Returns the position of the element with this row-major index.
pub(crate) fn position(index: usize, shape: &[u64]) -> Vec<u64> {
    let mut rest = index as u64;
    let mut position: Vec<u64> = shape
        .iter()
        .rev()
        .map(|&size| {
            let here = rest % size.max(1);
            rest /= size.max(1);
            here
        })
        .collect();
    position.reverse();
    position
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> TensorInfo {
        TensorInfo { name: "x".to_string(), data_type: DataType::Float32, shape: vec![2, 3] }
    }

    #[test]
    fn inputs_are_checked_by_name_type_and_shape() {
        let good = Tensor::from_f32(&[2, 3], &[0.0; 6]);
        let check = |entries: &[(&str, Tensor)]| {
            let given = entries.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
            check_inputs(&[info()], &given).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[("x", good.clone())]), Ok(()));
        let missing = check(&[]).expect_err("x is missing");
        assert!(missing.contains("'x: float32[2, 3]' is missing (given: none)"), "{missing}");
        let unknown = check(&[("x", good), ("z", Tensor::from_f32(&[1], &[0.0]))]).expect_err("z is unknown");
        assert!(unknown.contains("no input 'z' (inputs: x: float32[2, 3])"), "{unknown}");
        let shape = check(&[("x", Tensor::from_f32(&[3, 2], &[0.0; 6]))]).expect_err("transposed");
        assert!(shape.contains("found float32[3, 2]"), "{shape}");
        let data_type = check(&[("x", Tensor::from_i64(&[2, 3], &[0; 6]))]).expect_err("integers");
        assert!(data_type.contains("found int64[2, 3]"), "{data_type}");
    }

    #[test]
    fn positions_are_row_major() {
        assert_eq!(position(0, &[2, 3]), [0, 0]);
        assert_eq!(position(5, &[2, 3]), [1, 2]);
        assert_eq!(position(4, &[2, 3]), [1, 1]);
    }
}
