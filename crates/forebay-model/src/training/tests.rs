//! Which parameters train, what is updated, and what is rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use forebay_base::Kernel;

use super::*;
use crate::graph::{Attribute, FOREBAY};
use crate::infer::infer;
use crate::lower::lower;
use crate::tensor::Tensor;

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.05, momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
const ADAM_W: Optimizer =
    Optimizer::Adam { learning_rate: 3e-4, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, decoupled: true };

fn options(optimizer: Optimizer) -> TrainingOptions {
    TrainingOptions {
        loss: Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: None },
        loss_output: None,
        loss_weight: None,
        terms: vec![],
        optimizer,
        decay: None,
        freeze: vec![],
        seed: 7,
        gradient_outputs: false,
        clipping: None,
        gradient_norm: false,
        groups: vec![],
        precision: None,
        average: None,
        accumulate: 0,
        maximize: false,
    }
}

fn golden(name: &str) -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/golden/{name}/model.onnx"));
    let mut graph = crate::onnx::read_file(&path).unwrap().graph;
    infer(&mut graph, None).unwrap();
    graph
}

fn digits() -> Graph {
    golden("digits-cnn")
}

fn names(graph: &Graph, values: &[ValueId]) -> Vec<String> {
    values.iter().map(|&id| graph.value(id).name.clone()).collect()
}

fn kernels(graph: &Graph) -> Vec<&Kernel> {
    graph
        .nodes
        .iter()
        .filter_map(|node| match &node.operation {
            Operation::Kernel(kernel) => Some(kernel),
            Operation::Onnx { .. } => None,
        })
        .collect()
}

#[test]
fn all_golden_models_become_training_steps() {
    for (name, class_axis, parameters, statistics) in
        [("digits-cnn", 1, 11, 6), ("unet3d", 1, 50, 28), ("resnet20", 1, 65, 42), ("tiny-gpt", 2, 49, 0)]
    {
        let mut options = options(ADAM_W);
        options.loss = Loss::SoftmaxCrossEntropy { class_axis: Some(class_axis), ignore_index: None };
        options.gradient_outputs = true;
        let training = training_graph(&golden(name), &options).unwrap();
        let graph = &training.graph;
        assert_eq!((training.parameters.len(), training.running_statistics.len()), (parameters, statistics), "{name}");
        for (&parameter, &gradient) in training.parameters.iter().zip(&graph.outputs[1..]) {
            assert_eq!(graph.ty(gradient), graph.ty(parameter), "{name}: {}", graph.value(parameter).name);
        }
        lower(graph, &training.parameters.iter().copied().collect()).unwrap();
    }
}

#[test]
fn digits_trains_all_but_statistics() {
    let mut options = options(SGD);
    options.gradient_outputs = true;
    let training = training_graph(&digits(), &options).unwrap();
    let graph = &training.graph;
    let parameters = names(graph, &training.parameters);
    assert_eq!(parameters.len(), 11);
    assert!(!parameters.iter().any(|name| name.contains("running")));
    assert_eq!(training.running_statistics.len(), 6);
    assert_eq!(graph.updates.len(), 11 + 11 + 6);
    assert_eq!(training.step, None);
    assert_eq!(graph.ty(training.labels), Some(&TensorType::new(DataType::Int64, &[50])));
    for &parameter in &training.parameters {
        let gradient = graph.find(&format!("gradient:{}", graph.value(parameter).name)).unwrap();
        assert_eq!(graph.ty(gradient), graph.ty(parameter));
        assert!(graph.outputs.contains(&gradient));
    }
    // The unbiased variance of the first normalization: 50 images of 8 x 8 elements per channel.
    let corrections: Vec<f32> = kernels(graph)
        .into_iter()
        .filter_map(|kernel| match kernel {
            Kernel::RunningStatistics { correction, momentum } => {
                assert_eq!(*momentum, 0.9);
                Some(*correction)
            }
            _ => None,
        })
        .collect();
    assert_eq!(corrections[..2], [1.0, 3200.0 / 3199.0]);
    let program = lower(graph, &training.parameters.iter().copied().collect()).unwrap();
    assert_eq!(program.launches.len() - program.update_start, 11 + 6);
    assert_eq!(program.persistent.len(), 11 + 11 + 6);
}

