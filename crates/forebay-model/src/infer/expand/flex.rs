//! Expands `FlexAttention` with functions of its scores or probabilities, which are graphs, into nodes.

use forebay_base::{DataType, Tensor};

use super::control::graph_attribute;
use super::inline::inline;
use super::{constant, integers, node};
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, ValueId};
use crate::operator::NodeView;
use crate::precision::widened;

/// Returns the nodes, or `None` if there are no functions: the operator is then computed directly.
pub(super) fn attention(graph: &mut Graph, like: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let view = NodeView { graph, node: like };
    let has = |name: &str| view.attribute(name).is_some();
    if !has("score_mod") && !has("prob_mod") {
        return Ok(None);
    }
    let (q, k, v) = (view.input_type(0)?.clone(), view.input_type(1)?.clone(), view.input_type(2)?.clone());
    let (&[batch, heads, rows, size], &[_, groups, keys, _], &[_, _, _, v_size]) =
        (q.shape.as_slice(), k.shape.as_slice(), v.shape.as_slice())
    else {
        return Err(view.error(format!("expected four dimensions, found {q}, {k} and {v}")));
    };
    if groups == 0 || heads % groups != 0 {
        return Err(view.error(format!("{heads} query heads cannot share {groups} key heads")));
    }
    let group_rows = (heads / groups).checked_mul(rows).ok_or_else(|| view.error(format!("{q} is too large")))?;
    let scale = view.float("scale", (1.0 / (size as f64).sqrt()) as f32)?;
    // Products are computed as usual, then converted to the type that the functions take.
    let product_type = widened(&q).data_type;
    let softmax_type = match view.int("softmax_precision", 0)? {
        0 => product_type,
        number => {
            DataType::from_onnx_number(number).filter(|data_type| data_type.has_gradients()).ok_or_else(|| {
                view.error(format!("attribute softmax_precision is element type {number}, which is not supported"))
            })?
        }
    };
    let inputs = [view.input(0)?, view.input(1)?, view.input(2)?];
    let output = like.outputs.first().copied().flatten();
    let mut written = Written { graph, like, nodes: Vec::new() };
    let [queries, keys_in, values] = inputs.map(|input| written.cast(input, product_type));
    // The heads of a group are the rows of one matrix.
    let queries = written.reshape(queries, &[batch, groups, group_rows, size]);
    let turned = written.transposed(keys_in);
    let products = written.call("MatMul", &[queries, turned]);
    let factor = constant(written.graph, "scale", Tensor::from_f32(&[], &[scale]));
    let factor = written.cast(factor, product_type);
    let scores = written.call("Mul", &[products, factor]);
    let scores = written.reshape(scores, &[batch, heads, rows, keys]);
    let scores = written.cast(scores, softmax_type);
    let scores = written.modified("score_mod", scores)?;
    let probabilities = written.with("Softmax", &[("axis", Attribute::Int(3))], &[scores]);
    let probabilities = written.modified("prob_mod", probabilities)?;
    let probabilities = written.cast(probabilities, product_type);
    let probabilities = written.reshape(probabilities, &[batch, groups, group_rows, keys]);
    let y = written.call("MatMul", &[probabilities, values]);
    let y = written.reshape(y, &[batch, heads, rows, v_size]);
    let y = written.cast(y, q.data_type);
    let mut nodes = written.nodes;
    nodes.extend(output.map(|output| node(like, "Identity", &[], &[y], &[output])));
    Ok(Some(nodes))
}

/// A list of nodes under construction.
struct Written<'a> {
    graph: &'a mut Graph,
    like: &'a Node,
    nodes: Vec<Node>,
}

impl Written<'_> {
    /// Appends a node with attributes. Returns its output.
    fn with(&mut self, op_type: &str, attributes: &[(&str, Attribute)], inputs: &[ValueId]) -> ValueId {
        let output = self.graph.add_value(&format!("{}/{op_type}", self.like.label(self.graph)), None);
        self.nodes.push(Node {
            name: self.like.name.clone(),
            operation: Operation::onnx(op_type, attributes),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
        });
        output
    }

    fn call(&mut self, op_type: &str, inputs: &[ValueId]) -> ValueId {
        self.with(op_type, &[], inputs)
    }

    fn cast(&mut self, x: ValueId, data_type: DataType) -> ValueId {
        self.with("Cast", &[("to", Attribute::Int(data_type.onnx_number().into()))], &[x])
    }

    fn reshape(&mut self, x: ValueId, shape: &[u64]) -> ValueId {
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let sizes = integers(self.graph, &[sizes.len() as u64], &sizes);
        self.with("Reshape", &[("allowzero", Attribute::Int(1))], &[x, sizes])
    }

    /// Swaps the last two dimensions of four.
    fn transposed(&mut self, x: ValueId) -> ValueId {
        self.with("Transpose", &[("perm", Attribute::Ints(vec![0, 1, 3, 2]))], &[x])
    }

    /// Applies the graph in an attribute to a value; returns the value itself if there is no such attribute.
    fn modified(&mut self, attribute: &str, x: ValueId) -> Result<ValueId, ModelError> {
        let view = NodeView { graph: self.graph, node: self.like };
        if view.attribute(attribute).is_none() {
            return Ok(x);
        }
        let body = graph_attribute(&view, attribute)?;
        if body.declared_inputs() != 1 || body.graph.outputs.len() != 1 {
            return Err(view.error(format!("attribute {attribute} must be a graph with one input and one output")));
        }
        let (nodes, outputs) = inline(self.graph, self.like, &body, &[x]);
        self.nodes.extend(nodes);
        Ok(outputs[0])
    }
}
