//! Recurrent networks as whole models: a step of gradient descent moves every parameter by the slope of the loss, which is compared with
//! differences of the loss.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{DataType, Model, Session, SessionOptions, Tensor};
use forebay_golden::{host, onnx, trainer};
use forebay_testing::Random;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value};
use forebay_testing::onnx::protobuf::{message, number};

const STEPS: usize = 3;
const BATCH: usize = 2;
const ELEMENTS: usize = 4;
const UNITS: usize = 3;

/// One network.
#[derive(Clone, Copy, Debug)]
struct Network {
    operator: &'static str,
    gates: usize,
    direction: &'static str,
    directions: usize,
    by_batch: bool,
    resets_after: bool,
    /// Which output is the model's: all of y, the last h, or the last c.
    output: usize,
}

impl Network {
    /// The names and shapes of the parameters.
    fn parameters(&self) -> Vec<(&'static str, Vec<usize>)> {
        let (d, columns) = (self.directions, self.gates * UNITS);
        let state = if self.by_batch { vec![BATCH, d, UNITS] } else { vec![d, BATCH, UNITS] };
        let mut all = vec![
            ("w", vec![d, columns, ELEMENTS]),
            ("r", vec![d, columns, UNITS]),
            ("b", vec![d, 2 * columns]),
            ("h", state.clone()),
        ];
        if self.operator == "LSTM" {
            all.extend([("c", state), ("p", vec![d, 3 * UNITS])]);
        }
        all
    }

    fn shapes(&self) -> [Vec<usize>; 2] {
        let d = self.directions;
        let (x, state) = match self.by_batch {
            true => (vec![BATCH, STEPS, ELEMENTS], vec![BATCH, d, UNITS]),
            false => (vec![STEPS, BATCH, ELEMENTS], vec![d, BATCH, UNITS]),
        };
        let y = match (self.output, self.by_batch) {
            (0, true) => vec![BATCH, STEPS, d, UNITS],
            (0, false) => vec![STEPS, d, BATCH, UNITS],
            _ => state,
        };
        [x, y]
    }

    fn model(&self, values: &BTreeMap<&str, Vec<f64>>) -> Model {
        let text = |field: u64, content: &str| message(field, content.as_bytes());
        let mut node: Vec<u8> = ["x", "w", "r", "b", "", "h"].iter().flat_map(|input| text(1, input)).collect();
        if self.operator == "LSTM" {
            node.extend([text(1, "c"), text(1, "p")].concat());
        }
        node.extend((0..self.output).flat_map(|_| text(2, "")));
        node.extend([text(2, "y"), text(4, self.operator)].concat());
        let direction = [text(1, "direction"), text(4, self.direction), number(20, 3)].concat();
        node.extend(message(5, &direction));
        let flags = [("layout", self.by_batch), ("linear_before_reset", self.resets_after && self.operator == "GRU")];
        for (name, flag) in flags.into_iter().filter(|(_, flag)| *flag) {
            node.extend(message(5, &[text(1, name), number(3, i64::from(flag)), number(20, 2)].concat()));
        }
        let parameters = self.parameters();
        let initializers: Vec<Vec<u8>> =
            parameters.iter().map(|(name, shape)| onnx::floats(name, shape, &values[name])).collect();
        let [x, y] = self.shapes();
        Model::from_bytes(&onnx::model(&[node], &initializers, ("x", &x), ("y", &y))).unwrap()
    }
}

fn numbers(random: &mut Random, shape: &[usize]) -> Vec<f64> {
    let count = shape.iter().product();
    (0..count).map(|_| f64::from(random.float())).collect()
}

fn tensor(shape: &[usize], values: &[f64]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
    let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
    Tensor::new(DataType::Float32, &shape, bytes).unwrap()
}

/// The mean of the squared differences from the labels.
fn loss(network: &Network, values: &BTreeMap<&str, Vec<f64>>, x: &Tensor, labels: &[f64]) -> f64 {
    let mut options = SessionOptions::default();
    options.engine = host(1);
    let mut session = Session::new(&network.model(values), &options).unwrap();
    let y = session.run(BTreeMap::from([("x".to_string(), x.clone())])).unwrap();
    let y = y["y"].to_f32().unwrap();
    let squares = y.iter().zip(labels).map(|(&y, &label)| (f64::from(y) - label).powi(2));
    squares.sum::<f64>() / labels.len() as f64
}

