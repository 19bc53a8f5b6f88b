//! Graphs whose sizes or branches depend on values that are known only at run time.
//!
//! Such a graph runs in *stages*. Given the types of the inputs, [`next`] determines what comes next: the rest of the graph as a whole;
//! values of inputs for which it must be specialized ([`Next::Pin`]); a first part that can be planned, whose outputs are inputs of the
//! rest ([`Next::Compute`]); or a node that is computed between two stages ([`Next::Evaluate`], [`Next::Repeat`]). Unless it was the whole
//! graph, [`next`] is then called again for the graph that is left.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::Tensor;

use crate::context::NodeView;
use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, TensorType, ValueId};
use crate::infer::{self, Sizes, Waiting, expand};
use crate::operators::row;
use crate::tensor::Contents;

/// Operators whose output sizes depend on the elements of their inputs. They are computed between two stages.
const SIZED_BY_ELEMENTS: [&str; 5] = ["NonZero", "Compress", "Unique", "NonMaxSuppression", "ImageDecoder"];
/// Largest number of integers in an input for whose values a graph can be specialized, if sizes are computed from it. Longer inputs are
/// data.
const PINNED_INTEGERS_MAX: u64 = 64;
/// The same limit for floating-point numbers.
const PINNED_FLOATS_MAX: u64 = 1;

pub use crate::infer::expand::{is_true, trip_count, truth};

/// The next step of running a graph in stages.
#[derive(Debug)]
pub enum Next {
    /// Everything is known: one plan computes all outputs.
    Whole {
        /// The graph. Outputs that are sequences are replaced by their elements.
        graph: Graph,
        /// Outputs that are not tensors, by name.
        structured: Vec<(String, Structured)>,
    },
    /// The graph depends on the elements of these inputs: [`pin`] makes them constants.
    Pin(Vec<ValueId>),
    /// One plan computes the outputs of the first graph, which are inputs of the second.
    Compute {
        /// The part that can be planned.
        first: Box<Graph>,
        /// The rest of the graph.
        rest: Graph,
    },
    /// A node is computed on the host from inputs of the graph; its outputs are inputs of the rest.
    Evaluate {
        /// The node.
        node: Box<Evaluation>,
        /// The rest of the graph.
        rest: Graph,
    },
    /// A loop runs its body repeatedly, starting from inputs of the graph; its outputs are inputs of the rest.
    Repeat {
        /// The loop.
        repetition: Box<Repetition>,
        /// The rest of the graph.
        rest: Graph,
    },
}

/// An output that is not a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Structured {
    /// A sequence, as the names of its elements, which were given to the run or computed by it.
    Sequence(Vec<String>),
    /// An optional value that is absent.
    Absent,
}

/// The form of what a run is given for an input that is not declared to be a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// A tensor.
    Tensor,
    /// A sequence of this many tensors.
    Sequence(usize),
    /// Nothing.
    Absent,
}

/// Adapts the graph to what is given for an input that is not declared to be a tensor. Returns the names of the inputs that replace it, one
/// for each tensor.
pub fn bind(graph: &mut Graph, input: ValueId, form: Form) -> Vec<String> {
    let name = graph.value(input).name.clone();
    match form {
        Form::Tensor => vec![name],
        Form::Sequence(length) => {
            graph.inputs.retain(|&id| id != input);
            let elements: Vec<ValueId> = (0..length).map(|i| graph.add_value(&format!("{name}[{i}]"), None)).collect();
            graph.inputs.extend(&elements);
            let names = elements.iter().map(|&id| graph.value(id).name.clone()).collect();
            graph.sequences.insert(input, elements);
            names
        }
        Form::Absent => {
            graph.inputs.retain(|&id| id != input);
            graph.absent.insert(input);
            Vec::new()
        }
    }
}

/// Removes outputs that are known not to be tensors from a graph, and adds the elements of sequences in their place.
fn take_structured(graph: &mut Graph) -> Vec<(String, Structured)> {
    let (mut structured, mut seen, mut outputs) = (Vec::new(), BTreeSet::new(), Vec::new());
    for output in std::mem::take(&mut graph.outputs) {
        let name = |id: ValueId| graph.value(id).name.clone();
        if graph.absent.contains(&output) {
            structured.push((name(output), Structured::Absent));
            continue;
        }
        let tensors = graph.tensors(output);
        if graph.sequences.contains_key(&output) {
            structured.push((name(output), Structured::Sequence(tensors.iter().map(|&id| name(id)).collect())));
        }
        outputs.extend(tensors.into_iter().filter(|&id| seen.insert(id)));
    }
    graph.outputs = outputs;
    structured
}

