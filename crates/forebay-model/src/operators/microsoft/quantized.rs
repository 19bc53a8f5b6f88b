//! Products with weights of a few bits, which are widened when they are used.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel};

use super::super::decomposition::{Composer, Decomposition, Part, composed};
use super::super::indices::repeated;
use super::super::matrix::product_of;
use super::super::selection::gathered;
use super::super::shapes::{product, size};
use crate::error::ModelError;
use crate::graph::{MICROSOFT, TensorType};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(MICROSOFT, "GatherBlockQuantized", gathered_blocks),
    composed!(MICROSOFT, "MatMulBnb4", product_of_codes),
    composed!(MICROSOFT, "MatMulNBits", product_of_bits),
];

/// Rows of a table, as real numbers: (number - zero point) scale, where each block along an axis has its own scale and zero point. Bytes
/// can hold two 4-bit numbers each, the lower half first. If no zero points are given for bytes, they are half the range of the numbers.
fn gathered_blocks(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (data, indices, scales) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let rank = data.ty.shape.len();
    let rows = view.axis(view.int("gather_axis", 0)?, rank)?;
    let along = view.axis(view.int("quantize_axis", 1)?, rank)?;
    let (block, bits) = (size(&view, "attribute block_size", view.int("block_size", 128)?)?, view.int("bits", 4)?);
    let is_bytes = data.ty.data_type == DataType::UInt8;
    let is_inside = is_bytes && bits == 4 && along + 1 != rank;
    if rows == along || block == 0 || ![4, 8].contains(&bits) || is_inside {
        let reason = format!(
            "blocks of {block} {bits}-bit numbers along axis {along}, gathered along axis {rows}, are not supported"
        );
        return Err(view.error(reason));
    }
    if scales.ty.shape.len() != rank {
        return Err(view.error(format!("scales {} do not match {}", scales.ty, data.ty)));
    }
    // Tensors of 4-bit types came as int8.
    let is_packed = is_bytes && bits == 4;
    let data = gathered(&mut c, &data, &indices, rows)?;
    let scales = gathered(&mut c, &scales, &indices, rows)?;
    // The position of the blocked axis after gathering.
    let along = if along > rows { along + indices.ty.shape.len() - 1 } else { along };
    let numbers = match is_packed {
        true => halves(&mut c, &data)?,
        false => c.cast(&data, DataType::Float32),
    };
    let size = numbers.ty.shape[along];
    let zeros = match view.has_input(3) {
        true => {
            let zeros = c.input(3)?;
            let zeros = gathered(&mut c, &zeros, &indices, rows)?;
            let zeros = match is_packed {
                true => halves(&mut c, &zeros)?,
                false => c.cast(&zeros, DataType::Float32),
            };
            Some(c.slice(&zeros, along, 0, scales.ty.shape[along])?)
        }
        false => None,
    };
    let blocks = scales.ty.shape[along];
    if blocks != size.div_ceil(block) || zeros.as_ref().is_some_and(|zeros| zeros.ty.shape != scales.ty.shape) {
        return Err(view.error(format!("scales {} do not match blocks of {block} in {}", scales.ty, numbers.ty)));
    }
    let wide = c.cast(&scales, DataType::Float32);
    let wide = repeated(&mut c, &wide, along, size, block)?;
    let above = match zeros {
        Some(zeros) => {
            let zeros = repeated(&mut c, &zeros, along, size, block)?;
            c.binary(BinaryOp::Subtract, &numbers, &zeros)?
        }
        None if is_bytes => c.affine(&numbers, 1.0, if bits == 4 { -8.0 } else { -128.0 })?,
        None => numbers,
    };
    let y = c.binary(BinaryOp::Multiply, &above, &wide)?;
    let y = c.cast(&y, scales.ty.data_type);
    c.finish(y)
}

/// The two 4-bit numbers of each byte, one after the other along the last axis.
fn halves(c: &mut Composer, bytes: &Part) -> Result<Part, ModelError> {
    let mut shape = bytes.ty.shape.clone();
    let columns = shape.pop().unwrap_or(1);
    let rows = product(&c.view, &shape)?;
    let wide = columns.checked_mul(2).ok_or_else(|| c.view.error(format!("{} is too large", bytes.ty)))?;
    let numbers = unpacked(c, bytes, rows, wide, 4)?;
    shape.push(wide);
    c.reshape(&numbers, &shape)
}

