//! Products and convolutions of 8-bit integers, exact in 32 bits. They are integer kernels, which also scale, round and saturate their sums
//! if the results have 8 bits.

use forebay_base::kernel::BinaryOp;
use forebay_base::{DataType, Kernel};

use super::convolution::{channels_first, channels_last, correlation};
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::quantized::{dynamically, given_number, integer_type, real_input, saturate};
use super::shapes::{broadcast_shapes, product};
use crate::error::ModelError;
use crate::graph::{MICROSOFT, TensorType};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("ConvInteger", conv_integer),
    composed!("MatMulInteger", matmul_integer),
    composed!("QLinearConv", qlinear_conv),
    composed!("QLinearMatMul", qlinear_matmul),
    composed!(MICROSOFT, "DynamicQuantizeMatMul", dynamic_quantize_matmul),
    composed!(MICROSOFT, "MatMulIntegerToFloat", matmul_integer_to_float),
    composed!(MICROSOFT, "QGemm", qgemm),
    composed!(MICROSOFT, "QLinearConv", qlinear_conv),
];

/// An 8-bit operand and its zero point, which have the same type.
pub(super) struct Factor {
    pub x: Part,
    pub zero: Part,
}

/// The operands that turn sums into an 8-bit result. Each broadcasts to the sums.
pub(super) struct Scaled {
    bias: Option<Part>,
    scale: Part,
    zero: Part,
}

impl Factor {
    /// A node's input with an optional zero point.
    pub fn of(c: &mut Composer, i: usize, zero: usize) -> Result<Factor, ModelError> {
        let x = c.input(i)?;
        let zero = if c.view.has_input(zero) { Some(c.input(zero)?) } else { None };
        Factor::new(c, x, zero)
    }

    /// An operand with an optional zero point.
    pub fn new(c: &mut Composer, x: Part, zero: Option<Part>) -> Result<Factor, ModelError> {
        let data_type = x.ty.data_type;
        if !is_byte(data_type) {
            return Err(c.view.error(format!("expected int8 or uint8, found {}", x.ty)));
        }
        let zero = match zero {
            Some(zero) => zero,
            None => c.scalar(data_type, 0.0)?,
        };
        if zero.ty.data_type != data_type {
            return Err(c.view.error(format!("the zero point {} differs in type from {}", zero.ty, x.ty)));
        }
        Ok(Factor { x, zero })
    }
}

/// Whether a type is an 8-bit integer.
fn is_byte(data_type: DataType) -> bool {
    matches!(data_type, DataType::Int8 | DataType::UInt8)
}

/// Reshapes a single number, or one number for each row or column of matrices, so that it broadcasts to matrices. Anything with more
/// dimensions is left as it is.
fn to_matrices(c: &Composer, x: &Part, by_rows: bool) -> Result<Part, ModelError> {
    match x.ty.shape.as_slice() {
        [] | [1] => c.reshape(x, &[1, 1]),
        &[count] => c.reshape(x, &if by_rows { [count, 1] } else { [1, count] }),
        _ => Ok(x.clone()),
    }
}

