//! Runs one launch on two devices, whose results must agree.

use std::sync::OnceLock;

use forebay_base::{Binding, Command, DataType, Kernel, Launch, Region, StreamId, TensorDesc, rounded_to_odd};
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::{Device, DeviceError};
pub use forebay_testing::Random;
use forebay_testing::parts::skipped;
use forebay_vulkan::{VulkanDevice, VulkanOptions};
use half::{bf16, f16};

/// A tensor: its descriptor, and its elements in the order in which they are in memory, including those in gaps.
pub type Tensor = (TensorDesc, Vec<f64>);

/// The value of bytes before a kernel writes them, and afterwards of those that it must not touch.
const UNWRITTEN: u8 = 0xa5;
/// The number of bytes after each operand that must not be touched.
const GUARD_BYTES: u64 = 64;
/// The sizes and alignments of bindings on the devices on which most operands are larger than a binding. The sizes are 0, so that all
/// operands are accessed through their addresses, and enough that operands are cut into parts if possible. If an alignment is given, it is
/// larger than that of operands, so that parts are also accessed through their addresses, unless they are aligned by chance.
const SMALL_BINDINGS: [(u64, Option<u64>); 3] = [(0, None), (1024, None), (1024, Some(256))];

/// A packed descriptor.
pub fn packed(data_type: DataType, sizes: &[u64]) -> TensorDesc {
    TensorDesc::packed(data_type, sizes).unwrap()
}

/// A strided descriptor.
pub fn strided(data_type: DataType, sizes: &[u64], strides: &[u64]) -> TensorDesc {
    TensorDesc::strided(data_type, sizes, strides).unwrap()
}

/// A device with a stream.
pub struct Machine {
    pub device: Box<dyn Device>,
    pub stream: StreamId,
    /// Whether its sums are pairs of float32 where those of other devices are float64.
    sums_are_pairs: bool,
}

impl Machine {
    fn new(device: Box<dyn Device>, sums_are_pairs: bool) -> Machine {
        let stream = device.create_stream("kernels", 0).unwrap();
        Machine { device, stream, sums_are_pairs }
    }

    /// Whether it refuses a launch because elements are float64, which it does not support.
    pub fn refuses_float64(&self, kernel: &Kernel, reads: &[Tensor], writes: &[TensorDesc]) -> bool {
        let read_descs: Vec<TensorDesc> = reads.iter().map(|(desc, _)| desc.clone()).collect();
        if !self.sums_are_pairs || !computes_with_float64(kernel, &read_descs, writes) {
            return false;
        }
        match self.device.workspace_bytes(kernel, &read_descs, writes) {
            Err(DeviceError::Unsupported { reason, .. }) => reason.contains("float64"),
            _ => false,
        }
    }
}

/// Whether elements that are not sums are float64.
fn computes_with_float64(kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc]) -> bool {
    let (reads, writes) = match kernel {
        Kernel::AddSums { .. } => (&[][..], &[][..]),
        Kernel::Sums { .. } => (reads, &[][..]),
        _ if takes_sums(kernel) => (&[][..], writes),
        _ => (reads, writes),
    };
    reads.iter().chain(writes).any(|desc| desc.data_type() == DataType::Float64)
}

/// Whether the float64 operands of a kernel can be sums.
fn takes_sums(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Sums { .. }
            | Kernel::AddSums { .. }
            | Kernel::FromSums { .. }
            | Kernel::BatchNormalizationGradient { .. }
            | Kernel::SoftmaxCrossEntropyGradient { .. }
            | Kernel::MeanSquaredErrorGradient
    )
}

/// Replaces float64 by pairs of float32, with the larger one first.
fn to_pairs(bytes: &mut [u8]) {
    for word in bytes.chunks_exact_mut(8) {
        let value = f64::from_le_bytes(word.try_into().unwrap());
        let high = value as f32;
        let low = if high.is_finite() { (value - f64::from(high)) as f32 } else { 0.0 };
        word.copy_from_slice(&[high.to_le_bytes(), low.to_le_bytes()].concat());
    }
}

