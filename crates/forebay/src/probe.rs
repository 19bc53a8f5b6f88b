//! The order in which managed memory evicts: the experiment of Negishi and others ("Consideration on Application of CUDA Unified Memory to
//! Deep Learning", 2018, sections 3.4 to 3.8), on any device.
//!
//! Chunks fill the device. Then something is done that may change the eviction order (an [`Action`]), and one more chunk is created, for
//! which another has to be evicted. Which one was evicted is read immediately, and also shows in how long it takes to use the first chunks.
//! Each of these is used in a separate run, because using an evicted chunk evicts another.

use std::time::Instant;

use forebay_base::DataType;
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::managed::{Advice, Location, Policy};
use forebay_runtime::eager::{Context, ContextOptions, ManagedBuffer, ManagedMemory, ManagedOptions};

use crate::error::Error;
use crate::machine::open_device;
use crate::options::DeviceOptions;

/// The number of first chunks that are used and timed.
pub const TOUCHED_CHUNKS: usize = 3;
/// The chunk that some actions free.
const FREED_CHUNK: usize = 3;
/// The minimum number of chunks for which the actions are meaningful.
pub const CHUNK_COUNT_MIN: u64 = 5;

/// Options for the experiment.
///
/// ```
/// use forebay::managed::Policy;
/// use forebay::{probe, ProbeOptions};
///
/// let mut options = ProbeOptions::default();
/// (options.policy, options.chunk_bytes, options.chunk_count) = (Policy::Touch, 128 << 10, 6);
/// let findings = probe(&options)?;
/// assert_eq!(findings.len(), 11);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProbeOptions {
    /// The device.
    pub device: DeviceOptions,
    /// Whether memory grows chunk by chunk. Otherwise, all of it is allocated at the start.
    pub growth: bool,
    /// What changes the order.
    pub policy: Policy,
    /// The size of a chunk, in bytes.
    pub chunk_bytes: u64,
    /// The number of chunks that fill the device, at least [`CHUNK_COUNT_MIN`].
    pub chunk_count: u64,
}

impl Default for ProbeOptions {
    fn default() -> ProbeOptions {
        ProbeOptions {
            device: DeviceOptions::default(),
            growth: true,
            policy: Policy::Driver,
            chunk_bytes: 8 << 20,
            chunk_count: 14,
        }
    }
}

/// What is done between filling the device and requesting more memory.
///
/// ```
/// use forebay::probe::Action;
///
/// let action = Action::Prefetch;
/// assert_eq!((action.number(), action.description()), (2, "prefetch chunk 0 to the device"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// 1: work uses chunk 0.
    Touch,
    /// 2: chunk 0 is prefetched to the device.
    Prefetch,
    /// 3: chunks 0 and 1 are prefetched to the device.
    PrefetchTwo,
    /// 4: chunk 3 is freed.
    Free,
    /// 5: chunk 1 is prefetched to the host.
    PrefetchToHost,
    /// 6: chunk 3 is freed and chunk 0 prefetched to the host.
    FreeAndPrefetchToHost,
    /// 7: chunk 0 is advised as accessed by the device.
    AccessedByDevice,
    /// 8: chunk 0 is advised as preferred on the device.
    PreferredOnDevice,
    /// 9: chunk 1 is advised as accessed by the host.
    AccessedByHost,
    /// 10, as in the paper's text: chunk 1 is advised as preferred on the device.
    NextPreferredOnDevice,
    /// 10, as in the paper's program: chunk 1 is advised as preferred on the host.
    NextPreferredOnHost,
}

impl Action {
    /// All actions, in the paper's order.
    pub const ALL: [Action; 11] = [
        Action::Touch,
        Action::Prefetch,
        Action::PrefetchTwo,
        Action::Free,
        Action::PrefetchToHost,
        Action::FreeAndPrefetchToHost,
        Action::AccessedByDevice,
        Action::PreferredOnDevice,
        Action::AccessedByHost,
        Action::NextPreferredOnDevice,
        Action::NextPreferredOnHost,
    ];

