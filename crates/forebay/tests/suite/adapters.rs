//! Low-rank adapters: they start as zero, train alone, follow the gradients of the weights, and are finally merged into the weights or
//! saved to files.

use std::collections::BTreeMap;

use forebay::training::{LoraOptions, Loss, Optimizer, TrainingOptions};
use forebay::{Checkpoint, JsonValue, Model, Session, Tensor, Trainer};
use forebay_golden::{Case, host, recipe};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

fn sgd(learning_rate: f32) -> Optimizer {
    Optimizer::Sgd { learning_rate, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
}

fn build(model: &Model, training: &TrainingOptions, memory: Option<&str>) -> Trainer {
    let mut engine = host(2);
    engine.memory.simulate_device = memory.map(|size| size.parse().unwrap());
    let builder = Trainer::builder(model).engine(engine).loss(training.loss.clone());
    builder.optimizer(training.optimizer.clone()).build().unwrap()
}

fn floats(trainer: &Trainer, name: &str) -> Vec<f32> {
    trainer.parameter(name).unwrap().unwrap().to_f32().unwrap()
}

fn steps(trainer: &mut Trainer, case: &Case, count: usize) -> Vec<f32> {
    let step = |step| {
        let (batch, labels) = case.batch(step);
        trainer.step(batch, labels).unwrap().loss
    };
    (0..count).map(step).collect()
}

/// An adapter adds 2 x left x right to a weight (alpha / rank is 2). In these layers, the left factor starts as zeros and the right one as
/// random numbers. With a learning rate of 1, the left factor is therefore, after one step, 2 x the weight's own update in that step
/// x the transpose of the right factor.
#[test]
fn the_first_step_follows_the_gradient_of_the_weight() {
    for (name, weights) in [("digits-cnn", vec!["conv2.weight", "fc.weight"]), ("tiny-gpt", vec!["blocks.1.fc.weight"])]
    {
        let case = Case::read(name);
        let (model, training) = (case.model(), recipe(&case));
        let training = TrainingOptions::new(training.loss, sgd(1.0));
        let mut whole = build(&model, &training, None);
        let before: Vec<Vec<f32>> = weights.iter().map(|weight| floats(&whole, weight)).collect();
        let loss = steps(&mut whole, &case, 1)[0];
        let mut options = LoraOptions::new(weights[0]);
        options.patterns = weights.iter().map(|weight| weight.to_string()).collect();
        (options.rank, options.alpha) = (3, 6.0);
        let mut adapted = build(&model.with_adapters(&options).unwrap(), &training, None);
        assert_eq!(adapted.parameters().unwrap().len(), 2 * weights.len());
        let rights: Vec<Vec<f32>> =
            weights.iter().map(|weight| floats(&adapted, &format!("{weight}.lora_right"))).collect();
        assert!((steps(&mut adapted, &case, 1)[0] - loss).abs() <= 1e-5 * loss.abs(), "{name} begins as it was");
        for ((weight, before), right) in weights.iter().zip(&before).zip(&rights) {
            let after = floats(&whole, weight);
            let update: Vec<f64> = before.iter().zip(&after).map(|(a, b)| f64::from(b - a)).collect();
            let columns = right.len() / 3;
            let found = floats(&adapted, &format!("{weight}.lora_left"));
            let largest = found.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            assert!(largest > 0.0, "{name}, {weight}");
            for (i, &found) in found.iter().enumerate() {
                let (row, rank) = (i / 3, i % 3);
                let through = update[row * columns..][..columns].iter().zip(&right[rank * columns..]);
                let expected: f64 = 2.0 * through.map(|(update, &right)| update * f64::from(right)).sum::<f64>();
                assert!(
                    (f64::from(found) - expected).abs() <= 2e-3 * f64::from(largest),
                    "{name}, {weight}: {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn a_language_model_learns_by_adapters_alone_with_the_same_bits_at_any_budget() {
    let case = Case::read("tiny-gpt");
    let mut options = LoraOptions::new("*");
    (options.rank, options.alpha, options.seed) = (4, 8.0, 3);
    options.also.push("blocks.?.ln1.bias".to_string());
    let model = case.model().with_adapters(&options).unwrap();
    let training = TrainingOptions::new(recipe(&case).loss, Optimizer::adamw(1e-2));
    let mut free = build(&model, &training, None);
    let names: Vec<String> = free.parameters().unwrap().into_keys().collect();
    let is_expected = |name: &String| name.contains(".lora_") || name.ends_with(".ln1.bias");
    assert!(names.iter().all(is_expected), "{names:?}");
    assert!(names.contains(&"tok.weight.lora_left".to_string()), "a table that is also a product's matrix");
    let losses = steps(&mut free, &case, 5);
    assert!(losses[4] < losses[0] - 0.1, "{losses:?}");
    let mut tight = build(&model, &training, Some("60%"));
    assert_eq!(steps(&mut tight, &case, 5), losses);
    assert_eq!(tight.parameters().unwrap(), free.parameters().unwrap());
    // The saved model is the original one with other numbers.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("merged.onnx");
    free.save(&path).unwrap();
    let (batch, labels) = case.batch(0);
    let expected = free.evaluate(batch.clone(), labels).unwrap().logits.to_f32().unwrap();
    let merged = Model::from_file(&path).unwrap();
    let output = merged.outputs()[0].name.clone();
    let mut session = Session::builder(&merged).engine(host(2)).build().unwrap();
    let found = session.run(batch.clone()).unwrap().remove(&output).unwrap().to_f32().unwrap();
    let scale = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    found.iter().zip(&expected).for_each(|(a, b)| assert!((a - b).abs() <= 1e-4 * scale, "{a}, not {b}"));
    assert!(merged.with_adapters(&LoraOptions::new("*qkv*")).is_ok(), "it has no adapters");
    // Training continues from a checkpoint and gives the same model.
    let checkpoint = folder.path().join("checkpoint");
    free.save_checkpoint(&checkpoint, &JsonValue::Null).unwrap();
    let checkpoint = Checkpoint::read(&checkpoint).unwrap();
    let mut again = build(&model, &training, Some("70%"));
    again.restore(&checkpoint).unwrap();
    assert_eq!(again.parameters().unwrap(), free.parameters().unwrap());
    let exported = folder.path().join("exported.onnx");
    checkpoint.export(&model, &exported).unwrap();
    assert_eq!(std::fs::read(&exported).unwrap(), std::fs::read(&path).unwrap());
    // The factors do not show their scale, but the checkpoint does.
    options.alpha = 4.0;
    let other = case.model().with_adapters(&options).unwrap();
    let words =
        "its adapters were trained with alpha 8, but those of the model have alpha 4; give them alpha 8 (--alpha 8)";
    let error = checkpoint.export(&other, &exported).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
    let mut weaker = build(&other, &training, Some("60%"));
    for checkpoint in [&checkpoint, &free.checkpoint(&JsonValue::Null).unwrap()] {
        let error = weaker.restore(checkpoint).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    // Checkpoints of tensors alone, and of earlier versions, say nothing about it.
    let mut silent = Checkpoint::new(checkpoint.tensors().unwrap());
    silent.step = checkpoint.step;
    weaker.restore(&silent).unwrap();
}

#[test]
fn adapters_need_less_memory_than_the_weights() {
    let case = Case::read("tiny-gpt");
    let training = TrainingOptions::new(recipe(&case).loss, Optimizer::adamw(1e-3));
    let peak = |model: &Model| build(model, &training, None).statistics().device_peak_bytes;
    let adapted = case.model().with_adapters(&LoraOptions::new("*qkv*")).unwrap();
    assert!(peak(&adapted) < peak(&case.model()));
}

/// The names, shapes and numbers of files written by PEFT 0.21, with which `peft.PeftModel.from_pretrained` gave the outputs of the merged
/// model.
#[test]
fn files_have_the_names_and_shapes_of_peft() {
    let values = |count: usize| (0..count).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
    let graph = GraphBuilder::new()
        .input("ids", 7, &["2", "3"])
        .floats("table.weight", &[5, 4], &values(20))
        .floats("up", &[4, 6], &values(24))
        .floats("head.weight", &[2, 6], &values(12))
        .floats("head.bias", &[2], &values(2))
        .node("Gather", &["table.weight", "ids"], &["x"])
        .node("MatMul", &["x", "up"], &["h"])
        .node("Transpose", &["head.weight"], &["turned"])
        .node("MatMul", &["h", "turned"], &["o"])
        .node("Add", &["o", "head.bias"], &["y"])
        .output("y", FLOAT, &["2", "3", "2"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let mut options = LoraOptions::new("*");
    (options.rank, options.also) = (2, vec!["head.bias".to_string()]);
    let training = TrainingOptions::new(Loss::MeanSquaredError, sgd(0.1));
    let mut trainer = build(&model.with_adapters(&options).unwrap(), &training, None);
    let ids = Tensor::from_i64(&[2, 3], &[0, 1, 2, 3, 4, 0]);
    let batch = BTreeMap::from([("ids".to_string(), ids)]);
    for _ in 0..2 {
        trainer.step(batch.clone(), Tensor::from_f32(&[2, 3, 2], &values(12))).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    trainer.save_adapters(folder.path().join("adapters")).unwrap();
    let read = |file: &str| std::fs::read(folder.path().join("adapters").join(file)).unwrap();
    let bytes = read("adapter_model.safetensors");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let shapes: BTreeMap<String, Vec<usize>> =
        file.tensors().into_iter().map(|(name, view)| (name, view.shape().to_vec())).collect();
    let expected = [
        ("head.base_layer.bias", vec![2]),
        ("head.lora_A.weight", vec![2, 6]),
        ("head.lora_B.weight", vec![2, 2]),
        ("table.lora_embedding_A", vec![2, 5]),
        ("table.lora_embedding_B", vec![4, 2]),
        ("up.lora_A.weight", vec![2, 4]),
        ("up.lora_B.weight", vec![6, 2]),
    ];
    let expected = expected.map(|(name, shape)| (format!("base_model.model.{name}"), shape));
    assert_eq!(shapes, expected.into());
    let a = file.tensor("base_model.model.up.lora_A.weight").unwrap();
    let left = trainer.parameter("up.lora_left").unwrap().unwrap();
    assert_eq!(a.data()[4 * 4..][..4], left.bytes()[4..8], "the second row begins with the second number of the first");
    let settings: JsonValue = serde_json::from_slice(&read("adapter_config.json")).unwrap();
    assert_eq!((&settings["r"], &settings["lora_alpha"]), (&2.into(), &8.0.into()));
    assert_eq!(settings["target_modules"], serde_json::json!(["table", "up", "head"]));
    assert_eq!((&settings["bias"], &settings["modules_to_save"]), (&"lora_only".into(), &JsonValue::Null));
}

#[test]
fn what_cannot_have_adapters_is_named() {
    let model = Case::read("digits-cnn").model();
    let refused = |model: &Model, change: &dyn Fn(&mut LoraOptions)| {
        let mut options = LoraOptions::new("*");
        change(&mut options);
        model.with_adapters(&options).unwrap_err().to_string()
    };
    let error = refused(&model, &|options| options.patterns = vec!["decoder.*".to_string()]);
    assert!(error.contains("decoder.*") && error.contains("'conv1.weight'"), "{error}");
    for rank in [0, u64::MAX / 3] {
        let error = refused(&model, &|options| options.rank = rank);
        assert!(error.contains("a rank from 1 to 65536"), "{error}");
    }
    let shared = GraphBuilder::new()
        .input("x", FLOAT, &["2", "2"])
        .floats("w", &[2, 2], &[1.0, 2.0, 3.0, 4.0])
        .node("MatMul", &["x", "w"], &["a"])
        .node("Mul", &["a", "w"], &["y"])
        .output("y", FLOAT, &["2", "2"]);
    let error = refused(&Model::from_bytes(&shared.build()).unwrap(), &|_| {});
    assert!(error.contains("'w'") && error.contains("'y'"), "{error}");
    let trainer = build(&model, &recipe(&Case::read("digits-cnn")), None);
    let error = trainer.save_adapters("unused").unwrap_err().to_string();
    assert!(error.contains("no adapters"), "{error}");
}

#[test]
fn numbers_of_formulas_do_not_train_next_to_adapters() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2", "4"])
        .floats("scale", &[], &[0.5])
        .floats("w", &[4, 3], &[0.25; 12])
        .floats("b", &[3], &[0.0; 3])
        .node("Mul", &["x", "scale"], &["scaled"])
        .node("MatMul", &["scaled", "w"], &["product"])
        .node("Add", &["product", "b"], &["y"])
        .output("y", FLOAT, &["2", "3"]);
    let mut options = LoraOptions::new("w");
    options.also.push("*".to_string());
    let model = Model::from_bytes(&graph.build()).unwrap().with_adapters(&options).unwrap();
    let parameters = Trainer::builder(&model).build().unwrap().parameters().unwrap();
    assert_eq!(parameters.into_keys().collect::<Vec<_>>(), ["b", "w", "w.lora_left", "w.lora_right"]);
}
