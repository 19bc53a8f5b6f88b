//! Operators on images, signals and random numbers: gradients compared with differences of the loss, random numbers compared with their
//! distribution.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{EngineOptions, MemorySize, Model, Session, SessionOptions, Tensor};
use forebay_golden::{host, onnx, trainer};
use forebay_testing::Random;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value};
use forebay_testing::onnx::protobuf::{message, number};

/// How far parameters are moved in each direction for a difference of losses.
const DISTANCE: f64 = 4e-4;

/// A parameter: its name, sizes and values.
#[derive(Clone)]
struct Parameter {
    name: &'static str,
    shape: Vec<usize>,
    values: Vec<f64>,
}

/// A parameter of random values up to a limit.
fn random(name: &'static str, shape: &[usize], limit: f64) -> Parameter {
    let mut random = Random::new(7 + name.len() as u64 + shape.len() as u64);
    let values = (0..shape.iter().product()).map(|_| f64::from(random.float()) * limit).collect();
    Parameter { name, shape: shape.to_vec(), values }
}

/// A parameter of random values that are not near whole numbers, where samples between elements have no derivative.
fn between_elements(name: &'static str, shape: &[usize]) -> Parameter {
    let mut parameter = random(name, shape, 0.3);
    parameter.values.iter_mut().for_each(|value| *value += 0.2f64.copysign(*value));
    parameter
}

/// A constant of integers.
fn constant(name: &str, values: &[i64]) -> Vec<u8> {
    onnx::node("Constant", &[], name, &[("value_ints", values, true)])
}

/// A node with a string attribute.
fn with_text(node: Vec<u8>, name: &str, value: &str) -> Vec<u8> {
    let attribute = [message(1, name.as_bytes()), message(4, value.as_bytes()), number(20, 3)].concat();
    [node, message(5, &attribute)].concat()
}

fn tensor(shape: &[usize], values: &[f64]) -> Tensor {
    let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
    Tensor::from_f32(&shape, &values.iter().map(|&value| value as f32).collect::<Vec<f32>>())
}

/// Returns the loss of a model whose nodes compute `z` from parameters, and the parameters after a step with learning rate 1.
fn step(nodes: &[Vec<u8>], parameters: &[Parameter], shape: &[usize]) -> (f64, BTreeMap<String, Vec<f32>>) {
    let nodes = [nodes, &[onnx::node("Mul", &["z", "x"], "y", &[])]].concat();
    let initializers: Vec<Vec<u8>> = parameters.iter().map(|p| onnx::floats(p.name, &p.shape, &p.values)).collect();
    let bytes = onnx::model(&nodes, &initializers, ("x", shape), ("y", shape));
    let options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(1.0));
    let mut trainer = trainer(Model::from_bytes(&bytes).unwrap(), options, host(1));
    let count: usize = shape.iter().product();
    let labels = random("labels", shape, 1.0);
    let batch = BTreeMap::from([("x".to_string(), tensor(shape, &vec![1.0; count]))]);
    let loss = f64::from(trainer.step(batch, tensor(shape, &labels.values)).unwrap().loss);
    let after = trainer.parameters().unwrap();
    (loss, after.into_iter().map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect())
}

/// Compares gradients, along random directions, with differences of the loss.
#[track_caller]
fn check(what: &str, nodes: &[Vec<u8>], parameters: &[Parameter], shape: &[usize]) {
    let (loss, after) = step(nodes, parameters, shape);
    for (i, parameter) in parameters.iter().enumerate() {
        let mut random = Random::new(99 + i as u64);
        let direction: Vec<f64> = parameter.values.iter().map(|_| f64::from(random.float())).collect();
        let moved = |distance: f64| {
            let mut parameters = parameters.to_vec();
            let values = parameters[i].values.iter_mut().zip(&direction);
            values.for_each(|(value, direction)| *value += distance * direction);
            step(nodes, &parameters, shape).0
        };
        let expected = (moved(DISTANCE) - moved(-DISTANCE)) / (2.0 * DISTANCE);
        let gradient =
            parameter.values.iter().zip(&after[parameter.name]).map(|(before, &after)| before - f64::from(after));
        let found: f64 = gradient.zip(&direction).map(|(gradient, direction)| gradient * direction).sum();
        assert!(
            (found - expected).abs() <= 1e-2 * expected.abs() + 1e-3 * loss.max(0.1),
            "{what}: by {} the gradient is {found}, differences give {expected}",
            parameter.name
        );
        assert!(found != 0.0, "{what}: no gradient by {}", parameter.name);
    }
}

