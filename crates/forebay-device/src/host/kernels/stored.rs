//! Operands in the type in which kernels compute with them, however they are stored: a kernel that computes in float32 can read and write
//! float16 and bfloat16 if its facts say so (`forebay_base::kernel::facts::SixteenBit`).
//!
//! Blocks of elements are widened into a buffer before a loop reads them, and rounded from a buffer after it, so the loop itself is the one
//! for float32.

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use forebay_base::DataType;

use super::super::copying;
use super::View;
use super::buffer::{BLOCK, Buffer, Source, Target};
use super::cache;
use super::element::Element;
use super::parallel::wide;

/// How the elements of an operand are stored in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// In the type of the computation.
    Own,
    Float16,
    BFloat16,
}

/// The elements of an operand whose type in computations is `T`.
#[derive(Debug)]
pub(super) struct Stored<T> {
    address: *mut u8,
    format: Format,
    /// Whether elements are written past the caches.
    bypasses_caches: bool,
    element: PhantomData<T>,
}

impl<T> Clone for Stored<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Stored<T> {}

// SAFETY: this is only an address; `kernels::run`'s caller and each kernel's chunking promise who may access the bytes and when.
unsafe impl<T> Send for Stored<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Stored<T> {}

impl<T: Element> Stored<T> {
    /// The elements of a view of type `T` or, if that is `f32`, of a 16-bit type.
    pub fn of(view: &View) -> Stored<T> {
        let format = match view.desc.data_type() {
            DataType::Float16 if is_f32::<T>() => Format::Float16,
            DataType::BFloat16 if is_f32::<T>() => Format::BFloat16,
            _ => Format::Own,
        };
        Stored { address: view.pointer, format, bypasses_caches: false, element: PhantomData }
    }

    /// The elements of a view that a kernel writes once and does not read: large results are written past the caches, except where they
    /// replace one of these operands, whose lines are in the caches then.
    pub fn written(view: &View, operands: &[&View]) -> Stored<T> {
        let stored = Stored::of(view);
        let replaces = operands.iter().any(|operand| operand.pointer == view.pointer);
        let bypasses_caches = stored.is_own() && !replaces && cache::is_bypassed_by(view.desc.total_size_bytes());
        Stored { bypasses_caches, ..stored }
    }

    /// Returns the elements from another one on.
    ///
    /// # Safety
    /// The element must lie in the operand.
    #[inline(always)]
    pub unsafe fn at(self, offset: isize) -> Stored<T> {
        // SAFETY: in bounds by the caller's promise.
        Stored { address: unsafe { self.address.offset(offset * self.element_bytes()) }, ..self }
    }

    /// Returns the first element.
    ///
    /// # Safety
    /// The element must be readable.
    #[inline(always)]
    pub unsafe fn first(self) -> T {
        let mut buffer = Buffer::new();
        // SAFETY: the caller's promise; nothing is written while the slice lives.
        unsafe { (self, 1).load(0, 1, &mut buffer, std::ptr::null())[0] }
    }

    /// Whether elements are stored in the type of the computation.
    #[inline(always)]
    pub fn is_own(self) -> bool {
        !is_f32::<T>() || self.format == Format::Own
    }

    /// The address of the elements if they are stored in the type of the computation.
    #[inline(always)]
    pub fn own(self) -> Option<*mut T> {
        self.is_own().then(|| self.address.cast())
    }

    /// Whether elements are written past the caches by [`Target::write`] and [`Stored::store`], for which they wait in a buffer.
    #[inline(always)]
    pub fn bypasses_caches(self) -> bool {
        self.bypasses_caches
    }

    /// The number of buffer elements for a copy of `count` elements: none if they are stored in the type of the computation.
    pub fn room(self, count: usize) -> usize {
        if self.is_own() { 0 } else { count }
    }

    #[inline(always)]
    fn element_bytes(self) -> isize {
        if self.is_own() { size_of::<T>() as isize } else { size_of::<u16>() as isize }
    }
}

