//! Gradients of operators with indices, of sorting, of sums along an axis, of powers and norms, and of losses in models: the change of the
//! parameters in a training step, compared with differences of the loss.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{MemorySize, Model, Session, SessionOptions, Tensor};
use forebay_base::Kernel;
use forebay_golden::{host, onnx, trainer};
use forebay_testing::onnx::protobuf::message;

/// How far a parameter is moved for a difference.
const STEP: f64 = 1e-2;

/// A function of the parameters w and u.
struct Function {
    nodes: Vec<Vec<u8>>,
    w: (Vec<usize>, Vec<f64>),
    u: (Vec<usize>, Vec<f64>),
    /// The shape of its result.
    shape: Vec<usize>,
}

/// Distinct numbers of both signs.
fn numbers(seed: usize, shape: &[usize]) -> (Vec<usize>, Vec<f64>) {
    let count = shape.iter().product::<usize>();
    let value = |i: usize| ((i * 37 + seed * 11) % 101) as f64 / 40.0 - 1.2;
    (shape.to_vec(), (0..count).map(value).collect())
}

/// An int64 constant.
fn ints(name: &str, shape: &[i64], values: &[i64]) -> Vec<Vec<u8>> {
    let (list, sizes) = (format!("{name}.list"), format!("{name}.shape"));
    vec![
        onnx::node("Constant", &[], &list, &[("value_ints", values, true)]),
        onnx::node("Constant", &[], &sizes, &[("value_ints", shape, true)]),
        onnx::node("Reshape", &[&list, &sizes], name, &[]),
    ]
}

impl Function {
    /// A function that applies an operator to w.
    fn of(operator: Vec<u8>, constants: Vec<Vec<u8>>, w: &[usize], shape: &[usize]) -> Function {
        let nodes = [constants, vec![operator]].concat();
        Function { nodes, w: numbers(1, w), u: numbers(2, &[1]), shape: shape.to_vec() }
    }

    /// The same function with u as a second parameter.
    fn with(self, u: &[usize]) -> Function {
        Function { u: numbers(3, u), ..self }
    }

    fn model(&self, w: &[f64], u: &[f64]) -> Model {
        let mut nodes = self.nodes.clone();
        // u contributes to every result, so there is always something to train.
        nodes.push(onnx::node("ReduceMean", &["u"], "mean", &[("keepdims", &[0], false)]));
        nodes.push(onnx::node("Mul", &["mean", "x"], "factor", &[]));
        nodes.push(onnx::node("Mul", &["v", "factor"], "y", &[]));
        let initializers = [onnx::floats("w", &self.w.0, w), onnx::floats("u", &self.u.0, u)];
        let bytes = onnx::model_of(26, &nodes, &initializers, ("x", &[1]), ("y", &self.shape));
        Model::from_bytes(&bytes).unwrap()
    }

    fn labels(&self) -> Tensor {
        let (shape, values) = numbers(5, &self.shape);
        let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
        Tensor::from_f32(&shape, &values.iter().map(|&value| value as f32).collect::<Vec<_>>())
    }

    /// The mean squared error.
    fn loss(&self, w: &[f64], u: &[f64]) -> f64 {
        let mut session = Session::new(&self.model(w, u), &SessionOptions::default()).unwrap();
        let y = session.run(batch()).unwrap().remove("y").unwrap().to_f32().unwrap();
        let labels = self.labels().to_f32().unwrap();
        let squares = y.iter().zip(&labels).map(|(&y, &label)| (f64::from(y) - f64::from(label)).powi(2));
        squares.sum::<f64>() / labels.len() as f64
    }

    #[track_caller]
    fn check(&self, name: &str) {
        let ((_, w), (_, u)) = (&self.w, &self.u);
        let options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(1.0));
        let mut trainer = trainer(self.model(w, u), options, host(2));
        trainer.step(batch(), self.labels()).unwrap();
        let after = trainer.parameters().unwrap();
        for (parameter, before) in [("w", w), ("u", u)] {
            let after = after[parameter].to_f32().unwrap();
            for i in 0..before.len() {
                let at = |delta: f64| {
                    let mut moved = before.clone();
                    moved[i] += delta;
                    if parameter == "w" { self.loss(&moved, u) } else { self.loss(w, &moved) }
                };
                let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                let found = before[i] - f64::from(after[i]);
                let is_close = (found - expected).abs() <= 4e-3 * (1.0 + expected.abs());
                assert!(is_close, "{name}: the gradient by {parameter}[{i}] is {found}, expected {expected}");
            }
        }
    }
}

fn batch() -> BTreeMap<String, Tensor> {
    BTreeMap::from([("x".to_string(), Tensor::from_f32(&[1], &[1.0]))])
}

