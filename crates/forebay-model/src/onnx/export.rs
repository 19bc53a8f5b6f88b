//! Writes a model that was read back to ONNX, with new contents.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use super::proto::attribute_proto::AttributeType;
use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use super::skeleton::encode_varint;
use super::{Model, NestedPlace, import, tensor};
use forebay_base::{DataType, Tensor, narrow};

use crate::error::ModelError;
use crate::graph::{FOREBAY, TensorType};

/// The size of the largest message that Protocol Buffers allow, in bytes.
const MESSAGE_BYTES_MAX: u64 = i32::MAX as u64;
/// Keys of the fields that are written separately: number and wire type.
const GRAPH_KEY: u64 = 7 << 3 | 2;
const NODE_KEY: u64 = 1 << 3 | 2;
const INITIALIZER_KEY: u64 = 5 << 3 | 2;
const ATTRIBUTE_KEY: u64 = 5 << 3 | 2;
const TENSOR_KEY: u64 = 5 << 3 | 2;
const SUBGRAPH_KEY: u64 = 6 << 3 | 2;
const RAW_DATA_KEY: u64 = 9 << 3 | 2;

/// A function that takes the next piece of the output.
pub type Take<'a, E> = &'a mut dyn FnMut(&[u8]) -> Result<(), E>;

