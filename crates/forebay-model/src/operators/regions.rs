//! Regions of images, pooled to one size by interpolated samples or by the maximum of each bin.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::sampling::{self, Polynomials, Taps};
use super::shapes::{product, require_few, size};
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("RoiAlign", roi_align)];

/// The bins of regions along an axis, and the samples in each.
struct Bins {
    /// Scale from the regions' coordinates to elements.
    scale: f32,
    /// What is subtracted from a scaled coordinate.
    shift: f32,
    /// Whether regions have a size of at least 1.
    at_least_one: bool,
    /// Number of samples in a bin; `None` if it is the number of elements in the bin, rounded up.
    samples: Option<u64>,
    /// Whether the samples of a bin are averaged; otherwise the largest of their terms is taken.
    is_average: bool,
}

/// Every bin of a region is the mean of samples in it (or the largest of the samples' four terms). Each sample is interpolated linearly
/// between the four elements around it.
///
/// If the number of samples depends on a region's size, memory is taken for the samples of a region as large as the image, and larger
/// regions get no more samples than that.
fn roi_align(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, regions, images) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (&[_, _, height, width], &[count, 4]) = (x.ty.shape.as_slice(), regions.ty.shape.as_slice()) else {
        return Err(view
            .error(format!("expected images [n, c, h, w] and regions [count, 4], found {} and {}", x.ty, regions.ty)));
    };
    if images.ty.shape != [count] || (x.ty.shape.contains(&0) && count > 0) {
        return Err(
            view.error(format!("{} regions of images {} do not fit the image indices {}", count, x.ty, images.ty))
        );
    }
    let is_average = match view.string("mode", "avg")? {
        "avg" => true,
        "max" => false,
        other => return Err(view.error(format!("attribute mode must be avg or max, not '{other}'"))),
    };
    // Before opset 16, there was only one way.
    let default = if view.version() < 16 { "output_half_pixel" } else { "half_pixel" };
    let half_pixel = match view.string("coordinate_transformation_mode", default)? {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => return Err(view.error(format!("unknown value '{other}' of attribute coordinate_transformation_mode"))),
    };
    let ratio = size(&view, "attribute sampling_ratio", view.int("sampling_ratio", 0)?)?;
    let bins = Bins {
        scale: view.float("spatial_scale", 1.0)?,
        shift: if half_pixel { 0.5 } else { 0.0 },
        at_least_one: !half_pixel,
        samples: Some(ratio).filter(|&ratio| ratio > 0),
        is_average,
    };
    let output = [
        size(&view, "attribute output_height", view.int("output_height", 1)?)?.max(1),
        size(&view, "attribute output_width", view.int("output_width", 1)?)?.max(1),
    ];
    if count == 0 {
        let y = sampling::nothing(&mut c, x.ty.data_type, &[0, x.ty.shape[1], output[0], output[1]]);
        return c.finish(y);
    }
    let place = product(&view, &[height, width])?;
    let index_type = sampling::index_type(product(&view, &[x.ty.shape[0], place])?);
    let regions = c.cast(&regions, sampling::place_type(x.ty.data_type));
    let mut axes = Vec::with_capacity(2);
    for (axis, &size) in [height, width].iter().enumerate() {
        let limits = (c.slice(&regions, 1, 1 - axis as u64, 1)?, c.slice(&regions, 1, 3 - axis as u64, 1)?);
        let taps = bins.taps(&mut c, limits, output[axis], size, index_type)?;
        // The bins along one axis, broadcastable along the other: [count, height or 1, 1 or width, taps].
        let spread = |c: &Composer, part: &Part| {
            let mut shape = vec![count, 1, 1, part.ty.shape[2]];
            shape[1 + axis] = output[axis];
            c.reshape(part, &shape)
        };
        let weights = taps.weights.as_ref().map(|weights| spread(&c, weights)).transpose()?;
        axes.push((Taps { indices: spread(&c, &taps.indices)?, weights }, size));
    }
    let images = c.cast(&images, index_type);
    let place = c.integers(index_type, &[], &[place as i64])?;
    let first = c.binary(BinaryOp::Multiply, &images, &place)?;
    let first = c.reshape(&first, &[count, 1, 1, 1])?;
    let taps = sampling::combined(&mut c, &first, axes)?;
    let merged = |c: &Composer, part: &Part| {
        let taps = part.ty.shape[3];
        c.reshape(part, &[count, output[0] * output[1], taps])
    };
    let weights = taps.weights.as_ref().map(|weights| merged(&c, weights)).transpose()?;
    let taps = Taps { indices: merged(&c, &taps.indices)?, weights };
    let rows = sampling::rows(&mut c, &x)?;
    let samples = if is_average {
        sampling::samples(&mut c, &rows, &taps)?
    } else {
        let terms = sampling::terms(&mut c, &rows, &taps)?;
        let largest = c.reduce(ReduceOp::Max, &[2], &terms)?;
        let largest = c.reshape(&largest, &[count, output[0] * output[1], x.ty.shape[1]])?;
        c.cast(&largest, x.ty.data_type)
    };
    let y = sampling::image(&mut c, &samples, &output)?;
    c.finish(y)
}

