//! Preparation of features: scaling, selecting, filling in and encoding.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::super::decomposition::{Composer, Decomposition, Part};
use super::super::selection::gathered;
use super::super::shapes::{product, require_few};
use super::{no_strings, numbers, per_feature, real, scalar_like};
use crate::error::ModelError;
use crate::graph::{Attribute, TensorType};
use crate::operator::NodeView;

/// (x - offset) scale.
pub(super) fn scaled(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let mut y = real(&mut c, &x, true)?;
    for (name, op) in [("offset", BinaryOp::Subtract), ("scale", BinaryOp::Multiply)] {
        let values = numbers(&view, name)?;
        if !values.is_empty() {
            let values = per_feature(&mut c, &y, name, &values)?;
            y = c.binary(op, &y, &values)?;
        }
    }
    let y = c.cast(&y, DataType::Float32);
    c.finish(y)
}

/// Each row divided by its largest element, the sum of its absolute values, or its length; unchanged if that is 0.
pub(super) fn normalized(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let x = real(&mut c, &x, false)?;
    let axis = view.axis(-1, x.ty.shape.len())?;
    let size = match view.string("norm", "MAX")? {
        "MAX" => c.reduce(ReduceOp::Max, &[axis], &x)?,
        "L1" => c.reduce(ReduceOp::L1, &[axis], &x)?,
        "L2" => c.reduce(ReduceOp::L2, &[axis], &x)?,
        other => return Err(view.error(format!("attribute norm must be MAX, L1 or L2, not '{other}'"))),
    };
    let zero = scalar_like(&mut c, &size, 0.0)?;
    let one = scalar_like(&mut c, &size, 1.0)?;
    let is_zero = c.binary(BinaryOp::Equal, &size, &zero)?;
    let size = c.select(&is_zero, &one, &size)?;
    let y = c.binary(BinaryOp::Divide, &x, &size)?;
    c.finish(y)
}

/// 1 for elements above a threshold, else 0.
pub(super) fn binarized(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let threshold = f64::from(view.float("threshold", 0.0)?);
    let wide = real(&mut c, &x, true)?;
    let threshold = scalar_like(&mut c, &wide, threshold)?;
    let is_above = c.binary(BinaryOp::Greater, &wide, &threshold)?;
    let y = c.cast(&is_above, x.ty.data_type);
    c.finish(y)
}

/// Replaces elements with a certain value, or NaN, by numbers, one for each feature or one for all.
pub(super) fn imputed(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let (by, is_missing) = match x.ty.data_type {
        DataType::Int64 => {
            let values = super::integers(&view, "imputed_value_int64s")?;
            let shape = [values.len() as u64];
            let by = c.constant(Tensor::from_i64(&shape, values));
            let missing = c.constant(Tensor::from_i64(&[], &[view.int("replaced_value_int64", 0)?]));
            (by, c.binary(BinaryOp::Equal, &x, &missing)?)
        }
        DataType::Float32 | DataType::Float64 => {
            let values = numbers(&view, "imputed_value_floats")?;
            let by = c.floats(x.ty.data_type, &[values.len() as u64], &values)?;
            let missing = view.float("replaced_value_float", 0.0)?;
            let is_missing = match missing.is_nan() {
                true => is_nan(&mut c, &x)?,
                false => {
                    let missing = scalar_like(&mut c, &x, f64::from(missing))?;
                    c.binary(BinaryOp::Equal, &x, &missing)?
                }
            };
            (by, is_missing)
        }
        other => return Err(view.error(format!("elements of type {other} are not supported; cast to float32 first"))),
    };
    let (count, features) = (by.ty.shape[0], x.ty.shape.last().copied().unwrap_or(1));
    if count != 1 && count != features {
        return Err(view.error(format!("{count} imputed values are given for {features} features")));
    }
    let y = c.select(&is_missing, &by, &x)?;
    c.finish(y)
}

/// Whether elements are NaN.
pub(super) fn is_nan(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let equal = c.binary(BinaryOp::Equal, x, x)?;
    c.unary(UnaryOp::Not, &equal)
}

/// The elements of the last axis at some indices. A vector counts as a row.
pub(super) fn extracted(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let x = match *x.ty.shape {
        [features] => c.reshape(&x, &[1, features])?,
        _ => x,
    };
    let axis = view.axis(-1, x.ty.shape.len())?;
    let count = product(&view, &indices.ty.shape)?;
    let indices = c.reshape(&indices, &[count])?;
    let y = gathered(&mut c, &x, &indices, axis)?;
    c.finish(y)
}

/// The features of all inputs, one after the other, as float32.
pub(super) fn joined(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let sizes = super::integers(&view, "inputdimensions")?;
    let mut parts = Vec::new();
    for i in 0..view.node.inputs.len() {
        let x = c.input(i)?;
        let x = match *x.ty.shape {
            [features] => c.reshape(&x, &[1, features])?,
            [_, _] => x,
            _ => return Err(view.error(format!("expected one or two dimensions, found {}", x.ty))),
        };
        if sizes.get(i).is_some_and(|&size| u64::try_from(size) != Ok(x.ty.shape[1])) {
            let reason = format!("attribute inputdimensions says {} features for input {i} ({})", sizes[i], x.ty);
            return Err(view.error(reason));
        }
        parts.push(real(&mut c, &x, false)?);
    }
    let parts: Vec<&Part> = parts.iter().collect();
    let y = c.concatenate(&parts, 1)?;
    c.finish(y)
}

