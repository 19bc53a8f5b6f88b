//! Several weighted losses on several outputs, parameter groups with separate schedules, and rates that decrease from layer to layer,
//! compared with the same steps in PyTorch 2.15.

use std::collections::BTreeMap;

use forebay::training::{Curve, Loss, LossTerm, Optimizer, ParameterGroup, Schedule};
use forebay::{Error, Model, Tensor, Trainer};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value};

/// `(torch.arange(n) * a % 7 - 3) * 0.1`.
fn numbers(count: usize, factor: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * factor % 7) as f32 - 3.0) * 0.1).collect()
}

fn close(found: &[f32], expected: &[f32]) {
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6;
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(is_near), "{found:?}, not {expected:?}");
}

/// A model with logits of 16 places, logits of 4 places, two distances, and a penalty.
fn several_outputs() -> Model {
    let window = || ("kernel_shape", Value::Ints(vec![2, 2]));
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2", "2", "4", "4"])
        .floats("w", &[3, 2, 1, 1], &numbers(6, 2))
        .floats("v", &[3, 2], &numbers(6, 5))
        .node("Conv", &["x", "w"], &["logits"])
        .node_with("AveragePool", &["logits"], &["coarse"], vec![window(), ("strides", Value::Ints(vec![2, 2]))])
        .node("GlobalAveragePool", &["logits"], &["mean"])
        .node("Flatten", &["mean"], &["flat"])
        .node("MatMul", &["flat", "v"], &["distances"])
        .node("Mul", &["w", "w"], &["squares"])
        .node_with("ReduceMean", &["squares"], &["penalty"], vec![("keepdims", Value::Int(1))])
        .output("logits", FLOAT, &["2", "3", "4", "4"])
        .output("coarse", FLOAT, &["2", "3", "2", "2"])
        .output("distances", FLOAT, &["2", "2"])
        .output("penalty", FLOAT, &["1", "1", "1", "1"]);
    Model::from_bytes(&graph.build()).unwrap()
}

fn term(output: &str, loss: Loss, weight: f32, labels: Option<&str>) -> LossTerm {
    let mut term = LossTerm::new(output, loss);
    (term.weight, term.labels) = (weight, labels.map(str::to_string));
    term
}

/// A batch of all inputs, and the labels of the first loss.
fn batch() -> (BTreeMap<String, Tensor>, Tensor) {
    let x = Tensor::from_f32(&[2, 2, 4, 4], &numbers(64, 3));
    let meters = Tensor::from_f32(&[2, 2], &[0.5, -0.25, 0.1, 0.8]);
    let mut classes: Vec<i64> = (0..32).map(|i| i * 5 % 3).collect();
    classes[1] = 2;
    ([("x".to_string(), x), ("meters".to_string(), meters)].into(), Tensor::from_i64(&[2, 4, 4], &classes))
}

#[test]
fn losses_of_several_outputs_add_up_as_in_pytorch() {
    let builder = || {
        Trainer::builder(&several_outputs())
            .loss_output("logits")
            .loss_weight(0.7)
            .term(term("coarse", Loss::default(), 0.4, None))
            .term(term("distances", Loss::Huber { delta: 0.2 }, 0.5, Some("meters")))
            .term(term("penalty", Loss::Output { labels: None }, 0.1, None))
            .optimizer(Optimizer::sgd(0.5))
    };
    let mut trainer = builder().build().unwrap();
    let names: Vec<&str> = trainer.inputs().iter().map(|info| &*info.name).collect();
    assert_eq!(names, ["x", "meters"], "labels with a name are an input");
    let (inputs, labels) = batch();
    let evaluated = trainer.evaluate(inputs.clone(), labels.clone()).unwrap().loss;
    let losses: Vec<f32> = (0..3).map(|_| trainer.step(inputs.clone(), labels.clone()).unwrap().loss).collect();
    close(&losses, &[1.248_928, 1.248_449, 1.247_99]);
    close(&[evaluated], &losses[..1]);
    let parameters = trainer.parameters().unwrap();
    let w = [-0.268_807, -0.098_952, 0.077_728, 0.279_692, -0.189_183, 0.009_334];
    let v = [-0.299_82, 0.199_89, 3.428_718_6e-6, -0.200_21, 0.300_139, 0.099_859];
    close(&parameters["w"].to_f32().unwrap(), &w);
    close(&parameters["v"].to_f32().unwrap(), &v);

    // The bits are the same within the smallest budget.
    let least = trainer.statistics().minimum_budget_bytes;
    let mut small = builder().simulate_device(forebay::MemorySize::Bytes(least)).build().unwrap();
    for _ in 0..3 {
        small.step(inputs.clone(), labels.clone()).unwrap();
    }
    assert_eq!(small.parameters().unwrap(), parameters);
}

