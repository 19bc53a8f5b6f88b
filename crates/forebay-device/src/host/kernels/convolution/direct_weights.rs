//! The weight gradient with stride 1 on long rows and windows three wide, without patches.
//!
//! A task owns the weights between four output channels and one input channel. For each block of rows it copies what it
//! needs, with borders of zeros, into the thread's buffer; four channels times three taps stay in registers while the rows
//! of the block are summed up lane by lane. Then the lanes are added and join the weight's sum: block after block, image
//! after image, strictly from left to right.

use rayon::prelude::*;

use super::super::parallel::Pointer;
use super::super::simd::{with_lanes, Lanes};
use super::direct::{copy_rows, Direct};
use super::patches::with_buffer;

/// Rows of one block.
const ROWS: usize = 8;
/// Output channels of one task.
const OUTPUTS: usize = 4;
/// Lanes of a vector.
const LANES: usize = 8;
/// Taps along a row.
const TAPS: usize = 3;

/// Whether this way applies: windows three wide, besides what [`super::direct::applies`] asks.
pub(super) fn applies(kernel: [usize; 3]) -> bool {
    kernel[2] == TAPS
}

/// dw = (accumulate ? dw : 0) + sum over images and positions of dy x.
///
/// # Safety
/// The operands must have the sizes that `direct` says; nobody else may write x and dy or touch dw.
pub(super) unsafe fn run(direct: &Direct, accumulate: bool, x: Pointer<f32>, dy: Pointer<f32>, dw: Pointer<f32>) {
    let blocks = direct.outputs.div_ceil(OUTPUTS);
    (0..direct.groups * blocks * direct.inputs).into_par_iter().for_each(|index| {
        let (input, index) = (index % direct.inputs, index / direct.inputs);
        let task = Task { direct, group: index / blocks, output: index % blocks * OUTPUTS, input, x, dy, dw };
        // SAFETY: the channels exist; every task writes weights of its own.
        unsafe { task.run(accumulate) };
    });
}

/// The weights between up to four output channels and one input channel.
struct Task<'a> {
    direct: &'a Direct,
    group: usize,
    output: usize,
    input: usize,
    x: Pointer<f32>,
    dy: Pointer<f32>,
    dw: Pointer<f32>,
}

