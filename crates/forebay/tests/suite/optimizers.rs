//! Optimizers: five steps compared with PyTorch, the same bits within every budget, and state in checkpoints.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{EngineOptions, MemorySize, Model, Tensor, Trainer};
use forebay_golden::{everything, host, trainer};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};
use serde_json::Value;

fn table() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/training/optimizers.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn model(start: &Value) -> Model {
    Model::from_bytes(&GraphBuilder::two_layers(|name| floats(&start[name])).build()).unwrap()
}

/// The optimizer of a case, with the settings of the script that generated the table.
fn optimizer(name: &str) -> Optimizer {
    match name {
        "rmsprop" => Optimizer::rms_prop(0.02),
        "rmsprop_all" => Optimizer::RmsProp {
            learning_rate: 0.01,
            decay_rate: 0.9,
            epsilon: 1e-6,
            momentum: 0.8,
            centered: true,
            weight_decay: 0.1,
        },
        "adagrad" => Optimizer::adagrad(0.1),
        "adagrad_all" => Optimizer::Adagrad { learning_rate: 0.1, rate_decay: 0.5, epsilon: 1e-6, weight_decay: 0.1 },
        "lion" => Optimizer::lion(0.01),
        "lion_decay" => Optimizer::Lion { learning_rate: 0.02, beta1: 0.8, beta2: 0.7, weight_decay: 0.5 },
        "lamb" => Optimizer::lamb(0.01),
        "lamb_all" => {
            Optimizer::Lamb { learning_rate: 0.05, beta1: 0.8, beta2: 0.95, epsilon: 1e-3, weight_decay: 0.3 }
        }
        "adafactor" => Optimizer::adafactor(0.05),
        "adafactor_all" => Optimizer::Adafactor {
            learning_rate: 0.1,
            beta2_decay: -0.5,
            epsilon: 0.01,
            threshold: 1.5,
            weight_decay: 0.2,
        },
        "damped_sgd" => Optimizer::DampedSgd { learning_rate: 0.05, momentum: 0.8, dampening: 0.4, weight_decay: 0.1 },
        "ams_grad" | "ams_grad_w" => Optimizer::AmsGrad {
            learning_rate: 0.05,
            beta1: 0.8,
            beta2: 0.5,
            epsilon: 1e-3,
            weight_decay: 0.1,
            decoupled: name == "ams_grad_w",
        },
        "ada_max" => {
            Optimizer::AdaMax { learning_rate: 0.05, beta1: 0.8, beta2: 0.5, epsilon: 1e-3, weight_decay: 0.1 }
        }
        "n_adam" => Optimizer::NAdam {
            learning_rate: 0.05,
            beta1: 0.8,
            beta2: 0.95,
            epsilon: 1e-3,
            momentum_decay: 0.1,
            weight_decay: 0.1,
            decoupled: false,
        },
        "n_adam_w" => Optimizer::NAdam {
            learning_rate: 0.05,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            momentum_decay: 4e-3,
            weight_decay: 0.1,
            decoupled: true,
        },
        "r_adam" => Optimizer::RAdam {
            learning_rate: 0.05,
            beta1: 0.8,
            beta2: 0.9,
            epsilon: 1e-3,
            weight_decay: 0.1,
            decoupled: false,
        },
        "r_adam_w" => Optimizer::RAdam {
            learning_rate: 0.01,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
        },
        "adadelta" => Optimizer::Adadelta { learning_rate: 1.0, decay_rate: 0.8, epsilon: 1e-3, weight_decay: 0.1 },
        other => panic!("no optimizer for case '{other}' of the table; add it here"),
    }
}

fn batch(row: &Value) -> (BTreeMap<String, Tensor>, Tensor) {
    let x = Tensor::from_f32(&[3, 4], &floats(&row["x"]));
    (BTreeMap::from([("x".to_string(), x)]), Tensor::from_f32(&[3, 2], &floats(&row["y"])))
}

fn of_case(table: &Value, name: &str) -> Trainer {
    let options = TrainingOptions::new(Loss::MeanSquaredError, optimizer(name));
    trainer(model(&table["start"]), options, host(2).check(true))
}

