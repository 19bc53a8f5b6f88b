//! The layout of a tensor in a buffer: data type, sizes, strides, total size, alignment.
//!
//! Source: `DML_BUFFER_TENSOR_DESC` and `DMLCalcBufferTensorSize`; unlike in the reference utility, all arithmetic is checked in 64 bits.

use std::fmt;

use crate::data_type::DataType;

/// Largest number of dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 8;
/// Smallest alignment in bytes of a tensor's base offset.
pub const BASE_OFFSET_ALIGNMENT_BYTES: u64 = 16;
/// Alignment in bytes of workspace and persistent regions.
pub const WORKSPACE_ALIGNMENT_BYTES: u64 = 256;

/// The layout of a tensor in a buffer. It is always valid, because only checking constructors can make it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorDesc {
    data_type: DataType,
    sizes: Vec<u64>,
    strides: Option<Vec<u64>>,
    total_size_bytes: u64,
    guaranteed_base_offset_alignment: u64,
    owned_by_runtime: bool,
}

/// Why a descriptor or a binding is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorError {
    /// The number of dimensions is not in 1..=8.
    DimensionCount {
        /// The number of dimensions given.
        count: usize,
    },
    /// A dimension has size 0.
    ZeroSize {
        /// The dimension.
        dimension: usize,
    },
    /// The numbers of strides and sizes differ.
    StrideCount {
        /// Number of strides.
        strides: usize,
        /// Number of sizes.
        sizes: usize,
    },
    /// The size in bytes does not fit into 64 bits.
    Overflow {
        /// The sizes.
        sizes: Vec<u64>,
        /// The element type.
        data_type: DataType,
    },
    /// The total size is smaller than the implied minimum.
    TotalSizeTooSmall {
        /// The total size given, in bytes.
        given_bytes: u64,
        /// The implied minimum in bytes.
        minimum_bytes: u64,
    },
    /// The alignment is neither 0 nor a power of two that is at least the element size.
    Alignment {
        /// The alignment given, in bytes.
        alignment: u64,
        /// The element size in bytes.
        element_size_bytes: u64,
    },
    /// The total size holds more elements than the device allows.
    TooManyElements {
        /// Elements in the total size.
        elements: u64,
        /// Elements allowed.
        elements_max: u64,
    },
    /// A bound range is shorter than the total size.
    BindingTooShort {
        /// Length of the bound range in bytes.
        bound_bytes: u64,
        /// Total size of the tensor in bytes.
        total_size_bytes: u64,
    },
    /// The offset of a bound range violates the alignment.
    BindingMisaligned {
        /// Offset in bytes.
        offset_bytes: u64,
        /// Required alignment in bytes.
        alignment_bytes: u64,
    },
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorError::DimensionCount { count } => {
                write!(f, "a tensor has 1 to {DIMENSIONS_MAX} dimensions, not {count}")
            }
            TensorError::ZeroSize { dimension } => write!(f, "dimension {dimension} has size 0"),
            TensorError::StrideCount { strides, sizes } => {
                write!(f, "expected {sizes} strides, one per dimension, found {strides}")
            }
            TensorError::Overflow { sizes, data_type } => {
                write!(f, "the size of a {data_type} tensor of sizes {sizes:?} does not fit in 64 bits")
            }
            TensorError::TotalSizeTooSmall { given_bytes, minimum_bytes } => {
                write!(f, "total size {given_bytes} bytes is less than the implied minimum of {minimum_bytes} bytes")
            }
            TensorError::Alignment { alignment, element_size_bytes } => write!(
                f,
                "guaranteed base offset alignment {alignment} is neither 0 nor a power of two >= {element_size_bytes}"
            ),
            TensorError::TooManyElements { elements, elements_max } => {
                write!(f, "total size covers {elements} elements, but the device allows at most {elements_max}")
            }
            TensorError::BindingTooShort { bound_bytes, total_size_bytes } => {
                write!(f, "bound range of {bound_bytes} bytes is shorter than the tensor's {total_size_bytes} bytes")
            }
            TensorError::BindingMisaligned { offset_bytes, alignment_bytes } => {
                write!(f, "bound offset {offset_bytes} is not a multiple of {alignment_bytes} bytes")
            }
        }
    }
}

impl std::error::Error for TensorError {}

