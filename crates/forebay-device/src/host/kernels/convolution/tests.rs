mod winograd;

use forebay_base::DataType;
use forebay_base::kernel::{Activation, UnaryOp, Window};
use forebay_base::sum_tree::{PartialSums, nodes_of};

use super::super::testing::{Random, Tensor, assert_bits_of_conversions, desc, dot, run, spoil_buffers};
use super::tiles::Layout;
use super::*;

/// A convolution with its sizes: x, w, y.
struct Case {
    convolution: Convolution,
    x: Vec<u64>,
    w: Vec<u64>,
    y: Vec<u64>,
}

fn random_case(random: &mut Random) -> Case {
    let rank = 1 + random.below(3) as usize;
    let groups = 1 + random.below(3);
    let (inputs, outputs) = (1 + random.below(5), 1 + random.below(5));
    let batch = 1 + random.below(3);
    let mut window =
        Window { kernel: vec![], strides: vec![], dilations: vec![], pads_begin: vec![], pads_end: vec![] };
    let (mut x, mut w, mut y) =
        (vec![batch, inputs * groups], vec![outputs * groups, inputs], vec![batch, outputs * groups]);
    for _ in 0..rank {
        let (kernel, stride, dilation) = (1 + random.below(3), 1 + random.below(3), 1 + random.below(2));
        let (begin, end) = (random.below(3), random.below(3));
        let reach = (kernel - 1) * dilation + 1;
        let source = reach.saturating_sub(begin + end).max(1) + random.below(20);
        window.kernel.push(kernel);
        window.strides.push(stride);
        window.dilations.push(dilation);
        window.pads_begin.push(begin);
        window.pads_end.push(end);
        x.push(source);
        w.push(kernel);
        y.push((source + begin + end - reach) / stride + 1);
    }
    Case { convolution: Convolution { window, groups }, x, w, y }
}

fn float(sizes: &[u64]) -> TensorDesc {
    desc(DataType::Float32, sizes)
}

fn count(sizes: &[u64]) -> usize {
    sizes.iter().product::<u64>() as usize
}

/// For each tap, where it looks in x from y's origin.
fn offsets(geometry: &Geometry) -> Vec<[isize; 3]> {
    let [_, height, width] = geometry.kernel;
    let tap = |tap: usize| [tap / (height * width), tap / width % height, tap % width];
    let offset = |d: usize, tap: usize| (tap * geometry.dilations[d]) as isize - geometry.pads[d] as isize;
    (0..geometry.taps()).map(|number| std::array::from_fn(|d| offset(d, tap(number)[d]))).collect()
}

/// Calls `work(x index, w index, y index)` for every product in the definition.
fn products(case: &Case, mut work: impl FnMut(usize, usize, usize)) {
    let geometry = Geometry::new(&case.convolution, &float(&case.x), &float(&case.w), &float(&case.y)).unwrap();
    let (source, target) = (geometry.x.span, geometry.y.span);
    let offsets = offsets(&geometry);
    for image in 0..geometry.batch {
        for channel in 0..geometry.groups * geometry.outputs {
            let group = channel / geometry.outputs;
            for position in 0..target {
                let [_, height, width] = geometry.target;
                let at = [position / (height * width), position / width % height, position % width];
                for input in 0..geometry.inputs {
                    for (tap, offset) in offsets.iter().enumerate() {
                        let see = |d: usize| (at[d] * geometry.strides[d]) as isize + offset[d];
                        if (0..3).any(|d| see(d) < 0 || see(d) >= geometry.source[d] as isize) {
                            continue;
                        }
                        let [z, y, x] = [see(0), see(1), see(2)].map(|index| index as usize);
                        let element = (z * geometry.source[1] + y) * geometry.source[2] + x;
                        work(
                            (image * geometry.groups * geometry.inputs + group * geometry.inputs + input) * source
                                + element,
                            (channel * geometry.inputs + input) * geometry.taps() + tap,
                            (image * geometry.groups * geometry.outputs + channel) * target + position,
                        );
                    }
                }
            }
        }
    }
}

