//! Constant window functions and mel-scale weights, all computed in float64.

use std::f64::consts::TAU;

use forebay_base::{DataType, Tensor};

use super::conversion::type_attribute;
use super::decomposition::{Composer, Decomposition, composed};
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::operator::{Gradient, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    Operator { gradient: Gradient::Zero, ..composed!("BlackmanWindow", |view| window(view, &[0.42, -0.5, 0.08])) },
    Operator {
        gradient: Gradient::Zero,
        ..composed!("HammingWindow", |view| window(view, &[25.0 / 46.0, -21.0 / 46.0]))
    },
    Operator { gradient: Gradient::Zero, ..composed!("HannWindow", |view| window(view, &[0.5, -0.5])) },
    Operator { gradient: Gradient::Zero, ..composed!("MelWeightMatrix", mel_weights) },
];

/// Largest number of elements of a window or matrix created here.
const COUNT_MAX: u64 = 1 << 24;

/// A sum of cosines of the whole multiples of an angle, starting at 0.
fn window(view: NodeView, coefficients: &[f64]) -> Result<Decomposition, ModelError> {
    let length = size(&view, "the size", view.constant_integer(0)?)?;
    let period = if view.int("periodic", 1)? != 0 { length } else { length.saturating_sub(1) };
    let element = |i: u64| -> f64 {
        let angle = TAU * i as f64 / period.max(1) as f64;
        let terms = coefficients.iter().enumerate();
        // From the last term on, so that the largest element of each window is exactly 1.
        terms.rev().map(|(multiple, coefficient)| coefficient * libm::cos(multiple as f64 * angle)).sum()
    };
    constant(view, &[length], element)
}

/// Triangles over the bins of the spectrum whose corners are equally spaced on the mel scale.
fn mel_weights(view: NodeView) -> Result<Decomposition, ModelError> {
    let bands = size(&view, "the number of bands", view.constant_integer(0)?)?;
    let length = size(&view, "the transform's length", view.constant_integer(1)?)?;
    let (rate, low, high) = (view.constant_number(2)?, view.constant_number(3)?, view.constant_number(4)?);
    let bins = length / 2 + 1;
    product(&view, &[bins, bands])?;
    let mel = |hertz: f64| 2595.0 * libm::log10(1.0 + hertz / 700.0);
    let step = (mel(high) - mel(low)) / (bands as f64 + 2.0);
    let corner = |i: u64| {
        let hertz = 700.0 * (libm::pow(10.0, (i as f64 * step + mel(low)) / 2595.0) - 1.0);
        ((length as f64 + 1.0) * hertz / rate).floor()
    };
    if rate <= 0.0 || !corner(bands + 1).is_finite() {
        return Err(view.error(format!("a sample rate of {rate} with limits {low} and {high} has no bands")));
    }
    constant(view, &[bins, bands], |i| {
        let (bin, band) = ((i / bands) as f64, i % bands);
        let (left, center, right) = (corner(band), corner(band + 1), corner(band + 2));
        if bin >= center && bin < right {
            (right - bin) / (right - center)
        } else if bin == center {
            1.0
        } else if bin >= left && bin < center {
            (bin - left) / (center - left)
        } else {
            0.0
        }
    })
}

/// A constant of the type that the node requests.
fn constant(view: NodeView, shape: &[u64], element: impl Fn(u64) -> f64) -> Result<Decomposition, ModelError> {
    let count = product(&view, shape)?;
    if count > COUNT_MAX {
        return Err(view.error(format!("{count} elements are more than the maximum of {COUNT_MAX}")));
    }
    let stated = view.attribute("output_datatype").map(|_| type_attribute(&view, "output_datatype"));
    let data_type = stated.unwrap_or(Ok(DataType::Float32))?;
    let values: Vec<f64> = (0..count).map(element).collect();
    let mut c = Composer::new(view);
    let y = if data_type.is_float() {
        c.floats(data_type, shape, &values)?
    } else {
        let integers: Vec<i64> = values.iter().map(|&value| value as i64).collect();
        let y = c.constant(Tensor::from_i64(shape, &integers));
        c.cast(&y, data_type)
    };
    c.finish(y)
}
