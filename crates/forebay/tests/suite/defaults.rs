//! Inputs for which the model has a value: initializers that are also declared as inputs.

use std::collections::BTreeMap;

use forebay::{Error, Model, Session, Tensor};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, INT64};

/// y = reshape(x w, s), where w and s have values.
fn scaled() -> GraphBuilder {
    GraphBuilder::new()
        .input("x", FLOAT, &["6"])
        .input("w", FLOAT, &["1"])
        .input("s", INT64, &["rank"])
        .floats("w", &[1], &[2.0])
        .integers("s", &[2], &[2, 3])
        .node("Mul", &["x", "w"], &["scaled"])
        .node("Reshape", &["scaled", "s"], &["y"])
        .output("y", FLOAT, &["A", "B"])
}

fn given<const N: usize>(others: [(&str, Tensor); N]) -> BTreeMap<String, Tensor> {
    let x = Tensor::from_f32(&[6], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    [("x", x)].into_iter().chain(others).map(|(name, tensor)| (name.to_string(), tensor)).collect()
}

#[test]
fn an_input_that_is_an_initializer_has_its_value_unless_another_is_given() {
    let model = Model::from_bytes(&scaled().build()).unwrap();
    assert_eq!(model.inputs().len(), 1);
    let declared: Vec<String> = model.inputs_with_defaults().iter().map(ToString::to_string).collect();
    assert_eq!(declared, ["s: int64[rank]", "w: float32[1]"]);
    let mut session = Session::builder(&model).build().unwrap();
    let shape = |sizes: &[i64]| ("s", Tensor::from_i64(&[sizes.len() as u64], sizes));
    let factor = |value: f32| ("w", Tensor::from_f32(&[1], &[value]));
    let cases = [
        (given([]), 2.0, [2, 3]),
        (given([factor(-1.0)]), -1.0, [2, 3]),
        (given([shape(&[3, 2])]), 2.0, [3, 2]),
        (given([shape(&[6, -1]), factor(0.5)]), 0.5, [6, 1]),
    ];
    for round in 0..2 {
        for (inputs, scale, shape) in &cases {
            let y = &session.run(inputs.clone()).unwrap()["y"];
            let expected: Vec<f32> = (1..=6).map(|value| value as f32 * scale).collect();
            assert_eq!((y.shape(), y.to_f32().unwrap()), (shape.as_slice(), expected), "round {round}");
        }
        assert_eq!(session.plan_cache().plans, cases.len(), "a set of inputs has its plan, which is kept");
    }
    // Like any other input, it needs the declared type.
    for wrong in [Tensor::from_f32(&[2], &[1.0, 2.0]), Tensor::from_i64(&[1], &[1])] {
        let error = session.run(given([("w", wrong)])).unwrap_err();
        assert!(matches!(error, Error::Input { .. }) && error.to_string().contains("w: float32[1]"), "{error}");
    }
    session.prepare(&given([factor(3.0)])).unwrap();
    let error = session.run(given([("v", Tensor::from_i64(&[1], &[1]))])).unwrap_err();
    assert!(matches!(error, Error::UnknownInput { .. }), "{error}");
}
