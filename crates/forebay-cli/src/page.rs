//! A run on a page: an HTML file that needs no other.

use std::fmt::Write;

use forebay::{DeviceDescription, DeviceName};
use serde_json::Value;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;
/// A curve has at most about this many points.
const POINTS_MAX: usize = 1000;
const COLORS: [&str; 2] = ["#1f5fa8", "#c8502a"];
const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}svg{max-width:100%;height:auto}\
pre{background:#f4f4f2;padding:.8em;overflow-x:auto;font-size:13px}table{border-collapse:collapse}\
td{padding:.15em 1em .15em 0;vertical-align:top}";

/// What the page shows.
pub struct Page<'a> {
    /// The model's path.
    pub model: &'a str,
    /// What the data set holds, in a line.
    pub data: &'a str,
    /// What the run was asked for.
    pub configuration: &'a str,
    /// The device.
    pub device: &'a DeviceName,
    /// The lines of the record.
    pub lines: &'a [Value],
    /// The report, as it is printed.
    pub report: &'a [String],
    /// Memory over a step, as a picture.
    pub memory: Option<&'a str>,
}

impl Page<'_> {
    /// The page.
    pub fn html(&self) -> String {
        let title = format!("Training {}", self.model);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
             </head>\n<body>\n<h1>{}</h1>\n",
            escaped(&title),
            escaped(&title)
        );
        let mut section = |name: &str, content: String| {
            // Writing into a string does not fail.
            let _ = write!(page, "<h2>{name}</h2>\n{content}\n");
        };
        let points = |kind: &str, key: &str| -> Vec<(f64, f64)> {
            let of_kind = self.lines.iter().filter(|line| line["kind"] == kind);
            let point = |line: &Value| Some((line.get("step")?.as_f64()?, line.get(key)?.as_f64()?));
            of_kind.filter_map(point).filter(|point| point.1.is_finite()).collect()
        };
        section("Data", format!("<p>{}</p>", escaped(self.data)));
        let losses = [("training", points("step", "loss")), ("validation", points("validation", "loss"))];
        section("Loss", curves(&losses));
        section("Learning rate", curves(&[("learning rate", points("step", "learning_rate"))]));
        section(
            "Seconds per step",
            curves(&[("the step", points("step", "seconds")), ("waiting for data", points("step", "data_seconds"))]),
        );
        section("Memory, moves and time", format!("<pre>{}</pre>", escaped(&self.report.join("\n"))));
        self.memory.into_iter().for_each(|picture| section("Memory over a step", picture.to_owned()));
        section("What was asked for", format!("<pre>{}</pre>", escaped(self.configuration)));
        let rows = self
            .machine()
            .into_iter()
            .map(|(name, value)| format!("<tr><td>{name}</td><td>{}</td></tr>", escaped(&value)));
        section("Machine and versions", format!("<table>\n{}\n</table>", rows.collect::<Vec<_>>().join("\n")));
        page + "</body>\n</html>\n"
    }

    fn machine(&self) -> Vec<(&'static str, String)> {
        let devices = forebay::devices().unwrap_or_default();
        let device = devices.iter().find(|device| device.name == self.device.to_string());
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
        let threads = std::thread::available_parallelism().map_or(0, usize::from);
        vec![
            (
                "device",
                device.map_or(self.device.to_string(), |DeviceDescription { name, description, .. }| {
                    format!("{name}: {description}")
                }),
            ),
            ("processor", format!("{}, {threads} threads", cpu.unwrap_or_else(|| "not known".to_owned()))),
            ("system", format!("Linux {}", read("/proc/sys/kernel/osrelease").trim())),
            ("Forebay", env!("CARGO_PKG_VERSION").to_owned()),
        ]
    }
}