#[test]
fn resizing_has_gradients() {
    let image = [random("w", &[1, 2, 5, 7], 1.0)];
    for (mode, antialias, sizes) in [
        ("nearest", 0, [1, 2, 3, 10]),
        ("linear", 0, [1, 2, 8, 4]),
        ("cubic", 0, [1, 2, 8, 4]),
        ("linear", 1, [1, 2, 2, 9]),
        ("cubic", 1, [1, 2, 2, 3]),
    ] {
        let resize = onnx::node("Resize", &["w", "", "", "sizes"], "z", &[("antialias", &[antialias], false)]);
        let nodes = [constant("sizes", &sizes), with_text(resize, "mode", mode)];
        check(mode, &nodes, &image, &sizes.map(|size| size as usize));
    }
}

#[test]
fn padding_has_gradients() {
    for mode in ["wrap", "reflect", "edge", "constant"] {
        let pad = with_text(onnx::node("Pad", &["w", "pads"], "z", &[]), "mode", mode);
        let nodes = [constant("pads", &[0, 5, 1, 4]), pad];
        check(mode, &nodes, &[random("w", &[3, 4], 1.0)], &[4, 13]);
    }
    let nodes = [constant("sizes", &[6, 2]), onnx::node("CenterCropPad", &["w", "sizes"], "z", &[])];
    check("center", &nodes, &[random("w", &[3, 5], 1.0)], &[6, 2]);
}

#[test]
fn sampling_has_gradients() {
    for mode in ["bilinear", "bicubic"] {
        for padding in ["zeros", "border", "reflection"] {
            for align in [0, 1] {
                let sample = onnx::node("GridSample", &["w", "grid"], "z", &[("align_corners", &[align], false)]);
                let sample = with_text(with_text(sample, "mode", mode), "padding_mode", padding);
                let parameters = [random("w", &[2, 2, 4, 5], 1.0), random("grid", &[2, 3, 2, 2], 0.8)];
                check(&format!("{mode} {padding}"), &[sample], &parameters, &[2, 2, 3, 2]);
            }
        }
    }
    let sample = with_text(onnx::node("GridSample", &["w", "grid"], "z", &[]), "mode", "linear");
    let parameters = [random("w", &[1, 2, 3, 4, 5], 1.0), random("grid", &[1, 2, 2, 3, 3], 0.8)];
    check("volumes", &[sample], &parameters, &[1, 2, 2, 2, 3]);
    let nodes = [
        constant("sizes", &[2, 1, 3, 4]),
        onnx::node("AffineGrid", &["theta", "sizes"], "grid", &[]),
        with_text(onnx::node("GridSample", &["w", "grid"], "z", &[]), "mode", "bilinear"),
    ];
    let parameters = [random("theta", &[2, 2, 3], 0.7), random("w", &[2, 2, 5, 6], 1.0)];
    check("affine maps", &nodes, &parameters, &[2, 2, 3, 4]);
}

