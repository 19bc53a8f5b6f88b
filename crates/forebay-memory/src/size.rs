//! Memory sizes in human-readable form.

use std::fmt;
use std::str::FromStr;

/// A memory size: a number of bytes, or a share of what the model needs without a budget.
///
/// ```
/// use forebay_memory::size::MemorySize;
///
/// let size: MemorySize = "50%".parse()?; // of what is needed without a budget
/// assert_eq!(size.resolve(1000), 500);
/// assert_eq!("1.5GiB".parse(), Ok(MemorySize::Bytes(3 << 29)));
/// # Ok::<(), forebay_memory::size::MemorySizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemorySize {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the peak of the unlimited plan.
    Percent(f64),
}

/// The error for a text that is not a memory size.
///
/// ```
/// use forebay_memory::size::MemorySize;
///
/// let error = "much".parse::<MemorySize>().unwrap_err();
/// assert_eq!(error.text, "much");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySizeError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl fmt::Display for MemorySizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not a memory size: {} (write 256MiB, 1.5GB, 4096 or 50%)", self.text, self.reason)
    }
}

impl std::error::Error for MemorySizeError {}

impl MemorySize {
    /// The size in bytes, rounded down, if the unlimited plan takes `in_core_peak_bytes`.
    pub fn resolve(self, in_core_peak_bytes: u64) -> u64 {
        match self {
            MemorySize::Bytes(bytes) => bytes,
            MemorySize::Percent(percent) => (in_core_peak_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

/// The factors of the units, which are not case-sensitive. `kB` and the like count in thousands, `KiB` and the like in 1024s.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

impl FromStr for MemorySize {
    type Err = MemorySizeError;

    fn from_str(text: &str) -> Result<MemorySize, MemorySizeError> {
        let error = |reason| MemorySizeError { text: text.to_string(), reason };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim().to_ascii_lowercase();
        if number.is_empty() {
            return Err(error("it does not start with a number"));
        }
        if unit == "%" {
            let percent: f64 = number.parse().map_err(|_| error("the number cannot be read"))?;
            return if percent > 0.0 { Ok(MemorySize::Percent(percent)) } else { Err(error("it is zero")) };
        }
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        let factor = factor.ok_or_else(|| error("its unit is unknown"))?;
        // Whole numbers stay exact; only fractions go through floating point.
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(factor).ok_or_else(|| error("it does not fit in 64 bits"))?,
            Err(_) => {
                let fraction: f64 = number.parse().map_err(|_| error("the number cannot be read"))?;
                let bytes = fraction * factor as f64;
                if bytes >= u64::MAX as f64 {
                    return Err(error("it does not fit in 64 bits"));
                }
                bytes as u64
            }
        };
        if bytes == 0 {
            return Err(error("it is zero"));
        }
        Ok(MemorySize::Bytes(bytes))
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemorySize::Bytes(bytes) => f.write_str(&format_bytes(*bytes)),
            MemorySize::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Formats a number of bytes for people: in the largest binary unit that keeps the number at 1 or more, with up to two decimals.
pub fn format_bytes(bytes: u64) -> String {
    for (unit, factor) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= factor {
            let number = format!("{:.2}", bytes as f64 / factor as f64);
            return format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'));
        }
    }
    exact_bytes(bytes)
}

/// The number with its noun.
pub(crate) fn exact_bytes(bytes: u64) -> String {
    format!("{bytes} byte{}", if bytes == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("4096", 4096),
            ("256MiB", 256 << 20),
            ("1GiB", 1 << 30),
            ("1.5GB", 1_500_000_000),
            (" 2 kb ", 2000),
            ("0.5KiB", 512),
            ("3g", 3 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(MemorySize::Bytes(bytes)), "{text}");
        }
        assert_eq!("50%".parse(), Ok(MemorySize::Percent(50.0)));
        assert_eq!("12.5 %".parse(), Ok(MemorySize::Percent(12.5)));
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "number"),
            ("MiB", "number"),
            ("-1", "number"),
            ("1..5MiB", "cannot be read"),
            ("1XB", "unit"),
            ("0", "zero"),
            ("0%", "zero"),
            ("0.1", "zero"),
            ("20000000TiB", "64 bits"),
            ("99999999999999999999999", "64 bits"),
        ] {
            let error = text.parse::<MemorySize>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_share_is_of_the_peak() {
        assert_eq!(MemorySize::Percent(50.0).resolve(1001), 500);
        assert_eq!(MemorySize::Bytes(7).resolve(1001), 7);
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!([0, 1, 512].map(format_bytes), ["0 bytes", "1 byte", "512 bytes"]);
        assert_eq!(format_bytes(192 << 20), "192 MiB");
        assert_eq!(format_bytes((3 << 30) / 2), "1.5 GiB");
    }
}
