//! Parameters that PyTorch's exporters wrote once, folded, or omitted.

use super::*;

const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";

fn ones(name: &str, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    raw(name, OnnxType::Float, dims, &1.0_f32.to_le_bytes().repeat(count))
}

fn metadata(entries: &[(&str, &str)]) -> Vec<StringStringEntryProto> {
    let entry =
        |&(key, value): &(&str, &str)| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    entries.iter().map(entry).collect()
}

fn of_pytorch(graph: GraphProto) -> ModelProto {
    ModelProto { producer_name: Some("pytorch".to_string()), ..model(graph) }
}

fn called(name: &str, node: NodeProto) -> NodeProto {
    NodeProto { name: Some(name.to_string()), ..node }
}

/// Returns what the nodes of an operator read as one of their inputs, in the graph's order.
fn read_at(model: &Model, op_type: &str, place: usize) -> Vec<String> {
    let nodes = model.graph.nodes.iter().filter(|node| node.operation.name() == op_type);
    nodes.map(|node| model.graph.value(node.inputs[place].unwrap()).name.clone()).collect()
}

/// Layers `a` and `b` have separate scales, both ones; `b` is called twice. A transposed matrix is used by two calls of one module and by
/// another module.
fn with_identities() -> ModelProto {
    let graph = GraphProto {
        node: vec![
            node("Identity", &["a.scale"], &["b.scale"]),
            node("Identity", &["onnx::MatMul_7"], &["onnx::MatMul_8"]),
            node("Identity", &["onnx::MatMul_7"], &["onnx::MatMul_9"]),
            constant(
                "c",
                AttributeProto {
                    t: Some(raw("", OnnxType::Float, &[2, 300], &3.5_f32.to_le_bytes().repeat(600))),
                    ..named("value", AttributeType::Tensor)
                },
            ),
            called("/a/Mul", node("Mul", &["x", "a.scale"], &["x1"])),
            called("/b/Mul", node("Mul", &["x1", "b.scale"], &["x2"])),
            called("/b_1/Mul", node("Mul", &["x2", "b.scale"], &["x3"])),
            called("/m.0/MatMul", node("MatMul", &["x3", "onnx::MatMul_7"], &["x4"])),
            called("/m.0_1/MatMul", node("MatMul", &["x4", "onnx::MatMul_8"], &["x5"])),
            called("/m.1/MatMul", node("MatMul", &["x5", "onnx::MatMul_9"], &["x6"])),
            node("Add", &["x6", "c"], &["y"]),
        ],
        initializer: vec![ones("a.scale", &[300]), ones("onnx::MatMul_7", &[300, 300])],
        input: vec![info("x", &[2, 300])],
        output: vec![info("y", &[2, 300])],
        ..GraphProto::default()
    };
    of_pytorch(graph)
}

#[test]
fn parameters_of_equal_values_are_several_again() {
    for from_file in [false, true] {
        let bytes = with_identities().encode_to_vec();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, &bytes).unwrap();
        let model = if from_file { read_file(&path) } else { read(&bytes, None) }.unwrap();
        assert_eq!(read_at(&model, "Mul", 1), ["a.scale", "b.scale", "b.scale"]);
        assert_eq!(read_at(&model, "MatMul", 1), ["onnx::MatMul_7", "onnx::MatMul_8", "onnx::MatMul_9"]);
        assert_eq!(read_at(&model, "Identity", 0), ["onnx::MatMul_7"], "two calls of one module share its matrix");
        let weights = model.trainable_graph().unwrap();
        let trained = |name: &str| {
            let id = weights.find(name).unwrap();
            weights.initializers.contains_key(&id) && !weights.constants.contains(&id)
        };
        assert!(["a.scale", "b.scale", "onnx::MatMul_7", "onnx::MatMul_9"].iter().all(|name| trained(name)));
        assert!(!weights.initializers.contains_key(&weights.find("onnx::MatMul_8").unwrap()));
        let c = weights.initializers[&weights.find("c").unwrap()].to_tensor().unwrap();
        assert_eq!(c.bytes(), 3.5_f32.to_le_bytes().repeat(600), "data of nodes is where it was");

        // The written file has both, each with its own contents.
        let new = Tensor::from_f32(&[300], &[2.0; 300]);
        let written = write(&model, &BTreeMap::from([("b.scale".to_string(), new.clone())])).unwrap();
        let again = read(&written, None).unwrap();
        let contents = |name: &str| again.graph.initializers[&again.graph.find(name).unwrap()].to_tensor().unwrap();
        assert_eq!(contents("b.scale"), new);
        assert_eq!(contents("a.scale"), Tensor::from_f32(&[300], &[1.0; 300]));
    }
}

