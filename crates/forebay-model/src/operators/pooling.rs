//! Pooling over windows, in 1 to 3 spatial dimensions, and over whole images.

use forebay_base::kernel::{BinaryOp, PoolOp, ReduceOp, UnaryOp, Window};
use forebay_base::{DataType, Kernel, Tensor};

use super::convolution::{spatial, window};
use super::decomposition::{composed, Composer, Decomposition, Part};
use super::shapes::{packed_strides, product, size};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows.
pub const ROWS: &[Operator] = &[
    composed!("AveragePool", average_pool),
    composed!("GlobalAveragePool", global_average_pool),
    composed!("GlobalLpPool", global_lp_pool),
    composed!("GlobalMaxPool", global_max_pool),
    composed!("LpPool", lp_pool),
    composed!("MaxPool", max_pool),
];

/// Largest number of elements of all windows of one channel, where each has an index.
const INDICES_MAX: u64 = 1 << 26;

/// The window that the node's attributes describe, and the type of what it makes of x.
fn described(view: &NodeView, x: &Part) -> Result<(Window, TensorType), ModelError> {
    let input = spatial(view, "the input", &x.ty)?;
    let kernel = view.ints("kernel_shape")?.ok_or_else(|| view.error("attribute kernel_shape is missing"))?;
    let kernel =
        kernel.iter().map(|&value| size(view, "a kernel size", value)).collect::<Result<Vec<u64>, ModelError>>()?;
    let (window, sizes) = window(view, input, &kernel, view.int("ceil_mode", 0)? != 0)?;
    let mut shape = x.ty.shape[..2].to_vec();
    shape.extend(sizes);
    Ok((window, TensorType::new(x.ty.data_type, &shape)))
}

/// Pools x. What the kernel does not pool (float64, integers) is gathered window by window: memory for all elements of all windows.
fn pooled(c: &mut Composer, x: &Part, op: PoolOp, window: Window, y: &TensorType) -> Result<Part, ModelError> {
    let data_type = x.ty.data_type;
    if matches!(data_type, DataType::Float32 | DataType::Float16 | DataType::BFloat16) {
        return Ok(c.kernel(Kernel::Pool { op, window }, &[x], y.clone()));
    }
    let windows = Windows::of(&c.view, x, &window, y)?;
    let terms = windows.elements(c, x)?;
    let inside = windows.inside(c)?;
    let shape = &y.shape;
    match op {
        PoolOp::Max => {
            // Every window has an element at its first tap inside.
            let firsts = windows.firsts(c, x)?;
            let terms = c.select(&inside, &terms, &firsts)?;
            let largest = c.reduce(ReduceOp::Max, &[2], &terms)?;
            c.reshape(&largest, shape)
        }
        PoolOp::Average { count_include_pad } => {
            let zero = c.kernel(Kernel::Fill { value: 0.0 }, &[], TensorType::new(data_type, &[]));
            let terms = c.select(&inside, &terms, &zero)?;
            let sum = c.reduce(ReduceOp::Sum, &[2], &terms)?;
            let counts = if count_include_pad { &windows.padded_counts } else { &windows.counts };
            let counts = c.floats(data_type, &[counts.len() as u64, 1], counts)?;
            let mean = c.binary(BinaryOp::Divide, &sum, &counts)?;
            c.reshape(&mean, shape)
        }
    }
}

/// The elements of all windows of a channel.
struct Windows {
    /// Images times channels, elements of a channel, windows, taps of a window.
    sizes: [u64; 4],
    /// By window and tap: the element's number in its channel, an inner one where the tap lies in padding.
    indices: Vec<i64>,
    /// By window and tap: whether it is an element.
    is_inside: Vec<u8>,
    /// By window: its elements.
    counts: Vec<f64>,
    /// By window: its elements and padding.
    padded_counts: Vec<f64>,
    /// By window: the number of its first element.
    firsts: Vec<i64>,
}

