//! The values in a case's data: tensors, and the contents of ONNX's `SequenceProto` and `OptionalProto`.

use forebay::{Tensor, Value, ValueInfo};
use forebay_model::onnx::read_tensor;
use prost::Message;

/// `SequenceProto`, restricted to tensors.
#[derive(Clone, PartialEq, Message)]
struct Sequence {
    #[prost(bytes = "vec", repeated, tag = "3")]
    tensors: Vec<Vec<u8>>,
}

/// `OptionalProto`, restricted to a tensor or a sequence.
#[derive(Clone, PartialEq, Message)]
struct Optional {
    #[prost(int32, optional, tag = "2")]
    kind: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "3")]
    tensor: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    sequence: Option<Sequence>,
}

/// Reads the value in a file, which has the type that the model declares.
///
/// # Errors
/// If the value cannot be read.
pub fn read(bytes: &[u8], info: &ValueInfo) -> Result<Value, String> {
    match info.structure {
        None => tensor(bytes).map(Value::Tensor),
        Some(structure) if structure.is_optional() => {
            let value = Optional::decode(bytes).map_err(|error| error.to_string())?;
            match (value.kind.unwrap_or_default(), value.tensor, value.sequence) {
                (0, _, _) => Ok(Value::Absent),
                (_, Some(bytes), _) => tensor(&bytes).map(Value::Tensor),
                (_, None, Some(elements)) => sequence(elements),
                (kind, None, None) => Err(format!("an optional value of kind {kind} is not supported")),
            }
        }
        Some(_) => sequence(Sequence::decode(bytes).map_err(|error| error.to_string())?),
    }
}

fn tensor(bytes: &[u8]) -> Result<Tensor, String> {
    read_tensor(bytes).map(|(_, tensor)| tensor).map_err(|error| error.to_string())
}

fn sequence(sequence: Sequence) -> Result<Value, String> {
    sequence.tensors.iter().map(|bytes| tensor(bytes)).collect::<Result<_, _>>().map(Value::Sequence)
}
