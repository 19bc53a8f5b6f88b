//! Padding, and cropping or padding around the center.

use forebay_base::kernel::PadMode;
use forebay_base::{DataType, Kernel, Tensor};

use super::constant::exact_number;
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::take;
use super::shapes::{attribute_or_input, axes, product, size};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("CenterCropPad", center_crop_pad), composed!("Pad", pad)];

/// Largest size of an axis whose padding needs an index per element.
const INDEXED_SIZE_MAX: u64 = 1 << 24;

/// The padding of the axes of a tensor that has already been cropped.
struct Padding {
    begins: Vec<u64>,
    shape: Vec<u64>,
}

/// Negative padding removes elements.
fn pad(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    let pads = attribute_or_input(&view, "pads", 1)?.ok_or_else(|| view.error("the pads are missing"))?;
    let along: Vec<i64> = if view.has_input(3) { view.constant_ints(3)? } else { (0..rank as i64).collect() };
    if pads.len() != 2 * along.len() {
        return Err(view.error(format!("expected two pads for each of {} axes, found {}", along.len(), pads.len())));
    }
    axes(&view, &along, rank)?;
    let (mut begins, mut starts) = (vec![0; rank], vec![0; rank]);
    let (mut cut, mut padded) = (x.ty.clone(), x.ty.shape.clone());
    for (i, &axis) in along.iter().enumerate() {
        let axis = view.axis(axis, rank)?;
        let (before, after) = (pads[i], pads[i + along.len()]);
        let error = || view.error(format!("pads {before} and {after} do not fit axis {axis} of {}", x.ty));
        let (before, size) = (i128::from(before), i128::from(x.ty.shape[axis]));
        let total = size + before + i128::from(after);
        padded[axis] = u64::try_from(total).map_err(|_| error())?;
        // What is removed from one end can be more than there is: it is then removed from the padding of the other end.
        let start = (-before).clamp(0, size);
        cut.shape[axis] = ((total - before).clamp(start, size) - start) as u64;
        starts[axis] = start as u64;
        begins[axis] = before.clamp(0, total) as u64;
    }
    product(&view, &padded)?;
    let mut y = x.clone();
    if cut != x.ty {
        y = c.kernel(Kernel::Slice { starts, steps: vec![1; rank] }, &[&y], cut);
    }
    if padded != y.ty.shape {
        let padding = Padding { begins, shape: padded };
        y = match view.string("mode", "constant")? {
            "constant" => constant_pad(&mut c, &y, padding)?,
            "reflect" => repeating_pad(&mut c, &y, padding, Some(PadMode::Reflect))?,
            "edge" => repeating_pad(&mut c, &y, padding, Some(PadMode::Edge))?,
            "wrap" => repeating_pad(&mut c, &y, padding, None)?,
            other => {
                return Err(
                    view.error(format!("attribute mode must be constant, reflect, edge or wrap, not '{other}'"))
                );
            }
        };
    }
    c.finish(y)
}

/// Pads with a number. The kernel pads with a number that is known and that float32 represents exactly; any other number is selected where
/// there is padding.
fn constant_pad(c: &mut Composer, x: &Part, padding: Padding) -> Result<Part, ModelError> {
    let view = c.view;
    let Padding { begins, shape } = padding;
    let ty = TensorType::new(x.ty.data_type, &shape);
    let value = match (view.has_input(2), view.unchanging(2)?) {
        (false, _) => Some(view.float("value", 0.0)?),
        (true, Some(tensor)) => exact_single(tensor),
        (true, None) => None,
    };
    if let Some(value) = value.filter(|_| x.ty.count() == 0) {
        return Ok(c.kernel(Kernel::Fill { value: f64::from(value) }, &[], ty));
    }
    if let Some(value) = value {
        return Ok(c.kernel(Kernel::Pad { begins, mode: PadMode::Constant(value) }, &[x], ty));
    }
    let value = c.input(2)?;
    if value.ty.count() != 1 || value.ty.data_type != x.ty.data_type {
        return Err(
            view.error(format!("the value to pad {} with must be one number of its type, not {}", x.ty, value.ty))
        );
    }
    let value = c.reshape(&value, &[])?;
    if x.ty.count() == 0 {
        return c.expand(&value, &shape);
    }
    let kernel = Kernel::Pad { begins, mode: PadMode::Constant(0.0) };
    let inside = c.kernel(Kernel::Fill { value: 1.0 }, &[], TensorType::new(DataType::Bool, &x.ty.shape));
    let inside = c.kernel(kernel.clone(), &[&inside], TensorType::new(DataType::Bool, &shape));
    let zeros_around = c.kernel(kernel, &[x], ty);
    c.select(&inside, &zeros_around, &value)
}

