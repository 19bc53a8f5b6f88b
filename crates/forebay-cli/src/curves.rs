//! Curves over steps, for windows of any width: lines scale with the window, text does not.

use std::fmt::Write;

use crate::escape::html;

/// The approximate maximum number of points of a curve.
pub const POINTS_MAX: usize = 1000;
/// Curves with fewer points show each point.
const DOTS_MAX: usize = 60;
/// The length of each axis in the picture's units.
const UNITS: f64 = 1000.0;
/// The maximum number of lines across a picture.
const VALUE_TICKS_MAX: f64 = 6.0;
const STEP_TICKS_MAX: f64 = 6.0;

/// The part of the page's style sheet for curves.
pub const STYLE: &str = "\
.legend{margin:.3em 0 0 4.5em;font-size:13px}.legend i{display:inline-block;width:1.1em;height:.2em;margin:0 .4em .25em 0}\
.legend span+span{margin-left:1.5em}\
.chart{position:relative;height:230px;margin:.7em 1.5em 5em 4.5em;font-size:12px;line-height:1}\
.chart svg{width:100%;height:100%;display:block;overflow:visible}\
.chart path,.chart polyline{fill:none;vector-effect:non-scaling-stroke;stroke-width:1.6}\
.chart .grid{stroke:var(--line);stroke-width:1}.chart .dot{stroke-width:6;stroke-linecap:round}\
.c0{stroke:var(--first)}.c1{stroke:var(--second)}i.c0{background:var(--first)}i.c1{background:var(--second)}\
.chart span{position:absolute;white-space:nowrap;color:var(--faint)}\
.chart .y{right:calc(100% + .6em);transform:translateY(50%)}.chart .x{top:calc(100% + .6em);transform:translateX(-50%)}\
.chart .name{top:calc(100% + 2.1em);left:50%;transform:translateX(-50%)}";

/// Draws curves over steps with their axes. Each curve has a name and points, each a step and a value.
pub fn curves(curves: &[(&str, Vec<(f64, f64)>)]) -> String {
    let all = || curves.iter().flat_map(|(_, points)| points.iter().copied());
    let least = |value: fn((f64, f64)) -> f64| all().map(value).fold(f64::INFINITY, f64::min);
    let most = |value: fn((f64, f64)) -> f64| all().map(value).fold(f64::NEG_INFINITY, f64::max);
    let (mut first, mut last) = (least(|point| point.0), most(|point| point.0));
    let (mut low, mut high) = (least(|point| point.1), most(|point| point.1));
    if !low.is_finite() {
        return "<p>Nothing was recorded.</p>".to_owned();
    }
    if high - low < 1e-12 * high.abs().max(1e-300) {
        (low, high) = (low - 0.5 * low.abs().max(1e-6), high + 0.5 * high.abs().max(1e-6));
    }
    if last <= first {
        (first, last) = (first - 1.0, last + 1.0);
    }
    let every = distance(low, high, VALUE_TICKS_MAX, 0.0);
    (low, high) = ((low / every + 1e-6).floor() * every, (high / every - 1e-6).ceil() * every);
    let x = |step: f64| (step - first) / (last - first);
    let y = |value: f64| (value - low) / (high - low);
    let place = |(step, value): (f64, f64)| (UNITS * x(step), UNITS * (1.0 - y(value)));
    let (mut legend, mut lines, mut words) = (String::new(), String::new(), String::new());
    // Writing to a string cannot fail.
    for value in ticks(low, high, every) {
        let (_, at) = place((first, value));
        let _ = writeln!(lines, "<path class=\"grid\" d=\"M0 {at:.1}H{UNITS}\"/>");
        let (share, value) = (100.0 * y(value), short(value));
        let _ = writeln!(words, "<span class=\"y\" style=\"bottom:{share:.1}%\">{value}</span>");
    }
    for step in ticks(first, last, distance(first, last, STEP_TICKS_MAX, 1.0)) {
        let share = 100.0 * x(step);
        let _ = writeln!(words, "<span class=\"x\" style=\"left:{share:.1}%\">{step}</span>");
    }
    for (number, (name, points)) in curves.iter().enumerate().filter(|(_, (_, points))| !points.is_empty()) {
        if curves.len() > 1 {
            let _ = write!(legend, "<span><i class=\"c{number}\"></i>{}</span>", html(name));
        }
        let every = points.len().div_ceil(POINTS_MAX);
        // The last point is always shown.
        let shown = points.iter().enumerate().filter(|(i, _)| i % every == 0 || i + 1 == points.len());
        let shown: Vec<(f64, f64)> = shown.map(|(_, &point)| point).collect();
        let places: Vec<String> =
            shown.iter().map(|&point| place(point)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(lines, "<polyline class=\"c{number}\" points=\"{}\"/>", places.join(" "));
        for &(step, value) in shown.iter().filter(|_| shown.len() <= DOTS_MAX) {
            let ((x, y), value) = (place((step, value)), short(value));
            let title = format!("{}, step {step}: {value}", html(name));
            let _ =
                writeln!(lines, "<path class=\"dot c{number}\" d=\"M{x:.1} {y:.1}h0\"><title>{title}</title></path>");
        }
    }
    format!(
        "<div class=\"legend\">{legend}</div>\n<div class=\"chart\">\n<svg viewBox=\"0 0 {UNITS} {UNITS}\" \
         preserveAspectRatio=\"none\" role=\"img\">\n{lines}</svg>\n{words}<span class=\"name\">step</span>\n</div>"
    )
}

/// Returns the distance between the ticks of a range: 1, 2 or 5 times a power of ten, at least `least`, and large enough for at most `most`
/// intervals.
fn distance(low: f64, high: f64, most: f64, least: f64) -> f64 {
    let rough = ((high - low) / most).max(least);
    let power = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= rough * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

/// Returns the multiples of a distance in a range.
fn ticks(low: f64, high: f64, every: f64) -> Vec<f64> {
    let (begin, end) = ((low / every - 1e-6).ceil(), (high / every + 1e-6).floor());
    (0..=(end - begin) as i64).map(|i| (begin + i as f64) * every).collect()
}

/// Formats a number with four digits.
fn short(number: f64) -> String {
    let rounded: f64 = format!("{number:.3e}").parse().unwrap_or(number);
    match rounded.abs() {
        size if size != 0.0 && !(1e-4..1e6).contains(&size) => format!("{rounded:e}"),
        _ => rounded.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_that_is_flat_or_empty_has_its_axes() {
        assert!(curves(&[("a", Vec::new())]).contains("Nothing"));
        for points in [vec![(1.0, 0.1), (2.0, 0.1)], vec![(7.0, 0.1)]] {
            let flat = curves(&[("a", points)]);
            assert!(flat.contains(">0.04<") && flat.contains(">0.16<"), "{flat}");
            assert!(!flat.contains("NaN") && !flat.contains("inf"), "{flat}");
        }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let steps = |first: f64, last: f64| ticks(first, last, distance(first, last, 6.0, 1.0));
        assert_eq!(steps(1.0, 6.0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(steps(1.0, 3000.0), [500.0, 1000.0, 1500.0, 2000.0, 2500.0, 3000.0]);
        assert_eq!(steps(6.0, 8.0), [6.0, 7.0, 8.0]);
        let small = ticks(0.0, 0.01, distance(0.0012, 0.0098, 5.0, 0.0));
        let small: Vec<String> = small.into_iter().map(short).collect();
        assert_eq!(small, ["0", "0.002", "0.004", "0.006", "0.008", "0.01"]);
    }
}