#[test]
fn adam_decays_matrices_and_counts_steps() {
    let training = training_graph(&digits(), &options(ADAM_W)).unwrap();
    assert_eq!(training.optimizer_state.len(), 22);
    assert_eq!(training.graph.value(training.step.unwrap()).name, "forebay.step");
    for node in &training.graph.nodes {
        if let Operation::Kernel(Kernel::Adam { decays, .. }) = node.operation {
            let rank = training.graph.ty(node.inputs[0].unwrap()).unwrap().shape.len();
            assert_eq!(decays, rank >= 2, "{}", node.name);
        }
    }
}

#[test]
fn large_parameters_have_moments_of_8_bits() {
    let training = training_graph(&digits(), &options(Optimizer::adamw_8_bit(1e-3))).unwrap();
    let (mut large, mut small) = (0, 0);
    for node in &training.graph.nodes {
        let Operation::Kernel(kernel) = &node.operation else { continue };
        let elements = |input: usize| training.graph.ty(node.inputs[input].unwrap()).unwrap().count();
        match kernel {
            Kernel::Adam8Bit { decoupled, decays } => {
                large += 1;
                assert!(*decoupled && *decays && elements(0) >= 4096);
                assert_eq!((elements(2), elements(3)), (elements(0), elements(0).div_ceil(256)));
            }
            Kernel::Adam { .. } => {
                small += 1;
                assert!(elements(0) < 4096);
            }
            _ => {}
        }
    }
    assert_eq!((training.optimizer_state.len(), large + small), (4 * large + 2 * small, 11));
    assert!(large > 0 && small > 0);
    assert_eq!(state_of("w.first_moment_codes"), Some("w"));
    assert_eq!(state_of("w.second_moment_scales"), Some("w"));
    assert_eq!([state_of("w.velocity.1"), state_of("w.1"), state_of("1")], [Some("w"), None, None]);
}

#[test]
fn weight_gradients_come_before_data_gradients() {
    let training = training_graph(&digits(), &options(SGD)).unwrap();
    let order: Vec<&str> = kernels(&training.graph)
        .into_iter()
        .map(Kernel::name)
        .filter(|name| name.starts_with("Convolution") && name.ends_with("Gradient"))
        .collect();
    let (weight, data) = ("ConvolutionWeightGradient", "ConvolutionDataGradient");
    assert_eq!(order, [weight, data, weight, data, weight]);
}

#[test]
fn frozen_parameters_and_what_lies_before_them_cost_nothing() {
    let mut options = options(SGD);
    options.freeze = vec!["conv*".to_string(), "bn*".to_string()];
    let training = training_graph(&digits(), &options).unwrap();
    assert_eq!(names(&training.graph, &training.parameters), ["fc.weight", "fc.bias"]);
    assert!(!kernels(&training.graph).iter().any(|kernel| kernel.name() == "BatchNormalizationGradient"));
    options.freeze.push("fc*".to_string());
    let error = training_graph(&digits(), &options).unwrap_err().to_string();
    assert!(error.contains("nothing to train"), "{error}");
    // Running statistics do not train, but naming them is not an error.
    options.freeze = vec!["bn1.running_mean".to_string()];
    assert!(training_graph(&digits(), &options).is_ok());
    options.freeze = vec!["nothing*".to_string()];
    let error = training_graph(&digits(), &options).unwrap_err().to_string();
    assert!(error.contains("'nothing*' matches no parameter to freeze"), "{error}");
}

#[test]
fn validation_keeps_evaluation_form() {
    let mut options = options(SGD);
    options.loss = Loss::SoftmaxCrossEntropy { class_axis: Some(-1), ignore_index: Some(-100) };
    options.loss_output = Some("logits".to_string());
    let validation = loss_graph(&digits(), &options).unwrap();
    assert!(validation.graph.nodes.iter().any(|node| node.operation.name() == "BatchNormalization"));
    assert_eq!(validation.graph.outputs, [validation.loss, validation.prediction]);
    lower(&validation.graph, &BTreeSet::new()).unwrap();
    // So does that of a model that was exported for training.
    let mut exported = digits();
    for node in &mut exported.nodes {
        if let Operation::Onnx { op_type, attributes, .. } = &mut node.operation
            && op_type == "BatchNormalization"
        {
            attributes.insert("training_mode".to_string(), Attribute::Int(1));
        }
    }
    let again = loss_graph(&exported, &options).unwrap();
    assert_eq!(format!("{:?}", again.graph.nodes), format!("{:?}", validation.graph.nodes));
    options.loss_output = Some("nothing".to_string());
    let error = loss_graph(&digits(), &options).unwrap_err().to_string();
    assert!(error.contains("'nothing'") && error.contains("'logits'"), "{error}");
    options.loss_output = Some("fc.weight".to_string());
    assert!(loss_graph(&digits(), &options).is_err(), "what no operator gives");
    options.loss = Loss::SoftmaxCrossEntropy { class_axis: Some(2), ignore_index: None };
    options.loss_output = None;
    let error = loss_graph(&digits(), &options).unwrap_err().to_string();
    assert!(error.contains("class axis 2"), "{error}");
}

