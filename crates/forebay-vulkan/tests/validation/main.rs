//! The messages of the Khronos validation layer: none if the barriers are present, and some for every kernel if one is left out, so that
//! its silence is meaningful.
//!
//! Every operand that a kernel reads is filled before the launch, and every one that it writes is read afterwards. Two launches that write
//! the same bytes are a hazard that the layer does not report (it cannot distinguish this from an update), but the race checker does.

use forebay_base::kernel::samples::{self, Sample};
use forebay_base::kernel::{KernelKind, ReduceOp, UnaryOp};
use forebay_base::{Binding, Command, DataType, Kernel, Launch, MemoryId, Region, StreamId, TensorDesc};
use forebay_device::{Device, DeviceError};
use forebay_testing::parts::skipped;
use forebay_vulkan::{VulkanDevice, VulkanOptions};

/// The number of bytes between operands.
const APART: u64 = 256;

struct Bench {
    device: VulkanDevice,
    stream: StreamId,
}

/// A device under validation, if both are available.
///
/// # Panics
/// If they are not although `FOREBAY_REQUIRE` names vulkan.
fn bench() -> Option<Bench> {
    let options = VulkanOptions { validate: true, cache: None, ..VulkanOptions::default() };
    let open = VulkanDevice::open(&options).and_then(|device| {
        let stream = device.create_stream("validation", 0)?;
        Ok(Bench { device, stream })
    });
    match open {
        Ok(bench) => Some(bench),
        Err(error) => {
            skipped("vulkan", error);
            None
        }
    }
}

/// A sample with bytes for its operands, one after the other.
struct Bound<'a> {
    bench: &'a Bench,
    memory: MemoryId,
    launch: Launch,
    /// Where a reader of an operand can write.
    read_offset_bytes: u64,
}

