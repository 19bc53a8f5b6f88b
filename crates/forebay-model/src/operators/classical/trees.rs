//! Ensembles of decision trees: random forests and gradient boosting.

use std::collections::BTreeSet;

use forebay_base::DataType;
use forebay_base::kernel::BinaryOp;

use super::super::decomposition::{Composer, Decomposition, Part};
use super::forest::{Combination, Forest, Test, TreeNode, places};
use super::scores::{Transform, above, both, of_regression, top, transformed};
use super::{integers, labels, numbers, rows};
use crate::error::ModelError;
use crate::graph::Attribute;
use crate::operator::NodeView;

/// The trees of `TreeEnsembleClassifier` and `TreeEnsembleRegressor`, whose leaves have values for classes or targets.
fn listed(view: &NodeView, kind: &str) -> Result<Forest, ModelError> {
    let list = |name: &str| integers(view, name);
    let (trees, nodes) = (list("nodes_treeids")?, list("nodes_nodeids")?);
    let (features, thresholds) = (list("nodes_featureids")?, numbers(view, "nodes_values")?);
    let next = [list("nodes_truenodeids")?, list("nodes_falsenodeids")?];
    let missing = list("nodes_missing_value_tracks_true")?;
    let modes = match view.attribute("nodes_modes") {
        Some(Attribute::Strings(modes)) => modes.as_slice(),
        _ => return Err(view.error("attribute nodes_modes must be a list of strings")),
    };
    let count = modes.len();
    let sizes = [trees.len(), nodes.len(), features.len(), thresholds.len(), next[0].len(), next[1].len()];
    if count == 0 || sizes.iter().any(|&size| size != count) || !(missing.is_empty() || missing.len() == count) {
        return Err(view.error(format!("the attributes nodes_* must be lists of the same length, not {sizes:?}")));
    }
    let places = places(view, trees, nodes)?;
    let place = |tree: i64, node: i64| {
        let found = places.get(&(tree, node)).copied();
        found.ok_or_else(|| view.error(format!("tree {tree} has no node {node}")))
    };
    let mut is_below = vec![false; count];
    let mut built = Vec::with_capacity(count);
    for i in 0..count {
        let threshold = thresholds[i];
        let test = match modes[i].as_str() {
            "LEAF" => {
                built.push(TreeNode::Leaf(Vec::new()));
                continue;
            }
            "BRANCH_LEQ" => Test::AtMost(threshold),
            "BRANCH_LT" => Test::Below(threshold),
            "BRANCH_GTE" => Test::AtLeast(threshold),
            "BRANCH_GT" => Test::Above(threshold),
            "BRANCH_EQ" => Test::Equal(threshold),
            "BRANCH_NEQ" => Test::NotEqual(threshold),
            other => return Err(view.error(format!("there is no mode '{other}' of nodes"))),
        };
        let next = [place(trees[i], next[0][i])?, place(trees[i], next[1][i])?];
        next.into_iter().for_each(|place| is_below[place] = true);
        let takes_nan = missing.get(i).is_some_and(|&takes| takes != 0);
        built.push(TreeNode::Branch { feature: feature(view, features[i])?, test, takes_nan, next });
    }
    let list = |name: &str| integers(view, &format!("{kind}_{name}")).map(<[i64]>::to_vec);
    let (of_trees, of_nodes, targets) = (list("treeids")?, list("nodeids")?, list("ids")?);
    let weights = numbers(view, &format!("{kind}_weights"))?;
    if [of_trees.len(), of_nodes.len(), targets.len()] != [weights.len(); 3] {
        return Err(view.error(format!("the attributes {kind}_* must be lists of the same length")));
    }
    for (i, weight) in weights.into_iter().enumerate() {
        let target = usize::try_from(targets[i]);
        let target = target.map_err(|_| view.error(format!("there is no {kind} {}", targets[i])))?;
        match &mut built[place(of_trees[i], of_nodes[i])?] {
            TreeNode::Leaf(values) => values.push((target, weight)),
            // A branch's value is never reached.
            TreeNode::Branch { .. } => {}
        }
    }
    // The first node of each tree is its root.
    let mut seen = BTreeSet::new();
    let roots: Vec<usize> = (0..count).filter(|&i| seen.insert(trees[i])).collect();
    if let Some(&root) = roots.iter().find(|&&root| is_below[root]) {
        return Err(view.error(format!("a branch of tree {} leads to its first node", trees[root])));
    }
    Forest::new(view, built, &roots)
}

