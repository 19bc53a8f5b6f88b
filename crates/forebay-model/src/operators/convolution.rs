//! Convolution, its transpose, and the windows of pooling, in 1 to 3 spatial dimensions.

use forebay_base::Kernel;
use forebay_base::kernel::{Activation, Convolution, Window};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::size;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("Conv", convolution), composed!("ConvTranspose", transposed_convolution)];

/// The spatial sizes of an operand [n, c, ..].
pub(super) fn spatial<'a>(view: &NodeView, what: &str, ty: &'a TensorType) -> Result<&'a [u64], ModelError> {
    if !(3..=5).contains(&ty.shape.len()) {
        return Err(view.error(format!("{what} {ty} must have 1 to 3 spatial dimensions after batch and channels")));
    }
    Ok(&ty.shape[2..])
}

/// The `count` numbers of an attribute that lists numbers for each spatial dimension, or its default.
pub(super) fn per_dimension(
    view: &NodeView,
    name: &str,
    count: usize,
    default: i64,
    least: i64,
) -> Result<Vec<u64>, ModelError> {
    let values = view.ints(name)?.map_or_else(|| vec![default; count], <[i64]>::to_vec);
    if values.len() != count || values.iter().any(|&value| value < least) {
        return Err(view.error(format!("attribute {name} must be {count} numbers of at least {least}, not {values:?}")));
    }
    Ok(values.into_iter().map(|value| value as u64).collect())
}

/// The size of a window's footprint: dilation (kernel - 1) + 1.
fn footprint(view: &NodeView, kernel: u64, dilation: u64) -> Result<u64, ModelError> {
    let footprint = kernel.checked_sub(1).and_then(|gaps| gaps.checked_mul(dilation)?.checked_add(1));
    footprint.ok_or_else(|| view.error(format!("a window of {kernel} taps with dilation {dilation} is invalid")))
}

/// The window of a convolution or pool, with the output sizes for `input`.
pub(super) fn window(
    view: &NodeView,
    input: &[u64],
    kernel: &[u64],
    ceil: bool,
) -> Result<(Window, Vec<u64>), ModelError> {
    let n = input.len();
    if kernel.len() != n || kernel.contains(&0) {
        return Err(view.error(format!("a window of {kernel:?} is invalid for spatial sizes {input:?}")));
    }
    let strides = per_dimension(view, "strides", n, 1, 1)?;
    let dilations = per_dimension(view, "dilations", n, 1, 1)?;
    let pads = per_dimension(view, "pads", 2 * n, 0, 0)?;
    let (mut pads_begin, mut pads_end) = (pads[..n].to_vec(), pads[n..].to_vec());
    let auto_pad = view.string("auto_pad", "NOTSET")?;
    let mut output = Vec::with_capacity(n);
    for i in 0..n {
        let taps = footprint(view, kernel[i], dilations[i])?;
        let error = || {
            view.error(format!("a window of {taps} elements is larger than the spatial size {} plus padding", input[i]))
        };
        match auto_pad {
            "SAME_UPPER" | "SAME_LOWER" => {
                let size = input[i].div_ceil(strides[i]);
                let reach = size.saturating_sub(1).checked_mul(strides[i]).and_then(|reach| reach.checked_add(taps));
                let total = reach.ok_or_else(error)?.saturating_sub(input[i]);
                let (less, more) = (total / 2, total - total / 2);
                (pads_begin[i], pads_end[i]) = if auto_pad == "SAME_UPPER" { (less, more) } else { (more, less) };
                output.push(size);
                continue;
            }
            "VALID" => (pads_begin[i], pads_end[i]) = (0, 0),
            "NOTSET" | "" => {}
            other => return Err(view.error(format!("unknown value '{other}' of attribute auto_pad"))),
        }
        let padded = input[i].checked_add(pads_begin[i]).and_then(|size| size.checked_add(pads_end[i]));
        let padded = padded.ok_or_else(error)?;
        let mut steps = match padded.checked_sub(taps) {
            Some(free) if ceil => free.div_ceil(strides[i]),
            Some(free) => free / strides[i],
            // Rounding up leaves one window if it reaches less than a stride beyond the input.
            None if ceil && padded > 0 && taps - padded < strides[i] => 0,
            None => return Err(error()),
        };
        if input[i] == 0 {
            return Err(view.error(format!(
                "windows over the spatial sizes {input:?} see only padding; size {i} of these must be at least 1"
            )));
        }
        // A last window that would start in the padding after the input is omitted.
        if ceil && steps > 0 && steps.saturating_mul(strides[i]) >= input[i].saturating_add(pads_begin[i]) {
            steps -= 1;
        }
        output.push(steps + 1);
    }
    let kernel = kernel.to_vec();
    Ok((Window { kernel, strides, dilations, pads_begin, pads_end }, output))
}

