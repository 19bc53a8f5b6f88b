//! From a model that was read back to ONNX, with new contents.

use std::collections::BTreeMap;

use prost::Message;

use super::proto::attribute_proto::AttributeType;
use super::proto::{AttributeProto, NodeProto, TensorProto};
use super::{import, tensor, Model};
use forebay_base::Tensor;

use crate::error::ModelError;

/// Largest message that Protocol Buffers allow, in bytes.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// The model as it was read, with the contents of the named initializers and `Constant` nodes replaced. External data
/// comes into the file. Fields that ONNX 1.23 does not define are lost.
///
/// # Errors
/// A name that is no initializer or constant of the model, contents of another type than before, or more than 2 GiB.
pub fn write(model: &Model, new_contents: &BTreeMap<String, Tensor>) -> Result<Vec<u8>, ModelError> {
    for (name, new) in new_contents {
        let old = model.contents.get(name).ok_or_else(|| ModelError::Request {
            reason: format!("the model has no initializer or constant '{name}' to replace"),
        })?;
        if old.ty() != new.ty() {
            let reason = format!("'{name}' is {}, and cannot be replaced by {}", old.ty(), new.ty());
            return Err(ModelError::Request { reason });
        }
    }
    let mut proto = model.proto.clone();
    if let Some(graph) = &mut proto.graph {
        for initializer in &mut graph.initializer {
            let name = initializer.name().to_string();
            restore(initializer, new_contents.get(&name), model.contents.get(&name));
        }
        for node in graph.node.iter_mut().filter(|node| import::is_constant(node)) {
            let name = node.output.first().cloned().unwrap_or_default();
            write_constant(node, new_contents.get(&name), model.contents.get(&name));
        }
    }
    let size_bytes = proto.encoded_len();
    if size_bytes > MESSAGE_BYTES_MAX {
        let reason = format!("the model takes {size_bytes} bytes, an ONNX file holds at most {MESSAGE_BYTES_MAX}");
        return Err(ModelError::Request { reason });
    }
    Ok(proto.encode_to_vec())
}

/// Gives a tensor message its contents: new ones, or those that were taken out of it.
fn restore(proto: &mut TensorProto, new: Option<&Tensor>, old: Option<&Tensor>) {
    match (new, old) {
        (Some(new), _) => tensor::put(proto, new),
        (None, Some(old)) => tensor::give_back(proto, old),
        (None, None) => {}
    }
}

/// Gives a `Constant` node its value. A new one always goes into the attribute `value`, whichever held the old one.
fn write_constant(node: &mut NodeProto, new: Option<&Tensor>, old: Option<&Tensor>) {
    for proto in node.attribute.iter_mut().filter_map(|attribute| attribute.t.as_mut()) {
        restore(proto, new, old);
    }
    if let (Some(new), false) = (new, node.attribute.iter().any(|attribute| attribute.t.is_some())) {
        let mut proto = TensorProto::default();
        tensor::put(&mut proto, new);
        node.attribute = vec![AttributeProto {
            name: Some("value".to_string()),
            r#type: Some(AttributeType::Tensor as i32),
            t: Some(proto),
            ..AttributeProto::default()
        }];
    }
}
