//! Random networks of convolutions and the layers between them, on images of odd sizes: the bits of gradients are the same at any budget.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{EngineOptions, MemorySize, Model, Tensor};
use forebay_golden::{host, trainer};
use forebay_testing::Random;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value};

/// The rate is so large that a step replaces parameters by multiples of their gradients, down to the last bits.
const LEARNING_RATE: f32 = 1e6;

/// A network that grows, layer by layer, from `x`.
struct Network {
    graph: GraphBuilder,
    random: Random,
    layers: usize,
    last: String,
    /// Images, channels, then spatial sizes.
    sizes: Vec<usize>,
}

impl Network {
    fn new(seed: u64) -> Network {
        let mut random = Random::new(seed);
        let (dimensions, largest) = [(1, 5000), (2, 72), (2, 72), (3, 14)][random.index(4)];
        let mut sizes = vec![1 + random.index(3), 1 + random.index(3)];
        // Often there is only one image, which can be cut only along its positions.
        if random.percent(50) {
            sizes[0] = 1;
        }
        sizes.extend((0..dimensions).map(|_| random.between(largest / 4 + 4, largest)));
        let names: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let graph = GraphBuilder::new().input("x", FLOAT, &names);
        let mut network = Network { graph, random, layers: 0, last: "x".to_owned(), sizes };
        for _ in 0..network.random.between(2, 3) {
            network.convolution();
            network.normalization();
            let activation = ["Relu", "LeakyRelu", "Sigmoid", "Tanh"][network.random.index(4)];
            network.node(activation, &[], Vec::new());
            network.resampling();
        }
        network
    }

    /// Adds a layer that takes the latest output and these parameters, each with its name and sizes.
    fn node(&mut self, operator: &str, parameters: &[(&str, Vec<usize>)], attributes: Vec<(&str, Value)>) {
        let mut graph = std::mem::take(&mut self.graph);
        let mut inputs = vec![self.last.clone()];
        for (name, shape) in parameters {
            let name = format!("{name}{}", self.layers);
            let values = self.random.values(shape.iter().product());
            // Variances are positive.
            let values: Vec<f32> = values
                .iter()
                .map(|value| if name.starts_with("variance") { 1.5 } else { *value as f32 * 0.4 })
                .collect();
            graph = graph.floats(&name, shape, &values);
            inputs.push(name);
        }
        self.last = format!("layer{}", self.layers);
        self.layers += 1;
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.graph = graph.node_with(operator, &inputs, &[&self.last], attributes);
    }

    fn convolution(&mut self) {
        let dimensions = self.sizes.len() - 2;
        let (kernel, stride) = ([1, 3, 3, 5][self.random.index(4)], [1, 1, 1, 2][self.random.index(4)]);
        let (inputs, outputs) = (self.sizes[1], [1, 2, 3, 4, 6][self.random.index(5)]);
        let groups = if outputs % inputs == 0 && self.random.once_in(3) { inputs } else { 1 };
        let mut parameters = vec![("w", [vec![outputs, inputs / groups], vec![kernel; dimensions]].concat())];
        if self.random.percent(50) {
            parameters.push(("b", vec![outputs]));
        }
        let attributes = vec![
            ("pads", Value::Ints(vec![kernel as i64 / 2; 2 * dimensions])),
            ("strides", Value::Ints(vec![stride as i64; dimensions])),
            ("group", Value::Int(groups as i64)),
        ];
        self.node("Conv", &parameters, attributes);
        self.sizes[1] = outputs;
        self.sizes[2..].iter_mut().for_each(|size| *size = (*size - 1) / stride + 1);
    }

    fn normalization(&mut self) {
        let channels = || vec![self.sizes[1]];
        match self.random.index(3) {
            0 => {
                let names = ["scale", "bias", "mean", "variance"];
                let parameters = names.map(|name| (name, channels()));
                self.node("BatchNormalization", &parameters, Vec::new());
            }
            1 => {
                let parameters = ["scale", "bias"].map(|name| (name, channels()));
                self.node("InstanceNormalization", &parameters, Vec::new());
            }
            _ => {}
        }
    }

    /// Halves or doubles the spatial sizes, or leaves them unchanged.
    fn resampling(&mut self) {
        let dimensions = self.sizes.len() - 2;
        let twos = || Value::Ints(vec![2; dimensions]);
        let is_small = self.sizes[2..].iter().any(|&size| size < 6);
        match self.random.index(6) {
            0 if !is_small => {
                let operator = ["MaxPool", "AveragePool"][self.random.index(2)];
                self.node(operator, &[], vec![("kernel_shape", twos()), ("strides", twos())]);
                self.sizes[2..].iter_mut().for_each(|size| *size /= 2);
            }
            1 if self.sizes[2..].iter().product::<usize>() < 1500 => {
                let weights = [vec![self.sizes[1]; 2], vec![2; dimensions]].concat();
                self.node("ConvTranspose", &[("w", weights)], vec![("strides", twos())]);
                self.sizes[2..].iter_mut().for_each(|size| *size *= 2);
            }
            _ => {}
        }
    }

    fn model(self) -> Vec<u8> {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
        self.graph.output(&self.last, FLOAT, &sizes).build()
    }
}

/// Trains a separate network for each seed, without a budget and within several.
fn check(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let bytes = Network::new(seed).model();
        let random_tensor = |shape: &[u64]| {
            let values = Random::new(seed + 1).values(shape.iter().product::<u64>() as usize);
            Tensor::from_f32(shape, &values.iter().map(|&value| value as f32).collect::<Vec<f32>>())
        };
        let trained = |engine: EngineOptions| {
            let model = Model::from_bytes(&bytes).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(LEARNING_RATE));
            let mut trainer = trainer(model, options, engine);
            let (x, labels) = (trainer.inputs()[0].shape.clone(), trainer.labels().shape.clone());
            let batch = BTreeMap::from([("x".to_string(), random_tensor(&x))]);
            trainer.step(batch, random_tensor(&labels)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            (trainer.parameters().unwrap(), trainer.statistics().minimum_budget_bytes)
        };
        let (expected, least_bytes) = trained(host(2));
        for percent in [100, 130, 180, 300] {
            let budget_bytes = least_bytes / 100 * percent + least_bytes % 100;
            let (found, _) = trained(host(2).simulate_device(MemorySize::Bytes(budget_bytes)));
            let other: Vec<&String> = expected.keys().filter(|&name| expected[name] != found[name]).collect();
            assert!(other.is_empty(), "seed {seed}: other bits in {budget_bytes} bytes: {other:?}");
        }
    }
}

#[test]
fn budgets_change_no_bit() {
    check(0..30);
}

/// Trains `FOREBAY_NETWORKS` networks.
#[test]
#[ignore = "takes minutes: cargo xtask networks"]
fn budgets_change_no_bit_of_many_networks() {
    let count: u64 = std::env::var("FOREBAY_NETWORKS").map_or(Ok(100), |text| text.parse()).expect("a number");
    check(30..30 + count);
}
