//! Speed of matrix products and convolutions on a Vulkan device.
//!
//! `cargo bench -p forebay-vulkan --bench kernels [-- DEVICE]` prints a line of JSON for each kernel: type, sizes, the median time of a
//! launch by the device's own clock, and GFLOP/s. `benches/gpu_peer.py` reads these lines and measures PyTorch with the same sizes. The
//! same figures are recorded.

use std::error::Error;

use forebay_base::kernel::{Activation, Convolution, Window};
use forebay_base::{Binding, Command, DataType, Kernel, Launch, MemoryId, Region, StreamId, TensorDesc};
use forebay_bench_record::{Column, Record, Table};
use forebay_device::Device;
use forebay_vulkan::{VulkanDevice, VulkanOptions, adapters};

/// The number of measured launches of each kernel, after one that is not measured: on a GPU, and on a CPU that acts as one.
const RUNS: [usize; 2] = [9, 3];

/// Products m x k x n: on a GPU, and on a CPU that acts as one.
const PRODUCTS: [&[[u64; 3]]; 2] = [
    &[[4096, 4096, 4096], [8192, 8192, 8192], [2048, 768, 3072], [64, 4096, 4096]],
    &[[512, 512, 512], [256, 768, 3072], [64, 1024, 1024]],
];
/// Convolutions with padding that keeps sizes: x and w.
const CONVOLUTIONS: [&[(&[u64], &[u64])]; 2] = [
    &[
        (&[1, 16, 192, 224, 192], &[16, 16, 3, 3, 3]),
        (&[1, 64, 48, 56, 48], &[64, 64, 3, 3, 3]),
        (&[64, 64, 56, 56], &[64, 64, 3, 3]),
        (&[64, 256, 14, 14], &[256, 256, 3, 3]),
    ],
    &[(&[1, 16, 48, 56, 48], &[16, 16, 3, 3, 3]), (&[8, 64, 28, 28], &[64, 64, 3, 3])],
];

struct Machine {
    device: VulkanDevice,
    stream: StreamId,
    runs: usize,
}