/// x [2, 3] -> dropout -> times w [3] -> plus a constant.
fn small(ratio: f32) -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("labels", Some(TensorType::new(DataType::Float32, &[2, 3])));
    graph.inputs.push(x);
    let w = graph.add_initializer("w", Tensor::from_f32(&[3], &[1.0, 2.0, 3.0]));
    let c = graph.add_initializer("c", Tensor::from_f32(&[3], &[1.0; 3]));
    graph.constants.insert(c);
    let attributes: BTreeMap<String, Attribute> = [("ratio".to_string(), Attribute::Float(ratio))].into();
    let nodes: [(&str, i64, &[ValueId], _); 3] =
        [("Dropout", 7, &[x], attributes), ("Mul", 13, &[w], BTreeMap::new()), ("Add", 13, &[c], BTreeMap::new())];
    let mut before = None;
    for (op_type, version, operands, attributes) in nodes {
        let output = graph.add_value(op_type, None);
        let (domain, op_type) = (String::new(), op_type.to_string());
        graph.nodes.push(Node {
            name: String::new(),
            operation: Operation::Onnx { domain, op_type, version, attributes },
            inputs: before.into_iter().chain(operands.iter().copied()).map(Some).collect(),
            outputs: vec![Some(output)],
        });
        let last = graph.nodes.len() - 1;
        crate::infer::infer_node(&mut graph, last).unwrap();
        before = Some(output);
    }
    graph.outputs = before.into_iter().collect();
    graph
}

#[test]
fn dropout_takes_the_step_and_constants_do_not_train() {
    let mut options = options(SGD);
    options.loss = Loss::MeanSquaredError;
    let training = training_graph(&small(0.25), &options).unwrap();
    assert_eq!(names(&training.graph, &training.parameters), ["w"]);
    assert_eq!(training.graph.value(training.labels).name, "y");
    assert!(training.graph.inputs.contains(&training.step.unwrap()));
    assert!(kernels(&training.graph).contains(&&Kernel::Dropout { ratio: 0.25, node: 0, first: 0 }));
    lower(&training.graph, &training.parameters.iter().copied().collect()).unwrap();
    assert_eq!(training_graph(&small(0.0), &options).unwrap().step, None);
    let error = training_graph(&small(1.0), &options).unwrap_err().to_string();
    assert!(error.contains("ratio"), "{error}");
}

#[test]
fn models_take_their_weights_and_give_their_gradients() {
    for (name, parameters, statistics) in [("digits-cnn", 11, 6), ("resnet20", 65, 42), ("tiny-gpt", 49, 0)] {
        let graph = golden(name);
        let forwards = open_graph(&graph, true).unwrap();
        assert_eq!(forwards.inputs.len(), graph.inputs.len() + parameters + statistics, "{name}");
        let next = forwards.outputs.iter().filter(|&&id| forwards.value(id).name.starts_with(NEXT_PREFIX)).count();
        assert_eq!((next, forwards.outputs.len()), (statistics, graph.outputs.len() + statistics), "{name}");
        let backwards = open_gradients(&graph, true).unwrap();
        let given = |graph: &Graph| names(graph, &graph.inputs);
        let [output] = graph.outputs[..] else { panic!("{name} has one output") };
        let mut expected = given(&forwards);
        expected.push(format!("{GRADIENT_PREFIX}{}", graph.value(output).name));
        assert_eq!(given(&backwards), expected, "{name}");
        let gradients = names(&backwards, &backwards.outputs);
        assert!(gradients.len() >= parameters && gradients.iter().all(|name| name.starts_with(GRADIENT_PREFIX)));
        let evaluating = open_gradients(&graph, false).unwrap();
        assert_eq!(names(&evaluating, &evaluating.outputs), gradients, "running statistics have no gradients: {name}");
        for graph in [&forwards, &backwards, &evaluating] {
            assert!(graph.updates.is_empty() && graph.initializers.keys().all(|id| graph.constants.contains(id)));
            lower(graph, &BTreeSet::new()).unwrap();
        }
    }
    let running = open_graph(&digits(), false).unwrap();
    assert_eq!(running.outputs.len(), 1, "in evaluation mode, nothing is updated");
    assert!(!kernels(&running).iter().any(|kernel| matches!(kernel, Kernel::BatchNormalizationTraining { .. })));
}

