//! Quantization: real numbers as integers with a scale and a zero point, per tensor, along an axis or in blocks.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, narrow};

use super::conversion::{narrowing, type_attribute};
use super::convolution::{channels_first, channels_last};
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::repeated;
use super::pooling::averaged;
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::{MICROSOFT, TensorType};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("DequantizeLinear", dequantize_linear),
    composed!("DynamicQuantizeLinear", dynamic_quantize_linear),
    composed!("QuantizeLinear", quantize_linear),
    composed!(MICROSOFT, "DequantizeLinear", dequantize_linear),
    composed!(MICROSOFT, "QLinearAdd", |view| of_two(view, BinaryOp::Add)),
    composed!(MICROSOFT, "QLinearAveragePool", average_pool),
    composed!(MICROSOFT, "QLinearConcat", concatenate),
    composed!(MICROSOFT, "QLinearGlobalAveragePool", global_average_pool),
    composed!(MICROSOFT, "QLinearLeakyRelu", leaky_relu),
    composed!(MICROSOFT, "QLinearMul", |view| of_two(view, BinaryOp::Multiply)),
    composed!(MICROSOFT, "QLinearSigmoid", |view| of_one(view, UnaryOp::Sigmoid)),
    composed!(MICROSOFT, "QLinearSoftmax", softmax),
    composed!(MICROSOFT, "QLinearWhere", select),
    composed!(MICROSOFT, "QuantizeLinear", quantize_linear),
];

/// An input as float32, if it is given.
pub(super) fn real_input(c: &mut Composer, i: usize) -> Result<Option<Part>, ModelError> {
    if !c.view.has_input(i) {
        return Ok(None);
    }
    let x = c.input(i)?;
    Ok(Some(c.cast(&x, DataType::Float32)))
}

/// An input that must be a single number, as a float32 scalar; `None` if it is left out.
pub(super) fn number(c: &mut Composer, i: usize) -> Result<Option<Part>, ModelError> {
    let Some(x) = real_input(c, i)? else { return Ok(None) };
    if x.ty.shape.iter().any(|&size| size != 1) {
        return Err(c.view.error(format!("input {i} must be one number, not {}", x.ty)));
    }
    c.reshape(&x, &[]).map(Some)
}

/// A required input that must be a single number, as a float32 scalar.
pub(super) fn given_number(c: &mut Composer, i: usize) -> Result<Part, ModelError> {
    number(c, i)?.ok_or_else(|| c.view.error(format!("input {i} is missing")))
}

/// The type of an input, or uint8 if it is left out.
pub(super) fn integer_type(view: &NodeView, i: usize) -> Result<DataType, ModelError> {
    if view.has_input(i) {
        return Ok(view.input_type(i)?.data_type);
    }
    Ok(DataType::UInt8)
}

/// The smallest and largest integers of a type.
fn limits(view: &NodeView, data_type: DataType) -> Result<(f32, f32), ModelError> {
    Ok(match data_type {
        DataType::UInt8 => (0.0, 255.0),
        DataType::Int8 => (-128.0, 127.0),
        DataType::UInt16 => (0.0, 65535.0),
        DataType::Int16 => (-32768.0, 32767.0),
        DataType::Int4 | DataType::UInt4 | DataType::Int2 | DataType::UInt2 => {
            let (low, high) = narrow::limits(data_type).unwrap_or_default();
            (low as f32, high as f32)
        }
        other => return Err(view.error(format!("{other} is not supported for quantized numbers here"))),
    })
}

/// round(x) + zero, saturated. All of this is exact: values too large for float32's integers saturate.
pub(super) fn saturate(
    c: &mut Composer,
    x: &Part,
    zero: Option<&Part>,
    data_type: DataType,
) -> Result<Part, ModelError> {
    let (low, high) = limits(&c.view, data_type)?;
    let mut y = c.unary(UnaryOp::Round, x)?;
    if let Some(zero) = zero {
        y = c.binary(BinaryOp::Add, &y, zero)?;
    }
    let y = c.unary(UnaryOp::Clip { low, high }, &y)?;
    Ok(c.cast(&y, data_type))
}

