//! Replaces the head: the last layer of a model gets a different number of classes, for another task.

use std::collections::BTreeSet;

use forebay_base::random::SplitMix64;
use forebay_base::{DataType, Tensor};

use super::proto::GraphProto;
use super::proto::tensor_shape_proto::dimension::Value as DimensionValue;
use super::proto::type_proto::Value as TypeValue;
use super::{Model, tensor};
use crate::context::NodeView;
use crate::error::ModelError;
use crate::graph::{Dimension, Graph, Operation, ValueId};

/// The most layers listed in the error when none has the requested name.
const NAMED_MAX: usize = 5;

/// A layer that multiplies by weights.
struct Layer {
    node: usize,
    weight: ValueId,
    /// The axis of the weight that indexes the layer's outputs.
    axis: usize,
    /// The number of inputs that contribute to one output, as PyTorch counts them for initialization.
    fan_in: u64,
    bias: Option<ValueId>,
}

impl Model {
    /// Returns the model with a different number of outputs in one layer: a Gemm, a MatMul, or a convolution without groups. The layer is
    /// identified by the name of its node, its output or its weight. Its weight and bias start with random numbers drawn with the seed,
    /// uniform within 1 / sqrt(inputs per output), as in PyTorch's layers; everything else is unchanged.
    ///
    /// # Errors
    /// Fails if there is no such layer, if its weights are not float32 initializers or are used elsewhere, or if `classes` is 0.
    pub fn with_head(&self, name: &str, classes: u64, seed: u64) -> Result<Model, ModelError> {
        let graph = &self.graph;
        if classes == 0 {
            return refuse("a head needs at least one class".to_string());
        }
        if self.adaptation.is_some() {
            return refuse("the head must be replaced before the model gets adapters".to_string());
        }
        let layers: Vec<Layer> = (0..graph.nodes.len()).filter_map(|node| layer(graph, node)).collect();
        let is_named = |layer: &&Layer| {
            let node = &graph.nodes[layer.node];
            let outputs = node.outputs.iter().flatten().chain([&layer.weight]);
            node.name == name || outputs.into_iter().any(|&id| graph.value(id).name == name)
        };
        let Some(layer) = layers.iter().find(is_named) else {
            let last = layers.iter().rev().take(NAMED_MAX);
            let names = last.map(|layer| format!("'{}'", graph.nodes[layer.node].label(graph)));
            let names = names.collect::<Vec<_>>().join(", ");
            let known = if names.is_empty() {
                "it has no such layer".to_string()
            } else {
                format!("such layers, from last to first: {names}")
            };
            return refuse(format!(
                "the model has no layer '{name}' with its own weights (MatMul, Gemm, Conv, ConvTranspose without groups); {known}"
            ));
        };
        let old = graph.initializers[&layer.weight].shape()[layer.axis];
        let bound = 1.0 / (layer.fan_in.max(1) as f64).sqrt();
        let mut model = self.clone();
        for (number, (id, axis)) in
            [Some((layer.weight, layer.axis)), layer.bias.map(|bias| (bias, last_axis(graph, bias)))]
                .into_iter()
                .enumerate()
                .filter_map(|(number, part)| Some((number as u64, part?)))
        {
            let mut shape = graph.initializers[&id].shape().to_vec();
            shape[axis] = classes;
            let count: u64 = shape.iter().product();
            let mut random = SplitMix64::of(&[seed, number]);
            let values: Vec<f32> = (0..count).map(|_| (bound * random.symmetric()) as f32).collect();
            model.replace(id, Tensor::from_f32(&shape, &values))?;
        }
        model.declare_outputs(layer.node, old, classes);
        Ok(model)
    }

    /// Gives an initializer a new shape and new contents.
    fn replace(&mut self, id: ValueId, tensor: Tensor) -> Result<(), ModelError> {
        let name = self.graph.value(id).name.clone();
        let protos = self.proto.graph.as_mut().map(|graph| &mut graph.initializer).into_iter().flatten();
        let Some(proto) = protos.into_iter().find(|proto| proto.name() == name) else {
            return refuse(format!("'{name}' is not an initializer of the model"));
        };
        tensor::describe(proto, &tensor.ty());
        if let Some(ty) = &mut self.graph.value_mut(id).ty {
            *ty = tensor.ty();
        }
        self.graph.initializers.insert(id, tensor.clone().into());
        self.contents.insert(name, tensor.into());
        Ok(())
    }

    /// Declares the new size of outputs where it is clear which dimension it is: the values after a layer no longer have the sizes given in
    /// the file.
    fn declare_outputs(&mut self, layer: usize, old: u64, classes: u64) {
        let mut behind: BTreeSet<ValueId> = self.graph.nodes[layer].outputs.iter().flatten().copied().collect();
        for node in &self.graph.nodes[layer + 1..] {
            if node.inputs.iter().flatten().any(|input| behind.contains(input)) {
                behind.extend(node.outputs.iter().flatten());
            }
        }
        let names: BTreeSet<String> = behind.iter().map(|&id| self.graph.value(id).name.clone()).collect();
        for id in self.graph.outputs.clone().into_iter().filter(|id| behind.contains(id)) {
            let Some((_, dimensions)) = &mut self.graph.value_mut(id).declared else { continue };
            let is_single = dimensions.iter().filter(|&dimension| *dimension == Dimension::Known(old)).count() == 1;
            for dimension in dimensions.iter_mut().filter(|dimension| **dimension == Dimension::Known(old)) {
                *dimension = if is_single { Dimension::Known(classes) } else { Dimension::Symbol(String::new()) };
            }
        }
        if let Some(graph) = &mut self.proto.graph {
            declare(graph, &names, old as i64, classes as i64);
        }
    }
}