#[test]
fn an_identity_of_other_producers_stays() {
    let proto = ModelProto { producer_name: Some("a test".to_string()), ..with_identities() };
    let model = read(&proto.encode_to_vec(), None).unwrap();
    assert_eq!(read_at(&model, "Identity", 0), ["a.scale", "onnx::MatMul_7", "onnx::MatMul_7"]);
}

/// Two normalizations share one scale and one bias, and the second also has the bias of the product; a product lost its bias of zeros, and
/// a matrix and a scale were computed from parameters. The last two products share their bias, which was omitted as well.
fn with_calls() -> ModelProto {
    let call = |target: &str, arguments: &str| {
        format!(
            "%y : [num_users=1] = call_function[target=torch.ops.aten.{target}.default](args = ({arguments}), kwargs = {{}})"
        )
    };
    let of = |target: &str, arguments: &str, node: NodeProto| NodeProto {
        metadata_props: metadata(&[
            ("pkg.torch.onnx.fx_node", &call(target, arguments)),
            ("pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromGemm"),
        ]),
        ..node
    };
    let stated =
        |name: &str, kind: &str| ValueInfoProto { metadata_props: metadata(&[(KIND, kind)]), ..info(name, &[4]) };
    let folded = |name: &str, from: &str| ValueInfoProto {
        metadata_props: metadata(&[("pkg.onnxscript.optimizer.folded_from", from)]),
        ..info(name, &[4])
    };
    let transposed = || AttributeProto { i: Some(1), ..named("transB", AttributeType::Int) };
    let parameters =
        ["a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias", "d.weight", "e.weight", "e.bias"];
    let lines = parameters.map(|name| format!("p_{}: PARAMETER target='{name}'", name.replace('.', "_")));
    let signature =
        format!("\n# inputs\n{}\nb_table: BUFFER target='table' persistent=True\nx: USER_INPUT\n", lines.join("\n"));
    let graph = GraphProto {
        node: vec![
            of(
                "layer_norm",
                "%x, [4], %p_a_weight, %p_a_bias, 1e-05",
                node("LayerNormalization", &["x", "a.weight", "a.bias"], &["x1"]),
            ),
            of(
                "layer_norm",
                "%x, [4], %p_b_weight, %p_b_bias, 1e-05",
                node("LayerNormalization", &["x1", "a.weight", "a.bias"], &["x2"]),
            ),
            of(
                "layer_norm",
                "%x, [4], %p_b_weight, %p_b_bias, 1e-05",
                node("LayerNormalization", &["x2", "a.weight", "a.bias"], &["x3"]),
            ),
            of("linear", "%x, %p_c_weight, %p_c_bias", node("MatMul", &["x3", "val_1"], &["x4"])),
            of("linear", "%x, %p_c_weight, %p_c_bias", node("Add", &["x4", "a.bias"], &["x5"])),
            of("mul", "%x, %p_d_weight", node("Mul", &["x5", "val_2"], &["x6"])),
            node("Mul", &["x6", "val_3"], &["x7"]),
            NodeProto {
                attribute: vec![transposed()],
                ..of("linear", "%x, %p_e_weight, %p_e_bias", node("Gemm", &["x7", "e.weight"], &["x8"]))
            },
            NodeProto {
                attribute: vec![transposed()],
                ..of("addmm", "%p_e_bias, %x, %p_e_weight", node("Gemm", &["x8", "e.weight"], &["x9"]))
            },
            node("Mul", &["x9", "table"], &["y"]),
        ],
        initializer: vec![
            ones("a.weight", &[4]),
            ones("a.bias", &[4]),
            ones("val_1", &[4, 4]),
            ones("val_2", &[1, 4]),
            ones("val_3", &[]),
            ones("e.weight", &[4, 4]),
            ones("table", &[4]),
        ],
        value_info: vec![
            stated("a.weight", "PARAMETER"),
            stated("a.bias", "PARAMETER"),
            stated("e.weight", "PARAMETER"),
            stated("table", "BUFFER"),
            folded("val_1", "['c.weight']"),
            folded("val_2", "['val_0', 'd.weight']"),
            folded("val_3", "['d.weight']"),
        ],
        input: vec![info("x", &[4, 4])],
        output: vec![info("y", &[4, 4])],
        metadata_props: metadata(&[("pkg.torch.export.ExportedProgram.graph_signature", &signature)]),
        ..GraphProto::default()
    };
    of_pytorch(graph)
}