/// x minus its zero point, in float32, which represents integers of up to 16 bits exactly; 32-bit results are rounded once.
pub(super) fn centered(c: &mut Composer, x: &Part, zero: Option<&Part>) -> Result<Part, ModelError> {
    if x.ty.data_type == DataType::Int32 {
        let x = match zero {
            None => x.clone(),
            Some(zero) => {
                let zero = c.cast(zero, DataType::Int32);
                c.binary(BinaryOp::Subtract, x, &zero)?
            }
        };
        return Ok(c.cast(&x, DataType::Float32));
    }
    let x = c.cast(x, DataType::Float32);
    match zero {
        None => Ok(x),
        Some(zero) => {
            let zero = c.cast(zero, DataType::Float32);
            c.binary(BinaryOp::Subtract, &x, &zero)
        }
    }
}

/// Reshapes or repeats a scale or zero point so that it broadcasts to x: a single number, one for each index of an axis, or one for each
/// block along it.
fn spread(c: &mut Composer, x: &TensorType, part: &Part) -> Result<Part, ModelError> {
    let (view, rank) = (c.view, x.shape.len());
    let block = view.int("block_size", 0)?;
    if part.ty.shape.is_empty() || (part.ty.shape == [1] && block == 0) {
        return c.reshape(part, &[]);
    }
    let axis = view.axis(view.int("axis", 1)?, rank)?;
    let size = x.shape[axis];
    let error = |block: i64| {
        view.error(format!("{} cannot be a scale or zero point of {x} along axis {axis} in blocks of {block}", part.ty))
    };
    if block == 0 {
        if part.ty.shape != [size] {
            return Err(error(block));
        }
        let mut shape = vec![1; rank - axis];
        shape[0] = size;
        return c.reshape(part, &shape);
    }
    let block_size = u64::try_from(block).map_err(|_| error(block))?;
    let mut blocks = x.shape.clone();
    blocks[axis] = size.div_ceil(block_size);
    if part.ty.shape != blocks {
        return Err(error(block));
    }
    repeated(c, part, axis, size, block_size)
}

/// The type that an attribute names, if any.
fn wanted_type(view: &NodeView) -> Result<Option<DataType>, ModelError> {
    match view.int("output_dtype", 0)? {
        0 => Ok(None),
        _ => type_attribute(view, "output_dtype").map(Some),
    }
}

/// The zero point, in a shape that broadcasts to x, in its own type.
fn zero_point(c: &mut Composer, x: &TensorType) -> Result<Option<Part>, ModelError> {
    if !c.view.has_input(2) {
        return Ok(None);
    }
    let zero = c.input(2)?;
    spread(c, x, &zero).map(Some)
}

fn quantize_linear(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let data_type = match (view.has_input(2), wanted_type(&view)?) {
        (true, wanted) => {
            let own = view.input_type(2)?.data_type;
            if wanted.is_some_and(|wanted| wanted != own) {
                return Err(view.error(format!("attribute output_dtype must be the zero point's type {own}")));
            }
            own
        }
        (false, wanted) => wanted.unwrap_or(DataType::UInt8),
    };
    let (x, scale) = (c.cast(&x, DataType::Float32), c.cast(&scale, DataType::Float32));
    let scale = spread(&mut c, &x.ty, &scale)?;
    let quotient = c.binary(BinaryOp::Divide, &x, &scale)?;
    let zero = zero_point(&mut c, &x.ty)?.map(|zero| c.cast(&zero, DataType::Float32));
    if !is_narrow_float(data_type) {
        let y = saturate(&mut c, &quotient, zero.as_ref(), data_type)?;
        return c.finish(y);
    }
    let y = match &zero {
        Some(zero) => c.binary(BinaryOp::Add, &quotient, zero)?,
        None => quotient,
    };
    let y = c.convert(&y, data_type, narrowing(&view)?);
    c.finish(y)
}

/// Whether quantized numbers can have this floating-point type.
fn is_narrow_float(data_type: DataType) -> bool {
    data_type.is_float() && data_type.is_narrow()
}

fn dequantize_linear(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let data_type = wanted_type(&view)?.unwrap_or(scale.ty.data_type);
    if x.ty.data_type != DataType::Int32 && !is_narrow_float(x.ty.data_type) {
        limits(&view, x.ty.data_type)?;
    }
    let scale = c.cast(&scale, DataType::Float32);
    let scale = spread(&mut c, &x.ty, &scale)?;
    let zero = zero_point(&mut c, &x.ty)?;
    let x = centered(&mut c, &x, zero.as_ref())?;
    let y = c.binary(BinaryOp::Multiply, &x, &scale)?;
    let y = c.cast(&y, data_type);
    c.finish(y)
}

