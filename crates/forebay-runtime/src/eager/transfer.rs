//! Transfers between the host's arrays and the device: in pieces, through host blocks; in place if they share one memory.
//!
//! The blocks form a ring: bounded, reused when copies have passed, and given back to the device when transfers have needed less of it for
//! long ([`ring`](super::ring)).

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_base::{Command, Region};
use forebay_memory::allocator::BlockId;
use forebay_queue::shim::{lock, wait};
use forebay_sync::race::HostAction;

use super::batch::Batch;
use super::context::Context;
use super::shared::Shared;
use super::span::Span;
use super::store::StoreKind;
use super::stream::Stream;
use super::timeline::Agent;
use crate::error::RuntimeError;

/// The number of bytes that go through one block.
const PIECE_BYTES: u64 = 1 << 20;

/// A host block, which is free again once it is dropped and every copy has passed.
struct Staging<'a> {
    shared: &'a Shared,
    block: BlockId,
    region: Region,
}

/// Why a thread got no block.
struct NoBlock {
    error: RuntimeError,
    /// The number of releases before the thread tried.
    releases: u64,
    /// Whether no other thread holds a block, is about to take one, or has released one in the meantime.
    is_final: bool,
}

impl<'a> Staging<'a> {
    /// Takes a block that no thread holds.
    fn new(shared: &'a Shared, size_bytes: u64) -> Result<Staging<'a>, NoBlock> {
        let ring = &shared.ring;
        let mut state = lock(&ring.state);
        // Counted first: a thread that finds no block must know that this one may hold it.
        state.holders += 1;
        let releases = state.releases;
        drop(state);
        // The host itself uses it, so no one else must use it any more.
        match shared.allocate(StoreKind::Staging, Agent::Host, size_bytes, "staging") {
            Ok(place) => Ok(Staging { shared, block: place.block, region: place.region }),
            Err(error) => {
                let mut state = lock(&ring.state);
                state.holders -= 1;
                let is_final = state.holders == 0 && state.releases == releases;
                drop(state);
                ring.released.notify_all();
                Err(NoBlock { error, releases, is_final })
            }
        }
    }

    /// Takes a block; if threads hold all of them, waits until one is released. The caller holds none itself.
    fn wait_for(shared: &'a Shared, size_bytes: u64) -> Result<Staging<'a>, RuntimeError> {
        let ring = &shared.ring;
        loop {
            let releases = match Staging::new(shared, size_bytes) {
                Ok(staging) => return Ok(staging),
                Err(NoBlock { error: RuntimeError::OutOfMemory(_), releases, is_final: false }) => releases,
                Err(NoBlock { error, .. }) => return Err(error),
            };
            let mut state = lock(&ring.state);
            while state.releases == releases && state.holders > 0 {
                state = wait(&ring.released, state);
            }
        }
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        self.shared.free(StoreKind::Staging, self.block);
        let mut state = lock(&self.shared.ring.state);
        state.holders -= 1;
        state.releases += 1;
        drop(state);
        self.shared.ring.released.notify_all();
    }
}

/// Copies one piece between a host block and device bytes, on a stream. Returns the copy's position.
fn copy(
    stream: &Stream,
    staging: &Staging,
    span: &Span,
    from: Region,
    to: Region,
    name: &Arc<str>,
) -> Result<u64, RuntimeError> {
    let mut state = staging.shared.lock();
    let mut batch = Batch::default();
    let command = Command::Copy { stream: state.stream(stream.queue()), from, to };
    let position = state.work(stream.queue(), command, name, &mut batch)?;
    span.add_use(&mut state, stream.queue(), position);
    state.store(StoreKind::Staging).block_lifetimes.add_use(staging.block, stream.queue(), position);
    staging.shared.submit(&mut state, &batch)?;
    Ok(position)
}

/// Allocates at least `size_bytes` and writes bytes from the host to them. Also returns the position of the last copy on the stream.
///
/// # Errors
/// Fails if memory runs out, or if the device fails.
pub fn upload(
    context: &Context,
    stream: &Stream,
    bytes: &[u8],
    size_bytes: u64,
    name: &str,
) -> Result<(Span, u64), RuntimeError> {
    if !context.device().limits().unified {
        let span = context.span(Agent::Queue(stream.queue()), size_bytes, name)?;
        let position = stage(context, stream, &span, bytes, name)?;
        return Ok((span, position));
    }
    // The host writes to it at once, so no one else must use it any more.
    let span = context.span(Agent::Host, size_bytes, name)?;
    write_in_place(context, &span, bytes);
    Ok((span, 0))
}

/// Writes device bytes from the host, in the stream's order.
///
/// # Errors
/// Fails if memory runs out, or if the device fails.
pub fn write(context: &Context, stream: &Stream, span: &Span, bytes: &[u8], name: &str) -> Result<(), RuntimeError> {
    if context.device().limits().unified {
        context.shared().synchronize(stream.queue())?;
        write_in_place(context, span, bytes);
        return Ok(());
    }
    stage(context, stream, span, bytes, name).map(|_| ())
}

fn write_in_place(context: &Context, span: &Span, bytes: &[u8]) {
    let region = span.region().part(0, bytes.len() as u64);
    context.device().write_host(region, bytes);
    context.shared().lock().note_host(HostAction::Write(region));
}

/// Writes device bytes through host blocks. Returns the position of the last copy, once the bytes have been read; they arrive later.
fn stage(context: &Context, stream: &Stream, span: &Span, bytes: &[u8], name: &str) -> Result<u64, RuntimeError> {
    let (name, shared): (Arc<str>, _) = (name.into(), context.shared());
    let mut position = 0;
    for (piece, bytes) in bytes.chunks(PIECE_BYTES as usize).enumerate() {
        let staging = Staging::wait_for(shared, bytes.len() as u64)?;
        shared.device.write_host(staging.region, bytes);
        shared.lock().note_host(HostAction::Write(staging.region));
        let to = span.region().part(piece as u64 * PIECE_BYTES, bytes.len() as u64);
        position = copy(stream, &staging, span, staging.region, to, &name)?;
    }
    shrink(shared);
    Ok(position)
}

/// Reads device bytes on the host, in the stream's order, and waits for them: only once if the ring holds all of them.
///
/// # Errors
/// Fails if memory runs out, or if the device fails.
pub fn read(context: &Context, stream: &Stream, spans: &[&Span]) -> Result<Vec<Vec<u8>>, RuntimeError> {
    let mut results = spans.iter().map(|span| zeroed(span.region().range.len())).collect::<Result<Vec<_>, _>>()?;
    let shared = context.shared();
    if context.device().limits().unified {
        shared.synchronize(stream.queue())?;
        for (span, bytes) in spans.iter().zip(&mut results) {
            shared.device.read_host(span.region(), bytes);
            shared.lock().note_host(HostAction::Read(span.region()));
        }
        return Ok(results);
    }
    let name = "to_host".into();
    let mut reader = Reader { shared, stream, name, rounds: VecDeque::new(), open: Vec::new(), open_bytes: 0, results };
    for (result, span) in spans.iter().enumerate() {
        reader.read(result, span)?;
    }
    reader.close()?;
    while reader.finish()? {}
    shrink(shared);
    Ok(reader.results)
}

/// A host block with bytes on their way to a result, and the offset of their first byte in the result.
struct Piece<'a> {
    staging: Staging<'a>,
    result: usize,
    start_bytes: u64,
}

/// Copies that are recorded together.
struct Round<'a> {
    generation: u64,
    pieces: Vec<Piece<'a>>,
}