#[test]
fn steps_are_those_of_pytorch() {
    let table = table();
    let cases = table["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 19);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let mut trainer = of_case(&table, name);
        for (row, expected) in table["batches"].as_array().unwrap().iter().zip(floats(&case["losses"])) {
            let (x, y) = batch(row);
            let found = trainer.step(x, y).unwrap().loss;
            assert!((found - expected).abs() <= 2e-5 * expected.abs().max(1.0), "{name}: loss {found}, not {expected}");
        }
        for (parameter, values) in trainer.parameters().unwrap() {
            for (found, expected) in values.to_f32().unwrap().into_iter().zip(floats(&case["end"][&parameter])) {
                assert!((found - expected).abs() <= 2e-5, "{name}: {parameter} has {found}, not {expected}");
            }
        }
    }
}

#[test]
fn state_is_in_checkpoints_and_numbers_change_without_another_plan() {
    let table = table();
    let batches: Vec<_> = table["batches"].as_array().unwrap().iter().map(batch).collect();
    for name in
        ["rmsprop_all", "adagrad_all", "lion_decay", "lamb_all", "adafactor_all", "ams_grad", "n_adam", "adadelta"]
    {
        let mut whole = of_case(&table, name);
        let plan = whole.plan().commands.len();
        let mut checkpoint = None;
        for (i, (x, y)) in batches.iter().enumerate() {
            if i == 2 {
                checkpoint = Some(whole.checkpoint(&Value::Null).unwrap());
            }
            whole.step(x.clone(), y.clone()).unwrap();
        }
        let mut resumed = of_case(&table, name);
        resumed.restore(&checkpoint.unwrap()).unwrap();
        for (x, y) in &batches[2..] {
            resumed.step(x.clone(), y.clone()).unwrap();
        }
        assert!(whole.parameters().unwrap() == resumed.parameters().unwrap(), "{name}");
        assert!(whole.state().unwrap() == resumed.state().unwrap() && !whole.state().unwrap().is_empty(), "{name}");
        let other = match optimizer(name) {
            Optimizer::RmsProp { .. } => optimizer("rmsprop"),
            _ => Optimizer::rms_prop(0.1),
        };
        assert!(whole.set_optimizer(other).is_err(), "{name}: other state");
        whole.set_optimizer(optimizer(name)).unwrap();
        assert_eq!(whole.plan().commands.len(), plan, "{name}");
    }
}

/// A model whose parameters and optimizer state make up most of a step's memory.
fn wide() -> Model {
    let numbers = |count: usize| (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 300.0).collect::<Vec<f32>>();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["8", "128"])
        .floats("w1", &[128, 256], &numbers(128 * 256))
        .floats("b1", &[256], &numbers(256))
        .floats("w2", &[256, 40], &numbers(256 * 40))
        .node("MatMul", &["x", "w1"], &["product1"])
        .node("Add", &["product1", "b1"], &["sum1"])
        .node("Relu", &["sum1"], &["hidden"])
        .node("MatMul", &["hidden", "w2"], &["y"])
        .output("y", FLOAT, &["8", "40"]);
    Model::from_bytes(&graph.build()).unwrap()
}

#[test]
fn budgets_keep_the_bits_of_every_optimizer() {
    let x: Vec<f32> = (0..8 * 128).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<f32> = (0..8 * 40).map(|i| (i as f32 * 0.11).cos()).collect();
    let batch = BTreeMap::from([("x".to_string(), Tensor::from_f32(&[8, 128], &x))]);
    let y = Tensor::from_f32(&[8, 40], &y);
    let run = |name: &str, engine: EngineOptions| {
        let options = TrainingOptions::new(Loss::MeanSquaredError, optimizer(name));
        let mut trainer = trainer(wide(), options, engine);
        let losses: Vec<u32> = (0..2).map(|_| trainer.step(batch.clone(), y.clone()).unwrap().loss.to_bits()).collect();
        (losses, everything(&trainer), trainer.statistics().clone())
    };
    for (name, share) in [
        ("rmsprop_all", None),
        ("adagrad", Some(50.0)),
        ("lamb_all", None),
        ("adafactor_all", Some(60.0)),
        ("ams_grad", None),
        ("ada_max", Some(60.0)),
    ] {
        let (losses, values, statistics) = run(name, host(2).check(true));
        let size = share.map_or(MemorySize::Bytes(statistics.minimum_budget_bytes), MemorySize::Percent);
        let limited = run(name, host(2).simulate_device(size).check(true));
        assert!(limited.0 == losses && limited.1 == values, "{name} within {size:?}");
    }
}
