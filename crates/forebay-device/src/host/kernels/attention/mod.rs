//! Attention as in FlashAttention (Dao et al., 2022): rows of queries are combined with blocks of keys, with a running maximum
//! and sum for each row, so that the matrix of scores is never in memory.
//!
//! Blocks begin at multiples of [`ROWS`] and [`KEYS`] within each head and are processed in order: the bits of a result depend on its head
//! alone, not on which of the results a launch computes, nor on which blocks of them. The tasks of the forward kernel are blocks of rows.
//! The tasks of the gradient kernels are groups of heads that share keys, blocks of rows for the gradient with respect to queries alone,
//! and blocks of keys for the gradients with respect to keys and values alone. If half of the threads or more would have no group, and
//! both of the latter ways divide a group into several tasks, all three gradients are computed in these ways, one after the other.

mod backward;
mod forward;
mod scores;
#[cfg(test)]
mod tests;

use forebay_base::kernel::{ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_SIZE_MAX, AttentionOptions};
use forebay_base::{DataType, Kernel};

use super::parallel::{Pointer, require_packed};
use super::product::Matrix;
use super::{View, unsupported};
use crate::device::DeviceError;

/// The number of rows of queries in a block.
const ROWS: usize = ATTENTION_ROWS as usize;
/// The number of keys in a block.
const KEYS: usize = ATTENTION_KEYS as usize;

/// The sizes of a launch.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    heads: usize,
    groups: usize,
    rows: usize,
    keys: usize,
    size: usize,
    v_size: usize,
}

/// A mask, with the strides of its batches, heads and rows, which may be 0.
#[derive(Clone, Copy)]
enum Mask {
    None,
    Added(Pointer<f32>, [usize; 3]),
    Seen(Pointer<u8>, [usize; 3]),
}

/// The description of a launch, common to both kernels.
#[derive(Clone, Copy)]
struct Launch {
    sizes: Sizes,
    options: AttentionOptions,
    mask: Mask,
    q: Pointer<f32>,
    k: Pointer<f32>,
    v: Pointer<f32>,
}

impl Launch {
    /// Checks the sizes and types of queries, keys, values and mask.
    fn new(options: AttentionOptions, [q, k, v]: [&View; 3], mask: Option<&View>) -> Result<Launch, String> {
        let fail = || format!("queries {}, keys {} and values {} do not match", q.desc, k.desc, v.desc);
        let (q_sizes, k_sizes, v_sizes) = (q.sizes(), k.sizes(), v.sizes());
        let (&[batch, heads, rows, size], &[k_batch, groups, keys, k_size], &[v_batch, v_groups, v_keys, v_size]) =
            (q_sizes.as_slice(), k_sizes.as_slice(), v_sizes.as_slice())
        else {
            return Err(fail());
        };
        let is_one = [k_batch, v_batch] == [batch; 2] && k_size == size && [v_groups, v_keys] == [groups, keys];
        if !is_one || groups == 0 || heads % groups != 0 {
            return Err(fail());
        }
        if size.max(v_size) as u64 > ATTENTION_SIZE_MAX {
            return Err(format!("heads of {size} and {v_size} elements are larger than {ATTENTION_SIZE_MAX}"));
        }
        require_packed(&[*q, *k, *v])?;
        require_floats(&[*q, *k, *v])?;
        let sizes = Sizes { batch, heads, groups, rows, keys, size, v_size };
        let mask = match mask {
            Some(mask) => Mask::new(mask, &sizes)?,
            None => Mask::None,
        };
        Ok(Launch { sizes, options, mask, q: Pointer::of(q), k: Pointer::of(k), v: Pointer::of(v) })
    }

    /// Returns the number of keys that the rows before `end` see.
    fn seen_by(&self, end: usize) -> usize {
        match self.options.causal {
            Some(more) => (end as i64).saturating_add(more).clamp(0, self.sizes.keys as i64) as usize,
            None => self.sizes.keys,
        }
    }

    /// Returns the rows of head `head`, counted over all batches, from row `row` on.
    ///
    /// # Safety
    /// They must exist.
    unsafe fn rows_of(base: Pointer<f32>, head: usize, count: usize, row: usize, size: usize) -> Matrix {
        // SAFETY: the caller's promise.
        Matrix::rows(unsafe { base.at(((head * count + row) * size) as isize) }, size)
    }
}

impl Mask {
    fn new(view: &View, sizes: &Sizes) -> Result<Mask, String> {
        let own = view.sizes();
        let fits = |(own, all): (&usize, usize)| *own == all || *own == 1;
        let all = [sizes.batch, sizes.heads, sizes.rows];
        if own.len() != 4 || own[3] != sizes.keys || !own.iter().zip(all).all(fits) {
            return Err(format!("the mask {} does not match scores {all:?} of {} keys", view.desc, sizes.keys));
        }
        let all = view.strides();
        if all[3] != 1 && own[3] != 1 {
            return Err(format!("the keys of the mask {} must be contiguous", view.desc));
        }
        let strides = std::array::from_fn(|axis| if own[axis] == 1 { 0 } else { all[axis] });
        match view.desc.data_type() {
            DataType::Float32 => Ok(Mask::Added(Pointer::of(view), strides)),
            DataType::Bool => Ok(Mask::Seen(Pointer::of(view), strides)),
            other => Err(format!("a mask must be float32 or bool, not {other}")),
        }
    }
}

/// Checks that all operands are float32.
fn require_floats(views: &[View]) -> Result<(), String> {
    match views.iter().find(|view| view.desc.data_type() != DataType::Float32) {
        Some(view) => Err(format!("the host supports attention in float32, not {}", view.desc.data_type())),
        None => Ok(()),
    }
}

/// Checks that operands have these sizes, are packed, and are float32.
fn require_sizes(views: &[(&View, &[usize])]) -> Result<(), String> {
    for (view, sizes) in views {
        require_packed(&[**view])?;
        require_floats(&[**view])?;
        if view.sizes() != *sizes {
            return Err(format!("the sizes of {} differ from {sizes:?}", view.desc));
        }
    }
    Ok(())
}

/// Runs one kernel of this family.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    // SAFETY: the caller's promises.
    let result = unsafe {
        match (kernel, reads, writes) {
            (Kernel::Attention(options), [q, k, v, mask @ ..], [y, logarithms]) => {
                Launch::new(*options, [q, k, v], mask.first()).and_then(|launch| forward::run(&launch, y, logarithms))
            }
            (
                Kernel::AttentionGradient(options)
                | Kernel::AttentionQueryGradient(options)
                | Kernel::AttentionKeyGradient(options),
                [dy, q, k, v, y, logarithms, mask @ ..],
                writes,
            ) => {
                let (dq, dkv) = match (kernel, writes) {
                    (Kernel::AttentionGradient(_), [dq, dk, dv]) => (Some(dq), Some([dk, dv])),
                    (Kernel::AttentionQueryGradient(_), [dq]) => (Some(dq), None),
                    (Kernel::AttentionKeyGradient(_), [dk, dv]) => (None, Some([dk, dv])),
                    _ => return Err(unsupported(kernel, format!("it does not have {} writes", writes.len()))),
                };
                let launch = Launch::new(*options, [q, k, v], mask.first());
                launch.and_then(|launch| backward::run(&launch, [dy, y, logarithms], dq, dkv))
            }
            _ => Err(format!("attention does not have {} reads and {} writes", reads.len(), writes.len())),
        }
    };
    result.map_err(|reason| unsupported(kernel, reason))
}
