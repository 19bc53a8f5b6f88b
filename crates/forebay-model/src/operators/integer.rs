//! Products and convolutions of integers of 8 bits, exact in 32 bits.
//!
//! They are computed in float32, which holds every integer up to 2^24. One factor is cut into digits of few bits, and the sum into
//! pieces, so that no partial sum is larger, in whatever order it is added: all kernels for float32 then give exact integers.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel};

use super::convolution::{correlation, groups};
use super::decomposition::{composed, Composer, Decomposition, Part};
use super::matrix::multiply;
use super::quantized::{centred, dynamically, given_number, integer_type, number, real_input, saturate};
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The domain of what onnxruntime adds.
const MICROSOFT: &str = "com.microsoft";

/// The rows.
pub const ROWS: &[Operator] = &[
    composed!("ConvInteger", conv_integer),
    composed!("MatMulInteger", matmul_integer),
    composed!("QLinearConv", qlinear_conv),
    composed!("QLinearMatMul", qlinear_matmul),
    Operator { domain: MICROSOFT, ..composed!("DynamicQuantizeMatMul", dynamic_quantize_matmul) },
    Operator { domain: MICROSOFT, ..composed!("MatMulIntegerToFloat", matmul_integer_to_float) },
    Operator { domain: MICROSOFT, ..composed!("QGemm", qgemm) },
];

/// Terms of a sum whose other factor is not cut into digits: 258 times 255 times 255 is below 2^24.
const WHOLE_TERMS: u64 = 258;
/// Terms of a sum whose other factor has two digits of 4 bits.
const PIECE_TERMS: u64 = 4096;
/// Terms of a sum with digits of a bit.
const TERMS_MAX: u64 = 1 << 15;

/// Whole numbers from -255 to 255 as digits, for sums of this many terms: each with the power of two that it counts.
fn digits(c: &mut Composer, x: &Part, terms: u64) -> Result<Vec<(Part, f32)>, ModelError> {
    if terms <= WHOLE_TERMS {
        return Ok(vec![(x.clone(), 1.0)]);
    }
    if terms > TERMS_MAX {
        return Err(c.view.error(format!("sums of {terms} products in a group; at most {TERMS_MAX} are possible")));
    }
    let bits = (16 - terms.next_power_of_two().ilog2()).min(4);
    let base = (1u32 << bits) as f32;
    let (mut rest, mut digits, mut power) = (x.clone(), Vec::new(), 1.0);
    for _ in 1..8u32.div_ceil(bits) {
        let scaled = c.affine(&rest, 1.0 / base, 0.0)?;
        let above = c.unary(UnaryOp::Floor, &scaled)?;
        let taken = c.affine(&above, base, 0.0)?;
        digits.push((c.binary(BinaryOp::Subtract, &rest, &taken)?, power));
        (rest, power) = (above, power * base);
    }
    digits.push((rest, power));
    Ok(digits)
}

/// sum + power part, in 32 bits.
fn add(c: &mut Composer, sum: Option<Part>, part: &Part, power: f32) -> Result<Part, ModelError> {
    let part = c.cast(part, DataType::Int32);
    let part = if power == 1.0 { part } else { c.affine(&part, power, 0.0)? };
    match sum {
        None => Ok(part),
        Some(sum) => c.binary(BinaryOp::Add, &sum, &part),
    }
}

/// Some indices of an axis.
fn piece(c: &mut Composer, x: &Part, axis: usize, start: u64, count: u64) -> Part {
    if x.ty.shape[axis] == count {
        return x.clone();
    }
    let mut ty = x.ty.clone();
    ty.shape[axis] = count;
    let mut starts = vec![0; ty.shape.len()];
    starts[axis] = start;
    let steps = vec![1; ty.shape.len()];
    c.kernel(Kernel::Slice { starts, steps }, &[x], ty)
}

/// The product of whole numbers from -255 to 255, as int32.
pub(super) fn exact_product(c: &mut Composer, a: &Part, b: &Part) -> Result<Part, ModelError> {
    let (Some(own), Some(&terms)) = (a.ty.shape.len().checked_sub(1), a.ty.shape.last()) else {
        return Err(c.view.error(format!("{} is no matrix", a.ty)));
    };
    let other = b.ty.shape.len().saturating_sub(2);
    if b.ty.shape.get(other) != Some(&terms) {
        return Err(c.view.error(format!("operands {} and {} cannot be multiplied", a.ty, b.ty)));
    }
    let mut sum = None;
    for start in (0..terms).step_by(PIECE_TERMS as usize) {
        let count = PIECE_TERMS.min(terms - start);
        let (a, b) = (piece(c, a, own, start, count), piece(c, b, other, start, count));
        for (digit, power) in digits(c, &b, count)? {
            let product = multiply(c, &a, &digit)?;
            sum = Some(add(c, sum, &product, power)?);
        }
    }
    sum.ok_or_else(|| c.view.error("there are no terms to add"))
}