#[test]
fn regions_have_gradients() {
    let regions = [0.3, 0.6, 4.2, 3.9, 1.15, 0.4, 3.35, 4.7];
    for (mode, ratio) in [("avg", 2), ("avg", 0), ("max", 2), ("max", 0)] {
        let sizes: [(&str, &[i64], bool); 3] =
            [("output_height", &[2], false), ("output_width", &[3], false), ("sampling_ratio", &[ratio], false)];
        let align = with_text(onnx::node("RoiAlign", &["w", "regions", "images"], "z", &sizes), "mode", mode);
        let parameters = [
            random("w", &[2, 2, 6, 5], 1.0),
            Parameter { name: "regions", shape: vec![2, 4], values: regions.to_vec() },
        ];
        check(&format!("{mode} {ratio}"), &[constant("images", &[1, 0]), align], &parameters, &[2, 2, 2, 3]);
    }
}

#[test]
fn deformable_convolution_has_gradients() {
    let attributes: [(&str, &[i64], bool); 3] =
        [("group", &[2], false), ("offset_group", &[2], false), ("pads", &[1; 4], true)];
    let node = onnx::node("DeformConv", &["w", "filters", "offsets", "bias", "mask"], "z", &attributes);
    let parameters = [
        random("w", &[1, 4, 4, 5], 1.0),
        random("filters", &[2, 2, 3, 3], 0.5),
        between_elements("offsets", &[1, 36, 4, 5]),
        random("bias", &[2], 1.0),
        random("mask", &[1, 18, 4, 5], 1.0),
    ];
    check("deformable", &[node], &parameters, &[1, 2, 4, 5]);
}

#[test]
fn signals_columns_norms_and_determinants_have_gradients() {
    let nodes = [
        constant("image", &[4, 5]),
        constant("block", &[2, 3]),
        onnx::node("Col2Im", &["w", "image", "block"], "z", &[("pads", &[1, 0, 0, 1], true)]),
    ];
    check("columns", &nodes, &[random("w", &[1, 12, 16], 1.0)], &[1, 2, 4, 5]);
    let node = onnx::node("DFT", &["w"], "z", &[("axis", &[1], false), ("onesided", &[1], false)]);
    check("transform", &[node], &[random("w", &[2, 9, 1], 1.0)], &[2, 5, 2]);
    let node = onnx::node("DFT", &["w"], "z", &[("axis", &[0], false), ("inverse", &[1], false)]);
    check("inverse", &[node], &[random("w", &[6, 3, 2], 1.0)], &[6, 3, 2]);
    let nodes = [constant("steps", &[3]), onnx::node("STFT", &["w", "steps", "window"], "z", &[])];
    check("frames", &nodes, &[random("w", &[1, 14, 1], 1.0), random("window", &[8], 1.0)], &[1, 3, 5, 2]);
    let node = onnx::node("Det", &["w"], "z", &[]);
    check("determinant", &[node], &[random("w", &[3, 5, 5], 1.0)], &[3]);
    for p in [1, 2, 3] {
        let attributes: [(&str, &[i64], bool); 3] =
            [("kernel_shape", &[2, 3], true), ("p", &[p], false), ("pads", &[1, 0, 0, 1], true)];
        let node = onnx::node("LpPool", &["w"], "z", &attributes);
        check("norms", &[node], &[random("w", &[1, 2, 4, 5], 1.0)], &[1, 2, 4, 4]);
        let node = onnx::node("GlobalLpPool", &["w"], "z", &[("p", &[p], false)]);
        check("norm", &[node], &[random("w", &[1, 2, 4, 5], 1.0)], &[1, 2, 1, 1]);
    }
}

#[test]
fn products_of_float64_have_gradients() {
    let cast = |from: &str, to: &str, kind: i64| onnx::node("Cast", &[from], to, &[("to", &[kind], false)]);
    let nodes = [
        cast("a", "wide", 11),
        cast("second", "other", 11),
        onnx::node("MatMul", &["wide", "other"], "product", &[]),
        cast("product", "z", onnx::FLOAT),
    ];
    check("product", &nodes, &[random("a", &[2, 3, 4], 1.0), random("second", &[4, 5], 1.0)], &[2, 3, 5]);
}

