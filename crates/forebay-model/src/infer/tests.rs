use forebay_base::DataType;

use super::*;
use crate::graph::{Attribute, Node};
use crate::tensor::{Contents, Tensor};

/// A graph with one float32 input `x` of the given dimensions.
fn graph(dimensions: &[Dimension]) -> (Graph, ValueId) {
    let mut graph = Graph::default();
    let x = graph.add_value("x", None);
    graph.value_mut(x).declared = Some((DataType::Float32, dimensions.to_vec()));
    graph.inputs.push(x);
    (graph, x)
}

fn push(graph: &mut Graph, op_type: &str, inputs: &[ValueId], attributes: &[(&str, Attribute)]) -> ValueId {
    let output = graph.add_value(op_type, None);
    graph.nodes.push(Node {
        name: format!("a {op_type}"),
        operation: Operation::onnx(op_type, attributes),
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(output)],
    });
    output
}

/// A graph with inputs of these names, and the inputs.
fn with_inputs<const N: usize>(names: [&str; N]) -> (Graph, [ValueId; N]) {
    let mut graph = Graph::default();
    let inputs = names.map(|name| graph.add_value(name, None));
    graph.inputs = inputs.to_vec();
    (graph, inputs)
}

/// A graph as an attribute. `captured` are the inputs of its node that it captures.
fn inside(graph: Graph, captured: &[usize]) -> Attribute {
    Attribute::Graph(std::sync::Arc::new(crate::graph::Subgraph { graph, captured: captured.to_vec() }))
}

fn symbol(name: &str) -> Dimension {
    Dimension::Symbol(name.to_string())
}

#[test]
fn the_batch_size_gives_symbols_their_value_everywhere() {
    let (mut graph, x) = graph(&[symbol("N"), Dimension::Known(3)]);
    let other = graph.add_value("other", None);
    graph.value_mut(other).declared = Some((DataType::Int64, vec![Dimension::Known(2), symbol("N")]));
    graph.inputs.push(other);
    let y = push(&mut graph, "Relu", &[x], &[]);
    graph.outputs.push(y);
    let unresolved = infer(&mut graph.clone(), None).unwrap_err().to_string();
    assert!(unresolved.contains("dimension 0 ('N') of input 'x'") && unresolved.contains("--batch-size"));
    infer(&mut graph, Some(5)).unwrap();
    assert_eq!(graph.ty(y).unwrap().shape, [5, 3]);
    assert_eq!(graph.ty(other).unwrap().shape, [2, 5]);
}

#[test]
fn dimensions_without_a_size_and_batches_that_do_not_fit_are_errors() {
    let (mut unnamed, _) = graph(&[symbol(""), symbol("height")]);
    let message = infer(&mut unnamed, Some(2)).unwrap_err().to_string();
    assert!(message.contains("dimension 1 ('height')") && message.contains("--size height=N"), "{message}");
    let (mut fixed, _) = graph(&[Dimension::Known(4)]);
    let message = infer(&mut fixed, Some(2)).unwrap_err().to_string();
    assert!(message.contains("'x' has 4"), "{message}");
    assert!(infer(&mut fixed.clone(), Some(0)).is_err());
    infer(&mut fixed, Some(4)).unwrap();
}

#[test]
fn shape_arithmetic_folds_and_dead_nodes_go() {
    let (mut graph, x) = graph(&[symbol("N"), Dimension::Known(3), Dimension::Known(2)]);
    let shape = push(&mut graph, "Shape", &[x], &[]);
    let zero = graph.add_initializer("zero", Tensor::from_i64(&[1], &[0]));
    let batch = push(&mut graph, "Gather", &[shape, zero], &[]);
    let rest = graph.add_initializer("rest", Tensor::from_i64(&[1], &[-1]));
    let target = push(&mut graph, "Concat", &[batch, rest], &[("axis", Attribute::Int(0))]);
    let y = push(&mut graph, "Reshape", &[x, target], &[]);
    push(&mut graph, "Relu", &[y], &[]);
    graph.outputs.push(y);
    infer(&mut graph, Some(4)).unwrap();
    assert_eq!(graph.ty(y).unwrap().shape, [4, 6]);
    assert_eq!(graph.initializers[&target], Tensor::from_i64(&[2], &[4, -1]));
    assert_eq!(graph.nodes.len(), 1, "{graph}");
    assert_eq!(graph.to_string().lines().count(), 4, "{graph}");
}

