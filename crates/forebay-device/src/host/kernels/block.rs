//! Elementwise loops that work for every stride and in place, and still become vector code.
//!
//! A run is computed in blocks. An operand that lies with stride 1 elsewhere is read where it lies; one that is strided, or
//! that is the very bytes being written, is first copied to a buffer. So the loop never sees two references to one byte.

use std::cmp::Reverse;
use std::mem::MaybeUninit;

use super::element::Element;
use super::parallel::{broadcast_strides, Walk};
use super::stored::Stored;
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

    /// Room for up to [`BLOCK`] elements.
    #[inline(always)]
    pub fn room(&mut self, length: usize) -> &mut [MaybeUninit<T>] {
        &mut self.0[..length]
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

/// A run of elements to read.
pub(super) trait Source<A>: Copy {
    /// Some of them, from one of them on, as a slice that does not overlap what is written at `written`.
    ///
    /// # Safety
    /// As [`Buffer::load`].
    unsafe fn load(self, first: usize, length: usize, buffer: &mut Buffer<A>, written: *const u8) -> &[A];
}

/// A run of elements to write, with stride 1.
pub(super) trait Target<Y>: Copy {
    /// Where an element lies.
    fn address(self, first: usize) -> *const u8;

    /// Writes some of them, from one of them on: what `fill` makes of them, which reads none of the elements that it is given.
    ///
    /// # Safety
    /// They must be writable and no one else's, and `length` at most [`BLOCK`].
    unsafe fn write(self, first: usize, length: usize, buffer: &mut Buffer<Y>, fill: impl FnOnce(&mut [Y]));
}

/// An address and a stride.
impl<A: Copy> Source<A> for (*const A, isize) {
    #[inline(always)]
    unsafe fn load(self, first: usize, length: usize, buffer: &mut Buffer<A>, written: *const u8) -> &[A] {
        // SAFETY: the caller's promise.
        unsafe { buffer.load(self.0.offset(first as isize * self.1), self.1, length, written) }
    }
}

impl<Y> Target<Y> for *mut Y {
    #[inline(always)]
    fn address(self, first: usize) -> *const u8 {
        self.wrapping_add(first).cast_const().cast()
    }

    #[inline(always)]
    unsafe fn write(self, first: usize, length: usize, _: &mut Buffer<Y>, fill: impl FnOnce(&mut [Y])) {
        // SAFETY: the caller's promise.
        fill(unsafe { std::slice::from_raw_parts_mut(self.add(first), length) });
    }
}

/// y\[i] = f(a\[i]) for a run.
///
/// # Safety
/// Every element must lie in its operand and be free to read or write; `y` may be the very bytes of `a` with stride 1.
#[inline(always)]
pub(super) unsafe fn run1<A, Y>(a: impl Source<A>, y: impl Target<Y>, length: usize, f: impl Fn(A) -> Y)
where
    A: Copy,
    Y: Copy,
{
    let (mut a_buffer, mut y_buffer) = (Buffer::new(), Buffer::new());
    for start in (0..length).step_by(BLOCK) {
        let count = BLOCK.min(length - start);
        // SAFETY: the block lies in the run; the loads do not overlap the output, which no one else touches.
        unsafe {
            let a = a.load(start, count, &mut a_buffer, y.address(start));
            y.write(
                start,
                count,
                &mut y_buffer,
                #[inline(always)]
                |y| y.iter_mut().zip(a).for_each(|(y, &a)| *y = f(a)),
            );
        }
    }
}

/// y\[i] = f(a\[i], b\[i]) for a run.
///
/// # Safety
/// As [`run1`]; `y` may be the very bytes of `a` or `b` or both.
#[inline(always)]
pub(super) unsafe fn run2<A, B, Y>(
    a: impl Source<A>,
    b: impl Source<B>,
    y: impl Target<Y>,
    length: usize,
    f: impl Fn(A, B) -> Y,
) where
    A: Copy,
    B: Copy,
    Y: Copy,
{
    let (mut a_buffer, mut b_buffer, mut y_buffer) = (Buffer::new(), Buffer::new(), Buffer::new());
    for start in (0..length).step_by(BLOCK) {
        let count = BLOCK.min(length - start);
        // SAFETY: as in `run1`.
        unsafe {
            let a = a.load(start, count, &mut a_buffer, y.address(start));
            let b = b.load(start, count, &mut b_buffer, y.address(start));
            y.write(
                start,
                count,
                &mut y_buffer,
                #[inline(always)]
                |y| y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (&a, &b))| *y = f(a, b)),
            );
        }
    }
}

/// y\[i] = f(a\[i], b\[i], c\[i]) for a run.
///
/// # Safety
/// As [`run1`]; `y` may be the very bytes of any operand.
#[inline(always)]
pub(super) unsafe fn run3<A, B, C, Y>(
    a: impl Source<A>,
    b: impl Source<B>,
    c: impl Source<C>,
    y: impl Target<Y>,
    length: usize,
    f: impl Fn(A, B, C) -> Y,
) where
    A: Copy,
    B: Copy,
    C: Copy,
    Y: Copy,
{
    let (mut a_buffer, mut b_buffer, mut c_buffer) = (Buffer::new(), Buffer::new(), Buffer::new());
    let mut y_buffer = Buffer::new();
    for start in (0..length).step_by(BLOCK) {
        let count = BLOCK.min(length - start);
        // SAFETY: as in `run1`.
        unsafe {
            let a = a.load(start, count, &mut a_buffer, y.address(start));
            let b = b.load(start, count, &mut b_buffer, y.address(start));
            let c = c.load(start, count, &mut c_buffer, y.address(start));
            y.write(
                start,
                count,
                &mut y_buffer,
                #[inline(always)]
                |y| y.iter_mut().zip(a.iter().zip(b).zip(c)).for_each(|(y, ((&a, &b), &c))| *y = f(a, b, c)),
            );
        }
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
    let (a, y) = (Stored::<A>::of(a), Stored::<Y>::of(y));
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
    let (a, b, y) = (Stored::<A>::of(a), Stored::<B>::of(b), Stored::<Y>::of(y));
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
    let (a, b, c, y) = (Stored::<A>::of(a), Stored::<B>::of(b), Stored::<C>::of(c), Stored::<Y>::of(y));
    let [a_stride, b_stride, c_stride, _] = walk.inner_strides();
    walk.for_each_run(
        #[inline(always)]
        // SAFETY: as in `map1`.
        |[a_offset, b_offset, c_offset, y_offset], length| unsafe {
            let (a, b, c) = ((a.at(a_offset), a_stride), (b.at(b_offset), b_stride), (c.at(c_offset), c_stride));
            run3(a, b, c, y.at(y_offset), length, &f)
        },
    );
    Ok(())
}
