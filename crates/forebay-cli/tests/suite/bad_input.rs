//! Bad input of every kind produces a clear error and an exit code, never a panic.

use crate::common::{
    self, Folder, assert_says, digits_data, digits_model, failure, forebay, one_node_model, success, zeros,
};
use forebay::Tensor;
use forebay::data::npy;

/// Flags that train the digits network for some steps.
const QUICK: [&str; 4] = ["--batch-size", "50", "--input-scale", "0.0625"];

fn train<'a>(data: &'a str, model: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["train", model, "--data", data], QUICK.as_slice(), flags].concat()
}

#[test]
fn command_lines_without_meaning() {
    let (model, data) = (digits_model(), digits_data());
    for (arguments, word) in [
        (vec!["run", &model, "--input", "x"], "NAME=FILE.npy"),
        (vec!["run", &model], "--input"),
        (vec!["plan", &model, "--device-memory", "3 elephants"], "--device-memory"),
        (vec!["plan", &model, "--threads", "0"], "at least 1"),
        (vec!["plan", &model, "--batch-size", "2", "--device", "abacus"], "abacus"),
        (vec!["plan", &model, "--batch-size", "2", "--memory", "direct"], "only --memory planned has a plan"),
        (train(&data, &model, &["--memory", "psychic"]), "cooperative"),
        (train(&data, &model, &["--steps", "0"]), "at least 1"),
        (train(&data, &model, &["--steps", "1", "--epochs", "1"]), "--epochs"),
        (train(&data, &model, &["--learning-rate", "NaN"]), "finite"),
        (train(&data, &model, &["--learning-rate", "-1"]), "at least 0"),
        (vec!["plan", &model, "--threads", "-1"], "--threads"),
        (train(&data, &model, &["--optimizer", "adam", "--momentum", "0.9"]), "--momentum"),
        (train(&data, &model, &["--loss", "mse", "--class-axis", "1"]), "--class-axis"),
        (train(&data, &model, &["--checkpoint-every", "2"]), "--checkpoint"),
        (train(&data, &model, &["--validate", &data, "--min-delta=-10"]), "at least 0"),
        (train(&data, &model, &["--validate", &data, "--min-delta", "nan"]), "at least 0"),
        (vec!["train", &model, "--data", &data, "--input-scale", "nan"], "finite"),
        (train(&data, &model, &["--save", "s", "--report", "./s"]), "--save and --report both write"),
        (train(&data, &model, &["--patch", "4x4", "--validate-by", "tiles"]), "--validate <DATA>"),
        (
            train(
                &data,
                &model,
                &["--patch", "4x4", "--validate", &data, "--validate-by", "tiles", "--window-overlap", "0.5"],
            ),
            "only apply to --validate-by windows",
        ),
        (
            vec!["plan", &model, "--batch-size", "2", "--optimizer", "adam"],
            "--optimizer only applies to a training step",
        ),
        (vec!["plan", &model, "--batch-size", "2", "--updates", "host"], "add --train"),
        (vec!["data", &data, "--shuffle", "1"], "--show"),
    ] {
        assert_says(&failure(2, &arguments), &[word]);
    }
}