impl<'a> Bound<'a> {
    fn new(bench: &'a Bench, sample: &Sample) -> Bound<'a> {
        let device = &bench.device;
        let workspace_bytes = device.workspace_bytes(&sample.kernel, &sample.reads, &sample.writes);
        let workspace_bytes = workspace_bytes.unwrap_or_else(|error| panic!("{error}"));
        let descs: Vec<&TensorDesc> = sample.reads.iter().chain(&sample.writes).collect();
        let sizes = descs.iter().map(|desc| desc.total_size_bytes()).chain([workspace_bytes]);
        let mut end = 0;
        let offsets: Vec<u64> = sizes
            .map(|size| {
                let start = end;
                end = (start + size).next_multiple_of(APART);
                start
            })
            .collect();
        let largest = descs.iter().map(|desc| desc.total_size_bytes()).max().unwrap_or(0);
        let memory = device.create_placed(end + largest).unwrap();
        let bindings: Vec<Binding> = descs
            .iter()
            .zip(&offsets)
            .map(|(desc, &offset)| Binding {
                region: Region::new(memory, offset, desc.total_size_bytes()),
                desc: (*desc).clone(),
            })
            .collect();
        let (reads, writes) = bindings.split_at(sample.reads.len());
        let workspace = (workspace_bytes > 0).then(|| Region::new(memory, offsets[descs.len()], workspace_bytes));
        let (kernel, reads, writes) = (sample.kernel.clone(), reads.to_vec(), writes.to_vec());
        let launch = Launch { kernel, reads, writes, workspace, label: 0 };
        Bound { bench, memory, launch, read_offset_bytes: end }
    }

    fn launch(&self) -> Command {
        Command::Launch { stream: self.bench.stream, launch: Box::new(self.launch.clone()) }
    }

    /// Whether a barrier within the launch can separate its use of an operand from the commands before or after the launch. Batch
    /// normalization first computes sums if it keeps them in a workspace, and uses the operands with one element per channel after that.
    fn is_behind_a_barrier(&self, operand: &Binding) -> bool {
        let sums_first = [KernelKind::BatchNormalizationTraining, KernelKind::BatchNormalizationGradient]
            .contains(&self.launch.kernel.facts().kind);
        sums_first && self.launch.workspace.is_some() && operand.desc.sizes().len() == 1
    }

    /// A launch that reads a region, whatever it contains.
    fn reader(&self, region: Region) -> Command {
        let desc = TensorDesc::packed(DataType::Float32, &[region.range.len() / 4]).unwrap();
        let target = Region::new(self.memory, self.read_offset_bytes, region.range.len());
        let [read, write] = [region, target].map(|region| Binding { region, desc: desc.clone() });
        let kernel = Kernel::Unary(UnaryOp::Relu);
        let launch = Launch { kernel, reads: vec![read], writes: vec![write], workspace: None, label: 1 };
        Command::Launch { stream: self.bench.stream, launch: Box::new(launch) }
    }

    fn fill(&self, region: Region) -> Command {
        Command::Fill { stream: self.bench.stream, region, pattern: [0; 4] }
    }

    /// The layer's messages about two commands, with or without a barrier between them. What comes before and after is ordered.
    fn messages(&self, first: Command, second: Command, barrier: bool) -> Vec<String> {
        let stream = self.bench.stream;
        let between = barrier.then_some(Command::Barrier { stream });
        let commands: Vec<Command> =
            [Command::Barrier { stream }, first].into_iter().chain(between).chain([second]).collect();
        let submitted = self.bench.device.submit(&commands);
        let outcome = submitted.and_then(|()| self.bench.device.synchronize(stream));
        let messages = self.bench.device.take_messages();
        match outcome {
            Ok(()) => assert!(messages.is_empty(), "messages are failures"),
            Err(DeviceError::Lost { reason }) => assert!(reason.contains("validation"), "{reason}"),
            Err(error) => panic!("{error}"),
        }
        // Work that was not waited for because of the failure is finished before anything else is tried.
        self.bench.device.synchronize(stream).unwrap();
        messages
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        self.bench.device.destroy_memory(self.memory);
    }
}

#[test]
fn the_layer_sees_every_kernels_reads_and_writes_and_says_nothing_where_there_are_barriers() {
    let Some(bench) = bench() else { return };
    let all: Vec<Sample> = samples::on_devices();
    judge(&bench, &all);
}

#[test]
fn the_layer_sees_operands_of_16_bits_as_well() {
    let Some(bench) = bench() else { return };
    judge(&bench, &samples::of_sixteen_bits());
}

/// Asserts that the layer reports nothing for samples between barriers, and something for each operand of each sample without one.
///
/// # Panics
/// If it does not.
fn judge(bench: &Bench, samples: &[Sample]) {
    let mut unseen = Vec::new();
    for sample in samples {
        let bound = Bound::new(bench, sample);
        let name = sample.name();
        let fills = bound.launch.reads.iter().enumerate().map(|(index, binding)| {
            (
                bound.fill(binding.region),
                bound.launch(),
                format!("{name} after a fill of what it reads as number {index}"),
                binding.clone(),
            )
        });
        let readers = bound.launch.writes.iter().enumerate().map(|(index, binding)| {
            let what = format!("a reader of what {name} writes as number {index}");
            (bound.launch(), bound.reader(binding.region), what, binding.clone())
        });
        for (first, second, what, operand) in fills.chain(readers) {
            let silent = bound.messages(first.clone(), second.clone(), true);
            assert!(silent.is_empty(), "{what}, with a barrier: {silent:?}");
            let said = bound.messages(first, second, false);
            let hazard = said.iter().any(|message| message.contains("SYNC-HAZARD"));
            if !hazard && !bound.is_behind_a_barrier(&operand) {
                unseen.push(format!("{what}: {said:?}"));
            }
        }
    }
    assert!(unseen.is_empty(), "without a barrier the layer says nothing of {unseen:#?}");
}

/// Dispatches that no barrier separates count their workgroups in words of their own, whatever their number.
#[test]
fn launches_that_run_at_once_do_not_share_counters() {
    let Some(Bench { device, stream }) = bench() else { return };
    const LAUNCHES: u64 = 5000;
    let [x, y] = [1 << 15, 1].map(|size| TensorDesc::packed(DataType::Float32, &[1, size]).unwrap());
    let kernel = Kernel::Reduce { op: ReduceOp::Max, axes: vec![1] };
    let [reads, writes] = [[x.clone()], [y.clone()]];
    let workspace_bytes = device.workspace_bytes(&kernel, &reads, &writes).unwrap();
    assert!(workspace_bytes > 0, "several workgroups per launch");
    let (result_bytes, x_bytes) = (APART + workspace_bytes.next_multiple_of(APART), x.total_size_bytes());
    let memory = device.create_placed(x_bytes + LAUNCHES * result_bytes).unwrap();
    let block = device.create_host_block(LAUNCHES * result_bytes).unwrap();
    let (operand, results) = (Region::new(memory, 0, x_bytes), Region::new(memory, x_bytes, LAUNCHES * result_bytes));
    let bind = |region, desc: &TensorDesc| vec![Binding { region, desc: desc.clone() }];
    let launch = |number: u64| {
        let start = x_bytes + number * result_bytes;
        let writes = bind(Region::new(memory, start, y.total_size_bytes()), &y);
        let workspace = Some(Region::new(memory, start + APART, workspace_bytes));
        let launch = Launch { kernel: kernel.clone(), reads: bind(operand, &x), writes, workspace, label: 0 };
        Command::Launch { stream, launch: Box::new(launch) }
    };
    let mut commands = vec![
        Command::Fill { stream, region: operand, pattern: 1f32.to_ne_bytes() },
        Command::Fill { stream, region: results, pattern: [0; 4] },
        Command::Barrier { stream },
    ];
    commands.extend((0..LAUNCHES).map(launch));
    let on_host = Region::new(block, 0, LAUNCHES * result_bytes);
    commands.extend([Command::Barrier { stream }, Command::Copy { stream, from: results, to: on_host }]);
    device.submit(&commands).and_then(|()| device.synchronize(stream)).unwrap();
    let mut found = vec![0; (LAUNCHES * result_bytes) as usize];
    device.read_host(on_host, &mut found);
    let wrong = found.chunks(result_bytes as usize).position(|result| result[..4] != 1f32.to_ne_bytes());
    assert_eq!(wrong, None);
}
