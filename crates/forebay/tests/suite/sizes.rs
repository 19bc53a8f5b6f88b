//! Sizes, branches and loops that are determined when a model runs.

use std::collections::{BTreeMap, BTreeSet};

use forebay::training::Optimizer;
use forebay::{DataType, Error, Model, Session, Tensor, Trainer};
use forebay_golden::host;
use forebay_testing::onnx::builder::{BOOL, FLOAT, GraphBuilder, INT64, Value};

fn session(graph: GraphBuilder) -> Session {
    let model = Model::from_bytes(&graph.build()).unwrap();
    Session::builder(&model).engine(host(2)).build().unwrap()
}

fn run(session: &mut Session, inputs: &[(&str, Tensor)]) -> BTreeMap<String, Tensor> {
    session.run(inputs.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect()).unwrap()
}

fn counting(shape: &[u64]) -> Tensor {
    let count: u64 = shape.iter().product();
    Tensor::from_f32(shape, &(0..count).map(|i| i as f32 - 2.0).collect::<Vec<_>>())
}

fn boolean(value: bool) -> Tensor {
    Tensor::new(DataType::Bool, &[], [u8::from(value)]).unwrap()
}

#[test]
fn a_plan_for_each_size_is_made_once() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "length"])
        .node("Relu", &["x"], &["y"])
        .node("Shape", &["x"], &["sizes"])
        .output("y", FLOAT, &["N", "length"])
        .output("sizes", INT64, &["2"]);
    let mut session = session(graph);
    assert!(session.plan().is_none(), "sizes are not known yet");
    for shape in [[2, 3], [4, 1], [2, 3], [7, 2], [4, 1]] {
        let x = counting(&shape);
        let outputs = run(&mut session, &[("x", x.clone())]);
        let expected: Vec<f32> = x.to_f32().unwrap().into_iter().map(|value| value.max(0.0)).collect();
        assert_eq!(outputs["y"], Tensor::from_f32(&shape, &expected));
        assert_eq!(outputs["sizes"], Tensor::from_i64(&[2], &[shape[0] as i64, shape[1] as i64]));
    }
    let cache = session.plan_cache();
    assert_eq!((cache.plans, cache.made, cache.found), (3, 3, 2));
    let wrong = session.run([("x".to_string(), counting(&[3]))].into()).unwrap_err().to_string();
    assert!(wrong.contains("x: float32[N, length]") && wrong.contains("float32[3]"), "{wrong}");
}

#[test]
fn sizes_are_planned_before_the_first_run_where_they_are_given() {
    let graph = GraphBuilder::new().input("x", FLOAT, &["N", "length"]).node("Relu", &["x"], &["y"]).output(
        "y",
        FLOAT,
        &["N", "length"],
    );
    let model = Model::from_bytes(&graph.build()).unwrap();
    let session = Session::builder(&model).engine(host(1)).batch_size(3).size("length", 5).build().unwrap();
    assert_eq!(session.plan().unwrap().statistics.launches, 1);
    assert_eq!(session.inputs()[0].to_string(), "x: float32[3, 5]");
    let unknown = Session::builder(&model).engine(host(1)).size("width", 5).build().err().unwrap().to_string();
    assert!(unknown.contains("no size named 'width'") && unknown.contains("N, length"), "{unknown}");
}

#[test]
fn shapes_follow_the_elements_of_inputs() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "4"])
        .input("rows", INT64, &["1"])
        .integers("rest", &[1], &[-1])
        .node_with("Concat", &["rows", "rest"], &["shape"], vec![("axis", Value::Int(0))])
        .node("Reshape", &["x", "shape"], &["reshaped"])
        .node("Neg", &["reshaped"], &["y"])
        .output("y", FLOAT, &["rows", "columns"]);
    let mut session = session(graph);
    for (rows, shape) in [(2, [2, 6]), (3, [3, 4]), (2, [2, 6])] {
        let outputs = run(&mut session, &[("x", counting(&[3, 4])), ("rows", Tensor::from_i64(&[1], &[rows]))]);
        assert_eq!(outputs["y"].shape(), shape);
    }
    assert_eq!(session.plan_cache().made, 2);
    let error = session
        .run([("x".to_string(), counting(&[3, 4])), ("rows".to_string(), Tensor::from_i64(&[1], &[5]))].into())
        .unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error}");
}

