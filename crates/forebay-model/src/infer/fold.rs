//! Constant folding: decides which nodes are computed on the host, and when.
//!
//! Shape arithmetic is computed immediately, because types depend on it. Values derived from weights are not: whether they fold depends
//! only on types, and they are computed when their contents are loaded. A plan therefore does not read the weights.

use std::sync::Arc;

use forebay_base::DataType;

use crate::error::ModelError;
use crate::graph::{Graph, Node, TensorType, ValueId};
use crate::operator::{Evaluate, NodeView, Operator};
use crate::tensor::{Compute, Contents, Tensor};

/// A node is folded only if none of its outputs has more elements.
const COUNT_MAX: u64 = 1 << 20;
/// The same limit for outputs that are computed when loaded and are no larger than their inputs, such as reordered weights.
const COUNT_LATER_MAX: u64 = 1 << 22;
/// Folding stops when the folded values of a graph hold more bytes, so that a hostile graph cannot exhaust memory.
const BYTES_MAX: u64 = 256 << 20;
/// A node is folded only if its inputs have at most this many bytes in all: they are in memory while it is computed.
const INPUT_BYTES_MAX: u64 = 64 << 20;
/// Contents with a longer chain of computations are computed immediately.
const DEPTH_MAX: u32 = 16;
/// Contents that take more computations in all are computed immediately.
const WORK_MAX: u32 = 256;

/// Whether only the type of an operator's input `i` counts: the operator folds whether or not that input is constant.
fn is_type_only(op_type: &str, i: usize) -> bool {
    matches!((op_type, i), ("Shape" | "Size", _) | ("CastLike", 1))
}

/// Returns the node's outputs if all inputs whose elements count are constant and the results are small, or if they have no elements at all.
/// `folded_bytes` have been folded before.
///
/// # Errors
/// Fails if the operator rejects the inputs or they cannot be read.
pub(super) fn fold(
    view: &NodeView,
    row: &Operator,
    types: &[TensorType],
    folded_bytes: u64,
) -> Result<Option<Vec<Contents>>, ModelError> {
    if !types.is_empty() && types.iter().all(|ty| ty.count() == 0) {
        // There is nothing to compute, and a device could not hold the result.
        let empty = |ty: &TensorType| Tensor::new(ty.data_type, &ty.shape, []).map(Contents::from);
        return Ok(types.iter().map(empty).collect());
    }
    let Some(evaluate) = row.evaluate else { return Ok(None) };
    let counts = |i: usize, input: &Option<ValueId>| input.filter(|_| !is_type_only(row.op_type, i));
    let read: Vec<Option<ValueId>> = view.node.inputs.iter().enumerate().map(|(i, input)| counts(i, input)).collect();
    if !read.iter().flatten().all(|&value| view.graph.is_constant(value)) {
        return Ok(None);
    }
    let sum_bytes =
        |first: u64, ty: &TensorType| first.saturating_add(ty.count().saturating_mul(ty.data_type.size_bytes()));
    let size_bytes = types.iter().fold(0, sum_bytes);
    let small = types.iter().all(|ty| ty.count() <= COUNT_MAX) && size_bytes.saturating_add(folded_bytes) <= BYTES_MAX;
    let inputs: Vec<Option<&Contents>> =
        read.iter().map(|input| input.and_then(|value| view.graph.initializers.get(&value))).collect();
    let given = || inputs.iter().copied().flatten();
    let given_bytes = given().map(Contents::ty).fold(0, sum_bytes);
    let waits = given().any(waits) && given().all(is_light);
    let no_larger = types.iter().all(|ty| ty.count() <= COUNT_LATER_MAX) && size_bytes <= given_bytes;
    if given_bytes > INPUT_BYTES_MAX || !(small || waits && no_larger) {
        return Ok(None);
    }
    if waits {
        return later(view, types, evaluate, &inputs);
    }
    computed(view, types, evaluate, &tensors(&inputs)?)
}

/// Returns whether contents are not read until they are loaded. Shapes and indices are integers of these types.
fn waits(contents: &Contents) -> bool {
    let is_index = matches!(contents.data_type(), DataType::Int32 | DataType::Int64 | DataType::UInt64);
    contents.in_memory().is_none() && !is_index
}

/// Returns whether computing contents takes little work and little stack.
fn is_light(contents: &Contents) -> bool {
    contents.depth() < DEPTH_MAX && contents.work() < WORK_MAX
}

/// Returns the elements of the inputs.
fn tensors(inputs: &[Option<&Contents>]) -> Result<Vec<Option<Tensor>>, ModelError> {
    inputs.iter().map(|input| input.map(Contents::to_tensor).transpose()).collect()
}

