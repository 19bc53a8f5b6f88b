//! Pooling over windows, and its gradient, in one to three spatial dimensions.

use std::ops::Range;

use forebay_base::kernel::facts::OperandRef;
use forebay_base::kernel::{PoolOp, Window};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::largest::{Plane, Planes};
use super::parallel::{Pointer, for_chunks, for_each, require_packed, wide};
use super::spatial::{Spatial, spatial3};
use super::stored::{Elements, Stored};
use super::thread_buffer::{ELEMENTS_MAX, with_buffer};
use super::{View, unsupported};
use crate::device::DeviceError;

/// A sliding window over three spatial dimensions.
struct Sliding {
    /// The layouts of the input and of the output.
    x: Spatial,
    y: Spatial,
    channels: usize,
    input: [usize; 3],
    output: [usize; 3],
    kernel: [usize; 3],
    strides: [usize; 3],
    dilations: [usize; 3],
    pads: [usize; 3],
    /// Sizes of the padded input; windows of an output in ceiling mode may reach even beyond it.
    padded: [usize; 3],
    /// The columns of a row by tap, without taps through which no column sees the input.
    columns: Vec<Columns>,
}

/// The columns of an output row that see an input element through a tap, and the element that the first of them sees.
#[derive(Clone, Copy)]
struct Columns {
    first: usize,
    count: usize,
    element: usize,
}

impl Columns {
    fn all(self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

/// No element yet.
const NONE: u32 = u32::MAX;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    if let Kernel::PoolIndices { window } = kernel {
        // SAFETY: the caller's promises.
        return unsafe { indices(window, &reads[0], &writes[0]) }.map_err(|reason| unsupported(kernel, reason));
    }
    let reads_as = reads.iter().enumerate().map(|(number, view)| (OperandRef::Read(number), view.desc.data_type()));
    let writes_as = writes.iter().enumerate().map(|(number, view)| (OperandRef::Write(number), view.desc.data_type()));
    let sixteen_bit = kernel.facts().sixteen_bit;
    let is_pooled = |&(operand, data_type): &(OperandRef, DataType)| {
        data_type == DataType::Float32 || data_type.is_sixteen_bit() && sixteen_bit.includes(operand)
    };
    if let Some((_, data_type)) = reads_as.chain(writes_as).find(|operand| !is_pooled(operand)) {
        return Err(unsupported(kernel, format!("the host supports pooling of float32, not of {data_type}")));
    }
    if let (Kernel::PoolGradient { op: PoolOp::Max, .. }, None) = (kernel, reads.get(1)) {
        return Err(unsupported(kernel, "the gradient of max pooling requires x".to_string()));
    }
    // SAFETY: the caller's promises are those that the two directions ask for.
    let result = unsafe {
        match kernel {
            Kernel::Pool { op, window } => sliding(window, reads[0].desc, writes[0].desc)
                .map(|sliding| forward(*op, &sliding, &reads[0], &writes[0])),
            Kernel::PoolGradient { op, window } => sliding(window, writes[0].desc, reads[0].desc)
                .and_then(|sliding| backward(*op, &sliding, &reads[0], reads.get(1), &writes[0])),
            _ => Err("not a pooling kernel".to_string()),
        }
    };
    result.map_err(|reason| unsupported(kernel, reason))
}

fn sliding(window: &Window, input: &TensorDesc, output: &TensorDesc) -> Result<Sliding, String> {
    let (x, y) = (Spatial::of(input)?, Spatial::of(output)?);
    if x.span.max(y.span) >= NONE as usize {
        return Err(format!("a channel has more than {NONE} elements"));
    }
    let channels = output.sizes()[1] as usize;
    let three = |values: &[u64], filler| spatial3(&values.iter().map(|&v| v as usize).collect::<Vec<_>>(), filler);
    let (input, output) = (three(&input.sizes()[2..], 1), three(&output.sizes()[2..], 1));
    let (kernel, strides) = (three(&window.kernel, 1), three(&window.strides, 1));
    let (dilations, pads) = (three(&window.dilations, 1), three(&window.pads_begin, 0));
    let pads_end = three(&window.pads_end, 0);
    let padded = std::array::from_fn(|d| input[d] + pads[d] + pads_end[d]);
    let columns = Vec::new();
    let sliding = Sliding { x, y, channels, input, output, kernel, strides, dilations, pads, padded, columns };
    Ok(Sliding { columns: sliding.columns(), ..sliding })
}

impl Sliding {
    /// The number of taps of an output element's window along a dimension whose place is before `end`, counted with the padding.
    fn taps_before(&self, d: usize, at: usize, end: usize) -> usize {
        end.saturating_sub(at * self.strides[d]).div_ceil(self.dilations[d]).min(self.kernel[d])
    }

