//! Reads a model's file without its weights, in one pass over the messages that leaves out large raw and typed data and records its
//! location.
//!
//! Whatever this pass does not understand is left to the decoder: the caller then reads the whole file and gets the same errors as without
//! this pass. The pass therefore needs no error messages of its own.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use crate::tensor::{Encoding, FileRange, Numbers, SourceFile};

/// Wire types of Protocol Buffers.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

/// Numbers of the typed data fields.
pub(super) const FLOAT_DATA: u64 = 4;
pub(super) const INT32_DATA: u64 = 5;
pub(super) const INT64_DATA: u64 = 7;
pub(super) const DOUBLE_DATA: u64 = 10;
pub(super) const UINT64_DATA: u64 = 11;

/// Raw data of at most this many bytes stays in the messages, as does typed data if its tensor's message has at most this many.
pub(super) const KEPT_BYTES_MAX: u64 = 1024;

/// The locations of the data that was left out of the messages.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// By index of the initializer.
    pub initializers: BTreeMap<usize, Data>,
    /// By index of the node and of its attribute.
    pub attributes: BTreeMap<(usize, usize), Data>,
}

/// The location of a tensor's data.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    /// Raw data.
    pub raw: Option<FileRange>,
    /// Typed data, by the number of its field.
    pub typed: BTreeMap<u64, Numbers>,
}

/// Returns the messages of a file without large raw data, and the location of that data; `None` if the file is not a model or is encoded in
/// an unusual way.
pub(super) fn read(path: &Path, file: &Arc<File>, metadata: &Metadata) -> Option<(Vec<u8>, LeftOut)> {
    let source = Arc::new(SourceFile::opened(path, file.clone(), metadata));
    let mut pass = Pass {
        stream: BufReader::with_capacity(64 << 10, file),
        position: 0,
        source,
        left_out: LeftOut::default(),
        initializer: 0,
        node: 0,
        attribute: 0,
    };
    let mut messages = Vec::new();
    pass.message(Message::Model, metadata.len(), &mut messages)?;
    Some((messages, pass.left_out))
}

/// The messages that lead to raw data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Model,
    Graph,
    Initializer,
    Node,
    Attribute,
    /// The tensor of an attribute.
    Value,
}

/// The kind of a field in one of those messages.
enum Field {
    /// Another of those messages, which can occur many times.
    Many(Message),
    /// Another of those messages, which can occur once.
    One(Message),
    /// Raw data.
    Raw,
    /// Typed data.
    Typed(Encoding),
    /// Anything else.
    Other,
}

impl Message {
    /// The numbers are those in `proto/onnx.proto`.
    fn field(self, number: u64) -> Field {
        match (self, number) {
            (Message::Model, 7) => Field::One(Message::Graph),
            (Message::Graph, 1) => Field::Many(Message::Node),
            (Message::Graph, 5) => Field::Many(Message::Initializer),
            (Message::Node, 5) => Field::Many(Message::Attribute),
            (Message::Attribute, 5) => Field::One(Message::Value),
            (Message::Initializer | Message::Value, 9) => Field::Raw,
            (Message::Initializer | Message::Value, FLOAT_DATA) => Field::Typed(Encoding::Fixed(4)),
            (Message::Initializer | Message::Value, DOUBLE_DATA) => Field::Typed(Encoding::Fixed(8)),
            (Message::Initializer | Message::Value, INT32_DATA | INT64_DATA | UINT64_DATA) => {
                Field::Typed(Encoding::Varint)
            }
            _ => Field::Other,
        }
    }
}

/// The state of the pass over a file.
struct Pass<'a> {
    stream: BufReader<&'a File>,
    position: u64,
    source: Arc<SourceFile>,
    left_out: LeftOut,
    initializer: usize,
    node: usize,
    attribute: usize,
}