/// The first number of a tensor, if float32 represents it exactly.
fn exact_single(tensor: &Tensor) -> Option<f32> {
    let value = exact_number(tensor)?;
    Some(value as f32).filter(|&number| f64::from(number) == value || value.is_nan())
}

/// Pads with elements of x: by a kernel if the mode has one and no axis is reflected twice, otherwise by indices.
fn repeating_pad(c: &mut Composer, x: &Part, padding: Padding, mode: Option<PadMode>) -> Result<Part, ModelError> {
    let Padding { begins, shape } = padding;
    let is_padded = |axis: usize| shape[axis] != x.ty.shape[axis];
    if let Some(axis) = (0..shape.len()).find(|&axis| is_padded(axis) && x.ty.shape[axis] == 0) {
        return Err(c.view.error(format!("axis {axis} of {} has no element to pad with", x.ty)));
    }
    let fits = |axis: usize| begins[axis].max(shape[axis] - x.ty.shape[axis] - begins[axis]) < x.ty.shape[axis];
    match mode {
        Some(mode) if mode == PadMode::Edge || (0..shape.len()).all(|axis| !is_padded(axis) || fits(axis)) => {
            let ty = TensorType::new(x.ty.data_type, &shape);
            return Ok(c.kernel(Kernel::Pad { begins, mode }, &[x], ty));
        }
        _ => {}
    }
    let mut y = x.clone();
    for axis in (0..shape.len()).filter(|&axis| is_padded(axis)) {
        if shape[axis] > INDEXED_SIZE_MAX {
            return Err(c.view.error(format!("axis {axis} cannot be padded to more than {INDEXED_SIZE_MAX} elements")));
        }
        let size = x.ty.shape[axis] as i64;
        let index = |i: u64| {
            let position = i as i64 - begins[axis] as i64;
            match mode {
                Some(_) if size == 1 => 0,
                Some(_) => {
                    let period = 2 * (size - 1);
                    let place = position.rem_euclid(period);
                    place.min(period - place)
                }
                None => position.rem_euclid(size),
            }
        };
        let indices: Vec<i64> = (0..shape[axis]).map(index).collect();
        y = take(c, &y, axis, &indices);
    }
    Ok(y)
}

/// Each axis is cropped or padded with 0 around the center to its size. If the difference is odd, the end gets the larger part.
fn center_crop_pad(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    let sizes = view.constant_ints(1)?;
    let along: Vec<i64> = view.ints("axes")?.map_or_else(|| (0..rank as i64).collect(), <[i64]>::to_vec);
    if sizes.len() != along.len() {
        return Err(view.error(format!("expected a size for each of {} axes, found {}", along.len(), sizes.len())));
    }
    axes(&view, &along, rank)?;
    let (mut begins, mut starts) = (vec![0; rank], vec![0; rank]);
    let (mut cut, mut padded) = (x.ty.clone(), x.ty.shape.clone());
    for (&axis, &wanted) in along.iter().zip(&sizes) {
        let (axis, wanted) = (view.axis(axis, rank)?, size(&view, "a size", wanted)?);
        let found = x.ty.shape[axis];
        cut.shape[axis] = found.min(wanted);
        padded[axis] = wanted;
        starts[axis] = found.saturating_sub(wanted) / 2;
        begins[axis] = wanted.saturating_sub(found) / 2;
    }
    product(&view, &padded)?;
    let mut y = x.clone();
    if cut != x.ty {
        y = c.kernel(Kernel::Slice { starts, steps: vec![1; rank] }, &[&y], cut);
    }
    if padded != y.ty.shape {
        let ty = TensorType::new(x.ty.data_type, &padded);
        y = match y.ty.count() {
            0 => c.kernel(Kernel::Fill { value: 0.0 }, &[], ty),
            _ => c.kernel(Kernel::Pad { begins, mode: PadMode::Constant(0.0) }, &[&y], ty),
        };
    }
    c.finish(y)
}