#[test]
fn parts_of_a_batch_have_nodes_of_their_own_and_share_weights() {
    let mut options = options(SGD);
    options.loss = Loss::MeanSquaredError;
    options.accumulate = 3;
    let training = training_graph(&small(0.25), &options).unwrap();
    let graph = &training.graph;
    let shape = |value: ValueId| graph.ty(value).unwrap().shape.clone();
    assert_eq!((shape(graph.inputs[0]), shape(training.labels)), (vec![6, 3], vec![6, 3]));
    assert_eq!(names(graph, &training.parameters), ["w"]);
    // The gradient with respect to w needs the output of dropout, not dropout again. The masks are those of the whole batch.
    let firsts: Vec<u64> = kernels(graph)
        .iter()
        .filter_map(|kernel| match kernel {
            Kernel::Dropout { first, .. } => Some(*first),
            _ => None,
        })
        .collect();
    assert_eq!(firsts, [0, 6, 12]);
    let count = |name: &str| kernels(graph).iter().filter(|kernel| kernel.name() == name).count();
    assert_eq!((count("MeanSquaredError"), count("MeanSquaredErrorGradient"), count("Sgd")), (3, 3, 1));
    lower(graph, &training.parameters.iter().copied().collect()).unwrap();
    // Without accumulation, nothing is different.
    options.accumulate = 1;
    let once = training_graph(&small(0.25), &options).unwrap().graph.to_string();
    options.accumulate = 0;
    assert_eq!(training_graph(&small(0.25), &options).unwrap().graph.to_string(), once);
}

#[test]
fn running_statistics_follow_the_parts() {
    let mut options = options(SGD);
    options.accumulate = 2;
    let training = training_graph(&digits(), &options).unwrap();
    let of = |name: &str| kernels(&training.graph).iter().filter(|kernel| kernel.name() == name).count();
    assert_eq!((of("BatchNormalizationTraining"), of("RunningStatistics")), (6, 12));
    assert_eq!(training.running_statistics.len(), 6);
    lower(&training.graph, &training.parameters.iter().copied().collect()).unwrap();
}

#[test]
fn formulas_update_in_place_and_in_the_update_phase() {
    let centered = Optimizer::RmsProp {
        learning_rate: 0.01,
        decay_rate: 0.9,
        epsilon: 1e-8,
        momentum: 0.9,
        centered: true,
        weight_decay: 0.1,
    };
    for (optimizer, states) in [
        (Optimizer::rms_prop(0.01), 11),
        (centered.clone(), 33),
        (Optimizer::adagrad(0.01), 11),
        (Optimizer::lion(0.01), 11),
        (Optimizer::lamb(0.01), 22),
        // Matrices and filters have two states; vectors have one.
        (Optimizer::adafactor(0.01), 15),
        (Optimizer::DampedSgd { learning_rate: 0.01, momentum: 0.9, dampening: 0.5, weight_decay: 0.1 }, 11),
        (Optimizer::ams_grad(0.01), 33),
        (Optimizer::ada_max(0.01), 22),
        (Optimizer::n_adam(0.01), 22),
        (Optimizer::r_adam(0.01), 22),
        (Optimizer::adadelta(0.01), 22),
    ] {
        let training = training_graph(&digits(), &options(optimizer.clone())).unwrap();
        assert_eq!(training.optimizer_state.len(), states, "{optimizer:?}");
        for &(state, parameter) in &training.optimizer_state {
            let (state, parameter) = (training.graph.value(state), training.graph.value(parameter));
            assert_eq!(state_of(&state.name), Some(parameter.name.as_str()));
        }
        assert_eq!(training.step, None, "numbers of steps come as hyperparameters");
        let program = lower(&training.graph, &training.parameters.iter().copied().collect()).unwrap();
        program.validate().unwrap();
        let updates = &program.launches[program.update_start..];
        assert!(!updates.iter().any(|launch| launch.kernel == Kernel::Copy), "{optimizer:?}: all in place");
        let written = |named: &crate::program::NamedOperand| {
            let writes = updates.iter().flat_map(|launch| &launch.writes);
            writes.filter(|write| write.buffer == named.operand.buffer).count()
        };
        assert!(program.persistent.iter().all(|named| written(named) == 1), "{optimizer:?}");
        assert!(optimizer.has_the_plan_of(&optimizer) && !optimizer.has_the_plan_of(&SGD));
    }
    assert!(!centered.has_the_plan_of(&Optimizer::rms_prop(0.01)) && !SGD.has_the_plan_of(&centered));
}

