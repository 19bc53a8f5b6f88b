//! Numbers of flags.

/// A finite number.
///
/// # Errors
/// What is none.
pub fn number(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        Ok(_) => Err("a finite number is needed".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

/// A finite number of at least 0.
///
/// # Errors
/// What is none.
pub fn not_negative(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        Ok(_) => Err("a finite number of at least 0 is needed".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

/// A number from 0 to below 1.
///
/// # Errors
/// What is none.
pub fn below_one(text: &str) -> Result<f32, String> {
    not_negative(text).and_then(|number| if number < 1.0 { Ok(number) } else { Err("it must be below 1".to_owned()) })
}
