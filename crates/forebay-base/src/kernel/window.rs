//! Windows over spatial dimensions, and convolutions.

/// Numbers in a wide vector.
const VECTOR: u64 = 16;
/// With more positions, vectors of positions are filled well enough.
const POSITIONS_MAX: u64 = 256;
/// The terms whose time it takes to transpose a sum.
const TERMS_TRANSPOSING: u64 = 16;

/// A window that slides over the spatial dimensions: one entry per spatial dimension (1 to 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Extent in elements.
    pub kernel: Vec<u64>,
    /// Step in elements.
    pub strides: Vec<u64>,
    /// Distance between taps in elements.
    pub dilations: Vec<u64>,
    /// Padding before, in elements.
    pub pads_begin: Vec<u64>,
    /// Padding after, in elements. Sizes of outputs come from their descriptors; results depend on this only if a mean counts padding.
    pub pads_end: Vec<u64>,
}

impl Window {
    /// Whether windows can overlap, so that neighboring windows share elements.
    ///
    /// ```
    /// use forebay_base::kernel::Window;
    ///
    /// let (dilations, pads) = (vec![1, 1], vec![0, 0]);
    /// let (kernel, strides) = (vec![2, 2], vec![2, 2]);
    /// let window = Window { kernel, strides, dilations, pads_begin: pads.clone(), pads_end: pads };
    /// assert!(!window.overlaps());
    /// assert!(Window { kernel: vec![2, 3], ..window }.overlaps());
    /// ```
    pub fn overlaps(&self) -> bool {
        let reach = self
            .kernel
            .iter()
            .zip(&self.dilations)
            .map(|(&taps, &dilation)| (taps.max(1) - 1).saturating_mul(dilation));
        reach.zip(&self.strides).any(|(reach, &stride)| reach >= stride)
    }
}

/// A convolution; the forward pass and both gradients use the same description (that of the forward pass).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// The sliding window.
    pub window: Window,
    /// Number of channel groups.
    pub groups: u64,
}

/// Whether a convolution from `sources` to `targets` channels, whose window is one element and whose positions see only themselves, takes
/// less time with vectors of target channels than with vectors of positions: all images have few positions, which fill vectors poorly. The
/// weights of adjacent target channels should be adjacent in memory then, as they are for [`super::Kernel::ConvolutionDataGradient`], but not
/// for [`super::Kernel::Convolution`].
///
/// ```
/// use forebay_base::kernel::fills_vectors_with_channels;
///
/// assert!(fills_vectors_with_channels(7 * 7, [960, 320]));
/// assert!(!fills_vectors_with_channels(7 * 7, [40, 960]));
/// assert!(!fills_vectors_with_channels(56 * 56, [64, 256]));
/// ```
pub fn fills_vectors_with_channels(positions: u64, [sources, targets]: [u64; 2]) -> bool {
    if !(1..=POSITIONS_MAX).contains(&positions) {
        return false;
    }
    // The last vector of positions can be half as wide. Vectors of positions take a sixteenth more time for the same number of terms.
    let of_positions = positions.next_multiple_of(VECTOR / 2) * targets;
    let of_channels = positions * targets.next_multiple_of(VECTOR);
    let product = |count: u64, sources: u64| u128::from(count) * u128::from(sources);
    16 * product(of_channels, sources + TERMS_TRANSPOSING) < 17 * product(of_positions, sources)
}
