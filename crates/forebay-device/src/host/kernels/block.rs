//! Elementwise loops that work for any strides and in place, and still become vector code.
//!
//! A run is computed in blocks. An operand that has stride 1 and is in different memory is read in place; one that is strided, or occupies
//! the very bytes being written, is first copied to a buffer. So the loop never sees two references to the same byte.
//!
//! [`map1`], [`map2`] and [`map3`] compile only the innermost loop for each function: the walk over the operands, which takes most of the
//! code, is compiled once for their types and calls the loop through a pointer.

use std::cmp::Reverse;
use std::ops::Range;

use super::View;
use super::buffer::{BLOCK, Buffer, Source, Target};
use super::element::Element;
use super::parallel::{CHUNK, Walk, broadcast_strides, for_chunks, wide};
use super::stored::Stored;

/// Calls `work` with the blocks of a run of one operand and with the room for their results.
///
/// # Safety
/// Every element must lie in its operand and be free to read or write; `y` may be the very bytes of `a` with stride 1.
#[inline(always)]
unsafe fn blocks1<A, Y>(a: impl Source<A>, y: impl Target<Y>, length: usize, work: impl Fn(&[A], &mut [Y]))
where
    A: Copy,
    Y: Copy,
{
    let (mut a_buffer, mut y_buffer) = (Buffer::new(), Buffer::new());
    let is_in_place = a.is_in_place(y.address(0)) && y.is_in_place();
    for (start, count) in blocks(length, is_in_place) {
        // SAFETY: the block lies in the run; the loads do not overlap the output, which no one else touches.
        unsafe {
            let a = a.load(start, count, &mut a_buffer, y.address(start));
            y.write(
                start,
                count,
                &mut y_buffer,
                #[inline(always)]
                |y| work(a, y),
            );
        }
    }
}

/// Calls `work` with the blocks of a run of two operands and with the room for their results.
///
/// # Safety
/// As [`blocks1`]; `y` may be the very bytes of `a` or `b` or both.
#[inline(always)]
unsafe fn blocks2<A, B, Y>(
    a: impl Source<A>,
    b: impl Source<B>,
    y: impl Target<Y>,
    length: usize,
    work: impl Fn(&[A], &[B], &mut [Y]),
) where
    A: Copy,
    B: Copy,
    Y: Copy,
{
    let (mut a_buffer, mut b_buffer, mut y_buffer) = (Buffer::new(), Buffer::new(), Buffer::new());
    let is_in_place = a.is_in_place(y.address(0)) && b.is_in_place(y.address(0)) && y.is_in_place();
    for (start, count) in blocks(length, is_in_place) {
        // SAFETY: as in `blocks1`.
        unsafe {
            let a = a.load(start, count, &mut a_buffer, y.address(start));
            let b = b.load(start, count, &mut b_buffer, y.address(start));
            y.write(
                start,
                count,
                &mut y_buffer,
                #[inline(always)]
                |y| work(a, b, y),
            );
        }
    }
}

/// Calls `work` with the blocks of a run of three operands and with the room for their results.
///
/// # Safety
/// As [`blocks1`]; `y` may be the very bytes of any operand.
#[inline(always)]
unsafe fn blocks3<A, B, C, Y>(
    a: impl Source<A>,
    b: impl Source<B>,
    c: impl Source<C>,
    y: impl Target<Y>,
    length: usize,
    work: impl Fn(&[A], &[B], &[C], &mut [Y]),
) where
    A: Copy,
    B: Copy,
    C: Copy,
    Y: Copy,
{
    let (mut a_buffer, mut b_buffer, mut c_buffer) = (Buffer::new(), Buffer::new(), Buffer::new());
    let mut y_buffer = Buffer::new();
    let written = y.address(0);
    let is_in_place = a.is_in_place(written) && b.is_in_place(written) && c.is_in_place(written) && y.is_in_place();
    for (start, count) in blocks(length, is_in_place) {
        // SAFETY: as in `blocks1`.
        unsafe {
            let a = a.load(start, count, &mut a_buffer, y.address(start));
            let b = b.load(start, count, &mut b_buffer, y.address(start));
            let c = c.load(start, count, &mut c_buffer, y.address(start));
            y.write(
                start,
                count,
                &mut y_buffer,
                #[inline(always)]
                |y| work(a, b, c, y),
            );
        }
    }
}

