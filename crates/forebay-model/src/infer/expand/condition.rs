//! Conditions and numbers of iterations, as tensors: one reading for graphs that are written out and for loops that run.

use forebay_base::{DataType, Tensor};

/// Whether a condition holds: its only element is not 0.
pub fn is_true(condition: &Tensor) -> bool {
    condition.bytes().iter().any(|&byte| byte != 0)
}

/// A condition, as a scalar.
pub fn truth(value: bool) -> Tensor {
    Tensor::new(DataType::Bool, &[], [u8::from(value)]).expect("a byte is a scalar")
}

/// How often a loop runs at most, as its first input says: never, where that is negative.
pub fn trip_count(count: &Tensor) -> i64 {
    count.to_i64().and_then(|count| count.first().copied()).unwrap_or(0).max(0)
}