fn feature(view: &NodeView, number: i64) -> Result<u64, ModelError> {
    u64::try_from(number).map_err(|_| view.error(format!("there is no feature {number}")))
}

/// How the values of trees are combined, by the name in the attribute.
fn combination(view: &NodeView) -> Result<Combination, ModelError> {
    match view.string("aggregate_function", "SUM")? {
        "AVERAGE" => Ok(Combination::Average),
        "SUM" => Ok(Combination::Sum),
        "MIN" => Ok(Combination::Min),
        "MAX" => Ok(Combination::Max),
        other => Err(view.error(format!("there is no aggregate_function '{other}'"))),
    }
}

/// A number of targets.
fn target_count(view: &NodeView) -> Result<usize, ModelError> {
    let targets = view.int("n_targets", 1)?;
    let targets = usize::try_from(targets).ok().filter(|&targets| targets > 0);
    targets.ok_or_else(|| view.error("attribute n_targets must be at least 1"))
}

pub(super) fn predicted(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let targets = target_count(&view)?;
    let x = rows(&mut c, true)?;
    let y = listed(&view, "target")?.scores(&mut c, &x, targets, combination(&view)?)?;
    let y = based(&mut c, &y, &numbers(&view, "base_values")?)?;
    let y = c.cast(&y, DataType::Float32);
    let y = of_regression(&mut c, &y, Transform::named(&view)?)?;
    c.finish(y)
}

/// Adds a base value to each score.
fn based(c: &mut Composer, scores: &Part, base: &[f64]) -> Result<Part, ModelError> {
    let count = scores.ty.shape[1];
    match base.len() as u64 {
        0 => Ok(scores.clone()),
        given if given == count => {
            let base = c.floats(scores.ty.data_type, &[1, count], base)?;
            c.binary(BinaryOp::Add, scores, &base)
        }
        given => Err(c.view.error(format!("{given} base values are given for {count} scores"))),
    }
}

/// The label of the largest score, and the scores. If all leaves add to the first of two classes, their sum is the score of the second.
pub(super) fn classified(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let labels = labels(&view, "classlabels_int64s")?;
    let transform = Transform::named(&view)?;
    let base = numbers(&view, "base_values")?;
    let forest = listed(&view, "class")?;
    let x = rows(&mut c, true)?;
    let (mut is_of_first, mut is_of_second, mut is_negative) = (false, false, false);
    for (class, weight) in forest.values() {
        (is_of_first, is_of_second) = (is_of_first || class == 0, is_of_second || class != 0);
        is_negative |= weight < 0.0;
    }
    match *labels {
        [negative, positive] if !is_of_second => {
            let y = forest.scores(&mut c, &x, 1, Combination::Sum)?;
            let y = based(&mut c, &y, &base)?;
            let y = c.cast(&y, DataType::Float32);
            // Without negative values, the sum is a probability.
            let threshold = if is_negative { 0.0 } else { 0.5 };
            let label = above(&mut c, &y, threshold, [negative, positive])?;
            let y = match transform {
                Transform::None => both(&mut c, &y, !is_negative)?,
                Transform::Logistic => {
                    let y = both(&mut c, &y, false)?;
                    transformed(&mut c, &y, transform)?
                }
                _ => return Err(transform.refused(&view, "a single score")),
            };
            c.finish_all(vec![label, y])
        }
        [_, _] if !is_of_first || !base.is_empty() => {
            let reason = "two classes of which only the second has scores, or with base values and scores for both, are \
                          not supported, because implementations differ; give all scores to the first";
            Err(view.error(reason))
        }
        _ => {
            let y = forest.scores(&mut c, &x, labels.len(), Combination::Sum)?;
            let y = based(&mut c, &y, &base)?;
            let y = c.cast(&y, DataType::Float32);
            let label = top(&mut c, &y, labels)?;
            let y = of_regression(&mut c, &y, transform)?;
            c.finish_all(vec![label, y])
        }
    }
}