/// The first element of each block of a run and the block's length: the whole run if no buffer is needed.
#[inline(always)]
fn blocks(length: usize, is_in_place: bool) -> impl Iterator<Item = (usize, usize)> {
    let block = if is_in_place { length.max(1) } else { BLOCK };
    (0..length).step_by(block).map(
        #[inline(always)]
        move |start| (start, block.min(length - start)),
    )
}

/// Computes y\[i] = f(a\[i]).
#[inline(always)]
pub(super) fn loop1<A: Copy, Y>(a: &[A], y: &mut [Y], f: &impl Fn(A) -> Y) {
    y.iter_mut().zip(a).for_each(|(y, &a)| *y = f(a));
}

/// Computes y\[i] = f(a\[i], b\[i]).
#[inline(always)]
fn loop2<A: Copy, B: Copy, Y>(a: &[A], b: &[B], y: &mut [Y], f: &impl Fn(A, B) -> Y) {
    y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (&a, &b))| *y = f(a, b));
}

/// Computes y\[i] = f(a\[i], b\[i], c\[i]).
#[inline(always)]
fn loop3<A: Copy, B: Copy, C: Copy, Y>(a: &[A], b: &[B], c: &[C], y: &mut [Y], f: &impl Fn(A, B, C) -> Y) {
    y.iter_mut().zip(a.iter().zip(b).zip(c)).for_each(|(y, ((&a, &b), &c))| *y = f(a, b, c));
}

/// Computes y\[i] = f(a\[i]) for a run.
///
/// # Safety
/// As [`blocks1`].
#[inline(always)]
pub(super) unsafe fn run1<A, Y>(a: impl Source<A>, y: impl Target<Y>, length: usize, f: impl Fn(A) -> Y)
where
    A: Copy,
    Y: Copy,
{
    // SAFETY: the caller's promises.
    unsafe {
        blocks1(
            a,
            y,
            length,
            #[inline(always)]
            |a, y| loop1(a, y, &f),
        );
    }
}

/// Computes y\[i] = f(a\[i], b\[i]) for a run.
///
/// # Safety
/// As [`blocks2`].
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
    // SAFETY: the caller's promises.
    unsafe {
        blocks2(
            a,
            b,
            y,
            length,
            #[inline(always)]
            |a, b, y| loop2(a, b, y, &f),
        );
    }
}