#[test]
fn numbers_of_steps_are_those_of_the_formulas() {
    let numbers = |optimizer: &Optimizer, step| optimizer.hyperparameters_of_step(step);
    let lamb = Optimizer::lamb(0.5);
    let corrections = |step| numbers(&lamb, step)[5..].to_vec();
    assert!((corrections(1)[0] - 10.0).abs() < 1e-4 && (corrections(1)[1] - 1000.0).abs() < 0.1);
    assert!((corrections(2)[0] - 1.0 / 0.19).abs() < 1e-4);
    assert_eq!(numbers(&lamb, 1), lamb.hyperparameters());
    let adagrad = Optimizer::Adagrad { learning_rate: 1.0, rate_decay: 1.0, epsilon: 0.0, weight_decay: 0.0 };
    assert_eq!(numbers(&adagrad, 4)[0], 0.25);
    assert_eq!(numbers(&Optimizer::adafactor(1.0), 16)[0], 0.25);
    assert_eq!(numbers(&SGD, 7), SGD.hyperparameters());
    let damped = Optimizer::DampedSgd { learning_rate: 1.0, momentum: 0.5, dampening: 0.75, weight_decay: 0.0 };
    assert_eq!((numbers(&damped, 1)[2], numbers(&damped, 2)[2]), (1.0, 0.25));
    // RAdam divides by roots from its sixth step on; the numbers are those of PyTorch's formulas.
    let divided = |step| numbers(&Optimizer::r_adam(0.5), step)[5..].to_vec();
    assert!(divided(5)[0] == 0.0 && (divided(5)[1] - 2.441_942).abs() < 1e-5, "{:?}", divided(5));
    assert!((divided(6)[0] - 4.263_276e-3).abs() < 1e-7 && divided(6)[1] == 0.0, "{:?}", divided(6));
    // The product of NAdam's momenta comes to nothing, however many steps follow.
    let momenta = |step| numbers(&Optimizer::n_adam(0.5), step)[6..].to_vec();
    assert!((momenta(1)[0] - 1.0).abs() < 1e-6 && momenta(u64::MAX / 2).iter().all(|factor| factor.is_finite()));
}

/// A second and a third loss on the same output: their labels are those of the first loss, new ones, or an existing input.
#[test]
fn losses_add_up() {
    let mut options = options(SGD);
    options.loss_weight = Some(0.5);
    options.terms.push(LossTerm::new("logits", options.loss.clone()));
    let mut other = LossTerm::new("logits", Loss::MeanSquaredError);
    (other.weight, other.labels) = (0.25, Some("scores".to_string()));
    options.terms.push(other);
    let training = training_graph(&digits(), &options).unwrap();
    let inputs = names(&training.graph, &training.graph.inputs);
    assert!(inputs.contains(&"labels".to_string()) && inputs.contains(&"scores".to_string()), "{inputs:?}");
    let labels: Vec<ValueId> = training.terms.iter().flatten().map(|&(_, labels)| labels).collect();
    assert_eq!(names(&training.graph, &labels), ["labels", "scores"]);
    let evaluation = loss_graph(&digits(), &options).unwrap();
    assert_eq!(evaluation.graph.outputs, [evaluation.loss, evaluation.prediction]);
    options.terms[0].labels = Some("x".to_string());
    let error = training_graph(&digits(), &options).unwrap_err().to_string();
    assert!(error.contains("labels 'x' are") && error.contains("another loss requires"), "{error}");
    options.terms[0] = LossTerm::new("logits", Loss::Output { labels: None });
    let error = training_graph(&digits(), &options).unwrap_err().to_string();
    assert!(error.contains("is not a loss: it must have one float32 element"), "{error}");
    options.terms[0] = LossTerm::new("features", Loss::MeanSquaredError);
    let error = training_graph(&digits(), &options).unwrap_err().to_string();
    assert!(error.contains("'features'"), "{error}");
}

