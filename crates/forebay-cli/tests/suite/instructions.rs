//! `FOREBAY_ISA` and builds for other processors: other instructions, the same bits.

use std::process::Command;

use crate::common::{Folder, assert_says, digits_data, digits_model, example, forebay, texts};

/// What runs the program: these instructions of this processor, or a build for another processor in an emulator.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Runner {
    Here(&'static str),
    Emulated,
}

impl Runner {
    /// All that give the same bits.
    const ALL: [Runner; 5] =
        [Runner::Here("scalar"), Runner::Here("avx2"), Runner::Here("avx512"), Runner::Here("neon"), Runner::Emulated];

    /// The program with these arguments; `None` if there is no build for another processor.
    fn command(self, arguments: &[&str]) -> Option<Command> {
        match self {
            Runner::Here(instructions) => {
                let mut command = forebay(arguments);
                command.env("FOREBAY_ISA", instructions);
                Some(command)
            }
            Runner::Emulated => {
                // Set by `cargo xtask aarch64` and `test`: the emulator, its arguments, and the program.
                let words = std::env::var("FOREBAY_EMULATED").unwrap_or_default();
                let mut words = words.split_whitespace();
                let mut command = Command::new(words.next()?);
                command.args(words).args(arguments).current_dir(env!("CARGO_TARGET_TMPDIR")).env_remove("FOREBAY_ISA");
                Some(command)
            }
        }
    }

    /// Runs the program, and returns whether this processor has the instructions.
    fn runs(self, arguments: &[&str]) -> bool {
        let Some(output) = self.command(arguments).map(|mut command| command.output().expect("the program starts"))
        else {
            return false;
        };
        let (_, error) = texts(&output);
        if !output.status.success() {
            assert!(self != Runner::Emulated && self != Runner::Here("scalar"), "{self:?}: {error}");
            assert_says(&error, &["FOREBAY_ISA=", "does not have these instructions", "scalar"]);
        }
        output.status.success()
    }

    /// Returns the file that training writes; `None` if this processor does not have the instructions.
    fn trained(self, folder: &Folder, arguments: &[&str]) -> Option<Vec<u8>> {
        let saved = folder.text(&format!("{self:?}.onnx"));
        let is_there = self.runs(&[&["train"], arguments, &["--no-compare", "--save", &saved]].concat());
        is_there.then(|| std::fs::read(&saved).expect("a trained model"))
    }
}

/// The model and the data of a golden case.
fn golden(name: &str) -> [String; 2] {
    ["model.onnx", "inputs.npz"].map(|file| example(&format!("../testdata/golden/{name}/{file}")))
}

/// Asserts that training writes the same file with all instructions and processors. These arguments follow the model.
fn train_to_the_same_bits(model: &str, data: &str, flags: &[&str]) {
    let folder = Folder::new();
    let arguments = [&[model, "--data", data], flags].concat();
    assert_same_bits(model, |runner| runner.trained(&folder, &arguments));
}

/// Asserts that all instructions and processors that there are give the same bytes.
fn assert_same_bits(model: &str, result: impl Fn(Runner) -> Option<Vec<u8>>) {
    let results = Runner::ALL.map(result);
    let expected = results[0].as_ref().expect("every processor runs what it was compiled for");
    for (runner, result) in Runner::ALL.iter().zip(&results) {
        assert!(result.as_ref().is_none_or(|result| result == expected), "{model}, {runner:?}: other bits");
    }
}

#[test]
fn classifiers_train_to_the_same_bits() {
    let [model, data] = [digits_model(), digits_data()];
    let flags = ["--batch-size", "50", "--input-scale", "0.0625", "--steps", "2", "--momentum", "0.9"];
    train_to_the_same_bits(&model, &data, &flags);
}

#[test]
fn residual_networks_train_to_the_same_bits() {
    let [model, data] = golden("resnet20");
    train_to_the_same_bits(&model, &data, &["--steps", "1", "--optimizer", "lamb"]);
}

#[test]
fn transformers_train_to_the_same_bits() {
    let [model, data] = golden("tiny-gpt");
    let flags = ["--class-axis", "-1", "--steps", "1", "--optimizer", "adamw8bit", "--clip-norm", "0.1"];
    train_to_the_same_bits(&model, &data, &flags);
}

#[test]
fn volumes_train_to_the_same_bits() {
    let [model, data] = golden("unet3d");
    train_to_the_same_bits(&model, &data, &["--steps", "1", "--loss", "dice-ce", "--precision", "bf16"]);
}

#[test]
fn outputs_have_the_same_bits() {
    for name in ["resnet20", "unet3d"] {
        let [model, data] = golden(name);
        let folder = Folder::new();
        assert_same_bits(&model, |runner| {
            let target = folder.text(&format!("{runner:?}"));
            let is_there = runner.runs(&["run", &model, "--inputs", &data, "--output-dir", &target]);
            is_there.then(|| std::fs::read(folder.path(&format!("{runner:?}/logits.npy"))).expect("an output"))
        });
    }
}

#[test]
fn checkpoints_continue_with_other_instructions_and_processors() {
    let [model, data] = [digits_model(), digits_data()];
    let flags =
        ["--data", &data, "--batch-size", "50", "--shuffle", "7", "--input-scale", "0.0625", "--optimizer", "adamw"];
    let folder = Folder::new();
    let first = Runner::Here("scalar");
    let whole = first.trained(&folder, &[&[model.as_str()], flags.as_slice(), &["--steps", "4"]].concat());
    for (number, runner) in Runner::ALL.into_iter().enumerate() {
        let checkpoint = folder.text(&format!("checkpoint-{number}"));
        let begin = [&[model.as_str()], flags.as_slice(), &["--steps", "2", "--checkpoint", &checkpoint]].concat();
        assert!(first.trained(&folder, &begin).is_some());
        let go_on = [&[model.as_str()], flags.as_slice(), &["--steps", "4", "--resume", &checkpoint]].concat();
        let continued = runner.trained(&folder, &go_on);
        assert!(continued.is_none() || continued == whole, "{runner:?}: other bits");
    }
}

#[test]
fn another_processor_is_emulated() {
    if Runner::Emulated.command(&[]).is_none() {
        forebay_testing::parts::skipped("aarch64", "no build for another processor (`cargo xtask aarch64` makes it)");
        return;
    }
    assert!(Runner::Emulated.runs(&["--version"]));
}

#[test]
fn instructions_that_there_are_not_are_refused() {
    let output =
        forebay(&["run", &digits_model(), "--inputs", &digits_data()]).env("FOREBAY_ISA", "mmx").output().unwrap();
    assert!(!output.status.success());
    assert_says(&String::from_utf8_lossy(&output.stderr), &["FOREBAY_ISA=mmx", "scalar"]);
}
