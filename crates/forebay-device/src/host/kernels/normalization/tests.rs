//! Normalizations against naive models in double precision; gradients against central differences of those.

use forebay_base::kernel::Activation;
use forebay_base::{DataType, Kernel, TensorDesc};

use super::super::testing::{Random, Tensor, assert_close, desc, differences, dot, refusal, run};

const EPSILON: f32 = 1e-3;

struct Batch {
    y: Vec<f64>,
    mean: Vec<f64>,
    variance: Vec<f64>,
}

fn naive_batch(x: &[f64], sizes: &[u64], scale: &[f64], bias: &[f64], relu: bool) -> Batch {
    let channels = sizes[1] as usize;
    let places = sizes[2..].iter().product::<u64>() as usize;
    let channel_of = |i: usize| i / places % channels;
    let samples = (x.len() / channels) as f64;
    let mut mean = vec![0.0; channels];
    x.iter().enumerate().for_each(|(i, x)| mean[channel_of(i)] += x / samples);
    let mut variance = vec![0.0; channels];
    x.iter().enumerate().for_each(|(i, x)| variance[channel_of(i)] += (x - mean[channel_of(i)]).powi(2) / samples);
    let y = x.iter().enumerate().map(|(i, x)| {
        let c = channel_of(i);
        let y = scale[c] * (x - mean[c]) / (variance[c] + EPSILON as f64).sqrt() + bias[c];
        if relu { y.max(0.0) } else { y }
    });
    Batch { y: y.collect(), mean, variance }
}

fn random_tensor(random: &mut Random, shape: &TensorDesc) -> Tensor {
    Tensor::new(shape, &random.values(shape.element_count() as usize))
}

fn per_channel(sizes: &[u64], data_type: DataType) -> TensorDesc {
    desc(data_type, &[sizes[1]])
}

#[test]
fn batch_normalization_matches_in_training_and_inference() {
    let shapes: [&[u64]; 6] =
        [&[7, 3], &[5, 4, 6], &[2, 3, 4, 5], &[1, 2, 150, 130], &[40, 2, 31, 33], &[3, 1, 5, 70, 61]];
    let mut random = Random::new(11);
    for sizes in shapes {
        for (data_type, tolerance) in [(DataType::Float32, 2e-6), (DataType::Float64, 1e-12)] {
            for activation in [Activation::None, Activation::Relu] {
                let (shape, channel) = (desc(data_type, sizes), per_channel(sizes, data_type));
                let x = random_tensor(&mut random, &shape);
                let (scale, bias) = (random_tensor(&mut random, &channel), random_tensor(&mut random, &channel));
                let kernel = Kernel::BatchNormalizationTraining { epsilon: EPSILON, activation, group_size: 1 };
                let outputs = run(&kernel, &[&x, &scale, &bias], &[shape.clone(), channel.clone(), channel.clone()]);
                let relu = activation == Activation::Relu;
                let expected = naive_batch(&x.values(), sizes, &scale.values(), &bias.values(), relu);
                assert_close(&outputs[0].values(), &expected.y, tolerance, &format!("y of {shape}"));
                assert_close(&outputs[1].values(), &expected.mean, 1e-7, "mean");
                assert_close(&outputs[2].values(), &expected.variance, 1e-7, "variance");
                let kernel = Kernel::BatchNormalization { epsilon: EPSILON, activation };
                let y = run(&kernel, &[&x, &scale, &bias, &outputs[1], &outputs[2]], std::slice::from_ref(&shape));
                assert_eq!(y[0].values(), outputs[0].values(), "inference with the batch's statistics");
            }
        }
    }
}

#[test]
fn statistics_keep_their_digits_far_from_zero() {
    let mut random = Random::new(4);
    let shape = desc(DataType::Float32, &[2, 2, 300, 301]);
    let values: Vec<f64> = random.values(2 * 2 * 300 * 301).iter().map(|x| (1000.0 + x) as f32 as f64).collect();
    let channel = per_channel(shape.sizes(), DataType::Float32);
    let ones = Tensor::new(&channel, &[1.0; 2]);
    let kernel = Kernel::BatchNormalizationTraining { epsilon: EPSILON, activation: Activation::None, group_size: 1 };
    let outputs =
        run(&kernel, &[&Tensor::new(&shape, &values), &ones, &ones], &[shape.clone(), channel.clone(), channel]);
    let expected = naive_batch(&values, shape.sizes(), &[1.0; 2], &[1.0; 2], false);
    assert_close(&outputs[1].values(), &expected.mean, 1e-7, "mean");
    assert_close(&outputs[2].values(), &expected.variance, 1e-7, "variance");
}

