//! Tiles of products of 8-bit integers, using the processor's instructions for sums of four products if it has them.
//!
//! Rows consist of signed bytes (unsigned ones after a flip of their highest bit), panels of unsigned bytes. A panel holds columns in
//! strips of [`STRIP`]: for every four terms in order, the four bytes of each column. Sums are exact in 32 bits and wrap around, so every
//! engine gives the same results.

#[cfg(target_arch = "aarch64")]
mod neon;

use std::sync::OnceLock;

use crate::host::isa::{self, InstructionSet};

/// The number of columns of a strip.
pub(super) const STRIP: usize = 16;
/// The maximum number of strips of a panel.
pub(super) const STRIPS_MAX: usize = 3;
/// The maximum number of rows of a tile.
pub(super) const ROWS_MAX: usize = 8;

/// The instructions with which sums are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Vectors of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// Vectors of 256 bits.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// Products of 16-bit integers, because those of 8-bit integers saturate.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Vectors of 128 bits.
    #[cfg(target_arch = "aarch64")]
    NeonDots,
    /// Code that the compiler translates for any target.
    Portable,
}

impl Engine {
    /// Returns the engines that use only vector instructions that kernels may use ([`isa::has`]), the fastest first.
    pub fn all() -> Vec<Engine> {
        Engine::with(isa::has)
    }

    /// Returns the engines that this processor supports with the given vector instructions, the fastest first.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_variables))]
    pub(super) fn with(has: impl Fn(InstructionSet) -> bool) -> Vec<Engine> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if has(InstructionSet::Avx512) && std::arch::is_x86_feature_detected!("avx512vnni") {
                all.push(Engine::Avx512Vnni);
            }
            if has(InstructionSet::Avx2) {
                all.extend(x86::has_avx_vnni().then_some(Engine::AvxVnni));
                all.push(Engine::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if has(InstructionSet::Neon) && neon::has_dots() {
            all.push(Engine::NeonDots);
        }
        all.push(Engine::Portable);
        all
    }

    /// Returns the fastest one that may be used.
    pub fn best() -> Engine {
        static BEST: OnceLock<Engine> = OnceLock::new();
        *BEST.get_or_init(|| Engine::all()[0])
    }
}

/// Rows of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// The first byte.
    pub first: *const u8,
    /// The distance between rows, in bytes.
    pub pitch: usize,
    /// The number of rows.
    pub count: usize,
    /// The mask with which four bytes at a time are XORed: their highest bits if they are unsigned.
    pub flip: u32,
}

impl Rows {
    /// Returns `count` rows from `row` on, from a term on.
    ///
    /// # Safety
    /// They must exist.
    pub unsafe fn from(self, row: usize, count: usize, term: usize) -> Rows {
        // SAFETY: the caller's promise.
        Rows { first: unsafe { self.first.add(row * self.pitch + term) }, count, ..self }
    }
}

/// Adds to sums\[rows, 16 strips] the products of rows with a panel, over groups of four terms.
///
/// # Safety
/// Rows and panel must have 4 `quads` terms, no one else may use the sums, and the processor must support the engine.
pub(super) unsafe fn add_products(
    engine: Engine,
    rows: Rows,
    (panel, strips): (*const u8, usize),
    quads: usize,
    sums: *mut i32,
) {
    if quads == 0 {
        return;
    }
    let mut done = 0;
    while done < rows.count {
        let left = rows.count - done;
        // SAFETY: rows and sums from `done` on exist; the rest are the caller's promises.
        unsafe {
            let own = rows.from(done, left, 0);
            let sums = sums.add(done * strips * STRIP);
            done += match engine {
                #[cfg(target_arch = "x86_64")]
                Engine::Avx512Vnni => x86::tile_512(own, (panel, strips), quads, sums),
                #[cfg(target_arch = "x86_64")]
                Engine::AvxVnni => x86::tile_vnni(own, (panel, strips), quads, sums),
                #[cfg(target_arch = "x86_64")]
                Engine::Avx2 => x86::tile_avx2(own, (panel, strips), quads, sums),
                #[cfg(target_arch = "aarch64")]
                Engine::NeonDots => neon::tile_dots(own, (panel, strips), quads, sums),
                Engine::Portable => tile::<Plain>(own, (panel, strips), quads, sums),
            };
        }
    }
}

