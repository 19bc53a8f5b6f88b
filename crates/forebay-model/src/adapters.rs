//! Low-rank adapters: a weight W stays unchanged while two small factors are trained, and W + scale x left x right is used in its place.
//!
//! "LoRA: Low-Rank Adaptation of Large Language Models", Hu and others, 2021. The product of the factors is never computed: the weight's
//! input is multiplied by one factor and then by the other, so that neither a gradient nor state of the weight's size exists.

use std::collections::BTreeMap;

use forebay_base::random::SplitMix64;
use forebay_base::{DataType, Tensor};

use crate::context::NodeView;
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, ValueId};
use crate::training::matches;

/// Options that determine which weights get adapters, and their size.
///
/// ```
/// use forebay_model::adapters::LoraOptions;
///
/// let mut options = LoraOptions::new("*attention*.weight");
/// (options.rank, options.alpha) = (4, 8.0);
/// options.also.push("classifier.*".to_string());
/// assert_eq!(options.scale(), 2.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LoraOptions {
    /// Patterns (`*`, `?`) that match the names of weights of MatMul, Gemm, Conv without groups, and Gather.
    pub patterns: Vec<String>,
    /// Number of columns of the left factor and of rows of the right one, from 1 to 65536.
    pub rank: u64,
    /// Numerator of the scale: the product of the factors is multiplied by `alpha / rank`.
    pub alpha: f32,
    /// The seed for the factors that are initialized with random numbers; the others are initialized with zeros, so that the model is
    /// initially unchanged.
    pub seed: u64,
    /// Patterns that match the names of further parameters to train in full, such as those of a new head.
    pub also: Vec<String>,
}

impl LoraOptions {
    /// Creates options for adapters of rank 8, with a scale of 1, for the weights whose names match a pattern.
    pub fn new(pattern: impl Into<String>) -> LoraOptions {
        LoraOptions { patterns: vec![pattern.into()], rank: 8, alpha: 8.0, seed: 0, also: Vec::new() }
    }

    /// Returns the number by which the product of the factors is multiplied.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// The kind of layer that an adapter's weight belongs to, as distinguished by PEFT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// A matrix by which inputs are multiplied: \[inputs, outputs], or \[outputs, inputs] if `outputs_first`.
    Linear {
        /// Whether the weight's first axis is that of the outputs.
        outputs_first: bool,
    },
    /// Filters \[outputs, inputs, ...] of a convolution.
    Convolution,
    /// A table whose rows are looked up.
    Embedding,
}

impl Layer {
    /// Whether the right factor is applied to the input first; otherwise the left one is.
    pub fn is_right_first(self) -> bool {
        matches!(self, Layer::Linear { outputs_first: true } | Layer::Convolution)
    }
}

/// The adapter of a weight, which is used as weight + scale x left x right.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Adapter {
    /// The name of the weight.
    pub weight: String,
    /// The name of the left factor, \[rows of the weight, rank].
    pub left: String,
    /// The name of the right factor, \[rank, columns of the weight]. For a filter, all axes but the first count as columns.
    pub right: String,
    /// The kind of layer that the weight belongs to.
    pub layer: Layer,
    /// The number by which the product of the factors is multiplied.
    pub scale: f32,
}

impl Adapter {
    /// Adds the scaled product of the factors to the weight. Each element is summed in float64 and rounded once.
    pub fn merge(&self, weight: &mut [f32], left: &[f32], right: &[f32], rank: usize) {
        let columns = right.len() / rank.max(1);
        let mut sums = vec![0.0f64; columns];
        for (row, factors) in weight.chunks_exact_mut(columns.max(1)).zip(left.chunks_exact(rank.max(1))) {
            sums.fill(0.0);
            for (&factor, right) in factors.iter().zip(right.chunks_exact(columns.max(1))) {
                sums.iter_mut().zip(right).for_each(|(sum, &value)| *sum += f64::from(factor) * f64::from(value));
            }
            let scale = f64::from(self.scale);
            row.iter_mut().zip(&sums).for_each(|(value, sum)| *value = (f64::from(*value) + scale * sum) as f32);
        }
    }
}

/// A place where a weight is used.
struct Use {
    node: usize,
    layer: Layer,
}