/// A naive model of normalization: a function of x, scale and bias.
type Model<'a> = &'a dyn Fn(&[f64], &[f64], &[f64]) -> Batch;

/// Checks a normalization against its naive model, and its gradients against finite differences of the model.
fn check_with_gradients(
    random: &mut Random,
    shape: &TensorDesc,
    (activation, group_size): (Activation, u64),
    tolerance: f64,
    model: Model,
) {
    let channel = per_channel(shape.sizes(), shape.data_type());
    let (x, dy) = (random_tensor(random, shape), random_tensor(random, shape));
    let (scale, bias) = (random_tensor(random, &channel), random_tensor(random, &channel));
    let outputs = [shape.clone(), channel.clone(), channel];
    let kernel = Kernel::BatchNormalizationTraining { epsilon: EPSILON, activation, group_size };
    let forward = run(&kernel, &[&x, &scale, &bias], &outputs);
    let kernel = Kernel::BatchNormalizationGradient { epsilon: EPSILON, activation, group_size };
    let gradients = run(&kernel, &[&dy, &x, &scale, &bias, &forward[1], &forward[2]], &outputs);
    let (x, scale, bias) = (x.values(), scale.values(), bias.values());
    let expected = model(&x, &scale, &bias);
    let what = format!("groups of {group_size} in {shape} {activation:?}");
    assert_close(&forward[0].values(), &expected.y, tolerance, &what);
    assert_close(&forward[1].values(), &expected.mean, 1e-6, &what);
    assert_close(&forward[2].values(), &expected.variance, 1e-6, &what);
    let loss = |x: &[f64], scale: &[f64], bias: &[f64]| dot(&model(x, scale, bias).y, &dy.values());
    assert_close(&gradients[0].values(), &differences(&x, |x| loss(x, &scale, &bias)), tolerance, &what);
    assert_close(&gradients[1].values(), &differences(&scale, |s| loss(&x, s, &bias)), tolerance, &what);
    assert_close(&gradients[2].values(), &differences(&bias, |b| loss(&x, &scale, b)), tolerance, &what);
}

#[test]
fn batch_normalization_gradient_matches_differences() {
    let shapes: [&[u64]; 3] = [&[6, 2], &[3, 2, 4], &[2, 3, 2, 5]];
    let mut random = Random::new(12);
    for sizes in shapes {
        for (data_type, tolerance) in [(DataType::Float32, 5e-6), (DataType::Float64, 1e-7)] {
            for activation in [Activation::None, Activation::Relu] {
                let relu = activation == Activation::Relu;
                let model = |x: &[f64], scale: &[f64], bias: &[f64]| naive_batch(x, sizes, scale, bias, relu);
                check_with_gradients(&mut random, &desc(data_type, sizes), (activation, 1), tolerance, &model);
            }
        }
    }
}

#[test]
fn large_batch_normalization_gradients_add_up() {
    // In exact arithmetic, dx and dx times x each sum to 0 in every channel.
    let mut random = Random::new(13);
    let sizes = [3, 2, 170, 101];
    let (shape, channel) = (desc(DataType::Float32, &sizes), per_channel(&sizes, DataType::Float32));
    let (x, dy) = (random_tensor(&mut random, &shape), random_tensor(&mut random, &shape));
    let (scale, bias) = (random_tensor(&mut random, &channel), random_tensor(&mut random, &channel));
    let outputs = [shape.clone(), channel.clone(), channel.clone()];
    let kernel = Kernel::BatchNormalizationTraining { epsilon: 0.0, activation: Activation::Relu, group_size: 1 };
    let forward = run(&kernel, &[&x, &scale, &bias], &outputs);
    let kernel = Kernel::BatchNormalizationGradient { epsilon: 0.0, activation: Activation::Relu, group_size: 1 };
    let gradients = run(&kernel, &[&dy, &x, &scale, &bias, &forward[1], &forward[2]], &outputs);
    let dx = gradients[0].values();
    assert!(dx.iter().sum::<f64>().abs() < 1e-2, "sum {}", dx.iter().sum::<f64>());
    assert!(dot(&dx, &x.values()).abs() < 1e-2, "product {}", dot(&dx, &x.values()));
    let active = forward[0].values();
    let mut dbias = [0.0; 2];
    for (i, dy) in dy.values().into_iter().enumerate() {
        dbias[i / (170 * 101) % 2] += if active[i] > 0.0 { dy } else { 0.0 };
    }
    assert_close(&gradients[2].values(), &dbias, 1e-6, "dbias");
}

