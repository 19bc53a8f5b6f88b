//! Backing locations: where a plan's tensors are stored between steps, and their bytes in chunks that pass through staging.

use std::borrow::Cow;

use forebay_base::{ByteRange, Region};
use forebay_model::Tensor;
use forebay_model::tensor::Contents;
use forebay_plan::plan::MemoryKind;
use forebay_plan::{BackingLocation, Plan};

use crate::error::RuntimeError;

/// The most host bytes that an executor takes in addition to its plan's, for moving contents to and from the device outside of steps. A
/// planner with a host budget must leave this much free.
pub const STAGING_BYTES: u64 = 1 << 20;

/// Returns the backing location with this name among those of a kind.
pub(crate) fn find<'a>(
    backing: &'a [BackingLocation],
    kind: &'static str,
    name: &str,
) -> Result<&'a BackingLocation, RuntimeError> {
    backing
        .iter()
        .find(|backing| backing.name == name && !backing.pieces.is_empty())
        .ok_or_else(|| RuntimeError::UnknownTensor { kind, name: name.to_string() })
}

/// The size of the tensor itself; its backing location may be longer, because sizes in buffers are rounded up.
pub(crate) fn tensor_bytes(backing: &BackingLocation) -> u64 {
    backing.shape.iter().product::<u64>() * backing.data_type.size_bytes()
}

/// The tensor of a backing location, made of these bytes.
///
/// # Errors
/// Fails if `bytes` does not have the size of the tensor.
pub(crate) fn tensor(backing: &BackingLocation, bytes: Vec<u8>) -> Result<Tensor, RuntimeError> {
    Tensor::new(backing.data_type, &backing.shape, bytes)
        .ok_or_else(|| RuntimeError::Plan { reason: format!("the shape of '{}' overflows", backing.name) })
}

/// Rejects contents that do not have the size of the tensor.
pub(crate) fn check_contents(backing: &BackingLocation, contents: &Contents) -> Result<(), RuntimeError> {
    check_size(backing, contents.size_bytes())
}

/// Rejects a number of bytes other than the tensor's.
pub(crate) fn check_size(backing: &BackingLocation, given_bytes: u64) -> Result<(), RuntimeError> {
    let expected_bytes = tensor_bytes(backing);
    match given_bytes == expected_bytes {
        true => Ok(()),
        false => Err(RuntimeError::Size { name: backing.name.clone(), given_bytes, expected_bytes }),
    }
}

/// Checks the backing locations of all inputs, outputs and persistent tensors.
pub(crate) fn check_all_backing(plan: &Plan) -> Result<(), RuntimeError> {
    plan.inputs.iter().try_for_each(|backing| check_backing(plan, backing, true))?;
    plan.outputs.iter().chain(&plan.persistent).try_for_each(|backing| check_backing(plan, backing, false))
}

/// Checks that a backing location's pieces are in known memories, follow each other and cover the tensor. A tensor that no launch uses has
/// no pieces, and an input may have gaps: bytes that no launch reads.
fn check_backing(plan: &Plan, backing: &BackingLocation, may_have_gaps: bool) -> Result<(), RuntimeError> {
    let refuse =
        |what: &str| Err(RuntimeError::Plan { reason: format!("the backing location of '{}' {what}", backing.name) });
    let size_bytes = backing
        .shape
        .iter()
        .try_fold(backing.data_type.size_bytes(), |product, &size| product.checked_mul(size))
        .filter(|&size_bytes| usize::try_from(size_bytes).is_ok());
    let Some(size_bytes) = size_bytes else {
        return refuse("is larger than the address space");
    };
    let mut end = 0;
    for (range, region) in &backing.pieces {
        let Some(memory) = plan.memories.get(region.memory.0 as usize) else {
            return refuse("refers to a memory that the plan does not have");
        };
        let follows = range.start == end || may_have_gaps && range.start > end;
        if !follows || range.len() != region.range.len() || region.range.end > memory.size_bytes {
            return refuse("has pieces that do not fit together");
        }
        end = range.end;
    }
    if end < size_bytes && !may_have_gaps && !backing.pieces.is_empty() {
        return refuse("does not cover all of it");
    }
    Ok(())
}

