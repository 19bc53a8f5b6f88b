//! Products and convolutions whose constant weights are transposed once, when they are loaded, because devices then compute them faster.

use forebay_base::kernel::fills_vectors_with_channels;
use forebay_base::{DataType, Tensor};

use super::{Uses, op_type};
use crate::context::NodeView;
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::tensor::{Compute, Contents};

/// Larger weights are not changed, because computed weights are entirely in memory while they are loaded.
const BYTES_MAX: u64 = 64 << 20;
/// The most bytes of weights in files that are changed in all: unlike weights in files, computed weights cannot be dropped and read again.
const BYTES_IN_FILES_MAX: u64 = 256 << 20;
/// The fewest rows of a `Gemm` for which transposing its weights takes less time: with fewer, most time goes into reading the weights.
const ROWS_MIN: u64 = 8;
/// Rows that are transposed together.
const BLOCK: usize = 16;

/// Transposes the constant float32 weights of nodes of an inference graph if nothing else reads them: those of a `Conv` whose window is one
/// element and whose result has few positions, which becomes a `ConvTranspose`, and those of a `Gemm` with `transB`. Results keep their
/// bits. Every value must have a type. Returns the new initializers and what they were before.
///
/// Within a budget (`has_budget`), weights in files stay as they are, because they can be dropped and read again.
pub fn transposed_weights(graph: &mut Graph, has_budget: bool) -> Vec<(ValueId, Contents)> {
    let mut left = if has_budget { 0 } else { BYTES_IN_FILES_MAX };
    let found: Vec<(usize, Operation)> = {
        let uses = Uses::of(graph);
        let find = |(i, node): (usize, &Node)| Some((i, uses.pointwise(node).or_else(|| uses.by_columns(node))?));
        graph.nodes.iter().enumerate().filter_map(find).collect()
    };
    let mut transposed = Vec::with_capacity(found.len());
    for (i, operation) in found {
        let Some(weights) = graph.nodes[i].inputs[1] else { continue };
        let contents = graph.initializers[&weights].clone();
        if contents.is_in_file() {
            let Some(rest) = left.checked_sub(contents.size_bytes()) else { continue };
            left = rest;
        }
        let matrix = Transposed(contents.clone());
        let ty = TensorType::new(DataType::Float32, &matrix.shape());
        let computed = Contents::computed(ty, Box::new(matrix), &[&contents]);
        let id = graph.add_initializer(&format!("{}.transposed", graph.value(weights).name), computed);
        graph.constants.insert(id);
        graph.nodes[i].operation = operation;
        graph.nodes[i].inputs[1] = Some(id);
        transposed.push((id, contents));
    }
    graph.drop_dead_nodes();
    transposed
}

impl Uses<'_> {
    /// The rows and columns of a node's weights, if these can be transposed.
    fn matrix(&self, node: &Node) -> Option<[u64; 2]> {
        let weights = self.input(node, 1)?;
        let ty = self.graph.ty(weights).filter(|ty| ty.data_type == DataType::Float32)?;
        let is_own = self.counts[weights.0 as usize] == 1 && self.graph.is_constant(weights);
        let [rows, columns, ref window @ ..] = ty.shape[..] else { return None };
        let fits = ty.checked_size_bytes().is_some_and(|size| (1..=BYTES_MAX).contains(&size));
        (is_own && fits && window.iter().all(|&size| size == 1)).then_some([rows, columns])
    }

    /// If a node is a convolution that takes less time with transposed weights, returns the operation that it becomes.
    fn pointwise(&self, node: &Node) -> Option<Operation> {
        if op_type(node) != "Conv" || self.graph.is_folded(node) {
            return None;
        }
        let [targets, sources] = self.matrix(node)?;
        let view = NodeView { graph: self.graph, node };
        let (x, y) = (self.graph.ty(self.input(node, 0)?)?, self.graph.ty(node.outputs.first().copied()??)?);
        let strides = view.ints("strides").ok()?.unwrap_or_default();
        let sees_itself = x.shape[2..] == y.shape[2..] && strides.iter().all(|&stride| stride == 1);
        if !sees_itself || view.int("group", 1).ok()? != 1 {
            return None;
        }
        let positions = x.shape[0] * x.shape[2..].iter().product::<u64>();
        fills_vectors_with_channels(positions, [sources, targets]).then(|| Operation::onnx("ConvTranspose", &[]))
    }

    /// If a node is a product with transposed weights, returns the product with the weights as they are.
    fn by_columns(&self, node: &Node) -> Option<Operation> {
        if op_type(node) != "Gemm" || self.graph.is_folded(node) {
            return None;
        }
        self.matrix(node)?;
        let y = self.graph.ty(node.outputs.first().copied()??)?;
        if y.shape.first().is_none_or(|&rows| rows < ROWS_MIN) {
            return None;
        }
        let mut operation = node.operation.clone();
        let Operation::Onnx { attributes, .. } = &mut operation else { return None };
        matches!(attributes.remove("transB"), Some(Attribute::Int(1..))).then_some(operation)
    }
}

/// The transpose of a matrix, whose shape can end with dimensions of size 1.
#[derive(Debug)]
struct Transposed(Contents);

impl Transposed {
    fn shape(&self) -> Vec<u64> {
        let mut shape = self.0.shape().to_vec();
        shape.swap(0, 1);
        shape
    }
}

impl Compute for Transposed {
    fn compute(&self) -> Result<Tensor, ModelError> {
        let (shape, from) = (self.shape(), self.0.to_tensor()?.to_f32().unwrap_or_default());
        let [columns, rows] = [shape[0], shape[1]].map(|size| size as usize);
        let mut to = vec![0.0; from.len()];
        for first in (0..rows).step_by(BLOCK) {
            for column in 0..columns {
                let line = &mut to[column * rows + first..][..BLOCK.min(rows - first)];
                for (row, value) in (first..).zip(line) {
                    *value = from[row * columns + column];
                }
            }
        }
        Ok(Tensor::from_f32(&shape, &to))
    }
}