/// Checks that `kernel_shape`, if given, matches the weight.
fn check_kernel_shape(view: &NodeView, kernel: &[u64]) -> Result<(), ModelError> {
    match view.ints("kernel_shape")? {
        Some(given) if given.iter().map(|&size| size as u64).ne(kernel.iter().copied()) => {
            Err(view.error(format!("attribute kernel_shape {given:?} does not match the weight's {kernel:?}")))
        }
        _ => Ok(()),
    }
}

/// The number of groups of channels of a node.
pub(super) fn groups(view: &NodeView) -> Result<u64, ModelError> {
    let groups = view.int("group", 1)?;
    let error = || view.error(format!("attribute group must be at least 1, but is {groups}"));
    u64::try_from(groups).ok().filter(|&groups| groups > 0).ok_or_else(error)
}

/// Whether a node of this many output channels adds a bias. PyTorch's exporter writes zeros of shape `[channels, 2]` for the bias that a
/// convolution of volumes does not have.
fn has_bias(view: &NodeView, channels: u64) -> Result<bool, ModelError> {
    if !view.has_input(2) {
        return Ok(false);
    }
    let shape = &view.input_type(2)?.shape;
    if *shape == [channels] {
        return Ok(true);
    }
    if shape.first() == Some(&channels) && view.is_zeros(2)? {
        return Ok(false);
    }
    Err(view.error(format!("expected a bias of [{channels}], found {}", view.input_type(2)?)))
}

fn convolution(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let y = correlated(&mut c)?;
    c.finish(y)
}

/// The result of `Conv` for a node's attributes and inputs 0 to 2.
pub(super) fn correlated(c: &mut Composer) -> Result<Part, ModelError> {
    let (x, w) = (c.input(0)?, c.input(1)?);
    convolved(c, &x, &w)
}

/// The result of `Conv` of two parts for a node's attributes and its input 2.
pub(super) fn convolved(c: &mut Composer, x: &Part, w: &Part) -> Result<Part, ModelError> {
    let (kernel, ty) = correlation(&c.view, x, w)?;
    with_bias(c, kernel, [x, w], ty)
}

/// Channels moved from the end to axis 1.
pub(super) fn channels_first(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let rank = x.ty.shape.len();
    if rank < 3 {
        return Err(c.view.error(format!("expected a batch, sizes and channels, found {}", x.ty)));
    }
    let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    c.transpose(x, &order)
}

/// Channels moved from axis 1 to the end.
pub(super) fn channels_last(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let order: Vec<usize> = [0].into_iter().chain(2..x.ty.shape.len()).chain([1]).collect();
    c.transpose(x, &order)
}

/// The convolution of two parts that a node's attributes describe, and the type of its result.
pub(super) fn correlation(view: &NodeView, x: &Part, w: &Part) -> Result<(Kernel, TensorType), ModelError> {
    let input = spatial(view, "the input", &x.ty)?;
    let groups = groups(view)?;
    let (channels, filters) = (x.ty.shape[1], w.ty.shape.first().copied().unwrap_or(0));
    let fits = w.ty.shape.len() == x.ty.shape.len()
        && w.ty.shape[1].checked_mul(groups) == Some(channels)
        && filters % groups == 0;
    if !fits || x.ty.data_type != w.ty.data_type {
        return Err(view.error(format!("input {} and weight {} do not match for {groups} groups", x.ty, w.ty)));
    }
    check_kernel_shape(view, &w.ty.shape[2..])?;
    let (window, sizes) = window(view, input, &w.ty.shape[2..], false)?;
    let mut shape = vec![x.ty.shape[0], filters];
    shape.extend(sizes);
    let kernel = Kernel::Convolution { convolution: Convolution { window, groups }, activation: Activation::None };
    Ok((kernel, TensorType::new(x.ty.data_type, &shape)))
}

/// Applies a kernel to two parts and, if given, the bias in input 2.
fn with_bias(c: &mut Composer, kernel: Kernel, [x, w]: [&Part; 2], ty: TensorType) -> Result<Part, ModelError> {
    if has_bias(&c.view, ty.shape[1])? {
        let bias = c.input(2)?;
        return Ok(c.kernel(kernel, &[x, w, &bias], ty));
    }
    Ok(c.kernel(kernel, &[x, w], ty))
}

