//! Mixed precision: float32 parameters, 16-bit products and convolutions between two conversions, a float32 loss.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, Precision, TrainingOptions};
use forebay::{DataType, MemorySize, Model, Session, Tensor, Trainer};
use forebay_golden::{Case, host, onnx, trainer};
use forebay_testing::Random;
use half::{bf16, f16};

const IMAGES: usize = 4;
const SIDE: usize = 6;
const PLACES: usize = SIDE * SIDE;
const CHANNELS: usize = 3;
const FEATURES: usize = CHANNELS * PLACES;
const OUTPUTS: usize = 2;
const TAPS: usize = 9;
const LEARNING_RATE: f64 = 0.125;
const STEPS: usize = 3;

/// Numbers in -1..1 from a seeded generator (xorshift64*).
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut random = Random::new(seed);
    (0..count).map(|_| f64::from(random.float())).collect()
}

fn tensor(shape: &[u64], values: &[f64]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
    Tensor::new(DataType::Float32, shape, bytes).unwrap()
}

/// The parameters: the filters, their bias, and a matrix.
struct Parameters {
    w: Vec<f64>,
    bias: Vec<f64>,
    matrix: Vec<f64>,
}

impl Parameters {
    fn new() -> Parameters {
        let scaled = |seed, count, scale: f64| numbers(seed, count).into_iter().map(|value| value * scale).collect();
        Parameters {
            w: scaled(1, CHANNELS * TAPS, 0.5),
            bias: scaled(2, CHANNELS, 0.25),
            matrix: scaled(3, FEATURES * OUTPUTS, 0.125),
        }
    }
}

/// convolution, bias, ReLU, product: everything between two conversions is of `kind`.
fn model(kind: DataType, parameters: &Parameters) -> Model {
    let narrow = if kind == DataType::Float16 { onnx::FLOAT16 } else { onnx::BFLOAT16 };
    let cast = |from: &str, to: &str, kind: i64| onnx::node("Cast", &[from], to, &[("to", &[kind], false)]);
    let nodes = [
        cast("x", "x16", narrow),
        cast("w", "w16", narrow),
        cast("bias", "bias16", narrow),
        cast("matrix", "matrix16", narrow),
        onnx::node("Conv", &["x16", "w16", "bias16"], "convolved", &[("pads", &[1; 4], true)]),
        onnx::node("Relu", &["convolved"], "rectified", &[]),
        onnx::node("Flatten", &["rectified"], "features", &[("axis", &[1], false)]),
        onnx::node("MatMul", &["features", "matrix16"], "y16", &[]),
        cast("y16", "y", onnx::FLOAT),
    ];
    let initializers = [
        onnx::floats("w", &[CHANNELS, 1, 3, 3], &parameters.w),
        onnx::floats("bias", &[CHANNELS], &parameters.bias),
        onnx::floats("matrix", &[FEATURES, OUTPUTS], &parameters.matrix),
    ];
    let bytes = onnx::model(&nodes, &initializers, ("x", &[IMAGES, 1, SIDE, SIDE]), ("y", &[IMAGES, OUTPUTS]));
    Model::from_bytes(&bytes).unwrap()
}

/// The same step, computed in f64 between roundings.
struct Reference {
    round: fn(f64) -> f64,
    parameters: Parameters,
}

/// Calls `work(image, channel, place, tap, place seen)` for every product of the convolution.
fn products(mut work: impl FnMut(usize, usize, usize, usize, usize)) {
    for index in 0..IMAGES * FEATURES * TAPS {
        let (tap, index) = (index % TAPS, index / TAPS);
        let (place, channel, image) = (index % PLACES, index / PLACES % CHANNELS, index / FEATURES);
        let (row, column) = (place / SIDE + tap / 3, place % SIDE + tap % 3);
        if (1..=SIDE).contains(&row) && (1..=SIDE).contains(&column) {
            work(image, channel, place, tap, (row - 1) * SIDE + column - 1);
        }
    }
}

impl Reference {
    fn rounded(&self, values: &[f64]) -> Vec<f64> {
        values.iter().map(|&value| (self.round)(value)).collect()
    }

