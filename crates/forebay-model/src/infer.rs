//! Type inference for every value, and constant folding.
//!
//! ONNX graphs often compute shapes in nodes (`Shape`, `Gather`, `Concat`, `Reshape`). Once the sizes of the inputs are known, all of this
//! arithmetic is constant, so it is folded here and never reaches a device.

pub(crate) mod expand;
mod fold;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_base::DataType;

use crate::error::ModelError;
use crate::graph::{Dimension, Graph, Node, Operation, TensorType, ValueId};
use crate::operator::NodeView;
use crate::operators::row;
pub(crate) use fold::alone;

/// Sizes of the inputs.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    /// The value of a symbolic or absent leading dimension of the inputs.
    pub batch_size: Option<u64>,
    /// The values of symbols; a value given here takes precedence over the batch size.
    pub symbols: BTreeMap<String, u64>,
    /// The types of inputs, by name; their sizes replace symbols.
    pub inputs: BTreeMap<String, TensorType>,
}

impl Sizes {
    /// Creates sizes from a batch size alone.
    pub fn of_batch(batch_size: Option<u64>) -> Sizes {
        Sizes { batch_size, ..Sizes::default() }
    }
}

/// A node that cannot be processed before some value is known.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The node.
    pub node: Node,
    /// What it waits for: [`ModelError::NeedsValue`]. `None` if it waits for an earlier node.
    pub reason: Option<ModelError>,
}

/// Determines the type of every value: the declared sizes of the inputs become numbers, and operators provide the rest. Folds nodes whose
/// inputs are constant, and removes nodes that no output needs. Branches, loops and sequences are expanded into ordinary nodes.
///
/// `batch_size` is the value of a symbolic or absent leading dimension of the inputs; a symbol has the same value everywhere.
/// Floating-point initializers are not folded, because they can be trained (see [`Graph::constants`]).
///
/// # Errors
/// Fails if operators have no row (all of them are reported), a dimension has no number, an operator rejects its inputs, or the declared
/// element type of an output differs from the inferred one.
pub fn infer(graph: &mut Graph, batch_size: Option<u64>) -> Result<(), ModelError> {
    infer_sizes(graph, &Sizes::of_batch(batch_size))
}

/// Infers types as [`infer`] does, for inputs of any sizes.
///
/// # Errors
/// As [`infer`].
pub fn infer_sizes(graph: &mut Graph, sizes: &Sizes) -> Result<(), ModelError> {
    match infer_known(graph, sizes)?.into_iter().find_map(|waiting| waiting.reason) {
        Some(error) => Err(error),
        None => check_outputs(graph),
    }
}

