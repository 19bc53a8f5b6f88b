//! What a slice reads: only the rows that it takes, so that it waits for no launch that writes others.

use forebay_base::TensorDesc;
use forebay_base::tensor::{BASE_OFFSET_ALIGNMENT_BYTES, packed_strides};

use crate::program::Operand;

/// Narrows a slice's input to the elements that it takes along the outermost axis longer than 1, and to those in front of them up to an
/// aligned base. The starts then count from that base. An input with gaps stays as it is.
pub(super) fn narrow(input: &mut Operand, starts: &mut [u64], steps: &[i64], counts: &[u64]) {
    let mut sizes = input.desc.sizes().to_vec();
    let Some(axis) = sizes.iter().position(|&size| size > 1).filter(|_| input.desc.is_packed()) else {
        return;
    };
    let row_bytes = packed_strides(&sizes)[axis] * input.desc.data_type().size_bytes();
    // The size of a row is a multiple of its largest power-of-two factor, so this many rows reach the next aligned base.
    let alignment = BASE_OFFSET_ALIGNMENT_BYTES;
    let aligned_rows = alignment >> row_bytes.trailing_zeros().min(alignment.trailing_zeros());
    let last = starts[axis].wrapping_add_signed((counts[axis] as i64 - 1) * steps[axis]);
    let (low, high) = (starts[axis].min(last), starts[axis].max(last));
    let skipped = low - low % aligned_rows;
    sizes[axis] = high + 1 - skipped;
    if let Ok(desc) = TensorDesc::packed(input.desc.data_type(), &sizes) {
        input.desc = desc;
        input.offset_bytes += skipped * row_bytes;
        starts[axis] -= skipped;
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::DataType;

    use super::*;
    use crate::program::BufferId;

    fn narrowed(sizes: &[u64], starts: &[u64], steps: &[i64], counts: &[u64]) -> (u64, Vec<u64>, Vec<u64>) {
        let desc = TensorDesc::packed(DataType::Float32, sizes).unwrap();
        let mut input = Operand { buffer: BufferId(0), offset_bytes: 32, desc };
        let mut starts = starts.to_vec();
        narrow(&mut input, &mut starts, steps, counts);
        (input.offset_bytes, input.desc.sizes().to_vec(), starts)
    }

    #[test]
    fn only_the_rows_taken_are_read_from_an_aligned_base_on() {
        // Rows of 12 bytes: every fourth is aligned.
        assert_eq!(narrowed(&[9, 3], &[6, 0], &[1, 1], &[1, 3]), (32 + 48, vec![3, 3], vec![2, 0]));
        // Rows of 16 bytes.
        assert_eq!(narrowed(&[9, 4], &[6, 1], &[1, 2], &[2, 2]), (32 + 96, vec![2, 4], vec![0, 1]));
        // Backwards: elements 8, 6, and 4.
        assert_eq!(narrowed(&[1, 9, 2], &[0, 8, 0], &[1, -2, 1], &[1, 3, 2]), (32 + 32, vec![1, 5, 2], vec![0, 4, 0]));
        // The outermost axis is taken whole.
        assert_eq!(narrowed(&[2, 9], &[0, 4], &[1, 1], &[2, 1]), (32, vec![2, 9], vec![0, 4]));
    }
}