#[test]
fn batches_weigh_what_their_losses_are_divided_by() {
    let labels = Tensor::from_i64(&[2, 3], &[0, 1, 1, 9, 0, 9]);
    let weighted = |class_weights: &[f32]| Loss::WeightedCrossEntropy {
        class_axis: None,
        ignore_index: Some(9),
        class_weights: class_weights.to_vec(),
        label_smoothing: 0.1,
    };
    let region = Region { ignore_index: Some(9), ..Region::default() };
    let focal = Loss::Focal { class_axis: None, ignore_index: None, class_weights: vec![1.0, 0.5], gamma: 2.0 };
    for (loss, weight) in [
        (Loss::default(), 6.0),
        (weighted(&[]), 4.0),
        (weighted(&[0.25, 3.0]), 6.5),
        (weighted(&[0.0, 0.0]), 0.0),
        (focal, 3.0),
        (Loss::Dice(region.clone()), 2.0),
        (Loss::Tversky { region: region.clone(), alpha: 0.5, beta: 0.5 }, 2.0),
        (Loss::DiceCrossEntropy { region, dice_weight: 1.0, cross_entropy_weight: 1.0 }, 4.0),
        (Loss::MeanSquaredError, 6.0),
    ] {
        assert_eq!(loss.batch_weight(&labels), weight, "{loss:?}");
    }
}

/// Appends an operator. Returns its output, which has its name.
fn append(graph: &mut Graph, op_type: &str, attributes: &[(&str, Attribute)], inputs: &[Option<ValueId>]) -> ValueId {
    let output = graph.add_value(op_type, None);
    let operation = Operation::onnx(op_type, attributes);
    graph.nodes.push(Node { name: String::new(), operation, inputs: inputs.to_vec(), outputs: vec![Some(output)] });
    let last = graph.nodes.len() - 1;
    infer_node(graph, last).unwrap();
    output
}

/// Returns a float32 input of a graph.
fn floats_in(graph: &mut Graph, name: &str, shape: &[u64]) -> ValueId {
    graph.add_input(name, TensorType::new(DataType::Float32, shape))
}

/// Adds an initializer of ones.
fn ones(graph: &mut Graph, name: &str, shape: &[u64]) -> ValueId {
    let count: u64 = shape.iter().product();
    graph.add_initializer(name, Tensor::from_f32(shape, &vec![1.0; count as usize]))
}

/// Adds a constant.
fn constant(graph: &mut Graph, shape: &[u64], values: &[f32]) -> ValueId {
    let id = graph.add_initializer("constant", Tensor::from_f32(shape, values));
    graph.constants.insert(id);
    id
}

/// Batch normalizations, one after the other, with initializers of these names as scale, bias, mean and variance. Those whose names begin
/// with "constant" are constants.
fn normalizations(layers: &[[&str; 4]]) -> Graph {
    let mut graph = Graph::default();
    let mut y = floats_in(&mut graph, "x", &[4, 2]);
    for names in layers {
        let mut inputs = vec![Some(y)];
        for name in names {
            let id = graph.find(name).unwrap_or_else(|| ones(&mut graph, name, &[2]));
            if name.starts_with("constant") {
                graph.constants.insert(id);
            }
            inputs.push(Some(id));
        }
        y = append(&mut graph, "BatchNormalization", &[], &inputs);
    }
    graph.outputs = vec![y];
    graph
}

#[test]
fn running_statistics_belong_to_one_layer() {
    let layer = ["scale", "bias", "mean", "variance"];
    // A module without parameters has new constants in each place where it is applied.
    let without = [["constant1", "constant2", "mean", "variance"], ["constant3", "constant4", "mean", "variance"]];
    for layers in
        [vec![layer], vec![layer, layer], vec![layer, ["scale2", "bias2", "mean2", "variance2"]], without.to_vec()]
    {
        let entered = mode::enter(&mut normalizations(&layers));
        assert!(entered.is_ok(), "{layers:?}: {:?}", entered.err());
    }
    for (layers, shared) in [
        (vec![["ones", "bias", "mean", "ones"]], "ones"),
        (vec![["scale", "bias", "same", "same"]], "same"),
        (vec![layer, ["scale2", "bias2", "mean", "variance"]], "mean"),
        (vec![layer, ["variance", "bias2", "mean2", "variance2"]], "variance"),
        (vec![layer, ["scale2", "bias2", "mean2", "scale"]], "scale"),
    ] {
        let error = mode::enter(&mut normalizations(&layers)).unwrap_err().to_string();
        assert!(error.contains(&format!("'{shared}' is also used elsewhere")), "{layers:?}: {error}");
    }
}

/// Appends an operator of the domain `forebay`.
fn append_own(graph: &mut Graph, op_type: &str, inputs: &[Option<ValueId>]) -> ValueId {
    let output = append(graph, op_type, &[], inputs);
    if let Some(Operation::Onnx { domain, .. }) = graph.nodes.last_mut().map(|node| &mut node.operation) {
        FOREBAY.clone_into(domain);
    }
    output
}

