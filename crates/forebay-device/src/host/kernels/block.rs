//! Elementwise loops that work for every stride and in place, and still become vector code.
//!
//! A run is computed in blocks. An operand that lies with stride 1 elsewhere is read where it lies; one that is strided, or
//! that is the very bytes being written, is first copied to a buffer. So the loop never sees two references to one byte.

use std::cmp::Reverse;
use std::mem::MaybeUninit;

use super::element::Element;
use super::parallel::{broadcast_strides, Pointer, Walk};
use super::View;

/// Elements in a block: small enough that buffers stay in the first-level cache.
pub(super) const BLOCK: usize = 256;

/// Room for one block of an operand.
pub(super) struct Buffer<T>([MaybeUninit<T>; BLOCK]);

impl<T: Copy> Buffer<T> {
    /// An empty buffer.
    #[inline(always)]
    pub fn new() -> Buffer<T> {
        Buffer([const { MaybeUninit::uninit() }; BLOCK])
    }

    /// A copy of up to [`BLOCK`] elements with stride 1.
    ///
    /// # Safety
    /// The elements must be readable, and `length` at most [`BLOCK`].
    #[inline(always)]
    pub unsafe fn copy_of(&mut self, source: *const T, length: usize) -> &[T] {
        // SAFETY: the source is readable by the caller's promise, the buffer long enough, and both are different memory.
        unsafe {
            std::ptr::copy_nonoverlapping(source, self.0.as_mut_ptr().cast(), length);
            std::slice::from_raw_parts(self.0.as_ptr().cast(), length)
        }
    }

    /// Elements with any stride, as a slice that does not overlap `written`: the operand itself where it may be.
    ///
    /// # Safety
    /// The elements must be readable and unwritten while the slice lives, except at `written` if the operand starts there;
    /// `length` must be at most [`BLOCK`].
    #[inline(always)]
    pub unsafe fn load<Y>(&mut self, source: *const T, stride: isize, length: usize, written: *const Y) -> &[T] {
        // SAFETY: all accesses are to the elements that the caller promised.
        unsafe {
            if stride == 1 && source.cast::<u8>() != written.cast::<u8>() {
                return std::slice::from_raw_parts(source, length);
            }
            if stride == 1 {
                return self.copy_of(source, length);
            }
            let buffer = &mut self.0[..length];
            if stride == 0 {
                buffer.fill(MaybeUninit::new(*source));
            } else {
                for (i, element) in buffer.iter_mut().enumerate() {
                    *element = MaybeUninit::new(*source.offset(i as isize * stride));
                }
            }
            std::slice::from_raw_parts(self.0.as_ptr().cast(), length)
        }
    }
}

/// y\[i] = f(a\[i]) for a run; `y` has stride 1.
///
/// # Safety
/// Every element must lie in its operand and be free to read or write; `y` may be the very bytes of `a` with stride 1.
#[inline(always)]
pub(super) unsafe fn run1<A: Copy, Y>(a: (*const A, isize), y: *mut Y, length: usize, f: impl Fn(A) -> Y) {
    let mut a_buffer = Buffer::new();
    let mut start = 0;
    while start < length {
        let count = BLOCK.min(length - start);
        // SAFETY: the block lies in the run; the loads do not overlap the output, which no one else touches.
        let (a, y) = unsafe {
            let y = y.add(start);
            let a = a_buffer.load(a.0.offset(start as isize * a.1), a.1, count, y);
            (a, std::slice::from_raw_parts_mut(y, count))
        };
        for (y, &a) in y.iter_mut().zip(a) {
            *y = f(a);
        }
        start += count;
    }
}

/// y\[i] = f(a\[i], b\[i]) for a run; `y` has stride 1.
///
/// # Safety
/// As [`run1`]; `y` may be the very bytes of `a` or `b` or both.
#[inline(always)]
pub(super) unsafe fn run2<A: Copy, B: Copy, Y>(
    a: (*const A, isize),
    b: (*const B, isize),
    y: *mut Y,
    length: usize,
    f: impl Fn(A, B) -> Y,
) {
    let mut a_buffer = Buffer::new();
    let mut b_buffer = Buffer::new();
    let mut start = 0;
    while start < length {
        let count = BLOCK.min(length - start);
        // SAFETY: as in `run1`.
        let (a, b, y) = unsafe {
            let y = y.add(start);
            let a = a_buffer.load(a.0.offset(start as isize * a.1), a.1, count, y);
            let b = b_buffer.load(b.0.offset(start as isize * b.1), b.1, count, y);
            (a, b, std::slice::from_raw_parts_mut(y, count))
        };
        for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
            *y = f(a, b);
        }
        start += count;
    }
}

