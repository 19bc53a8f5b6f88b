//! Training of models that select elements by their values: the number of selected elements differs from step to step.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer};
use forebay::{DataType, Error, Model, Session, Tensor, Trainer};
use forebay_golden::host;
use forebay_testing::onnx::builder::{BOOL, FLOAT, GraphBuilder, Value};

/// Elements of each weight.
const WEIGHTS: [f32; 4] = [0.3, -0.2, 0.5, 0.4];
/// The masks of the steps: some, all and no elements.
const MASKS: [[u8; 3]; 3] = [[1, 0, 1], [1, 1, 1], [0, 0, 0]];

fn batch(mask: [u8; 3]) -> BTreeMap<String, Tensor> {
    let x = Tensor::from_f32(&[3, 2], &[0.5, -1.0, 0.25, 0.75, -0.5, 0.125]);
    let mask = Tensor::new(DataType::Bool, &[3], mask).unwrap();
    BTreeMap::from([("x".to_string(), x), ("mask".to_string(), mask)])
}

fn targets() -> Tensor {
    Tensor::from_f32(&[3, 2], &[1.0, 0.5, -0.25, 0.0, 0.75, -1.0])
}

/// y = x v and z = x w, of which the model makes its output.
fn beginning() -> GraphBuilder {
    GraphBuilder::new()
        .input("x", FLOAT, &["3", "2"])
        .input("mask", BOOL, &["3"])
        .floats("v", &[2, 2], &WEIGHTS)
        .floats("w", &[2, 2], &[0.1, 0.7, -0.4, 0.2])
        .integers("zero", &[1], &[0])
        .integers("one", &[1], &[1])
        .integers("flat", &[1], &[-1])
        .node("MatMul", &["x", "v"], &["y"])
        .node("MatMul", &["x", "w"], &["z"])
        .node("NonZero", &["mask"], &["columns"])
        .node("Transpose", &["columns"], &["places"])
}

/// The losses of a step with each mask, and the weights after them.
fn trained(graph: GraphBuilder, masks: &[[u8; 3]]) -> (Vec<f32>, Vec<Vec<f32>>) {
    let model = Model::from_bytes(&graph.output("out", FLOAT, &["3", "2"]).build()).unwrap();
    let builder = Trainer::builder(&model).engine(host(2)).loss(Loss::MeanSquaredError);
    let mut trainer = builder.optimizer(Optimizer::sgd(0.5)).build().unwrap();
    let losses = masks.iter().map(|&mask| trainer.step(batch(mask), targets()).unwrap().loss).collect();
    let weight = |name| trainer.parameter(name).unwrap().unwrap().to_f32().unwrap();
    (losses, vec![weight("v"), weight("w")])
}

/// The same in terms of all elements: `Where` chooses between `z` and `y`.
fn chosen() -> GraphBuilder {
    beginning().node("Unsqueeze", &["mask", "one"], &["column"]).node("Where", &["column", "z", "y"], &["out"])
}

#[test]
fn selected_rows_that_are_written_back_train_as_a_choice_among_all() {
    let rows = beginning().node("GatherND", &["z", "places"], &["rows"]);
    let written = rows.clone().node("ScatterND", &["y", "places", "rows"], &["out"]);
    // As exporters write `y[mask] = z[mask]`: with a mask for each element, and rows that are cut to their number.
    let cut = rows
        .node("Unsqueeze", &["mask", "one"], &["column"])
        .node("Shape", &["y"], &["shape"])
        .node("Expand", &["column", "shape"], &["each"])
        .node("NonZero", &["each"], &["each_column"])
        .node("Transpose", &["each_column"], &["each_place"])
        .node("Reshape", &["rows", "flat"], &["elements"])
        .node("Shape", &["each_place"], &["each_shape"])
        .node("Gather", &["each_shape", "zero"], &["number"])
        .node("Slice", &["elements", "zero", "number", "zero"], &["cut"])
        .node("ScatterND", &["y", "each_place", "cut"], &["out"]);
    // As exporters write `index_put` and `index_add` along an axis.
    let index = beginning()
        .node("Squeeze", &["columns", "zero"], &["list"])
        .node("Gather", &["z", "list"], &["rows"])
        .node("Shape", &["rows"], &["size"])
        .node("Unsqueeze", &["list", "one"], &["entries"])
        .node("Expand", &["entries", "size"], &["indices"])
        .node("ScatterElements", &["y", "indices", "rows"], &["out"]);
    let expected = trained(chosen(), &MASKS);
    for (name, graph) in [("ScatterND", written), ("Slice", cut), ("ScatterElements", index)] {
        assert_eq!(trained(graph, &MASKS), expected, "{name}");
    }
}

