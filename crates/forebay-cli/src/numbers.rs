//! Parsing numbers in flags.

use std::str::FromStr;

/// Parses a finite number.
///
/// # Errors
/// Fails if the text is not such a number.
pub fn number(text: &str) -> Result<f32, String> {
    finite(text, f64::MIN)
}

/// Like [`number`], in double precision.
///
/// # Errors
/// Fails if the text is not such a number.
pub fn number_f64(text: &str) -> Result<f64, String> {
    finite(text, f64::MIN)
}

/// Parses a finite number of at least 0.
///
/// # Errors
/// Fails if the text is not such a number.
pub fn not_negative(text: &str) -> Result<f32, String> {
    finite(text, 0.0)
}

/// Like [`not_negative`], in double precision.
///
/// # Errors
/// Fails if the text is not such a number.
pub fn not_negative_f64(text: &str) -> Result<f64, String> {
    finite(text, 0.0)
}

/// Parses a finite number of at least `least`, which is 0 or the smallest number.
fn finite<T: FromStr + Copy + Into<f64>>(text: &str, least: f64) -> Result<T, String> {
    let number: T = text.parse().map_err(|_| "not a number".to_owned())?;
    match number.into() {
        wide if wide.is_finite() && wide >= least => Ok(number),
        _ if least < 0.0 => Err("expected a finite number".to_owned()),
        _ => Err("expected a finite number of at least 0".to_owned()),
    }
}

/// Parses a number that is at least 0 and below 1.
///
/// # Errors
/// Fails if the text is not such a number.
pub fn below_one(text: &str) -> Result<f32, String> {
    not_negative(text).and_then(|number| if number < 1.0 { Ok(number) } else { Err("must be below 1".to_owned()) })
}
