//! The order of elements along an axis.

use forebay_base::{DataType, Kernel, TensorDesc};

use super::element::{Element, for_type};
use super::parallel::{CHUNK, Pointer, for_chunks, for_each, require_packed, split_at_axis};
use super::thread_buffer::{ELEMENTS_MAX, with_buffer};
use super::{View, unsupported};
use crate::device::DeviceError;

/// The highest bit of a key.
const SIGN: u64 = 1 << 63;
/// The most tasks at a time whose lists do not fit into the buffers of threads.
const LISTS_MAX: usize = 16;

/// How elements become keys: the earlier an element comes, the smaller its key.
#[derive(Clone, Copy)]
struct Keys {
    /// The shift that brings an element's bits to the upper end of a key.
    shift: u32,
    /// The bits of infinity there, or `None` for integers.
    infinity: Option<u64>,
    is_signed: bool,
    largest: bool,
    nan_first: bool,
}

impl Keys {
    fn of(data_type: DataType, largest: bool, nan_first: bool) -> Keys {
        let infinity = match data_type {
            DataType::Float64 => Some(f64::INFINITY.to_bits()),
            DataType::Float32 => Some(u64::from(f32::INFINITY.to_bits())),
            DataType::Float16 => Some(u64::from(half::f16::INFINITY.to_bits())),
            DataType::BFloat16 => Some(u64::from(half::bf16::INFINITY.to_bits())),
            _ => None,
        };
        let shift = 64 - 8 * data_type.size_bytes() as u32;
        let is_signed = matches!(data_type, DataType::Int64 | DataType::Int32 | DataType::Int16 | DataType::Int8);
        Keys { shift, infinity: infinity.map(|bits| bits << shift), is_signed, largest, nan_first }
    }

    #[inline(always)]
    fn key(self, bits: u64) -> u64 {
        let bits = bits << self.shift;
        let ascending = match self.infinity {
            Some(infinity) if bits & !SIGN > infinity => return if self.nan_first { 0 } else { u64::MAX },
            // Zeros of both signs.
            Some(_) if bits & !SIGN == 0 => SIGN,
            Some(_) if bits & SIGN != 0 => !bits,
            Some(_) => bits | SIGN,
            None if self.is_signed => bits ^ SIGN,
            None => bits,
        };
        if self.largest { !ascending } else { ascending }
    }
}

/// An element's bits as the low bits of a word.
trait Bits: Element {
    fn bits(self) -> u64;
}

