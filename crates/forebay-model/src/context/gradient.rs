//! Gradients as nodes: what the gradients of operators and kernels are built with.

mod build;

use forebay_base::{DataType, Kernel, Tensor};

use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::precision::{takes_16_bit, widened};

/// Builds nodes at the end of a graph: gradients, losses, updates. Every value it makes has its type.
pub struct GradientBuilder<'a> {
    /// The graph that grows.
    pub graph: &'a mut Graph,
    /// By value: whether its gradient is wanted (it depends on a trained parameter or an asked-for input).
    pub wanted: &'a [bool],
    /// By value: whether it depends on an input of the graph. What does not is a parameter, a constant, or made of these.
    pub from_inputs: &'a [bool],
    /// Gives the outputs of an appended operator their types: inference, which stands above and looks operators up.
    pub infer: fn(&mut Graph, usize) -> Result<(), ModelError>,
    /// What the names of new values begin with.
    pub prefix: &'a str,
}

impl<'a> GradientBuilder<'a> {
    /// A builder of nodes that are no gradients: losses, updates.
    pub fn without_gradients(
        graph: &'a mut Graph,
        infer: fn(&mut Graph, usize) -> Result<(), ModelError>,
        prefix: &'a str,
    ) -> GradientBuilder<'a> {
        GradientBuilder { graph, wanted: &[], from_inputs: &[], infer, prefix }
    }
}

impl GradientBuilder<'_> {
    /// Whether the gradient by the node's input `i` is wanted.
    pub fn needs(&self, node: &Node, i: usize) -> bool {
        matches!(node.inputs.get(i), Some(Some(value)) if self.wanted.get(value.0 as usize).copied().unwrap_or(false))
    }

    /// Whether a value is made of parameters and constants alone.
    pub fn is_of_parameters(&self, value: ValueId) -> bool {
        self.from_inputs.get(value.0 as usize) == Some(&false)
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

    /// What a value was converted from by the node that made it.
    pub fn converted_from(&self, value: ValueId) -> Option<ValueId> {
        let node = self.graph.producer(value)?;
        matches!(node.operation, Operation::Kernel(Kernel::Cast(_))).then(|| node.inputs[0]).flatten()
    }

    /// The same elements in another type; the value itself where it has that type.
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

    /// A constant of int64.
    pub fn ints(&mut self, values: &[i64]) -> ValueId {
        self.graph
            .add_initializer(&format!("{}.constant", self.prefix), Tensor::from_i64(&[values.len() as u64], values))
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
        self.graph.add_initializer(&format!("{}.constant", self.prefix), tensor)
    }
}
