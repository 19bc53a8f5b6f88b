//! Quantization: numbers as 8-bit codes, with a scale for each block of numbers.
//!
//! The codes are those of block-wise dynamic quantization (Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization"). A map
//! holds 256 numbers from -1 (or 0) to 1 in seven decades, each with twice as many numbers as the one below it. A block's scale is its
//! largest magnitude, and a code represents its number in the map times the scale. A number gets the nearest code; in a tie, the lower one.

/// Number of elements in a block.
pub const QUANTIZATION_BLOCK: u64 = 256;

/// Tensors with fewer elements than this keep float32 state, because codes would save little.
pub const QUANTIZED_ELEMENTS_MIN: u64 = 4096;

/// The decades of a map.
const DECADES: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// A map from codes to numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizationMap {
    /// The number of each code for a scale of 1, in ascending order.
    pub numbers: [f32; 256],
    /// The midpoint between each code and the next: numbers above it are nearer to the next code.
    pub middles: [f32; 255],
}

/// The map for signed numbers.
pub static SIGNED: QuantizationMap = QuantizationMap::new(true);
/// The map for numbers that are never negative.
pub static UNSIGNED: QuantizationMap = QuantizationMap::new(false);

impl QuantizationMap {
    const fn new(is_signed: bool) -> QuantizationMap {
        let (mut numbers, mut middles) = ([0f32; 256], [0f32; 255]);
        let mut code = 0;
        while code < 256 {
            numbers[code] = match is_signed {
                true if code < 127 => -positive(127 - code, 0),
                true if code > 127 => positive(code - 127, 0),
                false if code > 0 => positive(code + 1, 1),
                _ => 0.0,
            };
            if code > 0 {
                middles[code - 1] = ((numbers[code - 1] as f64 + numbers[code] as f64) / 2.0) as f32;
            }
            code += 1;
        }
        QuantizationMap { numbers, middles }
    }

    /// The number that a code represents in a block with this scale.
    #[inline(always)]
    pub fn decode(&self, code: u8, scale: f32) -> f32 {
        self.numbers[code as usize] * scale
    }

    /// The code of a number in a block with this scale. The code of NaN is 0.
    #[inline(always)]
    pub fn encode(&self, number: f32, scale: f32) -> u8 {
        let mut code = 0;
        for bit in [128usize, 64, 32, 16, 8, 4, 2, 1] {
            // Products are rounded identically everywhere; quotients are not.
            code += bit * usize::from(number > self.middles[code + bit - 1] * scale);
        }
        code as u8
    }
}

/// The number at a position whose bit length is 1 plus the index of its decade plus `more`. The lower bits are the position within the
/// decade, which is divided evenly from a tenth to 1.
const fn positive(place: usize, more: u32) -> f32 {
    let bits = place.ilog2();
    let decade = (bits - more) as usize;
    if decade == DECADES.len() {
        return 1.0;
    }
    let count = 1 << bits;
    (DECADES[decade] * (0.1 + 0.9 * ((place - count) as f64 + 0.5) / count as f64)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The map, decade by decade, as the paper and bitsandbytes' `create_dynamic_map` build it.
    fn built(is_signed: bool) -> Vec<f64> {
        let mut all = vec![0.0, 1.0];
        for decade in 0..7 {
            let count = 1 << (decade + i32::from(!is_signed));
            let bound = |i: i32| 0.1 + 0.9 * f64::from(i) / f64::from(count);
            let means = (0..count).map(|i| 10f64.powi(decade - 6) * (bound(i) + bound(i + 1)) / 2.0);
            let means: Vec<f64> = means.collect();
            all.extend(means.iter().filter(|_| is_signed).map(|mean| -mean));
            all.extend(means);
        }
        all.sort_by(f64::total_cmp);
        all
    }

    #[test]
    fn maps_are_those_of_the_paper() {
        for (map, is_signed) in [(&SIGNED, true), (&UNSIGNED, false)] {
            let built = built(is_signed);
            assert_eq!(built.len(), 256);
            for (&number, expected) in map.numbers.iter().zip(built) {
                assert!((f64::from(number) - expected).abs() <= expected.abs() * 1e-7, "{number} {expected}");
            }
            assert!(map.numbers.windows(2).all(|pair| pair[0] < pair[1]));
        }
        assert_eq!((SIGNED.numbers[127], SIGNED.numbers[255], UNSIGNED.numbers[0]), (0.0, 1.0, 0.0));
    }

    #[test]
    fn numbers_get_the_nearest_code() {
        for map in [&SIGNED, &UNSIGNED] {
            for scale in [1.0f32, 0.37, 3e-12, 8e20] {
                for code in 0..=255 {
                    assert_eq!(map.encode(map.decode(code, scale), scale), code, "{scale}");
                }
                for i in -1000..=1000 {
                    let number = (i as f32 / 1000.0).powi(5) * scale;
                    let distance = |code: u8| (f64::from(map.decode(code, scale)) - f64::from(number)).abs();
                    let nearest = (0..=255).map(distance).fold(f64::INFINITY, f64::min);
                    assert!(distance(map.encode(number, scale)) <= nearest * (1.0 + 1e-6), "{number} of {scale}");
                }
            }
            // A tie, and numbers that the map does not cover.
            assert_eq!(map.encode(map.middles[200], 1.0), 200);
            assert_eq!((map.encode(f32::NAN, 1.0), map.decode(map.encode(0.0, 0.0), 0.0).abs()), (0, 0.0));
            assert_eq!((map.encode(2.0, 1.0), map.encode(-2.0, 1.0)), (255, 0));
        }
    }
}
