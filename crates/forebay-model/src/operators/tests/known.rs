//! Operators whose results' sizes depend on data.

use super::{Input, floats, folded, graph_of, ints, list, refused};
use crate::infer::infer_node;
use forebay_base::DataType::{Bool, Float32};
use forebay_base::Tensor;

fn matrix(rows: u64, values: &[f32]) -> Input {
    Input::Constant(Tensor::from_f32(&[rows, values.len() as u64 / rows], values))
}

#[test]
fn elements_that_are_not_zero() {
    let y = folded("NonZero", 13, vec![matrix(2, &[0.0, -0.0, 1.0, f32::NAN, 0.0, -2.0])], &[]);
    assert_eq!((y.shape(), y.to_i64().unwrap()), (&[2, 3][..], vec![0, 1, 1, 2, 0, 2]));
    assert_eq!(folded("NonZero", 13, vec![ints(&[0, 0])], &[]).shape(), [1, 0]);
    let error = refused("NonZero", vec![Input::Fed(Float32, vec![3])], &[]);
    assert!(error.contains("input 0 must be constant, because shapes depend on it"), "{error}");
}

#[test]
fn slices_where_a_condition_holds() {
    let condition = |bytes: &[u8]| Input::Constant(Tensor::new(Bool, &[bytes.len() as u64], bytes.to_vec()).unwrap());
    let values = || matrix(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = folded("Compress", 11, vec![values(), condition(&[0, 1, 0, 0, 1])], &[]);
    assert_eq!(y.to_f32().unwrap(), [2.0, 5.0]);
    let y = folded("Compress", 11, vec![values(), condition(&[1, 0, 1])], &[super::int("axis", -1)]);
    assert_eq!((y.shape(), y.to_f32().unwrap()), (&[2, 2][..], vec![1.0, 3.0, 4.0, 6.0]));
    let error = refused("Compress", vec![values(), condition(&[0, 0, 1])], &[super::int("axis", 0)]);
    assert!(error.contains("does not fit axis 0"), "{error}");
}

#[test]
fn elements_that_differ() {
    let outputs = |inputs: Vec<Input>, attributes: &[_]| -> Vec<Tensor> {
        let mut graph = graph_of("Unique", 11, inputs, attributes, 4);
        infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
        graph.outputs.iter().map(|output| graph.initializers[output].to_tensor().unwrap()).collect()
    };
    let numbers = || floats(&[2.0, f32::NAN, -1.0, 2.0, 0.0, f32::NAN, -0.0]);
    let found = outputs(vec![numbers()], &[]);
    let y = found[0].to_f32().unwrap();
    assert_eq!(y[..3], [-1.0, 0.0, 2.0]);
    assert!(y.len() == 4 && y[3].is_nan(), "{y:?}");
    assert_eq!(found[1].to_i64().unwrap(), [2, 4, 0, 1]);
    assert_eq!(found[2].to_i64().unwrap(), [2, 3, 0, 2, 1, 3, 1]);
    assert_eq!(found[3].to_i64().unwrap(), [1, 2, 2, 2]);
    let found = outputs(vec![numbers()], &[super::int("sorted", 0)]);
    assert_eq!(found[1].to_i64().unwrap(), [0, 1, 2, 4]);
    let rows = matrix(3, &[1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
    let found = outputs(vec![rows], &[super::int("axis", 0)]);
    assert_eq!((found[0].shape(), found[2].to_i64().unwrap()), (&[2, 2][..], vec![1, 1, 0]));
}

#[test]
fn boxes_that_overlap_less() {
    let boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 1.0, 1.1], [1.0, 10.1, 0.0, 11.1], [0.0, 10.0, 1.0, 11.0]];
    let boxes = || Input::Constant(Tensor::from_f32(&[1, 4, 4], boxes.as_flattened()));
    let scores = || Input::Constant(Tensor::from_f32(&[1, 2, 4], &[0.9, 0.75, 0.6, 0.95, 0.1, 0.2, 0.3, 0.3]));
    let selected = |most: i64, overlap: f32, least: f32| {
        let inputs = vec![boxes(), scores(), ints(&[most]), floats(&[overlap]), floats(&[least])];
        folded("NonMaxSuppression", 11, inputs, &[]).to_i64().unwrap()
    };
    assert_eq!(selected(3, 0.5, 0.0), [0, 0, 3, 0, 0, 0, 0, 1, 2, 0, 1, 1]);
    assert_eq!(selected(1, 0.5, 0.0), [0, 0, 3, 0, 1, 2]);
    assert_eq!(selected(3, 0.9, 0.5), [0, 0, 3, 0, 0, 0, 0, 0, 1]);
    assert_eq!(selected(0, 0.5, 0.0), Vec::<i64>::new());
}

#[test]
fn indices_that_do_not_fit_are_refused() {
    let values = || matrix(2, &[1.0, 2.0, 3.0, 4.0]);
    for (op_type, inputs, text) in [
        ("GatherElements", vec![values(), ints(&[0])], "do not match data"),
        ("GatherND", vec![values(), Input::Constant(Tensor::from_i64(&[1, 3], &[0; 3]))], "do not match data"),
        (
            "ScatterElements",
            vec![values(), Input::Constant(Tensor::from_i64(&[1, 2], &[0; 2])), values()],
            "differ in shape",
        ),
        ("TopK", vec![values(), ints(&[3])], "cannot select 3 elements"),
        ("CumSum", vec![values(), ints(&[2])], "axis 2 is out of range"),
    ] {
        let error = refused(op_type, inputs, &[]);
        assert!(error.contains(text), "{op_type}: {error}");
    }
    let error = refused("MaxUnpool", vec![values(), ints(&[0])], &[list("kernel_shape", &[2])]);
    assert!(error.contains("spatial dimensions"), "{error}");
}

/// Shapes are made of scatters and orders, too.
#[test]
fn indices_and_orders_fold() {
    let values = |tensor: Tensor| tensor.to_i64().unwrap();
    let tuples = |values: &[i64]| Input::Constant(Tensor::from_i64(&[values.len() as u64, 1], values));
    let list = || ints(&[1, 2, 3, 4]);
    assert_eq!(values(folded("ScatterND", 13, vec![list(), tuples(&[-1, 0]), ints(&[8, 9])], &[])), [9, 2, 3, 8]);
    let add = [super::text("reduction", "add")];
    // Tuples without indices name all of the data, of which the last of several updates remains.
    let nothing = |count: u64| Input::Constant(Tensor::from_i64(&[count, 0], &[]));
    let updates = || Input::Constant(Tensor::from_i64(&[2, 4], &[5, 6, 7, 8, 9, 10, 11, 12]));
    assert_eq!(values(folded("ScatterND", 13, vec![list(), nothing(2), updates()], &[])), [9, 10, 11, 12]);
    assert_eq!(values(folded("ScatterND", 16, vec![list(), nothing(2), updates()], &add)), [15, 18, 21, 24]);
    let error = refused("ScatterND", vec![list(), nothing(1), updates()], &[]);
    assert!(error.contains("expected updates of the sizes [1, 4]"), "{error}");
    let error = refused("GatherND", vec![list(), nothing(1)], &[]);
    assert!(error.contains("the last dimension of the indices int64[1, 0] must be at least 1"), "{error}");
    assert_eq!(values(folded("ScatterElements", 16, vec![list(), ints(&[1, 1]), ints(&[5, 6])], &add)), [1, 13, 3, 4]);
    let most = [super::text("reduction", "max")];
    let y = folded("ScatterElements", 18, vec![floats(&[1.0, 2.0]), ints(&[1, 0]), floats(&[1.5, f32::NAN])], &most);
    let y = y.to_f32().unwrap();
    assert!(y[0].is_nan() && y[1] == 2.0, "{y:?}");
    assert_eq!(values(folded("GatherElements", 13, vec![list(), ints(&[3, -4])], &[])), [4, 1]);
    assert_eq!(values(folded("CumSum", 14, vec![list(), ints(&[0])], &[super::int("reverse", 1)])), [10, 9, 7, 4]);
    assert_eq!(values(folded("CumSum", 14, vec![list(), ints(&[0])], &[super::int("exclusive", 1)])), [0, 1, 3, 6]);
    assert_eq!(values(folded("TopK", 11, vec![ints(&[3, 7, 7, -1]), ints(&[3])], &[])), [7, 7, 3]);
    let numbers = || floats(&[1.0, f32::NAN, 3.0, f32::NAN]);
    let last = [super::int("select_last_index", 1)];
    for (op_type, attributes, expected) in [("ArgMax", &[][..], 1), ("ArgMin", &[][..], 1), ("ArgMax", &last[..], 3)] {
        assert_eq!(values(folded(op_type, 13, vec![numbers()], attributes)), [expected], "{op_type}");
    }
    assert_eq!(values(folded("ArgMin", 13, vec![floats(&[2.0, -0.0, 0.0])], &[])), [1]);
}
