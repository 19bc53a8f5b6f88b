//! Rows: the part of an operand at some indices of one axis.

use forebay_base::TensorDesc;
use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_model::program::Operand;

/// How a launch is cut: along which dimension, and where.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// The dimension's number.
    pub dimension: usize,
    /// The axis in the operand by which parts are counted; `None` if that operand lacks the dimension.
    pub axis: Option<usize>,
    /// The number of indices of the dimension there: the rows in which parts are counted.
    pub rows: u64,
    /// Parts begin at multiples of this many rows.
    pub step: u64,
}

/// A half-open range of indices of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub start: u64,
    pub end: u64,
}

impl Rows {
    pub fn len(self) -> u64 {
        self.end - self.start
    }
}

/// Returns the bytes from one index of an axis to the next, if everything at an index is in between; 0 if the axis is broadcast. `None` if
/// indices are entangled.
pub(crate) fn row_bytes(desc: &TensorDesc, axis: usize) -> Option<u64> {
    let strides = desc.effective_strides();
    let stride = *strides.get(axis)?;
    let others = desc.sizes().iter().zip(&strides).enumerate().filter(|&(other, _)| other != axis);
    let span: u64 = others.map(|(_, (&size, &stride))| (size - 1) * stride).sum();
    (stride == 0 || span < stride).then(|| stride * desc.data_type().size_bytes())
}

/// Returns the number at whose multiples rows are cut so that the bases of their parts are aligned. Also applies to rows that are entangled
/// with others.
pub(crate) fn aligned_rows(desc: &TensorDesc, axis: usize) -> Option<u64> {
    let bytes = desc.effective_strides().get(axis)? * desc.data_type().size_bytes();
    Some(
        (0..)
            .map(|power| 1 << power)
            .find(|rows| (bytes * rows).is_multiple_of(BASE_OFFSET_ALIGNMENT_BYTES))
            .unwrap_or(1),
    )
}

/// Returns the rows of an operand along an axis. `None` if they are not a separate tensor, because they are entangled with others,
/// misaligned or missing.
pub(crate) fn rows_of(operand: &Operand, axis: usize, rows: Rows) -> Option<Operand> {
    row_bytes(&operand.desc, axis)?;
    slice_of(operand, axis, rows)
}

/// The same, but also for indices that are entangled with others: the part then spans these, too, and is only for kernels that read it.
pub(crate) fn slice_of(operand: &Operand, axis: usize, rows: Rows) -> Option<Operand> {
    let desc = &operand.desc;
    let strides = desc.effective_strides();
    let offset_bytes = strides.get(axis)? * desc.data_type().size_bytes() * rows.start;
    if rows.end > desc.sizes()[axis]
        || rows.start >= rows.end
        || !offset_bytes.is_multiple_of(BASE_OFFSET_ALIGNMENT_BYTES)
    {
        return None;
    }
    let mut sizes = desc.sizes().to_vec();
    sizes[axis] = rows.len();
    let part = if desc.strides().is_none() && row_bytes(desc, axis).is_some() {
        TensorDesc::packed(desc.data_type(), &sizes)
    } else {
        TensorDesc::strided(desc.data_type(), &sizes, &strides)
    };
    Some(Operand { buffer: operand.buffer, offset_bytes: operand.offset_bytes + offset_bytes, desc: part.ok()? })
}
