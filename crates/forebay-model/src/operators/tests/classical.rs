//! Operators of `ai.onnx.ml`.

use super::{Float32, Input, Int64, Sample, fed, float, floats, folded, graph_of, int, ints, list, text};
use crate::graph::Attribute;
use crate::infer::infer_node;
use forebay_base::DataType::{Float64, Int32, UInt8};
use forebay_base::Tensor;
use forebay_testing::Random;

type Attributes = Vec<(&'static str, Attribute)>;

fn reals(name: &'static str, values: &[f32]) -> (&'static str, Attribute) {
    (name, Attribute::Floats(values.to_vec()))
}

fn strings(name: &'static str, values: &[&str]) -> (&'static str, Attribute) {
    (name, Attribute::Strings(values.iter().map(|value| value.to_string()).collect()))
}

fn matrix(columns: u64, values: &[f32]) -> Input {
    Input::Constant(Tensor::from_f32(&[values.len() as u64 / columns, columns], values))
}

/// A tree of one branch, without values of its leaves: feature 1 at most 0.5.
fn stump() -> Attributes {
    vec![
        list("nodes_treeids", &[0, 0, 0]),
        list("nodes_nodeids", &[0, 1, 2]),
        list("nodes_featureids", &[1, 0, 0]),
        reals("nodes_values", &[0.5, 0.0, 0.0]),
        strings("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]),
        list("nodes_truenodeids", &[1, 0, 0]),
        list("nodes_falsenodeids", &[2, 0, 0]),
    ]
}

fn with(mut attributes: Attributes, more: Attributes) -> Attributes {
    attributes.extend(more);
    attributes
}

/// The stump as a regression of one target.
fn regression(low: f32, high: f32) -> Attributes {
    let values = vec![
        list("target_treeids", &[0, 0]),
        list("target_nodeids", &[1, 2]),
        list("target_ids", &[0, 0]),
        reals("target_weights", &[low, high]),
    ];
    with(stump(), values)
}

/// The stump as a classifier with the labels 5 and 9, whose leaves have scores for the first.
fn classifier(low: f32, high: f32) -> Attributes {
    let values = vec![
        list("class_treeids", &[0, 0]),
        list("class_nodeids", &[1, 2]),
        list("class_ids", &[0, 0]),
        reals("class_weights", &[low, high]),
        list("classlabels_int64s", &[5, 9]),
    ];
    with(stump(), values)
}

fn tensor(data_type: forebay_base::DataType, bytes: Vec<u8>) -> Attribute {
    let count = bytes.len() as u64 / data_type.size_bytes();
    Attribute::Tensor(Tensor::new(data_type, &[count], bytes).unwrap())
}

fn real_tensor(values: &[f32]) -> Attribute {
    Attribute::Tensor(Tensor::from_f32(&[values.len() as u64], values))
}

/// One tree of `TreeEnsemble` with two leaves: whether feature 0 passes a test.
fn one_branch(mode: u8, split: f32, takes_nan: bool, members: &[f32]) -> Attributes {
    vec![
        ("nodes_modes", tensor(UInt8, vec![mode])),
        ("nodes_splits", real_tensor(&[split])),
        list("nodes_featureids", &[0]),
        list("nodes_truenodeids", &[0]),
        list("nodes_trueleafs", &[1]),
        list("nodes_falsenodeids", &[1]),
        list("nodes_falseleafs", &[1]),
        list("nodes_missing_value_tracks_true", &[i64::from(takes_nan)]),
        list("leaf_targetids", &[0, 0]),
        ("leaf_weights", real_tensor(&[1.0, 0.0])),
        list("tree_roots", &[0]),
        ("membership_values", real_tensor(members)),
    ]
}

/// One or more nodes for each row.
pub(super) fn samples(op_type: &str) -> Vec<Sample> {
    let x = || fed(&[3, 2]);
    let scores = || vec![reals("coefficients", &[1.0, 2.0, 3.0, 4.0]), reals("intercepts", &[0.5, -0.5])];
    let vectors = |kind: &str| {
        vec![
            text("kernel_type", kind),
            reals("kernel_params", &[0.5, 1.0, 2.0]),
            reals("support_vectors", &[0.0, 1.0, 1.0, 0.0, 2.0, 2.0]),
        ]
    };
    let pairs = || vec![list("vectors_per_class", &[1, 2]), reals("rho", &[0.1]), list("classlabels_ints", &[5, 9])];
    let machine = |kind| with(vectors(kind), vec![reals("coefficients", &[1.0, -1.0, 0.5]), reals("rho", &[0.1])]);
    match op_type {
        "ArrayFeatureExtractor" => vec![(1, vec![x(), ints(&[1, 0, 1])], vec![], 1)],
        "Binarizer" => vec![(1, vec![x()], vec![("threshold", Attribute::Float(0.5))], 1)],
        "FeatureVectorizer" => {
            let inputs = vec![x(), Input::Fed(Int64, vec![3, 4])];
            vec![(1, inputs, vec![list("inputdimensions", &[2, 4])], 1)]
        }
        "Imputer" => vec![
            (1, vec![x()], vec![reals("imputed_value_floats", &[1.0, 2.0])], 1),
            (1, vec![Input::Fed(Int64, vec![3, 2])], vec![list("imputed_value_int64s", &[7])], 1),
        ],
        "LabelEncoder" => {
            let attributes = vec![list("keys_int64s", &[4, 2]), reals("values_floats", &[0.5, 1.5])];
            let inputs = vec![Input::Fed(Int64, vec![3, 2])];
            vec![(2, inputs, attributes, 1)]
        }
        "LinearClassifier" => {
            vec![(1, vec![x()], with(scores(), vec![list("classlabels_ints", &[5, 9])]), 2)]
        }
        "LinearRegressor" => ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
            .map(|name| (1, vec![x()], with(scores(), vec![int("targets", 2), text("post_transform", name)]), 1))
            .into(),
        "Normalizer" => ["MAX", "L1", "L2"].map(|norm| (1, vec![x()], vec![text("norm", norm)], 1)).into(),
        "OneHotEncoder" => vec![(1, vec![Input::Fed(Int64, vec![3])], vec![list("cats_int64s", &[4, 2])], 1)],
        "SVMClassifier" => {
            let attributes = with(vectors("RBF"), vec![reals("coefficients", &[1.0, -1.0, 0.5])]);
            vec![(1, vec![x()], with(attributes, pairs()), 2)]
        }
        "SVMRegressor" => ["LINEAR", "POLY", "RBF", "SIGMOID"]
            .map(|kind| (1, vec![x()], with(machine(kind), vec![int("n_supports", 3)]), 1))
            .into(),
        "Scaler" => {
            vec![(1, vec![x()], vec![reals("offset", &[1.0, 2.0]), reals("scale", &[0.5])], 1)]
        }
        "TreeEnsemble" => vec![(5, vec![x()], one_branch(6, 0.0, true, &[1.0, 2.0, f32::NAN]), 1)],
        "TreeEnsembleClassifier" => vec![(3, vec![x()], classifier(-1.0, 1.0), 2)],
        "TreeEnsembleRegressor" => vec![
            (3, vec![x()], regression(-1.0, 1.0), 1),
            (3, vec![Input::Fed(Float64, vec![3, 2])], regression(-1.0, 1.0), 1),
            (3, vec![Input::Fed(Int32, vec![2])], regression(-1.0, 1.0), 1),
        ],
        "ZipMap" => vec![(1, vec![x()], vec![list("classlabels_int64s", &[5, 9])], 1)],
        other => panic!("no sample for {other}"),
    }
}

/// All outputs of a node, folded.
fn outputs(op_type: &str, inputs: Vec<Input>, attributes: &Attributes, count: usize) -> Vec<Tensor> {
    let mut graph = graph_of(op_type, 3, inputs, attributes, count);
    infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
    graph.outputs.iter().map(|output| graph.initializers[output].to_tensor().unwrap()).collect()
}

/// The message with which a node is refused.
fn refusal(op_type: &str, inputs: Vec<Input>, attributes: &Attributes) -> String {
    super::refused(op_type, inputs, attributes)
}

const MODES: [&str; 6] = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"];

fn passes(mode: usize, x: f32, split: f32, takes_nan: bool) -> bool {
    let holds = match mode {
        0 => x <= split,
        1 => x < split,
        2 => x >= split,
        3 => x > split,
        4 => x == split,
        _ => x != split,
    };
    holds || takes_nan && x.is_nan()
}

#[test]
fn trees_decide_as_their_branches_say() {
    let grid = [-1.0, -0.0, 0.0, 0.5, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let mut random = Random::new(1);
    for round in 0..40 {
        // Each tree has 7 branches, then 8 leaves; the trees of a round use all modes or only one.
        let trees = 1 + random.index(4);
        let only = (round % 3 != 0).then(|| random.index(MODES.len()));
        let (mut modes, mut features, mut splits, mut missing) = (vec![], vec![], vec![], vec![]);
        for _ in 0..trees {
            for node in 0..15 {
                modes.push(if node < 7 { only.unwrap_or_else(|| random.index(MODES.len())) } else { MODES.len() });
                features.push(random.index(3));
                splits.push(grid[random.index(if node < 7 { 7 } else { 1 })]);
                missing.push(random.index(2) == 1);
            }
        }
        let nodes: Vec<i64> = (0..trees as i64 * 15).collect();
        let own = |node: i64| node % 15;
        let below = |node: i64, side: i64| if own(node) < 7 { 2 * own(node) + 1 + side } else { 0 };
        let by = |f: &dyn Fn(i64) -> i64| nodes.iter().map(|&node| f(node)).collect::<Vec<i64>>();
        let is_leaf = |node: &&i64| own(**node) >= 7;
        let leaves: Vec<i64> = nodes.iter().filter(is_leaf).copied().collect();
        let weights: Vec<f32> = leaves.iter().map(|leaf| (1 << (leaf % 20)) as f32).collect();
        let attributes = vec![
            list("nodes_treeids", &by(&|node| node / 15)),
            list("nodes_nodeids", &by(&own)),
            list("nodes_featureids", &features.iter().map(|&feature| feature as i64).collect::<Vec<_>>()),
            reals("nodes_values", &splits),
            strings("nodes_modes", &modes.iter().map(|&mode| *MODES.get(mode).unwrap_or(&"LEAF")).collect::<Vec<_>>()),
            list("nodes_truenodeids", &by(&|node| below(node, 0))),
            list("nodes_falsenodeids", &by(&|node| below(node, 1))),
            list("nodes_missing_value_tracks_true", &missing.iter().map(|&takes| i64::from(takes)).collect::<Vec<_>>()),
            list("target_treeids", &leaves.iter().map(|leaf| leaf / 15).collect::<Vec<_>>()),
            list("target_nodeids", &leaves.iter().map(|leaf| leaf % 15).collect::<Vec<_>>()),
            list("target_ids", &vec![0; leaves.len()]),
            reals("target_weights", &weights),
        ];
        let x: Vec<f32> = (0..60).map(|_| grid[random.index(grid.len())]).collect();
        let y = folded("TreeEnsembleRegressor", 3, vec![matrix(3, &x)], &attributes);
        assert_eq!(y.shape(), [20, 1]);
        for (row, y) in x.chunks(3).zip(y.to_f32().unwrap()) {
            let mut expected = 0.0;
            for tree in 0..trees {
                let mut node = tree * 15;
                while modes[node] < MODES.len() {
                    let passed = passes(modes[node], row[features[node]], splits[node], missing[node]);
                    node = tree * 15 + 2 * (node % 15) + 1 + usize::from(!passed);
                }
                expected += (1 << (node % 20)) as f32;
            }
            assert_eq!(y, expected, "round {round}, {row:?}");
        }
    }
}

#[test]
fn branches_of_lists_of_leaves_test_membership() {
    let x = || matrix(1, &[1.0, 2.0, 3.0, 0.0, f32::NAN, 7.0]);
    let y = |mode, split, takes_nan, members: &[f32]| {
        folded("TreeEnsemble", 5, vec![x()], &one_branch(mode, split, takes_nan, members)).to_f32().unwrap()
    };
    assert_eq!(y(6, 0.0, false, &[7.0, 2.0, 1.0, f32::NAN]), [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(y(6, 0.0, true, &[7.0, 2.0, 1.0, f32::NAN]), [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    assert_eq!(y(6, 0.0, true, &[f32::NAN]), [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    assert_eq!(y(6, 0.0, false, &[]), [0.0; 6]);
    assert_eq!(y(0, 2.0, false, &[]), [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    assert_eq!(y(3, 2.0, true, &[]), [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
}

#[test]
fn values_of_trees_are_combined() {
    // Two trees with the values 1 and 3, or 2 and 6, for feature 0 at most 0.
    let mut attributes = vec![
        ("nodes_modes", tensor(UInt8, vec![0, 0])),
        ("nodes_splits", real_tensor(&[0.0, 0.0])),
        list("nodes_featureids", &[0, 0]),
        list("nodes_truenodeids", &[0, 2]),
        list("nodes_trueleafs", &[1, 1]),
        list("nodes_falsenodeids", &[1, 3]),
        list("nodes_falseleafs", &[1, 1]),
        list("leaf_targetids", &[0, 0, 0, 0]),
        ("leaf_weights", real_tensor(&[1.0, 2.0, 3.0, 6.0])),
        list("tree_roots", &[0, 1]),
    ];
    for (function, expected) in [(0, [2.0, 4.0]), (1, [4.0, 8.0]), (2, [1.0, 2.0]), (3, [3.0, 6.0])] {
        attributes.push(int("aggregate_function", function));
        let y = folded("TreeEnsemble", 5, vec![matrix(1, &[-1.0, 1.0])], &attributes);
        assert_eq!(y.to_f32().unwrap(), expected);
        attributes.pop();
    }
}

#[test]
fn a_sum_over_trees_decides_between_two_classes() {
    let x = || matrix(2, &[0.0, 0.0, 0.0, 1.0]);
    let found = outputs("TreeEnsembleClassifier", vec![x()], &classifier(0.25, 0.75), 2);
    assert_eq!(found[0].to_i64().unwrap(), [5, 9]);
    assert_eq!(found[1].to_f32().unwrap(), [0.75, 0.25, 0.25, 0.75]);
    let found = outputs("TreeEnsembleClassifier", vec![x()], &classifier(-0.25, 0.25), 2);
    assert_eq!(found[0].to_i64().unwrap(), [5, 9]);
    assert_eq!(found[1].to_f32().unwrap(), [0.25, -0.25, -0.25, 0.25]);
    let both = with(
        stump(),
        vec![
            list("class_treeids", &[0, 0, 0]),
            list("class_nodeids", &[1, 1, 2]),
            list("class_ids", &[0, 1, 1]),
            reals("class_weights", &[0.5, 0.25, 1.0]),
            list("classlabels_int64s", &[5, 9]),
        ],
    );
    let found = outputs("TreeEnsembleClassifier", vec![x()], &both, 2);
    assert_eq!(found[0].to_i64().unwrap(), [5, 9]);
    assert_eq!(found[1].to_f32().unwrap(), [0.5, 0.25, 0.0, 1.0]);
    let why = refusal("TreeEnsembleClassifier", vec![x()], &with(both, vec![reals("base_values", &[0.0, 1.0])]));
    assert!(why.contains("give all scores to the first"), "{why}");
    let why = refusal(
        "TreeEnsembleClassifier",
        vec![x()],
        &with(classifier(0.0, 1.0), vec![text("post_transform", "PROBIT")]),
    );
    assert!(why.contains("post_transform PROBIT of a single score is not supported"), "{why}");
}

#[test]
fn malformed_trees_are_refused() {
    let x = || fed(&[3, 2]);
    let changed = |name: &'static str, value: Attribute| {
        let mut attributes = regression(0.0, 1.0);
        attributes.retain(|(own, _)| *own != name);
        attributes.push((name, value));
        refusal("TreeEnsembleRegressor", vec![x()], &attributes)
    };
    let cases = [
        ("nodes_featureids", Attribute::Ints(vec![2, 0, 0]), "a branch tests feature 2 of float32[3, 2]"),
        ("nodes_featureids", Attribute::Ints(vec![-1, 0, 0]), "there is no feature -1"),
        ("nodes_truenodeids", Attribute::Ints(vec![7, 0, 0]), "tree 0 has no node 7"),
        ("nodes_truenodeids", Attribute::Ints(vec![0, 0, 0]), "a branch of tree 0 leads to its first node"),
        ("nodes_truenodeids", Attribute::Ints(vec![1]), "lists of the same length"),
        ("nodes_nodeids", Attribute::Ints(vec![0, 1, 1]), "node 1 of tree 0 is defined twice"),
        ("target_ids", Attribute::Ints(vec![0, 1]), "a leaf has a value for target 1 of 1"),
        ("target_ids", Attribute::Ints(vec![0, -1]), "there is no target -1"),
        ("target_nodeids", Attribute::Ints(vec![1]), "lists of the same length"),
        ("n_targets", Attribute::Int(0), "n_targets must be at least 1"),
        ("base_values", Attribute::Floats(vec![0.0, 1.0]), "2 base values are given for 1 scores"),
        ("post_transform", Attribute::String("LOGISTIC".to_string()), "LOGISTIC of a single target is not supported"),
    ];
    for (name, value, expected) in cases {
        let why = changed(name, value);
        assert!(why.contains(expected), "{why}");
    }
    let cycle = vec![
        ("nodes_modes", tensor(UInt8, vec![0, 0])),
        ("nodes_splits", real_tensor(&[0.0, 0.0])),
        list("nodes_featureids", &[0, 0]),
        list("nodes_truenodeids", &[1, 0]),
        list("nodes_trueleafs", &[0, 0]),
        list("nodes_falsenodeids", &[0, 0]),
        list("nodes_falseleafs", &[1, 1]),
        list("leaf_targetids", &[0]),
        ("leaf_weights", real_tensor(&[1.0])),
        list("tree_roots", &[0]),
    ];
    let why = refusal("TreeEnsemble", vec![x()], &cycle);
    assert!(why.contains("form a cycle"), "{why}");
}

#[test]
fn features_are_prepared() {
    let nan = f32::NAN;
    let attributes = vec![reals("imputed_value_floats", &[5.0, 6.0]), ("replaced_value_float", Attribute::Float(nan))];
    let y = folded("Imputer", 1, vec![matrix(2, &[1.0, nan, nan, 2.0])], &attributes);
    assert_eq!(y.to_f32().unwrap(), [1.0, 6.0, 5.0, 2.0]);
    let y = folded("Normalizer", 1, vec![matrix(2, &[4.0, -1.0, 0.0, 0.0])], &[]);
    assert_eq!(y.to_f32().unwrap(), [1.0, -0.25, 0.0, 0.0]);
    let attributes = vec![reals("offset", &[1.0, 2.0]), reals("scale", &[2.0])];
    let y = folded("Scaler", 1, vec![ints(&[4, 5])], &attributes);
    assert_eq!((y.data_type(), y.to_f32().unwrap()), (Float32, vec![6.0, 6.0]));
    let y = folded("Binarizer", 1, vec![floats(&[0.5, 0.6, nan])], &[("threshold", Attribute::Float(0.5))]);
    assert_eq!(y.to_f32().unwrap(), [0.0, 1.0, 0.0]);
    let y = folded("ArrayFeatureExtractor", 1, vec![floats(&[1.0, 2.0, 3.0]), ints(&[2, 0])], &[]);
    assert_eq!((y.shape(), y.to_f32().unwrap()), (&[1, 2][..], vec![3.0, 1.0]));
    let y = folded("OneHotEncoder", 1, vec![ints(&[2, 3, 4])], &[list("cats_int64s", &[4, 2])]);
    assert_eq!((y.shape(), y.to_f32().unwrap()), (&[3, 2][..], vec![0.0, 1.0, 0.0, 0.0, 1.0, 0.0]));
    let keys = vec![reals("keys_floats", &[1.0, nan, 1.0]), list("values_int64s", &[10, 20, 30])];
    for (version, expected) in [(2, [-1, 10, -1]), (4, [20, 10, -1])] {
        let y = folded("LabelEncoder", version, vec![floats(&[nan, 1.0, 2.0])], &keys);
        assert_eq!(y.to_i64().unwrap(), expected);
    }
    let keys = with(keys, vec![text("default_string", "_Unused"), int("default_int64", 7)]);
    assert_eq!(folded("LabelEncoder", 2, vec![float(2.0)], &keys).to_i64().unwrap(), [7]);
}

#[test]
fn labels_that_are_strings_are_refused() {
    let attributes = vec![
        reals("coefficients", &[1.0, 1.0]),
        reals("intercepts", &[0.0]),
        strings("classlabels_strings", &["a", "b"]),
    ];
    let why = refusal("LinearClassifier", vec![fed(&[3, 2])], &attributes);
    assert!(
        why.contains("labels that are strings (attribute classlabels_strings) are not supported; use integers"),
        "{why}"
    );
    let why = refusal("OneHotEncoder", vec![ints(&[1])], &vec![strings("cats_strings", &["a"])]);
    assert!(why.contains("categories that are strings"), "{why}");
}
