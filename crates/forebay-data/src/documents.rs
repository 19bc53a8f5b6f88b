//! Text documents, piece by piece. Each `.txt` file, each line of a `.jsonl` file and each row of a table is a document.
//!
//! A document of up to 32 KiB is one piece. In a longer one, a piece ends after a newline between two characters other than white space,
//! because tokenizers split there in any case. If there is no such newline, it ends before white space or, failing that, between any two
//! characters.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::names::has_extension;
#[cfg(feature = "tables")]
use crate::table::{Column, Kind, Table};
#[cfg(feature = "tables")]
use crate::table_files::format;
use crate::text_files::text_files;

/// The longest piece.
const PIECE_BYTES_MAX: usize = 32 << 10;
/// The number of bytes of lines that are read at once.
const WINDOW_BYTES: u64 = 256 << 10;
/// The number of rows of text that are read at once.
#[cfg(feature = "tables")]
const ROWS_AT_ONCE: u64 = 512;
/// The longest line.
const LINE_BYTES_MAX: u64 = 256 << 20;
/// The keys under which a line holds its text if none is named.
const TEXT_KEYS: [&str; 2] = ["text", "content"];

/// The position at which a piece begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The index of the file.
    file: u32,
    /// The byte at which its document begins, or the document's row.
    document: u64,
    /// The byte in the document's text.
    within: u64,
}

/// A part of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The text.
    pub(crate) text: String,
    /// Whether the document ends after it.
    pub(crate) is_last: bool,
    /// Where the next piece begins.
    pub(crate) next: Place,
}

/// Files of documents.
pub(crate) struct Documents {
    files: Vec<TextFile>,
    /// The key under which a line holds its text; `None` for the usual keys.
    key: Option<String>,
    /// The bytes around the line that was read last: the file, the position of the first byte, and the bytes.
    window: (u32, u64, Vec<u8>),
    /// If documents are rows: the table, the column of the text, the first of some rows, and the texts of these rows.
    #[cfg(feature = "tables")]
    rows: Option<(Table, Column, u64, Vec<String>)>,
    /// The line or row that was read last: its position, its text, and where the next one begins.
    line: Option<(Place, String, u64)>,
}

struct TextFile {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    has_lines: bool,
}

impl Documents {
    /// Opens the files that a path names.
    ///
    /// # Errors
    /// [`DataError`] naming a file that cannot be opened.
    pub(crate) fn open(path: &Path, key: Option<&str>) -> Result<Documents, DataError> {
        #[cfg(feature = "tables")]
        if format(path)?.is_some() {
            return Documents::open_rows(path, key);
        }
        let mut files = Vec::new();
        for path in text_files(path)? {
            let file = forebay_limits::open_regular(&path).map_err(|error| DataError::io(&path, error))?;
            let size_bytes = file.metadata().map_err(|error| DataError::io(&path, error))?.len();
            let has_lines = !has_extension(&path, &["txt"]);
            files.push(TextFile { path, file, size_bytes, has_lines });
        }
        Ok(Documents {
            files,
            key: key.map(str::to_owned),
            window: (0, 0, Vec::new()),
            #[cfg(feature = "tables")]
            rows: None,
            line: None,
        })
    }

    /// Opens tables of documents.
    #[cfg(feature = "tables")]
    fn open_rows(path: &Path, key: Option<&str>) -> Result<Documents, DataError> {
        let table = crate::tables::open(path)?;
        let wanted: &[&str] = key.as_ref().map_or(&TEXT_KEYS, std::slice::from_ref);
        let mut column = wanted.iter().find_map(|name| table.find(name));
        column = column.filter(|column| column.kind == Some(Kind::Bytes));
        let Some(column) = column.cloned() else {
            let (names, listed) = (wanted.join(" or "), table.listed());
            let reason = format!("no text column named {names}; the columns are {listed} (select one with --text-key)");
            return Err(DataError::unsupported(path.display().to_string(), reason));
        };
        let files = Vec::new();
        let rows = Some((table, column, 0, Vec::new()));
        Ok(Documents { files, key: None, window: (0, 0, Vec::new()), rows, line: None })
    }

