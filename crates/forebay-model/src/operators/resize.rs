//! Resizing of images and volumes.
//!
//! Axes are resized one by one: every output position takes one element (nearest) or a weighted sum of several elements (linear, cubic) of
//! the input, by constant indices. Nearest by a whole factor, the usual case, is a broadcast.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::take;
use super::interpolation::{InterpolationKernel, Taps, weighted_sums};
use super::sampling;
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("Resize", resize), composed!("Upsample", resize)];

/// Largest size of a resized axis.
const SIZE_MAX: u64 = 1 << 24;

/// How an axis of the output is derived from an axis of the input.
#[derive(Clone, Copy)]
struct Target {
    size: u64,
    scale: f64,
    /// Start and end of the region that is resized, as fractions of the axis.
    region: (f64, f64),
}

/// The interpolation between elements of the input.
enum Mode {
    Nearest,
    Linear,
    /// Weighted sums by this kernel.
    Weighted {
        cubic: Option<f64>,
        antialias: bool,
        exclude_outside: bool,
    },
}

/// The mapping from positions of the output to positions in the input.
struct Coordinates<'a> {
    transformation: &'a str,
    /// How nearest positions are rounded. `None`, before opset 11: up on axes that become smaller, else down.
    rounding: Option<&'a str>,
    /// Whether positions are computed in float32, as in ONNX Runtime, because they or the results are rounded to whole numbers: in
    /// float64, the second of the elements that a float32 of 1/3 scales would be at 2.9999999.
    is_single: bool,
}

fn resize(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    // Before opset 11, there was only the asymmetric transformation.
    let is_old = view.version() < 11 || view.node.operation.name() == "Upsample";
    let mode = mode(&view)?;
    let result_type = x.ty.data_type;
    let coordinates = Coordinates {
        transformation: if is_old {
            "asymmetric"
        } else {
            view.string("coordinate_transformation_mode", "half_pixel")?
        },
        rounding: if is_old { None } else { Some(view.string("nearest_mode", "round_prefer_floor")?) },
        is_single: matches!(mode, Mode::Nearest) || !result_type.is_float(),
    };
    let targets = targets(&view, &x, is_old, coordinates.is_cropped())?;
    let shape: Vec<u64> = targets.iter().map(|target| target.size).collect();
    product(&view, &shape)?;
    if shape.contains(&0) {
        let y = sampling::nothing(&mut c, result_type, &shape);
        return c.finish(y);
    }
    // Nothing is rounded to float16 between the axes.
    let mut y = match &mode {
        Mode::Nearest => x.clone(),
        Mode::Linear if result_type.is_float() => c.cast(&x, result_type.computed_in()),
        Mode::Weighted { .. } if result_type.is_float() => x.clone(),
        _ => c.cast(&x, DataType::Float32),
    };
    let mut outside = Vec::new();
    for (axis, target) in targets.into_iter().enumerate() {
        if target.size == x.ty.shape[axis] && target.scale == 1.0 && target.region == (0.0, 1.0) {
            continue;
        }
        let is_weighted = matches!(mode, Mode::Weighted { .. });
        if target.size > SIZE_MAX || x.ty.shape[axis] == 0 || (is_weighted && x.ty.shape[axis] > SIZE_MAX) {
            return Err(view.error(format!("axis {axis} of {} cannot be resized to {}", x.ty, target.size)));
        }
        let from = x.ty.shape[axis];
        let positions = coordinates.positions(&view, from, &target)?;
        let last = from.saturating_sub(1) as f64;
        if coordinates.is_cropped() {
            outside.push((axis, positions.iter().map(|p| u8::from(!(0.0..=last).contains(p))).collect::<Vec<u8>>()));
        }
        let inside: Vec<f64> = positions.iter().map(|position| position.clamp(0.0, last)).collect();
        y = match &mode {
            Mode::Nearest => nearest(&mut c, &y, axis, &coordinates.rounded(&view, &inside, target.scale)?)?,
            Mode::Linear => linear(&mut c, &y, axis, &inside, !result_type.is_float())?,
            &Mode::Weighted { cubic, antialias, exclude_outside } => {
                let stretch = if antialias { (1.0 / target.scale).max(1.0) } else { 1.0 };
                let kernel = InterpolationKernel { cubic, stretch, exclude_outside };
                let rows: Vec<Taps> = positions.iter().map(|&position| kernel.taps(position, from)).collect();
                weighted_sums(&mut c, &y, axis, &rows)?
            }
        };
    }
    for (axis, mask) in outside {
        y = extrapolated(&mut c, &y, axis, &mask)?;
    }
    y = match &mode {
        // Without antialiasing, integers are rounded towards zero, as in ONNX Runtime.
        Mode::Nearest | Mode::Linear => c.cast(&y, result_type),
        Mode::Weighted { .. } if result_type.is_float() => y,
        Mode::Weighted { .. } => saturated(&mut c, &y, result_type)?,
    };
    c.finish(y)
}

