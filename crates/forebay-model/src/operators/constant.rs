//! Operators whose results do not depend on data.

use forebay_base::kernel::BinaryOp;
use forebay_base::{DataType, Kernel, Tensor};

use super::conversion::type_attribute;
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::graph::{Attribute, MICROSOFT, TensorType};
use crate::operator::{Gradient, NodeView, Operator};

/// Largest number of elements of a constant created here.
const COUNT_MAX: u64 = 1 << 24;

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("Constant", constant),
    Operator { gradient: Gradient::Zero, ..composed!("ConstantOfShape", constant_of_shape) },
    Operator { gradient: Gradient::Zero, ..composed!("EyeLike", eye_like) },
    Operator { gradient: Gradient::Zero, ..composed!("Range", range) },
    Operator { gradient: Gradient::Zero, ..composed!("Shape", shape) },
    Operator { gradient: Gradient::Zero, ..composed!("Size", element_count) },
    composed!("Trilu", triangle),
    composed!(MICROSOFT, "Trilu", triangle),
];

fn constant(view: NodeView) -> Result<Decomposition, ModelError> {
    let attribute = |name| view.attribute(name);
    let names = ["value", "value_float", "value_floats", "value_int", "value_ints"];
    let tensor = match names.into_iter().find_map(attribute) {
        Some(Attribute::Tensor(tensor)) => tensor.clone(),
        Some(Attribute::Float(value)) => Tensor::from_f32(&[], &[*value]),
        Some(Attribute::Floats(values)) => Tensor::from_f32(&[values.len() as u64], values),
        Some(Attribute::Int(value)) => Tensor::from_i64(&[], &[*value]),
        Some(Attribute::Ints(values)) => Tensor::from_i64(&[values.len() as u64], values),
        _ => return Err(view.error("the value is neither a tensor nor numbers")),
    };
    let mut c = Composer::new(view);
    let y = c.constant(tensor);
    c.finish(y)
}

fn constant_of_shape(view: NodeView) -> Result<Decomposition, ModelError> {
    let sizes = view.constant_ints(0)?;
    let sizes = sizes.iter().map(|&value| size(&view, "a size", value)).collect::<Result<Vec<_>, _>>()?;
    product(&view, &sizes)?;
    let value = match view.attribute("value") {
        None => Tensor::from_f32(&[], &[0.0]),
        Some(Attribute::Tensor(tensor)) if tensor.count() == 1 => tensor.clone(),
        Some(_) => return Err(view.error("attribute value must be a tensor of one element")),
    };
    let ty = TensorType::new(value.data_type(), &sizes);
    let mut c = Composer::new(view);
    let y = match exact_number(&value) {
        Some(value) => c.kernel(Kernel::Fill { value }, &[], ty),
        None => {
            let value = c.constant(value);
            let value = c.reshape(&value, &[])?;
            c.expand(&value, &sizes)?
        }
    };
    c.finish(y)
}

/// The first number of a tensor as float64, if that represents it exactly.
pub(super) fn exact_number(tensor: &Tensor) -> Option<f64> {
    let Some(integers) = tensor.to_i64() else { return tensor.to_f64()?.first().copied() };
    let &integer = integers.first()?;
    let number = integer as f64;
    // Numbers of uint64 from 2^63 on are negative here.
    let is_right = integer >= 0 || tensor.data_type() != DataType::UInt64;
    (is_right && number as i128 == i128::from(integer)).then_some(number)
}

/// start, start + delta, .. up to but not including limit.
fn range(view: NodeView) -> Result<Decomposition, ModelError> {
    let constant = |i: usize| {
        let tensor = view.needed(i)?;
        let one = Some(tensor).filter(|tensor| tensor.count() == 1);
        one.ok_or_else(|| view.error(format!("input {i} must be a single number, not {}", tensor.ty())))
    };
    let (start, limit, delta) = (constant(0)?, constant(1)?, constant(2)?);
    let zero = || view.error("the step must not be 0");
    let long = |count: u64| view.error(format!("{count} elements are more than the maximum of {COUNT_MAX}"));
    let types = || view.error("start, limit and delta must be numbers of the same type");
    let mut c = Composer::new(view);
    let y = if start.data_type().is_float() {
        let number = |tensor: &Tensor| {
            let values = tensor.to_f64().filter(|_| tensor.data_type() == start.data_type());
            values.map(|values| values[0]).ok_or_else(types)
        };
        let (first, limit, delta) = (number(start)?, number(limit)?, number(delta)?);
        let count = ((limit - first) / delta).ceil().max(0.0);
        if delta == 0.0 {
            return Err(zero());
        }
        if !count.is_finite() {
            let range = format!("the range from {first} to {limit} in steps of {delta}");
            return Err(view.error(format!("{range} does not have a finite number of elements")));
        }
        if count as u64 > COUNT_MAX {
            return Err(long(count as u64));
        }
        let values: Vec<f64> = (0..count as u64).map(|i| first + i as f64 * delta).collect();
        c.floats(start.data_type(), &[values.len() as u64], &values)?
    } else {
        let number = |tensor: &Tensor| {
            let values = tensor.to_i64().filter(|_| tensor.data_type() == start.data_type());
            values.map(|values| i128::from(values[0])).ok_or_else(types)
        };
        let (start_number, limit, delta) = (number(start)?, number(limit)?, number(delta)?);
        if delta == 0 {
            return Err(zero());
        }
        // Rounded up, for both signs of the step; 128 bits cannot overflow.
        let count = ((limit - start_number + delta - delta.signum()) / delta).max(0);
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        if count > COUNT_MAX {
            return Err(long(count));
        }
        let size = start.data_type().size_bytes() as usize;
        let number = |i: u64| (start_number + i128::from(i) * delta) as i64;
        let bytes: Vec<u8> = (0..count).flat_map(|i| number(i).to_le_bytes().into_iter().take(size)).collect();
        let tensor = Tensor::new(start.data_type(), &[count], bytes).ok_or_else(|| long(count))?;
        c.constant(tensor)
    };
    c.finish(y)
}

