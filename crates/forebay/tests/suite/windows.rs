//! Samples that are larger than a model's input: merged windows, their loss, and the same bits within budgets.

use std::collections::BTreeMap;

use forebay::training::{Loss, LossTerm, TrainingOptions};
use forebay::{Blend, Error, Evaluation, MemorySize, Model, PlanError, Tensor, Trainer, TrainerOptions, Windows};
use forebay_testing::Random;
use forebay_testing::onnx::FLOAT;
use forebay_testing::onnx::builder::{GraphBuilder, Value};

const WINDOW: [u64; 2] = [24, 32];

/// Two convolutions over images of any size, with three classes.
fn model() -> Model {
    let mut random = Random::new(1);
    let mut weights = |count: usize| -> Vec<f32> { (0..count).map(|_| standard(&mut random) * 0.4).collect() };
    let same = || vec![("pads", Value::Ints(vec![1, 1, 1, 1]))];
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["n", "2", "h", "w"])
        .output("logits", FLOAT, &["n", "3", "h", "w"])
        .floats("first", &[8, 2, 3, 3], &weights(144))
        .floats("second", &[3, 8, 3, 3], &weights(216))
        .node_with("Conv", &["x", "first"], &["a"], same())
        .node("Relu", &["a"], &["b"])
        .node_with("Conv", &["b", "second"], &["logits"], same());
    Model::from_bytes(&graph.build()).unwrap()
}

fn trainer(loss: Loss, change: impl Fn(&mut TrainerOptions)) -> Trainer {
    let mut options = TrainerOptions::new(TrainingOptions::default());
    options.training.loss = loss;
    options.batch_size = Some(4);
    options.sizes = [("h".to_string(), WINDOW[0]), ("w".to_string(), WINDOW[1])].into();
    options.engine.device.threads = Some(2);
    change(&mut options);
    Trainer::new(model(), options).unwrap()
}

/// A roughly normally distributed number.
fn standard(random: &mut Random) -> f32 {
    (0..4).map(|_| random.below(1001) as f32 / 500.0 - 1.0).sum::<f32>() * 0.9
}

/// Images of these sizes with labels.
fn images(count: u64, sizes: [u64; 2]) -> (BTreeMap<String, Tensor>, Tensor) {
    let (mut random, places) = (Random::new(count + sizes[1]), (count * sizes[0] * sizes[1]) as usize);
    let values: Vec<f32> = (0..2 * places).map(|_| standard(&mut random)).collect();
    let labels: Vec<i64> =
        values[..places].iter().map(|value| 1 + (value * 1.2).clamp(-1.0, 1.0).round() as i64).collect();
    let x = Tensor::from_f32(&[count, 2, sizes[0], sizes[1]], &values);
    ([("x".to_string(), x)].into(), Tensor::from_i64(&[count, sizes[0], sizes[1]], &labels))
}

/// The mean cross-entropy of logits [n, 3, ...].
fn cross_entropy(logits: &Tensor, labels: &Tensor) -> f64 {
    let (values, labels) = (logits.to_f32().unwrap(), labels.to_i64().unwrap());
    let inner = logits.shape()[2..].iter().product::<u64>() as usize;
    let of = |(place, label): (usize, &i64)| {
        let at = |class: usize| f64::from(values[(place / inner * 3 + class) * inner + place % inner]);
        (0..3).map(|class| at(class).exp()).sum::<f64>().ln() - at(*label as usize)
    };
    labels.iter().enumerate().map(of).sum::<f64>() / labels.len() as f64
}

#[test]
fn one_window_is_the_sample_itself() {
    let mut trainer = trainer(Loss::default(), |_| ());
    for (count, sizes) in [(1, [21, 30]), (3, [9, 13])] {
        let (batch, labels) = images(count, sizes);
        let whole = trainer.evaluate(batch.clone(), labels.clone()).unwrap();
        let windows = Windows::whole(2);
        let Evaluation { loss, logits, .. } =
            trainer.evaluate_windows(batch.clone(), labels.clone(), &windows).unwrap();
        assert_eq!(loss.to_bits(), whole.loss.to_bits());
        assert!(logits == whole.logits);
        // The convolutions see zeros around the sample anyway, except for the second one.
        let mut padded = windows;
        padded.multiple = 8;
        let padded = trainer.evaluate_windows(batch, labels, &padded).unwrap();
        assert_eq!(padded.logits.shape(), whole.logits.shape());
        let (found, expected) = (padded.logits.to_f32().unwrap(), whole.logits.to_f32().unwrap());
        let inside = |place: usize| {
            let (x, y) = (place as u64 % sizes[1], place as u64 / sizes[1] % sizes[0]);
            (1..sizes[1] - 1).contains(&x) && (1..sizes[0] - 1).contains(&y)
        };
        let close = |place: usize| (found[place] - expected[place]).abs() < 1e-5;
        assert!((0..found.len()).filter(|&place| inside(place)).all(close));
    }
}

