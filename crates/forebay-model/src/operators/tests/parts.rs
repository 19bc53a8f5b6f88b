//! Operators that fill, take, split, pad and update: exact numbers, and axes without elements.

use std::collections::BTreeSet;

use forebay_base::DataType::{self, Bool, Float16, Float32, Float64, Int32, Int64, UInt64};
use forebay_base::kernel::{PadMode, ScatterOp};
use forebay_base::{Kernel, Tensor};

use super::{Input, folded, graph_of, inferred, int, ints, number, refused, text};
use crate::graph::{Attribute, Graph};
use crate::infer::infer_node;
use crate::lower::lower;

fn constant(data_type: DataType, shape: &[u64], bytes: &[u8]) -> Input {
    Input::Constant(Tensor::new(data_type, shape, bytes.to_vec()).unwrap())
}

/// The kernels of a graph of one node.
fn kernels(mut graph: Graph) -> Vec<Kernel> {
    infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
    lower(&graph, &BTreeSet::new()).unwrap().launches.into_iter().map(|launch| launch.kernel).collect()
}

#[test]
fn constants_of_shape_have_exactly_their_value() {
    let value = |data_type, bytes: &[u8]| [("value", Attribute::Tensor(Tensor::new(data_type, &[1], bytes).unwrap()))];
    let filled = |data_type, bytes: &[u8]| folded("ConstantOfShape", 9, vec![ints(&[2])], &value(data_type, bytes));
    for integer in [(1 << 53) + 1, i64::MAX, i64::MIN, -1] {
        assert_eq!(filled(Int64, &i64::to_le_bytes(integer)).to_i64().unwrap(), [integer; 2]);
    }
    assert_eq!(filled(UInt64, &[255; 8]).bytes(), [255; 16]);
    for float in [1e300, 0.1] {
        assert_eq!(filled(Float64, &f64::to_le_bytes(float)).to_f64().unwrap(), [float; 2]);
    }
    // 1.5 in float16.
    let graph = graph_of("ConstantOfShape", 9, vec![ints(&[2])], &value(Float16, &[0x00, 0x3e]), 1);
    assert_eq!(kernels(graph)[0], Kernel::Fill { value: 1.5 });
}

#[test]
fn depths_can_be_of_any_type() {
    let depth = constant(Float16, &[], &[0x00, 0x42]);
    let values = Input::Fed(Float32, vec![2]);
    assert_eq!(inferred("OneHot", 11, vec![Input::Fed(Int64, vec![4]), depth, values], &[]), [vec![4, 3]]);
}

#[test]
fn axes_without_elements_are_split_and_indexed() {
    for (version, size, attributes, expected) in
        [(13, 0, vec![], [0, 0]), (18, 0, vec![int("num_outputs", 2)], [0, 0]), (18, 1, vec![], [1, 0])]
    {
        let mut graph = graph_of("Split", version, vec![Input::Fed(Float32, vec![size])], &attributes, 2);
        infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(super::shapes(&graph), expected.map(|size| vec![size]), "{size} in opset {version}");
        assert!(lower(&graph, &BTreeSet::new()).is_ok());
    }
    let (data, indices) = (|| Input::Fed(Float32, vec![4, 0]), || Input::Fed(Int32, vec![4, 0]));
    let axis = [int("axis", 1)];
    assert_eq!(inferred("GatherElements", 13, vec![data(), indices()], &axis), [vec![4, 0]]);
    assert_eq!(inferred("ScatterElements", 13, vec![data(), indices(), data()], &axis), [vec![4, 0]]);
}

#[test]
fn slices_backwards_start_at_the_first_element_or_after_it() {
    let sliced = |start, end, step| {
        let inputs = vec![ints(&[5, 6, 7]), ints(&[start]), ints(&[end]), ints(&[0]), ints(&[step])];
        folded("Slice", 13, inputs, &[]).to_i64().unwrap()
    };
    for (start, end) in [(-9, -9), (-4, i64::MIN), (-7, -100)] {
        assert_eq!(sliced(start, end, -1), [5], "from {start} to {end}");
    }
    assert_eq!(sliced(-9, 1, -1), []);
    assert_eq!(sliced(9, -9, -2), [7, 5]);
    let nothing = vec![ints(&[]), ints(&[-1]), ints(&[-9]), ints(&[0]), ints(&[-1])];
    assert_eq!(folded("Slice", 13, nothing, &[]).shape(), [0]);
}

#[test]
fn padding_has_exactly_its_value_and_removes_from_both_ends() {
    let x = constant(UInt64, &[1], &[1, 0, 0, 0, 0, 0, 0, 0]);
    let y = folded("Pad", 13, vec![x, ints(&[1, 1]), constant(UInt64, &[], &[255; 8])], &[]);
    assert_eq!(y.to_i64().unwrap(), [-1, 1, -1]);
    let half = constant(Float16, &[], &[0x00, 0x38]);
    let graph = graph_of("Pad", 13, vec![Input::Fed(Float16, vec![2]), ints(&[1, 0]), half], &[], 1);
    assert_eq!(kernels(graph), [Kernel::Pad { begins: vec![1], mode: PadMode::Constant(0.5) }]);
    let padded = |before, after| {
        let inputs = vec![ints(&[1, 2, 3]), ints(&[before, after]), number(9)];
        folded("Pad", 13, inputs, &[]).to_i64().unwrap()
    };
    assert_eq!(padded(-1, 2), [2, 3, 9, 9]);
    assert_eq!(padded(2, -1), [9, 9, 1, 2]);
    assert_eq!(padded(-5, 4), [9, 9]);
    assert_eq!(padded(4, -5), [9, 9]);
    assert_eq!(padded(-1, -2), []);
    assert_eq!(padded(-4, 1), []);
    let error = refused("Pad", vec![ints(&[1, 2, 3]), ints(&[-3, -1])], &[]);
    assert!(error.contains("pads -3 and -1 do not fit axis 0"), "{error}");
}

#[test]
fn booleans_are_updated_as_by_or_and_and() {
    let bools = |values: &[u8]| constant(Bool, &[values.len() as u64], values);
    for (name, op, expected) in [
        ("add", ScatterOp::Maximum, [1, 1, 1, 0]),
        ("max", ScatterOp::Maximum, [1, 1, 1, 0]),
        ("mul", ScatterOp::Minimum, [0, 1, 0, 0]),
        ("min", ScatterOp::Minimum, [0, 1, 0, 0]),
    ] {
        let inputs = vec![bools(&[1, 1, 0, 0]), ints(&[0, 1, 2, 0, 3]), bools(&[1, 1, 1, 0, 0])];
        let y = folded("ScatterElements", 18, inputs, &[text("reduction", name)]);
        assert_eq!((y.data_type(), y.bytes()), (Bool, &expected[..]), "{name}");
        let inputs = [(Bool, vec![4]), (Int64, vec![1, 1]), (Bool, vec![1])].map(|(ty, shape)| Input::Fed(ty, shape));
        let graph = graph_of("ScatterND", 18, inputs.into(), &[text("reduction", name)], 1);
        assert!(kernels(graph).contains(&Kernel::Scatter { op }), "{name}");
    }
    let inputs = vec![bools(&[1, 1]), ints(&[0]), bools(&[0])];
    assert_eq!(folded("ScatterElements", 18, inputs, &[]).bytes(), [0, 1]);
}
