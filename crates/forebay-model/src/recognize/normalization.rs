//! Batch normalization with known statistics scales and shifts each channel. After a convolution or a product with constant weights, it
//! becomes part of the weights and the bias.

use forebay_base::{DataType, Tensor};

use super::{Uses, op_type};
use crate::context::NodeView;
use crate::error::ModelError;
use crate::graph::{Graph, Node, TensorType, ValueId};
use crate::tensor::{Compute, Contents};

/// Larger weights are not changed, because computed weights are entirely in memory while they are loaded.
const BYTES_MAX: u64 = 64 << 20;

/// Merges each `BatchNormalization` of an inference graph into the preceding node if that node is a `Conv`, `ConvTranspose` or `Gemm` whose
/// result nothing else reads, and all weights are float32 constants. The new weights are computed in float64 when they are loaded, and
/// rounded once.
pub fn normalizations(graph: &mut Graph) {
    let found: Vec<Pair> = {
        let uses = Uses::of(graph);
        (0..graph.nodes.len()).filter_map(|node| uses.pair(node)).collect()
    };
    for pair in &found {
        pair.merge(graph);
    }
    graph.drop_dead_nodes();
}

/// Maps elements of the weights to output channels: the elements are laid out as [outer, own, inner], and the channel is that of `own` in
/// the group of `outer`.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// The number of rows of `outer` in a group.
    rows: u64,
    own: u64,
    inner: u64,
}

impl Layout {
    fn channel(&self, element: u64) -> usize {
        let (row, own) = (element / self.inner / self.own, element / self.inner % self.own);
        (row / self.rows * self.own + own) as usize
    }
}

/// A node and the normalization after it.
struct Pair {
    node: usize,
    normalization: usize,
    weights: ValueId,
    bias: Option<ValueId>,
    /// Scale, shift, mean and variance.
    parameters: [ValueId; 4],
    epsilon: f32,
    layout: Layout,
    channels: u64,
}

impl Uses<'_> {
    fn pair(&self, normalization: usize) -> Option<Pair> {
        let graph = self.graph;
        let behind = &graph.nodes[normalization];
        let view = NodeView { graph, node: behind };
        let is_plain = op_type(behind) == "BatchNormalization"
            && view.int("training_mode", 0).ok()? == 0
            && view.int("spatial", 1).ok()? != 0
            && behind.outputs.iter().flatten().count() == 1
            && !graph.is_folded(behind);
        if !is_plain {
            return None;
        }
        let x = self.input(behind, 0)?;
        let before = self.own(x)?;
        let weights = self.input(before, 1)?;
        let bias = self.input(before, 2);
        let shape = &graph.ty(weights)?.shape;
        let (op, view) = (op_type(before), NodeView { graph, node: before });
        let (layout, channels) = match (op, shape.as_slice()) {
            ("Conv", &[own, ref inner @ ..]) => (Layout { rows: 1, own, inner: inner.iter().product() }, own),
            ("ConvTranspose", &[rows, own, ref inner @ ..]) => {
                let groups = u64::try_from(view.int("group", 1).ok()?).ok()?;
                let rows = rows.checked_div(groups).filter(|&group| group > 0 && group * groups == rows)?;
                (Layout { rows, own, inner: inner.iter().product() }, own.checked_mul(groups)?)
            }
            ("Gemm", &[own, inner]) if view.int("transB", 0).ok()? != 0 => (Layout { rows: 1, own, inner }, own),
            ("Gemm", &[rows, own]) => (Layout { rows, own, inner: 1 }, own),
            _ => return None,
        };
        if op == "Gemm" && (view.float("alpha", 1.0).ok()?, view.float("beta", 1.0).ok()?) != (1.0, 1.0) {
            return None;
        }
        let parameters =
            [self.input(behind, 1)?, self.input(behind, 2)?, self.input(behind, 3)?, self.input(behind, 4)?];
        let is_constant = |id: ValueId, shape: Option<&[u64]>| {
            let of_channels = shape.is_none_or(|shape| graph.ty(id).is_some_and(|ty| ty.shape == shape));
            of_channels && graph.is_constant(id) && graph.ty(id).is_some_and(|ty| ty.data_type == DataType::Float32)
        };
        let of_channels = |id: &ValueId| is_constant(*id, Some(&[channels]));
        let size_bytes = graph.ty(weights)?.checked_size_bytes()?;
        let fits = size_bytes > 0
            && size_bytes <= BYTES_MAX
            && is_constant(weights, None)
            && parameters.iter().chain(&bias).all(of_channels);
        let epsilon = NodeView { graph, node: behind }.float("epsilon", 1e-5).ok()?;
        let node = *self.producers.get(&x)?;
        fits.then_some(Pair { node, normalization, weights, bias, parameters, epsilon, layout, channels })
    }
}