/// The product of integer matrices as int32, or with 8 bits if it is scaled. b can be given as [n, k].
pub(super) fn product_of_integers(
    c: &mut Composer,
    [a, b]: [&Factor; 2],
    transpose_b: bool,
    scaled: Option<(&Scaled, DataType)>,
) -> Result<Part, ModelError> {
    let view = c.view;
    let error = || view.error(format!("operands {} and {} cannot be multiplied", a.x.ty, b.x.ty));
    let (mut left, mut right) = (a.x.ty.shape.clone(), b.x.ty.shape.clone());
    let (is_row, is_column) = (left.len() == 1, right.len() == 1);
    if is_row {
        left.insert(0, 1);
    }
    if is_column {
        right.push(1);
    }
    let (&[ref left_batch @ .., m, k], &[ref right_batch @ .., b0, b1]) = (left.as_slice(), right.as_slice()) else {
        return Err(error());
    };
    let (of_b, n) = if transpose_b { (b1, b0) } else { (b0, b1) };
    if k != of_b {
        return Err(error());
    }
    let batch = broadcast_shapes(&view, left_batch, right_batch)?;
    let mut result = batch.clone();
    result.extend((!is_row).then_some(m));
    result.extend((!is_column).then_some(n));
    let data_type = scaled.map_or(DataType::Int32, |(_, data_type)| data_type);
    let mut others = vec![to_matrices(c, &a.zero, true)?, to_matrices(c, &b.zero, false)?];
    if let Some((scaled, _)) = scaled {
        let bias = match &scaled.bias {
            Some(bias) => bias.clone(),
            None => c.scalar(DataType::Int32, 0.0)?,
        };
        for part in [&bias, &scaled.scale, &scaled.zero] {
            others.push(to_matrices(c, part, false)?);
        }
    }
    // If all other operands belong to a whole matrix or to its columns, batches can be treated as rows.
    let is_flat = right_batch.iter().all(|&size| size == 1)
        && batch.len() == left_batch.len()
        && others.iter().all(|part| part.ty.shape.len() == 2 && part.ty.shape[0] == 1);
    let matrix = if is_flat {
        (left, right) = (vec![product(&view, &[product(&view, left_batch)?, m])?, k], vec![b0, b1]);
        vec![left[0], n]
    } else {
        [&batch[..], &[m, n]].concat()
    };
    let [batch @ .., m, n] = matrix.as_slice() else { return Err(error()) };
    // A zero point of a belongs to whole rows, and one of b to whole columns.
    let (rows, columns) = ([batch, &[*m, 1]].concat(), [batch, &[1, *n]].concat());
    let fits = |part: &Part, to: &[u64]| broadcast_shapes(&view, &part.ty.shape, to).is_ok_and(|shape| shape == to);
    let limits = [&rows, &columns].into_iter().chain(std::iter::repeat(&matrix));
    if let Some((part, to)) = others.iter().zip(limits).find(|(part, to)| !fits(part, to)) {
        let whole = TensorType::new(data_type, to);
        return Err(view.error(format!("zero points, bias and scale must broadcast to {whole}; {} does not", part.ty)));
    }
    if k == 0 {
        return Ok(c.kernel(Kernel::Fill { value: 0.0 }, &[], TensorType::new(DataType::Int32, &result)));
    }
    let (left, right) = (c.reshape(&a.x, &left)?, c.reshape(&b.x, &right)?);
    let reads: Vec<&Part> = [&left, &right].into_iter().chain(&others).collect();
    let y = c.kernel(Kernel::IntegerProduct { transpose_b }, &reads, TensorType::new(data_type, &matrix));
    c.reshape(&y, &result)
}

/// The convolution of integers as int32, or with 8 bits if it is scaled.
fn convolution_of_integers(
    c: &mut Composer,
    [x, w]: [&Factor; 2],
    scaled: Option<(&Scaled, DataType)>,
) -> Result<Part, ModelError> {
    let view = c.view;
    let mut weights = w.x.clone();
    weights.ty.data_type = x.x.ty.data_type;
    let (kernel, mut ty) = correlation(&view, &x.x, &weights)?;
    let Kernel::Convolution { convolution, .. } = kernel else {
        return Err(view.error("this is not a convolution"));
    };
    if w.x.ty.count() == 0 {
        return Err(view.error("the convolution has no channels"));
    }
    let filters = ty.shape[1];
    let mut reads = vec![x.x.clone(), w.x.clone(), one_of(c, &x.zero, 1)?, one_of(c, &w.zero, filters)?];
    ty.data_type = DataType::Int32;
    if let Some((scaled, data_type)) = scaled {
        ty.data_type = data_type;
        let bias = match &scaled.bias {
            Some(bias) => bias.clone(),
            None => c.scalar(DataType::Int32, 0.0)?,
        };
        reads.extend([one_of(c, &bias, filters)?, one_of(c, &scaled.scale, filters)?, one_of(c, &scaled.zero, 1)?]);
    }
    Ok(c.kernel(Kernel::IntegerConvolution { convolution }, &reads.iter().collect::<Vec<_>>(), ty))
}