#[test]
fn calls_say_which_parameters_there_were() {
    let model = read(&with_calls().encode_to_vec(), None).unwrap();
    assert_eq!(read_at(&model, "LayerNormalization", 1), ["a.weight", "b.weight", "b.weight"]);
    assert_eq!(read_at(&model, "LayerNormalization", 2), ["a.bias", "b.bias", "b.bias"]);
    assert_eq!(read_at(&model, "Add", 1), ["c.bias"]);
    assert_eq!(read_at(&model, "Gemm", 2), ["e.bias", "e.bias"], "what the module shares stays one tensor");
    let bias = model.graph.initializers[&model.graph.find("e.bias").unwrap()].to_tensor().unwrap();
    assert_eq!(bias, Tensor::from_f32(&[4], &[0.0; 4]));
    let graph = model.trainable_graph().unwrap();
    let trains = |id: &ValueId| !graph.constants.contains(id);
    let mut trained: Vec<&str> =
        graph.initializers.keys().filter(|id| trains(id)).map(|&id| &*graph.value(id).name).collect();
    trained.sort_unstable();
    assert_eq!(trained, ["a.bias", "a.weight", "b.bias", "b.weight", "c.bias", "e.bias", "e.weight", "val_1", "val_2"]);
    assert_eq!(model.untrained_initializers().unwrap(), ["val_3", "table"]);
}

#[test]
fn weights_before_a_quantization_do_not_train() {
    let graph = GraphProto {
        node: vec![
            node("MatMul", &["x", "w"], &["a"]),
            node("QuantizeLinear", &["a", "s", "z"], &["q"]),
            node("DequantizeLinear", &["q", "s", "z"], &["b"]),
            node("MatMul", &["b", "v"], &["y"]),
        ],
        initializer: vec![ones("v", &[2, 2]), ones("w", &[2, 2]), ones("s", &[]), raw("z", OnnxType::Uint8, &[], &[0])],
        input: vec![info("x", &[1, 2])],
        output: vec![info("y", &[1, 2])],
        ..GraphProto::default()
    };
    let model = read(&model(graph).encode_to_vec(), None).unwrap();
    assert_eq!(model.untrained_initializers().unwrap(), ["s", "w"]);
}

/// Only the scale that the node computes has a gradient.
#[test]
fn weights_before_a_dynamic_quantization_train_through_its_scale() {
    for (scale, untrained) in [("s", vec![]), ("t", vec!["t", "w"])] {
        let own = (scale == "t").then(|| ones("t", &[]));
        let graph = GraphProto {
            node: vec![
                node("MatMul", &["x", "w"], &["a"]),
                node("DynamicQuantizeLinear", &["a"], &["q", "s", "z"]),
                node("DequantizeLinear", &["q", scale, "z"], &["b"]),
                node("MatMul", &["b", "v"], &["y"]),
            ],
            initializer: [ones("v", &[2, 2]), ones("w", &[2, 2])].into_iter().chain(own).collect(),
            input: vec![info("x", &[1, 2])],
            output: vec![info("y", &[1, 2])],
            ..GraphProto::default()
        };
        let model = read(&model(graph).encode_to_vec(), None).unwrap();
        assert_eq!(model.untrained_initializers().unwrap(), untrained, "{scale}");
    }
}

/// The sizes of weights are not compared with their data before biases are restored.
#[test]
fn biases_of_absurd_sizes_are_not_restored() {
    let mut proto = with_calls();
    let mut initializers = proto.graph.as_mut().unwrap().initializer.iter_mut();
    let weight = initializers.find(|initializer| initializer.name() == "e.weight").unwrap();
    weight.dims = vec![1 << 41, 4];
    let error = read(&proto.encode_to_vec(), None).unwrap_err().to_string();
    assert!(error.contains("'e.weight'") && error.contains("contains 64 bytes"), "{error}");
}

/// A rule split an attention's projection in two and left no call on the split; the projection shares its bias with another.
#[test]
fn a_node_without_a_call_belongs_to_the_module_of_its_readers() {
    let mut proto = with_calls();
    let graph = proto.graph.as_mut().unwrap();
    let signature = "p_a_bias: PARAMETER target='a.bias'\np_f_bias: PARAMETER target='f.bias'\n";
    graph.metadata_props[0].value.as_mut().unwrap().push_str(signature);
    graph.node.push(node("Split", &["a.bias"], &["f1", "f2"]));
    let scopes = metadata(&[("pkg.torch.onnx.name_scopes", "['', 'f', 'add']")]);
    graph.node.push(NodeProto { metadata_props: scopes, ..node("Add", &["f1", "f2"], &["f3"]) });
    let model = read(&proto.encode_to_vec(), None).unwrap();
    assert_eq!(read_at(&model, "Split", 0), ["f.bias"]);
    assert_eq!(read_at(&model, "LayerNormalization", 2), ["a.bias", "b.bias", "b.bias"]);
}