impl TensorDesc {
    /// Describes a packed tensor (row-major, no padding) of 1 to 8 dimensions.
    ///
    /// # Errors
    /// A wrong number of dimensions, a size of 0, or a total size that does not fit into 64 bits.
    pub fn packed(data_type: DataType, sizes: &[u64]) -> Result<TensorDesc, TensorError> {
        let total_size_bytes = implied_size_bytes(data_type, sizes, None)?;
        Ok(TensorDesc {
            data_type,
            sizes: sizes.to_vec(),
            strides: None,
            total_size_bytes,
            guaranteed_base_offset_alignment: 0,
            owned_by_runtime: false,
        })
    }

    /// Describes a tensor with strides in elements: a stride of 0 broadcasts, a stride larger than packed pads.
    ///
    /// # Errors
    /// Those of [`TensorDesc::packed`], and a number of strides that differs from the number of sizes.
    pub fn strided(data_type: DataType, sizes: &[u64], strides: &[u64]) -> Result<TensorDesc, TensorError> {
        let total_size_bytes = implied_size_bytes(data_type, sizes, Some(strides))?;
        Ok(TensorDesc { strides: Some(strides.to_vec()), total_size_bytes, ..unchecked(data_type, sizes) })
    }

    /// Returns the same tensor with a larger total size: padding that kernels may overwrite and that lets them skip bounds checks.
    ///
    /// # Errors
    /// If the size is below the implied minimum.
    pub fn with_total_size_bytes(mut self, total_size_bytes: u64) -> Result<TensorDesc, TensorError> {
        let minimum_bytes = implied_size_bytes(self.data_type, &self.sizes, self.strides.as_deref())?;
        if total_size_bytes < minimum_bytes {
            return Err(TensorError::TotalSizeTooSmall { given_bytes: total_size_bytes, minimum_bytes });
        }
        self.total_size_bytes = total_size_bytes;
        Ok(self)
    }

    /// Returns the same tensor with a guarantee about the base offset of any binding: 0, or a power of two in bytes.
    ///
    /// # Errors
    /// If the alignment is neither 0 nor a power of two that is at least the element size.
    pub fn with_guaranteed_base_offset_alignment(mut self, alignment: u64) -> Result<TensorDesc, TensorError> {
        let element_size_bytes = self.data_type.size_bytes();
        if alignment != 0 && (!alignment.is_power_of_two() || alignment < element_size_bytes) {
            return Err(TensorError::Alignment { alignment, element_size_bytes });
        }
        self.guaranteed_base_offset_alignment = alignment;
        Ok(self)
    }

