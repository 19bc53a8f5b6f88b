//! What tests say where there is no Vulkan device.

/// Says that a test is skipped.
///
/// # Panics
/// Where `FOREBAY_REQUIRE` names vulkan.
pub fn skipped(reason: impl std::fmt::Display) {
    let required = std::env::var("FOREBAY_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|part| part.trim() == "vulkan"),
        "FOREBAY_REQUIRE names vulkan, which is missing: {reason}"
    );
    println!("SKIPPED vulkan: {reason}");
}
