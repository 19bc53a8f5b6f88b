//! Whole models: everything reads, types, lowers and comes back; damaged bytes are errors and never panics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use forebay_model::program::Role;
use forebay_model::{Graph, ModelError, Program, infer, lower, onnx};
use forebay_testing::Random;

fn light(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/light/light_{name}.onnx"))
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/golden/{name}.onnx"))
}

fn compile(path: &Path, batch_size: Option<u64>) -> (Graph, Program) {
    let mut graph = onnx::read_file(path).unwrap().graph;
    infer::infer(&mut graph, batch_size).unwrap();
    let program = lower::lower(&graph, &BTreeSet::new()).unwrap();
    program.validate().unwrap();
    (graph, program)
}

fn output_shape(graph: &Graph) -> Vec<u64> {
    graph.ty(graph.outputs[0]).unwrap().shape.clone()
}

#[test]
fn light_models_lower_to_programs() {
    for name in ["resnet50", "squeezenet", "vgg19", "bvlc_alexnet", "inception_v1"] {
        let (graph, program) = compile(&light(name), None);
        assert_eq!(graph.inputs.len(), 1, "{name}: weights are no inputs");
        assert_eq!(output_shape(&graph)[..2], [1, 1000], "{name}");
        assert!(
            program.launches.iter().all(|launch| launch.kernel.name() != "Copy"),
            "{name}: concatenations are free"
        );
    }
}

#[test]
fn golden_models_lower_to_programs() {
    let cases = [
        ("digits-cnn/model", vec![50, 10]),
        ("resnet20/model", vec![16, 10]),
        ("tiny-gpt/model", vec![8, 64, 256]),
        ("unet3d/model", vec![1, 3, 48, 48, 48]),
    ];
    for (name, shape) in cases {
        let (graph, program) = compile(&golden(name), None);
        assert_eq!(output_shape(&graph), shape, "{name}");
        assert_eq!(program.outputs.len(), 1);
        assert_eq!(program.size_bytes(Role::Parameter), 0);
    }
}

#[test]
fn a_symbolic_batch_dimension_takes_the_given_size() {
    let path = golden("digits-cnn/model_dynamic");
    assert_eq!(output_shape(&compile(&path, Some(7)).0), [7, 10]);
    let mut graph = onnx::read_file(&path).unwrap().graph;
    assert!(matches!(infer::infer(&mut graph, None), Err(ModelError::Request { .. })));
    let mut fixed = onnx::read_file(&golden("digits-cnn/model")).unwrap().graph;
    assert!(matches!(infer::infer(&mut fixed, Some(7)), Err(ModelError::Request { .. })));
}

#[test]
fn models_come_back_as_they_were_read() {
    for path in [golden("digits-cnn/model"), light("squeezenet")] {
        let model = onnx::read_file(&path).unwrap();
        let again = onnx::read(&onnx::write(&model, &BTreeMap::new()).unwrap(), None).unwrap();
        assert_eq!(again.graph.to_string(), model.graph.to_string());
        assert_eq!(again.graph.initializers.len(), model.graph.initializers.len());
        for (value, contents) in &model.graph.initializers {
            assert_eq!(again.graph.initializers[value].to_tensor().unwrap(), contents.to_tensor().unwrap());
        }
    }
}

/// What a damaged file goes through. Any result is fine; a panic is not.
fn exercise(bytes: &[u8]) {
    let Ok(model) = onnx::read(bytes, None) else { return };
    let mut graph = model.graph;
    if infer::infer(&mut graph, None).is_ok() {
        let _ = lower::lower(&graph, &BTreeSet::new()).map(|program| program.validate());
    }
}

#[test]
fn every_truncation_is_an_error_or_a_model() {
    let bytes = std::fs::read(light("bvlc_alexnet")).unwrap();
    for length in 0..bytes.len() {
        match onnx::read(&bytes[..length], None) {
            Ok(_) => {}
            Err(error) => assert!(error.to_string().len() > 20, "{length}: {error}"),
        }
    }
}

#[test]
fn flipped_bytes_never_panic() {
    let original = std::fs::read(light("bvlc_alexnet")).unwrap();
    let mut random = Random::new(0);
    let mut next = |bound: usize| random.index(bound);
    for round in 0..10_000 {
        let mut bytes = original.clone();
        for _ in 0..1 + next(4) {
            let at = next(bytes.len());
            bytes[at] = next(256) as u8;
        }
        // Folding the weights of each would take long; reading is where bytes are believed or not.
        if round % 50 == 0 {
            exercise(&bytes);
        } else {
            let _ = onnx::read(&bytes, None);
        }
    }
}