/// A node that is computed on the host, between stages.
#[derive(Debug)]
pub struct Evaluation {
    /// The node on its own, with its constants.
    graph: Graph,
    /// Names of its input values.
    pub inputs: Vec<String>,
    /// Names of its output values.
    pub outputs: Vec<String>,
}

/// A loop whose end depends on what it computes, or that is too long to be unrolled.
#[derive(Debug)]
pub struct Repetition {
    /// Its body. The inputs are the number of the iteration, the condition, the values carried from one iteration to the next, and the
    /// values captured from the enclosing graph; the outputs are the condition, the carried values, and the values to collect.
    pub body: Graph,
    /// The number of iterations, as the name of an input or as a constant.
    pub count: Option<Source>,
    /// The initial condition, in the same form.
    pub condition: Option<Source>,
    /// Initial values of what is carried from one iteration to the next.
    pub carried: Vec<Source>,
    /// Values of the enclosing graph that the body uses, with their names in the body.
    pub captured: Vec<(String, Source)>,
    /// Names of the loop's outputs, `None` for one that is not wanted: first the carried values, then the collected ones.
    pub outputs: Vec<Option<String>>,
    /// For each collected output of the body, the result if there are no iterations.
    pub nothing: Vec<Option<Tensor>>,
}

/// The source of a value.
#[derive(Clone, Debug)]
pub enum Source {
    /// An input of the graph, by name.
    Input(String),
    /// A constant.
    Constant(Contents),
}

/// Determines what comes next for inputs of these types, given by name.
///
/// # Errors
/// As [`infer::infer`].
pub fn next(graph: &Graph, inputs: &BTreeMap<String, TensorType>) -> Result<Next, ModelError> {
    let mut graph = graph.clone();
    put_in_empty_inputs(&mut graph, inputs)?;
    let sizes = Sizes { inputs: inputs.clone(), ..Sizes::default() };
    let waiting = infer::infer_known(&mut graph, &sizes)?;
    if waiting.is_empty() {
        let structured = take_structured(&mut graph);
        infer::check_outputs(&graph)?;
        return Ok(Next::Whole { graph, structured });
    }
    let known = Known::new(&graph);
    let (mut pinned, mut computed, mut at_border) = (BTreeSet::new(), BTreeSet::new(), None);
    for (i, Waiting { node, reason }) in waiting.iter().enumerate() {
        let Some(reason) = reason else { continue };
        if is_at_border(&graph, node) {
            let inputs = node.inputs.iter().flatten().copied();
            let missing: Vec<ValueId> = inputs.filter(|input| known.producer.contains_key(input)).collect();
            if missing.is_empty() {
                at_border.get_or_insert(i);
            }
            computed.extend(missing);
            continue;
        }
        let ModelError::NeedsValue { value, .. } = reason else { return Err(reason.clone()) };
        let Some(value) = graph.find(value) else { return Err(reason.clone()) };
        if graph.inputs.contains(&value) {
            pinned.insert(value);
        } else if let Some(sources) = known.sources(value) {
            pinned.extend(sources);
        } else if known.producer.contains_key(&value) {
            computed.insert(value);
        } else {
            // A constant that is too large to base a plan on, or a loop about which nothing can be known.
            return Err(reason.clone());
        }
    }
    if !pinned.is_empty() {
        return Ok(Next::Pin(pinned.into_iter().collect()));
    }
    if !computed.is_empty() {
        return Ok(split(graph, waiting, &computed));
    }
    match at_border {
        Some(i) => border(graph, waiting, i),
        None => Err(waiting.into_iter().find_map(|waiting| waiting.reason).unwrap_or_else(|| ModelError::Malformed {
            reason: "nodes depend on values that no node computes".to_string(),
        })),
    }
}

/// Specializes the graph for one value of an input, which becomes a constant.
pub fn pin(graph: &mut Graph, input: ValueId, tensor: Tensor) {
    graph.inputs.retain(|&id| id != input);
    graph.value_mut(input).ty = Some(tensor.ty());
    graph.initializers.insert(input, tensor.into());
    graph.constants.insert(input);
}

/// Turns inputs without elements into constants, since there is nothing to copy to a device.
fn put_in_empty_inputs(graph: &mut Graph, inputs: &BTreeMap<String, TensorType>) -> Result<(), ModelError> {
    for id in graph.inputs.clone() {
        let Some(ty) = inputs.get(&graph.value(id).name).filter(|ty| ty.count() == 0) else { continue };
        infer::check_input(&graph.value(id).name, graph.value(id).declared.as_ref(), ty)?;
        if let Some(tensor) = Tensor::zeros(ty.data_type, &ty.shape) {
            pin(graph, id, tensor);
        }
    }
    Ok(())
}

