//! Weights that stay in their files until a plan is loaded onto a device: the same bits wherever they come from, and planning reads none of
//! them.

use std::collections::BTreeMap;
use std::path::Path;

use forebay::training::{LoraOptions, Loss, Optimizer, TrainingOptions};
use forebay::{
    EngineOptions, Error, MemoryMode, MemorySize, Model, Session, SessionOptions, Tensor, Trainer, command_lines,
};
use forebay_golden::{host, onnx, trainer, trainer_options};
use forebay_plan::PlanError;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, INT4, Value};

const ROWS: usize = 32;
const WIDTH: usize = 300;

/// The names, sizes and numbers of the weights.
fn weights(seed: usize) -> Vec<(&'static str, Vec<usize>, Vec<f64>)> {
    let numbers = |name: usize, count: usize| -> Vec<f64> {
        (0..count).map(|i| ((i * 7919 + (seed * 10 + name) * 104_729) % 1009) as f64 / 5040.0 - 0.1).collect()
    };
    vec![
        ("w1", vec![WIDTH, 2 * WIDTH], numbers(1, 2 * WIDTH * WIDTH)),
        ("b1", vec![2 * WIDTH], numbers(2, 2 * WIDTH)),
        ("w2", vec![WIDTH, 2 * WIDTH], numbers(3, 2 * WIDTH * WIDTH)),
        ("scale", vec![WIDTH], vec![1.0; WIDTH]),
        ("shift", vec![WIDTH], numbers(4, WIDTH)),
    ]
}

/// Two layers; the second one's weights are transposed by a node, which inference folds.
fn bytes(initializers: &[Vec<u8>]) -> Vec<u8> {
    let nodes = [
        onnx::node("MatMul", &["x", "w1"], "m1", &[]),
        onnx::node("Add", &["m1", "b1"], "a1", &[]),
        onnx::node("Relu", &["a1"], "h1", &[]),
        onnx::node("Transpose", &["w2"], "t2", &[("perm", &[1, 0], true)]),
        onnx::node("MatMul", &["h1", "t2"], "m2", &[]),
        onnx::node("LayerNormalization", &["m2", "scale", "shift"], "y", &[]),
    ];
    onnx::model(&nodes, initializers, ("x", &[ROWS, WIDTH]), ("y", &[ROWS, WIDTH]))
}

fn inline(seed: usize) -> Vec<u8> {
    bytes(&weights(seed).iter().map(|(name, shape, values)| onnx::floats(name, shape, values)).collect::<Vec<_>>())
}

/// Writes the model with its weights in a separate file.
fn external(folder: &Path, seed: usize) -> Model {
    let (mut data, mut initializers) = (Vec::new(), Vec::new());
    for (name, shape, values) in weights(seed) {
        initializers.push(onnx::external(name, &shape, "weights.bin", data.len() as u64));
        data.extend(values.iter().flat_map(|&value| (value as f32).to_le_bytes()));
    }
    std::fs::write(folder.join("weights.bin"), data).unwrap();
    std::fs::write(folder.join("external.onnx"), bytes(&initializers)).unwrap();
    Model::from_file(folder.join("external.onnx")).unwrap()
}

fn stored(folder: &Path, seed: usize) -> Model {
    std::fs::write(folder.join("inline.onnx"), inline(seed)).unwrap();
    Model::from_file(folder.join("inline.onnx")).unwrap()
}

fn input() -> Tensor {
    Tensor::from_f32(
        &[ROWS as u64, WIDTH as u64],
        &(0..ROWS * WIDTH).map(|i| (i % 97) as f32 / 50.0 - 1.0).collect::<Vec<_>>(),
    )
}

fn batch() -> BTreeMap<String, Tensor> {
    BTreeMap::from([("x".to_string(), input())])
}

/// Options for plans and managed memory, without budgets and within small ones.
fn every_way(folder: &Path) -> Vec<EngineOptions> {
    let small = |mode| {
        let budgets = host(2).simulate_device(MemorySize::Bytes(4 << 20)).host_memory(MemorySize::Bytes(16 << 20));
        budgets.spill_dir(folder).memory_mode(mode)
    };
    let managed = MemoryMode::Automatic;
    vec![host(2), small(MemoryMode::Planned), small(managed), small(MemoryMode::Cooperative), small(MemoryMode::Direct)]
}