/// Eight sums.
trait Lanes: Copy {
    /// Four terms of eight columns.
    type Panel: Copy;
    /// Four terms of a row.
    type Quad: Copy;
    /// Reads sums.
    ///
    /// # Safety
    /// They must be readable, and the processor must have the instructions (this applies to all functions).
    unsafe fn load(sums: *const i32) -> Self;
    /// Writes sums.
    ///
    /// # Safety
    /// They must be writable.
    unsafe fn store(self, sums: *mut i32);
    /// Reads 32 bytes of a panel.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn panel(bytes: *const u8) -> Self::Panel;
    /// Four terms of a row.
    ///
    /// # Safety
    /// As for [`Lanes::load`].
    unsafe fn quad(bytes: u32) -> Self::Quad;
    /// Adds the products.
    ///
    /// # Safety
    /// As for [`Lanes::load`].
    unsafe fn add(self, panel: Self::Panel, quad: Self::Quad) -> Self;
}

/// Computes the products of some rows with all strips; returns the number of rows.
///
/// # Safety
/// As for [`add_products`].
#[inline(always)]
unsafe fn tile<L: Lanes>(rows: Rows, (panel, strips): (*const u8, usize), quads: usize, sums: *mut i32) -> usize {
    for strip in 0..strips {
        // SAFETY: the caller's promises.
        unsafe {
            let (panel, sums) = (panel.add(strip * STRIP * 4), sums.add(strip * STRIP));
            if rows.count >= 4 {
                strip_of::<L, 4>(rows, (panel, strips), quads, sums);
            } else {
                strip_of::<L, 1>(rows, (panel, strips), quads, sums);
            }
        }
    }
    if rows.count >= 4 { 4 } else { 1 }
}

/// Computes the products of some rows with one strip.
///
/// # Safety
/// As for [`add_products`].
#[inline(always)]
unsafe fn strip_of<L: Lanes, const R: usize>(
    rows: Rows,
    (panel, strips): (*const u8, usize),
    quads: usize,
    sums: *mut i32,
) {
    let width = strips * STRIP;
    // SAFETY: the caller's promises.
    unsafe {
        let mut own: [[L; 2]; R] =
            std::array::from_fn(|r| std::array::from_fn(|half| L::load(sums.add(r * width + half * 8))));
        for quad in 0..quads {
            let at = panel.add(quad * width * 4);
            let seen = [L::panel(at), L::panel(at.add(32))];
            for (r, own) in own.iter_mut().enumerate() {
                let bytes = rows.first.add(r * rows.pitch + quad * 4).cast::<u32>().read_unaligned();
                let factor = L::quad(bytes ^ rows.flip);
                *own = [own[0].add(seen[0], factor), own[1].add(seen[1], factor)];
            }
        }
        for (r, own) in own.into_iter().enumerate() {
            own[0].store(sums.add(r * width));
            own[1].store(sums.add(r * width + 8));
        }
    }
}

/// Sums for every target.
#[derive(Clone, Copy)]
struct Plain([i32; 8]);

impl Lanes for Plain {
    type Panel = [[u8; 4]; 8];
    type Quad = [i8; 4];