    /// Returns the paths of the files.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        #[cfg(feature = "tables")]
        if let Some((table, ..)) = &self.rows {
            return table.paths().collect();
        }
        self.files.iter().map(|file| file.path.as_path()).collect()
    }

    /// Returns the kind of files, in words.
    pub(crate) fn kind(&self) -> String {
        #[cfg(feature = "tables")]
        if let Some((table, column, ..)) = &self.rows {
            return format!("the column {} of {} rows of {}", column.name, table.rows(), table.name());
        }
        let what = match (self.files.iter().any(|file| file.has_lines), self.files.iter().all(|file| file.has_lines)) {
            (true, true) => "JSON lines",
            (false, _) => "text",
            _ => "text and JSON lines",
        };
        format!("{what} in {} file{}", self.files.len(), if self.files.len() == 1 { "" } else { "s" })
    }

    /// Returns the piece that begins at a position, or `None` after the last document.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the byte.
    pub(crate) fn piece(&mut self, place: Place) -> Result<Option<Piece>, DataError> {
        #[cfg(feature = "tables")]
        if let Some((table, ..)) = &self.rows {
            let is_end = place.document >= table.rows();
            return if is_end { Ok(None) } else { self.piece_of_line(place, place) };
        }
        let Some(file) = self.files.get(place.file as usize) else { return Ok(None) };
        let after = Place { file: place.file + 1, document: 0, within: 0 };
        match file.has_lines {
            true => self.piece_of_line(place, after),
            false if place.within >= file.size_bytes => {
                Ok(Some(Piece { text: String::new(), is_last: true, next: after }))
            }
            false => {
                let left = file.size_bytes - place.within;
                let bytes = file.read(place.within, left.min(PIECE_BYTES_MAX as u64))?;
                let is_last = bytes.len() as u64 == left;
                let text = match std::str::from_utf8(&bytes) {
                    Ok(text) => text,
                    // The last character continues beyond the bytes that were read.
                    Err(error) if error.error_len().is_none() && !is_last => {
                        std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
                    }
                    Err(error) => return Err(file.no_text(place.within + error.valid_up_to() as u64)),
                };
                let text = if is_last { text } else { &text[..cut(text)] };
                let within = place.within + text.len() as u64;
                let next = if is_last { after } else { Place { within, ..place } };
                Ok(Some(Piece { text: text.to_owned(), is_last, next }))
            }
        }
    }

    fn piece_of_line(&mut self, place: Place, after: Place) -> Result<Option<Piece>, DataError> {
        if self.line.as_ref().is_none_or(|(of, ..)| (of.file, of.document) != (place.file, place.document)) {
            let Some(line) = self.read_line(place)? else {
                return Ok(Some(Piece { text: String::new(), is_last: true, next: after }));
            };
            self.line = Some(line);
        }
        let Some((_, text, end)) = &self.line else { unreachable!("it was read") };
        let Some(rest) = text.get(place.within as usize..) else {
            let path = self.paths().get(place.file as usize).map_or(String::new(), |path| path.display().to_string());
            return Err(DataError::malformed(path, "it has changed: a document is shorter than when it was opened"));
        };
        let is_last = rest.len() <= PIECE_BYTES_MAX;
        let rest = if is_last { rest } else { &rest[..cut(&rest[..boundary(rest, PIECE_BYTES_MAX)])] };
        let next = match is_last {
            true => Place { document: *end, within: 0, ..place },
            false => Place { within: place.within + rest.len() as u64, ..place },
        };
        Ok(Some(Piece { text: rest.to_owned(), is_last, next }))
    }

    /// Returns the text of the first line from a position on that is not empty, and where the line ends; `None` if there are no further
    /// lines.
    fn read_line(&mut self, place: Place) -> Result<Option<(Place, String, u64)>, DataError> {
        #[cfg(feature = "tables")]
        if let Some((table, column, first, texts)) = &mut self.rows {
            let row = place.document;
            if !(*first..*first + texts.len() as u64).contains(&row) {
                let rows: Vec<u64> = (row..(row + ROWS_AT_ONCE).min(table.rows())).collect();
                let found = table.bytes(column, &rows)?.into_iter().map(|(bytes, origin)| {
                    String::from_utf8(bytes).map_err(|_| DataError::malformed(origin, "it is not UTF-8 text"))
                });
                (*first, *texts) = (row, found.collect::<Result<_, _>>()?);
            }
            return Ok(Some((place, texts[(row - *first) as usize].clone(), row + 1)));
        }
        let (mut start, file) = (place.document, &self.files[place.file as usize]);
        loop {
            if start >= file.size_bytes {
                return Ok(None);
            }
            let mut wanted = WINDOW_BYTES;
            let bytes = loop {
                let (of, at, bytes) = &self.window;
                let known = (*of == place.file && *at <= start).then(|| bytes.get((start - at) as usize..)).flatten();
                let known = known.unwrap_or_default();
                if let Some(end) = known.iter().position(|&byte| byte == b'\n') {
                    break &known[..=end];
                }
                if !known.is_empty() && start + known.len() as u64 == file.size_bytes {
                    break known;
                }
                if known.len() as u64 >= LINE_BYTES_MAX {
                    let reason = format!("the line at byte {start} has more than {LINE_BYTES_MAX} bytes");
                    return Err(DataError::malformed(file.path.display().to_string(), reason));
                }
                wanted = wanted.max(2 * known.len() as u64);
                let bytes = file.read(start, wanted.min(file.size_bytes - start))?;
                self.window = (place.file, start, bytes);
            };
            let end = start + bytes.len() as u64;
            if bytes.iter().all(u8::is_ascii_whitespace) {
                start = end;
                continue;
            }
            let text = text_of(bytes, self.key.as_deref()).map_err(|reason| {
                DataError::malformed(format!("{}, the line at byte {start}", file.path.display()), reason)
            })?;
            return Ok(Some((place, text, end)));
        }
    }
}