fn training() -> TrainingOptions {
    let mut options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::adam(0.01));
    options.freeze = vec!["b1".to_string()];
    options
}

fn session(model: &Model, engine: EngineOptions) -> Result<Session, forebay::Error> {
    let mut options = SessionOptions::default();
    options.engine = engine;
    Session::new(model, &options)
}

fn run(model: &Model, engine: EngineOptions) -> BTreeMap<String, Tensor> {
    session(model, engine).unwrap().run(batch()).unwrap()
}

#[test]
fn weights_are_the_same_from_wherever_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let train = |model: &Model, engine: EngineOptions| {
        let options = trainer_options(training(), engine);
        let mut trainer = Trainer::new(model.clone(), options).unwrap();
        let mut losses = Vec::new();
        for _ in 0..3 {
            losses.push(trainer.step(batch(), input()).unwrap().loss.to_bits());
            // Another plan temporarily replaces the training plan.
            losses.push(trainer.evaluate(batch(), input()).unwrap().loss.to_bits());
        }
        (losses, trainer.parameters().unwrap(), trainer.state().unwrap())
    };
    let held = Model::from_bytes(&inline(1)).unwrap();
    let (outputs, trained) = (run(&held, host(2)), train(&held, host(2)));
    for model in [stored(folder.path(), 1), external(folder.path(), 1)] {
        for engine in every_way(folder.path()) {
            assert_eq!(run(&model, engine.clone()), outputs, "{engine:?}");
            assert!(train(&model, engine.clone()) == trained, "{engine:?}");
        }
    }
}

/// The plan for other weights is the same, and planning reads none of them.
#[test]
fn plans_do_not_depend_on_weights() {
    let folder = tempfile::tempdir().unwrap();
    let plans = |model: &Model| {
        let engine = every_way(folder.path()).swap_remove(1);
        let session = session(model, engine.clone()).unwrap();
        let options = trainer_options(training(), engine);
        let trainer = Trainer::new(model.clone(), options).unwrap();
        (command_lines(session.plan().unwrap()), command_lines(trainer.plan()))
    };
    let model = external(folder.path(), 1);
    std::fs::remove_file(folder.path().join("weights.bin")).unwrap();
    let expected = plans(&model);
    assert_eq!(plans(&external(folder.path(), 2)), expected);
    assert_eq!(plans(&stored(folder.path(), 3)), expected);
    assert_eq!(plans(&Model::from_bytes(&inline(4)).unwrap()), expected);
    // Weights that cannot be read are reported when they are loaded.
    let mut session = session(&model, host(1)).unwrap();
    std::fs::remove_file(folder.path().join("weights.bin")).unwrap();
    let error = session.run(batch()).unwrap_err().to_string();
    assert!(error.contains("weights.bin") && error.contains("tensor 'w1'"), "{error}");
}

#[test]
fn a_trained_model_may_take_the_place_of_the_one_that_it_was_read_from() {
    let folder = tempfile::tempdir().unwrap();
    for model in [stored(folder.path(), 1), external(folder.path(), 1)] {
        let held = Model::from_bytes(&inline(1)).unwrap();
        let saved = |model: Model, name: &str| {
            let mut trainer = trainer(model, training(), host(1));
            let path = folder.path().join(name);
            let mut files = Vec::new();
            trainer.save(&path).unwrap();
            files.push(std::fs::read(&path).unwrap());
            for _ in 0..2 {
                trainer.step(batch(), input()).unwrap();
                // The second time, the name of the file that the frozen weights come from already belongs to another file.
                trainer.save(&path).unwrap();
                files.push(std::fs::read(&path).unwrap());
            }
            let checkpoint = trainer.checkpoint(&serde_json::Value::Null).unwrap();
            (files, checkpoint)
        };
        let (expected, _) = saved(held.clone(), "held.onnx");
        let (files, checkpoint) = saved(model.clone(), "inline.onnx");
        assert!(files == expected, "what is saved differs");
        assert!(files[0] != files[1] && files[1] != files[2]);
        let again = Model::from_file(folder.path().join("inline.onnx")).unwrap();
        checkpoint.export(&model, folder.path().join("inline.onnx")).unwrap();
        assert!(std::fs::read(folder.path().join("inline.onnx")).unwrap() == expected[2]);
        let run = |model: &Model| session(model, host(1)).unwrap().run(batch());
        // The file that it was read from no longer has a name, but is still open.
        assert_eq!(run(&again).unwrap(), run(&Model::from_bytes(&files[2]).unwrap()).unwrap());
    }
}