/// Quantizes a tensor to uint8 with a scale and a zero point that are computed from its smallest element, its largest element and 0.
pub(super) fn dynamically(c: &mut Composer, x: &Part) -> Result<[Part; 3], ModelError> {
    if x.ty.data_type != DataType::Float32 {
        return Err(c.view.error(format!("the input must be float32, not {}", x.ty)));
    }
    let axes: Vec<usize> = (0..x.ty.shape.len()).collect();
    let zero = c.scalar(DataType::Float32, 0.0)?;
    let limit = |c: &mut Composer, reduce: ReduceOp, op: BinaryOp| {
        let found = c.reduce(reduce, &axes, x)?;
        let found = c.reshape(&found, &[])?;
        c.binary(op, &found, &zero)
    };
    let low = limit(c, ReduceOp::Min, BinaryOp::Minimum)?;
    let high = limit(c, ReduceOp::Max, BinaryOp::Maximum)?;
    let range = c.binary(BinaryOp::Subtract, &high, &low)?;
    let (steps, one) = (c.scalar(DataType::Float32, 255.0)?, c.scalar(DataType::Float32, 1.0)?);
    let scale = c.binary(BinaryOp::Divide, &range, &steps)?;
    // A tensor of zeros has no range: any scale will do.
    let is_nothing = c.binary(BinaryOp::Equal, &range, &zero)?;
    let scale = c.select(&is_nothing, &one, &scale)?;
    let lowest = c.binary(BinaryOp::Divide, &low, &scale)?;
    let lowest = c.affine(&lowest, -1.0, 0.0)?;
    let zero_point = saturate(c, &lowest, None, DataType::UInt8)?;
    let real = c.cast(&zero_point, DataType::Float32);
    let quotient = c.binary(BinaryOp::Divide, x, &scale)?;
    let y = saturate(c, &quotient, Some(&real), DataType::UInt8)?;
    Ok([y, scale, zero_point])
}

fn dynamic_quantize_linear(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let results = dynamically(&mut c, &x)?;
    c.finish_all(results.to_vec())
}

/// A quantized tensor as real numbers; its integers, scale and zero point are three consecutive inputs.
fn real(c: &mut Composer, first: usize) -> Result<Part, ModelError> {
    let (x, scale, zero) = (c.input(first)?, given_number(c, first + 1)?, number(c, first + 2)?);
    let x = centered(c, &x, zero.as_ref())?;
    c.binary(BinaryOp::Multiply, &x, &scale)
}

/// Real numbers as a quantized tensor; scale and zero point are two consecutive inputs.
fn quantized(c: &mut Composer, x: &Part, first: usize, data_type: DataType) -> Result<Part, ModelError> {
    let (scale, zero) = (given_number(c, first)?, number(c, first + 1)?);
    let quotient = c.binary(BinaryOp::Divide, x, &scale)?;
    saturate(c, &quotient, zero.as_ref(), data_type)
}

fn of_two(view: NodeView, op: BinaryOp) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let data_type = view.input_type(0)?.data_type;
    let (a, b) = (real(&mut c, 0)?, real(&mut c, 3)?);
    let y = c.binary(op, &a, &b)?;
    let y = quantized(&mut c, &y, 6, data_type)?;
    c.finish(y)
}

fn of_one(view: NodeView, op: UnaryOp) -> Result<Decomposition, ModelError> {
    with(view, |c, x| c.unary(op, x))
}

fn leaky_relu(view: NodeView) -> Result<Decomposition, ModelError> {
    of_one(view, UnaryOp::LeakyRelu { alpha: view.float("alpha", 0.01)? })
}

/// Applies a function to the real numbers and quantizes the result.
fn with(
    view: NodeView,
    function: impl FnOnce(&mut Composer, &Part) -> Result<Part, ModelError>,
) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let data_type = view.input_type(0)?.data_type;
    let x = real(&mut c, 0)?;
    let y = function(&mut c, &x)?;
    let y = quantized(&mut c, &y, 3, data_type)?;
    c.finish(y)
}