impl TextFile {
    fn read(&self, at: u64, count: u64) -> Result<Vec<u8>, DataError> {
        let origin = || format!("{}, at byte {at}", self.path.display());
        let mut bytes =
            forebay_limits::buffer(count).map_err(|error| DataError::malformed(origin(), error.to_string()))?;
        bytes.resize(count as usize, 0);
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_err(|error| DataError::malformed(origin(), format!("cannot read {count} bytes: {error}")))?;
        Ok(bytes)
    }

    fn no_text(&self, at: u64) -> DataError {
        let reason = format!("it is not UTF-8 text: byte {at} is invalid (iconv -t UTF-8 converts text)");
        DataError::malformed(self.path.display().to_string(), reason)
    }
}

/// Returns the text of a line of JSON, which is a string or an object with the text under the key.
fn text_of(line: &[u8], key: Option<&str>) -> Result<String, String> {
    // Some programs begin a file with a byte order mark.
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
    let value: serde_json::Value = serde_json::from_slice(line).map_err(|error| {
        // What the error calls a line is this one.
        let reason = error.to_string();
        let reason = reason.rsplit_once(" at line ").map_or(reason.as_str(), |(reason, _)| reason);
        format!("it is not JSON: {reason}, in column {}", error.column())
    })?;
    match value {
        serde_json::Value::String(text) => Ok(text),
        serde_json::Value::Object(mut object) => {
            let wanted: &[&str] = key.as_ref().map_or(&TEXT_KEYS, std::slice::from_ref);
            match wanted.iter().find_map(|key| object.remove(*key)) {
                Some(serde_json::Value::String(text)) => Ok(text),
                Some(_) => Err(format!("{} is not a string", wanted.join(" or "))),
                None => {
                    let keys: Vec<&str> = object.keys().map(String::as_str).collect();
                    Err(format!(
                        "it has no {}; its keys are {} (select one with --text-key)",
                        wanted.join(" or "),
                        keys.join(", ")
                    ))
                }
            }
        }
        _ => Err("it is neither an object nor a string".to_owned()),
    }
}