/// Calls `work` with all elements of a run of some operands, starting at a given element of each: at once, or block by block if one of them
/// is not stored in the type of the computation. All blocks except the last have [`BLOCK`] elements.
///
/// # Safety
/// The elements must lie in the operands, and no one may write them.
#[inline(always)]
pub(super) unsafe fn for_each_block<T: Element, const N: usize>(
    operands: [Stored<T>; N],
    starts: [usize; N],
    length: usize,
    mut work: impl FnMut([&[T]; N]),
) {
    let block = if operands.iter().all(|operand| operand.is_own()) { length.max(1) } else { BLOCK };
    let mut buffers: [Buffer<T>; N] = std::array::from_fn(|_| Buffer::new());
    for first in (0..length).step_by(block) {
        let count = block.min(length - first);
        let mut rest = buffers.iter_mut();
        // SAFETY: the caller's promises. Operands that are stored in the type of the computation are read in place.
        work(std::array::from_fn(|n| unsafe {
            let run = (operands[n].at(starts[n] as isize), 1);
            match rest.next() {
                Some(buffer) => run.load(first, count, buffer, std::ptr::null()),
                None => &[],
            }
        }));
    }
}

impl<T: Element> Source<T> for (Stored<T>, isize) {
    #[inline(always)]
    unsafe fn load(self, first: usize, length: usize, buffer: &mut Buffer<T>, written: *const u8) -> &[T] {
        let (operand, stride) = self;
        // SAFETY: the caller's promises. If elements are not stored as `T`, they are widened to `f32`, which then is `T`.
        unsafe {
            let from = operand.at(first as isize * stride);
            if operand.is_own() {
                return buffer.load(from.address.cast_const().cast(), stride, length, written);
            }
            let room = buffer.room(length);
            let wide: &mut [MaybeUninit<f32>] = std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), length);
            widen(operand.format, from.address.cast_const().cast(), stride, wide);
            std::slice::from_raw_parts(room.as_ptr().cast(), length)
        }
    }

    #[inline(always)]
    fn is_in_place(self, written: *const u8) -> bool {
        self.0.is_own() && (self.0.address.cast_const(), self.1).is_in_place(written)
    }
}

impl<T: Element> Target<T> for Stored<T> {
    #[inline(always)]
    fn address(self, first: usize) -> *const u8 {
        self.address.wrapping_offset(first as isize * self.element_bytes())
    }

    #[inline(always)]
    unsafe fn write(self, first: usize, length: usize, buffer: &mut Buffer<T>, fill: impl FnOnce(&mut [T])) {
        // SAFETY: the caller's promises. If elements are not stored as `T`, they are rounded from `f32`, which then is `T`.
        unsafe {
            let to = self.at(first as isize);
            if self.is_in_place() {
                fill(std::slice::from_raw_parts_mut(to.address.cast(), length));
                return;
            }
            let room = buffer.room(length);
            room.fill(MaybeUninit::new(T::ZERO));
            let values: &mut [T] = std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), length);
            fill(values);
            if self.bypasses_caches {
                return copying::stream::<0>(values.as_ptr().cast(), to.address, size_of_val(values));
            }
            let wide: &[f32] = std::slice::from_raw_parts(values.as_ptr().cast(), length);
            round(self.format, wide, to.address.cast());
        }
    }

    #[inline(always)]
    fn is_in_place(self) -> bool {
        self.is_own() && !self.bypasses_caches
    }
}

impl Stored<f32> {
    /// Stores one element, rounded if it is stored in 16 bits.
    ///
    /// # Safety
    /// As [`Stored::store`].
    #[inline(always)]
    pub unsafe fn set(self, number: usize, value: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.at(number as isize).address;
            match self.format {
                Format::Own => to.cast::<f32>().write(value),
                Format::Float16 => to.cast::<u16>().write(rounded_to_half(value)),
                Format::BFloat16 => to.cast::<u16>().write(rounded_to_brain(value)),
            }
        }
    }

    /// Stores some elements, starting at one of them, each rounded once if they are stored in 16 bits.
    ///
    /// # Safety
    /// The elements must lie in the operand and belong to no one else.
    pub unsafe fn store(self, start: usize, values: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.at(start as isize);
            match to.own() {
                Some(to) if self.bypasses_caches => {
                    copying::stream::<0>(values.as_ptr().cast(), to.cast(), size_of_val(values));
                }
                Some(to) => std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()),
                None => round(to.format, values, to.address.cast()),
            }
        }
    }

    /// Returns elements that no one writes during `'b`.
    ///
    /// # Safety
    /// The elements must lie in the operand, and no one may write them during `'b`.
    pub unsafe fn slice<'b>(self, start: usize, len: usize) -> Elements<'b> {
        // SAFETY: the caller's promise.
        unsafe {
            let first = self.at(start as isize).address.cast_const();
            match self.format {
                Format::Own => Elements::Float32(std::slice::from_raw_parts(first.cast(), len)),
                Format::Float16 => Elements::Float16(std::slice::from_raw_parts(first.cast(), len)),
                Format::BFloat16 => Elements::BFloat16(std::slice::from_raw_parts(first.cast(), len)),
            }
        }
    }
}