/// Returns the output of a model of one node with one input.
fn run(node: Vec<u8>, input: (&[usize], f64), shape: &[usize]) -> Vec<f64> {
    let nodes = [node, onnx::node("Cast", &["drawn"], "y", &[("to", &[onnx::FLOAT], false)])];
    let bytes = onnx::model(&nodes, &[], ("x", input.0), ("y", shape));
    let model = Model::from_bytes(&bytes).unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let x = tensor(input.0, &vec![input.1; input.0.iter().product()]);
    let outputs = session.run(BTreeMap::from([("x".to_string(), x)])).unwrap();
    outputs["y"].to_f32().unwrap().into_iter().map(f64::from).collect()
}

/// The mean of a power of the numbers.
fn moment(numbers: &[f64], power: i32) -> f64 {
    numbers.iter().map(|number| number.powi(power)).sum::<f64>() / numbers.len() as f64
}

#[test]
fn random_numbers_have_the_moments_of_their_distribution() {
    let count = 100_000;
    let normal = run(onnx::node("RandomNormalLike", &["x"], "drawn", &[]), (&[count], 0.0), &[count]);
    for (power, expected) in [(1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)] {
        let found = moment(&normal, power);
        assert!((found - expected).abs() < 0.06, "moment {power} is {found}, not {expected}");
    }
    let uniform = run(onnx::node("RandomUniformLike", &["x"], "drawn", &[]), (&[count], 0.0), &[count]);
    assert!(uniform.iter().all(|number| (0.0..1.0).contains(number)));
    for power in 1..=4 {
        assert!((moment(&uniform, power) - 1.0 / f64::from(power + 1)).abs() < 5e-3);
    }
    let coins = run(onnx::node("Bernoulli", &["x"], "drawn", &[]), (&[count], 0.3), &[count]);
    assert!(coins.iter().all(|&coin| coin == 0.0 || coin == 1.0));
    assert!((moment(&coins, 1) - 0.3).abs() < 6e-3);
    let classes = run(
        onnx::node("Multinomial", &["x"], "drawn", &[("sample_size", &[50_000], false)]),
        (&[2, 4], 0.0),
        &[2, 50_000],
    );
    for class in 0..4 {
        let share = classes.iter().filter(|&&drawn| drawn == f64::from(class)).count() as f64 / classes.len() as f64;
        assert!((share - 0.25).abs() < 6e-3, "class {class} is drawn with probability {share}");
    }
}

#[test]
fn steps_draw_other_numbers_and_seeds_repeat_them() {
    let losses = |seed: u64| {
        let nodes = [
            onnx::node("RandomNormalLike", &["w"], "noise", &[]),
            onnx::node("Add", &["w", "noise"], "z", &[]),
            onnx::node("Mul", &["z", "x"], "y", &[]),
        ];
        let bytes = onnx::model(&nodes, &[onnx::floats("w", &[8], &[0.0; 8])], ("x", &[8]), ("y", &[8]));
        let mut options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(0.0));
        options.seed = seed;
        let mut trainer = trainer(Model::from_bytes(&bytes).unwrap(), options, host(1));
        let ones = || tensor(&[8], &[1.0; 8]);
        let mut step = || trainer.step(BTreeMap::from([("x".to_string(), ones())]), ones()).unwrap().loss;
        [step(), step()]
    };
    let first = losses(1);
    assert_ne!(first[0], first[1]);
    assert_eq!(losses(1), first);
    assert_ne!(losses(2), first);
}