/// Returns the outputs, computed now.
fn computed(
    view: &NodeView,
    types: &[TensorType],
    evaluate: Evaluate,
    inputs: &[Option<Tensor>],
) -> Result<Option<Vec<Contents>>, ModelError> {
    let tensors = evaluated(view, types, evaluate, inputs)?;
    Ok(tensors.map(|tensors| tensors.into_iter().map(Contents::from).collect()))
}

/// Returns the outputs, to be computed when they are needed. Whether they can be computed does not depend on the elements of inputs not
/// read yet, which are replaced by zeros here.
fn later(
    view: &NodeView,
    types: &[TensorType],
    evaluate: Evaluate,
    inputs: &[Option<&Contents>],
) -> Result<Option<Vec<Contents>>, ModelError> {
    let stand_in = |contents: &Contents| match waits(contents) {
        true => {
            let TensorType { data_type, shape } = contents.ty();
            let zeros = Tensor::new(*data_type, shape, vec![0; contents.size_bytes() as usize]);
            zeros.ok_or_else(|| view.error(format!("an input is too large: {}", contents.ty())))
        }
        false => contents.to_tensor(),
    };
    let tried = inputs.iter().map(|input| input.map(stand_in).transpose()).collect::<Result<Vec<_>, _>>()?;
    if evaluated(view, types, evaluate, &tried)?.is_none() {
        return Ok(None);
    }
    let graph = Arc::new(alone(view));
    let from: Vec<&Contents> = inputs.iter().copied().flatten().collect();
    let output = |(output, ty): (usize, &TensorType)| {
        let folded = Folded { graph: graph.clone(), types: types.to_vec(), evaluate, output };
        Contents::computed(ty.clone(), Box::new(folded), &from)
    };
    Ok(Some(types.iter().enumerate().map(output).collect()))
}

/// Returns a graph of this node and its inputs.
pub(crate) fn alone(view: &NodeView) -> Graph {
    let mut graph = Graph::default();
    let mut copied = std::collections::BTreeMap::new();
    let mut copy = |value: ValueId| {
        *copied.entry(value).or_insert_with(|| {
            let own = view.graph.value(value);
            let id = graph.add_value(&own.name, own.ty.clone());
            if let Some(contents) = view.graph.initializers.get(&value) {
                graph.initializers.insert(id, contents.clone());
            }
            if view.graph.constants.contains(&value) {
                graph.constants.insert(id);
            }
            id
        })
    };
    let inputs = view.node.inputs.iter().map(|input| input.map(&mut copy)).collect();
    let outputs = view.node.outputs.iter().map(|output| output.map(&mut copy)).collect();
    let Node { name, operation, .. } = view.node;
    graph.nodes.push(Node { name: name.clone(), operation: operation.clone(), inputs, outputs });
    graph
}

/// An output of a folded node.
struct Folded {
    /// The node and its inputs.
    graph: Arc<Graph>,
    /// The types of all outputs.
    types: Vec<TensorType>,
    evaluate: Evaluate,
    /// Which output it is.
    output: usize,
}

impl std::fmt::Debug for Folded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "output {} of {}", self.output, self.graph.nodes[0].operation.name())
    }
}

impl Compute for Folded {
    fn compute(&self) -> Result<Tensor, ModelError> {
        let view = NodeView { graph: &self.graph, node: &self.graph.nodes[0] };
        let inputs: Vec<Option<&Contents>> =
            view.node.inputs.iter().map(|input| input.and_then(|value| self.graph.initializers.get(&value))).collect();
        let tensors = evaluated(&view, &self.types, self.evaluate, &tensors(&inputs)?)?;
        let tensor = tensors.and_then(|tensors| tensors.into_iter().nth(self.output));
        tensor.ok_or_else(|| view.error("it cannot be computed from the values of its constant inputs"))
    }
}

/// Returns the outputs, or `None` if they cannot be computed here.
fn evaluated(
    view: &NodeView,
    types: &[TensorType],
    evaluate: Evaluate,
    inputs: &[Option<Tensor>],
) -> Result<Option<Vec<Tensor>>, ModelError> {
    let inputs: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
    let Some(tensors) = evaluate(view, &inputs)? else { return Ok(None) };
    for (i, ty) in types.iter().enumerate().filter(|&(i, _)| matches!(view.node.outputs.get(i), Some(Some(_)))) {
        match tensors.get(i) {
            Some(tensor) if tensor.data_type() == ty.data_type && tensor.shape() == ty.shape => {}
            Some(tensor) => {
                let found = TensorType::new(tensor.data_type(), tensor.shape());
                return Err(view.error(format!("output {i} folds to {found}, but its type is {ty}")));
            }
            None => return Ok(None),
        }
    }
    Ok(Some(tensors))
}