fn data_gradient(convolution: &Convolution, activation: Activation, reads: &[&Tensor], dx: &TensorDesc) -> Tensor {
    let kernel = Kernel::ConvolutionDataGradient { convolution: convolution.clone(), activation };
    run(&kernel, reads, std::slice::from_ref(dx)).remove(0)
}

/// A convolution of 2-D or 3-D images with equal padding on both sides.
fn case(channels: [u64; 2], groups: u64, source: &[u64], kernel: &[u64], strides: u64, dilations: u64) -> Case {
    let pads: Vec<u64> = kernel.iter().map(|kernel| (kernel - 1) * dilations / 3).collect();
    let target = (0..source.len()).map(|d| {
        let reach = (kernel[d] - 1) * dilations + 1;
        (source[d] + 2 * pads[d]).saturating_sub(reach) / strides + 1
    });
    let sizes = |channels: &[u64], spatial: Vec<u64>| [channels, &spatial[..]].concat();
    Case {
        x: sizes(&[2, channels[0]], source.to_vec()),
        w: sizes(&[channels[1], channels[0] / groups], kernel.to_vec()),
        y: sizes(&[2, channels[1]], target.collect()),
        convolution: Convolution {
            window: Window {
                kernel: kernel.to_vec(),
                strides: vec![strides; source.len()],
                dilations: vec![dilations; source.len()],
                pads_begin: pads.clone(),
                pads_end: pads,
            },
            groups,
        },
    }
}

/// The same convolution of stride 1 with this padding on both sides.
fn padded(mut case: Case, pad: u64) -> Case {
    let window = &mut case.convolution.window;
    for d in 0..window.kernel.len() {
        case.y[2 + d] = case.x[2 + d] + 2 * pad + 1 - window.kernel[d];
    }
    (window.pads_begin, window.pads_end) = (vec![pad; window.kernel.len()], vec![pad; window.kernel.len()]);
    case
}

/// Sizes that need several blocks, chunks of channels, tiles of weights and waves of chunks; and windows beyond the usual ones.
fn large_cases() -> Vec<Case> {
    vec![
        case([320, 300], 1, &[7, 7], &[1, 1], 1, 1),
        case([64, 280], 2, &[5, 5], &[1, 1], 1, 1),
        case([48, 20], 1, &[1, 1], &[1, 1], 1, 1),
        case([12, 12], 12, &[120, 43], &[3, 3], 1, 1),
        case([9, 9], 9, &[31, 30], &[5, 5], 1, 1),
        case([8, 8], 8, &[20, 62], &[7, 7], 1, 1),
        padded(case([10, 10], 10, &[5, 30], &[3, 3], 1, 1), 1),
        padded(case([8, 8], 8, &[4, 48], &[7, 7], 1, 1), 6),
        case([6, 9], 1, &[14, 19, 40], &[3, 3, 3], 1, 1),
        case([70, 37], 1, &[9, 13], &[3, 3], 1, 1),
        case([300, 40], 1, &[6, 7], &[1, 1], 1, 1),
        case([24, 40], 2, &[33, 21], &[3, 2], 2, 1),
        case([40, 24], 1, &[4, 6, 5], &[2, 2, 2], 2, 1),
        case([12, 12], 12, &[30, 41], &[3, 3], 1, 1),
        case([1, 5], 1, &[50, 44], &[41, 40], 1, 1),
        case([2, 3], 1, &[4000], &[3], 2, 1400),
        case([2, 3], 1, &[3000], &[4], 1, 3),
        case([40, 40], 40, &[37, 300], &[5, 5], 2, 1),
        case([20, 20], 20, &[4500], &[9], 1, 1),
        case([17, 17], 17, &[9, 11], &[3, 11], 1, 2),
        case([70, 37], 1, &[9, 13], &[1, 1], 2, 1),
        case([20, 130], 1, &[50, 60], &[1, 1], 1, 1),
        case([8, 9], 1, &[21, 30], &[3, 3], 1, 2),
        case([8, 12], 1, &[5, 18, 140], &[3, 3, 3], 1, 1),
        case([29, 7], 1, &[3000], &[5], 2, 1),
        case([6, 5], 1, &[24, 26], &[17, 17], 1, 1),
        case([2, 4], 1, &[36, 37], &[100, 100], 1, 1),
        case([3, 3], 3, &[3004], &[9000], 1, 1),
        case([3, 70], 1, &[60, 70], &[16, 16], 16, 1),
        case([3, 9], 1, &[90, 130], &[4, 4], 4, 1),
        case([2, 12], 2, &[6, 40, 33], &[2, 4, 8], 8, 1),
        case([5, 4], 1, &[4900], &[2], 3, 2),
    ]
}

