//! Processing of gradients between the backward pass and the update: limits, norms, groups, skipped steps. Compared with PyTorch 2.15:
//!
//! ```python
//! vals = lambda n, s: torch.tensor([math.sin(i * 0.7 + s) for i in range(n)])
//! w1, b1, w2, b2 = vals(12, 0).reshape(3, 4), vals(4, 1), vals(8, 2).reshape(4, 2), vals(2, 3)
//! x, t = vals(12, 4).reshape(4, 3), vals(8, 5).reshape(4, 2) * 3
//! loss = ((torch.relu(x @ w1 + b1) @ w2 + b2 - t) ** 2).mean()   # three steps of SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
//! ```

use std::collections::BTreeMap;

use forebay::training::{Clipping, Loss, Optimizer, ParameterGroup};
use forebay::{Checkpoint, Error, MemorySize, Model, OnNan, StepReport, Tensor, Trainer, TrainerBuilder};
use forebay_golden::{Case, Run, host, recipe, trainer};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

fn values(count: usize, shift: f64, scale: f64) -> Vec<f32> {
    (0..count).map(|i| ((i as f64 * 0.7 + shift).sin() * scale) as f32).collect()
}

fn model() -> Model {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["4", "3"])
        .floats("w1", &[3, 4], &values(12, 0.0, 1.0))
        .floats("b1", &[4], &values(4, 1.0, 1.0))
        .floats("w2", &[4, 2], &values(8, 2.0, 1.0))
        .floats("b2", &[2], &values(2, 3.0, 1.0))
        .node("MatMul", &["x", "w1"], &["h"])
        .node("Add", &["h", "b1"], &["hb"])
        .node("Relu", &["hb"], &["r"])
        .node("MatMul", &["r", "w2"], &["o"])
        .node("Add", &["o", "b2"], &["y"])
        .output("y", FLOAT, &["4", "2"]);
    Model::from_bytes(&graph.build()).unwrap()
}

fn batch() -> (BTreeMap<String, Tensor>, Tensor) {
    let x = Tensor::from_f32(&[4, 3], &values(12, 4.0, 1.0));
    ([("x".to_string(), x)].into(), Tensor::from_f32(&[4, 2], &values(8, 5.0, 3.0)))
}

fn sgd(weight_decay: f32) -> Optimizer {
    Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay }
}

fn builder(optimizer: Optimizer) -> TrainerBuilder {
    Trainer::builder(&model()).engine(host(2)).loss(Loss::MeanSquaredError).optimizer(optimizer)
}

fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 2e-5 * expected.abs().max(0.1), "{what}: {found}, PyTorch {expected}");
    }
}

/// Compares three steps and their results with PyTorch's numbers.
fn check(builder: TrainerBuilder, what: &str, losses: [f32; 3], norms: Option<[f32; 3]>, w2: [f32; 8], b1: [f32; 4]) {
    let mut trainer = builder.build().unwrap();
    let reports = [(); 3].map(|()| {
        let (x, labels) = batch();
        trainer.step(x, labels).unwrap()
    });
    close(&reports.map(|report| report.loss), &losses, what);
    let found: Vec<f32> = reports.iter().filter_map(|report| report.gradient_norm).collect();
    close(&found, norms.as_ref().map_or(&[], |norms| norms.as_slice()), what);
    for (name, expected) in [("w2", w2.as_slice()), ("b1", &b1)] {
        close(&trainer.parameter(name).unwrap().unwrap().to_f32().unwrap(), expected, what);
    }
}

