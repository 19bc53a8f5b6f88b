//! How kernels divide work: fixed chunks, strided walks, vector code.
//!
//! Reduction block boundaries depend only on shapes. The pool decides which thread computes a chunk, never how chunks are cut, so results have
//! the same bits for every number of threads.

use std::cell::Cell;
use std::ops::Range;

use forebay_base::SumTree;
use forebay_base::tensor::DIMENSIONS_MAX;

use super::super::{copying, helper_tasks, pool};
use super::View;

/// Elements in a chunk of elementwise work: large enough to hide the cost of a task, small enough to stay in a core's cache.
pub(super) const CHUNK: usize = 16 * 1024;

/// The address of an operand's elements, shared between threads that touch different elements.
pub(super) struct Pointer<T>(*mut T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

// SAFETY: this is only an address; `kernels::run`'s caller and each kernel's chunking promise who may access the bytes and when.
unsafe impl<T> Send for Pointer<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Pointer<T> {}

impl<T> Pointer<T> {
    /// Wraps an address.
    pub fn new(address: *mut T) -> Pointer<T> {
        Pointer(address)
    }

    /// The first element of a view.
    pub fn of(view: &View) -> Pointer<T> {
        Pointer(view.pointer.cast())
    }

    /// Returns the address of an element. Takes `self` so that closures capture the whole (shareable) pointer.
    ///
    /// # Safety
    /// The element must lie in the operand.
    #[inline(always)]
    pub unsafe fn at(self, offset: isize) -> *mut T {
        // SAFETY: in bounds by the caller's promise.
        unsafe { self.0.offset(offset) }
    }

    /// Returns elements that no one writes during `'b`.
    ///
    /// # Safety
    /// The elements must lie in the operand, and no one may write them during `'b`.
    #[inline(always)]
    pub unsafe fn slice<'b>(self, start: usize, len: usize) -> &'b [T] {
        // SAFETY: in bounds and unwritten by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.add(start), len) }
    }

    /// Returns elements that no one else touches during `'b`.
    ///
    /// # Safety
    /// The elements must lie in the operand, and no one else may touch them during `'b`.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut<'b>(self, start: usize, len: usize) -> &'b mut [T] {
        // SAFETY: in bounds and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Runs `work` compiled for the widest vectors that this CPU has. Everything in it must inline. The vector code performs the same IEEE
/// operations in the same order as the plain code (Rust never contracts a x b + c), so bits do not depend on it.
#[inline(always)]
pub(super) fn wide<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        unsafe fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if crate::host::isa::has(crate::host::isa::InstructionSet::Avx2) {
            // SAFETY: the CPU has AVX2 and fused multiply-add.
            return unsafe { with_avx2(work) };
        }
    }
    work()
}

/// Does the same with AVX-512 if the CPU has it, for functions that take long. The function is compiled once more, so use this only where
/// it pays off.
#[inline(always)]
pub(super) fn widest<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx2,fma")]
        unsafe fn with_avx512<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if crate::host::isa::has(crate::host::isa::InstructionSet::Avx512) {
            // SAFETY: the CPU has AVX-512, and so AVX2 and fused multiply-add.
            return unsafe { with_avx512(work) };
        }
    }
    wide(work)
}

/// Copies a row that may be short: two overlapping copies of a fixed size take less time than a call.
///
/// # Panics
/// Panics if the lengths differ.
#[inline(always)]
pub(super) fn copy_run(target: &mut [f32], source: &[f32]) {
    #[inline(always)]
    fn ends<const N: usize>(target: &mut [f32], source: &[f32]) {
        let behind = target.len() - N;
        target[..N].copy_from_slice(&source[..N]);
        target[behind..].copy_from_slice(&source[behind..]);
    }
    assert_eq!(target.len(), source.len(), "as many elements");
    match target.len() {
        0..4 => target.iter_mut().zip(source).for_each(|(target, &value)| *target = value),
        4..8 => ends::<4>(target, source),
        8..16 => ends::<8>(target, source),
        16..=32 => ends::<16>(target, source),
        _ => target.copy_from_slice(source),
    }
}