#[test]
fn running_statistics_move_by_momentum() {
    let shape = desc(DataType::Float32, &[2]);
    let (running, batch) = (Tensor::new(&shape, &[1.0, -2.0]), Tensor::new(&shape, &[3.0, 8.0]));
    let updated = run(&Kernel::RunningStatistics { momentum: 0.75, correction: 1.5 }, &[&running, &batch], &[shape]);
    assert_eq!(updated[0].values(), [0.75 + 0.25 * 4.5, -1.5 + 0.25 * 12.0]);
}

fn naive_layer(x: &[f64], length: usize, scale: &[f64], bias: &[f64]) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(length) {
        let mean = row.iter().sum::<f64>() / length as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / length as f64;
        let inverse = 1.0 / (variance + EPSILON as f64).sqrt();
        y.extend((0..length).map(|i| (row[i] - mean) * inverse * scale[i] + bias[i]));
    }
    y
}

#[test]
fn layer_normalization_and_gradient() {
    let shapes: [(&[u64], usize); 4] = [(&[4, 6], 1), (&[2, 3, 5], 1), (&[7], 0), (&[3, 40, 300], 2)];
    let mut random = Random::new(14);
    for (sizes, axis) in shapes {
        for (data_type, tolerance) in [(DataType::Float32, 5e-6), (DataType::Float64, 1e-7)] {
            let shape = desc(data_type, sizes);
            let rows = desc(data_type, &[sizes[..axis].iter().product()]);
            let row = desc(data_type, &sizes[axis..]);
            let length = row.element_count() as usize;
            let (x, dy) = (random_tensor(&mut random, &shape), random_tensor(&mut random, &shape));
            let (scale, bias) = (random_tensor(&mut random, &row), random_tensor(&mut random, &row));
            let outputs = [shape.clone(), rows.clone(), rows];
            let kernel = Kernel::LayerNormalization { axis, epsilon: EPSILON };
            let forward = run(&kernel, &[&x, &scale, &bias], &outputs);
            let expected = naive_layer(&x.values(), length, &scale.values(), &bias.values());
            assert_close(&forward[0].values(), &expected, tolerance, &format!("{shape}"));
            let plain = run(&kernel, &[&x, &scale], &outputs);
            let expected = naive_layer(&x.values(), length, &scale.values(), &vec![0.0; length]);
            assert_close(&plain[0].values(), &expected, tolerance, &format!("{shape} without bias"));

            let kernel = Kernel::LayerNormalizationGradient { axis };
            let reads = [&dy, &x, &scale, &forward[1], &forward[2]];
            let gradients = run(&kernel, &reads, &[shape.clone(), row.clone(), row.clone()]);
            let (x, scale, bias, dy) = (x.values(), scale.values(), bias.values(), dy.values());
            let normalized = naive_layer(&x, length, &vec![1.0; length], &vec![0.0; length]);
            let (mut dscale, mut dbias) = (vec![0.0; length], vec![0.0; length]);
            for (i, dy) in dy.iter().enumerate() {
                dscale[i % length] += dy * normalized[i];
                dbias[i % length] += dy;
            }
            assert_close(&gradients[1].values(), &dscale, tolerance, &format!("dscale of {shape}"));
            assert_close(&gradients[2].values(), &dbias, tolerance, &format!("dbias of {shape}"));
            // Rows are independent, so differences of the first row suffice to check dx.
            let first = differences(&x[..length], |x| dot(&naive_layer(x, length, &scale, &bias), &dy[..length]));
            assert_close(&gradients[0].values()[..length], &first, tolerance, &format!("dx of {shape}"));
        }
    }
}

