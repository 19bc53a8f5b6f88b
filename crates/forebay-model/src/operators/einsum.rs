//! Einstein summation: diagonals, sums, transposes and products.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, ReduceOp};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::matrix::product_of;
use super::shapes::product;
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("Einsum", einsum)];

/// A dimension of an operand: a letter of the equation, or one of the dimensions of an ellipsis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    /// A dimension of an ellipsis, counted from its last one.
    Ellipsis(usize),
    /// A letter.
    Letter(char),
}

/// An operand with the label of each of its dimensions.
struct Labeled {
    labels: Vec<Label>,
    part: Part,
}

impl Labeled {
    fn size(&self, label: Label) -> Option<u64> {
        self.labels.iter().position(|own| *own == label).map(|axis| self.part.ty.shape[axis])
    }
}

/// Combines the operands from left to right. Dimensions that neither a later operand nor the result needs are summed as early as possible.
fn einsum(view: NodeView) -> Result<Decomposition, ModelError> {
    let equation: String = view.string("equation", "")?.chars().filter(|letter| !letter.is_whitespace()).collect();
    let mut c = Composer::new(view);
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != view.node.inputs.len() {
        let (named, given) = (terms.len(), view.node.inputs.len());
        let reason = format!("equation '{equation}' has {named} operands, but the node has {given}");
        return Err(view.error(reason));
    }
    let mut operands = Vec::with_capacity(terms.len());
    let mut written = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        let part = c.input(i)?;
        let labels = labels(&view, term, part.ty.shape.len())?;
        written.extend_from_slice(&labels);
        operands.push(without_diagonals(&mut c, Labeled { labels, part })?);
    }
    let result = match right {
        Some(right) => {
            // An ellipsis in the result has the dimensions of the longest one.
            let count = operands.iter().flat_map(|one| &one.labels).filter_map(|label| match label {
                Label::Ellipsis(place) => Some(place + 1),
                Label::Letter(_) => None,
            });
            let count = count.max().unwrap_or(0);
            let letters = right.replace("...", "").chars().count();
            labels(&view, right, letters + if right.contains("...") { count } else { 0 })?
        }
        None => implied(written),
    };
    if let Some(label) = result.iter().find(|label| !operands.iter().any(|one| one.labels.contains(label))) {
        return Err(view.error(format!("{label:?} of the result is not in any operand of '{equation}'")));
    }
    equal_sizes(&mut c, &mut operands)?;
    let mut rest = operands.into_iter();
    let Some(mut sum) = rest.next() else { return Err(view.error("the node has no operands")) };
    while let Some(next) = rest.next() {
        let is_needed =
            |label: &Label| result.contains(label) || rest.as_slice().iter().any(|one| one.labels.contains(label));
        sum = combined(&mut c, sum, next, is_needed)?;
    }
    let sum = summed(&mut c, sum, |label| result.contains(label))?;
    let permutation = result.iter().filter_map(|label| sum.labels.iter().position(|own| own == label));
    let permutation: Vec<usize> = permutation.collect();
    if permutation.len() != sum.labels.len() {
        return Err(view.error(format!("the result of '{equation}' names a dimension twice")));
    }
    let y = c.transpose(&sum.part, &permutation)?;
    c.finish(y)
}

/// The labels of a term of the equation. An ellipsis gets the dimensions that the letters leave over.
fn labels(view: &NodeView, term: &str, rank: usize) -> Result<Vec<Label>, ModelError> {
    let error = || view.error(format!("term '{term}' of the equation does not match {rank} dimensions"));
    let (before, after) = match term.split_once("...") {
        Some((before, after)) => (before, Some(after)),
        None => (term, None),
    };
    let letters = || before.chars().chain(after.unwrap_or("").chars());
    if letters().any(|letter| !letter.is_ascii_alphabetic()) {
        return Err(view.error(format!("term '{term}' of the equation contains characters other than letters")));
    }
    let named = letters().count();
    let left = rank.checked_sub(named).ok_or_else(error)?;
    if left > 0 && after.is_none() {
        return Err(error());
    }
    let ellipsis = (0..left).rev().map(Label::Ellipsis);
    let own = before.chars().map(Label::Letter).chain(ellipsis);
    Ok(own.chain(after.unwrap_or("").chars().map(Label::Letter)).collect())
}

/// The result of an equation without an arrow, of all labels to its left: the ellipsis, then the letters that occur once, in alphabetical
/// order.
fn implied(mut all: Vec<Label>) -> Vec<Label> {
    all.sort_unstable();
    let occurs = |label: &Label| all.iter().filter(|own| *own == label).count();
    let mut result: Vec<Label> =
        all.iter().copied().filter(|label| matches!(label, Label::Ellipsis(_)) || occurs(label) == 1).collect();
    result.dedup();
    let ellipses = result.iter().take_while(|label| matches!(label, Label::Ellipsis(_))).count();
    // They are counted from the last one.
    result[..ellipses].reverse();
    result
}

