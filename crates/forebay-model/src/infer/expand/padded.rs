//! Selections whose number of elements only a step knows (`NonZero`), in training.
//!
//! The launches of a step have fixed sizes, so a selection gets as many rows as it could have at most. The selected rows come first, in
//! their order. The rows behind them repeat the first one, so that all of them have sensible numbers. Operators that treat each row alone
//! work as usual; where rows meet, in sums and when they are written back, the surplus rows are left out. Anything else is refused, so that
//! surplus rows never affect a result.

mod marks;

use forebay_base::{DataType, Tensor};

use super::{constant, integers, node};
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, Padded, TensorType, ValueId};
use crate::operator::NodeView;
pub(in crate::infer) use marks::note;

/// The most elements of which some are selected: their positions become constants.
const COUNT_MAX: u64 = 1 << 24;

/// Nodes that replace another.
struct Composer<'a> {
    graph: &'a mut Graph,
    like: &'a Node,
    nodes: Vec<Node>,
}

impl Composer<'_> {
    fn add(&mut self, op_type: &str, attributes: &[(&str, i64)], inputs: &[ValueId]) -> ValueId {
        let output = self.graph.add_value(&format!("{}/{op_type}", self.like.label(self.graph)), None);
        self.nodes.push(node(self.like, op_type, attributes, inputs, &[output]));
        output
    }

    /// Adds a node whose result does not depend on surplus rows.
    fn settle(&mut self, op_type: &str, inputs: &[ValueId]) -> ValueId {
        let output = self.add(op_type, &[], inputs);
        self.graph.padding.settled.insert(output);
        output
    }

    fn numbers(&mut self, shape: &[u64], values: &[i64]) -> ValueId {
        integers(self.graph, shape, values)
    }

    fn list(&mut self, values: &[i64]) -> ValueId {
        self.numbers(&[values.len() as u64], values)
    }

    /// Computes which elements of a value are not zero: whether each row is selected, and the number of the element in each row.
    fn select(&mut self, x: ValueId, count: u64) -> (Padded, ValueId) {
        let (all, flat, none) = (count as i64, self.list(&[-1]), self.numbers(&[], &[0]));
        let positions: Vec<i64> = (0..all).collect();
        let (positions, nowhere, zeros) =
            (self.list(&positions), self.numbers(&[], &[all]), self.list(&vec![0; count as usize + 1]));
        let truth = self.add("Cast", &[("to", 9)], &[x]);
        let truth = self.add("Reshape", &[], &[truth, flat]);
        let ones = self.add("Cast", &[("to", 7)], &[truth]);
        let running = self.add("CumSum", &[], &[ones, none]);
        let one = self.numbers(&[], &[1]);
        let place = self.add("Sub", &[], &[running, one]);
        let place = self.add("Where", &[], &[truth, place, nowhere]);
        let order = self.add("ScatterElements", &[("axis", 0)], &[zeros, place, positions]);
        let (begin, first, end) = (self.list(&[0]), self.list(&[1]), self.list(&[all]));
        let number = self.add("ReduceSum", &[("keepdims", 1)], &[ones, begin]);
        let selected = self.add("Less", &[], &[positions, number]);
        let first = self.add("Slice", &[], &[order, begin, first, begin]);
        let order = self.add("Slice", &[], &[order, begin, end, begin]);
        let elements = self.settle("Where", &[selected, order, first]);
        let padded = Padded { axis: 0, rows: count, selected };
        self.graph.padding.rows.insert(selected, padded);
        (padded, elements)
    }

    /// Returns which positions of an axis with surplus rows are selected, for tensors of a rank.
    fn mask(&mut self, padded: Padded, size: u64, rank: usize) -> ValueId {
        let mut mask = padded.selected;
        let each = size / padded.rows.max(1);
        if each > 1 {
            let (last, shape, flat) =
                (self.list(&[1]), self.list(&[padded.rows as i64, each as i64]), self.list(&[-1]));
            mask = self.add("Unsqueeze", &[], &[mask, last]);
            mask = self.add("Expand", &[], &[mask, shape]);
            mask = self.add("Reshape", &[], &[mask, flat]);
        }
        let axes: Vec<i64> = (0..rank).filter(|&axis| axis != padded.axis).map(|axis| axis as i64).collect();
        if axes.is_empty() {
            return mask;
        }
        let axes = self.list(&axes);
        self.add("Unsqueeze", &[], &[mask, axes])
    }

    /// Makes an axis of a value longer, with a number or with zeros.
    fn lengthen(&mut self, value: ValueId, axis: usize, rank: usize, by: u64, fill: Option<ValueId>) -> ValueId {
        let mut pads = vec![0; 2 * rank];
        pads[rank + axis] = by as i64;
        let pads = self.list(&pads);
        let inputs: Vec<ValueId> = [value, pads].into_iter().chain(fill).collect();
        self.add("Pad", &[], &inputs)
    }

    /// Adds a number of the type of another value.
    fn number(&mut self, number: f32, like: ValueId) -> ValueId {
        let number = constant(self.graph, "number", Tensor::from_f32(&[], &[number]));
        self.settle("CastLike", &[number, like])
    }
}