    /// Returns the same tensor, handed over once at initialization: the runtime owns its bytes and may repack them.
    pub fn with_owned_by_runtime(mut self, owned: bool) -> TensorDesc {
        self.owned_by_runtime = owned;
        self
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The size of every dimension in elements: 1 to 8 sizes, none of them 0.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The strides in elements, if they were given.
    pub fn strides(&self) -> Option<&[u64]> {
        self.strides.as_deref()
    }

    /// The strides in elements; packed ones if none were given.
    pub fn effective_strides(&self) -> Vec<u64> {
        self.strides.clone().unwrap_or_else(|| packed_strides(&self.sizes))
    }

    /// Whether elements are in row-major order without gaps (dimensions of size 1 may have any stride).
    pub fn is_packed(&self) -> bool {
        let Some(strides) = &self.strides else {
            return true;
        };
        let packed = packed_strides(&self.sizes);
        self.sizes
            .iter()
            .zip(strides.iter().zip(&packed))
            .all(|(&size, (stride, expected))| size == 1 || stride == expected)
    }

    /// Whether elements lie without gaps or overlaps, in any order of dimensions, as in a packed tensor or one whose axes have been
    /// permuted. Writing such a tensor writes every byte of its range.
    pub fn is_dense(&self) -> bool {
        let Some(strides) = &self.strides else {
            return true;
        };
        let mut dimensions: Vec<(u64, u64)> = self
            .sizes
            .iter()
            .zip(strides)
            .filter(|&(&size, _)| size > 1)
            .map(|(&size, &stride)| (stride, size))
            .collect();
        dimensions.sort_unstable();
        let mut expected = 1;
        dimensions.into_iter().all(|(stride, size)| {
            let fits = stride == expected;
            expected = stride.saturating_mul(size);
            fits
        })
    }

    /// Total size in bytes, including padding: the bytes that an output may overwrite.
    pub fn total_size_bytes(&self) -> u64 {
        self.total_size_bytes
    }

    /// The guaranteed alignment of the base offset in bytes; 0 if nothing beyond the minimum is guaranteed.
    pub fn guaranteed_base_offset_alignment(&self) -> u64 {
        self.guaranteed_base_offset_alignment
    }

    /// Whether the runtime owns the bytes after initialization.
    pub fn owned_by_runtime(&self) -> bool {
        self.owned_by_runtime
    }

    /// Number of logical elements: the product of the sizes.
    pub fn element_count(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// Checks the total size against a device's limit.
    ///
    /// # Errors
    /// [`TensorError::TooManyElements`].
    pub fn check_elements(&self, elements_max: u64) -> Result<(), TensorError> {
        let elements = self.total_size_bytes / self.data_type.size_bytes();
        if elements > elements_max {
            return Err(TensorError::TooManyElements { elements, elements_max });
        }
        Ok(())
    }

    /// Checks a bound byte range, given as offset and length in bytes.
    ///
    /// # Errors
    /// If the range is shorter than the total size, or its offset violates the alignment (always at least 16 bytes).
    pub fn check_binding(&self, offset_bytes: u64, bound_bytes: u64) -> Result<(), TensorError> {
        if bound_bytes < self.total_size_bytes {
            return Err(TensorError::BindingTooShort { bound_bytes, total_size_bytes: self.total_size_bytes });
        }
        let alignment_bytes = self.guaranteed_base_offset_alignment.max(BASE_OFFSET_ALIGNMENT_BYTES);
        if !offset_bytes.is_multiple_of(alignment_bytes) {
            return Err(TensorError::BindingMisaligned { offset_bytes, alignment_bytes });
        }
        Ok(())
    }
}

impl fmt::Display for TensorDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.data_type, self.sizes)?;
        if let Some(strides) = &self.strides {
            write!(f, " strides {strides:?}")?;
        }
        Ok(())
    }
}

fn unchecked(data_type: DataType, sizes: &[u64]) -> TensorDesc {
    TensorDesc {
        data_type,
        sizes: sizes.to_vec(),
        strides: None,
        total_size_bytes: 0,
        guaranteed_base_offset_alignment: 0,
        owned_by_runtime: false,
    }
}

/// Row-major strides of packed data, in elements. Wraps if the product of the sizes overflows; descriptors exclude such sizes.
pub fn packed_strides(sizes: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; sizes.len()];
    for i in (0..sizes.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1].wrapping_mul(sizes[i + 1]);
    }
    strides
}

