//! Mistakes that users can make, and the messages that they get.

use std::collections::BTreeMap;

use forebay::training::Loss;
use forebay::{EngineOptions, Error, MemoryMode, MemorySize, Model, OnNan, Session, SessionOptions, Tensor, Trainer};
use forebay_golden::{Case, host, indices, recipe, trainer, trainer_options};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value};

fn session(case: &Case) -> Session {
    Session::builder(&case.model()).engine(host(1)).build().unwrap()
}

#[test]
fn inputs_are_named_with_their_shapes() {
    let case = Case::read("digits-cnn");
    let mut session = session(&case);
    let x = case.input()["x"].clone();
    let mut run = |entries: &[(&str, Tensor)]| {
        let inputs = entries.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
        session.run(inputs).unwrap_err().to_string()
    };
    assert!(run(&[]).contains("'x: float32[50, 1, 8, 8]' is missing"));
    assert!(run(&[("x", x.clone()), ("z", x.clone())]).contains("no input 'z'"));
    let flat = Tensor::new(x.data_type(), &[50, 64], x.bytes()).unwrap();
    assert!(run(&[("x", flat)]).contains("float32[50, 64]"));
    let integers = Tensor::from_i64(&[50, 1, 8, 8], &[0; 3200]);
    assert!(run(&[("x", integers)]).contains("int64[50, 1, 8, 8]"));
}

/// NaN is not equal to itself, and kernels that hold it must be.
#[test]
fn constants_can_be_nan() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2"])
        .integers("pads", &[2], &[1, 0])
        .floats("nan", &[], &[f32::NAN])
        .node("Pad", &["x", "pads", "nan"], &["padded"])
        .node_with("LeakyRelu", &["padded"], &["y"], vec![("alpha", Value::Float(f32::NAN))])
        .output("y", FLOAT, &["3"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let mut session = Session::builder(&model).engine(host(1)).build().unwrap();
    let inputs = BTreeMap::from([("x".to_string(), Tensor::from_f32(&[2], &[-1.0, 2.0]))]);
    let y = session.run(inputs).unwrap()["y"].to_f32().unwrap();
    assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 2.0, "{y:?}");
}

#[test]
fn an_index_beyond_the_table_is_refused() {
    let case = Case::read("tiny-gpt");
    let mut values = case.input()["x"].to_i64().unwrap();
    values[70] = 256;
    let inputs = BTreeMap::from([("x".to_string(), Tensor::from_i64(&[8, 64], &values))]);
    let error = session(&case).run(inputs).unwrap_err();
    assert_eq!(error, Error::Index { name: "x".to_string(), value: 256, position: vec![1, 6], limit: 256 });
}

#[test]
fn a_computed_index_beyond_the_table_is_refused() {
    for device_memory in [None, Some(MemorySize::Bytes(indices::least_memory_bytes()))] {
        let mut engine = host(2);
        engine.memory.simulate_device = device_memory;
        indices::are_refused_when_out_of_range(&engine);
    }
    for memory in [MemoryMode::Direct, MemoryMode::Cooperative, MemoryMode::Automatic] {
        indices::are_refused_when_out_of_range(&host(2).memory_mode(memory));
    }
}

#[test]
fn a_batch_of_ignored_labels_is_named_as_such() {
    let case = Case::read("digits-cnn");
    let loss = Loss::SoftmaxCrossEntropy { class_axis: Some(1), ignore_index: Some(-100) };
    let mut training = recipe(&case);
    training.loss = loss;
    let (batch, _) = case.batch(0);
    let labels = Tensor::from_i64(&[50], &[-100; 50]);
    let mut strict = trainer(case.model(), training.clone(), host(1));
    let before = strict.parameters().unwrap();
    let error = strict.step(batch.clone(), labels.clone()).unwrap_err();
    assert_eq!(error, Error::NothingCounts { step: 1, ignore_index: -100 });
    assert!(error.to_string().contains("-100") && !error.to_string().contains("learning rate"), "{error}");
    assert!(strict.parameters().unwrap() == before);

    let mut options = trainer_options(training, host(1));
    options.on_nan = OnNan::Continue;
    let mut stubborn = Trainer::new(case.model(), options).unwrap();
    assert!(stubborn.step(batch, labels).unwrap().loss.is_nan());
    let finite = |tensor: &Tensor| tensor.to_f32().unwrap().iter().all(|value| value.is_finite());
    assert!(stubborn.parameters().unwrap().values().all(finite), "gradients were 0");
}