fn mode(view: &NodeView) -> Result<Mode, ModelError> {
    let (antialias, exclude_outside) = (view.int("antialias", 0)? != 0, view.int("exclude_outside", 0)? != 0);
    match view.string("mode", "nearest")? {
        "nearest" if antialias => Err(view.error("attribute antialias only applies to the modes linear and cubic")),
        "nearest" => Ok(Mode::Nearest),
        "linear" | "bilinear" if !antialias && !exclude_outside => Ok(Mode::Linear),
        "linear" | "bilinear" => Ok(Mode::Weighted { cubic: None, antialias, exclude_outside }),
        "cubic" => {
            let cubic = Some(f64::from(view.float("cubic_coeff_a", -0.75)?));
            Ok(Mode::Weighted { cubic, antialias, exclude_outside })
        }
        other => Err(view.error(format!("attribute mode must be nearest, linear or cubic, not '{other}'"))),
    }
}

/// The targets of all axes of the output.
fn targets(view: &NodeView, x: &Part, is_old: bool, is_cropped: bool) -> Result<Vec<Target>, ModelError> {
    let rank = x.ty.shape.len();
    let (scales_input, sizes_input) = if is_old { (1, usize::MAX) } else { (2, 3) };
    let along: Vec<i64> = view.ints("axes")?.map_or_else(|| (0..rank as i64).collect(), <[i64]>::to_vec);
    super::shapes::axes(view, &along, rank)?;
    let plain = |&size: &u64| Target { size, scale: 1.0, region: (0.0, 1.0) };
    let mut targets: Vec<Target> = x.ty.shape.iter().map(plain).collect();
    let count = |given: usize, each: usize| match given == each * along.len() {
        true => Ok(()),
        false => {
            Err(view.error(format!("{given} sizes, scales or limits of a region do not fit {} axes", along.len())))
        }
    };
    if is_cropped {
        let region = view
            .needed(1)?
            .to_f64()
            .ok_or_else(|| view.error("the region (input 1) must be floating-point numbers"))?;
        count(region.len(), 2)?;
        for (i, &axis) in along.iter().enumerate() {
            let axis = view.axis(axis, rank)?;
            targets[axis].region = (region[i], region[i + along.len()]);
        }
    }
    // Empty sizes count as missing: models of opset 11 have them.
    let are_empty = |i: usize| view.input_type(i).is_ok_and(|ty| ty.count() == 0);
    if view.has_input(sizes_input) && !are_empty(sizes_input) {
        let sizes = view.constant_ints(sizes_input)?;
        count(sizes.len(), 1)?;
        for (&axis, &size) in along.iter().zip(&sizes) {
            let axis = view.axis(axis, rank)?;
            let size = super::shapes::size(view, "a size", size)?;
            targets[axis].size = size;
            targets[axis].scale = size as f64 / x.ty.shape[axis].max(1) as f64;
        }
        keep_aspect_ratio(view, x, &along, &mut targets)?;
        return Ok(targets);
    }
    let scales = match view.attribute("scales") {
        Some(crate::graph::Attribute::Floats(scales)) => Some(scales.iter().map(|&scale| f64::from(scale)).collect()),
        _ => view.needed(scales_input)?.to_f64(),
    };
    let scales: Vec<f64> = scales.ok_or_else(|| view.error("the scales must be floating-point numbers"))?;
    count(scales.len(), 1)?;
    for (&axis, &scale) in along.iter().zip(&scales) {
        let axis = view.axis(axis, rank)?;
        // In float32, as exporters compute it: in float64, 5 times a float32 of 1.8 is less than 9.
        let size = (x.ty.shape[axis] as f32 * scale as f32).floor();
        let least = if x.ty.shape[axis] == 0 { 0.0 } else { 1.0 };
        if !(scale > 0.0 && (least..=SIZE_MAX as f32).contains(&size)) {
            return Err(view.error(format!("axis {axis} of {} cannot be scaled by {scale}", x.ty)));
        }
        targets[axis].size = size as u64;
        targets[axis].scale = scale;
    }
    Ok(targets)
}