/// Some elements of an operand that is used in computations as float32.
#[derive(Clone, Copy, Debug)]
pub(super) enum Elements<'a> {
    Float32(&'a [f32]),
    /// Bits of float16.
    Float16(&'a [u16]),
    /// Bits of bfloat16.
    BFloat16(&'a [u16]),
}

impl<'a> Elements<'a> {
    /// Returns some elements, starting at one of them, in place or in a buffer.
    #[inline(always)]
    pub fn run<'b>(self, start: usize, len: usize, buffer: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        if let Elements::Float32(elements) = self {
            return &elements[start..start + len];
        }
        self.copy_to(&mut buffer[..len], start, 1);
        &buffer[..len]
    }

    /// Copies elements that are `stride` apart, starting at one of them.
    pub fn copy_to(self, target: &mut [f32], start: usize, stride: usize) {
        match self {
            Elements::Float32(elements) => copy_apart(&elements[start..], stride, target, |element| element),
            Elements::Float16(bits) => copy_apart(&bits[start..], stride, target, widened_half),
            Elements::BFloat16(bits) => copy_apart(&bits[start..], stride, target, widened_brain),
        }
    }
}

#[inline(always)]
fn copy_apart<A: Copy>(source: &[A], stride: usize, target: &mut [f32], f: impl Fn(A) -> f32) {
    wide(
        #[inline(always)]
        || match stride {
            1 => {
                let source = &source[..target.len()];
                target.iter_mut().zip(source).for_each(|(to, &from)| *to = f(from));
            }
            _ => target.iter_mut().zip(source.iter().step_by(stride)).for_each(|(to, &from)| *to = f(from)),
        },
    );
}

/// Whether a type is `f32`.
#[inline(always)]
pub(super) fn is_f32<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<f32>()
}

/// Widens 16-bit elements with a stride to float32.
///
/// # Safety
/// The elements must be readable.
unsafe fn widen(format: Format, source: *const u16, stride: isize, wide_elements: &mut [MaybeUninit<f32>]) {
    let widened = |bits: u16| match format {
        Format::Float16 => widened_half(bits),
        _ => widened_brain(bits),
    };
    // SAFETY: the caller's promise.
    unsafe {
        match (stride, format) {
            (0, _) => wide_elements.fill(MaybeUninit::new(widened(*source))),
            (1, Format::Float16) => {
                convert(std::slice::from_raw_parts(source, wide_elements.len()), wide_elements, widened_half)
            }
            (1, _) => convert(std::slice::from_raw_parts(source, wide_elements.len()), wide_elements, widened_brain),
            _ => {
                for (i, element) in wide_elements.iter_mut().enumerate() {
                    *element = MaybeUninit::new(widened(*source.offset(i as isize * stride)));
                }
            }
        }
    }
}

/// Rounds float32 to 16-bit elements.
///
/// # Safety
/// The elements must be writable and belong to no one else.
unsafe fn round(format: Format, elements: &[f32], target: *mut u16) {
    // SAFETY: the caller's promise.
    let target = unsafe { std::slice::from_raw_parts_mut(target.cast(), elements.len()) };
    match format {
        Format::Float16 => convert(elements, target, rounded_to_half),
        _ => convert(elements, target, rounded_to_brain),
    }
}

/// Converts each element, in vector code.
#[inline(always)]
fn convert<A: Copy, Y>(from: &[A], to: &mut [MaybeUninit<Y>], f: impl Fn(A) -> Y) {
    wide(
        #[inline(always)]
        || to.iter_mut().zip(from).for_each(|(to, &from)| *to = MaybeUninit::new(f(from))),
    );
}

