//! The times of steps: how long they took, and how long no kernel ran.

use std::time::{Duration, Instant};

use forebay_base::kernel::KernelKind;
use forebay_device::{Device, TraceRecord};

use crate::profile::covered;

/// The times of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// The time from the first submission to the last join.
    pub total: Duration,
    /// The part of `total` in which no kernel ran: waiting for copies or other processes, or between commands.
    pub stall: Duration,
    /// The part of `stall` in which an exchange with other processes was under way.
    pub exchange_stall: Duration,
    /// The number of copies to the device that kernels had to wait for.
    pub late_copies: usize,
    /// The part of `stall` caused by late copies.
    pub late: Duration,
    /// What managed memory did, or `None` if a plan determines every move.
    pub moves: Option<StepMoves>,
}

/// What managed memory did in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMoves {
    /// The number of units that launches found missing on the device.
    pub faults: u64,
    /// The number of units evicted from the device to make room for others.
    pub evictions: u64,
    /// The number of units that were prefetched.
    pub prefetches: u64,
    /// Bytes copied to the device.
    pub bytes_to_device: u64,
    /// Bytes copied from the device.
    pub bytes_from_device: u64,
    /// Bytes written to disk.
    pub bytes_to_disk: u64,
    /// Bytes read from disk.
    pub bytes_from_disk: u64,
    /// How often the host waited for the device before it could move a unit.
    pub stalls: u64,
    /// How long the host waited in total.
    pub stalled: Duration,
}

/// Measures a step.
pub(crate) struct StepClock {
    start: Instant,
}

impl StepClock {
    /// Starts measuring. Anything that ran on the device before is not part of the step.
    pub(crate) fn start(device: &dyn Device) -> StepClock {
        drop(device.take_trace());
        StepClock { start: Instant::now() }
    }

    /// Returns the times of the step, and the device's records of it.
    pub(crate) fn stop(self, device: &dyn Device) -> (StepTimes, Vec<TraceRecord>) {
        let total = self.start.elapsed();
        let records = device.take_trace();
        let busy = launched(&records, |record| !is_exchange(record));
        let exchange_stall = match records.iter().any(is_exchange) {
            true => launched(&records, |_| true).saturating_sub(busy),
            false => Duration::ZERO,
        };
        (StepTimes { total, stall: total.saturating_sub(busy), exchange_stall, ..StepTimes::default() }, records)
    }
}

/// The time in which at least one launch for which `counts` returns true ran.
fn launched(records: &[TraceRecord], counts: impl Fn(&TraceRecord) -> bool) -> Duration {
    let launches = records.iter().filter(|record| record.label.is_some() && counts(record));
    covered(launches.map(|record| (record.start, record.end)))
}

fn is_exchange(record: &TraceRecord) -> bool {
    record.name == KernelKind::Exchange.name()
}