/// A function that supplies the contents of a name in successive pieces.
pub type Give<'a, E> = &'a mut dyn FnMut(&str, Take<'_, E>) -> Result<(), E>;

/// Serializes the model as it was read, with the contents of the named initializers and `Constant` nodes replaced. External data is moved
/// into the file. Batch normalization and dropout of a model that was exported for training get their form for inference, which training
/// can use as well. Fields that ONNX 1.23 does not define are lost.
///
/// # Errors
/// Fails if a name is not an initializer or constant of the model, contents have a different type than before or cannot be read, or the
/// result exceeds 2 GiB.
pub fn write(model: &Model, new_contents: &BTreeMap<String, Tensor>) -> Result<Vec<u8>, ModelError> {
    let types = new_contents.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
    let mut bytes = Vec::new();
    write_to(model, &types, &mut |name, take| take(new_contents[name].bytes()), &mut |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}

/// Like [`write()`], but writes in pieces. `new` gives the types of the replaced contents, and `give` supplies these contents one after the
/// other, in pieces, so neither old nor new contents have to be in memory.
///
/// # Errors
/// Fails if [`write()`] would, and returns the errors of `give` and `to`.
pub fn write_to<E: From<ModelError>>(
    model: &Model,
    new: &BTreeMap<String, TensorType>,
    give: Give<E>,
    to: Take<E>,
) -> Result<(), E> {
    check(model, new)?;
    let graph_bytes = graph_bytes(model, new)?;
    let mut put = |part: Part| -> Result<(), E> {
        match part {
            Part::Bytes(bytes) => to(&bytes)?,
            Part::Contents { name, size_bytes } => {
                let mut packer =
                    Packer { data_type: model.contents[&name].data_type(), rest: Vec::new(), file_bytes: 0 };
                match new.contains_key(&name) {
                    true => give(&name, &mut |piece| packer.take(piece, to))?,
                    false => model.contents[&name].give_in_pieces(&mut |piece: &[u8]| packer.take(piece, to))?,
                }
                packer.finish(to)?;
                if packer.file_bytes != size_bytes {
                    let reason = format!("'{name}' has {} bytes, not {size_bytes}", packer.file_bytes);
                    return Err(ModelError::Request { reason }.into());
                }
            }
        }
        Ok(())
    };
    put(encoded(&model_head(&model.proto)))?;
    put(Part::Bytes(header(GRAPH_KEY, graph_bytes)))?;
    each_part_of_graph(model, new, &mut put)?;
    put(encoded(&model_tail(&model.proto)))
}

/// Checks that a model fits into one file, whatever its contents are.
///
/// # Errors
/// Fails if the file would exceed 2 GiB.
pub fn check_size(model: &Model) -> Result<(), ModelError> {
    graph_bytes(model, &BTreeMap::new()).map(drop)
}

/// Packs contents that arrive in pieces into the format of the file.
struct Packer {
    data_type: DataType,
    /// Elements that do not yet fill a byte.
    rest: Vec<u8>,
    /// The number of bytes written.
    file_bytes: u64,
}

impl Packer {
    fn take<E>(&mut self, piece: &[u8], to: Take<'_, E>) -> Result<(), E> {
        if self.data_type.file_bits() >= 8 {
            self.file_bytes += piece.len() as u64;
            return to(piece);
        }
        self.rest.extend_from_slice(piece);
        let whole = self.rest.len() - self.rest.len() % (8 / self.data_type.file_bits()) as usize;
        let rest = self.rest.split_off(whole);
        let elements = std::mem::replace(&mut self.rest, rest);
        self.write(&elements, to)
    }

    /// Writes the remaining elements.
    fn finish<E>(&mut self, to: Take<'_, E>) -> Result<(), E> {
        let rest = std::mem::take(&mut self.rest);
        self.write(&rest, to)
    }

    fn write<E>(&mut self, elements: &[u8], to: Take<'_, E>) -> Result<(), E> {
        let bytes = narrow::pack(self.data_type, elements);
        self.file_bytes += bytes.len() as u64;
        to(&bytes)
    }
}

/// Returns the size of the message of the graph.
///
/// # Errors
/// Fails if the file would exceed 2 GiB.
fn graph_bytes(model: &Model, new: &BTreeMap<String, TensorType>) -> Result<u64, ModelError> {
    let mut graph_bytes = 0u64;
    each_part_of_graph(model, new, &mut |part| {
        graph_bytes = graph_bytes.saturating_add(size_bytes(&[part]));
        Ok::<(), ModelError>(())
    })?;
    let others = [
        encoded(&model_head(&model.proto)),
        Part::Bytes(header(GRAPH_KEY, graph_bytes)),
        encoded(&model_tail(&model.proto)),
    ];
    let size_bytes = size_bytes(&others).saturating_add(graph_bytes);
    if size_bytes > MESSAGE_BYTES_MAX {
        let reason = format!(
            "the model takes {size_bytes} bytes, but an ONNX file can have at most {MESSAGE_BYTES_MAX}; save checkpoints \
             instead, or train adapters and save only these"
        );
        return Err(ModelError::Request { reason });
    }
    Ok(graph_bytes)
}

/// Passes the parts of the message of the model's own graph to `take`. The parts of one node or initializer at a time are in memory: within
/// a limit on the process, a model is saved while its values are on the device.
///
/// # Errors
/// The errors of `take`.
fn each_part_of_graph<E>(
    model: &Model,
    new: &BTreeMap<String, TensorType>,
    take: &mut dyn FnMut(Part) -> Result<(), E>,
) -> Result<(), E> {
    let nothing = GraphProto::default();
    let graph = model.proto.graph.as_ref().unwrap_or(&nothing);
    let inference = Inference::of(graph);
    // Fields are in the order of their numbers, as the generated code writes them; the initializers come in between.
    for (i, node) in graph.node.iter().enumerate() {
        field(NODE_KEY, node_parts(inference.node(node), &[i], model, new)).into_iter().try_for_each(&mut *take)?;
    }
    take(encoded(&GraphProto { name: graph.name.clone(), ..GraphProto::default() }))?;
    for initializer in graph.initializer.iter().cloned() {
        let name = initializer.name().to_string();
        let parts = field(INITIALIZER_KEY, tensor_parts(initializer, &name, model, new));
        parts.into_iter().try_for_each(&mut *take)?;
    }
    take(encoded(&GraphProto {
        node: Vec::new(),
        name: None,
        initializer: Vec::new(),
        doc_string: graph.doc_string.clone(),
        input: graph.input.clone(),
        output: graph.output.iter().filter(|output| inference.gives(output.name())).cloned().collect(),
        value_info: graph.value_info.clone(),
        quantization_annotation: graph.quantization_annotation.clone(),
        sparse_initializer: graph.sparse_initializer.clone(),
        metadata_props: graph.metadata_props.clone(),
    }))
}

/// What makes batch normalizations use their running statistics, and dropout do nothing. Operators that only training distinguishes from
/// those of ONNX become these.
struct Inference<'a> {
    /// Outputs that are the next values of initializers.
    next: BTreeSet<&'a str>,
    /// Values that nodes read or that are outputs.
    used: BTreeSet<&'a str>,
}

impl<'a> Inference<'a> {
    fn of(graph: &'a GraphProto) -> Inference<'a> {
        let is_next = |node: &&NodeProto| node.domain() == FOREBAY && node.op_type() == "Next";
        let next = graph.node.iter().filter(is_next).flat_map(|node| &node.output).map(String::as_str);
        let mut inference = Inference { next: next.collect(), used: BTreeSet::new() };
        let read = |node: &'a NodeProto| {
            let count = if is_next(&node) { 1 } else { node.input.len() };
            node.input.iter().take(count).map(String::as_str)
        };
        let outputs = graph.output.iter().map(|output| output.name()).filter(|name| inference.gives(name));
        inference.used = graph.node.iter().flat_map(read).chain(outputs).collect();
        inference
    }

    /// Returns whether the graph still has an output.
    fn gives(&self, output: &str) -> bool {
        !self.next.contains(output)
    }

    /// Returns a node in its form for inference.
    fn node(&self, node: &NodeProto) -> NodeProto {
        let mut node = node.clone();
        if node.domain() == FOREBAY {
            node.domain = None;
            if node.op_type() == "Next" {
                // Only a training step changes the initializer. The node stays, because nodes are known by their places in the list.
                node.op_type = Some("Identity".to_string());
                node.input.truncate(1);
            }
        }
        match node.op_type() {
            _ if !node.domain().is_empty() => {}
            "BatchNormalization" if !node.output.iter().skip(1).any(|output| self.used.contains(output.as_str())) => {
                let count = node.attribute.len();
                node.attribute.retain(|attribute| attribute.name() != "training_mode");
                if node.attribute.len() < count {
                    node.output.truncate(1);
                }
            }
            // The third input says whether it is for training.
            "Dropout" => node.input.truncate(2),
            _ => {}
        }
        node
    }
}

/// Returns the message of the nested graph at a place.
fn graph_parts(graph: GraphProto, place: &[usize], model: &Model, new: &BTreeMap<String, TensorType>) -> Vec<Part> {
    let mut content = Vec::new();
    for (i, node) in graph.node.into_iter().enumerate() {
        let place: NestedPlace = place.iter().copied().chain([i]).collect();
        content.extend(field(NODE_KEY, node_parts(node, &place, model, new)));
    }
    content.push(encoded(&GraphProto { name: graph.name, ..GraphProto::default() }));
    for (i, initializer) in graph.initializer.into_iter().enumerate() {
        let nested: NestedPlace = place.iter().copied().chain([i]).collect();
        let name = model.nested.get(&nested).cloned().unwrap_or_default();
        content.extend(field(INITIALIZER_KEY, tensor_parts(initializer, &name, model, new)));
    }
    content.push(encoded(&GraphProto { node: Vec::new(), name: None, initializer: Vec::new(), ..graph }));
    content
}

/// Returns whether a subgraph of the node at this place, however deeply nested, gets new contents.
fn changes_inside(place: &[usize], model: &Model, new: &BTreeMap<String, TensorType>) -> bool {
    let mut from_here = model.nested.range(place.to_vec()..).take_while(|(nested, _)| nested.starts_with(place));
    from_here.any(|(nested, name)| nested.len() > place.len() && new.contains_key(name))
}

/// A part of a file.
enum Part {
    /// Bytes in memory.
    Bytes(Vec<u8>),
    /// The contents of an initializer or constant, copied from wherever they are.
    Contents { name: String, size_bytes: u64 },
}

fn encoded(message: &impl Message) -> Part {
    Part::Bytes(message.encode_to_vec())
}

fn size_bytes(parts: &[Part]) -> u64 {
    let bytes = parts.iter().map(|part| match part {
        Part::Bytes(bytes) => bytes.len() as u64,
        Part::Contents { size_bytes, .. } => *size_bytes,
    });
    bytes.fold(0, u64::saturating_add)
}

/// Returns a field with this content.
fn field(key: u64, content: Vec<Part>) -> Vec<Part> {
    let mut parts = vec![Part::Bytes(header(key, size_bytes(&content)))];
    parts.extend(content);
    parts
}

/// Returns what comes before the content of a field.
fn header(key: u64, size_bytes: u64) -> Vec<u8> {
    let mut header = Vec::new();
    encode_varint(key, &mut header);
    encode_varint(size_bytes, &mut header);
    header
}

/// Returns the message of a tensor. Contents that are new or not held in the message become raw data.
fn tensor_parts(mut proto: TensorProto, name: &str, model: &Model, new: &BTreeMap<String, TensorType>) -> Vec<Part> {
    let stays = tensor::holds_contents(&proto) && !new.contains_key(name);
    let Some(old) = model.contents.get(name).filter(|_| !stays) else { return vec![encoded(&proto)] };
    tensor::describe(&mut proto, old.ty());
    let tail = TensorProto {
        doc_string: proto.doc_string.take(),
        metadata_props: std::mem::take(&mut proto.metadata_props),
        ..TensorProto::default()
    };
    // The contents exist, so their size fits in 64 bits.
    let size_bytes = narrow::file_bytes(old.data_type(), old.ty().count()).unwrap_or(u64::MAX);
    let raw = Part::Contents { name: name.to_string(), size_bytes };
    let mut parts = vec![encoded(&proto)];
    parts.extend(field(RAW_DATA_KEY, vec![raw]));
    parts.push(encoded(&tail));
    parts
}

/// Returns the message of a node. A `Constant` includes its value; a new value is always in the attribute `value`, whichever held the old
/// one.
fn node_parts(mut node: NodeProto, place: &[usize], model: &Model, new: &BTreeMap<String, TensorType>) -> Vec<Part> {
    if changes_inside(place, model, new) {
        return with_graphs(node, place, model, new);
    }
    let is_nested = place.len() > 1;
    let name = node.output.first().cloned().unwrap_or_default();
    let is_new = new.contains_key(&name);
    let holds_tensor = node.attribute.first().is_some_and(|attribute| attribute.t.is_some());
    if is_nested || !import::is_constant(&node) || !is_new && !holds_tensor {
        return vec![encoded(&node)];
    }
    let new_attribute = || AttributeProto {
        name: Some("value".to_string()),
        r#type: Some(AttributeType::Tensor as i32),
        t: Some(TensorProto::default()),
        ..AttributeProto::default()
    };
    let mut attribute = std::mem::take(&mut node.attribute).into_iter().find(|attribute| attribute.t.is_some());
    let mut attribute = attribute.take().unwrap_or_else(new_attribute);
    let tensor = tensor_parts(attribute.t.take().unwrap_or_default(), &name, model, new);
    let attribute_head = AttributeProto {
        name: attribute.name.take(),
        f: attribute.f.take(),
        i: attribute.i.take(),
        s: attribute.s.take(),
        ..AttributeProto::default()
    };
    let mut value = vec![encoded(&attribute_head)];
    value.extend(field(TENSOR_KEY, tensor));
    value.push(encoded(&attribute));
    let mut parts = vec![encoded(&take_head(&mut node))];
    parts.extend(field(ATTRIBUTE_KEY, value));
    parts.push(encoded(&node));
    parts
}

/// Returns the message of a node with subgraphs that get new contents.
fn with_graphs(mut node: NodeProto, place: &[usize], model: &Model, new: &BTreeMap<String, TensorType>) -> Vec<Part> {
    let attributes = std::mem::take(&mut node.attribute);
    let mut parts = vec![encoded(&take_head(&mut node))];
    for (i, mut attribute) in attributes.into_iter().enumerate() {
        let Some(graph) = attribute.g.take() else {
            parts.extend(field(ATTRIBUTE_KEY, vec![encoded(&attribute)]));
            continue;
        };
        let place: NestedPlace = place.iter().copied().chain([i]).collect();
        let head = AttributeProto { name: attribute.name.take(), ..AttributeProto::default() };
        let mut content = vec![encoded(&head)];
        content.extend(field(SUBGRAPH_KEY, graph_parts(graph, &place, model, new)));
        content.push(encoded(&attribute));
        parts.extend(field(ATTRIBUTE_KEY, content));
    }
    parts.push(encoded(&node));
    parts
}

/// Takes the fields before a node's attributes.
fn take_head(node: &mut NodeProto) -> NodeProto {
    NodeProto {
        input: std::mem::take(&mut node.input),
        output: std::mem::take(&mut node.output),
        name: node.name.take(),
        op_type: node.op_type.take(),
        ..NodeProto::default()
    }
}

/// Checks that the new contents belong to the model.
fn check(model: &Model, new: &BTreeMap<String, TensorType>) -> Result<(), ModelError> {
    for (name, new) in new {
        let old = model.contents.get(name).ok_or_else(|| ModelError::Request {
            reason: format!("the model has no initializer or constant named '{name}' to replace"),
        })?;
        if old.ty() != new {
            let reason = format!("'{name}' is {} and cannot be replaced by {new}", old.ty());
            return Err(ModelError::Request { reason });
        }
    }
    Ok(())
}

/// Returns the fields before the graph.
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

/// Returns the fields after the graph.
fn model_tail(proto: &ModelProto) -> ModelProto {
    ModelProto {
        ir_version: None,
        producer_name: None,
        producer_version: None,
        domain: None,
        model_version: None,
        doc_string: None,
        graph: None,
        opset_import: proto.opset_import.iter().filter(|import| import.domain() != FOREBAY).cloned().collect(),
        metadata_props: proto.metadata_props.clone(),
        training_info: proto.training_info.clone(),
        functions: proto.functions.clone(),
        configuration: proto.configuration.clone(),
    }
}