#[test]
fn gathers() {
    let elements = |axis: i64| onnx::node("GatherElements", &["w", "i"], "v", &[("axis", &[axis], false)]);
    let indices = ints("i", &[2, 4], &[0, -1, 2, 0, 0, 1, -3, 0]);
    Function::of(elements(0), indices, &[3, 4], &[2, 4]).check("GatherElements, axis 0");
    let indices = ints("i", &[2, 5], &[0, -1, 2, 2, 2, 0, 1, -3, 0, 3]);
    Function::of(elements(1), indices, &[3, 4], &[2, 5]).check("GatherElements, axis 1");
    let node = onnx::node("GatherND", &["w", "i"], "v", &[]);
    Function::of(node, ints("i", &[3, 2], &[0, 1, 2, -1, 0, 1]), &[3, 4, 2], &[3, 2]).check("GatherND");
    let node = onnx::node("GatherND", &["w", "i"], "v", &[("batch_dims", &[1], false)]);
    Function::of(node, ints("i", &[2, 2, 1], &[0, 2, 2, -2]), &[2, 3, 2], &[2, 2, 2]).check("GatherND in batches");
    let node = onnx::node("OneHot", &["i", "depth", "w"], "v", &[]);
    let constants = [ints("i", &[3], &[0, -1, 9]), ints("depth", &[1], &[4])].concat();
    Function::of(node, constants, &[2], &[3, 4]).check("OneHot");
    let attributes: [(&str, &[i64], bool); 2] = [("time_axis", &[1], false), ("batch_axis", &[0], false)];
    let node = onnx::node("ReverseSequence", &["w", "i"], "v", &attributes);
    Function::of(node, ints("i", &[2], &[2, 3]), &[2, 4, 2], &[2, 4, 2]).check("ReverseSequence");
    let condition = vec![onnx::node("Cast", &["i"], "condition", &[("to", &[9], false)])];
    let node = onnx::node("Compress", &["w", "condition"], "v", &[("axis", &[1], false)]);
    let constants = [ints("i", &[3], &[1, 0, 1]), condition].concat();
    Function::of(node, constants, &[3, 4], &[3, 2]).check("Compress");
}

#[test]
fn scatters_of_elements_and_rows() {
    for reduction in ["none", "add", "mul", "min", "max"] {
        let node = onnx::node("ScatterElements", &["w", "i", "u"], "v", &[("axis", &[1], false)]);
        let node = onnx::with_text(node, "reduction", reduction);
        // Some elements have several updates.
        let indices = ints("i", &[2, 3], &[0, -1, 0, 2, 1, 2]);
        let mut function = Function::of(node, indices, &[3, 4], &[3, 4]).with(&[2, 3]);
        function.check(&format!("ScatterElements, {reduction}"));
        if reduction == "mul" {
            // Products with one zero, and with two.
            (function.w.1[0], function.u.1[4]) = (0.0, 0.0);
            (function.u.1[3], function.u.1[5]) = (0.0, 0.0);
            function.check("ScatterElements, products with zeros");
        }
        let node = onnx::with_text(onnx::node("ScatterND", &["w", "i", "u"], "v", &[]), "reduction", reduction);
        let indices = ints("i", &[4, 2], &[0, 1, 2, -1, 0, 1, 1, 1]);
        let function = Function::of(node, indices, &[3, 2, 2], &[3, 2, 2]).with(&[4, 2]);
        function.check(&format!("ScatterND, {reduction}"));
    }
}

#[test]
fn updates_of_a_cache() {
    for (mode, first) in [("linear", [1, 2]), ("circular", [3, 0])] {
        let node = onnx::with_text(onnx::node("TensorScatter", &["w", "u", "i"], "v", &[]), "mode", mode);
        let function = Function::of(node, ints("i", &[2], &first), &[2, 4, 3], &[2, 4, 3]).with(&[2, 2, 3]);
        function.check(&format!("TensorScatter, {mode}"));
    }
    let node = onnx::node("MaxUnpool", &["w", "i"], "v", &[("kernel_shape", &[2], true), ("strides", &[2], true)]);
    Function::of(node, ints("i", &[1, 2, 2], &[1, 2, 4, 7]), &[1, 2, 2], &[1, 2, 4]).check("MaxUnpool");
}