/// Computes y\[i] = f(a\[i], b\[i], c\[i]) for a run.
///
/// # Safety
/// As [`blocks3`].
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
    // SAFETY: the caller's promises.
    unsafe {
        blocks3(
            a,
            b,
            c,
            y,
            length,
            #[inline(always)]
            |a, b, c, y| loop3(a, b, c, y, &f),
        );
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

/// Returns whether the elements of both are in the same order without gaps.
fn are_alike(x: &View, y: &View) -> bool {
    x.desc.is_packed() && y.desc.is_packed() && x.desc.sizes() == y.desc.sizes()
}

/// Runs of fewer elements are gathered into blocks, so that a loop is not called for each of them.
const SHORT: usize = 64;

/// Returns whether runs are short and the last operand's follow each other without gaps.
fn has_short_runs<const N: usize>(walk: &Walk<N>) -> bool {
    walk.sizes().last().is_some_and(|&length| length < SHORT) && walk.is_contiguous(N - 1)
}

/// Returns some elements of an operand in the order of a walk, at most [`BLOCK`] of them, as a slice that does not overlap `written`.
///
/// # Safety
/// As [`Buffer::load`]; the operand must be the one with this number in the walk.
unsafe fn gather<'b, T: Element, const N: usize>(
    walk: &Walk<N>,
    number: usize,
    operand: Stored<T>,
    elements: Range<usize>,
    buffer: &'b mut Buffer<T>,
    written: *const u8,
) -> &'b [T] {
    // SAFETY: the elements lie in the operand, and the runs have as many as the buffer has room for.
    unsafe {
        if walk.is_contiguous(number) {
            return (operand.at(elements.start as isize), 1).load(0, elements.len(), buffer, written);
        }
        let stride = walk.inner_strides()[number];
        let (room, mut filled) = (buffer.room(elements.len()).as_mut_ptr().cast::<T>(), 0);
        let count = elements.len();
        walk.runs(elements, |offsets, length| {
            let (mut single, from) = (Buffer::new(), operand.at(offsets[number]));
            match from.own() {
                Some(from) => {
                    (0..length).for_each(|i| *room.add(filled + i) = *from.offset(i as isize * stride));
                }
                None => {
                    let run = (from, stride).load(0, length, &mut single, written);
                    std::ptr::copy_nonoverlapping(run.as_ptr(), room.add(filled), length);
                }
            }
            filled += length;
        });
        std::slice::from_raw_parts(room, count)
    }
}

/// Computes y = f(a) elementwise over y's sizes; `a` may be strided and broadcasts.
///
/// # Safety
/// As [`super::run`], and the element types must be those of the views.
#[inline(always)]
pub(super) unsafe fn map1<A: Element, Y: Element>(a: &View, y: &View, f: impl Fn(A) -> Y + Sync) -> Result<(), String> {
    // SAFETY: the caller's promises.
    unsafe {
        map1_blocks(a, y, &|a: &[A], y: &mut [Y]| {
            wide(
                #[inline(always)]
                || loop1(a, y, &f),
            );
        })
    }
}

/// Computes y elementwise over its sizes: `work` computes blocks of it from the same blocks of `a`.
///
/// # Safety
/// As [`map1`].
pub(super) unsafe fn map1_blocks<A: Element, Y: Element>(
    a: &View,
    y: &View,
    work: &(dyn Fn(&[A], &mut [Y]) + Sync),
) -> Result<(), String> {
    let (a_view, y_view, count) = (a, y, y.count());
    let (a, y) = (Stored::<A>::of(a_view), Stored::<Y>::written(y_view, &[a_view]));
    if are_alike(a_view, y_view) {
        // SAFETY: the elements lie in the operands, and chunks are disjoint.
        for_chunks(count, CHUNK, |range| unsafe {
            let start = range.start as isize;
            blocks1((a.at(start), 1), y.at(start), range.len(), work);
        });
        return Ok(());
    }
    let sizes = y_view.sizes();
    let walk = walk_of(&sizes, [broadcast_strides(a_view, &sizes)?, broadcast_strides(y_view, &sizes)?])?;
    let ([a_stride, _], has_short_runs) = (walk.inner_strides(), has_short_runs(&walk));
    for_chunks(count, CHUNK, |range| {
        if !has_short_runs {
            // SAFETY: runs stay inside the operands, and no two runs share an output element.
            return walk.runs(range, |[from, to], length| unsafe {
                blocks1((a.at(from), a_stride), y.at(to), length, work);
            });
        }
        for (start, length) in blocks(range.len(), false) {
            let first = range.start + start;
            let (mut a_buffer, mut y_buffer) = (Buffer::new(), Buffer::new());
            // SAFETY: the block lies in both operands, and blocks are disjoint.
            unsafe {
                let y = y.at(first as isize);
                let a = gather(&walk, 0, a, first..first + length, &mut a_buffer, y.address(0));
                y.write(0, length, &mut y_buffer, |y| work(a, y));
            }
        }
    });
    Ok(())
}