/// The convolution of whole numbers from -255 to 255, as int32.
fn exact_convolution(c: &mut Composer, x: &Part, w: &Part) -> Result<Part, ModelError> {
    let view = c.view;
    // What fits is checked before anything is cut.
    correlation(&view, x, w)?;
    let taps = product(&view, &w.ty.shape[2..])?;
    let channels = w.ty.shape[1];
    let at_once = match groups(&view)? {
        1 => (PIECE_TERMS / taps.max(1)).clamp(1, channels.max(1)),
        _ => channels.max(1),
    };
    let mut sum = None;
    for start in (0..channels).step_by(at_once as usize) {
        let count = at_once.min(channels - start);
        let (x, w) = if count == channels {
            (x.clone(), w.clone())
        } else {
            (piece(c, x, 1, start, count), piece(c, w, 1, start, count))
        };
        for (digit, power) in digits(c, &w, count * taps)? {
            let (kernel, ty) = correlation(&view, &x, &digit)?;
            let y = c.kernel(kernel, &[&x, &digit], ty);
            sum = Some(add(c, sum, &y, power)?);
        }
    }
    sum.ok_or_else(|| view.error("there are no channels"))
}

/// An operand of 8 bits without its zero point. A zero point of rank 1 belongs to the rows, where it is one per row.
pub(super) fn operand(c: &mut Composer, i: usize, zero: usize, by_rows: bool) -> Result<Part, ModelError> {
    let x = c.input(i)?;
    if !matches!(x.ty.data_type, DataType::Int8 | DataType::UInt8) {
        return Err(c.view.error(format!("input {i} must be of int8 or uint8, not {}", x.ty)));
    }
    let zero = real_input(c, zero)?;
    let zero = match zero {
        Some(zero) if by_rows && zero.ty.shape.len() == 1 && zero.ty.shape != [1] => {
            let rows = zero.ty.shape[0];
            Some(c.reshape(&zero, &[rows, 1])?)
        }
        zero => zero,
    };
    let centred = centred(c, &x, zero.as_ref())?;
    if centred.ty.shape != x.ty.shape {
        return Err(c.view.error(format!("the zero point of {} has other sizes", x.ty)));
    }
    Ok(centred)
}

/// A weight of a convolution, whose zero point is one or one per filter.
fn filters(c: &mut Composer, i: usize, zero: usize) -> Result<Part, ModelError> {
    let w = c.input(i)?;
    if !matches!(w.ty.data_type, DataType::Int8 | DataType::UInt8) {
        return Err(c.view.error(format!("input {i} must be of int8 or uint8, not {}", w.ty)));
    }
    let zero = match real_input(c, zero)? {
        None => None,
        Some(zero) => Some(along(c, &zero, w.ty.shape.len(), 0)?),
    };
    let centred = centred(c, &w, zero.as_ref())?;
    if centred.ty.shape != w.ty.shape {
        return Err(c.view.error(format!("the zero point of {} has other sizes", w.ty)));
    }
    Ok(centred)
}

/// One number, or one for each index of an axis of a tensor of a rank.
fn along(c: &mut Composer, x: &Part, rank: usize, axis: usize) -> Result<Part, ModelError> {
    let count = x.ty.count();
    if x.ty.shape.len() > 1 {
        return Err(c.view.error(format!("{} must have one dimension", x.ty)));
    }
    let mut shape = vec![1; rank - axis];
    shape[0] = count;
    c.reshape(x, if count == 1 { &[] } else { &shape })
}

fn matmul_integer(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (operand(&mut c, 0, 2, true)?, operand(&mut c, 1, 3, false)?);
    let y = exact_product(&mut c, &a, &b)?;
    c.finish(y)
}

fn conv_integer(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, w) = (operand(&mut c, 0, 2, false)?, filters(&mut c, 1, 3)?);
    let y = exact_convolution(&mut c, &x, &w)?;
    c.finish(y)
}

/// Sums as quantised numbers: times a scale, rounded, with a zero point.
fn rescale(
    c: &mut Composer,
    sums: &Part,
    scale: &Part,
    zero: Option<&Part>,
    data_type: DataType,
) -> Result<Part, ModelError> {
    let sums = c.cast(sums, DataType::Float32);
    let y = c.binary(BinaryOp::Multiply, &sums, scale)?;
    saturate(c, &y, zero, data_type)
}

/// A scale that is one number, or one for each row (a column of the tensor) or column.
pub(super) fn scale(c: &mut Composer, i: usize, by_rows: bool) -> Result<Part, ModelError> {
    let scale = real_input(c, i)?.ok_or_else(|| c.view.error(format!("input {i} is missing")))?;
    match scale.ty.shape.as_slice() {
        [1] => c.reshape(&scale, &[]),
        &[rows] if by_rows => c.reshape(&scale, &[rows, 1]),
        _ => Ok(scale),
    }
}

fn qlinear_matmul(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (operand(&mut c, 0, 2, true)?, operand(&mut c, 3, 5, false)?);
    let sums = exact_product(&mut c, &a, &b)?;
    let (of_a, of_b, of_y) = (scale(&mut c, 1, true)?, scale(&mut c, 4, false)?, scale(&mut c, 6, true)?);
    let of_both = c.binary(BinaryOp::Multiply, &of_a, &of_b)?;
    let scale = c.binary(BinaryOp::Divide, &of_both, &of_y)?;
    let zero = real_input(&mut c, 7)?.filter(|zero| zero.ty.count() > 0);
    let zero = match zero {
        Some(zero) if zero.ty.shape == [1] => Some(c.reshape(&zero, &[])?),
        zero => zero,
    };
    let y = rescale(&mut c, &sums, &scale, zero.as_ref(), integer_type(&view, 7)?)?;
    c.finish(y)
}