/// The trees of `TreeEnsemble`, whose leaves are listed separately and have a value for one target each.
pub(super) fn predicted_by_leaves(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let targets = target_count(&view)?;
    let x = rows(&mut c, true)?;
    let how = match view.int("aggregate_function", 1)? {
        0 => Combination::Average,
        1 => Combination::Sum,
        2 => Combination::Min,
        3 => Combination::Max,
        other => return Err(view.error(format!("there is no aggregate_function {other}"))),
    };
    let y = separate(&view)?.scores(&mut c, &x, targets, how)?;
    let y = of_regression(&mut c, &y, Transform::numbered(&view)?)?;
    let data_type = view.input_type(0)?.data_type;
    let y = c.cast(&y, data_type);
    c.finish(y)
}

fn separate(view: &NodeView) -> Result<Forest, ModelError> {
    let list = |name: &str| integers(view, name);
    let modes = match view.attribute("nodes_modes") {
        Some(Attribute::Tensor(modes)) => modes.to_i64(),
        _ => None,
    };
    let modes = modes.ok_or_else(|| view.error("attribute nodes_modes must be a tensor of integers"))?;
    let (features, thresholds) = (list("nodes_featureids")?, numbers(view, "nodes_splits")?);
    let next = [list("nodes_truenodeids")?, list("nodes_falsenodeids")?];
    let to_leaf = [list("nodes_trueleafs")?, list("nodes_falseleafs")?];
    let missing = list("nodes_missing_value_tracks_true")?;
    let count = modes.len();
    let mut sizes = vec![features.len(), thresholds.len()];
    sizes.extend(next.iter().chain(&to_leaf).map(|list| list.len()));
    if sizes.iter().any(|&size| size != count) || !(missing.is_empty() || missing.len() == count) {
        return Err(view.error(format!("the attributes nodes_* must be lists of {count} elements, not of {sizes:?}")));
    }
    // The values of each membership test end with NaN.
    let members = numbers(view, "membership_values")?;
    let mut members = members.split(|value| value.is_nan());
    let mut built = Vec::new();
    for i in 0..count {
        let threshold = thresholds[i];
        let test = match modes[i] {
            0 => Test::AtMost(threshold),
            1 => Test::Below(threshold),
            2 => Test::AtLeast(threshold),
            3 => Test::Above(threshold),
            4 => Test::Equal(threshold),
            5 => Test::NotEqual(threshold),
            6 => Test::OneOf(members.next().unwrap_or_default().to_vec()),
            other => return Err(view.error(format!("there is no mode {other} of nodes"))),
        };
        // Leaves come after the branches.
        let place = |side: usize| {
            let start = if to_leaf[side][i] != 0 { count } else { 0 };
            let place = usize::try_from(next[side][i]).ok().and_then(|place| place.checked_add(start));
            let is_there = |place: &usize| start > 0 || *place < count;
            place.filter(is_there).ok_or_else(|| view.error(format!("there is no node {}", next[side][i])))
        };
        let takes_nan = missing.get(i).is_some_and(|&takes| takes != 0);
        built.push(TreeNode::Branch {
            feature: feature(view, features[i])?,
            test,
            takes_nan,
            next: [place(0)?, place(1)?],
        });
    }
    let (targets, weights) = (list("leaf_targetids")?, numbers(view, "leaf_weights")?);
    if targets.len() != weights.len() {
        return Err(view.error(format!("{} leaves have targets, and {} have weights", targets.len(), weights.len())));
    }
    for (&target, weight) in targets.iter().zip(weights) {
        let target = usize::try_from(target).map_err(|_| view.error(format!("there is no target {target}")))?;
        built.push(TreeNode::Leaf(vec![(target, weight)]));
    }
    let roots = list("tree_roots")?.iter().map(|&root| {
        let place = usize::try_from(root).ok().filter(|&root| root < count);
        place.ok_or_else(|| view.error(format!("there is no node {root}")))
    });
    let roots = roots.collect::<Result<Vec<_>, _>>()?;
    Forest::new(view, built, &roots)
}
