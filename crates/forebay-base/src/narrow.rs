//! Narrow types ([`DataType::is_narrow`]): their numbers, and the way ONNX files pack them.
//!
//! Source: ONNX's `Cast` and its documentation of float8, float4, int4 and int2; OCP's MX specification for `Float8E8M0`.

use crate::data_type::{DataType, NumberKind};

/// How a number is rounded to a power of two (`Float8E8M0`): ONNX's `round_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PowerRounding {
    /// To the smallest power that is not below it.
    #[default]
    Up,
    /// To the largest power that is not above it.
    Down,
    /// To the nearest power; in a tie, to the larger.
    Nearest,
}

/// How numbers are converted to 8-bit floating-point types: ONNX's `saturate` and `round_mode`. Other types ignore it.
///
/// ```
/// use forebay_base::narrow::{encode, Narrowing};
/// use forebay_base::DataType;
///
/// let saturating = Narrowing::default();
/// assert_eq!(encode(DataType::Float8E5M2, 1e6, saturating), 0x7b);
/// assert_eq!(encode(DataType::Float8E5M2, 1e6, Narrowing { saturate: false, ..saturating }), 0x7c);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrowing {
    /// Whether numbers that are too large, and infinities, become the largest number; otherwise infinity, or NaN if the type has no
    /// infinity.
    pub saturate: bool,
    /// How numbers are rounded to powers of two.
    pub powers: PowerRounding,
}

impl Default for Narrowing {
    /// Like ONNX's `Cast` without attributes: saturating, and rounding up to powers of two.
    fn default() -> Narrowing {
        Narrowing { saturate: true, powers: PowerRounding::Up }
    }
}

/// The representation of numbers that are too large.
#[derive(Clone, Copy, PartialEq)]
enum Beyond {
    /// Infinities, with NaN above them, as in IEEE 754.
    Infinity,
    /// NaN: the code whose bits are all ones.
    Ones,
    /// NaN: the code that is only a sign, so that there is no -0.
    SignAlone,
    /// Nothing: neither infinity nor NaN.
    Nothing,
}

/// The bit layout of a signed floating-point type.
#[derive(Clone, Copy)]
struct Format {
    exponent_bits: u32,
    fraction_bits: u32,
    /// The number that is subtracted from the exponent bits.
    bias: i32,
    beyond: Beyond,
}

impl Format {
    const fn of(data_type: DataType) -> Option<Format> {
        let (exponent_bits, fraction_bits, bias, beyond) = match data_type {
            DataType::Float8E4M3FN => (4, 3, 7, Beyond::Ones),
            DataType::Float8E4M3FNUZ => (4, 3, 8, Beyond::SignAlone),
            DataType::Float8E5M2 => (5, 2, 15, Beyond::Infinity),
            DataType::Float8E5M2FNUZ => (5, 2, 16, Beyond::SignAlone),
            DataType::Float4E2M1 => (2, 1, 1, Beyond::Nothing),
            _ => return None,
        };
        Some(Format { exponent_bits, fraction_bits, bias, beyond })
    }

    /// The sign bit.
    fn sign(self) -> u8 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    /// The code of the largest number.
    fn largest(self) -> u8 {
        match self.beyond {
            Beyond::Infinity => self.infinity() - 1,
            Beyond::Ones => self.sign() - 2,
            Beyond::SignAlone | Beyond::Nothing => self.sign() - 1,
        }
    }

    /// The code of infinity, in formats that have one.
    fn infinity(self) -> u8 {
        self.sign() - (1 << self.fraction_bits)
    }

    /// The code of NaN with this sign. Formats without NaN use -0 for it, as ml_dtypes does.
    fn nan(self, sign: u8) -> u8 {
        match self.beyond {
            Beyond::Infinity => sign | (self.infinity() + (1 << (self.fraction_bits - 1))),
            Beyond::Ones => sign | (self.sign() - 1),
            Beyond::SignAlone | Beyond::Nothing => self.sign(),
        }
    }

