//! Computes gradients as a transformation of graphs.
//!
//! This is reverse mode: nodes are visited from last to first, and for each one the nodes that compute its inputs' gradients from its
//! outputs' gradients are appended. In this order, an activation is no longer needed once its own node has been visited, so memory use
//! peaks between the forward and the backward pass. The gradients of ONNX operators come from their rows in [`crate::operators`], those of
//! kernels from `kernel_gradient`.

#[cfg(test)]
mod tests;

use forebay_base::{DataType, Tensor};

use crate::action::Action;
use crate::context::{GradientBuilder, NodeView};
use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;
use crate::kernel_gradient::Application;
use crate::operator::Gradient;
use crate::operators::attend::KEPT_OUTPUTS;
use crate::operators::row;

/// Appends nodes that compute the gradients of the scalar `of` with respect to each of `by`. A gradient is `None` if `of` does not depend
/// differentiably on the value.
///
/// The gradients of a value that is used several times add up. The gradient of ReLU at 0 is 0; a max pool passes its gradient to the first
/// of several equal values, and `Min` and `Max` of two tensors pass it to the first of two equal operands.
///
/// # Errors
/// Fails if `of` is not a floating-point scalar, or if an operator on the way has no gradient.
pub fn gradients(graph: &mut Graph, of: ValueId, by: &[ValueId]) -> Result<Vec<Option<ValueId>>, ModelError> {
    let seed = seed(graph, of)?;
    let wanted = wanted(graph, by)?;
    keep_statistics(graph, &wanted);
    graph.begin_backward();
    let mut d_values: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let from_inputs = from_inputs(graph);
    let mut builder =
        GradientBuilder { graph, wanted: &wanted, from_inputs: &from_inputs, infer: infer_node, prefix: "gradient" };
    d_values[of.0 as usize] = Some(builder.constant(seed));
    for i in (0..builder.graph.nodes.len()).rev() {
        let node = builder.graph.nodes[i].clone();
        let d_outputs: Vec<Option<ValueId>> =
            node.outputs.iter().map(|output| output.and_then(|output| d_values[output.0 as usize])).collect();
        let has_wanted = (0..node.inputs.len()).any(|input| builder.needs(&node, input));
        if !has_wanted || d_outputs.iter().all(Option::is_none) || builder.graph.is_folded(&node) {
            continue;
        }
        let start = builder.graph.nodes.len();
        for (input, d) in node.inputs.iter().zip(node_gradients(&mut builder, &node, &d_outputs)?) {
            if let (Some(input), Some(d)) = (*input, d)
                && wanted[input.0 as usize]
            {
                let slot = &mut d_values[input.0 as usize];
                *slot = Some(builder.accumulate(*slot, d));
            }
        }
        let name = format!("{}.gradient", node.label(builder.graph));
        for appended in &mut builder.graph.nodes[start..] {
            appended.name.clone_from(&name);
        }
    }
    Ok(by.iter().map(|value| d_values[value.0 as usize]).collect())
}

/// The gradients of one node's inputs.
fn node_gradients(
    builder: &mut GradientBuilder,
    node: &Node,
    d_outputs: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, ModelError> {
    let missing = |builder: &GradientBuilder| ModelError::NoGradient {
        op_type: node.operation.name().to_string(),
        node: node.label(builder.graph),
    };
    let Operation::Kernel(kernel) = &node.operation else {
        return match row(&NodeView { graph: builder.graph, node })?.gradient {
            Gradient::Function(function) => function(builder, node, d_outputs),
            Gradient::Zero => Ok(vec![None; node.inputs.len()]),
            Gradient::Missing => Err(missing(builder)),
        };
    };
    let inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
    let outputs: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
    let needs: Vec<bool> = (0..node.inputs.len()).map(|i| builder.needs(node, i)).collect();
    let action = Action::Kernel(kernel.clone());
    let application =
        Application { action: &action, inputs: &inputs, outputs: &outputs, gradients: d_outputs, needs: &needs };
    application.gradients(builder).ok_or_else(|| missing(builder))
}

/// The gradient of a scalar with respect to itself.
fn seed(graph: &Graph, of: ValueId) -> Result<Tensor, ModelError> {
    let ty = graph.ty(of).filter(|ty| ty.count() == 1);
    match ty.map(|ty| ty.data_type) {
        Some(DataType::Float32) => Ok(Tensor::from_f32(&ty.expect("matched").shape, &[1.0])),
        _ => {
            let name = &graph.value(of).name;
            let ty = graph.ty(of).map_or("of unknown type".to_string(), TensorType::to_string);
            let reason = format!("gradients require a single float32 number, but '{name}' is {ty}");
            Err(ModelError::Request { reason })
        }
    }
}

/// For each value, whether it depends differentiably on one of `by`.
fn wanted(graph: &Graph, by: &[ValueId]) -> Result<Vec<bool>, ModelError> {
    let mut wanted = vec![false; graph.values.len()];
    for value in by {
        wanted[value.0 as usize] = true;
    }
    for node in &graph.nodes {
        if graph.is_folded(node) || !node.inputs.iter().flatten().any(|input| wanted[input.0 as usize]) {
            continue;
        }
        if matches!(node.operation, Operation::Onnx { .. })
            && matches!(row(&NodeView { graph, node })?.gradient, Gradient::Zero)
        {
            continue;
        }
        for &output in node.outputs.iter().flatten() {
            wanted[output.0 as usize] = graph.ty(output).is_some_and(|ty| ty.data_type.has_gradients());
        }
    }
    Ok(wanted)
}

/// For each value, whether it depends on an input of the graph.
fn from_inputs(graph: &Graph) -> Vec<bool> {
    let mut from_inputs = vec![false; graph.values.len()];
    graph.inputs.iter().for_each(|input| from_inputs[input.0 as usize] = true);
    for node in &graph.nodes {
        if node.inputs.iter().flatten().any(|input| from_inputs[input.0 as usize]) {
            node.outputs.iter().flatten().for_each(|output| from_inputs[output.0 as usize] = true);
        }
    }
    from_inputs
}

/// Adds optional outputs, so that the gradient need not recompute them: the mean and inverse deviation to layer normalizations, and the
/// result by heads and the logarithms of the row sums to attention.
fn keep_statistics(graph: &mut Graph, wanted: &[bool]) {
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let is_wanted = node.outputs.first().is_some_and(|y| y.is_some_and(|y| wanted[y.0 as usize]));
        let Operation::Onnx { op_type, .. } = &node.operation else { continue };
        let kept = match op_type.as_str() {
            "LayerNormalization" | "SkipLayerNormalization" => 1..3,
            "Attention" | "FlexAttention" | "GroupQueryAttention" | "MultiHeadAttention" => KEPT_OUTPUTS,
            _ => continue,
        };
        if !is_wanted {
            continue;
        }
        let view = NodeView { graph, node };
        let Some(types) = row(&view).ok().and_then(|row| (row.infer)(&view).ok()) else { continue };
        for (k, ty) in types.into_iter().enumerate().filter(|(k, _)| kept.contains(k)) {
            if graph.nodes[i].outputs.len() <= k {
                graph.nodes[i].outputs.resize(k + 1, None);
            }
            if graph.nodes[i].outputs[k].is_none() {
                let value = graph.add_value("gradient.statistics", Some(ty));
                graph.nodes[i].outputs[k] = Some(value);
            }
        }
    }
}