/// Curves over steps, as a picture with axes.
fn curves(curves: &[(&str, Vec<(f64, f64)>)]) -> String {
    let all = || curves.iter().flat_map(|(_, points)| points.iter().copied());
    let least = |value: fn((f64, f64)) -> f64| all().map(value).fold(f64::INFINITY, f64::min);
    let most = |value: fn((f64, f64)) -> f64| all().map(value).fold(f64::NEG_INFINITY, f64::max);
    let (first, last) = (least(|point| point.0), most(|point| point.0));
    let (mut low, mut high) = (least(|point| point.1), most(|point| point.1));
    if !low.is_finite() {
        return "<p>Nothing was recorded.</p>".to_owned();
    }
    if high - low < 1e-12 * high.abs().max(1e-300) {
        (low, high) = (low - 0.5 * low.abs().max(1e-6), high + 0.5 * high.abs().max(1e-6));
    }
    let x = |step: f64| LEFT + (step - first) / (last - first).max(1.0) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut picture = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n");
    let mut add = |element: String| {
        let _ = writeln!(picture, "{element}");
    };
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        let value = low + share * (high - low);
        let (at, end) = (y(value), WIDTH - RIGHT);
        add(format!("<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"));
        add(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 6.0, at + 4.0, short(value)));
        let step = (first + share * (last - first)).round();
        add(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{step}</text>",
            x(step),
            HEIGHT - BOTTOM + 16.0
        ));
    }
    add(format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0
    ));
    for (number, (name, points)) in curves.iter().enumerate().filter(|(_, (_, points))| !points.is_empty()) {
        let color = COLORS[number % COLORS.len()];
        let every = points.len().div_ceil(POINTS_MAX);
        // The last point is always shown.
        let shown = points.iter().enumerate().filter(|(i, _)| i % every == 0 || i + 1 == points.len());
        let shown: Vec<String> = shown.map(|(_, &(step, value))| format!("{:.1},{:.1}", x(step), y(value))).collect();
        add(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>",
            shown.join(" ")
        ));
        if shown.len() <= 60 {
            for point in &shown {
                let (x, y) = point.split_once(',').unwrap_or_default();
                add(format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"2.5\" fill=\"{color}\"/>"));
            }
        }
        let (left, top) = (WIDTH - RIGHT - 150.0, TOP + 12.0 + 18.0 * number as f64);
        add(format!("<rect x=\"{left}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{color}\"/>", top - 10.0));
        add(format!("<text x=\"{}\" y=\"{top}\">{}</text>", left + 18.0, escaped(name)));
    }
    picture + "</svg>"
}

/// A number with four digits.
fn short(number: f64) -> String {
    let rounded: f64 = format!("{number:.3e}").parse().unwrap_or(number);
    match rounded.abs() {
        size if size != 0.0 && !(1e-4..1e6).contains(&size) => format!("{rounded:e}"),
        _ => rounded.to_string(),
    }
}

/// Text as HTML has it.
fn escaped(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() && letter != '\n' { ' ' } else { letter };
    let text: String = text.chars().map(plain).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_shows_curves_and_needs_nothing_else() {
        let line = |kind: &str, step: u64, loss: f64| json!({ "kind": kind, "step": step, "loss": loss, "learning_rate": 0.1, "seconds": 0.5 });
        let mut lines: Vec<Value> = (1..=3000).map(|step| line("step", step, 1.0 / step as f64)).collect();
        lines.push(json!({ "kind": "step", "step": 3001, "loss": null }));
        lines.push(line("validation", 3000, 0.25));
        let page = Page {
            model: "<script>.onnx",
            data: "d & e",
            configuration: "batch-size = 4\n",
            device: &DeviceName::default(),
            lines: &lines,
            report: &["loss  0.5".to_owned()],
            memory: Some("<svg></svg>"),
        };
        let html = page.html();
        for words in [
            "Training &lt;script&gt;.onnx",
            "d &amp; e",
            "batch-size = 4",
            "validation</text>",
            "loss  0.5",
            env!("CARGO_PKG_VERSION"),
        ] {
            assert!(html.contains(words), "{words}");
        }
        for outside in ["src=", "href=", "url(", "<script"] {
            assert!(!html.contains(outside), "{outside}");
        }
        let longest =
            html.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap().split(' ').count()).max();
        assert!(longest.unwrap() <= POINTS_MAX + 1, "{longest:?}");
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    }

    #[test]
    fn a_curve_that_is_flat_or_empty_has_its_axes() {
        assert!(curves(&[("a", Vec::new())]).contains("Nothing"));
        let flat = curves(&[("a", vec![(1.0, 0.1), (2.0, 0.1)])]);
        assert!(
            flat.contains("0.05<") && flat.contains("0.15<") && !flat.contains("NaN") && !flat.contains("inf"),
            "{flat}"
        );
    }
}
