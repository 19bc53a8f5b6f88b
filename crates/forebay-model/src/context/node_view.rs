//! A node with its graph, as operators see it.

use forebay_base::Tensor;

use crate::error::ModelError;
use crate::graph::{Attribute, Graph, NEWEST_OPSET, Node, Operation, TensorType, ValueId};

/// The most bytes of a constant that sizes depend on, which is in memory while a model is read.
const CONSTANT_BYTES_MAX: u64 = 64 << 20;

/// A node with its graph, as seen by inference, folding and lowering.
#[derive(Clone, Copy)]
pub struct NodeView<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
}

impl<'a> NodeView<'a> {
    /// Returns an error about this node.
    pub fn error(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Operator {
            op_type: self.node.operation.name().to_string(),
            node: self.node.label(self.graph),
            reason: reason.into(),
        }
    }

    /// Returns the version of the operator set.
    pub fn version(&self) -> i64 {
        match &self.node.operation {
            Operation::Onnx { version, .. } => *version,
            Operation::Kernel(_) => NEWEST_OPSET,
        }
    }

    /// Returns whether input `i` is given.
    pub fn has_input(&self, i: usize) -> bool {
        matches!(self.node.inputs.get(i), Some(Some(_)))
    }

    /// Returns input `i`.
    ///
    /// # Errors
    /// Fails if it is omitted.
    pub fn input(&self, i: usize) -> Result<ValueId, ModelError> {
        self.node.inputs.get(i).copied().flatten().ok_or_else(|| self.error(format!("input {i} is missing")))
    }