/// Returns the same number; a NaN keeps its bits.
#[inline(always)]
pub(super) fn widened_brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Returns the same number; a NaN keeps its bits.
#[inline(always)]
pub(super) fn widened_half(bits: u16) -> f32 {
    let size = u32::from(bits) & 0x7fff;
    // Denormal numbers are multiples of 2^-24; infinity and NaN have the highest exponent in both types.
    let denormal = (size as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
    let normal = (size << 13) + 0x3800_0000;
    let not_finite = (size << 13) | 0x7f80_0000;
    let finite = if size < 0x0400 { denormal } else { normal };
    let wide = if size >= 0x7c00 { not_finite } else { finite };
    f32::from_bits(wide | (u32::from(bits) & 0x8000) << 16)
}

/// Returns the nearest number, with ties to even; for a NaN, the upper bits, so that it stays NaN.
#[inline(always)]
fn rounded_to_brain(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let not_a_number = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { not_a_number } else { rounded }) as u16
}

/// Returns the nearest number, with ties to even; for a NaN, the upper bits, so that it stays NaN.
#[inline(always)]
fn rounded_to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let size = bits & 0x7fff_ffff;
    // Denormal: 2^-24 is the last place of the sum with 1/2.
    let denormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal = (size.wrapping_add(0xfff + (size >> 13 & 1)).wrapping_sub(0x3800_0000)) >> 13;
    let not_a_number = 0x7e00 | (size >> 13 & 0x3ff);
    let finite = if size < 0x3880_0000 { denormal } else { normal };
    // From 65520 on, the nearest number is infinite.
    let limited = if size >= 0x477f_f000 { 0x7c00 } else { finite };
    let narrow = if size > 0x7f80_0000 { not_a_number } else { limited };
    (narrow | (bits >> 16 & 0x8000)) as u16
}

#[cfg(test)]
mod tests {
    use forebay_base::kernel::samples;
    use forebay_base::{Kernel, TensorDesc};
    use half::{bf16, f16};

    use super::super::testing::{Random, Tensor, assert_bits_of_conversions, desc, strided};
    use super::*;

    #[test]
    fn launches_have_the_bits_of_conversions_around_launches_in_float32() {
        let samples = samples::stored_in_sixteen_bits();
        for (seed, sample) in samples.iter().enumerate() {
            let mut random = Random::new(seed as u64);
            let mut positive = |desc: &TensorDesc| {
                let values: Vec<f64> =
                    random.values(desc.element_count() as usize).iter().map(|value| value.abs() + 0.125).collect();
                Tensor::new(desc, &values)
            };
            let reads: Vec<Tensor> = sample.reads.iter().map(&mut positive).collect();
            assert_bits_of_conversions(&sample.kernel, &reads, &sample.writes);
        }
        assert!(samples.len() > 20);
    }

    #[test]
    fn strides_and_long_rows_change_no_bits() {
        let mut random = Random::new(7);
        let half = DataType::Float16;
        let mut tensor = |desc: &TensorDesc| {
            let count = desc.total_size_bytes() / desc.data_type().size_bytes();
            Tensor::new(desc, &random.values(count as usize))
        };
        let sizes = [3, 5, 1000];
        for strides in [[5000, 1000, 1], [1, 3, 15], [1000, 0, 1], [2, 0, 6], [0, 0, 0]] {
            let reads = [tensor(&strided(half, &sizes, &strides)), tensor(&desc(DataType::BFloat16, &sizes))];
            let kernel = Kernel::Binary {
                op: forebay_base::kernel::BinaryOp::Subtract,
                activation: forebay_base::kernel::Activation::Relu,
            };
            for data_type in [half, DataType::BFloat16, DataType::Float32] {
                assert_bits_of_conversions(&kernel, &reads, &[desc(data_type, &sizes)]);
            }
        }
        // Channels of some thousand positions, whose chunks and blocks end within rows.
        let (image, channels) = ([2, 3, 70, 41], desc(DataType::Float32, &[3]));
        let kernel = Kernel::BatchNormalizationTraining {
            epsilon: 1e-5,
            activation: forebay_base::kernel::Activation::Relu,
            group_size: 1,
        };
        let reads = [tensor(&desc(half, &image)), tensor(&channels), tensor(&channels)];
        assert_bits_of_conversions(&kernel, &reads, &[desc(half, &image), channels.clone(), channels]);
    }

    #[test]
    fn every_number_of_16_bits_is_widened_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            for (own, expected) in [(widened_half(bits), half.to_f32()), (widened_brain(bits), brain.to_f32())] {
                assert!(own.to_bits() == expected.to_bits() || own.is_nan() && expected.is_nan(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn numbers_are_rounded_as_the_half_crate_does() {
        // Every 16-bit number, the midpoint between it and the next, and the numbers next to that.
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                assert_eq!(rounded_to_half(value), f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(rounded_to_brain(value), bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }
}