/// The highest rank of an adapter.
const RANK_MAX: u64 = 1 << 16;

/// Adds adapters to all weights that the options name.
///
/// # Errors
/// Fails if no weight can have an adapter, if a weight is also used where it cannot have one, if the rank is out of range, or if alpha is
/// not finite.
pub(crate) fn adapt(graph: &mut Graph, options: &LoraOptions) -> Result<Vec<Adapter>, ModelError> {
    let refuse = |reason: String| Err(ModelError::Request { reason });
    if !(1..=RANK_MAX).contains(&options.rank) || !options.alpha.is_finite() {
        let (rank, alpha) = (options.rank, options.alpha);
        return refuse(format!(
            "adapters need a rank from 1 to {RANK_MAX} and a finite alpha, found {rank} and {alpha}"
        ));
    }
    let found = weights(graph);
    let is_wanted = |name: &str| options.patterns.iter().any(|pattern| matches(pattern, name));
    let mut adapters = Vec::new();
    let mut behind: BTreeMap<usize, Vec<Node>> = BTreeMap::new();
    for (&weight, (uses, other)) in &found {
        let name = graph.value(weight).name.clone();
        let (Some(first), true) = (uses.first(), is_wanted(&name)) else { continue };
        if let Some(node) = *other {
            let node = graph.nodes[node].label(graph);
            return refuse(format!(
                "the weight '{name}' cannot have an adapter because '{node}' uses it in another way; exclude it from the pattern"
            ));
        }
        let (adapter, factors) = factors(graph, weight, first.layer, options);
        for place in uses {
            let nodes = apply(graph, place, factors, adapter.scale);
            behind.entry(place.node).or_default().extend(nodes);
        }
        adapters.push(adapter);
    }
    if adapters.is_empty() {
        let able = found.iter().filter(|(_, (uses, other))| !uses.is_empty() && other.is_none());
        let names: Vec<String> = able.take(5).map(|(&id, _)| format!("'{}'", graph.value(id).name)).collect();
        return refuse(match names.is_empty() {
            true => "the model has no weight that can have an adapter (of a MatMul, Gemm, Conv or Gather)".to_string(),
            false => format!(
                "no weight that can have an adapter matches {}; such weights include {}",
                options.patterns.join(", "),
                names.join(", ")
            ),
        });
    }
    let nodes = std::mem::take(&mut graph.nodes);
    for (i, node) in nodes.into_iter().enumerate() {
        graph.nodes.push(node);
        graph.nodes.extend(behind.remove(&i).unwrap_or_default());
    }
    Ok(adapters)
}

/// Returns the float32 weights with at least two axes, each with the uses that can have adapters and a node whose use cannot.
fn weights(graph: &Graph) -> BTreeMap<ValueId, (Vec<Use>, Option<usize>)> {
    let is_weight = |id: &ValueId| {
        let contents = &graph.initializers[id];
        contents.data_type() == DataType::Float32 && contents.shape().len() > 1
    };
    // Weights and transposed weights.
    let mut origin: BTreeMap<ValueId, (ValueId, bool)> =
        graph.initializers.keys().copied().filter(is_weight).map(|id| (id, (id, false))).collect();
    let mut found: BTreeMap<ValueId, (Vec<Use>, Option<usize>)> =
        origin.keys().map(|&id| (id, (Vec::new(), None))).collect();
    for (i, node) in graph.nodes.iter().enumerate() {
        for (input, id) in node.inputs.iter().enumerate() {
            let Some(&(weight, is_turned)) = id.as_ref().and_then(|id| origin.get(id)) else { continue };
            let axes = graph.initializers[&weight].shape().len();
            if let (Some(output), false) = (turns(graph, node), is_turned || axes != 2) {
                origin.insert(output, (weight, true));
                continue;
            }
            let entry = found.entry(weight).or_default();
            match layer(graph, node, input, is_turned, axes) {
                Some(layer) => entry.0.push(Use { node: i, layer }),
                None => entry.1 = Some(i),
            }
        }
    }
    found
}

