//! Convolution with stride 1 on long rows, without patches.
//!
//! A task copies the rows that it needs, with their borders of zeros, into the thread's buffer; then a block of output
//! channels times a few vectors along the row stays in registers while input channels and taps are summed up, each
//! vector loaded serving all channels of the block. Sums run over input channels, then taps, in order.

use forebay_base::kernel::Activation;
use rayon::prelude::*;

use super::super::elementwise::relu;
use super::super::parallel::Pointer;
use super::super::simd::{with_lanes, Lanes};
use super::patches::with_buffer;

/// Rows of one task.
const ROWS: usize = 8;
/// Elements of the buffer, at most, unless a single channel needs more.
const BUFFER_ELEMENTS: usize = 96 * 1024;
/// Rows shorter than this waste too much of a vector.
const WIDTH_MIN: usize = 12;
/// Lanes of a vector.
const LANES: usize = 8;

/// A convolution with stride 1 and no dilation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direct {
    pub batch: usize,
    pub groups: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub source: [usize; 3],
    pub target: [usize; 3],
    pub kernel: [usize; 3],
    /// Where tap 0 looks from an output element.
    pub origin: [isize; 3],
}

/// Whether rows are long enough and the window slides element by element.
pub(super) fn applies(width: usize, strides: [usize; 3], dilations: [usize; 3]) -> bool {
    width >= WIDTH_MIN && strides == [1; 3] && dilations == [1; 3]
}

/// Copies rows of one plane with borders of zeros: row `r` of the copy is source row `first_row + r`, its element `c` is
/// source element `first_column + c`; what lies outside is 0.
pub(super) fn copy_rows(
    copy: &mut [f32],
    width: usize,
    plane: Option<&[f32]>,
    source: [usize; 2],
    (first_row, first_column): (isize, isize),
) {
    for (row, line) in copy.chunks_exact_mut(width).enumerate() {
        let row = first_row + row as isize;
        let Some(plane) = plane.filter(|_| row >= 0 && row < source[0] as isize) else {
            line.fill(0.0);
            continue;
        };
        let low = (-first_column).clamp(0, width as isize) as usize;
        let high = (source[1] as isize - first_column).clamp(low as isize, width as isize) as usize;
        line[..low].fill(0.0);
        line[high..].fill(0.0);
        let begin = row as usize * source[1] + (first_column + low as isize).max(0) as usize;
        line[low..high].copy_from_slice(&plane[begin..begin + high - low]);
    }
}

impl Direct {
    /// Elements of a copied row: the vectors of an output row, and the taps beyond the last.
    fn row_width(&self) -> usize {
        self.target[2].next_multiple_of(LANES) + self.kernel[2] - 1
    }

    /// Elements of a copied channel.
    fn channel_size(&self) -> usize {
        self.kernel[0] * (ROWS + self.kernel[1] - 1) * self.row_width()
    }
}

/// y = activation(x * w + bias), w as [outputs, inputs, taps] for each group.
///
/// # Safety
/// The operands must have the sizes that `direct` says; nobody else may write x, w and bias or touch y.
pub(super) unsafe fn run(
    direct: &Direct,
    activation: Activation,
    x: Pointer<f32>,
    w: Pointer<f32>,
    bias: Option<Pointer<f32>>,
    y: Pointer<f32>,
) {
    let row_blocks = direct.target[1].div_ceil(ROWS);
    let per_image = direct.target[0] * row_blocks;
    (0..direct.batch * direct.groups * per_image).into_par_iter().for_each(|index| {
        let (block, image) = (index % per_image, index / per_image);
        let group = image % direct.groups;
        let sizes = [direct.source, direct.target].map(|sizes| sizes.iter().product::<usize>());
        let taps = direct.kernel.iter().product::<usize>();
        // SAFETY: the group's channels exist; every task writes rows of its own.
        unsafe {
            let task = Task {
                direct,
                activation,
                x: Pointer::new(x.at((image * direct.inputs * sizes[0]) as isize)),
                y: Pointer::new(y.at((image * direct.outputs * sizes[1]) as isize)),
                w: Pointer::new(w.at((group * direct.outputs * direct.inputs * taps) as isize)),
                bias: bias.map(|bias| Pointer::new(bias.at((group * direct.outputs) as isize))),
            };
            task.rows(block / row_blocks, block % row_blocks * ROWS);
        }
    });
}

