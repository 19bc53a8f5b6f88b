//! Element types of tensors.
//!
//! **Narrow types** are types in which nothing is computed: floating-point types of at most 8 bits, and integers of fewer than 8 bits. They
//! are stored, moved, and converted from and to other types. Outside ONNX files, in host tensors and on devices alike, each of their
//! elements occupies one byte, so that every element has an address and generic byte copies can move it. Integers are stored as an `int8`
//! or `uint8` of the same value, floating-point types as their code, with zeros above it. ONNX files pack several elements of fewer than 8
//! bits into a byte; [`crate::narrow`] packs, unpacks and converts them.

use std::fmt;

/// The type of one tensor element.
///
/// Source: `DML_TENSOR_DATA_TYPE`, with bfloat16, ONNX's boolean (one byte, 0 or 1) and ONNX's narrow types added.
///
/// ```
/// use forebay_base::DataType;
///
/// assert_eq!((DataType::BFloat16.size_bytes(), DataType::Float32.to_string()), (2, "float32".to_string()));
/// assert_eq!((DataType::Int4.size_bytes(), DataType::Int4.file_bits()), (1, 4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataType {
    /// IEEE 754 binary64.
    Float64,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// The upper half of a binary32.
    BFloat16,
    /// Signed 64-bit integer.
    Int64,
    /// Signed 32-bit integer.
    Int32,
    /// Signed 16-bit integer.
    Int16,
    /// Signed 8-bit integer.
    Int8,
    /// Unsigned 64-bit integer.
    UInt64,
    /// Unsigned 32-bit integer.
    UInt32,
    /// Unsigned 16-bit integer.
    UInt16,
    /// Unsigned 8-bit integer.
    UInt8,
    /// Boolean: one byte, 0 or 1.
    Bool,
    /// 4 exponent bits, 3 fraction bits; NaN, no infinities.
    Float8E4M3FN,
    /// Like [`DataType::Float8E4M3FN`], with a single NaN in place of -0, and exponents that are one less.
    Float8E4M3FNUZ,
    /// 5 exponent bits, 2 fraction bits; NaN and infinities as in IEEE 754.
    Float8E5M2,
    /// Like [`DataType::Float8E5M2`], with a single NaN in place of -0, no infinities, and exponents that are one less.
    Float8E5M2FNUZ,
    /// 8 exponent bits only: powers of two, and NaN. No sign and no zero.
    Float8E8M0,
    /// 2 exponent bits, 1 fraction bit; no NaN and no infinities.
    Float4E2M1,
    /// Signed 4-bit integer.
    Int4,
    /// Unsigned 4-bit integer.
    UInt4,
    /// Signed 2-bit integer.
    Int2,
    /// Unsigned 2-bit integer.
    UInt2,
}

/// The kind of numbers that the elements of a type are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// Real numbers.
    Real,
    /// Signed integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Booleans.
    Boolean,
}

/// The properties of a type, stated once in [`DataType::facts`].
struct Facts {
    name: &'static str,
    kind: NumberKind,
    size_bytes: u64,
    file_bits: u64,
    onnx: i32,
}

impl DataType {
    /// Every data type, in declaration order.
    pub const ALL: [DataType; 23] = [
        DataType::Float64,
        DataType::Float32,
        DataType::Float16,
        DataType::BFloat16,
        DataType::Int64,
        DataType::Int32,
        DataType::Int16,
        DataType::Int8,
        DataType::UInt64,
        DataType::UInt32,
        DataType::UInt16,
        DataType::UInt8,
        DataType::Bool,
        DataType::Float8E4M3FN,
        DataType::Float8E4M3FNUZ,
        DataType::Float8E5M2,
        DataType::Float8E5M2FNUZ,
        DataType::Float8E8M0,
        DataType::Float4E2M1,
        DataType::Int4,
        DataType::UInt4,
        DataType::Int2,
        DataType::UInt2,
    ];

    /// Every data type except the narrow ones, in declaration order.
    pub const NOT_NARROW: [DataType; 13] = {
        let mut types = [DataType::Float64; 13];
        let mut i = 0;
        while i < types.len() {
            types[i] = DataType::ALL[i];
            i += 1;
        }
        types
    };