impl Bins {
    /// The taps of all samples of each bin along an axis, between limits [count, 1]: [count, bins, taps].
    fn taps(
        &self,
        c: &mut Composer,
        (start, end): (Part, Part),
        bins: u64,
        size: u64,
        index_type: forebay_base::DataType,
    ) -> Result<Taps, ModelError> {
        let data_type = start.ty.data_type;
        let count = start.ty.shape[0];
        let (start, end) = (c.affine(&start, self.scale, -self.shift)?, c.affine(&end, self.scale, -self.shift)?);
        let mut extent = c.binary(BinaryOp::Subtract, &end, &start)?;
        if self.at_least_one {
            let one = c.floats(data_type, &[], &[1.0])?;
            extent = c.binary(BinaryOp::Maximum, &extent, &one)?;
        }
        // A product with the rounded inverse would be wrong: 21 / 7 would be 3.0000002, which asks for a fourth sample.
        let parts = c.floats(data_type, &[], &[bins as f64])?;
        let bin = c.binary(BinaryOp::Divide, &extent, &parts)?;
        let samples = self.samples.unwrap_or(size.div_ceil(bins) + 1);
        require_few(&c.view, &[bins, samples])?;
        // The actual number of samples: the same for every region, or dependent on its size. Regions without an extent have none.
        let wanted = match self.samples {
            Some(samples) => c.floats(data_type, &[1, 1], &[samples as f64])?,
            None => c.unary(UnaryOp::Ceil, &bin)?,
        };
        let exact = match self.samples {
            Some(_) => wanted.clone(),
            None => c.unary(UnaryOp::Clip { low: 1.0, high: samples as f32 }, &wanted)?,
        };
        let numbers: Vec<f64> = (0..samples).map(|i| i as f64).collect();
        let centers: Vec<f64> = numbers.iter().map(|number| number + 0.5).collect();
        let mut numbers = c.floats(data_type, &[1, samples], &numbers)?;
        let centers = if self.samples.is_none() && !self.is_average {
            // Samples beyond a region's number repeat its last one, since terms of 0 would exceed negative ones.
            let last = c.affine(&exact, 1.0, -1.0)?;
            numbers = c.binary(BinaryOp::Minimum, &numbers, &last)?;
            c.affine(&numbers, 1.0, 0.5)?
        } else {
            c.floats(data_type, &[1, samples], &centers)?
        };
        let fractions = c.binary(BinaryOp::Divide, &centers, &exact)?;
        let fractions = c.reshape(&fractions, &[fractions.ty.shape[0], 1, samples])?;
        let firsts: Vec<f64> = (0..bins).map(|i| i as f64).collect();
        let firsts = c.floats(data_type, &[1, bins, 1], &firsts)?;
        let in_bins = c.binary(BinaryOp::Add, &firsts, &fractions)?;
        let (bin, start) = (c.reshape(&bin, &[count, 1, 1])?, c.reshape(&start, &[count, 1, 1])?);
        let positions = c.binary(BinaryOp::Multiply, &in_bins, &bin)?;
        let positions = c.binary(BinaryOp::Add, &positions, &start)?;
        // Samples more than one element outside are 0; samples less far outside are moved to the border.
        let near = c.unary(UnaryOp::Clip { low: -1.0, high: size as f32 }, &positions)?;
        let is_near = c.binary(BinaryOp::Equal, &near, &positions)?;
        let positions = sampling::clamped(c, &positions, size - 1)?;
        let positions = c.reshape(&positions, &[count, bins, samples, 1])?;
        let (positions, weights) = Polynomials::linear().at(c, &positions)?;
        let is_near = c.reshape(&is_near, &[count, bins, samples, 1])?;
        let zero = c.floats(data_type, &[], &[0.0])?;
        let mut weights = c.select(&is_near, &weights, &zero)?;
        if self.samples.is_none() {
            let is_one = c.binary(BinaryOp::Less, &numbers, &wanted)?;
            let is_one = c.reshape(&is_one, &[count, 1, samples, 1])?;
            weights = c.select(&is_one, &weights, &zero)?;
        }
        if self.is_average {
            let exact = c.reshape(&exact, &[exact.ty.shape[0], 1, 1, 1])?;
            weights = c.binary(BinaryOp::Divide, &weights, &exact)?;
        }
        let taps = [count, bins, samples * 2];
        let (positions, weights) = (c.reshape(&positions, &taps)?, c.reshape(&weights, &taps)?);
        sampling::taps(c, &positions, Some(weights), size - 1, index_type)
    }
}
