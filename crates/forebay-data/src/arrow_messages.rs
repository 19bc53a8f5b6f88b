//! The messages of Arrow IPC files and streams. When a file is opened, only their metadata is read, not their bodies.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use arrow_ipc::{Block, Message, MessageHeader, root_as_footer, root_as_message};

use crate::arrow_layout::{Batch, Field, batch, check, fields};
use crate::error::DataError;

/// The bytes with which a file begins and ends; a stream has none.
const MAGIC: &[u8; 6] = b"ARROW1";
/// The bytes with which files of version 1 of Feather begin.
const FEATHER_1: &[u8; 4] = b"FEA1";
/// The word with which a message begins, since Arrow 0.15.
const CONTINUATION: u32 = u32::MAX;
/// The position of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The byte at which it begins.
    pub(crate) at: u64,
    /// Its metadata: the first byte, and the number of bytes.
    says: (u64, u64),
    /// Its body, in the same form.
    pub(crate) body: (u64, u64),
}

/// The values of a dictionary, valid from a record batch on.
#[derive(Clone, Debug)]
pub(crate) struct Dictionary {
    pub(crate) from: usize,
    /// Its parts, each with the index of its first value, the number of its values, and its position.
    pub(crate) parts: Vec<(u64, u64, Place)>,
}

/// An open file.
pub(crate) struct ArrowFile {
    pub(crate) path: PathBuf,
    file: File,
    size_bytes: u64,
    pub(crate) fields: Vec<Field>,
    /// The number of rows and the position of each record batch.
    pub(crate) batches: Vec<(u64, Place)>,
    pub(crate) dictionaries: BTreeMap<i64, Vec<Dictionary>>,
}

impl ArrowFile {
    /// Opens a file and reads its metadata.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the byte if it is not an Arrow file, is truncated or is damaged.
    pub(crate) fn open(path: PathBuf) -> Result<ArrowFile, DataError> {
        let file = forebay_limits::open_regular(&path).map_err(|error| DataError::io(&path, error))?;
        let size_bytes = file.metadata().map_err(|error| DataError::io(&path, error))?.len();
        let (fields, batches, dictionaries) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut file = ArrowFile { path, file, size_bytes, fields, batches, dictionaries };
        let start = file.read((0, size_bytes.min(MAGIC.len() as u64)))?;
        if start.starts_with(FEATHER_1) {
            let reason = "it is a Feather version 1 file, which is not supported; \
                          pyarrow.feather.write_feather writes version 2";
            return Err(DataError::unsupported(file.path.display().to_string(), reason));
        }
        if start.len() < 4 {
            return Err(file.wrong(0, &format!("not an Arrow file: it has {size_bytes} bytes")));
        }
        if start == MAGIC {
            file.open_file()?
        } else {
            file.open_stream()?
        }
        Ok(file)
    }

    /// Returns an error that names the file and the byte.
    pub(crate) fn wrong(&self, at: u64, reason: &str) -> DataError {
        DataError::malformed(format!("{}, at byte {at}", self.path.display()), reason)
    }

    /// Reads `count` bytes from byte `at` on.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the byte.
    pub(crate) fn read(&self, (at, count): (u64, u64)) -> Result<Vec<u8>, DataError> {
        if at.checked_add(count).is_none_or(|end| end > self.size_bytes) {
            let reason = format!("truncated: expected {count} bytes, but the file ends at byte {}", self.size_bytes);
            return Err(self.wrong(at, &reason));
        }
        let mut bytes = forebay_limits::buffer(count).map_err(|error| self.wrong(at, &error.to_string()))?;
        bytes.resize(count as usize, 0);
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_err(|error| self.wrong(at, &format!("cannot read {count} bytes: {error}")))?;
        Ok(bytes)
    }

    /// Reads the footer of a file.
    fn open_file(&mut self) -> Result<(), DataError> {
        let end = self.size_bytes.saturating_sub(4 + MAGIC.len() as u64);
        let last = self.read((end, 4 + MAGIC.len() as u64))?;
        if &last[4..] != MAGIC {
            return Err(self.wrong(end, "truncated: it does not end with ARROW1, as Arrow files do"));
        }
        let bytes = u64::from(u32::from_le_bytes([last[0], last[1], last[2], last[3]]));
        let Some(start) = end.checked_sub(bytes) else {
            return Err(self.wrong(end, &format!("the footer of {bytes} bytes is larger than the file")));
        };
        let footer = self.read((start, bytes))?;
        let footer = root_as_footer(&footer).map_err(|error| self.wrong(start, &format!("invalid footer: {error}")))?;
        let schema = footer.schema().ok_or_else(|| self.wrong(start, "the footer has no schema"))?;
        self.fields = fields(schema).map_err(|reason| self.wrong(start, &reason))?;
        for block in footer.dictionaries().into_iter().flatten() {
            let place = self.block(block)?;
            self.add(place, true)?;
        }
        for block in footer.recordBatches().into_iter().flatten() {
            let place = self.block(block)?;
            self.add(place, true)?;
        }
        Ok(())
    }