#[test]
fn parameters_that_the_exporter_computed_with_are_named() {
    let mut proto = with_calls();
    assert_eq!(read(&proto.encode_to_vec(), None).unwrap().altered_parameters(), ["d.weight"], "two are made of it");
    let graph = proto.graph.as_mut().unwrap();
    let lines = ["w_ih", "w_hh", "v", "g", "tied", "state", "norm.weight", "gone"]
        .map(|name| format!("p_{name}: PARAMETER target='{name}'\n"));
    let signature = graph.metadata_props[0].value.as_mut().unwrap();
    signature.push_str(&lines.concat());
    signature.push_str("b_norm: BUFFER target='norm.running_var' persistent=True\n");
    for (name, from) in [
        ("val_10", "['val_1', 'w_ih']"),
        ("val_11", "['val_1', 'w_hh', 'w_ih']"),
        ("mul", "['g', 'v', 'linalg_vector_norm']"),
        ("permute_1", "['tied']"),
        ("val_12", "['state', 'expand_1']"),
    ] {
        graph.initializer.push(ones(name, &[4]));
        let metadata_props = metadata(&[("pkg.onnxscript.optimizer.folded_from", from)]);
        graph.value_info.push(ValueInfoProto { metadata_props, ..info(name, &[4]) });
    }
    graph.initializer.push(ones("tied", &[4]));
    graph.node.push(node("LSTM", &["x", "val_10", "val_11", "", "", "val_12"], &["h"]));
    graph.node.push(node("Mul", &["mul", "permute_1"], &["z1"]));
    graph.node.push(node("Mul", &["z1", "tied"], &["z2"]));
    let model = read(&proto.encode_to_vec(), None).unwrap();
    let expected = ["d.weight", "g", "gone", "norm.weight", "state", "tied", "v"];
    assert_eq!(model.altered_parameters(), expected, "weights of an LSTM only have other places");
}

#[test]
fn copies_of_a_shared_matrix_are_one_tensor_again() {
    let matrix = |name: &str, dims: &[i64], values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        raw(name, OnnxType::Float, dims, &bytes)
    };
    let folded = |name: &str, from: &str| ValueInfoProto {
        metadata_props: metadata(&[("pkg.onnxscript.optimizer.folded_from", from)]),
        ..info(name, &[])
    };
    let lines = ["twice.weight", "tied.weight", "scaled.weight"]
        .map(|name| format!("p_{}: PARAMETER target='{name}'\n", name.replace('.', "_")));
    let graph = GraphProto {
        node: vec![
            node("MatMul", &["x", "val_1"], &["x1"]),
            node("MatMul", &["x1", "val_2"], &["x2"]),
            node("MatMul", &["x2", "tied.weight"], &["x3"]),
            node("MatMul", &["x3", "permute_1"], &["x4"]),
            node("MatMul", &["x4", "scaled.weight"], &["x5"]),
            node("MatMul", &["x5", "val_3"], &["y"]),
        ],
        initializer: vec![
            matrix("val_1", &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            matrix("val_2", &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            matrix("permute_1", &[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
            matrix("tied.weight", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            matrix("scaled.weight", &[2, 1], &[1.0, 2.0]),
            matrix("val_3", &[1, 2], &[2.0, 4.0]),
        ],
        value_info: vec![
            folded("val_1", "['twice.weight']"),
            folded("val_2", "['twice.weight']"),
            folded("permute_1", "['tied.weight', 'val_9']"),
            folded("val_3", "['scaled.weight']"),
        ],
        metadata_props: metadata(&[("pkg.torch.export.ExportedProgram.graph_signature", &lines.concat())]),
        input: vec![info("x", &[2, 2])],
        output: vec![info("y", &[2, 2])],
        ..GraphProto::default()
    };
    let proto = of_pytorch(graph);
    let model = read(&proto.encode_to_vec(), None).unwrap();
    assert_eq!(read_at(&model, "MatMul", 1), ["val_1", "val_1", "tied.weight", "permute_1", "scaled.weight", "val_3"]);
    assert_eq!(read_at(&model, "Transpose", 0), ["tied.weight"]);
    let names: Vec<&String> = model.contents().keys().collect();
    assert_eq!(names, ["scaled.weight", "tied.weight", "val_1", "val_3"], "val_3 is twice the other");
    assert_eq!(model.altered_parameters(), ["scaled.weight"]);
}