/// Returns the nodes that replace a node in training if sizes depend on a selection; `None` if it stays as it is.
///
/// # Errors
/// Fails if surplus rows would affect the results of the node.
pub(super) fn expand(graph: &mut Graph, like: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let op_type = like.operation.name();
    if op_type == "NonZero" {
        return non_zero(graph, like);
    }
    if op_type == "Expand"
        && let Some(nodes) = expand_to_count(graph, like)?
    {
        return Ok(Some(nodes));
    }
    if is_settled(graph, like) || concerned(graph, like).is_none() {
        return Ok(None);
    }
    match op_type {
        "ScatterND" | "ScatterElements" => scatter(graph, like),
        "Slice" => slice(graph, like),
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceSumSquare" | "ReduceLogSum" | "ReduceLogSumExp" => reduce(graph, like),
        "SoftmaxCrossEntropyLoss" | "NegativeLogLikelihoodLoss" => classify(graph, like),
        _ => Ok(None),
    }
}

fn is_settled(graph: &Graph, node: &Node) -> bool {
    node.outputs.iter().flatten().all(|output| graph.padding.settled.contains(output))
}

/// Returns the first input of a node that has surplus rows or counts them.
fn concerned(graph: &Graph, node: &Node) -> Option<ValueId> {
    node.inputs.iter().flatten().copied().find(|&input| graph.padding.concerns(input))
}

/// Returns the error for a node whose results surplus rows would affect.
fn refusal(view: &NodeView) -> ModelError {
    let name = concerned(view.graph, view.node).map_or("", |input| &view.graph.value(input).name);
    view.error(format!(
        "the size of its input '{name}' is the number of elements that a NonZero selects, which is not known before a training step begins; \
         compute all elements and select with Where, or make what NonZero takes a constant of the model"
    ))
}

/// Selects elements with surplus rows, unless the elements are known.
fn non_zero(graph: &mut Graph, like: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let view = NodeView { graph, node: like };
    let (x, output) = (view.input(0)?, like.outputs.first().copied().flatten());
    let shape = match view.input_type(0)?.shape.as_slice() {
        [] => vec![1],
        shape => shape.to_vec(),
    };
    let count = Some(view.input_type(0)?.count()).filter(|count| (1..=COUNT_MAX).contains(count));
    let (Some(count), Some(output), false) = (count, output, graph.constant_contents(x).is_some()) else {
        return Ok(None);
    };
    if concerned(graph, like).is_some() {
        return Err(refusal(&view));
    }
    let rank = shape.len() as u64;
    let strides: Vec<i64> = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<u64>() as i64).collect();
    let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    let mut c = Composer { graph, like, nodes: Vec::new() };
    let (padded, elements) = c.select(x, count);
    let (front, strides, sizes) = (c.list(&[0]), c.numbers(&[rank, 1], &strides), c.numbers(&[rank, 1], &sizes));
    let elements = c.add("Unsqueeze", &[], &[elements, front]);
    let rows = c.add("Div", &[], &[elements, strides]);
    let mut nodes = c.nodes;
    nodes.push(node(like, "Mod", &[], &[rows, sizes], &[output]));
    graph.padding.rows.insert(output, Padded { axis: 1, ..padded });
    Ok(Some(nodes))
}

