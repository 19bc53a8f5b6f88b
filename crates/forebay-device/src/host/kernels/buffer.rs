//! Blocks of operands: the elements in place, or a copy of them in a buffer.

use std::mem::MaybeUninit;

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

    /// Returns room for up to [`BLOCK`] elements.
    #[inline(always)]
    pub fn room(&mut self, length: usize) -> &mut [MaybeUninit<T>] {
        &mut self.0[..length]
    }

    /// Returns a copy of up to [`BLOCK`] elements with stride 1.
    ///
    /// # Safety
    /// The elements must be readable, and `length` at most [`BLOCK`].
    #[inline(always)]
    pub unsafe fn copy_of(&mut self, source: *const T, length: usize) -> &[T] {
        // SAFETY: the source is readable by the caller's promise, the buffer is long enough, and the two do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(source, self.0.as_mut_ptr().cast(), length);
            std::slice::from_raw_parts(self.0.as_ptr().cast(), length)
        }
    }

    /// Returns elements with any stride as a slice that does not overlap `written`: the operand itself if possible.
    ///
    /// # Safety
    /// The elements must be readable and unwritten while the slice lives, except at `written` if the operand starts there; `length` must be
    /// at most [`BLOCK`], unless they are read in place.
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
    /// Returns some of the elements, starting at one of them, as a slice that does not overlap the elements written at `written`.
    ///
    /// # Safety
    /// As [`Buffer::load`].
    unsafe fn load(self, first: usize, length: usize, buffer: &mut Buffer<A>, written: *const u8) -> &[A];

    /// Whether [`Source::load`] returns the elements themselves, however many, while a run that starts at `written` is written.
    fn is_in_place(self, written: *const u8) -> bool;
}

/// A run of elements to write, with stride 1.
pub(super) trait Target<Y>: Copy {
    /// The address of an element.
    fn address(self, first: usize) -> *const u8;

    /// Writes some of the elements, starting at one of them, with the values that `fill` stores. `fill` reads none of the elements that it
    /// is given.
    ///
    /// # Safety
    /// The elements must be writable and belong to no one else, and `length` must be at most [`BLOCK`], unless they are written in place.
    unsafe fn write(self, first: usize, length: usize, buffer: &mut Buffer<Y>, fill: impl FnOnce(&mut [Y]));

    /// Whether [`Target::write`] gives the elements themselves to `fill`, however many.
    fn is_in_place(self) -> bool;
}

/// An address and a stride.
impl<A: Copy> Source<A> for (*const A, isize) {
    #[inline(always)]
    unsafe fn load(self, first: usize, length: usize, buffer: &mut Buffer<A>, written: *const u8) -> &[A] {
        // SAFETY: the caller's promise.
        unsafe { buffer.load(self.0.offset(first as isize * self.1), self.1, length, written) }
    }

    #[inline(always)]
    fn is_in_place(self, written: *const u8) -> bool {
        self.1 == 1 && self.0.cast() != written
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

    #[inline(always)]
    fn is_in_place(self) -> bool {
        true
    }
}
