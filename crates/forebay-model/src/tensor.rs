//! Tensors of a model: their contents, and where the elements are stored.

mod contents;
mod direct;
mod numbers;
mod source;

pub use contents::{Compute, Contents, Hold, Reader};
pub use forebay_base::Tensor;
pub use numbers::{Encoding, Numbers, VARINT_BYTES_MAX};
pub use source::{FileRange, SourceFile};