    /// The properties of each type: the one place where they are stated.
    const fn facts(self) -> Facts {
        use NumberKind::{Boolean, Real, Signed, Unsigned};
        let (name, kind, size_bytes, file_bits, onnx) = match self {
            DataType::Float64 => ("float64", Real, 8, 64, 11),
            DataType::Float32 => ("float32", Real, 4, 32, 1),
            DataType::Float16 => ("float16", Real, 2, 16, 10),
            DataType::BFloat16 => ("bfloat16", Real, 2, 16, 16),
            DataType::Int64 => ("int64", Signed, 8, 64, 7),
            DataType::Int32 => ("int32", Signed, 4, 32, 6),
            DataType::Int16 => ("int16", Signed, 2, 16, 5),
            DataType::Int8 => ("int8", Signed, 1, 8, 3),
            DataType::UInt64 => ("uint64", Unsigned, 8, 64, 13),
            DataType::UInt32 => ("uint32", Unsigned, 4, 32, 12),
            DataType::UInt16 => ("uint16", Unsigned, 2, 16, 4),
            DataType::UInt8 => ("uint8", Unsigned, 1, 8, 2),
            DataType::Bool => ("bool", Boolean, 1, 8, 9),
            DataType::Float8E4M3FN => ("float8_e4m3fn", Real, 1, 8, 17),
            DataType::Float8E4M3FNUZ => ("float8_e4m3fnuz", Real, 1, 8, 18),
            DataType::Float8E5M2 => ("float8_e5m2", Real, 1, 8, 19),
            DataType::Float8E5M2FNUZ => ("float8_e5m2fnuz", Real, 1, 8, 20),
            DataType::Float8E8M0 => ("float8_e8m0fnu", Real, 1, 8, 24),
            DataType::Float4E2M1 => ("float4_e2m1fn", Real, 1, 4, 23),
            DataType::Int4 => ("int4", Signed, 1, 4, 22),
            DataType::UInt4 => ("uint4", Unsigned, 1, 4, 21),
            DataType::Int2 => ("int2", Signed, 1, 2, 26),
            DataType::UInt2 => ("uint2", Unsigned, 1, 2, 25),
        };
        Facts { name, kind, size_bytes, file_bits, onnx }
    }

    /// Size of one element in bytes, in host tensors and on devices.
    pub const fn size_bytes(self) -> u64 {
        self.facts().size_bytes
    }

    /// Size of one element in bits, in host tensors and on devices.
    pub const fn size_bits(self) -> u64 {
        self.size_bytes() * 8
    }

    /// Size of one element in bits in ONNX files, where several elements of fewer than 8 bits share a byte.
    pub const fn file_bits(self) -> u64 {
        self.facts().file_bits
    }

    /// Whether elements are stored and converted but not computed with: floating-point types of at most 8 bits, and integers of fewer.
    pub const fn is_narrow(self) -> bool {
        let facts = self.facts();
        facts.file_bits < 8 || facts.file_bits == 8 && matches!(facts.kind, NumberKind::Real)
    }

    /// Whether it is a 16-bit floating-point type: `float16` or `bfloat16`.
    ///
    /// ```
    /// use forebay_base::DataType;
    ///
    /// assert!(DataType::BFloat16.is_sixteen_bit());
    /// assert!(!DataType::Int16.is_sixteen_bit());
    /// ```
    pub const fn is_sixteen_bit(self) -> bool {
        matches!(self, DataType::Float16 | DataType::BFloat16)
    }

    /// The type in which computations on elements are done: `float32` for 16-bit floating-point types, otherwise the type itself.
    ///
    /// ```
    /// use forebay_base::DataType;
    ///
    /// assert_eq!(DataType::Float16.computed_in(), DataType::Float32);
    /// assert_eq!(DataType::Float64.computed_in(), DataType::Float64);
    /// ```
    pub const fn computed_in(self) -> DataType {
        if self.is_sixteen_bit() { DataType::Float32 } else { self }
    }

    /// The kind of numbers that the elements are.
    pub const fn kind(self) -> NumberKind {
        self.facts().kind
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self.kind(), NumberKind::Real)
    }

    /// Whether elements are integers (booleans are not).
    pub const fn is_integer(self) -> bool {
        matches!(self.kind(), NumberKind::Signed | NumberKind::Unsigned)
    }

    /// Whether numbers of this type have gradients: floating-point types that are used in computation.
    pub const fn has_gradients(self) -> bool {
        self.is_float() && !self.is_narrow()
    }

    /// The name used in messages, spelled as in NumPy, PyTorch and ml_dtypes.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// ONNX's number for the type (`TensorProto.DataType`).
    pub const fn onnx_number(self) -> i32 {
        self.facts().onnx
    }

    /// The type with this ONNX number; `None` for types that Forebay does not support: strings and complex numbers.
    ///
    /// ```
    /// use forebay_base::DataType;
    ///
    /// assert_eq!((DataType::from_onnx_number(1), DataType::from_onnx_number(8)), (Some(DataType::Float32), None));
    /// ```
    pub fn from_onnx_number(number: i64) -> Option<DataType> {
        DataType::ALL.into_iter().find(|data_type| i64::from(data_type.onnx_number()) == number)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_of_one_type_each() {
        for (i, data_type) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(data_type as usize, i, "{data_type}");
            assert_eq!(DataType::from_onnx_number(i64::from(data_type.onnx_number())), Some(data_type));
            assert_eq!(DataType::ALL.into_iter().filter(|other| other.name() == data_type.name()).count(), 1);
        }
    }

    #[test]
    fn the_narrow_types_are_the_others() {
        let (narrow, other): (Vec<_>, Vec<_>) = DataType::ALL.into_iter().partition(|data_type| data_type.is_narrow());
        assert_eq!(other, DataType::NOT_NARROW);
        assert_eq!(narrow.len(), 10);
        assert!(narrow.iter().all(|data_type| data_type.size_bytes() == 1));
    }
}