    /// The taps through which an output element sees the input along a dimension. Windows may be far larger than what they see, so these
    /// taps are computed, not searched for.
    fn taps(&self, d: usize, at: usize) -> Range<usize> {
        self.taps_before(d, at, self.pads[d])..self.taps_before(d, at, self.input[d] + self.pads[d])
    }

    /// The input elements that an output element sees along a dimension, in the order of taps.
    fn elements(&self, d: usize, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.taps(d, at).map(move |tap| at * self.strides[d] + tap * self.dilations[d] - self.pads[d])
    }

    /// The columns of a row, by tap.
    fn columns(&self) -> Vec<Columns> {
        let (input, pad, output) = (self.input[2], self.pads[2], self.output[2]);
        let columns = |tap: usize| {
            // Columns whose element is at least 0, and those whose element is below the input's width.
            let (shift, stride) = (tap * self.dilations[2], self.strides[2]);
            let first = pad.saturating_sub(shift).div_ceil(stride).min(output);
            let end = (input + pad).saturating_sub(shift).div_ceil(stride).clamp(first, output);
            Columns { first, count: end - first, element: first * stride + shift - pad }
        };
        // The further right a column is, the lower its taps.
        let mut next = 0;
        let mut all = Vec::new();
        for at in (0..output).rev() {
            let taps = self.taps(2, at);
            all.extend((taps.start.max(next)..taps.end).map(columns));
            next = next.max(taps.end);
        }
        all
    }

    /// Calls `work(first elements)` for every row of the input that an output row's windows see, in order. The argument is the row's first
    /// element in each layout.
    #[inline(always)]
    fn for_each_row<const N: usize>(&self, row: usize, layouts: [&Spatial; N], mut work: impl FnMut([usize; N])) {
        let at = [row / self.output[1], row % self.output[1]];
        for z in self.elements(0, at[0]) {
            for y in self.elements(1, at[1]) {
                work(layouts.map(|layout| z * layout.plane + y * layout.row));
            }
        }
    }

    /// The number of taps of an output element's window that count in a mean along a dimension: those in the input or, with padding, those
    /// in the padded input.
    fn taps_counted(&self, d: usize, at: usize, count_include_pad: bool) -> usize {
        match count_include_pad {
            true => self.taps_before(d, at, self.padded[d]),
            false => self.taps(d, at).len(),
        }
    }

    /// The divisors of a row's means.
    fn divisors(&self, row: usize, count_include_pad: bool) -> impl Iterator<Item = f32> + '_ {
        let planes = self.taps_counted(0, row / self.output[1], count_include_pad);
        let outer = planes.saturating_mul(self.taps_counted(1, row % self.output[1], count_include_pad));
        (0..self.output[2])
            .map(move |at| outer.saturating_mul(self.taps_counted(2, at, count_include_pad)).max(1) as f32)
    }