    /// Returns the paper's number for the action.
    pub fn number(self) -> u32 {
        match self {
            Action::Touch => 1,
            Action::Prefetch => 2,
            Action::PrefetchTwo => 3,
            Action::Free => 4,
            Action::PrefetchToHost => 5,
            Action::FreeAndPrefetchToHost => 6,
            Action::AccessedByDevice => 7,
            Action::PreferredOnDevice => 8,
            Action::AccessedByHost => 9,
            Action::NextPreferredOnDevice | Action::NextPreferredOnHost => 10,
        }
    }

    /// Returns what is done, in words.
    pub fn description(self) -> &'static str {
        match self {
            Action::Touch => "use chunk 0",
            Action::Prefetch => "prefetch chunk 0 to the device",
            Action::PrefetchTwo => "prefetch chunks 0 and 1 to the device",
            Action::Free => "free chunk 3",
            Action::PrefetchToHost => "prefetch chunk 1 to the host",
            Action::FreeAndPrefetchToHost => "free chunk 3, prefetch chunk 0 to the host",
            Action::AccessedByDevice => "advise: chunk 0 accessed by the device",
            Action::PreferredOnDevice => "advise: chunk 0 preferred on the device",
            Action::AccessedByHost => "advise: chunk 1 accessed by the host",
            Action::NextPreferredOnDevice => "advise: chunk 1 preferred on the device (text)",
            Action::NextPreferredOnHost => "advise: chunk 1 preferred on the host (code)",
        }
    }

    /// Returns the chunk that the paper found evicted, if any.
    pub fn measured(self) -> Option<usize> {
        match self {
            Action::Free | Action::FreeAndPrefetchToHost => None,
            Action::Prefetch | Action::PrefetchToHost => Some(1),
            Action::PrefetchTwo => Some(2),
            _ => Some(0),
        }
    }
}

/// How long it took to use a chunk.
///
/// ```
/// # let mut options = forebay::ProbeOptions::default();
/// # (options.chunk_bytes, options.chunk_count) = (128 << 10, 6);
/// let finding = &forebay::probe(&options)?[0];
/// for touch in &finding.touches {
///     println!("chunk {}: {} s, on the device: {}", touch.chunk, touch.seconds, touch.resident);
/// }
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Touch {
    /// The chunk.
    pub chunk: usize,
    /// Whether it was on the device.
    pub resident: bool,
    /// The time, in seconds.
    pub seconds: f64,
}

/// The findings for one action.
///
/// ```
/// # let mut options = forebay::ProbeOptions::default();
/// # (options.chunk_bytes, options.chunk_count) = (128 << 10, 6);
/// let as_measured = forebay::probe(&options)?.iter().filter(|finding| finding.is_as_measured()).count();
/// println!("{as_measured} of 11 as in the paper");
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// The action.
    pub action: Action,
    /// The chunks that were not entirely on the device right after one more was created.
    pub evicted: Vec<usize>,
    /// How long it took to create that chunk: the median of all runs.
    pub overcommit_seconds: f64,
    /// How long it then took to use each of the first chunks.
    pub touches: Vec<Touch>,
}

impl Finding {
    /// Returns `true` if this is what the paper found.
    pub fn is_as_measured(&self) -> bool {
        self.evicted.iter().copied().eq(self.action.measured())
    }
}

/// Runs the experiment for every action.
///
/// # Errors
/// Fails if the device is unknown, cannot map tiles or reports an error, or if the chunks are too few or too small.
pub fn probe(options: &ProbeOptions) -> Result<Vec<Finding>, Error> {
    if options.chunk_count < CHUNK_COUNT_MIN {
        let reason = format!(
            "{} chunks are too few for the experiment; at least {CHUNK_COUNT_MIN} are required",
            options.chunk_count
        );
        return Err(Error::Option { reason });
    }
    let device = open_device(&options.device)?;
    let tile_bytes = device.limits().tile_size_bytes;
    if options.chunk_bytes < tile_bytes || options.chunk_bytes.checked_mul(options.chunk_count + 1).is_none() {
        let reason =
            format!("a chunk of {} bytes is not supported; the minimum is {tile_bytes}, a tile", options.chunk_bytes);
        return Err(Error::Option { reason });
    }
    if !options.growth && !device.limits().tiled {
        let reason =
            "without tiles, memory cannot be allocated at the start; each chunk is a separate heap".to_string();
        return Err(Error::Option { reason });
    }
    let context = Context::new(device, &ContextOptions::default())?;
    let chunk_bytes = options.chunk_bytes.next_multiple_of(tile_bytes);
    let (policy, growth, chunk_count) = (options.policy, options.growth, options.chunk_count);
    let laboratory = Laboratory { context, policy, growth, chunk_bytes, chunk_count };
    laboratory.warm_up()?;
    Ok(Action::ALL.into_iter().map(|action| laboratory.find(action)).collect::<Result<_, RuntimeError>>()?)
}