/// Does the same in the file, and removes the types of intermediate values.
fn declare(graph: &mut GraphProto, names: &BTreeSet<String>, old: i64, classes: i64) {
    graph.value_info.iter_mut().filter(|info| names.contains(info.name())).for_each(|info| info.r#type = None);
    for output in graph.output.iter_mut().filter(|output| names.contains(output.name())) {
        let Some(TypeValue::TensorType(ty)) = output.r#type.as_mut().and_then(|ty| ty.value.as_mut()) else { continue };
        let dimensions = ty.shape.iter_mut().flat_map(|shape| &mut shape.dim);
        let mut found: Vec<_> =
            dimensions.filter(|dimension| dimension.value == Some(DimensionValue::DimValue(old))).collect();
        let is_single = found.len() == 1;
        found.iter_mut().for_each(|dimension| dimension.value = is_single.then_some(DimensionValue::DimValue(classes)));
    }
}

fn refuse<T>(reason: String) -> Result<T, ModelError> {
    Err(ModelError::Request { reason })
}

fn last_axis(graph: &Graph, id: ValueId) -> usize {
    graph.initializers[&id].shape().len() - 1
}

/// Returns a node as a layer if nothing else uses its weight and bias.
fn layer(graph: &Graph, node: usize) -> Option<Layer> {
    let node_of = &graph.nodes[node];
    let Operation::Onnx { domain, op_type, .. } = &node_of.operation else { return None };
    if !domain.is_empty() {
        return None;
    }
    let view = NodeView { graph, node: node_of };
    let input = |k: usize| node_of.inputs.get(k).copied().flatten();
    let (weight, is_turned) = origin(graph, input(1)?)?;
    let shape = graph.initializers[&weight].shape().to_vec();
    let is_grouped = || view.int("group", 1).ok() != Some(1);
    let places = || shape[2..].iter().product::<u64>();
    let (axis, fan_in) = match (op_type.as_str(), shape.len()) {
        ("MatMul", 2) => (1, shape[0]),
        ("Gemm", 2) if view.int("transB", 0).ok()? != 0 => (0, shape[1]),
        ("Gemm", 2) => (1, shape[0]),
        ("Conv", 3..) if !is_grouped() => (0, shape[1] * places()),
        ("ConvTranspose", 3..) if !is_grouped() => (1, shape[1] * places()),
        _ => return None,
    };
    // If the weight is read transposed, its axes swap.
    let (axis, fan_in) = if is_turned { (1 - axis, shape[1 - (1 - axis)]) } else { (axis, fan_in) };
    let bias = match op_type.as_str() {
        "MatMul" => added(graph, node),
        _ => input(2),
    };
    let is_own = |id: ValueId| {
        let readers = graph.nodes.iter().flat_map(|node| &node.inputs).filter(|&&input| input == Some(id)).count();
        let is_float = graph.initializers.get(&id).is_some_and(|contents| contents.data_type() == DataType::Float32);
        is_float && readers == 1 && !graph.outputs.contains(&id)
    };
    let bias = bias.filter(|&bias| {
        let contents = graph.initializers.get(&bias);
        let is_row = contents.is_some_and(|contents| {
            contents.shape().last() == Some(&shape[axis]) && contents.ty().count() == shape[axis]
        });
        is_row && is_own(bias)
    });
    let has_other_bias = op_type != "MatMul" && input(2).is_some() && bias.is_none();
    (is_own(weight) && !has_other_bias).then_some(Layer { node, weight, axis, fan_in, bias })
}

/// Returns the initializer of a weight, and whether a `Transpose` is in between.
fn origin(graph: &Graph, weight: ValueId) -> Option<(ValueId, bool)> {
    if graph.initializers.contains_key(&weight) {
        return Some((weight, false));
    }
    let node = graph.producer(weight)?;
    let source = node.inputs.first().copied().flatten().filter(|id| graph.initializers.contains_key(id))?;
    let readers = graph.nodes.iter().flat_map(|node| &node.inputs).filter(|&&input| input == Some(weight)).count();
    let is_matrix = graph.initializers[&source].shape().len() == 2;
    (node.operation.name() == "Transpose" && is_matrix && readers == 1).then_some((source, true))
}

/// Returns the value that is added to a product.
fn added(graph: &Graph, node: usize) -> Option<ValueId> {
    let product = graph.nodes[node].outputs.first().copied().flatten()?;
    let next = graph.nodes.iter().find(|node| node.inputs.contains(&Some(product)))?;
    let other = next.inputs.iter().flatten().copied().find(|&input| input != product)?;
    (next.operation.name() == "Add").then_some(other)
}