/// A layer whose weights are initializers, or `Constant` nodes as written by some exporters.
fn layer(in_constants: bool) -> Model {
    let (w, b) = (vec![0.5, -0.25, 0.75, 0.125, 0.3, -0.6], vec![0.1, 0.2, 0.3]);
    let mut graph = GraphBuilder::new().input("x", FLOAT, &["4", "2"]);
    graph = match in_constants {
        false => graph.floats("w", &[2, 3], &w).floats("b", &[3], &b),
        true => graph.node_with("Constant", &[], &["w"], vec![("value", Value::Floats(vec![2, 3], w))]).node_with(
            "Constant",
            &[],
            &["b"],
            vec![("value", Value::Floats(vec![3], b))],
        ),
    };
    let graph = graph
        .node_with("Constant", &[], &["mask"], vec![("value", Value::Floats(vec![1, 3], vec![1.0, 0.0, 1.0]))])
        .node("MatMul", &["x", "w"], &["product"])
        .node("Add", &["product", "b"], &["sum"])
        .node("Mul", &["sum", "mask"], &["logits"])
        .output("logits", FLOAT, &["4", "3"]);
    Model::from_bytes(&graph.build()).unwrap()
}

#[test]
fn weights_in_constant_nodes_train_where_there_are_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let trained = [false, true].map(|in_constants| {
        let mut trainer = Trainer::builder(&layer(in_constants)).optimizer(Optimizer::sgd(0.5)).build().unwrap();
        assert_eq!(trainer.parameters().unwrap().len(), 2, "the mask does not train");
        let x = Tensor::from_f32(&[4, 2], &[1.0, 2.0, -1.0, 0.5, 0.25, -0.75, 2.0, 1.0]);
        for _ in 0..3 {
            trainer.step([("x".to_string(), x.clone())].into(), Tensor::from_i64(&[4], &[0, 1, 2, 0])).unwrap();
        }
        let path = folder.path().join("trained.onnx");
        trainer.save(&path).unwrap();
        let outputs =
            Session::builder(&Model::from_file(&path).unwrap()).build().unwrap().run([("x".to_string(), x)].into());
        (trainer.parameters().unwrap(), outputs.unwrap())
    });
    assert_eq!(trained[0], trained[1]);
    assert_ne!(trained[0].0["b"], Tensor::from_f32(&[3], &[0.1, 0.2, 0.3]));
}

