//! The parts of ONNX that are out of scope: strings and sparse tensors.

use prost::Message;

/// `TensorProto.STRING`.
const STRING: i32 = 8;

/// The fields of `ModelProto` that say what a model needs.
#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
}

/// `GraphProto`.
#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "11")]
    inputs: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    outputs: Vec<ValueInfo>,
}

/// `ValueInfoProto`.
#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(message, optional, tag = "2")]
    ty: Option<Type>,
}

/// `TypeProto`.
#[derive(Clone, PartialEq, Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor: Option<Tensor>,
    #[prost(message, optional, boxed, tag = "4")]
    sequence: Option<Box<Sequence>>,
    #[prost(message, optional, tag = "8")]
    sparse: Option<Tensor>,
}

/// `TypeProto.Tensor`, and `TypeProto.SparseTensor`.
#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    element: i32,
}

/// `TypeProto.Sequence`.
#[derive(Clone, PartialEq, Message)]
struct Sequence {
    #[prost(message, optional, boxed, tag = "1")]
    element: Option<Box<Type>>,
}

/// Returns what puts a model out of scope; `None` if nothing does, or if the model cannot be read.
pub fn out_of_scope(model: &[u8]) -> Option<&'static str> {
    let graph = Model::decode(model).ok()?.graph?;
    graph.inputs.iter().chain(&graph.outputs).filter_map(|info| info.ty.as_ref()).find_map(of_type)
}

/// Returns what puts a type out of scope.
fn of_type(ty: &Type) -> Option<&'static str> {
    match ty {
        Type { sparse: Some(_), .. } => Some("sparse tensors"),
        Type { tensor: Some(Tensor { element: STRING }), .. } => Some("strings"),
        Type { sequence: Some(sequence), .. } => sequence.element.as_deref().and_then(of_type),
        _ => None,
    }
}
