//! Random programs of every kernel that can be cut.

use forebay_base::kernel::{
    Activation, AttentionOptions, BinaryOp, Convolution, PadMode, PoolOp, ProductPart, ReduceOp, Window,
};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{Buffer, BufferId, NamedOperand, Operand, Program, ProgramLaunch, Role};
use forebay_testing::Random;

#[derive(Default)]
struct Build(Program);

impl Build {
    fn tensor(&mut self, data_type: DataType, sizes: &[u64], role: Role) -> Operand {
        let desc = TensorDesc::packed(data_type, sizes).unwrap();
        let buffer = BufferId(self.0.buffers.len() as u32);
        let name = format!("b{}", buffer.0);
        self.0.buffers.push(Buffer { name: name.clone(), size_bytes: desc.total_size_bytes(), role });
        let operand = Operand { buffer, offset_bytes: 0, desc };
        if role == Role::Input {
            self.0.inputs.push(NamedOperand { name, shape: sizes.to_vec(), operand: operand.clone() });
        }
        operand
    }

    fn input(&mut self, sizes: &[u64]) -> Operand {
        self.tensor(DataType::Float32, sizes, Role::Input)
    }

    fn launch<const N: usize>(&mut self, kernel: Kernel, reads: &[&Operand], writes: [&[u64]; N]) -> [Operand; N] {
        let writes = writes.map(|sizes| self.tensor(DataType::Float32, sizes, Role::Temporary));
        let name = format!("{} {}", kernel.name(), self.0.launches.len());
        let reads = reads.iter().map(|&read| read.clone()).collect();
        self.0.launches.push(ProgramLaunch::new(name, kernel, reads, writes.to_vec()));
        writes
    }

    fn output(&mut self, operand: &Operand) {
        let name = format!("out{}", self.0.outputs.len());
        self.0.outputs.push(NamedOperand { name, shape: operand.desc.sizes().to_vec(), operand: operand.clone() });
    }
}

fn reach(window: &Window, d: usize) -> u64 {
    (window.kernel[d] - 1) * window.dilations[d] + 1
}

fn sizes_after(window: &Window, spatial: &[u64]) -> Vec<u64> {
    let size = |d: usize| (spatial[d] + 2 * window.pads_begin[d] - reach(window, d)) / window.strides[d] + 1;
    (0..3).map(size).collect()
}

fn shape(images: u64, channels: u64, spatial: &[u64]) -> Vec<u64> {
    [&[images, channels], spatial].concat()
}

/// A step through everything that can be cut: a convolution in its three directions, normalization, pooling, a loss, sums.
pub fn program(random: &mut Random, images: u64) -> Program {
    let mut build = Build::default();
    let spatial = [12 + random.below(20), [12, 16, 20][random.below(3) as usize], 12];
    let mut window = |plain: bool| {
        let mut pick = |limit: u64| (0..3).map(|_| random.below(limit)).collect::<Vec<u64>>();
        let (kernel, strides, dilations, pads) = (pick(3), pick(if plain { 1 } else { 2 }), pick(2), pick(2));
        let plus_one = |values: Vec<u64>| values.into_iter().map(|value| value + 1).collect::<Vec<_>>();
        let (kernel, dilations) = (plus_one(kernel), plus_one(dilations));
        let pads: Vec<u64> = (0..3).map(|d| pads[d].min((kernel[d] - 1) * dilations[d])).collect();
        Window { kernel, strides: plus_one(strides), dilations, pads_begin: pads.clone(), pads_end: pads }
    };
    let windows = [window(true), window(false)];
    let pool_op = if random.below(2) == 0 { PoolOp::Max } else { PoolOp::Average { count_include_pad: true } };
    let groups = [1, 2, 4][random.below(3) as usize];
    let x = build.input(&shape(images, 1, &spatial));
    let convolution = |window: &Window, groups| Convolution { window: window.clone(), groups };
    let forward = |window: &Window, groups| Kernel::Convolution {
        convolution: convolution(window, groups),
        activation: Activation::None,
    };
    let inner = sizes_after(&windows[0], &spatial);
    let w = build.input(&shape(4, 1, &windows[0].kernel));
    let [a] = build.launch(forward(&windows[0], 1), &[&x, &w], [&shape(images, 4, &inner)]);
    let (scale, bias) = (build.input(&[4]), build.input(&[4]));
    let training = Kernel::BatchNormalizationTraining { epsilon: 1e-5, activation: Activation::Relu, group_size: 1 };
    let [b, mean, variance] = build.launch(training, &[&a, &scale, &bias], [&shape(images, 4, &inner), &[4], &[4]]);
    let outer = sizes_after(&windows[1], &inner);
    let w = build.input(&shape(8, 4 / groups, &windows[1].kernel));
    let logits = shape(images, 8, &outer);
    let [c] = build.launch(forward(&windows[1], groups), &[&b, &w], [&logits]);
    let labels = build.tensor(DataType::Int64, &[&[images][..], &outer].concat(), Role::Input);
    let loss = Kernel::SoftmaxCrossEntropy { axis: 1, ignore_index: Some(3) };
    let [loss] = build.launch(loss, &[&c, &labels], [&[1]]);
    let gradient = Kernel::SoftmaxCrossEntropyGradient { axis: 1, ignore_index: Some(3) };
    let [dc] = build.launch(gradient, &[&loss, &c, &labels], [&logits]);
    let pooled = |kernel: u64| Window {
        kernel: vec![kernel; 3],
        strides: vec![kernel; 3],
        dilations: vec![1; 3],
        pads_begin: vec![0; 3],
        pads_end: vec![0; 3],
    };
    let pooling = pooled(if outer.iter().all(|&size| size > 1) { 2 } else { 1 });
    let [p] = build.launch(
        Kernel::Pool { op: pool_op, window: pooling.clone() },
        &[&c],
        [&shape(images, 8, &sizes_after(&pooling, &outer))],
    );
    let [dp] = build.launch(Kernel::PoolGradient { op: pool_op, window: pooling }, &[&p, &c], [&logits]);
    let add = Kernel::Binary { op: forebay_base::kernel::BinaryOp::Add, activation: Activation::None };
    let [dy] = build.launch(add, &[&dc, &dp], [&logits]);
    let weights = Kernel::ConvolutionWeightGradient { convolution: convolution(&windows[1], groups) };
    let [dw] = build.launch(weights, &[&b, &dy], [w.desc.sizes()]);
    let backward =
        Kernel::ConvolutionDataGradient { convolution: convolution(&windows[1], groups), activation: Activation::None };
    let [db] = build.launch(backward, &[&dy, &w], [&shape(images, 4, &inner)]);
    let normalized = Kernel::BatchNormalizationGradient { epsilon: 1e-5, activation: Activation::Relu, group_size: 1 };
    let [da, dscale, dbias] =
        build.launch(normalized, &[&db, &a, &scale, &bias, &mean, &variance], [&shape(images, 4, &inner), &[4], &[4]]);
    let sum = |build: &mut Build, of: &Operand| {
        let kernel = Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0, 2, 3, 4] };
        build.launch(kernel, &[of], [&[of.desc.sizes()[1]]])[0].clone()
    };
    let sums = [&da, &dy, &p].map(|operand| sum(&mut build, operand));
    for operand in [&loss, &dw, &dscale, &dbias].into_iter().chain(&sums) {
        build.output(operand);
    }
    build.0.update_start = build.0.launches.len();
    build.0
}