/// The number of positive elements determines how many numbers there are.
fn computed_size() -> GraphBuilder {
    GraphBuilder::new()
        .input("x", FLOAT, &["N"])
        .integers("zero", &[], &[0])
        .integers("one", &[], &[1])
        .floats("nothing", &[], &[0.0])
        .node("Greater", &["x", "nothing"], &["positive"])
        .node_with("Cast", &["positive"], &["ones"], vec![("to", Value::Int(INT64))])
        .node_with("ReduceSum", &["ones"], &["count"], vec![("keepdims", Value::Int(0))])
        .node("Range", &["zero", "count", "one"], &["numbers"])
        .node_with("Cast", &["numbers"], &["floats"], vec![("to", Value::Int(FLOAT))])
        .node_with("ReduceMax", &["x"], &["largest"], vec![("keepdims", Value::Int(0))])
        .node("Mul", &["floats", "largest"], &["y"])
        .output("y", FLOAT, &["count"])
        .output("count", INT64, &[])
}

#[test]
fn a_size_that_is_computed_divides_the_model_into_stages() {
    let mut session = session(computed_size());
    for values in [[1.0, -1.0, 5.0, 2.0], [-1.0, 4.0, -2.0, -3.0], [2.0, 3.0, 1.0, -1.0], [-1.0, -2.0, -3.0, -4.0]] {
        let outputs = run(&mut session, &[("x", Tensor::from_f32(&[4], &values))]);
        let count = values.iter().filter(|value| **value > 0.0).count();
        let largest = values.iter().copied().fold(f32::MIN, f32::max);
        let expected: Vec<f32> = (0..count).map(|i| i as f32 * largest).collect();
        assert_eq!(outputs["y"], Tensor::from_f32(&[count as u64], &expected));
        assert_eq!(outputs["count"], Tensor::from_i64(&[], &[count as i64]));
    }
    // One plan for the count, and one for each of the three counts other than 0, which needs no computation.
    assert_eq!(session.plan_cache().made, 3);
}

/// x * w if the mean of x exceeds the limit, else -x; plus the mean. The branches use values of the surrounding graph.
fn branches() -> GraphBuilder {
    let positive = GraphBuilder::new().node("Mul", &["x", "w"], &["then"]).output("then", FLOAT, &["N"]);
    let negative = GraphBuilder::new().node("Neg", &["x"], &["else"]).output("else", FLOAT, &["N"]);
    GraphBuilder::new()
        .input("x", FLOAT, &["N"])
        .input("limit", FLOAT, &[])
        .floats("w", &[1], &[3.0])
        .node_with("ReduceMean", &["x"], &["mean"], vec![("keepdims", Value::Int(0))])
        .node("Greater", &["mean", "limit"], &["condition"])
        .node_with(
            "If",
            &["condition"],
            &["chosen"],
            vec![("then_branch", Value::Graph(positive)), ("else_branch", Value::Graph(negative))],
        )
        .node("Add", &["chosen", "mean"], &["y"])
        .output("y", FLOAT, &["N"])
}

#[test]
fn a_computed_condition_chooses_a_branch() {
    let mut session = session(branches());
    for (limit, expected) in [(0.5, [5.0, 8.0, 11.0]), (4.0, [1.0, 0.0, -1.0]), (1.0, [5.0, 8.0, 11.0])] {
        let x = Tensor::from_f32(&[3], &[1.0, 2.0, 3.0]);
        let outputs = run(&mut session, &[("x", x), ("limit", Tensor::from_f32(&[], &[limit]))]);
        assert_eq!(outputs["y"], Tensor::from_f32(&[3], &expected));
    }
    assert_eq!(session.plan_cache().made, 3, "the condition, and two branches");
}