#[test]
fn statistics_can_stay_and_gradients_can_end() {
    let mut graph = Graph::default();
    let x = floats_in(&mut graph, "x", &[4, 2]);
    let [scale, bias, mean, variance, behind] =
        ["scale", "bias", "mean", "variance", "behind"].map(|name| Some(ones(&mut graph, name, &[2])));
    let normalized = append_own(&mut graph, "BatchNormalization", &[Some(x), scale, bias, mean, variance]);
    let product = append(&mut graph, "Mul", &[], &[Some(normalized), behind]);
    let ended = append_own(&mut graph, "Identity", &[Some(product)]);
    graph.outputs = vec![append(&mut graph, "Add", &[], &[Some(normalized), Some(ended)])];
    let mut options = options(SGD);
    options.loss = Loss::MeanSquaredError;
    let training = training_graph(&graph, &options).unwrap();
    assert_eq!(names(&training.graph, &training.parameters), ["scale", "bias"]);
    assert!(training.running_statistics.is_empty() && !training.has_batch_statistics);
    let used = kernels(&training.graph);
    let count = |name: &str| used.iter().filter(|kernel| kernel.name() == name).count();
    assert_eq!(count("BatchNormalizationTraining") + count("RunningStatistics"), 0);
    lower(&training.graph, &training.parameters.iter().copied().collect()).unwrap().validate().unwrap();
}

#[test]
fn parts_draw_other_numbers_even_with_a_seed() {
    let mut graph = small(0.0);
    let y = graph.outputs[0];
    let noise = append(&mut graph, "RandomNormalLike", &[("seed", Attribute::Float(1.0))], &[Some(y)]);
    graph.outputs = vec![append(&mut graph, "Add", &[], &[Some(y), Some(noise)])];
    let mut options = options(SGD);
    (options.loss, options.accumulate) = (Loss::MeanSquaredError, 3);
    let training = training_graph(&graph, &options).unwrap();
    let seed = |node: &Node| match &node.operation {
        Operation::Onnx { attributes, .. } => match attributes.get("seed")? {
            Attribute::Float(seed) => Some(seed.to_bits()),
            _ => None,
        },
        Operation::Kernel(_) => None,
    };
    let seeds: BTreeSet<u32> = training.graph.nodes.iter().filter_map(seed).collect();
    assert_eq!(seeds.len(), 3, "{seeds:?}");
}

/// Images with 3 channels, the same at half their size, and their mean; sequences of 6 positions with 4 classes and with 2.
fn outputs_of_several_sizes() -> Graph {
    let mut graph = Graph::default();
    let x = floats_in(&mut graph, "x", &[2, 1, 4, 4]);
    let (w, v) = (ones(&mut graph, "w", &[3, 1, 1, 1]), ones(&mut graph, "v", &[1, 3, 1, 1]));
    let images = append(&mut graph, "Conv", &[], &[Some(x), Some(w)]);
    let window = ["kernel_shape", "strides"].map(|name| (name, Attribute::Ints(vec![2, 2])));
    let halves = append(&mut graph, "AveragePool", &window, &[Some(images)]);
    let gray = append(&mut graph, "Relu", &[], &[Some(images)]);
    let gray = append(&mut graph, "Conv", &[], &[Some(gray), Some(v)]);
    let s = floats_in(&mut graph, "s", &[2, 6, 3]);
    let u = ones(&mut graph, "u", &[3, 4]);
    let sequences = append(&mut graph, "MatMul", &[], &[Some(s), Some(u)]);
    let half = ones(&mut graph, "half", &[3, 2]);
    let fewer_classes = append(&mut graph, "MatMul", &[], &[Some(s), Some(half)]);
    graph.outputs = vec![images, halves, gray, sequences, fewer_classes];
    graph
}