/// Calls `work` for each of `0..count` in parallel.
pub(super) fn for_each(count: usize, work: impl Fn(usize) + Sync) {
    run_tasks(count, &work);
}

thread_local! {
    /// Whether the thread runs kernels alone.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a job whose kernels the calling thread runs alone; the thread need not belong to a pool.
pub(crate) fn alone(job: impl FnOnce()) {
    /// Restores the previous state, even if the job panics.
    struct Over(bool);
    impl Drop for Over {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _over = Over(ALONE.replace(true));
    job();
}

/// The number of threads that work on a kernel run by the calling thread. A thread outside a pool, such as one that makes plans, works
/// alone.
pub(super) fn threads() -> usize {
    if ALONE.get() { 1 } else { pool::threads() }
}

/// Runs each task; between two of them, a thread runs its helper tasks. All kernels share this one function, so that the division among
/// threads is not compiled for each closure.
fn run_tasks(count: usize, work: &(dyn Fn(usize) + Sync)) {
    let run = |task| {
        work(task);
        copying::finish();
    };
    if ALONE.get() {
        return (0..count).for_each(run);
    }
    pool::for_each(count, &|task| {
        helper_tasks::run();
        run(task);
    });
}

/// Returns the results of `work` for each of `0..count`, in order, computed in parallel.
fn map<R: Send>(count: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut results: Vec<Option<R>> = (0..count).map(|_| None).collect();
    let slots = Pointer::new(results.as_mut_ptr());
    for_each(count, |task| {
        let result = Some(work(task));
        // SAFETY: the slot lies in `results`, and each task touches its own.
        unsafe { *slots.at(task as isize) = result };
    });
    results.into_iter().flatten().collect()
}

/// Cuts `0..count` into chunks of `size` and works on them in parallel.
pub(super) fn for_chunks(count: usize, size: usize, work: impl Fn(Range<usize>) + Sync) {
    let chunk_count = count.div_ceil(size);
    if chunk_count <= 1 {
        work(0..count);
    } else {
        for_each(chunk_count, |chunk| work(chunk * size..count.min((chunk + 1) * size)));
    }
}

/// Cuts `0..count` into chunks of `size`, works on them in parallel and returns the results in chunk order.
pub(super) fn map_chunks<R: Send>(count: usize, size: usize, work: impl Fn(Range<usize>) -> R + Sync) -> Vec<R> {
    let chunk_count = count.div_ceil(size);
    if chunk_count <= 1 {
        vec![work(0..count)]
    } else {
        map(chunk_count, |chunk| work(chunk * size..count.min((chunk + 1) * size)))
    }
}

/// The approximate number of subtrees of a sum among which threads divide the work: enough for many threads, and few enough that their sums
/// take little memory.
const SUBTREES: u64 = 64;

/// Returns the sum of `leaf(number)` over the leaves of a sum tree: subtrees in parallel, each of them leaf by leaf.
pub(super) fn tree_sum<R: Send>(
    tree: SumTree,
    leaf: impl Fn(usize) -> R + Sync,
    add: impl Fn(R, R) -> R + Sync,
) -> Option<R> {
    let subtrees = tree.subtrees(SUBTREES);
    let sum = |number: usize| {
        let (first, own) = subtrees.get(number as u64);
        own.sum((first..first + own.leaves()).map(|number| leaf(number as usize)), &add)
    };
    let sums: Vec<Option<R>> = match subtrees.count() {
        1 => vec![sum(0)],
        count => map(count as usize, sum),
    };
    subtrees.above().sum(sums.into_iter().flatten(), add)
}

/// A walk in row-major order over the elements of `N` operands that have the same sizes but different strides. Dimensions that are
/// contiguous for all operands are merged, so that packed operands are one run.
pub(super) struct Walk<const N: usize> {
    sizes: Vec<usize>,
    strides: [Vec<isize>; N],
}

impl<const N: usize> Walk<N> {
    /// Creates a walk over `sizes`; strides are in elements and may be 0 or negative.
    pub fn new(sizes: &[usize], strides: &[Vec<isize>; N]) -> Walk<N> {
        let mut merged_sizes: Vec<usize> = Vec::with_capacity(sizes.len());
        let mut merged_strides: [Vec<isize>; N] = std::array::from_fn(|_| Vec::with_capacity(sizes.len()));
        for (dimension, &size) in sizes.iter().enumerate() {
            if size == 1 {
                continue;
            }
            let seamless = !merged_sizes.is_empty()
                && (0..N).all(|n| merged_strides[n].last() == Some(&(strides[n][dimension] * size as isize)));
            if seamless {
                *merged_sizes.last_mut().unwrap_or(&mut 1) *= size;
                for strides in &mut merged_strides {
                    strides.pop();
                }
            } else {
                merged_sizes.push(size);
            }
            for n in 0..N {
                merged_strides[n].push(strides[n][dimension]);
            }
        }
        if merged_sizes.is_empty() {
            merged_sizes.push(1);
            merged_strides.iter_mut().for_each(|strides| strides.push(1));
        }
        Walk { sizes: merged_sizes, strides: merged_strides }
    }

    /// Sizes after merging; at least one.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Strides of an operand after merging.
    pub fn strides(&self, operand: usize) -> &[isize] {
        &self.strides[operand]
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Whether the walk goes through the elements of an operand in the order of their addresses without gaps.
    pub fn is_contiguous(&self, operand: usize) -> bool {
        let mut expected = 1;
        self.sizes.iter().zip(&self.strides[operand]).rev().all(|(&size, &stride)| {
            let follows = stride == expected;
            expected *= size as isize;
            follows
        })
    }

    /// The stride of every operand along a run.
    #[inline(always)]
    pub fn inner_strides(&self) -> [isize; N] {
        std::array::from_fn(|n| self.strides[n][self.sizes.len() - 1])
    }

    /// The offset of every operand at an element, given the element's row-major number.
    #[inline(always)]
    pub fn offsets(&self, mut element: usize) -> [isize; N] {
        let mut offsets = [0; N];
        let mut step = |dimension: usize, index: usize| {
            for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                *offset += index as isize * strides[dimension];
            }
        };
        for dimension in (1..self.sizes.len()).rev() {
            step(dimension, element % self.sizes[dimension]);
            element /= self.sizes[dimension];
        }
        // Divisions take long, and the first dimension needs none.
        step(0, element);
        offsets
    }

    /// Calls `work(offsets, length)` for every run along the innermost dimension, in parallel over chunks, as vector code.
    #[inline(always)]
    #[allow(clippy::redundant_closure, reason = "a call by reference need not be inlined")]
    pub fn for_each_run(&self, work: impl Fn([isize; N], usize) + Sync) {
        for_chunks(self.count(), CHUNK, |range| {
            wide(
                #[inline(always)]
                || {
                    self.runs(
                        range,
                        #[inline(always)]
                        |offsets, length| work(offsets, length),
                    );
                },
            );
        });
    }

    /// Calls `work(offsets, length)` for the runs that cover a range of elements, in order. `range` must not be empty.
    #[inline(always)]
    pub fn runs(&self, range: Range<usize>, mut work: impl FnMut([isize; N], usize)) {
        let outer = self.sizes.len() - 1;
        let inner_size = self.sizes[outer];
        let inner_strides = self.inner_strides();
        let mut start = range.start % inner_size;
        let mut base = self.offsets(range.start - start);
        let mut index = [0usize; DIMENSIONS_MAX];
        let mut row = range.start / inner_size;
        for dimension in (0..outer).rev() {
            index[dimension] = row % self.sizes[dimension];
            row /= self.sizes[dimension];
        }
        let mut left = range.len();
        while left > 0 {
            let length = left.min(inner_size - start);
            work(std::array::from_fn(|n| base[n] + start as isize * inner_strides[n]), length);
            left -= length;
            start = 0;
            for dimension in (0..outer).rev() {
                index[dimension] += 1;
                for (base, strides) in base.iter_mut().zip(&self.strides) {
                    *base += strides[dimension];
                }
                if index[dimension] < self.sizes[dimension] {
                    break;
                }
                for (base, strides) in base.iter_mut().zip(&self.strides) {
                    *base -= strides[dimension] * self.sizes[dimension] as isize;
                }
                index[dimension] = 0;
            }
        }
    }
}

/// The strides with which an operand covers `sizes`: dimensions are aligned at the last one, and size 1 broadcasts.
///
/// # Errors
/// Returns an error if the operand's sizes do not broadcast to `sizes`.
pub(super) fn broadcast_strides(view: &View, sizes: &[usize]) -> Result<Vec<isize>, String> {
    let own_sizes = view.sizes();
    let misfit = || format!("an operand of sizes {own_sizes:?} cannot be broadcast to {sizes:?}");
    let missing = sizes.len().checked_sub(own_sizes.len()).ok_or_else(misfit)?;
    let mut strides = vec![0; missing];
    for ((&own, stride), &size) in own_sizes.iter().zip(view.strides()).zip(&sizes[missing..]) {
        match own {
            _ if own == size => strides.push(stride as isize),
            1 => strides.push(0),
            _ => return Err(misfit()),
        }
    }
    Ok(strides)
}

/// Sizes before an axis, at it and after it, as products.
pub(super) fn split_at_axis(sizes: &[usize], axis: usize) -> (usize, usize, usize) {
    (sizes[..axis].iter().product(), sizes[axis], sizes[axis + 1..].iter().product())
}

/// Checks that operands are packed.
///
/// # Errors
/// Returns an error if one is not.
pub(super) fn require_packed(views: &[View]) -> Result<(), String> {
    match views.iter().find(|view| !view.desc.is_packed()) {
        Some(view) => Err(format!("{} must be packed", view.desc)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_outside_of_a_pool_works_alone() {
        let pool = pool::ThreadPool::new(3, "test", || ()).unwrap();
        assert_eq!((threads(), pool.install(threads)), (1, 3));
    }

    #[test]
    fn a_tree_is_summed_in_its_order_by_any_number_of_threads() {
        for (groups, leaves) in [(1, 1), (1, 300), (40, 9), (700, 1)] {
            let tree = SumTree::new(groups, leaves);
            let text = |leaf: usize| leaf.to_string();
            let add = |a: String, b: String| format!("({a} {b})");
            let expected = tree.sum((0..tree.leaves() as usize).map(text), add);
            for threads in [1, 3] {
                let pool = pool::ThreadPool::new(threads, "test", || ()).unwrap();
                assert_eq!(pool.install(|| tree_sum(tree, text, add)), expected, "{tree:?}, {threads} threads");
            }
        }
        assert_eq!(tree_sum(SumTree::flat(0), |_| 1, |a, b| a + b), None);
    }

    #[test]
    fn packed_operands_are_one_run_and_broadcasts_are_not() {
        let packed = Walk::new(&[2, 1, 3, 4], &[vec![12, 12, 4, 1], vec![12, 99, 4, 1]]);
        assert_eq!(packed.sizes(), &[24]);
        let bias = Walk::new(&[2, 3, 4], &[vec![12, 4, 1], vec![0, 1, 0]]);
        assert_eq!(bias.sizes(), &[2, 3, 4]);
        let scalar = Walk::new(&[2, 3, 4], &[vec![12, 4, 1], vec![0, 0, 0]]);
        assert_eq!((scalar.sizes(), scalar.inner_strides()), (&[24][..], [1, 0]));
        assert_eq!(Walk::new(&[1, 1], &[vec![5, 7]]).sizes(), &[1]);
    }

    #[test]
    fn runs_cover_every_element_once_in_order() {
        let strides = [vec![100, 20, -3], vec![1, 0, 50]];
        let walk = Walk::new(&[3, 4, 5], &strides);
        for (start, end) in [(0, 60), (7, 8), (3, 41), (55, 60)] {
            let mut seen = Vec::new();
            let inner = walk.inner_strides();
            walk.runs(start..end, |offsets, length| {
                (0..length as isize).for_each(|i| seen.push([offsets[0] + i * inner[0], offsets[1] + i * inner[1]]));
            });
            let expected: Vec<_> = (start..end).map(|element| walk.offsets(element)).collect();
            assert_eq!(seen, expected, "{start}..{end}");
        }
        assert_eq!(walk.offsets(59), [2 * 100 + 3 * 20 - 4 * 3, 2 + 4 * 50]);
    }
}