/// Batches of images whose planes are so small that they are computed together, with padding on both sides.
fn small_cases() -> Vec<Case> {
    let cases = [
        case([16, 40], 1, &[2, 2], &[3, 3], 1, 1),
        case([40, 70], 1, &[4, 4], &[3, 3], 1, 1),
        case([9, 33], 1, &[3, 5], &[5, 5], 1, 1),
        case([20, 96], 2, &[5, 3], &[3, 2], 1, 1),
        case([12, 40], 1, &[7, 8], &[3, 3], 2, 1),
        case([33, 40], 1, &[7, 7], &[1, 1], 1, 1),
        case([70, 36], 1, &[8, 8], &[3, 3], 1, 1),
        case([16, 33], 1, &[5], &[3], 1, 1),
        case([40, 20], 1, &[1, 1], &[3, 3], 1, 1),
        case([20, 36], 1, &[2, 2], &[3, 3], 2, 1),
        case([7, 12], 1, &[2, 3], &[5, 5], 1, 2),
    ];
    let padded = |mut case: Case| {
        let Window { kernel, strides, dilations, pads_begin, pads_end } = &mut case.convolution.window;
        for d in 0..kernel.len() {
            let reach = (kernel[d] - 1) * dilations[d] + 1;
            (pads_begin[d], pads_end[d]) = (reach / 2, reach / 2);
            case.y[2 + d] = (case.x[2 + d] + 2 * pads_begin[d] - reach) / strides[d] + 1;
        }
        (case.x[0], case.y[0]) = (5, 5);
        case
    };
    cases.map(padded).into()
}

#[test]
fn all_directions_match_the_definition() {
    let mut random = Random::new(11);
    for number in 0..60 {
        let case = random_case(&mut random);
        check_against_definition(&case, DataType::Float32, &mut random, &format!("random case {number}"));
    }
}

#[test]
fn all_directions_of_16_bits_match_the_definition() {
    let mut random = Random::new(15);
    for number in 0..40 {
        let data_type = [DataType::Float16, DataType::BFloat16][number % 2];
        check_against_definition(&random_case(&mut random), data_type, &mut random, &format!("{data_type} {number}"));
    }
}

#[test]
fn all_directions_of_16_bits_have_the_bits_of_conversions_around_float32() {
    let mut random = Random::new(16);
    let cases: Vec<Case> =
        (0..40).map(|_| random_case(&mut random)).chain(large_cases()).chain(small_cases()).collect();
    for (number, case) in cases.iter().enumerate() {
        spoil_buffers();
        let data_type = [DataType::Float16, DataType::BFloat16][number % 2];
        let mut tensor = |sizes: &[u64]| Tensor::new(&desc(data_type, sizes), &random.values(count(sizes)));
        let [x, w, dy] = [&case.x, &case.w, &case.y].map(|sizes| tensor(sizes));
        let [y_bias, x_bias] = [&case.y, &case.x].map(|sizes| tensor(&sizes[1..2]));
        let (convolution, activation) = (case.convolution.clone(), Activation::Relu);
        let forward = Kernel::Convolution { convolution: convolution.clone(), activation };
        assert_bits_of_conversions(&forward, &[x.clone(), w.clone(), y_bias], &[desc(data_type, &case.y)]);
        let backward = Kernel::ConvolutionDataGradient { convolution: convolution.clone(), activation };
        assert_bits_of_conversions(&backward, &[dy.clone(), w, x_bias], &[desc(data_type, &case.x)]);
        for result in [data_type, DataType::Float32] {
            let gradient = Kernel::ConvolutionWeightGradient { convolution: convolution.clone() };
            assert_bits_of_conversions(&gradient, &[x.clone(), dy.clone()], &[desc(result, &case.w)]);
        }
    }
}