fn qlinear_conv(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, w) = (operand(&mut c, 0, 2, false)?, filters(&mut c, 3, 5)?);
    let mut sums = exact_convolution(&mut c, &x, &w)?;
    let rank = sums.ty.shape.len();
    if view.has_input(8) {
        let bias = c.input(8)?;
        let bias = along(&mut c, &bias, rank, 1)?;
        sums = c.binary(BinaryOp::Add, &sums, &bias)?;
    }
    let of_w = real_input(&mut c, 4)?.ok_or_else(|| view.error("input 4 is missing"))?;
    let (of_x, of_w, of_y) = (given_number(&mut c, 1)?, along(&mut c, &of_w, rank, 1)?, given_number(&mut c, 6)?);
    let of_both = c.binary(BinaryOp::Multiply, &of_x, &of_w)?;
    let scale = c.binary(BinaryOp::Divide, &of_both, &of_y)?;
    let zero = number(&mut c, 7)?;
    let y = rescale(&mut c, &sums, &scale, zero.as_ref(), integer_type(&view, 7)?)?;
    c.finish(y)
}

/// alpha op(a) op(b) + c, as real numbers or quantised.
fn qgemm(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (mut a, mut b) = (operand(&mut c, 0, 2, false)?, operand(&mut c, 3, 5, false)?);
    let mut of_b = scale(&mut c, 4, false)?;
    if a.ty.shape.len() != 2 || b.ty.shape.len() != 2 {
        return Err(view.error(format!("operands {} and {} are no matrices", a.ty, b.ty)));
    }
    if view.int("transA", 0)? != 0 {
        a = c.transpose(&a, &[1, 0])?;
    }
    if view.int("transB", 0)? != 0 {
        b = c.transpose(&b, &[1, 0])?;
        if of_b.ty.shape.len() == 2 {
            of_b = c.transpose(&of_b, &[1, 0])?;
        }
    }
    let mut sums = exact_product(&mut c, &a, &b)?;
    if view.has_input(6) {
        let summand = c.input(6)?;
        sums = c.binary(BinaryOp::Add, &sums, &summand)?;
    }
    let of_a = given_number(&mut c, 1)?;
    let of_both = c.binary(BinaryOp::Multiply, &of_a, &of_b)?;
    let of_both = c.affine(&of_both, view.float("alpha", 1.0)?, 0.0)?;
    if !view.has_input(7) {
        let sums = c.cast(&sums, DataType::Float32);
        let y = c.binary(BinaryOp::Multiply, &sums, &of_both)?;
        return c.finish(y);
    }
    let of_y = given_number(&mut c, 7)?;
    let scale = c.binary(BinaryOp::Divide, &of_both, &of_y)?;
    let zero = number(&mut c, 8)?;
    let y = rescale(&mut c, &sums, &scale, zero.as_ref(), integer_type(&view, 8)?)?;
    c.finish(y)
}

/// A product of real numbers with quantised ones: the former are quantised by their range.
fn dynamic_quantize_matmul(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let [a, of_a, zero] = dynamically(&mut c, &x)?;
    let a = centred(&mut c, &a, Some(&zero))?;
    let b = operand(&mut c, 1, 3, false)?;
    let of_b = scale(&mut c, 2, false)?;
    let y = real_product(&mut c, [&a, &b], [&of_a, &of_b], 4)?;
    c.finish(y)
}

/// A product of quantised numbers as real ones.
fn matmul_integer_to_float(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (operand(&mut c, 0, 4, true)?, operand(&mut c, 1, 5, false)?);
    let (of_a, of_b) = (scale(&mut c, 2, true)?, scale(&mut c, 3, false)?);
    let y = real_product(&mut c, [&a, &b], [&of_a, &of_b], 6)?;
    c.finish(y)
}

/// The product of two operands without their zero points, times both scales, plus a bias where that input is given.
pub(super) fn real_product(
    c: &mut Composer,
    [a, b]: [&Part; 2],
    [of_a, of_b]: [&Part; 2],
    bias: usize,
) -> Result<Part, ModelError> {
    let sums = exact_product(c, a, b)?;
    let of_both = c.binary(BinaryOp::Multiply, of_a, of_b)?;
    let sums = c.cast(&sums, DataType::Float32);
    let mut y = c.binary(BinaryOp::Multiply, &sums, &of_both)?;
    if c.view.has_input(bias) {
        let bias = c.input(bias)?;
        y = c.binary(BinaryOp::Add, &y, &bias)?;
    }
    let ty = TensorType::new(DataType::Float32, &sums.ty.shape);
    if y.ty != ty {
        return Err(c.view.error(format!("scale and bias make {} of {ty}", y.ty)));
    }
    Ok(y)
}
