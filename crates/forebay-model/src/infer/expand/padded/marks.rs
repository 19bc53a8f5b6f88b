//! Which values have surplus rows, and which sizes count them.

use super::{Cut, concerned, cut, is_settled, reduced, refusal, sliced_axes};
use crate::error::ModelError;
use crate::graph::{Graph, Node, Padded, TensorType, ValueId};
use crate::operator::NodeView;
use crate::operators::is_elementwise;

/// Records which outputs of a node, whose types are known, have surplus rows.
///
/// # Errors
/// Fails if surplus rows would affect the results of the node.
pub(in crate::infer) fn note(graph: &mut Graph, like: &Node) -> Result<(), ModelError> {
    if !graph.selects_branches || is_settled(graph, like) || concerned(graph, like).is_none() {
        return Ok(());
    }
    let outputs: Vec<ValueId> = like.outputs.iter().flatten().copied().collect();
    if let Some(sizes) = sizes(graph, like)? {
        if sizes.iter().any(Option::is_some) {
            graph.padding.sizes.insert(outputs[0], sizes);
        }
        return Ok(());
    }
    let padded = outcome(&NodeView { graph, node: like })?;
    graph.padding.rows.extend(outputs.into_iter().map(|output| (output, padded)));
    Ok(())
}

/// Returns, for each element of an output that holds constant sizes, the selection that it counts; `None` for an output that holds data.
fn sizes(graph: &Graph, like: &Node) -> Result<Option<Vec<Option<Padded>>>, ModelError> {
    let view = NodeView { graph, node: like };
    let (padding, op_type) = (&graph.padding, like.operation.name());
    let Some(&Some(output)) = like.outputs.first() else { return Ok(None) };
    let count = graph.ty(output).map_or(0, TensorType::count) as usize;
    let of = |value: ValueId| {
        let count = graph.ty(value).map_or(0, TensorType::count) as usize;
        padding.sizes.get(&value).cloned().unwrap_or_else(|| vec![None; count])
    };
    let has_data = like.inputs.iter().flatten().any(|input| padding.rows.contains_key(input));
    if let ("Shape" | "Size", true) = (op_type, has_data) {
        let (rank, input) = (view.input_type(0)?.shape.len() as i64, view.input(0)?);
        let start = view.int("start", 0)?;
        let start = if start < 0 { start + rank } else { start }.clamp(0, rank) as usize;
        let padded = padding.rows.get(&input).copied();
        let mark = |i: usize| padded.filter(|padded| op_type == "Size" || padded.axis == start + i);
        return Ok(Some((0..count).map(mark).collect()));
    }
    let is_known = like.inputs.iter().flatten().all(|&input| graph.is_constant(input));
    if has_data || !is_known || !graph.is_constant(output) {
        return Ok(None);
    }
    let all = |i: usize| view.input(i).map(of);
    Ok(match op_type {
        // These make data of these sizes.
        "ConstantOfShape" | "Range" => None,
        "Expand" | "Slice" if !padding.sizes.contains_key(&view.input(0)?) => None,
        "Shape" | "Size" => Some(vec![None; count]),
        "Gather" if !padding.sizes.contains_key(&view.input(1)?) => {
            let (marks, indices) = (all(0)?, view.constant_ints(1)?);
            let length = marks.len() as i64;
            let place = |index: i64| if index < 0 { index + length } else { index } as usize;
            Some(indices.into_iter().map(|index| marks.get(place(index)).copied().flatten()).collect())
        }
        "Unsqueeze" | "Squeeze" | "Cast" | "Identity" | "Reshape" => Some(all(0)?),
        "Concat" => {
            let inputs = (0..like.inputs.len()).map(all).collect::<Result<Vec<_>, _>>()?;
            Some(inputs.concat())
        }
        "Slice" => {
            let (starts, ends) = (view.constant_ints(1)?, view.constant_ints(2)?);
            let steps = if view.has_input(4) { view.constant_ints(4)? } else { vec![1] };
            let (marks, length) = (all(0)?, all(0)?.len() as i64);
            let place = |index: i64| if index < 0 { index + length } else { index }.clamp(0, length) as usize;
            match (starts.as_slice(), ends.as_slice(), steps.as_slice()) {
                (&[start], &[end], &[1]) => Some(marks[place(start).min(place(end))..place(end)].to_vec()),
                _ => return Err(refusal(&view)),
            }
        }
        _ if is_elementwise(op_type) => {
            let inputs = (0..like.inputs.len()).map(all).collect::<Result<Vec<_>, _>>()?;
            let mark = |i: usize| inputs.iter().find_map(|marks| marks.get(i).or(marks.first()).copied().flatten());
            Some((0..count).map(mark).collect())
        }
        _ => return Err(refusal(&view)),
    })
}