/// With large strides, one channel of a block covers more elements than a thread's buffer holds, unless blocks are cut for that.
#[test]
fn sixteen_bit_data_gradients_of_large_strides_are_complete() {
    let mut case = case([1, 2], 1, &[768, 768], &[32, 32], 32, 1);
    (case.x[0], case.y[0]) = (1, 1);
    let mut random = Random::new(5);
    let mut tensor = |sizes: &[u64]| Tensor::new(&desc(DataType::Float16, sizes), &random.values(count(sizes)));
    let reads = [&case.y, &case.w].map(|sizes| tensor(sizes));
    let kernel = Kernel::ConvolutionDataGradient { convolution: case.convolution, activation: Activation::None };
    assert_bits_of_conversions(&kernel, &reads, &[desc(DataType::Float16, &case.x)]);
}

#[test]
fn all_directions_match_the_definition_where_work_is_cut() {
    let mut random = Random::new(13);
    for (number, case) in large_cases().iter().chain(&small_cases()).enumerate() {
        check_against_definition(case, DataType::Float32, &mut random, &format!("case {number}"));
    }
}

#[test]
fn rows_of_several_images_without_numbers_between_them_keep_their_sums() {
    let mut random = Random::new(14);
    // Patches of vision transformers: blocks of one row of three images, whose source channels are packed one by one.
    for (width, images) in [(224, 3), (240, 3), (224, 7)] {
        let mut patches = case([3, 4], 1, &[32, width], &[16, 16], 16, 1);
        let window = &mut patches.convolution.window;
        (window.pads_begin, window.pads_end) = (vec![0; 2], vec![0; 2]);
        (patches.x[0], patches.y[0]) = (images, images);
        patches.y[2..].copy_from_slice(&[2, width / 16]);
        check_against_definition(&patches, DataType::Float32, &mut random, &format!("{images} images of {width}"));
    }
}

#[test]
fn tiles_of_a_row_end_with_the_row() {
    // Three rows of 14 take three vectors of 16 either way, so they are cut row by row.
    let layout = Layout { rows: 3, columns: 14, pitch: 14, row_stride: 100, column_stride: 1 };
    for (width, half) in [(16, 8), (8, 8), (8, 4), (4, 4)] {
        let mut seen = vec![0; 314];
        for tile in layout.tiles(width, half) {
            layout.for_each_run(&tile, |_, place, count| seen[place..place + count].iter_mut().for_each(|n| *n += 1));
        }
        let expected = |place: usize| usize::from(place % 100 < 14);
        assert!(seen.iter().enumerate().take(214).all(|(place, &n)| n == expected(place)), "{width}: {seen:?}");
    }
}

fn check_against_definition(case: &Case, data_type: DataType, random: &mut Random, name: &str) {
    check_against(case, data_type, random, name, |_| {});
}

/// Checks all directions; `widen` can raise the magnitudes to which the errors of correlations are relative.
fn check_against(case: &Case, data_type: DataType, random: &mut Random, name: &str, widen: impl Fn(&mut [Sum])) {
    spoil_buffers();
    let what = format!("{name}: {:?} x {:?} w {:?}", case.convolution, case.x, case.w);
    let [x, w, dy, bias] = [&case.x[..], &case.w, &case.y, &case.y[1..2]]
        .map(|sizes| Tensor::new(&desc(data_type, sizes), &random.values(count(sizes))));
    let descs = |sizes: &[u64]| [desc(data_type, sizes)];
    let (xv, wv, dyv, bv) = (x.values(), w.values(), dy.values(), bias.values());
    let target = count(&case.y[2..]);
    let mut y: Vec<Sum> = (0..count(&case.y)).map(|i| Sum::default().plus(bv[i / target % bv.len()])).collect();
    let (mut dx, mut dw) = (vec![Sum::default(); xv.len()], vec![Sum::default(); wv.len()]);
    products(case, |x, w, y_index| {
        y[y_index] = y[y_index].plus(xv[x] * wv[w]);
        dx[x] = dx[x].plus(dyv[y_index] * wv[w]);
        dw[w] = dw[w].plus(dyv[y_index] * xv[x]);
    });
    let adjoint = |sums: &[Sum], values: &[f64]| dot(&sums.iter().map(|sum| sum.value).collect::<Vec<_>>(), values);
    let (by_data, by_weights) = (adjoint(&dx, &xv), adjoint(&dw, &wv));
    assert!((by_data - by_weights).abs() < 1e-6 * (1.0 + by_data.abs()), "{what}: the definition's own gradients");
    let convolution = case.convolution.clone();
    let forward = Kernel::Convolution { convolution: convolution.clone(), activation: Activation::Relu };
    y.iter_mut().for_each(|sum| sum.value = sum.value.max(0.0));
    [&mut y, &mut dx].into_iter().for_each(|sums| widen(sums));
    assert_sums(&run(&forward, &[&x, &w, &bias], &descs(&case.y))[0], &y, &format!("forward of {what}"));
    let gradient = data_gradient(&convolution, Activation::None, &[&dy, &w], &desc(data_type, &case.x));
    assert_sums(&gradient, &dx, &format!("data gradient of {what}"));
    let kernel = Kernel::ConvolutionWeightGradient { convolution };
    assert_sums(&run(&kernel, &[&x, &dy], &descs(&case.w))[0], &dw, &format!("weight gradient of {what}"));
}