/// The setup in which runs are made.
struct Laboratory {
    context: Context,
    policy: Policy,
    growth: bool,
    chunk_bytes: u64,
    chunk_count: u64,
}

/// The results of one run.
struct Run {
    evicted: Vec<usize>,
    overcommit_seconds: f64,
    touch: Touch,
}

impl Laboratory {
    /// Uses everything once, so that no measured run is the first.
    fn warm_up(&self) -> Result<(), RuntimeError> {
        self.run(Action::Touch, 0).map(|_| ())
    }

    fn find(&self, action: Action) -> Result<Finding, RuntimeError> {
        let runs = (0..TOUCHED_CHUNKS).map(|chunk| self.run(action, chunk)).collect::<Result<Vec<Run>, _>>()?;
        let mut seconds: Vec<f64> = runs.iter().map(|run| run.overcommit_seconds).collect();
        seconds.sort_by(f64::total_cmp);
        Ok(Finding {
            action,
            evicted: runs[0].evicted.clone(),
            overcommit_seconds: seconds[TOUCHED_CHUNKS / 2],
            touches: runs.iter().map(|run| run.touch).collect(),
        })
    }

    /// Fills the device, acts, requests one more chunk, checks what was evicted, and uses one chunk.
    fn run(&self, action: Action, touched: usize) -> Result<Run, RuntimeError> {
        let memory = self.memory()?;
        let mut chunks = (0..self.chunk_count).map(|_| self.chunk(&memory).map(Some)).collect::<Result<Vec<_>, _>>()?;
        self.act(action, &mut chunks)?;
        memory.synchronize()?;
        let (more, overcommit_seconds) = self.timed(|| {
            let more = memory.buffer(self.chunk_bytes)?;
            // What will be used next: a policy that knows next uses keeps the chunks that are touched.
            let coming = chunks.iter().take(TOUCHED_CHUNKS).flatten().map(|chunk| vec![chunk]);
            memory.set_next_uses(&[vec![&more]].into_iter().chain(coming).collect::<Vec<_>>());
            more.fill([0; 4])?;
            Ok(more)
        })?;
        let is_gone = |chunk: &Option<ManagedBuffer>| {
            chunk.as_ref().is_some_and(|chunk| chunk.resident_bytes() < chunk.size_bytes())
        };
        let evicted: Vec<usize> = (0..chunks.len()).filter(|&chunk| is_gone(&chunks[chunk])).collect();
        let resident = !evicted.contains(&touched);
        let ((), seconds) = self.timed(|| chunks[touched].as_ref().map_or(Ok(()), |chunk| self.touch(chunk)))?;
        drop(more);
        Ok(Run { evicted, overcommit_seconds, touch: Touch { chunk: touched, resident, seconds } })
    }

    /// Creates managed memory for all chunks.
    fn memory(&self) -> Result<ManagedMemory, RuntimeError> {
        let mut options = ManagedOptions::new(self.chunk_count * self.chunk_bytes, self.policy);
        options.growth = self.growth;
        // Chunks of whole units fill the device exactly.
        let tile_bytes = self.context.device().limits().tile_size_bytes;
        let unit_bytes = (2 << 20).min(self.context.device().limits().heap_size_max_bytes);
        let fits = unit_bytes % tile_bytes == 0 && self.chunk_bytes.is_multiple_of(unit_bytes);
        options.unit_bytes = Some(if fits { unit_bytes } else { tile_bytes });
        ManagedMemory::new(&self.context, &options)
    }

    fn chunk(&self, memory: &ManagedMemory) -> Result<ManagedBuffer, RuntimeError> {
        let chunk = memory.buffer(self.chunk_bytes)?;
        chunk.fill([0; 4])?;
        Ok(chunk)
    }