fn check(seed: u64, network: Network) {
    let mut random = Random::new(seed);
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, shape) in network.parameters() {
        values.insert(name, numbers(&mut random, &shape));
    }
    let [x_shape, y_shape] = network.shapes();
    let x = tensor(&x_shape, &numbers(&mut random, &x_shape));
    let labels = numbers(&mut random, &y_shape);
    let step = |threads: usize| {
        let options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(1.0));
        let mut trainer = trainer(network.model(&values), options, host(threads));
        let batch = BTreeMap::from([("x".to_string(), x.clone())]);
        let found = f64::from(trainer.step(batch, tensor(&y_shape, &labels)).unwrap().loss);
        (found, trainer.parameters().unwrap())
    };
    let (found, parameters) = step(1);
    assert_eq!((found, &parameters), (step(3).0, &step(3).1), "{network:?}: bits depend on the number of threads");
    let expected = loss(&network, &values, &x, &labels);
    assert!((found - expected).abs() < 1e-6, "{network:?}: the loss is {found}, not {expected}");
    for (name, _) in network.parameters() {
        let moved = parameters[name].to_f32().unwrap();
        for i in 0..values[name].len() {
            let (old, change) = (values[name][i], 1.0 / 64.0);
            let mut at = |value: f64| {
                values.get_mut(name).unwrap()[i] = value;
                loss(&network, &values, &x, &labels)
            };
            let slope = (at(old + change) - at(old - change)) / (2.0 * change);
            at(old);
            let gradient = f64::from(old as f32) - f64::from(moved[i]);
            assert!((gradient - slope).abs() < 2e-4, "{network:?}: {name}[{i}]: {gradient}, differences give {slope}");
        }
    }
}

#[test]
fn a_step_goes_down_the_slope_of_every_parameter() {
    let kinds = [("LSTM", 4, false, 3), ("GRU", 3, true, 2), ("GRU", 3, false, 2), ("RNN", 1, false, 2)];
    let mut seed = 0;
    for (operator, gates, resets_after, outputs) in kinds {
        for (direction, directions, by_batch) in
            [("forward", 1, false), ("reverse", 1, true), ("bidirectional", 2, false), ("bidirectional", 2, true)]
        {
            // Every output depends on the whole sequence; testing one each keeps the test short.
            seed += 1;
            let output = seed as usize % outputs;
            check(seed, Network { operator, gates, direction, directions, by_batch, resets_after, output });
        }
    }
}

#[test]
fn sequences_without_steps_leave_the_initial_states() {
    for (operator, gates, by_batch) in [("RNN", 1, false), ("GRU", 3, true), ("LSTM", 4, false)] {
        for given in [true, false] {
            let mut graph = GraphBuilder::new()
                .input("x", FLOAT, &["A", "B", "4"])
                .floats("w", &[1, gates * UNITS, ELEMENTS], &vec![0.1; gates * UNITS * ELEMENTS])
                .floats("r", &[1, gates * UNITS, UNITS], &vec![0.1; gates * UNITS * UNITS]);
            let (state, h) = (if by_batch { [2, 1, 3] } else { [1, 2, 3] }, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            if given {
                graph = graph.floats("h", &state, &h).floats("c", &state, &h.map(|value| value + 10.0));
            }
            let inputs: &[&str] = match (given, operator) {
                (false, _) => &["x", "w", "r"],
                (true, "LSTM") => &["x", "w", "r", "", "", "h", "c"],
                (true, _) => &["x", "w", "r", "", "", "h"],
            };
            let outputs: &[&str] = if operator == "LSTM" { &["y", "y_h", "y_c"] } else { &["y", "y_h"] };
            graph = graph.node_with(operator, inputs, outputs, vec![("layout", Value::Int(i64::from(by_batch)))]);
            for output in outputs {
                let sizes: &[&str] = if *output == "y" { &["A", "B", "C", "3"] } else { &["A", "B", "3"] };
                graph =
                    graph.output(&format!("{output}s"), FLOAT, sizes).node("Abs", &[output], &[&format!("{output}s")]);
            }
            let mut session = Session::builder(&Model::from_bytes(&graph.build()).unwrap()).build().unwrap();
            let x = if by_batch { [2, 0, 4] } else { [0, 2, 4] };
            let outputs = session.run(BTreeMap::from([("x".to_string(), tensor(&x, &[]))])).unwrap();
            let y: &[u64] = if by_batch { &[2, 0, 1, 3] } else { &[0, 1, 2, 3] };
            assert_eq!(outputs["ys"].shape(), y, "{operator}");
            let expected = |add: f32| if given { h.map(|value| value + add) } else { [0.0; 6] };
            assert_eq!(outputs["y_hs"].to_f32().unwrap(), expected(0.0), "{operator}");
            if let Some(cell) = outputs.get("y_cs") {
                assert_eq!(cell.to_f32().unwrap(), expected(10.0), "{operator}");
            }
            assert_eq!(outputs["y_hs"].shape(), state.map(|size| size as u64), "{operator}");
        }
    }
}
