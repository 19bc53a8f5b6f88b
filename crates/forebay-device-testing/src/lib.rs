//! Device helpers that the tests of several crates share. A development dependency only. It is separate from `forebay-testing`, so that
//! tests without a device do not wait for the host's kernels to compile.
//!
//! | module | holds |
//! |---|---|
//! | [`mod@contract`] | the contract tests that every device must pass |
//! | [`lacking`] | a device that lacks kernels |
//! | [`read_only`] | memories that are read-only |
//! | [`refusing`] | a device that refuses calls |

pub mod contract;
pub mod lacking;
pub mod local_communicator;
pub mod read_only;
pub mod refusing;

pub use lacking::Lacking;
pub use refusing::Refusing;
