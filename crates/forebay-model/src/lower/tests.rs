use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
use forebay_base::{DataType, Tensor};

use super::*;
use crate::graph::TensorType;
use crate::graph::{Attribute, Node, Update};
use crate::program::BufferId;

fn float(shape: &[u64]) -> TensorType {
    TensorType::new(DataType::Float32, shape)
}

fn input(graph: &mut Graph, name: &str, shape: &[u64]) -> ValueId {
    let value = graph.add_value(name, Some(float(shape)));
    graph.inputs.push(value);
    value
}

fn zeros(graph: &mut Graph, name: &str, shape: &[u64]) -> ValueId {
    let count = shape.iter().product::<u64>() as usize;
    graph.add_initializer(name, Tensor::from_f32(shape, &vec![0.0; count]))
}

fn push(graph: &mut Graph, operation: Operation, inputs: &[ValueId], types: &[TensorType]) -> Vec<ValueId> {
    let name = operation.name().to_string();
    let outputs: Vec<ValueId> = types.iter().map(|ty| graph.add_value(&name, Some(ty.clone()))).collect();
    graph.nodes.push(Node {
        name,
        operation,
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: outputs.iter().copied().map(Some).collect(),
    });
    outputs
}

fn kernel(graph: &mut Graph, kernel: Kernel, inputs: &[ValueId], shape: &[u64]) -> ValueId {
    push(graph, Operation::Kernel(kernel), inputs, &[float(shape)])[0]
}

fn relu(graph: &mut Graph, x: ValueId) -> ValueId {
    let shape = graph.ty(x).unwrap().shape.clone();
    kernel(graph, Kernel::Unary(UnaryOp::Relu), &[x], &shape)
}

fn concat(graph: &mut Graph, inputs: &[ValueId], axis: i64, ty: TensorType) -> ValueId {
    push(graph, Operation::onnx("Concat", &[("axis", Attribute::Int(axis))]), inputs, &[ty])[0]
}

fn lowered(graph: &Graph) -> Program {
    let program = lower(graph, &BTreeSet::new()).unwrap();
    program.validate().unwrap();
    program
}

fn kernels(program: &Program) -> Vec<&str> {
    program.launches.iter().map(|launch| launch.kernel.name()).collect()
}

const ADD: Kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
const SGD: Kernel = Kernel::Sgd { nesterov: false, decays: true };

#[test]
fn kernel_nodes_broadcast_their_reads() {
    let mut graph = Graph::default();
    let (x, b) = (input(&mut graph, "x", &[4, 3, 2]), input(&mut graph, "b", &[3, 1]));
    let s = graph.add_initializer("s", Tensor::from_f32(&[], &[2.0]));
    let sum = kernel(&mut graph, ADD, &[x, b], &[4, 3, 2]);
    let y = kernel(&mut graph, ADD, &[sum, s], &[4, 3, 2]);
    graph.outputs.push(y);
    let program = lowered(&graph);
    assert_eq!(program.launches[0].reads[1].desc.strides(), Some(&[0, 1, 0][..]));
    assert_eq!(program.launches[1].reads[1].desc.strides(), Some(&[0, 0, 0][..]));
    assert_eq!(program.launches[0].reads[0].desc.strides(), None);
    assert_eq!(program.size_bytes(Role::Input), 96 + 12);
    assert_eq!(program.size_bytes(Role::Constant), 4);
    assert!(broadcast(&program.launches[0].reads[0], &[4, 3, 5]).is_err());
    assert!(broadcast(&program.launches[0].reads[0], &[3, 2]).is_err());
}