/// A loop that adds the iteration's number to `a` and collects `a`, while `a` is below a limit if there is one.
fn repeats(limited: bool) -> GraphBuilder {
    let mut body = GraphBuilder::new()
        .input("i", INT64, &[])
        .input("go_on", BOOL, &[])
        .input("a_in", FLOAT, &["N"])
        .node_with("Cast", &["i"], &["step"], vec![("to", Value::Int(FLOAT))])
        .node("Add", &["a_in", "step"], &["sum"])
        .node("Add", &["sum", "w"], &["a_out"])
        .node("Identity", &["a_out"], &["collected"]);
    body = match limited {
        true => body.node_with("ReduceMax", &["a_out"], &["most"], vec![("keepdims", Value::Int(0))]).node(
            "Less",
            &["most", "limit"],
            &["stop_or_not"],
        ),
        false => body.node("Identity", &["go_on"], &["stop_or_not"]),
    };
    let body = body.output("stop_or_not", BOOL, &[]).output("a_out", FLOAT, &["N"]).output("collected", FLOAT, &["N"]);
    GraphBuilder::new()
        .input("a", FLOAT, &["N"])
        .input("count", INT64, &[])
        .input("first", BOOL, &[])
        .floats("w", &[1], &[0.5])
        .floats("limit", &[], &[100.0])
        .node_with("Loop", &["count", "first", "a"], &["last", "all"], vec![("body", Value::Graph(body))])
        .node("Neg", &["last"], &["negative"])
        .output("negative", FLOAT, &["N"])
        .output("all", FLOAT, &["count", "N"])
}

/// The expected results of [`repeats`].
fn repeated(limited: bool, count: i64, first: bool) -> (Tensor, Tensor) {
    let (mut a, mut all, mut i) = ([1.0f32, 2.0], Vec::new(), 0);
    while first && i < count && !(limited && i > 0 && a[1] >= 100.0) {
        a = a.map(|value| value + i as f32 + 0.5);
        all.extend(a);
        i += 1;
    }
    (Tensor::from_f32(&[2], &a.map(|value| -value)), Tensor::from_f32(&[i as u64, 2], &all))
}

#[test]
fn loops_run_as_often_as_they_say() {
    for limited in [false, true] {
        let mut session = session(repeats(limited));
        for (count, first) in [(3, true), (1, true), (0, true), (40, true), (2, false), (3, true)] {
            let a = Tensor::from_f32(&[2], &[1.0, 2.0]);
            let inputs = [("a", a), ("count", Tensor::from_i64(&[], &[count])), ("first", boolean(first))];
            let outputs = run(&mut session, &inputs);
            let (negative, all) = repeated(limited, count, first);
            assert_eq!(outputs["negative"], negative, "{limited} {count} {first}");
            if all.count() > 0 {
                assert_eq!(outputs["all"], all, "{limited} {count} {first}");
            } else {
                assert_eq!(outputs["all"].count(), 0);
            }
        }
        if limited {
            assert!(session.plan_cache().made <= 3, "the body is planned once: {:?}", session.plan_cache());
        }
    }
}

/// Two equal loops that collect rows of random numbers while their sum is below a limit. Some of a row are drawn in a branch, some in an
/// inner loop.
fn drawing() -> GraphBuilder {
    let draw = |graph: GraphBuilder, name: &str| {
        graph.node_with("RandomUniform", &[], &[name], vec![("shape", Value::Ints(vec![2]))])
    };
    let branch = || draw(GraphBuilder::new(), "chosen").output("chosen", FLOAT, &["2"]);
    let inner = || {
        let graph = GraphBuilder::new().input("j", INT64, &[]).input("c", BOOL, &[]).node("Identity", &["c"], &["d"]);
        draw(graph, "each").output("d", BOOL, &[]).output("each", FLOAT, &["2"])
    };
    let body = || {
        let graph = GraphBuilder::new().input("i", INT64, &[]).input("go_on", BOOL, &[]).input("sum_in", FLOAT, &[]);
        let branches = vec![("then_branch", Value::Graph(branch())), ("else_branch", Value::Graph(branch()))];
        draw(graph, "drawn")
            .node_with("If", &["go_on"], &["branched"], branches)
            .node_with("Loop", &["two", ""], &["rows"], vec![("body", Value::Graph(inner()))])
            .node("Reshape", &["rows", "four"], &["looped"])
            .node_with("Concat", &["drawn", "branched", "looped"], &["row"], vec![("axis", Value::Int(0))])
            .node_with("ReduceSum", &["row"], &["sum"], vec![("keepdims", Value::Int(0))])
            .node("Add", &["sum_in", "sum"], &["sum_out"])
            .node("Less", &["sum_out", "limit"], &["goes_on"])
            .output("goes_on", BOOL, &[])
            .output("sum_out", FLOAT, &[])
            .output("row", FLOAT, &["8"])
    };
    GraphBuilder::new()
        .input("first", BOOL, &[])
        .floats("zero", &[], &[0.0])
        .floats("limit", &[], &[20.0])
        .integers("two", &[], &[2])
        .integers("four", &[1], &[4])
        .node_with("Loop", &["", "first", "zero"], &["a", "rows_a"], vec![("body", Value::Graph(body()))])
        .node_with("Loop", &["", "first", "zero"], &["b", "rows_b"], vec![("body", Value::Graph(body()))])
        .output("rows_a", FLOAT, &["count", "8"])
        .output("rows_b", FLOAT, &["count", "8"])
}