/// A sum and the sum of the absolute terms: rounding errors are relative to the latter.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    magnitude: f64,
}

impl Sum {
    fn plus(self, term: f64) -> Sum {
        Sum { value: self.value + term, magnitude: self.magnitude + term.abs() }
    }
}

#[track_caller]
fn assert_sums(tensor: &Tensor, expected: &[Sum], what: &str) {
    let rounding = match tensor.desc.data_type() {
        DataType::Float16 => 1.0 / 2048.0,
        DataType::BFloat16 => 1.0 / 256.0,
        _ => 0.0,
    };
    for (i, (value, sum)) in tensor.values().into_iter().zip(expected).enumerate() {
        let error = (value - sum.value).abs();
        let error_max = 2e-6 * sum.magnitude + rounding * (sum.value.abs() + 2e-6 * sum.magnitude);
        assert!(error <= error_max, "{what}: element {i} is {value}, expected {}", sum.value);
    }
}

/// The images `range` of a tensor.
fn images(tensor: &Tensor, range: std::ops::Range<u64>) -> Tensor {
    let mut sizes = tensor.desc.sizes().to_vec();
    let image = count(&sizes[1..]);
    sizes[0] = range.end - range.start;
    Tensor::new(&float(&sizes), &tensor.values()[range.start as usize * image..range.end as usize * image])
}

#[test]
fn a_batch_gives_the_same_bits_whole_and_in_parts() {
    let mut random = Random::new(12);
    let cases: Vec<Case> =
        (0..25).map(|_| random_case(&mut random)).chain(large_cases()).chain(small_cases()).collect();
    for (number, mut case) in cases.into_iter().enumerate() {
        let batch = match number {
            ..25 => 2 + random.below(5),
            _ if case.x[0] == 2 => 2 + random.below(2),
            // Small images, of which several are summed together.
            _ => 6 + random.below(15),
        };
        (case.x[0], case.y[0]) = (batch, batch);
        let x = Tensor::new(&float(&case.x), &random.values(count(&case.x)));
        let w = Tensor::new(&float(&case.w), &random.values(count(&case.w)));
        let dy = Tensor::new(&float(&case.y), &random.values(count(&case.y)));
        let convolution = case.convolution.clone();
        let gradient = Kernel::ConvolutionWeightGradient { convolution: convolution.clone() };
        let forward = Kernel::Convolution { convolution: convolution.clone(), activation: Activation::None };
        let dw = run(&gradient, &[&x, &dy], &[float(&case.w)]).remove(0);
        let add = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(&a, &b)| f64::from(a as f32 + b as f32)).collect();
        let y = run(&forward, &[&x, &w], &[float(&case.y)]).remove(0).values();
        let dx = data_gradient(&convolution, Activation::None, &[&dy, &w], &float(&case.x)).values();
        for cut in 1..batch {
            let parts = [images(&x, 0..cut), images(&x, cut..batch), images(&dy, 0..cut), images(&dy, cut..batch)];
            // Each range hands over the sums of its nodes.
            let handed_over = |range: std::ops::Range<u64>| {
                let mut sums = PartialSums::default();
                for node in nodes_of(range, batch) {
                    let reads = [images(&x, node.clone()), images(&dy, node.clone())];
                    let own = run(&gradient, &[&reads[0], &reads[1]], &[float(&case.w)]).remove(0);
                    sums.push(node, own.values(), add);
                }
                sums
            };
            let mut sums = handed_over(0..cut);
            sums.append(handed_over(cut..batch), add);
            let both = sums.total(add).unwrap();
            assert_eq!(both, dw.values(), "weight gradient of case {number} cut at {cut}: {convolution:?}");
            let (mut y_parts, mut dx_parts) = (Vec::new(), Vec::new());
            for (x, dy) in [(&parts[0], &parts[2]), (&parts[1], &parts[3])] {
                y_parts.extend(run(&forward, &[x, &w], std::slice::from_ref(&dy.desc)).remove(0).values());
                dx_parts.extend(data_gradient(&convolution, Activation::None, &[dy, &w], &x.desc).values());
            }
            assert_eq!(y_parts, y, "forward of case {number} cut at {cut}");
            assert_eq!(dx_parts, dx, "data gradient of case {number} cut at {cut}");
        }
    }
}