#[test]
fn pieces_are_computed_inside_their_concatenation() {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", &[1, 4, 4]);
    let (a, b, c) = (relu(&mut graph, x), relu(&mut graph, x), relu(&mut graph, x));
    let inner = concat(&mut graph, &[a, b], 1, float(&[1, 8, 4]));
    let outer = concat(&mut graph, &[c, inner, x, c], -2, float(&[1, 20, 4]));
    let y = relu(&mut graph, outer);
    graph.outputs.push(y);
    let program = lowered(&graph);
    // Only the graph input and the second use of c need copies.
    assert_eq!(kernels(&program), ["Unary", "Unary", "Unary", "Copy", "Copy", "Unary"]);
    let whole = program.launches[5].reads[0].buffer;
    let locations: Vec<(bool, u64)> = program.launches[..5]
        .iter()
        .map(|launch| (launch.writes[0].buffer == whole, launch.writes[0].offset_bytes))
        .collect();
    assert_eq!(locations, [(true, 64), (true, 128), (true, 0), (true, 192), (true, 256)]);
    assert_eq!(program.size_bytes(Role::Temporary), 320 + 320);
}

#[test]
fn a_concatenation_that_is_to_stay_copies_its_pieces() {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", &[1, 4, 4]);
    let (a, b) = (relu(&mut graph, x), relu(&mut graph, x));
    let whole = concat(&mut graph, &[a, b], 1, float(&[1, 8, 4]));
    graph.outputs.push(whole);
    assert_eq!(kernels(&lowered(&graph)), ["Unary", "Unary"]);
    let options = LoweringOptions { concatenate_in_place: false };
    let program = lower_with(&graph, &BTreeSet::new(), &options).unwrap();
    program.validate().unwrap();
    assert_eq!(kernels(&program), ["Unary", "Unary", "Copy", "Copy"]);
    let parts: Vec<u64> = program.launches[2..].iter().map(|launch| launch.writes[0].offset_bytes).collect();
    assert_eq!(parts, [0, 64]);
}

#[test]
fn a_long_chain_of_concatenations_needs_no_recursion() {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", &[1, 4]);
    let mut whole = relu(&mut graph, x);
    for i in 1..3000 {
        let piece = relu(&mut graph, x);
        whole = concat(&mut graph, &[whole, piece], 1, float(&[1, 4 * (i + 1)]));
    }
    let y = relu(&mut graph, whole);
    graph.outputs.push(y);
    let program = lowered(&graph);
    assert!(!kernels(&program).contains(&"Copy"));
    assert_eq!(program.size_bytes(Role::Temporary), 2 * 3000 * 16);
}

#[test]
fn strided_pieces_are_copied_and_misaligned_ones_gathered() {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", &[2, 4]);
    let a = relu(&mut graph, x);
    let aligned = concat(&mut graph, &[a, x], 1, float(&[2, 8]));
    let z = input(&mut graph, "z", &[2, 3]);
    let misaligned = concat(&mut graph, &[z, x], 1, float(&[2, 7]));
    graph.outputs.extend([aligned, misaligned]);
    let program = lowered(&graph);
    assert_eq!(kernels(&program), ["Unary", "Copy", "Copy", "Fill", "Copy", "Copy", "Gather"]);
    let part = &program.launches[2].writes[0];
    assert_eq!((part.offset_bytes, part.desc.sizes(), part.desc.strides()), (16, &[2, 4][..], Some(&[8, 1][..])));
    // The second piece is at the next aligned column, 4, and the gather leaves out column 3.
    let spread = &program.launches[5].writes[0];
    assert_eq!((spread.offset_bytes, spread.desc.strides()), (16, Some(&[8, 1][..])));
    let indices = &program.contents[&program.launches[6].reads[1].buffer];
    assert_eq!(indices.in_memory().unwrap().to_i64().unwrap(), [0, 1, 2, 4, 5, 6, 7]);
}

