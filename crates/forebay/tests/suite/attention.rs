//! Training through the attention kernel is equivalent to training through products and a softmax.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{Model, Session, Tensor};
use forebay_base::Command;
use forebay_golden::{host, onnx, to_f64, trainer};
use forebay_testing::Random;
use forebay_testing::onnx::protobuf::{message, number};

/// Batches, heads, rows, and elements per head.
const SIZES: [usize; 4] = [2, 3, 6, 8];
const WEIGHTS: [&str; 3] = ["wq", "wk", "wv"];

/// Numbers so small that no probability dominates, so that rounding errors of scores stay rounding errors.
fn small(random: &mut Random, count: usize) -> Vec<f64> {
    random.values(count).into_iter().map(|value| value * 0.2).collect()
}

/// Queries, keys and values are x times a matrix each; a trained bias [1, 3, 6, 6] is added to the scores.
fn model(seed: u64, end: &[Vec<u8>]) -> Model {
    model_with_bias(seed, end, |_, _| true)
}

/// The same model, but the bias is minus infinity for the keys that a row does not see.
fn model_with_bias(seed: u64, end: &[Vec<u8>], sees: impl Fn(usize, usize) -> bool) -> Model {
    let mut random = Random::new(seed);
    let size = SIZES[3];
    let mut nodes: Vec<Vec<u8>> =
        WEIGHTS.iter().map(|weights| onnx::node("MatMul", &["x", weights], &weights[1..], &[])).collect();
    nodes.extend_from_slice(end);
    let mut initializers: Vec<Vec<u8>> =
        WEIGHTS.iter().map(|weights| onnx::floats(weights, &[size, size], &small(&mut random, size * size))).collect();
    let bias = [1, SIZES[1], SIZES[2], SIZES[2]];
    let mut values = small(&mut random, bias.iter().product());
    for (i, value) in values.iter_mut().enumerate() {
        if !sees(i / SIZES[2] % SIZES[2], i % SIZES[2]) {
            *value = f64::NEG_INFINITY;
        }
    }
    initializers.push(onnx::floats("bias", &bias, &values));
    initializers.push(onnx::floats("module.scale", &[], &[1.0 / (size as f64).sqrt()]));
    Model::from_bytes(&onnx::model(&nodes, &initializers, ("x", &SIZES), ("y", &SIZES))).unwrap()
}

/// Returns the losses of some steps, the parameters after them, and the names of the kernels.
fn trained(model: Model) -> (Vec<f64>, BTreeMap<String, Vec<f64>>, Vec<&'static str>) {
    trained_but(model, &[])
}

/// The same as [`trained`], with some parameters frozen.
fn trained_but(model: Model, frozen: &[&str]) -> (Vec<f64>, BTreeMap<String, Vec<f64>>, Vec<&'static str>) {
    let mut options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(0.5));
    options.freeze.push("module.scale".to_string());
    options.freeze.extend(frozen.iter().map(ToString::to_string));
    let mut trainer = trainer(model, options, host(2));
    let shape = SIZES.map(|size| size as u64);
    let mut random = Random::new(7);
    let mut tensor = || {
        let values: Vec<f32> = random.values(SIZES.iter().product()).into_iter().map(|value| value as f32).collect();
        Tensor::from_f32(&shape, &values)
    };
    let (x, y) = (tensor(), tensor());
    let step = |_| f64::from(trainer.step([("x".to_string(), x.clone())].into(), y.clone()).unwrap().loss);
    let losses = (0..3).map(step).collect();
    let parameters = trainer.parameters().unwrap();
    let parameters = parameters.iter().map(|(name, tensor)| (name.clone(), to_f64(tensor))).collect();
    let launches = trainer.plan().commands.iter().filter_map(|command| match command {
        Command::Launch { launch, .. } => Some(launch.kernel.name()),
        _ => None,
    });
    let kernels = launches.collect();
    (losses, parameters, kernels)
}