/// The size of the largest chunk that passes through staging.
pub(crate) fn staging_bytes(plan: &Plan) -> u64 {
    let backing = plan.inputs.iter().chain(&plan.outputs).chain(&plan.persistent);
    backing
        .flat_map(|backing| &backing.pieces)
        .filter(|(_, region)| !matches!(plan.memory(region.memory).kind, MemoryKind::HostBlock | MemoryKind::Lent))
        .map(|(range, _)| range.len().min(STAGING_BYTES))
        .max()
        .unwrap_or(0)
}

/// A backing location's pieces in chunks of at most [`STAGING_BYTES`].
pub(crate) fn chunks(backing: &BackingLocation) -> impl Iterator<Item = (ByteRange, Region)> + '_ {
    backing.pieces.iter().flat_map(|&(range, region)| {
        (0..range.len()).step_by(STAGING_BYTES as usize).map(move |offset| {
            let size_bytes = STAGING_BYTES.min(range.len() - offset);
            let start = range.start + offset;
            (ByteRange::new(start, start + size_bytes), region.part(offset, size_bytes))
        })
    })
}

/// The bytes of a range, with zeros after the tensor's end.
pub(crate) fn padded(bytes: &[u8], range: ByteRange) -> Cow<'_, [u8]> {
    let (start, end) = (range.start as usize, range.end as usize);
    if end <= bytes.len() {
        return Cow::Borrowed(&bytes[start..end]);
    }
    let mut chunk = bytes.get(start..).unwrap_or_default().to_vec();
    chunk.resize(end - start, 0);
    Cow::Owned(chunk)
}

/// Reads contents in chunks of their backing location and passes each chunk to `write`, with zeros after the tensor's end. Holds at most
/// one chunk at a time. Contents that are read from the model's files are not loaded.
pub(crate) fn load(
    plan: &Plan,
    backing: &BackingLocation,
    contents: &Contents,
    mut write: impl FnMut(Region, &[u8]) -> Result<(), RuntimeError>,
) -> Result<(), RuntimeError> {
    check_contents(backing, contents)?;
    let reader = contents.reader().map_err(RuntimeError::Operation)?;
    let mut chunk = Vec::new();
    let is_loaded = |region: &Region| plan.memory(region.memory).kind != MemoryKind::ModelFiles;
    for (range, region) in chunks(backing).filter(|(_, region)| is_loaded(region)) {
        chunk.resize(range.len() as usize, 0);
        reader.read(range.start, &mut chunk).map_err(RuntimeError::Operation)?;
        write(region, &chunk)?;
    }
    Ok(())
}

/// Reads a whole tensor in chunks of its backing location that `read` reads.
pub(crate) fn read_whole(
    backing: &BackingLocation,
    mut read: impl FnMut(Region, &mut [u8]) -> Result<(), RuntimeError>,
) -> Result<Tensor, RuntimeError> {
    let size_bytes = tensor_bytes(backing);
    let covered = backing.pieces.last().map_or(0, |(range, _)| range.end);
    let mut bytes = vec![0u8; covered.max(size_bytes) as usize];
    for (range, region) in chunks(backing) {
        read(region, &mut bytes[range.start as usize..range.end as usize])?;
    }
    bytes.truncate(size_bytes as usize);
    tensor(backing, bytes)
}

/// Passes a tensor to `take` in chunks of its backing location that `read` has read, without the bytes after the tensor's end.
pub(crate) fn in_pieces(
    backing: &BackingLocation,
    mut read: impl FnMut(Region, &mut [u8]) -> Result<(), RuntimeError>,
    take: &mut dyn FnMut(&[u8]) -> Result<(), RuntimeError>,
) -> Result<(), RuntimeError> {
    let size_bytes = tensor_bytes(backing);
    let mut chunk = Vec::new();
    for (range, region) in chunks(backing).take_while(|(range, _)| range.start < size_bytes) {
        chunk.resize(range.len() as usize, 0);
        read(region, &mut chunk)?;
        take(&chunk[..(range.end.min(size_bytes) - range.start) as usize])?;
    }
    Ok(())
}
