//! Random eager programs: with enough synchronization, they are correct whatever the device does; with one synchronization removed, the
//! race checker reports it whenever it matters.

mod generator;
mod interleavings;
mod order;
mod patient;
mod player;
mod program;
mod reference;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forebay_base::{ByteRange, Command, MemoryId, Region};
use forebay_device::Device;
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor};
use forebay_sync::physical::{PhysicalBytes, PhysicalMemory};
use forebay_sync::race::{Hazard, HostAction, Race, TraceEntry, Violation, check_trace};
use forebay_testing::Random;

use generator::{Recipe, generate};
use interleavings::{Bytes, Precedence, Uses, explore};
use patient::PatientDevice;
use player::Player;
use program::{Operator, Program, Step};
use reference::Reference;

/// The number of programs on the chaos device.
const CHAOS_PROGRAMS: u64 = 10_000;
/// The number of threads that run them.
const THREADS: usize = 4;
const TILE_BYTES: u64 = 64 << 10;
/// The allocator's blocks are multiples of this.
const BLOCK_BYTES: u64 = 256;

/// Many small tensors.
const SMALL: Recipe = Recipe {
    work: (10, 40),
    streams: 6,
    tensors: 12,
    shapes: &[&[4], &[24], &[4, 4], &[8, 8], &[30, 10], &[]],
    timing_events: 2,
    idle_percent: 25,
};

/// Tensors that fill the available memory.
const LARGE: Recipe = Recipe {
    work: (10, 25),
    streams: 6,
    tensors: 7,
    shapes: &[&[8, 8], &[4000], &[60, 100], &[16384], &[100, 90]],
    timing_events: 2,
    idle_percent: 20,
};

/// The outcomes of programs.
#[derive(Default)]
struct Tally {
    steps: AtomicUsize,
    out_of_memory: AtomicUsize,
    capped: AtomicUsize,
}

/// The program and the settings of a seed.
fn chaotic(seed: u64) -> (Program, ContextOptions) {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut options = ContextOptions::default().record(true).staging_bytes(TILE_BYTES * 2);
    if random.percent(25) {
        options.event_limit = random.between(4, 10);
    }
    options.segment_bytes = random.between(1, 4) as u64 * TILE_BYTES;
    options.heap_bytes = random.between(1, 3) as u64 * TILE_BYTES;
    options.tiled = random.percent(80);
    if random.percent(80) {
        options.device_memory_bytes = random.percent(50).then_some(random.between(1, 4) as u64 * TILE_BYTES);
        (generate(seed, &SMALL), options)
    } else {
        options.device_memory_bytes = Some(random.between(3, 8) as u64 * TILE_BYTES);
        options.growth = random.percent(80);
        (generate(seed, &LARGE), options)
    }
}

/// Runs a program on the chaos device; every result must be correct, and nothing may be left behind.
fn run_chaotic(seed: u64, host: &Arc<HostDevice>, tally: &Tally) {
    let (program, options) = chaotic(seed);
    let idle_usage = host.usage();
    let device = Arc::new(ChaosDevice::new(host.clone(), seed).expect("a thread"));
    let context = Context::new(device, &options).expect("a context");
    let mut player = Player::new(&context);
    let mut reference = Reference::default();
    tally.capped.fetch_add(usize::from(options.device_memory_bytes.is_some()), Ordering::Relaxed);
    for (number, step) in program.steps.iter().enumerate() {
        let failed = |what: &str| -> ! { panic!("step {number}, {step:?}: {what}\n{options:?}\n{}", program.text()) };
        tally.steps.fetch_add(1, Ordering::Relaxed);
        match player.step(step) {
            Ok(Some(values)) => {
                let Step::ToHost { tensor, .. } = step else { failed("it reads nothing") };
                let expected = &reference.array(*tensor).values;
                if values != *expected {
                    failed(&format!("{values:?} instead of {expected:?}"));
                }
            }
            Ok(None) => {}
            Err(RuntimeError::OutOfMemory(_)) => {
                tally.out_of_memory.fetch_add(1, Ordering::Relaxed);
                match check_out_of_memory(&context, &mut player, step, &reference) {
                    Ok(()) => break,
                    Err(what) => failed(&what),
                }
            }
            Err(error) => failed(&error.to_string()),
        }
        reference.apply(step);
    }
    context.synchronize().expect("the device works");
    for tensor in reference.tensors() {
        let values = player.tensors[&tensor].to_host().expect("staging memory").to_f32();
        let expected = &reference.array(tensor).values;
        assert_eq!(values.as_ref(), Some(expected), "tensor {tensor} at the end\n{options:?}\n{}", program.text());
    }
    if let Err(races) = context.check() {
        panic!("{races}\n{options:?}\n{}", program.text());
    }
    drop(player);
    context.trim().expect("the device works");
    let statistics = context.memory_statistics();
    let left = (statistics.in_use_bytes, statistics.reserved_bytes, host.usage().heap_bytes);
    let fixed_bytes = options.device_memory_bytes.filter(|_| !options.growth).unwrap_or(0);
    assert_eq!(left, (0, fixed_bytes, fixed_bytes), "in use, reserved, of the device\n{options:?}\n{}", program.text());
    drop(context);
    let usage = (host.usage().heap_bytes, host.usage().host_bytes);
    assert_eq!(usage, (0, idle_usage.host_bytes), "of the device and the host\n{}", program.text());
}

