//! Conditions and trip counts as tensors: one interpretation for both unrolled graphs and loops that run.

use forebay_base::{DataType, Tensor};

/// Returns whether a condition holds: its only element is not 0.
pub fn is_true(condition: &Tensor) -> bool {
    condition.bytes().iter().any(|&byte| byte != 0)
}

/// Returns a condition as a scalar.
pub fn truth(value: bool) -> Tensor {
    Tensor::new(DataType::Bool, &[], [u8::from(value)]).expect("a byte is a scalar")
}

/// Returns the most iterations of a loop, according to its first input: 0 if that is negative.
pub fn trip_count(count: &Tensor) -> i64 {
    count.to_i64().and_then(|count| count.first().copied()).unwrap_or(0).max(0)
}
