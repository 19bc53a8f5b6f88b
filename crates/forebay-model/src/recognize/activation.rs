//! Activations that exporters write as several operators: x Phi(x) with the error function, and x sigmoid(x).

use std::f32::consts::FRAC_1_SQRT_2;

use forebay_base::DataType;

use super::{op_type, Uses};
use crate::graph::{Graph, Node, Operation, ValueId};

/// How far the factor in front of the error function may be from 1 / sqrt 2, as a share of it: exporters round it, or its inverse.
const FACTOR_TOLERANCE: f32 = 1e-6;
/// Factors of a product, at most.
const FACTORS_MAX: usize = 3;

/// Replaces x / 2 (1 + erf(x / sqrt 2)) by the operator `Gelu`, and x sigmoid(x) by `Swish`, for float32: one pass over the elements
/// instead of up to five. Every value must have its type.
pub fn activations(graph: &mut Graph) {
    let found: Vec<(usize, ValueId, &str)> = {
        let uses = Uses::of(graph);
        let find = |(i, node): (usize, &Node)| {
            let gelu = uses.gelu(node).map(|x| (x, "Gelu"));
            let (x, name) = gelu.or_else(|| Some((uses.swish(node)?, "Swish")))?;
            let ty = graph.ty(x).filter(|ty| ty.data_type == DataType::Float32)?;
            (graph.ty(node.outputs[0]?) == Some(ty)).then_some((i, x, name))
        };
        graph.nodes.iter().enumerate().filter_map(find).collect()
    };
    for (i, x, name) in found {
        graph.nodes[i].operation = Operation::onnx(name, &[]);
        graph.nodes[i].inputs = vec![Some(x)];
    }
    graph.drop_dead_nodes();
}

impl Uses<'_> {
    /// What a node is the Gaussian error linear unit of.
    fn gelu(&self, node: &Node) -> Option<ValueId> {
        let mut factors = Vec::new();
        self.factors(node, &mut factors)?;
        let half = factors.iter().position(|&factor| self.number(factor) == Some(0.5))?;
        factors.remove(half);
        let &[a, b] = factors.as_slice() else { return None };
        let is_gate = |gate: ValueId, x: ValueId| {
            let sum = self.own(gate).filter(|node| op_type(node) == "Add")?;
            let is_one = |&i: &usize| self.input(sum, i).and_then(|input| self.number(input)) == Some(1.0);
            let one = [0, 1].into_iter().find(is_one)?;
            let error = self.own(self.input(sum, 1 - one)?).filter(|node| op_type(node) == "Erf")?;
            let (inner, factor) = self.scaled(self.input(error, 0)?)?;
            (inner == x && (factor / FRAC_1_SQRT_2 - 1.0).abs() <= FACTOR_TOLERANCE).then_some(x)
        };
        is_gate(b, a).or_else(|| is_gate(a, b))
    }

    /// What a node is the product of, through products that nothing else reads; none where these are too many, or where it is none.
    fn factors(&self, node: &Node, factors: &mut Vec<ValueId>) -> Option<()> {
        if op_type(node) != "Mul" {
            return None;
        }
        for i in 0..2 {
            let input = self.input(node, i)?;
            match self.own(input).filter(|inner| op_type(inner) == "Mul") {
                Some(inner) => self.factors(inner, factors)?,
                None if factors.len() == FACTORS_MAX => return None,
                None => factors.push(input),
            }
        }
        Some(())
    }

    /// What a node is the product of with its own sigmoid.
    fn swish(&self, node: &Node) -> Option<ValueId> {
        if op_type(node) != "Mul" {
            return None;
        }
        let (a, b) = (self.input(node, 0)?, self.input(node, 1)?);
        let is_gate = |gate: ValueId, x: ValueId| {
            let sigmoid = self.own(gate).filter(|node| op_type(node) == "Sigmoid")?;
            (self.input(sigmoid, 0)? == x).then_some(x)
        };
        is_gate(b, a).or_else(|| is_gate(a, b))
    }
}
