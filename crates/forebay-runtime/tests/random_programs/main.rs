//! Random eager programs: with enough synchronisation they are right whatever the device does, and with one taken away the
//! race checker says so whenever it matters.

mod generator;
mod interleavings;
mod order;
mod patient;
mod player;
mod program;
mod reference;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use forebay_base::{Command, MemoryId, Region};
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::Device;
use forebay_runtime::eager::{Context, ContextOptions, Tensor};
use forebay_runtime::RuntimeError;
use forebay_sync::physical::{PhysicalBytes, PhysicalMemory};
use forebay_sync::race::{check_trace, Hazard, HostAction, Race, TraceEntry, Violation};

use generator::{generate, Recipe};
use interleavings::{explore, uses, Precedence};
use patient::PatientDevice;
use player::Player;
use program::{Program, Random, Step};
use reference::Reference;

/// Programs on the chaos device.
const CHAOS_PROGRAMS: u64 = 10_000;
/// Threads that run them.
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

/// Tensors that fill the memory that there is.
const LARGE: Recipe = Recipe {
    work: (10, 25),
    streams: 6,
    tensors: 7,
    shapes: &[&[8, 8], &[4000], &[60, 100], &[16384], &[100, 90]],
    timing_events: 2,
    idle_percent: 20,
};

/// What became of programs.
#[derive(Default)]
struct Tally {
    steps: AtomicUsize,
    out_of_memory: AtomicUsize,
    capped: AtomicUsize,
}

/// The program and the settings of a seed.
fn chaotic(seed: u64) -> (Program, ContextOptions) {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut options = ContextOptions { record: true, staging_bytes: Some(TILE_BYTES * 2), ..ContextOptions::default() };
    if random.percent(25) {
        options.event_limit = random.between(4, 10);
    }
    if random.percent(80) {
        // Without a cap, segments are larger than all that a program needs, and take time to make.
        options.device_memory_bytes = random.percent(90).then_some(random.between(1, 4) as u64 * TILE_BYTES);
        (generate(seed, &SMALL), options)
    } else {
        options.device_memory_bytes = Some(random.between(3, 8) as u64 * TILE_BYTES);
        (generate(seed, &LARGE), options)
    }
}

/// Runs a program on the chaos device; everything must be right, and nothing must stay.
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
    assert_eq!(left, (0, 0, 0), "in use, reserved, of the device\n{options:?}\n{}", program.text());
    drop(context);
    assert_eq!(host.usage().host_bytes, idle_usage.host_bytes, "host blocks stay\n{}", program.text());
}

/// Memory may run out only where it is full: with everything complete and given back, only what lives takes any, and the
/// step fails again.
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

/// Programs from which a synchronisation is taken.
const CUT_PROGRAMS: u64 = 3_000;

/// Few tensors, passed from stream to stream.
const TINY: Recipe = Recipe {
    work: (5, 9),
    streams: 4,
    tensors: 5,
    shapes: &[&[4, 4]],
    timing_events: 0,
    idle_percent: 8,
};

/// What a program submitted and did, and the bytes that live at its end.
fn record(program: &Program) -> (Vec<TraceEntry>, Vec<Region>) {
    let options = ContextOptions { record: true, ..ContextOptions::default() };
    let context = Context::new(Arc::new(PatientDevice::new()), &options).expect("a context");
    let mut player = Player::new(&context);
    for step in &program.steps {
        player.step(step).unwrap_or_else(|error| panic!("{step:?}: {error}\n{}", program.text()));
    }
    let live = player.tensors.values().map(region).collect();
    (context.recording().entries().to_vec(), live)
}

/// The bytes of a tensor, which only its text names.
fn region(tensor: &Tensor) -> Region {
    let text = format!("{tensor:?}");
    let numbers = || -> Option<Region> {
        let (memory, range) = text.rsplit_once(" at m")?.1.strip_suffix("])")?.split_once('[')?;
        let (start, end) = range.split_once("..")?;
        let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
        Some(Region::new(MemoryId(memory.parse().ok()?), start, end - start))
    };
    numbers().unwrap_or_else(|| panic!("{text} names its bytes"))
}

/// What was found in one trace.
struct Findings {
    /// Whether results can change.
    can_change: bool,
    /// Whether the checker objected.
    reported: bool,
    situations: usize,
}

