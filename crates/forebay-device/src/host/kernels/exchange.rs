//! Exchanges: the data that a process sends to itself. Sending to other processes is not work for a thread of the pool
//! (`host/exchange.rs`).

use forebay_base::kernel::Exchange;
use forebay_base::{ByteRange, Kernel};

use super::{View, unsupported};
use crate::device::DeviceError;

/// An exchange with operands that were checked.
pub(crate) struct Exchanged<'a> {
    exchange: &'a Exchange,
    x: &'a View<'a>,
    y: &'a View<'a>,
}

impl<'a> Exchanged<'a> {
    /// Checks that all ranges lie in the operands, and that there is one for each process.
    ///
    /// # Errors
    /// Returns [`DeviceError::Unsupported`] if they do not.
    pub fn new(exchange: &'a Exchange, reads: &'a [View], writes: &'a [View]) -> Result<Exchanged<'a>, DeviceError> {
        let refuse = |reason: String| unsupported(&Kernel::Exchange(exchange.clone()), reason);
        let ([x, ..], [y, ..]) = (reads, writes) else {
            return Err(refuse("it must read and write a tensor".to_string()));
        };
        let fits = |ranges: &[Vec<ByteRange>], view: &View| {
            ranges.iter().flatten().all(|range| range.start <= range.end && range.end <= view.desc.total_size_bytes())
        };
        if exchange.sends.len() != exchange.receives.len() {
            let (sends, receives) = (exchange.sends.len(), exchange.receives.len());
            return Err(refuse(format!("it sends to {sends} processes, but receives from {receives}")));
        }
        if !fits(&exchange.sends, x) || !fits(&exchange.receives, y) {
            return Err(refuse(format!("its ranges exceed {} and {}", x.desc, y.desc)));
        }
        Ok(Exchanged { exchange, x, y })
    }

    /// The addresses and lengths of the data sent to a process, and of the data received from it.
    pub fn with(&self, process: usize) -> [Vec<(*mut u8, usize)>; 2] {
        let at =
            |view: &View, range: &ByteRange| (view.pointer.wrapping_add(range.start as usize), range.len() as usize);
        let sends = self.exchange.sends[process].iter().map(|range| at(self.x, range)).collect();
        [sends, self.exchange.receives[process].iter().map(|range| at(self.y, range)).collect()]
    }

    /// Copies the data that a process sends to itself.
    ///
    /// # Errors
    /// Returns [`DeviceError::Unsupported`] if it does not send the same amounts as it receives.
    ///
    /// # Safety
    /// As [`super::run`].
    pub unsafe fn copy_own(&self, rank: usize) -> Result<(), DeviceError> {
        let [sends, receives] = self.with(rank);
        if !sends.iter().map(|(_, bytes)| bytes).eq(receives.iter().map(|(_, bytes)| bytes)) {
            let reason = format!("process {rank} does not send itself what it receives");
            return Err(unsupported(&Kernel::Exchange(self.exchange.clone()), reason));
        }
        for ((from, bytes), (to, _)) in sends.into_iter().zip(receives) {
            // SAFETY: both lie in their operands, and nothing writes the bytes that are read, by the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
        Ok(())
    }
}

/// Runs an exchange of a single process.
///
/// # Errors
/// Returns [`DeviceError::Unsupported`] for an exchange between several processes.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(exchange: &Exchange, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    let exchanged = Exchanged::new(exchange, reads, writes)?;
    if exchange.sends.len() > 1 {
        let reason = format!("it is between {} processes, but this is the only process", exchange.sends.len());
        return Err(unsupported(&Kernel::Exchange(exchange.clone()), reason));
    }
    // SAFETY: the caller's promises.
    unsafe { exchanged.copy_own(0) }
}
