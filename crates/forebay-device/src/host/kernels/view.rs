//! An operand of a kernel: a descriptor and the address of its bytes.

use forebay_base::TensorDesc;

/// An operand: how the tensor lies, and where it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// How the tensor lies.
    pub desc: &'a TensorDesc,
    /// First byte.
    pub pointer: *mut u8,
}

// SAFETY: a view is an address and a shared descriptor; who may access the bytes when is the promise of `kernels::run`'s caller.
unsafe impl Send for View<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Elements from the base to the end of the total size.
    pub fn len<T>(&self) -> usize {
        (self.desc.total_size_bytes() / size_of::<T>() as u64) as usize
    }

    /// The bytes as elements that nobody writes.
    ///
    /// # Safety
    /// The view must be live and of this type, and nobody may write it during `'b`.
    pub unsafe fn slice<'b, T>(&self) -> &'b [T] {
        // SAFETY: live, aligned to 16 bytes and long enough by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer.cast::<T>(), self.len::<T>()) }
    }

    /// The bytes as elements that nobody else touches.
    ///
    /// # Safety
    /// The view must be live and of this type, and nobody else may touch it during `'b`.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut<'b, T>(&self) -> &'b mut [T] {
        // SAFETY: as `slice`, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast::<T>(), self.len::<T>()) }
    }

    /// Sizes as `usize`.
    pub fn sizes(&self) -> Vec<usize> {
        self.desc.sizes().iter().map(|&size| size as usize).collect()
    }

    /// Strides in elements as `usize`.
    pub fn strides(&self) -> Vec<usize> {
        self.desc.effective_strides().iter().map(|&stride| stride as usize).collect()
    }

    /// Number of logical elements.
    pub fn count(&self) -> usize {
        self.desc.element_count() as usize
    }
}