#[test]
fn iterations_draw_other_numbers() {
    let mut session = session(drawing());
    let outputs = run(&mut session, &[("first", boolean(true))]);
    let numbers: Vec<u32> =
        outputs.values().flat_map(|rows| rows.to_f32().unwrap()).map(|number| number.to_bits()).collect();
    // Each row adds at most 8.
    assert!(numbers.len() >= 2 * 3 * 8, "{}", numbers.len());
    assert_eq!(numbers.iter().copied().collect::<BTreeSet<u32>>().len(), numbers.len(), "{outputs:?}");
    assert_eq!(run(&mut session, &[("first", boolean(true))]), outputs);
}

#[test]
fn a_scan_goes_along_its_axis() {
    let body = GraphBuilder::new()
        .input("sum_in", FLOAT, &["2"])
        .input("row", FLOAT, &["2"])
        .node("Add", &["sum_in", "row"], &["sum_out"])
        .node("Identity", &["sum_out"], &["each"])
        .output("sum_out", FLOAT, &["2"])
        .output("each", FLOAT, &["2"]);
    let graph = GraphBuilder::new()
        .input("first", FLOAT, &["2"])
        .input("rows", FLOAT, &["2", "T"])
        .node_with(
            "Scan",
            &["first", "rows"],
            &["last", "all"],
            vec![
                ("body", Value::Graph(body)),
                ("num_scan_inputs", Value::Int(1)),
                ("scan_input_axes", Value::Ints(vec![1])),
                ("scan_input_directions", Value::Ints(vec![1])),
                ("scan_output_axes", Value::Ints(vec![1])),
            ],
        )
        .output("last", FLOAT, &["2"])
        .output("all", FLOAT, &["2", "T"]);
    let mut session = session(graph);
    let rows = Tensor::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
    let outputs = run(&mut session, &[("first", Tensor::from_f32(&[2], &[0.0, 0.0])), ("rows", rows)]);
    assert_eq!(outputs["last"], Tensor::from_f32(&[2], &[6.0, 60.0]));
    assert_eq!(outputs["all"], Tensor::from_f32(&[2, 3], &[3.0, 5.0, 6.0, 30.0, 50.0, 60.0]));
}

#[test]
fn functions_of_the_model_are_their_bodies() {
    let inner =
        GraphBuilder::new().node_with("LeakyRelu", &["a"], &["b"], vec![("alpha", Value::Reference("slope", 1))]);
    let outer = GraphBuilder::new().call("leak", &["x"], &["t"], vec![("slope", Value::Reference("slope", 1))]).node(
        "Add",
        &["t", "x"],
        &["y"],
    );
    let graph = GraphBuilder::new()
        .function("leak", &["a"], &["b"], &["slope"], inner)
        .function("twice", &["x"], &["y"], &["slope"], outer)
        .input("x", FLOAT, &["2"])
        .call("twice", &["x"], &["t"], vec![("slope", Value::Float(0.5))])
        .call("twice", &["t"], &["y"], vec![("slope", Value::Float(0.25))])
        .output("y", FLOAT, &["2"]);
    let outputs = run(&mut session(graph), &[("x", Tensor::from_f32(&[2], &[1.0, -2.0]))]);
    assert_eq!(outputs["y"], Tensor::from_f32(&[2], &[4.0, -3.75]));
    let endless = GraphBuilder::new().call("leak", &["a"], &["b"], Vec::new());
    let graph = GraphBuilder::new()
        .function("leak", &["a"], &["b"], &[], endless)
        .input("x", FLOAT, &["2"])
        .call("leak", &["x"], &["y"], Vec::new())
        .output("y", FLOAT, &["2"]);
    let error = Model::from_bytes(&graph.build()).unwrap_err().to_string();
    assert!(error.contains("'leak' calls itself"), "{error}");
}

