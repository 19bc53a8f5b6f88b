//! Addresses of bytes that commands use.

/// The address of a region's first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address(pub *mut u8);

// SAFETY: an address; the order of commands decides who may access the bytes and when.
unsafe impl Send for Address {}
// SAFETY: as for `Send`.
unsafe impl Sync for Address {}