/// `Expand` to a shape that has the number of true elements of a value.
fn expand_to_count(graph: &mut Graph, like: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let view = NodeView { graph, node: like };
    let (data, shape) = (view.input(0)?, view.input(1)?);
    if graph.initializers.contains_key(&shape) {
        return Ok(None);
    }
    let (mut sizes, mut counted) = (Vec::new(), None);
    if !list_of_counts(graph, shape, &mut sizes, &mut counted) {
        return Ok(None);
    }
    let Some((mask, count)) = counted.filter(|&(_, count)| count <= COUNT_MAX) else { return Ok(None) };
    let mut c = Composer { graph, like, nodes: Vec::new() };
    let padded = match c.graph.padding.rows.get(&data) {
        Some(&padded) => padded,
        None => c.select(mask, count).0,
    };
    let numbers: Vec<i64> = sizes.iter().map(|&(size, _)| size).collect();
    let list = c.list(&numbers);
    let marks = sizes.iter().map(|&(_, is_count)| is_count.then_some(padded)).collect();
    c.graph.padding.sizes.insert(list, marks);
    let mut nodes = c.nodes;
    let mut expand = like.clone();
    expand.inputs[1] = Some(list);
    nodes.push(expand);
    Ok(Some(nodes))
}

/// Reads a list of sizes of which some are the number of true elements of a value: adds each, and whether it is such a number, in which
/// case it is the largest that it can be. Returns `false` if it is anything else.
fn list_of_counts(
    graph: &Graph,
    value: ValueId,
    sizes: &mut Vec<(i64, bool)>,
    counted: &mut Option<(ValueId, u64)>,
) -> bool {
    if let Some(contents) = graph.constant_contents(value) {
        let numbers = contents.small().ok().flatten().and_then(Tensor::to_i64);
        let marks = graph.padding.sizes.get(&value);
        sizes.extend(
            numbers
                .iter()
                .flatten()
                .enumerate()
                .map(|(i, &size)| (size, marks.is_some_and(|marks| marks.get(i).is_some_and(Option::is_some)))),
        );
        return numbers.is_some();
    }
    let Some(node) = graph.producer(value) else { return false };
    let inputs = || node.inputs.iter().flatten().copied();
    match node.operation.name() {
        "Concat" => inputs().all(|input| list_of_counts(graph, input, sizes, counted)),
        "Unsqueeze" | "Squeeze" | "Reshape" | "Cast" if graph.ty(value).is_some_and(|ty| ty.count() == 1) => {
            inputs().next().is_some_and(|input| list_of_counts(graph, input, sizes, counted))
        }
        "ReduceSum" if graph.ty(value).is_some_and(|ty| ty.count() == 1) => {
            let mut from = inputs().next();
            let ty = |value: ValueId| graph.ty(value).cloned();
            while let Some(ty) = from.and_then(ty).filter(|ty| ty.data_type != DataType::Bool) {
                let made_by = from.and_then(|value| graph.producer(value));
                let is_view = |node: &&Node| matches!(node.operation.name(), "Cast" | "Reshape" | "Flatten");
                let is_integer = matches!(ty.data_type, DataType::Int32 | DataType::Int64);
                from = made_by.filter(is_view).filter(|_| is_integer).and_then(|node| node.inputs[0]);
            }
            let Some((mask, ty)) = from.and_then(|mask| Some((mask, ty(mask)?))) else { return false };
            if graph.padding.rows.contains_key(&mask) || ty.count() == 0 {
                return false;
            }
            sizes.push((ty.count() as i64, true));
            counted.get_or_insert((mask, ty.count()));
            true
        }
        _ => false,
    }
}

/// Writes selected rows only: those behind them go to an additional place, which is then cut off.
fn scatter(graph: &mut Graph, like: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let view = NodeView { graph, node: like };
    let (data, indices, updates) = (view.input(0)?, view.input(1)?, view.input(2)?);
    let padding = &graph.padding;
    let (Some(&padded), false) = (padding.rows.get(&indices), padding.rows.contains_key(&data)) else {
        return Err(refusal(&view));
    };
    let (shape, places) = (view.input_type(0)?.shape.clone(), view.input_type(1)?.clone());
    let is_row_wise = like.operation.name() == "ScatterND";
    let last = places.shape.len().saturating_sub(1);
    let axis = if is_row_wise { 0 } else { view.axis(view.int("axis", 0)?, shape.len())? };
    let fits = padding.rows.get(&updates).is_some_and(|other| other.axis == padded.axis);
    if shape.is_empty() || !fits || (is_row_wise && padded.axis == last) {
        return Err(refusal(&view));
    }
    let (rank, size, output) = (shape.len(), places.shape[padded.axis], like.outputs.first().copied().flatten());
    let Some(output) = output else { return Ok(None) };
    let mut c = Composer { graph, like, nodes: Vec::new() };
    let longer = c.lengthen(data, axis, rank, 1, None);
    let nowhere = match is_row_wise {
        true => {
            let mut place = vec![0; places.shape[last] as usize];
            place[0] = shape[0] as i64;
            c.list(&place)
        }
        false => c.numbers(&[], &[shape[axis] as i64]),
    };
    let nowhere = match places.data_type {
        DataType::Int32 => c.add("Cast", &[("to", 6)], &[nowhere]),
        _ => nowhere,
    };
    let mask = c.mask(padded, size, places.shape.len());
    let places = c.settle("Where", &[mask, indices, nowhere]);
    let written = c.settle("Identity", &[updates]);
    let wide = c.graph.add_value(&format!("{}/all", like.label(c.graph)), None);
    let mut scatter = like.clone();
    (scatter.inputs, scatter.outputs) = (vec![Some(longer), Some(places), Some(written)], vec![Some(wide)]);
    c.nodes.push(scatter);
    let (begin, end, axes) = (c.list(&[0]), c.list(&[shape[axis] as i64]), c.list(&[axis as i64]));
    let mut nodes = c.nodes;
    nodes.push(node(like, "Slice", &[], &[wide, begin, end, axes], &[output]));
    Ok(Some(nodes))
}

