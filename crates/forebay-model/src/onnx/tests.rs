mod exporter;
mod files;
mod functions;

use forebay_base::DataType;

use super::proto::attribute_proto::AttributeType;
use super::proto::tensor_proto::{DataLocation, DataType as OnnxType};
use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, SparseTensorProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, tensor_shape_proto, type_proto,
};
use super::*;
use crate::graph::{Attribute, Dimension, FOREBAY, Operation};

/// A value of float32; a negative size is the symbol `N`.
fn info(name: &str, sizes: &[i64]) -> ValueInfoProto {
    use tensor_shape_proto::dimension::Value;
    let dimension = |&size: &i64| tensor_shape_proto::Dimension {
        value: Some(if size < 0 { Value::DimParam("N".to_string()) } else { Value::DimValue(size) }),
        denotation: None,
    };
    let tensor = type_proto::Tensor {
        elem_type: Some(OnnxType::Float as i32),
        shape: Some(TensorShapeProto { dim: sizes.iter().map(dimension).collect() }),
    };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    ValueInfoProto { name: Some(name.to_string()), r#type: Some(ty), ..ValueInfoProto::default() }
}

fn node(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op_type.to_string()),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: outputs.iter().map(ToString::to_string).collect(),
        ..NodeProto::default()
    }
}

fn constant(output: &str, attribute: AttributeProto) -> NodeProto {
    NodeProto { attribute: vec![attribute], ..node("Constant", &[], &[output]) }
}

fn named(name: &str, ty: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_string()), r#type: Some(ty as i32), ..AttributeProto::default() }
}

fn raw(name: &str, ty: OnnxType, dims: &[i64], bytes: &[u8]) -> TensorProto {
    TensorProto {
        name: Some(name.to_string()),
        data_type: Some(ty as i32),
        dims: dims.to_vec(),
        raw_data: Some(bytes.to_vec()),
        ..TensorProto::default()
    }
}

fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
        producer_name: Some("a test".to_string()),
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// y = x + w, with w as initializer and graph input.
fn addition() -> GraphProto {
    GraphProto {
        node: vec![node("Add", &["x/0", "w"], &["y"])],
        name: Some("addition".to_string()),
        initializer: vec![raw("w", OnnxType::Float, &[2], &[0, 0, 128, 63, 0, 0, 0, 64])],
        input: vec![info("x/0", &[-1, 2]), info("w", &[2])],
        output: vec![info("y", &[-1, 2])],
        ..GraphProto::default()
    }
}

fn parse(graph: GraphProto) -> Result<Model, ModelError> {
    read(&model(graph).encode_to_vec(), None)
}

/// Returns the message of the error that reading a graph must end in.
fn refusal(graph: GraphProto) -> String {
    parse(graph).expect_err("the graph is broken").to_string()
}

#[test]
fn initializers_that_are_graph_inputs_are_no_inputs() {
    let graph = parse(addition()).unwrap().graph;
    assert_eq!(graph.inputs, [graph.find("x/0").unwrap()]);
    let defaults = parse(addition()).unwrap().defaults;
    assert_eq!(defaults, [("w".to_string(), (DataType::Float32, vec![Dimension::Known(2)]))].into());
    let w = graph.find("w").unwrap();
    assert_eq!(graph.initializers[&w], Tensor::from_f32(&[2], &[1.0, 2.0]));
    let declared = graph.value(graph.inputs[0]).declared.clone();
    let dimensions = vec![Dimension::Symbol("N".to_string()), Dimension::Known(2)];
    assert_eq!(declared, Some((DataType::Float32, dimensions)));
    assert!(matches!(&graph.nodes[0].operation, Operation::Onnx { op_type, version: 17, .. } if op_type == "Add"));
}

#[test]
fn operators_of_onnx_runtime_need_no_import() {
    let in_domain = |domain: &str| {
        let mut graph = addition();
        graph.node[0].domain = Some(domain.to_string());
        parse(graph)
    };
    let graph = in_domain("com.microsoft").unwrap().graph;
    assert!(matches!(&graph.nodes[0].operation, Operation::Onnx { version: 1, .. }));
    let error = in_domain("com.example").unwrap_err().to_string();
    assert!(error.contains("operator set 'com.example', which the model does not import"), "{error}");
}

