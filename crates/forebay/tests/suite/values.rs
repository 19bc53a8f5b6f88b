//! Inputs and outputs that are not tensors: sequences and optional values.

use std::collections::BTreeMap;

use forebay::{Error, Model, Session, Structure, Tensor, Value};
use forebay_base::DataType;
use forebay_testing::onnx::builder::{Around, BOOL, FLOAT, GraphBuilder, INT64, Value as Attribute};

fn session(graph: &GraphBuilder) -> Session {
    let model = Model::from_bytes(&graph.build()).unwrap();
    Session::builder(&model).build().unwrap()
}

fn row(values: &[f32]) -> Tensor {
    Tensor::from_f32(&[values.len() as u64], values)
}

fn given<const N: usize>(values: [(&str, Value); N]) -> BTreeMap<String, Value> {
    values.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Takes a sequence, and returns the joined tensor and the sequence with that tensor appended.
fn joined() -> GraphBuilder {
    GraphBuilder::new()
        .structured_input("s", FLOAT, &[Around::Sequence])
        .node_with("ConcatFromSequence", &["s"], &["y"], vec![("axis", Attribute::Int(0))])
        .node("SequenceInsert", &["s", "y"], &["longer"])
        .output("y", FLOAT, &["N"])
        .structured_output("longer", FLOAT, &[Around::Sequence])
}

#[test]
fn sequences_of_any_length_go_in_and_come_out() {
    let mut session = session(&joined());
    assert_eq!(session.inputs()[0].structure, Some(Structure::Sequence(DataType::Float32)));
    assert_eq!(session.inputs()[0].to_string(), "s: sequence of float32");
    for lengths in [vec![2, 1], vec![3], vec![1, 2, 3], vec![2, 1]] {
        let elements: Vec<Tensor> =
            lengths.iter().enumerate().map(|(i, &length)| row(&vec![i as f32; length])).collect();
        let all: Vec<f32> = elements.iter().flat_map(|element| element.to_f32().unwrap()).collect();
        let outputs = session.run_values(given([("s", Value::Sequence(elements.clone()))])).unwrap();
        assert_eq!(outputs["y"], Value::Tensor(row(&all)));
        assert_eq!(outputs["longer"], Value::Sequence([elements, vec![row(&all)]].concat()));
        assert_eq!(outputs.len(), 2);
    }
    // One plan for each combination of the number of elements and their sizes.
    let plans = session.plan_cache();
    assert_eq!((plans.plans, plans.made, plans.found), (3, 3, 1), "{plans:?}");
}

#[test]
fn what_is_no_sequence_of_the_type_is_refused() {
    let mut session = session(&joined());
    let integers = Value::Sequence(vec![Tensor::from_i64(&[1], &[7])]);
    for value in [integers, Value::Tensor(row(&[1.0])), Value::Absent] {
        let error = session.run_values(given([("s", value)])).unwrap_err();
        assert!(matches!(error, Error::Input { .. }), "{error}");
        assert!(error.to_string().contains("s: sequence of float32"), "{error}");
    }
    let error = session.run_values(given([("s", Value::Sequence(Vec::new()))])).unwrap_err().to_string();
    assert!(error.contains("the sequence is empty"), "{error}");
    let error = session.run_values(BTreeMap::new()).unwrap_err();
    assert!(matches!(error, Error::MissingInput { .. }), "{error}");
}

#[test]
fn tensors_alone_are_what_run_takes_and_gives() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2"])
        .node("SequenceConstruct", &["x", "x"], &["twice"])
        .structured_output("twice", FLOAT, &[Around::Sequence]);
    let mut session = session(&graph);
    let error = session.run([("x".to_string(), row(&[1.0, 2.0]))].into()).unwrap_err().to_string();
    assert!(error.contains("output 'twice' is a sequence of 2 tensors; use Session::run_values"), "{error}");
    let outputs = session.run_values(given([("x", row(&[1.0, 2.0]).into())])).unwrap();
    assert_eq!(outputs["twice"], Value::Sequence(vec![row(&[1.0, 2.0]); 2]));
}