impl Pass<'_> {
    /// Copies a message that ends at `end`, without large raw data.
    fn message(&mut self, message: Message, end: u64, to: &mut Vec<u8>) -> Option<()> {
        let mut met = false;
        let is_large = end - self.position > KEPT_BYTES_MAX;
        while self.position < end {
            let start = self.position;
            let key = self.varint()?;
            let number = Some(key >> 3).filter(|number| *number > 0 && key <= u64::from(u32::MAX))?;
            match (message.field(number), key & 7) {
                (Field::Many(inner), LENGTH_DELIMITED) => self.inner(inner, key, end, to)?,
                (Field::One(inner), LENGTH_DELIMITED) => {
                    // The decoder would merge two of them.
                    if std::mem::replace(&mut met, true) {
                        return None;
                    }
                    self.inner(inner, key, end, to)?;
                }
                (Field::Raw, LENGTH_DELIMITED) => {
                    if std::mem::replace(&mut met, true) {
                        return None;
                    }
                    self.raw(message, key, end, to)?;
                }
                (Field::Typed(encoding), _) if is_large => self.typed(message, encoding, start, key, end)?,
                (Field::Other | Field::Typed(_), wire) => self.copy(key, wire, end, to)?,
                _ => return None,
            }
        }
        (self.position == end).then_some(())
    }

    /// Copies a message within one that ends at `end`.
    fn inner(&mut self, message: Message, key: u64, end: u64, to: &mut Vec<u8>) -> Option<()> {
        let length = self.length(end)?;
        if message == Message::Node {
            self.attribute = 0;
        }
        let mut content = Vec::new();
        self.message(message, self.position + length, &mut content)?;
        match message {
            Message::Node => self.node += 1,
            Message::Initializer => self.initializer += 1,
            Message::Attribute => self.attribute += 1,
            Message::Model | Message::Graph | Message::Value => {}
        }
        encode_varint(key, to);
        encode_varint(content.len() as u64, to);
        to.append(&mut content);
        Some(())
    }

    /// Copies raw data if it is small; otherwise records its location.
    fn raw(&mut self, message: Message, key: u64, end: u64, to: &mut Vec<u8>) -> Option<()> {
        let length = self.length(end)?;
        if length <= KEPT_BYTES_MAX {
            encode_varint(key, to);
            encode_varint(length, to);
            return self.bytes(length, to);
        }
        let range = FileRange { file: self.source.clone(), bytes: self.position..self.position + length };
        self.data(message).raw = Some(range);
        self.skip(length)
    }

    /// Records the location of the typed data whose key is at `start`.
    fn typed(&mut self, message: Message, encoding: Encoding, start: u64, key: u64, end: u64) -> Option<()> {
        if self.position != start + 1 {
            // A key can take more bytes than it needs, but in practice none does.
            return None;
        }
        let source = self.source.clone();
        let typed = &mut self.data(message).typed;
        let mut numbers = typed.remove(&(key >> 3)).unwrap_or_else(|| Numbers::new(source, encoding));
        match (key & 7, encoding) {
            (LENGTH_DELIMITED, Encoding::Fixed(_)) => {
                let length = self.length(end)?;
                numbers.add_fixed(self.position..self.position + length)?;
                self.skip(length)?;
            }
            (LENGTH_DELIMITED, Encoding::Varint) => {
                let length = self.length(end)?;
                let end = self.position + length;
                numbers.begin_varints(self.position..end)?;
                while self.position < end {
                    numbers.add_number(self.position);
                    self.varint()?;
                }
                (self.position == end).then_some(())?;
            }
            (FIXED32, Encoding::Fixed(width @ 4)) | (FIXED64, Encoding::Fixed(width @ 8)) => {
                self.position.checked_add(width).filter(|&last| last <= end)?;
                self.skip(width)?;
                numbers.add_unpacked(start..self.position)?;
            }
            (VARINT, Encoding::Varint) => {
                self.varint()?;
                numbers.add_unpacked(start..self.position)?;
            }
            _ => return None,
        }
        self.data(message).typed.insert(key >> 3, numbers);
        Some(())
    }

    /// Returns the data locations of the tensor being read.
    fn data(&mut self, message: Message) -> &mut Data {
        match message {
            Message::Initializer => self.left_out.initializers.entry(self.initializer).or_default(),
            _ => self.left_out.attributes.entry((self.node, self.attribute)).or_default(),
        }
    }

    /// Skips bytes.
    fn skip(&mut self, length: u64) -> Option<()> {
        self.position += length;
        self.stream.seek_relative(i64::try_from(length).ok()?).ok()
    }

    /// Copies any other field.
    fn copy(&mut self, key: u64, wire: u64, end: u64, to: &mut Vec<u8>) -> Option<()> {
        encode_varint(key, to);
        let length = match wire {
            VARINT => {
                let value = self.varint()?;
                encode_varint(value, to);
                return Some(());
            }
            FIXED64 => 8,
            FIXED32 => 4,
            LENGTH_DELIMITED => {
                let length = self.length(end)?;
                encode_varint(length, to);
                length
            }
            // Groups, which ONNX does not have.
            _ => return None,
        };
        self.bytes(length, to)
    }

    /// Reads the length of a field that must end at or before `end`.
    fn length(&mut self, end: u64) -> Option<u64> {
        let length = self.varint()?;
        self.position.checked_add(length).filter(|&last| last <= end).map(|_| length)
    }

    /// Copies bytes that are in the file.
    fn bytes(&mut self, length: u64, to: &mut Vec<u8>) -> Option<()> {
        // They are decoded afterwards, which needs twice as much memory.
        forebay_limits::check(length.saturating_mul(2), forebay_limits::Use::Private).ok()?;
        to.try_reserve(usize::try_from(length).ok()?).ok()?;
        let read = self.stream.by_ref().take(length).read_to_end(to).ok()?;
        self.position += read as u64;
        (read as u64 == length).then_some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.stream.fill_buf().ok()?.first()?;
            self.stream.consume(1);
            self.position += 1;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

/// Encodes a number as Protocol Buffers do.
pub(super) fn encode_varint(mut value: u64, to: &mut Vec<u8>) {
    while value > 0x7f {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}
