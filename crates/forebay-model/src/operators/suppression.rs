//! Selection of the best among overlapping boxes.

use forebay_base::Tensor;

use super::decomposition::{Composer, Decomposition};
use crate::error::ModelError;
use crate::operator::NodeView;

/// A box, as its lower and upper corners.
#[derive(Clone, Copy)]
struct Corners {
    low: [f32; 2],
    high: [f32; 2],
}

impl Corners {
    /// Creates a box from any two opposite corners, or from a center and sizes.
    fn of(numbers: &[f32], is_center: bool) -> Corners {
        let &[a, b, c, d] = numbers else { return Corners { low: [0.0; 2], high: [0.0; 2] } };
        if is_center {
            return Corners { low: [a - c / 2.0, b - d / 2.0], high: [a + c / 2.0, b + d / 2.0] };
        }
        Corners { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] }
    }

    fn area(&self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Intersection over union; 0 for boxes without an area.
    fn overlap(&self, other: &Corners) -> f32 {
        let side = |d: usize| (self.high[d].min(other.high[d]) - self.low[d].max(other.low[d])).max(0.0);
        let intersection = side(0) * side(1);
        let union = self.area() + other.area() - intersection;
        if self.area() <= 0.0 || other.area() <= 0.0 || union <= 0.0 {
            return 0.0;
        }
        intersection / union
    }
}

/// The number in an optional constant input.
fn number(view: &NodeView, i: usize) -> Result<Option<f32>, ModelError> {
    view.has_input(i).then(|| Ok(view.constant_number(i)? as f32)).transpose()
}

/// The shape and the float32 numbers of an input.
fn numbers(view: &NodeView, i: usize) -> Result<(Vec<u64>, Vec<f32>), ModelError> {
    let tensor = view.whole_constant(i)?;
    let values = tensor.to_f32().filter(|_| tensor.shape().len() == 3);
    let values = values
        .ok_or_else(|| view.error(format!("input {i} must be three-dimensional float32, not {}", tensor.ty())))?;
    Ok((tensor.shape().to_vec(), values))
}

/// For each batch and class, selects boxes \[batch, box, 4] in descending order of their scores \[batch, class, box], without those that
/// overlap a selected one by more than a threshold. Returns their batch, class and number.
pub(super) fn non_max_suppression(view: NodeView) -> Result<Decomposition, ModelError> {
    let ((shape, boxes), (score_shape, scores)) = (numbers(&view, 0)?, numbers(&view, 1)?);
    let (&[batches, count, 4], &[score_batches, classes, score_count]) = (shape.as_slice(), score_shape.as_slice())
    else {
        return Err(view.error(format!("expected boxes [batches, boxes, 4], found {shape:?}")));
    };
    if (batches, count) != (score_batches, score_count) {
        return Err(view.error(format!("scores of {score_shape:?} do not fit boxes of {shape:?}")));
    }
    let most = if view.has_input(2) { view.constant_ints(2)?.first().copied().unwrap_or(0) } else { 0 };
    let most = usize::try_from(most).unwrap_or(0);
    let (overlap_most, score_least) = (number(&view, 3)?.unwrap_or(0.0), number(&view, 4)?);
    let is_center = view.int("center_point_box", 0)? != 0;
    let corners: Vec<Corners> = boxes.chunks_exact(4).map(|numbers| Corners::of(numbers, is_center)).collect();
    let mut selected: Vec<i64> = Vec::new();
    for (row, scores) in scores.chunks_exact((count as usize).max(1)).enumerate() {
        let (batch, class) = (row as u64 / classes, row as u64 % classes);
        let own = &corners[(batch * count) as usize..((batch + 1) * count) as usize];
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.retain(|&i| score_least.is_none_or(|least| scores[i] > least));
        // The sort is stable: of equal scores, the first box comes first.
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut taken: Vec<usize> = Vec::new();
        for i in order {
            if taken.len() >= most {
                break;
            }
            if taken.iter().all(|&other| own[i].overlap(&own[other]) <= overlap_most) {
                taken.push(i);
                selected.extend([batch as i64, class as i64, i as i64]);
            }
        }
    }
    let mut c = Composer::new(view);
    let y = c.constant(Tensor::from_i64(&[selected.len() as u64 / 3, 3], &selected));
    c.finish(y)
}
