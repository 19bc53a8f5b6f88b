//! The layout of a tensor x\[images, channels, rows, ..]: rows of the first spatial dimension can be anywhere, with all channels of one row
//! together or all rows of one channel. Within a row, places are contiguous.

use forebay_base::kernel::{ReductionBlock, reduction_block_of_channels};
use forebay_base::{SumTree, TensorDesc};

/// Sizes and strides of a tensor, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StridedLayout {
    pub images: usize,
    pub channels: usize,
    pub rows: usize,
    /// Elements of a row.
    pub places: usize,
    pub image_stride: usize,
    pub channel_stride: usize,
    pub row_stride: usize,
}

impl StridedLayout {
    /// # Errors
    /// Returns an error if there is no channel axis, or if the places of a row are not contiguous.
    pub fn of(desc: &TensorDesc) -> Result<StridedLayout, String> {
        let sizes: Vec<usize> = desc.sizes().iter().map(|&size| size as usize).collect();
        let strides: Vec<usize> = desc.effective_strides().iter().map(|&stride| stride as usize).collect();
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
        })
    }

    /// Whether the rows of a channel follow each other without gaps.
    pub fn is_seamless(&self) -> bool {
        self.row_stride == self.places
    }

    /// Whether both layouts have the same sizes.
    pub fn fits(&self, other: &StridedLayout) -> bool {
        let sizes = |strided_layout: &StridedLayout| {
            [strided_layout.images, strided_layout.channels, strided_layout.rows, strided_layout.places]
        };
        sizes(self) == sizes(other)
    }

    /// The first element of a row.
    #[inline(always)]
    pub fn at(&self, image: usize, channel: usize, row: usize) -> usize {
        image * self.image_stride + channel * self.channel_stride + row * self.row_stride
    }

    /// The chunks of a sum over all positions.
    pub fn chunks(&self) -> ReductionBlocks {
        let ReductionBlock { images, rows } = reduction_block_of_channels(self.rows as u64, self.places as u64);
        let (images, rows) = ((images as usize).min(self.images), rows as usize);
        ReductionBlocks { strided_layout: *self, images, rows, per_image: self.rows.div_ceil(rows) }
    }
}

/// The chunks of a sum over the positions of a strided layout, in order.
#[derive(Clone, Copy)]
pub(super) struct ReductionBlocks {
    strided_layout: StridedLayout,
    images: usize,
    rows: usize,
    per_image: usize,
}

impl ReductionBlocks {
    pub fn count(&self) -> usize {
        self.tree().leaves() as usize
    }

    /// The tree whose leaves are the chunks.
    pub fn tree(&self) -> SumTree {
        SumTree::new(self.strided_layout.images.div_ceil(self.images) as u64, self.per_image as u64)
    }

    /// The number of positions of a whole chunk.
    pub fn positions(&self) -> usize {
        self.images * self.rows * self.strided_layout.places
    }

    /// Calls `work(image, first row, rows)` for the pieces of a chunk whose rows follow each other in every strided layout given by
    /// `seamless`.
    #[inline(always)]
    pub fn for_each_piece(&self, chunk: usize, seamless: bool, mut work: impl FnMut(usize, usize, usize)) {
        let first_image = chunk / self.per_image * self.images;
        let first_row = chunk % self.per_image * self.rows;
        let end_row = self.strided_layout.rows.min(first_row + self.rows);
        for image in first_image..self.strided_layout.images.min(first_image + self.images) {
            if seamless {
                work(image, first_row, end_row - first_row);
            } else {
                for row in first_row..end_row {
                    work(image, row, 1);
                }
            }
        }
    }
}
