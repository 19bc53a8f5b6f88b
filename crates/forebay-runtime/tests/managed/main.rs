//! Managed memory: data survives eviction, budgets are kept, and nothing races.

mod hints;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_base::{Command, DataType};
use forebay_device::Device;
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_memory::eviction::{Advice, Location, Policy};
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::{
    Context, ContextOptions, DeviceTensor, ManagedBuffer, ManagedMemory, ManagedOptions, Stream,
};
use forebay_testing::Random;

const UNIT_BYTES: u64 = 64 << 10;
const POLICIES: [Policy; 3] = [Policy::Driver, Policy::Touch, Policy::Planned];

fn host() -> Arc<HostDevice> {
    Arc::new(HostDevice::new(&HostOptions { threads: Some(2), ..HostOptions::default() }).unwrap())
}

fn recording(device: Arc<dyn Device>) -> Context {
    Context::new(device, &ContextOptions::default().record(true)).unwrap()
}

fn options(units: u64, policy: Policy) -> ManagedOptions {
    ManagedOptions::new(units * UNIT_BYTES, policy).unit_bytes(UNIT_BYTES)
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

/// A buffer of some units, filled with a number on the device.
fn filled(memory: &ManagedMemory, units: u64, number: f32) -> ManagedBuffer {
    let buffer = memory.buffer(units * UNIT_BYTES).unwrap();
    buffer.fill(number.to_le_bytes()).unwrap();
    buffer
}

fn first(buffer: &ManagedBuffer) -> f32 {
    let mut four = [0; 4];
    buffer.read(0, &mut four).unwrap();
    f32::from_le_bytes(four)
}

#[test]
fn operations_use_more_than_the_device_holds() {
    for policy in POLICIES {
        let context = recording(host());
        let memory = ManagedMemory::new(&context, &options(6, policy)).unwrap();
        let count = 2 * UNIT_BYTES / 4;
        let tensors: Vec<_> = (0..8)
            .map(|i| {
                let buffer = filled(&memory, 2, i as f32);
                buffer.tensor(DataType::Float32, &[count], 0).unwrap()
            })
            .collect();
        let mut sum = tensors[0].clone();
        for tensor in &tensors[1..] {
            sum = context.operation("Add").input(&sum).input(tensor).managed(&memory).run_single().unwrap();
        }
        assert_eq!(sum.to_host().unwrap().to_f32().unwrap(), vec![28.0; count as usize]);
        let statistics = memory.statistics();
        assert!(statistics.evictions > 0 && statistics.copied_back_bytes > 0 && statistics.fetched_bytes > 0);
        assert!(context.device().usage().heap_peak_bytes <= 6 * UNIT_BYTES, "no tensor is outside");
        let refused = context.operation("Concat").input(&tensors[0]).input(&tensors[1]).input(&tensors[2]);
        let refused = refused.attribute("axis", forebay_model::graph::Attribute::Int(0)).managed(&memory).run_single();
        assert!(matches!(refused, Err(RuntimeError::Managed(_))), "{refused:?}");
        assert_eq!(tensors[3].to_host().unwrap().to_f32().unwrap()[7], 3.0, "a refusal changes nothing");
        context.check().unwrap();
    }
}

#[test]
fn without_growth_everything_is_taken_at_the_start_and_stays() {
    let context = recording(host());
    // Two and a half heaps.
    let heap_bytes = context.device().limits().heap_size_max_bytes;
    let fixed = options(5 * heap_bytes / 2 / UNIT_BYTES, Policy::Driver).growth(false);
    let memory = ManagedMemory::new(&context, &fixed).unwrap();
    let taken = || (context.device().usage().heap_bytes, memory.statistics().device_bytes);
    assert_eq!(taken(), (5 * heap_bytes / 2, 5 * heap_bytes / 2));
    let buffer = filled(&memory, 3, 7.0);
    assert_eq!(first(&buffer), 7.0);
    drop(buffer);
    context.trim().unwrap();
    assert_eq!(taken(), (5 * heap_bytes / 2, 5 * heap_bytes / 2), "it could not be taken again");
    drop(memory);
    assert_eq!(context.device().usage().heap_bytes, 0);
    let small = HostOptions { memory_bytes: Some(heap_bytes), ..HostOptions::default() };
    let context = recording(Arc::new(HostDevice::new(&small).unwrap()));
    let error = ManagedMemory::new(&context, &fixed).unwrap_err().to_string();
    assert!(error.contains("at the start"), "{error}");
    assert_eq!(context.device().usage().heap_bytes, 0, "what was taken before the failure went back");
    let placed = recording(Arc::new(NullDevice::new(NullProfile::Placed)));
    let error = ManagedMemory::new(&placed, &fixed).unwrap_err().to_string();
    assert!(error.contains("requires tiles"), "{error}");
}

#[test]
fn memory_goes_back_when_buffers_and_memory_are_dropped() {
    let device = host();
    let before = device.usage();
    let context = recording(device.clone());
    let memory = ManagedMemory::new(&context, &options(4, Policy::Touch)).unwrap();
    for i in 0..20 {
        // A buffer larger than what fits is dropped while it is being filled.
        drop(filled(&memory, 3, i as f32));
    }
    let kept = filled(&memory, 4, 7.0);
    drop(memory);
    assert_eq!(first(&kept), 7.0, "a buffer keeps its memory");
    context.check().unwrap();
    drop((kept, context));
    assert_eq!((device.usage().heap_bytes, device.usage().host_bytes), (before.heap_bytes, before.host_bytes));
    assert_eq!(device.usage().heap_peak_bytes, 4 * UNIT_BYTES);
}

#[test]
fn what_is_clean_or_dead_is_not_copied() {
    let context = recording(host());
    let memory = ManagedMemory::new(&context, &options(2, Policy::Touch)).unwrap();
    let (a, b) = (memory.buffer(2 * UNIT_BYTES).unwrap(), filled(&memory, 2, 2.0));
    a.write(0, &bytes(&vec![1.0; 2 * UNIT_BYTES as usize / 4])).unwrap();
    let sum = |buffer: &ManagedBuffer| {
        let tensor = buffer.tensor(DataType::Float32, &[2 * UNIT_BYTES / 4], 0).unwrap();
        tensor.sum().unwrap().to_host().unwrap().to_f32().unwrap()[0]
    };
    let all = (2 * UNIT_BYTES / 4) as f32;
    assert_eq!((sum(&a), sum(&b), sum(&a)), (all, 2.0 * all, all));
    assert_eq!(memory.statistics().copied_back_bytes, 2 * UNIT_BYTES, "only b, and once");
    assert_eq!(sum(&b), 2.0 * all);
    assert_eq!(memory.statistics().copied_back_bytes, 2 * UNIT_BYTES);
    b.fill([0; 4]).unwrap();
    b.discard(..).unwrap();
    let fetched_bytes = memory.statistics().fetched_bytes;
    assert_eq!(sum(&a), all);
    assert_eq!(memory.statistics().copied_back_bytes, 2 * UNIT_BYTES, "b is dead");
    assert_eq!(memory.statistics().fetched_bytes, fetched_bytes + 2 * UNIT_BYTES);
    // Bytes that a write replaces completely are not fetched; the rest of a unit is.
    a.discard(..UNIT_BYTES).unwrap();
    b.fill([0; 4]).unwrap();
    let part = a.tensor(DataType::Float32, &[UNIT_BYTES / 4], UNIT_BYTES / 2).unwrap();
    let refused = part.copy_from(&b.tensor(DataType::Float32, &[UNIT_BYTES / 4], 0).unwrap());
    assert!(matches!(refused, Err(RuntimeError::Managed(_))), "three units at once: {refused:?}");
    let zeros = DeviceTensor::zeros(&context, DataType::Float32, &[UNIT_BYTES / 4]).unwrap();
    let fetched_bytes = memory.statistics().fetched_bytes;
    part.copy_from(&zeros).unwrap();
    assert_eq!(memory.statistics().fetched_bytes, fetched_bytes + UNIT_BYTES, "the unit whose other half lives");
    let mut found = vec![0; 4];
    a.read(2 * UNIT_BYTES - 4, &mut found).unwrap();
    assert_eq!(numbers(&found), [1.0]);
    context.check().unwrap();
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let context = recording(host());
    let memory = ManagedMemory::new(&context, &options(4, Policy::Touch)).unwrap();
    let buffer = memory.buffer(1000).unwrap();
    let text = |error: RuntimeError| error.to_string();
    assert!(text(buffer.write(999, &[0; 2]).unwrap_err()).contains("999..1001"));
    assert!(text(buffer.read(u64::MAX, &mut [0; 2]).unwrap_err()).contains("1000 bytes"));
    assert!(text(buffer.tensor(DataType::Float32, &[4], 4).unwrap_err()).contains("multiple of 256"));
    assert!(text(buffer.tensor(DataType::Float32, &[251], 0).unwrap_err()).contains("1004 bytes"));
    assert!(buffer.prefetch(5..2000, Location::Device).is_err() && memory.buffer(0).is_err());
    assert!(text(ManagedMemory::new(&context, &options(0, Policy::Touch)).unwrap_err()).contains("budget of 0"));
    let nowhere = options(4, Policy::Touch).spill_dir(PathBuf::from("/nonexistent"));
    assert!(text(ManagedMemory::new(&context, &nowhere).unwrap_err()).contains("/nonexistent"));
    // Host memory that is too small, without a spill file.
    let small = options(4, Policy::Touch).host_bytes(2 * UNIT_BYTES);
    let memory = ManagedMemory::new(&context, &small).unwrap();
    let buffers: Vec<_> = (0..6).map(|i| filled(&memory, 1, i as f32)).collect();
    let seventh = memory.buffer(UNIT_BYTES).unwrap();
    assert!(matches!(seventh.fill([1; 4]), Err(RuntimeError::HostMemory { .. })));
    drop(seventh);
    buffers.iter().skip(1).step_by(2).for_each(|buffer| buffer.discard(..).unwrap());
    assert_eq!([0, 2, 4].map(|i| first(&buffers[i])), [0.0, 2.0, 4.0], "everything is where it was");
}

/// A managed memory under test, and plain vectors with the expected contents of its buffers.
struct Pair {
    context: Context,
    memory: ManagedMemory,
    streams: Vec<Stream>,
    current: usize,
    buffers: Vec<(ManagedBuffer, Vec<Option<f32>>)>,
    random: Random,
}

impl Pair {
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn add_buffer(&mut self) {
        // Sizes need not be whole units.
        let count = (1 + self.below(4 * UNIT_BYTES / 256)) * 64 - self.below(60);
        let buffer = self.memory.buffer(count * 4).unwrap();
        self.buffers.push((buffer, vec![None; count as usize]));
    }

    /// Returns a random range of a buffer's numbers that begins at an offset valid for tensors.
    fn range(&mut self, buffer: usize) -> (u64, u64) {
        let count = self.buffers[buffer].1.len() as u64;
        let start = self.below(count.div_ceil(64)) * 64;
        (start, 1 + self.below(count - start))
    }

    fn write(&mut self, i: usize) {
        let (start, count) = self.range(i);
        let written: Vec<f32> = (0..count).map(|_| self.below(1000) as f32).collect();
        let (buffer, model) = &mut self.buffers[i];
        buffer.write(start * 4, &bytes(&written)).unwrap();
        for (known, new) in model[start as usize..].iter_mut().zip(&written) {
            *known = Some(*new);
        }
    }

    fn compare(&mut self, i: usize, place: &str) {
        let (start, count) = self.range(i);
        let (buffer, model) = &self.buffers[i];
        let mut found = vec![0; count as usize * 4];
        buffer.read(start * 4, &mut found).unwrap();
        let expected = &model[start as usize..][..count as usize];
        let wrong = numbers(&found)
            .iter()
            .zip(expected)
            .position(|(found, expected)| expected.is_some_and(|expected| expected.to_bits() != found.to_bits()));
        assert_eq!(wrong, None, "{buffer:?} from {start}, {count} numbers, {place}");
    }

    /// Copies numbers between buffers on the device.
    fn copy(&mut self, from: usize, to: usize) {
        let ((from_start, from_count), (to_start, to_count)) = (self.range(from), self.range(to));
        let count = from_count.min(to_count).min(UNIT_BYTES / 4);
        let tensor = |(buffer, _): &(ManagedBuffer, _), start: u64| {
            buffer.tensor(DataType::Float32, &[count], start * 4).unwrap()
        };
        tensor(&self.buffers[to], to_start).copy_from(&tensor(&self.buffers[from], from_start)).unwrap();
        let copied = self.buffers[from].1[from_start as usize..][..count as usize].to_vec();
        self.buffers[to].1[to_start as usize..][..count as usize].copy_from_slice(&copied);
    }

    /// Adds 1 to numbers on the device, into a separate buffer.
    fn compute(&mut self, i: usize) {
        let (start, count) = self.range(i);
        let count = count.min(UNIT_BYTES / 4);
        let tensor = self.buffers[i].0.tensor(DataType::Float32, &[count], start * 4).unwrap();
        let output = self.memory.buffer(count * 4).unwrap();
        let sum = tensor.add(1.0).unwrap();
        output.tensor(DataType::Float32, &[count], 0).unwrap().copy_from(&sum).unwrap();
        let model = self.buffers[i].1[start as usize..][..count as usize].iter();
        let model = model.map(|number| number.map(|number| number + 1.0)).collect();
        self.buffers.push((output, model));
    }

    fn discard(&mut self, i: usize) {
        let (start, count) = self.range(i);
        let (buffer, model) = &mut self.buffers[i];
        buffer.discard(start * 4..(start + count) * 4).unwrap();
        model[start as usize..][..count as usize].fill(None);
    }

    fn hint(&mut self, i: usize) {
        let (start, count) = self.range(i);
        let range = start * 4..(start + count) * 4;
        let location = if self.below(2) == 0 { Location::Host } else { Location::Device };
        let advice = [Advice::ReadMostly, Advice::PreferredLocation(location), Advice::AccessedBy(location)]
            [self.below(3) as usize];
        let buffer = self.buffers[i].0.clone();
        match self.below(6) {
            0 => buffer.advise(range, advice).unwrap(),
            1 => buffer.withdraw_advice(range, advice).unwrap(),
            2 => assert!(buffer.cancel_prefetch(range).unwrap() <= buffer.size_bytes().div_ceil(UNIT_BYTES)),
            _ => buffer.prefetch(range, location).unwrap(),
        }
    }

    fn step(&mut self, place: &str) {
        let i = self.below(self.buffers.len() as u64) as usize;
        match self.below(16) {
            0..=2 => self.write(i),
            3..=5 => self.compare(i, place),
            6 | 7 => {
                let other = self.below(self.buffers.len() as u64) as usize;
                if other != i {
                    self.copy(i, other);
                }
            }
            8 | 9 => self.compute(i),
            10 => {
                let number = self.below(1000) as f32;
                let (buffer, model) = &mut self.buffers[i];
                buffer.fill(number.to_le_bytes()).unwrap();
                model.fill(Some(number));
            }
            11 => self.discard(i),
            12 | 13 => self.hint(i),
            14 => {
                // Ordering streams is up to the user.
                let next = self.below(self.streams.len() as u64) as usize;
                self.streams[next].wait_stream(&self.streams[self.current]).unwrap();
                self.current = next;
            }
            _ => {
                self.buffers.swap_remove(i);
                self.add_buffer();
            }
        }
        while self.buffers.len() > 8 {
            self.buffers.remove(0);
        }
    }
}

fn random_use(device: Arc<dyn Device>, options: &ManagedOptions, seed: u64, steps: u64) -> ManagedMemory {
    let context = recording(device);
    let memory = ManagedMemory::new(&context, options).unwrap();
    let streams = vec![context.default_stream(), Stream::new(&context, 0).unwrap()];
    let random = Random::new(seed);
    let mut pair = Pair { context, memory, streams, current: 0, buffers: Vec::new(), random };
    (0..5).for_each(|_| pair.add_buffer());
    for step in 0..steps {
        let stream = pair.streams[pair.current].clone();
        let _entered = stream.enter();
        pair.step(&format!("seed {seed}, step {step}, {options:?}"));
        let held = pair.memory.statistics();
        assert!(held.device_bytes <= options.device_bytes && held.resident_bytes <= held.device_bytes, "seed {seed}");
        assert!(options.host_bytes.is_none_or(|bytes| held.host_bytes <= bytes), "seed {seed}");
        let heap_bytes = pair.context.device().usage().heap_bytes;
        let others = pair.context.memory_statistics().reserved_bytes;
        assert!(heap_bytes <= options.device_bytes + others, "seed {seed}: {heap_bytes} bytes");
    }
    (0..pair.buffers.len()).for_each(|i| pair.compare(i, &format!("seed {seed}, at the end")));
    if let Err(races) = pair.context.check() {
        panic!("seed {seed}, {options:?}: {races}");
    }
    pair.memory.clone()
}

#[test]
fn data_survives_random_use_under_chaos() {
    for seed in 1..=9 {
        let policy = POLICIES[seed as usize % 3];
        let device = Arc::new(ChaosDevice::new(host(), seed).unwrap());
        let statistics = random_use(device, &options(6, policy), seed, 150).statistics();
        assert!(statistics.evictions > 10, "{statistics:?}");
    }
}

#[test]
fn data_survives_random_use_with_a_spill_file() {
    let folder = std::env::temp_dir().join(format!("forebay-managed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for seed in 10..=18 {
        let policy = POLICIES[seed as usize % 3];
        let budget = options(4, policy).host_bytes(3 * UNIT_BYTES).spill_dir(folder.clone());
        let device: Arc<dyn Device> = match seed {
            16.. => Arc::new(ChaosDevice::new(host(), seed).unwrap()),
            _ => host(),
        };
        let memory = random_use(device, &budget, seed, 150);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the file has no name");
        let statistics = memory.statistics();
        assert!(statistics.spilled_bytes > 0 && statistics.unspilled_bytes > 0, "seed {seed}: {statistics:?}");
    }
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn evictions_are_commands_like_others() {
    let device = Arc::new(NullDevice::new(NullProfile::Tiled));
    let context = recording(device.clone());
    let memory = ManagedMemory::new(&context, &options(1, Policy::Touch)).unwrap();
    let (a, b) = (filled(&memory, 1, 1.0), filled(&memory, 1, 2.0));
    a.fill([0; 4]).unwrap();
    drop(b);
    let of = |wanted: fn(&Command) -> bool| device.commands().iter().filter(|command| wanted(command)).count();
    assert_eq!(of(|command| matches!(command, Command::Copy { .. })), 2, "both went once, neither was fetched");
    assert_eq!(of(|command| matches!(command, Command::Map { .. })), 3);
    assert_eq!(of(|command| matches!(command, Command::Unmap { .. })), 2);
    let names: Vec<_> = (0..context.recording().entries().len())
        .filter_map(|i| context.recording().name(i).map(str::to_string))
        .collect();
    assert_eq!(names, ["fill", "managed copy back", "fill", "managed copy back", "fill"]);
    context.check().unwrap();
}

#[test]
fn without_tiles_a_buffer_is_a_placed_heap_while_it_is_on_the_device() {
    let device =
        Arc::new(HostDevice::new(&HostOptions { threads: Some(2), tiled: false, ..HostOptions::default() }).unwrap());
    let context = recording(device.clone());
    let memory = ManagedMemory::new(&context, &options(6, Policy::Touch)).unwrap();
    assert_eq!(memory.unit_bytes(), None);
    let buffers: Vec<_> = (0..5).map(|i| filled(&memory, 3, i as f32)).collect();
    assert!(device.usage().heap_bytes <= 6 * UNIT_BYTES);
    let resident: Vec<u64> = buffers.iter().map(|buffer| buffer.resident_bytes() / UNIT_BYTES).collect();
    assert_eq!(resident, [0, 0, 0, 3, 3], "a buffer is there as a whole or not at all");
    buffers[1]
        .slice()
        .part(..UNIT_BYTES)
        .unwrap()
        .copy_from(&buffers[0].slice().part(4..UNIT_BYTES + 4).unwrap())
        .unwrap();
    assert_eq!((first(&buffers[0]), first(&buffers[1]), first(&buffers[2])), (0.0, 0.0, 2.0));
    let mut last = [0; 4];
    buffers[1].read(3 * UNIT_BYTES - 4, &mut last).unwrap();
    assert_eq!(f32::from_le_bytes(last), 1.0);
    let large = memory.buffer(7 * UNIT_BYTES).unwrap();
    assert!(matches!(large.fill([0; 4]), Err(RuntimeError::Managed(_))), "it has to fit whole");
    assert!(matches!(large.tensor(DataType::Float32, &[1], 0).unwrap().sum(), Err(RuntimeError::Managed(_))));
    context.check().unwrap();
    drop((buffers, large, memory, context));
    assert_eq!(device.usage().heap_bytes, 0);
}

#[test]
fn data_survives_random_use_without_tiles() {
    let folder = std::env::temp_dir().join(format!("forebay-managed-placed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let untiled = || {
        Arc::new(HostDevice::new(&HostOptions { threads: Some(2), tiled: false, ..HostOptions::default() }).unwrap())
    };
    for seed in 20..=25 {
        let (policy, spills) = (POLICIES[seed as usize % 3], seed % 2 == 0);
        let spill = options(9, policy).host_bytes(5 * UNIT_BYTES).spill_dir(folder.clone());
        let budget = if spills { spill } else { options(9, policy) };
        let device: Arc<dyn Device> = match seed {
            23.. => Arc::new(ChaosDevice::new(untiled(), seed).unwrap()),
            _ => untiled(),
        };
        let statistics = random_use(device, &budget, seed, 150).statistics();
        assert!(statistics.evictions > 5 && (statistics.spilled_bytes > 0) == spills, "seed {seed}: {statistics:?}");
    }
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn trim_reaches_memory_that_no_buffer_has() {
    let device = host();
    let host_bytes = device.usage().host_bytes;
    let context = recording(device.clone());
    let memory = ManagedMemory::new(&context, &options(4, Policy::Touch)).unwrap();
    let kept = filled(&memory, 1, 1.0);
    drop(filled(&memory, 12, 2.0));
    kept.fill(1f32.to_le_bytes()).unwrap();
    assert!(device.usage().heap_bytes == 4 * UNIT_BYTES && device.usage().host_bytes > host_bytes);
    assert!(context.trim().unwrap() >= 3 * UNIT_BYTES);
    let statistics = memory.statistics();
    assert_eq!((device.usage().heap_bytes, statistics.device_bytes), (UNIT_BYTES, UNIT_BYTES));
    assert_eq!(device.usage().host_bytes - host_bytes, statistics.host_bytes);
    assert!(statistics.host_bytes <= UNIT_BYTES, "{statistics:?}");
    assert_eq!(first(&kept), 1.0);
    assert_eq!(first(&filled(&memory, 4, 3.0)), 3.0, "it is taken again");
}