/// Replaces pairs of float32 by float64.
fn from_pairs(bytes: &mut [u8]) {
    for word in bytes.chunks_exact_mut(8) {
        let (high, low) = word.split_at(4);
        let [high, low] = [high, low].map(|part| f64::from(f32::from_le_bytes(part.try_into().unwrap())));
        word.copy_from_slice(&(high + low).to_le_bytes());
    }
}

/// The reference device.
pub fn host() -> &'static Machine {
    static HOST: OnceLock<Machine> = OnceLock::new();
    HOST.get_or_init(another_host)
}

/// A separate host device for the caller, which can fail: a device that fails stays failed.
pub fn another_host() -> Machine {
    let options = HostOptions { threads: Some(1), ..HostOptions::default() };
    Machine::new(Box::new(HostDevice::new(&options).unwrap()), false)
}

/// The first Vulkan device, if there is one.
///
/// # Panics
/// If there is none although `FOREBAY_REQUIRE` names vulkan.
pub fn vulkan() -> Option<&'static Machine> {
    static VULKAN: OnceLock<Option<Machine>> = OnceLock::new();
    VULKAN.get_or_init(|| open(VulkanOptions::default()).map_err(|reason| skipped("vulkan", &reason)).ok()).as_ref()
}

/// The same device with small bindings, as [`SMALL_BINDINGS`] says.
fn with_small_bindings() -> &'static [Machine; 3] {
    static MACHINES: OnceLock<[Machine; 3]> = OnceLock::new();
    MACHINES.get_or_init(|| {
        SMALL_BINDINGS.map(|(bytes, binding_alignment_bytes)| {
            let binding_bytes_max = Some(bytes);
            open(VulkanOptions { binding_bytes_max, binding_alignment_bytes, ..VulkanOptions::default() }).unwrap()
        })
    })
}

/// The same device without the features that not every device has.
pub fn portable() -> Option<&'static Machine> {
    static PORTABLE: OnceLock<Option<Machine>> = OnceLock::new();
    let portable = || open(VulkanOptions { portable: true, ..VulkanOptions::default() });
    vulkan()?;
    PORTABLE.get_or_init(|| portable().ok()).as_ref()
}

fn open(options: VulkanOptions) -> Result<Machine, String> {
    match VulkanDevice::open(&options) {
        Ok(device) => {
            let sums_are_pairs = !device.target().float64;
            Ok(Machine::new(Box::new(device), sums_are_pairs))
        }
        // There is no Vulkan, or no device.
        Err(DeviceError::Setting { reason }) => Err(reason),
        Err(error) => panic!("a Vulkan device that is there cannot be opened: {error}"),
    }
}

/// The largest difference between the roundings of nearly equal numbers, relative to them: one unit in the last place of 16 bits.
pub fn rounding(data_type: DataType) -> f64 {
    match data_type {
        DataType::Float16 => 1.0 / 1024.0,
        DataType::BFloat16 => 1.0 / 128.0,
        _ => 0.0,
    }
}

/// Runs a launch on the Vulkan device and asserts that its results agree with the host's (see [`check`]), and that they have the same bits
/// if bindings are too small for the operands. The seed selects one kind of small bindings. If the device lacks float64 and elements are
/// float64, it must say so.
pub fn compare(seed: u64, kernel: &Kernel, reads: &[Tensor], writes: &[TensorDesc], tolerance: f64) {
    let Some(machine) = vulkan() else { return };
    if machine.refuses_float64(kernel, reads, writes) {
        return;
    }
    let outputs = check(machine, seed, kernel, reads, writes, tolerance);
    let kind = seed as usize % SMALL_BINDINGS.len();
    let (bytes, alignment) = SMALL_BINDINGS[kind];
    let others = run(&with_small_bindings()[kind], kernel, reads, writes, &[])
        .unwrap_or_else(|error| panic!("bindings of {bytes} bytes, seed {seed}: {error} ({kernel})"));
    let output = differing(writes, &outputs, &others);
    assert_eq!(
        output, None,
        "an output differs with bindings of {bytes} bytes at {alignment:?}: seed {seed}, {kernel}"
    );
}

