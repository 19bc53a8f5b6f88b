//! What a slice reads: only the blocks of rows that it takes, so that it depends on no launch that writes others.

use forebay_base::TensorDesc;
use forebay_base::tensor::{BASE_OFFSET_ALIGNMENT_BYTES, packed_strides};

use crate::program::Operand;

/// The least size of a block. Blocks can be copied and wait for each other separately, which smaller ones are not worth.
const BLOCK_BYTES: u64 = 4096;

/// Narrows a slice's input, along the outermost axis longer than 1, to the blocks of rows in which elements are taken. The starts then
/// count from the first block. An input with gaps stays as it is.
pub(super) fn narrow(input: &mut Operand, starts: &mut [u64], steps: &[i64], counts: &[u64]) {
    let mut sizes = input.desc.sizes().to_vec();
    let Some(axis) = sizes.iter().position(|&size| size > 1).filter(|_| input.desc.is_packed()) else {
        return;
    };
    let row_bytes = packed_strides(&sizes)[axis] * input.desc.data_type().size_bytes();
    // Every `aligned_rows`th row begins at an aligned base. The alignment is a power of two, so this is the alignment divided by its
    // greatest common divisor with the size of a row.
    let alignment = BASE_OFFSET_ALIGNMENT_BYTES;
    let aligned_rows = alignment >> row_bytes.trailing_zeros().min(alignment.trailing_zeros());
    let block_rows = aligned_rows * BLOCK_BYTES.div_ceil(aligned_rows * row_bytes);
    let last = starts[axis].wrapping_add_signed((counts[axis] as i64 - 1) * steps[axis]);
    let (low, high) = (starts[axis].min(last), starts[axis].max(last));
    let skipped = low - low % block_rows;
    sizes[axis] = (high + 1).next_multiple_of(block_rows).min(sizes[axis]) - skipped;
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
    fn only_blocks_with_rows_that_are_taken_are_read() {
        // Rows of 4,108 bytes: every fourth is aligned.
        assert_eq!(narrowed(&[9, 1027], &[6, 0], &[1, 1], &[1, 1027]), (32 + 4 * 4108, vec![4, 1027], vec![2, 0]));
        assert_eq!(narrowed(&[9, 1027], &[8, 0], &[1, 1], &[1, 9]), (32 + 8 * 4108, vec![1, 1027], vec![0, 0]));
        // Rows of 4,096 bytes.
        assert_eq!(narrowed(&[9, 1024], &[6, 1], &[1, 2], &[2, 2]), (32 + 6 * 4096, vec![2, 1024], vec![0, 1]));
        // Rows of 12 bytes: 344 of them make a block.
        assert_eq!(narrowed(&[1000, 3], &[700, 0], &[1, 1], &[1, 3]), (32 + 688 * 12, vec![312, 3], vec![12, 0]));
        assert_eq!(narrowed(&[9, 3], &[6, 0], &[1, 1], &[1, 3]), (32, vec![9, 3], vec![6, 0]));
        // Backwards: elements 8, 6, and 4.
        let backwards = narrowed(&[1, 9, 1024], &[0, 8, 0], &[1, -2, 1], &[1, 3, 1024]);
        assert_eq!(backwards, (32 + 4 * 4096, vec![1, 5, 1024], vec![0, 4, 0]));
        // The outermost axis is taken whole.
        assert_eq!(narrowed(&[2, 1024], &[0, 4], &[1, 1], &[2, 1]), (32, vec![2, 1024], vec![0, 4]));
    }
}