    /// Calls `work(value, element)` for values and the elements of a slice that are `stride` apart.
    #[inline(always)]
    fn zip<T>(&self, values: &mut [T], elements: &[f32], mut work: impl FnMut(&mut T, f32)) {
        match self.strides[2] {
            1 => values.iter_mut().zip(elements).for_each(|(value, &element)| work(value, element)),
            // Written out so that it compiles to vector shuffles. The last pair may be cut off.
            2 => {
                let (pairs, last) = values.split_at_mut(values.len().saturating_sub(1));
                pairs.iter_mut().zip(elements.chunks_exact(2)).for_each(|(value, pair)| work(value, pair[0]));
                last.iter_mut().for_each(|value| work(value, elements[pairs.len() * 2]));
            }
            stride => values.iter_mut().zip(elements.iter().step_by(stride)).for_each(|(v, &element)| work(v, element)),
        }
    }

    /// Computes one row of the forward direction. `room` has space for a row of x.
    #[inline(always)]
    fn pool(&self, op: PoolOp, row: usize, x: Elements, room: &mut [f32], y: &mut [f32]) {
        match op {
            PoolOp::Max => {
                y.fill(f32::NEG_INFINITY);
                self.for_each_row(row, [&self.x], |[start]| {
                    let seen = x.run(start, self.input[2], room);
                    for columns in &self.columns {
                        self.zip(&mut y[columns.all()], &seen[columns.element..], |largest, x| {
                            *largest = if x > *largest || x.is_nan() { x } else { *largest };
                        });
                    }
                });
            }
            PoolOp::Average { count_include_pad } => {
                y.fill(0.0);
                self.for_each_row(row, [&self.x], |[start]| {
                    let seen = x.run(start, self.input[2], room);
                    for columns in &self.columns {
                        self.zip(&mut y[columns.all()], &seen[columns.element..], |sum, x| *sum += x);
                    }
                });
                y.iter_mut().zip(self.divisors(row, count_include_pad)).for_each(|(sum, divisor)| *sum /= divisor);
            }
        }
    }

    /// Finds the largest element in each of a row's windows, to which its gradient goes: the first of several, with NaN above all numbers.
    /// `layout` is that of x, and `room` has space for a row of x.
    #[inline(always)]
    fn find_largest(&self, row: usize, (x, layout): (Elements, &Spatial), room: &mut [f32], largest: &mut Largest) {
        largest.elements.fill(NONE);
        let stride = self.strides[2];
        self.for_each_row(
            row,
            [layout, &self.x],
            #[inline(always)]
            |[start, in_gradient]| {
                let seen = x.run(start, self.input[2], room);
                for columns in &self.columns {
                    let seen = &seen[columns.element..];
                    let first = (in_gradient + columns.element) as u32;
                    let (values, elements) = (&mut largest.values[columns.all()], &mut largest.elements[columns.all()]);
                    match stride {
                        1 => challenge(values, elements, seen.iter().copied(), (first, 1)),
                        // As in `zip`.
                        2 => {
                            let pairs = columns.count - 1;
                            let (values, last_value) = values.split_at_mut(pairs);
                            let (elements, last_element) = elements.split_at_mut(pairs);
                            challenge(values, elements, seen.chunks_exact(2).map(|pair| pair[0]), (first, 2));
                            let last = (first + 2 * pairs as u32, 2);
                            challenge(last_value, last_element, seen[2 * pairs..].iter().copied(), last);
                        }
                        _ => challenge(values, elements, seen.iter().copied().step_by(stride), (first, stride as u32)),
                    }
                }
            },
        );
    }

    /// Distributes a row's gradients evenly among all elements of their windows.
    ///
    /// # Safety
    /// As [`give_to_largest`].
    #[inline(always)]
    unsafe fn give_to_all(&self, row: usize, shares: &[f32], dx: Stored<f32>) {
        let stride = self.strides[2];
        self.for_each_row(row, [&self.x], |[start]| {
            for columns in &self.columns {
                let (first, shares) = (start + columns.element, &shares[columns.all()]);
                // SAFETY: the elements that the columns see are a part of a row of the channel.
                unsafe {
                    let Some(dx) = dx.own() else {
                        let elements = (first..).step_by(stride);
                        elements.zip(shares).for_each(|(element, share)| dx.set(element, 0.0 + share));
                        continue;
                    };
                    let dx = std::slice::from_raw_parts_mut(dx.add(first), (columns.count - 1) * stride + 1);
                    dx.iter_mut().step_by(stride).zip(shares).for_each(|(dx, share)| *dx += share);
                }
            }
        });
    }

