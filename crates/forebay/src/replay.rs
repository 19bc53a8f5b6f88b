//! Traces of training steps on described machines: planned, simulated, verified, and compared with demand paging.
//!
//! Nothing runs and no device is needed. The planner, the lower bound and the verifier come from `forebay_offload`; this module reads the
//! files and combines the numbers.

use std::path::Path;
use std::time::Instant;

use flate2::read::MultiGzDecoder;
pub use forebay_offload::bound::lower_bound_ns;
pub use forebay_offload::lru::demand_lru;
pub use forebay_offload::planner::{Progress, plan};
pub use forebay_offload::schedule::Schedule;
pub use forebay_offload::verify::{Account, Fault, verify};
pub use forebay_offload::workload::{Machine, SwapError, Workload};
use forebay_offload::{trace, workload};

use crate::error::Error;

/// The size of the largest trace that is read, in bytes, both compressed and decompressed. A step of a million kernels is smaller.
const TRACE_BYTES_MAX: u64 = 1 << 30;
/// The first bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Who decides what moves.
///
/// ```
/// use forebay::replay::Policy;
///
/// assert_ne!(Policy::Planned, Policy::Lru);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The planner.
    Planned,
    /// Demand paging: what was used longest ago leaves first.
    Lru,
}

/// The results of a replay. Every account comes from the verifier.
///
/// ```
/// use forebay::replay::{read_trace, replay, Policy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut workload = read_trace("../../examples/traces/bert-b256.jsonl.gz".as_ref())?;
/// workload.machine.device_memory_bytes = 1 << 40; // everything fits
/// let replay = replay(&workload, Policy::Lru, &mut |_| {})?;
/// assert_eq!(replay.over_ideal(replay.account.step_ns), 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replay {
    /// How long the step takes if everything fits.
    pub ideal_ns: u64,
    /// The most bytes that are needed at once.
    pub live_peak_bytes: u64,
    /// No schedule is faster than this.
    pub lower_bound_ns: u64,
    /// The policy's schedule.
    pub schedule: Schedule,
    /// The account of that schedule.
    pub account: Account,
    /// The account of demand paging; `None` if it does not repeat itself from step to step.
    pub lru: Option<Account>,
    /// How long it took to find the policy's schedule.
    pub planning_seconds: f64,
}

impl Replay {
    /// Returns a time as a multiple of the ideal time.
    pub fn over_ideal(&self, time_ns: u64) -> f64 {
        time_ns as f64 / self.ideal_ns.max(1) as f64
    }
}

/// Reads a trace: JSON lines, plain or compressed with gzip.
///
/// # Errors
/// Fails if the file cannot be read or decompressed, or if a line is invalid; the error then names its number.
pub fn read_trace(path: &Path) -> Result<Workload, Error> {
    let failed =
        |error: std::io::Error| Error::File { path: path.to_owned(), action: "read", reason: error.to_string() };
    let mut bytes = forebay_limits::read(path, TRACE_BYTES_MAX, 1).map_err(failed)?;
    if bytes.starts_with(&GZIP_MAGIC) {
        let unpacked = MultiGzDecoder::new(bytes.as_slice());
        bytes = forebay_limits::read_up_to(unpacked, TRACE_BYTES_MAX + 1).map_err(failed)?;
        if bytes.len() as u64 > TRACE_BYTES_MAX {
            return Err(failed(std::io::Error::other(format!("it unpacks to more than {TRACE_BYTES_MAX} bytes"))));
        }
    }
    let text = forebay_limits::files::text(bytes).map_err(failed)?;
    trace::parse(&text).map_err(|error| Error::Swap { path: path.to_owned(), error })
}

/// Plans a workload, or pages it on demand, and verifies the result.
///
/// # Errors
/// Fails if a kernel does not fit the device, or if a schedule is not found or is rejected by the verifier.
pub fn replay(workload: &Workload, policy: Policy, progress: &mut dyn FnMut(Progress)) -> Result<Replay, SwapError> {
    let started = Instant::now();
    let schedule = match policy {
        Policy::Planned => plan(workload, progress)?,
        Policy::Lru => demand_lru(workload)?,
    };
    let planning_seconds = started.elapsed().as_secs_f64();
    let account = judged(workload, &schedule)?;
    let lru = match policy {
        Policy::Planned => demand_lru(workload).ok().map(|schedule| judged(workload, &schedule)).transpose()?,
        Policy::Lru => Some(account.clone()),
    };
    Ok(Replay {
        ideal_ns: workload.ideal_ns(),
        live_peak_bytes: workload::live_peak_bytes(workload),
        lower_bound_ns: lower_bound_ns(workload)?,
        schedule,
        account,
        lru,
        planning_seconds,
    })
}

fn judged(workload: &Workload, schedule: &Schedule) -> Result<Account, SwapError> {
    verify(workload, schedule).map_err(|fault| SwapError::Fault { reason: fault.to_string() })
}
