//! Training of models with branches and loops, and of weights in graphs inside nodes.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer};
use forebay::{DataType, Model, Session, Tensor, Trainer};
use forebay_golden::host;
use forebay_testing::onnx::builder::{BOOL, FLOAT, GraphBuilder, INT64, Value};

/// Elements of each weight.
const WEIGHTS: [f32; 4] = [0.3, -0.2, 0.5, 0.4];

fn trainer(model: &Model) -> Trainer {
    let builder = Trainer::builder(model).engine(host(2)).loss(Loss::MeanSquaredError);
    builder.optimizer(Optimizer::sgd(1.0)).batch_size(3).build().unwrap()
}

fn batch(condition: Option<bool>) -> BTreeMap<String, Tensor> {
    let x = Tensor::from_f32(&[3, 2], &[0.5, -1.0, 0.25, 0.75, -0.5, 0.125]);
    let condition = condition.map(|value| Tensor::new(DataType::Bool, &[], [u8::from(value)]).unwrap());
    let condition = condition.into_iter().map(|condition| ("condition".to_string(), condition));
    [("x".to_string(), x)].into_iter().chain(condition).collect()
}

fn targets() -> Tensor {
    Tensor::from_f32(&[3, 2], &[1.0, 0.5, -0.25, 0.0, 0.75, -1.0])
}

/// Compares the change of the weights in a step of size 1 with differences of the loss. Returns the gradient.
fn check_gradient(
    name: &str,
    parameter: &str,
    condition: Option<bool>,
    model: &dyn Fn(&[f32; 4]) -> GraphBuilder,
) -> Vec<f32> {
    let read = |weights: &[f32; 4]| Model::from_bytes(&model(weights).build()).unwrap();
    let mut trained = trainer(&read(&WEIGHTS));
    trained.step(batch(condition), targets()).unwrap();
    let after = trained.parameter(parameter).unwrap().unwrap_or_else(|| panic!("{name}: '{parameter}' does not train"));
    let gradient: Vec<f32> =
        WEIGHTS.iter().zip(after.to_f32().unwrap()).map(|(before, after)| before - after).collect();
    for (i, &analytic) in gradient.iter().enumerate() {
        let loss = |change: f32| {
            let mut weights = WEIGHTS;
            weights[i] += change;
            trainer(&read(&weights)).evaluate(batch(condition), targets()).unwrap().loss
        };
        let numeric = (loss(0.01) - loss(-0.01)) / 0.02;
        assert!(
            (numeric - analytic).abs() < 1e-3 + 0.01 * numeric.abs(),
            "{name}, {i}: {analytic}, by differences {numeric}"
        );
    }
    gradient
}

/// tanh(a * w), three times.
fn loop_graph(weights: &[f32; 4]) -> GraphBuilder {
    let body = GraphBuilder::new()
        .input("i", INT64, &[])
        .input("go_on", BOOL, &[])
        .input("a", FLOAT, &["N", "2"])
        .node("MatMul", &["a", "w"], &["product"])
        .node("Tanh", &["product"], &["next"])
        .node("Identity", &["go_on"], &["still"])
        .output("still", BOOL, &[])
        .output("next", FLOAT, &["N", "2"])
        .output("product", FLOAT, &["N", "2"]);
    GraphBuilder::new()
        .input("x", FLOAT, &["N", "2"])
        .floats("w", &[2, 2], weights)
        .integers("count", &[], &[3])
        .integers("first", &[1], &[0])
        .node_with("Loop", &["count", "", "x"], &["last", "all"], vec![("body", Value::Graph(body))])
        .node_with("ReduceSum", &["all", "first"], &["sum"], vec![("keepdims", Value::Int(0))])
        .node("Add", &["last", "sum"], &["y"])
        .output("y", FLOAT, &["N", "2"])
}

/// A recurrent cell that processes the rows of x from last to first, with a hidden state of 2 numbers.
fn scan_graph(weights: &[f32; 4]) -> GraphBuilder {
    let body = GraphBuilder::new()
        .input("h", FLOAT, &["2"])
        .input("row", FLOAT, &["2"])
        .node("MatMul", &["h", "w"], &["turned"])
        .node("Add", &["turned", "row"], &["sum"])
        .node("Tanh", &["sum"], &["next"])
        .node("Identity", &["next"], &["each"])
        .output("next", FLOAT, &["2"])
        .output("each", FLOAT, &["2"]);
    let attributes = vec![
        ("body", Value::Graph(body)),
        ("num_scan_inputs", Value::Int(1)),
        ("scan_input_directions", Value::Ints(vec![1])),
    ];
    GraphBuilder::new()
        .input("x", FLOAT, &["3", "2"])
        .floats("w", &[2, 2], weights)
        .floats("start", &[2], &[0.1, 0.2])
        .node_with("Scan", &["start", "x"], &["last", "y"], attributes)
        .output("y", FLOAT, &["3", "2"])
}

