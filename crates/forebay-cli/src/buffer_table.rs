//! Tables of buffers in MiniMalloc's format: a header, then one buffer a line.
//!
//! Columns come in any order. `id` (or `buffer`, `buffer_id`), `lower` (or `start`, `begin`), `upper` and `size` are needed;
//! a buffer is live from `lower` up to but excluding `upper`. A column `end` replaces `upper` and gives the last time instead.
//! `alignment` and `offset` (a fixed one) are optional, and so are `gaps`: periods, separated by spaces, in which nothing (`3-5`)
//! or only a part (`3-5@0:16`, bytes from the buffer's base) is in use. A `hint` is ignored.

use std::fmt;

use forebay::ByteRange;
use forebay_memory::{Item, Piece};

/// Buffers with their names and the lines that they were read from.
#[derive(Clone, Debug)]
pub struct BufferTable {
    /// The name of each buffer.
    pub ids: Vec<String>,
    /// The item to place for each buffer.
    pub items: Vec<Item>,
    header: String,
    lines: Vec<String>,
    offset_column: Option<usize>,
}

/// What is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    line: usize,
    expected: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.expected)
    }
}

/// The position of each column.
#[derive(Clone, Debug, Default)]
struct Columns {
    count: usize,
    id: Option<usize>,
    lower: Option<usize>,
    upper: Option<usize>,
    /// Whether `upper` is the last time instead of the first time after it.
    upper_is_last: bool,
    size: Option<usize>,
    alignment: Option<usize>,
    offset: Option<usize>,
    hint: Option<usize>,
    gaps: Option<usize>,
}

/// A buffer as read from its line, before times are numbered.
struct Row {
    id: String,
    /// When which bytes are in use.
    pieces: Vec<(i64, i64, ByteRange)>,
    alignment_bytes: u64,
    fixed_offset: Option<u64>,
}

impl BufferTable {
    /// Reads a table.
    ///
    /// # Errors
    /// Returns the first line that is not as expected.
    pub fn parse(text: &str) -> Result<BufferTable, TableError> {
        // Spreadsheets start a file with a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let at = |line: usize| move |expected: String| TableError { line: line + 1, expected };
        let is_empty = "expected a header with the columns id, lower, upper and size, but the file is empty";
        let (number, header) = lines.next().ok_or_else(|| at(0)(is_empty.to_owned()))?;
        let columns = Columns::parse(header).map_err(at(number))?;
        let mut rows = Vec::new();
        let mut kept = Vec::new();
        for (number, line) in lines {
            rows.push(columns.row(line).map_err(at(number))?);
            kept.push(line.trim().to_owned());
        }
        let times = times(&rows);
        Ok(BufferTable {
            items: rows.iter().map(|row| item(row, &times)).collect(),
            ids: rows.into_iter().map(|row| row.id).collect(),
            header: header.trim().to_owned(),
            lines: kept,
            offset_column: columns.offset,
        })
    }

    /// Returns the table with `offset` as its last column, replacing any previous one.
    pub fn with_offsets(&self, offsets: &[u64]) -> String {
        let line = |text: &str, last: &str| {
            let fields = text.split(',').enumerate().filter(|(column, _)| Some(*column) != self.offset_column);
            let fields: Vec<&str> = fields.map(|(_, field)| field.trim()).chain([last]).collect();
            fields.join(",") + "\n"
        };
        let rows = self.lines.iter().zip(offsets).map(|(text, offset)| line(text, &offset.to_string()));
        [line(&self.header, "offset")].into_iter().chain(rows).collect()
    }
}

