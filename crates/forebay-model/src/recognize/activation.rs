//! Activations that exporters write as several operators: GELU with the error function or with a hyperbolic tangent, x sigmoid(x), and
//! x hardsigmoid(x).

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use forebay_base::DataType;

use super::{Uses, op_type};
use crate::context::NodeView;
use crate::graph::{Attribute, Graph, Node, Operation, ValueId};

/// The largest relative error of a coefficient: exporters round it or its inverse.
const COEFFICIENT_TOLERANCE: f64 = 1e-6;
/// The most factors of a product.
const FACTORS_MAX: usize = 3;
/// The most nested operators of a polynomial.
const POLYNOMIAL_DEPTH_MAX: usize = 6;
/// The argument of the error function: x / sqrt 2.
const OF_ERROR_FUNCTION: Polynomial = [0.0, FRAC_1_SQRT_2, 0.0, 0.0];
/// The argument of the hyperbolic tangent: sqrt(2 / pi) (x + 0.044715 x^3).
const OF_TANGENT: Polynomial = [0.0, FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 0.0, 0.044_715 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2];

/// Coefficients, from the constant to the cubic term.
type Polynomial = [f64; 4];

/// Replaces x / 2 (1 + erf(x / sqrt 2)) by the operator `Gelu`, its approximation with tanh by `Gelu` with `approximate="tanh"`, x
/// sigmoid(x) by `Swish` and x hardsigmoid(x) by `HardSwish`, for float32. One pass over the elements replaces up to nine, and the gradient
/// needs only x. Every value must have a type.
pub fn activations(graph: &mut Graph) {
    let found: Vec<(usize, ValueId, Operation)> = {
        let uses = Uses::of(graph);
        let find = |(i, node): (usize, &Node)| {
            let (x, operation) = uses.gelu(node).or_else(|| uses.gated(node))?;
            let ty = graph.ty(x).filter(|ty| ty.data_type == DataType::Float32)?;
            (graph.ty(node.outputs[0]?) == Some(ty)).then_some((i, x, operation))
        };
        graph.nodes.iter().enumerate().filter_map(find).collect()
    };
    for (i, x, operation) in found {
        graph.nodes[i].operation = operation;
        graph.nodes[i].inputs = vec![Some(x)];
    }
    graph.drop_dead_nodes();
}

impl Uses<'_> {
    /// If a node computes a Gaussian error linear unit, returns its argument and the variant.
    fn gelu(&self, node: &Node) -> Option<(ValueId, Operation)> {
        let mut factors = Vec::new();
        self.factors(node, &mut factors)?;
        let half = factors.iter().position(|&factor| self.number(factor) == Some(0.5))?;
        factors.remove(half);
        let &[a, b] = factors.as_slice() else { return None };
        self.gelu_gate(b, a).or_else(|| self.gelu_gate(a, b))
    }

    /// Returns the unit of x whose gate, 1 + erf(..) or 1 + tanh(..), this value is.
    fn gelu_gate(&self, gate: ValueId, x: ValueId) -> Option<(ValueId, Operation)> {
        let sum = self.own(gate).filter(|node| op_type(node) == "Add")?;
        let is_one = |&i: &usize| self.input(sum, i).and_then(|input| self.number(input)) == Some(1.0);
        let one = [0, 1].into_iter().find(is_one)?;
        let function = self.own(self.input(sum, 1 - one)?)?;
        let (wanted, attributes) = match op_type(function) {
            "Erf" => (OF_ERROR_FUNCTION, Vec::new()),
            "Tanh" => (OF_TANGENT, vec![("approximate", Attribute::String("tanh".to_owned()))]),
            _ => return None,
        };
        let found = self.polynomial(self.input(function, 0)?, x, POLYNOMIAL_DEPTH_MAX)?;
        let is_close = |(found, wanted): (f64, f64)| (found - wanted).abs() <= COEFFICIENT_TOLERANCE * wanted;
        found.into_iter().zip(wanted).all(is_close).then(|| (x, Operation::onnx("Gelu", &attributes)))
    }

    /// Returns a value as a polynomial of x, through operators that nothing else reads.
    fn polynomial(&self, value: ValueId, x: ValueId, depth: usize) -> Option<Polynomial> {
        if value == x {
            return Some([0.0, 1.0, 0.0, 0.0]);
        }
        if let Some(number) = self.number(value) {
            return Some([f64::from(number), 0.0, 0.0, 0.0]);
        }
        let node = self.own(value).filter(|_| depth > 0)?;
        let operand = |i: usize| self.polynomial(self.input(node, i)?, x, depth - 1);
        match (op_type(node), operand(0)?, operand(1)?) {
            ("Add", a, b) => Some(std::array::from_fn(|power| a[power] + b[power])),
            ("Mul", a, b) => product(a, b),
            ("Div", a, [divisor, 0.0, 0.0, 0.0]) if divisor != 0.0 => Some(a.map(|coefficient| coefficient / divisor)),
            ("Pow", a, [2.0, 0.0, 0.0, 0.0]) => product(a, a),
            ("Pow", a, [3.0, 0.0, 0.0, 0.0]) => product(product(a, a)?, a),
            _ => None,
        }
    }

    /// Collects the factors of a node, through products that nothing else reads; returns `None` if there are too many or the node is not a
    /// product.
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

    /// If a node is the product of a value and its sigmoid or hard sigmoid, returns the value and the operator.
    fn gated(&self, node: &Node) -> Option<(ValueId, Operation)> {
        if op_type(node) != "Mul" {
            return None;
        }
        let (a, b) = (self.input(node, 0)?, self.input(node, 1)?);
        let of_gate = |gate: ValueId, x: ValueId| {
            let gate = self.own(gate).filter(|gate| self.input(gate, 0) == Some(x))?;
            let view = NodeView { graph: self.graph, node: gate };
            let is_line = |name: &str, default: f32, wanted: f32| {
                view.float(name, default).is_ok_and(|found| (found - wanted).abs() <= f32::EPSILON * wanted)
            };
            match op_type(gate) {
                "Sigmoid" => Some((x, Operation::onnx("Swish", &[]))),
                "HardSigmoid" if is_line("alpha", 0.2, 1.0 / 6.0) && is_line("beta", 0.5, 0.5) => {
                    Some((x, Operation::onnx("HardSwish", &[])))
                }
                _ => None,
            }
        };
        of_gate(b, a).or_else(|| of_gate(a, b))
    }
}

/// Returns the product of two polynomials, or `None` if its degree is greater than 3.
fn product(a: Polynomial, b: Polynomial) -> Option<Polynomial> {
    let mut product = [0.0; 4];
    for (i, &a) in a.iter().enumerate().filter(|&(_, &a)| a != 0.0) {
        for (j, &b) in b.iter().enumerate().filter(|&(_, &b)| b != 0.0) {
            *product.get_mut(i + j)? += a * b;
        }
    }
    Some(product)
}
