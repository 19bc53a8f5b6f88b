//! Converts evaluation mode to training mode: batch statistics, running statistics, dropout, and random numbers for each step.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::kernel::Activation;
use forebay_base::{DataType, Kernel};

use crate::context::GradientBuilder;
use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, TensorType, Update, ValueId};
use crate::infer::infer_node;
use crate::operator::NodeView;
use crate::operators::random::inputs_of_draw;
use crate::operators::row;
use crate::precision::{takes_16_bit, widened};
use crate::tensor::Contents;

/// The name of the graph input that holds the number of the step, from 1, and the seed.
pub(super) const STEP_NAME: &str = "forebay.step";

/// What training mode adds to a graph.
#[derive(Debug, Default)]
pub(super) struct TrainingMode {
    /// Nodes that compute the next running statistics, to be placed after the backward pass.
    pub update_nodes: Vec<Node>,
    /// The updates of the running statistics.
    pub updates: Vec<Update>,
    /// The initializers that are running statistics and do not train.
    pub statistics: BTreeSet<ValueId>,
    /// Whether batch normalizations use the statistics of the batch.
    pub has_batch_statistics: bool,
    /// The input of the step number and the seed, if needed.
    pub step: Option<ValueId>,
    /// The input of the factor of the loss, if gradients are scaled.
    pub factor: Option<ValueId>,
}

impl TrainingMode {
    /// Returns the input of the step number and the seed, which the first call creates.
    pub fn step(&mut self, graph: &mut Graph) -> ValueId {
        if let Some(step) = self.step {
            return step;
        }
        let step = graph.add_input(STEP_NAME, TensorType::new(DataType::Int64, &[2]));
        self.step = Some(step);
        step
    }
}

/// Replaces batch normalization and dropout by their training forms; operators that draw random numbers get the step number.
pub(super) fn enter(graph: &mut Graph) -> Result<TrainingMode, ModelError> {
    let mut mode = TrainingMode::default();
    // The latest value of running statistics that several nodes share: each node's update continues from the previous one.
    let mut running = BTreeMap::new();
    for i in 0..graph.nodes.len() {
        let Operation::Onnx { domain, op_type, .. } = &graph.nodes[i].operation else { continue };
        if !domain.is_empty() {
            continue;
        }
        match op_type.as_str() {
            "BatchNormalization" => batch_normalization(graph, i, &mut mode, &mut running)?,
            "Dropout" => dropout(graph, i, &mut mode)?,
            "LSTM" | "GRU" | "RNN" => recurrent(graph, i)?,
            _ => {
                if let Some(inputs) = inputs_of_draw(&graph.nodes[i].operation) {
                    let step = mode.step(graph);
                    let node = &mut graph.nodes[i];
                    node.inputs.resize(inputs, None);
                    node.inputs.push(Some(step));
                }
            }
        }
    }
    let states = running.into_iter().filter(|(state, value)| state != value);
    mode.updates = states.map(|(state, value)| Update { state, value }).collect();
    let nodes = std::mem::take(&mut graph.nodes);
    graph.nodes = in_float32(graph, nodes);
    mode.update_nodes = in_float32(graph, std::mem::take(&mut mode.update_nodes));
    Ok(mode)
}

/// Makes batch normalizations use their running statistics. A model that was exported for training has those of the batch.
pub(super) fn leave(graph: &mut Graph) {
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let Operation::Onnx { domain, op_type, .. } = &node.operation else { continue };
        let is_normalization = domain.is_empty() && op_type == "BatchNormalization";
        if !is_normalization || node.outputs.iter().skip(1).flatten().any(|&output| is_used(graph, output)) {
            continue;
        }
        let node = &mut graph.nodes[i];
        if let Operation::Onnx { attributes, .. } = &mut node.operation
            && attributes.remove("training_mode").is_some()
        {
            node.outputs.truncate(1);
        }
    }
}