#[test]
fn every_data_type_reads_from_raw_and_typed_fields() {
    use OnnxType as T;
    let ints = |ty: T| TensorProto { int32_data: vec![1, -2], ..raw("t", ty, &[2], &[]) };
    // Bytes that several elements share; the last one is not full.
    let packed = |ty: T, count: i64| TensorProto { int32_data: vec![0xf1, 0x09], ..raw("t", ty, &[count], &[]) };
    let wide = |ty: T| TensorProto { uint64_data: vec![1, 2], ..raw("t", ty, &[2], &[]) };
    let cases: Vec<(TensorProto, DataType, Vec<u8>)> = vec![
        (
            TensorProto { float_data: vec![1.0], ..raw("t", T::Float, &[1], &[]) },
            DataType::Float32,
            vec![0, 0, 128, 63],
        ),
        (
            TensorProto { double_data: vec![1.0], ..raw("t", T::Double, &[], &[]) },
            DataType::Float64,
            1f64.to_le_bytes().to_vec(),
        ),
        (TensorProto { int64_data: vec![-1], ..raw("t", T::Int64, &[1], &[]) }, DataType::Int64, vec![255; 8]),
        (ints(T::Int32), DataType::Int32, vec![1, 0, 0, 0, 254, 255, 255, 255]),
        (ints(T::Int16), DataType::Int16, vec![1, 0, 254, 255]),
        (ints(T::Uint16), DataType::UInt16, vec![1, 0, 254, 255]),
        (ints(T::Float16), DataType::Float16, vec![1, 0, 254, 255]),
        (ints(T::Bfloat16), DataType::BFloat16, vec![1, 0, 254, 255]),
        (ints(T::Int8), DataType::Int8, vec![1, 254]),
        (ints(T::Uint8), DataType::UInt8, vec![1, 254]),
        (ints(T::Bool), DataType::Bool, vec![1, 1]),
        (wide(T::Uint32), DataType::UInt32, vec![1, 0, 0, 0, 2, 0, 0, 0]),
        (wide(T::Uint64), DataType::UInt64, vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]),
        (ints(T::Float8e4m3fn), DataType::Float8E4M3FN, vec![1, 254]),
        (ints(T::Float8e4m3fnuz), DataType::Float8E4M3FNUZ, vec![1, 254]),
        (ints(T::Float8e5m2), DataType::Float8E5M2, vec![1, 254]),
        (ints(T::Float8e5m2fnuz), DataType::Float8E5M2FNUZ, vec![1, 254]),
        (ints(T::Float8e8m0), DataType::Float8E8M0, vec![1, 254]),
        (packed(T::Float4e2m1, 3), DataType::Float4E2M1, vec![1, 15, 9]),
        (packed(T::Uint4, 3), DataType::UInt4, vec![1, 15, 9]),
        (packed(T::Int4, 3), DataType::Int4, vec![1, 255, 249]),
        (packed(T::Uint2, 6), DataType::UInt2, vec![1, 0, 3, 3, 1, 2]),
        (packed(T::Int2, 6), DataType::Int2, vec![1, 0, 255, 255, 1, 254]),
    ];
    assert_eq!(cases.len(), DataType::ALL.len());
    for (typed, data_type, bytes) in cases {
        let (name, tensor) = read_tensor(&typed.encode_to_vec()).unwrap();
        assert_eq!((name.as_str(), tensor.data_type(), tensor.bytes()), ("t", data_type, &bytes[..]));
        let mut copy = TensorProto { name: Some("t".to_string()), ..TensorProto::default() };
        tensor::describe(&mut copy, &tensor.ty());
        copy.raw_data = Some(forebay_base::narrow::pack(data_type, tensor.bytes()));
        assert_eq!(read_tensor(&copy.encode_to_vec()).unwrap().1, tensor);
    }
    for (ty, count, bytes) in [(T::Int4, 3, 3), (T::Int4, 5, 2), (T::Uint2, 4, 2), (T::Float8e5m2, 4, 2)] {
        let error = read_tensor(&raw("t", ty, &[count], &vec![0; bytes]).encode_to_vec()).unwrap_err().to_string();
        assert!(error.contains(&format!("contains {bytes} bytes")), "{error}");
    }
    let bytes = raw("t", T::Bool, &[3], &[0, 1, 7]).encode_to_vec();
    assert_eq!(read_tensor(&bytes).unwrap().1.bytes(), [0, 1, 1]);
}