fn compare(fused: Model, plain: Model) {
    let (losses, parameters, kernels) = trained(fused);
    assert!(kernels.contains(&"Attention") && kernels.contains(&"AttentionGradient"), "{kernels:?}");
    let (plain_losses, plain_parameters, kernels) = trained(plain);
    assert!(!kernels.contains(&"Attention"), "{kernels:?}");
    let close = |a: &[f64], b: &[f64], what: &str| {
        let distance = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(a.len() == b.len() && distance < 4e-6, "{what}: {distance}");
    };
    close(&losses, &plain_losses, "losses");
    assert!(losses[2] < losses[0], "{losses:?}");
    for (name, values) in &parameters {
        close(values, &plain_parameters[name], name);
    }
}

/// The operators from q and k to the scores.
fn products() -> Vec<Vec<u8>> {
    vec![
        onnx::node("Transpose", &["k"], "turned", &[("perm", &[0, 1, 3, 2], true)]),
        onnx::node("MatMul", &["q", "turned"], "products", &[]),
    ]
}

#[test]
fn the_operator_trains_as_what_it_means_and_its_mask_too() {
    let fused = [onnx::node("Attention", &["q", "k", "v", "bias"], "y", &[])];
    // A scale that could be trained, such as an attribute of a module, is not a constant, so these operators stay as they are.
    let plain = [
        products(),
        vec![
            onnx::node("Mul", &["products", "module.scale"], "scaled", &[]),
            onnx::node("Add", &["scaled", "bias"], "scores", &[]),
            onnx::node("Softmax", &["scores"], "p", &[]),
            onnx::node("MatMul", &["p", "v"], "y", &[]),
        ],
    ];
    compare(model(1, &fused), model(1, &plain.concat()));
}

#[test]
fn windows_are_masks_and_rows_that_see_nothing_train_nothing() {
    let attention =
        |attributes: &[(&str, &[i64], bool)]| [onnx::node("Attention", &["q", "k", "v", "bias"], "y", attributes)];
    let windows = attention(&[("left_window_size", &[2], false), ("right_window_size", &[1], false)]);
    // The first row sees nothing. Weight decay of 0 times minus infinity would be NaN, so the bias is not trained.
    let sees = |row: usize, key: usize| row > 0 && key + 2 >= row && key <= row + 1;
    let (losses, parameters, kernels) = trained_but(model_with_bias(4, &windows, |row, _| row > 0), &["bias"]);
    assert!(kernels.contains(&"AttentionGradient"), "{kernels:?}");
    assert!(losses.iter().all(|loss| loss.is_finite()) && losses[2] < losses[0], "{losses:?}");
    let (masked_losses, masked_parameters, _) = trained_but(model_with_bias(4, &attention(&[]), sees), &["bias"]);
    assert_eq!(losses, masked_losses);
    for name in WEIGHTS {
        assert_eq!(parameters[name], masked_parameters[name], "{name}");
    }
}

#[test]
fn what_is_recognized_trains_as_it_was_written() {
    let ends = ["p", "same"].map(|p| {
        let written = vec![
            onnx::node("Add", &["bias", "products"], "scores", &[]),
            onnx::node("Softmax", &["scores"], "p", &[]),
            onnx::node("Identity", &["p"], "same", &[]),
            onnx::node("MatMul", &[p, "v"], "y", &[]),
        ];
        [products(), written].concat()
    });
    compare(model(2, &ends[0]), model(2, &ends[1]));
}

/// The name and sizes of a weight.
type Shaped<'a> = (&'a str, &'a [usize]);

/// y = some operators of h = x w, where only w is trained; the weights of the others are given.
fn of_matrix(nodes: &[Vec<u8>], others: &[Shaped], output: &[usize]) -> Model {
    let mut random = Random::new(5);
    let size = SIZES[3];
    let mut all = vec![onnx::node("MatMul", &["x", "w"], "h", &[])];
    all.extend_from_slice(nodes);
    let mut initializers = vec![onnx::floats("w", &[size, size], &random.values(size * size))];
    for (name, shape) in others {
        initializers.push(onnx::floats(name, shape, &random.values(shape.iter().product())));
    }
    Model::from_bytes(&onnx::model(&all, &initializers, ("x", &SIZES), ("y", output))).unwrap()
}

