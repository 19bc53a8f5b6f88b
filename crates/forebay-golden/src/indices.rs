//! A model that computes the indices of a table's rows, to test what happens if one is out of range.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{EngineOptions, Error, MemorySize, Model, RuntimeError, Session, Tensor};

use forebay_base::{Kernel, Launch};

use crate::{onnx, trainer};

/// The number of rows of the table, and the sizes of the indices.
const ROWS: usize = 40;
const INDICES: [usize; 2] = [6, 500];
const COLUMNS: usize = 60;

/// Returns the model y = table\[integer(x + 0)].
fn model() -> Model {
    let count = INDICES[0] * INDICES[1];
    let table: Vec<f64> = (0..ROWS * COLUMNS).map(|i| (i % 97) as f64 / 97.0).collect();
    let nodes = [
        onnx::node("Add", &["x", "zero"], "sum", &[]),
        onnx::node("Cast", &["sum"], "indices", &[("to", &[7], false)]),
        onnx::node("Gather", &["table", "indices"], "y", &[]),
    ];
    let initializers =
        [onnx::floats("zero", &INDICES, &vec![0.0; count]), onnx::floats("table", &[ROWS, COLUMNS], &table)];
    let [rows, columns] = INDICES;
    let bytes = onnx::model(&nodes, &initializers, ("x", &INDICES), ("y", &[rows, columns, COLUMNS]));
    Model::from_bytes(&bytes).unwrap()
}

/// Returns indices that are in range, except for `wrong`.
fn input(wrong: Option<f32>) -> Tensor {
    let mut values: Vec<f32> = (0..INDICES[0] * INDICES[1]).map(|i| (i * 7 % ROWS) as f32 - 3.0).collect();
    if let Some(index) = wrong {
        values[ELEMENT] = index;
    }
    Tensor::from_f32(&INDICES.map(|size| size as u64), &values)
}

fn fed(wrong: Option<f32>) -> BTreeMap<String, Tensor> {
    BTreeMap::from([("x".to_string(), input(wrong))])
}

/// The position of a wrong index: the fourth one in the last row.
const ELEMENT: usize = 5 * INDICES[1] + 3;

/// Checks what the error says about the wrong index.
fn assert_named(error: &Error, index: i64) {
    let Error::Runtime(RuntimeError::Index { name, element, index: found, limit, .. }) = error else {
        panic!("{error}")
    };
    assert!(name.contains('y'), "{name}");
    assert_eq!((*element, *found, *limit), (ELEMENT as u64, index, ROWS as u64));
    let text = error.to_string();
    assert!(text.contains(name) && text.contains(&ELEMENT.to_string()) && text.contains(&index.to_string()), "{text}");
}

fn training() -> TrainingOptions {
    let sgd = Optimizer::sgd(0.5);
    TrainingOptions::new(Loss::MeanSquaredError, sgd)
}

/// Returns the minimum device memory in which the model trains, in bytes, with its gather in parts.
pub fn least_memory_bytes() -> u64 {
    let least = trainer(model(), training(), EngineOptions::default()).statistics().minimum_budget_bytes;
    let engine = EngineOptions::default().simulate_device(MemorySize::Bytes(least));
    let limited = trainer(model(), training(), engine);
    let is_part = |launch: &&Launch| matches!(launch.kernel, Kernel::Gather { .. });
    assert!(limited.plan().launches().filter(is_part).count() > 1, "the gather runs in parts");
    least
}

/// Runs and trains with an index that is too large and one that is too small, and then with valid ones.
pub fn are_refused_when_out_of_range(engine: &EngineOptions) {
    let mut session = Session::builder(&model()).engine(engine.clone()).build().unwrap();
    let expected = session.run(fed(None)).unwrap();
    for index in [ROWS as i64, -(ROWS as i64) - 1, 1 << 40] {
        assert_named(&session.run(fed(Some(index as f32))).unwrap_err(), index);
        assert!(session.run(fed(None)).unwrap() == expected, "a good run after a bad one");
    }

    let [rows, columns] = INDICES.map(|size| size as u64);
    let labels = Tensor::from_f32(&[rows, columns, COLUMNS as u64], &vec![0.5; element_count()]);
    let mut trainer = trainer(model(), training(), engine.clone());
    let first = trainer.step(fed(None), labels.clone()).unwrap().loss;
    let before = trainer.parameters().unwrap();
    assert_named(&trainer.step(fed(Some(40.0)), labels.clone()).unwrap_err(), 40);
    assert!(trainer.parameters().unwrap() == before, "the step changed nothing");
    assert!(trainer.step(fed(None), labels).unwrap().loss < first, "and training continues");
}

fn element_count() -> usize {
    INDICES[0] * INDICES[1] * COLUMNS
}
