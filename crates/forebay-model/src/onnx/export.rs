//! From a model that was read back to ONNX, with new contents.

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message;

use super::proto::attribute_proto::AttributeType;
use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use super::skeleton::encode_varint;
use super::{import, tensor, Model};
use forebay_base::Tensor;

use crate::error::ModelError;
use crate::graph::TensorType;
use crate::tensor::Contents;

/// Largest message that Protocol Buffers allow, in bytes.
const MESSAGE_BYTES_MAX: u64 = i32::MAX as u64;
/// Contents are copied in pieces of this many bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Keys of the fields that are written apart: number and wire type.
const GRAPH_KEY: u64 = 7 << 3 | 2;
const INITIALIZER_KEY: u64 = 5 << 3 | 2;
const RAW_DATA_KEY: u64 = 9 << 3 | 2;

/// The model as it was read, with the contents of the named initializers and `Constant` nodes replaced. External data
/// comes into the file. Fields that ONNX 1.23 does not define are lost.
///
/// # Errors
/// A name that is no initializer or constant of the model, contents of another type than before, contents that cannot be read,
/// or more than 2 GiB.
pub fn write(model: &Model, new_contents: &BTreeMap<String, Tensor>) -> Result<Vec<u8>, ModelError> {
    let types = new_contents.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
    let mut bytes = Vec::new();
    let written = write_to(model, &types, &mut |name| Ok(new_contents[name].clone().into()), &mut bytes);
    written.map_err(|error: WriteError| error.0)?;
    Ok(bytes)
}

/// An error of [`write()`]: writing to memory has none of its own.
struct WriteError(ModelError);

impl From<ModelError> for WriteError {
    fn from(error: ModelError) -> WriteError {
        WriteError(error)
    }
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> WriteError {
        WriteError(ModelError::Request { reason: error.to_string() })
    }
}

/// The same to a stream. `new` gives the types of the contents that are replaced, and `contents` those contents, one at a
/// time: so neither old nor new ones have to be in memory together.
///
/// # Errors
/// As [`write()`], and those of `contents` and the stream.
pub fn write_to<E: From<ModelError> + From<io::Error>>(
    model: &Model,
    new: &BTreeMap<String, TensorType>,
    contents: &mut dyn FnMut(&str) -> Result<Contents, E>,
    to: &mut dyn Write,
) -> Result<(), E> {
    check(model, new)?;
    let graph = model.proto.graph.clone().unwrap_or_default();
    let mut nodes = graph.node;
    for node in nodes.iter_mut().filter(|node| import::is_constant(node)) {
        let name = node.output.first().cloned().unwrap_or_default();
        write_constant(node, &name, model, new, contents)?;
    }
    // Fields come in the order of their numbers, as the generated code writes them: those of initializers lie in between.
    let graph_head = GraphProto { node: nodes, name: graph.name, ..GraphProto::default() };
    let initializers: Vec<Initializer> =
        graph.initializer.into_iter().map(|proto| Initializer::new(proto, model, new)).collect();
    let graph_tail = GraphProto { node: Vec::new(), name: None, initializer: Vec::new(), ..graph };
    let graph_bytes = initializers
        .iter()
        .map(Initializer::field_bytes)
        .fold(graph_head.encoded_len() as u64 + graph_tail.encoded_len() as u64, u64::saturating_add);
    let head = model_head(&model.proto);
    let tail = model_tail(&model.proto);
    let rest_bytes = head.encoded_len() as u64 + tail.encoded_len() as u64;
    let size_bytes = rest_bytes.saturating_add(field_bytes(graph_bytes));
    if size_bytes > MESSAGE_BYTES_MAX {
        let reason = format!("the model takes {size_bytes} bytes, an ONNX file holds at most {MESSAGE_BYTES_MAX}");
        return Err(ModelError::Request { reason }.into());
    }
    to.write_all(&head.encode_to_vec())?;
    write_header(GRAPH_KEY, graph_bytes, to)?;
    to.write_all(&graph_head.encode_to_vec())?;
    for initializer in &initializers {
        initializer.write(model, new, contents, to)?;
    }
    to.write_all(&graph_tail.encode_to_vec())?;
    to.write_all(&tail.encode_to_vec())?;
    Ok(())
}

/// Checks that what is new belongs to the model.
fn check(model: &Model, new: &BTreeMap<String, TensorType>) -> Result<(), ModelError> {
    for (name, new) in new {
        let old = model.contents.get(name).ok_or_else(|| ModelError::Request {
            reason: format!("the model has no initializer or constant '{name}' to replace"),
        })?;
        check_type(name, old, new)?;
    }
    Ok(())
}

fn check_type(name: &str, old: &Contents, new: &TensorType) -> Result<(), ModelError> {
    if old.ty() == new {
        return Ok(());
    }
    let reason = format!("'{name}' is {}, and cannot be replaced by {new}", old.ty());
    Err(ModelError::Request { reason })
}

/// The fields before the graph.
fn model_head(proto: &ModelProto) -> ModelProto {
    ModelProto {
        ir_version: proto.ir_version,
        producer_name: proto.producer_name.clone(),
        producer_version: proto.producer_version.clone(),
        domain: proto.domain.clone(),
        model_version: proto.model_version,
        doc_string: proto.doc_string.clone(),
        ..ModelProto::default()
    }
}