/// The values of the function and of its loop have the names of the caller's values.
#[test]
fn names_in_functions_are_their_own() {
    let body = GraphBuilder::new()
        .input("i", INT64, &[])
        .input("go_on", BOOL, &[])
        .input("t", FLOAT, &["2"])
        .node("Add", &["t", "a"], &["x"])
        .node("Identity", &["go_on"], &["still"])
        .output("still", BOOL, &[])
        .output("x", FLOAT, &["2"]);
    let function = GraphBuilder::new().node("Neg", &["a"], &["acc"]).node_with(
        "Loop",
        &["count", "", "acc"],
        &["b"],
        vec![("body", Value::Graph(body))],
    );
    let graph = GraphBuilder::new()
        .function("summed", &["a", "count"], &["b"], &[], function)
        .input("x", FLOAT, &["2"])
        .integers("i", &[], &[3])
        .node("Relu", &["x"], &["t"])
        .call("summed", &["t", "i"], &["acc"], Vec::new())
        .call("summed", &["acc", "i"], &["y"], Vec::new())
        .output("y", FLOAT, &["2"]);
    let outputs = run(&mut session(graph), &[("x", Tensor::from_f32(&[2], &[1.0, -2.0]))]);
    assert_eq!(outputs["y"], Tensor::from_f32(&[2], &[4.0, 0.0]));
}

#[test]
fn sequences_are_their_elements() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "2"])
        .integers("last", &[], &[-1])
        .node_with("SplitToSequence", &["x"], &["rows"], vec![("keepdims", Value::Int(0))])
        .node("SequenceAt", &["rows", "last"], &["end"])
        .node("SequenceErase", &["rows"], &["others"])
        .node("SequenceInsert", &["others", "end"], &["again"])
        .node_with("ConcatFromSequence", &["again"], &["y"], vec![("axis", Value::Int(1)), ("new_axis", Value::Int(1))])
        .node("SequenceLength", &["again"], &["length"])
        .output("y", FLOAT, &["2", "N"])
        .output("length", INT64, &[])
        .output("end", FLOAT, &["2"]);
    let x = Tensor::from_f32(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let outputs = run(&mut session(graph), &[("x", x)]);
    assert_eq!(outputs["y"], Tensor::from_f32(&[2, 3], &[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]));
    assert_eq!(outputs["length"], Tensor::from_i64(&[], &[3]));
    assert_eq!(outputs["end"], Tensor::from_f32(&[2], &[5.0, 6.0]));
}

#[test]
fn outputs_may_be_inputs_constants_scalars_or_empty() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N"])
        .floats("w", &[2], &[1.0, 2.0])
        .node("Neg", &["x"], &["y"])
        .node_with("ReduceSum", &["w"], &["sum"], vec![("keepdims", Value::Int(0))])
        .node("Add", &["sum", "sum"], &["scalar"])
        .output("x", FLOAT, &["N"])
        .output("w", FLOAT, &["2"])
        .output("y", FLOAT, &["N"])
        .output("scalar", FLOAT, &[]);
    let mut session = session(graph);
    for length in [3, 0, 1] {
        let x = counting(&[length]);
        let outputs = run(&mut session, &[("x", x.clone())]);
        assert_eq!(outputs["x"], x);
        assert_eq!(outputs["w"], Tensor::from_f32(&[2], &[1.0, 2.0]));
        assert_eq!(outputs["y"].shape(), [length]);
        assert_eq!(outputs["scalar"], Tensor::from_f32(&[], &[6.0]));
    }
}