/// Whether a waiting node is computed between stages once its inputs are known.
fn is_at_border(graph: &Graph, node: &Node) -> bool {
    let Operation::Onnx { domain, op_type, .. } = &node.operation else { return false };
    if !domain.is_empty() {
        return false;
    }
    SIZED_BY_ELEMENTS.contains(&op_type.as_str()) || (op_type == "Loop" && expand::runs_again(graph, node))
}

/// The nodes that compute those values of a graph that are known so far.
struct Known<'a> {
    graph: &'a Graph,
    /// For each value, the index of the node that computes it.
    producer: BTreeMap<ValueId, usize>,
}

impl<'a> Known<'a> {
    fn new(graph: &'a Graph) -> Known<'a> {
        let outputs = |(i, node): (usize, &'a Node)| node.outputs.iter().flatten().map(move |&output| (output, i));
        let producer = graph.nodes.iter().enumerate().flat_map(outputs).collect();
        Known { graph, producer }
    }

    /// The inputs from which a value is computed, if all of them are small and every node on the way can be folded.
    fn sources(&self, value: ValueId) -> Option<BTreeSet<ValueId>> {
        let (mut sources, mut seen, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![value]);
        while let Some(value) = open.pop() {
            if self.graph.inputs.contains(&value) {
                let ty = self.graph.ty(value)?;
                let count_max = if ty.data_type.is_float() { PINNED_FLOATS_MAX } else { PINNED_INTEGERS_MAX };
                if ty.count() > count_max || ty.shape.len() > 1 {
                    return None;
                }
                sources.insert(value);
            } else if !self.graph.is_constant(value) && seen.insert(value) {
                let node = &self.graph.nodes[*self.producer.get(&value)?];
                if expand::is_draw(node) {
                    return None;
                }
                row(&NodeView { graph: self.graph, node }).ok()?.evaluate?;
                open.extend(node.inputs.iter().flatten());
            }
        }
        Some(sources).filter(|sources| !sources.is_empty())
    }
}

/// The values that waiting nodes use, including elements of sequences, and the elements of outputs that are sequences.
fn used(graph: &Graph, waiting: &[Waiting]) -> BTreeSet<ValueId> {
    let mut used = BTreeSet::new();
    let mut open: Vec<ValueId> =
        waiting.iter().flat_map(|waiting| waiting.node.inputs.iter().flatten().copied()).collect();
    open.extend(graph.outputs.iter().filter(|output| graph.sequences.contains_key(output)));
    while let Some(value) = open.pop() {
        match graph.sequences.get(&value) {
            Some(elements) => open.extend(elements),
            None => {
                used.insert(value);
            }
        }
    }
    used
}

/// The graph of the waiting nodes, with those of `new_inputs` that they use as inputs.
fn rest(graph: &Graph, waiting: Vec<Waiting>, new_inputs: &BTreeSet<ValueId>) -> Graph {
    let mut rest = graph.clone();
    let used = used(graph, &waiting);
    rest.nodes = waiting.into_iter().map(|waiting| waiting.node).collect();
    let computed: BTreeSet<ValueId> =
        rest.nodes.iter().flat_map(|node| node.outputs.iter().flatten().copied()).collect();
    rest.inputs.retain(|input| used.contains(input));
    rest.inputs.extend(new_inputs.intersection(&used));
    let is_structured = |output: &ValueId| graph.sequences.contains_key(output) || graph.absent.contains(output);
    rest.outputs
        .retain(|output| computed.contains(output) || graph.initializers.contains_key(output) || is_structured(output));
    rest
}

/// Splits the graph into the part that is known, for one plan, and the rest.
fn split(graph: Graph, waiting: Vec<Waiting>, computed: &BTreeSet<ValueId>) -> Next {
    let used = used(&graph, &waiting);
    let produced = graph.nodes.iter().flat_map(|node| node.outputs.iter().flatten().copied());
    let goes_on = |value: &ValueId| computed.contains(value) || used.contains(value) || graph.outputs.contains(value);
    let outputs: BTreeSet<ValueId> =
        produced.filter(|value| goes_on(value) && !graph.initializers.contains_key(value)).collect();
    let rest = rest(&graph, waiting, &outputs);
    let mut first = graph;
    first.outputs = outputs.into_iter().collect();
    first.drop_dead_nodes();
    Next::Compute { first: Box::new(first), rest }
}

/// Splits the graph into a node that is computed before the next stage, and the rest. Nodes that could already be planned are planned with
/// the rest.
fn border(graph: Graph, mut waiting: Vec<Waiting>, i: usize) -> Result<Next, ModelError> {
    let node = waiting.remove(i).node;
    if let Some(input) = node.inputs.iter().position(|input| input.is_some_and(|id| graph.sequences.contains_key(&id)))
    {
        let view = NodeView { graph: &graph, node: &node };
        return Err(view.error(format!(
            "input {input} is a sequence of tensors, and the loop is not unrolled: its number of iterations is not known, or it would \
             have too many nodes"
        )));
    }
    let outputs: BTreeSet<ValueId> = node.outputs.iter().flatten().copied().collect();
    let source = |value: ValueId| match graph.initializers.get(&value) {
        Some(contents) => Source::Constant(contents.clone()),
        None => Source::Input(graph.value(value).name.clone()),
    };
    let name = |value: &ValueId| graph.value(*value).name.clone();
    // Nodes that are already known are kept for the next stage.
    let known = graph.nodes.iter().map(|node| Waiting { node: node.clone(), reason: None });
    let waiting: Vec<Waiting> = known.chain(waiting).collect();
    if matches!(&node.operation, Operation::Onnx { op_type, .. } if op_type == "Loop") {
        let view = NodeView { graph: &graph, node: &node };
        let facts = expand::loop_facts(&view)?;
        let given = |i: usize| node.inputs.get(i).copied().flatten().map(source);
        let mut body = facts.body.graph.clone();
        expand::number_draws(&mut body, &node);
        let mut captured = Vec::new();
        let inside = body.inputs[facts.body.declared_inputs()..].to_vec();
        for (inside, &input) in inside.into_iter().zip(&facts.body.captured) {
            match given(input) {
                Some(Source::Constant(contents)) => {
                    body.inputs.retain(|&id| id != inside);
                    body.value_mut(inside).ty = Some(contents.ty().clone());
                    body.initializers.insert(inside, contents);
                    body.constants.insert(inside);
                }
                Some(source) => captured.push((body.value(inside).name.clone(), source)),
                None => return Err(view.error("its body uses a value that is omitted")),
            }
        }
        let carried =
            (2..2 + facts.carried).map(|i| given(i).ok_or_else(|| view.error(format!("input {i} is missing"))));
        let scanned = 1 + facts.carried..facts.body.graph.outputs.len();
        let repetition = Repetition {
            count: given(0),
            condition: given(1),
            carried: carried.collect::<Result<_, _>>()?,
            captured,
            outputs: node.outputs.iter().map(|output| output.as_ref().map(name)).collect(),
            nothing: scanned.map(|output| expand::nothing(&facts.body, output, 0)).collect(),
            body,
        };
        let rest = rest(&graph, waiting, &outputs);
        return Ok(Next::Repeat { repetition: Box::new(repetition), rest });
    }
    let mut alone = infer::alone(&NodeView { graph: &graph, node: &node });
    let inputs: BTreeSet<ValueId> = alone.nodes[0]
        .inputs
        .iter()
        .flatten()
        .copied()
        .filter(|input| !alone.initializers.contains_key(input))
        .collect();
    let inputs: Vec<String> = inputs.iter().map(|&input| alone.value(input).name.clone()).collect();
    alone.constants = alone.initializers.keys().copied().collect();
    let evaluation = Evaluation { graph: alone, inputs, outputs: outputs.iter().map(name).collect() };
    let rest = rest(&graph, waiting, &outputs);
    Ok(Next::Evaluate { node: Box::new(evaluation), rest })
}

impl Evaluation {
    /// Computes the node's outputs from its inputs, in the order of the lists of names.
    ///
    /// # Errors
    /// Fails if the operator rejects the inputs.
    pub fn compute(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ModelError> {
        let mut graph = self.graph.clone();
        for (name, tensor) in self.inputs.iter().zip(inputs) {
            if let Some(id) = graph.find(name) {
                pin(&mut graph, id, tensor.clone());
            }
        }
        infer::infer_node(&mut graph, 0)?;
        let output = |name: &String| {
            let contents = graph.find(name).and_then(|id| graph.initializers.get(&id));
            let view = NodeView { graph: &graph, node: &graph.nodes[0] };
            contents.ok_or_else(|| view.error("it cannot be computed from its inputs"))?.to_tensor()
        };
        self.outputs.iter().map(output).collect()
    }
}