impl Windows {
    fn of(view: &NodeView, x: &Part, window: &Window, y: &TensorType) -> Result<Windows, ModelError> {
        let (input, output) = (&x.ty.shape[2..], &y.shape[2..]);
        let taps = product(view, &window.kernel)?;
        let (channels, elements) = (product(view, &x.ty.shape[..2])?, product(view, input)?);
        let windows = product(view, output)?;
        if windows.checked_mul(taps).is_none_or(|count| count > INDICES_MAX) || elements == 0 {
            return Err(view.error(format!(
                "{windows} windows of {taps} elements of {} are more than {INDICES_MAX} indices; pool in float32, without indices",
                x.ty
            )));
        }
        let [tap_strides, window_strides, strides] = [&window.kernel, output, input].map(packed_strides);
        let mut all = Windows {
            sizes: [channels, elements, windows, taps],
            indices: Vec::new(),
            is_inside: Vec::new(),
            counts: Vec::new(),
            padded_counts: Vec::new(),
            firsts: Vec::new(),
        };
        for place in 0..windows {
            let (mut count, mut padded_count, mut first) = (0, 0, None);
            for tap in 0..taps {
                let (mut index, mut is_inside, mut is_padded) = (0, true, true);
                for i in 0..input.len() {
                    let start = (place / window_strides[i] % output[i]) * window.strides[i];
                    let padded = start + (tap / tap_strides[i] % window.kernel[i]) * window.dilations[i];
                    let position = padded.wrapping_sub(window.pads_begin[i]);
                    is_inside &= position < input[i];
                    is_padded &= padded < input[i] + window.pads_begin[i] + window.pads_end[i];
                    index += position.min(input[i] - 1) * strides[i];
                }
                count += u64::from(is_inside);
                padded_count += u64::from(is_padded);
                if is_inside {
                    first.get_or_insert(index);
                }
                all.indices.push(index as i64);
                all.is_inside.push(u8::from(is_inside));
            }
            all.counts.push(count.max(1) as f64);
            all.padded_counts.push(padded_count.max(1) as f64);
            all.firsts.push(first.unwrap_or(0) as i64);
        }
        Ok(all)
    }

    /// By channel, window and tap.
    fn elements(&self, c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
        let [channels, elements, windows, taps] = self.sizes;
        let x = c.reshape(x, &[channels, elements])?;
        let indices = c.integers(DataType::Int64, &[windows, taps], &self.indices)?;
        let ty = TensorType::new(x.ty.data_type, &[channels, windows, taps]);
        Ok(c.kernel(Kernel::Gather { axis: 1 }, &[&x, &indices], ty))
    }

    /// By channel and window, and an axis of one tap.
    fn firsts(&self, c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
        let [channels, elements, windows, _] = self.sizes;
        let x = c.reshape(x, &[channels, elements])?;
        let indices = c.integers(DataType::Int64, &[windows, 1], &self.firsts)?;
        let ty = TensorType::new(x.ty.data_type, &[channels, windows, 1]);
        Ok(c.kernel(Kernel::Gather { axis: 1 }, &[&x, &indices], ty))
    }

    /// By window and tap.
    fn inside(&self, c: &mut Composer) -> Result<Part, ModelError> {
        let [_, _, windows, taps] = self.sizes;
        let mask = Tensor::new(DataType::Bool, &[windows, taps], self.is_inside.clone());
        let mask = mask.ok_or_else(|| c.view.error("a mask of another size"))?;
        Ok(c.constant(mask))
    }
}

/// The second result is where each largest element lies among all elements of x: the first one, where several are equal.
fn max_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let (window, ty) = described(&view, &x)?;
    let y = pooled(&mut c, &x, PoolOp::Max, window.clone(), &ty)?;
    if !matches!(view.node.outputs.get(1), Some(Some(_))) {
        return c.finish(y);
    }
    let windows = Windows::of(&view, &x, &window, &ty)?;
    let [channels, elements, window_count, taps] = windows.sizes;
    let terms = windows.elements(&mut c, &x)?;
    let largest = c.reshape(&y, &[channels, window_count, 1])?;
    let is_largest = c.binary(BinaryOp::Equal, &terms, &largest)?;
    let inside = windows.inside(&mut c)?;
    let is_largest = c.binary(BinaryOp::And, &is_largest, &inside)?;
    let tap_numbers: Vec<i64> = (0..taps as i64).collect();
    let tap_numbers = c.integers(DataType::Int64, &[taps], &tap_numbers)?;
    let none = c.integers(DataType::Int64, &[], &[taps as i64 - 1])?;
    let tap = c.select(&is_largest, &tap_numbers, &none)?;
    let tap = c.reduce(ReduceOp::Min, &[2], &tap)?;
    // The tap's element, counted by rows or by columns.
    let is_by_columns = view.int("storage_order", 0)? != 0;
    let numbers: Vec<i64> = match is_by_columns {
        false => windows.indices.clone(),
        true => windows.indices.iter().map(|&index| by_columns(index as u64, &x.ty.shape[2..]) as i64).collect(),
    };
    let is_tap = c.binary(BinaryOp::Equal, &tap_numbers, &tap)?;
    let numbers = c.integers(DataType::Int64, &[window_count, taps], &numbers)?;
    let zero = c.integers(DataType::Int64, &[], &[0])?;
    let number = c.select(&is_tap, &numbers, &zero)?;
    let number = c.reduce(ReduceOp::Max, &[2], &number)?;
    let firsts: Vec<i64> = (0..channels).map(|channel| (channel * elements) as i64).collect();
    let firsts = c.integers(DataType::Int64, &[channels, 1, 1], &firsts)?;
    let number = c.binary(BinaryOp::Add, &number, &firsts)?;
    let number = c.reshape(&number, &ty.shape)?;
    c.finish_all(vec![y, number])
}