/// Replaces dimensions that occur twice in an operand by their diagonal.
fn without_diagonals(c: &mut Composer, mut one: Labeled) -> Result<Labeled, ModelError> {
    loop {
        let rank = one.labels.len();
        let twice = (0..rank).flat_map(|i| (i + 1..rank).map(move |j| (i, j)));
        let Some((i, j)) = twice.clone().find(|&(i, j)| one.labels[i] == one.labels[j]) else { return Ok(one) };
        let (size, other) = (one.part.ty.shape[i], one.part.ty.shape[j]);
        if size != other {
            return Err(c.view.error(format!("{} has no diagonal along axes {i} and {j}", one.part.ty)));
        }
        let mut order: Vec<usize> = (0..rank).filter(|axis| ![i, j].contains(axis)).collect();
        let labels: Vec<Label> = order.iter().chain([&i]).map(|&axis| one.labels[axis]).collect();
        order.extend([i, j]);
        let square = c.transpose(&one.part, &order)?;
        let mut shape = square.ty.shape[..rank - 2].to_vec();
        shape.push(product(&c.view, &[size, size])?);
        let flat = c.reshape(&square, &shape)?;
        one = Labeled { labels, part: c.strided(&flat, rank - 2, (0, size, size + 1))? };
    }
}

/// Repeats dimensions of size 1 if others with the same label are larger.
fn equal_sizes(c: &mut Composer, operands: &mut [Labeled]) -> Result<(), ModelError> {
    let largest = |label: Label, all: &[Labeled]| all.iter().filter_map(|one| one.size(label)).max().unwrap_or(1);
    let shapes: Vec<Vec<u64>> =
        operands.iter().map(|one| one.labels.iter().map(|&label| largest(label, operands)).collect()).collect();
    for (one, shape) in operands.iter_mut().zip(&shapes) {
        one.part = c.expand(&one.part, shape)?;
    }
    Ok(())
}

/// Sums over the labels that are not kept.
fn summed(c: &mut Composer, one: Labeled, keeps: impl Fn(&Label) -> bool) -> Result<Labeled, ModelError> {
    let axes: Vec<usize> = (0..one.labels.len()).filter(|&axis| !keeps(&one.labels[axis])).collect();
    let sum = c.reduce(ReduceOp::Sum, &axes, &one.part)?;
    let kept = (0..one.labels.len()).filter(|axis| !axes.contains(axis));
    let (labels, shape): (Vec<Label>, Vec<u64>) = kept.map(|axis| (one.labels[axis], one.part.ty.shape[axis])).unzip();
    Ok(Labeled { labels, part: c.reshape(&sum, &shape)? })
}

/// Combines two operands by a product of matrices, whose batch dimensions are those that both have and that are needed later.
fn combined(
    c: &mut Composer,
    a: Labeled,
    b: Labeled,
    is_needed: impl Fn(&Label) -> bool,
) -> Result<Labeled, ModelError> {
    let in_b = b.labels.clone();
    let in_a = a.labels.clone();
    let a = summed(c, a, |label| is_needed(label) || in_b.contains(label))?;
    let b = summed(c, b, |label| is_needed(label) || in_a.contains(label))?;
    let (batch, terms): (Vec<Label>, Vec<Label>) =
        a.labels.iter().copied().filter(|label| b.labels.contains(label)).partition(&is_needed);
    let only = |one: &Labeled, other: &Labeled| -> Vec<Label> {
        one.labels.iter().copied().filter(|label| !other.labels.contains(label)).collect()
    };
    let (rows, columns) = (only(&a, &b), only(&b, &a));
    let sizes = |one: &Labeled, labels: &[Label]| labels.iter().filter_map(|&l| one.size(l)).collect::<Vec<u64>>();
    let [batch_sizes, row_sizes, term_sizes] = [&batch, &rows, &terms].map(|labels| sizes(&a, labels));
    let column_sizes = sizes(&b, &columns);
    let count = |sizes: &[u64]| product(&c.view, sizes);
    let (batches, m, k, n) = (count(&batch_sizes)?, count(&row_sizes)?, count(&term_sizes)?, count(&column_sizes)?);
    let ordered = |c: &mut Composer, one: &Labeled, order: [&[Label]; 3], shape: &[u64]| {
        let order: Vec<usize> =
            order.concat().iter().filter_map(|label| one.labels.iter().position(|own| own == label)).collect();
        let part = c.transpose(&one.part, &order)?;
        c.reshape(&part, shape)
    };
    let left = ordered(c, &a, [&batch, &rows, &terms], &[batches, m, k])?;
    let y = if a.part.ty.data_type == DataType::Float64 || !a.part.ty.data_type.is_float() || terms.is_empty() {
        // Only matrix products have a kernel, and only for these types.
        let left = c.reshape(&left, &[batches, m, 1, k])?;
        let right = ordered(c, &b, [&batch, &columns, &terms], &[batches, 1, n, k])?;
        let products = c.binary(BinaryOp::Multiply, &left, &right)?;
        if terms.is_empty() { products } else { c.reduce(ReduceOp::Sum, &[3], &products)? }
    } else {
        let right = ordered(c, &b, [&batch, &terms, &columns], &[batches, k, n])?;
        product_of(c, &left, &right, [false, false], 1.0)?
    };
    let shape = [batch_sizes, row_sizes, column_sizes].concat();
    Ok(Labeled { labels: [batch, rows, columns].concat(), part: c.reshape(&y, &shape)? })
}
