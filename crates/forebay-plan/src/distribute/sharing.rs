//! Sharing: the dimension along which a launch is distributed among processes.

use std::ops::Range;

use forebay_base::kernel::facts::{AxisRole, Dimension, OperandRef};
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::{Operand, ProgramLaunch};

use super::shares::shares;
use crate::partition::cut::{cut_along, dimensions};
use crate::partition::rows::Cut;

/// A distributed buffer: each process has its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// The number of images of all processes.
    pub images: u64,
    /// The bytes of an image.
    pub image_bytes: u64,
}

/// A buffer of which each process has a slice of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sliced {
    /// The number of elements of all processes.
    pub elements: u64,
    /// The bytes of an element.
    pub element_bytes: u64,
    /// Slices begin at multiples of this many elements.
    pub unit: u64,
}

impl Sliced {
    /// Returns the slices of a tensor.
    pub fn of(desc: &TensorDesc, unit: u64) -> Sliced {
        Sliced { elements: desc.element_count(), element_bytes: desc.data_type().size_bytes(), unit }
    }

    /// Returns the elements of each process's slice. `None` if a process would have no elements.
    pub fn slices(&self, processes: usize) -> Option<Vec<Range<u64>>> {
        let Sliced { elements, unit, .. } = *self;
        let units = shares(elements.div_ceil(unit), processes as u64, 1)?;
        let slice = |units: Range<u64>| units.start * unit..(units.end * unit).min(elements);
        Some(units.into_iter().map(slice).collect())
    }
}

/// The location of the contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing has been written yet.
    Unwritten,
    /// Every process has all of it.
    Whole,
    /// Every process has all of it, and it holds this many images: launches that read all or some of them are distributed.
    Batch(u64),
    /// Each process has its images.
    Shared(Shared),
    /// Each process has its slice, and no room for more.
    Slice(Sliced),
    /// Each process has room for all of it, and its slice is the newest.
    NewestSlice(Sliced),
}

/// Returns the state of an operand's buffer, and its size in bytes.
pub(super) type OfBuffer<'a> = &'a dyn Fn(&Operand) -> (State, u64);

/// How a launch is distributed.
pub(super) struct Sharing {
    /// The dimension of images.
    pub dimension: Dimension,
    /// Where the launch can be cut along it.
    pub cut: Cut,
    /// The number of images.
    pub images: u64,
    /// By write: how its buffer is distributed; `None` for sums over images.
    pub writes: Vec<Option<Shared>>,
}

impl Sharing {
    /// Determines how a launch can be distributed; `None` if it cannot be, or if none of its operands has images.
    pub fn of(launch: &ProgramLaunch, state: OfBuffer) -> Option<Sharing> {
        let images = images_of(launch, state)?;
        let all = dimensions(launch).into_iter().enumerate();
        all.filter(|(_, dimension)| dimension.role.may_hold_images())
            .find_map(|(number, dimension)| Sharing::along(launch, state, images, number, dimension))
    }

    fn along(
        launch: &ProgramLaunch,
        state: OfBuffer,
        images: u64,
        number: usize,
        dimension: Dimension,
    ) -> Option<Sharing> {
        let cut = cut_along(launch, number, &dimension)?;
        if !cut.rows.is_multiple_of(images) {
            return None;
        }
        let shared = |operand: &Operand, reference: OperandRef, buffer_bytes: u64| {
            let (rows, image_bytes) = image_bytes(operand, &dimension, reference, images, buffer_bytes)?;
            (rows == cut.rows).then_some(Shared { images, image_bytes })
        };
        let mut has_images = false;
        for (read, operand) in launch.reads.iter().enumerate() {
            let reference = OperandRef::Read(read);
            match state(operand) {
                (State::Shared(own), bytes) if shared(operand, reference, bytes) != Some(own) => return None,
                (State::Shared(_), _) => has_images = true,
                (State::Batch(_), bytes) => {
                    // A launch may take some of its images.
                    let is_taken = dimension.along(reference).is_some_and(|(along, _)| along.axis == 0);
                    has_images |= is_taken || shared(operand, reference, bytes).is_some();
                }
                (State::Slice(_) | State::NewestSlice(_), _) => return None,
                (State::Whole | State::Unwritten, _) => {}
            }
        }
        let mut writes = Vec::with_capacity(launch.writes.len());
        for (write, operand) in launch.writes.iter().enumerate() {
            let reference = OperandRef::Write(write);
            let is_along = dimension.along(reference).is_some();
            let (state, bytes) = state(operand);
            writes.push(match (state, is_along) {
                (State::Unwritten, true) => Some(shared(operand, reference, bytes)?),
                (State::Shared(own), true) => {
                    has_images = true;
                    Some(shared(operand, reference, bytes).filter(|shared| *shared == own)?)
                }
                (State::Unwritten | State::Whole, false) if dimension.role == AxisRole::Reduced => None,
                _ => return None,
            });
        }
        has_images.then_some(Sharing { dimension, cut, images, writes })
    }
}

