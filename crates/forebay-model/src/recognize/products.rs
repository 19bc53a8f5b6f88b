//! Products of transposed matrices, which devices compute without a transposed copy.

use std::collections::BTreeMap;

use super::{Uses, op_type};
use crate::context::NodeView;
use crate::graph::{Attribute, Graph, MICROSOFT, Node, Operation, ValueId};

/// The attributes that transpose the factors, in `Gemm` and in `FusedMatMul`.
const TRANSPOSES: [&str; 2] = ["transA", "transB"];

/// Lets products read the inputs of transpositions that exchange the last two dimensions of their factors: `MatMul` becomes `FusedMatMul`,
/// and `Gemm` gets other attributes. PyTorch's exporters write linear layers so, with a transposition of the weights. In training, copies
/// of all weights and of all their gradients are saved. Results keep their bits. Every value must have a type.
pub fn products_of_transposed(graph: &mut Graph) {
    let found: Vec<(usize, Node)> = {
        let uses = Uses::of(graph);
        let find = |(i, node): (usize, &Node)| Some((i, uses.product_in_place(node)?));
        graph.nodes.iter().enumerate().filter_map(find).collect()
    };
    for (i, node) in found {
        graph.nodes[i] = node;
    }
    graph.drop_dead_nodes();
}

impl Uses<'_> {
    /// If a node is a product of transposed factors, returns the product of the factors before that.
    fn product_in_place(&self, node: &Node) -> Option<Node> {
        let own = match op_type(node) {
            _ if self.graph.is_folded(node) => return None,
            "MatMul" => [false; 2],
            "Gemm" => {
                let view = NodeView { graph: self.graph, node };
                let is_set = |name| Some(view.int(name, 0).ok()? != 0);
                [is_set(TRANSPOSES[0])?, is_set(TRANSPOSES[1])?]
            }
            _ => return None,
        };
        let sources = [0, 1].map(|i| self.exchanged(self.input(node, i)?).filter(|_| self.gains(node, i)));
        if sources == [None; 2] {
            return None;
        }
        let mut product = node.clone();
        if op_type(node) == "MatMul" {
            product.operation = Operation::Onnx {
                domain: MICROSOFT.to_string(),
                op_type: "FusedMatMul".to_string(),
                version: 1,
                attributes: BTreeMap::new(),
            };
        }
        let Operation::Onnx { attributes, .. } = &mut product.operation else { return None };
        for (i, source) in sources.into_iter().enumerate() {
            let transposes = own[i] != source.is_some();
            attributes.insert(TRANSPOSES[i].to_string(), Attribute::Int(i64::from(transposes)));
            product.inputs[i] = source.or(product.inputs[i]);
        }
        Some(product)
    }

    /// The input of the transposition that computes a value, if it exchanges the last two dimensions and no others.
    fn exchanged(&self, value: ValueId) -> Option<ValueId> {
        let node = &self.graph.nodes[*self.producers.get(&value)?];
        if op_type(node) != "Transpose" || self.graph.is_folded(node) {
            return None;
        }
        let rank = self.graph.ty(value)?.shape.len() as i64;
        let view = NodeView { graph: self.graph, node };
        let order: Vec<i64> = view.ints("perm").ok()?.map_or_else(|| (0..rank).rev().collect(), |order| order.to_vec());
        let (&[ref others @ .., a, b], true) = (order.as_slice(), rank >= 2) else { return None };
        let is_exchange = (0..).zip(others).all(|(axis, &from)| axis == from) && [a, b] == [rank - 1, rank - 2];
        self.input(node, 0).filter(|_| is_exchange)
    }

    /// Whether a product stays a single one if this factor is transposed in place: the rows of several matrices on the left are multiplied
    /// by one matrix on the right at once, which the rows of transposed ones are not.
    fn gains(&self, node: &Node, i: usize) -> bool {
        let is_one = |i: usize| {
            let shape = self.input(node, i).and_then(|value| Some(&self.graph.ty(value)?.shape));
            shape.is_some_and(|shape| shape.iter().rev().skip(2).all(|&size| size == 1))
        };
        i == 1 || is_one(0) || !is_one(1)
    }
}