/// Puts conversions around the kernels among these nodes that do not accept the 16-bit floating-point types of their operands.
fn in_float32(graph: &mut Graph, nodes: Vec<Node>) -> Vec<Node> {
    let others = std::mem::take(&mut graph.nodes);
    for node in nodes {
        let is_wide = |graph: &Graph, id: ValueId| graph.ty(id).is_none_or(|ty| widened(ty) == *ty);
        let kernel = match &node.operation {
            Operation::Kernel(kernel)
                if !takes_16_bit(kernel) && !node.inputs.iter().flatten().all(|&id| is_wide(graph, id)) =>
            {
                kernel.clone()
            }
            _ => {
                graph.nodes.push(node);
                continue;
            }
        };
        let name = node.label(graph);
        let mut builder = GradientBuilder::without_gradients(graph, infer_node, &name);
        let inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let types: Vec<TensorType> = node.outputs.iter().flatten().map(|&output| builder.ty(output)).collect();
        let results = builder.kernel(kernel.name(), kernel, &inputs, &types);
        for (result, &output) in results.into_iter().zip(node.outputs.iter().flatten()) {
            let mut made = graph.nodes.iter_mut().rev().flat_map(|node| &mut node.outputs);
            if let Some(made) = made.find(|made| **made == Some(result)) {
                *made = Some(output);
            }
        }
    }
    std::mem::replace(&mut graph.nodes, others)
}

/// Normalizes with the statistics of the batch, and moves the running statistics towards them. As in PyTorch, the running variance is
/// unbiased.
fn batch_normalization(
    graph: &mut Graph,
    i: usize,
    mode: &mut TrainingMode,
    running: &mut BTreeMap<ValueId, ValueId>,
) -> Result<(), ModelError> {
    let view = NodeView { graph, node: &graph.nodes[i] };
    mode.has_batch_statistics = true;
    let x = view.input_type(0)?.clone();
    let scale = view.input_type(1)?.clone();
    let momentum = view.float("momentum", 0.9)?;
    let epsilon = view.float("epsilon", 1e-5)?;
    let statistics = [view.input(3)?, view.input(4)?];
    for (place, state) in [3, 4].into_iter().zip(statistics) {
        let is_changed_here = graph.initializers.contains_key(&state) && !graph.carried.contains_key(&state);
        if is_changed_here && is_used_otherwise(graph, view.node, place) {
            return Err(view.error(format!(
                "its running statistic '{}' is also used elsewhere, and each step would change it there, too; give each layer its own \
                 initializers (those of functions, loops and branches, and those that are also inputs, are not separated \
                 automatically)",
                graph.value(state).name
            )));
        }
    }
    if view.node.outputs.iter().skip(1).flatten().any(|&output| is_used(graph, output)) {
        return Err(view.error("the graph uses its statistics; for training, only its first output may be used"));
    }
    if x.shape.len() < 2 {
        return Err(view.error(format!("training requires an axis of channels, which the input {x} does not have")));
    }
    let count = x.count() / scale.count().max(1);
    // With one element per channel the unbiased variance does not exist; the biased one, 0, is used.
    let unbiased = if count > 1 { (count as f64 / (count - 1) as f64) as f32 } else { 1.0 };
    let name = view.node.label(graph);
    let batch = [
        graph.add_value(&format!("{name}.batch_mean"), Some(scale.clone())),
        graph.add_value(&format!("{name}.batch_variance"), Some(scale.clone())),
    ];
    let node = &mut graph.nodes[i];
    node.operation =
        Operation::Kernel(Kernel::BatchNormalizationTraining { epsilon, activation: Activation::None, group_size: 1 });
    node.inputs.truncate(3);
    node.outputs = vec![node.outputs[0], Some(batch[0]), Some(batch[1])];
    for ((state, batch), correction) in statistics.into_iter().zip(batch).zip([1.0, unbiased]) {
        // The model itself computes the next value of those that are carried.
        if !graph.initializers.contains_key(&state) || graph.carried.contains_key(&state) {
            continue;
        }
        mode.statistics.insert(state);
        let before = *running.entry(state).or_insert(state);
        let ty = graph.initializers[&state].ty().clone();
        let after = graph.add_value(&format!("{}.next", graph.value(state).name.clone()), Some(ty));
        mode.update_nodes.push(Node {
            name: graph.value(state).name.clone(),
            operation: Operation::Kernel(Kernel::RunningStatistics { momentum, correction }),
            inputs: vec![Some(before), Some(batch)],
            outputs: vec![Some(after)],
        });
        running.insert(state, after);
    }
    Ok(())
}