#[test]
fn tensors_that_lie_about_their_size_are_refused_without_allocation() {
    let refused = |tensor: TensorProto, words: &str| {
        let message = refusal(GraphProto { initializer: vec![tensor], ..addition() });
        assert!(message.contains(words), "{message}");
    };
    refused(raw("w", OnnxType::Float, &[1 << 62], &[0; 4]), "does not fit in 64 bits");
    refused(raw("w", OnnxType::Float, &[1 << 31, 1 << 31, 1 << 31], &[0; 4]), "does not fit in 64 bits");
    refused(raw("w", OnnxType::Float, &[1 << 60], &[0; 4]), "contains 4 bytes");
    refused(raw("w", OnnxType::Float, &[-1], &[0; 4]), "has the invalid size -1");
    refused(raw("w", OnnxType::Float, &[2], &[]), "contains 0 bytes");
    refused(raw("w", OnnxType::String, &[2], &[0; 4]), "string");
    refused(raw("w", OnnxType::Complex64, &[1], &[0; 8]), "complex64");
    let twice = TensorProto { float_data: vec![1.0], ..raw("w", OnnxType::Float, &[1], &[0; 4]) };
    refused(twice, "twice");
}

#[test]
fn constant_nodes_of_every_form_become_constants() {
    let mut graph = addition();
    let tensor = Some(raw("", OnnxType::Double, &[1], &[0; 8]));
    let nodes = [
        constant("a", AttributeProto { t: tensor, ..named("value", AttributeType::Tensor) }),
        constant("b", AttributeProto { f: Some(2.5), ..named("value_float", AttributeType::Float) }),
        constant("c", AttributeProto { floats: vec![1.0, 2.0], ..named("value_floats", AttributeType::Floats) }),
        constant("d", AttributeProto { i: Some(-3), ..named("value_int", AttributeType::Int) }),
        // Without its type, as in old files.
        constant("e", AttributeProto { ints: vec![4, 5], name: Some("value_ints".into()), ..Default::default() }),
    ];
    graph.node.extend(nodes);
    let graph = parse(graph).unwrap().graph;
    let value = |name: &str| graph.initializers[&graph.find(name).unwrap()].clone();
    assert_eq!(value("a"), Tensor::new(DataType::Float64, &[1], [0; 8]).unwrap());
    assert_eq!(value("b"), Tensor::from_f32(&[], &[2.5]));
    assert_eq!(value("c"), Tensor::from_f32(&[2], &[1.0, 2.0]));
    assert_eq!(value("d"), Tensor::from_i64(&[], &[-3]));
    assert_eq!(value("e"), Tensor::from_i64(&[2], &[4, 5]));
    assert_eq!(graph.nodes.len(), 1);
    assert_eq!(graph.constants.len(), 5, "the initializer may train, constants may not");
}

#[test]
fn nodes_come_into_order_and_circles_are_refused() {
    let mut graph = addition();
    graph.node = vec![node("Relu", &["z"], &["y"]), node("Add", &["x/0", "w"], &["z"])];
    let names: Vec<String> =
        parse(graph.clone()).unwrap().graph.nodes.iter().map(|node| node.operation.name().to_string()).collect();
    assert_eq!(names, ["Add", "Relu"]);
    graph.node[1].input[0] = "y".to_string();
    assert!(refusal(graph).contains("cycle"));
}

#[test]
fn broken_graphs_are_refused_with_the_name_of_what_is_broken() {
    let with_node = |node: NodeProto| {
        let mut graph = addition();
        graph.node.push(node);
        graph
    };
    let cases = [
        (with_node(node("Relu", &["nothing"], &["z"])), "'z' uses the value 'nothing'"),
        (with_node(node("Relu", &["x/0"], &["y"])), "'y' is defined twice"),
        (with_node(node("Relu", &["x/0"], &["w"])), "'w' is defined twice"),
        (GraphProto { output: vec![info("q", &[1])], ..addition() }, "computes the output 'q'"),
        (GraphProto { output: vec![], ..addition() }, "no outputs"),
        (GraphProto { input: vec![info("x/0", &[1]), info("x/0", &[1])], ..addition() }, "'x/0' is declared twice"),
        (with_node(NodeProto { domain: Some("custom".into()), ..node("Foo", &["y"], &["z"]) }), "'custom'"),
        (GraphProto { sparse_initializer: vec![SparseTensorProto::default()], ..addition() }, "sparse"),
    ];
    for (graph, words) in cases {
        let message = refusal(graph);
        assert!(message.contains(words), "{message} lacks {words}");
    }
}