/// Memory may run out only if it is full: when everything is complete and returned, only live tensors take memory, and the step fails
/// again.
fn check_out_of_memory(
    context: &Context,
    player: &mut Player,
    step: &Step,
    reference: &Reference,
) -> Result<(), String> {
    context.trim().expect("the device works");
    let live_bytes = reference.live_bytes(BLOCK_BYTES);
    let in_use_bytes = context.memory_statistics().in_use_bytes;
    if in_use_bytes != live_bytes {
        return Err(format!("{in_use_bytes} bytes are in use where {live_bytes} live"));
    }
    if matches!(step, Step::Compute { operator: Operator::AddNumber(_), .. }) {
        // This step takes two blocks. The location of the first decides whether the second fits, and can differ next time.
        return Ok(());
    }
    match player.step(step) {
        Err(RuntimeError::OutOfMemory(_)) => Ok(()),
        other => Err(format!("out of memory, but not any more once everything was complete: {other:?}")),
    }
}

#[test]
fn random_programs_are_right_on_the_chaos_device() {
    let (next, tally) = (AtomicU64::new(0), Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let options = HostOptions { threads: Some(2), ..HostOptions::default() };
                let host = Arc::new(HostDevice::new(&options).expect("a device"));
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= CHAOS_PROGRAMS {
                        break;
                    }
                    run_chaotic(seed, &host, &tally);
                }
            });
        }
    });
    println!(
        "{CHAOS_PROGRAMS} programs, {:?} steps; {:?} with a cap on memory, of which {:?} ran out of it",
        tally.steps, tally.capped, tally.out_of_memory
    );
    assert!(tally.out_of_memory.into_inner() > 100, "memory is short in a good part of the programs");
}

/// The number of programs from which a synchronization is removed.
const CUT_PROGRAMS: u64 = 4_000;

/// Few tensors, passed from stream to stream.
const TINY: Recipe =
    Recipe { work: (5, 9), streams: 4, tensors: 5, shapes: &[&[4, 4]], timing_events: 0, idle_percent: 8 };

/// Few tensors that fill the available memory, so that the host waits for memory and remaps it.
const TIGHT: Recipe = Recipe { shapes: &[&[40, 100], &[128, 128], &[128, 200]], tensors: 3, work: (8, 10), ..TINY };

/// The program of a seed and its device memory.
fn small(seed: u64) -> (Program, Option<u64>) {
    match seed % 4 {
        0 => (generate(seed, &TIGHT), Some((3 + seed / 4 % 2) * TILE_BYTES)),
        _ => (generate(seed, &TINY), None),
    }
}

/// Returns what a program submitted and did, and the bytes that are live at its end, or `None` if they do not fit.
fn record(program: &Program, device_memory_bytes: Option<u64>) -> Option<(Vec<TraceEntry>, Vec<Region>)> {
    let mut options = ContextOptions::default().record(true);
    options.device_memory_bytes = device_memory_bytes;
    let context = Context::new(Arc::new(PatientDevice::new()), &options).expect("a context");
    let mut player = Player::new(&context);
    for step in &program.steps {
        match player.step(step) {
            Ok(_) => {}
            Err(RuntimeError::OutOfMemory(_)) => return None,
            Err(error) => panic!("{step:?}: {error}\n{}", program.text()),
        }
    }
    let live = player.tensors.values().map(region).collect();
    Some((context.recording().entries().to_vec(), live))
}

/// The bytes of a tensor, which only its debug text names.
fn region(tensor: &DeviceTensor) -> Region {
    let text = format!("{tensor:?}");
    let numbers = || -> Option<Region> {
        let (memory, range) = text.rsplit_once(" at m")?.1.strip_suffix("])")?.split_once('[')?;
        let (start, end) = range.split_once("..")?;
        let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
        Some(Region::new(MemoryId(memory.parse().ok()?), start, end - start))
    };
    numbers().unwrap_or_else(|| panic!("{text} names its bytes"))
}

/// The findings for one trace.
struct Findings {
    /// Whether results can change.
    can_change: bool,
    /// Whether the checker objected.
    reported: bool,
    situations: usize,
}

