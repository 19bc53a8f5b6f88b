//! Single launches through the public device, as a plan's launches are.

use std::error::Error;
use std::time::{Duration, Instant};

use forebay_base::{Binding, Command, DataType, Kernel, Launch, MemoryId, Region, StreamId, TensorDesc};
use forebay_device::Device;
use forebay_device::host::{HostDevice, HostOptions};

/// Repetitions of a measurement end after this time, or this number.
const TIME_MAX: Duration = Duration::from_millis(400);
const RUNS_MAX: usize = 40;

/// A kernel with its operands.
pub struct Run {
    pub kernel: Kernel,
    pub reads: Vec<TensorDesc>,
    pub writes: Vec<TensorDesc>,
}

/// A device with a stream.
pub struct Machine {
    device: HostDevice,
    stream: StreamId,
}

impl Machine {
    /// A host device with this many threads, or as many as the machine runs at once.
    pub fn new(threads: Option<usize>) -> Result<Machine, Box<dyn Error>> {
        let device = HostDevice::new(&HostOptions { threads, ..HostOptions::default() })?;
        let stream = device.create_stream("bench", 0)?;
        Ok(Machine { device, stream })
    }

    fn submit(&self, command: Command) -> Result<(), Box<dyn Error>> {
        self.device.submit(&[command])?;
        Ok(self.device.synchronize(self.stream)?)
    }

    /// The best time of a kernel.
    pub fn time(&self, run: &Run) -> Result<Duration, Box<dyn Error>> {
        let Run { kernel, reads, writes } = run;
        let mut memories: Vec<MemoryId> = Vec::new();
        let mut place = |size_bytes: u64| -> Result<Region, Box<dyn Error>> {
            memories.push(self.device.create_placed(size_bytes)?);
            let region = Region::new(memories[memories.len() - 1], 0, size_bytes);
            self.submit(Command::Fill { stream: self.stream, region, pattern: 0.5f32.to_le_bytes() })?;
            Ok(region)
        };
        let mut bind = |descs: &[TensorDesc]| -> Result<Vec<Binding>, Box<dyn Error>> {
            let bound = |desc: &TensorDesc| Ok(Binding { region: place(desc.total_size_bytes())?, desc: desc.clone() });
            descs.iter().map(bound).collect()
        };
        let (read_bindings, write_bindings) = (bind(reads)?, bind(writes)?);
        let workspace_bytes = self.device.workspace_bytes(kernel, reads, writes)?;
        let workspace = (workspace_bytes > 0).then(|| place(workspace_bytes)).transpose()?;
        let launch =
            Launch { kernel: kernel.clone(), reads: read_bindings, writes: write_bindings, workspace, label: 0 };
        let mut best = Duration::MAX;
        let begin = Instant::now();
        for number in 0..RUNS_MAX {
            if number >= 3 && begin.elapsed() > TIME_MAX {
                break;
            }
            let start = Instant::now();
            self.submit(Command::Launch { stream: self.stream, launch: Box::new(launch.clone()) })?;
            best = best.min(start.elapsed());
        }
        for memory in memories {
            self.device.destroy_memory(memory);
        }
        Ok(best)
    }
}

/// Packed float32 of these sizes.
#[allow(dead_code, reason = "not every bench uses it")]
pub fn float(sizes: &[u64]) -> Result<TensorDesc, Box<dyn Error>> {
    Ok(TensorDesc::packed(DataType::Float32, sizes)?)
}