    /// The windows of a plane of the output, or `None` if they are too large.
    fn planes(&self) -> Option<Planes> {
        let two = |three: [usize; 3]| [three[1], three[2]];
        let planes = Planes {
            input: two(self.input),
            output: two(self.output),
            kernel: two(self.kernel),
            strides: two(self.strides),
            dilations: two(self.dilations),
            pads: two(self.pads),
            has_depth: self.kernel[0] > 1 || self.pads[0] > 0,
        };
        planes.are_supported().then_some(planes)
    }

    /// The first element of a row of the output in its channel.
    fn row(&self, row: usize) -> usize {
        row / self.output[1] * self.y.plane + row % self.output[1] * self.y.row
    }

    /// The first element of a channel, counted over all images, of a tensor with this layout.
    fn channel(&self, layout: &Spatial, number: usize) -> usize {
        number / self.channels * layout.image + number % self.channels * layout.channel
    }
}

/// The largest elements that the windows of a row have seen so far, and where they are: [`NONE`] if there is none yet.
struct Largest {
    values: Vec<f32>,
    elements: Vec<u32>,
}

impl Largest {
    /// For a row of this many windows.
    fn of(columns: usize) -> Largest {
        Largest { values: vec![0.0; columns], elements: vec![NONE; columns] }
    }
}

/// Replaces the largest elements by those that are larger, given where the first one is and how far apart they are. There are no branches,
/// so that it compiles to vectors.
#[inline(always)]
fn challenge(values: &mut [f32], elements: &mut [u32], seen: impl Iterator<Item = f32>, (first, stride): (u32, u32)) {
    for (i, ((value, element), x)) in (0u32..).zip(values.iter_mut().zip(elements).zip(seen)) {
        let wins = (*element == NONE) | (x > *value) | (x.is_nan() & !value.is_nan());
        *value = if wins { x } else { *value };
        *element = if wins { first.wrapping_add(i.wrapping_mul(stride)) } else { *element };
    }
}

/// Adds a row's gradients to the largest elements of their windows.
///
/// # Safety
/// `dx` must be a channel of the input that no one else touches. If it has 16 bits, windows must not overlap.
#[inline(always)]
unsafe fn give_to_largest(largest: &Largest, dy: &[f32], dx: Stored<f32>) {
    for (&element, slope) in largest.elements.iter().zip(dy).filter(|&(&element, _)| element != NONE) {
        // SAFETY: it is an element of the channel.
        unsafe {
            match dx.own() {
                Some(dx) => *dx.add(element as usize) += slope,
                None => dx.set(element as usize, 0.0 + slope),
            }
        }
    }
}

/// Output rows per task.
const ROWS: usize = 16;
/// Elements of a task that works plane by plane, if there are that many.
const PLANES_MIN: usize = 8 * 1024;

/// # Safety
/// As [`super::run`].
unsafe fn forward(op: PoolOp, sliding: &Sliding, x: &View, y: &View) {
    let (source, target) = (Stored::<f32>::of(x), Stored::<f32>::of(y));
    let rows = sliding.output[0] * sliding.output[1];
    let channels = y.sizes()[..2].iter().product::<usize>();
    if let Some(planes) = sliding.planes().filter(|_| op == PoolOp::Max) {
        // SAFETY: the caller's promises.
        if unsafe { planes_forward(&planes, sliding, channels, source, target) } {
            return;
        }
    }
    let columns = sliding.output[2];
    for_chunks(channels * rows, ROWS, |tasks| {
        let mut room = vec![0.0; source.room(sliding.input[2])];
        let mut results = vec![0.0; target.room(columns)];
        for (channel, row) in tasks.map(|task| (task / rows, task % rows)) {
            // SAFETY: a channel's elements lie in the operands, and every task writes different rows.
            unsafe {
                let start = sliding.channel(&sliding.y, channel) + sliding.row(row);
                let x = source.slice(sliding.channel(&sliding.x, channel), sliding.x.span);
                let y = match target.own() {
                    Some(target) => std::slice::from_raw_parts_mut(target.add(start), columns),
                    None => &mut results,
                };
                wide(
                    #[inline(always)]
                    || sliding.pool(op, row, x, &mut room, y),
                );
                if !target.is_own() {
                    target.store(start, &results);
                }
            }
        }
    });
}