#[test]
fn rows_taken_from_a_shorter_list_train_unless_it_is_too_short() {
    // As exporters write `masked_scatter`: the selected elements take those of another tensor in their order.
    let graph = beginning()
        .integers("four", &[1], &[4])
        .node("Unsqueeze", &["mask", "one"], &["column"])
        .node("Shape", &["y"], &["shape"])
        .node("Expand", &["column", "shape"], &["each"])
        .node("NonZero", &["each"], &["each_column"])
        .node("Transpose", &["each_column"], &["each_place"])
        .node("Reshape", &["z", "flat"], &["all"])
        .node("Slice", &["all", "zero", "four", "zero"], &["source"])
        .node("Shape", &["each_place"], &["each_shape"])
        .node("Gather", &["each_shape", "zero"], &["number"])
        .node("Slice", &["source", "zero", "number", "zero"], &["cut"])
        .node("ScatterND", &["y", "each_place", "cut"], &["out"]);
    // The first rows of z, in rows 0 and 2.
    let by_hand = beginning()
        .integers("order", &[3], &[0, 0, 1])
        .node("Gather", &["z", "order"], &["moved"])
        .node("Unsqueeze", &["mask", "one"], &["column"])
        .node("Where", &["column", "moved", "y"], &["out"]);
    let masks = [MASKS[0], MASKS[2]];
    assert_eq!(trained(graph.clone(), &masks), trained(by_hand, &masks));
    let model = Model::from_bytes(&graph.output("out", FLOAT, &["3", "2"]).build()).unwrap();
    let builder = Trainer::builder(&model).engine(host(2)).loss(Loss::MeanSquaredError);
    let mut trainer = builder.optimizer(Optimizer::sgd(0.5)).build().unwrap();
    let error = trainer.step(batch(MASKS[1]), targets()).unwrap_err();
    assert!(matches!(error, Error::NanLoss { .. }), "{error}");
}

#[test]
fn sums_and_means_of_selected_rows_train_as_those_of_masked_rows() {
    let selected = |op_type| {
        beginning()
            .node("GatherND", &["z", "places"], &["rows"])
            .node_with(op_type, &["rows", "zero"], &["value"], vec![("keepdims", Value::Int(0))])
            .node("Mul", &["y", "value"], &["out"])
    };
    let masked = beginning()
        .node("Unsqueeze", &["mask", "one"], &["column"])
        .node_with("Cast", &["column"], &["factor"], vec![("to", Value::Int(1))])
        .node("Mul", &["z", "factor"], &["rows"])
        .node_with("ReduceSum", &["rows", "zero"], &["sum"], vec![("keepdims", Value::Int(0))]);
    let mean = masked
        .clone()
        .node_with("ReduceSum", &["factor", "zero"], &["number"], vec![("keepdims", Value::Int(0))])
        .node("Div", &["sum", "number"], &["value"])
        .node("Mul", &["y", "value"], &["out"]);
    let sum = masked.node("Mul", &["y", "sum"], &["out"]);
    for (op_type, expected) in [("ReduceSum", sum), ("ReduceMean", mean)] {
        let (found, expected) = (trained(selected(op_type), &MASKS[..2]), trained(expected, &MASKS[..2]));
        let all = |(losses, weights): (Vec<f32>, Vec<Vec<f32>>)| [losses, weights.concat()].concat();
        let (found, expected) = (all(found), all(expected));
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{op_type}: {found:?} {expected:?}");
    }
}

#[test]
fn losses_of_selected_rows_train_as_those_that_ignore_the_others() {
    let begin = || {
        beginning()
            .integers("classes", &[3], &[1, 0, 1])
            .floats("class_weights", &[2], &[0.5, 2.0])
            .integers("ignored", &[], &[-1])
            .node("LogSoftmax", &["z"], &["logs"])
            .node("Where", &["mask", "classes", "ignored"], &["kept"])
            .node("GatherND", &["z", "places"], &["rows"])
            .node("GatherND", &["logs", "places"], &["rows_of_logs"])
            .node("GatherND", &["classes", "places"], &["labels"])
    };
    let masked = |op_type, reduction: &str, weights: &[&str]| {
        let attributes = |ignored: Option<i64>| {
            let own = [("reduction", Value::Text(reduction.to_string()))];
            own.into_iter().chain(ignored.map(|label| ("ignore_index", Value::Int(label)))).collect::<Vec<_>>()
        };
        let finish = |graph: GraphBuilder| match reduction {
            "none" => graph
                .node_with("ReduceSum", &["loss", "zero"], &["value"], vec![("keepdims", Value::Int(0))])
                .node("Mul", &["y", "value"], &["out"]),
            _ => graph.node("Mul", &["y", "loss"], &["out"]),
        };
        let is_logs = op_type == "NegativeLogLikelihoodLoss";
        let (rows, all) = if is_logs { ("rows_of_logs", "logs") } else { ("rows", "z") };
        let found = begin().node_with(op_type, &[&[rows, "labels"], weights].concat(), &["loss"], attributes(None));
        let expected = begin().node_with(op_type, &[&[all, "kept"], weights].concat(), &["loss"], attributes(Some(-1)));
        (finish(found), finish(expected))
    };
    for op_type in ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"] {
        for reduction in ["mean", "sum", "none"] {
            for weights in [&[][..], &["class_weights"][..]] {
                let (found, expected) = masked(op_type, reduction, weights);
                let all = |(losses, weights): (Vec<f32>, Vec<Vec<f32>>)| [losses, weights.concat()].concat();
                let (found, expected) = (all(trained(found, &MASKS[..2])), all(trained(expected, &MASKS[..2])));
                let is_close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6);
                assert!(is_close, "{op_type}, {reduction}: {found:?} {expected:?}");
            }
        }
    }
}