#[test]
fn labels_are_checked_before_the_step() {
    let case = Case::read("digits-cnn");
    let mut trainer = trainer(case.model(), recipe(&case), host(1));
    let (batch, labels) = case.batch(0);
    let mut values = labels.to_i64().unwrap();
    values[3] = 10;
    let error = trainer.step(batch.clone(), Tensor::from_i64(&[50], &values)).unwrap_err();
    assert_eq!(error, Error::Label { value: 10, position: vec![3], classes: 10 });
    let error = trainer.step(batch, Tensor::from_i64(&[49], &values[..49])).unwrap_err();
    assert!(matches!(error, Error::Input { .. }), "{error}");
    assert_eq!(trainer.step_count(), 0);
}

#[test]
fn a_loss_that_is_no_number_leaves_everything_as_before() {
    let case = Case::read("digits-cnn");
    let (batch, labels) = case.batch(0);
    let mut poisoned = batch["x"].to_f32().unwrap();
    poisoned[0] = f32::NAN;
    let poisoned = BTreeMap::from([("x".to_string(), Tensor::from_f32(batch["x"].shape(), &poisoned))]);
    let mut trainer = trainer(case.model(), recipe(&case), host(2));
    trainer.step(batch.clone(), labels.clone()).unwrap();
    let everything = |trainer: &Trainer| (trainer.parameters().unwrap(), trainer.state().unwrap());
    let before = everything(&trainer);
    let error = trainer.step(poisoned.clone(), labels.clone()).unwrap_err();
    assert!(matches!(error, Error::NanLoss { step: 2, .. }), "{error}");
    assert!(error.to_string().contains("resume from an older checkpoint"), "an earlier step may be to blame: {error}");
    assert!(everything(&trainer) == before);
    assert!(trainer.step(batch, labels.clone()).unwrap().loss.is_finite(), "and training continues");

    let mut options = trainer_options(recipe(&case), host(2));
    options.on_nan = OnNan::Continue;
    let mut stubborn = Trainer::new(case.model(), options).unwrap();
    assert!(stubborn.step(poisoned, labels).unwrap().loss.is_nan());
    assert_eq!(stubborn.step_count(), 1);
}

#[test]
fn broken_models_are_errors() {
    let bytes = std::fs::read(Case::read("digits-cnn").path("model.onnx")).unwrap();
    assert!(Model::from_bytes(&[]).is_err());
    assert!(Model::from_file("no/such/model.onnx").unwrap_err().to_string().contains("no/such/model.onnx"));
    for length in [1, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        // A cut can fall between two fields; then the rest must still be refused or run.
        if let Ok(model) = Model::from_bytes(&bytes[..length]) {
            let _ = Session::builder(&model).engine(host(1)).build();
        }
    }
}

#[test]
fn options_without_meaning_are_refused() {
    let case = Case::read("digits-cnn");
    let with = |engine: EngineOptions, batch_size| {
        let mut options = SessionOptions::default();
        (options.engine, options.batch_size) = (engine, batch_size);
        Session::new(&case.model(), &options).err().expect("refused").to_string()
    };
    let unknown = with(host(1).device("tpu".parse().unwrap()), None);
    assert_eq!(unknown, "unknown device 'tpu' (available: host, null, vulkan, vulkan:NUMBER, vulkan:NAME)");
    assert!(with(host(0), None).contains("at least one thread"));
    for device in ["host", "null"] {
        let tiles = host(1).device(device.parse().unwrap()).tile_size(3 << 10);
        assert!(with(tiles, None).contains("a tile of 3072 bytes"));
    }
    assert!(with(host(1), Some(0)).contains("the batch size must be at least 1"));
}

#[test]
fn an_open_batch_size_must_be_given_for_training() {
    let model = Model::from_file(Case::read("digits-cnn").path("model_dynamic.onnx")).unwrap();
    assert_eq!(model.inputs()[0].to_string(), "x: float32[N, 1, 8, 8]");
    let options = trainer_options(recipe(&Case::read("digits-cnn")), host(1));
    let error = Trainer::new(model.clone(), options).err().expect("open").to_string();
    assert!(error.contains("dimension 0 ('N') of input 'x'") && error.contains("--batch-size"), "{error}");
    assert!(Session::builder(&model).engine(host(1)).build().unwrap().plan().is_none());
    let session = Session::builder(&model).engine(host(1)).batch_size(3).build().unwrap();
    assert_eq!(session.inputs()[0].to_string(), "x: float32[3, 1, 8, 8]");
}

#[test]
fn a_trained_model_that_cannot_be_written_is_an_error_with_its_path() {
    let case = Case::read("digits-cnn");
    let trainer = trainer(case.model(), recipe(&case), host(1));
    let error = trainer.save("no/such/folder/trained.onnx").unwrap_err().to_string();
    assert!(error.contains("no/such/folder/trained.onnx"), "{error}");
}
