//! Lines of all modes over sizes, as a picture.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Point;

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;

/// Modes with their colours, in the order of the legend.
const COLORS: [(&str, &str); 5] = [
    ("plain", "#333333"),
    ("planned", "#3a7d44"),
    ("direct", "#4878a8"),
    ("cooperative", "#c58a1a"),
    ("automatic", "#d1603d"),
];

/// The picture: time of a step against plain memory without a budget.
pub fn svg(model: &str, lines: &BTreeMap<&str, Vec<Point>>) -> String {
    let points = || lines.values().flatten();
    let size_max = points().map(|point| point.size).fold(1.0, f64::max);
    let ratio_max = (points().map(|point| point.ratio).fold(1.0, f64::max) * 4.0).ceil() / 4.0;
    let x = |size: f64| LEFT + (size - 0.5) / (size_max - 0.5) * (WIDTH - LEFT - RIGHT);
    let y = |ratio: f64| HEIGHT - BOTTOM - ratio / ratio_max * (HEIGHT - TOP - BOTTOM);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut add = |element: String| {
        // Writing into a string does not fail.
        let _ = writeln!(picture, "{element}");
    };
    add(text(LEFT, 26.0, "start", &format!("Time of a training step against plain memory without a limit; {model}")));
    let step = if ratio_max > 4.0 { 1.0 } else { 0.25 };
    for mark in 0..=(ratio_max / step) as u32 {
        let ratio = f64::from(mark) * step;
        add(line(x(0.5), y(ratio), x(size_max), y(ratio), "#dddddd"));
        add(text(LEFT - 8.0, y(ratio) + 4.0, "end", &format!("{ratio}")));
    }
    for mark in 1..=(size_max * 2.0) as u32 {
        let size = f64::from(mark) / 2.0;
        add(line(x(size), y(0.0), x(size), y(0.0) + 5.0, "#333333"));
        add(text(x(size), y(0.0) + 20.0, "middle", &format!("{size}")));
    }
    add(line(x(1.0), y(0.0), x(1.0), y(ratio_max), "#999999"));
    let middle = (x(0.5) + x(size_max)) / 2.0;
    add(text(middle, HEIGHT - 14.0, "middle", "memory of the model without a limit / memory of the device"));
    for (row, (name, color)) in COLORS.into_iter().enumerate() {
        let Some(points) = lines.get(name) else { continue };
        let at: Vec<String> =
            points.iter().map(|point| format!("{:.1},{:.1}", x(point.size), y(point.ratio))).collect();
        add(format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>", at.join(" ")));
        for point in points {
            let (x, y) = (x(point.size), y(point.ratio));
            add(format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>"));
        }
        let place = TOP + 10.0 + 22.0 * row as f64;
        add(line(WIDTH - RIGHT + 16.0, place, WIDTH - RIGHT + 40.0, place, color));
        add(text(WIDTH - RIGHT + 46.0, place + 4.0, "start", name));
    }
    picture + "</svg>\n"
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64, color: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\"/>")
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>")
}