#[test]
fn scales_of_another_type_are_refused() {
    let x = Tensor::new(&desc(DataType::Float32, &[2, 8]), &[1.0; 16]);
    let writes = [&[2, 8][..], &[2], &[2]].map(|sizes| desc(DataType::Float32, sizes));
    for data_type in [DataType::UInt8, DataType::Float64] {
        let scale = Tensor::new(&desc(data_type, &[8]), &[1.0; 8]);
        let reason = refusal(&Kernel::LayerNormalization { axis: 1, epsilon: EPSILON }, &[&x, &scale], &writes);
        assert!(reason.contains("must be float32"), "{reason}");
    }
}

fn naive_local(x: &[f64], sizes: &[u64], size: usize, (alpha, beta, bias): (f64, f64, f64)) -> Vec<f64> {
    let channels = sizes[1] as usize;
    let places = sizes[2..].iter().product::<u64>() as usize;
    (0..x.len())
        .map(|i| {
            let channel = (i / places % channels) as i64;
            let (low, high) = (channel - (size as i64 - 1) / 2, channel + size as i64 / 2);
            let sum: f64 = (low.max(0)..=high.min(channels as i64 - 1))
                .map(|neighbor| x[(i as i64 + (neighbor - channel) * places as i64) as usize].powi(2))
                .sum();
            x[i] / (bias + alpha / size as f64 * sum).powf(beta)
        })
        .collect()
}

#[test]
fn local_response_normalization_and_gradient() {
    let mut random = Random::new(15);
    let (alpha, beta, bias) = (0.5f32, 0.75f32, 1.5f32);
    for size in [1, 3, 4, 5] {
        let sizes = [2, 6, 3, 2];
        let shape = desc(DataType::Float32, &sizes);
        let (x, dy) = (random_tensor(&mut random, &shape), random_tensor(&mut random, &shape));
        let model = |x: &[f64]| naive_local(x, &sizes, size as usize, (alpha as f64, beta as f64, bias as f64));
        let y =
            run(&Kernel::LocalResponseNormalization { size, alpha, beta, bias }, &[&x], std::slice::from_ref(&shape));
        assert_close(&y[0].values(), &model(&x.values()), 1e-6, &format!("size {size}"));
        let kernel = Kernel::LocalResponseNormalizationGradient { size, alpha, beta, bias };
        let dx = run(&kernel, &[&dy, &x], &[shape]);
        let expected = differences(&x.values(), |x| dot(&model(x), &dy.values()));
        assert_close(&dx[0].values(), &expected, 2e-6, &format!("gradient, size {size}"));
    }
}

fn naive_groups(x: &[f64], sizes: &[u64], group_size: u64, scale: &[f64], bias: &[f64], relu: bool) -> Batch {
    // With a single image, a group is a channel with more places.
    let places: u64 = sizes[2..].iter().product();
    let groups = [1, sizes[1] / group_size, group_size * places];
    let ones = vec![1.0; sizes[1] as usize];
    let zeros = vec![0.0; sizes[1] as usize];
    let Batch { y, mean, variance } = naive_batch(x, &groups, &ones, &zeros, false);
    let y = y.iter().enumerate().map(|(i, y)| {
        let channel = i / places as usize;
        let y = scale[channel] * y + bias[channel];
        if relu { y.max(0.0) } else { y }
    });
    let of_channels = |of_groups: Vec<f64>| (0..sizes[1]).map(|c| of_groups[(c / group_size) as usize]).collect();
    Batch { y: y.collect(), mean: of_channels(mean), variance: of_channels(variance) }
}

#[test]
fn group_normalization_and_gradient() {
    let mut random = Random::new(16);
    for (sizes, group_size) in [(&[1u64, 6, 4, 5][..], 3), (&[1, 4, 3], 4), (&[1, 6, 2, 3, 2], 2)] {
        for (data_type, tolerance) in [(DataType::Float32, 5e-6), (DataType::Float64, 1e-7)] {
            for activation in [Activation::None, Activation::Relu] {
                let relu = activation == Activation::Relu;
                let model =
                    |x: &[f64], scale: &[f64], bias: &[f64]| naive_groups(x, sizes, group_size, scale, bias, relu);
                check_with_gradients(&mut random, &desc(data_type, sizes), (activation, group_size), tolerance, &model);
            }
        }
    }
}