    fn decode(self, code: u8) -> f64 {
        let size = code & (self.sign() - 1);
        let is_negative = code & self.sign() != 0;
        match self.beyond {
            Beyond::SignAlone if code == self.sign() => return f64::NAN,
            Beyond::Ones if size == self.sign() - 1 => return f64::NAN,
            Beyond::Infinity if size > self.infinity() => return f64::NAN,
            Beyond::Infinity if size == self.infinity() => {
                return if is_negative { f64::NEG_INFINITY } else { f64::INFINITY };
            }
            _ => {}
        }
        let exponent = i32::from(size >> self.fraction_bits);
        let fraction = f64::from(size & ((1 << self.fraction_bits) - 1));
        let one = f64::from(1u8 << self.fraction_bits);
        // With an exponent of zero there is no leading one.
        let (significand, exponent) = if exponent == 0 { (fraction, 1) } else { (fraction + one, exponent) };
        let number = significand / one * 2f64.powi(exponent - self.bias);
        if is_negative { -number } else { number }
    }

    /// The code of the nearest number; in a tie, the even code.
    fn encode(self, value: f64, saturate: bool) -> u8 {
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        if value.is_nan() {
            return self.nan(sign);
        }
        let size = value.abs();
        // Numbers with the smallest exponent and those below them are equally spaced.
        let exponent = exponent_of(size).max(1 - self.bias);
        let steps = if size.is_infinite() {
            f64::INFINITY
        } else {
            (size / 2f64.powi(exponent - self.fraction_bits as i32)).round_ties_even()
        };
        let code = f64::from(exponent + self.bias - 1) * f64::from(1u8 << self.fraction_bits) + steps;
        if code > f64::from(self.largest()) {
            return match self.beyond {
                _ if saturate => sign | self.largest(),
                Beyond::Infinity => sign | self.infinity(),
                Beyond::Nothing => sign | self.largest(),
                Beyond::Ones | Beyond::SignAlone => self.nan(sign),
            };
        }
        match (code as u8, self.beyond) {
            (0, Beyond::SignAlone) => 0,
            (code, _) => sign | code,
        }
    }
}

/// The exponent of the largest power of two that is not above a finite number of at least 0; very small for 0.
fn exponent_of(size: f64) -> i32 {
    // Numbers below 2^-1022 are treated like those just below it.
    (size.to_bits() >> 52) as i32 - 1023
}

/// The exponent of code 0 of `Float8E8M0`, negated.
const POWER_BIAS: i32 = 127;
/// The code of NaN in `Float8E8M0`.
const POWER_NAN: u8 = 0xff;

/// Encodes a power of two. The sign of a negative number is lost, which ONNX leaves open.
fn encode_power(value: f64, narrowing: Narrowing) -> u8 {
    if value.is_nan() {
        return POWER_NAN;
    }
    let size = value.abs();
    let floor = exponent_of(size);
    let power = if size.is_infinite() { f64::INFINITY } else { 2f64.powi(floor) };
    let is_up = match narrowing.powers {
        PowerRounding::Up => size > power,
        PowerRounding::Down => false,
        PowerRounding::Nearest => size >= 1.5 * power,
    };
    let code = floor + i32::from(is_up) + POWER_BIAS;
    match u8::try_from(code) {
        Ok(code) if code < POWER_NAN => code,
        _ if !narrowing.saturate => POWER_NAN,
        _ if code < 0 => 0,
        _ => POWER_NAN - 1,
    }
}

/// Encodes a number as an element of a narrow type. Floating-point types round to the nearest number (ties to even); integers drop the
/// fraction and keep the lowest bits. Returns 0 for any other type.
///
/// ```
/// use forebay_base::narrow::{decode, encode, Narrowing};
/// use forebay_base::DataType;
///
/// let code = encode(DataType::Float8E4M3FN, 0.48, Narrowing::default());
/// assert_eq!(decode(DataType::Float8E4M3FN, code), 0.46875);
/// assert_eq!(encode(DataType::Int4, -9.0, Narrowing::default()), 7);
/// ```
pub fn encode(data_type: DataType, value: f64, narrowing: Narrowing) -> u8 {
    match Format::of(data_type) {
        Some(format) => format.encode(value, narrowing.saturate),
        None if data_type == DataType::Float8E8M0 => encode_power(value, narrowing),
        None => encode_integer(data_type, value as i64),
    }
}

/// Encodes an integer as an element of a narrow integer type, keeping the lowest bits. Returns 0 for any other type.
pub fn encode_integer(data_type: DataType, value: i64) -> u8 {
    if !data_type.is_integer() || !data_type.is_narrow() {
        return 0;
    }
    canonical(data_type, value as u8)
}