#[test]
fn models_that_are_none() {
    let folder = Folder::new();
    let whole = std::fs::read(digits_model()).unwrap();
    let random: Vec<u8> = (0..5000u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    for (name, bytes) in [("truncated", &whole[..whole.len() / 2]), ("empty", &[]), ("random", &random)] {
        failure(1, &["plan", &folder.write(name, bytes), "--batch-size", "2"]);
    }
    assert_says(&failure(1, &["plan", &folder.text("none.onnx")]), &["none.onnx"]);
}

#[test]
fn sizes_that_overflow_or_exhaust_memory() {
    let folder = Folder::new();
    let overflowing = folder.write("overflow.onnx", &one_node_model("Relu", "r", &[1 << 62, 1 << 62]));
    failure(1, &["plan", &overflowing]);
    let archive = folder.archive("x.npz", &[("x", &Tensor::from_f32(&[2], &[0.0; 2]))]);
    let huge = folder.write("huge.onnx", &one_node_model("Relu", "r", &[1 << 50]));
    assert_says(&failure(1, &["run", &huge, "--inputs", &archive]), &["'r'", "bytes"]);
    let (digits, most) = (digits_model(), u64::MAX.to_string());
    assert_says(&failure(1, &["plan", &digits, "--train", "--batch-size", &most]), &["64 bits"]);
    let gpt = common::example("../testdata/golden/tiny-gpt/model.onnx");
    for (model, parts, words) in [
        (&digits, most.as_str(), "use at most 262144 parts"),
        (&digits, "200000", "for each part"),
        (&gpt, "200000", "for each part"),
    ] {
        let plan = ["plan", model, "--train", "--batch-size", "8", "--class-axis", "-1", "--accumulate", parts];
        assert_says(&failure(1, &plan), &[words, "accumulating gradients over"]);
    }
}

#[test]
fn an_unsupported_operator_is_named_with_its_node() {
    let folder = Folder::new();
    let model = folder.write("m.onnx", &one_node_model("Teleport", "beam me up", &[2]));
    assert_says(&failure(1, &["plan", &model]), &["Teleport", "beam me up"]);
}

#[test]
fn inputs_that_do_not_fit() {
    let (folder, model) = (Folder::new(), digits_model());
    let input = |name: &str, array: &Tensor| {
        let path = folder.path("input.npy");
        npy::write(&path, array).unwrap();
        format!("{name}={}", path.display())
    };
    let run = |input: &str| failure(1, &["run", &model, "--batch-size", "2", "--input", input]);
    assert_says(&run(&input("y", &zeros(2))), &["'y'", "x: float32[2, 1, 8, 8]"]);
    assert_says(&run(&input("x", &zeros(3))), &["float32[2, 1, 8, 8]", "float32[3, 1, 8, 8]"]);
    assert_says(&run(&input("x", &Tensor::from_i64(&[2, 1, 8, 8], &[0; 128]))), &["float32", "int64"]);
    assert_says(&run("x=nowhere.npy"), &["nowhere.npy"]);
    assert_says(&run(&format!("x={}", folder.write("text.npy", b"not an array"))), &["text.npy", "NumPy"]);
    let archive = folder.archive("other.npz", &[("other", &zeros(2))]);
    assert_says(&failure(1, &["run", &model, "--inputs", &archive]), &["no array named 'x'", "other"]);
}

#[test]
fn data_that_does_not_fit() {
    let (folder, model) = (Folder::new(), digits_model());
    let labels = |values: &[i64]| Tensor::from_i64(&[values.len() as u64], values);
    let fail = |data: &str| failure(1, &train(data, &model, &["--steps", "1"]));
    let data = folder.archive("range.npz", &[("x", &zeros(2)), ("y", &labels(&[3, 10]))]);
    assert_says(&fail(&data), &["label 10", "step 1", "range.npz"]);
    let data = folder.archive("negative.npz", &[("x", &zeros(2)), ("y", &labels(&[3, -1]))]);
    assert_says(&fail(&data), &["label -1"]);
    let data = folder.archive("missing.npz", &[("x", &zeros(2))]);
    assert_says(&fail(&data), &["missing.npz", "labels"]);
    let data = folder.archive("count.npz", &[("x", &zeros(2)), ("y", &labels(&[0]))]);
    assert_says(&fail(&data), &["[y]", "2 samples"]);
    let data = folder.archive("shape.npz", &[("x", &labels(&[0, 0])), ("y", &labels(&[0, 0]))]);
    assert_says(&fail(&data), &["[x]", "[samples, 1, 8, 8]"]);
    let whole = std::fs::read(digits_data()).unwrap();
    assert_says(&fail(&folder.write("half.npz", &whole[..whole.len() / 2])), &["half.npz"]);
    assert_says(&fail(&format!("{}#0..2000", digits_data())), &["0..2000", "1797"]);
    assert_says(&fail(&Folder::new().text("")), &["one per class"]);
}

#[test]
fn a_budget_below_the_minimum_says_the_minimum_and_who_sets_it() {
    let (model, data) = (digits_model(), digits_data());
    let plan = ["plan", &model, "--train", "--batch-size", "50"];
    let report = common::json(&plan);
    let minimum = forebay::format_bytes(report["minimum_budget_bytes"].as_u64().unwrap());
    let operator = report["minimum_launch"].as_str().unwrap().to_owned();
    let error = failure(1, &[plan.as_slice(), &["--simulate-device", "64KiB"]].concat());
    assert_says(&error, &[&operator]);
    let error_of_training = failure(1, &train(&data, &model, &["--steps", "1", "--simulate-device", "64KiB"]));
    assert_says(&error_of_training, &[&operator]);
    assert!(error.contains(&minimum) || error.contains(&report["minimum_budget_bytes"].to_string()), "{error}");
}

#[test]
fn data_whose_path_is_not_text() {
    use std::os::unix::ffi::OsStrExt;
    let model = digits_model();
    let path = std::ffi::OsStr::from_bytes(b"d\xff.npz");
    for (arguments, what) in [(&["train", &model, "--data"][..], "--data <DATA>"), (&["data"], "<DATA>")] {
        let output = common::forebay(arguments).arg(path).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_says(&common::texts(&output).1, &["d\u{fffd}.npz", what, "not UTF-8", "symbolic link"]);
    }
}

#[test]
fn a_budget_file_that_says_nothing() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let missing = folder.text("missing");
    let with = |file: &str| failure(1, &train(&data, &model, &["--steps", "1", "--device-memory-file", file]));
    assert_says(&with(&missing), &["budget file", "missing"]);
    assert_says(&with(&folder.write("budget", b"much")), &["budget", "'much' is not a memory size"]);
}