#[test]
fn labels_of_further_losses_are_checked() {
    let (inputs, labels) = batch();
    let second = |labels| term("coarse", Loss::default(), 1.0, labels);
    let builder = || Trainer::builder(&several_outputs()).loss_output("logits");
    let mut trainer = builder().term(second(Some("quarters"))).build().unwrap();
    let mut given = BTreeMap::from([("x".to_string(), inputs["x"].clone())]);
    given.insert("quarters".to_string(), Tensor::from_i64(&[2, 2, 2], &[0, 1, 2, 0, 1, 2, 3, 0]));
    let error = trainer.step(given, labels).unwrap_err();
    assert_eq!(error, Error::Label { value: 3, position: vec![1, 1, 0], classes: 3 });
    for (term, words) in [
        (term("nothing", Loss::default(), 1.0, None), "'nothing'"),
        (term("distances", Loss::MeanSquaredError, 1.0, None), "name other labels for it"),
        (term("distances", Loss::MeanSquaredError, -1.0, Some("meters")), "the weight of a loss"),
        (term("logits", Loss::Output { labels: None }, 1.0, None), "is not a loss"),
        (second(Some("w")), "not an input"),
    ] {
        let error = builder().term(term).build().err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn groups_follow_schedules_of_their_own_as_in_pytorch() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["4", "3"])
        .floats("a", &[3, 2], &numbers(6, 2))
        .floats("b", &[2, 2], &numbers(4, 3))
        .node("MatMul", &["x", "a"], &["h"])
        .node("MatMul", &["h", "b"], &["y"])
        .output("y", FLOAT, &["4", "2"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let mut group = ParameterGroup::new("b");
    group.rate_factor = 0.5;
    let builder = || {
        Trainer::builder(&model)
            .loss(Loss::MeanSquaredError)
            .optimizer(Optimizer::sgd(0.5))
            .schedule(Schedule::new(Curve::Exponential { gamma: 0.5 }))
    };
    let curve = Curve::Step { every: 1, gamma: 0.1 };
    let mut trainer = builder().group_with_schedule(group.clone(), Schedule::new(curve)).build().unwrap();
    let inputs = BTreeMap::from([("x".to_string(), Tensor::from_f32(&[4, 3], &numbers(12, 3)))]);
    let targets = Tensor::from_f32(&[4, 2], &numbers(8, 5));
    let losses: Vec<f32> = (0..4).map(|_| trainer.step(inputs.clone(), targets.clone()).unwrap().loss).collect();
    close(&losses, &[0.047_869, 0.047_662, 0.047_571, 0.047_527]);
    let parameters = trainer.parameters().unwrap();
    let a = [-0.305_863, -0.091_274, 0.105_609, 0.295_23, -0.191_842, -0.009_012];
    let b = [-0.300_688, 0.001_819_3, 0.297_764, -0.099_871];
    close(&parameters["a"].to_f32().unwrap(), &a);
    close(&parameters["b"].to_f32().unwrap(), &b);
    let plateau = Schedule::new(Curve::Plateau(Default::default()));
    let error = builder().group_with_schedule(group, plateau).build().err().unwrap().to_string();
    assert!(error.contains("not to a group"), "{error}");
    let error = trainer.set_group_schedule(1, Schedule::default()).unwrap_err().to_string();
    assert!(error.contains("parameter group 1"), "{error}");
}

/// With plain gradient descent, each layer's rate is half of the next layer's, and it moves by that fraction of what it moves at the full
/// rate.
#[test]
fn rates_fall_from_layer_to_layer() {
    let model = Model::from_file("../../testdata/golden/tiny-gpt/model.onnx").unwrap();
    let moved = |groups: Vec<ParameterGroup>| {
        let builder =
            Trainer::builder(&model).loss(Loss::SoftmaxCrossEntropy { class_axis: Some(-1), ignore_index: None });
        let mut trainer = groups.into_iter().fold(builder, |builder, group| builder.group(group)).build().unwrap();
        let before = trainer.parameters().unwrap();
        let input = trainer.inputs()[0].clone();
        let ids: Vec<i64> = (0..512).map(|i| i * 31 % 256).collect();
        let inputs = BTreeMap::from([(input.name, Tensor::from_i64(&[8, 64], &ids))]);
        trainer.step(inputs, Tensor::from_i64(&[8, 64], &ids)).unwrap();
        let after = trainer.parameters().unwrap();
        let largest = |name: &String| {
            let pairs = before[name].to_f32().unwrap().into_iter().zip(after[name].to_f32().unwrap());
            pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        before.keys().map(|name| (name.clone(), largest(name))).collect::<BTreeMap<_, _>>()
    };
    let (full, falling) = (moved(Vec::new()), moved(model.layer_groups(0.5).unwrap()));
    for (name, factor) in [
        ("tok.weight", 1.0 / 32.0),
        ("blocks.0.fc.weight", 1.0 / 16.0),
        ("blocks.2.out.bias", 0.25),
        ("blocks.3.qkv.weight", 0.5),
        ("head.weight", 1.0),
    ] {
        let ratio = falling[name] / full[name];
        assert!((ratio / factor - 1.0).abs() < 0.02, "{name}: {ratio}, not {factor}");
    }
}