    /// Performs a step and returns the loss before it.
    fn step(&mut self, x: &[f64], labels: &[f64]) -> f64 {
        let [x, w, bias, matrix] =
            [x, &self.parameters.w, &self.parameters.bias, &self.parameters.matrix].map(|values| self.rounded(values));
        let mut features: Vec<f64> = (0..IMAGES * FEATURES).map(|i| bias[i / PLACES % CHANNELS]).collect();
        products(|image, channel, place, tap, seen| {
            features[image * FEATURES + channel * PLACES + place] += x[image * PLACES + seen] * w[channel * TAPS + tap];
        });
        let features: Vec<f64> = self.rounded(&features).into_iter().map(|value| value.max(0.0)).collect();
        let mut y = vec![0.0; IMAGES * OUTPUTS];
        for index in 0..IMAGES * FEATURES * OUTPUTS {
            let (output, feature, image) = (index % OUTPUTS, index / OUTPUTS % FEATURES, index / OUTPUTS / FEATURES);
            y[image * OUTPUTS + output] += features[image * FEATURES + feature] * matrix[feature * OUTPUTS + output];
        }
        let y = self.rounded(&y);
        let count = y.len() as f64;
        let distances: Vec<f64> = y.iter().zip(labels).map(|(y, label)| y - label).collect();
        let loss = distances.iter().map(|distance| distance * distance).sum::<f64>() / count;
        let dy = self.rounded(&distances.iter().map(|distance| 2.0 * distance / count).collect::<Vec<_>>());
        let (mut d_matrix, mut d_features) = (vec![0.0; matrix.len()], vec![0.0; features.len()]);
        for index in 0..IMAGES * FEATURES * OUTPUTS {
            let (output, feature, image) = (index % OUTPUTS, index / OUTPUTS % FEATURES, index / OUTPUTS / FEATURES);
            let (dy, at) = (dy[image * OUTPUTS + output], image * FEATURES + feature);
            d_matrix[feature * OUTPUTS + output] += features[at] * dy;
            d_features[at] += dy * matrix[feature * OUTPUTS + output];
        }
        let masked = self.rounded(&d_features).into_iter().zip(&features);
        let d_convolved: Vec<f64> = masked.map(|(d, &feature)| if feature > 0.0 { d } else { 0.0 }).collect();
        let (mut d_w, mut d_bias) = (vec![0.0; w.len()], vec![0.0; bias.len()]);
        products(|image, channel, place, tap, seen| {
            d_w[channel * TAPS + tap] +=
                d_convolved[image * FEATURES + channel * PLACES + place] * x[image * PLACES + seen];
        });
        d_convolved.iter().enumerate().for_each(|(i, d)| d_bias[i / PLACES % CHANNELS] += d);
        let [d_w, d_bias, d_matrix] = [d_w, d_bias, d_matrix].map(|values| self.rounded(&values));
        let Parameters { w, bias, matrix } = &mut self.parameters;
        for (values, gradients) in [(w, d_w), (bias, d_bias), (matrix, d_matrix)] {
            values.iter_mut().zip(gradients).for_each(|(value, d)| *value -= LEARNING_RATE * d);
        }
        loss
    }
}

#[track_caller]
fn assert_close(values: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    for (i, (value, expected)) in values.iter().zip(expected).enumerate() {
        assert!((value - expected).abs() <= tolerance, "{what}: element {i} is {value}, expected {expected}");
    }
}

/// `unit` is the distance between numbers of the type around 1: roundings of nearly equal numbers can differ by that much.
fn check(kind: DataType, round: fn(f64) -> f64, unit: f64) {
    let parameters = Parameters::new();
    let options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(LEARNING_RATE as f32));
    let mut trainer = trainer(model(kind, &parameters), options, host(2));
    let mut reference = Reference { round, parameters };
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let x = numbers(10, IMAGES * PLACES);
        let labels = numbers(20, IMAGES * OUTPUTS);
        let batch = BTreeMap::from([("x".to_string(), tensor(&[4, 1, 6, 6], &x))]);
        let loss = f64::from(trainer.step(batch, tensor(&[4, 2], &labels)).unwrap().loss);
        let expected = reference.step(&x, &labels);
        assert!((loss - expected).abs() <= 2.0 * unit * expected, "{kind}, step {step}: {loss}, expected {expected}");
        losses.push(loss);
    }
    assert!(losses[STEPS - 1] < losses[0] / 2.0, "{kind}: {losses:?}");
    let Parameters { w, bias, matrix } = &reference.parameters;
    for (name, expected) in [("w", w), ("bias", bias), ("matrix", matrix)] {
        let values: Vec<f64> =
            trainer.parameters().unwrap()[name].to_f32().unwrap().into_iter().map(f64::from).collect();
        assert_close(&values, expected, unit, &format!("{kind}: {name}"));
    }
}

#[test]
fn float16_between_conversions_trains() {
    check(DataType::Float16, |value| f16::from_f64(value).to_f64(), 1.0 / 1024.0);
}

#[test]
fn bfloat16_between_conversions_trains() {
    check(DataType::BFloat16, |value| bf16::from_f64(value).to_f64(), 1.0 / 128.0);
}

#[test]
fn dropout_trains_in_sixteen_bits() {
    forebay_golden::dropout::trains_in_sixteen_bits(&host(2));
}