    /// Uses all of a chunk on the device.
    fn touch(&self, chunk: &ManagedBuffer) -> Result<(), RuntimeError> {
        chunk.tensor(DataType::Float32, &[self.chunk_bytes / 4], 0)?.sum().map(|_| ())
    }

    fn act(&self, action: Action, chunks: &mut [Option<ManagedBuffer>]) -> Result<(), RuntimeError> {
        if matches!(action, Action::Free | Action::FreeAndPrefetchToHost) {
            chunks[FREED_CHUNK] = None;
        }
        let (Some(first), Some(second)) = (&chunks[0], &chunks[1]) else { return Ok(()) };
        match action {
            Action::Touch => self.touch(first),
            Action::Prefetch => first.prefetch(.., Location::Device),
            Action::PrefetchTwo => {
                first.prefetch(.., Location::Device)?;
                second.prefetch(.., Location::Device)
            }
            Action::Free => Ok(()),
            Action::PrefetchToHost => second.prefetch(.., Location::Host),
            Action::FreeAndPrefetchToHost => first.prefetch(.., Location::Host),
            Action::AccessedByDevice => first.advise(.., Advice::AccessedBy(Location::Device)),
            Action::PreferredOnDevice => first.advise(.., Advice::PreferredLocation(Location::Device)),
            Action::AccessedByHost => second.advise(.., Advice::AccessedBy(Location::Host)),
            Action::NextPreferredOnDevice => second.advise(.., Advice::PreferredLocation(Location::Device)),
            Action::NextPreferredOnHost => second.advise(.., Advice::PreferredLocation(Location::Host)),
        }
    }

    /// Runs `work` and measures the time until the device has done it.
    fn timed<T>(&self, work: impl FnOnce() -> Result<T, RuntimeError>) -> Result<(T, f64), RuntimeError> {
        self.context.synchronize()?;
        let start = Instant::now();
        let result = work()?;
        self.context.synchronize()?;
        Ok((result, start.elapsed().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evicted(policy: Policy) -> Vec<Vec<usize>> {
        let options = ProbeOptions { policy, chunk_bytes: 128 << 10, chunk_count: 6, ..ProbeOptions::default() };
        let findings = probe(&options).unwrap();
        for finding in &findings {
            assert_eq!(finding.touches.len(), TOUCHED_CHUNKS);
            for (chunk, touch) in finding.touches.iter().enumerate() {
                assert_eq!((touch.chunk, touch.resident), (chunk, !finding.evicted.contains(&chunk)), "{finding:?}");
            }
        }
        findings.into_iter().map(|finding| finding.evicted).collect()
    }

    #[test]
    fn a_driver_evicts_as_measured() {
        let measured: Vec<Vec<usize>> =
            Action::ALL.iter().map(|action| action.measured().into_iter().collect()).collect();
        let table: [&[usize]; 11] = [&[0], &[1], &[2], &[], &[1], &[], &[0], &[0], &[0], &[0], &[0]];
        assert_eq!(
            measured, table,
            "chunk 0 after 1, 7 to 10; chunk 1 after 2 and 5; chunk 2 after 3; none after 4 and 6"
        );
        assert_eq!(evicted(Policy::Driver), measured);
    }

    #[test]
    fn only_use_makes_a_difference_between_driver_and_touch() {
        let (driver, touch) = (evicted(Policy::Driver), evicted(Policy::Touch));
        assert_eq!((&driver[0], &touch[0]), (&vec![0], &vec![1]));
        assert_eq!(driver[1..], touch[1..]);
    }

    #[test]
    fn foresight_keeps_what_will_be_used() {
        let found = evicted(Policy::Planned);
        assert!(found.iter().flatten().all(|&chunk| chunk >= TOUCHED_CHUNKS), "{found:?}");
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |options: ProbeOptions| matches!(probe(&options), Err(Error::Option { .. }));
        assert!(refused(ProbeOptions { chunk_count: 4, ..ProbeOptions::default() }));
        assert!(refused(ProbeOptions { chunk_bytes: 100, ..ProbeOptions::default() }));
        assert!(refused(ProbeOptions { chunk_bytes: u64::MAX / 2, ..ProbeOptions::default() }));
        let device = DeviceOptions { tiled: false, ..DeviceOptions::default() };
        assert!(refused(ProbeOptions { device, growth: false, ..ProbeOptions::default() }));
    }
}
