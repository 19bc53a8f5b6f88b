//! Group normalization, which exporters write for older opsets as instance normalization of the image viewed as [n, groups, rest], followed
//! by a scale and a bias for each channel.

use forebay_base::Tensor;

use super::{Uses, op_type};
use crate::context::NodeView;
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;

/// Replaces each Reshape(InstanceNormalization(Reshape(x))) scale + bias by the operator `GroupNormalization`, which can be cut between the
/// rows of an image. Every value must have a type.
///
/// # Errors
/// Fails if constants cannot be read.
pub fn group_normalizations(graph: &mut Graph) -> Result<(), ModelError> {
    let found: Vec<(usize, Groups)> = {
        let uses = Uses::of(graph);
        (0..graph.nodes.len()).filter_map(|i| Some((i, uses.groups(&graph.nodes[i])?))).collect()
    };
    for (i, groups) in found.into_iter().rev() {
        groups.replace(graph, i)?;
    }
    graph.drop_dead_nodes();
    Ok(())
}

/// What was found before the addition of the bias.
struct Groups {
    x: ValueId,
    /// One element for each channel, with axes of size 1 around it.
    scale: ValueId,
    bias: ValueId,
    count: u64,
    epsilon: f32,
}

impl Uses<'_> {
    fn groups(&self, sum: &Node) -> Option<Groups> {
        if op_type(sum) != "Add" || self.graph.is_folded(sum) {
            return None;
        }
        let shape = &self.graph.ty(sum.outputs.first().copied().flatten()?)?.shape;
        let (product, bias) = self.one_of_channels(sum, shape)?;
        let product = self.own(product).filter(|node| op_type(node) == "Mul")?;
        let (viewed, scale) = self.one_of_channels(product, shape)?;
        let viewed = self.own(viewed).filter(|node| op_type(node) == "Reshape")?;
        let normalized = self.own(self.input(viewed, 0)?).filter(|node| op_type(node) == "InstanceNormalization")?;
        if !(self.is_filled(self.input(normalized, 1)?, 1.0)? && self.is_filled(self.input(normalized, 2)?, 0.0)?) {
            return None;
        }
        let rows = self.input(normalized, 0)?;
        let x = self.input(self.own(rows).filter(|node| op_type(node) == "Reshape")?, 0)?;
        let &[images, count, ..] = self.graph.ty(rows)?.shape.as_slice() else { return None };
        let fits = self.graph.ty(x)?.shape == *shape && images == shape[0] && count > 0 && shape[1] % count == 0;
        let epsilon = NodeView { graph: self.graph, node: normalized }.float("epsilon", 1e-5).ok()?;
        fits.then_some(Groups { x, scale, bias, count, epsilon })
    }

    /// Returns the two inputs of a node, ordered so that the second has one element for each channel of `shape`.
    fn one_of_channels(&self, node: &Node, shape: &[u64]) -> Option<(ValueId, ValueId)> {
        let (a, b) = (self.input(node, 0)?, self.input(node, 1)?);
        let is_of_channels = |value: ValueId| {
            let own = self.graph.ty(value).map_or(&[][..], |ty| &ty.shape);
            let axes = shape.len().checked_sub(own.len());
            axes.is_some_and(|first| {
                let mut sizes = own.iter().enumerate().map(|(axis, &size)| (first + axis, size));
                first <= 1 && shape.len() > 1 && sizes.all(|(axis, size)| size == if axis == 1 { shape[1] } else { 1 })
            })
        };
        match (is_of_channels(a), is_of_channels(b)) {
            (_, true) => Some((a, b)),
            (true, false) => Some((b, a)),
            (false, false) => None,
        }
    }
}

impl Groups {
    /// Replaces the addition by the operator.
    fn replace(self, graph: &mut Graph, i: usize) -> Result<(), ModelError> {
        let name = graph.nodes[i].label(graph);
        let mut added = Vec::new();
        let parameters = [self.scale, self.bias].map(|parameter| {
            let ty = graph.ty(parameter).cloned()?;
            let channels = ty.shape.iter().product();
            let sizes = graph.add_initializer(&format!("{name}.sizes"), Tensor::from_i64(&[1], &[channels as i64]));
            graph.constants.insert(sizes);
            let ty = TensorType::new(ty.data_type, &[channels]);
            let output = graph.add_value(&format!("{name}.Reshape"), Some(ty));
            let inputs = vec![Some(parameter), Some(sizes)];
            let operation = Operation::onnx("Reshape", &[]);
            added.push(Node { name: name.clone(), operation, inputs, outputs: vec![Some(output)] });
            Some(output)
        });
        let [Some(scale), Some(bias)] = parameters else { return Ok(()) };
        let attributes =
            [("num_groups", Attribute::Int(self.count as i64)), ("epsilon", Attribute::Float(self.epsilon))];
        let node = &mut graph.nodes[i];
        node.operation = Operation::onnx("GroupNormalization", &attributes);
        node.inputs = [self.x, scale, bias].map(Some).to_vec();
        let end = i + added.len();
        graph.nodes.splice(i..i, added);
        // Constant parameters fold.
        (i..=end).try_for_each(|node| infer_node(graph, node))
    }
}
