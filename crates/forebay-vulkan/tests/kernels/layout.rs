//! Layouts of every kind, for operands that can have any layout.

use forebay_base::{DataType, TensorDesc};

use crate::compare::{Random, packed, strided};

/// Every data type that shaders convert.
pub const ALL: [DataType; 13] = DataType::NOT_NARROW;

/// Strides that lay out the dimensions in a random order, with gaps of up to `gap` elements. The innermost elements are adjacent, as
/// kernels require.
fn strides(random: &mut Random, sizes: &[u64], gap: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    let mut strides = vec![0; sizes.len()];
    let mut next = 1;
    for dimension in order {
        strides[dimension] = next;
        next *= sizes[dimension];
        if next > 1 {
            next += random.below(gap + 1);
        }
    }
    strides
}

/// A tensor to write: packed, with permuted axes, or with gaps.
pub fn written(random: &mut Random, data_type: DataType, sizes: &[u64]) -> TensorDesc {
    match random.below(3) {
        0 => packed(data_type, sizes),
        1 => strided(data_type, sizes, &strides(random, sizes, 0)),
        _ => strided(data_type, sizes, &strides(random, sizes, 3)),
    }
}

/// A tensor to read that broadcasts to `sizes`: like one to write, but dimensions can be missing, of size 1, or of stride 0.
pub fn read(random: &mut Random, data_type: DataType, sizes: &[u64]) -> TensorDesc {
    if random.below(3) == 0 {
        return packed(data_type, sizes);
    }
    let missing = random.below(sizes.len() as u64) as usize;
    let own: Vec<u64> = sizes[missing..].iter().map(|&size| if random.below(4) == 0 { 1 } else { size }).collect();
    let desc = written(random, data_type, &own);
    if random.below(3) > 0 {
        return desc;
    }
    let broadcast = desc.effective_strides().into_iter().map(|stride| if random.below(3) == 0 { 0 } else { stride });
    strided(data_type, &own, &broadcast.collect::<Vec<_>>())
}
