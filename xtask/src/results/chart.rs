//! A line chart with one axis, as a picture.

use std::fmt::Write;

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;

/// Times relative to one that counts as 1, plotted over a quantity.
pub struct Chart<'a> {
    /// The title above the chart.
    pub title: &'a str,
    /// The label of the horizontal axis.
    pub axis: &'a str,
    /// The ends of the axis.
    pub span: [f64; 2],
    /// The numbers written below the axis.
    pub marks: Vec<f64>,
    /// The position of a vertical line on the axis.
    pub line: Option<f64>,
    /// The lines, in the order of the legend.
    pub lines: Vec<Line<'a>>,
}

/// One line.
pub struct Line<'a> {
    /// Its label.
    pub name: &'a str,
    /// Its color.
    pub color: &'a str,
    /// Whether it is dashed and without dots.
    pub dashed: bool,
    /// Its points from left to right: position on the axis and time.
    pub points: Vec<(f64, f64)>,
}

impl Chart<'_> {
    /// Draws the picture.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let [from, to] = self.span;
        let most = (points().map(|point| point.1).fold(1.0, f64::max) * 4.0).ceil() / 4.0;
        let x = |place: f64| LEFT + (place - from) / (to - from) * (WIDTH - LEFT - RIGHT);
        let y = |time: f64| HEIGHT - BOTTOM - time / most * (HEIGHT - TOP - BOTTOM);
        let mut picture = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let mut add = |element: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(picture, "{element}");
        };
        add(text(LEFT, 26.0, "start", self.title));
        let step = if most > 4.0 { 1.0 } else { 0.25 };
        for mark in 0..=(most / step) as u32 {
            let time = f64::from(mark) * step;
            add(line([x(from), y(time)], [x(to), y(time)], "#dddddd"));
            add(text(LEFT - 8.0, y(time) + 4.0, "end", &format!("{time}")));
        }
        for &mark in &self.marks {
            add(line([x(mark), y(0.0)], [x(mark), y(0.0) + 5.0], "#333333"));
            add(text(x(mark), y(0.0) + 20.0, "middle", &format!("{mark}")));
        }
        if let Some(place) = self.line {
            add(line([x(place), y(0.0)], [x(place), y(most)], "#999999"));
        }
        add(text((x(from) + x(to)) / 2.0, HEIGHT - 14.0, "middle", self.axis));
        for (row, Line { name, color, dashed, points }) in self.lines.iter().enumerate() {
            let at: Vec<String> =
                points.iter().map(|&(place, time)| format!("{:.1},{:.1}", x(place), y(time))).collect();
            let dashes = if *dashed { " stroke-dasharray=\"6 4\"" } else { "" };
            add(format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dashes}/>",
                at.join(" ")
            ));
            for &(place, time) in points.iter().filter(|_| !dashed) {
                add(format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>", x(place), y(time)));
            }
            let height = TOP + 10.0 + 22.0 * row as f64;
            add(line([WIDTH - RIGHT + 16.0, height], [WIDTH - RIGHT + 40.0, height], color));
            add(text(WIDTH - RIGHT + 46.0, height + 4.0, "start", name));
        }
        picture + "</svg>\n"
    }
}

fn line([x1, y1]: [f64; 2], [x2, y2]: [f64; 2], color: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\"/>")
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>")
}
