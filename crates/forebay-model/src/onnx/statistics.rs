//! Gives each batch normalization running statistics of its own, which training changes. Tools such as onnxsim merge initializers with the
//! same elements, as those of new layers have.

use std::collections::BTreeMap;

use super::proto::{GraphProto, TensorProto};
use super::{Model, tensor};
use crate::graph::{Graph, Node, ValueId};
use crate::training::{is_same_layer, is_used_otherwise};

/// The inputs of a batch normalization that are its running mean and variance.
const STATISTICS: [usize; 2] = [3, 4];

/// Replaces each running statistic that something else uses as well by an initializer with the same contents, which only this layer uses.
/// Initializers that are also inputs stay shared, as do those of layers inside functions, and those whose next value the model computes.
pub(super) fn separate(model: &mut Model) {
    let Model { graph, defaults, proto, contents, .. } = model;
    let Some(proto) = &mut proto.graph else { return };
    let is_normalization = |node: &Node| node.operation.name() == "BatchNormalization";
    let layers: Vec<usize> = (0..graph.nodes.len()).filter(|&i| is_normalization(&graph.nodes[i])).collect();
    if layers.is_empty() {
        return;
    }
    let uses = uses(graph);
    for &layer in &layers {
        for place in STATISTICS {
            let node = &graph.nodes[layer];
            let Some(shared) = node.inputs.get(place).copied().flatten().filter(|id| uses.get(id) > Some(&1)) else {
                continue;
            };
            let Some(held) = graph.initializers.get(&shared).cloned() else { continue };
            let name = &graph.value(shared).name;
            let is_carried = graph.carried.contains_key(&shared);
            if is_carried || defaults.contains_key(name) || !is_used_otherwise(graph, node, place) {
                continue;
            }
            let has_layer = |&&i: &&usize| is_same_layer(graph, &graph.nodes[i], node);
            let applications: Vec<usize> = layers.iter().filter(has_layer).copied().collect();
            let listed = applications.iter().map(|&i| listed(proto, graph, i));
            let (Some(listed), Some(output)) =
                (listed.collect::<Option<Vec<usize>>>(), node.outputs.first().copied().flatten())
            else {
                continue;
            };
            let own = graph.add_initializer(&format!("{name}.{}", graph.value(output).name), held.clone());
            if graph.constants.contains(&shared) {
                graph.constants.insert(own);
            }
            let name = graph.value(own).name.clone();
            applications.into_iter().for_each(|i| graph.nodes[i].inputs[place] = Some(own));
            listed.into_iter().for_each(|i| proto.node[i].input[place].clone_from(&name));
            let mut initializer = TensorProto { name: Some(name.clone()), ..TensorProto::default() };
            tensor::describe(&mut initializer, held.ty());
            proto.initializer.push(initializer);
            contents.insert(name, held);
        }
    }
}

/// Returns how often nodes use each value.
fn uses(graph: &Graph) -> BTreeMap<ValueId, usize> {
    let mut uses = BTreeMap::new();
    for &input in graph.nodes.iter().flat_map(|node| node.inputs.iter().flatten()) {
        *uses.entry(input).or_insert(0) += 1;
    }
    uses
}

/// Returns the index of a node in the file's list; `None` if it is from a function.
fn listed(proto: &GraphProto, graph: &Graph, node: usize) -> Option<usize> {
    let output = &graph.value(graph.nodes[node].outputs.first().copied().flatten()?).name;
    proto
        .node
        .iter()
        .position(|listed| listed.op_type() == "BatchNormalization" && listed.output.first() == Some(output))
}
