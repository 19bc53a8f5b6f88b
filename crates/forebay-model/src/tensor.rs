//! Tensors of a model: what they hold, and where the elements are.

mod contents;
mod source;

pub use contents::{Compute, Contents, Reader};
pub use forebay_base::Tensor;
pub use source::{FileRange, SourceFile};