fn transposed_convolution(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, w) = (c.input(0)?, c.input(1)?);
    let input = spatial(&view, "the input", &x.ty)?;
    let groups = groups(&view)?;
    let channels = x.ty.shape[1];
    let fits = w.ty.shape.len() == x.ty.shape.len() && w.ty.shape[0] == channels && channels % groups == 0;
    let filters = w.ty.shape.get(1).and_then(|filters| filters.checked_mul(groups)).filter(|_| fits);
    let Some(filters) = filters.filter(|_| x.ty.data_type == w.ty.data_type) else {
        return Err(view.error(format!("input {} and weight {} do not match for {groups} groups", x.ty, w.ty)));
    };
    check_kernel_shape(&view, &w.ty.shape[2..])?;
    let (window, sizes) = transposed_window(&view, input, &w.ty.shape[2..])?;
    let mut shape = vec![x.ty.shape[0], filters];
    shape.extend(sizes);
    let convolution = Convolution { window, groups };
    let kernel = Kernel::ConvolutionDataGradient { convolution, activation: Activation::None };
    let y = with_bias(&mut c, kernel, [&x, &w], TensorType::new(x.ty.data_type, &shape))?;
    c.finish(y)
}

/// The window of the convolution that a transposed convolution transposes, and the latter's output sizes.
fn transposed_window(view: &NodeView, input: &[u64], kernel: &[u64]) -> Result<(Window, Vec<u64>), ModelError> {
    let n = input.len();
    if kernel.contains(&0) || input.contains(&0) {
        return Err(view.error(format!("a window of {kernel:?} is invalid for spatial sizes {input:?}")));
    }
    let strides = per_dimension(view, "strides", n, 1, 1)?;
    let dilations = per_dimension(view, "dilations", n, 1, 1)?;
    let pads = per_dimension(view, "pads", 2 * n, 0, 0)?;
    let added = per_dimension(view, "output_padding", n, 0, 0)?;
    let auto_pad = view.string("auto_pad", "NOTSET")?;
    if !matches!(auto_pad, "NOTSET" | "" | "VALID" | "SAME_UPPER" | "SAME_LOWER") {
        return Err(view.error(format!("unknown value '{auto_pad}' of attribute auto_pad")));
    }
    let is_same = auto_pad.starts_with("SAME");
    let mut wanted = None;
    if view.ints("output_shape")?.is_some() {
        wanted = Some(per_dimension(view, "output_shape", n, 1, 1)?);
    }
    let (mut pads_begin, mut pads_end) = (pads[..n].to_vec(), pads[n..].to_vec());
    let mut output = Vec::with_capacity(n);
    for i in 0..n {
        let error =
            || view.error(format!("padding leaves nothing of spatial size {}, or the size overflows", input[i]));
        let taps = footprint(view, kernel[i], dilations[i])?;
        let full = (input[i] - 1).checked_mul(strides[i]).and_then(|size| size.checked_add(taps));
        let full = full.and_then(|size| size.checked_add(added[i])).ok_or_else(error)?;
        let target = match &wanted {
            Some(wanted) => Some(wanted[i]),
            None if is_same => Some(input[i].checked_mul(strides[i]).ok_or_else(error)?),
            None => None,
        };
        let Some(target) = target else {
            let pads = pads_begin[i].checked_add(pads_end[i]);
            output.push(pads.and_then(|pads| full.checked_sub(pads)).filter(|&size| size > 0).ok_or_else(error)?);
            continue;
        };
        let total = full.saturating_sub(target);
        let (less, more) = (total / 2, total - total / 2);
        (pads_begin[i], pads_end[i]) = if auto_pad == "SAME_UPPER" { (less, more) } else { (more, less) };
        output.push(target);
    }
    Ok((Window { kernel: kernel.to_vec(), strides, dilations, pads_begin, pads_end }, output))
}

/// The window of a pooling, and the sizes of its result.
pub(super) fn pool_window(view: &NodeView, x: &TensorType) -> Result<(Window, Vec<u64>), ModelError> {
    let input = spatial(view, "the input", x)?;
    let kernel = view.ints("kernel_shape")?.ok_or_else(|| view.error("attribute kernel_shape is missing"))?;
    let kernel =
        kernel.iter().map(|&value| size(view, "a kernel size", value)).collect::<Result<Vec<u64>, ModelError>>()?;
    let (window, sizes) = window(view, input, &kernel, view.int("ceil_mode", 0)? != 0)?;
    Ok((window, [&x.shape[..2], &sizes].concat()))
}