    /// Returns the type of input `i`.
    ///
    /// # Errors
    /// Fails if the input is omitted or its type is not known.
    pub fn input_type(&self, i: usize) -> Result<&'a TensorType, ModelError> {
        let value = self.input(i)?;
        self.graph.ty(value).ok_or_else(|| {
            self.error(format!("the type of input {i} ('{}') is not known", self.graph.value(value).name))
        })
    }

    /// Returns the type of output `i`, after inference.
    ///
    /// # Errors
    /// Fails if the output is omitted or its type is not known.
    pub fn output_type(&self, i: usize) -> Result<&'a TensorType, ModelError> {
        let value = self.node.outputs.get(i).copied().flatten();
        value
            .and_then(|value| self.graph.ty(value))
            .ok_or_else(|| self.error(format!("the type of output {i} is not known")))
    }

    /// Returns the elements of input `i` if it is an initializer or folded, and small: a few numbers or many integers.
    ///
    /// # Errors
    /// Fails if they are in a file that cannot be read.
    pub fn constant(&self, i: usize) -> Result<Option<&'a Tensor>, ModelError> {
        let value = self.node.inputs.get(i).copied().flatten();
        match value.and_then(|value| self.graph.initializers.get(&value)) {
            Some(contents) => contents.small(),
            None => Ok(None),
        }
    }

    /// Returns the elements of input `i` as [`NodeView::constant`] does, but `None` if training may change them.
    ///
    /// # Errors
    /// Fails if they are in a file that cannot be read.
    pub fn unchanging(&self, i: usize) -> Result<Option<&'a Tensor>, ModelError> {
        match self.node.inputs.get(i).copied().flatten() {
            Some(value) if self.graph.is_constant(value) => self.constant(i),
            _ => Ok(None),
        }
    }

    /// Returns the error for an input on which shapes or branches depend but whose elements are not known.
    fn unknown(&self, i: usize, value: ValueId) -> ModelError {
        ModelError::NeedsValue {
            op_type: self.node.operation.name().to_string(),
            node: self.node.label(self.graph),
            value: self.graph.value(value).name.clone(),
            reason: format!("input {i} must be constant, because shapes depend on it"),
        }
    }

    /// Returns the elements of input `i`, on which shapes or branches depend: a few numbers or many integers.
    ///
    /// # Errors
    /// [`ModelError::NeedsValue`] if it is not constant.
    pub fn needed(&self, i: usize) -> Result<&'a Tensor, ModelError> {
        let value = self.input(i)?;
        self.constant(i)?.ok_or_else(|| self.unknown(i, value))
    }

    /// Returns all elements of input `i`, on which the sizes of results depend.
    ///
    /// # Errors
    /// [`ModelError::NeedsValue`] if it is not constant. Also fails if it is too large to read for this purpose, or cannot be read.
    pub fn whole_constant(&self, i: usize) -> Result<Tensor, ModelError> {
        let value = self.input(i)?;
        let contents = self.graph.constant_contents(value);
        let contents = contents.ok_or_else(|| self.unknown(i, value))?;
        if contents.size_bytes() > CONSTANT_BYTES_MAX {
            let (bytes, most) = (contents.size_bytes(), CONSTANT_BYTES_MAX);
            return Err(
                self.error(format!("input {i} has {bytes} bytes, but shapes may depend on at most {most} bytes"))
            );
        }
        contents.to_tensor()
    }

    /// Returns whether input `i` is constant and consists of zeros.
    ///
    /// # Errors
    /// Fails if its elements cannot be read.
    pub fn is_zeros(&self, i: usize) -> Result<bool, ModelError> {
        let value = self.node.inputs.get(i).copied().flatten();
        let contents = value.and_then(|value| self.graph.constant_contents(value));
        match contents.filter(|contents| contents.size_bytes() <= CONSTANT_BYTES_MAX) {
            Some(contents) => Ok(contents.to_tensor()?.bytes().iter().all(|&byte| byte == 0)),
            None => Ok(false),
        }
    }

    /// Returns the integers of input `i`.
    ///
    /// # Errors
    /// Fails if it is not constant (the shape of the result would depend on data) or does not contain integers.
    pub fn constant_ints(&self, i: usize) -> Result<Vec<i64>, ModelError> {
        let tensor = self.needed(i)?;
        tensor
            .to_i64()
            .ok_or_else(|| self.error(format!("input {i} must contain integers, not {}", tensor.data_type())))
    }

    /// Returns input `i`, a single integer, on which shapes depend.
    ///
    /// # Errors
    /// Fails if it is not constant or not a single integer.
    pub fn constant_integer(&self, i: usize) -> Result<i64, ModelError> {
        match self.constant_ints(i)?.as_slice() {
            &[number] => Ok(number),
            numbers => Err(self.error(format!("input {i} must be one integer, not {}", numbers.len()))),
        }
    }

    /// Returns input `i`, a single number, on which shapes depend.
    ///
    /// # Errors
    /// Fails if it is not constant or not a single number.
    pub fn constant_number(&self, i: usize) -> Result<f64, ModelError> {
        let tensor = self.needed(i)?;
        let numbers =
            tensor.to_f64().or_else(|| Some(tensor.to_i64()?.into_iter().map(|value| value as f64).collect()));
        match numbers.as_deref() {
            Some(&[number]) => Ok(number),
            _ => Err(self.error(format!("input {i} must be one number, not {}", tensor.ty()))),
        }
    }

    /// Returns an attribute.
    pub fn attribute(&self, name: &str) -> Option<&'a Attribute> {
        match &self.node.operation {
            Operation::Onnx { attributes, .. } => attributes.get(name),
            Operation::Kernel(_) => None,
        }
    }

    /// Returns an integer attribute or its default.
    ///
    /// # Errors
    /// Fails if it has another type.
    pub fn int(&self, name: &str, default: i64) -> Result<i64, ModelError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Int(value)) => Ok(*value),
            Some(_) => Err(self.error(format!("attribute {name} must be an integer"))),
        }
    }

    /// Returns a float attribute, which can also be given as an integer, or its default.
    ///
    /// # Errors
    /// Fails if it has another type.
    pub fn float(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Float(value)) => Ok(*value),
            Some(Attribute::Int(value)) => Ok(*value as f32),
            Some(_) => Err(self.error(format!("attribute {name} must be a number"))),
        }
    }

    /// Returns a string attribute or its default.
    ///
    /// # Errors
    /// Fails if it has another type.
    pub fn string(&self, name: &str, default: &'a str) -> Result<&'a str, ModelError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::String(value)) => Ok(value),
            Some(_) => Err(self.error(format!("attribute {name} must be a string"))),
        }
    }

    /// Returns an attribute that is a list of integers.
    ///
    /// # Errors
    /// Fails if it has another type.
    pub fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, ModelError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Ints(values)) => Ok(Some(values)),
            Some(_) => Err(self.error(format!("attribute {name} must be a list of integers"))),
        }
    }

    /// Returns an axis attribute or value, counted from the end if negative, after checking it against the rank.
    ///
    /// # Errors
    /// Fails if it is out of range.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, ModelError> {
        let rank = rank as i64;
        let resolved = if axis < 0 { axis.checked_add(rank) } else { Some(axis) };
        resolved
            .filter(|axis| (0..rank).contains(axis))
            .map(|axis| axis as usize)
            .ok_or_else(|| self.error(format!("axis {axis} is out of range for {rank} dimensions")))
    }
}
