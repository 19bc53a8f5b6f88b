//! The update phase: the only launches that write parameters and state.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::Kernel;

use crate::context::{Lowering, NodeView};
use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, ValueId};
use crate::program::{NamedOperand, Operand, Role};

/// The nodes of the update phase, with the states that they update in place, keyed by the node's outputs.
pub(super) type InPlaceNodes = BTreeMap<usize, BTreeMap<usize, ValueId>>;

/// Finds the nodes of the update phase: the update kernels whose outputs can overwrite the states that they read (only later update kernels
/// use the new values within the step, and no later update reads the old ones), and the nodes of updates that are formulas.
pub(super) fn in_place_nodes(graph: &Graph) -> InPlaceNodes {
    let mut states: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    for update in &graph.updates {
        states.entry(update.value).or_default().push(update.state);
    }
    let mut used: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    let updates_state = |node: &Node| match &node.operation {
        Operation::Kernel(kernel) => kernel.facts().updates_state,
        Operation::Onnx { .. } => false,
    };
    let others = graph.nodes.iter().filter(|node| !updates_state(node));
    used.extend(others.flat_map(|node| node.inputs.iter().flatten().copied()));

    let mut nodes = formulas(graph, &states);
    // Nodes are visited from last to first, so that it is known what later updates read.
    let mut read_later = BTreeSet::new();
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let Operation::Kernel(kernel) = &node.operation else { continue };
        if !kernel.facts().updates_state {
            continue;
        }
        let mut targets = BTreeMap::new();
        let in_place = node.outputs.iter().enumerate().all(|(output, value)| {
            let Some(value) = value else { return false };
            let read = kernel.in_place().iter().find(|(write, _)| *write == output).map(|(_, read)| *read);
            let state = read.and_then(|read| node.inputs.get(read).copied().flatten());
            let Some(state) = state.filter(|state| states.get(value).is_some_and(|all| all == &[*state])) else {
                return false;
            };
            targets.insert(output, state);
            !used.contains(value) && !read_later.contains(&state)
        });
        if !in_place {
            used.extend(node.inputs.iter().flatten().copied());
        } else {
            read_later.extend(node.inputs.iter().flatten().copied());
            nodes.insert(i, targets);
        }
    }
    nodes
}

/// Returns the nodes of updates that are formulas. A node that computes a state's new value from the old one does so in place if no later
/// node reads the old one. Later nodes can read the new value, which is then the state.
fn formulas(graph: &Graph, states: &BTreeMap<ValueId, Vec<ValueId>>) -> InPlaceNodes {
    let mut nodes = InPlaceNodes::new();
    let mut read_later = BTreeSet::new();
    for (i, node) in graph.nodes.iter().enumerate().rev().filter(|(_, node)| graph.is_update(node)) {
        let mut targets = BTreeMap::new();
        if let (Operation::Kernel(kernel), [Some(value)]) = (&node.operation, node.outputs.as_slice()) {
            let operands = kernel.in_place().iter().filter(|(write, _)| *write == 0);
            let olds: Vec<ValueId> =
                operands.filter_map(|&(_, read)| node.inputs.get(read).copied().flatten()).collect();
            if let Some([state]) = states.get(value).map(Vec::as_slice)
                && olds.contains(state)
                && !read_later.contains(state)
            {
                targets.insert(0, *state);
            }
        }
        read_later.extend(node.inputs.iter().flatten().copied());
        nodes.insert(i, targets);
    }
    nodes
}

impl Lowering<'_> {
    /// Lowers the update phase: update kernels in place, then copies of values computed earlier.
    pub(super) fn updates(&mut self, in_place: &InPlaceNodes) -> Result<(), ModelError> {
        let written: BTreeSet<ValueId> = in_place.values().flat_map(|targets| targets.values().copied()).collect();
        let mut copies = Vec::new();
        for update in self.graph.updates.iter().filter(|update| !written.contains(&update.state)) {
            let name = self.graph.value(update.state).name.clone();
            let error = |reason| ModelError::Request { reason: format!("update of '{name}': {reason}") };
            let state = self.read(update.state).map_err(error)?;
            let value = self.read(update.value).map_err(error)?;
            if state.desc != value.desc {
                return Err(error(format!("the old value is {}, but the new value is {}", state.desc, value.desc)));
            }
            copies.push((name, state, value));
        }
        for (name, _, value) in &mut copies {
            *value = self.snapshot(name, value);
        }
        self.program.update_start = self.program.launches.len();
        for (&node, targets) in in_place {
            for (&output, &state) in targets {
                let view = NodeView { graph: self.graph, node: &self.graph.nodes[node] };
                let operand = self.read(state).map_err(|reason| view.error(reason))?;
                if let Some(Some(value)) = view.node.outputs.get(output) {
                    self.operands[value.0 as usize] = Some(operand);
                }
            }
            self.node(node)?;
        }
        for (name, state, value) in copies {
            self.emit(&name, Kernel::Copy, vec![value], vec![state]);
        }
        self.persistent_operands();
        Ok(())
    }

    /// Copies the contents of a persistent buffer before the update phase changes it; other operands are returned unchanged.
    fn snapshot(&mut self, name: &str, operand: &Operand) -> Operand {
        if !matches!(self.program.buffer(operand.buffer).role, Role::Parameter | Role::State) {
            return operand.clone();
        }
        let copy = self.allocate(name, operand.desc.clone(), Role::Gradient);
        self.emit(name, Kernel::Copy, vec![operand.clone()], vec![copy.clone()]);
        copy
    }

    fn persistent_operands(&mut self) {
        let states: Vec<ValueId> = self.persistent.keys().copied().collect();
        for state in states {
            if let Some(operand) = self.operands[state.0 as usize].clone() {
                let name = self.graph.value(state).name.clone();
                self.program.persistent.push(NamedOperand { name, shape: self.shape(state), operand });
            }
        }
    }
}
