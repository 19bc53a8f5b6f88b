//! Models in files: weights are described instead of read, and described weights read the same as weights read eagerly.

use tempfile::TempDir;

use forebay_testing::Random;

use super::*;
use crate::infer::infer;

/// Float32 elements, more than are kept in a model's messages.
fn elements(seed: u32, count: u32) -> Vec<u8> {
    (0..count).flat_map(|i| (((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).to_le_bytes()).collect()
}

/// y = x + w + c, with a large initializer, a large constant node, and small ones.
fn large() -> ModelProto {
    let c = raw("", OnnxType::Float, &[2, 300], &elements(2, 600));
    let flags: Vec<u8> = (0..2000).map(|i| (i % 3) as u8).collect();
    let graph = GraphProto {
        node: vec![
            constant("c", AttributeProto { t: Some(c), ..named("value", AttributeType::Tensor) }),
            constant("f", AttributeProto { f: Some(2.5), ..named("value_float", AttributeType::Float) }),
            node("Add", &["x", "w"], &["sum"]),
            node("Add", &["sum", "c"], &["y"]),
        ],
        name: Some("large".to_string()),
        initializer: vec![
            raw("small", OnnxType::Float, &[1], &[0, 0, 128, 63]),
            raw("w", OnnxType::Float, &[2, 300], &elements(1, 600)),
            raw("flags", OnnxType::Bool, &[2000], &flags),
            TensorProto { float_data: vec![1.5; 400], raw_data: None, ..raw("typed", OnnxType::Float, &[400], &[]) },
            TensorProto {
                int32_data: (0..400).map(|i| i * i - 90_000).collect(),
                raw_data: None,
                ..raw("counts", OnnxType::Int16, &[400], &[])
            },
            raw("nibbles", OnnxType::Int4, &[3, 685], &(0..1028).map(|i| (i * 37 % 251) as u8).collect::<Vec<u8>>()),
        ],
        input: vec![info("x", &[2, 300])],
        output: vec![info("y", &[2, 300])],
        doc_string: Some("behind the initializers".to_string()),
        ..GraphProto::default()
    };
    ModelProto {
        metadata_props: vec![StringStringEntryProto { key: Some("k".into()), value: Some("v".into()) }],
        ..model(graph)
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn in_file(folder: &TempDir, bytes: &[u8]) -> Result<Model, ModelError> {
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, bytes).unwrap();
    read_file(&path)
}

fn tensors(model: &Model) -> BTreeMap<String, Tensor> {
    model.contents.iter().map(|(name, contents)| (name.clone(), contents.to_tensor().unwrap())).collect()
}

/// Reads contents in pieces of this many bytes, and past their end.
fn in_pieces(contents: &Contents, piece_bytes: usize) -> Vec<u8> {
    let reader = contents.reader().unwrap();
    let mut bytes = Vec::new();
    while bytes.len() < contents.size_bytes() as usize + 5 {
        let mut piece = vec![255; piece_bytes];
        reader.read(bytes.len() as u64, &mut piece).unwrap();
        bytes.append(&mut piece);
    }
    assert!(bytes[contents.size_bytes() as usize..].iter().all(|&byte| byte == 0), "zeros behind the end");
    bytes.truncate(contents.size_bytes() as usize);
    bytes
}

#[test]
fn weights_stay_in_the_file_and_read_as_they_are() {
    let (folder, proto) = (folder(), large());
    let bytes = proto.encode_to_vec();
    let (stored, held) = (in_file(&folder, &bytes).unwrap(), read(&bytes, None).unwrap());
    let is_held = [
        ("w", false),
        ("c", false),
        ("flags", false),
        ("small", true),
        ("typed", false),
        ("counts", false),
        ("nibbles", false),
        ("f", true),
    ];
    for (name, is_held) in is_held {
        assert_eq!(stored.contents[name].in_memory().is_some(), is_held, "{name}");
        assert!(held.contents[name].in_memory().is_some(), "{name}");
        for piece_bytes in [1, 7, 512, 100_000] {
            let tensor = held.contents[name].to_tensor().unwrap();
            assert_eq!(in_pieces(&stored.contents[name], piece_bytes), tensor.bytes(), "{name}");
        }
    }
    assert_eq!(tensors(&stored), tensors(&held));
    assert_eq!(stored.graph.to_string(), held.graph.to_string());
    let written = write(&stored, &BTreeMap::new()).unwrap();
    assert_eq!(written, write(&held, &BTreeMap::new()).unwrap());
    let flags = &mut proto.clone().graph.unwrap().initializer[2];
    flags.raw_data.as_mut().unwrap().iter_mut().for_each(|byte| *byte = (*byte).min(1));
    let again = ModelProto::decode(&written[..]).unwrap();
    assert_eq!(&again.graph.as_ref().unwrap().initializer[2], flags);
    assert_eq!(again.graph.as_ref().unwrap().initializer[1], proto.graph.as_ref().unwrap().initializer[1]);
    assert_eq!(again.metadata_props, proto.metadata_props);
    assert_eq!(again.graph.unwrap().doc_string, proto.graph.unwrap().doc_string);
}

#[test]
fn new_contents_take_the_place_of_what_is_in_the_file() {
    let folder = folder();
    let model = in_file(&folder, &large().encode_to_vec()).unwrap();
    let new = |seed| Tensor::new(DataType::Float32, &[2, 300], elements(seed, 600)).unwrap();
    let typed = Tensor::from_f32(&[400], &[2.5; 400]);
    let replaced =
        BTreeMap::from([("w".to_string(), new(5)), ("c".to_string(), new(6)), ("typed".to_string(), typed.clone())]);
    let written = write(&model, &replaced).unwrap();
    // Elements that share bytes are packed from pieces of any length.
    let nibbles =
        Tensor::new(DataType::Int4, &[3, 685], (0..2055).map(|i| (i % 8) as u8).collect::<Vec<u8>>()).unwrap();
    let types = BTreeMap::from([("nibbles".to_string(), nibbles.ty())]);
    let mut in_pieces = Vec::new();
    write_to::<ModelError>(
        &model,
        &types,
        &mut |_, take| nibbles.bytes().chunks(7).try_for_each(take),
        &mut |piece: &[u8]| {
            in_pieces.extend_from_slice(piece);
            Ok(())
        },
    )
    .unwrap();
    assert_eq!(read(&in_pieces, None).unwrap().contents["nibbles"].to_tensor().unwrap(), nibbles);
    // Over the very file that the other contents come from.
    let path = folder.path().join("model.onnx");
    std::fs::write(folder.path().join("new"), &written).unwrap();
    std::fs::rename(folder.path().join("new"), &path).unwrap();
    let again = read_file(&path).unwrap();
    let expected =
        BTreeMap::from_iter(tensors(&read(&large().encode_to_vec(), None).unwrap()).into_iter().chain(replaced));
    assert_eq!(tensors(&again), expected);
    // The contents read before are still available, although the name now refers to another file.
    assert_eq!(model.contents["w"].to_tensor().unwrap(), new(1));
}

/// Whatever a file contains means the same in a file and in memory, including errors.
#[test]
fn every_file_means_what_its_bytes_mean() {
    let folder = folder();
    let compare = |bytes: &[u8], what: &str| match (in_file(&folder, bytes), read(bytes, None)) {
        (Ok(stored), Ok(held)) => {
            assert_eq!(tensors(&stored), tensors(&held), "{what}");
            assert_eq!(stored.graph.to_string(), held.graph.to_string(), "{what}");
        }
        (Err(stored), Err(held)) => {
            let (stored, held) = (stored.to_string(), held.to_string());
            let path = format!("{}: ", folder.path().join("model.onnx").display());
            // External data needs a folder, and bytes in memory have none.
            assert!(
                stored.replace(&path, "") == held || held.contains("specify its folder"),
                "{what}: {stored} | {held}"
            );
        }
        (stored, held) => panic!("{what}: {:?}, but {:?}", stored.err(), held.err()),
    };
    let good = large().encode_to_vec();
    let raw_at = |seed| {
        let weights = elements(seed, 600);
        good.windows(2400).position(|bytes| bytes == weights).unwrap()
    };
    let starts = [raw_at(1), raw_at(2)];
    let in_weights = |at: usize| starts.iter().any(|&start| (start + 4..start + 2396).contains(&at));
    for at in (0..good.len()).filter(|&at| !in_weights(at) && at % 3 == 0) {
        let mut bad = good.clone();
        for bit in [0, 7] {
            bad[at] = good[at] ^ (1 << bit);
            compare(&bad, &format!("byte {at}, bit {bit}"));
        }
    }
    for length in (0..good.len()).filter(|&at| !in_weights(at) && at % 5 == 0).chain([starts[0] + 1000]) {
        compare(&good[..length], &format!("the first {length} bytes"));
    }
    // Fields that the decoder merges: two graphs, two tensors in an attribute, raw data twice; and a group.
    let field = |number: u8, content: &[u8]| {
        let mut bytes = vec![number << 3 | 2];
        skeleton::encode_varint(content.len() as u64, &mut bytes);
        [bytes, content.to_vec()].concat()
    };
    let more =
        GraphProto { initializer: vec![raw("v", OnnxType::Float, &[400], &elements(3, 400))], ..Default::default() };
    compare(&[&good[..], &field(7, &more.encode_to_vec())].concat(), "two graphs");
    let w = raw("w", OnnxType::Float, &[600], &elements(1, 600)).encode_to_vec();
    for second in [elements(4, 600), elements(4, 1), vec![]] {
        let twice = field(5, &[&w[..], &field(9, &second)].concat());
        let rest = GraphProto { initializer: vec![], ..addition() };
        let content = [rest.encode_to_vec(), twice].concat();
        let proto = ModelProto { graph: None, ..large() };
        compare(&[proto.encode_to_vec(), field(7, &content)].concat(), "raw data twice");
    }
    compare(&[&good[..], &[0xfb, 1, 0xfc, 1]].concat(), "a group");
    compare(&[&good[..], &[0x3a]].concat(), "a field that ends");
}

/// Returns a random number, usually a small one.
fn number(random: &mut Random) -> u64 {
    random.word() >> random.below(64)
}

/// Writes a number as a varint, sometimes with more bytes than it needs.
fn varint(random: &mut Random, value: u64, to: &mut Vec<u8>) {
    skeleton::encode_varint(value, to);
    let length = to.len();
    if random.once_in(50) && to[length - 1] < 0x80 && value < 1 << 35 {
        to[length - 1] |= 0x80;
        to.extend([0x80, 0]);
    }
}

/// Returns the typed data of a field, in packed runs and one number at a time.
fn typed_data(random: &mut Random, field: u8, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut left = count;
    while left > 0 {
        let length = if random.once_in(2) { left } else { 1 + random.below(left as u64) as usize };
        let is_packed = random.once_in(2);
        let mut numbers = Vec::new();
        for _ in 0..length {
            let mut number_bytes = Vec::new();
            match field {
                4 => number_bytes.extend((random.word() as u32).to_le_bytes()),
                10 => number_bytes.extend(random.word().to_le_bytes()),
                _ => {
                    let value = number(random);
                    varint(random, value, &mut number_bytes);
                }
            }
            if !is_packed {
                numbers.push(field << 3 | [0, 5, 1][usize::from(field == 4) + 2 * usize::from(field == 10)]);
            }
            numbers.extend(number_bytes);
        }
        if is_packed {
            bytes.push(field << 3 | 2);
            skeleton::encode_varint(numbers.len() as u64, &mut bytes);
        }
        bytes.extend(numbers);
        left -= length;
    }
    bytes
}

/// Typed data in a file reads as the decoder decodes it, packed or not, in one run or many, starting anywhere; and what the decoder rejects
/// is rejected.
#[test]
fn typed_data_reads_as_the_decoder_reads_it() {
    let (folder, mut random) = (folder(), Random::new(22));
    let types = [
        (OnnxType::Float, 4, 4),
        (OnnxType::Double, 10, 8),
        (OnnxType::Int64, 7, 8),
        (OnnxType::Uint64, 11, 8),
        (OnnxType::Uint32, 11, 4),
        (OnnxType::Int32, 5, 4),
        (OnnxType::Int16, 5, 2),
        (OnnxType::Uint16, 5, 2),
        (OnnxType::Int8, 5, 1),
        (OnnxType::Uint8, 5, 1),
        (OnnxType::Bool, 5, 1),
        (OnnxType::Float16, 5, 2),
        (OnnxType::Bfloat16, 5, 2),
        (OnnxType::Float8e4m3fn, 5, 1),
        (OnnxType::Int4, 5, 1),
        (OnnxType::Uint2, 5, 1),
    ];
    for round in 0..120 {
        let (ty, field, width) = types[round % types.len()];
        let count = [0, 1, 300, 1000, 40_000][random.below(5) as usize];
        // A number holds several elements of fewer than 8 bits.
        let per_number = [(OnnxType::Int4, 2), (OnnxType::Uint2, 4)].into_iter().find(|(narrow, _)| *narrow == ty);
        let per_number = per_number.map_or(1, |(_, per_number)| per_number);
        let unused = if count > 0 { random.below(per_number) as usize } else { 0 };
        let elements = count * per_number as usize - unused;
        let stated = if random.once_in(10) { elements + per_number as usize } else { elements };
        let described = TensorProto { raw_data: None, ..raw("t", ty, &[stated as i64], &[]) }.encode_to_vec();
        let mut tensor = [described, typed_data(&mut random, field, count)].concat();
        if random.once_in(10) {
            // A field other than the type's.
            tensor.extend(typed_data(&mut random, if field == 5 { 7 } else { 5 }, 400));
        }
        let damaged = random.once_in(4) && !tensor.is_empty();
        if damaged {
            let at = random.below(tensor.len() as u64) as usize;
            tensor[at] ^= 1 << random.below(8);
        }
        let in_field = |number: u8, content: &[u8]| {
            let mut bytes = vec![number << 3 | 2];
            skeleton::encode_varint(content.len() as u64, &mut bytes);
            [bytes, content.to_vec()].concat()
        };
        let graph = [addition().encode_to_vec(), in_field(5, &tensor)].concat();
        let bytes = [ModelProto { graph: None, ..large() }.encode_to_vec(), in_field(7, &graph)].concat();
        let what = format!("round {round}: {count} numbers of {ty:?}");
        match (in_file(&folder, &bytes), read(&bytes, None)) {
            (Ok(stored), Ok(held)) => {
                assert_eq!(tensors(&stored), tensors(&held), "{what}");
                let Some(contents) = stored.contents.get("t") else { continue };
                let is_left_out = !damaged && count * width > 4096;
                assert!(!is_left_out || contents.in_memory().is_none(), "{what}");
                let reader = contents.reader().unwrap();
                let (expected, expected_bytes) = (held.contents["t"].to_tensor().unwrap(), contents.size_bytes());
                for _ in 0..20 {
                    let start = random.below(expected_bytes + 3);
                    let mut piece = vec![255; random.below(5000) as usize];
                    reader.read(start, &mut piece).unwrap();
                    let given = expected.bytes().iter().copied().chain(std::iter::repeat(0));
                    assert!(given.skip(start as usize).zip(&piece).all(|(one, other)| one == *other), "{what}");
                }
                let written = [&stored, &held].map(|model| write(model, &BTreeMap::new()).unwrap());
                assert!(tensors(&read(&written[0], None).unwrap()) == tensors(&held), "{what}");
            }
            (Err(stored), Err(held)) => {
                let path = format!("{}: ", folder.path().join("model.onnx").display());
                assert_eq!(stored.to_string().replace(&path, ""), held.to_string(), "{what}");
            }
            (stored, held) => panic!("{what}: {:?}, but {:?}", stored.err(), held.err()),
        }
    }
}

#[test]
fn a_file_that_changed_is_an_error_with_the_numbers() {
    let folder = folder();
    let path = folder.path().join("model.onnx");
    let bytes = large().encode_to_vec();
    let model = in_file(&folder, &bytes).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = model.contents["w"].to_tensor().unwrap_err().to_string();
    let sizes = format!("({} bytes then, 100 bytes now)", bytes.len());
    for words in ["model.onnx", "tensor 'w'", "was changed", &sizes] {
        assert!(error.contains(words), "{error} lacks {words}");
    }

    let data = folder.path().join("w.bin");
    std::fs::write(&data, [0; 8]).unwrap();
    let model = read(&external("w.bin", "0", "8"), Some(folder.path())).unwrap();
    assert!(model.contents["w"].to_tensor().is_ok());
    std::fs::write(&data, [0; 12]).unwrap();
    let error = model.contents["w"].to_tensor().unwrap_err().to_string();
    assert!(error.contains("w.bin") && error.contains("(8 bytes then, 12 bytes now)"), "{error}");
    let model = read(&external("w.bin", "0", "8"), Some(folder.path())).unwrap();
    std::fs::remove_file(&data).unwrap();
    let error = model.contents["w"].to_tensor().unwrap_err().to_string();
    assert!(error.contains("w.bin") && error.contains("tensor 'w'") && error.contains("No such file"), "{error}");
}

/// Some exporters write a file for each tensor.
#[test]
fn a_model_of_many_files_keeps_few_of_them_open() {
    let folder = folder();
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to.starts_with(folder.path()))).count()
    };
    let names: Vec<String> = (0..100).map(|i| format!("w{i}")).collect();
    let entry = |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    let external = |name: &String| TensorProto {
        data_location: Some(DataLocation::External as i32),
        external_data: vec![entry("location", name)],
        raw_data: None,
        ..raw(name, OnnxType::Float, &[600], &[])
    };
    for (i, name) in names.iter().enumerate() {
        std::fs::write(folder.path().join(name), elements(i as u32, 600)).unwrap();
    }
    let mut graph = addition();
    graph.initializer.extend(names.iter().map(external));
    let read = read(&model(graph).encode_to_vec(), Some(folder.path())).unwrap();
    assert_eq!(open(), 0, "nothing is read");
    for _ in 0..2 {
        for (i, name) in names.iter().enumerate() {
            assert_eq!(read.contents[name].to_tensor().unwrap().bytes()[..], elements(i as u32, 600), "{name}");
        }
    }
    assert!((1..=32).contains(&open()), "{} files are open", open());
}