    /// Returns the position of a message that a footer refers to.
    fn block(&self, block: &Block) -> Result<Place, DataError> {
        let at = block.offset().max(0) as u64;
        let (says, body) = (block.metaDataLength(), block.bodyLength());
        let message = self.message(at)?.filter(|_| block.offset() >= 0);
        let message = message.filter(|place| {
            let end = at.checked_add(says.max(0) as u64);
            Some(place.body.0) == end && body == place.body.1 as i64
        });
        message.ok_or_else(|| self.wrong(at, "the footer refers to a message here, but there is another one or none"))
    }

    /// Reads the messages of a stream one after the other.
    fn open_stream(&mut self) -> Result<(), DataError> {
        let mut at = 0;
        while at < self.size_bytes {
            let Some(place) = self.message(at)? else { break };
            if at == 0 {
                let bytes = self.read(place.says)?;
                let schema = self.said(place, &bytes)?.header_as_schema();
                let schema =
                    schema.ok_or_else(|| self.wrong(at, "not an Arrow stream: it does not begin with a schema"))?;
                self.fields = fields(schema).map_err(|reason| self.wrong(at, &reason))?;
            } else {
                self.add(place, false)?;
            }
            at = place.body.0 + place.body.1;
        }
        match at {
            0 => Err(self.wrong(0, "not an Arrow stream: it ends where its schema should be")),
            _ => Ok(()),
        }
    }

    /// Returns the position of the message that begins at this byte, or `None` at the end of a stream.
    fn message(&self, at: u64) -> Result<Option<Place>, DataError> {
        let word = |at: u64| -> Result<u32, DataError> {
            let bytes = self.read((at, 4))?;
            Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let first = word(at)?;
        let (start, bytes) = if first == CONTINUATION { (at + 8, word(at + 4)?) } else { (at + 4, first) };
        if bytes == 0 {
            return Ok(None);
        }
        let says = (start, u64::from(bytes));
        if start + says.1 > self.size_bytes {
            let reason = match at {
                0 => "not an Arrow file".to_owned(),
                _ => format!("truncated: a message has {bytes} bytes, but the file ends at byte {}", self.size_bytes),
            };
            return Err(self.wrong(at, &reason));
        }
        let mut place = Place { at, says, body: (start + says.1, 0) };
        let text = self.read(says)?;
        let body = self.said(place, &text)?.bodyLength();
        place.body.1 = u64::try_from(body).map_err(|_| self.wrong(at, &format!("invalid body size: {body} bytes")))?;
        if place.body.0.checked_add(place.body.1).is_none_or(|end| end > self.size_bytes) {
            let reason =
                format!("truncated: a message body has {body} bytes, but the file ends at byte {}", self.size_bytes);
            return Err(self.wrong(at, &reason));
        }
        Ok(Some(place))
    }

    /// Parses the metadata of a message.
    fn said<'a>(&self, place: Place, bytes: &'a [u8]) -> Result<Message<'a>, DataError> {
        root_as_message(bytes).map_err(|error| self.wrong(place.at, &format!("not an Arrow message: {error}")))
    }

    /// Registers a record batch or a dictionary.
    fn add(&mut self, place: Place, is_file: bool) -> Result<(), DataError> {
        let bytes = self.read(place.says)?;
        let message = self.said(place, &bytes)?;
        match message.header_type() {
            MessageHeader::RecordBatch => {
                let found = self.batch(place)?;
                check(&self.fields, &found).map_err(|reason| self.wrong(place.at, &reason))?;
                self.batches.push((found.rows, place));
            }
            MessageHeader::DictionaryBatch => {
                let found = message.header_as_dictionary_batch();
                let found = found.ok_or_else(|| self.wrong(place.at, "a dictionary has no number"))?;
                let (id, is_delta) = (found.id(), found.isDelta());
                let (rows, from) = (self.batch(place)?.rows, self.batches.len());
                let known = self.dictionaries.get(&id).and_then(|versions| versions.last());
                let mut parts = match (known, is_delta) {
                    (Some(known), true) => known.parts.clone(),
                    (Some(_), false) if is_file => {
                        return Err(self.wrong(place.at, &format!("the file contains dictionary {id} twice")));
                    }
                    _ => Vec::new(),
                };
                let first = parts.last().map_or(0, |&(first, count, _)| first + count);
                parts.push((first, rows, place));
                self.dictionaries.entry(id).or_default().push(Dictionary { from, parts });
            }
            other => {
                let what = other.variant_name().unwrap_or("unknown");
                return Err(self.wrong(place.at, &format!("expected rows, found a message of kind {what}")));
            }
        }
        Ok(())
    }

    /// Returns the metadata of the record batch or dictionary at a position.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the byte.
    pub(crate) fn batch(&self, place: Place) -> Result<Batch, DataError> {
        let bytes = self.read(place.says)?;
        let message = self.said(place, &bytes)?;
        let of_dictionary = message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
        let found = message.header_as_record_batch().or(of_dictionary);
        let found = found.ok_or_else(|| self.wrong(place.at, "the message contains no rows"))?;
        batch(found, message.version(), place.body.1).map_err(|reason| self.wrong(place.at, &reason))
    }
}