/// The implied minimum size in bytes. The number of elements is the product of the sizes if packed, or 1 + the sum of (size - 1) x stride
/// if strided. It is multiplied by the bits of an element, rounded up to bytes and then to a multiple of 4.
///
/// # Errors
/// A wrong number of dimensions, a size of 0, a wrong number of strides, or a size that does not fit into 64 bits.
pub fn implied_size_bytes(data_type: DataType, sizes: &[u64], strides: Option<&[u64]>) -> Result<u64, TensorError> {
    if sizes.is_empty() || sizes.len() > DIMENSIONS_MAX {
        return Err(TensorError::DimensionCount { count: sizes.len() });
    }
    if let Some(dimension) = sizes.iter().position(|&size| size == 0) {
        return Err(TensorError::ZeroSize { dimension });
    }
    if let Some(strides) = strides
        && strides.len() != sizes.len()
    {
        return Err(TensorError::StrideCount { strides: strides.len(), sizes: sizes.len() });
    }
    let overflow = || TensorError::Overflow { sizes: sizes.to_vec(), data_type };
    let count = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size)).ok_or_else(overflow)?;
    let elements = match strides {
        None => count,
        Some(strides) => sizes
            .iter()
            .zip(strides)
            .try_fold(1u64, |sum, (&size, &stride)| sum.checked_add((size - 1).checked_mul(stride)?))
            .ok_or_else(overflow)?,
    };
    let bits = elements.checked_mul(data_type.size_bits()).ok_or_else(overflow)?;
    bits.div_ceil(8).checked_next_multiple_of(4).ok_or_else(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_size_rounds_up_to_four_bytes() {
        let desc = TensorDesc::packed(DataType::UInt8, &[3, 3]).unwrap();
        assert_eq!(desc.total_size_bytes(), 12);
        assert_eq!(desc.element_count(), 9);
    }

    #[test]
    fn strides_broadcast_and_pad() {
        let broadcast = TensorDesc::strided(DataType::Float32, &[4, 5], &[0, 1]).unwrap();
        assert_eq!(broadcast.total_size_bytes(), 20);
        let padded = TensorDesc::strided(DataType::Float32, &[4, 5], &[8, 1]).unwrap();
        assert_eq!(padded.total_size_bytes(), (1 + 3 * 8 + 4) * 4);
        assert!(!padded.is_packed());
        assert!(TensorDesc::strided(DataType::Float32, &[1, 5], &[77, 1]).unwrap().is_packed());
    }

    #[test]
    fn exchanged_axes_are_dense_and_gaps_and_broadcasts_are_not() {
        let dense =
            |sizes: &[u64], strides: &[u64]| TensorDesc::strided(DataType::Float32, sizes, strides).unwrap().is_dense();
        assert!(dense(&[1, 3, 4, 5], &[99, 5, 15, 1]));
        assert!(!dense(&[3, 4, 5], &[5, 16, 1]));
        assert!(!dense(&[3, 4], &[0, 1]));
        assert!(TensorDesc::packed(DataType::Float32, &[3, 4]).unwrap().is_dense());
    }

    #[test]
    fn sizes_of_zero_and_wrong_counts_are_errors() {
        assert_eq!(TensorDesc::packed(DataType::Float32, &[2, 0]), Err(TensorError::ZeroSize { dimension: 1 }));
        assert_eq!(TensorDesc::packed(DataType::Float32, &[]), Err(TensorError::DimensionCount { count: 0 }));
        assert_eq!(TensorDesc::packed(DataType::Float32, &[1; 9]), Err(TensorError::DimensionCount { count: 9 }));
        assert_eq!(
            TensorDesc::strided(DataType::Float32, &[1, 2], &[1]),
            Err(TensorError::StrideCount { strides: 1, sizes: 2 })
        );
    }

    #[test]
    fn overflow_is_an_error_not_a_small_size() {
        // 2^32 x 2^32 elements wrap to 0 in 64 bits; 2^31 x 2^31 fit, but not as bits.
        for sizes in [[1 << 32, 1 << 32], [1 << 31, 1 << 31]] {
            assert!(matches!(TensorDesc::packed(DataType::Float32, &sizes), Err(TensorError::Overflow { .. })));
        }
        assert!(matches!(
            TensorDesc::strided(DataType::Float32, &[2, 2], &[u64::MAX, u64::MAX]),
            Err(TensorError::Overflow { .. })
        ));
    }

    #[test]
    fn total_size_and_alignment_are_checked() {
        let desc = || TensorDesc::packed(DataType::Float32, &[4]).unwrap();
        assert!(matches!(desc().with_total_size_bytes(12), Err(TensorError::TotalSizeTooSmall { .. })));
        assert_eq!(desc().with_total_size_bytes(64).unwrap().total_size_bytes(), 64);
        assert!(desc().with_guaranteed_base_offset_alignment(2).is_err());
        assert!(desc().with_guaranteed_base_offset_alignment(48).is_err());
        assert!(desc().with_guaranteed_base_offset_alignment(0).is_ok());
        let aligned = desc().with_guaranteed_base_offset_alignment(32).unwrap();
        assert!(aligned.check_binding(64, 16).is_ok());
        assert!(matches!(aligned.check_binding(16, 16), Err(TensorError::BindingMisaligned { .. })));
        assert!(matches!(aligned.check_binding(64, 12), Err(TensorError::BindingTooShort { .. })));
        assert!(matches!(desc().check_binding(8, 16), Err(TensorError::BindingMisaligned { .. })));
    }

    #[test]
    fn device_element_limit_counts_padding() {
        let desc = TensorDesc::packed(DataType::Float32, &[4]).unwrap().with_total_size_bytes(1 << 20).unwrap();
        assert!(desc.check_elements(1 << 18).is_ok());
        assert!(matches!(desc.check_elements((1 << 18) - 1), Err(TensorError::TooManyElements { .. })));
    }
}
