//! Memory of the process that commands use in place.

use std::fmt;

use forebay_base::host_tensor::SharedBytes;

/// Memory of the process that a device uses in place, from [`Device::lend`](crate::Device::lend) until
/// [`Device::give_back`](crate::Device::give_back).
pub enum Loan {
    /// Bytes that commands read. Their owner may let others read them as well.
    ToRead(SharedBytes),
    /// Bytes that commands read and write.
    ToWrite(Vec<u8>),
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loan::ToRead(owner) => write!(f, "{} bytes to read", (**owner).as_ref().len()),
            Loan::ToWrite(bytes) => write!(f, "{} bytes to write", bytes.len()),
        }
    }
}
