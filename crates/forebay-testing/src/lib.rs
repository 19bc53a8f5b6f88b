//! Helpers that the tests of several crates share. A development dependency only. It depends on nothing, so that no test waits for it to
//! compile.
//!
//! | module | holds |
//! |---|---|
//! | [`random`] | random numbers that are the same in every run |
//! | [`onnx`] | small ONNX models, written field by field |
//! | [`parts`] | what a test says if the machine lacks a part that it needs |
//!
//! ```
//! use forebay_testing::Random;
//!
//! let mut random = Random::new(7);
//! assert!(random.below(10) < 10);
//! assert_eq!(Random::new(7).word(), Random::new(7).word());
//! ```

pub mod onnx;
pub mod parts;
pub mod random;

pub use random::Random;
