//! Pooling over windows, and its gradient, in one to three spatial dimensions.

use forebay_base::kernel::{PoolOp, Window};
use forebay_base::{DataType, Kernel};
use rayon::prelude::*;

use super::convolution::spatial3;
use super::parallel::{require_packed, Pointer};
use super::{unsupported, View};
use crate::device::DeviceError;

/// A sliding window over three spatial dimensions.
struct Sliding {
    input: [usize; 3],
    output: [usize; 3],
    kernel: [usize; 3],
    strides: [usize; 3],
    dilations: [usize; 3],
    pads: [usize; 3],
    /// Sizes of the padded input: windows of a ceiling-mode output may reach beyond even that.
    padded: [usize; 3],
}

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    require_packed(reads).and_then(|()| require_packed(writes)).map_err(|reason| unsupported(kernel, reason))?;
    if let Some(view) = reads.iter().chain(writes).find(|view| view.desc.data_type() != DataType::Float32) {
        return Err(unsupported(kernel, format!("the host pools float32, not {}", view.desc.data_type())));
    }
    // SAFETY: the caller's promises are those that the two directions ask for.
    unsafe {
        match kernel {
            Kernel::Pool { op, window } => forward(*op, &sliding(window, &reads[0], &writes[0]), &reads[0], &writes[0]),
            Kernel::PoolGradient { op, window } => {
                let sliding = sliding(window, &writes[0], &reads[0]);
                backward(*op, &sliding, &reads[0], reads.get(1), &writes[0]);
            }
            _ => return Err(unsupported(kernel, "not a pooling".to_string())),
        }
    }
    Ok(())
}

fn sliding(window: &Window, input: &View, output: &View) -> Sliding {
    let (input, output) = (spatial3(&input.sizes()[2..], 1), spatial3(&output.sizes()[2..], 1));
    let three = |values: &[u64], filler| spatial3(&values.iter().map(|&v| v as usize).collect::<Vec<_>>(), filler);
    let pads = three(&window.pads_begin, 0);
    let pads_end = three(&window.pads_end, 0);
    Sliding {
        input,
        output,
        kernel: three(&window.kernel, 1),
        strides: three(&window.strides, 1),
        dilations: three(&window.dilations, 1),
        pads,
        padded: std::array::from_fn(|d| input[d] + pads[d] + pads_end[d]),
    }
}

impl Sliding {
    /// Calls `work(input element)` for every tap of an output element's window that lies in the input, in row-major order.
    #[inline(always)]
    fn taps(&self, at: [usize; 3], mut work: impl FnMut(usize)) {
        let inside = |d: usize, tap: usize| {
            let index = (at[d] * self.strides[d] + tap * self.dilations[d]).wrapping_sub(self.pads[d]);
            (index < self.input[d]).then_some(index)
        };
        for z in (0..self.kernel[0]).filter_map(|tap| inside(0, tap)) {
            for y in (0..self.kernel[1]).filter_map(|tap| inside(1, tap)) {
                for x in (0..self.kernel[2]).filter_map(|tap| inside(2, tap)) {
                    work((z * self.input[1] + y) * self.input[2] + x);
                }
            }
        }
    }

    /// Taps that count in a mean: those in the input, or with padding those in the padded input.
    fn divisor(&self, at: [usize; 3], count_include_pad: bool) -> f32 {
        let taps = (0..3).map(|d| {
            let reach = |tap: &usize| {
                let index = at[d] * self.strides[d] + tap * self.dilations[d];
                if count_include_pad {
                    index < self.padded[d]
                } else {
                    index.wrapping_sub(self.pads[d]) < self.input[d]
                }
            };
            (0..self.kernel[d]).filter(reach).count()
        });
        taps.product::<usize>().max(1) as f32
    }

    fn at(&self, element: usize) -> [usize; 3] {
        let row = element / self.output[2];
        [row / self.output[1], row % self.output[1], element % self.output[2]]
    }
}

/// # Safety
/// As [`super::run`].
unsafe fn forward(op: PoolOp, sliding: &Sliding, x: &View, y: &View) {
    let (input, output) = (sliding.input.iter().product::<usize>(), sliding.output.iter().product::<usize>());
    let (source, target) = (Pointer::<f32>::of(x), Pointer::<f32>::of(y));
    let rows = sliding.output[0] * sliding.output[1];
    let channels = y.count() / output.max(1);
    (0..channels * rows).into_par_iter().with_min_len(16).for_each(|task| {
        let (channel, row) = (task / rows, task % rows);
        // SAFETY: a channel's elements lie in the operands, and every task writes a row of its own.
        let (x, y) = unsafe {
            let start = channel * output + row * sliding.output[2];
            (source.slice(channel * input, input), target.slice_mut(start, sliding.output[2]))
        };
        for (column, value) in y.iter_mut().enumerate() {
            let at = [row / sliding.output[1], row % sliding.output[1], column];
            *value = match op {
                PoolOp::Max => {
                    let mut largest = f32::NEG_INFINITY;
                    sliding.taps(at, |i| largest = if x[i] > largest || x[i].is_nan() { x[i] } else { largest });
                    largest
                }
                PoolOp::Average { count_include_pad } => {
                    let mut sum = 0.0f32;
                    sliding.taps(at, |i| sum += x[i]);
                    sum / sliding.divisor(at, count_include_pad)
                }
            };
        }
    });
}

