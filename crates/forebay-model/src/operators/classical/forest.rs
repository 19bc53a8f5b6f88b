//! Decision trees as tables, in which all trees descend one level at a time.

use std::collections::BTreeMap;

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, ReduceOp};

use super::super::decomposition::{Composer, Part};
use super::super::indices::{integer, steps};
use super::super::selection::gathered;
use super::super::shapes::{product, require_few};
use super::features::is_nan;
use crate::error::ModelError;
use crate::operator::NodeView;

/// The most branches between a root and a leaf: each is a few kernels.
const DEPTH_MAX: usize = 4096;

/// How a branch decides.
#[derive(Clone, Debug)]
pub(super) enum Test {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    Above(f64),
    Equal(f64),
    NotEqual(f64),
    /// Whether the feature is one of several values.
    OneOf(Vec<f64>),
}

/// A node of a tree.
#[derive(Clone, Debug)]
pub(super) enum TreeNode {
    Branch {
        feature: u64,
        test: Test,
        /// Whether NaN counts as passing the test.
        takes_nan: bool,
        /// The nodes for features that pass the test, and for those that do not.
        next: [usize; 2],
    },
    /// The targets to which a leaf adds, and what it adds.
    Leaf(Vec<(usize, f64)>),
}

/// How the values of the trees' leaves are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Combination {
    Average,
    Sum,
    Min,
    Max,
}

/// One decision of the tables: low if the feature is below a threshold, or equal to it if the decision is closed.
struct Decision {
    feature: u64,
    threshold: f64,
    is_closed: bool,
    /// Whether NaN goes low. No comparison with NaN holds, so it goes high otherwise.
    is_nan_low: bool,
    low: usize,
    high: usize,
}

/// The tables. Leaves have the first numbers, and lead to themselves.
pub(super) struct Forest {
    leaves: Vec<Vec<(usize, f64)>>,
    decisions: Vec<Decision>,
    roots: Vec<usize>,
    depth: usize,
}

impl Forest {
    /// The tables of trees, whose nodes refer to each other by their places in the list.
    pub(super) fn new(view: &NodeView, nodes: Vec<TreeNode>, roots: &[usize]) -> Result<Forest, ModelError> {
        if roots.is_empty() {
            return Err(view.error("there are no trees"));
        }
        let is_leaf = |node: &TreeNode| matches!(node, TreeNode::Leaf(_));
        let leaf_count = nodes.iter().filter(|node| is_leaf(node)).count();
        let (mut next_leaf, mut next_branch) = (0, leaf_count);
        let numbers: Vec<usize> = nodes
            .iter()
            .map(|node| {
                let next = if is_leaf(node) { &mut next_leaf } else { &mut next_branch };
                *next += 1;
                *next - 1
            })
            .collect();
        let number = |place: usize| {
            numbers
                .get(place)
                .copied()
                .ok_or_else(|| view.error(format!("a branch leads to node {place}, which does not exist")))
        };
        let mut tables = Tables { first: leaf_count, decisions: Vec::new() };
        // The decisions of the branches come first, so that they have the numbers above; a test may add further ones.
        let branches = nodes.len() - leaf_count;
        tables.decisions.resize_with(branches, || None);
        let mut leaves = Vec::with_capacity(leaf_count);
        for (node, &own) in nodes.into_iter().zip(&numbers) {
            match node {
                TreeNode::Leaf(values) => leaves.push(values),
                TreeNode::Branch { feature, test, takes_nan, next: [yes, no] } => {
                    let next = [number(yes)?, number(no)?];
                    tables.decide(own, feature, test, takes_nan, next);
                }
            }
        }
        let decisions: Vec<Decision> = tables.decisions.into_iter().flatten().collect();
        let roots = roots.iter().map(|&root| number(root)).collect::<Result<Vec<_>, _>>()?;
        let mut forest = Forest { leaves, decisions, roots, depth: 0 };
        forest.depth = forest.measured(view)?;
        Ok(forest)
    }