/// Asserts that every element that a launch writes on `machine` is within `tolerance` x (1 + magnitude) of the host's, or NaN if that is
/// NaN, and that all runs give the same bits, repeated and in place wherever the kernel allows it. Returns what the launch writes.
pub fn check(
    machine: &Machine,
    seed: u64,
    kernel: &Kernel,
    reads: &[Tensor],
    writes: &[TensorDesc],
    tolerance: f64,
) -> Vec<Vec<u8>> {
    let named = |what: &str, device: &Machine, pairs: &[(usize, usize)]| {
        run(device, kernel, reads, writes, pairs)
            .unwrap_or_else(|error| panic!("{what}, seed {seed}: {error} ({kernel})"))
    };
    let expected = named("the host", host(), &[]);
    let outputs = named("the device", machine, &[]);
    agree(kernel, seed, writes, &outputs, &expected, tolerance);
    assert!(outputs == named("the device", machine, &[]), "a repetition differs in bits: seed {seed}, {kernel}");
    for pairs in in_place(kernel, reads, writes) {
        let output = differing(writes, &outputs, &named("the device", machine, &pairs));
        assert_eq!(output, None, "an output differs in place {pairs:?}: seed {seed}, {kernel}");
    }
    outputs
}

/// The first output with an element that has different bits. The bits of a NaN are up to the compiler.
fn differing(writes: &[TensorDesc], outputs: &[Vec<u8>], others: &[Vec<u8>]) -> Option<usize> {
    (0..writes.len()).find(|&output| {
        let ([own, other], desc) = ([outputs, others].map(|all| &all[output]), &writes[output]);
        let is_none = |bytes: &[u8], at| element(desc, bytes, at).is_nan();
        elements(desc)
            .any(|(_, at)| word(desc, own, at) != word(desc, other, at) && !(is_none(own, at) && is_none(other, at)))
    })
}

/// Asserts that the bytes of each output hold elements that agree.
pub fn agree(
    kernel: &Kernel,
    seed: u64,
    writes: &[TensorDesc],
    outputs: &[Vec<u8>],
    expected: &[Vec<u8>],
    tolerance: f64,
) {
    for (number, desc) in writes.iter().enumerate() {
        for (index, at) in elements(desc) {
            let (value, expected) = (element(desc, &outputs[number], at), element(desc, &expected[number], at));
            let same = value == expected || (value.is_nan() && expected.is_nan());
            assert!(
                same || (value - expected).abs() <= tolerance * (1.0 + expected.abs()),
                "output {number} of {} differs at {index:?}: {value:?}, the host has {expected:?} (seed {seed}, {desc}, \
                 {kernel})",
                kernel.name()
            );
        }
    }
}

/// The sets of pairs (write, read) that can share their bytes: each pair alone, and all of them if they do not exclude each other.
fn in_place(kernel: &Kernel, reads: &[Tensor], writes: &[TensorDesc]) -> Vec<Vec<(usize, usize)>> {
    let possible = |&&(write, read): &&(usize, usize)| match (writes.get(write), reads.get(read)) {
        (Some(target), Some((source, _))) => {
            source.sizes() == target.sizes()
                && source.effective_strides() == target.effective_strides()
                && source.data_type().size_bytes() == target.data_type().size_bytes()
        }
        _ => false,
    };
    let pairs: Vec<(usize, usize)> = kernel.in_place().iter().filter(possible).copied().collect();
    let mut sets: Vec<_> = pairs.iter().map(|&pair| vec![pair]).collect();
    if pairs.len() > 1 && pairs.windows(2).all(|two| two[0].0 < two[1].0) {
        sets.push(pairs);
    }
    sets
}

