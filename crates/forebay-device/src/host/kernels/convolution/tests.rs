use forebay_base::kernel::{Activation, Window};

use super::super::testing::{assert_close, desc, dot, run, Random, Tensor};
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

/// Calls `work(x index, w index, y index)` for every product in the definition.
fn products(case: &Case, mut work: impl FnMut(usize, usize, usize)) {
    let geometry = Geometry::new(&case.convolution, &float(&case.x), &float(&case.w), &float(&case.y)).unwrap();
    let (source, target) = (geometry.source_size(), geometry.target_size());
    for image in 0..geometry.batch {
        for channel in 0..geometry.groups * geometry.outputs {
            let group = channel / geometry.outputs;
            for position in 0..target {
                let [_, height, width] = geometry.target;
                let at = [position / (height * width), position / width % height, position % width];
                for input in 0..geometry.inputs {
                    for (tap, offset) in geometry.offsets().iter().enumerate() {
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

#[test]
fn all_directions_match_the_definition() {
    let mut random = Random::new(11);
    for number in 0..60 {
        let case = random_case(&mut random);
        let what = format!("case {number}: {:?} x {:?} w {:?}", case.convolution, case.x, case.w);
        let x = Tensor::new(&float(&case.x), &random.values(count(&case.x)));
        let w = Tensor::new(&float(&case.w), &random.values(count(&case.w)));
        let dy = Tensor::new(&float(&case.y), &random.values(count(&case.y)));
        let bias = Tensor::new(&float(&case.y[1..2]), &random.values(case.y[1] as usize));
        let (xv, wv, dyv, bv) = (x.values(), w.values(), dy.values(), bias.values());
        let target = count(&case.y[2..]);
        let mut y: Vec<f64> = (0..count(&case.y)).map(|i| bv[i / target % bv.len()]).collect();
        let (mut dx, mut dw) = (vec![0.0; xv.len()], vec![0.0; wv.len()]);
        products(&case, |x, w, y_index| {
            y[y_index] += xv[x] * wv[w];
            dx[x] += dyv[y_index] * wv[w];
            dw[w] += dyv[y_index] * xv[x];
        });
        let convolution = case.convolution.clone();
        let forward = Kernel::Convolution { convolution: convolution.clone(), activation: Activation::Relu };
        y.iter_mut().for_each(|value| *value = value.max(0.0));
        assert_close(&run(&forward, &[&x, &w, &bias], &[float(&case.y)])[0].values(), &y, 2e-5, &what);
        let gradient = data_gradient(&convolution, Activation::None, &[&dy, &w], &float(&case.x));
        assert_close(&gradient.values(), &dx, 2e-5, &what);
        assert!((dot(&dx, &xv) - dot(&dw, &wv)).abs() < 1e-6 * (1.0 + dot(&dx, &xv).abs()), "{what}");
        let kernel = Kernel::ConvolutionWeightGradient { convolution, accumulate: false };
        assert_close(&run(&kernel, &[&x, &dy], &[float(&case.w)])[0].values(), &dw, 5e-5, &what);
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
    for number in 0..25 {
        let mut case = random_case(&mut random);
        let batch = 2 + random.below(3);
        (case.x[0], case.y[0]) = (batch, batch);
        let x = Tensor::new(&float(&case.x), &random.values(count(&case.x)));
        let w = Tensor::new(&float(&case.w), &random.values(count(&case.w)));
        let dy = Tensor::new(&float(&case.y), &random.values(count(&case.y)));
        let convolution = case.convolution.clone();
        let gradient = |accumulate| Kernel::ConvolutionWeightGradient { convolution: convolution.clone(), accumulate };
        let forward = Kernel::Convolution { convolution: convolution.clone(), activation: Activation::None };
        let dw = run(&gradient(false), &[&x, &dy], &[float(&case.w)]).remove(0);
        let y = run(&forward, &[&x, &w], &[float(&case.y)]).remove(0).values();
        let dx = data_gradient(&convolution, Activation::None, &[&dy, &w], &float(&case.x)).values();
        for cut in 1..batch {
            let parts = [images(&x, 0..cut), images(&x, cut..batch), images(&dy, 0..cut), images(&dy, cut..batch)];
            let first = run(&gradient(false), &[&parts[0], &parts[2]], &[float(&case.w)]).remove(0);
            let both = run(&gradient(true), &[&parts[1], &parts[3], &first], &[float(&case.w)]).remove(0);
            assert_eq!(both.values(), dw.values(), "weight gradient of case {number} cut at {cut}: {convolution:?}");
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
