//! What an operator's row in the table offers, and the contexts that its functions work in.

use forebay_base::{DataType, Kernel};

use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::lower::Lowering;
use crate::operators::decomposition::{takes_16_bit, widened};
use crate::tensor::Tensor;

/// One row of the table: everything that is known about one operator.
pub struct Operator {
    /// Domain; empty for the default one.
    pub domain: &'static str,
    /// Operator type.
    pub op_type: &'static str,
    /// Types of the outputs, one per output that the operator can have (extra ones are ignored).
    pub infer: fn(&NodeView) -> Result<Vec<TensorType>, ModelError>,
    /// Computes the outputs from constant inputs, for folding. `None` in a row or a result: not folded.
    pub evaluate: Option<Evaluate>,
    /// Emits kernels, or makes outputs views of inputs.
    pub lower: fn(&NodeView, &mut Lowering) -> Result<(), ModelError>,
    /// How gradients pass through.
    pub gradient: Gradient,
}

/// Computes a node's outputs from its constant inputs.
pub type Evaluate = fn(&NodeView, &[Option<&Tensor>]) -> Result<Option<Vec<Tensor>>, ModelError>;

/// How gradients pass through an operator.
pub enum Gradient {
    /// Given the node and the gradients of its outputs (`None`: zero), the gradients of its inputs (`None`: zero or not
    /// needed). Ask [`GradientBuilder::needs`] before computing one.
    Function(GradientFunction),
    /// The outputs do not depend differentiably on any input (comparisons, shapes, casts to integers): gradient zero.
    Zero,
    /// There is a gradient in mathematics, but not here: an error where one is needed.
    Missing,
}

/// Computes the gradients of a node's inputs from those of its outputs.
pub type GradientFunction =
    fn(&mut GradientBuilder, &Node, &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, ModelError>;

/// A node with its graph: what inference, folding and lowering look at.
#[derive(Clone, Copy)]
pub struct NodeView<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
}

impl<'a> NodeView<'a> {
    /// An error about this node.
    pub fn error(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Operator {
            op_type: self.node.operation.name().to_string(),
            node: self.node.label(self.graph),
            reason: reason.into(),
        }
    }

    /// Version of the operator set.
    pub fn version(&self) -> i64 {
        match &self.node.operation {
            Operation::Onnx { version, .. } => *version,
            Operation::Kernel(_) => crate::operators::NEWEST_OPSET,
        }
    }

    /// The operator's row in the table.
    ///
    /// # Errors
    /// Where it has none; kernels have none either.
    pub fn row(&self) -> Result<&'static Operator, ModelError> {
        let Operation::Onnx { domain, op_type, version, .. } = &self.node.operation else {
            return Err(self.error("a kernel has no row in the table of operators"));
        };
        crate::operators::find(domain, op_type).ok_or_else(|| ModelError::UnsupportedOperator {
            domain: domain.clone(),
            op_type: op_type.clone(),
            version: *version,
            node: self.node.label(self.graph),
        })
    }

    /// Whether input `i` is given.
    pub fn has_input(&self, i: usize) -> bool {
        matches!(self.node.inputs.get(i), Some(Some(_)))
    }

    /// Input `i`.
    ///
    /// # Errors
    /// Where it is left out.
    pub fn input(&self, i: usize) -> Result<ValueId, ModelError> {
        self.node.inputs.get(i).copied().flatten().ok_or_else(|| self.error(format!("input {i} is missing")))
    }

    /// The type of input `i`.
    ///
    /// # Errors
    /// Where the input is left out or its type is not known.
    pub fn input_type(&self, i: usize) -> Result<&'a TensorType, ModelError> {
        let value = self.input(i)?;
        self.graph.ty(value).ok_or_else(|| {
            self.error(format!("the type of input {i} ('{}') is not known", self.graph.value(value).name))
        })
    }

    /// The type of output `i`, after inference.
    ///
    /// # Errors
    /// Where the output is left out or its type is not known.
    pub fn output_type(&self, i: usize) -> Result<&'a TensorType, ModelError> {
        let value = self.node.outputs.get(i).copied().flatten();
        value
            .and_then(|value| self.graph.ty(value))
            .ok_or_else(|| self.error(format!("the type of output {i} is not known")))
    }

    /// The elements of input `i`, where it is an initializer or folded, and small: a few numbers or many integers.
    ///
    /// # Errors
    /// Where they lie in a file that cannot be read.
    pub fn constant(&self, i: usize) -> Result<Option<&'a Tensor>, ModelError> {
        let value = self.node.inputs.get(i).copied().flatten();
        match value.and_then(|value| self.graph.initializers.get(&value)) {
            Some(contents) => contents.small(),
            None => Ok(None),
        }
    }

    /// The integers of input `i`.
    ///
    /// # Errors
    /// Where it is not constant (the shape of the result would depend on data) or not integers.
    pub fn constant_ints(&self, i: usize) -> Result<Vec<i64>, ModelError> {
        let tensor = self
            .constant(i)?
            .ok_or_else(|| self.error(format!("input {i} must be constant, because shapes depend on it")))?;
        tensor.to_i64().ok_or_else(|| self.error(format!("input {i} must hold integers, not {}", tensor.data_type)))
    }

    /// An attribute.
    pub fn attribute(&self, name: &str) -> Option<&'a Attribute> {
        match &self.node.operation {
            Operation::Onnx { attributes, .. } => attributes.get(name),
            Operation::Kernel(_) => None,
        }
    }

    /// An integer attribute, or its default.
    ///
    /// # Errors
    /// Where it has another type.
    pub fn int(&self, name: &str, default: i64) -> Result<i64, ModelError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Int(value)) => Ok(*value),
            Some(_) => Err(self.error(format!("attribute {name} must be an integer"))),
        }
    }

    /// A float attribute, or its default.
    ///
    /// # Errors
    /// Where it has another type.
    pub fn float(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Float(value)) => Ok(*value),
            Some(_) => Err(self.error(format!("attribute {name} must be a float"))),
        }
    }

    /// A string attribute, or its default.
    ///
    /// # Errors
    /// Where it has another type.
    pub fn string(&self, name: &str, default: &'a str) -> Result<&'a str, ModelError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::String(value)) => Ok(value),
            Some(_) => Err(self.error(format!("attribute {name} must be a string"))),
        }
    }

    /// A list of integers.
    ///
    /// # Errors
    /// Where it has another type.
    pub fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, ModelError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Ints(values)) => Ok(Some(values)),
            Some(_) => Err(self.error(format!("attribute {name} must be a list of integers"))),
        }
    }

    /// An axis attribute or value, counted from the end where negative, checked against the rank.
    ///
    /// # Errors
    /// Where it is out of range.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, ModelError> {
        let rank = rank as i64;
        let resolved = if axis < 0 { axis.checked_add(rank) } else { Some(axis) };
        resolved
            .filter(|axis| (0..rank).contains(axis))
            .map(|axis| axis as usize)
            .ok_or_else(|| self.error(format!("axis {axis} is out of range for {rank} dimensions")))
    }
}

