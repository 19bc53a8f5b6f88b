//! Support vector machines.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};

use super::super::decomposition::{Composer, Decomposition, Part};
use super::super::matrix::product_of;
use super::super::shapes::require_few;
use super::scores::{Transform, both, top, transformed};
use super::{integers, labels, numbers, rows};
use crate::error::ModelError;
use crate::operator::NodeView;

/// The similarities of rows to support vectors, \[rows, vectors], by the kernel function that attribute `kernel_type` names.
fn similarities(c: &mut Composer, x: &Part, vectors: &[f64], count: u64) -> Result<Part, ModelError> {
    let (view, features) = (c.view, x.ty.shape[1]);
    if Some(vectors.len() as u64) != features.checked_mul(count) {
        return Err(view.error(format!("{} numbers are not {count} vectors of {features} features", vectors.len())));
    }
    let parameters = numbers(&view, "kernel_params")?;
    let parameter = |i: usize| parameters.get(i).copied().unwrap_or(0.0) as f32;
    let (gamma, shift, degree) = (parameter(0), parameter(1), parameter(2));
    let kind = view.string("kernel_type", "LINEAR")?;
    if kind == "RBF" {
        let distances = distances(c, x, vectors, count)?;
        let scaled = c.affine(&distances, -gamma, 0.0)?;
        return c.unary(UnaryOp::Exp, &scaled);
    }
    let vectors = c.floats(DataType::Float32, &[count, features], vectors)?;
    let products = product_of(c, x, &vectors, [false, true], 1.0)?;
    match kind {
        "LINEAR" => Ok(products),
        "POLY" => {
            let base = c.affine(&products, gamma, shift)?;
            let degree = c.scalar(DataType::Float32, f64::from(degree))?;
            c.binary(BinaryOp::Power, &base, &degree)
        }
        "SIGMOID" => {
            let inside = c.affine(&products, gamma, shift)?;
            c.unary(UnaryOp::Tanh, &inside)
        }
        other => Err(view.error(format!("there is no kernel_type '{other}'"))),
    }
}

/// The squared distances of rows from vectors. Both are measured from the mean of the vectors, so that large squares do not cancel.
fn distances(c: &mut Composer, x: &Part, vectors: &[f64], count: u64) -> Result<Part, ModelError> {
    let features = x.ty.shape[1] as usize;
    require_few(&c.view, &[count, features as u64])?;
    let mut mean = vec![0.0; features];
    for vector in vectors.chunks_exact(features.max(1)) {
        mean.iter_mut().zip(vector).for_each(|(sum, value)| *sum += value / count as f64);
    }
    // What is subtracted from the rows.
    let mean: Vec<f64> = mean.iter().map(|&value| f64::from(value as f32)).collect();
    let centered: Vec<f64> = vectors.iter().enumerate().map(|(i, value)| value - mean[i % features]).collect();
    let squares: Vec<f64> =
        centered.chunks_exact(features.max(1)).map(|vector| vector.iter().map(|value| value * value).sum()).collect();
    let mean = c.floats(DataType::Float32, &[1, features as u64], &mean)?;
    let centered = c.floats(DataType::Float32, &[count, features as u64], &centered)?;
    let squares = c.floats(DataType::Float32, &[1, count], &squares)?;
    let x = c.binary(BinaryOp::Subtract, x, &mean)?;
    let own = c.reduce(ReduceOp::SumSquare, &[1], &x)?;
    let products = product_of(c, &x, &centered, [false, true], -2.0)?;
    let sum = c.binary(BinaryOp::Add, &own, &squares)?;
    let sum = c.binary(BinaryOp::Add, &sum, &products)?;
    c.unary(UnaryOp::Relu, &sum)
}

pub(super) fn predicted(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = rows(&mut c, false)?;
    let (coefficients, rho) = (numbers(&view, "coefficients")?, numbers(&view, "rho")?);
    let transform = Transform::named(&view)?;
    if transform != Transform::None {
        return Err(transform.refused(&view, "a single target"));
    }
    let &[shift, ..] = rho.as_slice() else { return Err(view.error("attribute rho is missing")) };
    let count = view.int("n_supports", 0)?;
    let count = u64::try_from(count).map_err(|_| view.error(format!("{count} support vectors are not possible")))?;
    let terms = if count > 0 { similarities(&mut c, &x, &numbers(&view, "support_vectors")?, count)? } else { x };
    let size = terms.ty.shape[1];
    if coefficients.len() as u64 != size {
        return Err(view.error(format!("{} coefficients are given for {size} terms", coefficients.len())));
    }
    let coefficients = c.floats(DataType::Float32, &[size, 1], &coefficients)?;
    let y = product_of(&mut c, &terms, &coefficients, [false, false], 1.0)?;
    let mut y = c.affine(&y, 1.0, shift as f32)?;
    if view.int("one_class", 0)? != 0 {
        let zero = c.scalar(DataType::Float32, 0.0)?;
        let is_inside = c.binary(BinaryOp::Greater, &y, &zero)?;
        let is_inside = c.cast(&is_inside, DataType::Float32);
        y = c.affine(&is_inside, 2.0, -1.0)?;
    }
    c.finish(y)
}

