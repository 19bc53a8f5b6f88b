//! Convolutions in all three directions.

use forebay_base::kernel::{Activation, BinaryOp, Convolution, Window, reduction_block};
use forebay_base::sum_tree::{PartialSums, nodes_of};
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed, rounding, run, strided, vulkan};
use crate::elementwise::applied;
use crate::spatial::{layout, sliding};
use crate::sums::apply;

/// A convolution with its operands.
struct Case {
    convolution: Convolution,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    /// The largest number of terms of a sum in any direction.
    terms: u64,
}

impl Case {
    fn new(
        random: &mut Random,
        window: Window,
        [images, inputs, outputs, groups]: [u64; 4],
        input: &[u64],
        output: &[u64],
    ) -> Case {
        let w = packed(DataType::Float32, &[&[outputs * groups, inputs], &window.kernel[..]].concat());
        let x = layout(random, images, inputs * groups, input);
        let y = layout(random, images, outputs * groups, output);
        let taps: u64 = window.kernel.iter().product();
        let terms = (inputs.max(outputs) * taps).max(images * output.iter().product::<u64>());
        let [x, w, y] = [x, w, y].map(|desc| random.tensor(&desc));
        Case { convolution: Convolution { window, groups }, x, w, y, terms }
    }

    /// A case with random channels, groups and sizes.
    fn random(random: &mut Random) -> Case {
        let rank = 1 + random.below(3) as usize;
        let sizes = [1 + random.below(3), 1 + random.below(5), 1 + random.below(5), 1 + random.below(3)];
        let sliding = sliding(random, rank, 12, false);
        Case::new(random, sliding.window, sizes, &sliding.input, &sliding.output)
    }

    /// A case whose window is the same in all dimensions.
    fn even(random: &mut Random, sizes: [u64; 4], input: &[u64], [kernel, stride, dilation, pad]: [u64; 4]) -> Case {
        let all = |value: u64| vec![value; input.len()];
        let window = Window {
            kernel: all(kernel),
            strides: all(stride),
            dilations: all(dilation),
            pads_begin: all(pad),
            pads_end: all(pad),
        };
        let device_address = (kernel - 1) * dilation + 1;
        let output: Vec<u64> = input.iter().map(|size| (size + 2 * pad - device_address) / stride + 1).collect();
        Case::new(random, window, sizes, input, &output)
    }

    /// The same case in another type.
    fn of(mut self, data_type: DataType) -> Case {
        for (desc, _) in [&mut self.x, &mut self.w, &mut self.y] {
            *desc = strided(data_type, desc.sizes(), &desc.effective_strides());
        }
        self
    }

    fn data_type(&self) -> DataType {
        self.w.0.data_type()
    }

    /// Terms are at most 4, and sums in a different order differ by a few units in the last place of their partial sums.
    fn tolerance(&self) -> f64 {
        2e-6 * (self.terms as f64).sqrt() + rounding(self.data_type())
    }

    fn check(&self, seed: u64, random: &mut Random) {
        let convolution = || self.convolution.clone();
        let activation = applied(random);
        let mut with_bias = |channels: u64, mut reads: Vec<Tensor>| {
            if random.below(2) == 0 {
                reads.push(random.tensor(&packed(self.data_type(), &[channels])));
            }
            reads
        };
        let reads = with_bias(self.y.0.sizes()[1], vec![self.x.clone(), self.w.clone()]);
        let forward = Kernel::Convolution { convolution: convolution(), activation };
        compare(seed, &forward, &reads, std::slice::from_ref(&self.y.0), self.tolerance());
        let reads = with_bias(self.x.0.sizes()[1], vec![self.y.clone(), self.w.clone()]);
        let transposed = Kernel::ConvolutionDataGradient { convolution: convolution(), activation };
        compare(seed, &transposed, &reads, std::slice::from_ref(&self.x.0), self.tolerance());
        let kernel = Kernel::ConvolutionWeightGradient { convolution: convolution() };
        let reads = [self.x.clone(), self.y.clone()];
        compare(seed, &kernel, &reads, std::slice::from_ref(&self.w.0), self.tolerance());
        if self.data_type() != DataType::Float32 {
            // Sums that are not rounded.
            let sums = packed(DataType::Float32, self.w.0.sizes());
            compare(seed, &kernel, &reads, &[sums], self.tolerance() - rounding(self.data_type()));
        }
    }
}

#[test]
fn random_convolutions_agree_with_the_host() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        Case::random(&mut random).check(seed, &mut random);
    }
}

#[test]
fn random_convolutions_of_16_bits_agree_with_the_host() {
    for seed in 500..530 {
        let mut random = Random::new(seed);
        let data_type = [DataType::Float16, DataType::BFloat16][seed as usize % 2];
        Case::random(&mut random).of(data_type).check(seed, &mut random);
    }
}