/// The number of an element, counted along the first axis first.
fn by_columns(mut index: u64, sizes: &[u64]) -> u64 {
    let strides = packed_strides(sizes);
    let (mut number, mut stride) = (0, 1);
    for (i, &size) in sizes.iter().enumerate() {
        number += index / strides[i] * stride;
        index %= strides[i];
        stride *= size;
    }
    number
}

fn average_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let (window, ty) = described(&view, &x)?;
    let op = PoolOp::Average { count_include_pad: view.int("count_include_pad", 0)? != 0 };
    let y = pooled(&mut c, &x, op, window, &ty)?;
    c.finish(y)
}

/// The order of a norm.
fn order(view: &NodeView) -> Result<f64, ModelError> {
    match view.int("p", 2)? {
        p if p > 0 => Ok(p as f64),
        p => Err(view.error(format!("attribute p must be at least 1, not {p}"))),
    }
}

/// |x|^p.
fn to_power(c: &mut Composer, x: &Part, p: f64) -> Result<Part, ModelError> {
    if p == 2.0 {
        return c.binary(BinaryOp::Multiply, x, x);
    }
    let magnitude = c.unary(UnaryOp::Abs, x)?;
    if p == 1.0 {
        return Ok(magnitude);
    }
    let exponent = c.floats(x.ty.data_type, &[], &[p])?;
    c.binary(BinaryOp::Power, &magnitude, &exponent)
}

/// x^(1 / p).
fn root(c: &mut Composer, x: &Part, p: f64) -> Result<Part, ModelError> {
    if p == 1.0 {
        return Ok(x.clone());
    }
    if p == 2.0 {
        return c.unary(UnaryOp::Sqrt, x);
    }
    let exponent = c.floats(x.ty.data_type, &[], &[1.0 / p])?;
    c.binary(BinaryOp::Power, x, &exponent)
}

/// The norm of each window: the mean of its elements' powers, times their number.
fn lp_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let p = order(&view)?;
    let (window, ty) = described(&view, &x)?;
    let mut counts = vec![1.0];
    for (i, &output) in ty.shape[2..].iter().enumerate() {
        let input = x.ty.shape[2 + i];
        let position = |place: u64, tap: u64| {
            (place * window.strides[i] + tap * window.dilations[i]).wrapping_sub(window.pads_begin[i])
        };
        let count = |place: u64| (0..window.kernel[i]).filter(|&tap| position(place, tap) < input).count() as f64;
        let along: Vec<f64> = (0..output).map(count).collect();
        product(&view, &[counts.len() as u64, output])?;
        counts = counts.iter().flat_map(|before| along.iter().map(move |count| before * count)).collect();
    }
    let powers = to_power(&mut c, &x, p)?;
    let means = pooled(&mut c, &powers, PoolOp::Average { count_include_pad: false }, window, &ty)?;
    let counts = c.floats(x.ty.data_type, &ty.shape[2..], &counts)?;
    let sums = c.binary(BinaryOp::Multiply, &means, &counts)?;
    let y = root(&mut c, &sums, p)?;
    c.finish(y)
}

fn global_average_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    spatial(&view, "the input", &x.ty)?;
    let axes: Vec<usize> = (2..x.ty.shape.len()).collect();
    let y = c.reduce(ReduceOp::Mean, &axes, &x)?;
    c.finish(y)
}

/// The norm of each channel of each image.
fn global_lp_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let p = order(&view)?;
    spatial(&view, "the input", &x.ty)?;
    let axes: Vec<usize> = (2..x.ty.shape.len()).collect();
    let y = if p == 2.0 {
        c.reduce(ReduceOp::L2, &axes, &x)?
    } else {
        let powers = to_power(&mut c, &x, p)?;
        let sum = c.reduce(ReduceOp::Sum, &axes, &powers)?;
        root(&mut c, &sum, p)?
    };
    c.finish(y)
}

/// One window over everything: of equal largest elements the first gets the gradient, as in any max pool.
fn global_max_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let kernel = spatial(&view, "the input", &x.ty)?.to_vec();
    let n = kernel.len();
    let mut shape = x.ty.shape[..2].to_vec();
    shape.resize(2 + n, 1);
    let window =
        Window { kernel, strides: vec![1; n], dilations: vec![1; n], pads_begin: vec![0; n], pads_end: vec![0; n] };
    let y = pooled(&mut c, &x, PoolOp::Max, window, &TensorType::new(x.ty.data_type, &shape))?;
    c.finish(y)
}