/// A single matrix product: each of the three sizes is large, small, or not a multiple of a line; and some sums span many blocks.
pub fn product(random: &mut Random) -> Program {
    let mut build = Build::default();
    let mut size =
        || [1 + random.below(40), 257 + random.below(500), 128 * (1 + random.below(6))][random.below(3) as usize];
    let [m, n, k] = [size(), size(), size()];
    let k = if random.below(3) == 0 { 1000 + random.below(2000) } else { k };
    let [transpose_a, transpose_b, summand, relu] = [0; 4].map(|_| random.below(2) == 1);
    let matrix = |rows: u64, columns: u64, transpose: bool| if transpose { [columns, rows] } else { [rows, columns] };
    let batches: Vec<u64> = match random.below(4) {
        0 => vec![1 + random.below(2), 3],
        _ => Vec::new(),
    };
    let sizes = |own: [u64; 2]| [&batches[..], &own].concat();
    let a = build.input(&sizes(matrix(m, k, transpose_a)));
    // One matrix for all batches, or one per batch.
    let b = matrix(k, n, transpose_b);
    let b = build.input(&if random.below(2) == 0 { sizes(b) } else { b.to_vec() });
    let mut reads = vec![a, b];
    if summand {
        // One row for all rows, or one number per row.
        let strides = if random.below(2) == 0 { [0, 1] } else { [1, 0] };
        let c = build.input(&[m.max(n)]);
        let strides = [&vec![0; batches.len()][..], &strides].concat();
        let desc = TensorDesc::strided(DataType::Float32, &sizes([m, n]), &strides).unwrap();
        reads.push(Operand { desc, ..c });
    }
    let kernel = Kernel::MatMul {
        transpose_a,
        transpose_b,
        alpha: if summand { 0.5 } else { 1.0 },
        beta: 2.0,
        activation: if relu { Activation::Relu } else { Activation::None },
        part: ProductPart::Whole,
    };
    let [y] = build.launch(kernel, &reads.iter().collect::<Vec<_>>(), [&sizes([m, n])]);
    build.output(&y);
    build.0.update_start = build.0.launches.len();
    build.0
}