#[test]
fn reshapes_are_views_unless_they_belong_into_a_concatenation() {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", &[2, 8]);
    let reshape = |graph: &mut Graph, x, shape: &[i64]| {
        let target = graph.add_initializer("shape", Tensor::from_i64(&[shape.len() as u64], shape));
        let sizes: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
        push(graph, Operation::onnx("Reshape", &[]), &[x, target], &[float(&sizes)])[0]
    };
    let view = reshape(&mut graph, x, &[4, 4]);
    let piece = reshape(&mut graph, view, &[1, 16]);
    let other = relu(&mut graph, view);
    let other = reshape(&mut graph, other, &[1, 16]);
    let whole = concat(&mut graph, &[other, piece], 1, float(&[1, 32]));
    let y = relu(&mut graph, whole);
    graph.outputs.extend([y, view]);
    let program = lowered(&graph);
    assert_eq!(kernels(&program), ["Copy", "Unary", "Copy", "Unary", "Copy"]);
    assert_eq!(program.outputs[1].operand.desc.sizes(), [4, 4]);
    assert_eq!(program.buffer(program.outputs[1].operand.buffer).role, Role::Temporary, "inputs are not given away");
}

#[test]
fn optimizers_write_their_states_in_place_and_last() {
    let mut graph = Graph::default();
    let (x, w, v) = (input(&mut graph, "x", &[4]), zeros(&mut graph, "w", &[4]), zeros(&mut graph, "v", &[4]));
    let numbers = input(&mut graph, "hyperparameters", &[3]);
    let gradient = kernel(&mut graph, ADD, &[x, w], &[4]);
    let new = push(&mut graph, Operation::Kernel(SGD), &[w, gradient, v, numbers], &[float(&[4]), float(&[4])]);
    let loss = relu(&mut graph, gradient);
    graph.outputs.push(loss);
    graph.updates = vec![Update { state: w, value: new[0] }, Update { state: v, value: new[1] }];
    let program = lower(&graph, &BTreeSet::from([w])).unwrap();
    program.validate().unwrap();
    assert_eq!((kernels(&program), program.update_start), (vec!["Binary", "Unary", "Sgd"], 2));
    let sgd = &program.launches[2];
    assert_eq!((&sgd.writes[0], &sgd.writes[1]), (&sgd.reads[0], &sgd.reads[2]));
    assert_eq!(program.buffer(sgd.writes[0].buffer).role, Role::Parameter);
    assert_eq!(program.buffer(sgd.writes[1].buffer).role, Role::State);
    let names: Vec<&str> = program.persistent.iter().map(|named| named.name.as_str()).collect();
    assert_eq!(names, ["w", "v"]);
    assert!(program.to_string().contains("update 2 'Sgd'"), "{program}");
}

#[test]
fn a_parameter_that_is_used_after_its_update_is_not_written_in_place() {
    let mut graph = Graph::default();
    let (g, w, v) = (input(&mut graph, "g", &[4]), zeros(&mut graph, "w", &[4]), zeros(&mut graph, "v", &[4]));
    let numbers = input(&mut graph, "hyperparameters", &[3]);
    let new = push(&mut graph, Operation::Kernel(SGD), &[w, g, v, numbers], &[float(&[4]), float(&[4])]);
    graph.outputs.extend([new[0], w]);
    graph.updates = vec![Update { state: w, value: new[0] }, Update { state: v, value: new[1] }];
    let program = lowered(&graph);
    // The new parameter is an output; the old one, copied before the update phase, is another.
    assert_eq!((kernels(&program), program.update_start), (vec!["Sgd", "Copy", "Copy", "Copy"], 2));
    assert_eq!(program.launches[2].writes[0], program.launches[0].reads[0]);
}

#[test]
fn updates_take_effect_together() {
    let mut graph = Graph::default();
    let (a, b) = (zeros(&mut graph, "a", &[4]), zeros(&mut graph, "b", &[4]));
    let y = relu(&mut graph, a);
    graph.outputs.push(y);
    graph.updates = vec![Update { state: a, value: b }, Update { state: b, value: a }];
    let program = lowered(&graph);
    assert_eq!((kernels(&program), program.update_start), (vec!["Unary", "Copy", "Copy", "Copy", "Copy"], 3));
    let old = &program.launches[1].writes[0];
    assert_eq!(&program.launches[3].reads[0], old, "the exchange goes through copies of the old values");
}

