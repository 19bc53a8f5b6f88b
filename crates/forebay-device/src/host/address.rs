//! Addresses of bytes that commands use.

/// The address of a region's first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address(pub *mut u8);

// SAFETY: an address; commands' ordering decides who may access the bytes when.
unsafe impl Send for Address {}
// SAFETY: as for `Send`.
unsafe impl Sync for Address {}