#[test]
fn orders_and_scans() {
    let node = onnx::node("TopK", &["w", "k"], "v", &[("axis", &[0], false), ("largest", &[0], false)]);
    Function::of(node, ints("k", &[1], &[2]), &[3, 4], &[2, 4]).check("TopK");
    for (exclusive, reverse) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let attributes: [(&str, &[i64], bool); 2] =
            [("exclusive", &[exclusive], false), ("reverse", &[reverse], false)];
        let node = onnx::node("CumSum", &["w", "axis"], "v", &attributes);
        Function::of(node, ints("axis", &[1], &[1]), &[2, 5], &[2, 5]).check(&format!("CumSum {attributes:?}"));
        let node = onnx::node("CumProd", &["w", "axis"], "v", &attributes);
        let mut function = Function::of(node, ints("axis", &[1], &[-1]), &[3, 5], &[3, 5]);
        (function.w.1[2], function.w.1[6], function.w.1[9]) = (0.0, 0.0, 0.0);
        function.check(&format!("CumProd {attributes:?}"));
    }
}

#[test]
fn products_along_axes() {
    for (axes, keepdims, shape) in [([1, 1], 1, vec![3, 1, 2]), ([2, 0], 0, vec![4]), ([-1, 1], 0, vec![3])] {
        let axes: &[i64] = if axes[0] == axes[1] { &axes[..1] } else { &axes };
        let node = onnx::node("ReduceProd", &["w", "axes"], "v", &[("keepdims", &[keepdims], false)]);
        let mut function = Function::of(node, ints("axes", &[axes.len() as i64], axes), &[3, 4, 2], &shape);
        // One zero in a product, and two in another.
        (function.w.1[2], function.w.1[9], function.w.1[11]) = (0.0, 0.0, 0.0);
        function.check(&format!("ReduceProd {axes:?}"));
    }
}

/// A parameter is not a constant, even if its first value is one that a constant would be replaced for.
#[test]
fn exponents_limits_and_padding_train() {
    for (exponent, name) in [(3.0, "a cube"), (2.0, "a square"), (1.0, "the same"), (0.5, "a root")] {
        let mut function = Function::of(onnx::node("Pow", &["w", "u"], "v", &[]), vec![], &[2, 3], &[2, 3]);
        function.w.1.iter_mut().for_each(|value| *value = 0.5 + value.abs());
        function.u.1 = vec![exponent];
        function.check(name);
    }
    for (inputs, limit) in [(&["w", "", "u"][..], 0.4125), (&["w", "u"][..], -0.4125)] {
        let mut function = Function::of(onnx::node("Clip", inputs, "v", &[]), vec![], &[3, 4], &[3, 4]);
        function.u.1 = vec![limit];
        function.check(&format!("Clip {inputs:?}"));
    }
    let node = onnx::node("Pad", &["w", "pads", "u"], "v", &[]);
    Function::of(node, ints("pads", &[4], &[0, 1, 1, 0]), &[2, 3], &[3, 4]).check("Pad");
}

#[test]
fn powers_of_zero() {
    let bases = |node: Vec<u8>, constants: Vec<Vec<u8>>, base: f64| {
        let mut function = Function::of(node, constants, &[3], &[3]);
        function.w.1 = vec![base, base, 1.5];
        function
    };
    let node = onnx::node("Pow", &["w", "i"], "v", &[]);
    bases(node, ints("i", &[3], &[0, 1, 2]), 0.0).check("x^0, x^1, x^2");
    let relu = vec![onnx::node("Relu", &["w"], "r", &[])];
    let mut function = bases(onnx::node("Pow", &["r", "u"], "v", &[]), relu, -1.0);
    function.u.1 = vec![2.2];
    function.check("0^u");
}

#[test]
fn norms_of_zeros() {
    for p in [1, 2, 3] {
        let attributes: [(&str, &[i64], bool); 2] = [("p", &[p], false), ("kernel_shape", &[2], true)];
        let mut function = Function::of(onnx::node("LpPool", &["w"], "v", &attributes), vec![], &[1, 1, 4], &[1, 1, 3]);
        function.w.1 = vec![0.0, 0.0, 1.0, 1.5];
        function.check(&format!("LpPool {p}"));
        let node = onnx::node("GlobalLpPool", &["w"], "v", &attributes[..1]);
        let mut function = Function::of(node, vec![], &[1, 2, 2], &[1, 2, 1]);
        function.w.1 = vec![1.0, 1.5, 0.0, 0.0];
        function.check(&format!("GlobalLpPool {p}"));
    }
}

#[test]
fn statistics_of_layer_normalization() {
    for (axis, scale, kept) in [(2, vec![4], [2, 3, 1]), (1, vec![3, 4], [2, 1, 1]), (-3, vec![2, 3, 4], [1, 1, 1])] {
        let normalized = onnx::node("LayerNormalization", &["w", "u"], "normal", &[("axis", &[axis], false)]);
        let normalized = [normalized, message(2, b"center"), message(2, b"inverse")].concat();
        for statistic in ["center", "inverse"] {
            let node = onnx::node("Identity", &[statistic], "v", &[]);
            let function = Function::of(node, vec![normalized.clone()], &[2, 3, 4], &kept).with(&scale);
            function.check(&format!("{statistic} from axis {axis}"));
        }
        let sum = onnx::node("Add", &["normal", "center"], "sum", &[]);
        let node = onnx::node("Mul", &["sum", "inverse"], "v", &[]);
        let function = Function::of(node, vec![normalized, sum], &[2, 3, 4], &[2, 3, 4]).with(&scale);
        function.check(&format!("all results from axis {axis}"));
    }
}

