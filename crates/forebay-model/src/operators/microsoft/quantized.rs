//! Products with weights of a few bits, which are widened when they are used.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::DataType;

use super::super::decomposition::{composed, Composer, Decomposition, Part};
use super::super::matrix::product_of;
use super::super::shapes::{product, size};
use super::MICROSOFT;
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows.
pub const ROWS: &[Operator] = &[composed!(MICROSOFT, "MatMulNBits", product_of_bits)];

/// a b^T + bias, where b[n, k] is given in blocks along k: (bits - zero point) scale. A zero point is half the range where none is
/// given; bits of the lower half of a byte come first.
fn product_of_bits(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let attribute = |name: &str| size(&view, &format!("attribute {name}"), view.int(name, 0)?);
    let (k, n, block) = (attribute("K")?, attribute("N")?, attribute("block_size")?);
    let bits = view.int("bits", 4)?;
    if ![4, 8].contains(&bits) {
        return Err(view.error(format!("{bits} bits are not supported (4 or 8)")));
    }
    if view.has_input(4) {
        return Err(view.error("input g_idx (weights in another order) is not supported; quantize without it"));
    }
    let (a, packed, scales) = (c.input(0)?, c.input(1)?, c.input(2)?);
    if block == 0 || packed.ty.data_type != DataType::UInt8 {
        return Err(view.error(format!("blocks of {block} of {} are not supported", packed.ty)));
    }
    let blocks = k.div_ceil(block);
    let padded = product(&view, &[blocks, block])?;
    let numbers = unpacked(&mut c, &packed, n, padded, bits)?;
    let numbers = c.reshape(&numbers, &[n, blocks, block])?;
    let scales = c.reshape(&scales, &[n, blocks, 1])?;
    let wide = c.cast(&scales, DataType::Float32);
    let middle = if bits == 4 { 8.0 } else { 128.0 };
    let above = if view.has_input(3) {
        let zeros = c.input(3)?;
        let zeros = match zeros.ty.data_type {
            DataType::UInt8 => {
                let per_byte = if bits == 4 { 2 } else { 1 };
                let padded = product(&view, &[blocks.div_ceil(per_byte), per_byte])?;
                let zeros = unpacked(&mut c, &zeros, n, padded, bits)?;
                c.slice(&zeros, 1, 0, blocks)?
            }
            _ => c.cast(&zeros, DataType::Float32),
        };
        let zeros = c.reshape(&zeros, &[n, blocks, 1])?;
        c.binary(BinaryOp::Subtract, &numbers, &zeros)?
    } else {
        c.affine(&numbers, 1.0, -middle)?
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

/// Bytes as numbers of `bits` bits: [rows, columns] of float32, where all are exact.
fn unpacked(c: &mut Composer, packed: &Part, rows: u64, columns: u64, bits: i64) -> Result<Part, ModelError> {
    let bytes = c.cast(packed, DataType::Float32);
    if bits == 8 {
        return c.reshape(&bytes, &[rows, columns]);
    }
    let bytes = c.reshape(&bytes, &[rows, columns / 2, 1])?;
    let high = c.affine(&bytes, 1.0 / 16.0, 0.0)?;
    let high = c.unary(UnaryOp::Floor, &high)?;
    let high_bits = c.affine(&high, 16.0, 0.0)?;
    let low = c.binary(BinaryOp::Subtract, &bytes, &high_bits)?;
    let both = c.concatenate(&[&low, &high], 2)?;
    c.reshape(&both, &[rows, columns])
}
