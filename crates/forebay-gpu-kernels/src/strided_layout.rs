//! The memory layout of a tensor x\[images, channels, rows, ..]: rows of the first spatial dimension can be anywhere, with either all
//! channels of one row or all rows of one channel together. Within a row, positions are contiguous.

use forebay_base::TensorDesc;
use forebay_base::kernel::{ReductionBlock, reduction_block_of_channels};

/// The sizes and strides of a tensor, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StridedLayout {
    pub images: u64,
    pub channels: u64,
    pub rows: u64,
    /// The number of elements in a row.
    pub places: u64,
    pub image_stride: u64,
    pub channel_stride: u64,
    pub row_stride: u64,
    /// The position of the first element.
    pub first: u64,
}

impl StridedLayout {
    /// # Errors
    /// If there is no channel axis, or if the positions of a row are not contiguous.
    pub fn of(desc: &TensorDesc) -> Result<StridedLayout, String> {
        let (sizes, strides) = (desc.sizes(), desc.effective_strides());
        if sizes.len() < 2 {
            return Err(format!("{desc} has no channel axis"));
        }
        let mut places = 1;
        for (&size, &stride) in sizes.iter().zip(&strides).skip(3).rev() {
            if size > 1 && stride != places {
                return Err(format!("the elements of a row of {desc} are not contiguous"));
            }
            places *= size;
        }
        let rows = sizes.get(2).copied().unwrap_or(1);
        let row_stride = if rows > 1 { strides[2] } else { places };
        Ok(StridedLayout {
            images: sizes[0],
            channels: sizes[1],
            rows,
            places,
            image_stride: strides[0],
            channel_stride: strides[1],
            row_stride,
            first: 0,
        })
    }

    /// Returns the number of slabs between which a tensor can be cut: images, or the rows of a single image.
    pub fn slabs(&self) -> u64 {
        if self.images > 1 { self.images } else { self.rows }
    }

    /// Returns the number of elements from one slab to the next.
    pub fn slab_stride(&self) -> u64 {
        if self.images > 1 { self.image_stride } else { self.row_stride }
    }

    /// Returns whether each slab ends before the next one begins.
    pub fn is_cuttable(&self) -> bool {
        let channels = (self.channels - 1) * self.channel_stride + self.places;
        let span = if self.images > 1 { channels + (self.rows - 1) * self.row_stride } else { channels };
        span <= self.slab_stride()
    }

    /// Returns the same layout with this number of slabs.
    pub fn with_slabs(self, count: u64) -> StridedLayout {
        if self.images > 1 { StridedLayout { images: count, ..self } } else { StridedLayout { rows: count, ..self } }
    }

    /// Returns whether the rows of a channel are contiguous.
    pub fn is_seamless(&self) -> bool {
        self.row_stride == self.places
    }

    /// Returns the number of elements of a channel over all images.
    pub fn samples(&self) -> u64 {
        self.images * self.rows * self.places
    }

    /// Returns the number of elements of all channels.
    pub fn elements(&self) -> u64 {
        self.samples() * self.channels
    }

    /// Returns the number of chunks of a sum over all positions.
    pub fn chunks(&self) -> u64 {
        let chunk = reduction_block_of_channels(self.rows, self.places);
        self.images.div_ceil(chunk.images) * self.rows.div_ceil(chunk.rows)
    }

    /// Returns the parameters that `positions_at` in `positions.slang` reads; `seamless` says whether the rows of all operands are
    /// contiguous.
    pub fn positions(&self, seamless: bool) -> Vec<u32> {
        let ReductionBlock { images, rows } = reduction_block_of_channels(self.rows, self.places);
        let per_image = self.rows.div_ceil(rows);
        let words = [self.images, self.channels, self.rows, self.places, images.min(self.images), rows, per_image];
        words.into_iter().chain([self.chunks(), u64::from(seamless)]).map(|word| word as u32).collect()
    }

    /// Returns the parameters that `strided_layout_at` reads. The stride of an axis of one element has no meaning.
    pub fn words(&self) -> [u32; 4] {
        let stride = |size, stride: u64| if size > 1 { stride as u32 } else { 0 };
        [
            self.first as u32,
            stride(self.images, self.image_stride),
            stride(self.channels, self.channel_stride),
            stride(self.rows, self.row_stride),
        ]
    }
}

/// Returns the strided layouts of operands of the same size.
///
/// # Errors
/// If one of them has no strided layout, or if sizes differ.
pub(super) fn strided_layouts<const N: usize>(descs: [&TensorDesc; N]) -> Result<[StridedLayout; N], String> {
    let mut all = [StridedLayout::of(descs[0])?; N];
    for (slot, desc) in all.iter_mut().zip(descs) {
        *slot = StridedLayout::of(desc)?;
        if desc.sizes() != descs[0].sizes() {
            return Err(format!("{} and {desc} differ in size", descs[0]));
        }
    }
    Ok(all)
}