impl Machine {
    /// The median time of a launch in seconds.
    fn seconds(&self, kernel: &Kernel, reads: &[TensorDesc], write: &TensorDesc) -> Result<f64, Box<dyn Error>> {
        let mut memories: Vec<MemoryId> = Vec::new();
        let mut place = |size_bytes: u64| -> Result<Region, Box<dyn Error>> {
            let memory = self.device.create_placed(size_bytes)?;
            memories.push(memory);
            let region = Region::new(memory, 0, size_bytes);
            let pattern = 0.5f32.to_le_bytes();
            self.device.submit(&[Command::Fill { stream: self.stream, region, pattern }])?;
            Ok(region)
        };
        let mut bind = |desc: &TensorDesc| -> Result<Binding, Box<dyn Error>> {
            Ok(Binding { region: place(desc.total_size_bytes())?, desc: desc.clone() })
        };
        let reads_bound = reads.iter().map(&mut bind).collect::<Result<Vec<_>, _>>()?;
        let writes = vec![bind(write)?];
        let workspace_bytes = self.device.workspace_bytes(kernel, reads, std::slice::from_ref(write))?;
        let workspace = (workspace_bytes > 0).then(|| place(workspace_bytes)).transpose()?;
        let launch = Launch { kernel: kernel.clone(), reads: reads_bound, writes, workspace, label: 0 };
        let command = Command::Launch { stream: self.stream, launch: Box::new(launch) };
        let barrier = Command::Barrier { stream: self.stream };
        let run = |count: usize| -> Result<(), Box<dyn Error>> {
            let pairs = (0..count).flat_map(|_| [barrier.clone(), command.clone()]);
            self.device.submit(&pairs.collect::<Vec<_>>())?;
            Ok(self.device.synchronize(self.stream)?)
        };
        run(1)?;
        self.device.set_trace(true);
        run(self.runs)?;
        self.device.set_trace(false);
        let mut times: Vec<f64> =
            self.device.take_trace().iter().map(|record| (record.end - record.start).as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        memories.into_iter().for_each(|memory| self.device.destroy_memory(memory));
        Ok(times[times.len() / 2])
    }
}

/// Types of the operands.
const TYPES: [DataType; 3] = [DataType::Float32, DataType::BFloat16, DataType::Float16];

fn main() -> Result<(), Box<dyn Error>> {
    let given = forebay_bench_record::arguments()?;
    let asked = given.words.iter().find(|argument| !argument.starts_with("--"));
    let asked = asked.map(|name| name.strip_prefix("vulkan:").unwrap_or(name)).filter(|&name| name != "vulkan");
    let device = VulkanDevice::open(&VulkanOptions { device: asked.map(str::to_owned), ..VulkanOptions::default() })?;
    let name = device.limits().name.clone();
    let adapter = adapters()?.into_iter().find(|adapter| name.contains(&adapter.name));
    let is_cpu = adapter.as_ref().is_some_and(|adapter| adapter.kind == "CPU");
    let which = usize::from(is_cpu);
    let machine = Machine { stream: device.create_stream("bench", 0)?, device, runs: RUNS[which] };
    let columns = [
        Column::text("kernel"),
        Column::text("type"),
        Column::text("sizes"),
        Column::number("time", "ms", 4).of("median"),
        Column::number("speed", "GFLOP/s", 1).of("median"),
    ];
    let mut table = Table::new("kernels", columns);
    let mut refused = 0;
    for data_type in TYPES {
        let products = products(&mut table, &machine, data_type, PRODUCTS[which]);
        let convolutions = convolutions(&mut table, &machine, data_type, CONVOLUTIONS[which]);
        for (family, done) in [("products", products), ("convolutions", convolutions)] {
            if let Err(error) = done {
                println!("{family} of {data_type} cannot be measured: {error}");
                refused += 1;
            }
        }
    }
    let what = "Products and convolutions of a Vulkan device";
    let mut record = Record::new("gpu-kernels", what, "cargo bench -p forebay-vulkan --bench kernels --", &given.words);
    if let Some(described) = &mut record.machine {
        described.gpu = Some(name);
        described.driver = adapter.map(|adapter| adapter.driver);
    }
    record.under(format!("{} launches of each", RUNS[which])).with(table).save(given.output.as_deref())?;
    match refused {
        0 => Ok(()),
        _ => Err(format!("{refused} families of kernels could not be measured").into()),
    }
}

fn products(table: &mut Table, machine: &Machine, data_type: DataType, all: &[[u64; 3]]) -> Result<(), Box<dyn Error>> {
    let desc = |sizes: &[u64]| TensorDesc::packed(data_type, sizes);
    for &[m, k, n] in all {
        let kernel = Kernel::product(false, false);
        let seconds = machine.seconds(&kernel, &[desc(&[m, k])?, desc(&[k, n])?], &desc(&[m, n])?)?;
        let sizes = format!(r#""sizes":[{m},{k},{n}]"#);
        print(table, "matmul", data_type, &sizes, seconds, 2.0 * (m * k * n) as f64);
    }
    Ok(())
}

/// Prints a line and adds the corresponding row.
fn print(table: &mut Table, kernel: &str, data_type: DataType, sizes: &str, seconds: f64, flops: f64) {
    let (milliseconds, gflops) = (seconds * 1e3, flops / seconds / 1e9);
    println!(r#"{{"kernel":"{kernel}","type":"{data_type}",{sizes},"ms":{milliseconds:.4},"gflops":{gflops:.1}}}"#);
    let sizes = sizes.replace('"', "");
    table.push([kernel.into(), data_type.to_string().into(), sizes.into(), milliseconds.into(), gflops.into()]);
}

fn convolutions(
    table: &mut Table,
    machine: &Machine,
    data_type: DataType,
    all: &[(&[u64], &[u64])],
) -> Result<(), Box<dyn Error>> {
    let desc = |sizes: &[u64]| TensorDesc::packed(data_type, sizes);
    let activation = Activation::None;
    for &(x, w) in all {
        let of = |value: u64| vec![value; x.len() - 2];
        let window = Window { kernel: of(3), strides: of(1), dilations: of(1), pads_begin: of(1), pads_end: of(1) };
        let convolution = Convolution { window, groups: 1 };
        let y: Vec<u64> = [&[x[0], w[0]], &x[2..]].concat();
        let flops = 2.0 * y.iter().product::<u64>() as f64 * w[1..].iter().product::<u64>() as f64;
        let (x_desc, w_desc, y_desc) = (desc(x)?, desc(w)?, desc(&y)?);
        let forward = Kernel::Convolution { convolution: convolution.clone(), activation };
        let data = Kernel::ConvolutionDataGradient { convolution: convolution.clone(), activation };
        let weights = Kernel::ConvolutionWeightGradient { convolution };
        for (name, kernel, reads, write) in [
            ("convolution", forward, [x_desc.clone(), w_desc.clone()], y_desc.clone()),
            ("convolution data gradient", data, [y_desc.clone(), w_desc.clone()], x_desc.clone()),
            ("convolution weight gradient", weights, [x_desc.clone(), y_desc.clone()], w_desc.clone()),
        ] {
            let seconds = machine.seconds(&kernel, &reads, &write)?;
            print(table, name, data_type, &format!(r#""x":{x:?},"w":{w:?}"#), seconds, flops);
        }
    }
    Ok(())
}