#[test]
fn limited_gradients_are_those_of_pytorch() {
    check(
        builder(sgd(0.01)).clipping(Clipping::Value(0.2)).gradient_norm(),
        "clip_grad_value_([w1, b1, w2, b2], 0.2)",
        [6.633773, 6.0879006, 5.150673],
        Some([6.254085, 5.8627725, 5.1880226]),
        [1.0002282, 0.53708833, -0.1448084, -0.7015865, -0.8784769, -0.5894816, 0.029480351, 0.6873016],
        [0.9488584, 0.8740023, 0.55957305, 0.15345162],
    );
    check(
        builder(sgd(0.01)).clipping(Clipping::Norm(0.5)),
        "[clip_grad_norm_([p], 0.5) for p in (w1, b1, w2, b2)]",
        [6.633773, 6.06754, 5.122427],
        None,
        [0.9234954, 0.5525194, -0.2026314, -0.64051616, -0.9260035, -0.55476606, -0.059521936, 0.62697184],
        [0.9415387, 0.82310665, 0.5182798, 0.17258643],
    );
    check(
        builder(sgd(0.01)).clipping(Clipping::GlobalNorm(1.0)),
        "clip_grad_norm_([w1, b1, w2, b2], 1.0)",
        [6.633773, 6.0260725, 4.995712],
        Some([6.254085, 5.795837, 5.0114803]),
        [0.9262618, 0.54812956, -0.20577519, -0.64977586, -0.9324444, -0.56499153, -0.061684467, 0.6226834],
        [0.91651833, 0.864263, 0.55527943, 0.1361232],
    );
}

#[test]
fn groups_train_as_those_of_pytorch() {
    let mut first = ParameterGroup::new("?1");
    (first.rate_factor, first.weight_decay) = (0.1, Some(0.0));
    check(
        builder(sgd(0.1)).group(first.clone()),
        "SGD([{'params': [w1, b1], 'lr': 0.01, 'weight_decay': 0}, {'params': [w2, b2]}], lr=0.1, momentum=0.9, weight_decay=0.1)",
        [6.633773, 5.3582845, 4.1614046],
        None,
        [0.92657554, 0.9124532, 0.008443898, 0.00010748967, -0.6059774, 0.03320747, 0.033459038, 0.7843648],
        [0.87676144, 0.9404914, 0.6281733, 0.09380159],
    );
    let mut second = ParameterGroup::new("*2");
    let mut frozen = ParameterGroup::new("b2");
    (second.rate_factor, frozen.is_frozen) = (0.5, true);
    let mut trainer = builder(Optimizer::adamw(0.1)).group(frozen).group(first).group(second).build().unwrap();
    let (x, labels) = batch();
    trainer.step(x, labels).unwrap();
    assert!(trainer.parameter("b2").unwrap().is_none(), "it does not train");
    // Adam's first step has the size of the learning rate.
    let moved = |name: &str, before: f32| trainer.parameter(name).unwrap().unwrap().to_f32().unwrap()[0] - before;
    let decayed = values(1, 2.0, 1.0)[0] * (1.0 - 0.05 * 0.01);
    assert!((moved("w2", decayed).abs() - 0.05).abs() < 1e-5);
}

#[test]
fn neither_budgets_nor_threads_change_a_limited_step() {
    for name in ["digits-cnn", "tiny-gpt"] {
        let case = Case::read(name);
        let run = |threads, budget: Option<f64>| -> (Run, Vec<u32>) {
            let mut engine = host(threads);
            engine.memory.simulate_device = budget.map(MemorySize::Percent);
            let mut training = recipe(&case);
            training.clipping = Some(Clipping::GlobalNorm(0.5));
            let mut trainer = trainer(case.model(), training, engine);
            let norms = (0..3).map(|step| {
                let (batch, labels) = case.batch(step);
                trainer.step(batch, labels).unwrap().gradient_norm.unwrap().to_bits()
            });
            let norms = norms.collect();
            (forebay_golden::run(&case, &mut trainer, 1), norms)
        };
        let free = run(1, None);
        assert!(f32::from_bits(free.1[0]) > 0.5, "{name}: the limit has an effect");
        // Planning the transformer within a budget takes longer than all of its steps.
        let budgets: &[_] =
            if name == "tiny-gpt" { &[(2, Some(70.0))] } else { &[(2, None), (2, Some(70.0)), (1, Some(40.0))] };
        for &(threads, budget) in budgets {
            let (other, norms) = run(threads, budget);
            assert_eq!(norms, free.1, "{name}: {threads} threads, {budget:?}");
            forebay_golden::assert_same(&free.0, &other, name);
        }
    }
}

