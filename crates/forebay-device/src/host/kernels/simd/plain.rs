//! Vectors in portable code.

use super::{LANES, SummedVector, Vector, limited};

/// Vectors for every target.
#[derive(Clone, Copy)]
pub(in super::super) struct Plain([f32; LANES]);

impl Vector for Plain {
    type Half = Plain;
    const WIDTH: usize = LANES;
    const REGISTERS: usize = 16;

    #[inline(never)]
    unsafe fn outline(work: impl FnOnce()) {
        work();
    }

    #[inline(always)]
    unsafe fn load(address: *const f32) -> Self {
        // SAFETY: readable by the caller's promise.
        Plain(unsafe { address.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_even(address: *const f32) -> Self {
        // SAFETY: readable by the caller's promise.
        Plain(std::array::from_fn(|i| unsafe { *address.add(2 * i) }))
    }

    #[inline(always)]
    unsafe fn load_thirds(address: *const f32) -> [Self; 3] {
        // SAFETY: readable by the caller's promise.
        [0, 1, 2].map(|first| Plain(std::array::from_fn(|i| unsafe { *address.add(first + 3 * i) })))
    }

    #[inline(always)]
    unsafe fn store(self, address: *mut f32) {
        // SAFETY: writable by the caller's promise.
        unsafe { address.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, address: *mut f32, count: usize) {
        for (i, &number) in self.0.iter().enumerate().take(count) {
            // SAFETY: writable by the caller's promise.
            unsafe { *address.add(i) = number };
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Plain([value; LANES])
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // Unless there is an instruction for it, `mul_add` is a slow library call.
        let fused = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
        let lane = |i: usize| if fused { a.0[i].mul_add(b.0[i], self.0[i]) } else { self.0[i] + a.0[i] * b.0[i] };
        Plain(std::array::from_fn(lane))
    }

    #[inline(always)]
    unsafe fn interleaved(self, other: Self) -> [Self; 2] {
        let pair = |i: usize| if i.is_multiple_of(2) { self.0[i / 2] } else { other.0[i / 2] };
        [Plain(std::array::from_fn(pair)), Plain(std::array::from_fn(|i| pair(LANES + i)))]
    }

    #[inline(always)]
    unsafe fn limited(self, low: Self, high: Self) -> Self {
        Plain(std::array::from_fn(|i| limited(self.0[i], low.0[i], high.0[i])))
    }

    #[inline(always)]
    unsafe fn larger(self, x: Self) -> Self {
        let larger = |i: usize| if x.0[i] > self.0[i] || x.0[i].is_nan() { x.0[i] } else { self.0[i] };
        Plain(std::array::from_fn(larger))
    }
}

impl SummedVector for Plain {
    #[inline(always)]
    unsafe fn columns(source: *const f32, stride: isize) -> [Self; LANES] {
        // SAFETY: the caller's promises.
        let at = |line: usize, column: usize| unsafe { *source.offset(line as isize * stride).add(column) };
        std::array::from_fn(|column| Plain(std::array::from_fn(|line| at(line, column))))
    }

    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        four.map(|vector| {
            let half: [f32; 4] = std::array::from_fn(|i| vector.0[i] + vector.0[i + 4]);
            (half[0] + half[2]) + (half[1] + half[3])
        })
    }
}