/// The fields behind the graph.
fn model_tail(proto: &ModelProto) -> ModelProto {
    ModelProto {
        ir_version: None,
        producer_name: None,
        producer_version: None,
        domain: None,
        model_version: None,
        doc_string: None,
        graph: None,
        opset_import: proto.opset_import.clone(),
        metadata_props: proto.metadata_props.clone(),
        training_info: proto.training_info.clone(),
        functions: proto.functions.clone(),
        configuration: proto.configuration.clone(),
    }
}

/// An initializer's message in the parts before and behind its raw data.
struct Initializer {
    name: String,
    head: TensorProto,
    tail: TensorProto,
    /// Bytes of its raw data; none where it has typed data, which is in the message.
    raw_bytes: Option<u64>,
}

impl Initializer {
    fn new(mut proto: TensorProto, model: &Model, new: &BTreeMap<String, TensorType>) -> Initializer {
        let name = proto.name().to_string();
        let stays = tensor::holds_contents(&proto) && !new.contains_key(&name);
        let old = model.contents.get(&name).filter(|_| !stays);
        if let Some(old) = old {
            tensor::describe(&mut proto, old.ty());
        }
        let tail = TensorProto {
            double_data: std::mem::take(&mut proto.double_data),
            uint64_data: std::mem::take(&mut proto.uint64_data),
            doc_string: proto.doc_string.take(),
            external_data: std::mem::take(&mut proto.external_data),
            data_location: proto.data_location.take(),
            metadata_props: std::mem::take(&mut proto.metadata_props),
            ..TensorProto::default()
        };
        Initializer { name, head: proto, tail, raw_bytes: old.map(Contents::size_bytes) }
    }

    /// Bytes of its message.
    fn bytes(&self) -> u64 {
        let rest_bytes = self.head.encoded_len() as u64 + self.tail.encoded_len() as u64;
        rest_bytes.saturating_add(self.raw_bytes.map_or(0, field_bytes))
    }

    /// The same as a field of the graph.
    fn field_bytes(&self) -> u64 {
        field_bytes(self.bytes())
    }

    fn write<E: From<ModelError> + From<io::Error>>(
        &self,
        model: &Model,
        new: &BTreeMap<String, TensorType>,
        contents: &mut dyn FnMut(&str) -> Result<Contents, E>,
        to: &mut dyn Write,
    ) -> Result<(), E> {
        write_header(INITIALIZER_KEY, self.bytes(), to)?;
        to.write_all(&self.head.encode_to_vec())?;
        if let (Some(raw_bytes), Some(old)) = (self.raw_bytes, model.contents.get(&self.name)) {
            write_header(RAW_DATA_KEY, raw_bytes, to)?;
            let source = if new.contains_key(&self.name) { contents(&self.name)? } else { old.clone() };
            check_type(&self.name, old, source.ty())?;
            let reader = source.reader()?;
            let mut piece = vec![0; raw_bytes.min(PIECE_BYTES) as usize];
            for start in (0..raw_bytes).step_by(PIECE_BYTES as usize) {
                let piece = &mut piece[..(raw_bytes - start).min(PIECE_BYTES) as usize];
                reader.read(start, piece)?;
                to.write_all(piece)?;
            }
        }
        to.write_all(&self.tail.encode_to_vec())?;
        Ok(())
    }
}

/// Bytes of a field with this many bytes of content, whose number is less than 16.
fn field_bytes(content_bytes: u64) -> u64 {
    let length_bytes = prost::length_delimiter_len(content_bytes as usize) as u64;
    content_bytes.saturating_add(1 + length_bytes)
}

fn write_header(key: u64, content_bytes: u64, to: &mut dyn Write) -> io::Result<()> {
    let mut header = Vec::new();
    encode_varint(key, &mut header);
    encode_varint(content_bytes, &mut header);
    to.write_all(&header)
}

/// Gives a `Constant` node its value. A new one always goes into the attribute `value`, whichever held the old one.
fn write_constant<E: From<ModelError>>(
    node: &mut NodeProto,
    name: &str,
    model: &Model,
    new: &BTreeMap<String, TensorType>,
    contents: &mut dyn FnMut(&str) -> Result<Contents, E>,
) -> Result<(), E> {
    let new = new.contains_key(name).then(|| contents(name)).transpose()?;
    let new = new.map(|new| new.to_tensor()).transpose()?;
    let old = model.contents.get(name);
    for proto in node.attribute.iter_mut().filter_map(|attribute| attribute.t.as_mut()) {
        match (&new, old) {
            (Some(new), _) => tensor::put(proto, new),
            (None, Some(old)) if !tensor::holds_contents(proto) => tensor::put(proto, &old.to_tensor()?),
            (None, _) => {}
        }
    }
    if let (Some(new), false) = (&new, node.attribute.iter().any(|attribute| attribute.t.is_some())) {
        let mut proto = TensorProto::default();
        tensor::put(&mut proto, new);
        node.attribute = vec![AttributeProto {
            name: Some("value".to_string()),
            r#type: Some(AttributeType::Tensor as i32),
            t: Some(proto),
            ..AttributeProto::default()
        }];
    }
    Ok(())
}