#[test]
fn floating_initializers_fold_only_where_nothing_trains() {
    let (mut graph, x) = graph(&[Dimension::Known(2), Dimension::Known(2)]);
    let w = graph.add_initializer("w", Tensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    let transposed = push(&mut graph, "Transpose", &[w], &[]);
    let y = push(&mut graph, "Add", &[x, transposed], &[]);
    graph.outputs.push(y);
    let mut frozen = graph.clone();
    infer(&mut graph, None).unwrap();
    assert_eq!(graph.nodes.len(), 2);
    frozen.constants.insert(w);
    infer(&mut frozen, None).unwrap();
    assert_eq!(frozen.nodes.len(), 1);
    assert_eq!(frozen.initializers[&transposed], Tensor::from_f32(&[2, 2], &[1.0, 3.0, 2.0, 4.0]));
}

#[test]
fn large_weights_in_another_order_fold_and_are_read_when_they_are_loaded() {
    let sizes = [1100, 1000];
    let large = |shape: &[u64]| Contents::zeros(TensorType::new(DataType::Float32, shape));
    let constant = |graph: &mut Graph, name: &str, contents: Contents| {
        let id = graph.add_initializer(name, contents);
        graph.constants.insert(id);
        id
    };
    let (mut graph, x) = graph(&sizes.map(Dimension::Known));
    let w = constant(&mut graph, "w", large(&[1000, 1100]));
    let transposed = push(&mut graph, "Transpose", &[w], &[]);
    // A result larger than its inputs would only take memory.
    let row = constant(&mut graph, "row", large(&[1100, 1]));
    let target = constant(&mut graph, "target", Tensor::from_i64(&[2], &sizes.map(|size| size as i64)).into());
    let repeated = push(&mut graph, "Expand", &[row, target], &[]);
    let sum = push(&mut graph, "Add", &[x, transposed], &[]);
    let y = push(&mut graph, "Add", &[sum, repeated], &[]);
    graph.outputs.push(y);
    infer(&mut graph, None).unwrap();
    let names: Vec<&str> = graph.nodes.iter().map(|node| node.operation.name()).collect();
    assert_eq!(names, ["Expand", "Add", "Add"]);
    let contents = &graph.initializers[&transposed];
    assert!(contents.in_memory().is_none(), "nothing was read");
    assert_eq!(contents.to_tensor().unwrap().shape(), sizes);
}

#[test]
fn values_without_elements_fold_whatever_their_inputs() {
    let (mut graph, x) = graph(&[Dimension::Known(2), Dimension::Known(3)]);
    let zero = graph.add_initializer("zero", Tensor::from_i64(&[1], &[0]));
    let nothing = push(&mut graph, "Slice", &[x, zero, zero], &[]);
    let y = push(&mut graph, "Concat", &[nothing, x], &[("axis", Attribute::Int(0))]);
    graph.outputs.push(y);
    infer(&mut graph, None).unwrap();
    assert_eq!(graph.ty(y).unwrap().shape, [2, 3]);
    assert_eq!(graph.initializers[&nothing].shape(), [0, 3]);
}

#[test]
fn all_unsupported_operators_are_named_with_their_nodes() {
    let (mut graph, x) = graph(&[Dimension::Known(2)]);
    let a = push(&mut graph, "Frobnicate", &[x], &[]);
    let b = push(&mut graph, "Relu", &[a], &[]);
    let y = push(&mut graph, "Defenestrate", &[b], &[]);
    push(&mut graph, "Dead", &[b], &[]);
    graph.outputs.push(y);
    let message = infer(&mut graph, None).unwrap_err().to_string();
    assert!(message.contains("Frobnicate") && message.contains("'a Frobnicate'"), "{message}");
    assert!(message.contains("Defenestrate") && !message.contains("Dead"), "{message}");
}

#[test]
fn declared_element_types_of_outputs_must_agree_and_sizes_need_not() {
    let (mut graph, x) = graph(&[Dimension::Known(2), Dimension::Known(3)]);
    let y = push(&mut graph, "Relu", &[x], &[]);
    graph.outputs.push(y);
    for dimensions in
        [vec![symbol("M"), Dimension::Known(3)], vec![symbol("M"), Dimension::Known(4)], vec![symbol("M")]]
    {
        graph.value_mut(y).declared = Some((DataType::Float32, dimensions));
        infer(&mut graph.clone(), None).unwrap();
    }
    graph.value_mut(y).declared = Some((DataType::Int64, vec![symbol("M"), Dimension::Known(3)]));
    assert!(matches!(infer(&mut graph, None), Err(ModelError::Malformed { .. })));
}

/// A loop that continues while a number is below a limit, adds a step to it, and collects `x` times the number in a sequence, which is then
/// concatenated.
fn counting(limit: i64) -> (Graph, ValueId) {
    let integer = |graph: &mut Graph, name: &str, value: i64| {
        let id = graph.add_initializer(name, Tensor::from_i64(&[], &[value]));
        graph.constants.insert(id);
        id
    };
    let (mut body, [.., number, sequence, x, step, limit_inside]) =
        with_inputs(["iteration", "goes_on", "number", "sequence", "x", "step", "limit"]);
    let next = push(&mut body, "Add", &[number, step], &[]);
    let goes_on = push(&mut body, "Less", &[next, limit_inside], &[]);
    let factor = push(&mut body, "CastLike", &[next, x], &[]);
    let product = push(&mut body, "Mul", &[x, factor], &[]);
    let longer = push(&mut body, "SequenceInsert", &[sequence, product], &[]);
    body.outputs = vec![goes_on, next, longer];
    let (mut graph, x) = graph(&[Dimension::Known(2)]);
    let (step, limit) = (integer(&mut graph, "step", 2), integer(&mut graph, "limit", limit));
    let first = integer(&mut graph, "first", 1);
    let condition = graph.add_initializer("condition", expand::truth(true));
    graph.constants.insert(condition);
    let empty = push(&mut graph, "SequenceEmpty", &[], &[]);
    let last = graph.add_value("last", None);
    let collected = graph.add_value("collected", None);
    graph.nodes.push(Node {
        name: "a Loop".to_string(),
        operation: Operation::onnx("Loop", &[("body", inside(body, &[4, 5, 6]))]),
        inputs: vec![None, Some(condition), Some(first), Some(empty), Some(x), Some(step), Some(limit)],
        outputs: vec![Some(last), Some(collected)],
    });
    let y = push(&mut graph, "ConcatFromSequence", &[collected], &[("axis", Attribute::Int(0))]);
    graph.outputs = vec![y];
    (graph, y)
}

#[test]
fn a_loop_whose_condition_counts_is_written_out() {
    // 3, 5, 7: the condition is checked after each iteration, so there is at least one.
    for (limit, iterations) in [(7, 3), (0, 1)] {
        let (mut graph, y) = counting(limit);
        infer(&mut graph, None).unwrap();
        assert_eq!(graph.ty(y).unwrap().shape, [2 * iterations]);
    }
    let (endless, _) = counting(i64::MAX);
    let message = infer(&mut endless.clone(), None).unwrap_err().to_string();
    assert!(message.contains("a Loop") && message.contains("depends on what the loop computes"), "{message}");
    let types = [("x".to_string(), TensorType::new(DataType::Float32, &[2]))].into();
    let message = crate::stages::next(&endless, &types).unwrap_err().to_string();
    assert!(message.contains("is a sequence of tensors, and the loop is not unrolled"), "{message}");
}

#[test]
fn an_axis_is_not_split_into_more_parts_than_a_graph_can_have() {
    for (attributes, size) in [(vec![], None), (vec![("keepdims", Attribute::Int(0))], None), (vec![], Some(2))] {
        let (mut graph, x) = graph(&[Dimension::Known(1 << 36), Dimension::Known(1)]);
        let size = size.map(|size| graph.add_initializer("size", Tensor::from_i64(&[], &[size])));
        let inputs: Vec<ValueId> = [Some(x), size].into_iter().flatten().collect();
        let parts = push(&mut graph, "SplitToSequence", &inputs, &attributes);
        graph.outputs = vec![push(&mut graph, "ConcatFromSequence", &[parts], &[("axis", Attribute::Int(0))])];
        let message = infer(&mut graph, None).unwrap_err().to_string();
        assert!(message.contains("more than the maximum of 262144"), "{message}");
    }
}

/// A loop that adds 1 to `x`, inside a loop; `counts` are their iterations, from outside to inside. If `ends`, the inner loop may end
/// earlier, depending on `x`.
fn nested(counts: [i64; 2], ends: bool) -> Graph {
    let loop_of = |body: Graph, captured: &[usize], inputs: Vec<Option<ValueId>>, output: ValueId| Node {
        name: "a Loop".to_string(),
        operation: Operation::onnx("Loop", &[("body", inside(body, captured))]),
        inputs,
        outputs: vec![Some(output)],
    };
    let (mut inner, [_, condition, a, one]) = with_inputs(["i", "goes_on", "a", "one"]);
    let sum = push(&mut inner, "Add", &[a, one], &[]);
    let goes_on = if ends { push(&mut inner, "Less", &[sum, one], &[]) } else { condition };
    inner.outputs = vec![goes_on, sum];
    let (mut outer, [_, goes_on, x, count, one]) = with_inputs(["i", "goes_on", "x", "count", "one"]);
    let last = outer.add_value("last", None);
    outer.nodes = vec![loop_of(inner, &[3], vec![Some(count), None, Some(x), Some(one)], last)];
    outer.outputs = vec![goes_on, last];
    let (mut graph, x) = graph(&[Dimension::Known(2)]);
    let constant = |graph: &mut Graph, name: &str, tensor: Tensor| {
        let id = graph.add_initializer(name, tensor);
        graph.constants.insert(id);
        Some(id)
    };
    let [count, inner_count] = counts.map(|count| constant(&mut graph, "count", Tensor::from_i64(&[], &[count])));
    let (one, condition) = (
        constant(&mut graph, "one", Tensor::from_f32(&[], &[1.0])),
        constant(&mut graph, "condition", expand::truth(true)),
    );
    let y = graph.add_value("y", None);
    graph.nodes = vec![loop_of(outer, &[3, 4], vec![count, condition, Some(x), inner_count, one], y)];
    graph.outputs = vec![y];
    graph
}

#[test]
fn a_loop_with_long_loops_inside_is_not_unrolled() {
    let mut short = nested([6, 6], false);
    infer(&mut short, None).unwrap();
    assert_eq!(short.nodes.iter().filter(|node| node.operation.name() == "Add").count(), 36);
    let long = nested([600, 600], false);
    let message = infer(&mut long.clone(), None).unwrap_err().to_string();
    assert!(message.contains("600 iterations are too many"), "{message}");
    let types = [("x".to_string(), TensorType::new(DataType::Float32, &[2]))].into();
    let next = crate::stages::next(&long, &types).unwrap();
    assert!(matches!(next, crate::stages::Next::Repeat { .. }), "{next:?}");
}

#[test]
fn loops_that_are_too_long_together_are_not_all_unrolled() {
    let types = [("x".to_string(), TensorType::new(DataType::Float32, &[2]))].into();
    let mut graph = nested([3, 10_000], false);
    let mut longer = graph.nodes[0].clone();
    let count = graph.add_initializer("a longer count", Tensor::from_i64(&[], &[25]));
    let z = graph.add_value("z", None);
    (longer.inputs[0], longer.outputs) = (Some(count), vec![Some(z)]);
    graph.constants.insert(count);
    let mut alone = graph.clone();
    (alone.nodes, alone.outputs) = (vec![longer.clone()], vec![z]);
    assert!(!expand::runs_again(&alone, &longer));
    graph.nodes.push(longer);
    graph.outputs.push(z);
    let message = infer(&mut graph.clone(), None).unwrap_err().to_string();
    assert!(message.contains("25 iterations are too many to unroll"), "{message}");
    let crate::stages::Next::Repeat { repetition, rest } = crate::stages::next(&graph, &types).unwrap() else {
        panic!("expected one loop to run repeatedly");
    };
    assert_eq!(repetition.outputs, [Some("z".to_string())]);
    assert!(rest.nodes.len() >= 30_000, "{} nodes", rest.nodes.len());
}

/// A graph with a loop of `count` iterations. Its body carries one value, which is `x` at first and the graph's output at last.
fn looped(count: i64, body: Graph) -> (Graph, ValueId) {
    let (mut graph, x) = graph(&[Dimension::Known(2)]);
    let count = graph.add_initializer("count", Tensor::from_i64(&[], &[count]));
    let condition = graph.add_initializer("condition", expand::truth(true));
    graph.constants.extend([count, condition]);
    let y = push(&mut graph, "Loop", &[count, condition, x], &[("body", inside(body, &[]))]);
    graph.outputs = vec![y];
    (graph, y)
}

/// Adds two random numbers, drawn with a seed, to a value.
fn add_drawn(graph: &mut Graph, value: ValueId) -> ValueId {
    let seeded = [("seed", Attribute::Float(1.0)), ("shape", Attribute::Ints(vec![2]))];
    let drawn = push(graph, "RandomUniform", &[], &seeded);
    push(graph, "Add", &[value, drawn], &[])
}

/// The number of nodes of the expanded graph that draw random numbers, and how many of them draw different ones.
fn draws(graph: &mut Graph) -> (usize, usize) {
    infer(graph, None).unwrap();
    let program = crate::lower::lower(graph, &BTreeSet::new()).unwrap();
    let number = |launch: &crate::program::ProgramLaunch| match launch.kernel {
        forebay_base::Kernel::Random { node, .. } => Some(node),
        _ => None,
    };
    let numbers: Vec<u64> = program.launches.iter().filter_map(number).collect();
    (numbers.len(), numbers.into_iter().collect::<BTreeSet<u64>>().len())
}

#[test]
fn iterations_draw_other_numbers_even_with_a_seed() {
    let (mut inner, [_, goes_on, a]) = with_inputs(["i", "goes_on", "a"]);
    let sum = add_drawn(&mut inner, a);
    inner.outputs = vec![goes_on, sum];
    let (mut outer, [_, goes_on, a]) = with_inputs(["i", "goes_on", "a"]);
    let three = push(&mut outer, "Constant", &[], &[("value_int", Attribute::Int(3))]);
    let last = push(&mut outer, "Loop", &[three, goes_on, a], &[("body", inside(inner, &[]))]);
    outer.outputs = vec![goes_on, last];
    let (mut graph, y) = looped(4, outer);
    // The node outside draws what the first iteration draws.
    graph.outputs = vec![add_drawn(&mut graph, y)];
    assert_eq!(draws(&mut graph), (13, 12));
}

#[test]
fn iterations_draw_other_numbers_in_branches() {
    let (mut then, [a]) = with_inputs(["a"]);
    then.outputs = vec![add_drawn(&mut then, a)];
    let (mut other, [a]) = with_inputs(["a"]);
    other.outputs = vec![a];
    let (mut body, [_, goes_on, a]) = with_inputs(["i", "goes_on", "a"]);
    let branches = [("then_branch", inside(then, &[1])), ("else_branch", inside(other, &[1]))];
    let next = push(&mut body, "If", &[goes_on, a], &branches);
    body.outputs = vec![goes_on, next];
    assert_eq!(draws(&mut looped(3, body).0), (3, 3));
}

#[test]
fn steps_of_a_scan_draw_other_numbers() {
    let (mut body, [state, row]) = with_inputs(["state", "row"]);
    let sum = push(&mut body, "Add", &[state, row], &[]);
    body.outputs = vec![add_drawn(&mut body, sum)];
    let (mut graph, x) = graph(&[Dimension::Known(3), Dimension::Known(2)]);
    let first = graph.add_initializer("first", Tensor::from_f32(&[2], &[1.0, 2.0]));
    let attributes = [("body", inside(body, &[])), ("num_scan_inputs", Attribute::Int(1))];
    graph.outputs = vec![push(&mut graph, "Scan", &[first, x], &attributes)];
    assert_eq!(draws(&mut graph), (3, 3));
}

/// A graph that applies a body to each row of `x` and concatenates the results.
fn mapped(rows: u64, body: Graph) -> Graph {
    let (mut graph, x) = graph(&[Dimension::Known(rows), Dimension::Known(2)]);
    let parts = push(&mut graph, "SplitToSequence", &[x], &[]);
    let results = push(&mut graph, "SequenceMap", &[parts], &[("body", inside(body, &[]))]);
    graph.outputs = vec![push(&mut graph, "ConcatFromSequence", &[results], &[("axis", Attribute::Int(0))])];
    graph
}

#[test]
fn elements_of_a_sequence_get_other_numbers() {
    let (mut body, [element]) = with_inputs(["element"]);
    body.outputs = vec![add_drawn(&mut body, element)];
    assert_eq!(draws(&mut mapped(2, body)), (2, 2));
}

#[test]
fn a_model_with_too_many_nodes_after_expansion_is_refused() {
    let chain = |graph: &mut Graph, from: ValueId, count: usize| {
        (0..count).fold(from, |value, _| push(graph, "Relu", &[value], &[]))
    };
    let (mut body, [_, goes_on, a]) = with_inputs(["i", "goes_on", "a"]);
    let last = chain(&mut body, a, 1000);
    body.outputs = vec![goes_on, last];
    // The loop can be unrolled, but not together with the nodes after it.
    let (mut graph, y) = looped(250, body);
    graph.outputs = vec![chain(&mut graph, y, 13_000)];
    let long_loop = infer(&mut graph, None).unwrap_err().to_string();
    let count =
        "replace Loop 'a Loop', the model has 263001 nodes, more than the maximum of 262144; use fewer iterations";
    assert!(long_loop.contains(count) && !long_loop.contains("a Loop runs"), "{long_loop}");
    let (mut body, [element]) = with_inputs(["element"]);
    body.outputs = vec![chain(&mut body, element, 1000)];
    let map = infer(&mut mapped(300, body), None).unwrap_err().to_string();
    assert!(map.contains("replace SequenceMap") && map.contains("; a Loop runs its body repeatedly"), "{map}");
}

#[test]
fn a_loop_that_ends_by_itself_is_one_node_of_the_loop_around_it() {
    for (ends, is_unrolled) in [(true, true), (false, false)] {
        let graph = nested([50, 8000], ends);
        assert_eq!(expand::runs_again(&graph, &graph.nodes[0]), !is_unrolled);
    }
}
