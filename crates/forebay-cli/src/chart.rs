//! A picture of the measurements of `forebay probe`: a row of bars for each action.

use std::fmt::Write;

use forebay::Finding;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 400.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 64.0;
const ROW_HEIGHT: f64 = 52.0;
const BAR_HEIGHT: f64 = 13.0;
const COLOR_RESIDENT: &str = "#4878a8";
const COLOR_EVICTED: &str = "#d1603d";

/// Draws the picture. The axis is logarithmic, because an evicted chunk takes many times as long.
pub fn svg(title: &str, findings: &[Finding]) -> String {
    let seconds = || findings.iter().flat_map(|finding| &finding.touches).map(|touch| touch.seconds.max(1e-7));
    let decade = |seconds: f64| seconds.log10();
    let low = decade(seconds().fold(f64::INFINITY, f64::min)).floor();
    let high = decade(seconds().fold(0.0, f64::max)).ceil().max(low + 1.0);
    let x = |seconds: f64| LEFT + (decade(seconds.max(1e-7)) - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let height = TOP + ROW_HEIGHT * findings.len() as f64 + 36.0;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let mut add = |element: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(picture, "{element}");
    };
    add(text(12.0, 22.0, "start", &format!("Time to use a chunk; {title}")));
    for (place, color, meaning) in [(0.0, COLOR_RESIDENT, "on the device"), (120.0, COLOR_EVICTED, "evicted")] {
        add(rectangle(LEFT + place, 34.0, 12.0, color));
        add(text(LEFT + place + 18.0, 45.0, "start", meaning));
    }
    for power in low as i32..=high as i32 {
        let at = x(10f64.powi(power));
        let bottom = height - 30.0;
        add(format!("<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#dddddd\"/>"));
        add(text(at, height - 14.0, "middle", &format!("{} ms", 10f64.powi(power + 3))));
    }
    for (row, finding) in findings.iter().enumerate() {
        let y = TOP + ROW_HEIGHT * row as f64 + 6.0;
        let (number, description) = (finding.action.number(), finding.action.description());
        add(text(12.0, y + 24.0, "start", &format!("{number}  {description}")));
        for (bar, touch) in finding.touches.iter().enumerate() {
            let y = y + BAR_HEIGHT * bar as f64;
            let end = x(touch.seconds);
            add(text(LEFT - 6.0, y + 10.0, "end", &format!("#{}", touch.chunk)));
            add(rectangle(LEFT, y, end - LEFT, if touch.resident { COLOR_RESIDENT } else { COLOR_EVICTED }));
            add(text(end + 4.0, y + 10.0, "start", &format!("{:.3} ms", touch.seconds * 1e3)));
        }
    }
    picture + "</svg>\n"
}

fn rectangle(x: f64, y: f64, width: f64, color: &str) -> String {
    let (width, height) = (width.max(1.0), BAR_HEIGHT - 2.0);
    format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{color}\"/>")
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    // XML does not allow control characters.
    let words = words.replace(char::is_control, " ").replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>")
}
