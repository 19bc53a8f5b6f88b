//! Windows over one to three spatial dimensions, and the layouts of the tensors under them.

use forebay_base::kernel::Window;
use forebay_base::{DataType, TensorDesc};

use crate::compare::{Random, packed, strided};

/// A window, and the spatial sizes of its input and output.
pub struct Sliding {
    pub window: Window,
    pub input: Vec<u64>,
    pub output: Vec<u64>,
}

/// A random window, with asymmetric padding, gaps between taps, and strides beyond the window. The input has at most `extra` elements more
/// than it needs. If `pools`, padding is smaller than the window's reach, so that every window sees an element.
pub fn sliding(random: &mut Random, rank: usize, extra: u64, pools: bool) -> Sliding {
    let mut window =
        Window { kernel: vec![], strides: vec![], dilations: vec![], pads_begin: vec![], pads_end: vec![] };
    let (mut input, mut output) = (Vec::new(), Vec::new());
    for _ in 0..rank {
        let (kernel, stride, dilation) = (1 + random.below(3), 1 + random.below(4), 1 + random.below(2));
        let reach = (kernel - 1) * dilation + 1;
        let pads_max = if pools { kernel } else { 3 };
        let (begin, end) = (random.below(pads_max), random.below(pads_max));
        let size = if pools { reach } else { reach.saturating_sub(begin + end).max(1) } + random.below(extra + 1);
        window.kernel.push(kernel);
        window.strides.push(stride);
        window.dilations.push(dilation);
        window.pads_begin.push(begin);
        window.pads_end.push(end);
        input.push(size);
        output.push((size + begin + end - reach) / stride + 1);
    }
    Sliding { window, input, output }
}

/// A tensor \[images, channels, spatial]: packed, or a part of one with more channels. With two or more spatial dimensions, it can also be
/// laid out row by row, with all channels of a row together.
pub fn layout(random: &mut Random, images: u64, channels: u64, spatial: &[u64]) -> TensorDesc {
    let sizes = [&[images, channels], spatial].concat();
    let mut strides = packed(DataType::Float32, &sizes).effective_strides();
    let all_channels = channels + random.below(3);
    strides[0] = all_channels * spatial.iter().product::<u64>();
    if spatial.len() > 1 && random.below(2) == 0 {
        strides[1] = spatial[1..].iter().product();
        strides[2] = all_channels * strides[1];
    }
    strided(DataType::Float32, &sizes, &strides)
}
