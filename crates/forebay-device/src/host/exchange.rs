//! Exchanges between processes: a thread of the pool copies the bytes that stay, a communicator moves the rest, and no thread waits for it.

use std::sync::Arc;
use std::time::Instant;

use forebay_base::Launch;
use forebay_base::kernel::Exchange;
use forebay_queue::{Finish, Origin};

use super::kernels::{Exchanged, View};
use super::shared::Shared;
use super::tracer::Traced;
use crate::communicator::{MessageBytes, Messages};
use crate::device::DeviceError;

/// Starts an exchange between several processes; dropping `finish` ends it.
pub(super) fn start(
    shared: &Arc<Shared>,
    origin: Origin,
    (launch, exchange): (&Launch, &Exchange),
    [reads, writes]: [&[View]; 2],
    finish: Finish<DeviceError>,
) {
    let start = Instant::now();
    let lost = |reason: String| DeviceError::Lost { reason };
    let Some(communicator) = shared.communicator.get() else {
        return finish.fail(lost(format!("exchange {} has no other processes to exchange with", exchange.number)));
    };
    let (rank, size) = (communicator.rank(), communicator.size());
    if exchange.sends.len() != size {
        let reason = format!("exchange {} is between {} processes, not {size}", exchange.number, exchange.sends.len());
        return finish.fail(lost(reason));
    }
    let exchanged = match Exchanged::new(exchange, reads, writes) {
        Ok(exchanged) => exchanged,
        Err(error) => return finish.fail(error),
    };
    let mut messages = Messages { tag: exchange.number, sends: Vec::new(), receives: Vec::new() };
    for peer in (0..size).filter(|&peer| peer != rank) {
        let message = |(address, size_bytes): (*mut u8, usize)| MessageBytes { peer, address, size_bytes };
        let [sends, receives] = exchanged.with(peer);
        messages.sends.extend(sends.into_iter().map(message));
        messages.receives.extend(receives.into_iter().map(message));
    }
    // SAFETY: `submit` resolved both operands, which belong to the launch until `finish` is dropped.
    if let Err(error) = unsafe { exchanged.copy_own(rank) } {
        return finish.fail(error);
    }
    let (label, name, tracer) = (Some(launch.label), launch.kernel.name(), shared.tracer.clone());
    let number = exchange.number;
    let done = Box::new(move |outcome: Result<(), String>| {
        tracer.record(origin.stream, start, Traced { label, name, ..Traced::default() });
        if let Err(reason) = outcome {
            finish.fail(DeviceError::Lost { reason: format!("exchange {number} with the other processes: {reason}") });
        }
    });
    // SAFETY: as above; `finish` is dropped with `done`. After a failure, the device is lost for good. That its memory stays until the
    // process ends is not ensured: a late message could still be written there.
    unsafe { communicator.start(messages, done) };
}