#[test]
fn a_host_that_is_full() {
    let (model, data) = (digits_model(), digits_data());
    let flags = ["--steps", "1", "--device-memory", "60%", "--host-memory", "64KiB"];
    assert_says(&failure(1, &train(&data, &model, &flags)), &["host"]);
}

#[test]
fn outputs_that_cannot_be_written_are_found_before_anything_runs() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let inputs = folder.archive("x.npz", &[("x", &zeros(2))]);
    let file = folder.write("file", b"");
    let below = format!("{file}/below");
    assert_says(&failure(1, &["run", &model, "--inputs", &inputs, "--output-dir", &below]), &["below"]);
    assert_says(&failure(1, &["run", &model, "--inputs", &inputs, "--trace", &below]), &["below"]);
    for flag in ["--save", "--checkpoint", "--trace"] {
        assert_says(&failure(1, &train(&data, &model, &["--steps", "1", flag, &below])), &["below"]);
    }
    let directory = folder.text("");
    assert_says(&failure(1, &train(&data, &model, &["--steps", "1", "--save", &directory])), &["folder"]);
}

#[test]
fn corrupt_checkpoints() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let checkpoint = folder.text("run");
    success(&train(&data, &model, &["--steps", "1", "--checkpoint", &checkpoint]));
    let resume = train(&data, &model, &["--steps", "2", "--resume", &checkpoint]);
    assert_says(&failure(2, &train(&data, &model, &["--steps", "1", "--resume", &checkpoint])), &["at step 1"]);
    assert_says(&failure(2, &[resume.as_slice(), &["--shuffle", "1"]].concat()), &["--shuffle"]);
    let fewer = format!("{data}#0..100");
    assert_says(&failure(1, &train(&fewer, &model, &["--steps", "2", "--resume", &checkpoint])), &["1797"]);
    assert_says(&failure(1, &[resume.as_slice(), &["--momentum", "0.9"]].concat()), &["checkpoint"]);
    for entry in std::fs::read_dir(folder.path("run")).unwrap() {
        let path = entry.unwrap().path();
        // The run's configuration is not part of its checkpoint.
        if path.ends_with("config.toml") {
            continue;
        }
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x10;
        for bytes in [&whole[..whole.len() / 2], &flipped, b""] {
            std::fs::write(&path, bytes).unwrap();
            assert_says(&failure(1, &resume), &["checkpoint"]);
        }
        std::fs::write(&path, whole).unwrap();
    }
    success(&resume);
    assert_says(&failure(1, &train(&data, &model, &["--resume", &folder.text("none")])), &["none"]);
}

#[test]
fn a_loss_that_is_no_number_is_reported_with_its_step() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let saved = folder.text("trained.onnx");
    let flags = ["--steps", "30", "--learning-rate", "1e30", "--save", &saved];
    assert_says(&failure(1, &train(&data, &model, &flags)), &["loss of step", "--on-nan"]);
    assert!(!folder.path("trained.onnx").exists());
    let output = success(&train(&data, &model, &[flags.as_slice(), &["--on-nan", "continue"]].concat()));
    assert_says(&output, &["warning: the loss of step", "step 30/30"]);
    assert!(folder.path("trained.onnx").exists());
}

#[test]
fn impossible_tiles() {
    let (model, data) = (digits_model(), digits_data());
    for (size, words) in [
        ("0", "zero"),
        ("3KiB", "power of two"),
        ("192KiB", "power of two"),
        ("64MiB", "smaller tiles or larger heaps"),
        ("2GiB", "the maximum is"),
    ] {
        let flags = ["--tile-size", size];
        for arguments in
            [train(&data, &model, &flags), vec!["plan", &model, flags[0], size], vec!["probe", flags[0], size]]
        {
            assert_says(&failure(2, &arguments), &[words]);
        }
    }
}

#[test]
fn variables_of_the_environment_without_meaning() {
    let model = digits_model();
    for (variable, text, words) in [
        ("FOREBAY_DEVICE_MEMORY", "much", "--device-memory"),
        ("FOREBAY_HEAP_SIZE", "50%", "not a percentage"),
        ("FOREBAY_TILE_SIZE", "50%", "not a percentage"),
        ("FOREBAY_TILE_SIZE", "3072", "power of two"),
        ("FOREBAY_TILED", "no", "FOREBAY_TILED must be 0 or 1"),
        ("FOREBAY_GROWTH", "no", "FOREBAY_GROWTH must be 0 or 1"),
    ] {
        let output = forebay(&["plan", &model]).env(variable, text).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(text) && error.contains(words), "{error}");
    }
}