/// Sums of several chunks, which are separate if there are few weights, and one after the other if there are many.
#[test]
fn tiles_and_chunks_of_16_bits_agree_with_the_host() {
    let cases: [Even; 6] = [
        ([2, 2, 5, 1], &[50, 60], [3, 1, 1, 1]),
        ([2, 1, 1, 130], &[30], [3, 1, 1, 1]),
        ([1, 20, 24, 1], &[4, 6, 5], [2, 2, 1, 0]),
        ([1, 40, 40, 2], &[15, 12], [3, 2, 1, 1]),
        ([2, 3, 70, 1], &[13, 11], [3, 1, 1, 2]),
        ([2, 1, 70, 65], &[11], [3, 1, 1, 0]),
    ];
    for (seed, (sizes, input, window)) in (600..).zip(cases) {
        let mut random = Random::new(seed);
        let data_type = [DataType::Float16, DataType::BFloat16][seed as usize % 2];
        Case::even(&mut random, sizes, input, window).of(data_type).check(seed, &mut random);
    }
}

/// Images, input and output channels of a group, groups; spatial sizes; kernel, stride, dilation, padding.
type Even = ([u64; 4], &'static [u64], [u64; 4]);

fn check_all(first_seed: u64, cases: &[Even]) {
    for (seed, &(sizes, input, window)) in (first_seed..).zip(cases) {
        let mut random = Random::new(seed);
        Case::even(&mut random, sizes, input, window).check(seed, &mut random);
    }
}

#[test]
fn several_tiles_and_chunks_of_few_channels_agree_with_the_host() {
    check_all(
        200,
        &[
            ([2, 6, 9, 1], &[6, 11, 17], [3, 1, 1, 1]),
            ([2, 1, 1, 12], &[20, 21], [3, 1, 1, 1]),
            ([1, 2, 3, 1], &[3000], [3, 2, 700, 0]),
            // More taps in a dimension than a mask has bits for.
            ([2, 3, 5, 1], &[40, 13], [11, 1, 1, 5]),
        ],
    );
}

#[test]
fn several_tiles_and_chunks_of_more_channels_agree_with_the_host() {
    check_all(220, &[([2, 90, 20, 1], &[6, 7], [1, 1, 1, 0]), ([1, 20, 24, 1], &[4, 6, 5], [2, 2, 1, 0])]);
}

#[test]
fn several_tiles_and_chunks_of_many_channels_agree_with_the_host() {
    check_all(
        240,
        &[
            ([1, 70, 37, 1], &[9, 13], [3, 1, 1, 0]),
            ([1, 40, 40, 2], &[15, 12], [3, 2, 1, 1]),
            ([2, 1, 70, 1], &[50, 48], [3, 1, 1, 2]),
        ],
    );
}

/// Rows `start..end` of the first spatial dimension, or images `start..end`, packed.
fn rows(tensor: &Tensor, axis: usize, start: u64, end: u64) -> Tensor {
    let (desc, values) = tensor;
    let mut sizes = desc.sizes().to_vec();
    sizes[axis] = end - start;
    let part = packed(desc.data_type(), &sizes);
    let strides = desc.effective_strides();
    let element = |number: u64| {
        let mut left = number;
        let mut at = start * strides[axis];
        for (size, stride) in sizes.iter().zip(&strides).rev() {
            at += left % size * stride;
            left /= size;
        }
        values[at as usize]
    };
    let values = (0..part.element_count()).map(element).collect();
    (part, values)
}

/// The weight gradient, computed from the parts of dy between `lines`. Parts consist of nodes of the sum tree, whose leaves have `step`
/// indices.
fn in_parts(case: &Case, axis: usize, step: u64, lines: &[u64]) -> Vec<u8> {
    let machine = vulkan().expect("the caller asked");
    let window = &case.convolution.window;
    let size = case.y.0.sizes()[axis];
    let count = size.div_ceil(step);
    let add = |earlier: Tensor, later: Tensor| {
        let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
        apply(machine, &kernel, &[earlier, later], std::slice::from_ref(&case.w.0)).remove(0)
    };
    let ends = lines.iter().skip(1).copied().chain([size]);
    let ranges = lines.iter().zip(ends).map(|(start, end)| start / step..end.div_ceil(step));
    let mut sums = PartialSums::default();
    for node in ranges.flat_map(|range| nodes_of(range, count)) {
        let (start, end) = (node.start * step, size.min(node.end * step));
        let mut convolution = case.convolution.clone();
        let x = if axis == 0 {
            rows(&case.x, 0, start, end)
        } else {
            // The rows of x that these rows of dy see; only the outer ones see padding.
            let (stride, pad) = (window.strides[0], window.pads_begin[0]);
            let reach = (window.kernel[0] - 1) * window.dilations[0] + 1;
            let first = (start * stride).saturating_sub(pad);
            let last = ((end - 1) * stride + reach).saturating_sub(pad).min(case.x.0.sizes()[2]);
            convolution.window.pads_begin[0] = first + pad - start * stride;
            rows(&case.x, 2, first, last)
        };
        let reads = [x, rows(&case.y, axis, start, end)];
        let kernel = Kernel::ConvolutionWeightGradient { convolution };
        sums.push(node, apply(machine, &kernel, &reads, std::slice::from_ref(&case.w.0)).remove(0), add);
    }
    let (_, values) = sums.total(add).unwrap();
    values.into_iter().flat_map(|value| (value as f32).to_le_bytes()).collect()
}

fn whole(case: &Case, kernel: &Kernel, reads: &[&Tensor], write: &TensorDesc) -> Vec<u8> {
    let machine = vulkan().expect("the caller asked");
    let reads: Vec<Tensor> = reads.iter().map(|&tensor| tensor.clone()).collect();
    let outputs = run(machine, kernel, &reads, std::slice::from_ref(write), &[]);
    outputs.unwrap_or_else(|error| panic!("{error}: {:?}", case.convolution)).remove(0)
}

#[test]
fn a_weight_gradient_has_the_same_bits_whole_and_in_parts() {
    if vulkan().is_none() {
        return;
    }
    // In the first case, the whole uses wide tiles and its parts use narrow ones. Of the other cases, some have few weights, whose chunks
    // are summed by different workgroups, and some have many.
    let cases: [Even; 5] = [
        ([2, 1, 3, 1], &[560, 1000], [3, 1, 1, 1]),
        ([2, 2, 5, 1], &[70, 60], [3, 1, 1, 1]),
        ([2, 3, 2, 2], &[7, 30, 60], [3, 1, 1, 1]),
        ([2, 1, 1, 150], &[1300, 2], [3, 1, 1, 1]),
        ([4, 1, 1, 6], &[5000], [4, 1, 3, 2]),
    ];
    let types = [DataType::Float32, DataType::Float16, DataType::BFloat16];
    for (seed, (sizes, input, window)) in (300..).zip([cases, cases].concat()) {
        let mut random = Random::new(seed);
        let case = Case::even(&mut random, sizes, input, window);
        // The sums of 16-bit numbers are float32.
        let w = case.w.clone();
        let case = Case { w, ..case.of(types[seed as usize % 3]) };
        let kernel = Kernel::ConvolutionWeightGradient { convolution: case.convolution.clone() };
        let expected = whole(&case, &kernel, &[&case.x, &case.y], &case.w.0);
        assert!(expected == in_parts(&case, 0, 1, &[0, 1]), "seed {seed}: cut between images");
        let image = Case { x: rows(&case.x, 0, 0, 1), y: rows(&case.y, 0, 0, 1), ..case };
        let expected = whole(&image, &kernel, &[&image.x, &image.y], &image.w.0);
        let sizes = image.y.0.sizes();
        let step = reduction_block(sizes[2], sizes[3..].iter().product()).rows;
        let lines: Vec<u64> = (0..sizes[2]).step_by(step as usize).filter(|line| line % (3 * step) != step).collect();
        assert!(expected == in_parts(&image, 2, step, &lines), "seed {seed}: cut between rows {lines:?}");
    }
}

/// The bytes of rows of a packed result.
fn row_bytes(desc: &TensorDesc, bytes: &[u8], start: u64, end: u64) -> Vec<u8> {
    let sizes = desc.sizes();
    let row = sizes[3..].iter().product::<u64>() * desc.data_type().size_bytes();
    let channels = bytes.chunks_exact((row * sizes[2]) as usize);
    channels.flat_map(|channel| channel[(row * start) as usize..(row * end) as usize].to_vec()).collect()
}

#[test]
fn rows_of_a_convolution_have_the_bits_of_the_whole() {
    if vulkan().is_none() {
        return;
    }
    for seed in 400..406 {
        let mut random = Random::new(seed);
        let data_type = [DataType::Float32, DataType::Float16, DataType::BFloat16][seed as usize % 3];
        let mut case = Case::even(&mut random, [1, 3, 40, 1], &[12, 30], [3, 1, 1, 0]).of(data_type);
        case.y.0 = packed(data_type, case.y.0.sizes());
        let kernel = Kernel::Convolution { convolution: case.convolution.clone(), activation: Activation::None };
        let expected = whole(&case, &kernel, &[&case.x, &case.w], &case.y.0);
        let (start, end) = (random.below(5), 6 + random.below(5));
        let mut sizes = case.y.0.sizes().to_vec();
        sizes[2] = end - start;
        let part = packed(data_type, &sizes);
        let seen = rows(&case.x, 2, start, end + 2);
        let values = whole(&case, &kernel, &[&seen, &case.w], &part);
        assert!(row_bytes(&case.y.0, &expected, start, end) == values, "seed {seed}: rows {start}..{end}");
    }
}
