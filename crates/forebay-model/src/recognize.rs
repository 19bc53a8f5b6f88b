//! Recognizes groups of operators that can be replaced: attention that exporters wrote as products and a softmax, so that one kernel
//! computes it, batch normalization that only scales the preceding result, group normalization, activations, products of transposed
//! matrices, and weights that are better transposed.

mod activation;
mod groups;
mod normalization;
mod products;
mod transposed;

use std::collections::BTreeMap;

use forebay_base::{DataType, Tensor};

use crate::context::NodeView;
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;

pub use activation::activations;
pub use groups::group_normalizations;
pub use normalization::normalizations;
pub use products::products_of_transposed;
pub use transposed::transposed_weights;

/// The pattern found before a softmax, back to the product of queries and keys.
struct Pattern {
    queries: ValueId,
    keys: Keys,
    scale: f32,
    mask: Option<Mask>,
}

/// Keys and values.
enum Keys {
    /// Keys and values for every head. The keys have the dimensions of a value in this order.
    Ordered { keys: ValueId, order: [i64; 4], values: ValueId },
    /// Keys and values for groups of heads, before they are repeated: [batch, groups, 1, length, size].
    Shared { keys: ValueId, values: ValueId },
}

/// How scores are masked.
enum Mask {
    /// A value is added.
    Added(ValueId),
    /// Scores are replaced by a number where a condition holds, or where it does not hold.
    Replaced { condition: ValueId, holds: bool, by: f32 },
}

/// A graph with information about the uses of its values.
struct Uses<'a> {
    graph: &'a Graph,
    /// For each value, the node that computes it.
    producers: BTreeMap<ValueId, usize>,
    /// For each value, how often it is used as an input of nodes, an output, or an update.
    counts: Vec<usize>,
}

/// Replaces softmax(queries keys^T scale + mask) values by the operator `Attention`. Every value must have a type. `Dropout`, which is
/// skipped in inference, prevents the replacement unless `is_inference`.
///
/// # Errors
/// Fails if constants cannot be read.
pub fn attention(graph: &mut Graph, is_inference: bool) -> Result<(), ModelError> {
    let mut found = Vec::new();
    {
        let uses = Uses::of(graph);
        for (i, node) in graph.nodes.iter().enumerate() {
            if let Some(pattern) = uses.pattern(node, is_inference) {
                found.push((i, pattern));
            }
        }
    }
    for (i, pattern) in found.into_iter().rev() {
        replace(graph, i, pattern)?;
    }
    graph.drop_dead_nodes();
    Ok(())
}

/// The operator type of a node in the default domain; empty for other nodes.
fn op_type(node: &Node) -> &str {
    match &node.operation {
        Operation::Onnx { domain, op_type, .. } if domain.is_empty() => op_type,
        _ => "",
    }
}