impl Columns {
    fn parse(header: &str) -> Result<Columns, String> {
        let mut columns = Columns::default();
        for (index, name) in header.split(',').map(str::trim).enumerate() {
            let column = match name {
                "id" | "buffer" | "buffer_id" => &mut columns.id,
                "lower" | "start" | "begin" => &mut columns.lower,
                "upper" | "end" => {
                    columns.upper_is_last = name == "end";
                    &mut columns.upper
                }
                "size" => &mut columns.size,
                "alignment" => &mut columns.alignment,
                "offset" => &mut columns.offset,
                "hint" => &mut columns.hint,
                "gaps" => &mut columns.gaps,
                _ => {
                    return Err(format!(
                        "unknown column '{name}'; id, lower, upper and size are required, alignment, offset, hint and gaps optional"
                    ));
                }
            };
            if column.replace(index).is_some() {
                return Err(format!("the column '{name}' appears twice"));
            }
            columns.count = index + 1;
        }
        let needed = [("id", columns.id), ("lower", columns.lower), ("upper", columns.upper), ("size", columns.size)];
        match needed.iter().find(|(_, column)| column.is_none()) {
            Some((name, _)) => {
                Err(format!("the header has no column '{name}'; id, lower, upper and size are required"))
            }
            None => Ok(columns),
        }
    }

    fn row(&self, line: &str) -> Result<Row, String> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.len() != self.count {
            return Err(format!("expected {} fields as in the header, found {}", self.count, fields.len()));
        }
        let field = |column: Option<usize>| column.map_or("", |column| fields[column]);
        let end = |last: i64| if self.upper_is_last { last.checked_add(1) } else { Some(last) };
        let lower = number(field(self.lower), "lower", "a whole number")?;
        let upper = number(field(self.upper), "upper", "a whole number")?;
        let upper = end(upper).ok_or_else(|| format!("the end {upper} is too large"))?;
        if upper < lower {
            return Err(format!("upper must be at least lower ({lower}), but is {upper}"));
        }
        let size = number(field(self.size), "size", "a whole number of bytes")?;
        let alignment_bytes = match field(self.alignment) {
            "" => 1,
            text => number::<u64>(text, "alignment", "a whole number of bytes")?.max(1),
        };
        let fixed_offset = match field(self.offset) {
            "" => None,
            text => Some(number(text, "offset", "a whole number of bytes")?),
        };
        let mut pieces = Vec::new();
        let mut from = lower;
        for text in field(self.gaps).split_whitespace() {
            let (start, last, window) = gap(text)
                .ok_or_else(|| format!("expected gaps like 3-5 or 3-5@0:16, separated by spaces; found '{text}'"))?;
            let until = end(last).filter(|&until| from <= start && start <= until && until <= upper);
            let until =
                until.ok_or_else(|| format!("the gap '{text}' must be within the lifetime, after the previous gap"))?;
            let window = window.unwrap_or(ByteRange::new(0, 0));
            if window.end > size {
                return Err(format!("the gap '{text}' leaves bytes in use beyond the size {size}"));
            }
            pieces.extend([(from, start, ByteRange::new(0, size)), (start, until, window)]);
            from = until;
        }
        pieces.push((from, upper, ByteRange::new(0, size)));
        Ok(Row { id: field(self.id).to_owned(), pieces, alignment_bytes, fixed_offset })
    }
}

/// Parses a whole number in a field.
fn number<T: std::str::FromStr>(text: &str, column: &str, expected: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{column} must be {expected}, but is '{text}'"))
}

/// Parses a gap: its start, its end, and the bytes in use.
fn gap(text: &str) -> Option<(i64, i64, Option<ByteRange>)> {
    let (time, window) = text.split_once('@').map_or((text, None), |(time, window)| (time, Some(window)));
    // The first character can be the sign of the start.
    let dash = time.get(1..)?.find('-')? + 1;
    let (start, end) = (&time[..dash], &time[dash + 1..]);
    let window = match window {
        None => None,
        Some(window) => {
            let (low, high) = window.split_once(':')?;
            let (low, high) = (low.parse().ok()?, high.parse().ok()?);
            (low <= high).then(|| Some(ByteRange::new(low, high)))?
        }
    };
    Some((start.parse().ok()?, end.parse().ok()?, window))
}

/// Returns all times in order.
fn times(rows: &[Row]) -> Vec<i64> {
    let mut times: Vec<i64> =
        rows.iter().flat_map(|row| &row.pieces).flat_map(|&(start, end, _)| [start, end]).collect();
    times.sort_unstable();
    times.dedup();
    times
}