/// The output of a node if it swaps the two axes of a matrix.
fn turns(graph: &Graph, node: &Node) -> Option<ValueId> {
    let view = NodeView { graph, node };
    let is_swap = node.operation.name() == "Transpose" && matches!(view.ints("perm").ok()?, None | Some([1, 0]));
    *node.outputs.first().filter(|_| is_swap)?
}

/// The layer of a weight that is an input of a node; `None` if it cannot have an adapter there.
fn layer(graph: &Graph, node: &Node, input: usize, is_turned: bool, axes: usize) -> Option<Layer> {
    let view = NodeView { graph, node };
    match (node.operation.name(), input) {
        ("MatMul", 1) if axes == 2 => Some(Layer::Linear { outputs_first: is_turned }),
        ("Gemm", 1) if axes == 2 => {
            let is_turned_again = view.int("transB", 0).ok()? != 0;
            Some(Layer::Linear { outputs_first: is_turned != is_turned_again })
        }
        ("Conv", 1) if !is_turned && view.int("group", 1).ok()? == 1 => Some(Layer::Convolution),
        ("Gather", 0) if axes == 2 && !is_turned && matches!(view.int("axis", 0).ok()?, 0 | -2) => {
            Some(Layer::Embedding)
        }
        _ => None,
    }
}

/// Adds the two factors of a weight.
fn factors(graph: &mut Graph, weight: ValueId, layer: Layer, options: &LoraOptions) -> (Adapter, (ValueId, ValueId)) {
    let (name, shape) = (graph.value(weight).name.clone(), graph.initializers[&weight].shape().to_vec());
    let (rows, rank) = (shape[0], options.rank);
    let columns: u64 = shape[1..].iter().product();
    let (left_shape, right_shape) = match layer {
        Layer::Convolution => {
            let ones = vec![1; shape.len() - 2];
            ([vec![rows, rank], ones].concat(), [vec![rank], shape[1..].to_vec()].concat())
        }
        _ => (vec![rows, rank], vec![rank, columns]),
    };
    let mut random = Random::of(options.seed, &name);
    // Initialized as in PEFT: the factor applied to the input is random, and so is the one applied to a table's rows.
    let bound = |inputs: u64| 1.0 / (inputs.max(1) as f32).sqrt();
    let (left, right) = match layer {
        Layer::Embedding => (vec![0.0; (rows * rank) as usize], random.normal(rank * columns)),
        _ if layer.is_right_first() => {
            (vec![0.0; (rows * rank) as usize], random.uniform(rank * columns, bound(columns)))
        }
        _ => (random.uniform(rows * rank, bound(rows)), vec![0.0; (rank * columns) as usize]),
    };
    let mut add = |side: &str, shape: &[u64], values: &[f32]| {
        graph.add_initializer(&format!("{name}.lora_{side}"), Tensor::from_f32(shape, values))
    };
    let ids = (add("left", &left_shape, &left), add("right", &right_shape, &right));
    let name_of = |id: ValueId| graph.value(id).name.clone();
    let adapter = Adapter { left: name_of(ids.0), right: name_of(ids.1), weight: name, layer, scale: options.scale() };
    (adapter, ids)
}