/// The operations of a sequence model between its products: for one sequence or several.
pub fn sequence(random: &mut Random, sequences: u64) -> Program {
    let mut build = Build::default();
    let (heads, positions, features) = (4 + random.below(5), 16 + 4 * random.below(40), 8 + 4 * random.below(6));
    let sizes = [sequences, heads, positions, features];
    let flat = [sequences, heads * positions, features];
    let x = build.input(&sizes);
    // Heads and positions are swapped, as in attention.
    let strides = [heads * positions * features, features, heads * features, 1];
    let desc = TensorDesc::strided(DataType::Float32, &sizes, &strides).unwrap();
    let [a] = build.launch(Kernel::Copy, &[&Operand { desc, ..x.clone() }], [&sizes]);
    let step = build.tensor(DataType::Int64, &[2], Role::Input);
    let dropout = Kernel::Dropout { ratio: 0.3, node: 2, first: 0 };
    let [b] = build.launch(dropout, &[&a, &step], [&sizes]);
    let [scores] = build.launch(
        Kernel::MatMul {
            transpose_a: false,
            transpose_b: true,
            alpha: 0.25,
            beta: 0.0,
            activation: Activation::None,
            part: ProductPart::Whole,
        },
        &[&a, &b],
        [&[sequences, heads, positions, positions]],
    );
    let [weights] = build.launch(Kernel::Softmax { axis: 3 }, &[&scores], [scores.desc.sizes()]);
    let wider = [sequences, heads, positions, features + 4];
    let pad = Kernel::Pad { begins: vec![0, 0, 0, 4], mode: PadMode::Constant(0.5) };
    let [c] = build.launch(pad, &[&b], [&wider]);
    let fewer = [sequences, heads - 2, positions, features];
    let slice = Kernel::Slice { starts: vec![0, 1, 0, 2], steps: vec![1; 4] };
    let [d] = build.launch(slice.clone(), &[&c], [&fewer]);
    let last = Kernel::SliceGradient { starts: vec![0, 0, 0, 2], steps: vec![1; 4] };
    let [e] = build.launch(last, &[&a], [&wider]);
    let [f] =
        build.launch(Kernel::Binary { op: BinaryOp::Multiply, activation: Activation::Relu }, &[&c, &e], [&wider]);
    let (scale, bias) = (build.input(&[features]), build.input(&[features]));
    let flattened = Operand { desc: TensorDesc::packed(DataType::Float32, &flat).unwrap(), ..b.clone() };
    let normal = Kernel::LayerNormalization { axis: 2, epsilon: 1e-5 };
    let rows = [sequences, heads * positions];
    let rows = if random.below(2) == 0 { rows.to_vec() } else { vec![rows[0] * rows[1]] };
    let [g, mean, inverse] = build.launch(normal, &[&flattened, &scale, &bias], [&flat, &rows, &rows]);
    let normal = Kernel::LayerNormalizationGradient { axis: 2 };
    let reads = [&g, &flattened, &scale, &mean, &inverse];
    let [dx, dscale, dbias] = build.launch(normal, &reads, [&flat, &[features], &[features]]);
    let [loss] = build.launch(Kernel::MeanSquaredError, &[&g, &flattened], [&[1]]);
    let [dg] = build.launch(Kernel::MeanSquaredErrorGradient, &[&loss, &g, &flattened], [&flat]);
    // The gradient of a bias, over all but the last two axes, so that rows are long enough.
    let [sum] = build.launch(Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0, 1] }, &[&f], [&wider[2..]]);
    for operand in [&weights, &d, &f, &g, &mean, &inverse, &dx, &dscale, &dbias, &loss, &dg, &sum] {
        build.output(operand);
    }
    build.0.update_start = build.0.launches.len();
    build.0
}

/// Attention and its gradient: heads that do or do not share keys, several blocks of rows and of keys, and every operation on scores.
pub fn attention(random: &mut Random) -> Program {
    let mut build = Build::default();
    let (batch, groups, shared) = (1 + random.below(2), 1 + random.below(2), 1 + random.below(3));
    let heads = groups * shared;
    let mut length = |limit: u64| [4 * (1 + random.below(8)), 4 + 4 * random.below(limit)][random.below(2) as usize];
    let (rows, keys) = (length(50), length(200));
    let (size, v_size) = (4 * (1 + random.below(3)), 4 * (1 + random.below(3)));
    let q = build.input(&[batch, heads, rows, size]);
    let (k, v) = (build.input(&[batch, groups, keys, size]), build.input(&[batch, groups, keys, v_size]));
    let mut pick = |size: u64| [1, size][random.below(2) as usize];
    let of_mask = [pick(batch), pick(heads), pick(rows), keys];
    let mask = (random.below(2) == 0).then(|| build.input(&of_mask));
    let options = AttentionOptions {
        scale: 0.25,
        softcap: [0.0, 2.0][random.below(2) as usize],
        causal: [None, Some(0), Some(random.below(keys) as i64)][random.below(3) as usize],
    };
    let (results, logarithms) = ([batch, heads, rows, v_size], [batch, heads, rows, 2]);
    let reads: Vec<&Operand> = [&q, &k, &v].into_iter().chain(&mask).collect();
    let [y, logarithms] = build.launch(Kernel::Attention(options), &reads, [&results, &logarithms]);
    let dy = build.input(&results);
    let reads: Vec<&Operand> = [&dy, &q, &k, &v, &y, &logarithms].into_iter().chain(&mask).collect();
    let gradients = [&q, &k, &v].map(|operand| operand.desc.sizes());
    let gradients = build.launch(Kernel::AttentionGradient(options), &reads, gradients);
    for operand in [&y, &logarithms].into_iter().chain(&gradients) {
        build.output(operand);
    }
    build.0.update_start = build.0.launches.len();
    build.0
}
