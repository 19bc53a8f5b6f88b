//! A page about a run: a self-contained HTML file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use forebay::{DeviceDescription, DeviceName};
use serde_json::Value;

use crate::curves::{STYLE as CURVES_STYLE, curves};
use crate::escape::html;

/// The content security policy: the page loads nothing and runs no scripts.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// The colors of the light and dark themes. A picture of memory has its own colors, except for its background and text.
const STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--text:#222;--faint:#666;--line:#ddd;--box:#f4f4f2;--first:#1f5fa8;--second:#c8502a}\
@media(prefers-color-scheme:dark){:root{--back:#16181b;--text:#dcdcdc;--faint:#9a9a9a;--line:#3a3d42;--box:#212429;--first:#6aa9ee;\
--second:#f08a5d}}\
body{font:15px/1.5 sans-serif;max-width:900px;margin:2em auto;padding:0 1em;background:var(--back);color:var(--text)}\
h1{font-size:1.5em;line-height:1.25}h2{font-size:1.15em;margin-top:2em}h1,p,td{overflow-wrap:anywhere}\
pre{background:var(--box);padding:.8em;overflow-x:auto;font-size:13px}table{border-collapse:collapse}\
td{padding:.15em 1em .15em 0;vertical-align:top}td:first-child{color:var(--faint);overflow-wrap:normal}\
.work p{display:flex;flex-wrap:wrap;justify-content:space-between;margin:.6em 0 .1em}\
.work i{display:block;height:.5em;min-width:1px;background:var(--first)}\
.memory{overflow-x:auto}.memory svg{display:block;min-width:860px;width:100%;height:auto}\
.memory text{fill:var(--text)}.memory line{stroke:var(--line)}.memory svg>rect:first-child{fill:var(--back)}\
.memory rect[fill=\"#eeeeee\"]{fill:var(--box)}";

/// The maximum number of kinds of work that are shown; the others are combined.
const KINDS_MAX: usize = 12;

/// The contents of the page.
pub struct Page<'a> {
    /// The model's path.
    pub model: &'a str,
    /// The contents of the data set, in one line.
    pub data: &'a str,
    /// The configuration of the run.
    pub configuration: &'a str,
    /// The device.
    pub device: &'a DeviceName,
    /// The lines of the record.
    pub lines: &'a [Value],
    /// The report, as it is printed.
    pub report: &'a [String],
    /// A picture of memory over a step; `None` if no plan determines it.
    pub memory: Option<&'a str>,
    /// The durations of a step's launches, as `--save-costs` writes them.
    pub costs: &'a Value,
}

impl Page<'_> {
    /// Returns the page as HTML.
    pub fn html(&self) -> String {
        let name = Path::new(self.model).file_name().map_or(self.model.into(), |name| name.to_string_lossy());
        let title = html(&format!("Training {name}"));
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>{STYLE}{CURVES_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        let mut section = |name: &str, content: String| {
            // Writing to a string cannot fail.
            let _ = write!(page, "<h2>{name}</h2>\n{content}\n");
        };
        let points = |kind: &str, key: &str| -> Vec<(f64, f64)> {
            let of_kind = self.lines.iter().filter(|line| line["kind"] == kind);
            let point = |line: &Value| Some((line.get("step")?.as_f64()?, line.get(key)?.as_f64()?));
            of_kind.filter_map(point).filter(|point| point.1.is_finite()).collect()
        };
        section("Data", format!("<p>{}</p>", html(self.data)));
        let losses = [("training", points("step", "loss")), ("validation", points("validation", "loss"))];
        section("Loss", curves(&losses));
        for metric in self.metrics() {
            section(&html(&format!("Validation: {metric}")), curves(&[(metric, points("validation", metric))]));
        }
        section("Learning rate", curves(&[("learning rate", points("step", "learning_rate"))]));
        section(
            "Seconds per step",
            curves(&[("the step", points("step", "seconds")), ("waiting for data", points("step", "data_seconds"))]),
        );
        section("Memory, moves and time", format!("<pre>{}</pre>", html(&self.report.join("\n"))));
        if self.memory.is_some() {
            section("Time by kind of work", self.work());
        }
        self.memory
            .into_iter()
            .for_each(|picture| section("Memory over a step", format!("<div class=\"memory\">{picture}</div>")));
        section("Configuration", format!("<pre>{}</pre>", html(self.configuration)));
        let rows = self
            .machine()
            .into_iter()
            .map(|(name, value)| format!("<tr><td>{name}</td><td>{}</td></tr>", html(&value)));
        section("Machine and versions", format!("<table>\n{}\n</table>", rows.collect::<Vec<_>>().join("\n")));
        page + "</body>\n</html>\n"
    }

    /// Draws the total durations of a step's launches, by kernel, as bars, the longest first.
    fn work(&self) -> String {
        let mut kinds: BTreeMap<&str, f64> = BTreeMap::new();
        for launch in self.costs["launches"].as_array().into_iter().flatten() {
            let seconds = launch["duration_ns"].as_f64().unwrap_or_default() / 1e9;
            *kinds.entry(launch["kernel"].as_str().unwrap_or_default()).or_default() += seconds;
        }
        let mut kinds: Vec<(&str, f64)> = kinds.into_iter().collect();
        kinds.sort_by(|one, other| other.1.total_cmp(&one.1));
        let rest: f64 = kinds.iter().skip(KINDS_MAX).map(|(_, seconds)| seconds).sum();
        kinds.truncate(KINDS_MAX);
        kinds.extend((rest > 0.0).then_some(("others", rest)));
        let all: f64 = kinds.iter().map(|(_, seconds)| seconds).sum();
        if all <= 0.0 {
            return "<p>Nothing was measured.</p>".to_owned();
        }
        let rows = kinds.into_iter().map(|(kind, seconds)| {
            let (kind, percent) = (html(kind), 100.0 * seconds / all);
            format!(
                "<p><span>{kind}</span><span>{:.3} ms, {percent:.1} %</span></p><i style=\"width:{percent:.1}%\"></i>",
                1e3 * seconds
            )
        });
        format!("<div class=\"work\">\n{}\n</div>", rows.collect::<Vec<_>>().join("\n"))
    }

    /// Returns the numbers of validations other than their loss.
    fn metrics(&self) -> BTreeSet<&str> {
        let validations = self.lines.iter().filter(|line| line["kind"] == "validation");
        let numbers = validations.flat_map(|line| line.as_object().into_iter().flatten());
        let names = numbers.filter(|(_, value)| value.is_number()).map(|(name, _)| name.as_str());
        names.filter(|name| !["step", "epoch", "loss"].contains(name)).collect()
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
            ("processor", format!("{}, {threads} threads", cpu.unwrap_or_else(|| "unknown".to_owned()))),
            ("system", format!("Linux {}", read("/proc/sys/kernel/osrelease").trim())),
            ("Forebay", env!("CARGO_PKG_VERSION").to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curves;
    use serde_json::json;

    #[test]
    fn a_page_shows_curves_and_needs_nothing_else() {
        let line = |kind: &str, step: u64, loss: f64| json!({ "kind": kind, "step": step, "loss": loss, "learning_rate": 0.1, "seconds": 0.5 });
        let mut lines: Vec<Value> = (1..=3000).map(|step| line("step", step, 1.0 / step as f64)).collect();
        lines.push(json!({ "kind": "step", "step": 3001, "loss": null }));
        lines.push(line("validation", 3000, 0.25));
        lines.push(json!({ "kind": "validation", "step": 3001, "loss": 0.2, "accuracy": 0.5, "dice_mean": null }));
        let page = Page {
            model: "models/<script>.onnx",
            data: "d & e",
            configuration: "batch-size = 4\n",
            device: &DeviceName::default(),
            lines: &lines,
            report: &["loss  0.5".to_owned()],
            memory: Some("<svg></svg>"),
            costs: &json!({ "launches": [
                { "kernel": "Convolution", "duration_ns": 3e6 }, { "kernel": "Add", "duration_ns": 1e6 },
                { "kernel": "Convolution", "duration_ns": 4e6 },
            ] }),
        };
        let page = page.html();
        for words in [
            "Training &lt;script&gt;.onnx",
            "d &amp; e",
            "batch-size = 4",
            "</i>validation</span>",
            "<h2>Validation: accuracy</h2>",
            "<span>Convolution</span><span>7.000 ms, 87.5 %</span>",
            "loss  0.5",
            env!("CARGO_PKG_VERSION"),
        ] {
            assert!(page.contains(words), "{words}");
        }
        for outside in ["src=", "href=", "url(", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        let longest =
            page.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap().split(' ').count()).max();
        assert!(longest.unwrap() <= curves::POINTS_MAX + 1, "{longest:?}");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }
}