/// a b^T + bias, where b[n, k] is given in blocks along k: (bits - zero point) scale. If no zero points are given, they are half the
/// range. The lower bits of a byte come first.
fn product_of_bits(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let attribute = |name: &str| size(&view, &format!("attribute {name}"), view.int(name, 0)?);
    let (k, n, block) = (attribute("K")?, attribute("N")?, attribute("block_size")?);
    let bits = view.int("bits", 4)?;
    if ![2, 4, 8].contains(&bits) {
        return Err(view.error(format!("attribute bits must be 2, 4 or 8, not {bits}")));
    }
    let layout = view.int("weight_prepacked", 0)?;
    if layout != 0 {
        let reason =
            format!("weights packed for one processor (attribute weight_prepacked = {layout}) are not supported");
        return Err(view.error(reason));
    }
    if view.has_input(4) {
        return Err(view.error("input g_idx (weights in another order) is not supported; quantize without it"));
    }
    let (a, packed, scales) = (c.input(0)?, c.input(1)?, c.input(2)?);
    if block == 0 || packed.ty.data_type != DataType::UInt8 {
        return Err(view.error(format!("blocks of {block} elements of {} are not supported", packed.ty)));
    }
    let blocks = k.div_ceil(block);
    let padded = product(&view, &[blocks, block])?;
    let numbers = unpacked(&mut c, &packed, n, padded, bits)?;
    let numbers = c.reshape(&numbers, &[n, blocks, block])?;
    let scales = c.reshape(&scales, &[n, blocks, 1])?;
    let wide = c.cast(&scales, DataType::Float32);
    let above = if view.has_input(3) {
        let zeros = c.input(3)?;
        let zeros = match zeros.ty.data_type {
            DataType::UInt8 => {
                let per_byte = 8 / bits as u64;
                let padded = product(&view, &[blocks.div_ceil(per_byte), per_byte])?;
                let zeros = unpacked(&mut c, &zeros, n, padded, bits)?;
                c.slice(&zeros, 1, 0, blocks)?
            }
            _ => c.cast(&zeros, DataType::Float32),
        };
        let zeros = c.reshape(&zeros, &[n, blocks, 1])?;
        c.binary(BinaryOp::Subtract, &numbers, &zeros)?
    } else {
        c.affine(&numbers, 1.0, -f32::from(1u8 << (bits - 1)))?
    };
    let weights = c.binary(BinaryOp::Multiply, &above, &wide)?;
    let weights = c.reshape(&weights, &[n, padded])?;
    let weights = c.slice(&weights, 1, 0, k)?;
    let weights = c.cast(&weights, a.ty.data_type);
    let mut y = product_of(&mut c, &a, &weights, [false, true], 1.0)?;
    if view.has_input(5) {
        let bias = c.input(5)?;
        y = c.binary(BinaryOp::Add, &y, &bias)?;
    }
    c.finish(y)
}

/// The numbers that 4-bit codes stand for, as bitsandbytes defines them: FP4, and NF4, whose numbers are quantiles of a normal distribution.
const CODES: [[f64; 16]; 2] = {
    let [a, b, c, d, e, f, g] = [0.005_208_333_333, 0.666_666_67, 1.0, 0.333_333_33, 0.5, 0.166_666_67, 0.25];
    [
        [0.0, a, b, c, d, e, f, g, 0.0, -a, -b, -c, -d, -e, -f, -g],
        [
            -1.0,
            -0.696_192_800_998_687_7,
            -0.525_073_051_452_636_7,
            -0.394_917_488_098_144_53,
            -0.284_441_381_692_886_35,
            -0.184_773_430_228_233_34,
            -0.091_050_036_251_544_95,
            0.0,
            0.079_580_299_556_255_34,
            0.160_930_201_411_247_25,
            0.246_112_301_945_686_34,
            0.337_915_241_718_292_24,
            0.440_709_829_330_444_34,
            0.562_617_003_917_694_1,
            0.722_956_836_223_602_3,
            1.0,
        ],
    ]
};