/// Softmax along one axis since opset 13; before, over all dimensions from the axis on.
fn softmax(view: NodeView) -> Result<Decomposition, ModelError> {
    with(view, |c, x| {
        let (axis, rank) = (view.axis(view.int("axis", -1)?, x.ty.shape.len())?, x.ty.shape.len());
        let whole = axis + 1 == rank || view.int("opset", 13)? >= 13;
        let flat = match whole {
            true => x.clone(),
            false => {
                let rows = product(&view, &x.ty.shape[..axis])?;
                c.reshape(x, &[rows, product(&view, &x.ty.shape[axis..])?])?
            }
        };
        let axis = if whole { axis } else { 1 };
        let y = c.kernel(Kernel::Softmax { axis }, &[&flat], flat.ty.clone());
        c.reshape(&y, &x.ty.shape)
    })
}

/// Average pooling of images whose channels can be last.
fn average_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let data_type = view.input_type(0)?.data_type;
    let x = real(&mut c, 0)?;
    let rank = x.ty.shape.len();
    let y = if view.int("channels_last", 0)? == 0 || rank < 3 {
        averaged(&mut c, &x)?
    } else {
        let x = channels_first(&mut c, &x)?;
        let y = averaged(&mut c, &x)?;
        channels_last(&mut c, &y)?
    };
    // Averages of few numbers often lie halfway between two steps, so this operator rounds them with their zero point.
    let scale = given_number(&mut c, 3)?;
    let mut steps = c.binary(BinaryOp::Divide, &y, &scale)?;
    if let Some(zero) = number(&mut c, 4)? {
        steps = c.binary(BinaryOp::Add, &steps, &zero)?;
    }
    let y = saturate(&mut c, &steps, None, data_type)?;
    c.finish(y)
}

fn select(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let data_type = view.input_type(1)?.data_type;
    let condition = c.input(0)?;
    let (a, b) = (real(&mut c, 1)?, real(&mut c, 4)?);
    let y = c.select(&condition, &a, &b)?;
    let y = quantized(&mut c, &y, 7, data_type)?;
    c.finish(y)
}

fn global_average_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    with(view, |c, x| {
        let rank = x.ty.shape.len();
        if rank < 3 {
            return Err(view.error(format!("{} has no spatial dimensions", x.ty)));
        }
        let first = if view.int("channels_last", 0)? != 0 { 1 } else { 2 };
        let axes: Vec<usize> = (first..first + rank - 2).collect();
        c.reduce(ReduceOp::Mean, &axes, x)
    })
}

/// Concatenates inputs with their own scales along an axis: each is padded with zeros, and the sum of all is quantized.
fn concatenate(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let count = view.node.inputs.len().saturating_sub(2) / 3;
    let data_type = integer_type(&view, 1)?;
    let parts = (0..count).map(|i| real(&mut c, 2 + 3 * i)).collect::<Result<Vec<Part>, _>>()?;
    let first = parts.first().ok_or_else(|| view.error("there are no inputs to join"))?;
    let axis = view.axis(view.int("axis", 0)?, first.ty.shape.len())?;
    let mut joined = first.ty.clone();
    let fits = |part: &&Part| {
        let mut shape = part.ty.shape.clone();
        shape.get_mut(axis).map(|size| *size = first.ty.shape[axis]).is_some() && shape == first.ty.shape
    };
    if let Some(part) = parts.iter().find(|part| !fits(part)) {
        return Err(view.error(format!("{} cannot be joined to {} along axis {axis}", part.ty, first.ty)));
    }
    let total = parts.iter().try_fold(0u64, |total, part| total.checked_add(part.ty.shape[axis]));
    joined.shape[axis] = total.ok_or_else(|| view.error("the parts have more than 2^64 elements"))?;
    let (mut sum, mut start): (Option<Part>, u64) = (None, 0);
    for part in &parts {
        let mut begins = vec![0; joined.shape.len()];
        begins[axis] = start;
        start += part.ty.shape[axis];
        let mode = forebay_base::kernel::PadMode::Constant(0.0);
        let padded = c.kernel(Kernel::Pad { begins, mode }, &[part], joined.clone());
        sum = Some(match sum {
            None => padded,
            Some(sum) => c.binary(BinaryOp::Add, &sum, &padded)?,
        });
    }
    let sum = sum.unwrap_or_else(|| first.clone());
    let y = quantized(&mut c, &sum, 0, data_type)?;
    c.finish(y)
}