/// The rows `range` of a tensor of planes.
fn rows(tensor: &Tensor, range: std::ops::Range<usize>) -> Tensor {
    let sizes = tensor.desc.sizes();
    let (height, width) = (sizes[2] as usize, sizes[3] as usize);
    let values = tensor.values();
    let planes = values.chunks_exact(height * width);
    let part: Vec<f64> = planes.flat_map(|plane| &plane[range.start * width..range.end * width]).copied().collect();
    Tensor::new(&float(&[sizes[0], sizes[1], range.len() as u64, sizes[3]]), &part)
}

/// Chunks of rows, each computed separately with the rows that it sees, have the sums that the whole adds up.
#[test]
fn rows_of_an_image_give_the_same_bits_whole_and_in_parts() {
    let mut random = Random::new(31);
    let chunk = forebay_base::kernel::reduction_block_rows_of_image(64) as usize;
    for (channels, groups, kernel, stride, pad) in [
        ([18, 18], 18, 3, 1, 1),
        ([5, 5], 5, 5, 2, 2),
        ([9, 9], 9, 1, 2, 1),
        ([24, 10], 1, 1, 1, 0),
        ([10, 40], 1, 1, 1, 1),
        ([6, 50], 2, 1, 2, 0),
        ([3, 5], 1, 3, 1, 1),
        ([7, 5], 1, 3, 1, 1),
        ([40, 18], 2, 5, 2, 2),
        ([40, 18], 1, 3, 1, 1),
        ([80, 6], 1, 3, 1, 0),
    ] {
        let height = 2 * chunk + 3;
        let source = |size: usize| ((size - 1) * stride + kernel - 2 * pad) as u64;
        let x_sizes = [1, channels[0], source(height), source(64)];
        let x = Tensor::new(&float(&x_sizes), &random.values(count(&x_sizes)));
        let y_sizes = [1, channels[1], height as u64, 64];
        let dy = Tensor::new(&float(&y_sizes), &random.values(count(&y_sizes)));
        let w = float(&[channels[1], channels[0] / groups, kernel as u64, kernel as u64]);
        let gradient = |x: &Tensor, dy: &Tensor, [before, behind]: [usize; 2]| {
            let pads = |rows: usize| vec![rows as u64, pad as u64];
            let (pads_begin, pads_end) = (pads(before), pads(behind));
            let two = |value: usize| vec![value as u64; 2];
            let window = Window { kernel: two(kernel), strides: two(stride), dilations: two(1), pads_begin, pads_end };
            let kernel = Kernel::ConvolutionWeightGradient { convolution: Convolution { window, groups } };
            run(&kernel, &[x, dy], std::slice::from_ref(&w)).remove(0).values()
        };
        let whole = gradient(&x, &dy, [pad, pad]);
        let parts = [0..chunk, chunk..2 * chunk, 2 * chunk..height].map(|range| {
            // The part of the padded image that the rows see.
            let (first, end) = (range.start * stride, (range.end - 1) * stride + kernel);
            let inside = first.max(pad) - pad..end.min(x_sizes[2] as usize + pad) - pad;
            let pads = [pad.saturating_sub(first), end - pad - inside.end];
            gradient(&rows(&x, inside), &rows(&dy, range), pads)
        });
        let add = |a: &[f64], b: &[f64]| -> Vec<f64> {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a as f32 + b as f32)).collect()
        };
        assert!(
            add(&add(&parts[0], &parts[1]), &parts[2]) == whole,
            "{channels:?} in {groups} groups, window of {kernel}"
        );
    }
}

