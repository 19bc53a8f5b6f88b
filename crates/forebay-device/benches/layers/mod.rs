//! Convolutions in all directions.

use std::error::Error;

use forebay_base::Kernel;
use forebay_base::kernel::{Activation, Convolution, Window};

use super::launching::{Run, float};

/// A convolution of images of equal padding: sizes of x and w. There are as many groups as the sizes ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub x: Vec<u64>,
    pub w: Vec<u64>,
    pub stride: u64,
    pub pad: u64,
}

impl Layer {
    /// Sizes of y.
    pub fn y(&self) -> Vec<u64> {
        let spatial = (2..self.x.len()).map(|d| (self.x[d] + 2 * self.pad - self.w[d]) / self.stride + 1);
        [self.x[0], self.w[0]].into_iter().chain(spatial).collect()
    }

    /// Multiplications and additions in each direction.
    pub fn operations(&self) -> f64 {
        let y = self.y();
        (2 * self.w.iter().product::<u64>() * y[2..].iter().product::<u64>() * y[0]) as f64
    }

    /// The convolution, and its gradients by x and by w.
    pub fn directions(&self) -> Result<[Run; 3], Box<dyn Error>> {
        let rank = self.x.len() - 2;
        let window = Window {
            kernel: self.w[2..].to_vec(),
            strides: vec![self.stride; rank],
            dilations: vec![1; rank],
            pads_begin: vec![self.pad; rank],
            pads_end: vec![self.pad; rank],
        };
        let convolution = Convolution { window, groups: self.x[1] / self.w[1] };
        let activation = Activation::None;
        let (x, w, y) = (float(&self.x)?, float(&self.w)?, float(&self.y())?);
        let forward = Kernel::Convolution { convolution: convolution.clone(), activation };
        let by_x = Kernel::ConvolutionDataGradient { convolution: convolution.clone(), activation };
        Ok([
            Run { kernel: forward, reads: vec![x.clone(), w.clone()], writes: vec![y.clone()] },
            Run { kernel: by_x, reads: vec![y.clone(), w.clone()], writes: vec![x.clone()] },
            Run { kernel: Kernel::ConvolutionWeightGradient { convolution }, reads: vec![x, y], writes: vec![w] },
        ])
    }
}