/// Returns the loss before and after one step of gradient descent, and the squared length of the step.
fn step(model: &Model, output: &[usize], learning_rate: f32) -> (f64, f64, f64) {
    let mut options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(learning_rate));
    options.freeze.push("given*".to_string());
    let mut trainer = trainer(model.clone(), options, host(1));
    let mut random = Random::new(9);
    let mut tensor = |sizes: &[usize]| {
        let values: Vec<f32> = random.values(sizes.iter().product()).into_iter().map(|value| value as f32).collect();
        Tensor::from_f32(&sizes.iter().map(|&size| size as u64).collect::<Vec<_>>(), &values)
    };
    let (x, y) = (tensor(&SIZES), tensor(output));
    let w = |trainer: &forebay::Trainer| to_f64(&trainer.parameters().unwrap()["w"]);
    let before = w(&trainer);
    let loss = |trainer: &mut forebay::Trainer| {
        f64::from(trainer.step([("x".to_string(), x.clone())].into(), y.clone()).unwrap().loss)
    };
    let first = loss(&mut trainer);
    let after = w(&trainer);
    let length = before.iter().zip(&after).map(|(a, b)| (a - b) * (a - b)).sum();
    (first, loss(&mut trainer), length)
}

/// A short step along the negative gradient lowers the loss by the product of the gradient's squared length and the step size.
#[test]
fn gradients_are_slopes_of_the_loss() {
    let angles: [Shaped; 2] = [("given.cosines", &[2, 6, 3]), ("given.sines", &[2, 6, 3])];
    let rotary = |interleaved: i64| {
        let attributes: &[(&str, &[i64], bool)] =
            &[("interleaved", &[interleaved], false), ("rotary_embedding_dim", &[6], false)];
        onnx::node("RotaryEmbedding", &["h", "given.cosines", "given.sines"], "y", attributes)
    };
    let past: [Shaped; 2] = [("given.keys", &[2, 3, 4, 8]), ("given.values", &[2, 3, 4, 8])];
    let with_past =
        onnx::node("Attention", &["h", "h", "h", "", "given.keys", "given.values"], "y", &[("is_causal", &[1], false)]);
    let shared = onnx::node("Attention", &["h", "given.keys", "given.values"], "y", &[]);
    let one: [Shaped; 2] = [("given.keys", &[2, 1, 4, 8]), ("given.values", &[2, 1, 4, 8])];
    let simplified = onnx::node("SimplifiedLayerNormalization", &["h", "given.scale"], "y", &[]);
    let cases: [(Vec<Vec<u8>>, &[Shaped]); 5] = [
        (vec![rotary(0)], &angles),
        (vec![rotary(1)], &angles),
        (vec![with_past], &past),
        (vec![shared], &one),
        (vec![simplified], &[("given.scale", &[8])]),
    ];
    for (i, (nodes, others)) in cases.iter().enumerate() {
        let model = of_matrix(nodes, others, &SIZES);
        let rate = 1e-3;
        let (loss, _, length) = step(&model, &SIZES, rate);
        let slope = length / f64::from(rate * rate);
        assert!(slope > 1e-6, "case {i}: the gradient is not 0");
        let rate = (1e-3 * loss / slope) as f32;
        let (before, after, _) = step(&model, &SIZES, rate);
        let expected = f64::from(rate) * slope;
        let found = before - after;
        assert!((found - expected).abs() < 0.02 * expected, "case {i}: {found}, not {expected}");
    }
}