/// Infers types as [`infer_sizes`] does, as far as values are known. The nodes left in the graph have types; nodes that wait for values are
/// returned, in order.
///
/// # Errors
/// As [`infer`], except for [`ModelError::NeedsValue`].
pub fn infer_known(graph: &mut Graph, sizes: &Sizes) -> Result<Vec<Waiting>, ModelError> {
    resolve_inputs(graph, sizes)?;
    graph.drop_dead_nodes();
    refuse_unsupported(graph)?;
    let mut folded_bytes = 0;
    let mut pending: VecDeque<Node> = std::mem::take(&mut graph.nodes).into();
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut unknown: BTreeSet<ValueId> = BTreeSet::new();
    while let Some(node) = pending.pop_front() {
        let waits = node.inputs.iter().flatten().any(|input| unknown.contains(input));
        let reason = if waits {
            None
        } else {
            match expand::expand(graph, &node) {
                Ok(Some(nodes)) => {
                    nodes.into_iter().rev().for_each(|node| pending.push_front(node));
                    check_count(graph, &node, pending.len())?;
                    continue;
                }
                Err(error @ ModelError::NeedsValue { .. }) => Some(error),
                Err(error) => return Err(error),
                Ok(None) => {
                    graph.nodes.push(node.clone());
                    let inferred = infer_and_fold(graph, graph.nodes.len() - 1, &mut folded_bytes);
                    match inferred.and_then(|()| expand::note_padding(graph, &node)) {
                        Ok(()) => continue,
                        Err(error @ ModelError::NeedsValue { .. }) => {
                            graph.nodes.pop();
                            Some(error)
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        };
        unknown.extend(node.outputs.iter().flatten());
        waiting.push(Waiting { node, reason });
    }
    if waiting.is_empty() {
        graph.drop_dead_nodes();
    }
    Ok(waiting)
}

/// Refuses a model that has too many nodes after one of them is expanded. `pending` is the number of nodes that do not have types yet.
fn check_count(graph: &Graph, expanded: &Node, pending: usize) -> Result<(), ModelError> {
    let (count, name) = (graph.nodes.len() + pending, expanded.operation.name());
    if count <= expand::NODES_MAX as usize {
        return Ok(());
    }
    let other = match name {
        "Loop" => "",
        _ => "; a Loop runs its body repeatedly outside training if it is too long to be unrolled",
    };
    let reason = format!(
        "with the nodes that replace {name} '{}', the model has {count} nodes, more than the maximum of {}; use fewer iterations or \
         shorter sequences, or run the part after it as another model{other}",
        expanded.label(graph),
        expand::NODES_MAX
    );
    Err(ModelError::Request { reason })
}

/// Determines the types of one node's outputs. If the node can be folded, its outputs become initializers and everything afterwards skips
/// it.
///
/// # Errors
/// Fails if the operator has no row or rejects its inputs.
pub fn infer_node(graph: &mut Graph, node: usize) -> Result<(), ModelError> {
    infer_and_fold(graph, node, &mut 0)
}

fn infer_and_fold(graph: &mut Graph, node: usize, folded_bytes: &mut u64) -> Result<(), ModelError> {
    let view = NodeView { graph, node: &graph.nodes[node] };
    if matches!(view.node.operation, Operation::Kernel(_)) {
        return Ok(());
    }
    let row = row(&view)?;
    let types = (row.infer)(&view)?;
    if let Some(i) = (types.len()..view.node.outputs.len()).find(|&i| view.node.outputs[i].is_some()) {
        return Err(view.error(format!("output {i} is not supported (number of supported outputs: {})", types.len())));
    }
    let folded = fold::fold(&view, row, &types, *folded_bytes)?;
    let outputs = view.node.outputs.clone();
    for (i, (output, ty)) in outputs.into_iter().zip(types).enumerate() {
        let Some(output) = output else { continue };
        graph.value_mut(output).ty = Some(ty);
        if let Some(folded) = &folded {
            // Contents that are computed when loaded take no memory until then.
            if folded[i].in_memory().is_some() {
                *folded_bytes += folded[i].size_bytes();
            }
            graph.initializers.insert(output, folded[i].clone());
            graph.constants.insert(output);
        }
    }
    Ok(())
}

/// The input sizes that a graph leaves open: for each, the symbol, which can be empty, and `input[dimension]`.
pub fn open_sizes(graph: &Graph) -> Vec<(String, String)> {
    let mut open = Vec::new();
    for value in graph.inputs.iter().map(|&id| graph.value(id)) {
        for (i, dimension) in value.declared.iter().flat_map(|(_, dimensions)| dimensions).enumerate() {
            if let Dimension::Symbol(symbol) = dimension {
                open.push((symbol.clone(), format!("{}[{i}]", value.name)));
            }
        }
    }
    open
}

/// Replaces symbols in the declarations of inputs and outputs by numbers: symbols of leading dimensions of inputs by the batch size, and
/// those that `symbols` names, as a symbol or as `input[dimension]`, by the numbers given there. Other symbols are left as they are.
///
/// # Errors
/// Fails if the batch size does not fit the model.
pub fn declare_sizes(
    graph: &mut Graph,
    batch_size: Option<u64>,
    symbols: &BTreeMap<String, u64>,
) -> Result<(), ModelError> {
    let mut known = match batch_size {
        Some(batch_size) => batch_symbols(graph, batch_size)?,
        None => BTreeMap::new(),
    };
    known.extend(symbols.iter().map(|(symbol, size)| (symbol.clone(), *size)));
    let inputs = graph.inputs.clone();
    for id in inputs.iter().chain(&graph.outputs.clone()) {
        let value = graph.value_mut(*id);
        let Some((_, dimensions)) = &mut value.declared else { continue };
        for (i, dimension) in dimensions.iter_mut().enumerate() {
            let by_symbol = match &*dimension {
                Dimension::Known(_) => continue,
                Dimension::Symbol(symbol) if symbol.is_empty() => batch_size.filter(|_| i == 0 && inputs.contains(id)),
                Dimension::Symbol(symbol) => known.get(symbol).copied(),
            };
            if let Some(size) = by_symbol.or_else(|| known.get(&format!("{}[{i}]", value.name)).copied()) {
                *dimension = Dimension::Known(size);
            }
        }
    }
    Ok(())
}

/// Resolves the declared sizes of the inputs to numbers.
fn resolve_inputs(graph: &mut Graph, sizes: &Sizes) -> Result<(), ModelError> {
    let batch_size = sizes.batch_size;
    let mut symbols = match batch_size {
        Some(batch_size) => batch_symbols(graph, batch_size)?,
        None => BTreeMap::new(),
    };
    symbols.extend(sizes.symbols.iter().map(|(symbol, size)| (symbol.clone(), *size)));
    for id in graph.inputs.clone() {
        let value = graph.value(id);
        if let Some(given) = sizes.inputs.get(&value.name) {
            check_input(&value.name, value.declared.as_ref(), given)?;
            graph.value_mut(id).ty = Some(given.clone());
            continue;
        }
        let Some((data_type, dimensions)) = &value.declared else {
            let reason = format!("input '{}' does not declare a tensor type with a shape", value.name);
            return Err(ModelError::Malformed { reason });
        };
        let mut shape = Vec::with_capacity(dimensions.len());
        for (i, dimension) in dimensions.iter().enumerate() {
            let size = match dimension {
                Dimension::Known(size) => Some(*size),
                Dimension::Symbol(symbol) if symbol.is_empty() => batch_size.filter(|_| i == 0),
                Dimension::Symbol(symbol) => symbols.get(symbol).copied(),
            };
            shape.push(size.ok_or_else(|| unresolved(&value.name, i, dimension))?);
        }
        let ty = TensorType { data_type: *data_type, shape };
        graph.value_mut(id).ty = Some(ty);
    }
    Ok(())
}

/// Checks the type of the tensor given for an input. Sizes that the model leaves open can have any value.
pub(crate) fn check_input(
    name: &str,
    declared: Option<&(DataType, Vec<Dimension>)>,
    given: &TensorType,
) -> Result<(), ModelError> {
    let Some((data_type, dimensions)) = declared else { return Ok(()) };
    let fits = |(dimension, size): (&Dimension, &u64)| match dimension {
        Dimension::Known(known) => known == size,
        Dimension::Symbol(_) => true,
    };
    if *data_type == given.data_type
        && dimensions.len() == given.shape.len()
        && dimensions.iter().zip(&given.shape).all(fits)
    {
        return Ok(());
    }
    let dimensions: Vec<String> = dimensions.iter().map(Dimension::to_string).collect();
    let reason = format!("input '{name}' is {given}, but the model declares {data_type}[{}]", dimensions.join(", "));
    Err(ModelError::Request { reason })
}

/// The symbols to which the batch size gives a value.
fn batch_symbols(graph: &Graph, batch_size: u64) -> Result<BTreeMap<String, u64>, ModelError> {
    if batch_size == 0 {
        return Err(ModelError::Request { reason: "the batch size must be at least 1".to_string() });
    }
    let leading = |id: &ValueId| graph.value(*id).declared.as_ref().and_then(|(_, dimensions)| dimensions.first());
    let mut symbols = BTreeMap::new();
    let mut fixed = Vec::new();
    for id in &graph.inputs {
        match leading(id) {
            Some(Dimension::Symbol(symbol)) => {
                symbols.insert(symbol.clone(), batch_size);
            }
            Some(Dimension::Known(size)) => fixed.push((&graph.value(*id).name, *size)),
            None => {}
        }
    }
    if symbols.is_empty() && !fixed.iter().any(|(_, size)| *size == batch_size) {
        let found: Vec<String> = fixed.iter().map(|(name, size)| format!("'{name}' has {size}")).collect();
        let reason = format!(
            "batch size {batch_size} does not fit the model, whose leading dimension is fixed ({}); leave out the \
             batch size or export the model with a symbolic batch dimension",
            if found.is_empty() { "no input has a dimension".to_string() } else { found.join(", ") }
        );
        return Err(ModelError::Request { reason });
    }
    Ok(symbols)
}

fn unresolved(input: &str, i: usize, dimension: &Dimension) -> ModelError {
    let symbol = match dimension {
        Dimension::Symbol(symbol) if !symbol.is_empty() => symbol.clone(),
        _ => format!("{input}[{i}]"),
    };
    let way_out = if i == 0 { "--batch-size N".to_string() } else { format!("--size {symbol}=N") };
    ModelError::Request {
        reason: format!("dimension {i} ('{symbol}') of input '{input}' has no size; set it with {way_out}"),
    }
}

/// Maximum number of further nodes, of operators without a row, that an error names.
const NAMED_MAX: usize = 5;

/// Reports every operator without a row, so that the user sees all of them at once.
///
/// # Errors
/// Fails if operators have no row, including those in subgraphs of nodes. The error names their nodes and suggests what to do.
pub fn refuse_unsupported(graph: &Graph) -> Result<(), ModelError> {
    let (mut seen, mut errors, mut more) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        for node in &graph.nodes {
            let Operation::Onnx { domain, op_type, .. } = &node.operation else { continue };
            graphs.extend(node.operation.graphs());
            if expand::is_expanded(domain, op_type) {
                continue;
            }
            if let Err(error) = row(&NodeView { graph, node }) {
                match seen.insert((domain.clone(), op_type.clone())) {
                    true => errors.push(error),
                    false => more.push(format!("'{}'", node.label(graph))),
                }
            }
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let unnamed = match more.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    more.truncate(NAMED_MAX);
    let also = match more.is_empty() {
        true => String::new(),
        false => format!("these operators are also used by {}{unnamed}; ", more.join(", ")),
    };
    let reason = format!(
        "{also}export the model with other operators or to another opset, or define the operators as functions \
         in the model"
    );
    errors.push(ModelError::Request { reason });
    Err(ModelError::Several(errors))
}

/// Compares the declared element types of the outputs with the inferred ones. Declared sizes are only a hint: exporters get them wrong, so
/// the computed sizes are used.
pub(crate) fn check_outputs(graph: &Graph) -> Result<(), ModelError> {
    for &id in &graph.outputs {
        let value = graph.value(id);
        let Some(ty) = &value.ty else {
            let reason = match graph.sequences.contains_key(&id) {
                true => format!("output '{}' is a sequence; only tensors are supported as outputs", value.name),
                false => format!("no node computes the output '{}'", value.name),
            };
            return Err(ModelError::Malformed { reason });
        };
        match &value.declared {
            Some((declared, _)) if *declared != ty.data_type => {
                let reason = format!("output '{}' is declared as {declared}, but the nodes compute {ty}", value.name);
                return Err(ModelError::Malformed { reason });
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
