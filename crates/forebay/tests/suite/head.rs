//! Replacing the head for transfer learning: shapes, initial values, and the saved model.

use std::collections::BTreeMap;

use forebay::training::Optimizer;
use forebay::{Model, Session, Tensor, Trainer};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value};

fn digits() -> Model {
    Model::from_file("../../testdata/golden/digits-cnn/model.onnx").unwrap()
}

fn initializers(model: &Model) -> BTreeMap<String, Tensor> {
    Trainer::builder(model).build().unwrap().parameters().unwrap()
}

#[test]
fn a_new_head_trains_and_is_saved() {
    let model = digits().with_head("/fc/Gemm", 3, 7).unwrap();
    let (new, old) = (initializers(&model), initializers(&digits()));
    assert_eq!((new["fc.weight"].shape(), new["fc.bias"].shape()), (&[3, 64][..], &[3][..]));
    assert_eq!(new["conv3.weight"], old["conv3.weight"], "everything else stays");
    // nn.Linear(64, 3): uniform within 1 / sqrt(64).
    let weights = new["fc.weight"].to_f32().unwrap();
    let largest = weights.iter().fold(0.0f32, |most, weight| most.max(weight.abs()));
    let mean = weights.iter().sum::<f32>() / weights.len() as f32;
    assert!(largest <= 0.125 && largest > 0.115 && mean.abs() < 0.02, "{largest}, {mean}");
    assert!(new["fc.bias"].to_f32().unwrap().iter().all(|bias| bias.abs() <= 0.125 && *bias != 0.0));
    assert_eq!(initializers(&digits().with_head("fc.weight", 3, 7).unwrap()), new, "the same by the weight's name");
    assert_ne!(initializers(&digits().with_head("logits", 3, 8).unwrap())["fc.weight"], new["fc.weight"]);

    let mut trainer = Trainer::builder(&model).optimizer(Optimizer::sgd(0.1)).build().unwrap();
    let x = Tensor::from_f32(&[50, 1, 8, 8], &(0..3200).map(|i| (i * 7 % 17) as f32 / 16.0).collect::<Vec<_>>());
    let labels = Tensor::from_i64(&[50], &(0..50).map(|i| i % 3).collect::<Vec<_>>());
    let batch = BTreeMap::from([("x".to_string(), x)]);
    trainer.step(batch.clone(), labels.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned.onnx");
    trainer.save(&path).unwrap();
    let expected = trainer.evaluate(batch.clone(), labels).unwrap().logits;
    assert_eq!(expected.shape(), [50, 3]);
    let saved = Model::from_file(&path).unwrap();
    assert_eq!(saved.outputs()[0].to_string(), model.outputs()[0].to_string());
    assert!(saved.outputs()[0].to_string().contains('3'), "{}", saved.outputs()[0]);
    let mut session = Session::builder(&saved).build().unwrap();
    let outputs = session.run(batch).unwrap();
    assert_eq!(outputs["logits"].shape(), [50, 3]);
}

/// A product followed by a bias, one whose matrix is transposed by a node, and a convolution.
#[test]
fn heads_of_every_kind_get_another_size() {
    let rows = |count: usize| vec![0.5; count];
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2", "4", "3", "3"])
        .floats("filters", &[5, 4, 1, 1], &rows(20))
        .floats("shift", &[5], &rows(5))
        .floats("w", &[36, 6], &rows(216))
        .floats("b", &[6], &rows(6))
        .floats("turned", &[7, 36], &rows(252))
        .node("Conv", &["x", "filters", "shift"], &["maps"])
        .node("Flatten", &["x"], &["flat"])
        .node("MatMul", &["flat", "w"], &["product"])
        .node("Add", &["product", "b"], &["first"])
        .node_with("Transpose", &["turned"], &["matrix"], vec![("perm", Value::Ints(vec![1, 0]))])
        .node("MatMul", &["flat", "matrix"], &["second"])
        .output("maps", FLOAT, &["2", "5", "3", "3"])
        .output("first", FLOAT, &["2", "6"])
        .output("second", FLOAT, &["2", "7"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let shapes = |model: &Model| {
        let mut session = Session::builder(model).build().unwrap();
        let x = Tensor::from_f32(&[2, 4, 3, 3], &[1.0; 72]);
        let outputs = session.run([("x".to_string(), x)].into()).unwrap();
        ["maps", "first", "second"].map(|name| outputs[name].shape()[1])
    };
    assert_eq!(shapes(&model.with_head("w", 2, 0).unwrap()), [5, 2, 7]);
    assert_eq!(shapes(&model.with_head("second", 9, 0).unwrap()), [5, 6, 9]);
    let filters = Trainer::builder(&model.with_head("maps", 8, 0).unwrap()).loss_output("maps").build();
    let filters = filters.unwrap().parameters().unwrap();
    assert_eq!((filters["filters"].shape(), filters["shift"].shape()), (&[8, 4, 1, 1][..], &[8][..]));
    let largest = filters["filters"].to_f32().unwrap().into_iter().fold(0.0, f32::max);
    assert!(largest > 0.4 && largest <= 0.5, "1 / sqrt(4): {largest}");
    for (layer, classes, words) in
        [("nothing", 2, "no layer 'nothing'"), ("w", 0, "at least one class"), ("b", 2, "from last to first: 'second'")]
    {
        let error = model.with_head(layer, classes, 0).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// A classifier whose output is probabilities, by one operator or as exponentials divided by their sum, or only logits.
fn classifier(ends_with: &str) -> Model {
    let numbers: Vec<f32> = (0..12).map(|i| (i * 5 % 7) as f32 / 7.0 - 0.4).collect();
    let graph = GraphBuilder::new().input("x", FLOAT, &["2", "4"]).floats("w", &[4, 3], &numbers);
    let graph = graph.node("MatMul", &["x", "w"], &["logits"]);
    let graph = match ends_with {
        "softmax" => graph.node_with("Softmax", &["logits"], &["p"], vec![("axis", Value::Int(1))]).output(
            "p",
            FLOAT,
            &["2", "3"],
        ),
        "quotient" => graph
            .node_with("ReduceMax", &["logits"], &["largest"], vec![("axes", Value::Ints(vec![1]))])
            .node("Sub", &["logits", "largest"], &["below"])
            .node("Exp", &["below"], &["powers"])
            .node_with("ReduceL1", &["powers"], &["sum"], vec![("axes", Value::Ints(vec![1]))])
            .node("Div", &["powers", "sum"], &["p"])
            .output("p", FLOAT, &["2", "3"]),
        _ => graph.output("logits", FLOAT, &["2", "3"]),
    };
    Model::from_bytes(&graph.build()).unwrap()
}

#[test]
fn a_loss_takes_logits_inside_a_model_that_ends_with_probabilities() {
    let batch = || {
        let x = Tensor::from_f32(&[2, 4], &[0.5, -1.0, 2.0, 0.25, 1.0, 1.5, -0.5, 0.0]);
        (BTreeMap::from([("x".to_string(), x)]), Tensor::from_i64(&[2], &[2, 0]))
    };
    let steps = |model: &Model, output: Option<&str>| {
        let builder = Trainer::builder(model).optimizer(Optimizer::sgd(0.5));
        let mut trainer = output.map_or(builder.clone(), |name| builder.loss_output(name)).build().unwrap();
        let losses: Vec<f32> = (0..3).map(|_| trainer.step(batch().0, batch().1).unwrap().loss).collect();
        let evaluation = trainer.evaluate(batch().0, batch().1).unwrap();
        (losses, evaluation.loss, evaluation.logits, trainer.parameters().unwrap())
    };
    let expected = steps(&classifier("logits"), None);
    assert_eq!(classifier("logits").logits_behind(None), None);
    for ends_with in ["softmax", "quotient"] {
        let model = classifier(ends_with);
        assert_eq!(model.logits_behind(None), Some(("p".to_string(), "logits".to_string())), "{ends_with}");
        assert_eq!(steps(&model, Some("logits")), expected, "{ends_with}");
        assert_ne!(steps(&model, None).0, expected.0, "{ends_with}: probabilities of probabilities");
        let error = Trainer::builder(&model).loss_output("w").build().err().unwrap().to_string();
        assert!(error.contains("'w'") && error.contains("'p'"), "{error}");
    }
}