#[test]
fn stages_keep_their_budget_and_bits() {
    let x = counting(&[64, 64]);
    let graph = || {
        let then = GraphBuilder::new().node("MatMul", &["h", "h"], &["then"]).output("then", FLOAT, &["N", "N"]);
        let other = GraphBuilder::new().node("Neg", &["h"], &["else"]).output("else", FLOAT, &["N", "N"]);
        GraphBuilder::new()
            .input("x", FLOAT, &["N", "N"])
            .floats("limit", &[], &[0.0])
            .node("Softmax", &["x"], &["soft"])
            .node("MatMul", &["soft", "x"], &["h"])
            .node_with("ReduceSum", &["h"], &["total"], vec![("keepdims", Value::Int(0))])
            .node("Greater", &["total", "limit"], &["condition"])
            .node_with(
                "If",
                &["condition"],
                &["y"],
                vec![("then_branch", Value::Graph(then)), ("else_branch", Value::Graph(other))],
            )
            .output("y", FLOAT, &["N", "N"])
    };
    let expected = run(&mut session(graph()), &[("x", x.clone())]);
    let model = Model::from_bytes(&graph().build()).unwrap();
    let mut small = Session::builder(&model).engine(host(2)).simulate_device("80KiB".parse().unwrap()).build().unwrap();
    let outputs = run(&mut small, &[("x", x)]);
    assert_eq!(outputs["y"], expected["y"]);
    assert!(small.usage().heap_peak_bytes <= 80 << 10, "{}", small.usage().heap_peak_bytes);
}

/// A classifier of sequences of any length.
fn sequence_classifier() -> Model {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "length", "4"])
        .floats("w", &[4, 3], &[0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, 0.9, -1.0, 1.1, 1.2])
        .integers("axis", &[1], &[1])
        .node("MatMul", &["x", "w"], &["each"])
        .node_with("ReduceMean", &["each", "axis"], &["logits"], vec![("keepdims", Value::Int(0))])
        .output("logits", FLOAT, &["N", "3"]);
    Model::from_bytes(&graph.build()).unwrap()
}

#[test]
fn training_follows_the_sizes_of_batches() {
    let model = sequence_classifier();
    let trainer = |length| {
        let builder = Trainer::builder(&model).engine(host(2)).optimizer(Optimizer::sgd(0.1));
        builder.batch_size(2).size("length", length).build().unwrap()
    };
    let batch = |shape: [u64; 3]| BTreeMap::from([("x".to_string(), counting(&shape))]);
    let labels = |count: u64| Tensor::from_i64(&[count], &vec![1; count as usize]);
    let mut one = trainer(5);
    let losses: Vec<f32> =
        [[2, 5, 4], [3, 7, 4], [2, 5, 4]].into_iter().map(|s| one.step(batch(s), labels(s[0])).unwrap().loss).collect();
    // The same steps with trainers built for the individual sizes, each starting from the parameters of the previous one.
    let mut parameters = None;
    for (shape, loss) in [[2, 5, 4], [3, 7, 4], [2, 5, 4]].into_iter().zip(losses) {
        let mut other = trainer(shape[1]);
        if let Some(checkpoint) = &parameters {
            other.restore(checkpoint).unwrap();
        }
        assert_eq!(other.step(batch(shape), labels(shape[0])).unwrap().loss, loss);
        parameters = Some(other.checkpoint(&forebay::JsonValue::Null).unwrap());
    }
    let evaluation = one.evaluate(batch([4, 2, 4]), labels(4)).unwrap();
    assert_eq!(evaluation.logits.shape(), [4, 3]);
    let wrong = one.step(batch([2, 5, 3]), labels(2)).unwrap_err().to_string();
    assert!(wrong.contains("x: float32[2, 5, 4]"), "{wrong}");
    let open = Trainer::builder(&model).engine(host(1)).batch_size(2).build().err().unwrap().to_string();
    assert!(open.contains("'length'") && open.contains("--size length=N"), "{open}");
}
