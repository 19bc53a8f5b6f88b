//! Figures in rows, and how they are shown.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Number, Value};

/// Figures in rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The name of the table within its record.
    pub name: String,
    /// What each column holds.
    pub columns: Vec<Column>,
    /// The rows: one cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

/// What a column holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// What is named or measured.
    pub name: String,
    /// The unit of the numbers; `None` for text, counts and ratios.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The number of digits shown after the decimal point; `None` for those that a number has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digits: Option<usize>,
    /// The statistic of several measurements that a number is: `median`, `best`, `99th percentile`; `None` if there is one measurement, or
    /// if the name says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistic: Option<String>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// Nothing was measured, or it does not apply.
    Nothing,
    /// A number in the column's unit.
    Number(Number),
    /// A name, or why there is no number.
    Text(String),
    /// A number with more information.
    Quantity(Quantity),
}

/// A number with its own unit, or with its spread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantity {
    /// The number; `None` if only a range is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Number>,
    /// The unit, if it is not the column's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The smallest value of the range of the measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Number>,
    /// The largest value of the range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Number>,
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cell, D::Error> {
        const WANTED: &str = "a cell must be null, a number, a string, or an object of value, unit, from, to";
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Cell::Nothing),
            Value::Number(number) => Ok(Cell::Number(number)),
            Value::String(text) => Ok(Cell::Text(text)),
            object @ Value::Object(_) => {
                let quantity = serde_json::from_value(object).map(Cell::Quantity);
                quantity.map_err(|error| D::Error::custom(format!("{WANTED}; {error}")))
            }
            Value::Bool(_) | Value::Array(_) => Err(D::Error::custom(WANTED)),
        }
    }
}

impl Column {
    /// Creates a column of names.
    pub fn text(name: impl Into<String>) -> Column {
        Column { name: name.into(), unit: None, digits: None, statistic: None }
    }

    /// Creates a column of whole numbers without a unit.
    pub fn count(name: impl Into<String>) -> Column {
        Column { digits: Some(0), ..Column::text(name) }
    }

    /// Creates a column of numbers in a unit.
    pub fn number(name: impl Into<String>, unit: &str, digits: usize) -> Column {
        Column { unit: Some(unit.to_owned()), digits: Some(digits), ..Column::text(name) }
    }

    /// Creates a column of numbers without a unit.
    pub fn ratio(name: impl Into<String>, digits: usize) -> Column {
        Column { digits: Some(digits), ..Column::text(name) }
    }

    /// Returns the same column, whose numbers are this statistic of several measurements.
    pub fn of(self, statistic: &str) -> Column {
        Column { statistic: Some(statistic.to_owned()), ..self }
    }

    /// Returns its name and unit, as in a table's first line.
    pub fn heading(&self) -> String {
        match &self.unit {
            Some(unit) => format!("{}, {unit}", self.name),
            None => self.name.clone(),
        }
    }
}

impl Table {
    /// Creates a table without rows.
    pub fn new(name: impl Into<String>, columns: impl Into<Vec<Column>>) -> Table {
        Table { name: name.into(), columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, row: impl Into<Vec<Cell>>) {
        self.rows.push(row.into());
    }

    /// Adds a row and prints it, so that a bench shows its progress. Before the first row, the names of the columns are printed.
    pub fn print(&mut self, row: impl Into<Vec<Cell>>) {
        if self.rows.is_empty() {
            println!("{}", self.header());
        }
        self.push(row);
        if let Some(row) = self.rows.last() {
            println!("{}", self.line(row));
        }
    }

    /// Returns the first two lines in Markdown.
    pub fn header(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(Column::heading).collect();
        format!("{}\n|{}", line(&names), "---|".repeat(names.len()))
    }

    /// Returns a row in Markdown.
    pub fn line(&self, row: &[Cell]) -> String {
        let cells: Vec<String> = row.iter().zip(&self.columns).map(|(cell, column)| cell.shown(column)).collect();
        line(&cells)
    }

    /// Returns the whole table in Markdown.
    pub fn markdown(&self) -> String {
        let lines = std::iter::once(self.header()).chain(self.rows.iter().map(|row| self.line(row)));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// A line of a Markdown table.
fn line(cells: &[String]) -> String {
    let escaped: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
    format!("| {} |", escaped.join(" | "))
}

impl Cell {
    /// Returns the text of the cell in this column.
    pub fn shown(&self, column: &Column) -> String {
        let number = |number: &Number| shown(number, column.digits);
        match self {
            Cell::Nothing => String::new(),
            Cell::Text(text) => text.clone(),
            Cell::Number(value) => number(value),
            Cell::Quantity(Quantity { value, unit, from, to }) => {
                let range = match (from, to) {
                    (Some(from), Some(to)) => Some(format!("{} to {}", number(from), number(to))),
                    (Some(from), None) => Some(format!("at least {}", number(from))),
                    (None, Some(to)) => Some(format!("at most {}", number(to))),
                    (None, None) => None,
                };
                let unit = unit.as_ref().map_or(String::new(), |unit| format!(" {unit}"));
                match (value, range) {
                    (Some(value), Some(range)) => format!("{} ({range}){unit}", number(value)),
                    (Some(value), None) => format!("{}{unit}", number(value)),
                    (None, range) => format!("{}{unit}", range.unwrap_or_default()),
                }
            }
        }
    }

    /// Returns the median of measurements, with the smallest and the largest if there are several.
    pub fn median(values: impl IntoIterator<Item = f64>) -> Cell {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        match values.as_slice() {
            [] => Cell::Nothing,
            [value] => Cell::from(*value),
            [least, .., most] => {
                let middle = (values[values.len() / 2] + values[(values.len() - 1) / 2]) / 2.0;
                let number = |value: f64| Number::from_f64(value);
                Cell::Quantity(Quantity { value: number(middle), unit: None, from: number(*least), to: number(*most) })
            }
        }
    }

    /// Returns its number; `None` if there is only a range.
    pub fn number(&self) -> Option<f64> {
        match self {
            Cell::Number(number) => number.as_f64(),
            Cell::Quantity(quantity) => quantity.value.as_ref().and_then(Number::as_f64),
            Cell::Nothing | Cell::Text(_) => None,
        }
    }
}

/// A number with these digits after the point. The digits of whole numbers with five or more are in groups of three.
fn shown(number: &Number, digits: Option<usize>) -> String {
    let text = match (digits, number.as_f64()) {
        (Some(digits), Some(value)) => format!("{value:.digits$}"),
        _ => number.to_string(),
    };
    let (sign, rest) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    if rest.len() < 5 || !rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return text;
    }
    let mut grouped = String::new();
    for (index, digit) in rest.chars().enumerate() {
        if index > 0 && (rest.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}")
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<f64> for Cell {
    /// NaN and infinities become texts, because JSON cannot represent them.
    fn from(value: f64) -> Cell {
        Number::from_f64(value).map_or_else(|| Cell::Text(value.to_string()), Cell::Number)
    }
}

impl From<u64> for Cell {
    fn from(value: u64) -> Cell {
        Cell::Number(value.into())
    }
}

impl From<usize> for Cell {
    fn from(value: usize) -> Cell {
        Cell::Number((value as u64).into())
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Nothing, Into::into)
    }
}