#[test]
fn loops_and_scans_of_known_length_train() {
    for (name, model) in [("Loop", loop_graph as fn(&[f32; 4]) -> GraphBuilder), ("Scan", scan_graph)] {
        let gradient = check_gradient(name, "w", None, &model);
        assert!(gradient.iter().all(|element| element.abs() > 1e-4), "{name}: {gradient:?}");
    }
}

#[test]
fn a_loop_trains_as_its_iterations_written_out() {
    let mut written = GraphBuilder::new().input("x", FLOAT, &["N", "2"]).floats("w", &[2, 2], &WEIGHTS);
    for (from, product, to) in [("x", "p1", "a1"), ("a1", "p2", "a2"), ("a2", "p3", "a3")] {
        written = written.node("MatMul", &[from, "w"], &[product]).node("Tanh", &[product], &[to]);
    }
    let written = written.node("Sum", &["p1", "p2", "p3"], &["sum"]).node("Add", &["a3", "sum"], &["y"]).output(
        "y",
        FLOAT,
        &["N", "2"],
    );
    let trained = |graph: GraphBuilder| {
        let mut trainer = trainer(&Model::from_bytes(&graph.build()).unwrap());
        let losses: Vec<f32> = (0..4).map(|_| trainer.step(batch(None), targets()).unwrap().loss).collect();
        (losses, trainer.parameter("w").unwrap().unwrap().to_f32().unwrap())
    };
    let (written, looped) = (trained(written), trained(loop_graph(&WEIGHTS)));
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(close(&written.0, &looped.0) && close(&written.1, &looped.1), "{written:?} {looped:?}");
}

/// A product in one branch and its square in the other; the weights are inside the branches, under the same name. If the condition is not
/// an input, the mean of x decides.
fn branches(weights: &[f32; 4], other: &[f32; 4], has_input: bool) -> GraphBuilder {
    let then = GraphBuilder::new().floats("w", &[2, 2], weights).node("MatMul", &["x", "w"], &["then"]);
    let product = GraphBuilder::new().floats("w", &[2, 2], other).node("MatMul", &["x", "w"], &["product"]);
    let square = product.node("Mul", &["product", "product"], &["else"]);
    let branches = vec![
        ("then_branch", Value::Graph(then.output("then", FLOAT, &["N", "2"]))),
        ("else_branch", Value::Graph(square.output("else", FLOAT, &["N", "2"]))),
    ];
    let graph = GraphBuilder::new().input("x", FLOAT, &["N", "2"]);
    let graph = match has_input {
        true => graph.input("condition", BOOL, &[]),
        false => graph
            .floats("limit", &[], &[0.0])
            .node_with("ReduceMean", &["x"], &["mean"], vec![("keepdims", Value::Int(0))])
            .node("Less", &["mean", "limit"], &["condition"]),
    };
    graph.node_with("If", &["condition"], &["y"], branches).output("y", FLOAT, &["N", "2"])
}

#[test]
fn the_branch_that_a_step_chooses_trains() {
    let other = [-0.4, 0.1, 0.2, 0.6];
    for (condition, parameter) in [(true, "w"), (false, "w.1")] {
        let model = |weights: &[f32; 4]| match condition {
            true => branches(weights, &other, true),
            false => branches(&other, weights, true),
        };
        check_gradient("If", parameter, Some(condition), &model);
    }
    let mut trainer = trainer(&Model::from_bytes(&branches(&WEIGHTS, &other, true).build()).unwrap());
    trainer.step(batch(Some(false)), targets()).unwrap();
    assert_eq!(trainer.parameter("w").unwrap(), Some(Tensor::from_f32(&[2, 2], &WEIGHTS)), "it was not chosen");
    assert_eq!(trainer.step_count(), 1);
    // The same plan executes the other branch.
    trainer.step(batch(Some(true)), targets()).unwrap();
    assert_ne!(trainer.parameter("w").unwrap(), Some(Tensor::from_f32(&[2, 2], &WEIGHTS)));
}

#[test]
fn a_branch_that_is_not_chosen_gives_no_nans() {
    let branch = |operator: &str, result: &str| {
        let graph = GraphBuilder::new().node(operator, &["product"], &[result]);
        Value::Graph(graph.output(result, FLOAT, &["N", "2"]))
    };
    let model = |weights: &[f32; 4]| {
        GraphBuilder::new()
            .input("x", FLOAT, &["N", "2"])
            .floats("w", &[2, 2], weights)
            .floats("limit", &[], &[0.0])
            .node("MatMul", &["x", "w"], &["product"])
            .node_with("ReduceMin", &["product"], &["least"], vec![("keepdims", Value::Int(0))])
            .node("Greater", &["least", "limit"], &["condition"])
            .node_with(
                "If",
                &["condition"],
                &["y"],
                vec![("then_branch", branch("Log", "then")), ("else_branch", branch("Tanh", "else"))],
            )
            .output("y", FLOAT, &["N", "2"])
    };
    let gradient = check_gradient("Log or Tanh", "w", None, &model);
    assert!(gradient.iter().all(|element| element.is_finite() && element.abs() > 1e-4), "{gradient:?}");
}