/// # Safety
/// As [`super::run`].
unsafe fn backward(op: PoolOp, sliding: &Sliding, dy: &View, x: Option<&View>, dx: &View) {
    let (input, output) = (sliding.input.iter().product::<usize>(), sliding.output.iter().product::<usize>());
    let (gradient, target) = (Pointer::<f32>::of(dy), Pointer::<f32>::of(dx));
    let source = x.map(Pointer::<f32>::of);
    (0..dx.count() / input.max(1)).into_par_iter().for_each(|channel| {
        // SAFETY: a channel's elements lie in the operands, and every task writes a channel of its own.
        let (dy, dx) = unsafe { (gradient.slice(channel * output, output), target.slice_mut(channel * input, input)) };
        dx.fill(0.0);
        for (element, &slope) in dy.iter().enumerate() {
            let at = sliding.at(element);
            match (op, source) {
                (PoolOp::Max, Some(source)) => {
                    // SAFETY: as above; x is only read.
                    let x = unsafe { source.slice(channel * input, input) };
                    let mut winner: Option<usize> = None;
                    sliding.taps(at, |i| {
                        let wins = winner.is_none_or(|w| x[i] > x[w] || (x[i].is_nan() && !x[w].is_nan()));
                        winner = if wins { Some(i) } else { winner };
                    });
                    if let Some(winner) = winner {
                        dx[winner] += slope;
                    }
                }
                (PoolOp::Average { count_include_pad }, _) => {
                    let share = slope / sliding.divisor(at, count_include_pad);
                    sliding.taps(at, |i| dx[i] += share);
                }
                (PoolOp::Max, None) => {}
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, desc, differences, dot, run, Random, Tensor};
    use super::*;

    fn window(kernel: &[u64], strides: &[u64], pads: &[u64], dilations: &[u64]) -> Window {
        Window {
            kernel: kernel.to_vec(),
            strides: strides.to_vec(),
            dilations: dilations.to_vec(),
            pads_begin: pads.to_vec(),
            pads_end: pads.to_vec(),
        }
    }

    fn cases() -> Vec<(Window, Vec<u64>, Vec<u64>)> {
        vec![
            (window(&[2], &[2], &[0], &[1]), vec![2, 3, 8], vec![2, 3, 4]),
            (window(&[3, 3], &[2, 2], &[1, 1], &[1, 1]), vec![2, 2, 7, 6], vec![2, 2, 4, 3]),
            (window(&[2, 3], &[1, 2], &[0, 1], &[2, 1]), vec![1, 2, 6, 5], vec![1, 2, 4, 3]),
            (window(&[2, 2, 2], &[2, 2, 2], &[0, 0, 0], &[1, 1, 1]), vec![1, 2, 4, 6, 4], vec![1, 2, 2, 3, 2]),
        ]
    }

    #[test]
    fn gradients_match_differences() {
        let mut random = Random::new(3);
        for (window, input, output) in cases() {
            for op in
                [PoolOp::Max, PoolOp::Average { count_include_pad: true }, PoolOp::Average { count_include_pad: false }]
            {
                let (x_desc, y_desc) = (desc(DataType::Float32, &input), desc(DataType::Float32, &output));
                // Values far apart, so that differences do not change which one is largest.
                let count = input.iter().product::<u64>();
                let values: Vec<f64> = (0..count).map(|i| ((i * 37) % count) as f64 / count as f64).collect();
                let weights = random.values(output.iter().product::<u64>() as usize);
                let dy = Tensor::new(&y_desc, &weights);
                let forward = |values: &[f64]| {
                    let x = Tensor::new(&x_desc, values);
                    let y = run(&Kernel::Pool { op, window: window.clone() }, &[&x], std::slice::from_ref(&y_desc));
                    dot(&y[0].values(), &weights)
                };
                let expected = differences(&values, forward);
                let x = Tensor::new(&x_desc, &values);
                let kernel = Kernel::PoolGradient { op, window: window.clone() };
                let dx = run(&kernel, &[&dy, &x], std::slice::from_ref(&x_desc));
                assert_close(&dx[0].values(), &expected, 2e-2, &format!("{op:?} {window:?}"));
            }
        }
    }

    #[test]
    fn a_tie_goes_to_the_first_and_nan_is_kept() {
        let x_desc = desc(DataType::Float32, &[1, 1, 4]);
        let y_desc = desc(DataType::Float32, &[1, 1, 2]);
        let window = window(&[2], &[2], &[0], &[1]);
        let dy = Tensor::new(&y_desc, &[1.0, 2.0]);
        let x = Tensor::new(&x_desc, &[5.0, 5.0, 1.0, f64::NAN]);
        let dx = run(&Kernel::PoolGradient { op: PoolOp::Max, window: window.clone() }, &[&dy, &x], &[x_desc]);
        assert_eq!(dx[0].values(), [1.0, 0.0, 0.0, 2.0]);
        let y = run(&Kernel::Pool { op: PoolOp::Max, window }, &[&x], &[y_desc]);
        assert!(y[0].values()[1].is_nan());
    }
}