/// The value of an element of a narrow type. Returns 0 for any other type.
pub fn decode(data_type: DataType, code: u8) -> f64 {
    match Format::of(data_type) {
        Some(format) => format.decode(code),
        None if data_type == DataType::Float8E8M0 && code == POWER_NAN => f64::NAN,
        None if data_type == DataType::Float8E8M0 => 2f64.powi(i32::from(code) - POWER_BIAS),
        None => match data_type.kind() {
            NumberKind::Signed => f64::from(code as i8),
            NumberKind::Unsigned => f64::from(code),
            NumberKind::Real | NumberKind::Boolean => 0.0,
        },
    }
}

/// The smallest and the largest number of a narrow integer type; `None` for any other type.
pub fn limits(data_type: DataType) -> Option<(i64, i64)> {
    let bits = data_type.file_bits();
    match data_type.kind() {
        _ if !data_type.is_narrow() => None,
        NumberKind::Signed => Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
        NumberKind::Unsigned => Some((0, (1 << bits) - 1)),
        NumberKind::Real | NumberKind::Boolean => None,
    }
}

/// Makes an element from the lowest bits of a byte; signed integers are sign-extended.
fn canonical(data_type: DataType, bits: u8) -> u8 {
    let unused = 8 - data_type.file_bits().min(8);
    let top = bits << unused;
    match data_type.kind() {
        NumberKind::Signed => (top as i8 >> unused) as u8,
        NumberKind::Real | NumberKind::Unsigned | NumberKind::Boolean => top >> unused,
    }
}

/// The number of bytes that `count` elements occupy in an ONNX file; `None` if it does not fit into 64 bits.
pub fn file_bytes(data_type: DataType, count: u64) -> Option<u64> {
    match data_type.file_bits() {
        bits if bits < 8 => Some(count.div_ceil(8 / bits)),
        bits => count.checked_mul(bits / 8),
    }
}

/// Fills `elements` from a file's bytes, starting with element `skip` of the first byte. Elements of at least 8 bits are copied.
///
/// ```
/// use forebay_base::{narrow, DataType};
///
/// let mut elements = [0; 3];
/// narrow::unpack(DataType::Int4, &[0x2f, 0x08], 0, &mut elements);
/// assert_eq!(elements, [-1i8 as u8, 2, -8i8 as u8]);
/// assert_eq!(narrow::pack(DataType::Int4, &elements), [0x2f, 0x08]);
/// ```
pub fn unpack(data_type: DataType, file: &[u8], skip: usize, elements: &mut [u8]) {
    let bits = data_type.file_bits() as usize;
    if bits >= 8 {
        let length = file.len().min(elements.len());
        elements[..length].copy_from_slice(&file[..length]);
        return;
    }
    let per_byte = 8 / bits;
    for (i, element) in (skip..).zip(elements) {
        let byte = file.get(i / per_byte).copied().unwrap_or_default();
        *element = canonical(data_type, byte >> (bits * (i % per_byte)));
    }
}

