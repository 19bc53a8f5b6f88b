//! Type conversion: of numbers, and of the bits that represent them.

use forebay_base::narrow::{Narrowing, PowerRounding};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{Gradient, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    Operator { gradient: Gradient::Zero, ..composed!("BitCast", bit_cast) },
    composed!("Cast", cast),
    composed!("CastLike", cast_like),
];

/// The element type that an attribute names by its ONNX number.
pub(super) fn type_attribute(view: &NodeView, attribute: &str) -> Result<DataType, ModelError> {
    let number = view.int(attribute, 0)?;
    let unknown = || view.error(format!("attribute {attribute} is element type {number}, which is not supported"));
    DataType::from_onnx_number(number).ok_or_else(unknown)
}

/// The attributes' settings for conversion to 8-bit floating-point types.
pub(super) fn narrowing(view: &NodeView) -> Result<Narrowing, ModelError> {
    let powers = match view.string("round_mode", "up")? {
        "up" => PowerRounding::Up,
        "down" => PowerRounding::Down,
        "nearest" => PowerRounding::Nearest,
        other => return Err(view.error(format!("attribute round_mode must be up, down or nearest, not '{other}'"))),
    };
    Ok(Narrowing { saturate: view.int("saturate", 1)? != 0, powers })
}

fn cast(view: NodeView) -> Result<Decomposition, ModelError> {
    converted(view, type_attribute(&view, "to")?)
}

fn cast_like(view: NodeView) -> Result<Decomposition, ModelError> {
    converted(view, view.input_type(1)?.data_type)
}

fn converted(view: NodeView, data_type: DataType) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let narrowing = narrowing(&view)?;
    let y = c.convert(&x, data_type, narrowing);
    c.finish(y)
}

/// The integer type that can hold all bit patterns of a narrow type.
fn bits_type(file_bits: u64) -> DataType {
    match file_bits {
        2 => DataType::UInt2,
        4 => DataType::UInt4,
        _ => DataType::UInt8,
    }
}

/// The bits of x, reinterpreted as another type of the same width.
fn bit_cast(view: NodeView) -> Result<Decomposition, ModelError> {
    let to = type_attribute(&view, "to")?;
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let from = x.ty.data_type;
    if from.file_bits() != to.file_bits() {
        let reason = format!(
            "{from} has {} bits, but {to} has {}; a bit cast requires types of the same width",
            from.file_bits(),
            to.file_bits()
        );
        return Err(view.error(reason));
    }
    let y = if from.file_bits() < 8 && from.kind() != to.kind() {
        // The bits above those of a negative integer are copies of its sign.
        let bits = bits_type(from.file_bits());
        let x = if from.is_float() { reread(&mut c, &x, bits) } else { c.cast(&x, bits) };
        if to.is_float() { reread(&mut c, &x, to) } else { c.cast(&x, to) }
    } else {
        reread(&mut c, &x, to)
    };
    c.finish(y)
}

/// The same bytes, reinterpreted as another type of the same size.
fn reread(c: &mut Composer, x: &Part, to: DataType) -> Part {
    if x.ty.data_type == to {
        return x.clone();
    }
    c.kernel(Kernel::Copy, &[x], TensorType::new(to, &x.ty.shape))
}