/// Returns what a launch writes, with the pairs (write, read) in the same bytes.
///
/// # Errors
/// If the device cannot run the launch.
///
/// # Panics
/// If the launch touches bytes that are not its own.
pub fn run(
    machine: &Machine,
    kernel: &Kernel,
    reads: &[Tensor],
    writes: &[TensorDesc],
    in_place: &[(usize, usize)],
) -> Result<Vec<Vec<u8>>, DeviceError> {
    let (device, stream) = (&*machine.device, machine.stream);
    let alignment_bytes = device.limits().offset_alignment_bytes;
    let read_descs: Vec<TensorDesc> = reads.iter().map(|(desc, _)| desc.clone()).collect();
    let workspace_bytes = device.workspace_bytes(kernel, &read_descs, writes)?;
    let mut content = Vec::new();
    // Every operand starts at an odd multiple of the alignment, so that none is aligned by chance.
    let mut place = |bytes: &[u8]| {
        let start = (content.len() as u64).next_multiple_of(2 * alignment_bytes) + alignment_bytes;
        content.resize(start as usize, UNWRITTEN);
        content.extend_from_slice(bytes);
        content.resize(content.len() + GUARD_BYTES as usize, UNWRITTEN);
        start
    };
    let are_pairs = |desc: &TensorDesc| {
        let may_be = machine.sums_are_pairs && takes_sums(kernel);
        may_be && desc.data_type() == DataType::Float64
    };
    let given = |(desc, values): &Tensor| {
        let mut bytes = bytes_of(desc, values);
        if are_pairs(desc) {
            to_pairs(&mut bytes);
        }
        bytes
    };
    let read_starts: Vec<u64> = reads.iter().map(|tensor| place(&given(tensor))).collect();
    let unwritten = |desc: &TensorDesc| vec![UNWRITTEN; desc.total_size_bytes() as usize];
    let write_starts: Vec<u64> = writes
        .iter()
        .enumerate()
        .map(|(write, desc)| match in_place.iter().find(|pair| pair.0 == write) {
            Some(&(_, read)) => read_starts[read],
            None => place(&unwritten(desc)),
        })
        .collect();
    let workspace_start = (content.len() as u64).next_multiple_of(256);
    let size_bytes = content.len() as u64;
    let memory = device.create_placed(workspace_start + workspace_bytes.max(1))?;
    let block = device.create_host_block(size_bytes)?;
    let [on_device, on_host] = [memory, block].map(|memory| Region::new(memory, 0, size_bytes));
    device.write_host(on_host, &content);
    let bind = |desc: &TensorDesc, start: u64| Binding {
        region: Region::new(memory, start, desc.total_size_bytes()),
        desc: desc.clone(),
    };
    let launch = Launch {
        kernel: kernel.clone(),
        reads: read_descs.iter().zip(&read_starts).map(|(desc, &start)| bind(desc, start)).collect(),
        writes: writes.iter().zip(&write_starts).map(|(desc, &start)| bind(desc, start)).collect(),
        workspace: (workspace_bytes > 0).then(|| Region::new(memory, workspace_start, workspace_bytes)),
        label: 0,
    };
    let barrier = Command::Barrier { stream };
    device.submit(&[
        Command::Copy { stream, from: on_host, to: on_device },
        barrier.clone(),
        Command::Launch { stream, launch: Box::new(launch) },
        barrier,
        Command::Copy { stream, from: on_device, to: on_host },
    ])?;
    device.synchronize(stream)?;
    let mut after = vec![0; content.len()];
    device.read_host(on_host, &mut after);
    device.destroy_memory(memory);
    device.destroy_memory(block);
    let spans: Vec<(usize, &TensorDesc)> = write_starts.iter().map(|&start| start as usize).zip(writes).collect();
    check_untouched(kernel, &content, &after, &spans);
    let written = |&(start, desc): &(usize, &TensorDesc)| {
        let mut bytes = after[start..start + desc.total_size_bytes() as usize].to_vec();
        if are_pairs(desc) {
            from_pairs(&mut bytes);
        }
        bytes
    };
    Ok(spans.iter().map(written).collect())
}

/// Asserts that the bytes between the elements of the outputs, and outside the outputs, are unchanged.
fn check_untouched(kernel: &Kernel, before: &[u8], after: &[u8], spans: &[(usize, &TensorDesc)]) {
    let mut own = vec![false; before.len()];
    for &(start, desc) in spans {
        let size = desc.data_type().size_bytes() as usize;
        let mut last = 0;
        for (_, at) in elements(desc) {
            own[start + at * size..][..size].fill(true);
            last = last.max((at + 1) * size);
        }
        // A tensor's range ends at a multiple of 4 bytes.
        own[start + last..start + desc.total_size_bytes() as usize].fill(true);
    }
    let touched = (0..before.len()).find(|&i| !own[i] && before[i] != after[i]);
    if let Some(byte) = touched {
        panic!("byte {byte} is not the launch's own, and was changed; its outputs are at {spans:?} ({kernel})");
    }
}

