//! Element types of tensors.

use std::fmt;

/// The type of one tensor element.
///
/// Source: `DML_TENSOR_DATA_TYPE`, with bfloat16 and ONNX's boolean (one byte, 0 or 1) added.
///
/// ```
/// use forebay_base::DataType;
///
/// assert_eq!((DataType::BFloat16.size_bytes(), DataType::Float32.to_string()), (2, "float32".to_string()));
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
}

impl DataType {
    /// Every data type, in declaration order.
    pub const ALL: [DataType; 13] = [
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
    ];

    /// Size of one element in bytes.
    pub const fn size_bytes(self) -> u64 {
        match self {
            DataType::Float64 | DataType::Int64 | DataType::UInt64 => 8,
            DataType::Float32 | DataType::Int32 | DataType::UInt32 => 4,
            DataType::Float16 | DataType::BFloat16 | DataType::Int16 | DataType::UInt16 => 2,
            DataType::Int8 | DataType::UInt8 | DataType::Bool => 1,
        }
    }

    /// Size of one element in bits.
    pub const fn size_bits(self) -> u64 {
        self.size_bytes() * 8
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, DataType::Float64 | DataType::Float32 | DataType::Float16 | DataType::BFloat16)
    }

    /// Whether elements are integers (booleans are not).
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, DataType::Bool)
    }

    /// The name used in messages, as NumPy and PyTorch spell it.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Float64 => "float64",
            DataType::Float32 => "float32",
            DataType::Float16 => "float16",
            DataType::BFloat16 => "bfloat16",
            DataType::Int64 => "int64",
            DataType::Int32 => "int32",
            DataType::Int16 => "int16",
            DataType::Int8 => "int8",
            DataType::UInt64 => "uint64",
            DataType::UInt32 => "uint32",
            DataType::UInt16 => "uint16",
            DataType::UInt8 => "uint8",
            DataType::Bool => "bool",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