/// The sizes from `start` to `end`, which count from the end if negative and are clamped to the rank.
fn shape(view: NodeView) -> Result<Decomposition, ModelError> {
    let sizes = &view.input_type(0)?.shape;
    let rank = sizes.len() as i64;
    let index = |value: i64| if value < 0 { value.saturating_add(rank) } else { value }.clamp(0, rank) as usize;
    let (start, end) = (index(view.int("start", 0)?), index(view.int("end", rank)?));
    let sizes: Vec<i64> = sizes[start..end.max(start)].iter().map(|&size| size as i64).collect();
    let mut c = Composer::new(view);
    let y = c.constant(Tensor::from_i64(&[sizes.len() as u64], &sizes));
    c.finish(y)
}

fn element_count(view: NodeView) -> Result<Decomposition, ModelError> {
    let count = product(&view, &view.input_type(0)?.shape)?;
    let mut c = Composer::new(view);
    let y = c.constant(Tensor::from_i64(&[], &[count as i64]));
    c.finish(y)
}

/// For each row, the column of a diagonal; and the numbers of the columns.
fn row_and_column(c: &mut Composer, [rows, columns]: [u64; 2], diagonal: i64) -> Result<[Part; 2], ModelError> {
    if rows.max(columns) > COUNT_MAX {
        return Err(c.view.error(format!("a matrix of {rows} x {columns} has more than {COUNT_MAX} rows or columns")));
    }
    let own: Vec<i64> = (0..rows as i64).map(|row| row.saturating_add(diagonal)).collect();
    let all: Vec<i64> = (0..columns as i64).collect();
    Ok([Tensor::from_i64(&[rows, 1], &own), Tensor::from_i64(&[1, columns], &all)].map(|tensor| c.constant(tensor)))
}

/// 1 on a diagonal, 0 elsewhere.
fn eye_like(view: NodeView) -> Result<Decomposition, ModelError> {
    let ty = view.input_type(0)?;
    let &[rows, columns] = ty.shape.as_slice() else {
        return Err(view.error(format!("the input {ty} is not a matrix")));
    };
    let to = match view.attribute("dtype") {
        None => ty.data_type,
        Some(_) => type_attribute(&view, "dtype")?,
    };
    let mut c = Composer::new(view);
    let [own, all] = row_and_column(&mut c, [rows, columns], view.int("k", 0)?)?;
    let is_on = c.binary(BinaryOp::Equal, &own, &all)?;
    let y = c.cast(&is_on, to);
    c.finish(y)
}

/// The upper or lower triangle of the last two dimensions, with 0 elsewhere.
fn triangle(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let &[.., rows, columns] = x.ty.shape.as_slice() else {
        return Err(view.error(format!("the input {} is not a matrix", x.ty)));
    };
    let diagonal = if view.has_input(1) { view.constant_ints(1)?.first().copied().unwrap_or(0) } else { 0 };
    let is_upper = view.int("upper", 1)? != 0;
    let mask = if product(&view, &[rows, columns])? <= COUNT_MAX {
        let kept = |i: u64| {
            let (row, column) = ((i / columns) as i64, (i % columns) as i64);
            let distance = (column - row).saturating_sub(diagonal);
            u8::from(if is_upper { distance >= 0 } else { distance <= 0 })
        };
        let mask: Vec<u8> = (0..rows * columns).map(kept).collect();
        let mask =
            Tensor::new(DataType::Bool, &[rows, columns], mask).ok_or_else(|| view.error("cannot create the mask"))?;
        c.constant(mask)
    } else {
        // A mask of this size is computed rather than stored.
        let [row, column] = row_and_column(&mut c, [rows, columns], diagonal)?;
        let op = if is_upper { BinaryOp::GreaterOrEqual } else { BinaryOp::LessOrEqual };
        c.binary(op, &column, &row)?
    };
    let zero = vec![0; x.ty.data_type.size_bytes() as usize];
    let zero = Tensor::new(x.ty.data_type, &[], zero).ok_or_else(|| view.error("cannot create a zero"))?;
    let zero = c.constant(zero);
    let y = c.select(&mask, &x, &zero)?;
    c.finish(y)
}
