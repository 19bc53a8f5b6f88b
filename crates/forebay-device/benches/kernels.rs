//! Speed of the host device's convolutions, max pooling, normalization, recurrent networks and matrix products at the sizes that matter.
//!
//! `cargo bench -p forebay-device [-- FILTER]` prints and records milliseconds and GFLOP/s (best of several runs) with one
//! thread and with all threads. Everything goes through the public device, as a plan's launches do.

mod launching;
mod layers;

use std::error::Error;

use forebay_base::kernel::{
    Activation, PoolOp, Recurrence, RecurrentActivation, RecurrentCell, RecurrentDirection, Window,
};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_bench_record::{Column, Record, Table};

use launching::{Machine, Run, float};
use layers::Layer;

/// A convolution of images with equal padding: name, sizes of x and w, stride, padding. The sizes determine the number of groups.
type Case = (&'static str, &'static [u64], &'static [u64], u64, u64);

/// Layers of the 3-D U-Net, of ResNet-20 at batch size 64, of inference models, and transposed convolutions (x is the larger).
const CASES: &[Case] = &[
    ("unet 1-8 at 96", &[1, 1, 96, 112, 96], &[8, 1, 3, 3, 3], 1, 1),
    ("unet 8-8 at 96", &[1, 8, 96, 112, 96], &[8, 8, 3, 3, 3], 1, 1),
    ("unet 16-8 at 96", &[1, 16, 96, 112, 96], &[8, 16, 3, 3, 3], 1, 1),
    ("unet 8-3 k1 at 96", &[1, 8, 96, 112, 96], &[3, 8, 1, 1, 1], 1, 0),
    ("unet 8-16 at 48", &[1, 8, 48, 56, 48], &[16, 8, 3, 3, 3], 1, 1),
    ("unet 16-16 at 48", &[1, 16, 48, 56, 48], &[16, 16, 3, 3, 3], 1, 1),
    ("unet 32-16 at 48", &[1, 32, 48, 56, 48], &[16, 32, 3, 3, 3], 1, 1),
    ("unet 32-32 at 24", &[1, 32, 24, 28, 24], &[32, 32, 3, 3, 3], 1, 1),
    ("unet 64-64 at 12", &[1, 64, 12, 14, 12], &[64, 64, 3, 3, 3], 1, 1),
    ("resnet 3-16 at 32", &[64, 3, 32, 32], &[16, 3, 3, 3], 1, 1),
    ("resnet 16-16 at 32", &[64, 16, 32, 32], &[16, 16, 3, 3], 1, 1),
    ("resnet 16-32 s2 at 32", &[64, 16, 32, 32], &[32, 16, 3, 3], 2, 1),
    ("resnet 16-32 k1 s2", &[64, 16, 32, 32], &[32, 16, 1, 1], 2, 0),
    ("resnet 32-32 at 16", &[64, 32, 16, 16], &[32, 32, 3, 3], 1, 1),
    ("resnet 32-64 s2 at 16", &[64, 32, 16, 16], &[64, 32, 3, 3], 2, 1),
    ("resnet 64-64 at 8", &[64, 64, 8, 8], &[64, 64, 3, 3], 1, 1),
    ("light 3-64 k7 s2", &[1, 3, 224, 224], &[64, 3, 7, 7], 2, 3),
    ("light 64-64 at 56", &[1, 64, 56, 56], &[64, 64, 3, 3], 1, 1),
    ("light 256-256 at 14", &[1, 256, 14, 14], &[256, 256, 3, 3], 1, 1),
    ("light 512-512 at 28", &[1, 512, 28, 28], &[512, 512, 3, 3], 1, 1),
    ("light 64-256 k1 at 56", &[1, 64, 56, 56], &[256, 64, 1, 1], 1, 0),
    ("light 1024-256 k1", &[1, 1024, 14, 14], &[256, 1024, 1, 1], 1, 0),
    ("light 2048-512 k1", &[1, 2048, 7, 7], &[512, 2048, 1, 1], 1, 0),
    ("light 512-512 at 7", &[1, 512, 7, 7], &[512, 512, 3, 3], 1, 1),
    ("light 512-512 s2 at 14", &[1, 512, 14, 14], &[512, 512, 3, 3], 2, 1),
    ("light 256-256 at 4", &[1, 256, 4, 4], &[256, 256, 3, 3], 1, 1),
    ("light 1280-320 k1 at 7", &[1, 320, 7, 7], &[1280, 320, 1, 1], 1, 0),
    ("small 3-64 s2 at 224", &[1, 3, 224, 224], &[64, 3, 3, 3], 2, 1),
    ("small 16-96 k1 at 112", &[1, 16, 112, 112], &[96, 16, 1, 1], 1, 0),
    ("small 32-16 k1 at 112", &[1, 32, 112, 112], &[16, 32, 1, 1], 1, 0),
    ("small 160-320 at 14", &[1, 160, 14, 14], &[320, 160, 3, 3], 1, 1),
    ("small 128-128 at 8", &[1, 128, 8, 8], &[128, 128, 3, 3], 1, 1),
    ("small 192-384 at 7", &[1, 192, 7, 7], &[384, 192, 3, 3], 1, 1),
    ("small 960-160 k1 at 7", &[1, 960, 7, 7], &[160, 960, 1, 1], 1, 0),
    ("small 256-512 s2 at 4", &[1, 256, 4, 4], &[512, 256, 3, 3], 2, 1),
    ("small 512-512 at 2", &[1, 512, 2, 2], &[512, 512, 3, 3], 1, 1),
    ("digits 16-32 at 8", &[64, 16, 8, 8], &[32, 16, 3, 3], 1, 1),
    ("digits 32-64 at 4", &[64, 32, 4, 4], &[64, 32, 3, 3], 1, 1),
    ("depthwise 96 s2 at 112", &[1, 96, 112, 112], &[96, 1, 3, 3], 2, 1),
    ("depthwise 576 s2 at 14", &[1, 576, 14, 14], &[576, 1, 3, 3], 2, 1),
    ("depthwise 960 at 7", &[1, 960, 7, 7], &[960, 1, 3, 3], 1, 1),
    ("depthwise 144 at 56", &[1, 144, 56, 56], &[144, 1, 3, 3], 1, 1),
    ("depthwise 240 k5 s2 at 28", &[1, 240, 28, 28], &[240, 1, 5, 5], 2, 2),
    ("transposed 64-32", &[1, 32, 24, 28, 24], &[64, 32, 2, 2, 2], 2, 0),
    ("transposed 32-16", &[1, 16, 48, 56, 48], &[32, 16, 2, 2, 2], 2, 0),
    ("transposed 16-8", &[1, 8, 96, 112, 96], &[16, 8, 2, 2, 2], 2, 0),
];

/// Matrix products m x k x n with the second factor transposed.
const PRODUCTS: &[(u64, u64, u64)] = &[
    (512, 512, 512),
    (64, 1024, 1024),
    (256, 768, 3072),
    (1, 25088, 4096),
    (1, 2048, 1000),
    (2, 1280, 1000),
    (4, 1280, 1000),
];

/// Max pooling: name, sizes of x, size of the window, stride, padding.
const POOLS: &[(&str, &[u64], u64, u64, u64)] = &[
    ("pool k3 s2 at 112", &[1, 64, 112, 112], 3, 2, 1),
    ("pool k3 s1 at 28", &[1, 192, 28, 28], 3, 1, 1),
    ("pool k2 s2 at 8", &[64, 32, 8, 8], 2, 2, 0),
];

/// Normalization: name, sizes of x.
const NORMALIZATIONS: &[(&str, &[u64])] = &[
    ("norm unet 8 at 96", &[1, 8, 96, 112, 96]),
    ("norm unet 32 at 24", &[1, 32, 24, 28, 24]),
    ("norm resnet 16 at 32", &[64, 16, 32, 32]),
    ("norm resnet 64 at 8", &[64, 64, 8, 8]),
];

/// Recurrent networks: name, steps, sequences, directions, units.
const RECURRENCES: &[(&str, u64, u64, u64, u64)] = &[
    ("recurrent 16 x 100 of 128", 100, 16, 1, 128),
    ("recurrent 16 x 100 of 2 x 128", 100, 16, 2, 128),
    ("recurrent 32 x 200 of 256", 200, 32, 1, 256),
    ("recurrent 1 x 64 of 256", 64, 1, 1, 256),
    ("recurrent 1 x 25 of 2 x 256", 25, 1, 2, 256),
    ("recurrent 1 x 1 of 128", 1, 1, 1, 128),
];

/// Adds a row for each kernel: the best time and the speed, with one thread and with all threads.
fn report(bench: &mut Bench, name: &str, flops: f64, runs: &[Run]) -> Result<(), Box<dyn Error>> {
    for run in runs {
        let mut row = vec![name.into(), run.kernel.name().into()];
        for machine in &bench.machines {
            let seconds = machine.time(run)?.as_secs_f64();
            row.extend([(seconds * 1e3).into(), (flops / seconds / 1e9).into()]);
        }
        bench.table.print(row);
    }
    Ok(())
}

/// The machines that take turns, and their results.
struct Bench {
    machines: [Machine; 2],
    table: Table,
}

fn convolution(bench: &mut Bench, &(name, x, w, stride, pad): &Case) -> Result<(), Box<dyn Error>> {
    let layer = Layer { x: x.to_vec(), w: w.to_vec(), stride, pad };
    report(bench, name, layer.operations(), &layer.directions()?)
}

fn pool(
    bench: &mut Bench,
    &(name, x, kernel, stride, pad): &(&'static str, &[u64], u64, u64, u64),
) -> Result<(), Box<dyn Error>> {
    let spatial = (2..x.len()).map(|d| (x[d] + 2 * pad - kernel) / stride + 1);
    let y: Vec<u64> = x[..2].iter().copied().chain(spatial).collect();
    let two = |value: u64| vec![value; x.len() - 2];
    let (pads_begin, pads_end) = (two(pad), two(pad));
    let window = Window { kernel: two(kernel), strides: two(stride), dilations: two(1), pads_begin, pads_end };
    let seen = kernel.pow(x.len() as u32 - 2) * y.iter().product::<u64>();
    let (x, y) = (float(x)?, float(&y)?);
    report(
        bench,
        name,
        seen as f64,
        &[Run { kernel: Kernel::Pool { op: PoolOp::Max, window }, reads: vec![x], writes: vec![y] }],
    )
}

/// Batch normalization with ReLU, and layer normalization over all axes but the first two.
fn normalization(bench: &mut Bench, &(name, sizes): &(&'static str, &[u64])) -> Result<(), Box<dyn Error>> {
    let (x, channel) = (float(sizes)?, float(&sizes[1..2])?);
    let (scale, rows) = (float(&sizes[2..])?, float(&sizes[..2])?);
    let (epsilon, activation, group_size) = (1e-5, Activation::Relu, 1);
    let channels = |count: usize| vec![channel.clone(); count];
    let inference = Kernel::BatchNormalization { epsilon, activation };
    let forward = Kernel::BatchNormalizationTraining { epsilon, activation, group_size };
    let gradient = Kernel::BatchNormalizationGradient { epsilon, activation, group_size };
    let layer = Kernel::LayerNormalization { axis: 2, epsilon };
    let with = |count: usize, others: Vec<TensorDesc>| [vec![x.clone(); count], others].concat();
    let run = |kernel, reads, writes| Run { kernel, reads, writes };
    let runs = [
        run(inference, with(1, channels(4)), with(1, vec![])),
        run(forward, with(1, channels(2)), with(1, channels(2))),
        run(gradient, with(2, channels(4)), with(1, channels(2))),
        run(layer, with(1, vec![scale.clone(), scale]), with(1, vec![rows.clone(), rows])),
    ];
    report(bench, name, x.element_count() as f64, &runs)
}

/// The steps of an LSTM and of a GRU.
fn recurrent(
    bench: &mut Bench,
    &(name, steps, batch, directions, units): &(&'static str, u64, u64, u64, u64),
) -> Result<(), Box<dyn Error>> {
    let activations = [RecurrentActivation::Sigmoid, RecurrentActivation::Tanh, RecurrentActivation::Tanh];
    let direction = |reverse| RecurrentDirection { reverse, activations };
    for cell in [RecurrentCell::Lstm { couples_forget: false }, RecurrentCell::Gru { resets_after: true }] {
        let directions: Vec<RecurrentDirection> = (0..directions).map(|number| direction(number == 1)).collect();
        let (count, columns) = (directions.len() as u64, cell.gates() * units);
        let state = float(&[count, batch, units])?;
        let lengths = TensorDesc::packed(DataType::Int32, &[batch])?;
        let gates = float(&[steps, batch, count, columns])?;
        let (weights, bias) = (float(&[count, columns, units])?, float(&[count, columns])?);
        let mut reads = vec![gates, weights, bias, lengths, state.clone()];
        if cell.has_cell_state() {
            reads.extend([state.clone(), float(&[count, 3 * units])?]);
        }
        let y = float(&[steps, count, batch, units])?;
        let (read_count, write_count) = cell.counts();
        assert_eq!(reads.len(), read_count);
        let mut writes = vec![state; write_count];
        writes[0] = y;
        let recurrence = Recurrence { cell, directions, clip: None, quantizes_state: false };
        let flops = 2 * steps * batch * count * columns * units;
        report(bench, name, flops as f64, &[Run { kernel: Kernel::Recurrent(recurrence), reads, writes }])?;
    }
    Ok(())
}

fn product(bench: &mut Bench, &(m, k, n): &(u64, u64, u64)) -> Result<(), Box<dyn Error>> {
    let (a, b, y) = (float(&[m, k])?, float(&[n, k])?, float(&[m, n])?);
    let kernel = Kernel::product(false, true);
    report(
        bench,
        &format!("product {m} {k} {n}"),
        (2 * m * k * n) as f64,
        &[Run { kernel, reads: vec![a, b], writes: vec![y] }],
    )
}

fn main() -> Result<(), Box<dyn Error>> {
    let given = forebay_bench_record::arguments()?;
    let filter = given.words.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let machines = [Machine::new(Some(1))?, Machine::new(None)?];
    let mut columns = vec![Column::text("case"), Column::text("kernel")];
    for threads in ["one thread", "all threads"] {
        columns.extend([Column::number(threads, "ms", 2).of("best"), Column::number(threads, "GFLOP/s", 0).of("best")]);
    }
    let mut bench = Bench { machines, table: Table::new("kernels", columns) };
    for case in CASES.iter().filter(|case| case.0.contains(&filter)) {
        convolution(&mut bench, case)?;
    }
    for case in POOLS.iter().filter(|case| case.0.contains(&filter)) {
        pool(&mut bench, case)?;
    }
    for case in NORMALIZATIONS.iter().filter(|case| case.0.contains(&filter)) {
        normalization(&mut bench, case)?;
    }
    for case in RECURRENCES.iter().filter(|case| case.0.contains(&filter)) {
        recurrent(&mut bench, case)?;
    }
    for sizes in PRODUCTS.iter().filter(|_| "product".contains(&filter)) {
        product(&mut bench, sizes)?;
    }
    let what = "Convolutions and matrix products of the host device";
    let record = Record::new("kernels", what, "cargo bench -p forebay-device --bench kernels --", &given.words);
    record.with(bench.table).save(given.output.as_deref())?;
    Ok(())
}