/// Labels of another loss are resampled along places, not along channels or along sequences of labels.
#[test]
fn labels_keep_their_channels_and_sequences() {
    let squared = || Loss::MeanSquaredError;
    let divergence = || Loss::KlDivergence { class_axis: Some(-1), log_targets: false, elementwise_mean: false };
    let sequence = |length: u64| Loss::Ctc(Ctc::new(length));
    for (first, second, required) in [
        (("Conv", squared()), ("AveragePool", squared()), None),
        (("Conv", squared()), ("Conv.1", squared()), Some("float32[2, 1, 4, 4]")),
        (("MatMul", squared()), ("MatMul.1", divergence()), Some("float32[2, 6, 2]")),
        (("MatMul", sequence(3)), ("MatMul", sequence(3)), None),
        (("MatMul", sequence(3)), ("MatMul", sequence(2)), Some("int64[2, 2]")),
    ] {
        let mut options = options(SGD);
        (options.loss, options.loss_output) = (first.1.clone(), Some(first.0.to_string()));
        options.terms.push(LossTerm::new(second.0, second.1.clone()));
        let error = training_graph(&outputs_of_several_sizes(), &options).err().map(|error| error.to_string());
        let expected = required.map(|ty| format!("another loss requires {ty}"));
        let fits = error.as_deref().zip(expected.as_deref()).map(|(error, expected)| error.contains(expected));
        assert!(fits.unwrap_or(error.is_none() && expected.is_none()), "{first:?} {second:?}: {error:?}");
    }
}

#[test]
fn positions_of_sequences_share_their_tables() {
    let mut options = options(SGD);
    (options.loss, options.loss_output) = (Loss::Ctc(Ctc::new(3)), Some("MatMul".to_string()));
    let training = training_graph(&outputs_of_several_sizes(), &options).unwrap();
    let tables = training
        .graph
        .initializers
        .values()
        .filter(|contents| contents.ty() == &TensorType::new(DataType::Int64, &[7, 3]));
    assert_eq!(tables.count(), 1, "7 states, each of which 3 states lead to");
}

/// Scales and limits are not converted to 16 bits: images are resized in 16 bits, and limits are part of one kernel.
#[test]
fn numbers_that_operators_read_are_not_narrowed() {
    let mut graph = Graph::default();
    let x = floats_in(&mut graph, "x", &[2, 1, 4, 4]);
    let w = ones(&mut graph, "w", &[3, 1, 1, 1]);
    let scales = constant(&mut graph, &[4], &[1.0, 1.0, 2.0, 2.0]);
    let (low, high) = (constant(&mut graph, &[], &[0.0]), constant(&mut graph, &[], &[6.0]));
    let images = append(&mut graph, "Conv", &[], &[Some(x), Some(w)]);
    let larger = append(&mut graph, "Resize", &[], &[Some(images), None, Some(scales)]);
    let limited = append(&mut graph, "Clip", &[], &[Some(larger), Some(low), Some(high)]);
    graph.outputs = vec![limited];
    let mut options = options(SGD);
    (options.loss, options.precision) = (Loss::MeanSquaredError, Some(Precision::bfloat16()));
    let training = training_graph(&graph, &options).unwrap();
    for name in ["Conv", "Resize", "Clip"] {
        assert_eq!(type_of(&training.graph, name), DataType::BFloat16, "{name}");
    }
    let program = lower(&training.graph, &training.parameters.iter().copied().collect()).unwrap();
    let names: Vec<&str> = program.launches.iter().map(|launch| launch.kernel.name()).collect();
    assert!(!names.contains(&"Select") && names.contains(&"UnaryGradient"), "{names:?}");
}

/// The type of the result of the first operator of a name.
fn type_of(graph: &Graph, op_type: &str) -> DataType {
    let node = graph.nodes.iter().find(|node| node.operation.name() == op_type).unwrap();
    graph.ty(node.outputs[0].unwrap()).unwrap().data_type
}

#[test]
fn constants_that_16_bits_cannot_hold_stay_float32() {
    for (precision, number, expected) in [
        (Precision::float16(), -1e9, DataType::Float32),
        (Precision::float16(), -1e4, DataType::Float16),
        (Precision::float16(), f32::NEG_INFINITY, DataType::Float16),
        (Precision::bfloat16(), f32::MIN, DataType::Float32),
        (Precision::bfloat16(), -1e9, DataType::BFloat16),
    ] {
        let mut graph = Graph::default();
        let x = floats_in(&mut graph, "x", &[4, 4]);
        let w = ones(&mut graph, "w", &[4, 4]);
        let numbers = constant(&mut graph, &[1, 4], &[0.0, 0.0, 0.0, number]);
        let scores = append(&mut graph, "MatMul", &[], &[Some(x), Some(w)]);
        graph.outputs = vec![append(&mut graph, "Add", &[], &[Some(scores), Some(numbers)])];
        let mut options = options(SGD);
        (options.loss, options.precision) = (Loss::MeanSquaredError, Some(precision));
        let training = training_graph(&graph, &options).unwrap();
        assert_eq!(type_of(&training.graph, "Add"), expected, "{number}");
        assert_ne!(type_of(&training.graph, "MatMul"), DataType::Float32);
    }
}
