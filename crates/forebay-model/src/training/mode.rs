//! Converts evaluation mode to training mode: batch statistics, running statistics, dropout, and random numbers for each step.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::kernel::Activation;
use forebay_base::{DataType, Kernel};

use crate::context::GradientBuilder;
use crate::error::ModelError;
use crate::graph::{Dimension, Graph, Node, Operation, TensorType, Update, ValueId};
use crate::infer::infer_node;
use crate::operator::NodeView;
use crate::operators::random::INPUT_COUNTS;
use crate::operators::row;
use crate::precision::{takes_16_bit, widened};

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
    /// Whether batch normalisations use the statistics of the batch.
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
        let step = graph.add_value(STEP_NAME, Some(TensorType::new(DataType::Int64, &[2])));
        graph.value_mut(step).declared = Some((DataType::Int64, vec![Dimension::Known(2)]));
        graph.inputs.push(step);
        self.step = Some(step);
        step
    }
}

/// Replaces batch normalisation and dropout by their training forms; operators that draw random numbers get the step number.
pub(super) fn enter(graph: &mut Graph) -> Result<TrainingMode, ModelError> {
    let mut mode = TrainingMode::default();
    // The latest value of running statistics that several nodes share: each node's update continues from the previous one.
    let mut running = BTreeMap::new();
    for i in 0..graph.nodes.len() {
        let Operation::Onnx { domain, op_type, .. } = &graph.nodes[i].operation else { continue };
        if !domain.is_empty() && domain != "ai.onnx" {
            continue;
        }
        match op_type.as_str() {
            "BatchNormalization" => batch_normalization(graph, i, &mut mode, &mut running)?,
            "Dropout" => dropout(graph, i, &mut mode)?,
            "LSTM" | "GRU" | "RNN" => recurrent(graph, i)?,
            other => {
                if let Some(&(_, inputs)) = INPUT_COUNTS.iter().find(|(name, _)| *name == other) {
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

/// Normalises with the statistics of the batch, and moves the running statistics towards them. As in PyTorch, the running variance is
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
        if !graph.initializers.contains_key(&state) {
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
