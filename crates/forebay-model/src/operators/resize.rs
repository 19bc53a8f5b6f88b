//! Resizing of images and volumes, nearest and linear.
//!
//! Both go axis by axis: every output position takes one element (nearest) or two (linear) of the input, by constant
//! indices. Nearest by a whole factor, the usual case, is a broadcast.

use forebay_base::kernel::BinaryOp;
use forebay_base::{Kernel, Tensor};

use super::decomposition::{composed, Composer, Decomposition, Part};
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows.
pub const ROWS: &[Operator] = &[composed!("Resize", resize), composed!("Upsample", resize)];

/// Largest size of a resized axis.
const SIZE_MAX: u64 = 1 << 24;

/// How positions of the output lie in the input.
struct Coordinates<'a> {
    transformation: &'a str,
    rounding: &'a str,
}

fn resize(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    for (name, plain) in [("antialias", 0), ("exclude_outside", 0)] {
        if view.int(name, plain)? != plain {
            return Err(view.error(format!("attribute {name} is not supported")));
        }
    }
    if view.string("keep_aspect_ratio_policy", "stretch")? != "stretch" {
        return Err(view.error("attribute keep_aspect_ratio_policy is not supported"));
    }
    // Before opset 11 there was one way only, the asymmetric one.
    let is_old = view.version() < 11 || view.node.operation.name() == "Upsample";
    let coordinates = Coordinates {
        transformation: if is_old {
            "asymmetric"
        } else {
            view.string("coordinate_transformation_mode", "half_pixel")?
        },
        rounding: if is_old { "floor" } else { view.string("nearest_mode", "round_prefer_floor")? },
    };
    let is_linear = match view.string("mode", "nearest")? {
        "nearest" => false,
        "linear" | "bilinear" => true,
        other => return Err(view.error(format!("attribute mode '{other}' is not supported (nearest, linear)"))),
    };
    let mut y = x.clone();
    let targets = targets(&view, &x, is_old)?;
    product(&view, &targets.iter().map(|target| target.0).collect::<Vec<_>>())?;
    for (axis, (size, scale)) in targets.into_iter().enumerate() {
        if size == x.ty.shape[axis] && scale == 1.0 {
            continue;
        }
        if size > SIZE_MAX || x.ty.shape[axis] == 0 {
            return Err(view.error(format!("axis {axis} of {} cannot become {size}", x.ty)));
        }
        let positions = coordinates.positions(&view, x.ty.shape[axis], size, scale)?;
        y = if is_linear {
            linear(&mut c, &y, axis, &positions)?
        } else {
            nearest(&mut c, &y, axis, &coordinates.rounded(&view, &positions)?)?
        };
    }
    c.finish(y)
}

/// Size and scale of every axis of the output.
fn targets(view: &NodeView, x: &Part, is_old: bool) -> Result<Vec<(u64, f64)>, ModelError> {
    let rank = x.ty.shape.len();
    let (scales_input, sizes_input) = if is_old { (1, usize::MAX) } else { (2, 3) };
    let along: Vec<i64> = view.ints("axes")?.map_or_else(|| (0..rank as i64).collect(), <[i64]>::to_vec);
    super::shapes::axes(view, &along, rank)?;
    let mut targets: Vec<(u64, f64)> = x.ty.shape.iter().map(|&size| (size, 1.0)).collect();
    let count = |given: usize| match given == along.len() {
        true => Ok(()),
        false => Err(view.error(format!("{given} sizes or scales for {} axes", along.len()))),
    };
    if view.has_input(sizes_input) {
        let sizes = view.constant_ints(sizes_input)?;
        count(sizes.len())?;
        for (&axis, &size) in along.iter().zip(&sizes) {
            let axis = view.axis(axis, rank)?;
            let size = super::shapes::size(view, "a size", size)?;
            targets[axis] = (size, size as f64 / x.ty.shape[axis].max(1) as f64);
        }
        return Ok(targets);
    }
    let scales = match view.attribute("scales") {
        Some(crate::graph::Attribute::Floats(scales)) => Some(scales.clone()),
        _ => view.needed(scales_input)?.to_f32(),
    };
    let scales = scales.ok_or_else(|| view.error("the scales must be float32"))?;
    count(scales.len())?;
    for (&axis, &scale) in along.iter().zip(&scales) {
        let axis = view.axis(axis, rank)?;
        let size = (x.ty.shape[axis] as f64 * f64::from(scale)).floor();
        if !(scale > 0.0 && (1.0..=SIZE_MAX as f64).contains(&size)) {
            return Err(view.error(format!("scale {scale} of axis {axis} of {} is not possible", x.ty)));
        }
        targets[axis] = (size as u64, f64::from(scale));
    }
    Ok(targets)
}