    /// All values of leaves, with their targets.
    pub(super) fn values(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.leaves.iter().flatten().copied()
    }

    /// The most decisions between a root and a leaf.
    fn measured(&self, view: &NodeView) -> Result<usize, ModelError> {
        let first = self.leaves.len();
        let mut depths: Vec<Option<usize>> = vec![None; self.decisions.len()];
        let mut is_open = vec![false; self.decisions.len()];
        let mut most = 0;
        for &root in &self.roots {
            let mut stack = vec![root];
            while let Some(&node) = stack.last() {
                let Some(own) = node.checked_sub(first).filter(|&own| depths[own].is_none()) else {
                    stack.pop();
                    continue;
                };
                let next = [self.decisions[own].low, self.decisions[own].high];
                let depth = |node: usize| node.checked_sub(first).map_or(Some(0), |own| depths[own]);
                match next.map(depth) {
                    [Some(low), Some(high)] => {
                        depths[own] = Some(low.max(high) + 1);
                        stack.pop();
                    }
                    _ if is_open[own] => return Err(view.error("the branches of a tree form a cycle")),
                    found => {
                        is_open[own] = true;
                        stack.extend(
                            next.into_iter().zip(found).filter(|(_, depth)| depth.is_none()).map(|(node, _)| node),
                        );
                    }
                }
            }
            most = most.max(root.checked_sub(first).and_then(|own| depths[own]).unwrap_or(0));
        }
        match most {
            0..=DEPTH_MAX => Ok(most),
            _ => Err(view.error(format!("a tree has {most} branches on a path; at most {DEPTH_MAX} are supported"))),
        }
    }

    /// The leaves' values for rows of features, combined over all trees: \[rows, targets].
    pub(super) fn scores(
        &self,
        c: &mut Composer,
        x: &Part,
        targets: usize,
        how: Combination,
    ) -> Result<Part, ModelError> {
        let leaf = self.descended(c, x)?;
        let missing = match how {
            Combination::Average | Combination::Sum => 0.0,
            Combination::Min => f64::INFINITY,
            Combination::Max => f64::NEG_INFINITY,
        };
        let count = require_few(&c.view, &[self.leaves.len() as u64, targets as u64])?;
        let mut table: Vec<Option<f64>> = vec![None; count];
        for (i, &(target, value)) in
            self.leaves.iter().enumerate().flat_map(|(i, leaf)| leaf.iter().map(move |one| (i, one)))
        {
            if target >= targets {
                return Err(c.view.error(format!("a leaf has a value for target {target} of {targets}")));
            }
            let entry = &mut table[i * targets + target];
            *entry = Some(entry.unwrap_or(0.0) + value);
        }
        let table: Vec<f64> = table.into_iter().map(|value| value.unwrap_or(missing)).collect();
        let table = c.floats(x.ty.data_type, &[self.leaves.len() as u64, targets as u64], &table)?;
        let values = gathered(c, &table, &leaf, 0)?;
        let op = match how {
            Combination::Average => ReduceOp::Mean,
            Combination::Sum => ReduceOp::Sum,
            Combination::Min => ReduceOp::Min,
            Combination::Max => ReduceOp::Max,
        };
        let scores = c.reduce(op, &[1], &values)?;
        c.reshape(&scores, &[x.ty.shape[0], targets as u64])
    }

