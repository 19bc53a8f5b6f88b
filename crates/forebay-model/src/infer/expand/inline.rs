//! Inlines a subgraph: its nodes become nodes of the enclosing graph.

use std::collections::BTreeMap;

use crate::graph::{Graph, Node, Subgraph, ValueId};

/// Copies the nodes of `inside` into `graph`: `inputs` replace the inputs that it declares, and the node's inputs replace the values that
/// it captures. Returns the nodes and the outputs.
pub(super) fn inline(
    graph: &mut Graph,
    node: &Node,
    inside: &Subgraph,
    inputs: &[ValueId],
) -> (Vec<Node>, Vec<ValueId>) {
    let declared = inside.declared_inputs();
    let captured = inside.captured.iter().map(|&input| node.inputs.get(input).copied().flatten());
    let outside = inputs.iter().copied().map(Some).chain(std::iter::repeat(None)).take(declared).chain(captured);
    let mut values: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (&input, value) in inside.graph.inputs.iter().zip(outside) {
        values.extend(value.map(|value| (input, value)));
    }
    let prefix = node.label(graph);
    let mut value = |graph: &mut Graph, id: ValueId| {
        *values.entry(id).or_insert_with(|| graph.add_value(&format!("{prefix}/{}", inside.graph.value(id).name), None))
    };
    let mut nodes = Vec::with_capacity(inside.graph.nodes.len());
    for node in &inside.graph.nodes {
        let inputs = node.inputs.iter().map(|input| input.map(|input| value(graph, input))).collect();
        let outputs = node.outputs.iter().map(|output| output.map(|output| value(graph, output))).collect();
        nodes.push(Node {
            name: format!("{prefix}/{}", node.name),
            operation: node.operation.clone(),
            inputs,
            outputs,
        });
    }
    let outputs = inside.graph.outputs.iter().map(|&output| value(graph, output)).collect();
    (nodes, outputs)
}