/// Pools plane by plane. Returns false if the planes that a window sees are too large for a copy in the type of the computation.
///
/// # Safety
/// As [`forward`].
unsafe fn planes_forward(
    planes: &Planes,
    sliding: &Sliding,
    channels: usize,
    source: Stored<f32>,
    target: Stored<f32>,
) -> bool {
    let ([x_planes, x_rows, x_columns], [y_planes, y_rows, y_columns]) = (sliding.input, sliding.output);
    let (count, elements) = (planes.count(), x_rows * x_columns);
    // In 16 bits, the planes that windows see and the results have copies, which are packed.
    let seen_max = sliding.kernel[0].min(x_planes);
    let (x_room, y_room) = (source.room(seen_max * elements), target.room(y_rows * y_columns));
    if count + x_room + y_room > ELEMENTS_MAX {
        return false;
    }
    for_chunks(channels * y_planes, (PLANES_MIN / elements.max(1)).max(1), |all| {
        with_buffer(count + x_room + y_room, |buffer| {
            let (buffer, rest) = buffer.split_at_mut(count);
            let (x_buffer, y_buffer) = rest.split_at_mut(x_room);
            planes.prepare(buffer);
            for (channel, plane) in all.map(|number| (number / y_planes, number % y_planes)) {
                let start = sliding.channel(&sliding.y, channel) + plane * sliding.y.plane;
                let depth = sliding.taps(0, plane).len();
                let first = sliding.elements(0, plane).next().unwrap_or(0);
                // SAFETY: a channel's elements lie in the operands, every task writes different planes, and there is room for the planes.
                unsafe {
                    let x = source.slice(sliding.channel(&sliding.x, channel), sliding.x.span);
                    let (x, x_pitch, x_plane) = match x {
                        Elements::Float32(x) => {
                            (&x[first * sliding.x.plane..], sliding.x.row, sliding.dilations[0] * sliding.x.plane)
                        }
                        x => {
                            for (number, line) in x_buffer.chunks_exact_mut(x_columns).take(depth * x_rows).enumerate()
                            {
                                let plane = first + number / x_rows * sliding.dilations[0];
                                x.copy_to(line, plane * sliding.x.plane + number % x_rows * sliding.x.row, 1);
                            }
                            (&*x_buffer, x_columns, elements)
                        }
                    };
                    let (y, y_pitch) = match target.own() {
                        Some(target) => (target.add(start), sliding.y.row),
                        None => (y_buffer.as_mut_ptr(), y_columns),
                    };
                    planes.pool(buffer, Plane { x, x_pitch, depth, x_plane, y, y_pitch });
                    for (row, line) in y_buffer.chunks_exact(y_columns).enumerate() {
                        target.store(start + row * sliding.y.row, line);
                    }
                }
            }
        });
    });
    true
}