#[test]
fn an_update_that_a_later_one_reads_is_copied_at_the_end() {
    let statistics = Kernel::RunningStatistics { momentum: 0.9, correction: 1.0 };
    let mut graph = Graph::default();
    let (x, a, b) = (input(&mut graph, "x", &[4]), zeros(&mut graph, "a", &[4]), zeros(&mut graph, "b", &[4]));
    let new_a = kernel(&mut graph, statistics.clone(), &[a, x], &[4]);
    let new_b = kernel(&mut graph, statistics, &[b, a], &[4]);
    graph.updates = vec![Update { state: a, value: new_a }, Update { state: b, value: new_b }];
    let program = lowered(&graph);
    assert_eq!(kernels(&program), ["RunningStatistics", "RunningStatistics", "Copy"]);
    assert_eq!(program.update_start, 1);
    assert_eq!(program.launches[2].writes[0], program.launches[0].reads[0]);
}

#[test]
fn outputs_that_share_bytes_get_buffers_of_their_own() {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", &[1, 4]);
    let w = zeros(&mut graph, "w", &[1, 4]);
    let y = relu(&mut graph, x);
    let same = push(&mut graph, Operation::onnx("Identity", &[]), &[y], &[float(&[1, 4])])[0];
    graph.outputs.extend([x, w, y, same]);
    let program = lowered(&graph);
    let buffers: BTreeSet<BufferId> = program.outputs.iter().map(|named| named.operand.buffer).collect();
    assert_eq!(buffers.len(), 4);
    assert_eq!(kernels(&program), ["Unary", "Copy", "Copy", "Copy"]);
}

#[test]
fn values_that_cannot_live_on_a_device_are_errors() {
    for shape in [vec![1; 9], vec![1 << 40, 1 << 40]] {
        let mut graph = Graph::default();
        input(&mut graph, "x", &shape);
        let error = lower(&graph, &BTreeSet::new()).unwrap_err().to_string();
        assert!(error.contains("'x'"), "{error}");
    }
}

#[test]
fn inputs_and_outputs_without_elements_have_a_place_of_one() {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", &[3, 0]);
    let y = input(&mut graph, "y", &[2]);
    let z = relu(&mut graph, y);
    graph.outputs.extend([x, z]);
    let program = lowered(&graph);
    assert_eq!(program.inputs[0].shape, [3, 0]);
    assert_eq!(program.outputs[0].shape, [3, 0]);
    assert_eq!(program.outputs[0].operand.desc.element_count(), 1);
    assert_eq!(kernels(&program), ["Unary", "Fill"]);
}

#[test]
fn validation_finds_what_is_wrong() {
    let mut graph = Graph::default();
    let x = input(&mut graph, "x", &[4]);
    let y = relu(&mut graph, x);
    let z = relu(&mut graph, y);
    graph.outputs.push(z);
    let good = lowered(&graph);
    let broken = |change: fn(&mut Program)| {
        let mut program = good.clone();
        change(&mut program);
        program.validate().unwrap_err().to_string()
    };
    assert!(broken(|program| program.launches.swap(0, 1)).contains("before anything is written"));
    assert!(broken(|program| program.launches[0].writes[0].offset_bytes = 16).contains("does not fit"));
    assert!(broken(|program| program.launches[0].writes[0].buffer = BufferId(9)).contains("does not exist"));
    assert!(broken(|program| program.buffers[1].role = Role::Constant).contains("must not be written"));
    assert!(
        broken(|program| {
            program.buffers[1].size_bytes = 64;
            program.launches[0].writes[0].offset_bytes = 8;
        })
        .contains("not aligned")
    );
    assert!(broken(|program| program.launches.truncate(1)).contains("nothing is written"));
}