/// Builds gradient nodes at the end of a graph. Every value it makes has its type.
pub struct GradientBuilder<'a> {
    /// The graph that grows.
    pub graph: &'a mut Graph,
    /// By value: whether its gradient is wanted (it depends on a trained parameter or an asked-for input).
    pub wanted: &'a [bool],
}

impl GradientBuilder<'_> {
    /// Whether the gradient by the node's input `i` is wanted.
    pub fn needs(&self, node: &Node, i: usize) -> bool {
        matches!(node.inputs.get(i), Some(Some(value)) if self.wanted.get(value.0 as usize).copied().unwrap_or(false))
    }

    /// The type of a value.
    ///
    /// # Panics
    /// If it has none: gradients are built after inference.
    pub fn ty(&self, value: ValueId) -> TensorType {
        self.graph.ty(value).expect("gradients are built after inference").clone()
    }

    /// Appends an operator of the default domain; its single output.
    ///
    /// # Errors
    /// Where inference refuses the inputs.
    pub fn onnx(
        &mut self,
        op_type: &str,
        inputs: &[ValueId],
        attributes: &[(&str, Attribute)],
    ) -> Result<ValueId, ModelError> {
        let output = self.graph.add_value(&format!("gradient.{op_type}"), None);
        self.graph.nodes.push(Node {
            name: self.graph.value(output).name.clone(),
            operation: Operation::onnx(op_type, attributes),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
        });
        let node = self.graph.nodes.len() - 1;
        crate::infer::infer_node(self.graph, node)?;
        Ok(output)
    }

    /// Appends a kernel with outputs of the given types, named after `name`. What is not computed in 16-bit floating types is
    /// computed in float32, and converted back.
    pub fn kernel(&mut self, name: &str, kernel: Kernel, inputs: &[ValueId], outputs: &[TensorType]) -> Vec<ValueId> {
        let types: Vec<TensorType> = inputs.iter().map(|&input| self.ty(input)).collect();
        if takes_16_bit(&kernel) || types.iter().all(|ty| widened(ty) == *ty) {
            return self.append(name, kernel, inputs, outputs);
        }
        let wide: Vec<ValueId> = inputs.iter().zip(&types).map(|(&input, ty)| self.cast(input, &widened(ty))).collect();
        let wide_outputs: Vec<TensorType> = outputs.iter().map(widened).collect();
        let results = self.append(name, kernel, &wide, &wide_outputs);
        results.into_iter().zip(outputs).map(|(result, output)| self.cast(result, output)).collect()
    }

    /// The same elements in another type; the value itself where it has that type.
    fn cast(&mut self, x: ValueId, ty: &TensorType) -> ValueId {
        if self.ty(x) == *ty {
            return x;
        }
        self.append(Kernel::Cast.name(), Kernel::Cast, &[x], std::slice::from_ref(ty)).remove(0)
    }

    fn append(&mut self, name: &str, kernel: Kernel, inputs: &[ValueId], outputs: &[TensorType]) -> Vec<ValueId> {
        let outputs: Vec<ValueId> =
            outputs.iter().map(|ty| self.graph.add_value(&format!("gradient.{name}"), Some(ty.clone()))).collect();
        self.graph.nodes.push(Node {
            name: format!("gradient.{name}"),
            operation: Operation::Kernel(kernel),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: outputs.iter().copied().map(Some).collect(),
        });
        outputs
    }

    /// A constant of int64.
    pub fn ints(&mut self, values: &[i64]) -> ValueId {
        self.graph.add_initializer("gradient.constant", Tensor::from_i64(&[values.len() as u64], values))
    }

    /// A scalar constant of a floating type.
    ///
    /// # Panics
    /// If the type is not float32 or float64.
    pub fn scalar(&mut self, data_type: DataType, value: f64) -> ValueId {
        let bytes = match data_type {
            DataType::Float32 => (value as f32).to_le_bytes().to_vec(),
            DataType::Float64 => value.to_le_bytes().to_vec(),
            other => panic!("gradients are float32 or float64, not {other}"),
        };
        let tensor = Tensor::new(data_type, &[], bytes).expect("one element");
        self.graph.add_initializer("gradient.constant", tensor)
    }
}
