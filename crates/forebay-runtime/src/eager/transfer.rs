//! Bytes between the host's arrays and the device: in pieces, through host blocks.

use std::sync::Arc;

use forebay_base::{Command, Region};
use forebay_memory::allocator::BlockId;
use forebay_sync::race::HostAction;

use super::batch::Batch;
use super::context::Context;
use super::shared::Shared;
use super::store::StoreKind;
use super::stream::Stream;
use super::tensor::Storage;
use super::timeline::Agent;
use crate::error::RuntimeError;

/// Bytes that go through one block.
const PIECE_BYTES: u64 = 1 << 20;

/// A host block, free again when dropped and every copy has passed.
struct Staging<'a> {
    shared: &'a Shared,
    block: BlockId,
    region: Region,
}

impl<'a> Staging<'a> {
    fn new(shared: &'a Shared, size_bytes: u64) -> Result<Staging<'a>, RuntimeError> {
        // The host itself uses it, so it must be out of everybody's use.
        let place = shared.allocate(StoreKind::Staging, Agent::Host, size_bytes, "staging")?;
        Ok(Staging { shared, block: place.block, region: place.region })
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        self.shared.free(StoreKind::Staging, self.block);
    }
}

/// Copies one piece between a host block and a tensor, on a stream. Its position.
fn copy(
    stream: &Stream,
    staging: &Staging,
    storage: &Storage,
    from: Region,
    to: Region,
    name: &Arc<str>,
) -> Result<u64, RuntimeError> {
    let mut state = staging.shared.lock();
    let mut batch = Batch::default();
    let command = Command::Copy { stream: state.stream(stream.queue()), from, to };
    let position = state.work(stream.queue(), command, name, &mut batch)?;
    storage.add_use(&mut state, stream.queue(), position);
    state.store(StoreKind::Staging).ledger.add_use(staging.block, stream.queue(), position);
    staging.shared.submit(&mut state, &batch)?;
    Ok(position)
}

/// Copies bytes to the device. Returns when they have been read; they arrive later, in the stream's order. The position of
/// the last copy.
///
/// # Errors
/// No memory, or a failure of the device.
pub fn upload(context: &Context, stream: &Stream, bytes: &[u8], storage: &Storage) -> Result<u64, RuntimeError> {
    let name: Arc<str> = "from_host".into();
    let mut position = 0;
    for (piece, bytes) in bytes.chunks(PIECE_BYTES as usize).enumerate() {
        let shared = context.shared();
        let staging = Staging::new(shared, bytes.len() as u64)?;
        shared.device.write_host(staging.region, bytes);
        shared.lock().note_host(HostAction::Write(staging.region));
        let to = storage.region().part(piece as u64 * PIECE_BYTES, bytes.len() as u64);
        position = copy(stream, &staging, storage, staging.region, to, &name)?;
    }
    Ok(position)
}

/// Copies bytes from the device, and waits for them.
///
/// # Errors
/// No memory, or a failure of the device.
pub fn download(
    context: &Context,
    stream: &Stream,
    storage: &Storage,
    size_bytes: u64,
) -> Result<Vec<u8>, RuntimeError> {
    let name: Arc<str> = "to_host".into();
    let shared = context.shared();
    let mut bytes = Vec::new();
    let length = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    bytes
        .try_reserve_exact(length)
        .map_err(|error| RuntimeError::Tensor { reason: format!("{size_bytes} bytes do not fit the host: {error}") })?;
    bytes.resize(length, 0);
    for (piece, bytes) in bytes.chunks_mut(PIECE_BYTES as usize).enumerate() {
        let staging = Staging::new(shared, bytes.len() as u64)?;
        let from = storage.region().part(piece as u64 * PIECE_BYTES, bytes.len() as u64);
        copy(stream, &staging, storage, from, staging.region, &name)?;
        shared.synchronize(stream.queue())?;
        shared.device.read_host(staging.region, bytes);
        shared.lock().note_host(HostAction::Read(staging.region));
    }
    Ok(bytes)
}
