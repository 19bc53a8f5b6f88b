//! Operators whose result sizes depend on data, which must therefore be constants.

use std::cmp::Ordering;

use forebay_base::{DataType, Tensor};

use super::decomposition::{Composer, Decomposition, composed};
use super::element_keys::{keys, zero_key};
use super::indices::take;
use super::shapes::{packed_strides, product};
use super::suppression;
use crate::error::ModelError;
use crate::operator::{Gradient, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("Compress", compress),
    Operator { gradient: Gradient::Zero, ..composed!("NonMaxSuppression", suppression::non_max_suppression) },
    Operator { gradient: Gradient::Zero, ..composed!("NonZero", non_zero) },
    Operator { gradient: Gradient::Zero, ..composed!("Unique", unique) },
];

/// Indices of the nonzero elements: a row for each dimension, a column for each element.
fn non_zero(view: NodeView) -> Result<Decomposition, ModelError> {
    let x = view.whole_constant(0)?;
    let shape = if x.shape().is_empty() { vec![1] } else { x.shape().to_vec() };
    let (zero, strides) = (zero_key(x.data_type()), packed_strides(&shape));
    let found: Vec<u64> = keys(&x).iter().zip(0..).filter(|&(&key, _)| key != zero).map(|(_, number)| number).collect();
    let index = |axis: usize, number: u64| (number / strides[axis] % shape[axis]) as i64;
    let values: Vec<i64> = (0..shape.len())
        .flat_map(|axis| found.iter().map(move |&number| (axis, number)))
        .map(|(a, n)| index(a, n))
        .collect();
    let mut c = Composer::new(view);
    let y = c.constant(Tensor::from_i64(&[shape.len() as u64, found.len() as u64], &values));
    c.finish(y)
}

/// The slices along an axis, or the elements, for which a condition holds.
fn compress(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let condition = view.whole_constant(1)?;
    if condition.data_type() != DataType::Bool || condition.shape().len() != 1 {
        return Err(view.error(format!("the condition must be a list of bool, not {}", condition.ty())));
    }
    let (data, axis) = match view.attribute("axis") {
        Some(_) => (x.clone(), view.axis(view.int("axis", 0)?, x.ty.shape.len())?),
        None => (c.reshape(&x, &[product(&view, &x.ty.shape)?])?, 0),
    };
    let kept: Vec<i64> = condition.bytes().iter().zip(0..).filter(|&(&byte, _)| byte != 0).map(|(_, i)| i).collect();
    if kept.last().is_some_and(|&last| last as u64 >= data.ty.shape[axis]) {
        return Err(view.error(format!(
            "a condition of {} elements does not fit axis {axis} of {}",
            condition.count(),
            data.ty
        )));
    }
    let y = take(&mut c, &data, axis, &kept);
    c.finish(y)
}

/// The distinct slices along an axis, or the distinct elements, sorted or in the order of their first occurrences; with the first
/// occurrence of each, the number of the distinct slice that each slice equals, and how often each occurs.
fn unique(view: NodeView) -> Result<Decomposition, ModelError> {
    let x = view.whole_constant(0)?;
    let (x, axis) = match view.attribute("axis") {
        Some(_) => {
            let axis = view.axis(view.int("axis", 0)?, x.shape().len())?;
            (x, axis)
        }
        None => {
            let count = x.count();
            (x.reshaped(&[count]).ok_or_else(|| view.error("cannot flatten the input"))?, 0)
        }
    };
    let shape = x.shape().to_vec();
    let (count, inner) = (shape[axis] as usize, product(&view, &shape[axis + 1..])? as usize);
    let outer = product(&view, &shape[..axis])? as usize;
    let keys = keys(&x);
    let slice = |i: usize| (0..outer).flat_map(move |row| (row * count + i) * inner..(row * count + i + 1) * inner);
    let compare = |a: usize, b: usize| -> Ordering { slice(a).map(|at| keys[at]).cmp(slice(b).map(|at| keys[at])) };
    let mut order: Vec<usize> = (0..count).collect();
    // The sort is stable: of equal slices, the first comes first.
    order.sort_by(|&a, &b| compare(a, b));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for i in order {
        match groups.last_mut() {
            Some(group) if compare(group[0], i) == Ordering::Equal => group.push(i),
            _ => groups.push(vec![i]),
        }
    }
    if view.int("sorted", 1)? == 0 {
        groups.sort_by_key(|group| group[0]);
    }
    let mut inverse = vec![0; count];
    for (number, group) in groups.iter().enumerate() {
        group.iter().for_each(|&i| inverse[i] = number as i64);
    }
    let bytes = x.data_type().size_bytes() as usize;
    let mut elements = Vec::new();
    for row in 0..outer {
        for group in &groups {
            let start = (row * count + group[0]) * inner * bytes;
            elements.extend_from_slice(&x.bytes()[start..start + inner * bytes]);
        }
    }
    let mut sizes = shape.clone();
    sizes[axis] = groups.len() as u64;
    let y =
        Tensor::new(x.data_type(), &sizes, elements).ok_or_else(|| view.error("cannot create the unique slices"))?;
    let list = |values: Vec<i64>| Tensor::from_i64(&[values.len() as u64], &values);
    let firsts = list(groups.iter().map(|group| group[0] as i64).collect());
    let counts = list(groups.iter().map(|group| group.len() as i64).collect());
    let mut c = Composer::new(view);
    let outputs = [y, firsts, list(inverse), counts].map(|tensor| c.constant(tensor));
    c.finish_all(outputs.to_vec())
}