/// Sizes that no machine can hold: the needs of a launch are found at once, with nothing that is as long as a tensor.
#[test]
fn what_absurd_sizes_need_is_found_out_at_once() {
    const HUGE: u64 = 1 << 40;
    let window = |kernel: [u64; 2], strides: [u64; 2], pads: [u64; 2]| Window {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: vec![1, 1],
        pads_begin: pads.to_vec(),
        pads_end: vec![0, 0],
    };
    let needed = |convolution: &Convolution, sizes: [&[u64]; 3]| {
        let [x, w, y] = sizes.map(float);
        let activation = Activation::None;
        let convolution = || convolution.clone();
        let launches = [
            (Kernel::Convolution { convolution: convolution(), activation }, [&x, &w], &y),
            (Kernel::ConvolutionDataGradient { convolution: convolution(), activation }, [&y, &w], &x),
            (Kernel::ConvolutionWeightGradient { convolution: convolution() }, [&x, &y], &w),
        ];
        launches.map(|(kernel, reads, write)| {
            workspace_bytes(&kernel, &reads.map(Clone::clone), std::slice::from_ref(write))
        })
    };
    let square = Convolution { window: window([3, 3], [1, 1], [0, 2]), groups: 1 };
    assert!(needed(&square, [&[1, 1, 8, HUGE], &[4, 1, 3, 3], &[1, 4, 6, HUGE]]).iter().all(Result::is_ok));
    let padded = Convolution { window: window([3, 3], [1, 1], [HUGE, 0]), groups: 1 };
    assert!(needed(&padded, [&[1, 1, 8, 8], &[4, 1, 3, 3], &[1, 4, HUGE + 6, 6]]).iter().all(Result::is_ok));
    let strided = Convolution { window: window([3, 3], [1 << 30, 1 << 20], [0, 0]), groups: 1 };
    let (wide, long) = ((7 << 30) + 3, (7 << 20) + 3);
    let [forward, data, weights] = needed(&strided, [&[1, 1, wide, long], &[1, 1, 3, 3], &[1, 1, 8, 8]]);
    assert!(forward.is_ok() && weights.is_ok());
    assert!(data.unwrap_err().to_string().contains("strides [1073741824, 1048576]"));
    let broad = Convolution { window: window([1, HUGE], [1, 1], [0, 0]), groups: 1 };
    for refused in needed(&broad, [&[1, 1, 1, HUGE], &[1, 1, 1, HUGE], &[1, 1, 1, 1]]) {
        assert!(refused.unwrap_err().to_string().contains("a window of 1099511627776 elements"));
    }
    let mut distant = Convolution { window: window([3, 3], [1, 1], [1 << 62, 0]), groups: 1 };
    distant.window.dilations = vec![1 << 62, 1];
    for refused in needed(&distant, [&[1, 1, 8, 8], &[1, 1, 3, 3], &[1, 1, 8, 6]]) {
        let refusal = refused.unwrap_err().to_string();
        assert!(refusal.contains("dilations [4611686018427387904, 1]") && refusal.contains("too far"), "{refusal}");
    }
    let grouped = Convolution { window: window([3, 3], [1, 1], [0, 0]), groups: 1 << 30 };
    let channels = 1 << 30;
    assert!(
        needed(&grouped, [&[1, channels, 3, 3], &[channels, 1, 3, 3], &[1, channels, 1, 1]]).iter().all(Result::is_ok)
    );
}