#[test]
fn an_output_that_is_listed_twice_is_one() {
    let info = || info("y", &[-1, 2]);
    let graph = parse(GraphProto { output: vec![info(), info()], ..addition() }).unwrap().graph;
    assert_eq!(graph.outputs, [graph.find("y").unwrap()]);
}

/// PyTorch's exporter writes zeros of shape `[channels, 2]` for the bias that a convolution of volumes does not have.
#[test]
fn a_convolution_of_volumes_has_no_bias_if_its_exporter_wrote_zeros() {
    let integer = |name: &str, value: i64| AttributeProto { i: Some(value), ..named(name, AttributeType::Int) };
    let two = AttributeProto { ints: vec![2], ..named("value_ints", AttributeType::Ints) };
    let zero = AttributeProto { f: Some(0.0), ..named("value_float", AttributeType::Float) };
    let with = |attributes: &[AttributeProto], node: NodeProto| NodeProto { attribute: attributes.to_vec(), ..node };
    let graph = GraphProto {
        node: vec![
            with(&[integer("start", 0), integer("end", 1)], node("Shape", &["w"], &["channels"])),
            constant("two", two),
            with(&[integer("axis", 0)], node("Concat", &["channels", "two"], &["shape"])),
            constant("zero", zero),
            node("CastLike", &["zero", "x"], &["number"]),
            node("Expand", &["number", "shape"], &["bias"]),
            node("Conv", &["x", "w", "bias"], &["y"]),
        ],
        name: Some("volumes".to_string()),
        initializer: vec![raw("w", OnnxType::Float, &[3, 1, 1, 1, 1], &[0; 12])],
        input: vec![info("x", &[-1, 1, 2, 2, 2])],
        output: vec![info("y", &[-1, 3, 2, 2, 2])],
        ..GraphProto::default()
    };
    let mut graph = parse(graph).unwrap().trainable_graph().unwrap();
    crate::infer::infer(&mut graph, Some(2)).unwrap();
    let program = crate::lower::lower(&graph, &BTreeSet::new()).unwrap();
    assert!(matches!(&program.launches[..], [launch] if launch.reads.len() == 2));
}

#[test]
fn lists_of_graphs_are_unsupported_operators_named_with_their_node() {
    let mut graph = addition();
    let branches = AttributeProto { graphs: vec![GraphProto::default()], ..named("branches", AttributeType::Graphs) };
    graph.node.push(NodeProto {
        attribute: vec![branches],
        name: Some("choice".into()),
        ..node("Switch", &["y"], &["z"])
    });
    assert_eq!(
        parse(graph).unwrap_err(),
        ModelError::UnsupportedOperator {
            domain: String::new(),
            op_type: "Switch".to_string(),
            version: 17,
            node: "choice".to_string()
        }
    );
}

