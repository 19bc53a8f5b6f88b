//! Plans of large programs: the first plan is ready soon, and a better one takes over while steps run.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{EngineOptions, Error, Model, PlanError, PlanSearch, Tensor, Trainer};
use forebay_golden::host;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

const LAYERS: usize = 70;
const WIDTH: u64 = 16;
const SAMPLES: u64 = 512;

/// Many small layers, each added to its input.
fn deep() -> Model {
    let mut graph = GraphBuilder::new().input("x", FLOAT, &["512", "16"]);
    let mut last = "x".to_string();
    for layer in 0..LAYERS {
        let [weight, product, hidden, sum] = ["w", "p", "h", "s"].map(|kind| format!("{kind}{layer}"));
        let values: Vec<f32> = (0..WIDTH * WIDTH).map(|i| ((i * 7 + layer as u64) % 13) as f32 * 0.02 - 0.12).collect();
        graph = graph
            .floats(&weight, &[WIDTH as usize, WIDTH as usize], &values)
            .node("MatMul", &[&last, &weight], &[&product])
            .node("Tanh", &[&product], &[&hidden])
            .node("Add", &[&last, &hidden], &[&sum]);
        last = sum;
    }
    Model::from_bytes(&graph.output(&last, FLOAT, &["512", "16"]).build()).unwrap()
}

fn trainer(engine: EngineOptions) -> Trainer {
    forebay_golden::trainer(deep(), TrainingOptions::new(Loss::MeanSquaredError, Optimizer::adam(0.001)), engine)
}

fn batch(step: u64) -> (BTreeMap<String, Tensor>, Tensor) {
    let values =
        |seed: u64| (0..SAMPLES * WIDTH).map(|i| ((i * 5 + seed) % 11) as f32 * 0.1 - 0.5).collect::<Vec<f32>>();
    let shape = [SAMPLES, WIDTH];
    ([("x".to_string(), Tensor::from_f32(&shape, &values(step)))].into(), Tensor::from_f32(&shape, &values(step + 3)))
}

/// A quarter of the memory, on a slow link.
fn within_a_quarter() -> EngineOptions {
    let mut engine = host(2);
    engine.memory.simulate_device = Some("25%".parse().unwrap());
    engine.device.link_bytes_per_second = Some(32 << 20);
    assert_eq!(engine.planning.search, PlanSearch::Continued);
    engine
}

#[test]
fn steps_have_the_same_bits_before_and_after_a_plan_takes_over() {
    let mut unlimited = trainer(host(2));
    let mut continued = trainer(within_a_quarter());
    let statistics = continued.statistics();
    assert!(statistics.search_ended_early, "{} launches", statistics.launches);
    let budget_bytes = statistics.device_budget_bytes.unwrap();
    // When a better plan arrives, and whether it arrives soon, depends on the machine.
    let mut last = 40;
    for step in 0.. {
        let (inputs, labels) = batch(step);
        let report = continued.step(inputs.clone(), labels.clone()).unwrap();
        let expected = unlimited.step(inputs, labels).unwrap().loss;
        assert_eq!(report.loss.to_bits(), expected.to_bits(), "step {step}");
        assert!(continued.statistics().device_peak_bytes <= budget_bytes);
        if let Some(replan) = report.replan {
            assert!(step > 1, "the search began after the second step");
            assert!(replan.new_seconds < replan.old_seconds, "{replan:?}");
            last = last.min(step + 3);
        }
        if step == last {
            break;
        }
    }
    assert_eq!(continued.parameters().unwrap(), unlimited.parameters().unwrap());
}

#[test]
fn a_step_runs_as_before_after_planning_was_stopped() {
    let mut engine = host(1);
    engine.memory.simulate_device = Some("60%".parse().unwrap());
    let stop = engine.planning.stop.clone();
    let (mut unlimited, mut stopped) = (trainer(host(1)), trainer(engine));
    let step = |trainer: &mut Trainer, number| {
        let (inputs, labels) = batch(number);
        trainer.step(inputs, labels).unwrap().loss.to_bits()
    };
    assert_eq!(step(&mut stopped, 0), step(&mut unlimited, 0));
    stop.make();
    let refused = stopped.set_device_memory(Some("70%".parse().unwrap()));
    assert!(matches!(refused, Err(Error::Plan(PlanError::Stopped))), "{refused:?}");
    assert_eq!(step(&mut stopped, 1), step(&mut unlimited, 1));
}