/// Returns the nodes that add a weight's adapter to the result of a node; they follow that node.
fn apply(graph: &mut Graph, place: &Use, (left, right): (ValueId, ValueId), scale: f32) -> Vec<Node> {
    let node = graph.nodes[place.node].clone();
    let Some(Some(result)) = node.outputs.first().copied() else { return Vec::new() };
    let base = graph.add_value(&format!("{}.without_adapter", graph.value(result).name), None);
    graph.nodes[place.node].outputs[0] = Some(base);
    let (first, second) = if place.layer.is_right_first() { (right, left) } else { (left, right) };
    let mut nodes = Vec::new();
    let mut compute = |graph: &mut Graph, operation: Operation, inputs: &[Option<ValueId>]| {
        let output = graph.add_value("adapter", None);
        let outputs = vec![Some(output)];
        nodes.push(Node { name: String::new(), operation, inputs: inputs.to_vec(), outputs });
        Some(output)
    };
    let input = node.inputs[usize::from(place.layer == Layer::Embedding)];
    let outputs_first = place.layer == Layer::Linear { outputs_first: true };
    let (through, is_scaled) = match (node.operation.name(), place.layer) {
        ("Gemm", _) => {
            let number = |name: &str, other: f32| {
                let view = NodeView { graph, node: &node };
                view.float(name, other).unwrap_or(other)
            };
            let alpha = number("alpha", 1.0);
            let turned = |turn: bool| Attribute::Int(i64::from(turn));
            let is_input_turned = NodeView { graph, node: &node }.int("transA", 0).unwrap_or(0) != 0;
            let own = [("transA", turned(is_input_turned)), ("transB", turned(outputs_first))];
            let narrow = compute(graph, Operation::onnx("Gemm", &own), &[input, Some(first)]);
            let own = [("alpha", Attribute::Float(alpha * scale)), ("transB", turned(outputs_first))];
            (compute(graph, Operation::onnx("Gemm", &own), &[narrow, Some(second)]), true)
        }
        (_, Layer::Convolution) => {
            let narrow = compute(graph, node.operation.clone(), &[input, Some(first)]);
            (compute(graph, Operation::onnx("Conv", &[]), &[narrow, Some(second)]), false)
        }
        (_, Layer::Embedding) => {
            let narrow = compute(graph, node.operation.clone(), &[Some(first), input]);
            (compute(graph, Operation::onnx("MatMul", &[]), &[narrow, Some(second)]), false)
        }
        (_, Layer::Linear { .. }) => {
            let mut matrix = |graph: &mut Graph, factor: ValueId| match outputs_first {
                true => compute(graph, Operation::onnx("Transpose", &[]), &[Some(factor)]),
                false => Some(factor),
            };
            let (first, second) = (matrix(graph, first), matrix(graph, second));
            let narrow = compute(graph, Operation::onnx("MatMul", &[]), &[input, first]);
            (compute(graph, Operation::onnx("MatMul", &[]), &[narrow, second]), false)
        }
    };
    let scaled = match is_scaled || scale == 1.0 {
        true => through,
        false => {
            let factor = graph.add_initializer("adapter.scale", Tensor::from_f32(&[], &[scale]));
            graph.constants.insert(factor);
            compute(graph, Operation::onnx("Mul", &[]), &[through, Some(factor)])
        }
    };
    let operation = Operation::onnx("Add", &[]);
    nodes.push(Node { name: String::new(), operation, inputs: vec![Some(base), scaled], outputs: vec![Some(result)] });
    nodes
}

/// Random numbers for a weight, which depend only on a seed and the weight's name.
struct Random(SplitMix64);

impl Random {
    fn of(seed: u64, name: &str) -> Random {
        // FNV-1a.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Random(SplitMix64::at(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    fn uniform(&mut self, count: u64, bound: f32) -> Vec<f32> {
        (0..count).map(|_| self.0.symmetric() as f32 * bound).collect()
    }

    /// Uses the Box-Muller transform.
    fn normal(&mut self, count: u64) -> Vec<f32> {
        let one = |radius: f64, angle: f64| {
            ((-2.0 * libm::log(1.0 - radius)).sqrt() * libm::cos(std::f64::consts::TAU * angle)) as f32
        };
        (0..count).map(|_| one(self.0.uniform(), self.0.uniform())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_added_to_the_weight() {
        let scale = 0.5;
        let name = String::new;
        let layer = Layer::Linear { outputs_first: false };
        let adapter = Adapter { weight: name(), left: name(), right: name(), layer, scale };
        let mut weight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        adapter.merge(&mut weight, &[1.0, 0.0, 2.0, -1.0], &[2.0, 4.0, 6.0, 1.0, 1.0, 1.0], 2);
        assert_eq!(weight, [2.0, 4.0, 6.0, 5.5, 8.5, 11.5]);
    }

    #[test]
    fn random_numbers_depend_on_seed_and_name_and_have_their_moments() {
        let of = |seed, name| Random::of(seed, name).normal(20_000);
        let values = of(1, "a");
        assert_eq!(values, of(1, "a"));
        assert_ne!(values, of(2, "a"));
        assert_ne!(values, of(1, "b"));
        let mean = values.iter().sum::<f32>() / 20_000.0;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert!(Random::of(0, "").uniform(1000, 0.1).iter().all(|value| value.abs() <= 0.1));
    }
}