/// Gives a tensor that is cut to the number of selected rows as many rows as those have.
fn slice(graph: &mut Graph, like: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let view = NodeView { graph, node: like };
    let data = view.input(0)?;
    let cut = cut(&view)?.filter(|_| !graph.padding.rows.contains_key(&data));
    let Some(Cut { axis, end, .. }) = cut else { return Ok(None) };
    let ty = view.input_type(0)?.clone();
    if ty.shape[axis] >= end {
        return Ok(None);
    }
    if !ty.data_type.has_gradients() {
        return Err(refusal(&view));
    }
    let mut c = Composer { graph, like, nodes: Vec::new() };
    // A step that selects more than there is must not go on with numbers of its own.
    let nothing = c.number(f32::NAN, data);
    let longer = c.lengthen(data, axis, ty.shape.len(), end - ty.shape[axis], Some(nothing));
    let mut slice = like.clone();
    slice.inputs[0] = Some(longer);
    let mut nodes = c.nodes;
    nodes.push(slice);
    Ok(Some(nodes))
}

/// Returns the axes of a `Slice`.
fn sliced_axes(view: &NodeView) -> Result<Vec<usize>, ModelError> {
    let rank = view.input_type(0)?.shape.len();
    match view.has_input(3) {
        true => view.constant_ints(3)?.into_iter().map(|axis| view.axis(axis, rank)).collect(),
        false => Ok((0..view.constant_ints(2)?.len()).collect()),
    }
}

/// What a `Slice` cuts to a number of selected rows.
struct Cut {
    axis: usize,
    padded: Padded,
    /// The number of rows that are left, with the surplus ones.
    end: u64,
}

/// Returns what a `Slice` cuts to a number of selected rows.
fn cut(view: &NodeView) -> Result<Option<Cut>, ModelError> {
    let sizes = |i: usize| view.node.inputs.get(i).copied().flatten().and_then(|id| view.graph.padding.sizes.get(&id));
    if sizes(1).is_some() || sizes(4).is_some() || !view.has_input(2) {
        return Err(refusal(view));
    }
    let Some(ends) = sizes(2) else { return Ok(None) };
    let mut marks = ends.iter().enumerate().filter_map(|(i, mark)| Some((i, (*mark)?)));
    let (Some((place, padded)), None) = (marks.next(), marks.next()) else { return Err(refusal(view)) };
    let at = |i: usize, default: i64| match view.has_input(i) {
        true => Ok(view.constant_ints(i)?.get(place).copied().unwrap_or(default)),
        false => Ok(default),
    };
    if (at(1, 0)?, at(4, 1)?) != (0, 1) {
        return Err(refusal(view));
    }
    let end = at(2, 0)?.max(0) as u64;
    Ok(sliced_axes(view)?.get(place).map(|&axis| Cut { axis, padded, end }))
}

