//! Linear models.

use forebay_base::DataType;
use forebay_base::kernel::BinaryOp;

use super::super::decomposition::{Composer, Decomposition, Part};
use super::super::matrix::product_of;
use super::scores::{Transform, above, both, of_regression, top, transformed};
use super::{labels, numbers, rows};
use crate::error::ModelError;
use crate::operator::NodeView;

/// x coefficients^T + intercepts: \[rows, targets].
fn scores(c: &mut Composer, targets: usize, intercepts: &[f64]) -> Result<Part, ModelError> {
    let view = c.view;
    let x = rows(c, false)?;
    let features = x.ty.shape[1];
    let coefficients = numbers(&view, "coefficients")?;
    if Some(coefficients.len() as u64) != features.checked_mul(targets as u64) {
        let count = coefficients.len();
        return Err(view.error(format!("{count} coefficients do not fit {targets} targets of {features} features")));
    }
    let coefficients = c.floats(DataType::Float32, &[targets as u64, features], &coefficients)?;
    let y = product_of(c, &x, &coefficients, [false, true], 1.0)?;
    if intercepts.is_empty() {
        return Ok(y);
    }
    if intercepts.len() != targets {
        return Err(view.error(format!("{} intercepts are given for {targets} targets", intercepts.len())));
    }
    let intercepts = c.floats(DataType::Float32, &[1, targets as u64], intercepts)?;
    c.binary(BinaryOp::Add, &y, &intercepts)
}

pub(super) fn predicted(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let targets = view.int("targets", 1)?;
    let targets = usize::try_from(targets).ok().filter(|&targets| targets > 0);
    let targets = targets.ok_or_else(|| view.error("attribute targets must be at least 1"))?;
    let y = scores(&mut c, targets, &numbers(&view, "intercepts")?)?;
    let y = of_regression(&mut c, &y, Transform::named(&view)?)?;
    c.finish(y)
}

/// The label of the largest score, and the scores. A single score is that of the second class.
pub(super) fn classified(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let intercepts = numbers(&view, "intercepts")?;
    let labels = labels(&view, "classlabels_ints")?;
    let targets = if intercepts.is_empty() { labels.len() } else { intercepts.len() };
    let y = scores(&mut c, targets, &intercepts)?;
    let transform = Transform::named(&view)?;
    if targets > 1 {
        let label = top(&mut c, &y, labels)?;
        let y = transformed(&mut c, &y, transform)?;
        return c.finish_all(vec![label, y]);
    }
    let &[first, second] = labels else {
        return Err(view.error(format!("a single score cannot choose between {} classes", labels.len())));
    };
    if !matches!(transform, Transform::None | Transform::Logistic) {
        return Err(transform.refused(&view, "a single score"));
    }
    let label = above(&mut c, &y, 0.0, [first, second])?;
    let y = transformed(&mut c, &y, transform)?;
    let y = both(&mut c, &y, true)?;
    c.finish_all(vec![label, y])
}