#[test]
fn merged_windows_have_the_loss_of_all_places_and_the_same_bits_within_budgets() {
    let (batch, labels) = images(2, [50, 83]);
    for blend in [Blend::Constant, Blend::Gaussian] {
        let mut windows = Windows::new(&WINDOW);
        (windows.overlap, windows.blend) = (0.5, blend);
        let evaluate = |change: &dyn Fn(&mut TrainerOptions)| {
            let mut trainer = trainer(Loss::default(), change);
            let evaluation = trainer.evaluate_windows(batch.clone(), labels.clone(), &windows).unwrap();
            // Training continues as if nothing had happened.
            let (inputs, classes) = images(4, WINDOW);
            (evaluation, trainer.step(inputs, classes).unwrap().loss)
        };
        let (expected, step) = evaluate(&|_| ());
        assert_eq!(expected.logits.shape(), [2, 3, 50, 83]);
        let by_hand = cross_entropy(&expected.logits, &labels);
        assert!((f64::from(expected.loss) - by_hand).abs() < 1e-6 * by_hand, "{} and {by_hand}", expected.loss);
        let limited = |options: &mut TrainerOptions| {
            options.engine.memory.simulate_device = Some("60%".parse::<MemorySize>().unwrap());
            options.engine.device.threads = Some(1);
        };
        assert!(evaluate(&limited) == (expected.clone(), step), "{blend}: other bits");
        // The part of a window's prediction that no other window covers is unchanged.
        let mut trainer = trainer(Loss::default(), |_| ());
        let first = forebay::data::cut_box(&batch["x"], &[0, 0], &WINDOW);
        let classes = forebay::data::cut_box(&labels, &[0, 0], &WINDOW);
        let alone = trainer.evaluate([("x".to_string(), first)].into(), classes).unwrap().logits;
        let corner = |logits: &Tensor| forebay::data::cut_box(logits, &[0, 0], &[4, 6]).to_f32().unwrap();
        let pairs = corner(&alone).into_iter().zip(corner(&expected.logits));
        assert!(pairs.into_iter().all(|(one, other)| (one - other).abs() <= 1e-6 * one.abs().max(1.0)));
    }
}

#[test]
fn smaller_samples_have_zeros_around_them() {
    let mut trainer = trainer(Loss::default(), |_| ());
    let (batch, labels) = images(1, [5, 32]);
    let evaluation = trainer.evaluate_windows(batch.clone(), labels, &Windows::new(&WINDOW)).unwrap();
    let padded = forebay::data::cut_box(&batch["x"], &[-9, 0], &WINDOW);
    let classes = Tensor::from_i64(&[1, 24, 32], &[0; 768]);
    let whole = trainer.evaluate([("x".to_string(), padded)].into(), classes).unwrap().logits;
    assert!(evaluation.logits == forebay::data::cut_box(&whole, &[9, 0], &[5, 32]));
}

#[test]
fn parts_of_a_batch_and_losses_of_several_predictions_have_windows_too() {
    let (batch, labels) = images(1, [50, 83]);
    let windows = Windows::new(&WINDOW);
    let mut parts = trainer(Loss::default(), |options| options.training.accumulate = 2);
    let evaluation = parts.evaluate_windows(batch.clone(), labels.clone(), &windows).unwrap();
    // The same loss twice, the second one with a separate output: the mean over the windows.
    let mut several = trainer(Loss::default(), |options| {
        options.training.loss_weight = Some(0.5);
        let mut term = LossTerm::new("logits", Loss::default());
        term.weight = 0.5;
        options.training.terms.push(term);
    });
    let mean = several.evaluate_windows(batch, labels, &windows).unwrap();
    assert!(mean.logits == evaluation.logits);
    assert!((mean.loss - evaluation.loss).abs() < 0.05 * evaluation.loss, "{} and {}", mean.loss, evaluation.loss);
}

#[test]
fn budgets_that_are_too_small_are_found_before_training() {
    let mut small = trainer(Loss::default(), |options| {
        options.engine.memory.simulate_device = Some("100%".parse::<MemorySize>().unwrap());
    });
    small.plan_windows(&[50, 83], &Windows::new(&WINDOW)).unwrap();
    let error = small.plan_windows(&[500, 830], &Windows::whole(2)).unwrap_err();
    assert!(matches!(error, Error::Plan(PlanError::DeviceBudget { .. })), "{error}");
    assert!(small.plan_windows(&[50], &Windows::new(&WINDOW)).unwrap_err().to_string().contains("[50]"));
    let (batch, labels) = images(1, [50, 83]);
    assert!(small.evaluate_windows(batch, labels, &Windows::new(&WINDOW)).is_ok());
}

#[test]
fn what_has_no_windows_is_told() {
    let mut trainer = trainer(Loss::default(), |_| ());
    let (batch, labels) = images(1, [50, 83]);
    let mut say =
        |windows: &Windows| trainer.evaluate_windows(batch.clone(), labels.clone(), windows).unwrap_err().to_string();
    assert!(say(&Windows::new(&[2, 2, 8, 12])).contains("no input has more than 4"));
    let mut all = Windows::new(&WINDOW);
    all.overlap = 1.0;
    assert!(say(&all).contains("of their sizes, not 1"));
    let fixed = Model::from_file("../../testdata/golden/digits-cnn/model.onnx").unwrap();
    let error = Trainer::builder(&fixed).build().unwrap().plan_windows(&[12, 12], &Windows::whole(2)).unwrap_err();
    assert!(error.to_string().contains("[12, 12]") && error.to_string().contains("dimension 2"), "{error}");
}