/// Judges a trace twice, by all of its interleavings and with the checker, and compares.
fn judge(trace: &[TraceEntry], live: &[Region], names: &dyn Fn() -> String) -> Findings {
    let precedence = Precedence::new(trace);
    let races = interleavings::races(trace, &precedence);
    let outcome = explore(trace, &precedence, live);
    let violations = check_trace(trace).err().unwrap_or_default();
    let reported = !violations.is_empty();
    assert!(reported || !outcome.can_change, "results can change, and nobody says so\n{}", names());
    assert_eq!(reported, !races.is_empty(), "races: {races:?}, reported: {violations:?}\n{}", names());
    for violation in violations {
        let Violation::Race(race) = &violation else { panic!("{violation:?} is no race\n{}", names()) };
        let real = races.contains(&(race.first, race.second)) && share_bytes(trace, race);
        assert!(real, "not a race: {race:?}\n{}", names());
    }
    Findings { can_change: outcome.can_change, reported, situations: outcome.situations }
}

/// Whether both sides of a race use the bytes that it names, in the ways that it names.
fn share_bytes(trace: &[TraceEntry], race: &Race) -> bool {
    let ((first_reads, first_writes), (reads, writes)) = (uses(&trace[race.first]), uses(&trace[race.second]));
    let (first, second) = match race.hazard {
        Hazard::ReadAfterWrite => (first_writes, reads),
        Hazard::WriteAfterRead => (first_reads, writes),
        Hazard::WriteAfterWrite => (first_writes, writes),
    };
    let inside = |regions: &[Region], bytes: Region| {
        regions.iter().any(|region| region.memory == bytes.memory && region.range.contains(bytes.range))
    };
    !race.bytes.is_empty()
        && race.bytes.iter().all(|bytes| {
            let bytes = logical(trace, bytes);
            !bytes.range.is_empty() && inside(&first, bytes) && inside(&second, bytes)
        })
}

/// The addresses of physical bytes. A trace of these programs maps each heap once.
fn logical(trace: &[TraceEntry], bytes: &PhysicalBytes) -> Region {
    let size_bytes = bytes.range.len();
    let heap = match bytes.memory {
        PhysicalMemory::Memory(memory) => return Region::new(memory, bytes.range.start, size_bytes),
        PhysicalMemory::Heap(heap) => heap,
    };
    let address = trace.iter().find_map(|entry| match entry {
        TraceEntry::Command(Command::Map { region, heap: mapped, heap_offset_bytes }) if *mapped == heap => {
            Some(region.part(bytes.range.start - heap_offset_bytes, size_bytes))
        }
        _ => None,
    });
    address.unwrap_or_else(|| panic!("{bytes:?} are mapped"))
}

/// Traces, and among them those whose results can change, and those that the checker objected to.
#[derive(Debug, Default)]
struct Counts {
    traces: usize,
    can_change: usize,
    reported: usize,
    situations: usize,
}

impl Counts {
    fn add(&mut self, findings: &Findings) {
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
        let program = generate(seed, &TINY);
        let mut random = Random::new(seed);
        let Some(place) = random.pick(&program.synchronisations()) else { continue };
        let (trace, live) = record(&program);
        whole.add(&judge(&trace, &live, &|| program.text()));
        // Memory is given out anew for the program without its synchronisation.
        let less = program.without(place);
        let (less_trace, less_live) = record(&less);
        cut.add(&judge(&less_trace, &less_live, &|| format!("without {:?}, {}", program.steps[place], less.text())));
        // Here it is not: what the runtime added for the reuse of memory is taken away, too.
        let orders: Vec<usize> = (0..trace.len()).filter(|&index| is_order(&trace[index])).collect();
        let Some(place) = random.pick(&orders) else { continue };
        let mut less = trace.clone();
        let entry = less.remove(place);
        entry_cut.add(&judge(&less, &live, &|| format!("without entry {place}, {entry:?}, {}", program.text())));
    }
    println!("whole: {whole:?}\nwithout a synchronisation: {cut:?}\nwithout an entry: {entry_cut:?}");
    assert_eq!((whole.can_change, whole.reported), (0, 0), "enough is synchronised");
    assert!(cut.can_change > cut.traces / 4 && entry_cut.can_change > entry_cut.traces / 4, "cuts matter");
}

/// Whether an entry is there for order only.
fn is_order(entry: &TraceEntry) -> bool {
    matches!(
        entry,
        TraceEntry::Command(Command::Barrier { .. } | Command::Wait { .. }) | TraceEntry::Host(HostAction::WaitEvent { .. })
    )
}