/// Two nodes, one after the other, with new keys for sequences whose pasts have these lengths, in a cache of `positions`. Returns a row of
/// the sum of their results for each.
fn grouped(pasts: &[usize], positions: usize, window: i64, data: [&[f64]; 4]) -> Vec<Vec<f64>> {
    let (batch, total) = (pasts.len(), pasts.iter().max().unwrap() + 1);
    let [x, cache, cosines, sines] = data;
    // The first positions of each sequence, and junk after its past.
    let caches: Vec<f64> = (0..batch)
        .flat_map(|row| (0..positions * 4).map(move |i| if i < 4 * pasts[row] { cache[row * 20 + i] } else { 9.0 }))
        .collect();
    let heads: [(&str, &[i64], bool); 4] = [
        ("num_heads", &[2], false),
        ("kv_num_heads", &[1], false),
        ("do_rotary", &[1], false),
        ("local_window_size", &[window], false),
    ];
    let inputs = ["x", "", "", "keys", "values", "last", "total", "cosines", "sines"];
    let grouped = onnx::node("GroupQueryAttention", &inputs, "first", &heads);
    let inputs = ["x", "", "", "k", "v", "next_last", "next_total", "cosines", "sines"];
    let next = onnx::node("GroupQueryAttention", &inputs, "second", &heads);
    let to_int32: [(&str, &[i64], bool); 1] = [("to", &[6], false)];
    let nodes = [
        onnx::node("Cast", &["lengths"], "last", &to_int32),
        onnx::node("Cast", &["length"], "total", &to_int32),
        onnx::node("Cast", &["next_lengths"], "next_last", &to_int32),
        onnx::node("Cast", &["next_length"], "next_total", &to_int32),
        [grouped, message(2, b"k"), message(2, b"v"), message(7, b"com.microsoft")].concat(),
        [next, message(7, b"com.microsoft")].concat(),
        onnx::node("Add", &["first", "second"], "y", &[]),
    ];
    let lengths: Vec<f64> = pasts.iter().map(|&past| past as f64).collect();
    let next_lengths: Vec<f64> = pasts.iter().map(|&past| (past + 1) as f64).collect();
    let initializers = [
        onnx::floats("next_lengths", &[batch], &next_lengths),
        onnx::floats("next_length", &[1], &[(total + 1) as f64]),
        onnx::floats("lengths", &[batch], &lengths),
        onnx::floats("length", &[1], &[total as f64]),
        onnx::floats("keys", &[batch, 1, positions, 4], &caches),
        onnx::floats("values", &[batch, 1, positions, 4], &caches),
        onnx::floats("cosines", &[9, 2], cosines),
        onnx::floats("sines", &[9, 2], sines),
    ];
    let model = onnx::model(&nodes, &initializers, ("x", &[batch, 1, 16]), ("y", &[batch, 1, 8]));
    let domain = [message(1, b"com.microsoft"), number(2, 1)].concat();
    let model = Model::from_bytes(&[model, message(8, &domain)].concat()).unwrap();
    let mut session = Session::builder(&model).engine(host(2)).build().unwrap();
    let x: Vec<f32> = x.iter().map(|&value| value as f32).collect();
    let x = Tensor::from_f32(&[batch as u64, 1, 16], &x);
    let outputs = session.run([("x".to_string(), x)].into()).unwrap();
    to_f64(&outputs["y"]).chunks(8).map(<[f64]>::to_vec).collect()
}

#[test]
fn sequences_of_different_lengths_continue_as_they_do_alone() {
    let mut random = Random::new(9);
    let (x, cache) = (random.values(32), random.values(40));
    let (cosines, sines) = (random.values(18), random.values(18));
    for window in [-1, 2] {
        for positions in [4, 7] {
            let both = grouped(&[4, 2], positions, window, [&x, &cache, &cosines, &sines]);
            for (row, past) in [4, 2].into_iter().enumerate() {
                let own = [&x[16 * row..16 * (row + 1)], &cache[20 * row..20 * (row + 1)], &cosines, &sines];
                let alone = &grouped(&[past], past, window, own)[0];
                let distance = both[row].iter().zip(alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(distance < 1e-5, "{positions} positions, window {window}, row {row}: {distance}");
            }
        }
    }
}
