//! Memory of models whose sizes are known late: weights shared by plans, and values passed between stages.

use std::collections::BTreeMap;

use forebay::{Error, Model, Session, Tensor};
use forebay_golden::host;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, INT64, Value};

/// The bytes of a weight of 256 x 1024 numbers.
const WEIGHT_BYTES: u64 = 1 << 20;

fn run(session: &mut Session, x: &Tensor) -> BTreeMap<String, Tensor> {
    session.run([("x".to_string(), x.clone())].into()).unwrap()
}

fn counting(shape: &[u64]) -> Tensor {
    let count: u64 = shape.iter().product();
    Tensor::from_f32(shape, &(0..count).map(|i| (i % 17) as f32 * 0.125 - 1.0).collect::<Vec<_>>())
}

fn weight(graph: GraphBuilder, name: &str, factor: f32) -> GraphBuilder {
    graph.floats(name, &[256, 1024], &(0..256 * 1024).map(|i| (i % 23) as f32 * factor).collect::<Vec<_>>())
}

/// y = x * w: one weight, any number of rows.
fn product() -> Model {
    let graph = weight(GraphBuilder::new(), "w", 0.01)
        .input("x", FLOAT, &["N", "256"])
        .node("MatMul", &["x", "w"], &["y"])
        .output("y", FLOAT, &["N", "1024"]);
    Model::from_bytes(&graph.build()).unwrap()
}

/// Two products; the mean of the first decides which of two weights the second one uses.
fn chosen_product() -> Model {
    let one = |weight: &str| {
        let graph = GraphBuilder::new().node("MatMul", &["x", "w"], &["again"]);
        graph.node("MatMul", &["x", weight], &["next"]).node("Add", &["again", "next"], &["sum"]).output(
            "sum",
            FLOAT,
            &["N", "1024"],
        )
    };
    let graph = ["w", "w1", "w2"].into_iter().zip([0.01, 0.02, -0.01]);
    let graph = graph.fold(GraphBuilder::new(), |graph, (name, factor)| weight(graph, name, factor));
    let branches = vec![("then_branch", Value::Graph(one("w1"))), ("else_branch", Value::Graph(one("w2")))];
    let graph = graph
        .input("x", FLOAT, &["N", "256"])
        .floats("limit", &[], &[0.0])
        .node("MatMul", &["x", "w"], &["first"])
        .node_with("ReduceMean", &["first"], &["mean"], vec![("keepdims", Value::Int(0))])
        .node("Greater", &["mean", "limit"], &["condition"])
        .node_with("If", &["condition"], &["y"], branches)
        .output("y", FLOAT, &["N", "1024"]);
    Model::from_bytes(&graph.build()).unwrap()
}

#[test]
fn plans_of_several_sizes_share_one_copy_of_the_weights() {
    let model = product();
    let mut session = Session::builder(&model).engine(host(2)).build().unwrap();
    let sizes = [1, 2, 3, 5, 8, 2, 1];
    for size in sizes {
        let x = counting(&[size, 256]);
        // With a fixed size, a plan has its weights to itself.
        let mut alone = Session::builder(&model).engine(host(2)).batch_size(size).build().unwrap();
        assert_eq!(run(&mut session, &x), run(&mut alone, &x), "{size}");
    }
    assert_eq!((session.plan_cache().plans, session.plan_cache().made), (5, 5));
    let usage = session.usage();
    assert!(usage.heap_peak_bytes >= WEIGHT_BYTES && usage.heap_peak_bytes < 2 * WEIGHT_BYTES, "{usage:?}");
    assert_eq!(usage.heap_peak_bytes, usage.heap_bytes, "all of them are there, so nothing is loaded again");
}

#[test]
fn stages_share_weights_and_take_those_that_others_do_not_have() {
    let model = chosen_product();
    let mut session = Session::builder(&model).engine(host(2)).build().unwrap();
    let mut one_at_a_time =
        Session::builder(&model).engine(host(2)).simulate_device("5MiB".parse().unwrap()).build().unwrap();
    for (size, sign) in [(2, 1.0), (2, -1.0), (3, 1.0), (3, -1.0), (2, 1.0)] {
        let elements: Vec<f32> = (0..size * 256).map(|i| sign * (i % 13) as f32).collect();
        let x = Tensor::from_f32(&[size, 256], &elements);
        assert_eq!(run(&mut session, &x), run(&mut one_at_a_time, &x), "{size} {sign}");
    }
    assert_eq!(session.plan_cache().made, 6, "a condition and two branches of two sizes");
    let usage = session.usage();
    let weights_bytes = usage.heap_peak_bytes;
    assert!((3 * WEIGHT_BYTES..4 * WEIGHT_BYTES).contains(&weights_bytes), "each weight once: {weights_bytes}");
    assert!(one_at_a_time.usage().heap_peak_bytes <= 5 << 20, "{:?}", one_at_a_time.usage());
}

#[test]
fn no_budget_is_exceeded_by_plans_that_wait() {
    let x = |size| counting(&[size, 256]);
    for (model, sizes) in [(product(), [1, 7, 64, 300, 7, 1]), (chosen_product(), [1, 64, 1, 300, 64, 2])] {
        let mut unlimited = Session::builder(&model).engine(host(2)).build().unwrap();
        let expected = sizes.map(|size| run(&mut unlimited, &x(size)));
        // Some of these budgets hold all plans, some hold one, and some not even the weights.
        for kib in [300u64, 900, 1100, 1300, 2048, 2560, 3200, 4096, 9000] {
            let size = format!("{kib}KiB").parse().unwrap();
            let mut session = Session::builder(&model).engine(host(2)).simulate_device(size).build().unwrap();
            for (size, expected) in sizes.into_iter().zip(&expected) {
                match session.run([("x".to_string(), x(size))].into()) {
                    Ok(outputs) => assert_eq!(outputs, *expected, "{kib} KiB, {size}"),
                    Err(error) => assert!(matches!(error, Error::Plan(_)) && kib < 2048, "{kib} KiB, {size}: {error}"),
                }
                assert!(session.usage().heap_peak_bytes <= kib << 10, "{kib} KiB, {size}: {:?}", session.usage());
            }
        }
    }
}

