//! An operand of a kernel: a descriptor and the address of its bytes.

use forebay_base::TensorDesc;

/// An operand: the layout of the tensor and its start address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// The layout of the tensor.
    pub desc: &'a TensorDesc,
    /// First byte.
    pub pointer: *mut u8,
}

// SAFETY: a view is only an address and a shared descriptor; `kernels::run`'s caller promises who may access the bytes and when.
unsafe impl Send for View<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for View<'_> {}

impl View<'_> {
    /// Sizes as `usize`.
    pub fn sizes(&self) -> Vec<usize> {
        self.desc.sizes().iter().map(|&size| size as usize).collect()
    }

    /// Strides in elements as `usize`.
    pub fn strides(&self) -> Vec<usize> {
        self.desc.effective_strides().iter().map(|&stride| stride as usize).collect()
    }

    /// The number of logical elements.
    pub fn count(&self) -> usize {
        self.desc.element_count() as usize
    }
}