/// One image of one group, with the operands' addresses.
struct Task<'a> {
    direct: &'a Direct,
    activation: Activation,
    x: Pointer<f32>,
    y: Pointer<f32>,
    w: Pointer<f32>,
    bias: Option<Pointer<f32>>,
}

impl Task<'_> {
    /// Output rows from `row` on in plane `plane`, of all channels.
    ///
    /// # Safety
    /// Nobody else may touch these rows of y.
    unsafe fn rows(&self, plane: usize, row: usize) {
        let direct = self.direct;
        let source_plane = direct.source[1] * direct.source[2];
        let channel_size = direct.channel_size();
        let block = (BUFFER_ELEMENTS / channel_size).clamp(1, direct.inputs);
        let width = direct.row_width();
        let start = (row as isize + direct.origin[1], direct.origin[2]);
        with_buffer(block * channel_size, |buffer| {
            for first in (0..direct.inputs).step_by(block) {
                let channels = block.min(direct.inputs - first);
                let plane_copy = (ROWS + direct.kernel[1] - 1) * width;
                for (number, copy) in buffer.chunks_exact_mut(plane_copy).take(channels * direct.kernel[0]).enumerate()
                {
                    let (channel, tap) = (first + number / direct.kernel[0], number % direct.kernel[0]);
                    let z = plane as isize + direct.origin[0] + tap as isize;
                    let inside = z >= 0 && z < direct.source[0] as isize;
                    let source = inside.then(|| {
                        let start = (channel * direct.source[0] + z as usize) * source_plane;
                        // SAFETY: the plane exists; nobody writes x.
                        unsafe { self.x.slice(start, source_plane) }
                    });
                    copy_rows(copy, width, source, [direct.source[1], direct.source[2]], start);
                }
                // SAFETY: the buffer holds what the sum needs; the rows of y are this task's.
                unsafe {
                    let (task, copies) = (self, buffer.as_ptr());
                    with_lanes!(sum(
                        task: &Task,
                        copies: *const f32,
                        first: usize,
                        channels: usize,
                        plane: usize,
                        row: usize,
                    ));
                }
            }
        });
    }
}

/// Adds input channels `first..first + channels`, whose rows lie in `copies`, to the output rows.
///
/// # Safety
/// As [`Task::rows`], with the copies of these channels.
#[inline(always)]
unsafe fn sum<L: Lanes>(task: &Task, copies: *const f32, first: usize, channels: usize, plane: usize, row: usize) {
    let direct = task.direct;
    for output in (0..direct.outputs).step_by(4) {
        let part = Part { copies, first, channels, plane, row, output };
        // SAFETY: the caller's promises, handed on.
        unsafe {
            match direct.outputs - output {
                1 => lines::<L, 1>(task, &part),
                2 => lines::<L, 2>(task, &part),
                3 => lines::<L, 3>(task, &part),
                _ => lines::<L, 4>(task, &part),
            }
        }
    }
}

/// What one block of output channels adds up.
struct Part {
    copies: *const f32,
    first: usize,
    channels: usize,
    plane: usize,
    row: usize,
    output: usize,
}

/// # Safety
/// As [`sum`], for `OUTPUTS` channels.
#[inline(always)]
unsafe fn lines<L: Lanes, const OUTPUTS: usize>(task: &Task, part: &Part) {
    let vectors = task.direct.target[2].div_ceil(LANES);
    for line in 0..ROWS.min(task.direct.target[1] - part.row) {
        let mut vector = 0;
        while vector < vectors {
            // SAFETY: the caller's promises, handed on.
            unsafe {
                match vectors - vector {
                    1 => tile::<L, OUTPUTS, 1>(task, part, line, vector),
                    2 | 4 => tile::<L, OUTPUTS, 2>(task, part, line, vector),
                    _ => tile::<L, OUTPUTS, 3>(task, part, line, vector),
                }
            }
            vector += match vectors - vector {
                1 => 1,
                2 | 4 => 2,
                _ => 3,
            };
        }
    }
}