#[test]
fn norms_and_products_of_selected_rows_leave_out_the_others() {
    for (op_type, fill) in [
        ("ReduceProd", 1.0),
        ("ReduceL1", 0.0),
        ("ReduceL2", 0.0),
        ("ReduceSumSquare", 0.0),
        ("ReduceLogSum", 0.0),
        ("ReduceLogSumExp", f32::NEG_INFINITY),
    ] {
        let reduced = |graph: GraphBuilder, rows: &str| {
            graph.node_with(op_type, &[rows, "zero"], &["value"], vec![("keepdims", Value::Int(0))]).node(
                "Mul",
                &["y", "value"],
                &["out"],
            )
        };
        let begin = || {
            beginning()
                .floats("fill", &[], &[fill])
                .node("Mul", &["z", "z"], &["squares"])
                .node("GatherND", &["squares", "places"], &["rows"])
                .node("Unsqueeze", &["mask", "one"], &["column"])
                .node("Where", &["column", "squares", "fill"], &["kept"])
        };
        let (found, expected) = (reduced(begin(), "rows"), reduced(begin(), "kept"));
        assert_eq!(trained(found, &MASKS[..2]), trained(expected, &MASKS[..2]), "{op_type}");
    }
}

#[test]
fn evaluation_agrees_with_a_session() {
    let graph = || {
        let rows = beginning().node("GatherND", &["z", "places"], &["rows"]).node("Tanh", &["rows"], &["bent"]);
        rows.node("ScatterND", &["y", "places", "bent"], &["out"]).output("out", FLOAT, &["3", "2"])
    };
    let model = Model::from_bytes(&graph().build()).unwrap();
    let mut session = Session::builder(&model).engine(host(2)).build().unwrap();
    let mut trainer = Trainer::builder(&model).engine(host(2)).loss(Loss::MeanSquaredError).build().unwrap();
    for mask in MASKS {
        let expected = session.run(batch(mask)).unwrap();
        assert_eq!(trainer.evaluate(batch(mask), targets()).unwrap().logits, expected["out"], "{mask:?}");
    }
}

#[test]
fn what_surplus_rows_would_change_is_refused_with_the_selection() {
    let rows = || beginning().node("GatherND", &["z", "places"], &["rows"]);
    let sorted = rows().node("TopK", &["rows", "one"], &["top", "indices"]).node("Mul", &["top", "y"], &["out"]);
    let counted = rows()
        .node("Shape", &["rows"], &["shape"])
        .node_with("Cast", &["shape"], &["number"], vec![("to", Value::Int(1))])
        .node("Mul", &["y", "number"], &["out"]);
    let softmax = rows().node_with("Softmax", &["rows"], &["weights"], vec![("axis", Value::Int(0))]).node(
        "ScatterND",
        &["y", "places", "weights"],
        &["out"],
    );
    let output = rows().node("Identity", &["rows"], &["out"]);
    for (graph, expected) in [(sorted, "TopK"), (counted, "Mul"), (softmax, "Softmax"), (output, "'out'")] {
        let model = Model::from_bytes(&graph.output("out", FLOAT, &["3", "2"]).build()).unwrap();
        let refused = Trainer::builder(&model).engine(host(2)).loss(Loss::MeanSquaredError).build();
        let message = refused.map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("a NonZero selects"), "{expected}: {message}");
    }
}

#[test]
fn selections_from_more_elements_than_constants_can_have_are_refused() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["1099511627776"])
        .floats("w", &[1], &[1.0])
        .node("Mul", &["x", "w"], &["z"])
        .node("NonZero", &["z"], &["found"])
        .node("Transpose", &["found"], &["places"])
        .node("GatherND", &["z", "places"], &["rows"])
        .node("ReduceMean", &["rows"], &["out"]);
    let model = Model::from_bytes(&graph.output("out", FLOAT, &[]).build()).unwrap();
    let refused = Trainer::builder(&model).engine(host(1)).loss(Loss::MeanSquaredError).build();
    let message = refused.map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("NonZero"), "{message}");
}