/// Looks elements up in a list of keys, and returns the value at the same place, or a default.
pub(super) fn looked_up(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    for (name, what) in [
        ("keys_strings", "keys"),
        ("values_strings", "values"),
        ("classes_strings", "classes"),
        ("default_string", "values"),
    ] {
        // Every version of the operator has a default string, which only matters if the values are strings.
        if name != "default_string" {
            no_strings(&view, name, what)?;
        }
    }
    let x = c.input(0)?;
    let tensor = |name: &str| match view.attribute(name) {
        Some(Attribute::Tensor(tensor)) => Some(tensor.clone()),
        Some(Attribute::Ints(values)) => Some(Tensor::from_i64(&[values.len() as u64], values)),
        Some(Attribute::Floats(values)) => Some(Tensor::from_f32(&[values.len() as u64], values)),
        _ => None,
    };
    let first = |names: [&str; 3]| names.into_iter().find_map(tensor);
    let keys =
        first(["keys_int64s", "keys_floats", "keys_tensor"]).ok_or_else(|| view.error("the keys are missing"))?;
    let values = first(["values_int64s", "values_floats", "values_tensor"]);
    let values = values.ok_or_else(|| view.error("the values are missing"))?;
    let count = keys.shape().iter().product::<u64>();
    if values.shape().iter().product::<u64>() != count {
        return Err(view.error(format!("the keys {} and the values {} differ in number", keys.ty(), values.ty())));
    }
    if x.ty.data_type != keys.data_type() {
        return Err(view.error(format!("keys {} do not have the type of {}", keys.ty(), x.ty)));
    }
    let default = match tensor("default_tensor") {
        Some(default) => default,
        None => match values.data_type() {
            DataType::Int64 => Tensor::from_i64(&[1], &[view.int("default_int64", -1)?]),
            DataType::Float32 => Tensor::from_f32(&[1], &[view.float("default_float", -0.0)?]),
            other => return Err(view.error(format!("values of type {other} need the attribute default_tensor"))),
        },
    };
    let (keys, values, default) = (c.constant(keys), c.constant(values), c.constant(default));
    let (keys, values) = (c.reshape(&keys, &[1, count])?, c.reshape(&values, &[count])?);
    let default = c.reshape(&default, &[1])?;
    let table = c.concatenate(&[&values, &default], 0)?;
    let place = place_in(&mut c, &x, &keys)?;
    let y = gathered(&mut c, &table, &place, 0)?;
    c.finish(y)
}

/// For each element, the place of the first key that it equals; the number of keys if there is none. NaN equals NaN since opset 4.
fn place_in(c: &mut Composer, x: &Part, keys: &Part) -> Result<Part, ModelError> {
    let (elements, count) = (product(&c.view, &x.ty.shape)?, keys.ty.shape[1]);
    require_few(&c.view, &[count])?;
    product(&c.view, &[elements, count + 1])?;
    let list = c.reshape(x, &[elements, 1])?;
    let mut equal = c.binary(BinaryOp::Equal, &list, keys)?;
    if x.ty.data_type.is_float() && c.view.version() >= 4 {
        let (list, keys) = (is_nan(c, &list)?, is_nan(c, keys)?);
        let both = c.binary(BinaryOp::And, &list, &keys)?;
        equal = c.binary(BinaryOp::Or, &equal, &both)?;
    }
    let equal = c.cast(&equal, DataType::Float32);
    let end = TensorType::new(DataType::Float32, &[elements, 1]);
    let end = c.kernel(Kernel::Fill { value: 1.0 }, &[], end);
    let marks = c.concatenate(&[&equal, &end], 1)?;
    let first = Kernel::TopK { axis: 1, largest: true, nan_first: true, last: false };
    let place = c.kernel(first, &[&marks], TensorType::new(DataType::Int64, &[elements, 1]));
    c.reshape(&place, &x.ty.shape)
}

/// A further axis with 1 at the place of the element's category, and 0 elsewhere.
pub(super) fn one_hot(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    no_strings(&view, "cats_strings", "categories")?;
    let categories = super::integers(&view, "cats_int64s")?;
    let count = categories.len();
    if count == 0 {
        return Err(view.error("attribute cats_int64s is missing"));
    }
    let x = c.input(0)?;
    let numbers = c.cast(&x, DataType::Int64);
    let keys = c.constant(Tensor::from_i64(&[1, count as u64], categories));
    let place = place_in(&mut c, &numbers, &keys)?;
    // Another category has no row in the table, which is an error, or a row of zeros if the model allows other categories.
    let rows = if view.int("zeros", 1)? != 0 { count + 1 } else { count };
    require_few(&view, &[rows as u64, count as u64])?;
    let table: Vec<f64> = (0..rows * count).map(|i| f64::from(i / count == i % count)).collect();
    let table = c.floats(DataType::Float32, &[rows as u64, count as u64], &table)?;
    let y = gathered(&mut c, &table, &place, 0)?;
    c.finish(y)
}