#[test]
fn what_an_exporter_calls_a_parameter_trains() {
    let kind = "pkg.torch.export.graph_signature.InputSpec.kind";
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["4", "2"])
        .floats("w", &[2, 3], &[0.5, -0.25, 0.75, 0.125, 0.3, -0.6])
        .floats("b", &[3], &[0.1, 0.2, 0.3])
        .floats("folded", &[3, 3], &[0.5, 0.1, 0.2, 0.3, 0.5, 0.1, 0.2, 0.3, 0.5])
        .floats("scale", &[], &[0.5])
        .floats("table", &[1, 3], &[0.7, 0.8, 0.9])
        .described("w", &["2", "3"], kind, "PARAMETER")
        .described("b", &["3"], kind, "PARAMETER")
        .described("table", &["1", "3"], kind, "BUFFER")
        .node("MatMul", &["x", "w"], &["product"])
        .node("Add", &["product", "b"], &["sum"])
        .node("MatMul", &["sum", "folded"], &["second"])
        .node("Mul", &["second", "scale"], &["scaled"])
        .node("Add", &["scaled", "table"], &["logits"])
        .output("logits", FLOAT, &["4", "3"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let trainer = Trainer::builder(&model).optimizer(Optimizer::sgd(0.5)).build().unwrap();
    let trained: Vec<String> = trainer.parameters().unwrap().into_keys().collect();
    assert_eq!(trained, ["b", "folded", "w"]);
}

/// Without information from PyTorch's exporter, scalars are taken as constants of formulas, unless they are named like attributes of a
/// module.
#[test]
fn scalars_of_formulas_do_not_train() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["4", "2"])
        .floats("w", &[2, 3], &[0.5, -0.25, 0.75, 0.125, 0.3, -0.6])
        .floats("network.logit_scale", &[], &[0.5])
        .floats("val_3", &[], &[0.5])
        .floats("helper.constant.7", &[], &[0.25])
        .node("MatMul", &["x", "w"], &["product"])
        .node("Mul", &["product", "network.logit_scale"], &["scaled"])
        .node("Mul", &["scaled", "val_3"], &["halved"])
        .node("Add", &["halved", "helper.constant.7"], &["logits"])
        .output("logits", FLOAT, &["4", "3"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    assert_eq!(model.untrained_initializers().unwrap(), ["val_3", "helper.constant.7"]);
    // Freezing one of them changes nothing.
    let builder = Trainer::builder(&model).optimizer(Optimizer::sgd(0.5)).freeze("val_3");
    let trained: Vec<String> = builder.build().unwrap().parameters().unwrap().into_keys().collect();
    assert_eq!(trained, ["network.logit_scale", "w"]);
}

/// An exponent of one element is a constant of a formula, like a scalar. Numbers that do not train are parts of kernels.
#[test]
fn exponents_of_formulas_do_not_train() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["4", "2"])
        .floats("w", &[2, 3], &[0.5, -0.25, 0.75, 0.125, 0.3, -0.6])
        .floats("val_2", &[1], &[2.0])
        .floats("pool.p", &[1], &[3.0])
        .node("MatMul", &["x", "w"], &["product"])
        .node("Pow", &["product", "val_2"], &["squares"])
        .node("Pow", &["squares", "pool.p"], &["logits"])
        .output("logits", FLOAT, &["4", "3"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    assert_eq!(model.untrained_initializers().unwrap(), ["val_2"]);
    let trained = |frozen: &str| {
        let builder = Trainer::builder(&model).optimizer(Optimizer::sgd(0.5)).freeze(frozen);
        let trainer = builder.build().unwrap();
        let has_power = trainer.plan().launches().any(|launch| format!("{:?}", launch.kernel).contains("Power"));
        (trainer.parameters().unwrap().into_keys().collect::<Vec<String>>(), has_power)
    };
    assert_eq!(trained("val_2"), (vec!["pool.p".to_string(), "w".to_string()], true));
    assert_eq!(trained("pool.p"), (vec!["w".to_string()], false));
}

/// With PyTorch's older exporter, whatever is named like an attribute of the module is one.
#[test]
fn scalars_at_the_top_of_a_module_train() {
    let graph = GraphBuilder::new()
        .producer("pytorch")
        .input("x", FLOAT, &["4", "2"])
        .floats("w", &[2, 3], &[0.5, -0.25, 0.75, 0.125, 0.3, -0.6])
        .floats("logit_scale", &[], &[0.5])
        .floats("onnx::Mul_3", &[], &[0.5])
        .floats("val_3", &[], &[0.5])
        .floats("scales.1", &[], &[0.5])
        .node("MatMul", &["x", "w"], &["small"])
        .node("Mul", &["small", "scales.1"], &["product"])
        .node("Mul", &["product", "logit_scale"], &["scaled"])
        .node("Mul", &["scaled", "val_3"], &["halved"])
        .node("Mul", &["halved", "onnx::Mul_3"], &["logits"])
        .output("logits", FLOAT, &["4", "3"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    assert_eq!(model.untrained_initializers().unwrap(), ["onnx::Mul_3", "val_3"]);
}

/// A table with infinities, or with the lowest number instead, is a mask, which neither training nor weight decay may change.
#[test]
fn masks_do_not_train() {
    for lowest in [f32::NEG_INFINITY, f32::MIN] {
        let mask: Vec<f32> = (0..16).map(|i| if i % 4 > i / 4 { lowest } else { 0.0 }).collect();
        let graph = GraphBuilder::new()
            .input("x", FLOAT, &["4", "4"])
            .floats("w", &[4, 4], &[0.25; 16])
            .floats("mask", &[4, 4], &mask)
            .floats("v", &[4, 2], &[0.5, -0.25, 0.75, 0.125, 0.3, -0.6, 0.1, 0.2])
            .node("MatMul", &["x", "w"], &["scores"])
            .node("Add", &["scores", "mask"], &["masked"])
            .node("Softmax", &["masked"], &["shares"])
            .node("MatMul", &["shares", "v"], &["y"])
            .output("y", FLOAT, &["4", "2"]);
        let model = Model::from_bytes(&graph.build()).unwrap();
        assert_eq!(model.untrained_initializers().unwrap(), ["mask"]);
        let builder = Trainer::builder(&model).loss(Loss::MeanSquaredError).optimizer(Optimizer::lamb(0.1));
        let mut trainer = builder.build().unwrap();
        assert_eq!(trainer.parameters().unwrap().into_keys().collect::<Vec<String>>(), ["v", "w"]);
        let x = Tensor::from_f32(&[4, 4], &(0..16).map(|i| i as f32 / 16.0).collect::<Vec<f32>>());
        for _ in 0..3 {
            let labels = Tensor::from_f32(&[4, 2], &[0.5; 8]);
            assert!(trainer.step([("x".to_string(), x.clone())].into(), labels).unwrap().loss.is_finite());
        }
    }
}

#[test]
fn weights_may_have_4_bits() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2", "3"])
        .raw("w", INT4, &[3, 3], &[0x21, 0xf8, 0x70, 0x9c, 0x05])
        .floats("scale", &[], &[0.5])
        .raw("zero", INT4, &[], &[0x01])
        .node("DequantizeLinear", &["w", "scale", "zero"], &["real"])
        .node("MatMul", &["x", "real"], &["product"])
        .output("product", FLOAT, &["2", "3"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let mut session = Session::builder(&model).build().unwrap();
    let x = Tensor::from_f32(&[2, 3], &[1.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
    let outputs = session.run([("x".to_string(), x)].into()).unwrap();
    // Low nibbles first: 1 2 -8, -1 0 7, -4 -7 5, minus 1, times 0.5.
    assert_eq!(outputs["product"].to_f32().unwrap(), [0.0, 0.5, -4.5, -6.0, -8.5, 7.0]);
}

/// A chain of matrices, each followed by a function, with the weights in a separate file.
fn chain(folder: &Path) -> Model {
    const COUNT: usize = 8;
    let (mut data, mut initializers, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = "x".to_string();
    for layer in 0..COUNT {
        let (weight, product, value) = (format!("w{layer}"), format!("m{layer}"), format!("h{layer}"));
        initializers.push(onnx::external(&weight, &[WIDTH, WIDTH], "chain.bin", data.len() as u64));
        let numbers = (0..WIDTH * WIDTH).map(|i| ((i * 7919 + layer * 104_729) % 1009) as f32 / 5040.0 - 0.1);
        data.extend(numbers.flat_map(f32::to_le_bytes));
        nodes.push(onnx::node("MatMul", &[&last, &weight], &product, &[]));
        nodes.push(onnx::node("Tanh", &[&product], &value, &[]));
        last = value;
    }
    let sizes = [ROWS, WIDTH];
    std::fs::write(folder.join("chain.bin"), data).unwrap();
    std::fs::write(folder.join("chain.onnx"), onnx::model(&nodes, &initializers, ("x", &sizes), (&last, &sizes)))
        .unwrap();
    Model::from_file(folder.join("chain.onnx")).unwrap()
}

/// A device that holds two matrices, and a host with the smallest possible memory.
fn little(model: &Model) -> EngineOptions {
    let with_host =
        |bytes| host(2).check(true).simulate_device(MemorySize::Bytes(1 << 20)).host_memory(MemorySize::Bytes(bytes));
    match session(model, with_host(1)).err() {
        Some(Error::Plan(PlanError::HostBudget { needed_bytes, spilled: false, .. })) => with_host(needed_bytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn weights_that_fit_nowhere_are_read_from_their_file_in_each_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = chain(folder.path());
    let expected = run(&model, host(2));
    let engine = little(&model);
    let Some(MemorySize::Bytes(host_bytes)) = engine.memory.host_memory else { panic!("{engine:?}") };
    let mut tight = session(&model, engine.clone()).unwrap();
    for _ in 0..3 {
        assert_eq!(tight.run(batch()).unwrap(), expected);
    }
    let found = tight.plan().unwrap().statistics.clone();
    assert!(found.model_files_bytes > 6 * 4 * (WIDTH * WIDTH) as u64, "{found:?}");
    assert!(found.bytes_from_model_files > found.model_files_bytes / 2 && found.spill_bytes == 0, "{found:?}");
    let usage = tight.usage();
    assert!(usage.heap_peak_bytes <= 1 << 20 && usage.host_peak_bytes <= host_bytes, "{usage:?}");
    assert_eq!(usage.disk_peak_bytes, 0);
    // Replacing the open file makes no difference; modifying it is detected each time.
    let file = folder.path().join("chain.bin");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(tight.run(batch()).unwrap(), expected);
    // The first failing run puts the plan on the device again if the step before it was measured, and uses the one there if not.
    for steps_before in [1, 4] {
        std::fs::write(&file, &bytes).unwrap();
        let model = Model::from_file(folder.path().join("chain.onnx")).unwrap();
        let mut tight = session(&model, engine.clone()).unwrap();
        for _ in 0..steps_before {
            assert_eq!(tight.run(batch()).unwrap(), expected);
        }
        std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(bytes.len() as u64 / 2).unwrap();
        for _ in 0..3 {
            let error = tight.run(batch()).unwrap_err().to_string();
            assert!(error.contains("chain.bin") && error.contains("was changed after the model was read"), "{error}");
        }
    }
}

/// Weights that adapters leave unchanged need no memory of their own during training either.
#[test]
fn adapters_train_with_frozen_weights_in_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = LoraOptions::new("w*");
    options.rank = 2;
    let model = chain(folder.path()).with_adapters(&options).unwrap();
    let training = || TrainingOptions::new(Loss::MeanSquaredError, Optimizer::adam(0.01));
    let train = |engine: EngineOptions| {
        let mut trainer = Trainer::new(model.clone(), trainer_options(training(), engine)).unwrap();
        let losses: Vec<u32> = (0..3).map(|_| trainer.step(batch(), input()).unwrap().loss.to_bits()).collect();
        (losses, trainer.parameters().unwrap(), trainer.statistics().clone())
    };
    let free = train(host(2));
    let with_host =
        |bytes| host(2).check(true).simulate_device(MemorySize::Bytes(2 << 20)).host_memory(MemorySize::Bytes(bytes));
    let refused = Trainer::new(model.clone(), trainer_options(training(), with_host(1))).err();
    let Some(Error::Plan(PlanError::HostBudget { needed_bytes, .. })) = refused else { panic!("{refused:?}") };
    let tight = train(with_host(needed_bytes));
    assert!(tight.2.model_files_bytes > 0 && tight.2.spill_bytes == 0, "{:?}", tight.2);
    assert!((&tight.0, &tight.1) == (&free.0, &free.1), "other bits");
}

/// Batch normalizations with `Constant` nodes of their own as scales and biases share running statistics: a module without parameters that
/// is applied twice.
#[test]
fn a_module_without_parameters_may_be_applied_twice() {
    for channels in [64, 512] {
        let size = channels.to_string();
        let constant = |graph: GraphBuilder, name: &str, number: f32| {
            let value = Value::Floats(vec![channels], vec![number; channels]);
            graph.node_with("Constant", &[], &[name], vec![("value", value)])
        };
        let mut graph = GraphBuilder::new()
            .input("x", FLOAT, &["4", &size])
            .floats("w", &[channels], &vec![0.5; channels])
            .floats("mean", &[channels], &vec![0.0; channels])
            .floats("variance", &[channels], &vec![1.0; channels]);
        for (name, number) in [("scale1", 1.0), ("bias1", 0.0), ("scale2", 1.0), ("bias2", 0.0)] {
            graph = constant(graph, name, number);
        }
        let graph = graph
            .node("BatchNormalization", &["x", "scale1", "bias1", "mean", "variance"], &["normalized"])
            .node("Mul", &["normalized", "w"], &["product"])
            .node("BatchNormalization", &["product", "scale2", "bias2", "mean", "variance"], &["y"])
            .output("y", FLOAT, &["4", &size]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, graph.build()).unwrap();
        let trainer = Trainer::builder(&Model::from_file(&path).unwrap()).loss(Loss::MeanSquaredError).build().unwrap();
        let state = trainer.state().unwrap();
        assert!(state.contains_key("mean") && !state.keys().any(|name| name.contains("normalized")), "{channels}");
    }
}

/// Three layers, all ones of which are one initializer, as are all zeros: `shift` if `merged`. The last two layers are the same module.
fn normalized(merged: bool) -> Vec<u8> {
    let mut graph = GraphBuilder::new().input("x", FLOAT, &["4", "2"]).floats("w", &[2, 2], &[0.5, -0.25, 0.75, 0.125]);
    let own = |name: &'static str, of: &'static str| if merged { of } else { name };
    let names =
        [("scale", 1.0), ("shift", 0.0), ("shift.a", 0.0), ("scale.a", 1.0), ("shift.b", 0.0), ("scale.b", 1.0)];
    for (name, number) in names.into_iter().take(if merged { 2 } else { 6 }) {
        graph = graph.floats(name, &[2], &[number; 2]);
    }
    let first = [own("shift.a", "shift"), own("scale.a", "scale")];
    let second = [own("shift.b", "shift"), own("scale.b", "scale")];
    let graph = graph
        .node("BatchNormalization", &["x", "scale", "shift", first[0], first[1]], &["a"])
        .node("MatMul", &["a", "w"], &["product"])
        .floats("scale2", &[2], &[1.5, 0.5])
        .node("BatchNormalization", &["product", "scale2", "shift", second[0], second[1]], &["b"])
        .node("BatchNormalization", &["b", "scale2", "shift", second[0], second[1]], &["y"])
        .output("y", FLOAT, &["4", "2"]);
    graph.build()
}

#[test]
fn merged_running_statistics_become_separate() {
    let folder = tempfile::tempdir().unwrap();
    let x = Tensor::from_f32(&[4, 2], &[1.0, 2.0, -1.0, 0.5, 0.25, -0.75, 2.0, 1.0]);
    let batch = || BTreeMap::from([("x".to_string(), x.clone())]);
    let [plain, merged] = [false, true].map(|merged| Model::from_bytes(&normalized(merged)).unwrap());
    let build = |model: &Model| {
        let builder = Trainer::builder(model).loss(Loss::MeanSquaredError).optimizer(Optimizer::sgd(0.1));
        builder.build().unwrap()
    };
    let (mut expected, mut trainer) = (build(&plain), build(&merged));
    let step = |trainer: &mut Trainer| trainer.step(batch(), x.clone()).unwrap().loss;
    assert_eq!(step(&mut trainer), step(&mut expected));
    let position = serde_json::Value::Null;
    let checkpoint = trainer.checkpoint(&position).unwrap();
    let mut resumed = build(&merged);
    resumed.restore(&checkpoint).unwrap();
    let loss = step(&mut resumed);
    assert_eq!((loss, loss), (step(&mut trainer), step(&mut expected)));
    assert_eq!(trainer.parameters().unwrap(), expected.parameters().unwrap());
    assert_eq!(trainer.state().unwrap(), expected.state().unwrap());
    // What is saved has the separate statistics, and can be trained further.
    let path = |name: &str| folder.path().join(name);
    resumed.save(path("saved.onnx")).unwrap();
    resumed.checkpoint(&position).unwrap().export(&merged, path("exported.onnx")).unwrap();
    assert!(std::fs::read(path("saved.onnx")).unwrap() == std::fs::read(path("exported.onnx")).unwrap());
    expected.save(path("expected.onnx")).unwrap();
    let [saved, expected] = ["saved.onnx", "expected.onnx"].map(|name| Model::from_file(path(name)).unwrap());
    let run = |model: &Model| Session::builder(model).build().unwrap().run(batch()).unwrap();
    assert_eq!(run(&saved), run(&expected));
    let mut further = build(&saved);
    further.restore(&resumed.checkpoint(&position).unwrap()).unwrap();
    assert_eq!(step(&mut further), step(&mut resumed));
}

#[test]
fn models_that_no_file_can_hold_are_found_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, columns) = (1 << 15, 1 << 14);
    let w = onnx::external("w", &[rows, columns], "weights.bin", 0);
    let file = std::fs::File::create(folder.path().join("weights.bin")).unwrap();
    file.set_len(4 * (rows * columns) as u64).unwrap();
    let nodes = [onnx::node("MatMul", &["x", "w"], "y", &[])];
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, onnx::model(&nodes, &[w], ("x", &[1, rows]), ("y", &[1, columns]))).unwrap();
    let error = Model::from_file(&path).unwrap().check_size().unwrap_err().to_string();
    assert!(error.contains("an ONNX file can have at most"), "{error}");
}
