//! Gradients as nodes: the builder for the gradients of operators and kernels.

mod build;

use forebay_base::{DataType, Kernel, Tensor};

use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::precision::{takes_16_bit, widened};

/// Builds nodes at the end of a graph: gradients, losses, updates. Every value that it creates has a type.
pub struct GradientBuilder<'a> {
    /// The graph that is extended.
    pub graph: &'a mut Graph,
    /// For each value, whether its gradient is wanted (it depends on a trained parameter or a requested input).
    pub wanted: &'a [bool],
    /// For each value, whether it depends on an input of the graph. Other values are parameters, constants, or computed from these.
    pub from_inputs: &'a [bool],
    /// Gives the outputs of an appended operator their types. A function pointer, because inference is a layer above and looks operators
    /// up.
    pub infer: fn(&mut Graph, usize) -> Result<(), ModelError>,
    /// The prefix of the names of new values.
    pub prefix: &'a str,
}

impl<'a> GradientBuilder<'a> {
    /// Creates a builder of nodes that are not gradients: losses, updates.
    pub fn without_gradients(
        graph: &'a mut Graph,
        infer: fn(&mut Graph, usize) -> Result<(), ModelError>,
        prefix: &'a str,
    ) -> GradientBuilder<'a> {
        GradientBuilder { graph, wanted: &[], from_inputs: &[], infer, prefix }
    }
}

impl GradientBuilder<'_> {
    /// Returns whether the gradient with respect to the node's input `i` is wanted.
    pub fn needs(&self, node: &Node, i: usize) -> bool {
        matches!(node.inputs.get(i), Some(Some(value)) if self.wanted.get(value.0 as usize).copied().unwrap_or(false))
    }

    /// Returns whether a value is computed only from parameters and constants.
    pub fn is_of_parameters(&self, value: ValueId) -> bool {
        self.from_inputs.get(value.0 as usize) == Some(&false)
    }

    /// Returns the type of a value.
    ///
    /// # Panics
    /// If it has no type: gradients are built after inference.
    pub fn ty(&self, value: ValueId) -> TensorType {
        self.graph.ty(value).expect("gradients are built after inference").clone()
    }

    /// Appends an operator of the default domain. Returns its single output.
    ///
    /// # Errors
    /// Fails if inference rejects the inputs.
    pub fn onnx(
        &mut self,
        op_type: &str,
        inputs: &[ValueId],
        attributes: &[(&str, Attribute)],
    ) -> Result<ValueId, ModelError> {
        let output = self.graph.add_value(&format!("{}.{op_type}", self.prefix), None);
        self.graph.nodes.push(Node {
            name: self.graph.value(output).name.clone(),
            operation: Operation::onnx(op_type, attributes),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
        });
        let node = self.graph.nodes.len() - 1;
        (self.infer)(self.graph, node)?;
        Ok(output)
    }

    /// Appends a kernel with outputs of the given types, named after `name`. Kernels that do not compute in 16-bit floating-point types
    /// compute in float32, and their results are converted back.
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

    /// Returns the value from which a value was converted by the node that produced it.
    pub fn converted_from(&self, value: ValueId) -> Option<ValueId> {
        let node = self.graph.producer(value)?;
        matches!(node.operation, Operation::Kernel(Kernel::Cast(_))).then(|| node.inputs[0]).flatten()
    }

    /// Returns whether a value, or what it was converted from, consists of a few known numbers that nothing changes and none of which is 0.
    pub fn has_no_zero(&self, value: ValueId) -> bool {
        // Looking for a node takes long, and no node computes an initializer.
        let is_given = self.graph.initializers.contains_key(&value);
        let value = if is_given { value } else { self.converted_from(value).unwrap_or(value) };
        let contents = self.graph.constant_contents(value);
        let Some(tensor) = contents.and_then(|contents| contents.small().ok().flatten()) else { return false };
        let is_real = tensor.to_f64().map(|numbers| !numbers.contains(&0.0));
        is_real.or_else(|| tensor.to_i64().map(|numbers| !numbers.contains(&0))).unwrap_or(false)
    }

    /// Converts a value to another type; returns the value itself if it has that type.
    pub fn cast(&mut self, x: ValueId, ty: &TensorType) -> ValueId {
        if self.ty(x) == *ty {
            return x;
        }
        self.append(Kernel::cast().name(), Kernel::cast(), &[x], std::slice::from_ref(ty)).remove(0)
    }

    fn append(&mut self, name: &str, kernel: Kernel, inputs: &[ValueId], outputs: &[TensorType]) -> Vec<ValueId> {
        let name = format!("{}.{name}", self.prefix);
        let outputs: Vec<ValueId> = outputs.iter().map(|ty| self.graph.add_value(&name, Some(ty.clone()))).collect();
        self.graph.nodes.push(Node {
            name,
            operation: Operation::Kernel(kernel),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: outputs.iter().copied().map(Some).collect(),
        });
        outputs
    }

    /// Returns an int64 constant.
    pub fn ints(&mut self, values: &[i64]) -> ValueId {
        self.graph
            .add_initializer(&format!("{}.constant", self.prefix), Tensor::from_i64(&[values.len() as u64], values))
    }

    /// Returns a scalar constant of a floating-point type.
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
        self.graph.add_initializer(&format!("{}.constant", self.prefix), tensor)
    }
}