impl Uses<'_> {
    fn of(graph: &Graph) -> Uses<'_> {
        let mut counts = vec![0; graph.values.len()];
        let inputs = graph.nodes.iter().flat_map(|node| node.inputs.iter().flatten());
        let ends = graph.outputs.iter().chain(graph.updates.iter().map(|update| &update.value));
        inputs.chain(ends).for_each(|value| counts[value.0 as usize] += 1);
        let of_node = |(i, node): (usize, &Node)| node.outputs.iter().flatten().map(move |&value| (value, i)).collect();
        let producers = graph.nodes.iter().enumerate().flat_map::<Vec<(ValueId, usize)>, _>(of_node).collect();
        Uses { graph, producers, counts }
    }

    /// The node that computes a value, if the value is used only once.
    fn own(&self, value: ValueId) -> Option<&Node> {
        let node = &self.graph.nodes[*self.producers.get(&value)?];
        (self.counts[value.0 as usize] == 1 && !self.graph.is_folded(node)).then_some(node)
    }

    fn input(&self, node: &Node, i: usize) -> Option<ValueId> {
        node.inputs.get(i).copied().flatten()
    }

    fn shape(&self, value: ValueId) -> Option<[u64; 4]> {
        let ty = self.graph.ty(value).filter(|ty| ty.data_type == DataType::Float32)?;
        ty.shape.as_slice().try_into().ok()
    }

    /// Whether a constant with one number for each group of channels has this number for all of them.
    fn is_filled(&self, value: ValueId, number: f32) -> Option<bool> {
        const BYTES_MAX: u64 = 64 << 10;
        let contents = self.graph.constant_contents(value)?;
        if contents.size_bytes() > BYTES_MAX {
            return None;
        }
        Some(contents.to_tensor().ok()?.to_f32()?.iter().all(|&own| own == number))
    }

    /// The number in a constant of one element.
    fn number(&self, value: ValueId) -> Option<f32> {
        let contents = self.graph.constant_contents(value)?;
        match contents.small().ok()??.to_f32()?.as_slice() {
            &[number] => Some(number),
            _ => None,
        }
    }

    fn pattern(&self, node: &Node, is_inference: bool) -> Option<Pattern> {
        if op_type(node) != "MatMul" {
            return None;
        }
        let values = self.input(node, 1)?;
        let mut weights = self.input(node, 0)?;
        let dropout = self.own(weights).filter(|node| is_inference && op_type(node) == "Dropout");
        if let Some(dropout) = dropout.filter(|node| node.outputs.iter().flatten().count() == 1) {
            weights = self.input(dropout, 0)?;
        }
        let softmax = self.guarded(weights).or_else(|| self.own(weights))?;
        let view = NodeView { graph: self.graph, node: softmax };
        let axis = view.int("axis", if view.version() >= 13 { -1 } else { 1 }).ok()?;
        if op_type(softmax) != "Softmax" || ![-1, 3].contains(&axis) {
            return None;
        }
        let mut at = self.input(softmax, 0)?;
        let scores = self.shape(at)?;
        let mut mask = None;
        if let Some((inner, found)) = self.mask(at, &scores) {
            (at, mask) = (inner, Some(found));
        }
        let mut scale = 1.0;
        while let Some((inner, factor)) = self.scaled(at) {
            (at, scale) = (inner, scale * factor);
        }
        let product = self.own(at).filter(|node| op_type(node) == "MatMul")?;
        let (queries, turned_keys) = (self.input(product, 0)?, self.input(product, 1)?);
        let [batch, heads, rows, size] = self.shape(queries)?;
        let [.., keys] = self.shape(turned_keys)?;
        let [.., v_size] = self.shape(values)?;
        let fits = self.shape(turned_keys)? == [batch, heads, size, keys]
            && self.shape(values)? == [batch, heads, keys, v_size]
            && scores == [batch, heads, rows, keys];
        let of_all_heads = || {
            let (keys, order) = self.turned_back(turned_keys);
            Keys::Ordered { keys, order, values }
        };
        let keys = self.shared(turned_keys, values).unwrap_or_else(of_all_heads);
        fits.then_some(Pattern { queries, keys, scale, mask })
    }

    /// The node whose result a value repeats, except that it has 0 in place of NaN: PyTorch's exporters write this after the softmax of
    /// masked scores, because rows that see no key are NaN. The operator makes such rows 0 itself.
    fn guarded(&self, value: ValueId) -> Option<&Node> {
        let guard = self.own(value).filter(|node| op_type(node) == "Where")?;
        let (condition, replacement, source) = (self.input(guard, 0)?, self.input(guard, 1)?, self.input(guard, 2)?);
        let test = self.own(condition).filter(|node| op_type(node) == "IsNaN")?;
        let fits = self.number(replacement) == Some(0.0)
            && self.input(test, 0) == Some(source)
            && self.counts[source.0 as usize] == 2
            && self.graph.ty(source)?.shape == self.graph.ty(value)?.shape;
        let node = &self.graph.nodes[*self.producers.get(&source)?];
        (fits && !self.graph.is_folded(node)).then_some(node)
    }

    /// The value, and the order of its dimensions, that has the last two dimensions of keys exchanged: the input of the transposition that
    /// made the keys, if there is one, so that they are not copied twice.
    fn turned_back(&self, keys: ValueId) -> (ValueId, [i64; 4]) {
        let source = || {
            let turn = &self.graph.nodes[*self.producers.get(&keys)?];
            let is_transposition = op_type(turn) == "Transpose" && !self.graph.is_folded(turn);
            let view = NodeView { graph: self.graph, node: turn };
            let &[a, b, c, d] = is_transposition.then(|| view.ints("perm").ok()?)?? else { return None };
            Some((self.input(turn, 0)?, [a, b, d, c]))
        };
        source().unwrap_or((keys, [0, 1, 3, 2]))
    }

    /// Keys and values, if they are repeated for the heads of each group.
    fn shared(&self, turned_keys: ValueId, values: ValueId) -> Option<Keys> {
        let turn = self.own(turned_keys).filter(|node| op_type(node) == "Transpose")?;
        let view = NodeView { graph: self.graph, node: turn };
        if view.ints("perm").ok()?? != [0, 1, 3, 2] {
            return None;
        }
        let (keys, key_groups) = self.repeated(self.input(turn, 0)?)?;
        let (values, value_groups) = self.repeated(values)?;
        (key_groups == value_groups).then_some(Keys::Shared { keys, values })
    }

    /// The value [batch, groups, 1, length, size] that a value [batch, heads, length, size] repeats, and the number of groups.
    fn repeated(&self, value: ValueId) -> Option<(ValueId, u64)> {
        let reshaped = self.own(value).filter(|node| op_type(node) == "Reshape")?;
        let expanded = self.input(reshaped, 0)?;
        let expansion = self.own(expanded).filter(|node| op_type(node) == "Expand")?;
        let own = self.input(expansion, 0)?;
        let (own_shape, shape) = (&self.graph.ty(own)?.shape, &self.graph.ty(expanded)?.shape);
        let (&[_, groups, 1, ..], &[batch, _, times, length, size]) = (own_shape.as_slice(), shape.as_slice()) else {
            return None;
        };
        let fits = *own_shape == [batch, groups, 1, length, size]
            && shape[1] == groups
            && self.shape(value)? == [batch, groups * times, length, size];
        fits.then_some((own, groups))
    }

    /// Splits masked scores into the unmasked scores and the mask.
    fn mask(&self, value: ValueId, scores: &[u64; 4]) -> Option<(ValueId, Mask)> {
        let node = self.own(value)?;
        // The operator broadcasts a mask along all dimensions but the last one.
        let fits = |mask: ValueId| {
            let shape = &self.graph.ty(mask)?.shape;
            let own = shape.iter().rev().zip(scores.iter().rev()).all(|(own, all)| own == all || *own == 1);
            (own && shape.len() <= 4 && shape.last() == scores.last()).then_some(())
        };
        let is_scores = |value: ValueId| self.shape(value).as_ref() == Some(scores) && self.own(value).is_some();
        match op_type(node) {
            "Add" => {
                let (a, b) = (self.input(node, 0)?, self.input(node, 1)?);
                let of_scores = |value: ValueId| is_scores(value) && self.leads_to_product(value);
                let (inner, mask) = if of_scores(a) { (a, b) } else { (b, a) };
                fits(mask).filter(|()| of_scores(inner))?;
                Some((inner, Mask::Added(mask)))
            }
            "Where" => {
                let (condition, a, b) = (self.input(node, 0)?, self.input(node, 1)?, self.input(node, 2)?);
                fits(condition)?;
                let (inner, by, holds) = match (self.number(a), self.number(b)) {
                    (Some(by), None) => (b, by, true),
                    (None, Some(by)) => (a, by, false),
                    _ => return None,
                };
                // Adding a number of this magnitude to scores gives the number itself.
                const NEVER_SEEN: f32 = -1e30;
                (is_scores(inner) && by <= NEVER_SEEN).then_some((inner, Mask::Replaced { condition, holds, by }))
            }
            _ => None,
        }
    }

    /// Whether a value is a product, scaled or not.
    fn leads_to_product(&self, mut value: ValueId) -> bool {
        while let Some((inner, _)) = self.scaled(value) {
            value = inner;
        }
        self.own(value).is_some_and(|node| op_type(node) == "MatMul")
    }

    /// The value of which this one is a constant multiple, and the factor.
    fn scaled(&self, value: ValueId) -> Option<(ValueId, f32)> {
        let node = self.own(value)?;
        let (a, b) = (self.input(node, 0)?, self.input(node, 1)?);
        match (op_type(node), self.number(a), self.number(b)) {
            ("Mul", None, Some(factor)) => Some((a, factor)),
            ("Mul", Some(factor), None) => Some((b, factor)),
            ("Div", None, Some(divisor)) if divisor != 0.0 => Some((a, 1.0 / divisor)),
            _ => None,
        }
    }
}