#[test]
fn the_limit_is_an_input_of_a_step() {
    let one = |limit: f32| builder(sgd(0.0)).clipping(Clipping::GlobalNorm(limit)).build().unwrap();
    let (mut fixed, mut changed) = (one(0.5), one(7.0));
    assert!(fixed.plan() == changed.plan());
    changed.set_clipping_limit(0.5).unwrap();
    for trainer in [&mut fixed, &mut changed] {
        let (x, labels) = batch();
        trainer.step(x, labels).unwrap();
    }
    assert!(fixed.parameters().unwrap() == changed.parameters().unwrap());
    assert!(changed.set_clipping_limit(f32::NAN).unwrap_err().to_string().contains("not NaN"));
    let error = builder(sgd(0.0)).build().unwrap().set_clipping_limit(1.0).unwrap_err();
    assert!(matches!(error, Error::Option { .. }), "{error}");
    assert!(builder(sgd(0.0)).clipping(Clipping::Value(-1.0)).build().is_err());
}

/// The square root of x w: if x is 0, the loss is finite, but its gradient is not.
fn root(optimizer: Optimizer) -> TrainerBuilder {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2", "2"])
        .floats("w", &[2, 1], &[1.0, 2.0])
        .node("MatMul", &["x", "w"], &["h"])
        .node("Sqrt", &["h"], &["y"])
        .output("y", FLOAT, &["2", "1"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    Trainer::builder(&model).engine(host(1)).loss(Loss::MeanSquaredError).optimizer(optimizer)
}

fn step(trainer: &mut Trainer, x: f32) -> Result<StepReport, Error> {
    let labels = Tensor::from_f32(&[2, 1], &[0.5, 2.0]);
    trainer.step([("x".to_string(), Tensor::from_f32(&[2, 2], &[x; 4]))].into(), labels)
}

#[test]
fn a_step_whose_gradients_are_not_finite_is_left_out_and_counted() {
    let adam = || root(Optimizer::adam(0.1)).on_nan(OnNan::Skip).build().unwrap();
    let (mut skipping, mut without, mut resumed) = (adam(), adam(), adam());
    step(&mut skipping, 1.0).unwrap();
    let before = skipping.parameters().unwrap();
    let report = step(&mut skipping, 0.0).unwrap();
    assert!(report.skipped && report.step == 2 && report.loss.is_finite(), "{report:?}");
    assert!(!report.gradient_norm.unwrap().is_finite());
    assert!(skipping.parameters().unwrap() == before);
    // The number of updates, which Adam reads, is restored from a checkpoint, too.
    let checkpoint: Checkpoint = skipping.checkpoint(&serde_json::json!(null)).unwrap();
    resumed.restore(&checkpoint).unwrap();
    for trainer in [&mut skipping, &mut resumed] {
        let report = step(trainer, 0.5).unwrap();
        assert_eq!((report.step, report.skipped, trainer.skipped_count()), (3, false, 1));
    }
    for x in [1.0, 0.5] {
        step(&mut without, x).unwrap();
    }
    assert!(skipping.parameters().unwrap() == without.parameters().unwrap());
    assert!(resumed.parameters().unwrap() == without.parameters().unwrap());
}

#[test]
fn a_norm_that_is_not_finite_stops_where_it_is_known() {
    let mut trainer = root(sgd(0.0)).gradient_norm().build().unwrap();
    let before = trainer.parameters().unwrap();
    let error = step(&mut trainer, 0.0).unwrap_err();
    assert_eq!(error, Error::NanGradients { step: 1 });
    assert!(error.to_string().contains("--on-nan skip"), "{error}");
    assert!(trainer.parameters().unwrap() == before && trainer.step_count() == 0);
}

#[test]
fn groups_without_a_meaning_are_refused() {
    let mut negative = ParameterGroup::new("w1");
    negative.rate_factor = -1.0;
    for (group, words) in
        [(ParameterGroup::new("conv*"), "'conv*' matches no parameter for a group"), (negative, "not -1")]
    {
        let error = builder(sgd(0.0)).group(group).build().err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn averages_are_the_same_within_a_budget() {
    let case = Case::read("digits-cnn");
    let run = |budget: Option<f64>| {
        let mut engine = host(2);
        engine.memory.simulate_device = budget.map(MemorySize::Percent);
        let mut training = recipe(&case);
        training.average = Some(0.9);
        forebay_golden::run(&case, &mut trainer(case.model(), training, engine), 3)
    };
    let free = run(None);
    assert!(free.values.keys().any(|name| name.ends_with(".average")));
    forebay_golden::assert_same(&free, &run(Some(50.0)), "50%");
}

#[test]
fn averages_follow_the_parameters() {
    let decay = 0.75f32;
    let mut averaging = builder(sgd(0.01)).average(decay).build().unwrap();
    let mut plain = builder(sgd(0.01)).build().unwrap();
    let w1 = |trainer: &Trainer| trainer.parameter("w1").unwrap().unwrap().to_f32().unwrap();
    let mut expected = w1(&plain);
    for _ in 0..3 {
        let (x, labels) = batch();
        plain.step(x.clone(), labels.clone()).unwrap();
        averaging.step(x, labels).unwrap();
        // torch.optim.swa_utils.get_ema_multi_avg_fn(0.75), starting with the first parameters.
        let mean = |(average, now): (&f32, f32)| average * decay + now * (1.0 - decay);
        expected = expected.iter().zip(w1(&plain)).map(mean).collect();
    }
    assert!(plain.parameters().unwrap() == averaging.parameters().unwrap(), "the parameters are the same");
    let average = &averaging.state().unwrap()["w1.average"];
    close(&average.to_f32().unwrap(), &expected, "w1");
    let path = std::env::temp_dir().join(format!("forebay-average-{}.onnx", std::process::id()));
    averaging.save_average(&path).unwrap();
    let saved = Trainer::builder(&Model::from_file(&path).unwrap()).loss(Loss::MeanSquaredError).build().unwrap();
    assert_eq!(saved.parameter("w1").unwrap().unwrap(), *average);
    assert!(plain.save_average(&path).is_err());
    std::fs::remove_file(path).unwrap();
    assert!(builder(sgd(0.0)).average(1.0).build().err().unwrap().to_string().contains("below 1, but is 1"));
}

/// The model has a parameter with the name that the average of another one would have.
#[test]
fn averages_are_not_mistaken_for_parameters() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["4", "3"])
        .floats("w", &[3, 2], &values(6, 0.0, 1.0))
        .floats("w.average", &[2], &values(2, 1.0, 1.0))
        .node("MatMul", &["x", "w"], &["product"])
        .node("Add", &["product", "w.average"], &["y"])
        .output("y", FLOAT, &["4", "2"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let builder = Trainer::builder(&model).engine(host(2)).loss(Loss::MeanSquaredError).optimizer(sgd(0.0));
    let mut trainer = builder.average(0.5).build().unwrap();
    let (x, labels) = batch();
    trainer.step(x, labels).unwrap();
    let folder = std::env::temp_dir().join(format!("forebay-averages-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let read = |name: &str| {
        let saved = Model::from_file(folder.join(name)).unwrap();
        Trainer::builder(&saved).engine(host(2)).loss(Loss::MeanSquaredError).build().unwrap().parameters().unwrap()
    };
    trainer.save_average(folder.join("average.onnx")).unwrap();
    let (averages, state) = (read("average.onnx"), trainer.state().unwrap());
    assert_eq!((&averages["w"], &averages["w.average"]), (&state["w.average.1"], &state["w.average.average"]));
    assert!(averages["w"] != trainer.parameter("w").unwrap().unwrap());
    let checkpoint = trainer.checkpoint(&serde_json::Value::Null).unwrap();
    checkpoint.export(&model, folder.join("exported.onnx")).unwrap();
    assert_eq!(read("exported.onnx"), trainer.parameters().unwrap());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn parts_have_the_bits_of_the_batch_and_less_memory() {
    let case = Case::read("tiny-gpt");
    let (batches, labels): (Vec<_>, Vec<_>) = (0..2).map(|step| case.batch(step)).unzip();
    let joined = |tensors: &[&Tensor]| {
        let mut shape = tensors[0].shape().to_vec();
        shape[0] *= tensors.len() as u64;
        let bytes: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.bytes().to_vec()).collect();
        Tensor::new(tensors[0].data_type(), &shape, bytes).unwrap()
    };
    let names: Vec<String> = batches[0].keys().cloned().collect();
    let batch = || -> BTreeMap<String, Tensor> {
        names.iter().map(|name| (name.clone(), joined(&[&batches[0][name], &batches[1][name]]))).collect()
    };
    let labels = || joined(&[&labels[0], &labels[1]]);
    let size = labels().shape()[0];
    let run = |parts: u64, budget: Option<f64>, threads| {
        let mut engine = host(threads);
        engine.memory.simulate_device = budget.map(MemorySize::Percent);
        let mut options = forebay_golden::trainer_options(recipe(&case), engine);
        (options.batch_size, options.training.accumulate) = (Some(size / parts.max(1)), parts);
        options.training.gradient_norm = true;
        let mut trainer = Trainer::new(case.model(), options).unwrap();
        assert_eq!(trainer.inputs()[0].shape[0], size);
        let peak_bytes = trainer.statistics().in_core_peak_bytes;
        let report = trainer.step(batch(), labels()).unwrap();
        ((report.loss, report.gradient_norm.unwrap()), trainer.parameters().unwrap(), peak_bytes)
    };
    let (numbers, parameters, whole_bytes) = run(0, None, 2);
    let in_parts = run(2, None, 2);
    assert!(in_parts.0 == numbers && in_parts.1 == parameters);
    assert!(in_parts.2 < whole_bytes * 3 / 4, "{} of {whole_bytes}", in_parts.2);
    let within = run(2, Some(70.0), 1);
    assert!(within.0 == numbers && within.1 == parameters);
}

#[test]
fn batches_of_other_sizes_are_cut_so_that_no_part_is_larger() {
    let case = Case::read("digits-cnn");
    let (batch, labels) = case.batch(0);
    let rows = |tensor: &Tensor, rows: std::ops::Range<u64>| {
        let mut shape = tensor.shape().to_vec();
        let row = tensor.bytes().len() / shape[0] as usize;
        shape[0] = rows.end - rows.start;
        let bytes = tensor.bytes()[rows.start as usize * row..rows.end as usize * row].to_vec();
        Tensor::new(tensor.data_type(), &shape, bytes).unwrap()
    };
    let of = |range: std::ops::Range<u64>| {
        let x = batch.iter().map(|(name, tensor)| (name.clone(), rows(tensor, range.clone()))).collect();
        (x, rows(&labels, range))
    };
    let mut options = forebay_golden::trainer_options(forebay_golden::with_learning_rate(&case, 0.0), host(2));
    options.batch_size = Some(4);
    let mut plain = Trainer::new(case.model(), options.clone()).unwrap();
    options.training.accumulate = 3;
    let mut parts = Trainer::new(case.model(), options).unwrap();
    assert_eq!(parts.labels().shape, [12]);
    for (count, size) in [(12, 4), (10, 2), (12, 4)] {
        let (x, labels) = of(0..count);
        let found = parts.step(x, labels).unwrap().loss;
        let losses = (0..count / size).map(|part| {
            let (x, labels) = of(part * size..(part + 1) * size);
            f64::from(plain.step(x, labels).unwrap().loss)
        });
        let losses: Vec<f64> = losses.collect();
        let expected = losses.iter().sum::<f64>() / losses.len() as f64;
        assert!((f64::from(found) - expected).abs() <= 1e-6 * expected, "{count}: {found} {expected}");
        let statistics = |trainer: &Trainer| trainer.state().unwrap();
        assert!(statistics(&parts) == statistics(&plain), "{count}: running statistics follow the parts");
    }
}