/// Finds the place of each window's largest element in its channel.
///
/// # Safety
/// As [`super::run`].
unsafe fn indices(window: &Window, x: &View, y: &View) -> Result<(), String> {
    if (x.desc.data_type(), y.desc.data_type()) != (DataType::Float32, DataType::Int64) {
        return Err(format!("the host finds positions of float32 as int64, not {} as {}", x.desc, y.desc));
    }
    require_packed(&[*x, *y])?;
    let sliding = sliding(window, x.desc, y.desc)?;
    let (source, target) = (Pointer::<f32>::of(x), Pointer::<i64>::of(y));
    let rows = sliding.output[0] * sliding.output[1];
    for_chunks(y.sizes()[..2].iter().product::<usize>() * rows, ROWS, |tasks| {
        let mut largest = Largest::of(sliding.output[2]);
        for (channel, row) in tasks.map(|task| (task / rows, task % rows)) {
            // SAFETY: a channel's elements lie in the operands, and every task writes different rows.
            let (x, y) = unsafe {
                let start = sliding.channel(&sliding.y, channel) + sliding.row(row);
                let x = source.slice(sliding.channel(&sliding.x, channel), sliding.x.span);
                (x, target.slice_mut(start, sliding.output[2]))
            };
            wide(
                #[inline(always)]
                || sliding.find_largest(row, (Elements::Float32(x), &sliding.x), &mut [], &mut largest),
            );
            let place = |&element: &u32| if element == NONE { 0 } else { i64::from(element) };
            y.iter_mut().zip(&largest.elements).for_each(|(y, element)| *y = place(element));
        }
    });
    Ok(())
}

/// Computes the gradient. Each channel's gradient is summed over output rows in order, and within a row over taps, then columns.
///
/// # Safety
/// As [`super::run`]. If dx has 16 bits, windows must not overlap.
unsafe fn backward(op: PoolOp, sliding: &Sliding, dy: &View, x: Option<&View>, dx: &View) -> Result<(), String> {
    let (gradient, target) = (Stored::<f32>::of(dy), Stored::<f32>::of(dx));
    let source = match x {
        Some(x) => Some((Stored::<f32>::of(x), Spatial::of(x.desc)?)),
        None => None,
    };
    let columns = sliding.output[2];
    for_each(dx.sizes()[..2].iter().product::<usize>(), |channel| {
        // SAFETY: a channel's elements lie in the operands, and every task writes a different channel; x is only read.
        let (dx, x) = unsafe {
            let x = source
                .as_ref()
                .map(|(source, layout)| (source.slice(sliding.channel(layout, channel), layout.span), layout));
            (target.at(sliding.channel(&sliding.x, channel) as isize), x)
        };
        // Space for a row of any operand.
        let mut room = vec![0.0; sliding.input[2].max(columns)];
        for row in 0..sliding.input[0] * sliding.input[1] {
            let start = row / sliding.input[1] * sliding.x.plane + row % sliding.input[1] * sliding.x.row;
            // SAFETY: the row lies in the task's channel.
            unsafe { dx.store(start, &room[..sliding.input[2]]) };
        }
        let mut largest = Largest::of(columns);
        let mut shares = vec![0.0; columns];
        for row in 0..sliding.output[0] * sliding.output[1] {
            // SAFETY: the row lies in dy, which no one writes.
            let dy = unsafe { gradient.slice(sliding.channel(&sliding.y, channel) + sliding.row(row), columns) };
            match (op, x) {
                (PoolOp::Max, Some(x)) => wide(
                    #[inline(always)]
                    || {
                        sliding.find_largest(row, x, &mut room, &mut largest);
                        // SAFETY: the channel belongs to the task.
                        unsafe { give_to_largest(&largest, dy.run(0, columns, &mut room), dx) };
                    },
                ),
                (PoolOp::Average { count_include_pad }, _) => {
                    let (dy, divisors) = (dy.run(0, columns, &mut room), sliding.divisors(row, count_include_pad));
                    shares.iter_mut().zip(dy).zip(divisors).for_each(|((share, dy), divisor)| *share = dy / divisor);
                    wide(
                        #[inline(always)]
                        // SAFETY: the channel belongs to the task.
                        || unsafe { sliding.give_to_all(row, &shares, dx) },
                    );
                }
                (PoolOp::Max, None) => {}
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests;