/// y\[i] = f(a\[i], b\[i], c\[i]) for a run; `y` has stride 1.
///
/// # Safety
/// As [`run1`]; `y` may be the very bytes of any operand.
#[inline(always)]
pub(super) unsafe fn run3<A: Copy, B: Copy, C: Copy, Y>(
    a: (*const A, isize),
    b: (*const B, isize),
    c: (*const C, isize),
    y: *mut Y,
    length: usize,
    f: impl Fn(A, B, C) -> Y,
) {
    let mut a_buffer = Buffer::new();
    let mut b_buffer = Buffer::new();
    let mut c_buffer = Buffer::new();
    let mut start = 0;
    while start < length {
        let count = BLOCK.min(length - start);
        // SAFETY: as in `run1`.
        let (a, b, c, y) = unsafe {
            let y = y.add(start);
            let a = a_buffer.load(a.0.offset(start as isize * a.1), a.1, count, y);
            let b = b_buffer.load(b.0.offset(start as isize * b.1), b.1, count, y);
            let c = c_buffer.load(c.0.offset(start as isize * c.1), c.1, count, y);
            (a, b, c, std::slice::from_raw_parts_mut(y, count))
        };
        for (y, ((&a, &b), &c)) in y.iter_mut().zip(a.iter().zip(b).zip(c)) {
            *y = f(a, b, c);
        }
        start += count;
    }
}

/// A walk in the order in which the last operand lies, whatever the order of its dimensions.
///
/// # Errors
/// Where elements of its innermost runs lie apart.
fn walk_of<const N: usize>(sizes: &[usize], strides: [Vec<isize>; N]) -> Result<Walk<N>, String> {
    let mut order: Vec<usize> = (0..sizes.len()).filter(|&dimension| sizes[dimension] > 1).collect();
    order.sort_by_key(|&dimension| Reverse(strides[N - 1][dimension]));
    if order.last().is_some_and(|&innermost| strides[N - 1][innermost] != 1) {
        return Err(format!("elements of an output with strides {:?} lie apart", strides[N - 1]));
    }
    let sizes: Vec<usize> = order.iter().map(|&dimension| sizes[dimension]).collect();
    let strides = strides.map(|strides| order.iter().map(|&dimension| strides[dimension]).collect());
    Ok(Walk::new(&sizes, &strides))
}

/// y = f(a), elementwise over y's sizes; `a` may be strided and broadcasts.
///
/// # Safety
/// As [`super::run`], and the element types must be those of the views.
#[inline(always)]
pub(super) unsafe fn map1<A: Element, Y: Element>(a: &View, y: &View, f: impl Fn(A) -> Y + Sync) -> Result<(), String> {
    let sizes = y.sizes();
    let walk = walk_of(&sizes, [broadcast_strides(a, &sizes)?, broadcast_strides(y, &sizes)?])?;
    let (a, y) = (Pointer::<A>::of(a), Pointer::<Y>::of(y));
    let [a_stride, _] = walk.inner_strides();
    walk.for_each_run(
        #[inline(always)]
        // SAFETY: runs stay inside the operands, and no two runs share an output element.
        |[a_offset, y_offset], length| unsafe { run1((a.at(a_offset), a_stride), y.at(y_offset), length, &f) },
    );
    Ok(())
}

/// y = f(a, b), elementwise over y's sizes; `a` and `b` may be strided and broadcast.
///
/// # Safety
/// As [`map1`].
#[inline(always)]
pub(super) unsafe fn map2<A: Element, B: Element, Y: Element>(
    a: &View,
    b: &View,
    y: &View,
    f: impl Fn(A, B) -> Y + Sync,
) -> Result<(), String> {
    let sizes = y.sizes();
    let strides = [broadcast_strides(a, &sizes)?, broadcast_strides(b, &sizes)?, broadcast_strides(y, &sizes)?];
    let walk = walk_of(&sizes, strides)?;
    let (a, b, y) = (Pointer::<A>::of(a), Pointer::<B>::of(b), Pointer::<Y>::of(y));
    let [a_stride, b_stride, _] = walk.inner_strides();
    walk.for_each_run(
        #[inline(always)]
        // SAFETY: as in `map1`.
        |[a_offset, b_offset, y_offset], length| unsafe {
            run2((a.at(a_offset), a_stride), (b.at(b_offset), b_stride), y.at(y_offset), length, &f)
        },
    );
    Ok(())
}

/// y = f(a, b, c), elementwise over y's sizes; the operands may be strided and broadcast.
///
/// # Safety
/// As [`map1`].
#[inline(always)]
pub(super) unsafe fn map3<A: Element, B: Element, C: Element, Y: Element>(
    a: &View,
    b: &View,
    c: &View,
    y: &View,
    f: impl Fn(A, B, C) -> Y + Sync,
) -> Result<(), String> {
    let sizes = y.sizes();
    let strides = [
        broadcast_strides(a, &sizes)?,
        broadcast_strides(b, &sizes)?,
        broadcast_strides(c, &sizes)?,
        broadcast_strides(y, &sizes)?,
    ];
    let walk = walk_of(&sizes, strides)?;
    let (a, b, c, y) = (Pointer::<A>::of(a), Pointer::<B>::of(b), Pointer::<C>::of(c), Pointer::<Y>::of(y));
    let [a_stride, b_stride, c_stride, _] = walk.inner_strides();
    walk.for_each_run(
        #[inline(always)]
        // SAFETY: as in `map1`.
        |[a_offset, b_offset, c_offset, y_offset], length| unsafe {
            let (a, b, c) = ((a.at(a_offset), a_stride), (b.at(b_offset), b_stride), (c.at(c_offset), c_stride));
            run3((a.0, a.1), (b.0, b.1), (c.0, c.1), y.at(y_offset), length, &f)
        },
    );
    Ok(())
}