/// Packs elements as a file stores them: the first one in the lowest bits of the first byte, with zeros in the unused bits of the last
/// byte. Elements of at least 8 bits are copied.
pub fn pack(data_type: DataType, elements: &[u8]) -> Vec<u8> {
    let bits = data_type.file_bits() as usize;
    if bits >= 8 {
        return elements.to_vec();
    }
    let mask = (1u8 << bits) - 1;
    let byte = |chunk: &[u8]| {
        chunk.iter().enumerate().fold(0, |byte, (place, element)| byte | (element & mask) << (bits * place))
    };
    elements.chunks(8 / bits).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SATURATING: Narrowing = Narrowing { saturate: true, powers: PowerRounding::Up };
    const WITHOUT: Narrowing = Narrowing { saturate: false, powers: PowerRounding::Up };

    fn narrow() -> impl Iterator<Item = DataType> {
        DataType::ALL.into_iter().filter(|data_type| data_type.is_narrow())
    }

    /// All codes of a type.
    fn codes(data_type: DataType) -> impl Iterator<Item = u8> {
        (0..1u32 << data_type.file_bits()).map(move |bits| canonical(data_type, bits as u8))
    }

    #[test]
    fn every_number_is_its_own_nearest() {
        for data_type in narrow() {
            for code in codes(data_type) {
                let value = decode(data_type, code);
                let again = encode(data_type, value, WITHOUT);
                // Several codes are NaN.
                let same = again == code || value.is_nan() && decode(data_type, again).is_nan();
                assert!(same, "{data_type}: {code:#x} is {value}, which becomes {again:#x}");
            }
        }
    }

    #[test]
    fn what_lies_between_two_numbers_becomes_the_nearer_one() {
        for data_type in narrow().filter(|data_type| Format::of(*data_type).is_some()) {
            let mut numbers: Vec<(f64, u8)> =
                codes(data_type).map(|code| (decode(data_type, code), code)).filter(|(x, _)| x.is_finite()).collect();
            numbers.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in numbers.windows(2) {
                let [(low, low_code), (high, high_code)] = [pair[0], pair[1]];
                let middle = (low + high) / 2.0;
                let even = if low_code % 2 == 0 { low } else { high };
                let found = |x: f64| decode(data_type, encode(data_type, x, SATURATING));
                assert_eq!(found(middle), even, "{data_type}: {middle} between {low_code:#x} and {high_code:#x}");
                assert_eq!(found((low + middle) / 2.0), low, "{data_type}");
                assert_eq!(found((high + middle) / 2.0), high, "{data_type}");
            }
        }
    }

    /// Limits and special values from ONNX's tables.
    #[test]
    fn numbers_that_are_too_large_follow_the_tables() {
        let of = |data_type, x, narrowing| decode(data_type, encode(data_type, x, narrowing));
        let cases = [
            (DataType::Float8E4M3FN, 448.0, f64::NAN),
            (DataType::Float8E4M3FNUZ, 240.0, f64::NAN),
            (DataType::Float8E5M2, 57344.0, f64::INFINITY),
            (DataType::Float8E5M2FNUZ, 57344.0, f64::NAN),
            (DataType::Float4E2M1, 6.0, 6.0),
        ];
        for (data_type, largest, beyond) in cases {
            for x in [largest * 1.5, f64::INFINITY] {
                assert_eq!(of(data_type, x, SATURATING), largest, "{data_type}");
                assert_eq!(of(data_type, -x, SATURATING), -largest, "{data_type}");
                let found = of(data_type, x, WITHOUT);
                assert!(found == beyond || found.is_nan() && beyond.is_nan(), "{data_type}: {x} is {found}");
            }
            assert_eq!(encode(data_type, -0.0, SATURATING) == 0, data_type.name().ends_with("uz"), "{data_type}");
            assert_eq!(of(data_type, f64::NAN, SATURATING).is_nan(), data_type != DataType::Float4E2M1);
        }
        // What rounds to the largest number does not exceed it.
        assert_eq!(of(DataType::Float8E4M3FN, 463.9, WITHOUT), 448.0);
        assert!(of(DataType::Float8E4M3FN, 464.1, WITHOUT).is_nan());
    }

    #[test]
    fn powers_are_rounded_as_asked() {
        let of = |x, powers, saturate| encode(DataType::Float8E8M0, x, Narrowing { saturate, powers });
        for (powers, codes) in [
            (PowerRounding::Up, [127, 128, 128, 128, 129]),
            (PowerRounding::Down, [127, 127, 127, 128, 128]),
            (PowerRounding::Nearest, [127, 127, 128, 128, 128]),
        ] {
            assert_eq!([1.0, 1.4, 1.5, 2.0, 2.1].map(|x| of(x, powers, true)), codes, "{powers:?}");
        }
        assert_eq!([0.0, 1e-300, f64::INFINITY, 1e300].map(|x| of(x, PowerRounding::Up, true)), [0, 0, 254, 254]);
        assert_eq!([0.0, f64::INFINITY, f64::NAN].map(|x| of(x, PowerRounding::Nearest, false)), [255; 3]);
        assert_eq!(of(f64::NAN, PowerRounding::Up, true), 255);
    }

    #[test]
    fn packed_elements_come_back_from_any_place() {
        for data_type in narrow() {
            let elements: Vec<u8> = codes(data_type).chain(codes(data_type).take(3)).collect();
            for count in 0..elements.len() {
                let file = pack(data_type, &elements[..count]);
                assert_eq!(Some(file.len() as u64), file_bytes(data_type, count as u64));
                let per_byte = (8 / data_type.file_bits()) as usize;
                for skip in 0..per_byte.min(count + 1) {
                    let mut found = vec![0xa5; count - skip];
                    unpack(data_type, &file, skip, &mut found);
                    assert_eq!(found, elements[skip..count], "{data_type}: {count} elements from {skip} on");
                }
            }
        }
        assert_eq!(pack(DataType::UInt2, &[1, 2, 3, 0, 3]), [0b00_11_10_01, 0b11]);
        assert_eq!(file_bytes(DataType::Float64, u64::MAX), None);
    }
}