    /// The leaf of each tree at which each row arrives: int64\[rows, trees].
    fn descended(&self, c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
        let &[rows, features] = x.ty.shape.as_slice() else { return Err(c.view.error("features must be rows")) };
        if let Some(decision) = self.decisions.iter().find(|decision| decision.feature >= features) {
            return Err(c.view.error(format!("a branch tests feature {} of {}", decision.feature, x.ty)));
        }
        let first = self.leaves.len();
        let count = first + self.decisions.len();
        require_few(&c.view, &[count as u64])?;
        // A table with an entry for each decision, after entries for the leaves. As the result of a step, it is in memory only once.
        let table = |c: &mut Composer, leaf: &dyn Fn(usize) -> i64, entry: &dyn Fn(&Decision) -> i64| {
            let (leaves, decisions): (Vec<i64>, Vec<i64>) =
                ((0..first).map(leaf).collect(), self.decisions.iter().map(entry).collect());
            let leaves = c.integers(DataType::Int64, &[first as u64], &leaves)?;
            let decisions = c.integers(DataType::Int64, &[decisions.len() as u64], &decisions)?;
            c.concatenate(&[&leaves, &decisions], 0)
        };
        let tested = table(c, &|_| 0, &|decision| decision.feature as i64)?;
        let low = table(c, &|leaf| leaf as i64, &|decision| decision.low as i64)?;
        let high = table(c, &|leaf| leaf as i64, &|decision| decision.high as i64)?;
        let of_leaves = c.floats(x.ty.data_type, &[first as u64], &vec![0.0; first])?;
        let thresholds: Vec<f64> = self.decisions.iter().map(|decision| decision.threshold).collect();
        let thresholds = c.floats(x.ty.data_type, &[thresholds.len() as u64], &thresholds)?;
        let thresholds = c.concatenate(&[&of_leaves, &thresholds], 0)?;
        let mut flags = |is_set: &dyn Fn(&Decision) -> bool| -> Result<Flags, ModelError> {
            let set = self.decisions.iter().filter(|decision| is_set(decision)).count();
            if set == 0 || set == self.decisions.len() {
                return Ok(Flags::Same(set > 0));
            }
            let entries = table(c, &|_| 0, &|decision| i64::from(is_set(decision)))?;
            Ok(Flags::Table(c.cast(&entries, DataType::Bool)))
        };
        let closed = flags(&|decision| decision.is_closed)?;
        let nan_low = flags(&|decision| decision.is_nan_low)?;
        let flat = product(&c.view, &[rows, features])?;
        let flat = c.reshape(x, &[flat])?;
        let starts = steps(c, rows, 1)?;
        let width = integer(c, DataType::Int64, features as i64)?;
        let starts = c.binary(BinaryOp::Multiply, &starts, &width)?;
        let starts = c.reshape(&starts, &[rows, 1])?;
        let roots: Vec<i64> = self.roots.iter().map(|&root| root as i64).collect();
        let roots = c.integers(DataType::Int64, &[1, roots.len() as u64], &roots)?;
        let mut at = c.expand(&roots, &[rows, self.roots.len() as u64])?;
        for _ in 0..self.depth {
            let feature = gathered(c, &tested, &at, 0)?;
            let place = c.binary(BinaryOp::Add, &feature, &starts)?;
            let value = gathered(c, &flat, &place, 0)?;
            let threshold = gathered(c, &thresholds, &at, 0)?;
            let mut is_low = match &closed {
                Flags::Same(true) => c.binary(BinaryOp::LessOrEqual, &value, &threshold)?,
                Flags::Same(false) => c.binary(BinaryOp::Less, &value, &threshold)?,
                Flags::Table(closed) => {
                    let is_below = c.binary(BinaryOp::Less, &value, &threshold)?;
                    let is_equal = c.binary(BinaryOp::Equal, &value, &threshold)?;
                    let is_closed = gathered(c, closed, &at, 0)?;
                    let counts = c.binary(BinaryOp::And, &is_equal, &is_closed)?;
                    c.binary(BinaryOp::Or, &is_below, &counts)?
                }
            };
            if nan_low != Flags::Same(false) {
                let mut goes_low = is_nan(c, &value)?;
                if let Flags::Table(table) = &nan_low {
                    let is_set = gathered(c, table, &at, 0)?;
                    goes_low = c.binary(BinaryOp::And, &goes_low, &is_set)?;
                }
                is_low = c.binary(BinaryOp::Or, &is_low, &goes_low)?;
            }
            let (low, high) = (gathered(c, &low, &at, 0)?, gathered(c, &high, &at, 0)?);
            at = c.select(&is_low, &low, &high)?;
        }
        Ok(at)
    }
}