/// Computes y = f(a, b) elementwise over y's sizes; `a` and `b` may be strided and broadcast.
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
    // SAFETY: the caller's promises.
    unsafe {
        map2_blocks(a, b, y, &|a: &[A], b: &[B], y: &mut [Y]| {
            wide(
                #[inline(always)]
                || loop2(a, b, y, &f),
            );
        })
    }
}

/// Computes a block of results from the same blocks of two operands.
type BinaryBlock<'a, A, B, Y> = &'a (dyn Fn(&[A], &[B], &mut [Y]) + Sync);

/// Computes y elementwise over its sizes: `work` computes blocks of it from the same blocks of `a` and `b`.
///
/// # Safety
/// As [`map1`].
unsafe fn map2_blocks<A: Element, B: Element, Y: Element>(
    a: &View,
    b: &View,
    y: &View,
    work: BinaryBlock<A, B, Y>,
) -> Result<(), String> {
    let (a_view, b_view, y_view, count) = (a, b, y, y.count());
    let (a, b) = (Stored::<A>::of(a_view), Stored::<B>::of(b_view));
    let y = Stored::<Y>::written(y_view, &[a_view, b_view]);
    if are_alike(a_view, y_view) && are_alike(b_view, y_view) {
        // SAFETY: the elements lie in the operands, and chunks are disjoint.
        for_chunks(count, CHUNK, |range| unsafe {
            let start = range.start as isize;
            blocks2((a.at(start), 1), (b.at(start), 1), y.at(start), range.len(), work);
        });
        return Ok(());
    }
    let sizes = y_view.sizes();
    let [of_a, of_b, of_y] = [a_view, b_view, y_view].map(|view| broadcast_strides(view, &sizes));
    let walk = walk_of(&sizes, [of_a?, of_b?, of_y?])?;
    let ([a_stride, b_stride, _], has_short_runs) = (walk.inner_strides(), has_short_runs(&walk));
    for_chunks(count, CHUNK, |range| {
        if !has_short_runs {
            // SAFETY: as in `map1_blocks`.
            return walk.runs(range, |[a_from, b_from, to], length| unsafe {
                blocks2((a.at(a_from), a_stride), (b.at(b_from), b_stride), y.at(to), length, work);
            });
        }
        for (start, length) in blocks(range.len(), false) {
            let first = range.start + start;
            let elements = first..first + length;
            let (mut a_buffer, mut b_buffer, mut y_buffer) = (Buffer::new(), Buffer::new(), Buffer::new());
            // SAFETY: the block lies in the operands, and blocks are disjoint.
            unsafe {
                let y = y.at(first as isize);
                let a = gather(&walk, 0, a, elements.clone(), &mut a_buffer, y.address(0));
                let b = gather(&walk, 1, b, elements, &mut b_buffer, y.address(0));
                y.write(0, length, &mut y_buffer, |y| work(a, b, y));
            }
        }
    });
    Ok(())
}

/// Computes y = f(a, b, c) elementwise over y's sizes; the operands may be strided and broadcast.
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
    let y = Stored::<Y>::written(y, &[a, b, c]);
    let (a, b, c) = (Stored::<A>::of(a), Stored::<B>::of(b), Stored::<C>::of(c));
    let [a_stride, b_stride, c_stride, _] = walk.inner_strides();
    for_chunks(walk.count(), CHUNK, |range| {
        // SAFETY: as in `map1_blocks`.
        walk.runs(range, |[a_offset, b_offset, c_offset, y_offset], length| unsafe {
            let (a, b, c) = ((a.at(a_offset), a_stride), (b.at(b_offset), b_stride), (c.at(c_offset), c_stride));
            blocks3(a, b, c, y.at(y_offset), length, |a, b, c, y| {
                wide(
                    #[inline(always)]
                    || loop3(a, b, c, y, &f),
                );
            });
        });
    });
    Ok(())
}