/// The elements of a tensor in row-major order: index, and place in memory.
fn elements(desc: &TensorDesc) -> impl Iterator<Item = (Vec<u64>, usize)> + '_ {
    let strides = desc.effective_strides();
    (0..desc.element_count()).map(move |element| {
        let mut left = element;
        let mut index = vec![0; strides.len()];
        for (dimension, &size) in desc.sizes().iter().enumerate().rev() {
            index[dimension] = left % size;
            left /= size;
        }
        let at = index.iter().zip(&strides).map(|(index, stride)| index * stride).sum::<u64>();
        (index, at as usize)
    })
}

fn bytes_of(desc: &TensorDesc, values: &[f64]) -> Vec<u8> {
    let size = desc.data_type().size_bytes() as usize;
    let mut bytes: Vec<u8> = values
        .iter()
        .flat_map(|&value| bits_of(value, desc.data_type()).to_le_bytes().into_iter().take(size))
        .collect();
    let total = desc.total_size_bytes() as usize;
    assert!((total - 3..=total).contains(&bytes.len()), "{desc} has {total} bytes, {} values were given", values.len());
    bytes.resize(total, UNWRITTEN);
    bytes
}

/// The bits of a value as an element, in the low bytes of a word.
fn bits_of(value: f64, data_type: DataType) -> u64 {
    match data_type {
        DataType::Float64 => value.to_bits(),
        DataType::Float32 => (value as f32).to_bits() as u64,
        DataType::Float16 => f16::from_f32(rounded_to_odd(value)).to_bits() as u64,
        DataType::BFloat16 => bf16::from_f32(rounded_to_odd(value)).to_bits() as u64,
        DataType::UInt64 => value as u64,
        DataType::Bool => (value != 0.0) as u64,
        _ => value as i64 as u64,
    }
}

/// The bits of the element at a place.
fn word(desc: &TensorDesc, bytes: &[u8], at: usize) -> u64 {
    let size = desc.data_type().size_bytes() as usize;
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[at * size..][..size]);
    u64::from_le_bytes(word)
}

/// The element at a place.
pub fn element(desc: &TensorDesc, bytes: &[u8], at: usize) -> f64 {
    let bits = word(desc, bytes, at);
    match desc.data_type() {
        DataType::Float64 => f64::from_bits(bits),
        DataType::Float32 => f32::from_bits(bits as u32) as f64,
        DataType::Float16 => f16::from_bits(bits as u16).to_f64(),
        DataType::BFloat16 => bf16::from_bits(bits as u16).to_f64(),
        DataType::Int64 => bits as i64 as f64,
        DataType::Int32 => bits as i32 as f64,
        DataType::Int16 => bits as i16 as f64,
        DataType::Int8 => bits as i8 as f64,
        DataType::UInt64 | DataType::UInt32 | DataType::UInt16 | DataType::UInt8 | DataType::Bool => bits as f64,
        narrow => forebay_base::narrow::decode(narrow, bits as u8),
    }
}

/// Random tensors.
pub trait RandomTensors {
    /// Fills a tensor's range, including gaps: with numbers in -2..2 for floats, and with small integers for other types, of both signs if
    /// the type has them.
    fn tensor(&mut self, desc: &TensorDesc) -> Tensor;

    /// Fills a tensor's range, including gaps, with integers from `low` to `high`, for indices, labels and ties.
    fn integers(&mut self, desc: &TensorDesc, low: i64, high: i64) -> Tensor;
}

impl RandomTensors for Random {
    fn tensor(&mut self, desc: &TensorDesc) -> Tensor {
        let count = desc.total_size_bytes() / desc.data_type().size_bytes();
        let value = |random: &mut Random| match desc.data_type() {
            DataType::Bool => random.below(2) as f64,
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => random.below(100) as f64,
            data_type if data_type.is_float() => (random.word() >> 40) as f64 / (1 << 22) as f64 - 2.0,
            _ => random.below(201) as f64 - 100.0,
        };
        (desc.clone(), (0..count).map(|_| value(self)).collect())
    }

    fn integers(&mut self, desc: &TensorDesc, low: i64, high: i64) -> Tensor {
        let count = desc.total_size_bytes() / desc.data_type().size_bytes();
        let width = (high - low + 1) as u64;
        (desc.clone(), (0..count).map(|_| (low + self.below(width) as i64) as f64).collect())
    }
}