/// `OUTPUTS` channels times `VECTORS` vectors of one output row.
///
/// # Safety
/// As [`sum`].
#[inline(always)]
unsafe fn tile<L: Lanes, const OUTPUTS: usize, const VECTORS: usize>(
    task: &Task,
    part: &Part,
    line: usize,
    vector: usize,
) {
    let direct = task.direct;
    let [depth, height, taps_wide] = direct.kernel;
    let (width, column) = (direct.row_width(), vector * LANES);
    let (taps, target_size) = (depth * height * taps_wide, direct.target.iter().product::<usize>());
    let start = ((part.plane * direct.target[1]) + part.row + line) * direct.target[2] + column;
    let valid = direct.target[2] - column;
    // SAFETY: weights, copies and rows of y exist as the caller promises; a vector that ends beyond the row is moved
    // through an array.
    unsafe {
        let y: [*mut f32; OUTPUTS] =
            std::array::from_fn(|o| task.y.at(((part.output + o) * target_size + start) as isize));
        let mut sums = [[L::splat(0.0); VECTORS]; OUTPUTS];
        for (o, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = if part.first > 0 {
                    load_part(y[o].add(v * LANES), valid.saturating_sub(v * LANES))
                } else {
                    L::splat(task.bias.map_or(0.0, |bias| *bias.at((part.output + o) as isize)))
                };
            }
        }
        let mut copy = part.copies.add(line * width + column);
        let mut weights = task.w.at(((part.output * direct.inputs + part.first) * taps) as isize).cast_const();
        for _ in 0..part.channels {
            for _ in 0..depth {
                for tap_row in 0..height {
                    let from = copy.add(tap_row * width);
                    // Three taps, the usual number, are a constant here so that they unroll.
                    if taps_wide == 3 {
                        add_taps(&mut sums, from, weights, direct.inputs * taps, 3);
                    } else {
                        add_taps(&mut sums, from, weights, direct.inputs * taps, taps_wide);
                    }
                    weights = weights.add(taps_wide);
                }
                copy = copy.add((ROWS + height - 1) * width);
            }
        }
        let last = part.first + part.channels == direct.inputs;
        for (o, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let rest = valid.saturating_sub(v * LANES);
                store_part(sum, y[o].add(v * LANES), rest, last && task.activation == Activation::Relu);
            }
        }
    }
}

/// Adds the taps along one row: each vector that is loaded serves every output channel.
///
/// # Safety
/// `VECTORS` vectors from each tap on must exist, and `taps` weights of every channel, `stride` apart.
#[inline(always)]
unsafe fn add_taps<L: Lanes, const OUTPUTS: usize, const VECTORS: usize>(
    sums: &mut [[L; VECTORS]; OUTPUTS],
    from: *const f32,
    weights: *const f32,
    stride: usize,
    taps: usize,
) {
    for tap in 0..taps {
        // SAFETY: the caller's promises.
        unsafe {
            let x: [L; VECTORS] = std::array::from_fn(|v| L::load(from.add(tap + v * LANES)));
            for (o, sums) in sums.iter_mut().enumerate() {
                let weight = L::splat(*weights.add(o * stride + tap));
                for (sum, &x) in sums.iter_mut().zip(&x) {
                    *sum = sum.multiply_add(x, weight);
                }
            }
        }
    }
}

/// Loads up to eight elements; missing ones are 0.
///
/// # Safety
/// `count` elements must exist.
#[inline(always)]
unsafe fn load_part<L: Lanes>(from: *const f32, count: usize) -> L {
    // SAFETY: as many elements as the caller promises.
    unsafe {
        if count >= LANES {
            return L::load(from);
        }
        let mut lanes = [0.0; LANES];
        std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
        L::load(lanes.as_ptr())
    }
}

/// Stores up to eight elements, rectified where asked.
///
/// # Safety
/// `count` elements must exist and be the caller's.
#[inline(always)]
unsafe fn store_part<L: Lanes>(value: L, to: *mut f32, count: usize, rectify: bool) {
    // SAFETY: as many elements as the caller promises.
    unsafe {
        if count >= LANES && !rectify {
            return value.store(to);
        }
        let lanes = value.to_array().map(|lane| if rectify { relu(lane) } else { lane });
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count.min(LANES));
    }
}