/// A graph in inference form: weights in one file, and values computed only from them.
fn made_of_weights(inline: bool) -> Vec<u8> {
    let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.into()), value: Some(value) };
    let mut offset_bytes = 0;
    let mut stored = |name: &str, ty: OnnxType, dims: &[i64], bytes: &[u8]| {
        let tensor = raw(name, ty, dims, bytes);
        if inline {
            return tensor;
        }
        let external_data = vec![entry("location", "data".into()), entry("offset", offset_bytes.to_string())];
        offset_bytes += bytes.len();
        TensorProto { raw_data: None, data_location: Some(DataLocation::External as i32), external_data, ..tensor }
    };
    let integers = |values: &[i64]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let initializers = data().into_iter().map(|(name, ty, dims, bytes)| stored(name, ty, &dims, &bytes)).collect();
    let scalar = |name: &str, value: f32| raw(name, OnnxType::Float, &[], &value.to_le_bytes());
    let mut nodes = vec![
        node("Transpose", &["a"], &["t"]),
        node("Mul", &["t", "half"], &["scaled"]),
        node("Exp", &["scaled"], &["grown"]),
        node("Cast", &["quantized"], &["wide"]),
        node("Gather", &["grown", "picks"], &["picked"]),
        node("Split", &["wide"], &["left", "right"]),
        node("Add", &["left", "right"], &["both"]),
        node("Reshape", &["x", "shape"], &["flat"]),
        node("MatMul", &["flat", "picked"], &["z"]),
        node("Pow", &["z", "two"], &["power"]),
    ];
    nodes[3].attribute = vec![AttributeProto { i: Some(1), ..named("to", AttributeType::Int) }];
    nodes[4].attribute = vec![AttributeProto { i: Some(1), ..named("axis", AttributeType::Int) }];
    nodes[5].attribute = vec![AttributeProto { i: Some(2), ..named("num_outputs", AttributeType::Int) }];
    // A chain too long to be computed later, which takes 2 to the power of its length if nothing is kept.
    let mut last = "both".to_string();
    for i in 0..40 {
        nodes.push(node("Add", &[&last, &last], &[&format!("double{i}")]));
        nodes.push(node("Mul", &[&format!("double{i}"), "half"], &[&format!("chain{i}")]));
        last = format!("chain{i}");
    }
    nodes.push(node("Add", &["power", &last], &["y"]));
    let graph = GraphProto {
        node: nodes,
        initializer: [initializers, vec![scalar("half", 0.5), raw("unused", OnnxType::Int64, &[1], &integers(&[1]))]]
            .concat(),
        input: vec![info("x", &[2, 2, 20])],
        output: vec![info("y", &[4, 30])],
        ..GraphProto::default()
    };
    let mut proto = model(graph);
    proto.opset_import[0].version = Some(18);
    proto.encode_to_vec()
}