#[test]
fn losses_that_models_compute() {
    // 7 is ignored in one case, -100 in another.
    for (reduction, shape) in [("none", vec![2, 2]), ("sum", vec![1]), ("mean", vec![1])] {
        for (ignored, labels) in [(Some(7), [0, 7, 2, 1]), (Some(-100), [2, 1, -100, 0]), (None, [1, 1, 0, 2])] {
            for operator in ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"] {
                for has_weights in [false, true] {
                    let inputs: &[&str] = if has_weights { &["w", "i", "u"] } else { &["w", "i"] };
                    let ignored: Vec<i64> = ignored.into_iter().collect();
                    let attribute: [(&str, &[i64], bool); 1] = [("ignore_index", &ignored, false)];
                    let node = onnx::node(operator, inputs, "v", if ignored.is_empty() { &[] } else { &attribute });
                    let node = onnx::with_text(node, "reduction", reduction);
                    let constants = ints("i", &[2, 2], &labels);
                    let mut function = Function::of(node, constants, &[2, 3, 2], &shape).with(&[3]);
                    function.u.1 = vec![0.5, 1.5, 1.0];
                    function.check(&format!("{operator}, {reduction}, ignored {ignored:?}, weights {has_weights}"));
                }
            }
        }
    }
}

#[test]
fn labels_and_indices_out_of_range_are_refused() {
    let run = |function: Function| {
        let (w, u) = (function.w.1.clone(), function.u.1.clone());
        let session = Session::new(&function.model(&w, &u), &SessionOptions::default());
        session.and_then(|mut session| session.run(batch())).unwrap_err().to_string()
    };
    let loss = onnx::node("SoftmaxCrossEntropyLoss", &["w", "i"], "v", &[]);
    for label in [3, -1] {
        let error = run(Function::of(loss.clone(), ints("i", &[2], &[0, label]), &[2, 3], &[1]));
        assert!(error.contains("chooses from 3 entries"), "{error}");
    }
    // This index would lie in the data's next row.
    let node = onnx::node("GatherElements", &["w", "i"], "v", &[("axis", &[1], false)]);
    let error = run(Function::of(node, ints("i", &[1, 1], &[4]), &[3, 4], &[1, 1]));
    assert!(error.contains("was computed as 4, but it chooses from 4 entries"), "{error}");
    let node = onnx::node("ScatterND", &["w", "i", "u"], "v", &[]);
    let error = run(Function::of(node, ints("i", &[1, 2], &[0, -5]), &[3, 4], &[3, 4]).with(&[1]));
    assert!(error.contains("was computed as -5, but it chooses from 4 entries"), "{error}");
}

/// Sorts and scans are cut into parts along the axes on which they do not operate.
#[test]
fn parts_of_orders_and_scans_have_the_bits_of_the_whole() {
    let (rows, columns) = (64, 512);
    let nodes = [
        ints("axis", &[1], &[1]),
        ints("k", &[1], &[16]),
        vec![onnx::node("CumSum", &["x", "axis"], "sums", &[]), onnx::node("TopK", &["sums", "k"], "y", &[])],
    ];
    let bytes = onnx::model(&nodes.concat(), &[], ("x", &[rows, columns]), ("y", &[rows, 16]));
    let model = Model::from_bytes(&bytes).unwrap();
    let (_, values) = numbers(7, &[rows, columns]);
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    let run = |budget: Option<u64>| {
        let mut options = SessionOptions::default();
        options.engine = host(2);
        options.engine.memory.simulate_device = budget.map(MemorySize::Bytes);
        let mut session = Session::new(&model, &options).unwrap();
        let parts =
            session.plan().unwrap().launches().filter(|launch| matches!(launch.kernel, Kernel::Scan { .. })).count();
        let x = Tensor::from_f32(&[rows as u64, columns as u64], &values);
        let y = session.run(BTreeMap::from([("x".to_string(), x)])).unwrap().remove("y").unwrap();
        (parts, y)
    };
    let (whole, expected) = run(None);
    let (parts, y) = run(Some(192 << 10));
    assert!(whole == 1 && parts > 1, "{whole} and {parts} launches");
    assert!(y == expected, "other bits in parts");
}