/// Replaces the last product by the operator, preceded by the other nodes that it needs.
fn replace(graph: &mut Graph, i: usize, pattern: Pattern) -> Result<(), ModelError> {
    let name = graph.nodes[i].label(graph);
    let mut added = Vec::new();
    let mut add = |graph: &mut Graph, operation: Operation, inputs: &[ValueId], ty: TensorType| {
        let output = graph.add_value(&format!("{name}.{}", operation.name()), Some(ty));
        let inputs = inputs.iter().copied().map(Some).collect();
        added.push(Node { name: name.clone(), operation, inputs, outputs: vec![Some(output)] });
        output
    };
    let (keys, values) = match pattern.keys {
        Keys::Ordered { keys, order: [0, 1, 2, 3], values } => (keys, values),
        Keys::Ordered { keys, order, values } => {
            let Some(ty) = graph.ty(keys) else { return Ok(()) };
            let shape: Option<Vec<u64>> = order.iter().map(|&axis| ty.shape.get(axis as usize).copied()).collect();
            let Some(shape) = shape else { return Ok(()) };
            let ty = TensorType::new(ty.data_type, &shape);
            let turn = Operation::onnx("Transpose", &[("perm", Attribute::Ints(order.to_vec()))]);
            (add(graph, turn, &[keys], ty), values)
        }
        Keys::Shared { keys, values } => {
            let mut without_repeats = |graph: &mut Graph, value: ValueId| {
                let mut ty = graph.ty(value)?.clone();
                ty.shape.remove(2);
                let sizes: Vec<i64> = ty.shape.iter().map(|&size| size as i64).collect();
                let sizes = graph.add_initializer(&format!("{name}.sizes"), Tensor::from_i64(&[4], &sizes));
                graph.constants.insert(sizes);
                Some(add(graph, Operation::onnx("Reshape", &[]), &[value, sizes], ty))
            };
            let (keys, values) = (without_repeats(graph, keys), without_repeats(graph, values));
            let (Some(keys), Some(values)) = (keys, values) else { return Ok(()) };
            (keys, values)
        }
    };
    let constant = |graph: &mut Graph, value: f32| {
        let constant = graph.add_initializer(&format!("{name}.mask"), Tensor::from_f32(&[], &[value]));
        graph.constants.insert(constant);
        constant
    };
    let mask = match pattern.mask {
        None => None,
        Some(Mask::Added(mask)) => Some(mask),
        Some(Mask::Replaced { condition, holds, by }) => {
            let Some(ty) = graph.ty(condition).cloned() else { return Ok(()) };
            Some(match (by == f32::NEG_INFINITY, holds) {
                (true, false) => condition,
                (true, true) => add(graph, Operation::onnx("Not", &[]), &[condition], ty),
                (false, _) => {
                    let (zero, by) = (constant(graph, 0.0), constant(graph, by));
                    let (a, b) = if holds { (by, zero) } else { (zero, by) };
                    let ty = TensorType::new(DataType::Float32, &ty.shape);
                    add(graph, Operation::onnx("Where", &[]), &[condition, a, b], ty)
                }
            })
        }
    };
    let node = &mut graph.nodes[i];
    node.operation = Operation::onnx("Attention", &[("scale", Attribute::Float(pattern.scale))]);
    node.inputs = vec![Some(pattern.queries), Some(keys), Some(values)];
    node.inputs.extend(mask.map(Some));
    let end = i + added.len();
    graph.nodes.splice(i..i, added);
    // Constant nodes among them are folded.
    (i..=end).try_for_each(|node| infer_node(graph, node))
}

#[cfg(test)]
mod tests;
