//! The functions of gates and states, and their slopes, for several units at once.

use forebay_base::kernel::RecurrentActivation;

use super::super::math::{exp_f32, exp_minus_one_f32, exp_plus_one_f32, ln_one_plus_f32, tanh_f32};
use super::super::parallel::wide;
use super::super::simd;

/// Limits x to -limit..limit; NaN stays NaN.
#[inline(always)]
fn limited(x: f32, limit: Option<f32>) -> f32 {
    let Some(limit) = limit else { return x };
    simd::limited(x, -limit, limit)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / exp_plus_one_f32(-x)
}

/// ln(1 + exp(x)) without overflow.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    (if x > 0.0 { x } else { 0.0 }) + ln_one_plus_f32(exp_f32(-x.abs()))
}

#[inline(always)]
fn each(values: &mut [f32], limit: Option<f32>, f: impl Fn(f32) -> f32) {
    if limit.is_none() {
        for x in values {
            *x = f(*x);
        }
        return;
    }
    for x in values {
        *x = f(limited(*x, limit));
    }
}

/// Applies a function to numbers that are first limited to -limit..limit, as vector code.
pub(super) fn apply(activation: RecurrentActivation, limit: Option<f32>, values: &mut [f32]) {
    wide(
        #[inline(always)]
        || apply_each(activation, limit, values),
    );
}

#[inline(always)]
#[allow(clippy::redundant_closure, reason = "a function that is passed need not be inlined")]
fn apply_each(activation: RecurrentActivation, limit: Option<f32>, values: &mut [f32]) {
    match activation {
        RecurrentActivation::Tanh => each(values, limit, tanh_f32),
        RecurrentActivation::Sigmoid => each(values, limit, sigmoid),
        RecurrentActivation::Relu => each(values, limit, |x| if x < 0.0 { 0.0 } else { x }),
        RecurrentActivation::Affine { alpha, beta } => each(values, limit, |x| alpha * x + beta),
        RecurrentActivation::LeakyRelu { alpha } => each(values, limit, |x| if x < 0.0 { alpha * x } else { x }),
        RecurrentActivation::ThresholdedRelu { alpha } => each(values, limit, |x| if x <= alpha { 0.0 } else { x }),
        RecurrentActivation::ScaledTanh { alpha, beta } => each(
            values,
            limit,
            #[inline(always)]
            |x| alpha * tanh_f32(beta * x),
        ),
        RecurrentActivation::HardSigmoid { alpha, beta } => {
            each(values, limit, |x| simd::limited(alpha * x + beta, 0.0, 1.0));
        }
        RecurrentActivation::Elu { alpha } => each(
            values,
            limit,
            #[inline(always)]
            |x| if x < 0.0 { alpha * exp_minus_one_f32(x) } else { x },
        ),
        RecurrentActivation::Softsign => each(values, limit, |x| x / (1.0 + x.abs())),
        RecurrentActivation::Softplus => each(
            values,
            limit,
            #[inline(always)]
            |x| softplus(x),
        ),
    }
}

#[inline(always)]
fn slope_each(xs: &[f32], ys: &[f32], limit: Option<f32>, slopes: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    let cut = limit.unwrap_or(f32::INFINITY);
    for ((slope, &x), &y) in slopes.iter_mut().zip(xs).zip(ys) {
        let inner = f(limited(x, limit), y);
        // A value that was cut does not affect the result.
        *slope = if x.abs() > cut { 0.0 } else { inner };
    }
}

/// The slopes of a function at `xs`, where its values are `ys`; 0 where x is cut. Computed as vector code.
pub(super) fn slopes(
    activation: RecurrentActivation,
    limit: Option<f32>,
    (xs, ys): (&[f32], &[f32]),
    slopes: &mut [f32],
) {
    wide(
        #[inline(always)]
        || slopes_each(activation, limit, (xs, ys), slopes),
    );
}

#[inline(always)]
fn slopes_each(activation: RecurrentActivation, limit: Option<f32>, (xs, ys): (&[f32], &[f32]), slopes: &mut [f32]) {
    match activation {
        RecurrentActivation::Tanh => slope_each(xs, ys, limit, slopes, |_, y| 1.0 - y * y),
        RecurrentActivation::Sigmoid => slope_each(xs, ys, limit, slopes, |_, y| y * (1.0 - y)),
        RecurrentActivation::Relu => slope_each(xs, ys, limit, slopes, |x, _| if x > 0.0 { 1.0 } else { 0.0 }),
        RecurrentActivation::Affine { alpha, .. } => slope_each(xs, ys, limit, slopes, |_, _| alpha),
        RecurrentActivation::LeakyRelu { alpha } => {
            slope_each(xs, ys, limit, slopes, |x, _| if x > 0.0 { 1.0 } else { alpha });
        }
        RecurrentActivation::ThresholdedRelu { alpha } => {
            slope_each(xs, ys, limit, slopes, |x, _| if x > alpha { 1.0 } else { 0.0 });
        }
        RecurrentActivation::ScaledTanh { alpha, beta } => slope_each(
            xs,
            ys,
            limit,
            slopes,
            #[inline(always)]
            |x, _| {
                let tanh = tanh_f32(beta * x);
                alpha * beta * (1.0 - tanh * tanh)
            },
        ),
        RecurrentActivation::HardSigmoid { alpha, beta } => slope_each(xs, ys, limit, slopes, |x, _| {
            let line = alpha * x + beta;
            if line > 0.0 && line < 1.0 { alpha } else { 0.0 }
        }),
        RecurrentActivation::Elu { alpha } => {
            slope_each(
                xs,
                ys,
                limit,
                slopes,
                #[inline(always)]
                |x, _| if x > 0.0 { 1.0 } else { alpha * exp_f32(x) },
            );
        }
        RecurrentActivation::Softsign => slope_each(xs, ys, limit, slopes, |x, _| {
            let divisor = 1.0 + x.abs();
            1.0 / (divisor * divisor)
        }),
        RecurrentActivation::Softplus => slope_each(
            xs,
            ys,
            limit,
            slopes,
            #[inline(always)]
            |x, _| sigmoid(x),
        ),
    }
}