#[test]
fn a_graph_in_a_node_takes_what_it_uses_of_those_around_it() {
    let inner = GraphProto {
        node: vec![node("Neg", &["y"], &["negative"])],
        initializer: vec![],
        output: vec![ValueInfoProto { name: Some("negative".into()), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let mut graph = addition();
    let branch = AttributeProto { g: Some(inner), ..named("then_branch", AttributeType::Graph) };
    graph.node.push(NodeProto { attribute: vec![branch], name: Some("choice".into()), ..node("If", &["w"], &["z"]) });
    let graph = parse(graph).unwrap().graph;
    let choice = graph.nodes.iter().find(|node| node.name == "choice").unwrap();
    let names: Vec<&str> = choice.inputs.iter().flatten().map(|&id| graph.value(id).name.as_str()).collect();
    assert_eq!(names, ["w", "y"], "what the branch uses stands behind what the operator takes");
    let mut unknown = addition();
    let lost = GraphProto { node: vec![node("Neg", &["nowhere"], &["negative"])], ..GraphProto::default() };
    let branch = AttributeProto { g: Some(lost), ..named("then_branch", AttributeType::Graph) };
    unknown.node.push(NodeProto { attribute: vec![branch], ..node("If", &["w"], &["z"]) });
    assert!(parse(unknown).unwrap_err().to_string().contains("'nowhere', which is not defined"));
}

#[test]
fn versions_out_of_range_are_refused() {
    let mut proto = model(addition());
    proto.opset_import[0].version = Some(crate::operators::NEWEST_OPSET + 1);
    let message = read(&proto.encode_to_vec(), None).unwrap_err().to_string();
    assert!(message.contains("operator set 29"), "{message}");
    for version in [0, -5, i64::MIN] {
        proto.opset_import[0].version = Some(version);
        let message = read(&proto.encode_to_vec(), None).unwrap_err().to_string();
        assert!(
            message.contains(&format!("operator set {version} of ONNX does not exist; the first one is 1")),
            "{message}"
        );
    }
    proto.ir_version = Some(2);
    proto.opset_import[0].version = Some(17);
    assert!(read(&proto.encode_to_vec(), None).unwrap_err().to_string().contains("IR version 2"));
}

/// [`addition`], with `w` as external data of `count` elements.
fn external_of(location: &str, offset: &str, length: &str, count: i64) -> Vec<u8> {
    let entry =
        |key: &str, value: &str| StringStringEntryProto { key: Some(key.to_string()), value: Some(value.to_string()) };
    let tensor = TensorProto {
        data_location: Some(DataLocation::External as i32),
        external_data: vec![entry("location", location), entry("offset", offset), entry("length", length)],
        ..raw("w", OnnxType::Float, &[count], &[])
    };
    model(GraphProto { initializer: vec![tensor], ..addition() }).encode_to_vec()
}

fn external(location: &str, offset: &str, length: &str) -> Vec<u8> {
    external_of(location, offset, length, 2)
}

/// A sparse file of 4 TiB must not make the reader request 4 TiB of memory and crash.
#[test]
fn external_data_beyond_memory_is_an_error() {
    let directory = std::env::temp_dir().join(format!("forebay-external-sparse-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::File::create(directory.join("w.bin")).unwrap().set_len(1 << 42).unwrap();
    let bytes = external_of("w.bin", "0", &(1u64 << 42).to_string(), 1 << 40);
    let model = read(&bytes, Some(&directory)).unwrap();
    let error = model.contents["w"].to_tensor().unwrap_err().to_string();
    assert!(error.contains("tensor 'w'") && error.contains("8.0 TiB would be needed"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// `cache/snapshots/1/model.onnx` and its data are links into `cache/blobs`, as in the caches of model hubs; other links lead out of the
/// folder.
#[cfg(unix)]
#[test]
fn links_lead_no_further_than_the_folder_of_the_models_own_file() {
    use std::os::unix::fs::symlink;
    let base = std::env::temp_dir().join(format!("forebay-external-links-{}", std::process::id()));
    let (blobs, snapshot) = (base.join("cache/blobs"), base.join("cache/snapshots/1"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(base.join("secret"), [0; 8]).unwrap();
    std::fs::write(blobs.join("data"), [0; 8]).unwrap();
    std::fs::write(blobs.join("model"), external("w.bin", "0", "8")).unwrap();
    symlink("../../blobs/data", snapshot.join("w.bin")).unwrap();
    symlink("../../blobs/model", snapshot.join("model.onnx")).unwrap();
    assert!(read_file(&snapshot.join("model.onnx")).is_ok());
    // The same model as a regular file: only its own folder is allowed, and the link leads out of it.
    std::fs::write(snapshot.join("own.onnx"), external("w.bin", "0", "8")).unwrap();
    let refusal = |path: &Path| read_file(path).unwrap_err().to_string();
    let error = refusal(&snapshot.join("own.onnx"));
    assert!(error.contains("'w.bin', which leads to") && error.contains("outside the model's folder"), "{error}");
    // A link in the folder can point anywhere within the folder.
    std::fs::create_dir(snapshot.join("deep")).unwrap();
    std::fs::write(snapshot.join("deep/w"), [0; 8]).unwrap();
    symlink("deep/w", snapshot.join("inside.bin")).unwrap();
    std::fs::write(snapshot.join("inside.onnx"), external("inside.bin", "0", "8")).unwrap();
    assert!(read_file(&snapshot.join("inside.onnx")).is_ok());
    // A link in the cache must not lead out of the store, nor may a linked folder.
    symlink(&base, snapshot.join("out")).unwrap();
    for location in ["stolen.bin", "out/secret"] {
        std::fs::write(blobs.join("model"), external(location, "0", "8")).unwrap();
        let _ = symlink("../../../secret", snapshot.join("stolen.bin"));
        let error = refusal(&snapshot.join("model.onnx"));
        assert!(error.contains("outside the model's folder"), "{error}");
    }
    std::fs::remove_dir_all(&base).unwrap();
}

#[test]
fn external_data_is_read_inside_the_directory_only() {
    let directory = std::env::temp_dir().join(format!("forebay-external-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("weights")).unwrap();
    std::fs::write(directory.join("weights/w.bin"), [9, 9, 9, 9, 0, 0, 128, 63, 0, 0, 0, 64]).unwrap();
    let good = external("weights/w.bin", "4", "8");
    let model = read(&good, Some(&directory)).unwrap();
    let w = Tensor::from_f32(&[2], &[1.0, 2.0]);
    assert_eq!(model.contents["w"].to_tensor().unwrap(), w);
    let inlined = read(&write(&model, &BTreeMap::new()).unwrap(), None).unwrap();
    assert_eq!(inlined.contents["w"], w, "a model that is written holds its data");

    assert!(matches!(read(&good, None), Err(ModelError::Request { .. })));
    for location in ["/etc/hostname", "../w.bin", "weights/../../w.bin", ""] {
        let error = read(&external(location, "0", "8"), Some(&directory)).unwrap_err();
        assert!(error.to_string().contains("', outside the model's folder"), "{error}");
    }
    for (offset, length) in [("8", "8"), ("18446744073709551615", "8"), ("0", "12"), ("x", "8"), ("-1", "8")] {
        assert!(read(&external("weights/w.bin", offset, length), Some(&directory)).is_err(), "{offset} {length}");
    }
    assert!(matches!(read(&external("weights", "0", "8"), Some(&directory)), Err(ModelError::File { .. })));
    assert!(matches!(read(&external("none.bin", "0", "8"), Some(&directory)), Err(ModelError::File { .. })));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_model_is_written_back_with_new_contents_and_everything_else_as_it_was() {
    let mut graph = addition();
    graph.doc_string = Some("words".to_string());
    graph.node.push(constant("b", AttributeProto { f: Some(2.5), ..named("value_float", AttributeType::Float) }));
    let shape = raw("s", OnnxType::Int64, &[1], &3i64.to_le_bytes());
    let attribute = AttributeProto { t: Some(shape.clone()), ..named("value", AttributeType::Tensor) };
    graph.node.push(NodeProto { attribute: vec![attribute], ..node("ConstantOfShape", &["w"], &["unused"]) });
    graph.initializer.push(TensorProto { int64_data: vec![7], ..raw("k", OnnxType::Int64, &[1], &[]) });
    let mut original = model(graph);
    original.metadata_props = vec![StringStringEntryProto { key: Some("k".into()), value: Some("v".into()) }];
    let model = read(&original.encode_to_vec(), None).unwrap();

    let unchanged = write(&model, &BTreeMap::new()).unwrap();
    let expected = {
        let mut expected = original.clone();
        // The test's own constructor wrote an empty raw field next to typed data.
        expected.graph.as_mut().unwrap().initializer[1].raw_data = Some(vec![]);
        expected
    };
    assert_eq!(ModelProto::decode(&unchanged[..]).unwrap(), expected);

    let (w, b) = (Tensor::from_f32(&[2], &[5.0, 6.0]), Tensor::from_f32(&[], &[7.0]));
    let trained = BTreeMap::from([("w".to_string(), w.clone()), ("b".to_string(), b.clone())]);
    let again = read(&write(&model, &trained).unwrap(), None).unwrap();
    assert!(again.contents["w"] == w && again.contents["b"] == b);
    assert_eq!(again.contents["k"], Tensor::from_i64(&[1], &[7]));
    assert_eq!(again.proto.graph.as_ref().unwrap().doc_string.as_deref(), Some("words"));
    let Operation::Onnx { attributes, .. } = &again.graph.nodes[1].operation else { panic!("an operator") };
    assert_eq!(attributes["value"], Attribute::Tensor(Tensor::from_i64(&[1], &[3])));

    let unknown = BTreeMap::from([("v".to_string(), b.clone())]);
    assert!(matches!(write(&model, &unknown), Err(ModelError::Request { .. })));
    let misshapen = BTreeMap::from([("w".to_string(), b)]);
    assert!(matches!(write(&model, &misshapen), Err(ModelError::Request { .. })));
}

#[test]
fn a_model_exported_for_training_is_written_for_inference() {
    let training_mode = || AttributeProto { i: Some(1), ..named("training_mode", AttributeType::Int) };
    let normalization = |inputs: [&str; 5], outputs: [&str; 3]| NodeProto {
        attribute: vec![AttributeProto { f: Some(0.8), ..named("momentum", AttributeType::Float) }, training_mode()],
        ..node("BatchNormalization", &inputs, &outputs)
    };
    let mut graph = addition();
    graph.node = vec![
        normalization(["v", "w", "w", "w", "w"], ["n", "next_mean", "next_variance"]),
        node("Dropout", &["n", "ratio", "training"], &["d"]),
        // Its statistics are used.
        normalization(["d", "w", "w", "w", "w"], ["sum", "used", ""]),
        NodeProto { domain: Some(FOREBAY.to_string()), ..node("Identity", &["used"], &["u"]) },
    ];
    let mut proto = model(graph);
    proto.opset_import.push(OperatorSetIdProto { domain: Some(FOREBAY.to_string()), version: Some(1) });
    let model = Model { proto, ..read(&model(addition()).encode_to_vec(), None).unwrap() };
    let written = ModelProto::decode(&write(&model, &BTreeMap::new()).unwrap()[..]).unwrap();
    assert_eq!(written.opset_import.len(), 1);
    let written = written.graph.unwrap();
    let [first, dropout, second, identity] = &written.node[..] else { panic!("four nodes") };
    assert_eq!(identity.domain(), "");
    assert_eq!((first.output.as_slice(), first.attribute.len()), (&["n".to_string()][..], 1));
    assert_eq!(dropout.input, ["n", "ratio"]);
    assert_eq!((second.output.len(), second.attribute.len()), (3, 2));
}

#[test]
fn no_bytes_and_other_bytes_are_malformed() {
    for bytes in [&b""[..], b"not an ONNX model", &[0xff; 64], &[0x3a, 0x80, 0x80, 0x80, 0x80, 0x08]] {
        assert!(matches!(read(bytes, None), Err(ModelError::Malformed { .. })), "{bytes:?}");
    }
}

#[test]
fn a_sequence_of_maps_is_a_tensor_if_zip_map_makes_it() {
    let maps = || {
        let map = TypeProto { value: Some(type_proto::Value::MapType(Default::default())), denotation: None };
        let sequence = type_proto::Sequence { elem_type: Some(Box::new(map)) };
        let ty = TypeProto { value: Some(type_proto::Value::SequenceType(sequence.into())), denotation: None };
        ValueInfoProto { name: Some("y".to_string()), r#type: Some(ty), ..ValueInfoProto::default() }
    };
    let with_domain = |domain: &str| {
        let zip_map = NodeProto { domain: Some(domain.to_string()), ..node("ZipMap", &["x"], &["y"]) };
        let graph = GraphProto {
            node: vec![zip_map],
            input: vec![info("x", &[-1, 2])],
            output: vec![maps()],
            ..GraphProto::default()
        };
        let imports = [("ai.onnx.ml", 1), ("other", 1)];
        let imports = imports
            .map(|(domain, version)| OperatorSetIdProto { domain: Some(domain.to_string()), version: Some(version) });
        read(&ModelProto { opset_import: imports.to_vec(), ..model(graph) }.encode_to_vec(), None)
    };
    let graph = with_domain("ai.onnx.ml").unwrap().graph;
    let output = graph.value(graph.outputs[0]);
    assert_eq!((output.structure.is_none(), output.declared.is_none()), (true, true));
    let error = with_domain("other").unwrap_err().to_string();
    assert!(error.contains("'y' is a sequence whose elements are not tensors"), "{error}");
}