#[test]
fn weights_of_branches_are_saved_into_them() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::from_bytes(&branches(&WEIGHTS, &[-0.4, 0.1, 0.2, 0.6], true).build()).unwrap();
    let mut trained = trainer(&model);
    trained.step(batch(Some(true)), targets()).unwrap();
    trained.step(batch(Some(false)), targets()).unwrap();
    let path = folder.path().join("trained.onnx");
    trained.save(&path).unwrap();
    let saved = Model::from_file(&path).unwrap();
    for condition in [true, false] {
        let outputs = Session::builder(&saved).engine(host(2)).build().unwrap().run(batch(Some(condition))).unwrap();
        let before = Session::builder(&model).engine(host(2)).build().unwrap().run(batch(Some(condition))).unwrap();
        let evaluation = trained.evaluate(batch(Some(condition)), targets()).unwrap();
        assert_eq!(outputs["y"], evaluation.logits, "{condition}");
        assert_ne!(outputs["y"], before["y"], "{condition}: it was trained");
    }
    // A saved model can be trained further, and is saved again unchanged.
    assert_eq!(trainer(&saved).parameters().unwrap(), trained.parameters().unwrap());
    let again = folder.path().join("again.onnx");
    trainer(&saved).save(&again).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());
}

/// Returns the error that a trainer reports for a graph.
fn refusal(graph: GraphBuilder) -> String {
    let model = Model::from_bytes(&graph.build()).unwrap();
    let built = Trainer::builder(&model).engine(host(1)).loss(Loss::MeanSquaredError).batch_size(3).build();
    built.err().expect("it cannot be trained").to_string()
}

#[test]
fn what_a_step_cannot_know_is_refused_with_a_way_out() {
    let unique = GraphBuilder::new()
        .input("x", FLOAT, &["N", "2"])
        .floats("w", &[2], &[1.0, 2.0])
        .node("Mul", &["x", "w"], &["product"])
        .node("Unique", &["product"], &["y"])
        .output("y", FLOAT, &["count"]);
    let error = refusal(unique);
    assert!(error.contains("Unique") && error.contains("must be known before a training step begins"), "{error}");
    let rows = |count: i64| {
        let graph = GraphBuilder::new().integers("starts", &[1], &[0]).integers("ends", &[1], &[count]);
        graph.node("Slice", &["x", "starts", "ends"], &["part"]).node("Mul", &["part", "w"], &["rows"]).output(
            "rows",
            FLOAT,
            &["M", "2"],
        )
    };
    let sizes = GraphBuilder::new()
        .input("x", FLOAT, &["N", "2"])
        .input("condition", BOOL, &[])
        .floats("w", &[2], &[1.0, 2.0])
        .node_with(
            "If",
            &["condition"],
            &["y"],
            vec![("then_branch", Value::Graph(rows(1))), ("else_branch", Value::Graph(rows(2)))],
        )
        .output("y", FLOAT, &["M", "2"]);
    let error = refusal(sizes);
    assert!(error.contains("float32[1, 2]") && error.contains("float32[2, 2]"), "{error}");
}

/// A loop of 3000 iterations of 100 nodes, which is too long to be unrolled. It ends when its condition is false, or after a fixed number
/// of iterations.
fn long_loop(by_condition: bool) -> GraphBuilder {
    let body = GraphBuilder::new().input("i", INT64, &[]).input("go_on", BOOL, &[]).input("a0", FLOAT, &["N", "2"]);
    let body = (0..100)
        .fold(body, |body, i| body.node("Tanh", &[format!("a{i}").as_str()], &[format!("a{}", i + 1).as_str()]));
    let body = match by_condition {
        true => body.node("Less", &["i", "limit"], &["still"]),
        false => body.node("Identity", &["go_on"], &["still"]),
    };
    let body = body.output("still", BOOL, &[]).output("a100", FLOAT, &["N", "2"]);
    GraphBuilder::new()
        .input("x", FLOAT, &["N", "2"])
        .floats("w", &[2, 2], &WEIGHTS)
        .integers("zero", &[], &[0])
        .integers("limit", &[], &[3000])
        .node("Less", &["zero", "limit"], &["first"])
        .node_with(
            "Loop",
            &[if by_condition { "" } else { "limit" }, "first", "x"],
            &["last"],
            vec![("body", Value::Graph(body))],
        )
        .node("MatMul", &["last", "w"], &["y"])
        .output("y", FLOAT, &["N", "2"])
}

#[test]
fn a_loop_that_is_too_long_to_train_needs_fewer_iterations() {
    for by_condition in [true, false] {
        let error = refusal(long_loop(by_condition));
        assert!(error.contains("for training, use fewer iterations that each process more"), "{error}");
        assert!(!error.contains("make what is computed too late an input"), "{error}");
    }
}
