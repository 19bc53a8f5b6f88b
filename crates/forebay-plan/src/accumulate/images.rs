//! Images: which buffers hold the images of a batch, one after the other, and along which dimension a launch processes them.

use std::collections::BTreeMap;

use forebay_base::kernel::facts::{AxisRole, Dimension, OperandRef};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch};

use crate::partition::cut::{cut_along, dimensions};
use crate::partition::rows::Cut;

/// How a launch is cut between images.
pub(super) struct Sharing {
    /// The role of the image dimension in the kernel.
    pub role: AxisRole,
    /// Where the launch can be cut along it.
    pub cut: Cut,
    /// The first image that it processes.
    pub first: u64,
    /// The number of images that it processes.
    pub count: u64,
    /// The rows of the cut for each image.
    pub unit: u64,
    /// The buffers of images that it writes, each with the bytes of an image.
    pub written: Vec<(BufferId, u64)>,
}

/// The images that an operand has along a dimension.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span {
    first: u64,
    count: u64,
    unit: u64,
}

/// The buffers that hold images.
pub(super) struct Images<'a> {
    program: &'a Program,
    /// The number of images in the batch.
    images: u64,
    /// By buffer that holds images: the bytes of an image.
    image_bytes: BTreeMap<BufferId, u64>,
}

impl Images<'_> {
    pub fn new(program: &Program, images: u64) -> Images<'_> {
        Images { program, images, image_bytes: BTreeMap::new() }
    }

    /// Records an input of the batch.
    pub fn note_input(&mut self, operand: &Operand) {
        let desc = &operand.desc;
        if desc.sizes().first() == Some(&self.images) && desc.is_packed() && operand.offset_bytes == 0 {
            let image_bytes = desc.element_count() / self.images * desc.data_type().size_bytes();
            self.note(&[(operand.buffer, image_bytes)]);
        }
    }

    /// Records buffers of images.
    pub fn note(&mut self, written: &[(BufferId, u64)]) {
        self.image_bytes.extend(written.iter().copied());
    }

    /// Records what an uncut launch writes: images, if images that it reads are along the same dimension.
    pub fn note_whole(&mut self, launch: &ProgramLaunch) {
        for dimension in dimensions(launch) {
            let is_read = |(read, operand): (usize, &Operand)| {
                let image_bytes = self.image_bytes.get(&operand.buffer).copied();
                image_bytes.and_then(|bytes| span(operand, &dimension, OperandRef::Read(read), bytes)).is_some()
            };
            if launch.reads.iter().enumerate().any(is_read) {
                let writes = launch.writes.iter().enumerate();
                let written: Vec<_> =
                    writes.filter_map(|(write, operand)| self.written(operand, &dimension, write)).collect();
                self.note(&written);
            }
        }
    }

    /// Returns how a launch is cut between images; `None` if it cannot be cut, or processes no images.
    pub fn sharing(&self, launch: &ProgramLaunch) -> Option<Sharing> {
        let operands = launch.reads.iter().chain(&launch.writes);
        if operands.into_iter().all(|operand| !self.image_bytes.contains_key(&operand.buffer)) {
            return None;
        }
        let all = dimensions(launch).into_iter().enumerate();
        all.filter(|(_, own)| own.role.may_hold_images())
            .find_map(|(number, dimension)| self.along(launch, number, &dimension))
    }

    fn along(&self, launch: &ProgramLaunch, number: usize, dimension: &Dimension) -> Option<Sharing> {
        let cut = cut_along(launch, number, dimension)?;
        let reads = (0..launch.reads.len()).map(OperandRef::Read);
        let mut found: Option<Span> = None;
        for reference in reads.chain((0..launch.writes.len()).map(OperandRef::Write)) {
            let operand = launch.operand(reference)?;
            let Some(&image_bytes) = self.image_bytes.get(&operand.buffer) else { continue };
            let own = span(operand, dimension, reference, image_bytes)?;
            if *found.get_or_insert(own) != own {
                return None;
            }
        }
        let Span { first, count, unit } = found?;
        if count * unit != cut.rows {
            return None;
        }
        let writes = launch.writes.iter().enumerate();
        let written = match (first, count == self.images) {
            (0, true) => writes.filter_map(|(write, operand)| self.written(operand, dimension, write)).collect(),
            _ => Vec::new(),
        };
        Some(Sharing { role: dimension.role, cut, first, count, unit, written })
    }

    /// Returns the buffer of a write that has all images along a dimension, and the bytes of an image.
    fn written(&self, operand: &Operand, dimension: &Dimension, write: usize) -> Option<(BufferId, u64)> {
        let (along, _) = dimension.along(OperandRef::Write(write))?;
        let size = *operand.desc.sizes().get(along.axis)?;
        let stride_bytes = operand.desc.effective_strides().get(along.axis)? * operand.desc.data_type().size_bytes();
        let image_bytes = size / self.images * stride_bytes;
        let whole = Span { first: 0, count: self.images, unit: size / self.images / along.elements.max(1) };
        let is_all = span(operand, dimension, OperandRef::Write(write), image_bytes)? == whole;
        let buffer_bytes = self.program.buffer(operand.buffer).size_bytes;
        let fits = (image_bytes * self.images).next_multiple_of(4) == buffer_bytes.next_multiple_of(4);
        (is_all && fits).then_some((operand.buffer, image_bytes))
    }
}

/// Returns the images that an operand has along a dimension, in a buffer that holds them one after the other. `None` if it has another
/// layout.
fn span(operand: &Operand, dimension: &Dimension, reference: OperandRef, image_bytes: u64) -> Option<Span> {
    let (along, _) = dimension.along(reference)?;
    let (desc, element_bytes) = (&operand.desc, operand.desc.data_type().size_bytes());
    let (sizes, strides) = (desc.sizes(), desc.effective_strides());
    let (size, stride_bytes) = (*sizes.get(along.axis)?, strides.get(along.axis)? * element_bytes);
    let is_plain = (along.first, along.step, along.covers, along.indices) == (0, 1, 1, None);
    if !is_plain || stride_bytes == 0 || image_bytes == 0 || !image_bytes.is_multiple_of(stride_bytes) {
        return None;
    }
    let of_image = image_bytes / stride_bytes;
    let last = sizes.iter().zip(&strides).enumerate().map(|(axis, (&size, &stride))| {
        let size = if axis == along.axis { of_image } else { size };
        size.saturating_sub(1) * stride
    });
    let end_bytes = operand.offset_bytes % image_bytes + (last.sum::<u64>() + 1) * element_bytes;
    let fits = size > 0 && size.is_multiple_of(of_image) && of_image.is_multiple_of(along.elements.max(1));
    (fits && end_bytes <= image_bytes).then(|| Span {
        first: operand.offset_bytes / image_bytes,
        count: size / of_image,
        unit: of_image / along.elements.max(1),
    })
}