fn is_used(graph: &Graph, value: ValueId) -> bool {
    graph.outputs.contains(&value) || graph.nodes.iter().any(|node| node.inputs.contains(&Some(value)))
}

/// Returns whether a layer's running statistic, its input `place`, is used by anything else. A module that is applied several times is one
/// layer.
pub(crate) fn is_used_otherwise(graph: &Graph, layer: &Node, place: usize) -> bool {
    graph.nodes.iter().any(|node| {
        let uses = |i: usize| node.inputs[i] == layer.inputs[place];
        (0..node.inputs.len()).any(|i| uses(i) && !(i == place && is_same_layer(graph, node, layer)))
    })
}

/// Returns whether two nodes apply the same layer: all of their parameters are the same, or constants with the same elements.
pub(crate) fn is_same_layer(graph: &Graph, one: &Node, other: &Node) -> bool {
    let constant = |id: &ValueId| graph.initializers.get(id).filter(|_| graph.constants.contains(id));
    let is_same = |(one, other): (&Option<ValueId>, &Option<ValueId>)| {
        let both = one.as_ref().and_then(constant).zip(other.as_ref().and_then(constant));
        one == other || both.is_some_and(|(one, other)| hold_the_same(one, other))
    };
    let is_alike = one.operation.name() == other.operation.name() && one.inputs.len() == other.inputs.len();
    is_alike && one.inputs.iter().zip(&other.inputs).skip(1).all(is_same)
}

/// Returns whether two contents hold the same elements, wherever these are. Those that cannot be read are an error where they are loaded.
fn hold_the_same(one: &Contents, other: &Contents) -> bool {
    let elements = |contents: &Contents| contents.to_tensor().ok();
    one == other || one.ty() == other.ty() && elements(one).is_some_and(|one| elements(other) == Some(one))
}

/// Adds all outputs, so that the backward pass finds those that it needs instead of computing them again.
fn recurrent(graph: &mut Graph, i: usize) -> Result<(), ModelError> {
    let view = NodeView { graph, node: &graph.nodes[i] };
    let (types, name) = ((row(&view)?.infer)(&view)?, view.node.label(graph));
    let mut outputs = view.node.outputs.clone();
    outputs.resize(types.len().max(outputs.len()), None);
    for (output, ty) in outputs.iter_mut().zip(types) {
        output.get_or_insert_with(|| graph.add_value(&name, Some(ty)));
    }
    graph.nodes[i].outputs = outputs;
    Ok(())
}

fn dropout(graph: &mut Graph, i: usize, mode: &mut TrainingMode) -> Result<(), ModelError> {
    let view = NodeView { graph, node: &graph.nodes[i] };
    let ratio = match view.has_input(1) {
        true => view.constant(1)?.and_then(|tensor| tensor.to_f64()).and_then(|values| Some(*values.first()? as f32)),
        false => Some(view.float("ratio", 0.5)?),
    };
    let ratio = ratio.ok_or_else(|| view.error("the ratio must be constant"))?;
    if !(0.0..1.0).contains(&ratio) {
        return Err(view.error(format!("for training, the ratio must be at least 0 and below 1, but is {ratio}")));
    }
    if ratio == 0.0 {
        return Ok(());
    }
    if view.node.outputs.get(1).copied().flatten().is_some_and(|mask| is_used(graph, mask)) {
        return Err(view.error("the graph uses its mask; for training, only its first output may be used"));
    }
    let step = mode.step(graph);
    let node = &mut graph.nodes[i];
    node.operation = Operation::Kernel(Kernel::Dropout { ratio, node: i as u64, first: 0 });
    node.inputs.truncate(1);
    node.inputs.push(Some(step));
    node.outputs.truncate(1);
    Ok(())
}