/// A single number, or `count` numbers, as a vector.
fn one_of(c: &Composer, x: &Part, count: u64) -> Result<Part, ModelError> {
    match x.ty.count() {
        own if own == 1 || (own == count && x.ty.shape.len() == 1) => c.reshape(x, &[own]),
        _ => Err(c.view.error(format!("expected 1 or {count} numbers, found {}", x.ty))),
    }
}

fn matmul_integer(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (Factor::of(&mut c, 0, 2)?, Factor::of(&mut c, 1, 3)?);
    let y = product_of_integers(&mut c, [&a, &b], false, None)?;
    c.finish(y)
}

fn conv_integer(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, w) = (Factor::of(&mut c, 0, 2)?, Factor::of(&mut c, 1, 3)?);
    let y = convolution_of_integers(&mut c, [&x, &w], None)?;
    c.finish(y)
}

/// The zero point of a result: its type, and the point as a single number of that type; 0 if it is left out.
fn result_zero(c: &mut Composer, i: usize) -> Result<(DataType, Part), ModelError> {
    let data_type = integer_type(&c.view, i)?;
    if !is_byte(data_type) {
        return Err(c.view.error(format!("input {i} must be of type int8 or uint8, not {data_type}")));
    }
    let zero = match c.view.has_input(i) {
        true => Some(c.input(i)?).filter(|zero| zero.ty.count() > 0),
        false => None,
    };
    match zero {
        Some(zero) if zero.ty.count() == 1 => Ok((data_type, c.reshape(&zero, &[])?)),
        Some(zero) => Err(c.view.error(format!("the result's zero point must be a single number, not {}", zero.ty))),
        None => Ok((data_type, c.scalar(data_type, 0.0)?)),
    }
}

/// Sums without terms, as quantized numbers.
fn of_nothing(c: &mut Composer, sums: &Part, scaled: &Scaled, data_type: DataType) -> Result<Part, ModelError> {
    let sums = match &scaled.bias {
        Some(bias) => c.binary(BinaryOp::Add, sums, bias)?,
        None => sums.clone(),
    };
    let sums = c.cast(&sums, DataType::Float32);
    let y = c.binary(BinaryOp::Multiply, &sums, &scaled.scale)?;
    let zero = c.cast(&scaled.zero, DataType::Float32);
    saturate(c, &y, Some(&zero), data_type)
}

/// The product of matrices, as quantized numbers.
fn quantized_product(
    c: &mut Composer,
    factors: [&Factor; 2],
    transpose_b: bool,
    (scaled, data_type): (&Scaled, DataType),
) -> Result<Part, ModelError> {
    let y = product_of_integers(c, factors, transpose_b, Some((scaled, data_type)))?;
    if y.ty.data_type == data_type {
        return Ok(y);
    }
    of_nothing(c, &y, scaled, data_type)
}

/// A scale that is a single number, or one number for each row (as a column) or for each column.
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
    let (a, b) = (Factor::of(&mut c, 0, 2)?, Factor::of(&mut c, 3, 5)?);
    let (of_a, of_b, of_y) = (scale(&mut c, 1, true)?, scale(&mut c, 4, false)?, scale(&mut c, 6, true)?);
    let of_both = c.binary(BinaryOp::Multiply, &of_a, &of_b)?;
    let scale = c.binary(BinaryOp::Divide, &of_both, &of_y)?;
    let (data_type, zero) = result_zero(&mut c, 7)?;
    let y = quantized_product(&mut c, [&a, &b], false, (&Scaled { bias: None, scale, zero }, data_type))?;
    c.finish(y)
}

fn qlinear_conv(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (mut x, w) = (Factor::of(&mut c, 0, 2)?, Factor::of(&mut c, 3, 5)?);
    // Only ONNX Runtime's operator has this attribute. It does not change the layout of the weights.
    let is_last = view.int("channels_last", 0)? != 0;
    if is_last {
        x.x = channels_first(&mut c, &x.x)?;
    }
    let bias = if view.has_input(8) { Some(c.input(8)?) } else { None };
    let of_w = real_input(&mut c, 4)?.ok_or_else(|| view.error("input 4 is missing"))?;
    let (of_x, of_y) = (given_number(&mut c, 1)?, given_number(&mut c, 6)?);
    let of_both = c.binary(BinaryOp::Multiply, &of_x, &of_w)?;
    let scale = c.binary(BinaryOp::Divide, &of_both, &of_y)?;
    let (data_type, zero) = result_zero(&mut c, 7)?;
    let mut y = convolution_of_integers(&mut c, [&x, &w], Some((&Scaled { bias, scale, zero }, data_type)))?;
    if is_last {
        y = channels_last(&mut c, &y)?;
    }
    c.finish(y)
}