/// Returns the axis of the outputs that has surplus rows.
fn outcome(view: &NodeView) -> Result<Padded, ModelError> {
    let (graph, node) = (view.graph, view.node);
    let refused = || Err(refusal(view));
    let padded = |i: usize| node.inputs.get(i).copied().flatten().and_then(|id| graph.padding.rows.get(&id)).copied();
    let marks = |i: usize| node.inputs.get(i).copied().flatten().and_then(|id| graph.padding.sizes.get(&id));
    let out = &view.output_type(0)?.shape;
    let shape = |i: usize| view.input_type(i).map(|ty| ty.shape.as_slice());
    let at = |padded: Padded, axis: usize| Ok(Padded { axis, ..padded });
    let op_type = node.operation.name();
    let (first, second) = (padded(0), padded(1));
    if (0..node.inputs.len()).any(|i| marks(i).is_some()) {
        // Sizes count surplus rows.
        return match (op_type, first) {
            ("Reshape", Some(first)) => reshaped(view, first, out),
            ("Expand", first) => {
                let marks = marks(1).map_or(&[][..], Vec::as_slice);
                let behind = out.len() - marks.len();
                let own = first.map(|padded| (padded.axis + out.len() - shape(0).map_or(0, <[u64]>::len), padded));
                let given = marks.iter().enumerate().filter_map(|(i, mark)| Some((i + behind, (*mark)?)));
                let mut all = own.into_iter().chain(given);
                match all.next() {
                    Some((axis, padded)) if all.all(|(other, _)| other == axis) => whole(view, padded, axis, out),
                    _ => refused(),
                }
            }
            ("Slice", None) => match cut(view)? {
                Some(Cut { axis, padded, .. }) => whole(view, padded, axis, out),
                None => refused(),
            },
            ("Slice", Some(first)) if cut(view)?.is_some_and(|cut| cut.axis == first.axis) => {
                whole(view, first, first.axis, out)
            }
            ("ConstantOfShape", _) => {
                let mut marked = marks(0).into_iter().flatten().enumerate().filter_map(|(i, mark)| Some((i, (*mark)?)));
                match (marked.next(), marked.next()) {
                    (Some((axis, padded)), None) => whole(view, padded, axis, out),
                    _ => refused(),
                }
            }
            ("Range", _) if marks(0).is_none() && marks(2).is_none() => match marks(1).and_then(|marks| marks[0]) {
                Some(padded) if view.constant_ints(0)? == [0] && view.constant_ints(2)? == [1] => {
                    whole(view, padded, 0, out)
                }
                _ => refused(),
            },
            _ => refused(),
        };
    }
    let counted = |list: &[usize], below: usize| list.iter().filter(|&&axis| axis < below).count();
    match (op_type, first) {
        ("Transpose", Some(first)) => {
            let perm = view.ints("perm")?.map(<[i64]>::to_vec);
            let perm = perm.unwrap_or_else(|| (0..out.len() as i64).rev().collect());
            perm.iter().position(|&axis| axis == first.axis as i64).map_or_else(refused, |axis| at(first, axis))
        }
        ("Reshape", Some(first)) => reshaped(view, first, out),
        ("Flatten", Some(first)) if shape(0)?[..first.axis].iter().all(|&size| size == 1) => {
            let split = view.axis(view.int("axis", 1)?, shape(0)?.len() + 1)?;
            whole(view, first, usize::from(first.axis >= split), out)
        }
        ("Squeeze" | "Unsqueeze", Some(first)) => {
            let axes =
                if view.has_input(1) { Some(view.constant_ints(1)?) } else { view.ints("axes")?.map(<[i64]>::to_vec) };
            let Some(axes) = axes else { return refused() };
            let rank = out.len().max(shape(0)?.len());
            let axes = axes.into_iter().map(|axis| view.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
            match op_type {
                "Squeeze" => at(first, first.axis - counted(&axes, first.axis)),
                _ => {
                    (0..rank).filter(|axis| !axes.contains(axis)).nth(first.axis).map_or_else(refused, |a| at(first, a))
                }
            }
        }
        ("Concat", Some(first)) => {
            let axis = view.axis(view.int("axis", 0)?, out.len())?;
            let alike = |i: usize| padded(i).is_some_and(|other| other.axis == first.axis && other.axis != axis);
            if (0..node.inputs.len()).all(alike) { at(first, first.axis) } else { refused() }
        }
        ("Split", Some(first)) if view.axis(view.int("axis", 0)?, out.len())? != first.axis => at(first, first.axis),
        ("Slice", Some(first)) if out[first.axis] == shape(0)?[first.axis] && !is_reversed(view, first.axis)? => {
            at(first, first.axis)
        }
        ("Gather", _) => {
            let axis = view.axis(view.int("axis", 0)?, shape(0)?.len())?;
            match (first, second) {
                (None, Some(second)) => at(second, axis + second.axis),
                (Some(first), None) if first.axis < axis => at(first, first.axis),
                (Some(first), None) if first.axis > axis => at(first, first.axis + shape(1)?.len() - 1),
                _ => refused(),
            }
        }
        ("GatherElements", Some(first)) if second.is_some_and(|second| second.axis == first.axis) => {
            let axis = view.axis(view.int("axis", 0)?, out.len())?;
            if axis == first.axis { refused() } else { at(first, first.axis) }
        }
        ("GatherND", None) if view.int("batch_dims", 0)? == 0 => match second {
            Some(second) if second.axis + 1 < shape(1)?.len() => at(second, second.axis),
            _ => refused(),
        },
        ("Gemm", Some(first)) if first.axis == 0 && view.int("transA", 0)? == 0 && second.is_none() => {
            let is_row = || Ok::<_, ModelError>(!view.has_input(2) || shape(2)?.len() < 2 || shape(2)?[0] == 1);
            if padded(2).is_none() && is_row()? { at(first, 0) } else { refused() }
        }
        ("MatMul", _) => {
            let aligned = |padded: Padded, i: usize| Ok::<_, ModelError>(padded.axis + out.len() - shape(i)?.len());
            let (a, b) = (shape(0)?, shape(1)?);
            let size_of = |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(out.len()).map(|at| shape[at]);
            match (first, second) {
                (Some(first), None) if a.len() >= 2 && b.len() >= 2 && first.axis + 1 < a.len() => {
                    let axis = aligned(first, 0)?;
                    let meets = axis + 2 < out.len() && size_of(b, axis).is_some_and(|size| size != 1);
                    if meets { refused() } else { at(first, axis) }
                }
                (None, Some(second)) if a.len() >= 2 && b.len() >= 2 && second.axis + 2 < b.len() => {
                    let axis = aligned(second, 1)?;
                    if size_of(a, axis).is_some_and(|size| size != 1) { refused() } else { at(second, axis) }
                }
                (Some(first), Some(second)) if first.axis + 2 < a.len() && second.axis + 2 < b.len() => {
                    let axis = aligned(first, 0)?;
                    if aligned(second, 1)? == axis { at(first, axis) } else { refused() }
                }
                _ => refused(),
            }
        }
        ("Softmax" | "LogSoftmax", Some(first)) if view.version() >= 13 => {
            if view.axis(view.int("axis", -1)?, out.len())? == first.axis { refused() } else { at(first, first.axis) }
        }
        ("LayerNormalization" | "RMSNormalization", Some(first)) => {
            let axis = view.axis(view.int("axis", -1)?, out.len())?;
            if first.axis < axis && second.is_none() { at(first, first.axis) } else { refused() }
        }
        (_, Some(first)) if op_type.starts_with("Reduce") => {
            let axes = reduced(view)?;
            match (axes.contains(&first.axis), view.int("keepdims", 1)? != 0) {
                (true, _) => refused(),
                (false, true) => at(first, first.axis),
                (false, false) => at(first, first.axis - counted(&axes, first.axis)),
            }
        }
        _ if is_elementwise(op_type) || op_type == "Expand" => {
            let mut found: Option<Padded> = None;
            for i in 0..if op_type == "Expand" { 1 } else { node.inputs.len() } {
                let Some(own) = padded(i) else { continue };
                let axis = own.axis + out.len() - shape(i)?.len();
                if found.is_some_and(|found| found.axis != axis) {
                    return refused();
                }
                found.get_or_insert(Padded { axis, ..own });
            }
            let Some(found) = found else { return refused() };
            let others = (0..node.inputs.len()).filter(|&i| op_type != "Expand" && padded(i).is_none());
            for i in others.filter(|&i| view.has_input(i)) {
                let shape = shape(i)?;
                let size = (found.axis + shape.len()).checked_sub(out.len()).map(|at| shape[at]);
                if size.is_some_and(|size| size != 1) {
                    return refused();
                }
            }
            at(found, found.axis)
        }
        _ => refused(),
    }
}

/// Returns whether a `Slice` runs backwards along an axis.
fn is_reversed(view: &NodeView, axis: usize) -> Result<bool, ModelError> {
    let steps = if view.has_input(4) { view.constant_ints(4)? } else { Vec::new() };
    let axes = if steps.is_empty() { Vec::new() } else { sliced_axes(view)? };
    Ok(axes.iter().zip(steps).any(|(&sliced, step)| sliced == axis && step != 1))
}

/// Returns the mark of an axis if each row takes the same number of its positions.
fn whole(view: &NodeView, padded: Padded, axis: usize, out: &[u64]) -> Result<Padded, ModelError> {
    match out.get(axis) {
        Some(&size) if size > 0 && size % padded.rows == 0 => Ok(Padded { axis, ..padded }),
        _ => Err(refusal(view)),
    }
}

/// Returns the mark of a reshaped tensor: its rows have to stay the first axis that is longer than 1.
fn reshaped(view: &NodeView, padded: Padded, out: &[u64]) -> Result<Padded, ModelError> {
    let (shape, target) = (&view.input_type(0)?.shape, view.constant_ints(1)?);
    let marks = view.graph.padding.sizes.get(&view.input(1)?);
    let is_marked = |axis: usize| marks.is_some_and(|marks| marks.get(axis).is_some_and(Option::is_some));
    let copies = view.int("allowzero", 0)? == 0;
    let takes =
        |axis: usize| target[axis] == -1 || is_marked(axis) || (copies && target[axis] == 0 && axis == padded.axis);
    let leads = |shape: &[u64], axis: usize| shape[..axis].iter().all(|&size| size == 1);
    let axis =
        (0..target.len()).find(|&axis| takes(axis)).filter(|&axis| leads(shape, padded.axis) && leads(out, axis));
    match axis {
        Some(axis) if (0..target.len()).all(|other| other == axis || !is_marked(other)) => {
            whole(view, padded, axis, out)
        }
        _ => Err(refusal(view)),
    }
}