/// The model itself converts the input of a batch normalization, and its scale and bias as well or not.
#[test]
fn batch_normalization_of_16_bits_trains() {
    for (kind, converts_all) in [(onnx::FLOAT16, false), (onnx::BFLOAT16, false), (onnx::FLOAT16, true)] {
        let cast = |from: &str, to: &str, kind: i64| onnx::node("Cast", &[from], to, &[("to", &[kind], false)]);
        let (mut names, narrow) = (["x16", "scale", "bias", "mean", "variance"], ["scale16", "bias16"]);
        let mut nodes = vec![cast("x", "x16", kind)];
        if converts_all {
            nodes.extend(["scale", "bias"].iter().zip(narrow).map(|(from, to)| cast(from, to, kind)));
            (names[1], names[2]) = narrow.into();
        }
        nodes.extend([onnx::node("BatchNormalization", &names, "y16", &[]), cast("y16", "y", onnx::FLOAT)]);
        let initializers = [("scale", 1.0), ("bias", 0.0), ("mean", 0.0), ("variance", 1.0)];
        let initializers = initializers.map(|(name, value)| onnx::floats(name, &[2], &[value; 2]));
        let model = Model::from_bytes(&onnx::model(&nodes, &initializers, ("x", &[4, 2]), ("y", &[4, 2]))).unwrap();
        let options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(0.25));
        let mut trainer = trainer(model, options, host(2));
        let (x, labels) = (tensor(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), tensor(&[4, 2], &[0.5; 8]));
        let mut step = || trainer.step(BTreeMap::from([("x".to_string(), x.clone())]), labels.clone()).unwrap().loss;
        let losses = [step(), step(), step()];
        assert!((losses[0] - 1.25).abs() < 0.02 && losses[2] < 0.5, "{kind}: {losses:?}");
        let mean = trainer.state().unwrap()["mean"].to_f32().unwrap();
        // Three times a tenth of the way to 4 and 5.
        assert!((mean[0] - 4.0 * 0.271).abs() < 0.02 && (mean[1] - 5.0 * 0.271).abs() < 0.02, "{kind}: {mean:?}");
    }
}

/// A ReLU in another type than what is before or after it: the bits are those of separate launches.
#[test]
fn functions_are_not_moved_across_conversions() {
    let cast = |from: &str, to: &str, kind: i64| onnx::node("Cast", &[from], to, &[("to", &[kind], false)]);
    let shape = [1, 1, SIDE, SIDE];
    let x = tensor(&shape.map(|size| size as u64), &numbers(1, PLACES));
    for (operator, sizes) in [("Conv", &[1, 1, 3, 3][..]), ("MatMul", &[SIDE, SIDE][..]), ("Add", &[SIDE, SIDE][..])] {
        let weights = [onnx::floats("w", sizes, &numbers(2, sizes.iter().product()))];
        let node = |inputs: &[&str], output: &str| match operator {
            "Conv" => onnx::node(operator, inputs, output, &[("pads", &[1; 4], true)]),
            _ => onnx::node(operator, inputs, output, &[]),
        };
        let before = [
            cast("x", "x16", onnx::FLOAT16),
            cast("w", "w16", onnx::FLOAT16),
            node(&["x16", "w16"], "a16"),
            cast("a16", "a", onnx::FLOAT),
            onnx::node("Relu", &["a"], "y", &[]),
        ];
        let after = [
            node(&["x", "w"], "a"),
            onnx::node("Relu", &["a"], "b", &[]),
            cast("b", "b16", onnx::FLOAT16),
            cast("b16", "y", onnx::FLOAT),
        ];
        for nodes in [before.as_slice(), after.as_slice()] {
            let model = Model::from_bytes(&onnx::model(nodes, &weights, ("x", &shape), ("y", &shape))).unwrap();
            let run = |fuse: bool| {
                let mut session = Session::builder(&model).engine(host(2).fuse(fuse)).build().unwrap();
                session.run(BTreeMap::from([("x".to_string(), x.clone())])).unwrap().remove("y").unwrap()
            };
            let y = run(true);
            assert_eq!(y, run(false), "{operator}");
            let is_rounded = |value: f32| f16::from_f32(value).to_f32() == value;
            assert!(y.to_f32().unwrap().into_iter().all(is_rounded), "{operator}");
        }
    }
}

/// Weight gradients, products and pooling are computed in parts, as in float32.
#[test]
fn the_least_budget_is_about_half_of_that_in_float32() {
    let case = Case::read("unet3d");
    let options = |precision: Option<Precision>| {
        let mut options = forebay_golden::recipe(&case);
        options.precision = precision;
        options
    };
    let least = |trainer: &Trainer| trainer.statistics().minimum_budget_bytes;
    let wide = least(&trainer(case.model(), options(None), host(2)));
    for precision in [Precision::bfloat16(), Precision::float16()] {
        let mut free = trainer(case.model(), options(Some(precision.clone())), host(2));
        let narrow = least(&free);
        assert!(narrow < wide * 2 / 3, "{}: {narrow} bytes, and {wide} in float32", precision.kind);
        let within = host(2).simulate_device(MemorySize::Bytes(narrow));
        let mut within = trainer(case.model(), options(Some(precision.clone())), within);
        let (expected, found) = [&mut free, &mut within].map(|trainer| forebay_golden::run(&case, trainer, 1)).into();
        forebay_golden::assert_same(&expected, &found, &precision.kind.to_string());
    }
}