    #[inline(always)]
    unsafe fn load(sums: *const i32) -> Self {
        // SAFETY: readable by the caller's promise.
        Plain(unsafe { sums.cast::<[i32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, sums: *mut i32) {
        // SAFETY: writable by the caller's promise.
        unsafe { sums.cast::<[i32; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn panel(bytes: *const u8) -> Self::Panel {
        // SAFETY: readable by the caller's promise.
        unsafe { bytes.cast::<[[u8; 4]; 8]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn quad(bytes: u32) -> Self::Quad {
        bytes.to_ne_bytes().map(|byte| byte as i8)
    }

    #[inline(always)]
    unsafe fn add(self, panel: Self::Panel, quad: Self::Quad) -> Self {
        Plain(std::array::from_fn(|lane| {
            let product = |i: usize| i32::from(panel[lane][i]) * i32::from(quad[i]);
            self.0[lane].wrapping_add(product(0) + product(1) + product(2) + product(3))
        }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    use super::{Lanes, Rows, tile};

    /// Returns whether the processor has `vpdpbusd` with the AVX prefix. If AVX2 is detected, the system saves its registers.
    #[allow(unused_unsafe)] // Newer compilers know that the instruction is safe.
    pub(super) fn has_avx_vnni() -> bool {
        // SAFETY: every processor of this architecture has the instruction; unsupported leaves are not queried.
        unsafe { __cpuid(0).eax >= 7 && __cpuid_count(7, 0).eax >= 1 && __cpuid_count(7, 1).eax & (1 << 4) != 0 }
    }

    /// Sums of AVX2.
    #[derive(Clone, Copy)]
    struct Wide(__m256i);

    impl Lanes for Wide {
        // Bytes at even and at odd positions, as 16-bit integers: the sum of two of their products fits 32 bits.
        type Panel = [__m256i; 2];
        type Quad = [__m256i; 2];

        #[inline(always)]
        unsafe fn load(sums: *const i32) -> Self {
            // SAFETY: by the caller's promises (this applies to all functions).
            Wide(unsafe { _mm256_loadu_si256(sums.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, sums: *mut i32) {
            // SAFETY: see `load`.
            unsafe { _mm256_storeu_si256(sums.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn panel(bytes: *const u8) -> Self::Panel {
            // SAFETY: see `load`.
            unsafe {
                let bytes = _mm256_loadu_si256(bytes.cast());
                [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)]
            }
        }

        #[inline(always)]
        unsafe fn quad(bytes: u32) -> Self::Quad {
            // SAFETY: see `load`.
            unsafe {
                let bytes = _mm256_set1_epi32(bytes as i32);
                [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)), _mm256_srai_epi16::<8>(bytes)]
            }
        }

        #[inline(always)]
        unsafe fn add(self, panel: Self::Panel, quad: Self::Quad) -> Self {
            // SAFETY: see `load`.
            unsafe {
                let (even, odd) = (_mm256_madd_epi16(panel[0], quad[0]), _mm256_madd_epi16(panel[1], quad[1]));
                Wide(_mm256_add_epi32(self.0, _mm256_add_epi32(even, odd)))
            }
        }
    }

    /// Sums of AVX-VNNI.
    #[derive(Clone, Copy)]
    struct Vnni(__m256i);

    impl Lanes for Vnni {
        type Panel = __m256i;
        type Quad = __m256i;

        #[inline(always)]
        unsafe fn load(sums: *const i32) -> Self {
            // SAFETY: by the caller's promises (this applies to all functions).
            Vnni(unsafe { _mm256_loadu_si256(sums.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, sums: *mut i32) {
            // SAFETY: see `load`.
            unsafe { _mm256_storeu_si256(sums.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn panel(bytes: *const u8) -> Self::Panel {
            // SAFETY: see `load`.
            unsafe { _mm256_loadu_si256(bytes.cast()) }
        }

        #[inline(always)]
        unsafe fn quad(bytes: u32) -> Self::Quad {
            // SAFETY: see `load`.
            unsafe { _mm256_set1_epi32(bytes as i32) }
        }

        #[inline(always)]
        unsafe fn add(self, panel: Self::Panel, quad: Self::Quad) -> Self {
            let mut sums = self.0;
            // SAFETY: writes registers only; the processor has the instruction by the caller's promise.
            unsafe { add_dots(&mut sums, panel, quad) };
            Vnni(sums)
        }
    }

    /// `vpdpbusd` in the encoding of AVX-VNNI, for which older compilers have no intrinsic.
    ///
    /// # Safety
    /// The processor must have it.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add_dots(sums: &mut __m256i, panel: __m256i, quad: __m256i) {
        let mut own = *sums;
        // SAFETY: writes one register.
        unsafe {
            asm!(
                "{{vex}} vpdpbusd {own}, {panel}, {quad}",
                own = inout(ymm_reg) own,
                panel = in(ymm_reg) panel,
                quad = in(ymm_reg) quad,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        *sums = own;
    }

    /// As for [`super::tile`].
    ///
    /// # Safety
    /// As for [`super::add_products`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn tile_avx2(rows: Rows, panel: (*const u8, usize), quads: usize, sums: *mut i32) -> usize {
        // SAFETY: the caller's promises.
        unsafe { tile::<Wide>(rows, panel, quads, sums) }
    }

    /// As for [`super::tile`].
    ///
    /// # Safety
    /// As for [`super::add_products`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn tile_vnni(rows: Rows, panel: (*const u8, usize), quads: usize, sums: *mut i32) -> usize {
        // SAFETY: the caller's promises.
        unsafe { tile::<Vnni>(rows, panel, quads, sums) }
    }

    /// Defines a tile of 512-bit vectors from its name, its number of strips, the registers of the panel's vectors, those of the sums, and,
    /// for each row, its address and the pairs of a sum and the vector of the panel whose products it gets. The registers are written out
    /// because older compilers do not know them. Because the function is not inlined, it uses none in which a caller could keep a value.
    macro_rules! tile_512 {
        ($name:ident, $strips:literal, [$($panel:literal)*], [$($sum:literal)*],
            $([$at:literal: $($own:literal $seen:literal),*])*) => {
            #[inline(never)]
            unsafe fn $name(rows: Rows, panel: *const u8, quads: usize, sums: *mut i32) {
                // SAFETY: reads rows, panel and sums, and writes sums, as the caller promises; all vector registers are declared as
                // written, except those that the compiler does not use here.
                unsafe {
                    asm!(
                        "vpbroadcastd zmm28, {flip:e}",
                        $(concat!("vmovdqu32 zmm", $sum, ", [{sums} + 64*", $sum, "]"),)*
                        "2:",
                        $(concat!("vmovdqu32 zmm", $panel, ", [{panel} + 64*", $panel, " - 64*24]"),)*
                        $(
                            concat!("vpbroadcastd zmm27, dword ptr [", $at, "]"),
                            "vpxord zmm27, zmm27, zmm28",
                            $(concat!("vpdpbusd zmm", $own, ", zmm", $seen, ", zmm27"),)*
                        )*
                        "add {a}, 4",
                        "add {b}, 4",
                        concat!("add {panel}, 64*", $strips),
                        "dec {quads}",
                        "jnz 2b",
                        $(concat!("vmovdqu32 [{sums} + 64*", $sum, "], zmm", $sum),)*
                        "vzeroupper",
                        // Tiles of one row use no distances: {pitch} {three}
                        "/* {pitch} {three} */",
                        a = inout(reg) rows.first => _,
                        b = inout(reg) rows.first.wrapping_add(4 * rows.pitch) => _,
                        pitch = in(reg) rows.pitch,
                        three = in(reg) 3 * rows.pitch,
                        panel = inout(reg) panel => _,
                        quads = inout(reg) quads => _,
                        sums = in(reg) sums,
                        flip = in(reg) rows.flip,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                        out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nostack),
                    );
                }
            }
        };
    }

    tile_512!(eight_by_three, 3, [24 25 26], [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23],
        ["{a}": 0 24, 1 25, 2 26] ["{a} + {pitch}": 3 24, 4 25, 5 26]
        ["{a} + 2*{pitch}": 6 24, 7 25, 8 26] ["{a} + {three}": 9 24, 10 25, 11 26]
        ["{b}": 12 24, 13 25, 14 26] ["{b} + {pitch}": 15 24, 16 25, 17 26]
        ["{b} + 2*{pitch}": 18 24, 19 25, 20 26] ["{b} + {three}": 21 24, 22 25, 23 26]);
    tile_512!(eight_by_two, 2, [24 25], [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15],
        ["{a}": 0 24, 1 25] ["{a} + {pitch}": 2 24, 3 25] ["{a} + 2*{pitch}": 4 24, 5 25] ["{a} + {three}": 6 24, 7 25]
        ["{b}": 8 24, 9 25] ["{b} + {pitch}": 10 24, 11 25] ["{b} + 2*{pitch}": 12 24, 13 25]
        ["{b} + {three}": 14 24, 15 25]);
    tile_512!(eight_by_one, 1, [24], [0 1 2 3 4 5 6 7],
        ["{a}": 0 24] ["{a} + {pitch}": 1 24] ["{a} + 2*{pitch}": 2 24] ["{a} + {three}": 3 24]
        ["{b}": 4 24] ["{b} + {pitch}": 5 24] ["{b} + 2*{pitch}": 6 24] ["{b} + {three}": 7 24]);
    tile_512!(four_by_three, 3, [24 25 26], [0 1 2 3 4 5 6 7 8 9 10 11],
        ["{a}": 0 24, 1 25, 2 26] ["{a} + {pitch}": 3 24, 4 25, 5 26]
        ["{a} + 2*{pitch}": 6 24, 7 25, 8 26] ["{a} + {three}": 9 24, 10 25, 11 26]);
    tile_512!(four_by_two, 2, [24 25], [0 1 2 3 4 5 6 7],
        ["{a}": 0 24, 1 25] ["{a} + {pitch}": 2 24, 3 25] ["{a} + 2*{pitch}": 4 24, 5 25] ["{a} + {three}": 6 24, 7 25]);
    tile_512!(four_by_one, 1, [24], [0 1 2 3],
        ["{a}": 0 24] ["{a} + {pitch}": 1 24] ["{a} + 2*{pitch}": 2 24] ["{a} + {three}": 3 24]);
    tile_512!(one_by_three, 3, [24 25 26], [0 1 2], ["{a}": 0 24, 1 25, 2 26]);
    tile_512!(one_by_two, 2, [24 25], [0 1], ["{a}": 0 24, 1 25]);
    tile_512!(one_by_one, 1, [24], [0], ["{a}": 0 24]);

    /// As for [`super::tile`].
    ///
    /// # Safety
    /// As for [`super::add_products`].
    pub(super) unsafe fn tile_512(
        rows: Rows,
        (panel, strips): (*const u8, usize),
        quads: usize,
        sums: *mut i32,
    ) -> usize {
        let count = match rows.count {
            8.. => 8,
            4..8 => 4,
            _ => 1,
        };
        // SAFETY: the caller's promises.
        unsafe {
            match (count, strips) {
                (8, 3) => eight_by_three(rows, panel, quads, sums),
                (8, 2) => eight_by_two(rows, panel, quads, sums),
                (8, _) => eight_by_one(rows, panel, quads, sums),
                (4, 3) => four_by_three(rows, panel, quads, sums),
                (4, 2) => four_by_two(rows, panel, quads, sums),
                (4, _) => four_by_one(rows, panel, quads, sums),
                (_, 3) => one_by_three(rows, panel, quads, sums),
                (_, 2) => one_by_two(rows, panel, quads, sums),
                _ => one_by_one(rows, panel, quads, sums),
            }
        }
        count
    }
}