/// The label with the most votes of the classifiers of two classes each, and their scores.
pub(super) fn classified(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = rows(&mut c, false)?;
    let labels = labels(&view, "classlabels_ints")?;
    let classes = labels.len();
    let (coefficients, rho) = (numbers(&view, "coefficients")?, numbers(&view, "rho")?);
    let of_classes = integers(&view, "vectors_per_class")?;
    if !numbers(&view, "prob_a")?.is_empty() {
        return Err(view.error("probabilities (attributes prob_a and prob_b) are not supported; train without them"));
    }
    let sizes: Option<Vec<usize>> = of_classes.iter().map(|&size| usize::try_from(size).ok()).collect();
    let sizes = sizes.filter(|sizes| sizes.len() == classes && classes > 1);
    let sizes = sizes.ok_or_else(|| {
        view.error(format!(
            "attribute vectors_per_class must be a number for each of at least two classes, not {of_classes:?}"
        ))
    })?;
    let mut starts = vec![0usize];
    for size in &sizes {
        let next = starts[starts.len() - 1].checked_add(*size);
        starts.push(next.ok_or_else(|| view.error("the numbers of support vectors overflow"))?);
    }
    let vectors = starts[classes];
    let pairs = classes * (classes - 1) / 2;
    if coefficients.len() != (classes - 1).saturating_mul(vectors) || rho.len() != pairs {
        let reason = format!(
            "{} coefficients and {} numbers rho do not fit {vectors} support vectors of {classes} classes",
            coefficients.len(),
            rho.len()
        );
        return Err(view.error(reason));
    }
    let terms = similarities(&mut c, &x, &numbers(&view, "support_vectors")?, vectors as u64)?;
    // Each classifier uses the support vectors of its two classes.
    let mut weights = vec![0.0; require_few(&view, &[pairs as u64, vectors as u64])?];
    let mut votes = vec![0.0; require_few(&view, &[pairs as u64, classes as u64])?];
    let mut of_second = vec![0.0; classes];
    let every = (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j)));
    for (pair, (i, j)) in every.enumerate() {
        let row = &mut weights[pair * vectors..][..vectors];
        for (own, other) in [(i, j - 1), (j, i)] {
            let range = starts[own]..starts[own + 1];
            row[range.clone()].copy_from_slice(&coefficients[other * vectors..][range]);
        }
        // The first class if the score is positive, else the second.
        (votes[pair * classes + i], votes[pair * classes + j]) = (1.0, -1.0);
        of_second[j] += 1.0;
    }
    let weights = c.floats(DataType::Float32, &[pairs as u64, vectors as u64], &weights)?;
    let rho = c.floats(DataType::Float32, &[1, pairs as u64], &rho)?;
    let scores = product_of(&mut c, &terms, &weights, [false, true], 1.0)?;
    let scores = c.binary(BinaryOp::Add, &scores, &rho)?;
    let zero = c.scalar(DataType::Float32, 0.0)?;
    let is_first = c.binary(BinaryOp::Greater, &scores, &zero)?;
    let is_first = c.cast(&is_first, DataType::Float32);
    let votes = c.floats(DataType::Float32, &[pairs as u64, classes as u64], &votes)?;
    let votes = product_of(&mut c, &is_first, &votes, [false, false], 1.0)?;
    let of_second = c.floats(DataType::Float32, &[1, classes as u64], &of_second)?;
    let votes = c.binary(BinaryOp::Add, &votes, &of_second)?;
    let label = top(&mut c, &votes, labels)?;
    let transform = Transform::named(&view)?;
    let scores = match (pairs, transform) {
        (1, Transform::None) => both(&mut c, &scores, false)?,
        (1, _) => return Err(transform.refused(&view, "a single score")),
        _ => transformed(&mut c, &scores, transform)?,
    };
    c.finish_all(vec![label, scores])
}
