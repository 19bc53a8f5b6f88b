//! Elementwise loops that work for any strides and in place, and still become vector code.
//!
//! A run is computed in blocks. An operand that has stride 1 and is in different memory is read in place; one that is strided, or occupies
//! the very bytes being written, is first copied to a buffer. So the loop never sees two references to the same byte.

use std::cmp::Reverse;

use super::View;
use super::buffer::{BLOCK, Buffer, Source, Target};
use super::element::Element;
use super::parallel::{Walk, broadcast_strides};
use super::stored::Stored;

/// Computes y\[i] = f(a\[i]) for a run.
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

/// Computes y\[i] = f(a\[i], b\[i]) for a run.
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

/// Computes y\[i] = f(a\[i], b\[i], c\[i]) for a run.
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

/// A walk in the memory order of the last operand, regardless of the order of its dimensions.
///
/// # Errors
/// Returns an error if elements of its innermost runs are not adjacent.
fn walk_of<const N: usize>(sizes: &[usize], strides: [Vec<isize>; N]) -> Result<Walk<N>, String> {
    let mut order: Vec<usize> = (0..sizes.len()).filter(|&dimension| sizes[dimension] > 1).collect();
    order.sort_by_key(|&dimension| Reverse(strides[N - 1][dimension]));
    if order.last().is_some_and(|&innermost| strides[N - 1][innermost] != 1) {
        return Err(format!("the elements of an output with strides {:?} are not contiguous", strides[N - 1]));
    }
    let sizes: Vec<usize> = order.iter().map(|&dimension| sizes[dimension]).collect();
    let strides = strides.map(|strides| order.iter().map(|&dimension| strides[dimension]).collect());
    Ok(Walk::new(&sizes, &strides))
}

/// Computes y = f(a) elementwise over y's sizes; `a` may be strided and broadcasts.
///
/// # Safety
/// As [`super::run`], and the element types must be those of the views.
#[inline(always)]
#[allow(clippy::redundant_closure, reason = "a call by reference need not be inlined")]
pub(super) unsafe fn map1<A: Element, Y: Element>(a: &View, y: &View, f: impl Fn(A) -> Y + Sync) -> Result<(), String> {
    let sizes = y.sizes();
    let walk = walk_of(&sizes, [broadcast_strides(a, &sizes)?, broadcast_strides(y, &sizes)?])?;
    let (a, y) = (Stored::<A>::of(a), Stored::<Y>::of(y));
    let [a_stride, _] = walk.inner_strides();
    walk.for_each_run(
        #[inline(always)]
        // SAFETY: runs stay inside the operands, and no two runs share an output element.
        |[a_offset, y_offset], length| unsafe {
            run1(
                (a.at(a_offset), a_stride),
                y.at(y_offset),
                length,
                #[inline(always)]
                |a| f(a),
            );
        },
    );
    Ok(())
}

/// Computes y = f(a, b) elementwise over y's sizes; `a` and `b` may be strided and broadcast.
///
/// # Safety
/// As [`map1`].
#[inline(always)]
#[allow(clippy::redundant_closure, reason = "a call by reference need not be inlined")]
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
            let (a, b) = ((a.at(a_offset), a_stride), (b.at(b_offset), b_stride));
            run2(
                a,
                b,
                y.at(y_offset),
                length,
                #[inline(always)]
                |a, b| f(a, b),
            );
        },
    );
    Ok(())
}

/// Computes y = f(a, b, c) elementwise over y's sizes; the operands may be strided and broadcast.
///
/// # Safety
/// As [`map1`].
#[inline(always)]
#[allow(clippy::redundant_closure, reason = "a call by reference need not be inlined")]
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
            run3(
                a,
                b,
                c,
                y.at(y_offset),
                length,
                #[inline(always)]
                |a, b, c| f(a, b, c),
            );
        },
    );
    Ok(())
}