/// Uses one scale for all axes if the policy requires it.
fn keep_aspect_ratio(view: &NodeView, x: &Part, along: &[i64], targets: &mut [Target]) -> Result<(), ModelError> {
    let pick: fn(f64, f64) -> f64 = match view.string("keep_aspect_ratio_policy", "stretch")? {
        "stretch" => return Ok(()),
        "not_larger" => f64::min,
        "not_smaller" => f64::max,
        other => return Err(view.error(format!("unknown value '{other}' of attribute keep_aspect_ratio_policy"))),
    };
    let axes = along.iter().map(|&axis| view.axis(axis, targets.len())).collect::<Result<Vec<usize>, _>>()?;
    let Some(scale) = axes.iter().map(|&axis| targets[axis].scale).reduce(pick) else { return Ok(()) };
    for axis in axes {
        targets[axis].scale = scale;
        targets[axis].size = (scale * x.ty.shape[axis] as f64 + 0.5).floor() as u64;
    }
    Ok(())
}

impl Coordinates<'_> {
    /// Whether a region of the input is resized, with the extrapolation value for positions outside the input.
    fn is_cropped(&self) -> bool {
        self.transformation == "tf_crop_and_resize"
    }

    /// The positions of the output's elements in the input.
    fn positions(&self, view: &NodeView, from: u64, target: &Target) -> Result<Vec<f64>, ModelError> {
        let &Target { size: to, scale, region: (start, end) } = target;
        let (last, size) = (from.saturating_sub(1) as f64, to as f64);
        // The output size before it was rounded down.
        let length = match scale * from as f64 {
            length if (length - size).abs() < 1e-4 => size,
            length => length,
        };
        let single = |x: f64| if self.is_single { f64::from(x as f32) } else { x };
        let scale = single(scale);
        let from_center = |i: f64| single(single((i + 0.5) / scale) - 0.5);
        let position = |i: u64| -> Option<f64> {
            let i = i as f64;
            Some(match self.transformation {
                "half_pixel" => from_center(i),
                "half_pixel_symmetric" => {
                    let adjustment = size / (scale * from as f64);
                    single(from as f64 / 2.0 * (1.0 - adjustment) + (i + 0.5) / scale - 0.5)
                }
                "pytorch_half_pixel" if to == 1 => 0.0,
                "pytorch_half_pixel" => from_center(i),
                "align_corners" if to == 1 => 0.0,
                "align_corners" => single(i * last / (length - 1.0)),
                "asymmetric" => single(i / scale),
                "tf_half_pixel_for_nn" => single((i + 0.5) / scale),
                "tf_crop_and_resize" if to == 1 => single(0.5 * (start + end) * last),
                "tf_crop_and_resize" => single(start * last + i * (end - start) * last / (length - 1.0)),
                _ => return None,
            })
        };
        let error = || view.error(format!("coordinate transformation '{}' is not supported", self.transformation));
        (0..to).map(|i| position(i).ok_or_else(error)).collect()
    }

    fn rounded(&self, view: &NodeView, positions: &[f64], scale: f64) -> Result<Vec<i64>, ModelError> {
        let round: fn(f64) -> f64 = match self.rounding {
            None if scale < 1.0 => f64::ceil,
            None | Some("floor") => f64::floor,
            Some("ceil") => f64::ceil,
            Some("round_prefer_floor") => |p| (p - 0.5).ceil(),
            Some("round_prefer_ceil") => |p| (p + 0.5).floor(),
            Some(other) => return Err(view.error(format!("unknown value '{other}' of attribute nearest_mode"))),
        };
        Ok(positions.iter().map(|&position| round(position) as i64).collect())
    }
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