/// Returns the last byte position up to `most` that is between two characters.
fn boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Returns the position at which a piece of a longer text ends: after the last newline between two characters other than white space,
/// otherwise before the last white space, otherwise at the end of `text`.
fn cut(text: &str) -> usize {
    let is_space = |at: usize| text[at..].chars().next().is_none_or(char::is_whitespace);
    let before = |at: usize| text[..at].chars().next_back().is_some_and(|letter| !letter.is_whitespace());
    let newline = text.rmatch_indices('\n').map(|(at, _)| at).find(|&at| before(at) && !is_space(at + 1));
    let space = || text.char_indices().rev().map(|(at, _)| at).find(|&at| before(at) && is_space(at));
    newline.map(|at| at + 1).or_else(space).filter(|&at| at > 0).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(path: &Path, key: Option<&str>) -> Result<Vec<Piece>, String> {
        let mut documents = Documents::open(path, key).unwrap();
        let (mut place, mut pieces) = (Place::default(), Vec::new());
        while let Some(piece) = documents.piece(place).map_err(|error| error.to_string())? {
            // Reading from any position on gives the same pieces.
            let mut other = Documents::open(path, key).unwrap();
            assert_eq!(other.piece(place).unwrap().as_ref(), Some(&piece));
            place = piece.next;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    #[test]
    fn pieces_of_long_texts_are_all_of_them_and_end_between_lines() {
        let folder = tempfile::tempdir().unwrap();
        let line = "Où est la bibliothèque ? 図書館\n\n  indented\n";
        let text = line.repeat(3000);
        std::fs::write(folder.path().join("a.txt"), &text).unwrap();
        std::fs::write(folder.path().join("b.txt"), "x".repeat(100_000)).unwrap();
        std::fs::write(folder.path().join("c.txt"), "short").unwrap();
        let found = pieces(folder.path(), None).unwrap();
        let documents: Vec<&[Piece]> = found.split_inclusive(|piece| piece.is_last).collect();
        let joined = |pieces: &[Piece]| pieces.iter().map(|piece| piece.text.as_str()).collect::<String>();
        assert_eq!(documents.len(), 3);
        assert_eq!(
            [joined(documents[0]), joined(documents[1]), joined(documents[2])],
            [text, "x".repeat(100_000), "short".into()]
        );
        assert!(documents[0][1..].iter().all(|piece| piece.text.starts_with('O')), "a newline between two letters");
        assert!(found.iter().all(|piece| piece.text.len() <= PIECE_BYTES_MAX));
    }

    #[test]
    fn a_line_that_became_shorter_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.jsonl");
        std::fs::write(&path, format!("\"{}\"", "x".repeat(40_000))).unwrap();
        let first = Documents::open(&path, None).unwrap().piece(Place::default()).unwrap().unwrap();
        assert!(!first.is_last);
        std::fs::write(&path, "\"x\"").unwrap();
        let error = Documents::open(&path, None).unwrap().piece(first.next).unwrap_err().to_string();
        assert!(error.contains("d.jsonl: it has changed: a document is shorter"), "{error}");
    }

    #[test]
    fn lines_hold_text_under_a_key_and_damage_has_a_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.jsonl");
        let long = "word ".repeat(20_000);
        std::fs::write(&path, format!("{{\"text\": \"a\\nb\"}}\n\n\"plain\"\n{{\"text\":\"{long}\"}}")).unwrap();
        let found = pieces(&path, None).unwrap();
        let documents = found.split_inclusive(|piece| piece.is_last);
        let texts: Vec<String> =
            documents.map(|pieces| pieces.iter().map(|piece| piece.text.as_str()).collect()).collect();
        assert_eq!(texts, ["a\nb", "plain", long.as_str(), ""]);
        std::fs::write(&path, "{\"body\": \"a\"}\n").unwrap();
        assert_eq!(pieces(&path, Some("body")).unwrap()[0].text, "a");
        let error = pieces(&path, None).unwrap_err();
        assert!(error.contains("the line at byte 0: it has no text or content; its keys are body"), "{error}");
        std::fs::write(&path, "\"a\"\n{\"text\": 1}\n").unwrap();
        assert!(
            pieces(&path, None).unwrap_err().contains("d.jsonl, the line at byte 4: text or content is not a string")
        );
        std::fs::write(&path, "\"a\"\n{\"text\": \n").unwrap();
        assert!(pieces(&path, None).unwrap_err().contains("it is not JSON: EOF while parsing a value, in column"));
        std::fs::write(&path, "\"a\"\n{\"text\": [}\n").unwrap();
        let error = pieces(&path, None).unwrap_err();
        assert!(error.ends_with("the line at byte 4: it is not JSON: expected value, in column 11"), "{error}");
        std::fs::write(&path, "\u{feff}{\"text\": \"a\"}\n").unwrap();
        assert_eq!(pieces(&path, None).unwrap()[0].text, "a");
        let path = folder.path().join("e.txt");
        std::fs::write(&path, b"good\xff").unwrap();
        assert!(pieces(&path, None).unwrap_err().contains("e.txt: it is not UTF-8 text: byte 4"));
    }
}