impl Coordinates<'_> {
    /// Where the output's elements lie in the input, cut to it.
    fn positions(&self, view: &NodeView, from: u64, to: u64, scale: f64) -> Result<Vec<f64>, ModelError> {
        let (last, size) = (from.saturating_sub(1) as f64, to as f64);
        let position = |i: u64| -> Option<f64> {
            let i = i as f64;
            Some(match self.transformation {
                "half_pixel" => (i + 0.5) / scale - 0.5,
                "half_pixel_symmetric" => {
                    let adjustment = size / (scale * from as f64);
                    from as f64 / 2.0 * (1.0 - adjustment) + (i + 0.5) / scale - 0.5
                }
                "pytorch_half_pixel" if to == 1 => 0.0,
                "pytorch_half_pixel" => (i + 0.5) / scale - 0.5,
                "align_corners" if to == 1 => 0.0,
                "align_corners" => i * last / (size - 1.0),
                "asymmetric" => i / scale,
                _ => return None,
            })
        };
        let error = || view.error(format!("coordinate transformation '{}' is not supported", self.transformation));
        (0..to).map(|i| position(i).map(|p| p.clamp(0.0, last)).ok_or_else(error)).collect()
    }

    fn rounded(&self, view: &NodeView, positions: &[f64]) -> Result<Vec<i64>, ModelError> {
        let round: fn(f64) -> f64 = match self.rounding {
            "floor" => f64::floor,
            "ceil" => f64::ceil,
            "round_prefer_floor" => |p| (p - 0.5).ceil(),
            "round_prefer_ceil" => |p| (p + 0.5).floor(),
            other => return Err(view.error(format!("attribute nearest_mode '{other}' is not known"))),
        };
        Ok(positions.iter().map(|&position| round(position) as i64).collect())
    }
}

/// Elements along an axis by constant indices.
fn take(c: &mut Composer, x: &Part, axis: usize, indices: &[i64]) -> Part {
    let mut ty = TensorType::new(x.ty.data_type, &x.ty.shape);
    ty.shape[axis] = indices.len() as u64;
    let indices = c.constant(Tensor::from_i64(&[indices.len() as u64], indices));
    c.kernel(Kernel::Gather { axis }, &[x, &indices], ty)
}

fn nearest(c: &mut Composer, x: &Part, axis: usize, indices: &[i64]) -> Result<Part, ModelError> {
    let (from, to) = (x.ty.shape[axis], indices.len() as u64);
    let factor = to / from;
    let repeats =
        to % from == 0 && indices.iter().enumerate().all(|(i, &index)| i as u64 / factor.max(1) == index as u64);
    if !repeats {
        return Ok(take(c, x, axis, indices));
    }
    let mut shape = x.ty.shape.clone();
    shape.insert(axis + 1, 1);
    let blocks = c.reshape(x, &shape)?;
    shape[axis + 1] = factor;
    let blocks = c.expand(&blocks, &shape)?;
    shape.remove(axis + 1);
    shape[axis] = to;
    c.reshape(&blocks, &shape)
}

/// left + weight (right - left) of the two neighbours.
fn linear(c: &mut Composer, x: &Part, axis: usize, positions: &[f64]) -> Result<Part, ModelError> {
    let last = x.ty.shape[axis] as i64 - 1;
    let left: Vec<i64> = positions.iter().map(|position| position.floor() as i64).collect();
    let right: Vec<i64> = left.iter().map(|&index| (index + 1).min(last)).collect();
    let weights: Vec<f32> = positions.iter().map(|position| (position - position.floor()) as f32).collect();
    let mut shape = vec![1; x.ty.shape.len() - axis];
    shape[0] = positions.len() as u64;
    let weights = c.constant(Tensor::from_f32(&shape, &weights));
    let (left, right) = (take(c, x, axis, &left), take(c, x, axis, &right));
    let difference = c.binary(BinaryOp::Subtract, &right, &left)?;
    let weighted = c.binary(BinaryOp::Multiply, &difference, &weights)?;
    c.binary(BinaryOp::Add, &left, &weighted)
}
