//! What tests say if the machine lacks a part that they need, such as a Vulkan driver.

/// Prints that a test is skipped because this part is missing.
///
/// # Panics
/// If `FOREBAY_REQUIRE` names the part.
pub fn skipped(part: &str, reason: impl std::fmt::Display) {
    let required = std::env::var("FOREBAY_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|named| named.trim() == part),
        "FOREBAY_REQUIRE names {part}, which is missing: {reason}"
    );
    println!("SKIPPED {part}: {reason}");
}
