//! Discrete Fourier transforms, as products with constant matrices.
//!
//! A transform of length n of m signals is a product of m x n and n x n complex numbers, whose matrix is computed in float64: it takes n^2
//! memory and n^2 m operations. Devices do this best for lengths up to a few thousand; longer transforms are rejected.

use std::f64::consts::TAU;

use forebay_base::kernel::BinaryOp;

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::take;
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("DFT", fourier), composed!("STFT", short_time_fourier)];

/// Largest number of elements of a transform's matrix.
const MATRIX_MAX: u64 = 1 << 26;

/// A transform along an axis.
struct Transform {
    /// Its length: signals are truncated or padded with zeros to it.
    length: u64,
    is_inverse: bool,
    /// Whether only the first half of the spectrum is computed or given.
    is_onesided: bool,
}

impl Transform {
    /// The number of elements of the result, and of parts of each (1 real, 2 complex).
    fn result(&self) -> (u64, u64) {
        match (self.is_inverse, self.is_onesided) {
            (true, true) => (self.length, 1),
            (false, true) => (self.length / 2 + 1, 2),
            (_, false) => (self.length, 2),
        }
    }

    /// The matrix for signals of `given` numbers with `parts` parts each: a row for each part of a given number, a column for each part of
    /// a number of the result.
    fn matrix(&self, given: u64, parts: u64) -> Vec<f64> {
        let n = self.length;
        let (count, result_parts) = self.result();
        let columns = (count * result_parts) as usize;
        let mut matrix = vec![0.0; (given * parts) as usize * columns];
        let sign = if self.is_inverse { 1.0 } else { -1.0 };
        let factor = if self.is_inverse { 1.0 / n as f64 } else { 1.0 };
        let used = if self.is_inverse && self.is_onesided { n / 2 + 1 } else { n };
        for j in 0..given.min(used) {
            // The omitted half of a spectrum mirrors the other half, except for the first number and the middle one.
            let mirrored = self.is_inverse && self.is_onesided && j != 0 && 2 * j != n;
            let factor = if mirrored { 2.0 * factor } else { factor };
            for k in 0..count {
                let angle = sign * TAU * ((u128::from(j) * u128::from(k)) % u128::from(n)) as f64 / n as f64;
                let (real, imaginary) = (factor * libm::cos(angle), factor * libm::sin(angle));
                let mut set = |part: u64, result_part: u64, value: f64| {
                    matrix[(j * parts + part) as usize * columns + (k * result_parts + result_part) as usize] = value;
                };
                set(0, 0, real);
                if result_parts == 2 {
                    set(0, 1, imaginary);
                }
                if parts == 2 {
                    set(1, 0, -imaginary);
                    if result_parts == 2 {
                        set(1, 1, real);
                    }
                }
            }
        }
        matrix
    }

    /// The transform of signals [.., numbers, parts].
    fn of(&self, c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
        let &[ref outer @ .., given, parts] = x.ty.shape.as_slice() else {
            return Err(c.view.error(format!("{} has no axis of real and imaginary parts", x.ty)));
        };
        let (count, result_parts) = self.result();
        let (inner, columns) = (product(&c.view, &[given, parts])?, product(&c.view, &[count, result_parts])?);
        if inner.checked_mul(columns).is_none_or(|elements| elements > MATRIX_MAX) {
            return Err(c.view.error(format!(
                "a transform of length {} of {given} numbers needs a matrix of more than {MATRIX_MAX} elements; split the signal \
                 or transform it before the model",
                self.length
            )));
        }
        let rows = product(&c.view, outer)?;
        let matrix = self.matrix(given, parts);
        let matrix = c.floats(x.ty.data_type, &[inner, columns], &matrix)?;
        let signals = c.reshape(x, &[rows, inner])?;
        let y = super::products::product(c, (&signals, false), (&matrix, false), &[rows, columns])?;
        c.reshape(&y, &[outer, &[count, result_parts]].concat())
    }
}

/// The axis is an attribute before opset 20, an input from then on.
fn fourier(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    let axis = match view.version() {
        ..20 => view.int("axis", 1)?,
        _ if view.has_input(2) => view.constant_integer(2)?,
        _ => -2,
    };
    let axis = view.axis(axis, rank)?;
    if rank < 2 || axis == rank - 1 || !matches!(x.ty.shape[rank - 1], 1 | 2) {
        return Err(view.error(format!("axis {axis} of {} is not a signal of real (1) or complex (2) numbers", x.ty)));
    }
    let (is_inverse, is_onesided) = (view.int("inverse", 0)? != 0, view.int("onesided", 0)? != 0);
    let given = x.ty.shape[axis];
    let length = match view.has_input(1) {
        true => size(&view, "the length", view.constant_integer(1)?)?,
        false if is_inverse && is_onesided => 2 * given.saturating_sub(1),
        false => given,
    };
    if length == 0 {
        return Err(view.error(format!("the transform along axis {axis} of {} has length 0", x.ty)));
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.remove(axis);
    order.insert(rank - 2, axis);
    let signals = c.transpose(&x, &order)?;
    let y = Transform { length, is_inverse, is_onesided }.of(&mut c, &signals)?;
    let mut back = vec![0; rank];
    for (i, &axis) in order.iter().enumerate() {
        back[axis] = i;
    }
    let y = c.transpose(&y, &back)?;
    c.finish(y)
}

/// Windows of a signal at regular steps, each weighted and transformed.
fn short_time_fourier(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let (batch, samples, parts) = match *x.ty.shape.as_slice() {
        [batch, samples] => (batch, samples, 1),
        [batch, samples, parts @ (1 | 2)] => (batch, samples, parts),
        _ => return Err(view.error(format!("expected signals [batch, samples, 1 or 2], found {}", x.ty))),
    };
    let step = size(&view, "the step", view.constant_integer(1)?)?;
    let window = if view.has_input(2) { Some(c.input(2)?) } else { None };
    let weights = window.as_ref().map_or(samples, |window| window.ty.count());
    let length = if view.has_input(3) { size(&view, "the length", view.constant_integer(3)?)? } else { weights };
    let taken = weights.min(length);
    let Some(free) = samples.checked_sub(length).filter(|_| step > 0 && taken > 0) else {
        return Err(view.error(format!("frames of length {length} at steps of {step} do not fit the signals {}", x.ty)));
    };
    let frames = free / step + 1;
    if frames.checked_mul(taken).is_none_or(|count| count > MATRIX_MAX) {
        return Err(view.error(format!("{frames} frames of {taken} samples need more than {MATRIX_MAX} indices")));
    }
    let is_onesided = view.int("onesided", 1)? != 0;
    let indices: Vec<i64> = (0..frames).flat_map(|frame| (0..taken).map(move |i| (frame * step + i) as i64)).collect();
    let signals = c.reshape(&x, &[batch, samples, parts])?;
    let framed = take(&mut c, &signals, 1, &indices);
    let mut framed = c.reshape(&framed, &[batch, frames, taken, parts])?;
    if let Some(window) = window {
        let window = c.reshape(&window, &[weights, 1])?;
        let window = c.slice(&window, 0, 0, taken)?;
        framed = c.binary(BinaryOp::Multiply, &framed, &window)?;
    }
    let y = Transform { length, is_inverse: false, is_onesided }.of(&mut c, &framed)?;
    c.finish(y)
}