#[test]
fn optional_values_are_there_or_not() {
    let one = || GraphBuilder::new().floats("one", &[1], &[1.0]);
    let graph = one()
        .structured_input("o", FLOAT, &[Around::Optional])
        .node("OptionalHasElement", &["o"], &["has"])
        .node_with(
            "If",
            &["has"],
            &["y"],
            vec![
                (
                    "then_branch",
                    Attribute::Graph(
                        GraphBuilder::new()
                            .node("OptionalGetElement", &["o"], &["element"])
                            .node("Add", &["element", "one"], &["sum"])
                            .output("sum", FLOAT, &["N"]),
                    ),
                ),
                (
                    "else_branch",
                    Attribute::Graph(GraphBuilder::new().node("Neg", &["one"], &["minus"]).output(
                        "minus",
                        FLOAT,
                        &["1"],
                    )),
                ),
            ],
        )
        .node("Identity", &["o"], &["again"])
        .output("y", FLOAT, &["N"])
        .output("has", BOOL, &[])
        .structured_output("again", FLOAT, &[Around::Optional]);
    let mut session = session(&graph);
    let truth = |value: u8| Value::Tensor(Tensor::new(DataType::Bool, &[], vec![value]).unwrap());
    for _ in 0..2 {
        let outputs = session.run_values(given([("o", row(&[1.0, 2.0]).into())])).unwrap();
        assert_eq!(outputs["y"], Value::Tensor(row(&[2.0, 3.0])));
        assert_eq!((&outputs["has"], &outputs["again"]), (&truth(1), &Value::Tensor(row(&[1.0, 2.0]))));
        let outputs = session.run_values(given([("o", Value::Absent)])).unwrap();
        assert_eq!(outputs["y"], Value::Tensor(row(&[-1.0])));
        assert_eq!((&outputs["has"], &outputs["again"]), (&truth(0), &Value::Absent));
    }
}

/// Elements of a sequence that are given, computed before, and computed after a value that determines sizes.
#[test]
fn sequences_go_through_all_stages() {
    let graph = GraphBuilder::new()
        .structured_input("s", FLOAT, &[Around::Sequence])
        .input("x", FLOAT, &["4"])
        .node("Relu", &["x"], &["positive"])
        .node("NonZero", &["positive"], &["places"])
        .node_with("Cast", &["places"], &["numbers"], vec![("to", Attribute::Int(FLOAT))])
        .node("Neg", &["x"], &["negative"])
        .node("SequenceInsert", &["s", "negative"], &["more"])
        .node("SequenceInsert", &["more", "x"], &["still"])
        .node("SequenceInsert", &["still", "numbers"], &["all"])
        .node("SequenceInsert", &["s", "negative"], &["early"])
        .node("Shape", &["numbers"], &["count"])
        .output("count", INT64, &["2"])
        .structured_output("all", FLOAT, &[Around::Sequence])
        .structured_output("early", FLOAT, &[Around::Sequence]);
    let mut session = session(&graph);
    for x in [[1.0, -2.0, -0.5, 3.0], [-1.0, -2.0, 5.0, -3.0], [1.0, -2.0, -0.5, 3.0]] {
        let places: Vec<f32> = (0..4).filter(|&i| x[i] > 0.0).map(|i| i as f32).collect();
        let element = row(&[0.5]);
        let inputs = given([("s", Value::Sequence(vec![element.clone()])), ("x", row(&x).into())]);
        let outputs = session.run_values(inputs).unwrap();
        let count = places.len() as u64;
        let numbers = Tensor::from_f32(&[1, count], &places);
        let negative = row(&x.map(|x| -x));
        assert_eq!(outputs["count"], Value::Tensor(Tensor::from_i64(&[2], &[1, count as i64])));
        assert_eq!(outputs["all"], Value::Sequence(vec![element.clone(), negative.clone(), row(&x), numbers]));
        assert_eq!(outputs["early"], Value::Sequence(vec![element, negative]));
    }
}
