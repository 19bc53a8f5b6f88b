//! Recording of the times at which commands ran.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use forebay_base::StreamId;

use super::lock::lock;
use crate::device::TraceRecord;

/// The description of a command: see [`TraceRecord`].
#[derive(Default)]
pub(super) struct Traced {
    pub label: Option<u32>,
    pub name: &'static str,
    pub bytes: u64,
    pub worker_time: Duration,
}

/// The records of a device, with times since it was created.
pub(super) struct Tracer {
    birth: Instant,
    trace: Mutex<Trace>,
}

#[derive(Default)]
struct Trace {
    enabled: bool,
    records: Vec<TraceRecord>,
}

impl Tracer {
    pub fn new(birth: Instant) -> Tracer {
        Tracer { birth, trace: Mutex::default() }
    }

    /// Sets whether commands that run from now on are recorded.
    pub fn set(&self, enabled: bool) {
        lock(&self.trace).enabled = enabled;
    }

    /// Takes the records made so far.
    pub fn take(&self) -> Vec<TraceRecord> {
        std::mem::take(&mut lock(&self.trace).records)
    }

    /// Records a command that began at `start` and has just ended.
    pub fn record(&self, stream: StreamId, start: Instant, what: Traced) {
        let mut trace = lock(&self.trace);
        if trace.enabled {
            let (start, end) = (start - self.birth, self.birth.elapsed());
            let Traced { label, name, bytes, worker_time } = what;
            trace.records.push(TraceRecord { stream, label, name, bytes, start, end, worker_time });
        }
    }
}