/// Leaves surplus rows out of a reduction over them.
fn reduce(graph: &mut Graph, like: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let view = NodeView { graph, node: like };
    let x = view.input(0)?;
    let Some(&padded) = graph.padding.rows.get(&x) else { return Ok(None) };
    let TensorType { data_type, shape } = view.input_type(0)?.clone();
    let axes = reduced(&view)?;
    if !axes.contains(&padded.axis) {
        return Ok(None);
    }
    let (op_type, output) = (like.operation.name(), like.outputs.first().copied().flatten());
    let fill = match op_type {
        "ReduceMax" | "ReduceLogSumExp" => f32::NEG_INFINITY,
        "ReduceMin" => f32::INFINITY,
        "ReduceProd" => 1.0,
        _ => 0.0,
    };
    let is_number = data_type.has_gradients() || fill == 0.0 && op_type == "ReduceSum";
    let (Some(output), true) = (output, is_number) else { return Err(refusal(&view)) };
    let version = view.version();
    let mut c = Composer { graph, like, nodes: Vec::new() };
    let fill = c.number(fill, x);
    let mask = c.mask(padded, shape[padded.axis], shape.len());
    let kept = c.settle("Where", &[mask, x, fill]);
    let mut reduction = like.clone();
    reduction.inputs[0] = Some(kept);
    if op_type != "ReduceMean" {
        c.nodes.push(reduction);
        return Ok(Some(c.nodes));
    }
    let sum = c.graph.add_value(&format!("{}/sum", like.label(c.graph)), None);
    reduction.outputs = vec![Some(sum)];
    if let Operation::Onnx { op_type, attributes, .. } = &mut reduction.operation {
        *op_type = "ReduceSum".to_string();
        // From opset 13 to 17, the axes of a mean are an attribute, but those of a sum are an input.
        if version >= 13 && attributes.remove("axes").is_some() {
            let list: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
            reduction.inputs.push(Some(integers(c.graph, &[list.len() as u64], &list)));
        }
    }
    c.nodes.push(reduction);
    let ones = c.settle("CastLike", &[padded.selected, kept]);
    let (first, each) = (c.list(&[0]), axes.iter().map(|&axis| shape[axis]).product::<u64>() / padded.rows);
    let number = c.add("ReduceSum", &[("keepdims", 0)], &[ones, first]);
    let each = c.number(each as f32, kept);
    let number = c.add("Mul", &[], &[number, each]);
    let mut nodes = c.nodes;
    nodes.push(node(like, "Div", &[], &[sum, number], &[output]));
    Ok(Some(nodes))
}

/// Gives surplus rows a label that a loss of classes ignores.
fn classify(graph: &mut Graph, like: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let view = NodeView { graph, node: like };
    let (scores, labels) = (view.input(0)?, view.input(1)?);
    let (shape, types) = (view.input_type(0)?.shape.clone(), view.input_type(1)?.clone());
    let rows = [scores, labels].map(|value| graph.padding.rows.get(&value).copied());
    let (&[Some(padded), Some(other)], &[Some(output)]) = (&rows, like.outputs.as_slice()) else {
        return Err(refusal(&view));
    };
    let has_plain_weights =
        like.inputs.get(2).copied().flatten().is_none_or(|weights| !graph.padding.concerns(weights));
    if padded.axis != 0 || other.axis != 0 || shape[0] != types.shape[0] || !has_plain_weights {
        return Err(refusal(&view));
    }
    let ignored = view.int("ignore_index", -1)?;
    let has_rows = view.string("reduction", "mean")? == "none";
    let mut c = Composer { graph, like, nodes: Vec::new() };
    let none = c.numbers(&[], &[ignored]);
    let none = if types.data_type == DataType::Int32 { c.add("Cast", &[("to", 6)], &[none]) } else { none };
    let mask = c.mask(padded, shape[0], types.shape.len());
    let labels = c.settle("Where", &[mask, labels, none]);
    let mut loss = like.clone();
    loss.inputs[1] = Some(labels);
    if let Operation::Onnx { attributes, .. } = &mut loss.operation {
        attributes.entry("ignore_index".to_string()).or_insert(Attribute::Int(ignored));
    }
    c.nodes.push(loss);
    let nodes = c.nodes;
    // The losses of surplus rows are 0.
    graph.padding.settled.insert(output);
    if has_rows {
        graph.padding.rows.insert(output, padded);
    }
    Ok(Some(nodes))
}

/// Returns the axes of a reduction.
fn reduced(view: &NodeView) -> Result<Vec<usize>, ModelError> {
    let rank = view.input_type(0)?.shape.len();
    let axes = match (view.ints("axes")?, view.has_input(1)) {
        (Some(axes), _) => axes.to_vec(),
        (None, true) => view.constant_ints(1)?,
        (None, false) => Vec::new(),
    };
    if axes.is_empty() {
        return Ok(if view.int("noop_with_empty_axes", 0)? == 0 { (0..rank).collect() } else { Vec::new() });
    }
    axes.into_iter().map(|axis| view.axis(axis, rank)).collect()
}