/// The largest element of each bin, with the bins' borders computed as in onnxruntime.
#[test]
fn regions_are_pooled_to_their_largest_elements() {
    let (height, width, channels, [rows, columns]) = (9usize, 7usize, 2usize, [3usize, 2usize]);
    let scale = 0.5f32;
    // Inside, one element, partly beyond the image, outside of it, the whole image, turned around, from a half below 0.
    let regions: [[f32; 5]; 7] = [
        [0.0, 2.0, 3.0, 9.0, 15.0],
        [1.0, 4.0, 4.0, 4.0, 4.0],
        [1.0, -6.0, 5.0, 30.0, 50.0],
        [0.0, 40.0, 40.0, 50.0, 50.0],
        [1.0, 0.0, 0.0, 12.0, 16.0],
        [0.0, 9.0, 9.0, 1.0, 1.0],
        [0.0, -1.0, -1.0, 3.0, 3.0],
    ];
    let x: Vec<f32> = (0..2 * channels * height * width).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect();
    let model = GraphBuilder::new()
        .input("x", FLOAT, &["2", "2", "9", "7"])
        .input("regions", FLOAT, &["7", "5"])
        .node_with(
            "MaxRoiPool",
            &["x", "regions"],
            &["y"],
            vec![("pooled_shape", Value::Ints(vec![3, 2])), ("spatial_scale", Value::Float(scale))],
        )
        .output("y", FLOAT, &["7", "2", "3", "2"]);
    let mut session = Session::builder(&Model::from_bytes(&model.build()).unwrap()).build().unwrap();
    let inputs = [
        ("x".to_string(), Tensor::from_f32(&[2, 2, 9, 7], &x)),
        ("regions".to_string(), Tensor::from_f32(&[7, 5], &regions.concat())),
    ];
    let y = session.run(inputs.into()).unwrap()["y"].to_f32().unwrap();
    let mut expected = Vec::new();
    for [image, x1, y1, x2, y2] in regions {
        let place = |x: f32| (x * scale).round() as i64;
        let borders = |first: i64, last: i64, bins: usize, i: usize, size: usize| {
            let bin = (last - first + 1).max(1) as f32 / bins as f32;
            let clip = |x: f32| (x as i64 + first).clamp(0, size as i64) as usize;
            clip((i as f32 * bin).floor())..clip(((i + 1) as f32 * bin).ceil())
        };
        for channel in 0..channels {
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let in_rows = borders(place(y1), place(y2), rows, row, height);
                let in_columns = borders(place(x1), place(x2), columns, column, width);
                let at = |h: usize, w: usize| x[((image as usize * channels + channel) * height + h) * width + w];
                let places = in_rows.flat_map(|h| in_columns.clone().map(move |w| (h, w)));
                expected.push(places.map(|(h, w)| at(h, w)).reduce(f32::max).unwrap_or(0.0));
            }
        }
    }
    assert_eq!(y, expected);
}

/// Elements of float16 whose squares, sums or differences exceed its range.
#[test]
fn float16_is_normalized_and_resized_in_float32() {
    let cast = |from: &str, to: &str, kind: i64| onnx::node("Cast", &[from], to, &[("to", &[kind], false)]);
    let computed = |nodes: &[Vec<u8>], limit: f64, shape: &[usize], output: &[usize]| {
        let last = shape[shape.len() - 1];
        let around = [cast("x", "half", onnx::FLOAT16), cast("ones", "scale", onnx::FLOAT16)];
        let nodes = [&around[..], nodes, &[cast("z", "y", onnx::FLOAT)]].concat();
        let ones = onnx::floats("ones", &[last], &vec![1.0; last]);
        let model = Model::from_bytes(&onnx::model(&nodes, &[ones], ("x", shape), ("y", output))).unwrap();
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        let values: Vec<f64> = (0..shape.iter().product()).map(|i| if i % 2 == 0 { limit } else { -limit }).collect();
        let outputs = session.run(BTreeMap::from([("x".to_string(), tensor(shape, &values))])).unwrap();
        outputs["y"].to_f32().unwrap()
    };
    let turns = |value: f32| (0..1024).map(|i| if i % 2 == 0 { value } else { -value }).collect::<Vec<f32>>();
    let node = onnx::node("SimplifiedLayerNormalization", &["half", "scale"], "z", &[]);
    assert_eq!(computed(&[node], 300.0, &[1, 1024], &[1, 1024]), turns(1.0));
    let node = onnx::node("LpNormalization", &["half"], "z", &[("p", &[1], false)]);
    assert_eq!(computed(&[node], 300.0, &[1, 1024], &[1, 1024]), turns(1.0 / 1024.0));
    let node = onnx::node("MeanVarianceNormalization", &["half"], "z", &[]);
    assert_eq!(computed(&[node], 300.0, &[1, 1, 4, 256], &[1, 1, 4, 256]), turns(1.0));
    let node = onnx::node("LpPool", &["half"], "z", &[("kernel_shape", &[2, 2], true)]);
    assert_eq!(computed(&[node], 300.0, &[1, 1, 2, 4], &[1, 1, 1, 3]), [600.0; 3]);
    let resize = with_text(onnx::node("Resize", &["half", "", "", "sizes"], "z", &[]), "mode", "linear");
    let nodes = [constant("sizes", &[1, 1, 1, 4]), resize];
    assert_eq!(computed(&nodes, 60000.0, &[1, 1, 1, 2], &[1, 1, 1, 4]), [60000.0, 30000.0, -30000.0, -60000.0]);
}

