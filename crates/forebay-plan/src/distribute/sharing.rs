//! Sharing: along which dimension processes share a launch out, and the parts of each.

use forebay_base::kernel::facts::{Along, AxisRole, Dimension, OperandRef};
use forebay_model::program::{Operand, ProgramLaunch};

use crate::partition::cut::{cut_along, dimensions};
use crate::partition::rows::Cut;

/// A buffer that is shared out: each process has its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// Images of all processes.
    pub images: u64,
    /// Bytes of an image.
    pub image_bytes: u64,
}

/// Where the contents of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing was written yet.
    Unwritten,
    /// Every process has all of it.
    Whole,
    /// Every process has all of it, and it holds images: launches that read it are shared out.
    Batch,
    /// Every process has its images.
    Shared(Shared),
}

/// How a launch is shared out.
pub(super) struct Sharing {
    /// The dimension of images.
    pub dimension: Dimension,
    /// Where the launch may be cut along it.
    pub cut: Cut,
    /// How many images there are.
    pub images: u64,
    /// By write: how its buffer is shared out then; none for sums over images.
    pub writes: Vec<Option<Shared>>,
}

impl Sharing {
    /// Finds how a launch can be shared out; none where it cannot be, or where none of its operands has images.
    pub fn of(launch: &ProgramLaunch, state: &dyn Fn(&Operand) -> (State, u64)) -> Option<Sharing> {
        let operands = || launch.reads.iter().chain(&launch.writes);
        let mut images = None;
        for operand in operands() {
            if let (State::Shared(shared), _) = state(operand) {
                if *images.get_or_insert(shared.images) != shared.images {
                    return None;
                }
            }
        }
        let has_batch = launch.reads.iter().any(|read| state(read).0 == State::Batch);
        if images.is_none() && !has_batch {
            return None;
        }
        let all = dimensions(launch).into_iter().enumerate();
        all.filter(|(_, dimension)| {
            matches!(dimension.role, AxisRole::Free | AxisRole::Channel | AxisRole::Reduced | AxisRole::Taken)
        })
        .find_map(|(number, dimension)| Sharing::along(launch, state, images, number, dimension))
    }

    fn along(
        launch: &ProgramLaunch,
        state: &dyn Fn(&Operand) -> (State, u64),
        images: Option<u64>,
        number: usize,
        dimension: Dimension,
    ) -> Option<Sharing> {
        let cut = cut_along(launch, number, &dimension)?;
        let images = images.unwrap_or(cut.rows);
        if !cut.rows.is_multiple_of(images) {
            return None;
        }
        // How an operand's buffer is shared out if its images lie along the dimension, one behind the other.
        let shared = |operand: &Operand, reference: OperandRef, buffer_bytes: u64| {
            let (along, _) = dimension.along(reference)?;
            let size = *operand.desc.sizes().get(along.axis)?;
            let is_plain =
                (along.first, along.step, along.indices) == (0, 1, None) && size == cut.rows * along.elements;
            let image_bytes = image_bytes(operand, &along, images, buffer_bytes).filter(|_| is_plain)?;
            Some(Shared { images, image_bytes })
        };
        let mut along_batch = false;
        for (read, operand) in launch.reads.iter().enumerate() {
            let reference = OperandRef::Read(read);
            match state(operand) {
                (State::Shared(own), bytes) if shared(operand, reference, bytes) != Some(own) => return None,
                (State::Shared(_), _) => along_batch = true,
                (State::Batch, _) => {
                    along_batch |= dimension.along(reference).is_some_and(|(along, _)| along.axis == 0)
                }
                (State::Whole | State::Unwritten, _) => {}
            }
        }
        let mut writes = Vec::with_capacity(launch.writes.len());
        for (write, operand) in launch.writes.iter().enumerate() {
            let reference = OperandRef::Write(write);
            let has_images = dimension.along(reference).is_some();
            let (state, bytes) = state(operand);
            writes.push(match (state, has_images) {
                (State::Unwritten, true) => Some(shared(operand, reference, bytes)?),
                (State::Shared(own), true) => {
                    along_batch = true;
                    Some(shared(operand, reference, bytes).filter(|shared| *shared == own)?)
                }
                (State::Unwritten | State::Whole, false) if dimension.role == AxisRole::Reduced => None,
                _ => return None,
            });
        }
        along_batch.then_some(Sharing { dimension, cut, images, writes })
    }
}

/// Bytes of an image of a buffer, of which an operand has `images` along an axis, one behind the other and nothing between them. None
/// where they lie otherwise.
fn image_bytes(operand: &Operand, along: &Along, images: u64, buffer_bytes: u64) -> Option<u64> {
    let (desc, element_bytes) = (&operand.desc, operand.desc.data_type().size_bytes());
    let (sizes, strides) = (desc.sizes(), desc.effective_strides());
    let rows = sizes[along.axis].checked_div(images).filter(|rows| rows * images == sizes[along.axis])?;
    let image_bytes = strides[along.axis] * rows * element_bytes;
    let last = sizes.iter().zip(&strides).enumerate().map(|(axis, (&size, &stride))| {
        let size = if axis == along.axis { rows } else { size };
        (size - 1) * stride
    });
    let end_bytes = operand.offset_bytes + (last.sum::<u64>() + 1) * element_bytes;
    let fits =
        end_bytes <= image_bytes && (image_bytes * images).next_multiple_of(4) == buffer_bytes.next_multiple_of(4);
    fits.then_some(image_bytes)
}
