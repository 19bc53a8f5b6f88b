//! Opcodes: the numbers by which shaders know functions, and other numbers that they share with Rust, listed once for both languages.
//!
//! `cargo xtask kernels` writes them to `kernels/opcodes.slang` ([`header`]); a function without a number does not compile.

use super::{ATTENTION_LOGARITHM_LARGE, BinaryOp, PadMode, PoolOp, ReduceOp, ScanOp, ScatterOp, UnaryOp};
use crate::DataType;
use crate::data_type::NumberKind;

/// The kind of an element type, for shaders that compute with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    /// A real number.
    Real,
    /// A signed integer.
    Signed,
    /// An unsigned integer.
    Unsigned,
    /// A boolean.
    Boolean,
}

impl ElementKind {
    /// The kind of the elements of a type.
    pub const fn of(data_type: DataType) -> ElementKind {
        match data_type.kind() {
            NumberKind::Real => ElementKind::Real,
            NumberKind::Signed => ElementKind::Signed,
            NumberKind::Unsigned => ElementKind::Unsigned,
            NumberKind::Boolean => ElementKind::Boolean,
        }
    }
}

/// Numbers the variants of an enumeration in list order.
macro_rules! opcodes {
    ($of:ident: $($variant:ident $name:literal)*) => {
        impl $of {
            /// The names of the opcodes in shaders, in the order of the opcodes.
            const OPCODES: &'static [&'static str] = &[$($name),*];

            /// The number by which shaders know the variant.
            pub const fn opcode(&self) -> u32 {
                enum Code {
                    $($variant,)*
                }
                match self {
                    $($of::$variant { .. } => Code::$variant as u32,)*
                }
            }
        }
    };
}

opcodes! { UnaryOp:
    Relu "RELU" LeakyRelu "LEAKY_RELU" Elu "ELU" Clip "CLIP" Affine "AFFINE" Sigmoid "SIGMOID" HardSigmoid "HARD_SIGMOID"
    Tanh "TANH" Exp "EXP" Log "LOG" Sqrt "SQRT" Reciprocal "RECIPROCAL" Abs "ABS" Sign "SIGN" Floor "FLOOR" Ceil "CEIL"
    Erf "ERF" Gelu "GELU" Softplus "SOFTPLUS" Silu "SILU" Sin "SIN" Cos "COS" Not "NOT"
    Round "ROUND" Tan "TAN" Asin "ASIN" Acos "ACOS" Atan "ATAN" Sinh "SINH" Cosh "COSH" Asinh "ASINH" Acosh "ACOSH" Atanh "ATANH"
    TanhGelu "TANH_GELU" HardSwish "HARD_SWISH"
}

opcodes! { BinaryOp:
    Add "ADD" Subtract "SUBTRACT" Multiply "MULTIPLY" Divide "DIVIDE" Power "POWER" Minimum "MINIMUM" Maximum "MAXIMUM"
    Equal "EQUAL" Less "LESS" LessOrEqual "LESS_OR_EQUAL" Greater "GREATER" GreaterOrEqual "GREATER_OR_EQUAL"
    And "AND" Or "OR" Xor "XOR" Modulo "MODULO" Remainder "REMAINDER" BitAnd "BIT_AND" BitOr "BIT_OR" BitXor "BIT_XOR"
    ShiftLeft "SHIFT_LEFT" ShiftRight "SHIFT_RIGHT"
}

opcodes! { ReduceOp:
    Sum "SUM" Mean "MEAN" Max "MAX" Min "MIN" Product "PRODUCT" L1 "L1" L2 "L2" SumSquare "SUM_SQUARE"
}

opcodes! { PadMode:
    Constant "CONSTANT" Reflect "REFLECT" Edge "EDGE"
}

opcodes! { ScatterOp:
    Replace "REPLACE" Add "ADD" Multiply "MULTIPLY" Minimum "MINIMUM" Maximum "MAXIMUM"
}

opcodes! { ScanOp:
    Sum "SUM" Product "PRODUCT" Recurrence "RECURRENCE"
}

opcodes! { ElementKind:
    Real "REAL" Signed "SIGNED" Unsigned "UNSIGNED" Boolean "BOOLEAN"
}

impl PoolOp {
    /// The names of the opcodes in shaders, in the order of the opcodes.
    const OPCODES: &'static [&'static str] = &["MAX", "MEAN", "MEAN_WITH_PADDING"];

    /// The number by which shaders know the variant.
    pub const fn opcode(&self) -> u32 {
        match self {
            PoolOp::Max => 0,
            PoolOp::Average { count_include_pad: false } => 1,
            PoolOp::Average { count_include_pad: true } => 2,
        }
    }
}

/// The text of `kernels/opcodes.slang`.
pub fn header() -> String {
    let families: [(&str, &str, &[&str]); 8] = [
        ("UNARY", "Functions of one variable (`UnaryOp`).", UnaryOp::OPCODES),
        ("BINARY", "Functions of two variables (`BinaryOp`).", BinaryOp::OPCODES),
        ("REDUCE", "How a reduction combines elements (`ReduceOp`).", ReduceOp::OPCODES),
        ("POOL", "How pooling combines a window (`PoolOp`).", PoolOp::OPCODES),
        ("PAD", "How padding is filled (`PadMode`).", PadMode::OPCODES),
        ("SCATTER", "How elements are combined with their updates (`ScatterOp`).", ScatterOp::OPCODES),
        ("SCAN", "How a scan continues (`ScanOp`).", ScanOp::OPCODES),
        ("KIND", "What elements of a type are (`ElementKind`).", ElementKind::OPCODES),
    ];
    let mut text =
        "// Numbers that kernels share, written by `cargo xtask kernels` from `crates/forebay-base/src/kernel/opcodes.rs`.\n"
            .to_owned();
    for (prefix, what, names) in families {
        text.push_str(&format!("\n/// {what}\n"));
        for (number, name) in names.iter().enumerate() {
            text.push_str(&format!("static const uint {prefix}_{name} = {number};\n"));
        }
    }
    text.push_str(&format!(
        "\n/// From which size on the logarithm of a row's sum is stored in two parts, in attention.\n\
         static const float ATTENTION_LOGARITHM_LARGE = {ATTENTION_LOGARITHM_LARGE:.1};\n"
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_places_in_the_lists_that_shaders_have() {
        assert_eq!(UnaryOp::OPCODES[UnaryOp::Clip { low: 0.0, high: 1.0 }.opcode() as usize], "CLIP");
        assert_eq!(BinaryOp::OPCODES[BinaryOp::Xor.opcode() as usize], "XOR");
        assert_eq!(ReduceOp::OPCODES[ReduceOp::SumSquare.opcode() as usize], "SUM_SQUARE");
        assert_eq!(ElementKind::OPCODES[ElementKind::of(DataType::Bool).opcode() as usize], "BOOLEAN");
        assert!(header().contains("static const uint UNARY_NOT = 22;\n"));
    }

    /// The header in the repository matches what `cargo xtask kernels` writes.
    #[test]
    fn the_header_of_the_shaders_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/opcodes.slang");
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(text, header(), "run `cargo xtask kernels`");
    }
}