/// A list with one element for each positive element of x, and values computed from x, scaled by the list's sum. These values pass from one
/// stage to the next.
fn late_list() -> Model {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N"])
        .integers("zero", &[], &[0])
        .integers("one", &[], &[1])
        .floats("nothing", &[], &[0.0])
        .node("Mul", &["x", "x"], &["squares"])
        .node("Exp", &["x"], &["powers"])
        .node("Greater", &["x", "nothing"], &["positive"])
        .node_with("Cast", &["positive"], &["ones"], vec![("to", Value::Int(INT64))])
        .node_with("ReduceSum", &["ones"], &["count"], vec![("keepdims", Value::Int(0))])
        .node("Range", &["zero", "count", "one"], &["numbers"])
        .node_with("Cast", &["numbers"], &["floats"], vec![("to", Value::Int(FLOAT))])
        .node_with("ReduceSum", &["floats"], &["total"], vec![("keepdims", Value::Int(0))])
        .node("Add", &["squares", "powers"], &["sum"])
        .node("Mul", &["sum", "total"], &["y"])
        .output("y", FLOAT, &["N"]);
    Model::from_bytes(&graph.build()).unwrap()
}

#[test]
fn a_host_budget_holds_plans_and_what_lies_between_them() {
    let (model, count) = (late_list(), 64 << 10);
    let value_bytes = count * 4;
    let x = counting(&[count]);
    let session = |host_bytes: Option<u64>| {
        let builder = Session::builder(&model).engine(host(2)).simulate_device("2MiB".parse().unwrap());
        match host_bytes {
            Some(bytes) => builder.host_memory(format!("{bytes}").parse().unwrap()).build(),
            None => builder.build(),
        }
    };
    let mut free = session(None).unwrap();
    let expected = run(&mut free, &x);
    let between_bytes = free.between_stages_peak_bytes();
    assert!(between_bytes >= value_bytes, "a value of {value_bytes} bytes goes on: {between_bytes}");
    let taken_bytes = free.usage().host_peak_bytes;
    let (mut held, mut refused) = (0, 0);
    for host_bytes in (0..60).map(|i| taken_bytes / 2 + i * value_bytes / 4) {
        let outcome = session(Some(host_bytes)).and_then(|mut session| {
            let outputs = session.run([("x".to_string(), x.clone())].into())?;
            Ok((outputs, session.usage().host_peak_bytes, session.between_stages_peak_bytes()))
        });
        match outcome {
            Ok((outputs, host_peak_bytes, between_bytes)) => {
                assert_eq!(outputs, expected);
                assert!(
                    host_peak_bytes + between_bytes <= host_bytes,
                    "{host_peak_bytes} and {between_bytes} of {host_bytes}"
                );
                held += 1;
            }
            Err(error) => {
                refused += usize::from(matches!(error, Error::BetweenStages { .. }));
                assert!(error.to_string().contains("--host-memory"), "{error}");
                assert_eq!(held, 0, "what a smaller budget holds, a larger one holds: {error}");
            }
        }
    }
    assert!(
        held > 0 && refused > 0,
        "{held} held, {refused} refused for values between stages; {taken_bytes} taken, {between_bytes} between"
    );
}

/// Two products of the rows of x that a list selects.
fn selected_products() -> Model {
    let graph = weight(weight(GraphBuilder::new(), "w1", 0.02), "w2", -0.01)
        .input("x", FLOAT, &["N", "256"])
        .input("list", FLOAT, &["N"])
        .integers("zero", &[1], &[0])
        .node("Relu", &["list"], &["positive"])
        .node("NonZero", &["positive"], &["columns"])
        .node("Squeeze", &["columns", "zero"], &["rows"])
        .node("Gather", &["x", "rows"], &["selected"])
        .node("MatMul", &["selected", "w1"], &["first"])
        .node("MatMul", &["selected", "w2"], &["second"])
        .node("Add", &["first", "second"], &["y"])
        .output("y", FLOAT, &["K", "1024"]);
    Model::from_bytes(&graph.build()).unwrap()
}

#[test]
fn a_share_of_device_memory_is_one_of_what_the_largest_stage_takes() {
    let model = selected_products();
    let inputs: BTreeMap<String, Tensor> =
        [("x".to_string(), counting(&[17, 256])), ("list".to_string(), counting(&[17]))].into();
    let mut unlimited = Session::builder(&model).engine(host(2)).build().unwrap();
    let expected = unlimited.run(inputs.clone()).unwrap();
    let all_bytes = unlimited.plan().unwrap().statistics.in_core_peak_bytes;
    // The first stage cannot take less than all of its few bytes.
    let within = |size: &str| Session::builder(&model).engine(host(2)).simulate_device(size.parse().unwrap()).build();
    let mut half = within("60%").unwrap();
    for _ in 0..2 {
        assert_eq!(half.run(inputs.clone()).unwrap(), expected);
        assert!(half.usage().heap_peak_bytes <= all_bytes * 6 / 10, "{:?} of {all_bytes}", half.usage());
    }
    let error = within("1%").and_then(|mut session| session.run(inputs)).unwrap_err();
    assert!(matches!(error, Error::Plan(_)), "{error}");
}