impl Pair {
    fn merge(&self, graph: &mut Graph) {
        let contents = |id: ValueId| graph.initializers[&id].clone();
        let [scale, shift, mean, variance] = self.parameters.map(contents);
        let factors = Factors { scale, variance, epsilon: self.epsilon };
        let weights = contents(self.weights);
        let from = [&weights, &factors.scale, &factors.variance];
        let scaled = Scaled { weights: weights.clone(), factors: factors.clone(), layout: self.layout };
        let weights = Contents::computed(weights.ty().clone(), Box::new(scaled), &from);
        let bias = self.bias.map(contents);
        let from: Vec<&Contents> =
            [&factors.scale, &factors.variance, &mean, &shift].into_iter().chain(bias.as_ref()).collect();
        let shifted =
            Shifted { bias: bias.clone(), mean: mean.clone(), shift: shift.clone(), factors: factors.clone() };
        let ty = TensorType::new(DataType::Float32, &[self.channels]);
        let bias = Contents::computed(ty, Box::new(shifted), &from);
        let name = graph.nodes[self.normalization].label(graph);
        let mut constant = |what: &str, contents: Contents| {
            let id = graph.add_initializer(&format!("{name}.{what}"), contents);
            graph.constants.insert(id);
            id
        };
        let (weights, bias) = (constant("weights", weights), constant("bias", bias));
        let result = std::mem::take(&mut graph.nodes[self.normalization].outputs);
        let node: &mut Node = &mut graph.nodes[self.node];
        node.inputs.resize(3, None);
        (node.inputs[1], node.inputs[2]) = (Some(weights), Some(bias));
        node.outputs = result;
    }
}

/// The factor of each channel: scale / sqrt(variance + epsilon).
#[derive(Clone, Debug)]
struct Factors {
    scale: Contents,
    variance: Contents,
    epsilon: f32,
}

impl Factors {
    fn compute(&self) -> Result<Vec<f64>, ModelError> {
        let epsilon = f64::from(self.epsilon);
        let (scale, variance) = (numbers(&self.scale)?, numbers(&self.variance)?);
        Ok(scale.iter().zip(variance).map(|(scale, variance)| scale / (variance + epsilon).sqrt()).collect())
    }
}

/// Weights multiplied by the factors of their channels.
#[derive(Debug)]
struct Scaled {
    weights: Contents,
    factors: Factors,
    layout: Layout,
}

/// (bias - mean) factor + shift.
#[derive(Debug)]
struct Shifted {
    bias: Option<Contents>,
    mean: Contents,
    shift: Contents,
    factors: Factors,
}

/// Reads float32 elements as float64.
fn numbers(contents: &Contents) -> Result<Vec<f64>, ModelError> {
    let numbers = contents.to_tensor()?.to_f32().unwrap_or_default();
    Ok(numbers.into_iter().map(f64::from).collect())
}

impl Compute for Scaled {
    fn compute(&self) -> Result<Tensor, ModelError> {
        let factors = self.factors.compute()?;
        let mut weights = self.weights.to_tensor()?.to_f32().unwrap_or_default();
        for (element, weight) in weights.iter_mut().enumerate() {
            *weight = (f64::from(*weight) * factors[self.layout.channel(element as u64)]) as f32;
        }
        Ok(Tensor::from_f32(self.weights.shape(), &weights))
    }
}

impl Compute for Shifted {
    fn compute(&self) -> Result<Tensor, ModelError> {
        let (factors, mean, shift) = (self.factors.compute()?, numbers(&self.mean)?, numbers(&self.shift)?);
        let bias = self.bias.as_ref().map_or_else(|| Ok(vec![0.0; mean.len()]), numbers)?;
        let moved = |i: usize| ((bias[i] - mean[i]) * factors[i] + shift[i]) as f32;
        let bias: Vec<f32> = (0..mean.len()).map(moved).collect();
        Ok(Tensor::from_f32(&[bias.len() as u64], &bias))
    }
}
