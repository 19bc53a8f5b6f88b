//! A picture of memory over time: a rectangle for each block, from its allocation to its release, at its addresses, in the color of its
//! owner.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use forebay_base::ByteRange;

use crate::size::format_bytes;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 44.0;
const HEIGHT: f64 = 640.0;
const BOTTOM: f64 = 44.0;
/// The number of owners that the legend names.
const LEGEND_COUNT: usize = 24;
const COLORS: [&str; 12] = [
    "#4878a8", "#d1603d", "#5b9a5b", "#c9a13b", "#8a6bb0", "#4aa3a2", "#b5527a", "#8c8f3f", "#7a94c4", "#c98a6b",
    "#6f9f86", "#a6788f",
];

/// A block over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// The owner; bars of one owner have the same color.
    pub owner: String,
    /// When it is in use.
    pub time: Range<u64>,
    /// Its bytes.
    pub bytes: ByteRange,
}

/// A picture of memory over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// The title above the picture.
    pub title: String,
    /// What time is counted in.
    pub time_name: String,
    /// The span of time that is shown.
    pub time: Range<u64>,
    /// Addresses from 0 to here are shown.
    pub size_bytes: u64,
    /// Addresses that exist only for some time, such as segments; drawn behind the bars.
    pub backgrounds: Vec<Bar>,
    /// The blocks.
    pub bars: Vec<Bar>,
}

impl Picture {
    /// Renders the picture as SVG. The rectangle under the pointer shows who owns it.
    pub fn svg(&self) -> String {
        let width = WIDTH - LEFT - RIGHT;
        let (span, size) = ((self.time.end.saturating_sub(self.time.start)).max(1), self.size_bytes.max(1));
        let x = |time: u64| {
            let inside = time.clamp(self.time.start, self.time.start + span) - self.time.start;
            LEFT + inside as f64 / span as f64 * width
        };
        let y = |byte: u64| TOP + HEIGHT - byte.min(size) as f64 / size as f64 * HEIGHT;
        let rectangle = |bar: &Bar, color: &str| {
            let (left, right, top, bottom) = (x(bar.time.start), x(bar.time.end), y(bar.bytes.end), y(bar.bytes.start));
            let (width, height) = ((right - left).max(0.5), (bottom - top).max(0.3));
            let words = format!(
                "{}: {} at {}, {} {} to {}",
                bar.owner,
                format_bytes(bar.bytes.len()),
                bar.bytes.start,
                self.time_name,
                bar.time.start,
                bar.time.end
            );
            format!(
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\">\
                 <title>{}</title></rect>",
                escaped(&words)
            )
        };
        let all = TOP + HEIGHT + BOTTOM;
        let mut picture = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {all}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{all}\" fill=\"white\"/>\n"
        );
        let mut add = |element: String| {
            // Writing into a string does not fail.
            let _ = writeln!(picture, "{element}");
        };
        add(text(LEFT, 24.0, "start", &self.title));
        self.backgrounds.iter().for_each(|bar| add(rectangle(bar, "#eeeeee")));
        let ranks = self.ranks();
        for bar in &self.bars {
            add(rectangle(bar, COLORS[ranks[bar.owner.as_str()] % COLORS.len()]));
        }
        for quarter in 0..=4 {
            let (byte, time) =
                (size as f64 * f64::from(quarter) / 4.0, self.time.start + span * u64::from(quarter as u32) / 4);
            let at = y(byte as u64);
            add(format!(
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#cccccc\"/>",
                LEFT + width
            ));
            add(text(LEFT - 6.0, at + 4.0, "end", &format_bytes(byte as u64)));
            add(text(x(time), TOP + HEIGHT + 18.0, "middle", &time.to_string()));
        }
        add(text(LEFT + width / 2.0, TOP + HEIGHT + 36.0, "middle", &self.time_name));
        for (owner, &rank) in ranks.iter().filter(|&(_, &rank)| rank < LEGEND_COUNT) {
            let at = TOP + 22.0 * rank as f64;
            let left = LEFT + width + 16.0;
            add(format!(
                "<rect x=\"{left}\" y=\"{at}\" width=\"12\" height=\"12\" fill=\"{}\"/>",
                COLORS[rank % COLORS.len()]
            ));
            let shown: String = owner.chars().take(32).collect();
            add(text(left + 18.0, at + 11.0, "start", &shown));
        }
        if ranks.len() > LEGEND_COUNT {
            let more = format!("and {} more", ranks.len() - LEGEND_COUNT);
            add(text(LEFT + width + 16.0, TOP + 22.0 * LEGEND_COUNT as f64 + 11.0, "start", &more));
        }
        picture + "</svg>\n"
    }

    /// The rank of each owner: the one that takes the most bytes for the longest time is first.
    fn ranks(&self) -> BTreeMap<&str, usize> {
        let mut areas: BTreeMap<&str, u128> = BTreeMap::new();
        for bar in &self.bars {
            let duration = bar.time.end.saturating_sub(bar.time.start).max(1);
            *areas.entry(&bar.owner).or_default() += u128::from(bar.bytes.len()) * u128::from(duration);
        }
        let mut owners: Vec<(&str, u128)> = areas.into_iter().collect();
        owners.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        owners.into_iter().enumerate().map(|(rank, (owner, _))| (owner, rank)).collect()
    }
}

fn escaped(words: &str) -> String {
    // XML does not allow control characters, nor these two, nor `]]>` in text.
    let is_allowed = |c: char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let words: String = words.chars().map(|c| if is_allowed(c) { c } else { ' ' }).collect();
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_where_and_when_their_blocks_are() {
        let bar = |owner: &str, time: Range<u64>, start, end| Bar {
            owner: owner.to_string(),
            time,
            bytes: ByteRange::new(start, end),
        };
        let picture = Picture {
            title: "a & b".to_string(),
            time_name: "launch".to_string(),
            time: 10..20,
            size_bytes: 1000,
            backgrounds: Vec::new(),
            bars: vec![bar("small<", 15..20, 0, 100), bar("large", 0..15, 500, 1000), bar("small<", 10..11, 0, 1)],
        };
        let svg = picture.svg();
        assert_eq!(picture.ranks(), [("large", 0), ("small<", 1)].into());
        // The time before the shown part is cut off: the left half, the upper half.
        let large = format!("<rect x=\"90.0\" y=\"44.0\" width=\"430.0\" height=\"320.0\" fill=\"{}\">", COLORS[0]);
        assert!(svg.contains(&large), "{svg}");
        let small = format!("<rect x=\"520.0\" y=\"620.0\" width=\"430.0\" height=\"64.0\" fill=\"{}\">", COLORS[1]);
        assert!(svg.contains(&small), "{svg}");
        assert!(svg.contains("a &amp; b") && svg.contains("<title>small&lt;: 100 bytes at 0, launch 15 to 20</title>"));
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<title>").count(), 3);
        assert_eq!(escaped("a\n]]>\u{fffe}b"), "a ]]&gt; b");
    }

    #[test]
    fn nothing_is_a_picture_too() {
        let svg = Picture::default().svg();
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