/// Returns the item of a row. Times count from the first one or, if they are out of range, are replaced by their ranks among all times.
fn item(row: &Row, times: &[i64]) -> Item {
    let first = times.first().copied().unwrap_or(0);
    let spans_little = times.last().is_some_and(|&last| i128::from(last) - i128::from(first) <= i128::from(u32::MAX));
    let time = |time: i64| match spans_little {
        true => (time - first) as u32,
        false => times.partition_point(|&other| other < time) as u32,
    };
    let taken = row.pieces.iter().filter(|(start, end, bytes)| start < end && !bytes.is_empty());
    let pieces = taken.map(|&(start, end, bytes)| Piece { time: time(start)..time(end), bytes }).collect();
    let mut item = Item::new(row.alignment_bytes, pieces);
    item.fixed_offset = row.fixed_offset;
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        BufferTable::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn columns_come_in_any_order_and_under_several_names() {
        let table = BufferTable::parse("size,begin,buffer_id,end,alignment\n8,-2,x,3,16\n\n4,0,y,0,\n").unwrap();
        assert_eq!(table.ids, ["x", "y"]);
        assert_eq!(table.items[0].alignment_bytes, 16);
        assert_eq!(table.items[0].pieces, [Piece { time: 0..6, bytes: ByteRange::new(0, 8) }]);
        assert_eq!(table.items[1].pieces, [Piece { time: 2..3, bytes: ByteRange::new(0, 4) }]);
    }

    #[test]
    fn gaps_and_given_offsets_are_kept() {
        let negative = BufferTable::parse("\u{feff}id,lower,upper,size,gaps\na,-5,3,4,-4--2 0-1\n").unwrap();
        let times = negative.items[0].pieces.iter().map(|piece| piece.time.clone());
        assert_eq!(times.collect::<Vec<_>>(), [0..1, 3..5, 6..8]);
        let table = BufferTable::parse("id,lower,upper,size,offset,gaps\na,0,9,8,32,2-4 5-6@0:3\n").unwrap();
        let piece = |time, end| Piece { time, bytes: ByteRange::new(0, end) };
        assert_eq!(table.items[0].pieces, [piece(0..2, 8), piece(4..5, 8), piece(5..6, 3), piece(6..9, 8)]);
        assert_eq!(table.items[0].fixed_offset, Some(32));
        assert_eq!(table.with_offsets(&[32]), "id,lower,upper,size,gaps,offset\na,0,9,8,2-4 5-6@0:3,32\n");
    }

    #[test]
    fn times_that_are_far_apart_keep_their_order() {
        let table = BufferTable::parse(&format!("id,lower,upper,size\na,{},5,1\nb,5,{},1\n", i64::MIN, i64::MAX));
        let items = table.unwrap().items;
        assert_eq!((items[0].pieces[0].time.clone(), items[1].pieces[0].time.clone()), (0..1, 1..2));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        assert_eq!(
            refusal(""),
            "line 1: expected a header with the columns id, lower, upper and size, but the file is empty"
        );
        assert!(refusal("id,lower,size\n").contains("line 1: the header has no column 'upper'"));
        assert!(refusal("id,lower,upper,size,size\n").contains("'size' appears twice"));
        assert!(refusal("id,lower,upper,size,color\n").contains("unknown column 'color'"));
        let line = |line: &str| refusal(&format!("id,lower,upper,size,gaps\na,0,1,2,\n{line}\n"));
        assert!(line("b,0,1,2").contains("line 3: expected 5 fields as in the header, found 4"));
        assert!(line("b,x,1,2,").contains("line 3: lower must be a whole number, but is 'x'"));
        assert!(line("b,0,1,-2,").contains("size must be a whole number of bytes, but is '-2'"));
        assert!(line("b,3,1,2,").contains("upper must be at least lower (3), but is 1"));
        assert!(line("b,0,9,2,4").contains("'4'"));
        assert!(line("b,0,9,2,4-5@0:3").contains("beyond the size 2"));
        assert!(line("b,0,9,2,4-5 3-4").contains("after the previous gap"));
    }
}