/// Returns how many images the operands of a launch have; `None` if they have none, or different numbers of them.
fn images_of(launch: &ProgramLaunch, state: OfBuffer) -> Option<u64> {
    let mut found = None;
    for operand in launch.reads.iter().chain(&launch.writes) {
        if let (State::Shared(Shared { images, .. }), _) = state(operand)
            && *found.get_or_insert(images) != images
        {
            return None;
        }
    }
    // A launch may take some of the images: those that it reads or, for a slice, those that it writes.
    let is_slice = matches!(launch.kernel, Kernel::Slice { .. });
    let taken = |read: &Operand| {
        let (State::Batch(images), buffer_bytes) = state(read) else { return None };
        let operand = if is_slice { launch.writes.first()? } else { read };
        let bytes = operand.desc.element_count() * operand.desc.data_type().size_bytes();
        let images = images * bytes;
        images.is_multiple_of(buffer_bytes).then(|| images / buffer_bytes).filter(|&images| images > 0)
    };
    found.or_else(|| launch.reads.iter().find_map(taken))
}

/// Returns by write the number of images that are written by a launch that every process computes whole, if images that it reads are along
/// the same dimension, and otherwise `None`.
pub(super) fn images_of_writes(launch: &ProgramLaunch, state: OfBuffer) -> Vec<Option<u64>> {
    let Some(images) = images_of(launch, state) else { return vec![None; launch.writes.len()] };
    let all = dimensions(launch);
    let has_images = |dimension: &&Dimension| {
        launch.reads.iter().enumerate().any(|(read, operand)| match state(operand) {
            (State::Shared(_) | State::Batch(_), bytes) => {
                image_bytes(operand, dimension, OperandRef::Read(read), images, bytes).is_some()
            }
            _ => false,
        })
    };
    let along: Vec<&Dimension> = all.iter().filter(has_images).collect();
    let of_write = |(write, operand): (usize, &Operand)| {
        let bytes = state(operand).1;
        let has = |dimension: &&&Dimension| {
            image_bytes(operand, dimension, OperandRef::Write(write), images, bytes).is_some()
        };
        along.iter().find(has).map(|_| images)
    };
    launch.writes.iter().enumerate().map(of_write).collect()
}

/// Returns how many rows of a dimension an operand has, and the bytes of an image of its buffer, if the operand has `images` along the
/// dimension, one after the other with nothing between them. `None` if they have another layout.
fn image_bytes(
    operand: &Operand,
    dimension: &Dimension,
    reference: OperandRef,
    images: u64,
    buffer_bytes: u64,
) -> Option<(u64, u64)> {
    let (along, _) = dimension.along(reference)?;
    let (desc, element_bytes) = (&operand.desc, operand.desc.data_type().size_bytes());
    let (sizes, strides) = (desc.sizes(), desc.effective_strides());
    let size = *sizes.get(along.axis)?;
    if (along.first, along.step, along.indices) != (0, 1, None) || !size.is_multiple_of(images) {
        return None;
    }
    let rows = size / images;
    let image_bytes = strides[along.axis] * rows * element_bytes;
    let last = sizes.iter().zip(&strides).enumerate().map(|(axis, (&size, &stride))| {
        let size = if axis == along.axis { rows } else { size };
        (size - 1) * stride
    });
    let end_bytes = operand.offset_bytes + (last.sum::<u64>() + 1) * element_bytes;
    let fits =
        end_bytes <= image_bytes && (image_bytes * images).next_multiple_of(4) == buffer_bytes.next_multiple_of(4);
    (fits && size.is_multiple_of(along.elements)).then_some((size / along.elements, image_bytes))
}
