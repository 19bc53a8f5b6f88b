//! A trained model loads in ONNX Runtime and gives the same outputs.

use std::path::Path;
use std::process::Command;

use forebay::{Model, Session};
use forebay_golden::{Case, host, recipe, to_f64, trainer};
use forebay_testing::parts::skipped;

/// Runs the model on the golden input and prints the elements of its output as text.
const SCRIPT: &str = "
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])
x = numpy.load(sys.argv[2])['x']
print(' '.join(repr(float(value)) for value in session.run(['logits'], {'x': x})[0].reshape(-1)))
";

fn available() -> bool {
    let found = Command::new("python3").args(["-c", "import numpy, onnxruntime"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return true;
    }
    skipped("onnxruntime", "python3 cannot import onnxruntime and numpy");
    false
}

fn outputs_of_onnxruntime(model: &Path, inputs: &Path) -> Vec<f64> {
    let output = Command::new("python3").arg("-c").arg(SCRIPT).arg(model).arg(inputs).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn trained_models_give_the_same_outputs() {
    if !available() {
        return;
    }
    for (name, steps) in [("digits-cnn", 3), ("tiny-gpt", 2), ("resnet20", 1), ("unet3d", 1)] {
        let case = Case::read(name);
        let mut trainer = trainer(case.model(), recipe(&case), host(2));
        for step in 0..steps {
            let (batch, labels) = case.batch(step);
            trainer.step(batch, labels).unwrap();
        }
        let path = std::env::temp_dir().join(format!("forebay-trained-{name}-{}.onnx", std::process::id()));
        trainer.save(&path).unwrap();
        let mut session = Session::builder(&Model::from_file(&path).unwrap()).engine(host(2)).build().unwrap();
        let ours = to_f64(&session.run(case.input()).unwrap()["logits"]);
        let theirs = outputs_of_onnxruntime(&path, &case.path("inputs.npz"));
        assert_eq!(ours.len(), theirs.len());
        let distance = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(distance <= 1e-4, "{name}: {distance}");
        std::fs::remove_file(path).unwrap();
    }
}