/// The tensors in the file.
fn data() -> Vec<(&'static str, OnnxType, Vec<i64>, Vec<u8>)> {
    let integers = |values: Vec<i64>| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    vec![
        ("a", OnnxType::Float, vec![40, 20], elements(1, 800)),
        ("quantized", OnnxType::Int8, vec![8, 30], (0..240).map(|i| i as u8).collect()),
        ("picks", OnnxType::Int64, vec![30], integers((0..30).map(|i| (i * 7 + 3) % 20).collect())),
        ("shape", OnnxType::Int64, vec![2], integers(vec![4, -1])),
        ("two", OnnxType::Float, vec![], 2f32.to_le_bytes().to_vec()),
    ]
}

/// Shapes and indices are read when a graph is typed; weights and values computed from them are read when they are loaded.
#[test]
fn what_is_made_of_weights_is_computed_when_it_is_loaded() {
    let folder = folder();
    let bytes: Vec<u8> = data().into_iter().flat_map(|(_, _, _, bytes)| bytes).collect();
    std::fs::write(folder.path().join("data"), &bytes).unwrap();
    let typed = |model: &Model| {
        let mut graph = model.graph.clone();
        graph.constants = graph.initializers.keys().copied().collect();
        infer(&mut graph, None).map(|()| graph)
    };
    let held = typed(&read(&made_of_weights(true), None).unwrap()).unwrap();
    let stored = typed(&read(&made_of_weights(false), Some(folder.path())).unwrap()).unwrap();
    assert_eq!(held.to_string(), stored.to_string());
    let named = |graph: &Graph, name: &str| graph.initializers[&graph.find(name).unwrap()].clone();
    for name in ["a", "t", "scaled", "grown", "picked", "wide", "left", "right", "both", "chain3"] {
        assert!(named(&stored, name).in_memory().is_none(), "{name} is read");
    }
    assert!(named(&stored, "chain39").in_memory().is_some() || named(&stored, "chain39").depth() <= 16);
    for name in ["shape", "picks", "two"] {
        assert!(named(&stored, name).in_memory().is_some(), "{name} is not read");
    }
    for (&id, contents) in &held.initializers {
        let (name, tensor) = (&held.value(id).name, contents.to_tensor().unwrap());
        assert_eq!(named(&stored, name).to_tensor().unwrap(), tensor, "{name}");
        assert_eq!(in_pieces(&named(&stored, name), 100), tensor.bytes(), "{name}");
    }
    // With other weights, the graph is the same.
    let other: Vec<u8> = elements(9, 800).into_iter().chain(bytes[3200..].iter().copied()).collect();
    std::fs::write(folder.path().join("data"), other).unwrap();
    let changed = typed(&read(&made_of_weights(false), Some(folder.path())).unwrap()).unwrap();
    assert_eq!(changed.to_string(), stored.to_string());
    assert!(named(&changed, "picked").to_tensor().unwrap() != named(&held, "picked").to_tensor().unwrap());
}
