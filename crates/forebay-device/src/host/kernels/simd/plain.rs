//! Vectors in portable code.

use super::{LANES, SummedVector, Vector, limited};

/// Vectors for every processor. If `FUSED`, products are added with one rounding, in several operations if the processor has no instruction
/// for that: the same bits as on processors that have one, in several times the time. Otherwise the product is rounded, too.
#[derive(Clone, Copy)]
pub(in super::super) struct Plain<const FUSED: bool>([f32; LANES]);

/// a b + c in all lanes, rounded once.
#[inline(always)]
fn fused(a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
    // `mul_add` is a call of a library function where the compiler cannot rely on an instruction.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        return std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(sums) = super::x86::fused_unless_in_the_middle(a, b, c) {
        return sums;
    }
    std::array::from_fn(|lane| fused_from_doubles(a[lane], b[lane], c[lane]))
}

/// a b + c, rounded once, without an instruction for it.
///
/// Source: S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE
/// Transactions on Computers 57(4), 2008.
fn fused_from_doubles(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact. The sum's error is, too: what the sum contains of c, subtracted from c, and the same for the product.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let c_in_sum = sum - product;
    let error = (product - (sum - c_in_sum)) + (c - c_in_sum);
    // Rounded to the nearest, a sum could become the middle between two single-precision numbers, which it is not. Of its two neighbors in
    // double precision, an inexact sum takes the odd one, which is never such a middle. Errors of sums that are not finite are NaN.
    let is_even = sum.to_bits() & 1 == 0;
    let is_too_small = (error > 0.0) == (sum > 0.0);
    let to_odd = if is_too_small { 1 } else { u64::MAX };
    let is_inexact = error.abs() > 0.0;
    let odd = f64::from_bits(sum.to_bits().wrapping_add(if is_inexact && is_even { to_odd } else { 0 }));
    odd as f32
}

impl<const FUSED: bool> Vector for Plain<FUSED> {
    type Half = Self;
    const WIDTH: usize = LANES;
    const REGISTERS: usize = 16;

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
        match FUSED {
            true => Plain(fused(a.0, b.0, self.0)),
            false => Plain(std::array::from_fn(|lane| self.0[lane] + a.0[lane] * b.0[lane])),
        }
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

impl<const FUSED: bool> SummedVector for Plain<FUSED> {
    #[inline(always)]
    unsafe fn columns(source: *const f32, stride: isize) -> [Self; LANES] {
        // SAFETY: the caller's promises.
        let at = |line: usize, column: usize| unsafe { *source.offset(line as isize * stride).add(column) };
        std::array::from_fn(|column| Plain(std::array::from_fn(|line| at(line, column))))
    }

    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        four.map(|vector| {
            let [a, b, c, d, e, f, g, h] = vector.0;
            ((a + c) + (b + d)) + ((e + g) + (f + h))
        })
    }
}

#[cfg(test)]
mod tests {
    use forebay_testing::Random;

    use super::{fused, fused_from_doubles};

    #[test]
    fn products_are_added_with_one_rounding() {
        let mut random = Random::new(1);
        let check = |a: f32, b: f32, c: f32| {
            let expected = a.mul_add(b, c);
            // The other lanes hold a sum that is exact.
            let with_ones = |x: f32| [1.0, 1.0, 1.0, x, 1.0, 1.0, 1.0, 1.0];
            let lanes = fused(with_ones(a), with_ones(b), with_ones(c));
            assert!(lanes.iter().enumerate().all(|(lane, &sum)| lane == 3 || sum == 2.0), "{a} x {b} + {c}: {lanes:?}");
            for found in [fused_from_doubles(a, b, c), lanes[3]] {
                let is_equal = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
                assert!(is_equal, "{a} x {b} + {c}: {found}, not {expected}");
            }
        };
        let ends = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
            -1e-45,
        ];
        for a in ends {
            for b in ends {
                ends.iter().for_each(|&c| check(a, b, c));
            }
        }
        // The exact result is just beside the middle between two numbers.
        let (one, half) = (1.0 + f32::EPSILON, 0.5 * f32::EPSILON);
        for small in [1e-30, -1e-30, 1e-45, -1e-45, 0.0] {
            check(one, 1.0 + half, small);
            check(1.0, small, one + half);
            check(f32::MIN_POSITIVE, half, small);
        }
        check(4097.0, 4097.0, -1e-20);
        for _ in 0..300_000 {
            let bits = random.word();
            let [a, b] = [bits as u32, (bits >> 32) as u32].map(f32::from_bits);
            let c = random.word();
            check(a, b, f32::from_bits(c as u32));
            // Numbers of similar size, whose sums cancel or end in the middle.
            let near = |bits: u32| f32::from_bits(0x3f80_0000 | (bits & 0x807f_f000));
            check(near(bits as u32), near((bits >> 32) as u32), near(c as u32));
            check(near(bits as u32), f32::from_bits(0x3380_0000 | (c as u32 & 0x8000_0001)), near((bits >> 32) as u32));
        }
    }
}