/// alpha op(a) op(b) + c, as real numbers or quantized.
fn qgemm(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (mut a, b) = (Factor::of(&mut c, 0, 2)?, Factor::of(&mut c, 3, 5)?);
    let of_b = scale(&mut c, 4, false)?;
    if a.x.ty.shape.len() != 2 || b.x.ty.shape.len() != 2 {
        return Err(view.error(format!("operands {} and {} are not matrices", a.x.ty, b.x.ty)));
    }
    if view.int("transA", 0)? != 0 {
        a.x = c.transpose(&a.x, &[1, 0])?;
    }
    let transpose_b = view.int("transB", 0)? != 0;
    let bias = if view.has_input(6) { Some(c.input(6)?) } else { None };
    let of_a = given_number(&mut c, 1)?;
    let of_both = c.binary(BinaryOp::Multiply, &of_a, &of_b)?;
    let of_both = c.affine(&of_both, view.float("alpha", 1.0)?, 0.0)?;
    if !view.has_input(7) {
        let mut sums = product_of_integers(&mut c, [&a, &b], transpose_b, None)?;
        if let Some(bias) = bias {
            sums = c.binary(BinaryOp::Add, &sums, &bias)?;
        }
        let sums = c.cast(&sums, DataType::Float32);
        let y = c.binary(BinaryOp::Multiply, &sums, &of_both)?;
        return c.finish(y);
    }
    let of_y = given_number(&mut c, 7)?;
    let scale = c.binary(BinaryOp::Divide, &of_both, &of_y)?;
    let (data_type, zero) = result_zero(&mut c, 8)?;
    let y = quantized_product(&mut c, [&a, &b], transpose_b, (&Scaled { bias, scale, zero }, data_type))?;
    c.finish(y)
}

/// A product of real numbers with quantized ones. The former are quantized according to their range.
fn dynamic_quantize_matmul(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let [a, of_a, zero] = dynamically(&mut c, &x)?;
    let (a, b) = (Factor::new(&mut c, a, Some(zero))?, Factor::of(&mut c, 1, 3)?);
    let of_b = scale(&mut c, 2, false)?;
    let y = real_product(&mut c, [&a, &b], [&of_a, &of_b], 4)?;
    c.finish(y)
}

/// A product of quantized numbers, as real numbers.
fn matmul_integer_to_float(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (Factor::of(&mut c, 0, 4)?, Factor::of(&mut c, 1, 5)?);
    let (of_a, of_b) = (scale(&mut c, 2, true)?, scale(&mut c, 3, false)?);
    let y = real_product(&mut c, [&a, &b], [&of_a, &of_b], 6)?;
    c.finish(y)
}

/// The product of two factors times both scales, plus a bias if that input is given.
pub(super) fn real_product(
    c: &mut Composer,
    factors: [&Factor; 2],
    [of_a, of_b]: [&Part; 2],
    bias: usize,
) -> Result<Part, ModelError> {
    let sums = product_of_integers(c, factors, false, None)?;
    let of_both = c.binary(BinaryOp::Multiply, of_a, of_b)?;
    let sums = c.cast(&sums, DataType::Float32);
    let mut y = c.binary(BinaryOp::Multiply, &sums, &of_both)?;
    if c.view.has_input(bias) {
        let bias = c.input(bias)?;
        y = c.binary(BinaryOp::Add, &y, &bias)?;
    }
    let ty = TensorType::new(DataType::Float32, &sums.ty.shape);
    if y.ty != ty {
        return Err(c.view.error(format!("scale and bias change the result from {ty} to {}", y.ty)));
    }
    Ok(y)
}