macro_rules! bits {
    ($($type:ident)*) => {$(
        impl Bits for $type {
            #[inline(always)]
            fn bits(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}

bits! { u8 u16 u32 u64 }

/// An element of a row: its key and its number in one integer, so that among equal keys the lower number comes first.
trait Entry: Copy + Ord {
    /// No entry is larger.
    const LAST: Self;
    fn new(key: u64, number: usize) -> Self;
    fn number(self) -> usize;
}

/// An element of at most 32 bits, which are the upper ones of its key, in a row of fewer than 2^32 elements.
impl Entry for u64 {
    const LAST: u64 = u64::MAX;

    #[inline(always)]
    fn new(key: u64, number: usize) -> u64 {
        key & !u64::from(u32::MAX) | number as u64
    }

    #[inline(always)]
    fn number(self) -> usize {
        self as u32 as usize
    }
}

impl Entry for u128 {
    const LAST: u128 = u128::MAX;

    #[inline(always)]
    fn new(key: u64, number: usize) -> u128 {
        u128::from(key) << 64 | number as u128
    }

    #[inline(always)]
    fn number(self) -> usize {
        self as u64 as usize
    }
}

/// The sizes of a launch, which finds the first `k` elements of each row.
#[derive(Clone, Copy)]
struct Sizes {
    outer: usize,
    size: usize,
    inner: usize,
    k: usize,
    entry_bytes: usize,
}

impl Sizes {
    fn of(axis: usize, x: &TensorDesc, y: &TensorDesc) -> Result<Sizes, String> {
        let misfit = || format!("{x} along axis {axis} does not result in {y}");
        let sizes: Vec<usize> = x.sizes().iter().map(|&size| size as usize).collect();
        if y.data_type() != DataType::Int64 || axis >= sizes.len() || y.sizes().len() != sizes.len() {
            return Err(misfit());
        }
        let (outer, size, inner) = split_at_axis(&sizes, axis);
        let k = y.sizes()[axis] as usize;
        if k > size || y.element_count() != (outer * k * inner) as u64 {
            return Err(misfit());
        }
        let is_short = x.data_type().size_bytes() <= 4 && u32::try_from(size).is_ok();
        let entry_bytes = if is_short { size_of::<u64>() } else { size_of::<u128>() };
        Ok(Sizes { outer, size, inner, k, entry_bytes })
    }

    fn rows(&self) -> usize {
        self.outer * self.inner
    }

    /// The number of entries in a task's list: at most twice as many as are wanted, or `CHUNK`, however long a row is. The first element
    /// alone needs no list.
    fn listed(&self) -> usize {
        if self.k == 1 { 0 } else { self.size.min(self.k.saturating_mul(2).max(CHUNK)) }
    }

    fn list_bytes(&self) -> usize {
        self.listed().saturating_mul(self.entry_bytes)
    }

    /// The number of lists in the workspace: none if they fit into the buffers of threads.
    fn lists(&self) -> usize {
        if self.list_bytes() <= ELEMENTS_MAX * size_of::<f32>() { 0 } else { self.rows().min(LISTS_MAX) }
    }

    fn workspace_bytes(&self) -> u64 {
        (self.list_bytes() as u64).saturating_mul(self.lists() as u64)
    }
}

/// The temporary bytes that a kernel needs.
pub(super) fn workspace_bytes(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
) -> Result<u64, DeviceError> {
    let Kernel::TopK { axis, .. } = *kernel else {
        return Err(unsupported(kernel, "not a TopK kernel".to_string()));
    };
    let sizes = Sizes::of(axis, &reads[0], &writes[0]).map_err(|reason| unsupported(kernel, reason))?;
    Ok(sizes.workspace_bytes())
}

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`]; the workspace is as long as [`workspace_bytes`] says.
pub(super) unsafe fn run(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
    workspace: Option<View>,
) -> Result<(), DeviceError> {
    let Kernel::TopK { axis, largest, nan_first, last } = *kernel else {
        return Err(unsupported(kernel, "not a TopK kernel".to_string()));
    };
    let keys = Keys::of(reads[0].desc.data_type(), largest, nan_first);
    // SAFETY: the caller's promises.
    unsafe { top_k(axis, keys, last, &reads[0], &writes[0], workspace) }.map_err(|reason| unsupported(kernel, reason))
}

/// # Safety
/// As [`run`].
unsafe fn top_k(
    axis: usize,
    keys: Keys,
    last: bool,
    x: &View,
    y: &View,
    workspace: Option<View>,
) -> Result<(), String> {
    require_packed(&[*x, *y])?;
    let sizes = Sizes::of(axis, x.desc, y.desc)?;
    let workspace = workspace.filter(|view| view.desc.total_size_bytes() >= sizes.workspace_bytes());
    let workspace = match sizes.lists() {
        0 => None,
        _ => Some(workspace.ok_or("its workspace is missing")?),
    };
    for_type!(x.desc.data_type(), words, T => {
        let rows = Rows { sizes, keys, last, x: Pointer::<T>::of(x), y: Pointer::of(y) };
        // SAFETY: the caller's promises, and the sizes fit.
        unsafe {
            match sizes.entry_bytes == size_of::<u64>() {
                true => rows.find_all::<u64>(workspace),
                false => rows.find_all::<u128>(workspace),
            }
        }
    });
    Ok(())
}

/// The rows of x and of y, whose elements are `inner` elements apart.
struct Rows<T> {
    sizes: Sizes,
    keys: Keys,
    /// Whether the last of equal elements comes first.
    last: bool,
    x: Pointer<T>,
    y: Pointer<i64>,
}

impl<T: Bits> Rows<T> {
    /// Finds the first elements of every row.
    ///
    /// # Safety
    /// As [`run`].
    unsafe fn find_all<E: Entry>(&self, workspace: Option<View>) {
        let Sizes { size, .. } = self.sizes;
        let (rows, listed, lists) = (self.sizes.rows(), self.sizes.listed(), self.sizes.lists());
        if let Some(workspace) = workspace {
            let workspace = Pointer::<E>::of(&workspace);
            return for_each(lists, |number| {
                for row in (number..rows).step_by(lists) {
                    // SAFETY: the caller's promises; every task has a list and rows of its own.
                    unsafe { self.find(row, workspace.slice_mut(number * listed, listed)) };
                }
            });
        }
        for_chunks(rows, (CHUNK / size).max(1), |rows| {
            with_buffer(self.sizes.list_bytes() / size_of::<f32>(), |buffer| {
                // SAFETY: the buffer is as long as the list and begins at a cache line, and integers may have any bits.
                let list = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<E>(), listed) };
                // SAFETY: the caller's promises; every task has rows of its own.
                rows.for_each(|row| unsafe { self.find(row, list) });
            });
        });
    }

    /// Finds the first elements of a row.
    ///
    /// # Safety
    /// As [`run`]; the row must belong to no one else.
    unsafe fn find<E: Entry>(&self, row: usize, list: &mut [E]) {
        let &Rows { sizes: Sizes { size, inner, k, .. }, keys, last, x, y } = self;
        let (start, to) = (row / inner * size * inner + row % inner, row / inner * k * inner + row % inner);
        let entries = (0..size).map(|i| {
            // SAFETY: an element of x, which no one writes.
            let bits = unsafe { *x.at((start + i * inner) as isize) }.bits();
            E::new(keys.key(bits), if last { size - 1 - i } else { i })
        });
        let store = |place: usize, entry: E| {
            let index = if last { size - 1 - entry.number() } else { entry.number() };
            // SAFETY: an element of y that belongs to this row alone.
            unsafe { *y.at((to + place * inner) as isize) = index as i64 };
        };
        if k == 1 {
            entries.min().into_iter().for_each(|entry| store(0, entry));
        } else {
            smallest(entries, k, list).iter().enumerate().for_each(|(place, &entry)| store(place, entry));
        }
    }
}

/// Returns the smallest `k` entries in order, from a list that has room for all of them or for more than `k`.
fn smallest<E: Entry>(entries: impl Iterator<Item = E>, k: usize, list: &mut [E]) -> &[E] {
    let (mut count, mut limit) = (0, E::LAST);
    for entry in entries {
        // Those from the limit on are not among the smallest.
        if entry >= limit {
            continue;
        }
        list[count] = entry;
        count += 1;
        if count == list.len() && k < count {
            limit = *list.select_nth_unstable(k).1;
            count = k;
        }
    }
    let found = &mut list[..count];
    let found = if k < count { found.select_nth_unstable(k).0 } else { found };
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests;