/// Judges a trace twice, by all of its interleavings and with the checker, and compares the verdicts.
fn judge(trace: &[TraceEntry], live: &[Region], names: &dyn Fn() -> String) -> Findings {
    let precedence = Precedence::new(trace);
    let (uses, live) = interleavings::uses(trace, live);
    let races = interleavings::races(&uses, &precedence);
    let outcome = explore(trace, &uses, &precedence, &live);
    let violations = check_trace(trace).err().unwrap_or_default();
    let reported = !violations.is_empty();
    assert!(reported || !outcome.can_change, "results can change, and nobody says so\n{}", names());
    assert_eq!(reported, !races.is_empty(), "races: {races:?}, reported: {violations:?}\n{}", names());
    for violation in violations {
        let Violation::Race(race) = &violation else { panic!("{violation:?} is no race\n{}", names()) };
        let real = races.contains(&(race.first, race.second)) && share_bytes(&uses, race);
        assert!(real, "not a race: {race:?}\n{}", names());
    }
    Findings { can_change: outcome.can_change, reported, situations: outcome.situations }
}

/// Returns whether both sides of a race use the bytes that it names, in the ways that it names.
fn share_bytes(uses: &[Uses], race: &Race) -> bool {
    let (earlier, later) = (&uses[race.first], &uses[race.second]);
    let (first, second) = match race.hazard {
        Hazard::ReadAfterWrite => (&earlier.writes, &later.reads),
        Hazard::WriteAfterRead => (&earlier.reads, &later.writes),
        Hazard::WriteAfterWrite => (&earlier.writes, &later.writes),
    };
    let inside = |used: &[Bytes], bytes: &PhysicalBytes| {
        let (heap, memory) = match bytes.memory {
            PhysicalMemory::Heap(heap) => (Some(heap), MemoryId(0)),
            PhysicalMemory::Memory(memory) => (None, memory),
        };
        // Adjacent bytes can be reported as one range even if they are used through several mappings.
        let overlap = |used: &Bytes| used.range.intersection(bytes.range).map_or(0, ByteRange::len);
        let same: BTreeSet<&Bytes> = used.iter().filter(|used| (used.heap, used.memory) == (heap, memory)).collect();
        same.into_iter().map(overlap).sum::<u64>() == bytes.range.len()
    };
    let whole = |bytes: &PhysicalBytes| !bytes.range.is_empty() && inside(first, bytes) && inside(second, bytes);
    !race.bytes.is_empty() && race.bytes.iter().all(whole)
}

/// The number of traces, of those whose results can change, and of those that the checker objected to.
#[derive(Debug, Default)]
struct Counts {
    traces: usize,
    can_change: usize,
    reported: usize,
    situations: usize,
    /// Traces in which memory was remapped.
    remapped: usize,
}

impl Counts {
    fn add(&mut self, trace: &[TraceEntry], findings: &Findings) {
        let unmaps = |entry: &TraceEntry| matches!(entry, TraceEntry::Command(Command::Unmap { .. }));
        self.remapped += usize::from(trace.iter().any(unmaps));
        self.traces += 1;
        self.can_change += usize::from(findings.can_change);
        self.reported += usize::from(findings.reported);
        self.situations += findings.situations;
    }
}

#[test]
fn the_checker_reports_what_can_change_a_result_and_only_real_hazards() {
    let (mut whole, mut cut, mut entry_cut) = (Counts::default(), Counts::default(), Counts::default());
    let mut seed = 0;
    while (cut.traces as u64) < CUT_PROGRAMS {
        seed += 1;
        let (program, memory_bytes) = small(seed);
        let mut random = Random::new(seed);
        let Some(place) = random.pick(&program.synchronizations()) else { continue };
        let Some((trace, live)) = record(&program, memory_bytes) else { continue };
        whole.add(&trace, &judge(&trace, &live, &|| program.text()));
        // Memory is allocated again for the program without the synchronization.
        let less = program.without(place);
        let Some((less_trace, less_live)) = record(&less, memory_bytes) else { continue };
        cut.add(
            &less_trace,
            &judge(&less_trace, &less_live, &|| format!("without {:?}, {}", program.steps[place], less.text())),
        );
        // Here it is not: entries that the runtime added for the reuse of memory can be removed, too.
        let orders: Vec<usize> = (0..trace.len()).filter(|&index| is_order(&trace[index])).collect();
        let Some(place) = random.pick(&orders) else { continue };
        let mut less = trace.clone();
        let entry = less.remove(place);
        entry_cut.add(&less, &judge(&less, &live, &|| format!("without entry {place}, {entry:?}, {}", program.text())));
    }
    println!("whole: {whole:?}\nwithout a synchronization: {cut:?}\nwithout an entry: {entry_cut:?}");
    assert_eq!((whole.can_change, whole.reported), (0, 0), "enough is synchronized");
    assert!(cut.can_change > cut.traces / 4 && entry_cut.can_change > entry_cut.traces / 4, "cuts matter");
    assert!(whole.remapped > 50 && cut.remapped > 50, "memory is short in some");
}

/// Returns whether an entry exists only for order.
fn is_order(entry: &TraceEntry) -> bool {
    matches!(
        entry,
        TraceEntry::Command(Command::Barrier { .. } | Command::Wait { .. })
            | TraceEntry::Host(HostAction::WaitEvent { .. })
    )
}