/// A yes or no for each decision.
#[derive(Clone, Debug, PartialEq)]
enum Flags {
    /// The same for all.
    Same(bool),
    /// A table of booleans, with entries for the leaves.
    Table(Part),
}

/// Decisions as they are added; the first has the number `first`.
struct Tables {
    first: usize,
    decisions: Vec<Option<Decision>>,
}

impl Tables {
    /// Adds the decisions of a test, of which the first gets the number `own`.
    fn decide(&mut self, own: usize, feature: u64, test: Test, takes_nan: bool, [yes, no]: [usize; 2]) {
        let nan = if takes_nan { yes } else { no };
        let (threshold, is_closed, [low, high]) = match test {
            Test::AtMost(threshold) => (threshold, true, [yes, no]),
            Test::Below(threshold) => (threshold, false, [yes, no]),
            Test::Above(threshold) => (threshold, true, [no, yes]),
            Test::AtLeast(threshold) => (threshold, false, [no, yes]),
            Test::Equal(value) => return self.member(own, feature, &[value], [yes, no], nan),
            // The only comparison that NaN passes.
            Test::NotEqual(value) => return self.member(own, feature, &[value], [no, yes], yes),
            Test::OneOf(mut values) => {
                values.retain(|value| !value.is_nan());
                values.sort_by(f64::total_cmp);
                values.dedup();
                return self.member(own, feature, &values, [yes, no], nan);
            }
        };
        self.set(own, Decision { feature, threshold, is_closed, is_nan_low: nan == low && low != high, low, high });
    }

    /// Adds decisions for whether a feature is one of several values, which are in ascending order.
    fn member(&mut self, own: usize, feature: u64, values: &[f64], [yes, no]: [usize; 2], nan: usize) {
        match *values {
            [] => {
                // Nothing is below NaN, and only NaN goes low.
                let (threshold, is_nan_low) = (f64::NAN, nan != no);
                self.set(own, Decision { feature, threshold, is_closed: true, is_nan_low, low: nan, high: no });
            }
            [value] => {
                // At most the value, and then not below it. NaN passes both on the way to `yes`.
                let (inner, is_nan_low) = (self.reserve(), nan == yes && yes != no);
                let outer = Decision { feature, threshold: value, is_closed: true, is_nan_low, low: inner, high: no };
                self.set(own, outer);
                let decision =
                    Decision { feature, threshold: value, is_closed: false, is_nan_low: false, low: no, high: yes };
                self.set(inner, decision);
            }
            _ => {
                let (lower, upper) = values.split_at(values.len() / 2);
                let (low, high) = (self.reserve(), self.reserve());
                let threshold = lower[lower.len() - 1];
                self.set(own, Decision { feature, threshold, is_closed: true, is_nan_low: false, low, high });
                self.member(low, feature, lower, [yes, no], nan);
                self.member(high, feature, upper, [yes, no], nan);
            }
        }
    }

    /// The number of a decision that is added later.
    fn reserve(&mut self) -> usize {
        self.decisions.push(None);
        self.first + self.decisions.len() - 1
    }

    fn set(&mut self, number: usize, decision: Decision) {
        self.decisions[number - self.first] = Some(decision);
    }
}

/// The places of nodes in a list by their trees and numbers.
pub(super) fn places(view: &NodeView, trees: &[i64], nodes: &[i64]) -> Result<BTreeMap<(i64, i64), usize>, ModelError> {
    let mut places = BTreeMap::new();
    for (i, (&tree, &node)) in trees.iter().zip(nodes).enumerate() {
        if places.insert((tree, node), i).is_some() {
            return Err(view.error(format!("node {node} of tree {tree} is defined twice")));
        }
    }
    Ok(places)
}
