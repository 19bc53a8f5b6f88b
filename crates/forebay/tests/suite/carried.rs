//! Initializers that a model itself changes in each training step.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer};
use forebay::{Model, PartsApart, Session, Tensor, Trainer};
use forebay_golden::host;
use forebay_golden::onnx::builder::{FLOAT, GraphBuilder, INT64, Value};

/// A model that subtracts a moving average of a product from the product, multiplies by the number of steps so far, and counts another one.
/// `counter` is what changes at the latter.
fn bytes(counter: &str) -> Vec<u8> {
    let mut graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "2"])
        .floats("w", &[2, 2], &[1.0, 2.0, 3.0, 4.0])
        .floats("average", &[2], &[0.0, 8.0])
        .floats("half", &[2], &[0.5, 0.5])
        .integers("steps", &[], &[3])
        .integers("one", &[], &[1])
        .integers("samples", &[1], &[0]);
    graph = graph
        .node("MatMul", &["x", "w"], &["product"])
        .node("Sub", &["product", "average"], &["centered"])
        .node_with("Cast", &["steps"], &["factor"], vec![("to", Value::Int(FLOAT))])
        .node("Mul", &["centered", "factor"], &["y"])
        .node_with("ReduceMean", &["product", "samples"], &["mean"], vec![("keepdims", Value::Int(0))])
        .own("Identity", &["mean"], &["ended"])
        .node("Add", &["average", "ended"], &["sum"])
        .node("Mul", &["sum", "half"], &["new"])
        .own("Next", &["new", "average"], &["next:average"])
        .node("Add", &["steps", "one"], &["more"])
        .own("Next", &["more", counter], &["next:steps"]);
    graph.output("y", FLOAT, &["N", "2"]).output("next:average", FLOAT, &["2"]).output("next:steps", INT64, &[]).build()
}

fn batch(first: f32) -> (BTreeMap<String, Tensor>, Tensor) {
    let x: Vec<f32> = (0..8).map(|i| first + i as f32).collect();
    ([("x".to_string(), Tensor::from_f32(&[4, 2], &x))].into(), Tensor::from_f32(&[4, 2], &[0.0; 8]))
}

fn trainer(parts: u64) -> Trainer {
    let model = Model::from_bytes(&bytes("steps")).unwrap();
    let builder = Trainer::builder(&model).engine(host(2)).optimizer(Optimizer::sgd(1e-3)).loss(Loss::MeanSquaredError);
    builder.loss_output("y").freeze("half").batch_size(4 / parts).accumulate(parts).build().unwrap()
}

/// The parameters, the average and the counter after each step, and the loss, computed in the plainest way.
fn expected(parts: usize, steps: usize) -> (Vec<f32>, [f32; 2], i64, f32) {
    let (mut w, mut average, mut counter, mut loss) = ([1.0f32, 2.0, 3.0, 4.0], [0.0f32, 8.0], 3i64, 0.0);
    for step in 0..steps {
        let x: Vec<f32> = (0..8).map(|i| step as f32 + i as f32).collect();
        let (mut gradient, rows) = ([0.0f32; 4], 4 / parts);
        loss = 0.0;
        for part in x.chunks(2 * rows) {
            let mut mean = [0.0f32; 2];
            for row in part.chunks(2) {
                for column in 0..2 {
                    let product = row[0] * w[column] + row[1] * w[2 + column];
                    mean[column] += product / rows as f32;
                    let y = (product - average[column]) * counter as f32;
                    loss += y * y / 8.0;
                    let d = 2.0 * y / 8.0 * counter as f32;
                    gradient[column] += d * row[0];
                    gradient[2 + column] += d * row[1];
                }
            }
            for column in 0..2 {
                average[column] = (average[column] + mean[column]) * 0.5;
            }
            counter += 1;
        }
        w.iter_mut().zip(gradient).for_each(|(w, d)| *w -= 1e-3 * d);
    }
    (w.to_vec(), average, counter, loss)
}

#[test]
fn each_step_begins_with_what_the_last_one_left() {
    for parts in [1, 2] {
        let mut trainer = trainer(parts);
        assert_eq!(trainer.parts_apart(), (parts > 1).then_some(PartsApart::BatchStatistics));
        for step in 1..=3 {
            let (x, labels) = batch(step as f32 - 1.0);
            let found = trainer.step(x, labels).unwrap().loss;
            let (w, average, counter, loss) = expected(parts as usize, step);
            let close = |found: &[f32], expected: &[f32]| {
                let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
                assert!(found.iter().zip(expected).all(is_close), "{parts}: {found:?} {expected:?}");
            };
            close(&[found], &[loss]);
            close(&trainer.parameter("w").unwrap().unwrap().to_f32().unwrap(), &w);
            let state = trainer.state().unwrap();
            close(&state["average"].to_f32().unwrap(), &average);
            assert_eq!(state["steps"], Tensor::from_i64(&[], &[counter]));
            assert_eq!(state.len(), 2);
            // An evaluation uses these values, and leaves them as they are.
            let (x, labels) = batch(0.0);
            let y = trainer.evaluate(x, labels).unwrap().logits.to_f32().unwrap();
            let product = [0.0 * w[0] + w[2], 0.0 * w[1] + w[3]];
            close(&y[..2], &[0, 1].map(|i| (product[i] - average[i]) * counter as f32));
        }
    }
}

#[test]
fn checkpoints_and_saved_models_have_the_newest_values() {
    let mut first = trainer(1);
    let (x, labels) = batch(0.0);
    first.step(x.clone(), labels.clone()).unwrap();
    let checkpoint = first.checkpoint(&serde_json::Value::Null).unwrap();
    let mut second = trainer(1);
    second.restore(&checkpoint).unwrap();
    let losses = [&mut first, &mut second].map(|trainer| trainer.step(x.clone(), labels.clone()).unwrap().loss);
    assert_eq!(losses[0].to_bits(), losses[1].to_bits());
    let path = std::env::temp_dir().join(format!("forebay-carried-{}.onnx", std::process::id()));
    first.save(&path).unwrap();
    let saved = Model::from_bytes(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(saved.outputs().iter().map(|output| output.name.as_str()).collect::<Vec<_>>(), ["y"]);
    let mut session = Session::builder(&saved).engine(host(1)).build().unwrap();
    let y = session.run(x.clone()).unwrap()["y"].clone();
    assert_eq!(y, first.evaluate(x, labels).unwrap().logits);
}

#[test]
fn what_changes_must_be_an_initializer() {
    let error = Model::from_bytes(&bytes("more")).unwrap_err().to_string();
    assert!(error.contains("its second input must be an initializer"), "{error}");
    let error = Model::from_bytes(&bytes("average")).unwrap_err().to_string();
    assert!(error.contains("'average' has another next value already"), "{error}");
}