/// Devices compute a convolution whose window is one element with transposed weights where that takes less time.
#[test]
fn transposed_weights_give_the_bits_of_a_convolution() {
    let mut random = Random::new(29);
    let activations = [Activation::None, Activation::Relu, Activation::of(UnaryOp::Silu)];
    let channels = [[300, 320], [20, 48], [600, 16], [33, 70], [5, 200]];
    for (number, [sources, targets]) in channels.into_iter().enumerate() {
        for (batch, plane) in [(1, 7), (3, 7), (1, 13), (2, 1), (1, 1), (9, 3), (1, 16)] {
            let activation = activations[(number + batch as usize) % activations.len()];
            let ([x, y], w) = ([sources, targets].map(|channels| [batch, channels, plane, plane]), [targets, sources]);
            let convolution = case([sources, targets], 1, &[plane; 2], &[1; 2], 1, 1).convolution;
            let x = Tensor::new(&float(&x), &random.values(count(&x)));
            let values = random.values(count(&w));
            let bias = Tensor::new(&float(&[targets]), &random.values(targets as usize));
            let weights = Tensor::new(&float(&[targets, sources, 1, 1]), &values);
            let place = |i: usize| i % targets as usize * sources as usize + i / targets as usize;
            let values: Vec<f64> = (0..values.len()).map(|i| values[place(i)]).collect();
            let transposed = Tensor::new(&float(&[sources, targets, 1, 1]), &values);
            let kernel = Kernel::Convolution { convolution: convolution.clone(), activation };
            let forward = run(&kernel, &[&x, &weights, &bias], &[float(&y)]).remove(0).values();
            let same = data_gradient(&convolution, activation, &[&x, &transposed, &bias], &float(&y)).values();
            assert_eq!(forward, same, "{sources} to {targets} channels of {batch} x {plane} x {plane}");
        }
    }
}

/// An activation that a convolution applies to its result gives the same bits as a separate kernel, NaN included.
#[test]
fn activations_give_the_bits_of_a_kernel_behind() {
    let mut random = Random::new(23);
    let planes = [
        case([6, 9], 1, &[14, 19], &[3, 3], 1, 1),
        case([300, 40], 1, &[7, 7], &[1, 1], 1, 1),
        case([24, 40], 2, &[33, 21], &[3, 2], 2, 1),
        case([12, 12], 12, &[30, 41], &[3, 3], 2, 1),
        case([12, 12], 12, &[9, 11, 10], &[3, 3, 3], 2, 1),
        case([1, 1], 1, &[14, 14], &[3, 3], 2, 1),
        case([2, 2], 2, &[9, 30], &[3, 3], 2, 1),
        case([3, 3], 3, &[40], &[2], 2, 1),
        case([12, 12], 12, &[9, 11, 10], &[2, 2, 2], 2, 1),
    ];
    let ops = [
        UnaryOp::Clip { low: -0.25, high: 0.5 },
        UnaryOp::Silu,
        UnaryOp::TanhGelu,
        UnaryOp::LeakyRelu { alpha: 0.1 },
        UnaryOp::Sin,
    ];
    for (number, case) in planes.into_iter().chain(large_cases()).chain(small_cases()).enumerate() {
        let tensor = |sizes: &[u64], random: &mut Random| {
            let mut values = random.values(count(sizes));
            values[0] = f64::NAN;
            Tensor::new(&float(sizes), &values)
        };
        let [x, w, dy] = [&case.x, &case.w, &case.y].map(|sizes| tensor(sizes, &mut random));
        let op = ops[number % ops.len()];
        let behind = |y: &Tensor| run(&Kernel::Unary(op), &[y], std::slice::from_ref(&y.desc));
        let both = [Activation::None, Activation::of(op)];
        let forward = both.map(|activation| {
            let kernel = Kernel::Convolution { convolution: case.convolution.clone(), activation };
            run(&kernel, &[&x, &w], &[float(&case.y)]).remove(0)
        });
        let transposed =
            both.map(|activation| data_gradient(&case.convolution, activation, &[&dy, &w], &float(&case.x)));
        for [apart, joined] in [forward, transposed] {
            let bits = |y: &Tensor| y.values().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert!(bits(&behind(&apart).remove(0)) == bits(&joined), "{op:?}: x {:?}, w {:?}", case.x, case.w);
        }
    }
}