/// The weighted sum of the two neighbors. At a position without a second neighbor, the first one is also the second, so that no infinite
/// element is multiplied by 0. For integers, the weighted difference is added to the first neighbor instead: between equal ones, a
/// weighted sum could be slightly less than they are and then be truncated.
fn linear(c: &mut Composer, x: &Part, axis: usize, positions: &[f64], are_integers: bool) -> Result<Part, ModelError> {
    let mut shape = vec![1; x.ty.shape.len() - axis];
    shape[0] = positions.len() as u64;
    let mut neighbor = |round: fn(f64) -> f64| {
        take(c, x, axis, &positions.iter().map(|&position| round(position) as i64).collect::<Vec<_>>())
    };
    let (left, right) = (neighbor(f64::floor), neighbor(f64::ceil));
    let weights = positions.iter().map(|position| position.fract());
    if are_integers {
        let weights = c.floats(x.ty.data_type, &shape, &weights.collect::<Vec<_>>())?;
        let difference = c.binary(BinaryOp::Subtract, &right, &left)?;
        let weighted = c.binary(BinaryOp::Multiply, &difference, &weights)?;
        return c.binary(BinaryOp::Add, &left, &weighted);
    }
    let of_right: Vec<f64> = weights.map(|weight| if weight == 0.0 { 0.5 } else { weight }).collect();
    let of_left: Vec<f64> = of_right.iter().map(|weight| 1.0 - weight).collect();
    let [left, right] = [(left, of_left), (right, of_right)].map(|(neighbor, weights)| {
        let weights = c.floats(x.ty.data_type, &shape, &weights)?;
        c.binary(BinaryOp::Multiply, &neighbor, &weights)
    });
    c.binary(BinaryOp::Add, &left?, &right?)
}

/// y with the extrapolation value where the mask of an axis is set.
fn extrapolated(c: &mut Composer, y: &Part, axis: usize, mask: &[u8]) -> Result<Part, ModelError> {
    if mask.iter().all(|&is_outside| is_outside == 0) {
        return Ok(y.clone());
    }
    let value = f64::from(c.view.float("extrapolation_value", 0.0)?);
    let mut shape = vec![1; y.ty.shape.len() - axis];
    shape[0] = mask.len() as u64;
    let mask = Tensor::new(DataType::Bool, &shape, mask).ok_or_else(|| c.view.error("the mask has the wrong size"))?;
    let mask = c.constant(mask);
    let value = c.kernel(Kernel::Fill { value }, &[], TensorType::new(y.ty.data_type, &[]));
    c.select(&mask, &value, y)
}

/// Rounds numbers to the nearest integers of a type, saturating at its limits.
fn saturated(c: &mut Composer, y: &Part, data_type: DataType) -> Result<Part, ModelError> {
    let rounded = c.affine(y, 1.0, 0.5)?;
    let rounded = c.unary(UnaryOp::Floor, &rounded)?;
    let (low, high) = match data_type {
        DataType::UInt8 => (0.0, 255.0),
        DataType::Int8 => (-128.0, 127.0),
        DataType::UInt16 => (0.0, 65535.0),
        DataType::Int16 => (-32768.0, 32767.0),
        _ => return Ok(c.cast(&rounded, data_type)),
    };
    let rounded = c.unary(UnaryOp::Clip { low, high }, &rounded)?;
    Ok(c.cast(&rounded, data_type))
}