impl Task<'_> {
    /// # Safety
    /// Nobody else may touch these weights.
    unsafe fn run(&self, accumulate: bool) {
        let direct = self.direct;
        let own = OUTPUTS.min(direct.outputs - self.output);
        let taps = direct.kernel.iter().product::<usize>();
        if !accumulate {
            for output in 0..own {
                // SAFETY: the task's own weights.
                unsafe { self.weights(output, taps).fill(0.0) };
            }
        }
        let dy_width = direct.target[2].next_multiple_of(LANES);
        let x_width = dy_width + TAPS - 1;
        let x_plane = (ROWS + direct.kernel[1] - 1) * x_width;
        let dy_size = OUTPUTS * ROWS * dy_width;
        with_buffer(dy_size + direct.kernel[0] * x_plane, |buffer| {
            let (dy_copy, x_copy) = buffer.split_at_mut(dy_size);
            for image in 0..direct.batch {
                for plane in 0..direct.target[0] {
                    for row in (0..direct.target[1]).step_by(ROWS) {
                        // SAFETY: the channels exist; the copies are as long as the sum needs.
                        unsafe {
                            self.copy(image, plane, row, (dy_copy, dy_width), (x_copy, x_width));
                            let (task, dy, x) = (self, dy_copy.as_ptr(), x_copy.as_ptr());
                            with_lanes!(sum(task: &Task, dy: *const f32, x: *const f32, own: usize));
                        }
                    }
                }
            }
        });
    }

    /// The weights of one of the task's output channels.
    ///
    /// # Safety
    /// The channel must exist, and the result must be the only one in use.
    unsafe fn weights<'b>(&self, output: usize, taps: usize) -> &'b mut [f32] {
        let channel = self.group * self.direct.outputs + self.output + output;
        // SAFETY: the caller's promise.
        unsafe { self.dw.slice_mut((channel * self.direct.inputs + self.input) * taps, taps) }
    }

    /// # Safety
    /// The image, plane and row must exist.
    unsafe fn copy(
        &self,
        image: usize,
        plane: usize,
        row: usize,
        (dy_copy, dy_width): (&mut [f32], usize),
        (x_copy, x_width): (&mut [f32], usize),
    ) {
        let direct = self.direct;
        let group = image * direct.groups + self.group;
        let target_plane = direct.target[1] * direct.target[2];
        for (output, copy) in dy_copy.chunks_exact_mut(ROWS * dy_width).enumerate() {
            let channel = self.output + output;
            let source = (channel < direct.outputs).then(|| {
                let start = ((group * direct.outputs + channel) * direct.target[0] + plane) * target_plane;
                // SAFETY: the plane exists; nobody writes dy.
                unsafe { self.dy.slice(start, target_plane) }
            });
            copy_rows(copy, dy_width, source, [direct.target[1], direct.target[2]], (row as isize, 0));
        }
        let source_plane = direct.source[1] * direct.source[2];
        let first = (row as isize + direct.origin[1], direct.origin[2]);
        for (tap, copy) in x_copy.chunks_exact_mut((ROWS + direct.kernel[1] - 1) * x_width).enumerate() {
            let z = plane as isize + direct.origin[0] + tap as isize;
            let source = (z >= 0 && z < direct.source[0] as isize).then(|| {
                let channel = group * direct.inputs + self.input;
                // SAFETY: the plane exists; nobody writes x.
                unsafe { self.x.slice((channel * direct.source[0] + z as usize) * source_plane, source_plane) }
            });
            copy_rows(copy, x_width, source, [direct.source[1], direct.source[2]], first);
        }
    }
}

/// Adds a block of rows to the task's weights.
///
/// # Safety
/// The copies must be those of [`Task::copy`]; nobody else may touch the weights.
#[inline(always)]
unsafe fn sum<L: Lanes>(task: &Task, dy: *const f32, x: *const f32, own: usize) {
    let [depth, height, _] = task.direct.kernel;
    let vectors = task.direct.target[2].div_ceil(LANES);
    let (dy_width, x_width) = (vectors * LANES, vectors * LANES + TAPS - 1);
    let taps = depth * height * TAPS;
    for tap_plane in 0..depth {
        for tap_row in 0..height {
            let mut sums = [[L::splat(0.0); TAPS]; OUTPUTS];
            for row in 0..ROWS {
                // SAFETY: rows and vectors lie inside the copies.
                unsafe {
                    let x = x.add((tap_plane * (ROWS + height - 1) + tap_row + row) * x_width);
                    let dy = dy.add(row * dy_width);
                    for vector in 0..vectors {
                        let seen: [L; TAPS] = std::array::from_fn(|tap| L::load(x.add(vector * LANES + tap)));
                        for (output, sums) in sums.iter_mut().enumerate() {
                            let slope = L::load(dy.add(output * ROWS * dy_width + vector * LANES));
                            for tap in 0..TAPS {
                                sums[tap] = sums[tap].multiply_add(slope, seen[tap]);
                            }
                        }
                    }
                }
            }
            for (output, sums) in sums.iter().enumerate().take(own) {
                // SAFETY: the task's own weights.
                let weights = unsafe { task.weights(output, taps) };
                let start = (tap_plane * height + tap_row) * TAPS;
                for (weight, sum) in weights[start..start + TAPS].iter_mut().zip(sums) {
                    let lanes = sum.to_array();
                    let pairs: [f32; 4] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 4]);
                    *weight += (pairs[0] + pairs[2]) + (pairs[1] + pairs[3]);
                }
            }
        }
    }
}