/// Reads in rounds: while the host takes the bytes of one round out of the ring, the next ones are on their way.
struct Reader<'a> {
    shared: &'a Shared,
    stream: &'a Stream,
    name: Arc<str>,
    /// Oldest first.
    rounds: VecDeque<Round<'a>>,
    /// Copies with no record after them yet.
    open: Vec<Piece<'a>>,
    open_bytes: u64,
    results: Vec<Vec<u8>>,
}

impl<'a> Reader<'a> {
    fn read(&mut self, result: usize, span: &Span) -> Result<(), RuntimeError> {
        let all = span.region();
        for start_bytes in (0..all.range.len()).step_by(PIECE_BYTES as usize) {
            let from = all.part(start_bytes, PIECE_BYTES.min(all.range.len() - start_bytes));
            let staging = self.staging(from.range.len())?;
            copy(self.stream, &staging, span, from, staging.region, &self.name)?;
            self.open.push(Piece { staging, result, start_bytes });
            self.open_bytes += from.range.len();
            if self.open_bytes >= PIECE_BYTES {
                self.close()?;
            }
        }
        Ok(())
    }

    /// Takes a block; if the ring is full, first finishes what is on its way.
    fn staging(&mut self, size_bytes: u64) -> Result<Staging<'a>, RuntimeError> {
        loop {
            if self.open.is_empty() && self.rounds.is_empty() {
                return Staging::wait_for(self.shared, size_bytes);
            }
            match Staging::new(self.shared, size_bytes) {
                Err(NoBlock { error: RuntimeError::OutOfMemory(_), .. }) => {
                    if self.rounds.is_empty() {
                        self.close()?;
                    }
                    self.finish()?;
                }
                Err(NoBlock { error, .. }) => return Err(error),
                Ok(staging) => return Ok(staging),
            }
        }
    }

    /// Adds a record after the latest copies.
    fn close(&mut self) -> Result<(), RuntimeError> {
        let generation = self.shared.record(&mut self.shared.lock(), self.stream.queue())?;
        self.rounds.push_back(Round { generation, pieces: std::mem::take(&mut self.open) });
        self.open_bytes = 0;
        Ok(())
    }

    /// Waits for the oldest round, and takes its bytes out of the ring. Returns whether there was one.
    fn finish(&mut self) -> Result<bool, RuntimeError> {
        let Some(round) = self.rounds.pop_front() else { return Ok(false) };
        self.shared.wait_for_results(self.stream.queue(), round.generation)?;
        for Piece { staging, result, start_bytes } in round.pieces {
            let (start, length) = (start_bytes as usize, staging.region.range.len() as usize);
            self.shared.device.read_host(staging.region, &mut self.results[result][start..start + length]);
            self.shared.lock().note_host(HostAction::Read(staging.region));
        }
        Ok(true)
    }
}

/// Occasionally gives back blocks that have not been needed for a while.
fn shrink(shared: &Shared) {
    if shared.ring.count() {
        shared.shrink_staging(&mut shared.lock());
    }
}

/// Allocates zeroed bytes on the host.
///
/// # Errors
/// Fails if the host does not have enough memory.
pub fn zeroed(size_bytes: u64) -> Result<Vec<u8>, RuntimeError> {
    let mut bytes = Vec::new();
    let length = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(length).map_err(|error| RuntimeError::Tensor {
        reason: format!("{size_bytes} bytes do not fit in host memory: {error}"),
    })?;
    bytes.resize(length, 0);
    Ok(bytes)
}