/// a b^T, or a b without transB, where b[n, k] is given in flat blocks: the number of a 4-bit code times the block's scale. The upper half
/// of a byte comes first.
fn product_of_codes(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let attribute = |name: &str| size(&view, &format!("attribute {name}"), view.int(name, 0)?);
    let (k, n, block) = (attribute("K")?, attribute("N")?, attribute("block_size")?);
    let kind = view.int("quant_type", 0)?;
    let Some(codes) = usize::try_from(kind).ok().and_then(|kind| CODES.get(kind)) else {
        return Err(view.error(format!("attribute quant_type must be 0 (FP4) or 1 (NF4), not {kind}")));
    };
    let (a, packed, scales) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let count = product(&view, &[n, k])?;
    let is_packed = packed.ty.data_type == DataType::UInt8 && packed.ty.count() == count.div_ceil(2);
    if block == 0 || !is_packed || scales.ty.count() != count.div_ceil(block) {
        let reason = format!(
            "codes {} and scales {} do not match {n} x {k} elements (N, K) in blocks of {block}",
            packed.ty, scales.ty
        );
        return Err(view.error(reason));
    }
    let bytes = packed.ty.count();
    let halves = unpacked(&mut c, &packed, bytes, 2, 4)?;
    let (low, high) = (c.slice(&halves, 1, 0, 1)?, c.slice(&halves, 1, 1, 1)?);
    let codes_of = c.concatenate(&[&high, &low], 1)?;
    let codes_of = c.cast(&codes_of, DataType::Int32);
    let codes_of = c.reshape(&codes_of, &[product(&view, &[bytes, 2])?])?;
    let codes_of = c.slice(&codes_of, 0, 0, count)?;
    let table = c.floats(DataType::Float32, &[16], codes)?;
    let numbers = gathered(&mut c, &table, &codes_of, 0)?;
    // The last block can be shorter than the others.
    let blocks = scales.ty.count();
    let whole = product(&view, &[blocks, block])?;
    let rest = TensorType::new(DataType::Float32, &[whole - count]);
    let rest = c.kernel(Kernel::Fill { value: 0.0 }, &[], rest);
    let numbers = c.concatenate(&[&numbers, &rest], 0)?;
    let numbers = c.reshape(&numbers, &[blocks, block])?;
    let scales = c.reshape(&scales, &[blocks, 1])?;
    let scales = c.cast(&scales, DataType::Float32);
    let weights = c.binary(BinaryOp::Multiply, &numbers, &scales)?;
    let weights = c.reshape(&weights, &[whole])?;
    let weights = c.slice(&weights, 0, 0, count)?;
    let weights = c.reshape(&weights, &[n, k])?;
    let weights = c.cast(&weights, a.ty.data_type);
    let is_transposed = view.int("transB", 1)? != 0;
    let y = product_of(&mut c, &a, &weights, [false, is_transposed], 1.0)?;
    c.finish(y)
}

/// Bytes as numbers of `bits` bits, the lower ones first: [rows, columns] of float32, which represents all of them exactly.
pub(super) fn unpacked(
    c: &mut Composer,
    packed: &Part,
    rows: u64,
    columns: u64,
    bits: i64,
) -> Result<Part, ModelError> {
    let mut numbers = c.cast(packed, DataType::Float32);
    let mut width = 8;
    // Splits each number into its lower and its upper half until all have `bits` bits.
    while width > bits as u64 {
        numbers = c.reshape(&numbers, &[rows, columns / (width / bits as u64), 1])?;
        width /= 2;
        let base = (1u64 << width) as f32;
        let high = c.affine(&numbers, 1.0 / base, 0.0)?;
        let high = c.unary(UnaryOp::Floor, &high)?;
        let high_bits = c.affine(&high, base, 0.0)?;
        let low = c.binary(BinaryOp::Subtract, &numbers, &high_bits)?;
        numbers = c.concatenate(&[&low, &high], 2)?;
    }
    c.reshape(&numbers, &[rows, columns])
}