/// A batch of one image uses a separate kernel.
#[test]
fn each_image_is_normalized_by_itself() {
    for images in [1, 2] {
        let parameters = [random("w", &[images, 3, 5, 4], 1.0), random("scale", &[3], 1.0), random("bias", &[3], 1.0)];
        let nodes = [onnx::node("InstanceNormalization", &["w", "scale", "bias"], "z", &[])];
        check(&format!("InstanceNormalization of {images}"), &nodes, &parameters, &[images, 3, 5, 4]);
    }
}

/// The kernels of a chain of convolutions and normalizations of one image are cut along its positions, and the bits stay the same.
#[test]
fn one_image_is_normalized_in_less_than_it_takes() {
    let convolution = |inputs: [&str; 2], output: &str| onnx::node("Conv", &inputs, output, &[("pads", &[1; 4], true)]);
    let nodes = [
        convolution(["x", "w"], "a"),
        onnx::node("InstanceNormalization", &["a", "scale", "bias"], "b", &[]),
        onnx::node("Relu", &["b"], "c", &[]),
        convolution(["c", "v"], "y"),
    ];
    let parameters = [
        random("w", &[8, 1, 3, 3], 0.5),
        random("scale", &[8], 1.0),
        random("bias", &[8], 1.0),
        random("v", &[1, 8, 3, 3], 0.2),
    ];
    let shape = [1, 1, 96, 96];
    let initializers: Vec<Vec<u8>> = parameters.iter().map(|p| onnx::floats(p.name, &p.shape, &p.values)).collect();
    let model = Model::from_bytes(&onnx::model(&nodes, &initializers, ("x", &shape), ("y", &shape))).unwrap();
    let image = random("x", &shape, 1.0);
    let trained = |engine: EngineOptions| {
        let options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(0.1));
        let mut trainer = trainer(model.clone(), options, engine);
        for _ in 0..2 {
            let batch = BTreeMap::from([("x".to_string(), tensor(&shape, &image.values))]);
            trainer.step(batch, tensor(&shape, &image.values)).unwrap();
        }
        (trainer.parameters().unwrap(), trainer.statistics().minimum_budget_bytes)
    };
    let (free, least) = trained(host(2));
    let activation_bytes = 8 * 96 * 96 * 4;
    assert!(least < activation_bytes, "{least} of {activation_bytes} bytes");
    assert_eq!(trained(host(2).simulate_device(MemorySize::Bytes(least))).0, free);
}

#[test]
fn a_channel_without_variance_has_a_gradient() {
    let shape = [1, 2, 3, 4];
    let mut image = random("w", &shape, 1.0);
    image.values[..12].fill(0.5);
    let node = onnx::node("MeanVarianceNormalization", &["w"], "z", &[]);
    let (loss, after) = step(&[node], &[image], &shape);
    assert!(loss.is_finite() && after["w"].iter().all(|value| value.is_finite()), "{loss}: {after:?}");
}
