//! Parsing numbers in flags.

/// Parses a finite number.
///
/// # Errors
/// Fails if the text is not such a number.
pub fn number(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        Ok(_) => Err("expected a finite number".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

/// Parses a finite number of at least 0.
///
/// # Errors
/// Fails if the text is not such a number.
pub fn not_negative(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        Ok(_) => Err("expected a finite number of at least 0".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

/// Parses a number that is at least 0 and below 1.
///
/// # Errors
/// Fails if the text is not such a number.
pub fn below_one(text: &str) -> Result<f32, String> {
    not_negative(text).and_then(|number| if number < 1.0 { Ok(number) } else { Err("must be below 1".to_owned()) })
}
