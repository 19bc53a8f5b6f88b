//! A picture of a table.

use std::collections::BTreeMap;

use forebay_bench_record::Table;
use serde::Deserialize;

use super::chart::{Chart, Line};
use super::collection::Section;

/// The description of a picture: `picture.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picture {
    /// The path of the picture's file from the repository's root.
    pub file: String,
    /// The title above the picture.
    pub title: String,
    /// The record that it shows.
    record: String,
    /// The table of that record.
    table: String,
    /// The label of the horizontal axis.
    axis: String,
    /// The column of positions on the axis; without one, the row's number is used.
    x: Option<String>,
    /// The ends of the axis; by default, those of the positions.
    span: Option<[f64; 2]>,
    /// The distance between the numbers below the axis.
    marks: f64,
    /// The position of a vertical line on the axis.
    line: Option<f64>,
    /// The lines, in the order of the legend.
    lines: Vec<Series>,
}

/// A line of a picture.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    /// Its label.
    name: String,
    /// Its color.
    color: String,
    /// Whether it is dashed and without dots.
    #[serde(default)]
    dashed: bool,
    /// The column of its numbers; rows without a number in this column are left out.
    column: String,
    /// Selects the rows that have these texts in these columns.
    #[serde(default)]
    only: BTreeMap<String, String>,
}

impl Picture {
    /// Reads the description.
    ///
    /// # Errors
    /// Fails with the field that is wrong, and the reason.
    pub fn read(text: &str) -> Result<Picture, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let (path, inner) = (error.path().to_string(), error.inner());
            if path == "." { inner.to_string() } else { format!("{path}: {inner}") }
        })
    }

    /// Returns the link from the page to the picture.
    pub fn link(&self) -> String {
        self.file.strip_prefix("benches/").map_or_else(|| format!("../{}", self.file), str::to_owned)
    }

    /// Draws the picture.
    ///
    /// # Errors
    /// Fails if a table or column does not exist, or a line has no points.
    pub fn svg(&self, section: &Section) -> Result<String, String> {
        self.drawn(section).map_err(|error| format!("benches/results/{}/picture.json: {error}", section.name))
    }

    fn drawn(&self, section: &Section) -> Result<String, String> {
        let table = section.table(&self.record, &self.table)?;
        let mut lines = Vec::new();
        for series in &self.lines {
            let mut points = series.points(table, self.x.as_deref())?;
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if points.is_empty() {
                return Err(format!("the line {} has no points", series.name));
            }
            lines.push(Line { name: &series.name, color: &series.color, dashed: series.dashed, points });
        }
        let places = || lines.iter().flat_map(|line| &line.points).map(|point| point.0);
        let span = self
            .span
            .unwrap_or_else(|| [places().fold(f64::INFINITY, f64::min), places().fold(f64::NEG_INFINITY, f64::max)]);
        if self.marks <= 0.0 || span[0] >= span[1] {
            return Err("marks: the distance between marks and the length of the axis must be above 0".to_owned());
        }
        let marks = (0..).map(|mark| (span[0] / self.marks).ceil() * self.marks + f64::from(mark) * self.marks);
        let marks = marks.take_while(|&mark| mark <= span[1]).collect();
        Ok(Chart { title: &self.title, axis: &self.axis, span, marks, line: self.line, lines }.svg())
    }
}

impl Series {
    /// Returns its points: position on the axis and number.
    fn points(&self, table: &Table, x: Option<&str>) -> Result<Vec<(f64, f64)>, String> {
        let column = position(table, &self.column)?;
        let place = x.map(|x| position(table, x)).transpose()?;
        let mut only = Vec::new();
        for (name, text) in &self.only {
            only.push((position(table, name)?, text));
        }
        let mut points = Vec::new();
        for (number, row) in table.rows.iter().enumerate() {
            let is_wanted = only.iter().all(|&(at, text)| row[at].shown(&table.columns[at]) == *text);
            let place = place.map_or(Some((number + 1) as f64), |place| row[place].number());
            if let (true, Some(place), Some(value)) = (is_wanted, place, row[column].number()) {
                points.push((place, value));
            }
        }
        Ok(points)
    }
}

/// Returns the position of a column.
fn position(table: &Table, name: &str) -> Result<usize, String> {
    let known = || table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = table.columns.iter().position(|column| column.name == name);
    found.ok_or_else(|| format!("table {} has no column {name}; it has: {}", table.name, known()))
}
